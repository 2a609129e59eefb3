/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The structures that the parts of fairq.ko share: a queue with one of our elevators, its ports,
 * and the groups (a cgroup on a queue).
 *
 * Locks, from the outside in: q->queue_lock, the cgroup's lock, a port's lock, fq->merging. Interrupts are off in all.
 * blk_mq_run_hw_queue() takes q->queue_lock, so it is called without any of them.
 *
 * Timers and work: a port's timer and fq->work run ports; fq->tick only queues fq->ticker, in which
 * the scheduler searches and fits, so that no interrupt waits for that; fq->weigh scans the groups.
 * Work that requests wait for is queued to kblockd, which does not wait for memory.
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

/* Where a request is, in rq->elv.priv[0]. */
enum {
	FAIRQ_FOREIGN,		/* The scheduler does not know it. */
	FAIRQ_STAGED,
	FAIRQ_ISSUED,
	FAIRQ_PUT_BACK,		/* It was issued, and the device could not begin it. */
};

/* Classes of I/O priorities, the best first. */
enum { FAIRQ_RT, FAIRQ_BE, FAIRQ_IDLE, FAIRQ_CLASSES };

/* A request that the scheduler knows. */
struct fairq_slot {
	struct request *rq;
	/* Its cgroup on the queue, which it keeps; NULL: none. */
	struct blkcg_gq *blkg;
	/* When it was staged, and from then on when it was sent. */
	u64 since_ns;
	u64 waited_ns;
	/* When it ended, and its place among those that have: see fairq_finish_request(). */
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

/* A hardware context; several share a port where there are more than ports. */
struct fairq_port {
	spinlock_t lock;
	u32 index;
	struct fairq_queue *fq;
	/* By turn. The scheduler knows requests by their turns; which one a tag has: see staged.c. */
	struct fairq_slot *slots;
	u32 *turns;
	/* The requests that it holds back, in order of arrival, and their number. */
	struct list_head staged[FAIRQ_CLASSES];
	unsigned int held;
	/* Requests that are staged or issued; written under the lock, read without. */
	unsigned int live;
	/*
	 * Its hardware contexts run, or will run, and take requests from the scheduler until there
	 * are none; until then no other caller has to run them. Written under the lock, read
	 * without.
	 */
	bool run_due;
	/* It has got no request although it holds some back. Under the lock. */
	bool waits;
	/* The number of times that it got none, modulo 2^32. Under the lock. */
	u32 vain;
	/*
	 * The number of staged requests, and the last of them that was sent; both modulo 2^32.
	 * Under the lock.
	 */
	u32 arrivals;
	u32 latest;
	/* Requests that have ended, of which the scheduler does not know yet; added to without the lock. */
	struct llist_head ended;
	/* For FAIRQ_WAIT; not started any more once it is stopped. Under the lock. */
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
	/* Its first tag on the port. */
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
	/* Its number. */
	u32 scheduler;
	/* Replaced under q->queue_lock while no request is live; where it is, and how many there have been. */
	struct fairq_engine *engine;
	void *memory;
	u64 builds;
	/* Held while it is replaced. */
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
	/* Ports that wait, and one more where classes are chosen by the requests that have ended. */
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
	/* A group that comes now gets its flow at once. Under q->queue_lock. */
	bool is_started;
	/* When it was last found out what each cgroup receives. Under q->queue_lock. */
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
/* The queue's, if it has one of our elevators; under q->queue_lock. */
struct fairq_queue *fairq_of(struct request_queue *q);
/* Runs these ports soon, from any context. */
void fairq_run_later(struct fairq_queue *fq, const struct fairq_wake *wake);
/* Asks the scheduler on these ports, which are taken out, and runs their hardware contexts. */
void fairq_run(struct fairq_queue *fq, struct fairq_wake *wake);
/*
 * Completes the port's ended requests in the scheduler; under its lock. The port has to be run
 * after that.
 */
void fairq_take_ends(struct fairq_port *port, struct fairq_wake *wake);
/* Adds the ports with ended requests that the scheduler does not know yet to `wake`. */
void fairq_find_ends(struct fairq_queue *fq, struct fairq_wake *wake);
/* Says which tags of its port each hardware context has. */
void fairq_place_tags(struct fairq_queue *fq);
/* The operations of an elevator, except for fairq_queue_start() and fairq_queue_stop(). */
extern const struct elevator_mq_ops fairq_ops;
/* Makes the queue's part of this scheduler. */
int fairq_queue_start(struct request_queue *q, struct elevator_queue *eq, u32 scheduler);
void fairq_queue_stop(struct elevator_queue *eq);

/* staged.c; under the port's lock */
void fairq_stage(struct fairq_port *port, struct request *rq);
void fairq_unstage(struct fairq_port *port, struct request *rq);
struct request *fairq_best(struct fairq_port *port, struct request *rq, u64 now_ns);
struct fairq_order fairq_order_of(struct fairq_port *port, struct request *rq);
/* Requests that are merged into others are added to `free`: they are ended when no lock is held. */
bool fairq_merge_request(struct fairq_port *port, struct request *rq, u64 now_ns, struct fairq_wake *wake,
			 struct list_head *free);
bool fairq_merge_bio(struct fairq_port *port, struct bio *bio, unsigned int nr_segs, u64 now_ns,
		     struct fairq_wake *wake, struct list_head *free);

/* elevator.c */
int fairq_register_elevators(void);
void fairq_unregister_elevators(void);

/* engine.c */
/*
 * Takes memory and lends it to the schedulers' functions that need some, until fairq_end_lending(). The caller frees it
 * by kvfree(). NULL: there is none.
 */
void *fairq_lend(size_t size);
void fairq_end_lending(void);
/* For so many tags of each hardware context; 0: as many as there are. No request is live. */
int fairq_start(struct fairq_queue *fq, u32 depth);
void fairq_stop(struct fairq_queue *fq);
/* Tells the scheduler of all that has ended. No request is live. */
void fairq_hear_all(struct fairq_queue *fq);
void fairq_init_timers(struct fairq_queue *fq);
/* Begins the ticks again; after the number of live requests of a port has become larger. */
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
/* The flow to charge for a request, and its cgroup, which is kept until fairq_count(). */
u64 fairq_flow_of(struct fairq_queue *fq, struct request *rq, struct blkcg_gq **blkg);
/* The request has ended: counts it for its cgroup, and lets go of that. */
void fairq_count(struct fairq_slot *slot, u64 served_ns);
/* The request has become part of another one. */
void fairq_let_go(struct fairq_slot *slot);
/* Which cgroup that is, as a number. */
u64 fairq_cgroup_id(struct blkcg_gq *blkg);
/* The flows of a bio's cgroup and of the task's. */
u64 fairq_flow_of_bio(struct fairq_queue *fq, struct bio *bio);
u64 fairq_flow_of_current(struct fairq_queue *fq);
/* Tells the scheduler each cgroup's part of the whole; ten times a second while there are requests. */
void fairq_weigh(struct fairq_queue *fq);
/* Gives the groups that have none a flow, as far as there are any. */
void fairq_add_flows(struct fairq_queue *fq);

#endif
