// SPDX-License-Identifier: MIT OR Apache-2.0
/* The engine of a queue: building it, its memory, and its timers. */
#include <linux/blkdev.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "fairq.h"
#include "compat.h"

/* Shortest time between two ticks. */
#define TICK_NS (100 * NSEC_PER_USEC)
/* The time between two scans of the groups. */
#define WEIGH_MS 100

static unsigned int groups = 1024;
module_param(groups, uint, 0644);
MODULE_PARM_DESC(groups, "the most cgroups that share a drive, root included (1024); further ones are "
			 "charged to root; a new value is for schedulers that are selected afterwards");

/* Held while the schedulers use the lent memory. */
static DEFINE_MUTEX(lending);

void *fairq_lend(size_t size)
{
	void *memory = kvmalloc(size, GFP_KERNEL | __GFP_NOWARN);

	if (!memory)
		return NULL;
	mutex_lock(&lending);
	fairq_core_lend(memory, size);
	return memory;
}

void fairq_end_lending(void)
{
	fairq_core_lend(NULL, 0);
	mutex_unlock(&lending);
}

/* Kinds of locks for lockdep; locks of the same data have one kind. Filled while memory is lent. */
#define LOCK_KINDS 32
static struct lock_class_key lock_keys[LOCK_KINDS];
static u64 lock_kinds[LOCK_KINDS];

void fairq_lock_init(void *memory, u64 kind)
{
	raw_spinlock_t *lock = memory;
	u32 i;

	BUILD_BUG_ON(sizeof(*lock) > FAIRQ_LOCK_WORDS * sizeof(u64));
	for (i = 0; i < LOCK_KINDS - 1 && lock_kinds[i] && lock_kinds[i] != kind; i++)
		;
	lock_kinds[i] = kind;
	raw_spin_lock_init(lock);
	lockdep_set_class(lock, &lock_keys[i]);
}

unsigned long fairq_lock(void *lock)
{
	unsigned long irq;

	raw_spin_lock_irqsave((raw_spinlock_t *)lock, irq);
	return irq;
}

void fairq_unlock(void *lock, unsigned long irq)
{
	raw_spin_unlock_irqrestore((raw_spinlock_t *)lock, irq);
}

void __noreturn fairq_panicked(const char *text, size_t length)
{
	pr_emerg("fairq: %.*s\n", (int)length, text);
	BUG();
}

/* Allocates one piece of memory for an engine, and builds it there; it uses no other memory. */
static int build(struct fairq_queue *fq, u32 tags, struct fairq_engine **engine, void **memory)
{
	struct fairq_wanted wanted = {
		.scheduler = fq->scheduler,
		.ports = fq->nr_ports,
		.flows = clamp(READ_ONCE(groups), 2U, 65536U),
		.tags = tags,
		.slots = fq->slots,
		.keys = fq->keys,
		.key_count = fq->key_count,
	};
	u64 size = fairq_core_size(wanted.ports, wanted.tags, wanted.flows);
	int error;

	if (size > INT_MAX)
		return -ENOMEM;
	*memory = fairq_lend(size);
	if (!*memory)
		return -ENOMEM;
	error = fairq_core_new(&wanted, engine);
	fairq_end_lending();
	if (!error)
		return 0;
	kvfree(*memory);
	return error == 1 ? -EINVAL : -ENOMEM;
}

static enum hrtimer_restart port_timer(struct hrtimer *timer)
{
	struct fairq_port *port = container_of(timer, struct fairq_port, timer);
	struct fairq_wake wake = {};

	wake.words[port->index / 64] = 1ULL << (port->index % 64);
	fairq_run(port->fq, &wake);
	return HRTIMER_NORESTART;
}

static enum hrtimer_restart tick_timer(struct hrtimer *timer)
{
	struct fairq_queue *fq = container_of(timer, struct fairq_queue, tick);

