/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The module's own part in keeping requests moving (../module/queue.c, staged.c and engine.c, as they are), with the schedulers as
 * the kernel gets them, driven by random interleavings of CPUs: tasks that send requests, the kernel's threads, the
 * drive's interrupts and timers. What runs changes at each lock and at each access without one (linux.h).
 *
 * Fails where
 * - a request is sent twice, or before it came, or stays while the drive has nothing to do and nothing is on its way;
 * - a lock is taken in the wrong order, twice, or by an interrupt that could not have come;
 * - nothing can run any more.
 *
 * parking [FIRST [COUNT]]: the interleavings of these numbers. The number of one that failed is printed: it is the
 * same each time.
 */
#include <stdarg.h>
#include <ucontext.h>

#include "fairq.h"
#include "thunks.h"

#define MOST_CONTEXTS 6
#define TASKS 6
#define FLOWS 4
#define STACK (64 << 10)

/* One that runs: a CPU with what it does. */
struct runner {
	ucontext_t context;
	void (*function)(struct runner *self);
	/* Whether it has something to do. */
	bool (*has_something)(struct runner *self);
	u32 number;
	bool is_interrupt, is_idle, is_done;
	/* The locks that it has: the queue's, or a port's, or a port's within the queue's. */
	bool has_queues, has_ports;
};

/* How many requests each task has, and whether some wait for their own; how slow the drive is. */
static u32 live_of[TASKS], slow;
static bool is_closed;
static struct runner runners[2 * MOST_CONTEXTS + TASKS + 8];
static u32 runner_count;
static struct runner *running;
static ucontext_t home;
static u64 now, seed, seed_of_run;
static u32 scheduler;
static char name[FAIRQ_NAME];

static struct request_queue queue;
static struct blk_mq_hw_ctx contexts[MOST_CONTEXTS];
static struct elevator_queue elevator;
static struct elevator_type type;
static struct fairq_queue *fq;

/* By context and tag. */
#define MOST_TAGS 16
static struct request requests[MOST_CONTEXTS][MOST_TAGS];
enum { FREE, TAKEN, INSERTED, SENT, ENDED };
static u32 depth, room, on_drive, inserted, ended, merged;
static u64 flows[FLOWS];
static bool is_quiesced;
static struct hrtimer *timers;
static struct work_struct *works;
static struct list_head put_back;

void __noreturn fail(const char *format, ...)
{
	va_list rest;

	va_start(rest, format);
	fprintf(stderr, "kernel/check: %s, interleaving %llu: ", name, (unsigned long long)seed_of_run);
	vfprintf(stderr, format, rest);
	fprintf(stderr, "\n");
	exit(1);
}

static u32 chance(u32 of)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (u32)(seed >> 33) % of;
}

/* Another one may run here. */
void step(void)
{
	struct runner *self = running;

	/* While the model is set up. */
	if (!self)
		return;
	now += 50;
	swapcontext(&self->context, &home);
}

void take(spinlock_t *lock)
{
	struct runner *self = running;
	bool is_queues = lock == &queue.queue_lock;

	step();
	if (!self)
		return;
	if (self->has_ports || (is_queues && self->has_queues))
		fail("takes the %s's lock within a lock that it must not be within", is_queues ? "queue" : "port");
	while (lock->owner)
		step();
	lock->owner = self;
	*(is_queues ? &self->has_queues : &self->has_ports) = true;
}

void give(spinlock_t *lock)
{
	if (running) {
		lock->owner = NULL;
		*(lock == &queue.queue_lock ? &running->has_queues : &running->has_ports) = false;
	}
	step();
}

void take_within(spinlock_t *lock)
{
	while (lock->owner)
		step();
	lock->owner = running;
	step();
}

bool irqs_disabled(void) { return running && (running->has_queues || running->has_ports); }
bool in_interrupt(void) { return running && running->is_interrupt; }
/* A task sends what it has kept back when it is about to sleep, too. */
bool is_awake(void) { return chance(4); }
u64 ktime_get_ns(void) { return now; }

static void add_timer(struct hrtimer *timer)
{
	timer->next = timers;
	timers = timer;
}

void hrtimer_setup(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *), int clock, int mode)
{
	(void)clock;
	(void)mode;
	*timer = (struct hrtimer) { .function = function };
	add_timer(timer);
}

void hrtimer_start(struct hrtimer *timer, ktime_t at, int mode)
{
	(void)mode;
	timer->expires_ns = at;
	timer->is_armed = true;
}

