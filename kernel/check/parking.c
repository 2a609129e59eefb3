/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs ../module/queue.c, staged.c, engine.c and group.c, unchanged, and the schedulers in random
 * interleavings of runners (machine.c): tasks that send requests, the kernel's threads, the drive's
 * interrupts, timers, and administrators. Another runner can run at each lock and at each access
 * without one (linux.h). The program fails if
 *
 * - a request is sent twice or before it was inserted, or is never completed;
 * - the scheduler's ticks continue, but the groups are no longer scanned;
 * - a timer or work item of a scheduler that was stopped or rebuilt is pending or runs;
 * - a lock is taken in the wrong order or twice, or an interrupt runs a hardware context;
 * - asynchronous requests may have more tags than queue/async_depth;
 * - an interleaving does not end.
 *
 * parking [FIRST [COUNT [LOAD]]] runs COUNT interleavings, the first of which has the number FIRST;
 * tasks send LOAD times as many requests. The number of a failed interleaving is printed: with the
 * same LOAD it runs in the same way again.
 */
#include "machine.h"
#include "group.h"
#include "thunks.h"

#define MOST_CONTEXTS 6
#define TASKS 6
#define FLOWS 4

/* The live requests of each task, the factor of the drive's time, and that of the load. */
static u32 live_of[TASKS], slow, load = 1;
/* The first two tasks send one request at a time. */
static bool is_closed;
/* D is 1. A slot is then kept for a closed task, and the scheduler sets timers for that. */
static bool is_small;
static u32 scheduler;

static struct blk_mq_hw_ctx contexts[MOST_CONTEXTS];
static struct elevator_queue elevator;
static struct elevator_type type;
static struct fairq_queue *fq;

/* Requests by hardware context and tag. */
#define MOST_TAGS 16
static struct request requests[MOST_CONTEXTS][MOST_TAGS];
enum { FREE, TAKEN, INSERTED, SENT, ENDED };
static u32 depth, room, on_drive, inserted, ended, merged;
static struct blkcg_gq *cgroups[FLOWS];
/* `is_changing` stands for the elevator's lock for sysfs, under which the scheduler changes. */
static bool is_frozen, is_quiesced, is_changing, is_over;
/* The number of tasks that have read is_quiesced and have not yet acted on it. */
static u32 dispatching;
static struct list_head put_back;

/* The bios of an interleaving. None is used twice, because the module compares their addresses. */
#define MOST_BIOS (1 << 18)
static struct bio bios[MOST_BIOS];
static u32 bio_count;

/* The block layer, as far as a scheduler sees it. */

struct blk_mq_hw_ctx *blk_mq_map_queue(blk_opf_t opf, const void *unused)
{
	(void)unused;
	return &contexts[opf];
}

/* Merges the bio into a random one of the last requests, as if the two were adjacent. */
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

/* Refuses one merge in four, as the block layer may. */
bool blk_mq_sched_try_insert_merge(struct request_queue *q, struct request *rq, struct list_head *free)
{
	struct request *into = q->last_merge;

	if (!chance(4))
		return false;
	if (rq->where != INSERTED || into->where != INSERTED || into->offset + into->length != rq->offset)
		fail("merges a request that was sent, or two requests that are not adjacent");
	into->biotail = rq->biotail;
	into->length += rq->length;
	rq->where = ENDED;
	rq->bio = NULL;
	list_add(&rq->queuelist, free);
	return true;
}

/* Frees the tag of a request that has ended, and drops its references. */
static void release(struct request *rq)
{
	blkg_put(rq->blkg);
	rq->where = FREE;
	percpu_ref_put(&queue.q_usage_counter);
}

/* Ends requests that were merged into others. */
void blk_mq_free_requests(struct list_head *list)
{
	while (!list_empty(list)) {
		struct request *rq = list_first_entry(list, struct request, queuelist);

		list_del_init(&rq->queuelist);
		fairq_ops.finish_request(rq);
		ended++;
		merged++;
		live_of[rq->task]--;
		release(rq);
	}
}

