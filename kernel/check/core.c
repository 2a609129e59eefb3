/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls the schedulers' C functions at random, in a program, on a stack whose use is measured. The
 * code of the schedulers is the machine code that the module contains. The program fails if
 *
 * - a call uses more stack than BUILD bytes (building a scheduler), TICK (a tick, which a thread
 *   calls) or VERB (any other function). The kernel's stack has 16 KiB, of which the selection of a
 *   scheduler already uses some 3 KiB, and a request of a file system on a stacked drive up to 10;
 * - a scheduler uses more memory than fairq_core_size() returns, a verb allocates memory, or the
 *   functions of knobs use more than FAIRQ_SCRATCH;
 * - a request is lost, is dispatched twice, or stays staged though the scheduler could dispatch it.
 *
 * Prints the use of stack and memory of each scheduler. Stack is bounded only with --stack.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../module/core.h"
#include "thunks.h"

#define BUILD 8192
#define VERB 1536
#define TICK 3072

#define STACK (256 << 10)
#define PAINT 0xa5
#define ARENA (3ULL << 30)
#define FLOWS 8
#define MOST_TAGS 64

static unsigned char stack[STACK] __attribute__((aligned(64)));
static unsigned char *arena;
static const char *scheduler_name = "", *now = "";

static void __noreturn fail(const char *format, ...)
{
	va_list rest;

	va_start(rest, format);
	fprintf(stderr, "kernel/check: %s: ", scheduler_name);
	vfprintf(stderr, format, rest);
	fprintf(stderr, "\n");
	exit(1);
}

void fairq_lock_init(void *lock, u64 kind) { *(u64 *)lock = kind * 0; }
unsigned long fairq_lock(void *lock) { return ++*(u64 *)lock == 1 ? 1 : 0; }
void fairq_unlock(void *lock, unsigned long flags)
{
	if (!flags || --*(u64 *)lock)
		fail("%s takes a lock that it already holds", now);
}

void __noreturn fairq_panicked(const char *text, size_t length)
{
	fail("panicked: %.*s", (int)length, text);
}

/* Calls the function on the painted stack; returns the number of bytes of stack that it used. */
static size_t on_stack(void (*function)(void), size_t size)
{
	size_t left;

	memset(stack + STACK - size, PAINT, size);
	asm volatile("mov %%rsp, %%rbx\n\tmov %0, %%rsp\n\tcall *%1\n\tmov %%rbx, %%rsp"
		     : : "r"(stack + STACK), "r"(function)
		     : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
	for (left = STACK - size; left < STACK && stack[left] == PAINT; left++)
		;
	return STACK - left;
}

static unsigned int seed = 1;

static unsigned int chance(unsigned int of)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 12) % of;
}

static struct fairq_engine *engine;
static struct fairq_wanted wanted;
/* Volatile: the compiler does not see that on_stack() calls what writes it. */
static volatile int answer;

/* The arguments and results of the functions below. */
static struct fairq_order order;
static struct fairq_chosen chosen;
static struct fairq_wake wake;
static struct fairq_change change;
static struct fairq_state told;
static struct fairq_flow_state flow_told;
static struct fairq_why why;
static u32 port;
static u64 now_ns, flow;
static volatile u64 next_ns;
static u32 weight;
static struct fairq_weight weights[FAIRQ_WEIGHTS];

static char text[64];
static u64 value;

static size_t most_scratch;

/* Lends memory for one call, and updates the most that a call has used. */
static void lend(void)
{
	size_t used = fairq_core_lend(arena, FAIRQ_SCRATCH);

	most_scratch = used > most_scratch ? used : most_scratch;
}