void init_work(struct work_struct *work, void (*function)(struct work_struct *))
{
	*work = (struct work_struct) { .function = function, .next = works };
	works = work;
}

void schedule_work(struct work_struct *work) { work->is_due = true; }

static enum hrtimer_restart delayed(struct hrtimer *timer)
{
	container_of(timer, struct delayed_work, timer)->work.is_due = true;
	return HRTIMER_NORESTART;
}

void queue_delayed_work(const void *unused, struct delayed_work *work, u64 delay_ns)
{
	(void)unused;
	if (!work->timer.function)
		hrtimer_setup(&work->timer, delayed, 0, 0);
	if (!work->timer.is_armed)
		hrtimer_start(&work->timer, (ktime_t)(now + delay_ns), 0);
}

/* The block layer, as far as a scheduler sees it. */

struct blk_mq_hw_ctx *blk_mq_map_queue(blk_opf_t opf, const void *unused)
{
	(void)unused;
	return &contexts[opf];
}

/* Any of the last may be the bio's neighbour. */
bool blk_bio_list_merge(struct request_queue *q, struct list_head *list, struct bio *bio, unsigned int segments)
{
	struct request *rq;

	(void)q;
	(void)segments;
	list_for_each_entry_reverse(rq, list, queuelist) {
		if (chance(2) || rq->length > 65536)
			continue;
		if (rq->where != INSERTED)
			fail("a bio is merged into a request that was sent");
		rq->biotail = bio;
		rq->length += bio->bi_iter.bi_size;
		return true;
	}
	return false;
}

/* As if the block layer had something against it, now and then. */
bool blk_mq_sched_try_insert_merge(struct request_queue *q, struct request *rq, struct list_head *free)
{
	struct request *into = q->last_merge;

	if (!chance(4))
		return false;
	if (rq->where != INSERTED || into->where != INSERTED || into->offset + into->length != rq->offset)
		fail("a request is merged into one that was sent, or that does not end where it begins");
	into->biotail = rq->biotail;
	into->length += rq->length;
	rq->where = ENDED;
	rq->bio = NULL;
	list_add(&rq->queuelist, free);
	return true;
}

/* Those that were merged. */
void blk_mq_free_requests(struct list_head *list)
{
	while (!list_empty(list)) {
		struct request *rq = list_first_entry(list, struct request, queuelist);

		list_del_init(&rq->queuelist);
		fairq_ops.finish_request(rq);
		ended++;
		merged++;
		live_of[rq->task]--;
		rq->where = FREE;
	}
}

static bool has_pending(struct blk_mq_hw_ctx *hctx)
{
	return !is_quiesced && (!list_empty(&hctx->dispatch) || fairq_ops.has_work(hctx));
}

/* The drive takes it, if it has room. */
static bool drive_takes(struct request *rq)
{
	if (on_drive >= room)
		return false;
	if (rq->where != INSERTED)
		fail("request %d is sent, which is %d", rq->internal_tag, rq->where);
	rq->where = SENT;
	rq->due_ns = now + slow * (1000 + (chance(4) ? chance(20000) : 0));
	on_drive++;
	return true;
}

static void dispatch(struct blk_mq_hw_ctx *hctx)
{
	struct request *rq;
	u32 count;

again:
	if (is_quiesced)
		return;
	while ((rq = list_first_entry_or_null(&hctx->dispatch, struct request, queuelist))) {
		if (!drive_takes(rq)) {
			hctx->wants_restart = true;
			/* It may have ended its last one before that. */
			if (!on_drive)
				continue;
			return;
		}
		list_del_init(&rq->queuelist);
		step();
	}
	for (count = 0; count < 4; count++) {
		if (!fairq_ops.has_work(hctx))
			return;
		rq = fairq_ops.dispatch_request(hctx);
		if (!rq)
			return;
		if (rq->mq_hctx != hctx)
			fail("a request of another hardware context is sent");
		if (!chance(20)) {
			fairq_ops.requeue_request(rq);
			list_add_tail(&rq->queuelist, &put_back);
			continue;
		}
		step();
		if (!drive_takes(rq)) {
			list_add_tail(&rq->queuelist, &hctx->dispatch);
			goto again;
		}
		/* It may have ended before this goes on. */
		step();
	}
	goto again;
}

