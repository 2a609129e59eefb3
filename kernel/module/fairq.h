/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The structures that the parts of fairq.ko share: a queue with one of our elevators, its ports,
 * and the groups (a cgroup on a queue).
 *
 * Locks, from the outside in: q->queue_lock, the cgroup's lock, a port's lock, fq->merging. All of
 * them are taken with interrupts off. blk_mq_run_hw_queue() takes q->queue_lock, so it is called
 * without any of these locks.
 *
 * Timers and work: a port's timer and fq->work run ports; fq->tick only queues fq->ticker, which
 * searches for D and fits costs, so that no interrupt waits for this; fq->weigh scans the groups.
 * Work for which requests wait is queued to kblockd, which does not wait for memory.
 */
#ifndef FAIRQ_H
#define FAIRQ_H

#include <linux/atomic.h>
#include <linux/blk-mq.h>
#include <linux/hrtimer.h>
#include <linux/llist.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/workqueue.h>

#include "classes.h"
#include "core.h"

struct blkcg_gq;
struct elevator_queue;
struct elevator_mq_ops;

/* The state of a request, in rq->elv.priv[0]. */
enum {
	FAIRQ_FOREIGN,		/* It bypasses the scheduler. */
	FAIRQ_STAGED,
	FAIRQ_ISSUED,
	FAIRQ_PUT_BACK,		/* It was issued, and the device could not begin it. */
};

/* Classes of I/O priorities, the best first. */
enum { FAIRQ_RT, FAIRQ_BE, FAIRQ_IDLE, FAIRQ_CLASSES };

/* The record of a request in the scheduler. */
struct fairq_slot {
	struct request *rq;
	/* The request's cgroup on the queue, with a reference; NULL: none. */
	struct blkcg_gq *blkg;
	/* The time at which it was staged; once it is sent, the time at which it was sent. */
	u64 since_ns;
	u64 waited_ns;
	/* The time at which it ended, and its place in the port's list `ended`. */
	u64 ended_ns;
	struct llist_node ended;
	u32 bytes;
	u32 op;
	/* The values of the port's `vain` and `arrivals` when it was staged. */
	u32 vain;
	u32 arrival;
	/* It was held back: see issued(). */
	bool throttled;
};

/* A hardware context; if there are more contexts than ports, several share a port. */
struct fairq_port {
	spinlock_t lock;
	u32 index;
	struct fairq_queue *fq;
	/*
	 * Records of requests, by turn. The scheduler identifies requests by their turns; see
	 * staged.c.
	 */
	struct fairq_slot *slots;
	u32 *turns;
	/* The staged requests, in order of arrival, and their number. */
	struct list_head staged[FAIRQ_CLASSES];
	unsigned int held;
	/* Requests that are staged or issued; written under the lock, read without. */
	unsigned int live;
	/*
	 * Whether its hardware contexts run, or will run, until the scheduler has no request; no
	 * other caller then has to run them. Written under the lock, read without.
	 */
	bool run_due;
	/* Whether the scheduler holds back all staged requests. Under the lock. */
	bool waits;
	/* Calls that returned no request while some were staged, modulo 2^32. Under the lock. */
	u32 vain;
	/*
	 * The number of requests staged so far, and the greatest `arrival` of a sent one; both
	 * modulo 2^32. Under the lock.
	 */
	u32 arrivals;
	u32 latest;
	/* Requests that have ended, for the scheduler to complete; added to without the lock. */
	struct llist_head ended;
	/* For FAIRQ_WAIT; not started while `is_stopped` is set. Under the lock. */
	struct hrtimer timer;
	bool is_stopped;
} ____cacheline_aligned_in_smp;

/*
 * A hardware context's requests that may be sent: another context of its port has chosen them, or
 * they bypass the scheduler.
 */
struct fairq_hctx {
	/* The first of them, which is taken without the port's lock; set under it. */
	struct request *first;
	/* The requests behind it. */
	struct list_head ready;
	struct fairq_port *port;
	/* The number of its first tag among the port's tags. */
	u32 tags;
};

/*
 * The flow of the bio for which a task is about to get a tag: the bio that it tried to merge last
 * on this CPU.
 */
struct fairq_tagging {
	const struct task_struct *task;
	u64 flow;
};

/* A queue whose elevator is ours. */
struct fairq_queue {
	struct request_queue *q;
	/* The scheduler's number in the table of ../core/src/engine.rs. */
	u32 scheduler;
	/*
	 * The engine and its memory are replaced under q->queue_lock while no request is live.
	 * `builds` is the number of engines built so far.
	 */
	struct fairq_engine *engine;
	void *memory;
	u64 builds;
	/* Held while the engine is replaced. */
	struct mutex building;
	/* The written values of knobs; under the elevator's lock for sysfs. */
	struct fairq_key keys[FAIRQ_KNOBS];
	u32 key_count;
	u64 root;
	u32 nr_ports;
	/* Tags of a hardware context, and of a port. */
	u32 depth;
	u32 tags;
	u32 slots;
	struct fairq_port *ports;
	struct fairq_tagging __percpu *taggings;
	/* The number of ports that wait, and one more if classes depend on the requests that have ended. */
	atomic_t waiting;
	/* For q->last_merge, which names the request into which the block layer merges. */
	spinlock_t merging;
	struct hrtimer tick;
	struct work_struct ticker;
	bool ticking;
	/* Ports to run when no lock is held: see fairq_run_later(). */
	unsigned long later[BITS_TO_LONGS(FAIRQ_PORTS)];
	struct work_struct work;
	struct delayed_work weigh;
	/* The driver's queue classes, for a scheduler that needs some; the weights that the driver has. */
	const struct fairq_classes *classes;
	u64 weights;
	struct work_struct reweigh;
	/* All groups, parents before children; under q->queue_lock. */
	struct list_head groups;
	/* Whether a new group gets its flow at once. Under q->queue_lock. */
	bool is_started;
	/* When the received parts were last computed. Under q->queue_lock. */
	u64 received_ns;
};