/* Calls the functions behind the files of queue/iosched, for each knob. */
static void knobs(void)
{
	u32 knob, scheduler = wanted.scheduler;
	size_t length;

	for (knob = 0; lend(), fairq_core_knob(scheduler, knob, text, sizeof(text)); knob++) {
		lend();
		length = fairq_core_value(scheduler, knob, wanted.slots, wanted.keys, wanted.key_count, text, sizeof(text));
		lend();
		if (!length || fairq_core_parse(scheduler, knob, text, length, &value) < 0)
			fail("the value of knob %u cannot be written back: %.*s", knob, (int)length, text);
		fairq_core_change(scheduler, knob, wanted.slots, true, value, &change);
	}
	lend();
	if (knob > FAIRQ_KNOBS)
		fail("%u knobs, more than %d", knob, FAIRQ_KNOBS);
}

static void new(void) { answer = fairq_core_new(&wanted, &engine); }
static void submit(void) { answer = fairq_core_submit(engine, port, now_ns, &order, &wake); }
static void next(void) { fairq_core_next(engine, port, now_ns, &chosen, &wake); }
static void complete(void) { fairq_core_complete(engine, port, now_ns, order.tag, &wake); }
static void requeue(void) { answer = fairq_core_requeue(engine, port, now_ns, order.tag, &wake); }
static void grow(void) { answer = fairq_core_grow(engine, port, now_ns, &order, &wake); }
static void has_work(void) { answer = fairq_core_has_work(engine, port); }
static void admits(void) { answer = fairq_core_admits(engine, port, flow); }
static void add(void) { answer = fairq_core_add_flow(engine, weight, &flow); }
static void weigh(void) { fairq_core_set_weights(engine, weights, FAIRQ_WEIGHTS); }
static void take_away(void) { fairq_core_remove_flow(engine, flow, &wake); }
static void tick(void) { next_ns = fairq_core_tick(engine, now_ns, &wake); }
static void tune(void) { answer = fairq_core_tune(engine, &change, &wake); }
static struct fairq_class_weights classes;
static void weights_of(void) { answer = fairq_core_class_weights(engine, &classes); }
static void tell(void) { fairq_core_tell(engine, &told); }
static void tell_flow(void) { fairq_core_tell_flow(engine, port, flow, &flow_told); }
static void explain(void) { fairq_core_why(engine, port, order.tag, &why); }

static bool measures_stack;
static size_t most_verb, most_tick;
static const char *most_name;

static void verb(void (*function)(void), const char *name)
{
	size_t took, most = function == tick ? TICK : VERB;

	now = name;
	took = on_stack(function, 4 << 10);
	if (measures_stack && took > most)
		fail("%s takes %zu bytes of stack, more than %zu", name, took, most);
	if (function == tick) {
		most_tick = took > most_tick ? took : most_tick;
	} else if (took > most_verb) {
		most_verb = took;
		most_name = name;
	}
}
#define VERB_OF(function) verb(function, #function)

enum { FREE, STAGED, ISSUED };

static unsigned char place[FAIRQ_PORTS][MOST_TAGS];
static u32 count[3];
static u64 wait_ns;

static void put(u32 tag, int to)
{
	count[place[port][tag]]--;
	count[to]++;
	place[port][tag] = to;
}

/* Dispatches requests of the port until the scheduler returns none. */
static void ask(void)
{
	for (;;) {
		VERB_OF(next);
		if (chosen.what == FAIRQ_WAIT && chosen.until_ns < wait_ns)
			wait_ns = chosen.until_ns;
		if (chosen.what != FAIRQ_ISSUE)
			break;
		if (chosen.tag >= wanted.tags || place[port][chosen.tag] != STAGED)
			fail("dispatches request %u of port %u, which is not staged", chosen.tag, port);
		put(chosen.tag, ISSUED);
		order.tag = chosen.tag;
		VERB_OF(explain);
	}
	order.tag = ~0U;
	VERB_OF(explain);
}

static void settle(void)
{
	u32 own = port, round;

	ask();
	for (round = 0; round < 10000; round++) {
		for (port = 0; port < wanted.ports; port++)
			if (wake.words[port / 64] & (1ULL << (port % 64)))
				break;
		if (port == wanted.ports)
			break;
		wake.words[port / 64] &= ~(1ULL << (port % 64));
		ask();
	}
	if (round == 10000)
		fail("ports wake each other without end");
	port = own;
}