void blk_mq_run_hw_queue(struct blk_mq_hw_ctx *hctx, bool async)
{
	if (!async && in_interrupt())
		fail("an interrupt runs a hardware context");
	if (irqs_disabled())
		fail("a hardware context is run with a lock");
	if (!has_pending(hctx)) {
		bool has;

		take(&queue.queue_lock);
		has = has_pending(hctx);
		give(&queue.queue_lock);
		if (!has)
			return;
	}
	if (async)
		hctx->is_due = true;
	else
		dispatch(hctx);
}

static void run_all(void)
{
	u32 i;

	for (i = 0; i < queue.nr_hw_queues; i++)
		blk_mq_run_hw_queue(&contexts[i], true);
}

/* Groups, which are flows without more: a flow's number is its cgroup. */

static struct blkcg_gq *blkg_of(u64 flow) { return (void *)(uintptr_t)(flow * 8 + 8); }

u64 fairq_flow_of(struct fairq_queue *of, struct request *rq, struct blkcg_gq **blkg)
{
	(void)of;
	*blkg = blkg_of(rq->flow);
	return rq->flow;
}

u64 fairq_flow_of_current(struct fairq_queue *of)
{
	(void)of;
	return flows[chance(FLOWS)];
}

void fairq_count(struct fairq_slot *slot, u64 served_ns)
{
	(void)served_ns;
	/* It may have ended before it is counted, and its tag may be another one's by then, which has not been inserted. */
	if (slot->rq->where == SENT ||
	    ((slot->rq->where == ENDED || slot->rq->where == FREE) && slot->blkg != blkg_of(slot->rq->flow)))
		fail("request %d ends as another one", slot->rq->internal_tag);
	fairq_let_go(slot);
}

void fairq_let_go(struct fairq_slot *slot) { slot->rq = NULL; }

u64 fairq_cgroup_id(struct blkcg_gq *blkg) { (void)blkg; return 0; }
int fairq_activate_groups(struct fairq_queue *of) { (void)of; return 0; }
void fairq_deactivate_groups(struct fairq_queue *of) { (void)of; }
void fairq_readd_groups(struct fairq_queue *of) { (void)of; }

/* Weights change, a group goes and comes, D changes. */
void fairq_weigh(struct fairq_queue *of)
{
	struct fairq_change change = { .what = FAIRQ_SLOTS, .value = 1 + chance(2 * room) };
	struct fairq_wake wake = {};
	u32 which = chance(FLOWS);

	spin_lock_irq(&queue.queue_lock);
	switch (chance(3)) {
	case 0:
		fairq_core_set_weight(of->engine, flows[which], 256 * (1 + chance(1000)));
		break;
	case 1:
		fairq_core_remove_flow(of->engine, flows[which], &wake);
		if (!fairq_core_add_flow(of->engine, 25600, &flows[which]))
			fail("no room for a flow");
		break;
	default:
		fairq_core_tune(of->engine, &change, &wake);
	}
	spin_unlock_irq(&queue.queue_lock);
	fairq_ask_later(of, &wake);
}

/* Those that run. */

/* A runner that has done what there was to do. */
static void idle(void)
{
	running->is_idle = true;
	step();
}

/* One request at a time: the task goes on when it has ended, as those do for whom slots are kept. */
static bool waits_for_its_own(struct runner *self)
{
	return is_closed && self->number < 2;
}

/* A tag is free. */
static bool task_has(struct runner *self)
{
	u32 i, tag;

	if (waits_for_its_own(self) && live_of[self->number])
		return false;
	for (i = 0; i < queue.nr_hw_queues; i++)
		for (tag = 0; tag < depth; tag++)
			if (requests[i][tag].where == FREE)
				return true;
	return false;
}

static struct request *take_tag(struct blk_mq_hw_ctx *hctx)
{
	struct blk_mq_alloc_data data = { .q = &queue, .hctx = hctx };
	u32 i, start = chance(depth);

	fairq_ops.limit_depth(0, &data);
	for (i = 0; i < depth; i++) {
		struct request *rq = &requests[hctx - contexts][(start + i) % depth];

		/* One that is kept back finds a tag now and then. */
		if (rq->where == FREE && (!data.shallow_depth || !chance(4))) {
			rq->where = TAKEN;
			return rq;
		}
	}
	return NULL;
}

