/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * polled DEVICE CLASS COUNT: reads of one block by polled io_uring passthrough (/dev/ng0n1), each with a queue class (0 urgent, 1
 * high, 2 medium, 3 low), one after the other. Prints the mean time of one.
 *
 * This is the shortest way to a drive that the stock kernel has: the command is the caller's, the block layer adds a request, and
 * the completion queue is polled. The driver's parameter passthrough_classes=1 makes it use the class, and poll_queues=1 makes it
 * create a queue for polling.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/nvme_ioctl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what)
{
	fprintf(stderr, "polled: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *map(int ring, size_t size, off_t offset)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

int main(int count, char **words)
{
	struct io_uring_params params = { .flags = IORING_SETUP_IOPOLL | IORING_SETUP_SQE128 | IORING_SETUP_CQE32 };
	unsigned int *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask, at;
	struct nvme_uring_cmd *command;
	struct io_uring_sqe *sqe;
	int drive, ring, space, i;
	char *sq, *cq, *sqes;
	double begun;
	void *data;

	if (count != 4) {
		fprintf(stderr, "usage: polled DEVICE CLASS COUNT\n");
		return 2;
	}
	drive = open(words[1], O_RDONLY);
	if (drive < 0)
		die(words[1]);
	space = ioctl(drive, NVME_IOCTL_ID);
	ring = syscall(SYS_io_uring_setup, 1, &params);
	if (space < 0 || ring < 0 || posix_memalign(&data, 4096, 4096))
		die("io_uring");
	sq = map(ring, params.sq_off.array + params.sq_entries * sizeof(unsigned int), IORING_OFF_SQ_RING);
	cq = map(ring, params.cq_off.cqes + params.cq_entries * 32, IORING_OFF_CQ_RING);
	sqes = map(ring, params.sq_entries * 128, IORING_OFF_SQES);
	sq_tail = (void *)(sq + params.sq_off.tail);
	sq_mask = (void *)(sq + params.sq_off.ring_mask);
	sq_array = (void *)(sq + params.sq_off.array);
	cq_head = (void *)(cq + params.cq_off.head);
	cq_tail = (void *)(cq + params.cq_off.tail);
	cq_mask = (void *)(cq + params.cq_off.ring_mask);
	begun = now();
	for (i = 0; i < atoi(words[3]); i++) {
		struct io_uring_cqe *cqe;

		at = *sq_tail & *sq_mask;
		sqe = (void *)(sqes + at * 128);
		memset(sqe, 0, 128);
		sqe->opcode = IORING_OP_URING_CMD;
		sqe->fd = drive;
		sqe->cmd_op = NVME_URING_CMD_IO;
		command = (void *)sqe->cmd;
		command->opcode = 2;
		command->nsid = space;
		command->cdw3 = 0xfu << 28 | (unsigned int)atoi(words[2]) << 24;
		command->addr = (uintptr_t)data;
		command->data_len = 512;
		sq_array[at] = at;
		__atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
		if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
			die("io_uring_enter");
		if (__atomic_load_n(cq_tail, __ATOMIC_ACQUIRE) == *cq_head)
			die("no completion");
		cqe = (void *)(cq + params.cq_off.cqes + (*cq_head & *cq_mask) * 32);
		errno = -cqe->res;
		if (cqe->res)
			die("read");
		__atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
	}
	printf("%d polled reads, %.0f us each\n", i, (now() - begun) / i);
	return 0;
}