static bool has_pending(struct blk_mq_hw_ctx *hctx)
{
	bool has;

	dispatching++;
	has = !is_quiesced && hctx->sched_data && (!list_empty(&hctx->dispatch) || fairq_ops.has_work(hctx));
	dispatching--;
	return has;
}

/* Sends the request to the drive; returns false if the drive is full. */
static bool drive_takes(struct request *rq)
{
	if (on_drive >= room)
		return false;
	if (rq->where != INSERTED)
		fail("request %d is sent in the state %d", rq->internal_tag, rq->where);
	if (fq->classes && (unsigned long)rq->elv.priv[1] - FAIRQ_CLASS_MARK >= FAIRQ_SQS)
		fail("request %d is sent without a class", rq->internal_tag);
	rq->where = SENT;
	rq->due_ns = now + slow * (1000 + (chance(4) ? chance(20000) : 0));
	on_drive++;
	return true;
}

/*
 * The driver's classes. A controller may refuse weights. The scheduler may begin to end meanwhile, but it
 * ends only after the call.
 */
static u32 weighed, stops;

static const char *refusal(struct request_queue *q)
{
	(void)q;
	return NULL;
}

static int set_weights(struct request_queue *q, u16 high, u16 medium, u16 low)
{
	u32 before = stops;

	(void)q;
	if (!low || low > medium || medium > high || high > 256)
		fail("the weights are %u, %u and %u", high, medium, low);
	step();
	if (stops != before)
		fail("weights are set when the scheduler has ended");
	weighed++;
	return chance(2) ? 0 : -EIO;
}

const struct fairq_classes fairq_nvme_classes = { .refusal = refusal, .set_weights = set_weights };

