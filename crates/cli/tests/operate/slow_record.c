/* Simulates a disk that is slow for the layout record only: while the file FAIRQ_RECORD.wait
   exists, each flush by the thread that writes the record waits. FAIRQ_RECORD is made when one
   waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int fdatasync(int fd)
{
	int (*flush)(int) = dlsym(RTLD_NEXT, "fdatasync");
	const char *file = getenv("FAIRQ_RECORD");
	char name[16] = "", wait[4096];

	prctl(PR_GET_NAME, name);
	if (file && strcmp(name, "fairq-layout") == 0) {
		snprintf(wait, sizeof(wait), "%s.wait", file);
		while (access(wait, F_OK) == 0) {
			close(open(file, O_CREAT | O_WRONLY, 0600));
			usleep(1000);
		}
	}
	return flush(fd);
}