/* Sends requests, alone or several at a time, from one CPU and then from another one. */
static void task(struct runner *self)
{
	bool waits = waits_for_its_own(self);
	u32 left = (waits ? 20 : 5) + chance(20);
	struct bio *bio;

	while (left) {
		u32 at = waits ? 0 : chance(queue.nr_hw_queues), several = waits || chance(4) ? 1 : 1 + chance(4);
		struct blk_mq_hw_ctx *hctx = &contexts[at];
		struct list_head list;

		INIT_LIST_HEAD(&list);
		for (; several && left; several--) {
			struct request *rq;

			bio = calloc(1, sizeof(*bio));
			*bio = (struct bio) {
				.bi_opf = at, .bi_iter = { chance(1000000), 4096 }, .bi_blkg = blkg_of(flows[self->number % FLOWS]),
				.bi_ioprio = chance(3) ? 0 : chance(4),
			};
			if (fairq_ops.bio_merge(&queue, bio, 1)) {
				left--;
				continue;
			}
			rq = take_tag(hctx);
			if (!rq) {
				free(bio);
				break;
			}
			*rq = (struct request) {
				.q = &queue, .mq_hctx = hctx, .internal_tag = rq->internal_tag, .where = TAKEN,
				.bio = bio, .biotail = bio, .offset = (u64)chance(16) << 12,
				.length = chance(4) ? 4096 : 512 << chance(8), .op = chance(4) ? REQ_OP_READ : REQ_OP_WRITE,
				.flow = flows[self->number % FLOWS], .task = self->number,
			};
			bio->bi_blkg = blkg_of(rq->flow);
			INIT_LIST_HEAD(&rq->queuelist);
			fairq_ops.prepare_request(rq);
			rq->where = INSERTED;
			inserted++;
			live_of[rq->task]++;
			list_add_tail(&rq->queuelist, &list);
			left--;
		}
		if (!list_empty(&list)) {
			fairq_ops.insert_requests(hctx, &list, 0);
			step();
			blk_mq_run_hw_queue(hctx, chance(2));
		}
		idle();
	}
}

/* The kernel's thread for a hardware context. */
static bool thread_has(struct runner *self) { return contexts[self->number].is_due; }

static void thread(struct runner *self)
{
	for (;;) {
		if (contexts[self->number].is_due) {
			contexts[self->number].is_due = false;
			dispatch(&contexts[self->number]);
		}
		idle();
	}
}

static struct request *due(void)
{
	u32 i, tag, start = chance(MOST_CONTEXTS * MOST_TAGS);

	for (i = 0; i < MOST_CONTEXTS * MOST_TAGS; i++) {
		struct request *rq;

		tag = (start + i) % (MOST_CONTEXTS * MOST_TAGS);
		rq = &requests[tag / MOST_TAGS][tag % MOST_TAGS];
		if (rq->where == SENT && rq->due_ns <= now)
			return rq;
	}
	return NULL;
}

/* The drive's interrupts; there are two CPUs that take them. */
static bool drive_has(struct runner *self)
{
	(void)self;
	return due();
}

static void drive(struct runner *self)
{
	(void)self;
	for (;;) {
		struct request *rq = due();
		u32 i;

		if (rq) {
			rq->where = ENDED;
			fairq_ops.finish_request(rq);
			on_drive--;
			ended++;
			live_of[rq->task]--;
			rq->where = FREE;
			for (i = 0; i < queue.nr_hw_queues; i++) {
				if (!contexts[i].wants_restart)
					continue;
				contexts[i].wants_restart = false;
				blk_mq_run_hw_queue(&contexts[i], true);
			}
		}
		idle();
	}
}

static struct hrtimer *timer_due(void)
{
	struct hrtimer *timer;

	for (timer = timers; timer; timer = timer->next)
		if (timer->is_armed && timer->expires_ns <= now)
			return timer;
	return NULL;
}

static bool clock_has(struct runner *self)
{
	(void)self;
	return timer_due();
}

static void clock_(struct runner *self)
{
	(void)self;
	for (;;) {
		struct hrtimer *timer = timer_due();

		if (timer) {
			timer->is_armed = false;
			if (timer->function(timer) == HRTIMER_RESTART)
				timer->is_armed = true;
		}
		idle();
	}
}

/* The kernel's thread for work, and for requests that were put back. */
static bool worker_has(struct runner *self)
{
	struct work_struct *work;

	(void)self;
	for (work = works; work; work = work->next)
		if (work->is_due)
			return true;
	return !list_empty(&put_back);
}

