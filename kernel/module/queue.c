// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The operations of an elevator, which take a request through the scheduler.
 *
 * insert_requests() gives it to the scheduler, which holds it back; dispatch_request() takes the
 * next request that may be sent; finish_request() completes it. Each of them collects the ports
 * that may now send a request; the hardware contexts of these ports are run when no lock is held.
 */
#include <linux/blkdev.h>
#include <linux/module.h>
#include <linux/sbitmap.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "blk.h"
#include "elevator.h"
#include "blk-mq.h"
#include "blk-mq-sched.h"

#include "fairq.h"
#include "compat.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

static void add_port(struct fairq_wake *wake, struct fairq_port *port)
{
	wake->words[port->index / 64] |= 1ULL << (port->index % 64);
}

static bool is_empty(const struct fairq_wake *wake)
{
	return !(wake->words[0] | wake->words[1] | wake->words[2] | wake->words[3]);
}

/* Puts a request that may be sent on the list of its hardware context. */
static void make_ready(struct request *rq)
{
	struct fairq_hctx *fh = rq->mq_hctx->sched_data;

	if (READ_ONCE(fh->first) || !list_empty(&fh->ready))
		list_add_tail(&rq->queuelist, &fh->ready);
	else
		smp_store_release(&fh->first, rq);
}

/* Records that the scheduler has dispatched a request. */
static void issued(struct fairq_port *port, struct request *rq, u64 now_ns)
{
	struct fairq_slot *slot = &port->slots[fairq_turn_of(rq)];

	fairq_unstage(port, rq);
	fairq_set_place(rq, FAIRQ_ISSUED);
	/* Added, because a request that was put back has waited before. */
	slot->waited_ns += now_ns - slot->since_ns;
	slot->since_ns = now_ns;
	slot->bytes = blk_rq_bytes(rq);
	/*
	 * The request was held back if the scheduler returned none to the port while it was staged,
	 * or if a later request was sent first.
	 */
	slot->throttled |= slot->vain != port->vain || (s32)(port->latest - slot->arrival) > 0;
	if ((s32)(slot->arrival - port->latest) > 0)
		port->latest = slot->arrival;
}

static dev_t dev_of(struct fairq_queue *fq)
{
	return disk_devt(fq->q->disk);
}

/* Records the numbers behind a decision, if the tracepoint is on. */
static void trace_decision(struct fairq_queue *fq, struct fairq_port *port, const struct fairq_chosen *chosen)
{
	u32 tag = chosen->what == FAIRQ_ISSUE ? chosen->tag : U32_MAX;
	struct fairq_why why;

	if (!trace_fairq_decide_enabled())
		return;
	fairq_core_why(fq->engine, port->index, tag, &why);
	if (chosen->what != FAIRQ_NOTHING || why.held != FAIRQ_NOT_HELD)
		trace_fairq_decide(dev_of(fq), port->index, chosen, &why);
}

/*
 * Runs the port at this time. Setting a timer takes as long as sending a request, so a timer that
 * expires earlier is left as it is.
 */
static void run_at(struct fairq_port *port, u64 until_ns)
{
	if (!port->is_stopped &&
	    (!hrtimer_is_queued(&port->timer) ||
	     ktime_to_ns(hrtimer_get_expires(&port->timer)) > (s64)until_ns))
		hrtimer_start(&port->timer, ns_to_ktime(until_ns), HRTIMER_MODE_ABS);
}

void fairq_take_ends(struct fairq_port *port, struct fairq_wake *wake)
{
	struct fairq_queue *fq = port->fq;
	struct fairq_slot *slot, *next;
	struct llist_node *ended;
	u32 turn;

	if (llist_empty(&port->ended))
		return;
	/* The list has the request that ended last at its head. */
	ended = llist_reverse_order(llist_del_all(&port->ended));
	llist_for_each_entry_safe(slot, next, ended, ended) {
		turn = slot - port->slots;
		fairq_core_complete(fq->engine, port->index, slot->ended_ns, turn, wake);
		fairq_count(slot, slot->ended_ns - slot->since_ns);
		WRITE_ONCE(port->live, port->live - 1);
	}
}

