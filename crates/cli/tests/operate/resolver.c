/* A directory service for tests, which replaces that of the C library. It knows the user `alice` and
   no group. FAIRQ_LOOKUPS is a file that gets a line for each lookup: whether the thread is the first
   one of the process, and the name. While the file FAIRQ_LOOKUPS.wait exists, no lookup ends;
   FAIRQ_LOOKUP_MS is the time that each lookup takes. */
#define _GNU_SOURCE
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void look_up(const char *name)
{
	const char *file = getenv("FAIRQ_LOOKUPS");
	char wait[4096];
	FILE *log = file ? fopen(file, "a") : NULL;

	if (!log)
		return;
	fprintf(log, "%s %s\n", getpid() == gettid() ? "main" : "other", name);
	fclose(log);
	snprintf(wait, sizeof(wait), "%s.wait", file);
	while (access(wait, F_OK) == 0)
		usleep(1000);
	if (getenv("FAIRQ_LOOKUP_MS"))
		usleep(1000 * atoi(getenv("FAIRQ_LOOKUP_MS")));
}

int getpwnam_r(const char *name, struct passwd *entry, char *buffer, size_t size,
	       struct passwd **found)
{
	look_up(name);
	memset(entry, 0, sizeof(*entry));
	entry->pw_uid = 1234;
	*found = strcmp(name, "alice") == 0 ? entry : NULL;
	return 0;
}

int getgrnam_r(const char *name, struct group *entry, char *buffer, size_t size,
	       struct group **found)
{
	look_up(name);
	*found = NULL;
	return 0;
}
