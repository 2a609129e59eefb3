// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The requests that a port holds back: the choice of the request for a turn, and merging. All
 * functions are called under the port's lock.
 *
 * The scheduler identifies a request by its *turn*, a number below the number of tags, and not by
 * its tag, so that two requests of a cgroup can exchange their turns: when the scheduler dispatches
 * a turn, the cgroup's first request of a better I/O priority takes it, and the request that had
 * the turn gets that of the other. The service of each cgroup is the same as without priorities. A
 * tag keeps its turn when its request has ended, so there are always as many turns as tags.
 *
 * An inserted request may begin where a staged request ends, end where one begins, or fill the gap
 * between two. Of the requests that are merged the one at the lower address stays. It gets the turn
 * of the request that was staged first; the scheduler sees that turn grow.
 */
#include <linux/blkdev.h>
#include <linux/ioprio.h>

#include "blk.h"
#include "elevator.h"
#include "blk-mq.h"
#include "blk-mq-sched.h"

#include "fairq.h"

/*
 * The number of staged requests that are compared for a merge; the block layer compares as many for
 * a bio.
 */
#define NEIGHBOURS 8
/* The number of requests of a better class that are searched for one of the same cgroup. */
#define BETTER 64
/* A request that has waited for this time keeps its turn, as in mq-deadline. */
#define AGED_NS (10 * NSEC_PER_SEC)

static u32 class_of(unsigned short ioprio)
{
	switch (IOPRIO_PRIO_CLASS(ioprio)) {
	case IOPRIO_CLASS_RT:
		return FAIRQ_RT;
	case IOPRIO_CLASS_IDLE:
		return FAIRQ_IDLE;
	default:
		return FAIRQ_BE;
	}
}

static struct list_head *list_of(struct fairq_port *port, struct request *rq)
{
	return &port->staged[class_of(req_get_ioprio(rq))];
}

void fairq_stage(struct fairq_port *port, struct request *rq)
{
	list_add_tail(&rq->queuelist, list_of(port, rq));
	fairq_set_place(rq, FAIRQ_STAGED);
	WRITE_ONCE(port->held, port->held + 1);
}

void fairq_unstage(struct fairq_port *port, struct request *rq)
{
	list_del_init(&rq->queuelist);
	WRITE_ONCE(port->held, port->held - 1);
}

static void exchange_turns(struct fairq_port *port, struct request *a, struct request *b)
{
	swap(port->turns[fairq_tag_of(a)], port->turns[fairq_tag_of(b)]);
}

/*
 * The scheduler has dispatched the turn of rq. Returns the request of the same cgroup that takes
 * this turn.
 */
struct request *fairq_best(struct fairq_port *port, struct request *rq, u64 now_ns)
{
	struct fairq_slot *slot = &port->slots[fairq_turn_of(rq)];
	u32 class, own = class_of(req_get_ioprio(rq)), left = BETTER;
	struct request *other;

	for (class = 0; class < own; class++) {
		list_for_each_entry(other, &port->staged[class], queuelist) {
			struct fairq_slot *others = &port->slots[fairq_turn_of(other)];

			if (!left-- || now_ns > slot->since_ns + AGED_NS)
				return rq;
			if (others->blkg != slot->blkg)
				continue;
			swap(*slot, *others);
			exchange_turns(port, rq, other);
			return other;
		}
	}
	return rq;
}

static u32 op_of(struct request *rq)
{
	switch (req_op(rq)) {
	case REQ_OP_READ:
		return FAIRQ_READ;
	case REQ_OP_DISCARD:
	case REQ_OP_SECURE_ERASE:
		return FAIRQ_DISCARD;
	case REQ_OP_WRITE_ZEROES:
		return FAIRQ_WRITE_ZEROES;
	default:
		return FAIRQ_WRITE;
	}
}

/* The parameters of a request for the scheduler, except its cgroup. */
struct fairq_order fairq_order_of(struct fairq_port *port, struct request *rq)
{
	return (struct fairq_order) {
		.offset = (u64)blk_rq_pos(rq) << SECTOR_SHIFT,
		.length = blk_rq_bytes(rq),
		.tag = fairq_turn_of(rq),
		.op = op_of(rq),
	};
}

static void grow(struct fairq_port *port, struct request *rq, struct fairq_order *by, u64 now_ns,
		 struct fairq_wake *wake)
{
	by->tag = fairq_turn_of(rq);
	fairq_core_grow(port->fq->engine, port->index, now_ns, by, wake);
}

/*
 * Whether the second request begins where the first ends, for the same cgroup. The block layer
 * checks the other conditions of a merge.
 */