static void worker(struct runner *self)
{
	(void)self;
	for (;;) {
		struct work_struct *work;

		for (work = works; work; work = work->next) {
			if (!work->is_due)
				continue;
			work->is_due = false;
			work->function(work);
		}
		while (!list_empty(&put_back)) {
			struct request *rq = list_first_entry(&put_back, struct request, queuelist);
			struct list_head list;

			list_del_init(&rq->queuelist);
			INIT_LIST_HEAD(&list);
			list_add_tail(&rq->queuelist, &list);
			fairq_ops.insert_requests(rq->mq_hctx, &list, 0);
			run_all();
		}
		idle();
	}
}

/* The administrator: the queue stands still for a moment; weights, groups and D change. */
static bool administrator_has(struct runner *self)
{
	(void)self;
	return !chance(500);
}

static void administrator(struct runner *self)
{
	(void)self;
	for (;;) {
		u32 i, steps = chance(200);

		if (chance(2)) {
			is_quiesced = true;
			for (i = 0; i < steps; i++)
				step();
			is_quiesced = false;
			run_all();
		} else {
			fairq_weigh(fq);
		}
		idle();
	}
}

static void enter(void)
{
	struct runner *self = running;

	self->function(self);
	self->is_done = true;
	swapcontext(&self->context, &home);
}

static unsigned char stacks[ARRAY_SIZE(runners)][STACK] __attribute__((aligned(64)));

static void add_runner(void (*function)(struct runner *), bool (*has)(struct runner *), u32 number, bool is_interrupt)
{
	struct runner *self = &runners[runner_count];

	*self = (struct runner) { .function = function, .has_something = has, .number = number, .is_interrupt = is_interrupt };
	getcontext(&self->context);
	self->context.uc_stack.ss_sp = stacks[runner_count++];
	self->context.uc_stack.ss_size = STACK;
	makecontext(&self->context, enter, 0);
}

/* When the drive or a timer is next at work. */
static u64 next_event(bool with_tick)
{
	struct hrtimer *timer;
	u64 next = ~0ULL;
	u32 i, tag;

	for (timer = timers; timer; timer = timer->next)
		if (timer->is_armed && timer->expires_ns < next &&
		    (with_tick || (timer != &fq->tick && timer != &fq->weigh.timer)))
			next = timer->expires_ns;
	for (i = 0; i < queue.nr_hw_queues; i++)
		for (tag = 0; tag < depth; tag++)
			if (requests[i][tag].where == SENT && requests[i][tag].due_ns < next)
				next = requests[i][tag].due_ns;
	return next;
}

static struct runner *pick(void)
{
	struct runner *able[ARRAY_SIZE(runners)];
	u32 i, count = 0;

	for (i = 0; i < runner_count; i++)
		if (!runners[i].is_done && (!runners[i].is_idle || runners[i].has_something(&runners[i])))
			able[count++] = &runners[i];
	return count ? able[chance(count)] : NULL;
}

static void start(void)
{
	static struct blk_mq_tag_set set;
	static struct gendisk disk;
	u32 i, tag, shared = 1 + !chance(3);

	memset(requests, 0, sizeof(requests));
	timers = NULL;
	works = NULL;
	runner_count = on_drive = inserted = ended = 0;
	is_quiesced = false;
	is_closed = chance(2);
	slow = chance(2) ? 1 : 100;
	memset(live_of, 0, sizeof(live_of));
	now = 1000000;
	INIT_LIST_HEAD(&put_back);
	depth = 2 + chance(MOST_TAGS - 1);
	set = (struct blk_mq_tag_set) { .queue_depth = 1 + chance(chance(2) ? 4 : 16) };
	type.ops = fairq_ops;
	elevator = (struct elevator_queue) { .type = &type };
	queue = (struct request_queue) {
		.nr_hw_queues = 1 + chance(MOST_CONTEXTS / 2), .nr_requests = depth, .disk = &disk, .tag_set = &set,
		.contexts = contexts,
	};
	room = set.queue_depth * queue.nr_hw_queues;
	if (fairq_queue_start(&queue, &elevator, scheduler))
		fail("cannot be started");
	fq = elevator.elevator_data;
	if (shared > 1) {
		/* As where there are more contexts than ports. */
		queue.nr_hw_queues *= shared;
		if (fairq_start(fq, depth))
			fail("cannot be started for shared ports");
	}
	/* The drive may have room for more or for less than the scheduler believes. */
	room += chance(4);
	for (i = 0; i < queue.nr_hw_queues; i++) {
		contexts[i] = (struct blk_mq_hw_ctx) { .queue = &queue };
		INIT_LIST_HEAD(&contexts[i].dispatch);
		if (fairq_ops.init_hctx(&contexts[i], i))
			fail("no memory");
		for (tag = 0; tag < depth; tag++)
			requests[i][tag].internal_tag = tag;
	}
	for (i = 0; i < FLOWS; i++)
		if (!fairq_core_add_flow(fq->engine, 256 * (1 + chance(1000)), &flows[i]))
			fail("no room for a flow");
	/* With a small T ports wait for each other's requests, too, and not only for room. */
	if (chance(2)) {
		struct fairq_change change = { .what = FAIRQ_THRESHOLD, .value = chance(8192) };
		struct fairq_wake wake = {};

		fairq_core_tune(fq->engine, &change, &wake);
	}
	for (i = 0; i < TASKS; i++)
		add_runner(task, task_has, i, false);
	for (i = 0; i < queue.nr_hw_queues; i++)
		add_runner(thread, thread_has, i, false);
	add_runner(drive, drive_has, 0, true);
	add_runner(drive, drive_has, 1, true);
	add_runner(clock_, clock_has, 0, true);
	add_runner(worker, worker_has, 0, false);
	add_runner(administrator, administrator_has, 0, false);
}

