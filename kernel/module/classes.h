/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Queue classes between a scheduler (fairq.ko) and an NVMe driver that has them (../nvme); both include this file.
 *
 * A scheduler writes a request's class into its own second word of the request, elv.priv[1]. The driver reads the word of
 * requests that a scheduler has had (RQF_USE_SCHED) as it puts the command into a queue. A word without the mark is no class,
 * so that the driver does not have to know which scheduler a drive has: Linux's own keep a pointer there, or nothing.
 *
 * All else goes through struct fairq_classes, which a scheduler finds by symbol_get(fairq_nvme_classes). So neither of the two
 * modules needs the other one to be loaded, and while a scheduler uses the driver, the driver stays.
 */
#ifndef FAIRQ_NVME_CLASSES_H
#define FAIRQ_NVME_CLASSES_H

#include <linux/blk-mq.h>

/* In the order of NVMe's queue priorities. */
enum { FAIRQ_URGENT, FAIRQ_HIGH, FAIRQ_MEDIUM, FAIRQ_LOW, FAIRQ_SQS };

/* The upper bits of a word that is a class; no address of the kernel has them. */
#define FAIRQ_CLASS_MARK 0xfa1c0000UL

static inline void fairq_set_class(struct request *rq, unsigned int class)
{
	rq->elv.priv[1] = (void *)(FAIRQ_CLASS_MARK | class);
}

static inline unsigned int fairq_class_of(const struct request *rq)
{
	unsigned long word = (unsigned long)rq->elv.priv[1];

	if (!(rq->rq_flags & RQF_USE_SCHED) || word - FAIRQ_CLASS_MARK >= FAIRQ_SQS)
		return FAIRQ_MEDIUM;
	return word - FAIRQ_CLASS_MARK;
}

struct fairq_classes {
	/* Why the drive of this queue has no classes; NULL: it has. */
	const char *(*refusal)(struct request_queue *q);
	/* Sets the commands of each class in a round, 1 to 256, now and after each reset. May sleep. */
	int (*set_weights)(struct request_queue *q, u16 high, u16 medium, u16 low);
};

extern const struct fairq_classes fairq_nvme_classes;

#endif