void fairq_find_ends(struct fairq_queue *fq, struct fairq_wake *wake)
{
	u32 i;

	for (i = 0; i < fq->nr_ports; i++)
		if (!llist_empty(&fq->ports[i].ended))
			add_port(wake, &fq->ports[i]);
}

/*
 * Sets whether the port waits. It may wait for ended requests that the scheduler does not know yet,
 * so all ports with such requests are added to `wake`.
 */
static void set_waits(struct fairq_port *port, bool waits, struct fairq_wake *wake)
{
	if (port->waits == waits)
		return;
	port->waits = waits;
	if (!waits) {
		atomic_dec(&port->fq->waiting);
		return;
	}
	atomic_inc(&port->fq->waiting);
	/*
	 * Pairs with fairq_finish_request(): one of the two reads the value that the other has
	 * written.
	 */
	smp_mb__after_atomic();
	fairq_find_ends(port->fq, wake);
}

/* Returns the request that the scheduler dispatches next on this port, of any hardware context. */
static struct request *choose(struct fairq_queue *fq, struct fairq_port *port, u64 now_ns,
			      struct fairq_wake *wake)
{
	struct fairq_chosen chosen;
	struct request *rq;

	fairq_take_ends(port, wake);
	fairq_core_next(fq->engine, port->index, now_ns, &chosen, wake);
	trace_decision(fq, port, &chosen);
	switch (chosen.what) {
	case FAIRQ_ISSUE:
		rq = port->slots[chosen.tag].rq;
		if (WARN_ON_ONCE(!rq))
			return NULL;
		rq = fairq_best(port, rq, now_ns);
		issued(port, rq, now_ns);
		return rq;
	case FAIRQ_WAIT:
		run_at(port, chosen.until_ns);
		break;
	}
	if (port->held)
		port->vain++;
	set_waits(port, port->held, wake);
	return NULL;
}

/*
 * Records that the port's hardware contexts run, or will run, and then take requests until there
 * are none (`run_due` in fairq.h).
 */
static void mark_run_due(struct fairq_port *port)
{
	WRITE_ONCE(port->run_due, true);
}

/*
 * After each event on a port the scheduler has to be called once more for it, because other ports
 * may wait for the effect of that call. If a run is due, that run calls the scheduler. Otherwise,
 * if the scheduler has a request for the port, this function returns true; the caller then has to
 * run the hardware contexts, which call the scheduler. blk-mq runs no context without work, so in
 * all other cases the scheduler is called here.
 */
static bool settle(struct fairq_queue *fq, struct fairq_port *port, u64 now_ns,
		   struct fairq_wake *wake)
{
	struct request *rq;

	if (port->run_due)
		return false;
	if (!fairq_core_has_work(fq->engine, port->index)) {
		rq = choose(fq, port, now_ns, wake);
		if (!rq)
			return false;
		make_ready(rq);
	}
	mark_run_due(port);
	return true;
}

/* The most rounds of ports that wake each other in one call; a work item runs further ports. */
#define ROUNDS 8

/*
 * Calls the scheduler for woken ports; runs the hardware contexts of those with requests and of
 * `own`.
 */
static void deliver(struct fairq_queue *fq, struct fairq_wake *wake, struct fairq_port *own)
{
	struct fairq_wake run = {}, more;
	struct blk_mq_hw_ctx *hctx;
	struct fairq_port *port;
	unsigned long i, irq;
	u32 word, bit, round;
	u64 now_ns;

	if (!own && is_empty(wake))
		return;
	now_ns = ktime_get_ns();
	if (own)
		add_port(&run, own);
	for (round = 0; round < ROUNDS && !is_empty(wake); round++) {
		memset(&more, 0, sizeof(more));
		for (word = 0; word < ARRAY_SIZE(wake->words); word++) {
			while (wake->words[word]) {
				bit = __ffs64(wake->words[word]);
				wake->words[word] &= wake->words[word] - 1;
				port = &fq->ports[word * 64 + bit];
				spin_lock_irqsave(&port->lock, irq);
				if (settle(fq, port, now_ns, &more))
					add_port(&run, port);
				spin_unlock_irqrestore(&port->lock, irq);
			}
		}
		*wake = more;
	}
	if (!is_empty(wake))
		fairq_run_later(fq, wake);
	if (is_empty(&run))
		return;
	queue_for_each_hw_ctx(fq->q, hctx, i) {
		bit = i % fq->nr_ports;
		if (hctx->sched_data && run.words[bit / 64] & (1ULL << (bit % 64)))
			blk_mq_run_hw_queue(hctx, true);
	}
}