	kblockd_schedule_work(&fq->ticker);
	return HRTIMER_NORESTART;
}

/*
 * Sets the timer of the next tick. It also restarts the scans of the groups, because weigh() stops
 * them if it finds `ticking` false, as it is for a moment in each tick.
 */
static void tick_at(struct fairq_queue *fq, u64 at_ns, unsigned int weigh_ms)
{
	hrtimer_start(&fq->tick, ns_to_ktime(at_ns), HRTIMER_MODE_ABS);
	queue_delayed_work(FAIRQ_WORKQUEUE, &fq->weigh, msecs_to_jiffies(weigh_ms));
}

/* Repeats itself while there are live requests; fairq_keep_ticking() starts it again. */
static void tick(struct work_struct *work)
{
	struct fairq_queue *fq = container_of(work, struct fairq_queue, ticker);
	struct fairq_wake wake = {};
	unsigned int live = 0;
	u64 now_ns = ktime_get_ns();
	u64 next_ns;
	u32 i;

	next_ns = fairq_core_tick(fq->engine, now_ns, &wake);
	fairq_find_ends(fq, &wake);
	fairq_run(fq, &wake);
	fairq_follow_weights(fq);
	if (!next_ns)
		next_ns = now_ns + NSEC_PER_SEC;

	WRITE_ONCE(fq->ticking, false);
	/*
	 * Pairs with fairq_keep_ticking(): one of the two reads the value that the other has
	 * written.
	 */
	smp_mb();
	for (i = 0; i < fq->nr_ports; i++)
		live |= READ_ONCE(fq->ports[i].live);
	if (live && !xchg(&fq->ticking, true))
		tick_at(fq, max(next_ns, now_ns + TICK_NS), WEIGH_MS);
}

/* The barrier orders the caller's write of a port's `live` before the read of `ticking`. */
void fairq_keep_ticking(struct fairq_queue *fq)
{
	smp_mb();
	if (!READ_ONCE(fq->ticking) && !xchg(&fq->ticking, true))
		tick_at(fq, 0, 1);
}

/* Scans the groups, and repeats itself as long as there are ticks. */
static void weigh(struct work_struct *work)
{
	struct fairq_queue *fq = container_of(work, struct fairq_queue, weigh.work);

	fairq_weigh(fq);
	if (READ_ONCE(fq->ticking))
		queue_delayed_work(FAIRQ_WORKQUEUE, &fq->weigh, msecs_to_jiffies(WEIGH_MS));
}

/*
 * When this returns, no timer and no work is pending or runs. Work starts timers, so work is
 * disabled first; a caller that queues work meanwhile, such as the removal of a cgroup, has no
 * effect. A port's timer may start the timers of other ports, under their locks, so each port is
 * marked as stopped before its timer is cancelled. No request is live, so no request starts a
 * timer.
 */
static void stop_timers(struct fairq_queue *fq)
{
	unsigned long irq;
	u32 i;

	disable_work_sync(&fq->work);
	disable_work_sync(&fq->ticker);
	disable_delayed_work_sync(&fq->weigh);
	disable_work_sync(&fq->reweigh);
	for (i = 0; i < fq->nr_ports; i++) {
		spin_lock_irqsave(&fq->ports[i].lock, irq);
		fq->ports[i].is_stopped = true;
		spin_unlock_irqrestore(&fq->ports[i].lock, irq);
		hrtimer_cancel(&fq->ports[i].timer);
	}
	hrtimer_cancel(&fq->tick);
	fq->ticking = false;
}

/* Enables timers and work, and runs the ports that fairq_run_later() has recorded meanwhile. */
static void allow_timers(struct fairq_queue *fq)
{
	unsigned long irq;
	u32 i;

	for (i = 0; i < fq->nr_ports; i++) {
		spin_lock_irqsave(&fq->ports[i].lock, irq);
		fq->ports[i].is_stopped = false;
		spin_unlock_irqrestore(&fq->ports[i].lock, irq);
	}
	enable_work(&fq->work);
	enable_work(&fq->ticker);
	enable_delayed_work(&fq->weigh);
	enable_work(&fq->reweigh);
	fairq_follow_weights(fq);
	kblockd_schedule_work(&fq->work);
}

