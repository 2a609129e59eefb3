/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The interface of the schedulers, which are written in Rust: the functions that ../core/src/lib.rs
 * exports and those that it imports. A change of one of the two files needs the same change of the
 * other.
 *
 * Functions that take a port are called under that port's lock, with interrupts off. The
 * schedulers' own locks are made by fairq_lock_init() and are acquired after all others.
 */
#ifndef FAIRQ_CORE_H
#define FAIRQ_CORE_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
/* For ../check/core.c, which runs the schedulers in a user program. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#define __noreturn __attribute__((noreturn))
#endif

#define FAIRQ_PORTS 256
/* The most knobs of a scheduler; the most bytes of a scheduler's or knob's name, with its zero. */
#define FAIRQ_KNOBS 32
#define FAIRQ_NAME 32

struct fairq_engine;

/* A set of ports, a bit for each. */
struct fairq_wake {
	u64 words[FAIRQ_PORTS / 64];
};

enum { FAIRQ_READ, FAIRQ_WRITE, FAIRQ_DISCARD, FAIRQ_WRITE_ZEROES };

/* A request, or the growth of one. */
struct fairq_order {
	u64 flow;
	u64 offset;
	u32 length;
	u32 tag;
	u32 op;
};

enum { FAIRQ_NOTHING, FAIRQ_ISSUE, FAIRQ_WAIT };

/* The next step of a port. */
struct fairq_chosen {
	u32 what;
	u32 tag;
	u64 until_ns;
};

/* Commands of each class of the device in a round, 1 to 256. */
struct fairq_class_weights {
	u16 high;
	u16 medium;
	u16 low;
};

/* The state of a scheduler. */
struct fairq_state {
	u64 slots;
	u64 free_slots;
	u64 throttles;
	u64 blocks;
	u64 wakes;
	u64 periods;
	/* The state of the search for D: FAIRQ_GIVEN and so on. */
	u32 search;
};

enum { FAIRQ_GIVEN, FAIRQ_SEARCHING, FAIRQ_FOUND, FAIRQ_ALL_DEMAND, FAIRQ_ALONE };

/* A port's statistics of a flow. */
struct fairq_flow_state {
	u32 staged;
	u32 in_flight;
	u64 lag;
	bool has_lag;
};

/* The numbers behind a decision; all ones for a number that the scheduler does not have. */
struct fairq_why {
	u64 virtual_time;
	u64 start_tag;
	u32 free_slots;
	u32 held;
};

enum { FAIRQ_NOT_HELD, FAIRQ_AHEAD, FAIRQ_NO_SLOT, FAIRQ_CAP };

/* The value of a knob that was set; knobs are counted from 0. */
struct fairq_key {
	u32 knob;
	u64 value;
};

/* The parameters of an engine. */
struct fairq_wanted {
	u32 scheduler;
	u32 ports;
	u32 flows;
	u32 tags;
	u32 slots;
	const struct fairq_key *keys;
	u32 key_count;
};

/* A new weight of a flow, in 256ths. */
struct fairq_weight {
	u64 flow;
	u32 weight;
};

/* The most weights in one call. */
#define FAIRQ_WEIGHTS 8

/* A change of a running scheduler. */
struct fairq_change {
	u32 what;
	u64 value;
};

enum { FAIRQ_BUILT_ANEW, FAIRQ_SLOTS, FAIRQ_AUTO_SLOTS, FAIRQ_THRESHOLD };

/* The most memory of an engine, in bytes; ../check/core.c checks it. */
static inline u64 fairq_core_size(u32 ports, u32 tags, u32 flows)
{
	return (u64)ports * (tags * 224ULL + flows * 48ULL + 5120) + flows * 448ULL + 49152;
}

/* The most memory of knobs and names, in bytes; ../check/core.c checks it. */
#define FAIRQ_SCRATCH 16384

/*
 * The functions from here to fairq_core_new() may sleep, and allocate from the memory that
 * fairq_core_lend() has lent before; only one of them may run at a time.
 */

/* Lends this memory (NULL: none); returns the bytes used of the memory lent before. */
size_t fairq_core_lend(void *memory, size_t size);