void fairq_run(struct fairq_queue *fq, struct fairq_wake *wake)
{
	deliver(fq, wake, NULL);
}

/* Submits a request. One that the device put back keeps its slot, and is charged only once. */
static void insert(struct fairq_queue *fq, struct fairq_port *port, struct request *rq, u64 now_ns,
		   struct fairq_wake *wake, struct list_head *free)
{
	struct fairq_order order;
	struct fairq_slot *slot;
	int said;

	if (fairq_tag_of(rq) >= fq->tags) {
		/* A request without a slot bypasses the scheduler, so it is not lost. */
		make_ready(rq);
		return;
	}
	if (fairq_place_of(rq) == FAIRQ_PUT_BACK) {
		slot = &port->slots[fairq_turn_of(rq)];
		slot->since_ns = now_ns;
		slot->vain = port->vain;
		slot->arrival = ++port->arrivals;
		said = fairq_core_requeue(fq->engine, port->index, now_ns, fairq_turn_of(rq), wake);
		/* A refused request is still issued on the device. */
	} else if (port->held && fairq_merge_request(port, rq, now_ns, wake, free)) {
		return;
	} else {
		order = fairq_order_of(port, rq);
		slot = &port->slots[order.tag];
		*slot = (struct fairq_slot) {
			.rq = rq, .since_ns = now_ns, .bytes = order.length, .op = order.op,
			.vain = port->vain, .arrival = ++port->arrivals,
		};
		order.flow = fairq_flow_of(fq, rq, &slot->blkg);
		said = fairq_core_submit(fq->engine, port->index, now_ns, &order, wake);
		if (trace_fairq_insert_enabled())
			trace_fairq_insert(dev_of(fq), port->index, &order,
					   slot->blkg ? fairq_cgroup_id(slot->blkg) : 0);
		/* A refusal would be a fault of this module; the request is sent all the same. */
		if (WARN_ON_ONCE(said < 0)) {
			fairq_let_go(slot);
			make_ready(rq);
			return;
		}
		WRITE_ONCE(port->live, port->live + 1);
	}
	if (said) {
		if (fq->classes && said > 0)
			fairq_set_class(rq, said - 1);
		fairq_set_place(rq, FAIRQ_ISSUED);
		make_ready(rq);
	} else {
		fairq_stage(port, rq);
	}
}

/* Called without the lock: the code that makes the result true runs the context afterwards. */
static bool fairq_has_work(struct blk_mq_hw_ctx *hctx)
{
	struct fairq_hctx *fh = hctx->sched_data;

	return READ_ONCE(fh->port->run_due) || READ_ONCE(fh->first) || !list_empty_careful(&fh->ready);
}

/* Whether a task that inserts may run the hardware context itself: see fairq_insert_requests(). */
static bool may_run(struct blk_mq_hw_ctx *hctx)
{
	return !(hctx->flags & BLK_MQ_F_BLOCKING) && !in_interrupt() && !irqs_disabled() &&
	       task_is_running(current);
}

/* Whether no other request waits to be sent on this hardware context. */
static bool is_clear(struct blk_mq_hw_ctx *hctx)
{
	struct fairq_hctx *fh = hctx->sched_data;

	return !fh->first && list_empty(&fh->ready) && list_empty_careful(&hctx->dispatch);
}

/*
 * Calls the scheduler again after it has dispatched the last staged request: it then finds none,
 * and may wake other ports.
 */
