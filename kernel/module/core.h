/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The schedulers, which are Rust: what ../core/src/lib.rs gives and takes. The two are changed together.
 *
 * Functions that take a port are called under that port's lock, with interrupts off. The others, but
 * for fairq_core_new() and fairq_core_free(), are called with interrupts off, since they take spin
 * locks that the former take.
 */
#ifndef FAIRQ_CORE_H
#define FAIRQ_CORE_H

#include <linux/types.h>

#define FAIRQ_PORTS 256

struct fairq_engine;

/* A set of ports, a bit for each. */
struct fairq_wake {
	u64 words[FAIRQ_PORTS / 64];
};

enum { FAIRQ_READ, FAIRQ_WRITE, FAIRQ_DISCARD, FAIRQ_WRITE_ZEROES };

/* A request, or what one has grown by. */
struct fairq_order {
	u64 flow;
	u64 offset;
	u32 length;
	u32 tag;
	u32 op;
};

enum { FAIRQ_NOTHING, FAIRQ_ISSUE, FAIRQ_WAIT };

/* What a port may do next. */
struct fairq_chosen {
	u32 what;
	u32 tag;
	u64 until_ns;
};

/* What a scheduler tells of itself. */
struct fairq_told {
	u64 slots;
	u64 free_slots;
	u64 throttles;
	u64 blocks;
	u64 wakes;
	u64 periods;
};

enum { FAIRQ_SLOTS, FAIRQ_THRESHOLD };

/* May sleep. NULL: there is no scheduler of this name, or not of this shape. */
struct fairq_engine *fairq_core_new(const char *name, size_t length, u32 ports, u32 flows, u32 tags, u32 slots);
void fairq_core_free(struct fairq_engine *engine);

/* 0: staged; 1: it goes at once; less: refused. */
int fairq_core_submit(struct fairq_engine *engine, u32 port, u64 now_ns, const struct fairq_order *order,
		      struct fairq_wake *wake);
void fairq_core_next(struct fairq_engine *engine, u32 port, u64 now_ns, struct fairq_chosen *chosen,
		     struct fairq_wake *wake);
void fairq_core_complete(struct fairq_engine *engine, u32 port, u64 now_ns, u32 tag, struct fairq_wake *wake);
/* 0: staged again; 1: it goes at once; less: it was not issued. */
int fairq_core_requeue(struct fairq_engine *engine, u32 port, u64 now_ns, u32 tag, struct fairq_wake *wake);
bool fairq_core_grow(struct fairq_engine *engine, u32 port, u64 now_ns, const struct fairq_order *order,
		     struct fairq_wake *wake);
bool fairq_core_has_work(struct fairq_engine *engine, u32 port);
bool fairq_core_admits(struct fairq_engine *engine, u32 port, u64 flow);

u64 fairq_core_root(struct fairq_engine *engine);
/* Weights are in 256ths. False: there are as many flows as there can be. */
bool fairq_core_add_flow(struct fairq_engine *engine, u32 weight, u64 *flow);
void fairq_core_set_weight(struct fairq_engine *engine, u64 flow, u32 weight);
void fairq_core_remove_flow(struct fairq_engine *engine, u64 flow, struct fairq_wake *wake);
/* When it is to be called again; 0: not. */
u64 fairq_core_tick(struct fairq_engine *engine, u64 now_ns, struct fairq_wake *wake);
bool fairq_core_tune(struct fairq_engine *engine, u32 what, u64 value, struct fairq_wake *wake);
void fairq_core_tell(struct fairq_engine *engine, struct fairq_told *told);

/* What the schedulers take from here. */
void *fairq_memory_take(size_t size, size_t align);
void fairq_memory_give(void *memory, size_t size);
void __noreturn fairq_panicked(const char *text, size_t length);

#endif
