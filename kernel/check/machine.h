/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A machine of several CPUs whose steps come in random order: machine.c. */
#ifndef FAIRQ_CHECK_MACHINE_H
#define FAIRQ_CHECK_MACHINE_H

#include "fairq.h"

/* One that runs: a CPU with what it does. */
struct runner {
	/* Where it stands, while another one runs. */
	void *stands;
	void (*function)(struct runner *self);
	/* Whether it has something to do. */
	bool (*has_something)(struct runner *self);
	u32 number;
	bool is_interrupt, is_idle, is_done;
	/* The locks that it has: the queue's, or a port's, or a port's within the queue's. */
	bool has_queues, has_ports;
	/* The number of raw locks, which are inside all others, that it holds. */
	u32 raws;
	/* It is preempted until so many steps have been taken. */
	u64 away_until;
	/* Every other allocation of it fails. */
	bool is_short_of_memory;
};

/* Which interleaving of which scheduler this is. */
extern char name[FAIRQ_NAME];
extern u64 interleaving;
extern struct request_queue queue;
extern u64 now;
extern struct hrtimer *timers;

u32 chance(u32 of);
/* A machine without runners, timers, work and memory that was not given back. */
void start_machine(u64 number, u64 seed);
void add_runner(void (*function)(struct runner *), bool (*has)(struct runner *), u32 number, bool is_interrupt);
/* The CPUs' own work: two that take timers' interrupts, and two threads for work. */
void add_kernel(void);
/* Runs one of those that can for a step. False: none can. */
bool run_one(void);
/* For a runner: there is nothing to do until its has_something() says so, or `holds` does. */
void idle(void);
void wait_until(bool (*holds)(struct runner *self));

#endif