/* Writes the name without a zero; returns its length, 0 if nothing has this number. */
size_t fairq_core_name(u32 scheduler, char *text, size_t size);
size_t fairq_core_knob(u32 scheduler, u32 knob, char *text, size_t size);
/* Returns 0: a value; 1: a text that restores the default; less than 0: not a value. */
int fairq_core_parse(u32 scheduler, u32 knob, const char *text, size_t size, u64 *value);
/* The value of a knob with these keys, as text. */
size_t fairq_core_value(u32 scheduler, u32 knob, u32 slots, const struct fairq_key *keys, u32 key_count,
			char *text, size_t size);
void fairq_core_change(u32 scheduler, u32 knob, u32 slots, bool is_given, u64 value, struct fairq_change *change);

/*
 * Returns 0 if the engine was built; 1 if there is no engine with this number, shape and keys; 2 if
 * there is not enough memory. The engine is in the memory that was lent, and exists until that is
 * freed.
 */
int fairq_core_new(const struct fairq_wanted *wanted, struct fairq_engine **engine);

/* Whether it needs a device with queue classes. */
bool fairq_core_needs_classes(u32 scheduler);

/* Returns 0: staged; 1 to 4: to be sent at once, in the class of this number less 1 (classes.h); less than 0: refused. */
int fairq_core_submit(struct fairq_engine *engine, u32 port, u64 now_ns, const struct fairq_order *order,
		      struct fairq_wake *wake);
void fairq_core_next(struct fairq_engine *engine, u32 port, u64 now_ns, struct fairq_chosen *chosen,
		     struct fairq_wake *wake);
void fairq_core_complete(struct fairq_engine *engine, u32 port, u64 now_ns, u32 tag, struct fairq_wake *wake);
/* Returns 0: staged again; 1 to 4: to be sent at once, as above; less than 0: it was not issued. */
int fairq_core_requeue(struct fairq_engine *engine, u32 port, u64 now_ns, u32 tag, struct fairq_wake *wake);
bool fairq_core_grow(struct fairq_engine *engine, u32 port, u64 now_ns, const struct fairq_order *order,
		     struct fairq_wake *wake);
/*
 * Removes a staged request that was merged, without a charge. Returns false if it was not staged.
 */
bool fairq_core_cancel(struct fairq_engine *engine, u32 port, u64 now_ns, u32 tag, struct fairq_wake *wake);
bool fairq_core_has_work(struct fairq_engine *engine, u32 port);
bool fairq_core_admits(struct fairq_engine *engine, u32 port, u64 flow);

u64 fairq_core_root(struct fairq_engine *engine);
/* Weights are in 256ths. Returns false if all flows are in use. */
bool fairq_core_add_flow(struct fairq_engine *engine, u32 weight, u64 *flow);
/* At most FAIRQ_WEIGHTS of them. */
void fairq_core_set_weights(struct fairq_engine *engine, const struct fairq_weight *weights, u32 count);
void fairq_core_remove_flow(struct fairq_engine *engine, u64 flow, struct fairq_wake *wake);
/* Returns the time of the next call in ns, or 0 for none. */
u64 fairq_core_tick(struct fairq_engine *engine, u64 now_ns, struct fairq_wake *wake);
bool fairq_core_tune(struct fairq_engine *engine, const struct fairq_change *change, struct fairq_wake *wake);
/* The weights that the classes of the device are to have; false: it uses none. */
bool fairq_core_class_weights(struct fairq_engine *engine, struct fairq_class_weights *weights);
void fairq_core_tell(struct fairq_engine *engine, struct fairq_state *state);
/* Under the port's lock. */
void fairq_core_tell_flow(struct fairq_engine *engine, u32 port, u64 flow, struct fairq_flow_state *state);
/*
 * The numbers behind this request's decision or, if `tag` is all ones, behind that to send none;
 * under the port's lock.
 */
void fairq_core_why(struct fairq_engine *engine, u32 port, u32 tag, struct fairq_why *why);

/* The functions that the schedulers import. */

/* Space for a spin lock of any kernel configuration, in u64. */
#define FAIRQ_LOCK_WORDS 12

/* Locks of the same data have the same `kind`. They are made while an engine is built. */
void fairq_lock_init(void *lock, u64 kind);
unsigned long fairq_lock(void *lock);
void fairq_unlock(void *lock, unsigned long flags);
void __noreturn fairq_panicked(const char *text, size_t length);

#endif