static bool needs_classes(void) { return fairq_core_needs_classes(wanted.scheduler); }

/* A scheduler of classes holds nothing back; any other one issues all in the medium class. */
static void check_class(void)
{
	if (answer > 4 || (needs_classes() ? answer == 0 : answer > 0 && answer != 3))
		fail("%s answers %d", now, answer);
}

static void drive(u32 steps)
{
	u64 flows[FLOWS];
	u32 step, i, tag, idle;

	memset(place, FREE, sizeof(place));
	memset(count, 0, sizeof(count));
	wait_ns = ~0ULL;
	now_ns = next_ns = 1000000;
	for (i = 0; i < FLOWS; i++) {
		weight = 256 * (1 + chance(1000));
		VERB_OF(add);
		flows[i] = flow;
	}
	for (step = 0; step < steps; step++) {
		now_ns += chance(100000);
		port = chance(wanted.ports);
		flow = flows[chance(FLOWS)];
		tag = chance(wanted.tags);
		order = (struct fairq_order) {
			.flow = flow, .offset = (u64)chance(1000000) << 12, .length = 512 << chance(8), .tag = tag,
			.op = chance(10) ? chance(2) : chance(4),
		};
		weight = 256 * (1 + chance(1000));
		if (now_ns >= next_ns || !chance(64))
			VERB_OF(tick);
		switch (place[port][tag]) {
		case FREE:
			VERB_OF(submit);
			if (answer < 0)
				fail("a request was refused");
			check_class();
			put(tag, answer ? ISSUED : STAGED);
			break;
		case STAGED:
			order.length = 4096;
			VERB_OF(grow);
			break;
		default:
			if (!chance(16)) {
				VERB_OF(requeue);
				check_class();
				if (answer >= 0)
					put(tag, answer ? ISSUED : STAGED);
			} else {
				VERB_OF(complete);
				put(tag, FREE);
			}
		}
		settle();
		VERB_OF(has_work);
		VERB_OF(admits);
		VERB_OF(tell);
		VERB_OF(tell_flow);
		VERB_OF(weights_of);
		if (answer != needs_classes())
			fail("has weights for classes that it does not need, or none");
		if (answer && (!classes.high || classes.high > 256 || classes.medium > classes.high || !classes.low ||
			       classes.low > classes.medium))
			fail("has weights of %u, %u and %u", classes.high, classes.medium, classes.low);
		if (!chance(32)) {
			for (i = 0; i < FAIRQ_WEIGHTS; i++)
				weights[i] = (struct fairq_weight) { flows[chance(FLOWS)], 256 * (1 + chance(1000)) };
			VERB_OF(weigh);
		}
		if (!chance(200)) {
			i = chance(FLOWS);
			flow = flows[i];
			VERB_OF(take_away);
			settle();
			VERB_OF(add);
			flows[i] = answer ? flow : fairq_core_root(engine);
		}
		if (!chance(100)) {
			change.what = FAIRQ_SLOTS + chance(3);
			change.value = change.what == FAIRQ_SLOTS ? 1 + chance(64) : chance(1 << 20);
			VERB_OF(tune);
			settle();
		}
	}
	/* Completes all requests that are left; the scheduler has to dispatch all staged ones. */
	for (idle = 0; count[STAGED] + count[ISSUED] && idle < 2000; idle++) {
		for (port = 0; port < wanted.ports; port++) {
			for (tag = 0; tag < wanted.tags; tag++) {
				if (place[port][tag] != ISSUED)
					continue;
				order.tag = tag;
				VERB_OF(complete);
				put(tag, FREE);
				settle();
				idle = 0;
			}
		}
		now_ns += 1000000;
		if (now_ns >= next_ns)
			VERB_OF(tick);
		if (now_ns >= wait_ns) {
			wait_ns = ~0ULL;
			memset(&wake, 0xff, sizeof(wake));
		}
		port = 0;
		settle();
	}
	if (count[STAGED])
		fail("%u requests are still staged, and none is on the device", count[STAGED]);
}