static void call_again(struct fairq_queue *fq, struct fairq_port *port, u64 now_ns,
		     struct fairq_wake *wake)
{
	struct request *rq = choose(fq, port, now_ns, wake);

	if (rq)
		make_ready(rq);
	WRITE_ONCE(port->run_due, rq != NULL);
}

static void fairq_insert_requests(struct blk_mq_hw_ctx *hctx, struct list_head *list,
				  blk_insert_t flags)
{
	struct fairq_queue *fq = hctx->queue->elevator->elevator_data;
	struct fairq_hctx *fh = hctx->sched_data;
	struct fairq_port *port = fh->port;
	bool runs = may_run(hctx), was_idle, other = false;
	u64 now_ns = ktime_get_ns();
	struct fairq_wake wake = {};
	LIST_HEAD(merged);
	unsigned long irq;

	/* All requests may have ended before this returns, so a reference keeps the scheduler. */
	percpu_ref_get(&fq->q->q_usage_counter);
	spin_lock_irqsave(&port->lock, irq);
	/* The requests that are inserted may have tags of ended requests. */
	fairq_take_ends(port, &wake);
	was_idle = !port->live;
	while (!list_empty(list)) {
		struct request *rq = list_first_entry(list, struct request, queuelist);

		list_del_init(&rq->queuelist);
		insert(fq, port, rq, now_ns, &wake, &merged);
	}
	if (runs && !port->run_due && is_clear(hctx)) {
		/* The first step of the run below, while the lock is held. */
		struct request *rq = choose(fq, port, now_ns, &wake);

		if (rq) {
			other = rq->mq_hctx != hctx;
			make_ready(rq);
			if (!port->held)
				call_again(fq, port, now_ns, &wake);
			else
				mark_run_due(port);
		}
	} else {
		/* If no other code runs the contexts before, the caller of this function does. */
		mark_run_due(port);
	}
	spin_unlock_irqrestore(&port->lock, irq);
	if (was_idle)
		fairq_keep_ticking(fq);
	deliver(fq, &wake, other ? port : NULL);
	blk_mq_free_requests(&merged);
	/*
	 * For a single request the caller would leave the run to a kernel thread, which costs more
	 * than all else here. So it is made here, unless the driver or the task may sleep.
	 */
	if (runs && fairq_has_work(hctx))
		blk_mq_run_hw_queue(hctx, false);
	percpu_ref_put(&fq->q->q_usage_counter);
}

static struct request *fairq_dispatch_request(struct blk_mq_hw_ctx *hctx)
{
	struct fairq_queue *fq = hctx->queue->elevator->elevator_data;
	struct fairq_hctx *fh = hctx->sched_data;
	struct fairq_port *port = fh->port;
	struct fairq_wake wake = {};
	struct request *rq;
	unsigned long irq;
	bool other = false;
	u64 now_ns;

	rq = READ_ONCE(fh->first);
	if (rq)
		rq = xchg(&fh->first, NULL);
	if (rq)
		return rq;
	now_ns = ktime_get_ns();
	spin_lock_irqsave(&port->lock, irq);
	for (;;) {
		rq = list_first_entry_or_null(&fh->ready, struct request, queuelist);
		if (rq) {
			list_del_init(&rq->queuelist);
			break;
		}
		rq = choose(fq, port, now_ns, &wake);
		if (!rq) {
			WRITE_ONCE(port->run_due, false);
			break;
		}
		if (!port->held)
			call_again(fq, port, now_ns, &wake);
		/*
		 * Another run that got no request may have cleared `run_due` before the requests
		 * that are staged now arrived.
		 */
		else if (!port->run_due)
			mark_run_due(port);
		if (rq->mq_hctx == hctx)
			break;
		make_ready(rq);
		other = true;
	}
	spin_unlock_irqrestore(&port->lock, irq);
	deliver(fq, &wake, other ? port : NULL);
	return rq;
}

static void fairq_prepare_request(struct request *rq)
{
	fairq_set_place(rq, FAIRQ_FOREIGN);
	/* No class. */
	rq->elv.priv[1] = NULL;
}

