/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A model of a machine: runners take steps in random order. See machine.c. */
#ifndef FAIRQ_CHECK_MACHINE_H
#define FAIRQ_CHECK_MACHINE_H

#include "fairq.h"

/* A runner: a task, a thread or an interrupt of the machine, on a CPU of its own. */
struct runner {
	/* Its stack pointer, saved while another runner runs. */
	void *stands;
	void (*function)(struct runner *self);
	/* Whether an idle runner can go on. */
	bool (*has_something)(struct runner *self);
	u32 number;
	bool is_interrupt, is_idle, is_done;
	/* Whether it holds the queue's lock and a port's lock; it takes the queue's lock first. */
	bool has_queues, has_ports;
	/* The number of raw locks that it holds; they are taken after all other locks. */
	u32 raws;
	/* It is preempted until the machine has taken this number of steps. */
	u64 away_until;
	/* Half of its allocations fail, at random. */
	bool is_short_of_memory;
};

/* The name of the scheduler and the number of the interleaving, for messages. */
extern char name[FAIRQ_NAME];
extern u64 interleaving;
extern struct request_queue queue;
extern u64 now;
extern struct hrtimer *timers;

u32 chance(u32 of);
/* Starts a machine without runners, timers and work, whose memory is all free. */
void start_machine(u64 number, u64 seed);
void add_runner(void (*function)(struct runner *), bool (*has)(struct runner *), u32 number, bool is_interrupt);
/* Adds the kernel's runners: two that run expired timers, and two that run work items. */
void add_kernel(void);
/* Lets a random runner that can run take a step. Returns false if none can. */
bool run_one(void);
/* For the running runner: waits until its has_something(), or `holds`, returns true. */
void idle(void);
void wait_until(bool (*holds)(struct runner *self));

#endif
