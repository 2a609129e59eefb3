/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The structures that group.c and files.c share: cgroups, and their data on a queue. Include
 * it after block/blk-cgroup.h.
 */
#ifndef FAIRQ_GROUP_H
#define FAIRQ_GROUP_H

#include "fairq.h"

#define LEAST_WEIGHT 1
#define MOST_WEIGHT 10000
#define USUAL_WEIGHT 100
/* The number of scans for which a cgroup counts as sending after its last request. */
#define SILENT 5
/* The whole, which a single active cgroup gets: the largest weight, in 256ths. */
#define WHOLE ((u64)MOST_WEIGHT << 8)
/* The time over which the service of each cgroup is counted. */
#define RECEIVED_NS NSEC_PER_SEC
/*
 * If the last count is older than this, the received part is unknown: scans stop when requests
 * stop, and may be late on a busy machine.
 */
#define STALE_NS (5 * RECEIVED_NS)

/* A cgroup. */
struct fairq_cgroup {
	struct blkcg_policy_data cpd;
	u32 weight;
};

/*
 * The service of a cgroup by a drive, counted on one CPU. The arrays have an entry for FAIRQ_READ,
 * one for FAIRQ_WRITE and one for all other operations.
 */
struct fairq_counts {
	u64 requests[3];
	u64 bytes[3];
	u64 waited_ns;
	u64 served_ns;
	u64 throttled;
};

/* A cgroup on a queue. */
struct fairq_group {
	struct blkg_policy_data pd;
	/* Entry in the list of the queue's groups; under q->queue_lock. */
	struct list_head entry;
	/* The number of the engine that has its flow; 0: none. Written under q->queue_lock. */
	u64 build;
	u64 flow;
	/* The weight on this drive; 0: that of the cgroup. */
	u32 weight;
	/*
	 * Whether it has sent a request since the last scan, and the number of scans without one.
	 */
	bool sent;
	u8 silent;
	/* The last weight that the scheduler got, in 256ths. */
	u32 given;
	struct fairq_counts __percpu *counts;
	/*
	 * Whether it has been served since receive() last read its counts; its bytes up to then,
	 * and those between the last two readings.
	 */
	bool counted;
	u64 had;
	u64 more;
	/* Its part of the service of all groups, in 10,000ths. */
	u32 received;
	/* The weights of its children that send, plus its own if it sends, too; its part. */
	u64 sum;
	u64 part;
	/* The sum so far in the present scan. */
	u64 summing;
};

extern struct blkcg_policy fairq_policy;

static inline struct fairq_cgroup *cgroup_of(struct blkcg *blkcg)
{
	return container_of(blkcg_to_cpd(blkcg, &fairq_policy), struct fairq_cgroup, cpd);
}

static inline struct fairq_group *group_of(struct blkcg_gq *blkg)
{
	struct blkg_policy_data *pd = blkg_to_pd(blkg, &fairq_policy);

	return pd ? container_of(pd, struct fairq_group, pd) : NULL;
}

/* Whether the present engine has a flow for it; under q->queue_lock, or while a request is live. */
static inline bool has_flow(struct fairq_queue *fq, const struct fairq_group *group)
{
	return smp_load_acquire(&group->build) == fq->builds;
}

/* The files of a cgroup. */
extern struct cftype fairq_files[];

#endif