/*
 * Builds a scheduler of this shape. Updates the most stack used, in bytes, and the most memory
 * used, in percent of its bound.
 */
static void try_shape(u32 steps, size_t *most_build, u64 *most_percent)
{
	u64 bound = fairq_core_size(wanted.ports, wanted.tags, wanted.flows), used;
	size_t took;

	now = "building";
	fairq_core_lend(arena, bound);
	took = on_stack(new, STACK);
	used = fairq_core_lend(NULL, 0);
	if (answer)
		fail("cannot be built: %d", answer);
	if (took > *most_build)
		*most_build = took;
	if (used * 100 / bound > *most_percent)
		*most_percent = used * 100 / bound;
	if (steps)
		drive(steps);
}

int main(int count, char **words)
{
	static const u32 shapes[][3] = {
		{ 1, 128, 256 }, { 1, 1024, 256 }, { 2, 1024, 256 }, { 8, 1024, 256 }, { 64, 1024, 1023 },
		{ 256, 128, 256 }, { 16, 1024, 2048 }, { 2, 64, 64 }, { 4, 1024, 10000 },
		{ 1, 2, 2 }, { 3, 4, 6 }, { 6, 16, 32 },
	};
	char name[FAIRQ_NAME], key[FAIRQ_NAME];
	struct fairq_key keys[2];
	u32 i, knob, kind;
	size_t took;

	measures_stack = count > 1 && !strcmp(words[1], "--stack");
	arena = aligned_alloc(4096, ARENA);
	if (!arena)
		fail("no memory");
	for (wanted.scheduler = 0;; wanted.scheduler++) {
		size_t build = 0, length = fairq_core_name(wanted.scheduler, name, sizeof(name) - 1);
		u64 percent = 0;

		if (!length)
			break;
		name[length] = 0;
		scheduler_name = name;
		most_verb = most_tick = 0;
		wanted.slots = 16;
		wanted.keys = keys;
		/* The default configuration, `cost` = `device`, and `slots` = `auto`. */
		for (kind = 0; kind < 3; kind++) {
			wanted.key_count = 0;
			for (knob = 0; kind; knob++) {
				lend();
				length = fairq_core_knob(wanted.scheduler, knob, key, sizeof(key) - 1);
				if (!length)
					break;
				key[length] = 0;
				if (strcmp(key, kind == 1 ? "cost" : "slots"))
					continue;
				strcpy(text, kind == 1 ? "device" : "auto");
				keys[0].knob = knob;
				lend();
				if (fairq_core_parse(wanted.scheduler, knob, text, strlen(text), &keys[0].value))
					fail("%s of %s is refused", text, key);
				wanted.key_count = 1;
				break;
			}
			for (i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
				wanted.ports = shapes[i][0];
				wanted.flows = shapes[i][1];
				wanted.tags = shapes[i][2];
				try_shape(wanted.tags == MOST_TAGS ? 4000 : 0, &build, &percent);
			}
		}
		now = "knobs";
		took = on_stack(knobs, STACK);
		build = took > build ? took : build;
		if (measures_stack && build > BUILD)
			fail("building takes %zu bytes of stack, more than %d", build, BUILD);
		if (percent > 100)
			fail("uses %llu %% of the memory that fairq_core_size() allows", (unsigned long long)percent);
		printf("%s: stack: built in %zu bytes, %s in %zu, tick in %zu; memory: %llu %% of the bound\n", name, build,
		       most_name, most_verb, most_tick, (unsigned long long)percent);
	}
	if (!wanted.scheduler)
		fail("there is no scheduler");
	printf("knobs: memory: %zu %% of the bound\n", most_scratch * 100 / FAIRQ_SCRATCH);
	return 0;
}