/*
 * If a port waits, or if classes depend on the requests that have ended, the scheduler completes an
 * ended request at once. Otherwise the request stays in its port's list until the port is run again,
 * which takes the lock in any case. The next tick runs the port at the latest.
 */
static void fairq_finish_request(struct request *rq)
{
	struct fairq_queue *fq = rq->q->elevator->elevator_data;
	struct fairq_hctx *fh = rq->mq_hctx->sched_data;
	struct fairq_port *port = fh->port;
	struct fairq_wake wake = {};
	struct fairq_slot *slot;
	unsigned long irq;
	bool more;

	if (fairq_place_of(rq) == FAIRQ_FOREIGN)
		return;
	fairq_set_place(rq, FAIRQ_FOREIGN);
	slot = &port->slots[fairq_turn_of(rq)];
	slot->ended_ns = ktime_get_ns();
	trace_fairq_complete(dev_of(fq), port->index, fairq_turn_of(rq), slot, slot->ended_ns);
	llist_add(&slot->ended, &port->ended);
	/* Pairs with the barrier in set_waits(). */
	smp_mb__after_atomic();
	if (!atomic_read(&fq->waiting))
		return;
	spin_lock_irqsave(&port->lock, irq);
	fairq_take_ends(port, &wake);
	more = settle(fq, port, ktime_get_ns(), &wake);
	spin_unlock_irqrestore(&port->lock, irq);
	deliver(fq, &wake, more ? port : NULL);
}

/*
 * The device could not begin the request. If the request is inserted again, it is staged again; if
 * the driver sends it again directly, nothing changes for the scheduler.
 */
static void fairq_requeue_request(struct request *rq)
{
	if (fairq_place_of(rq) == FAIRQ_ISSUED)
		fairq_set_place(rq, FAIRQ_PUT_BACK);
}

/*
 * Notes the flow of the bio for which a task is about to get a tag, while tags are short. In
 * writeback the bio belongs to another cgroup than the task.
 */
static void note_tagging(struct fairq_queue *fq, struct bio *bio)
{
	struct fairq_tagging *tagging = get_cpu_ptr(fq->taggings);

	*tagging = (struct fairq_tagging) { .task = current, .flow = fairq_flow_of_bio(fq, bio) };
	put_cpu_ptr(fq->taggings);
}

/*
 * Returns the flow of the bio that the task tried to merge last on this CPU or, if there is none,
 * the flow of the task's cgroup.
 */
static u64 flow_of_tagging(struct fairq_queue *fq)
{
	struct fairq_tagging *tagging = get_cpu_ptr(fq->taggings);
	u64 flow = tagging->flow;
	bool is_own = tagging->task == current;

	tagging->task = NULL;
	put_cpu_ptr(fq->taggings);
	return is_own ? flow : fairq_flow_of_current(fq);
}

/* Tags are short if half of a port's tags are in use; until then any cgroup gets tags. */
static bool is_short(struct fairq_queue *fq, struct fairq_port *port)
{
	return READ_ONCE(port->live) >= fq->tags / 2;
}

static bool fairq_bio_merge(struct request_queue *q, struct bio *bio, unsigned int nr_segs)
{
	struct fairq_queue *fq = q->elevator->elevator_data;
	struct blk_mq_hw_ctx *hctx = fairq_map_queue(q, bio->bi_opf, blk_mq_get_ctx(q));
	struct fairq_hctx *fh = hctx->sched_data;
	struct fairq_port *port = fh->port;
	struct fairq_wake wake = {};
	bool merged, more = false;
	unsigned long irq;
	LIST_HEAD(free);
	u64 now_ns;

	if (is_short(fq, port))
		note_tagging(fq, bio);
	if (!READ_ONCE(port->held))
		return false;
	now_ns = ktime_get_ns();
	spin_lock_irqsave(&port->lock, irq);
	merged = fairq_merge_bio(port, bio, nr_segs, now_ns, &wake, &free);
	if (merged)
		more = settle(fq, port, now_ns, &wake);
	spin_unlock_irqrestore(&port->lock, irq);
	deliver(fq, &wake, more ? port : NULL);
	blk_mq_free_requests(&free);
	return merged;
}

