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

static unsigned int groups = 1024;
module_param(groups, uint, 0644);
MODULE_PARM_DESC(groups, "the most cgroups that a queue shares between, root among them (1024); "
			 "others are charged to root; for queues that get a scheduler from now on");

/*
 * The schedulers build themselves in memory that is there: they have no path for one that is not.
 * So fairq_start() asks for all of it first, where a refusal is an error, and what they then take
 * piece by piece waits until it is there.
 */
void *fairq_memory_take(size_t size, size_t align)
{
	/* kmalloc aligns what is a power of two by its size, and kvmalloc by pages what is larger. */
	if (size < PAGE_SIZE)
		size = roundup_pow_of_two(max(size, align));
	return kvmalloc(size, GFP_KERNEL | __GFP_NOFAIL);
}

void fairq_memory_give(void *memory, size_t size)
{
	kvfree(memory);
}

void __noreturn fairq_panicked(const char *text, size_t length)
{
	pr_emerg("fairq: %.*s\n", (int)length, text);
	BUG();
}

static int build(struct fairq_queue *fq, u32 tags, struct fairq_engine **engine)
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
	void *all;

	if (size > INT_MAX)
		return -ENOMEM;
	all = kvmalloc(size, GFP_KERNEL | __GFP_NOWARN);
	if (!all)
		return -ENOMEM;
	kvfree(all);
	switch (fairq_core_new(&wanted, engine)) {
	case 0:
		return 0;
	case 1:
		return -EINVAL;
	default:
		return -ENOMEM;
	}
}

static enum hrtimer_restart port_timer(struct hrtimer *timer)
{
	struct fairq_port *port = container_of(timer, struct fairq_port, timer);
	struct fairq_wake wake = {};

	wake.words[port->index / 64] = 1ULL << (port->index % 64);
	fairq_run(port->fq, &wake);
	return HRTIMER_NORESTART;
}

/* Goes on while there are requests; fairq_keep_ticking() begins it again. */
static enum hrtimer_restart tick(struct hrtimer *timer)
{
	struct fairq_queue *fq = container_of(timer, struct fairq_queue, tick);
	struct fairq_wake wake = {};
	unsigned int live = 0;
	u64 now_ns = ktime_get_ns();
	u64 next_ns;
	u32 i;

	next_ns = fairq_core_tick(fq->engine, now_ns, &wake);
	fairq_find_ends(fq, &wake);
	fairq_run(fq, &wake);
	if (!next_ns)
		next_ns = now_ns + NSEC_PER_SEC;

	WRITE_ONCE(fq->ticking, false);
	/* Against the one in fairq_keep_ticking(): one of the two sees what the other has written. */
	smp_mb();
	for (i = 0; i < fq->nr_ports; i++)
		live |= READ_ONCE(fq->ports[i].live);
	if (!live || xchg(&fq->ticking, true))
		return HRTIMER_NORESTART;
	hrtimer_set_expires(timer, ns_to_ktime(max(next_ns, now_ns + TICK_NS)));
	return HRTIMER_RESTART;
}

/* The number of live requests of a port has been written. */
void fairq_keep_ticking(struct fairq_queue *fq)
{
	smp_mb();
	if (!READ_ONCE(fq->ticking) && !xchg(&fq->ticking, true)) {
		hrtimer_start(&fq->tick, 0, HRTIMER_MODE_ABS);
		queue_delayed_work(FAIRQ_WORKQUEUE, &fq->weigh, msecs_to_jiffies(1));
	}
}

/* As long as the ticks go on, which is where it begins again. */
static void weigh(struct work_struct *work)
{
	struct fairq_queue *fq = container_of(work, struct fairq_queue, weigh.work);

	fairq_weigh(fq);
	if (READ_ONCE(fq->ticking))
		queue_delayed_work(FAIRQ_WORKQUEUE, &fq->weigh, msecs_to_jiffies(100));
}

static void stop_timers(struct fairq_queue *fq)
{
	u32 i;

	/* No request is live, so neither begins again. */
	for (i = 0; i < fq->nr_ports; i++)
		hrtimer_cancel(&fq->ports[i].timer);
	hrtimer_cancel(&fq->tick);
	fq->ticking = false;
	cancel_work_sync(&fq->work);
	cancel_delayed_work_sync(&fq->weigh);
	hrtimer_cancel(&fq->tick);
	fq->ticking = false;
}

/* No request is live. */
void fairq_hear_all(struct fairq_queue *fq)
{
	struct fairq_wake wake = {};
	unsigned long irq;
	u32 i;

	for (i = 0; i < fq->nr_ports; i++) {
		spin_lock_irqsave(&fq->ports[i].lock, irq);
		fairq_hear_ends(&fq->ports[i], &wake);
		spin_unlock_irqrestore(&fq->ports[i].lock, irq);
	}
}

static int start(struct fairq_queue *fq, u32 depth)
{
	u32 contexts = DIV_ROUND_UP(fq->q->nr_hw_queues, fq->nr_ports);
	struct fairq_engine *engine, *old = fq->engine;
	struct fairq_slot *slots;
	u32 tags, turn, i, *turns;
	int error;

	if (check_mul_overflow(depth, contexts, &tags))
		return -EINVAL;
	slots = kvcalloc(fq->nr_ports, array_size(tags, sizeof(*slots)), GFP_KERNEL);
	turns = kvcalloc(fq->nr_ports, array_size(tags, sizeof(*turns)), GFP_KERNEL);
	error = slots && turns ? build(fq, tags, &engine) : -ENOMEM;
	if (error) {
		kvfree(slots);
		kvfree(turns);
		return error;
	}
	fairq_hear_all(fq);
	stop_timers(fq);
	kvfree(fq->ports[0].slots);
	kvfree(fq->ports[0].turns);
	for (i = 0; i < fq->nr_ports; i++) {
		fq->ports[i].slots = slots + (size_t)i * tags;
		fq->ports[i].turns = turns + (size_t)i * tags;
		for (turn = 0; turn < tags; turn++)
			fq->ports[i].turns[turn] = turn;
	}
	local_irq_disable();
	fq->root = fairq_core_root(engine);
	local_irq_enable();
	spin_lock_irq(&fq->q->queue_lock);
	fq->engine = engine;
	fq->depth = depth;
	fq->tags = tags;
	if (old)
		fairq_readd_groups(fq);
	spin_unlock_irq(&fq->q->queue_lock);
	if (old)
		fairq_core_free(old);
	return 0;
}

/*
 * Gives the queue an engine for so many tags of each hardware context, or another one than it has.
 * The queue is frozen: memory must not wait for requests to it.
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
	fairq_core_free(fq->engine);
	kvfree(fq->ports[0].slots);
	kvfree(fq->ports[0].turns);
}

void fairq_init_timers(struct fairq_queue *fq)
{
	u32 i;

	INIT_DELAYED_WORK(&fq->weigh, weigh);
	hrtimer_setup(&fq->tick, tick, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	for (i = 0; i < fq->nr_ports; i++)
		hrtimer_setup(&fq->ports[i].timer, port_timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
}
