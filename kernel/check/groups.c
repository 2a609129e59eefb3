/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs ../module/group.c, unchanged, and the schedulers with many cgroups on one drive. Fails if
 *
 * - a cgroup still uses root's flow in the end although the scheduler has a free flow for it, after
 *   cgroups were removed and added and the module's work has run;
 * - children do not share their parent's part by their weights;
 * - more than half of the stretches with interrupts off take more than STRETCH_NS of CPU time, with
 *   the greatest number of cgroups. Interrupts are off while the queue's lock is held (a scheduler
 *   is selected or rebuilt, a heavy cgroup stops sending, all cgroups are removed), and while a
 *   tick holds a scheduler's own lock. One long stretch proves nothing, because time in which a
 *   hypervisor stops the CPU counts, too.
 */
#include <stdarg.h>
#include <time.h>

#include "group.h"
#include "thunks.h"

#define STRETCH_NS 50000
#define MOST 65000

static struct fairq_queue fq;
static struct request_queue queue;
static struct gendisk disk = { .queue = &queue };
static struct fairq_wake asked;
static const char *doing;

void __noreturn fail(const char *format, ...)
{
	va_list rest;

	va_start(rest, format);
	fprintf(stderr, "kernel/check: groups: %s: ", doing);
	vfprintf(stderr, format, rest);
	fprintf(stderr, "\n");
	exit(1);
}

u64 ktime_get_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * NSEC_PER_SEC + time.tv_nsec;
}

void step(void) {}
bool irqs_disabled(void) { return false; }
bool in_interrupt(void) { return false; }
bool is_awake(void) { return true; }
void *take_memory(size_t size) { return calloc(1, size); }
void give_memory(const void *memory) { free((void *)memory); }
void fairq_lock_init(void *lock, u64 kind) { (void)lock; (void)kind; }
unsigned long fairq_lock(void *lock) { (void)lock; return 0; }
void fairq_unlock(void *lock, unsigned long flags) { (void)lock; (void)flags; }
void __noreturn fairq_panicked(const char *text, size_t length) { fail("panicked: %.*s", (int)length, text); }
struct fairq_queue *fairq_of(struct request_queue *q) { (void)q; return &fq; }
struct blkcg_gq *blkg_of_task(void) { return root_group; }

void fairq_run_later(struct fairq_queue *of, const struct fairq_wake *wake)
{
	u32 i;

	(void)of;
	for (i = 0; i < ARRAY_SIZE(asked.words); i++)
		asked.words[i] |= wake->words[i];
}

/*
 * The stretches for which the lock is held: when the present one began, the length of the longest,
 * their number, and the number of those longer than STRETCH_NS.
 */
static u64 taken_ns, longest_ns;
static u32 stretches, too_long;

void take(spinlock_t *lock)
{
	(void)lock;
	taken_ns = ktime_get_ns();
}

void give(spinlock_t *lock)
{
	u64 ns = ktime_get_ns() - taken_ns;

	(void)lock;
	stretches++;
	too_long += ns > STRETCH_NS;
	longest_ns = max(longest_ns, ns);
}

static void begin_stretches(const char *what)
{
	doing = what;
	stretches = too_long = longest_ns = 0;
}

static void end_stretches(void)
{
	printf("groups: %s: %u stretches without interrupts, the longest of %llu us, %u above %u us\n", doing, stretches,
	       (unsigned long long)longest_ns / 1000, too_long, STRETCH_NS / 1000);
	/*
	 * Other work on the machine makes stretches longer through the caches and the hypervisor:
	 * beside compilers up to 14 in 100. A function that visits too many groups makes nearly all
	 * of them longer.
	 */
	if (too_long > 1 + stretches / 2)
		fail("%u of %u stretches take longer than %u us", too_long, stretches, STRETCH_NS / 1000);
}

/* Stands for the module's work: calls the scheduler once for each woken port. */
static void ask(void)
{
	struct fairq_wake wake = asked;
	struct fairq_chosen chosen;
	u32 i;

	asked = (struct fairq_wake) {};
	for (i = 0; i < fq.nr_ports; i++)
		if (wake.words[i / 64] & (1ULL << (i % 64)))
			fairq_core_next(fq.engine, i, ktime_get_ns(), &chosen, &asked);
}

/* Indices in the list of schedulers in ../core/src/engine.rs. */
enum { MQFQ = 0, KYBER_FAIR = 3 };
static u32 scheduler = MQFQ;

static void build(u32 flows)
{
	struct fairq_wanted wanted = { .scheduler = scheduler, .ports = 2, .flows = flows, .tags = 256, .slots = 64 };
	size_t size = fairq_core_size(wanted.ports, wanted.tags, wanted.flows);
	void *old = fq.memory;

	fq.memory = aligned_alloc(PAGE_SIZE, (size + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1));
	fairq_core_lend(fq.memory, size);
	if (fairq_core_new(&wanted, &fq.engine))
		fail("cannot be built");
	free(old);
	fq.builds++;
	fq.root = fairq_core_root(fq.engine);
}

/* Begins with a new drive whose scheduler has `flows` flows, one of them root's. */
static void begin(u32 flows)
{
	fq = (struct fairq_queue) { .q = &queue, .nr_ports = 2 };
	queue = (struct request_queue) { .disk = &disk };
	INIT_LIST_HEAD(&fq.groups);
	INIT_LIST_HEAD(&queue.blkg_list);
	forget_groups();
	make_group(&queue, NULL, 100);
	build(flows);
}