/*
 * While tags are short, a cgroup that has an equal part of the tags gets only a few more, so that
 * other cgroups' requests can reach the scheduler.
 */
static void fairq_limit_depth(blk_opf_t opf, struct blk_mq_alloc_data *data)
{
	struct fairq_queue *fq = data->q->elevator->elevator_data;
	struct fairq_hctx *fh = data->hctx->sched_data;
	struct fairq_port *port = fh->port;
	unsigned long irq;
	u64 flow;

	fairq_limit_async(data, opf);
	if (!is_short(fq, port))
		return;
	flow = flow_of_tagging(fq);
	spin_lock_irqsave(&port->lock, irq);
	if (!fairq_core_admits(fq->engine, port->index, flow))
		data->shallow_depth = 1;
	spin_unlock_irqrestore(&port->lock, irq);
}

static void depth_updated(struct request_queue *q, u32 depth)
{
	struct fairq_queue *fq = q->elevator->elevator_data;

	if (depth > fq->depth && fairq_start(fq, depth))
		pr_warn_once("fairq: no memory for %u tags: requests with tags from %u on bypass the scheduler\n",
			     depth, fq->depth);
	fairq_place_tags(fq);
}

/* Computes the first of the port's tags that belongs to each hardware context. */
void fairq_place_tags(struct fairq_queue *fq)
{
	struct blk_mq_hw_ctx *hctx;
	struct fairq_hctx *fh;
	unsigned long i;

	queue_for_each_hw_ctx(fq->q, hctx, i) {
		fh = hctx->sched_data;
		if (fh)
			fh->tags = i / fq->nr_ports * fq->depth;
	}
}

static int fairq_init_hctx(struct blk_mq_hw_ctx *hctx, unsigned int index)
{
	struct fairq_queue *fq = hctx->queue->elevator->elevator_data;
	struct fairq_hctx *fh = kzalloc_node(sizeof(*fh), GFP_KERNEL, hctx->numa_node);

	if (!fh)
		return -ENOMEM;
	INIT_LIST_HEAD(&fh->ready);
	fh->port = &fq->ports[index % fq->nr_ports];
	fh->tags = index / fq->nr_ports * fq->depth;
	sbitmap_queue_min_shallow_depth(&hctx->sched_tags->bitmap_tags, 1);
	hctx->sched_data = fh;
	return 0;
}

static void fairq_exit_hctx(struct blk_mq_hw_ctx *hctx, unsigned int index)
{
	struct fairq_hctx *fh = hctx->sched_data;

	WARN_ON_ONCE(fh->first || !list_empty(&fh->ready));
	kfree(fh);
}

/* Runs ports that were woken in a context that cannot run them (a cgroup is removed). */
static void ask(struct work_struct *work)
{
	struct fairq_queue *fq = container_of(work, struct fairq_queue, work);
	struct fairq_wake wake = {};
	u32 i;

	for (i = 0; i < fq->nr_ports; i++)
		if (test_and_clear_bit(i, fq->later))
			add_port(&wake, &fq->ports[i]);
	fairq_run(fq, &wake);
}

void fairq_run_later(struct fairq_queue *fq, const struct fairq_wake *wake)
{
	bool any = false;
	u32 i;

	for (i = 0; i < fq->nr_ports; i++) {
		if (wake->words[i / 64] & (1ULL << (i % 64))) {
			set_bit(i, fq->later);
			any = true;
		}
	}
	if (any)
		kblockd_schedule_work(&fq->work);
}

/*
 * The number of requests that the device works on at a time, according to its driver; at most 64.
 */
static u32 places(struct blk_mq_tag_set *set, u32 queues)
{
	u32 places = min_t(u32, set->queue_depth, 64);

	if (blk_mq_is_shared_tags(set->flags))
		return places;
	if (set->nr_maps > HCTX_TYPE_POLL && set->map[HCTX_TYPE_POLL].nr_queues < queues)
		queues -= set->map[HCTX_TYPE_POLL].nr_queues;
	return min_t(u32, places * queues, 64);
}