static void stop(void)
{
	u32 i;

	for (i = 0; i < queue.nr_hw_queues; i++)
		fairq_ops.exit_hctx(&contexts[i], i);
	fairq_queue_stop(&elevator);
}

/* Those whose requests may wait for a period or for a time slice to end, which a tick sees. */
static bool waits_for_ticks(void)
{
	return strcmp(name, "mqfq") && strcmp(name, "mqfq-serial") && strcmp(name, "sfqd");
}

/*
 * Nothing can run before the drive or a timer does. With those of whom a slot that is free waits for nothing but a request,
 * none may wait then.
 */
static void look_for_waiting(void)
{
	struct fairq_told told;
	u32 i, tag, waiting = 0;
	struct request *rq;

	if (waits_for_ticks() || is_quiesced)
		return;
	for (i = 0; i < queue.nr_hw_queues; i++) {
		for (tag = 0; tag < depth; tag++)
			waiting += requests[i][tag].where == INSERTED;
		/* The drive has less room than the scheduler believes. */
		if (!list_empty(&contexts[i].dispatch))
			return;
	}
	list_for_each_entry_reverse(rq, &put_back, queuelist)
		waiting--;
	fairq_core_tell(fq->engine, &told);
	if (waiting && told.free_slots)
		fail("%u requests wait while %llu slots are free", waiting, (unsigned long long)told.free_slots);
}

/* One interleaving, to its end. */
static void interleave(u64 number)
{
	u64 steps = 0, next, seen = 0;
	u32 ticks = 0;

	seed_of_run = number;
	seed = number * 0x9e3779b97f4a7c15ULL + scheduler + 1;
	start();
	for (;;) {
		struct runner *runner = pick();

		if (++steps > 20000000)
			fail("does not come to an end");
		if (runner) {
			runner->is_idle = false;
			running = runner;
			swapcontext(&home, &runner->context);
			running = NULL;
			continue;
		}
		look_for_waiting();
		next = next_event(false);
		if (next == ~0ULL && inserted != ended) {
			ticks = seen == ended ? ticks + 1 : 0;
			seen = ended;
			if (!waits_for_ticks() || ticks == 100)
				fail("%u of %u requests stay, and nothing is on its way", inserted - ended, inserted);
		}
		if (next == ~0ULL)
			next = next_event(true);
		if (next == ~0ULL)
			break;
		now = max(now, next);
	}
	if (inserted != ended)
		fail("%u of %u requests stay", inserted - ended, inserted);
	stop();
}

int main(int count, char **words)
{
	u64 first = count > 1 ? strtoull(words[1], NULL, 10) : 1, many = count > 2 ? strtoull(words[2], NULL, 10) : 100, i;
	size_t length;

	for (scheduler = 0; (length = fairq_core_name(scheduler, name, sizeof(name) - 1)); scheduler++) {
		name[length] = 0;
		for (i = first; i < first + many; i++)
			interleave(i);
	}
	printf("parking: %u schedulers, %llu interleavings of each, %u requests merged\n", scheduler, (unsigned long long)many, merged);
	return !scheduler;
}