static void dispatch_until_quiesced(struct blk_mq_hw_ctx *hctx)
{
	struct request *rq;
	u32 count;

again:
	if (is_quiesced || !hctx->sched_data)
		return;
	while ((rq = list_first_entry_or_null(&hctx->dispatch, struct request, queuelist))) {
		if (!drive_takes(rq)) {
			hctx->wants_restart = true;
			/* The drive may have ended its last request before that. */
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
		/* The request may end before this function continues. */
		step();
	}
	goto again;
}

static void dispatch(struct blk_mq_hw_ctx *hctx)
{
	dispatching++;
	dispatch_until_quiesced(hctx);
	dispatching--;
}

void blk_mq_run_hw_queue(struct blk_mq_hw_ctx *hctx, bool async)
{
	if (!async && in_interrupt())
		fail("an interrupt runs a hardware context");
	if (irqs_disabled())
		fail("a hardware context is run while a lock is held");
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

/* Groups. */

/* Returns one of the present cgroups, with a reference. */
static struct blkcg_gq *get_cgroup(u32 number)
{
	struct blkcg_gq *blkg = cgroups[number % FLOWS];

	blkg_get(blkg);
	return blkg;
}

struct blkcg_gq *blkg_of_task(void) { return cgroups[chance(FLOWS)]; }

void __real_fairq_count(struct fairq_slot *slot, u64 served_ns);
void __wrap_fairq_count(struct fairq_slot *slot, u64 served_ns)
{
	struct request *rq = slot->rq;

	/* When a request is counted, its tag may be free, or in use by one not inserted yet. */
	if (rq->where == SENT || ((rq->where == ENDED || rq->where == FREE) && slot->blkg != rq->blkg))
		fail("the end of request %d is counted for another one", rq->internal_tag);
	__real_fairq_count(slot, served_ns);
}

/* Another CPU may run between the module's reads and its call of the scheduler. */
void __real_fairq_core_next(struct fairq_engine *engine, u32 port, u64 now_ns, struct fairq_chosen *chosen,
			    struct fairq_wake *wake);
void __wrap_fairq_core_next(struct fairq_engine *engine, u32 port, u64 now_ns, struct fairq_chosen *chosen,
			    struct fairq_wake *wake)
{
	step();
	__real_fairq_core_next(engine, port, now_ns, chosen, wake);
}

/* The runners. */

static bool is_open(struct runner *self) { (void)self; return !is_frozen; }

/* Whether the task sends its next request when the last one has ended; a slot is kept for it. */
static bool waits_for_its_own(struct runner *self)
{
	return is_closed && self->number < 2;
}

/* Whether the task may send: open queue, no live request of a closed task, and a free tag. */
static bool task_has(struct runner *self)
{
	u32 i, tag;

	if (is_frozen || (waits_for_its_own(self) && live_of[self->number]))
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
	u32 i, start = chance(depth), is_async = chance(2);

	fairq_ops.limit_depth(is_async, &data);
	if (is_async && queue.async_depth < depth && (!data.shallow_depth || data.shallow_depth > queue.async_depth))
		fail("an asynchronous request may have %u tags of %u", data.shallow_depth, queue.async_depth);
	for (i = 0; i < depth; i++) {
		struct request *rq = &requests[hctx - contexts][(start + i) % depth];

		/* With a shallow depth, one free tag in four is found. */
		if (rq->where == FREE && (!data.shallow_depth || !chance(4))) {
			rq->where = TAKEN;
			return rq;
		}
	}
	return NULL;
}

static struct bio *new_bio(struct blkcg_gq *blkg, u32 at)
{
	struct bio *bio = &bios[bio_count++];

	if (bio_count == MOST_BIOS)
		fail("sends more than MOST_BIOS bios");
	*bio = (struct bio) {
		.bi_opf = at, .bi_iter = { chance(1000000), 4096 }, .bi_blkg = blkg, .bi_ioprio = chance(3) ? 0 : chance(4),
	};
	return bio;
}

/* Adds a request to the list. Returns false if its bio was merged, or if no tag is free. */
static bool add_request(struct runner *self, u32 at, struct list_head *list, bool *has_tag)
{
	struct blkcg_gq *blkg = get_cgroup(self->number);
	struct bio *bio = new_bio(blkg, at);
	struct request *rq = NULL;

	*has_tag = true;
	if (!fairq_ops.bio_merge(&queue, bio, 1)) {
		rq = take_tag(&contexts[at]);
		*has_tag = rq;
	}
	if (!rq) {
		blkg_put(blkg);
		return false;
	}
	*rq = (struct request) {
		.q = &queue, .mq_hctx = &contexts[at], .internal_tag = rq->internal_tag, .where = TAKEN,
		.bio = bio, .biotail = bio, .offset = (u64)chance(16) << 12,
		.length = chance(4) ? 4096 : 512 << chance(8), .op = chance(4) ? REQ_OP_READ : REQ_OP_WRITE,
		.blkg = blkg, .task = self->number,
	};
	INIT_LIST_HEAD(&rq->queuelist);
	fairq_ops.prepare_request(rq);
	rq->where = INSERTED;
	percpu_ref_get(&queue.q_usage_counter);
	inserted++;
	live_of[rq->task]++;
	list_add_tail(&rq->queuelist, list);
	return true;
}

/* Sends requests, alone or several at a time, from one CPU and then from another one. */
static void task(struct runner *self)
{
	bool waits = waits_for_its_own(self), has_tag;
	u32 left = ((waits ? 20 : 5) + chance(20)) * load;

	while (left) {
		u32 at = waits ? 0 : chance(queue.nr_hw_queues), several = waits || chance(4) ? 1 : 1 + chance(4);
		bool is_single = several == 1;
		struct list_head list;

		INIT_LIST_HEAD(&list);
		wait_until(is_open);
		percpu_ref_get(&queue.q_usage_counter);
		for (has_tag = true; several && left && has_tag; several--) {
			add_request(self, at, &list, &has_tag);
			left -= has_tag;
		}
		/* A single request has its own reference to the queue, and may end at any time. */
		if (is_single || list_empty(&list))
			percpu_ref_put(&queue.q_usage_counter);
		if (!list_empty(&list)) {
			fairq_ops.insert_requests(&contexts[at], &list, 0);
			step();
			blk_mq_run_hw_queue(&contexts[at], chance(2));
			if (!is_single)
				percpu_ref_put(&queue.q_usage_counter);
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
static bool drive_has(struct runner *self) { (void)self; return due(); }

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
			for (i = 0; i < queue.nr_hw_queues; i++) {
				if (!contexts[i].wants_restart)
					continue;
				contexts[i].wants_restart = false;
				blk_mq_run_hw_queue(&contexts[i], true);
			}
			release(rq);
		}
		idle();
	}
}

/* The kernel's thread for requests that were put back. */
static bool requeuer_has(struct runner *self) { (void)self; return !list_empty(&put_back); }

static void requeuer(struct runner *self)
{
	(void)self;
	for (;;) {
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

/* Frees removed cgroups that have no users. */
static bool freer_has(struct runner *self) { (void)self; return unused_group(&queue); }

static void freer(struct runner *self)
{
	(void)self;
	for (;;) {
		if (unused_group(&queue))
			free_group_of(unused_group(&queue));
		idle();
	}
}

static bool is_unused(struct runner *self) { (void)self; return !queue.q_usage_counter.count; }
static bool is_still(struct runner *self) { (void)self; return !dispatching; }

/* When this returns, no request is live, none can be sent, and no hardware context is run. */
static void freeze(void)
{
	wait_until(is_open);
	is_frozen = true;
	wait_until(is_unused);
	is_quiesced = true;
	wait_until(is_still);
}

static void unfreeze(void)
{
	is_quiesced = is_frozen = false;
	run_all();
}

/* Stops the scheduler as elevator_switch() does. */
static void end_scheduler(void)
{
	u32 i;

	for (i = 0; i < queue.nr_hw_queues; i++) {
		fairq_ops.exit_hctx(&contexts[i], i);
		contexts[i].sched_data = NULL;
	}
	fairq_queue_stop(&elevator);
	stops++;
	fq = NULL;
}

static void begin_scheduler(void)
{
	u32 i;

	if (fairq_queue_start(&queue, &elevator, scheduler))
		fail("cannot be started");
	fq = elevator.elevator_data;
	for (i = 0; i < queue.nr_hw_queues; i++)
		if (fairq_ops.init_hctx(&contexts[i], i))
			fail("no memory");
}

/* Changes D. */
static void tune(void)
{
	struct fairq_change change = { .what = FAIRQ_SLOTS, .value = is_small ? 1 : 1 + chance(2 * room) };
	struct fairq_wake wake = {};

	spin_lock_irq(&queue.queue_lock);
	fairq_core_tune(fq->engine, &change, &wake);
	spin_unlock_irq(&queue.queue_lock);
	fairq_run_later(fq, &wake);
}

/* The administrator: quiesces the queue for a while, changes D, or replaces the scheduler. */
static bool administrator_has(struct runner *self) { (void)self; return !is_changing && !chance(500); }

static void administrator(struct runner *self)
{
	for (;;) {
		u32 i, steps = chance(200), what = chance(10);

		is_changing = true;
		if (what < 4) {
			is_quiesced = true;
			for (i = 0; i < steps; i++)
				step();
			is_quiesced = false;
			run_all();
		} else if (what < 8) {
			tune();
		} else {
			freeze();
			if (what == 8) {
				struct fairq_engine *before = fq->engine;

				/* Without memory the scheduler stays as it is. */
				self->is_short_of_memory = chance(2);
				if (fairq_start(fq, 0) && (!self->is_short_of_memory || fq->engine != before))
					fail("cannot be rebuilt");
				self->is_short_of_memory = false;
			} else {
				end_scheduler();
				begin_scheduler();
			}
			unfreeze();
		}
		is_changing = false;
		idle();
	}
}

static bool is_unchanged(struct runner *self) { (void)self; return !is_changing; }

/* Stops the scheduler at the end of an interleaving. */
static void ender(struct runner *self)
{
	(void)self;
	wait_until(is_unchanged);
	is_changing = true;
	freeze();
	end_scheduler();
	is_over = true;
}

static bool always(struct runner *self) { (void)self; return true; }

/*
 * The manager of cgroups: it changes weights, and removes and adds cgroups, most of them while the
 * scheduler changes.
 */
static bool manager_has(struct runner *self) { (void)self; return !chance(is_frozen ? 20 : 400); }

static void manager(struct runner *self)
{
	(void)self;
	for (;;) {
		u32 which = chance(FLOWS);
		struct blkcg_gq *old = cgroups[which], *parent = root_group, *made;

		WRITE_ONCE(cgroup_of(old->blkcg)->weight, 1 + chance(1000));
		if (!old->children) {
			spin_lock_irq(&queue.queue_lock);
			/* Its tasks belong to root until the new cgroup exists. */
			cgroups[which] = root_group;
			remove_group(old);
			if (which && chance(2))
				parent = cgroups[0];
			made = make_group(&queue, parent, 1 + chance(1000));
			cgroups[which] = made;
			spin_unlock_irq(&queue.queue_lock);
		}
		idle();
	}
}

/* The time of the next end of a request or expiry of a timer; all ones: there is none. */
static u64 next_event(bool with_tick)
{
	struct hrtimer *timer;
	u64 next = ~0ULL;
	u32 i, tag;

	for (timer = timers; timer; timer = timer->next)
		if (timer->is_armed && timer->expires_ns < next &&
		    (with_tick || !fq || (timer != &fq->tick && timer != &fq->weigh.timer)))
			next = timer->expires_ns;
	for (i = 0; i < queue.nr_hw_queues; i++)
		for (tag = 0; tag < depth; tag++)
			if (requests[i][tag].where == SENT && requests[i][tag].due_ns < next)
				next = requests[i][tag].due_ns;
	return next;
}

static void start(void)
{
	static struct blk_mq_tag_set set;
	static struct gendisk disk = { .queue = &queue };
	u32 i, tag, shared = 1 + !chance(3);

	memset(requests, 0, sizeof(requests));
	bio_count = on_drive = inserted = ended = dispatching = 0;
	is_frozen = is_quiesced = is_changing = is_over = false;
	is_small = !chance(4);
	is_closed = is_small || chance(2);
	slow = is_small || chance(2) ? 100 : 1;
	memset(live_of, 0, sizeof(live_of));
	INIT_LIST_HEAD(&put_back);
	depth = 2 + chance(MOST_TAGS - 1);
	set = (struct blk_mq_tag_set) { .queue_depth = 1 + chance(chance(2) ? 4 : 16) };
	type.ops = fairq_ops;
	elevator = (struct elevator_queue) { .type = &type };
	queue = (struct request_queue) {
		.nr_hw_queues = 1 + chance(MOST_CONTEXTS / 2), .nr_requests = depth, .disk = &disk, .tag_set = &set,
		.contexts = contexts,
	};
	INIT_LIST_HEAD(&queue.blkg_list);
	forget_groups();
	make_group(&queue, NULL, 100);
	for (i = 0; i < FLOWS; i++)
		cgroups[i] = make_group(&queue, root_group, 1 + chance(1000));
	/* There may be fewer flows than cgroups. */
	*parameter_groups() = chance(4) ? 16 : FLOWS;
	room = set.queue_depth * queue.nr_hw_queues;
	if (fairq_queue_start(&queue, &elevator, scheduler))
		fail("cannot be started");
	fq = elevator.elevator_data;
	if (shared > 1) {
		/* Two contexts share each port, as on a drive with more contexts than ports. */
		queue.nr_hw_queues *= shared;
		if (fairq_start(fq, depth))
			fail("cannot be started for shared ports");
	}
	queue.async_depth = 1 + chance(depth);
	/* The drive may have room for more or for less than the scheduler believes. */
	room += chance(4);
	for (i = 0; i < queue.nr_hw_queues; i++) {
		contexts[i] = (struct blk_mq_hw_ctx) { .queue = &queue };
		INIT_LIST_HEAD(&contexts[i].dispatch);
		if (fairq_ops.init_hctx(&contexts[i], i))
			fail("no memory");
		for (tag = 0; tag < depth; tag++) {
			requests[i][tag].internal_tag = tag;
			requests[i][tag].rq_flags = RQF_USE_SCHED;
		}
	}
	if (is_small)
		tune();
	/* With a small T ports also wait for virtual time, and not only for free slots. */
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
	add_runner(requeuer, requeuer_has, 0, false);
	add_runner(freer, freer_has, 0, false);
	add_runner(administrator, administrator_has, 0, false);
	add_runner(manager, manager_has, 0, false);
	add_kernel();
}

/* Checks references: one of a cgroup that is not removed, and one for each child. */
static void look_for_users(void)
{
	struct blkcg_gq *blkg, *other;

	list_for_each_entry(blkg, &queue.blkg_list, q_node) {
		u32 users = !blkg->is_dying;

		list_for_each_entry(other, &queue.blkg_list, q_node)
			users += other->parent == blkg;
		if (blkg->users != users)
			fail("a cgroup has %u users instead of %u", blkg->users, users);
	}
}

/*
 * Whether requests of this scheduler may wait for the end of a period or a time slice, which a tick
 * finds.
 */
static bool waits_for_ticks(void)
{
	return strcmp(name, "mqfq") && strcmp(name, "mqfq-serial") && strcmp(name, "sfqd") && strcmp(name, "d2fq");
}

/*
 * Called when no runner can run before the next event of the drive or a timer. Under a scheduler
 * that uses each free slot at once, no request may then wait while a slot is free.
 */
static void look_for_waiting(void)
{
	struct fairq_state told;
	u32 i, tag, waiting = 0;
	struct request *rq;

	if (waits_for_ticks() || is_quiesced || !fq)
		return;
	for (i = 0; i < queue.nr_hw_queues; i++) {
		for (tag = 0; tag < depth; tag++)
			waiting += requests[i][tag].where == INSERTED;
		/* The drive refuses requests that the scheduler has dispatched. */
		if (!list_empty(&contexts[i].dispatch))
			return;
	}
	list_for_each_entry_reverse(rq, &put_back, queuelist)
		waiting--;
	fairq_core_tell(fq->engine, &told);
	if (waiting && told.free_slots)
		fail("%u requests wait while %llu slots are free", waiting, (unsigned long long)told.free_slots);
}

/* Called when no runner can run: the ticks must have restarted the scans of the groups. */
static void restart_scans(void)
{
	if (fq && fq->ticking && !fq->weigh.timer.is_armed && !fq->weigh.work.is_due)
		fail("the ticks continue, but the groups are no longer scanned");
}

/* Runs one interleaving to its end. */
static void interleave(u64 number)
{
	u64 steps = 0, next, seen = 0;
	u32 ticks = 0;

	start_machine(number, number * 0x9e3779b97f4a7c15ULL + scheduler + 1);
	start();
	for (;;) {
		if (++steps > 20000000ULL * load)
			fail("does not come to an end");
		if (run_one())
			continue;
		look_for_waiting();
		restart_scans();
		next = next_event(false);
		if (next == ~0ULL && inserted != ended) {
			ticks = seen == ended ? ticks + 1 : 0;
			seen = ended;
			if (!waits_for_ticks() || ticks == 100)
				fail("%u of %u requests never end: no event is pending", inserted - ended, inserted);
		}
		if (next == ~0ULL)
			next = next_event(true);
		if (next == ~0ULL)
			break;
		now = max(now, next);
	}
	if (inserted != ended)
		fail("%u of %u requests have not ended", inserted - ended, inserted);
	if (fairq_core_needs_classes(scheduler) && !weighed)
		fail("the driver has no weights");
	add_runner(ender, always, 0, false);
	while (!is_over)
		if (!run_one() && ++steps > 40000000ULL * load)
			fail("the scheduler does not end");
	while (freer_has(NULL))
		run_one();
	look_for_users();
}

int main(int count, char **words)
{
	u64 first = count > 1 ? strtoull(words[1], NULL, 10) : 1, many = count > 2 ? strtoull(words[2], NULL, 10) : 100, i;
	size_t length;

	if (count > 3)
		load = strtoul(words[3], NULL, 10);
	for (scheduler = 0; (length = fairq_core_name(scheduler, name, sizeof(name) - 1)); scheduler++) {
		name[length] = 0;
		for (i = first; i < first + many; i++)
			interleave(i);
	}
	printf("parking: %u schedulers, %llu interleavings of each, %u requests merged\n", scheduler,
	       (unsigned long long)many, merged);
	return !scheduler;
}