static void free_queue(struct fairq_queue *fq)
{
	fairq_end_classes(fq);
	free_percpu(fq->taggings);
	kvfree(fq->ports);
	kfree(fq);
}

int fairq_queue_start(struct request_queue *q, struct elevator_queue *eq, u32 scheduler)
{
	struct fairq_queue *fq;
	u32 i, class;
	int error = -ENOMEM;

	fq = kzalloc_node(sizeof(*fq), GFP_KERNEL, q->node);
	if (!fq)
		return -ENOMEM;
	fq->q = q;
	fq->scheduler = scheduler;
	fq->nr_ports = min_t(u32, q->nr_hw_queues, FAIRQ_PORTS);
	fq->slots = places(q->tag_set, q->nr_hw_queues);
	mutex_init(&fq->building);
	spin_lock_init(&fq->merging);
	INIT_LIST_HEAD(&fq->groups);
	INIT_WORK(&fq->work, ask);
	fq->ports = kvcalloc(fq->nr_ports, sizeof(*fq->ports), GFP_KERNEL);
	fq->taggings = alloc_percpu(struct fairq_tagging);
	if (!fq->ports || !fq->taggings)
		goto no_engine;
	for (i = 0; i < fq->nr_ports; i++) {
		spin_lock_init(&fq->ports[i].lock);
		for (class = 0; class < FAIRQ_CLASSES; class++)
			INIT_LIST_HEAD(&fq->ports[i].staged[class]);
		fq->ports[i].index = i;
		fq->ports[i].fq = fq;
	}
	fairq_init_timers(fq);
	error = fairq_begin_classes(fq, eq->type->elevator_name);
	if (!error)
		error = fairq_start(fq, q->nr_requests);
	if (error)
		goto no_engine;
	eq->elevator_data = fq;
	q->elevator = eq;
	error = fairq_activate_groups(fq);
	if (error)
		goto no_groups;
	blk_queue_flag_clear(QUEUE_FLAG_SQ_SCHED, q);
	fairq_begin_async_depth(q);
	return 0;

no_groups:
	q->elevator = NULL;
	eq->elevator_data = NULL;
	fairq_stop(fq);
no_engine:
	free_queue(fq);
	return error;
}

void fairq_queue_stop(struct elevator_queue *eq)
{
	struct fairq_queue *fq = eq->elevator_data;

	fairq_hear_all(fq);
	fairq_deactivate_groups(fq);
	spin_lock_irq(&fq->q->queue_lock);
	eq->elevator_data = NULL;
	spin_unlock_irq(&fq->q->queue_lock);
	fairq_stop(fq);
	free_queue(fq);
}

#if FAIRQ_ELEVATOR_IS_GIVEN
static void fairq_depth_updated(struct request_queue *q)
{
	blk_mq_set_min_shallow_depth(q, 1);
	depth_updated(q, q->nr_requests);
}
#else
static void fairq_depth_updated(struct blk_mq_hw_ctx *hctx)
{
	/* A queue that has grown has other tags, for which no least depth has been set. */
	sbitmap_queue_min_shallow_depth(&hctx->sched_tags->bitmap_tags, 1);
	depth_updated(hctx->queue, hctx->sched_tags->nr_tags);
}
#endif

const struct elevator_mq_ops fairq_ops = {
	.init_hctx = fairq_init_hctx,
	.exit_hctx = fairq_exit_hctx,
	.depth_updated = fairq_depth_updated,
	.bio_merge = fairq_bio_merge,
	.limit_depth = fairq_limit_depth,
	.prepare_request = fairq_prepare_request,
	.finish_request = fairq_finish_request,
	.requeue_request = fairq_requeue_request,
	.insert_requests = fairq_insert_requests,
	.dispatch_request = fairq_dispatch_request,
	.has_work = fairq_has_work,
};

struct fairq_queue *fairq_of(struct request_queue *q)
{
	struct elevator_queue *eq = q->elevator;

	if (!eq || eq->type->ops.insert_requests != fairq_insert_requests)
		return NULL;
	return eq->elevator_data;
}