static bool touch(struct request *first, struct request *second)
{
	return blk_rq_pos(first) + (blk_rq_bytes(first) >> SECTOR_SHIFT) == blk_rq_pos(second) &&
	       req_op(first) == req_op(second) && first->bio && second->bio &&
	       first->bio->bi_blkg == second->bio->bi_blkg;
}

/*
 * Lets the block layer merge the later request into the earlier one, and adds the later one to
 * `free`. The block layer's function for elevators first tries `last_merge`, the last request into
 * which another one was merged, and then searches a table, which is empty here.
 */
static bool join(struct fairq_queue *fq, struct request *earlier, struct request *later, struct list_head *free)
{
	struct request_queue *q = fq->q;
	struct list_head *before = later->queuelist.prev;
	bool is_staged = !list_empty(&later->queuelist), joined;

	list_del_init(&later->queuelist);
	spin_lock(&fq->merging);
	q->last_merge = earlier;
	joined = blk_mq_sched_try_insert_merge(q, later, free);
	elv_rqhash_del(q, earlier);
	q->last_merge = NULL;
	spin_unlock(&fq->merging);
	if (joined)
		fairq_set_place(later, FAIRQ_FOREIGN);
	else if (is_staged)
		list_add(&later->queuelist, before);
	return joined;
}

/*
 * Called after a staged request has grown. If it now ends where another staged request begins, or
 * begins where another one ends, the request at the higher address is merged into the lower one.
 */
static void close_gap(struct fairq_port *port, struct request *rq, u64 now_ns, struct fairq_wake *wake,
		      struct list_head *free)
{
	struct request *other, *earlier, *later;
	struct fairq_order by;
	u32 left = NEIGHBOURS;

	list_for_each_entry_reverse(other, list_of(port, rq), queuelist) {
		if (!left--)
			return;
		if (touch(other, rq))
			earlier = other, later = rq;
		else if (touch(rq, other))
			earlier = rq, later = other;
		else
			continue;
		by = fairq_order_of(port, later);
		if (!join(port->fq, earlier, later, free))
			return;
		WARN_ON_ONCE(!fairq_core_cancel(port->fq->engine, port->index, now_ns, by.tag, wake));
		fairq_let_go(&port->slots[by.tag]);
		WRITE_ONCE(port->held, port->held - 1);
		WRITE_ONCE(port->live, port->live - 1);
		grow(port, earlier, &by, now_ns, wake);
		return;
	}
}

/*
 * Tries to merge a request that has not been submitted to the scheduler with a staged one; returns
 * whether it did.
 */
bool fairq_merge_request(struct fairq_port *port, struct request *rq, u64 now_ns, struct fairq_wake *wake,
			 struct list_head *free)
{
	struct fairq_order by = fairq_order_of(port, rq);
	struct request *other;
	u32 left = NEIGHBOURS;

	list_for_each_entry_reverse(other, list_of(port, rq), queuelist) {
		if (!left--)
			return false;
		if (touch(other, rq)) {
			if (!join(port->fq, other, rq, free))
				return false;
			rq = other;
		} else if (touch(rq, other)) {
			struct list_head *before = other->queuelist.prev;

			if (!join(port->fq, rq, other, free))
				return false;
			list_add(&rq->queuelist, before);
			fairq_set_place(rq, FAIRQ_STAGED);
			exchange_turns(port, rq, other);
			port->slots[fairq_turn_of(rq)].rq = rq;
		} else {
			continue;
		}
		grow(port, rq, &by, now_ns, wake);
		close_gap(port, rq, now_ns, wake, free);
		return true;
	}
	return false;
}

/*
 * Merges a bio into one of the last staged requests if the two are adjacent and belong to the same
 * cgroup.
 */
bool fairq_merge_bio(struct fairq_port *port, struct bio *bio, unsigned int nr_segs, u64 now_ns,
		     struct fairq_wake *wake, struct list_head *free)
{
	struct list_head *list = &port->staged[class_of(bio->bi_ioprio)];
	struct fairq_order by = {
		.offset = (u64)bio->bi_iter.bi_sector << SECTOR_SHIFT,
		.length = bio->bi_iter.bi_size,
	};
	struct request *rq;

	if (!blk_bio_list_merge(port->fq->q, list, bio, nr_segs))
		return false;
	list_for_each_entry_reverse(rq, list, queuelist) {
		if (rq->bio != bio && rq->biotail != bio)
			continue;
		by.op = op_of(rq);
		grow(port, rq, &by, now_ns, wake);
		close_gap(port, rq, now_ns, wake, free);
		break;
	}
	return true;
}