/* No request is live. */
void fairq_hear_all(struct fairq_queue *fq)
{
	struct fairq_wake wake = {};
	unsigned long irq;
	u32 i;

	for (i = 0; i < fq->nr_ports; i++) {
		spin_lock_irqsave(&fq->ports[i].lock, irq);
		fairq_take_ends(&fq->ports[i], &wake);
		spin_unlock_irqrestore(&fq->ports[i].lock, irq);
	}
}

static int start(struct fairq_queue *fq, u32 depth)
{
	u32 contexts = DIV_ROUND_UP(fq->q->nr_hw_queues, fq->nr_ports);
	struct fairq_slot *slots, *old_slots;
	void *memory, *old_memory;
	struct fairq_engine *engine;
	u32 tags, turn, i, *turns, *old_turns;
	int error;

	if (check_mul_overflow(depth, contexts, &tags))
		return -EINVAL;
	slots = kvcalloc(fq->nr_ports, array_size(tags, sizeof(*slots)), GFP_KERNEL);
	turns = kvcalloc(fq->nr_ports, array_size(tags, sizeof(*turns)), GFP_KERNEL);
	error = slots && turns ? build(fq, tags, &engine, &memory) : -ENOMEM;
	if (error) {
		kvfree(slots);
		kvfree(turns);
		return error;
	}
	for (turn = 0; turn < fq->nr_ports * tags; turn++)
		turns[turn] = turn % tags;
	fairq_hear_all(fq);
	stop_timers(fq);
	old_slots = fq->ports[0].slots;
	old_turns = fq->ports[0].turns;
	old_memory = fq->memory;
	/*
	 * The queue's lock orders this against the removal of a cgroup, which removes its flow from
	 * the old engine or from the new one.
	 */
	spin_lock_irq(&fq->q->queue_lock);
	for (i = 0; i < fq->nr_ports; i++) {
		fq->ports[i].slots = slots + (size_t)i * tags;
		fq->ports[i].turns = turns + (size_t)i * tags;
	}
	fq->engine = engine;
	fq->memory = memory;
	fq->root = fairq_core_root(engine);
	fq->builds++;
	fq->depth = depth;
	fq->tags = tags;
	spin_unlock_irq(&fq->q->queue_lock);
	kvfree(old_slots);
	kvfree(old_turns);
	kvfree(old_memory);
	if (old_memory)
		fairq_add_flows(fq);
	allow_timers(fq);
	return 0;
}

/*
 * Builds an engine for this number of tags of each hardware context, in place of the queue's
 * present one, if there is one. The queue is frozen, so allocations must not wait for requests to
 * it.
 */
int fairq_start(struct fairq_queue *fq, u32 depth)
{
	unsigned int noio = memalloc_noio_save();
	int error;

	mutex_lock(&fq->building);
	error = start(fq, depth ? depth : fq->depth);
	mutex_unlock(&fq->building);
	memalloc_noio_restore(noio);
	return error;
}

void fairq_stop(struct fairq_queue *fq)
{
	stop_timers(fq);
	kvfree(fq->memory);
	kvfree(fq->ports[0].slots);
	kvfree(fq->ports[0].turns);
}

void fairq_init_timers(struct fairq_queue *fq)
{
	u32 i;

	INIT_DELAYED_WORK(&fq->weigh, weigh);
	INIT_WORK(&fq->ticker, tick);
	INIT_WORK(&fq->reweigh, fairq_reweigh);
	hrtimer_setup(&fq->tick, tick_timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	for (i = 0; i < fq->nr_ports; i++)
		hrtimer_setup(&fq->ports[i].timer, port_timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
}