static struct blkcg_gq *all[MOST];

static u32 without_flow(u32 count)
{
	u32 i, without = 0;

	for (i = 0; i < count; i++)
		without += !has_flow(&fq, group_of(all[i]));
	return without;
}

/* Removes all cgroups and adds as many; each has to get a flow of its own. */
static void come_again(u32 flows, u32 count, bool is_asked)
{
	u32 i, without;

	doing = "cgroups go and come";
	begin(flows);
	fairq_activate_groups(&fq);
	for (i = 0; i < count; i++)
		all[i] = make_group(&queue, root_group, 100);
	if (without_flow(count))
		fail("%u of the first %u cgroups use root's flow", without_flow(count), count);
	for (i = 0; i < count; i++)
		remove_group(all[i]);
	if (is_asked)
		ask();
	for (i = 0; i < count; i++)
		all[i] = make_group(&queue, root_group, 100);
	without = without_flow(count);
	/* A scan follows each run of the work. */
	for (i = 0; i < 2 + count / 16 && without_flow(count); i++) {
		fairq_run_later(&fq, &(struct fairq_wake) { { 3 } });
		ask();
		fairq_weigh(&fq);
	}
	printf("groups: of %u cgroups added again%s %u use root's flow at first, and %u after %u scans\n", count,
	       is_asked ? " after the ports ran" : "", without, without_flow(count), i);
	if (without_flow(count))
		fail("%u of %u cgroups still use root's flow", without_flow(count), count);
}

/* Sends a request of a cgroup. */
static void send(struct blkcg_gq *blkg)
{
	struct bio bio = { .bi_blkg = blkg };
	struct request rq = { .bio = &bio };
	struct blkcg_gq *kept;

	fairq_flow_of(&fq, &rq, &kept);
	blkg_put(kept);
}

/*
 * A cgroup of weight 400 sends, and so do children of weights 50 and 150 of a cgroup of weight 200:
 * they get two thirds, a twelfth and a quarter.
 */
static void nest(void)
{
	struct blkcg_gq *alone, *parent, *small, *large;
	u32 parts[3];

	doing = "nested weights";
	begin(8);
	alone = make_group(&queue, root_group, 400);
	parent = make_group(&queue, root_group, 200);
	small = make_group(&queue, parent, 50);
	large = make_group(&queue, parent, 150);
	fairq_activate_groups(&fq);
	send(alone);
	send(small);
	send(large);
	fairq_weigh(&fq);
	parts[0] = group_of(alone)->given;
	parts[1] = group_of(small)->given;
	parts[2] = group_of(large)->given;
	/* Divisions round. */
	if (abs_diff(parts[0], WHOLE * 2 / 3) > 2 || abs_diff(parts[1], WHOLE / 12) > 2 || abs_diff(parts[2], WHOLE / 4) > 2)
		fail("weights 400, and 50 and 150 below 200, get %u, %u and %u of %llu", parts[0], parts[1], parts[2],
		     (unsigned long long)WHOLE);
}

/*
 * Measures the ticks of a scheduler, some of which visit all flows. A tick holds the scheduler's
 * own lock.
 */
static void tick(u32 which, const char *what)
{
	u64 now_ns = 1;
	u32 i;

	scheduler = which;
	build(MOST + 2);
	fairq_add_flows(&fq);
	begin_stretches(what);
	for (i = 0; i < 300 && now_ns; i++) {
		take(NULL);
		now_ns = fairq_core_tick(fq.engine, now_ns, &asked);
		give(NULL);
	}
	end_stretches();
}

/* Measures stretches with the greatest number of cgroups. */
static void be_many(void)
{
	struct blkcg_gq *heavy;
	u32 i, look;

	doing = "many cgroups";
	begin(MOST + 2);
	for (i = 0; i < MOST; i++)
		all[i] = make_group(&queue, root_group, 1);
	heavy = make_group(&queue, root_group, 10000);
	/* The stretch in which the block layer itself activates the policy does not count. */
	begin_stretches("all cgroups get flows");
	blkcg_activate_policy(&disk, &fairq_policy);
	begin_stretches("all cgroups get flows");
	fq.is_started = true;
	fairq_add_flows(&fq);
	end_stretches();
	if (without_flow(MOST))
		fail("%u of %u cgroups use root's flow", without_flow(MOST), MOST);
	begin_stretches("all cgroups send, and a heavy one falls silent");
	for (look = 0; look < 7; look++) {
		for (i = 0; i < MOST; i++)
			send(all[i]);
		if (!look)
			send(heavy);
		fairq_weigh(&fq);
	}
	end_stretches();
	if (group_of(all[0])->given != WHOLE / MOST)
		fail("each cgroup has the part %u of %llu", group_of(all[0])->given, (unsigned long long)WHOLE);
	begin_stretches("all cgroups get flows of a scheduler that was rebuilt");
	build(MOST + 2);
	fairq_add_flows(&fq);
	end_stretches();
	tick(KYBER_FAIR, "ticks of kyber-fair");
	tick(MQFQ, "ticks of mqfq");
	begin_stretches("all cgroups are removed");
	for (i = 0; i < MOST; i++) {
		take(&queue.queue_lock);
		remove_group(all[i]);
		give(&queue.queue_lock);
	}
	end_stretches();
}

int main(void)
{
	come_again(8, 7, false);
	come_again(8, 7, true);
	come_again(1024, 1000, true);
	nest();
	be_many();
	return 0;
}
