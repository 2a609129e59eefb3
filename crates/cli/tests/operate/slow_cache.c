/* Simulates a disk that is slow for the page cache: while the file FAIRQ_DISK.wait exists,
   each writeback that the server starts itself waits. FAIRQ_DISK is made when one waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int sync_file_range(int fd, off64_t offset, off64_t count, unsigned int flags)
{
	int (*sync)(int, off64_t, off64_t, unsigned int) = dlsym(RTLD_NEXT, "sync_file_range");
	unsigned int all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
	const char *file = getenv("FAIRQ_DISK");
	char wait[4096];

	if (file && flags == all) {
		snprintf(wait, sizeof(wait), "%s.wait", file);
		while (access(wait, F_OK) == 0) {
			close(open(file, O_CREAT | O_WRONLY, 0600));
			usleep(1000);
		}
	}
	return sync(fd, offset, count, flags);
}