static inline void fairq_set_place(struct request *rq, unsigned long place)
{
	rq->elv.priv[0] = (void *)place;
}

static inline unsigned long fairq_place_of(const struct request *rq)
{
	return (unsigned long)rq->elv.priv[0];
}

static inline u32 fairq_tag_of(const struct request *rq)
{
	struct fairq_hctx *fh = rq->mq_hctx->sched_data;

	return fh->tags + rq->internal_tag;
}

static inline u32 fairq_turn_of(const struct request *rq)
{
	struct fairq_hctx *fh = rq->mq_hctx->sched_data;

	return fh->port->turns[fairq_tag_of(rq)];
}

/* queue.c */
/* Returns the queue's data, or NULL if its elevator is not ours; under q->queue_lock. */
struct fairq_queue *fairq_of(struct request_queue *q);
/* Runs these ports soon, from any context. */
void fairq_run_later(struct fairq_queue *fq, const struct fairq_wake *wake);
/* Calls the scheduler for these ports, and runs their contexts; clears the set. */
void fairq_run(struct fairq_queue *fq, struct fairq_wake *wake);
/*
 * Completes the port's ended requests in the scheduler; under its lock. The port has to be run
 * after that.
 */
void fairq_take_ends(struct fairq_port *port, struct fairq_wake *wake);
/* Adds the ports with ended requests that the scheduler does not know yet to `wake`. */
void fairq_find_ends(struct fairq_queue *fq, struct fairq_wake *wake);
/* Computes each hardware context's first tag on its port. */
void fairq_place_tags(struct fairq_queue *fq);
/* The operations of an elevator, except for fairq_queue_start() and fairq_queue_stop(). */
extern const struct elevator_mq_ops fairq_ops;
/* Allocates the queue's data and starts this scheduler on the queue. */
int fairq_queue_start(struct request_queue *q, struct elevator_queue *eq, u32 scheduler);
void fairq_queue_stop(struct elevator_queue *eq);

/* staged.c; under the port's lock */
void fairq_stage(struct fairq_port *port, struct request *rq);
void fairq_unstage(struct fairq_port *port, struct request *rq);
struct request *fairq_best(struct fairq_port *port, struct request *rq, u64 now_ns);
struct fairq_order fairq_order_of(struct fairq_port *port, struct request *rq);
/* Merged requests are added to `free`; the caller ends them when no lock is held. */
bool fairq_merge_request(struct fairq_port *port, struct request *rq, u64 now_ns, struct fairq_wake *wake,
			 struct list_head *free);
bool fairq_merge_bio(struct fairq_port *port, struct bio *bio, unsigned int nr_segs, u64 now_ns,
		     struct fairq_wake *wake, struct list_head *free);

/* elevator.c */
int fairq_register_elevators(void);
void fairq_unregister_elevators(void);

/* engine.c */
/*
 * Allocates memory and lends it to the functions of the schedulers that allocate, until
 * fairq_end_lending(). The caller frees it by kvfree(). Returns NULL if there is not enough memory.
 */
void *fairq_lend(size_t size);
void fairq_end_lending(void);
/* Builds an engine for `depth` tags a context; 0: the present number. No request is live. */
int fairq_start(struct fairq_queue *fq, u32 depth);
void fairq_stop(struct fairq_queue *fq);
/* Completes all ended requests in the scheduler. No request is live. */
void fairq_hear_all(struct fairq_queue *fq);
void fairq_init_timers(struct fairq_queue *fq);
/* Starts the ticks again; called after a port's live requests have grown from 0. */
void fairq_keep_ticking(struct fairq_queue *fq);

/* classes.c */
/* Finds the driver's queue classes, if this scheduler needs some. Says in the kernel's log why there are none. */
int fairq_begin_classes(struct fairq_queue *fq, const char *name);
void fairq_end_classes(struct fairq_queue *fq);
/* Has the driver set the weights, where they have changed; in the work of fq->reweigh, which may sleep. */
void fairq_follow_weights(struct fairq_queue *fq);
void fairq_reweigh(struct work_struct *work);

/* group.c */
int fairq_register_groups(void);
void fairq_unregister_groups(void);
int fairq_activate_groups(struct fairq_queue *fq);
void fairq_deactivate_groups(struct fairq_queue *fq);
/* Returns the flow to charge for a request, and its cgroup; fairq_count() drops that reference. */
u64 fairq_flow_of(struct fairq_queue *fq, struct request *rq, struct blkcg_gq **blkg);
/* Adds an ended request to its cgroup's counts, and drops the reference. */
void fairq_count(struct fairq_slot *slot, u64 served_ns);
/* Drops the cgroup of a request that has become part of another one. */
void fairq_let_go(struct fairq_slot *slot);
/* The number of a cgroup. */
u64 fairq_cgroup_id(struct blkcg_gq *blkg);
/* The flows of a bio's cgroup and of the task's. */
u64 fairq_flow_of_bio(struct fairq_queue *fq, struct bio *bio);
u64 fairq_flow_of_current(struct fairq_queue *fq);
/* Gives the scheduler each cgroup's part; ten times a second while there are requests. */
void fairq_weigh(struct fairq_queue *fq);
/* Gives flows to the groups that have none, as long as flows are free. */
void fairq_add_flows(struct fairq_queue *fq);

#endif
