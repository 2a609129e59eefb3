// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Cgroups: a flow of the scheduler for each one on each queue, and their weights.
 *
 * io.fairq.weight of a cgroup is its weight among its siblings, 1 to 10,000, 100 by default; on one
 * drive it may have another. A cgroup has a part of its parent's share: its weight divided by the
 * weights of all siblings that send requests. The siblings get the part that it does not use. So,
 * ten times a second while there are requests, fairq_weigh() finds the cgroups that have sent
 * requests in the last half second and gives the scheduler each cgroup's part. Root's own requests,
 * requests without a cgroup and those of a removed cgroup are charged to root, which has a weight
 * of 100 beside its children.
 *
 * The scheduler has a fixed number of flows. If all are in use, a new cgroup uses root's flow until
 * a scan finds a free one: the flow of a removed cgroup becomes free when its requests have ended.
 *
 * A scan holds the queue's lock, which switches interrupts off, for a few groups at a time.
 *
 * A staged request keeps its cgroup's data until it has ended. Once a second fairq_weigh() computes
 * the part that each cgroup has received: it sums the counts of all CPUs for each cgroup that has
 * been served.
 */
#include <linux/blkdev.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "elevator.h"
#include "blk-cgroup.h"

#include "group.h"

/* The longest time for which a scan holds the queue's lock. */
#define SCAN_NS (10 * NSEC_PER_USEC)

/* The group's weight on this drive. */
static u32 weight_of(struct blkcg_gq *blkg, struct fairq_group *group)
{
	u32 weight = READ_ONCE(group->weight);

	return weight ? weight : READ_ONCE(cgroup_of(blkg->blkcg)->weight);
}

u64 fairq_flow_of(struct fairq_queue *fq, struct request *rq, struct blkcg_gq **blkg)
{
	struct fairq_group *group = rq->bio ? group_of(rq->bio->bi_blkg) : NULL;

	if (!group)
		return fq->root;
	/* Only the bio refers to the cgroup up to this point, so a reference is taken. */
	*blkg = rq->bio->bi_blkg;
	blkg_get(*blkg);
	if (!has_flow(fq, group))
		return fq->root;
	if (!READ_ONCE(group->sent))
		WRITE_ONCE(group->sent, true);
	return READ_ONCE(group->flow);
}

/* Called with interrupts off, so no other code changes the counts of this CPU. */
void fairq_count(struct fairq_slot *slot, u64 served_ns)
{
	struct fairq_group *group = slot->blkg ? group_of(slot->blkg) : NULL;
	u32 kind = min_t(u32, slot->op, 2);
	struct fairq_counts *counts;

	/* There are no counts if their memory could not be allocated. */
	if (group && group->counts) {
		counts = this_cpu_ptr(group->counts);
		WRITE_ONCE(counts->requests[kind], counts->requests[kind] + 1);
		WRITE_ONCE(counts->bytes[kind], counts->bytes[kind] + slot->bytes);
		WRITE_ONCE(counts->waited_ns, counts->waited_ns + slot->waited_ns);
		WRITE_ONCE(counts->served_ns, counts->served_ns + served_ns);
		WRITE_ONCE(counts->throttled, counts->throttled + slot->throttled);
		if (!READ_ONCE(group->counted))
			WRITE_ONCE(group->counted, true);
	}
	fairq_let_go(slot);
}

void fairq_let_go(struct fairq_slot *slot)
{
	slot->rq = NULL;
	if (slot->blkg)
		blkg_put(slot->blkg);
	slot->blkg = NULL;
}

u64 fairq_cgroup_id(struct blkcg_gq *blkg)
{
	return cgroup_id(blkg->blkcg->css.cgroup);
}

u64 fairq_flow_of_bio(struct fairq_queue *fq, struct bio *bio)
{
	struct fairq_group *group = group_of(bio->bi_blkg);

	return group && has_flow(fq, group) ? READ_ONCE(group->flow) : fq->root;
}

u64 fairq_flow_of_current(struct fairq_queue *fq)
{
	struct fairq_group *group;
	u64 flow = fq->root;

	rcu_read_lock();
	group = group_of(blkg_lookup(css_to_blkcg(task_css(current, io_cgrp_id)), fq->q));
	if (group && has_flow(fq, group))
		flow = READ_ONCE(group->flow);
	rcu_read_unlock();
	return flow;
}

static struct blkcg_policy_data *alloc_cgroup(gfp_t gfp)
{
	struct fairq_cgroup *cgroup = kzalloc(sizeof(*cgroup), gfp);

	if (!cgroup)
		return NULL;
	cgroup->weight = USUAL_WEIGHT;
	return &cgroup->cpd;
}

static void free_cgroup(struct blkcg_policy_data *cpd)
{
	kfree(container_of(cpd, struct fairq_cgroup, cpd));
}

static struct blkg_policy_data *alloc_group(struct gendisk *disk, struct blkcg *blkcg, gfp_t gfp)
{
	struct fairq_group *group = kzalloc_node(sizeof(*group), gfp, disk->node_id);

	if (!group)
		return NULL;
	INIT_LIST_HEAD(&group->entry);
	group->silent = SILENT;
	group->counts = alloc_percpu_gfp(struct fairq_counts, gfp | __GFP_NOWARN);
	return &group->pd;
}

/* Whether the group or a group below it sends requests. */
static bool counts(const struct fairq_group *group)
{
	return group->silent < SILENT || group->sum;
}

/* The group's part of the whole; if it does not send, the part that it would get if it began to. */
static u32 part_of(struct blkcg_gq *blkg, struct fairq_group *group)
{
	struct fairq_group *parent = blkg->parent ? group_of(blkg->parent) : NULL;
	u64 weight, sum;

	if (!parent)
		return WHOLE;
	weight = weight_of(blkg, group);
	sum = parent->sum + (counts(group) ? 0 : weight);
	return max(4ULL, div64_u64((parent->part ? parent->part : WHOLE) * weight, max(sum, weight)));
}

/* Returns false if no flow is free: the group then uses root's. Under q->queue_lock. */
static bool add_flow(struct fairq_queue *fq, struct fairq_group *group)
{
	struct blkcg_gq *blkg = group->pd.blkg;
	u64 flow = fq->root;

	group->given = part_of(blkg, group);
	if (!blkg->parent)
		fairq_core_set_weights(fq->engine, &(struct fairq_weight) { flow, group->given }, 1);
	else if (!fairq_core_add_flow(fq->engine, group->given, &flow))
		return false;
	WRITE_ONCE(group->flow, flow);
	/* A reader that finds this number also reads the new flow. */
	smp_store_release(&group->build, fq->builds);
	return true;
}

static void online_group(struct blkg_policy_data *pd)
{
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);
	struct fairq_queue *fq = fairq_of(pd->blkg->q);

	/* Activation also visits removed cgroups; offline_group() is not called for these again. */
	if (!fq || hlist_unhashed(&pd->blkg->blkcg_node))
		return;
	/* The list has parents before their children. */
	list_add_tail(&group->entry, &fq->groups);
	if (fq->is_started)
		add_flow(fq, group);
}

static void offline_group(struct blkg_policy_data *pd)
{
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);
	struct fairq_queue *fq = fairq_of(pd->blkg->q);
	struct fairq_wake wake = {};

	list_del_init(&group->entry);
	if (!fq || !has_flow(fq, group))
		return;
	WRITE_ONCE(group->build, 0);
	if (!pd->blkg->parent)
		return;
	fairq_core_remove_flow(fq->engine, group->flow, &wake);
	fairq_run_later(fq, &wake);
}

static void free_group(struct blkg_policy_data *pd)
{
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);

	free_percpu(group->counts);
	kfree(group);
}

/* A scan of all groups, one after the other. */
struct scan {
	struct fairq_queue *fq;
	void (*at)(struct scan *scan, struct fairq_group *group);
	/* Children before their parents. */
	bool backwards;
	/* The scheduler has no free flow. */
	bool is_full;
	/* The sum of all groups' bytes. */
	u64 all;
	/* The new weights, which the scheduler gets before the lock is released. */
	struct fairq_weight weights[FAIRQ_WEIGHTS];
	u32 count;
};

static void set_weights(struct scan *scan)
{
	if (scan->count)
		fairq_core_set_weights(scan->fq->engine, scan->weights, scan->count);
	scan->count = 0;
}

/*
 * The queue's lock is released every SCAN_NS, so groups may be added and removed meanwhile. A mark
 * in the list keeps the scan's position. There is one scan at a time.
 */
static void scan_all(struct scan *scan)
{
	struct list_head *groups = &scan->fq->groups, *at, mark;
	spinlock_t *lock = &scan->fq->q->queue_lock;
	u64 began_ns;

	spin_lock_irq(lock);
	began_ns = ktime_get_ns();
	if (scan->backwards)
		list_add_tail(&mark, groups);
	else
		list_add(&mark, groups);
	while ((at = scan->backwards ? mark.prev : mark.next) != groups) {
		list_del(&mark);
		if (scan->backwards)
			list_add_tail(&mark, at);
		else
			list_add(&mark, at);
		scan->at(scan, list_entry(at, struct fairq_group, entry));
		if (scan->count == FAIRQ_WEIGHTS)
			set_weights(scan);
		if (ktime_get_ns() - began_ns < SCAN_NS)
			continue;
		set_weights(scan);
		spin_unlock_irq(lock);
		cond_resched();
		spin_lock_irq(lock);
		began_ns = ktime_get_ns();
	}
	list_del(&mark);
	set_weights(scan);
	spin_unlock_irq(lock);
}

static void find_flow(struct scan *scan, struct fairq_group *group)
{
	if (!has_flow(scan->fq, group) && !scan->is_full)
		scan->is_full = !add_flow(scan->fq, group);
}

void fairq_add_flows(struct fairq_queue *fq)
{
	struct scan scan = { .fq = fq, .at = find_flow };

	scan_all(&scan);
}

/*
 * Updates whether a group has sent requests in the last half second, and sums the weights of such
 * groups at their parents. Called for children before their parents.
 */
static void add_up(struct scan *scan, struct fairq_group *group)
{
	struct blkcg_gq *blkg = group->pd.blkg;
	struct fairq_group *parent = blkg->parent ? group_of(blkg->parent) : NULL;

	/* Requests of a group without a flow are charged to root. */
	if (has_flow(scan->fq, group) && READ_ONCE(group->sent)) {
		WRITE_ONCE(group->sent, false);
		group->silent = 0;
	} else if (group->silent < SILENT) {
		group->silent++;
	}
	group->sum = group->summing;
	group->summing = 0;
	/* The group's own requests have a weight beside those of its children. */
	if (group->silent < SILENT && (group->sum || !blkg->parent))
		group->sum += USUAL_WEIGHT;
	if (parent && counts(group))
		parent->summing += weight_of(blkg, group);
}

/* Computes a group's part. Called for parents before their children. */
static void set_part(struct scan *scan, struct fairq_group *group)
{
	struct blkcg_gq *blkg = group->pd.blkg;
	u32 part;

	find_flow(scan, group);
	group->part = group->sum && !blkg->parent ? WHOLE : part_of(blkg, group);
	if (!has_flow(scan->fq, group))
		return;
	part = group->part;
	if (group->sum)
		part = max(4ULL, div64_u64(group->part * USUAL_WEIGHT, group->sum));
	/*
	 * A weight that is wrong by at most a 64th is not changed, because a change of weights
	 * costs time.
	 */
	if (abs_diff(part, group->given) <= group->given / 64)
		return;
	group->given = part;
	scan->weights[scan->count++] = (struct fairq_weight) { group->flow, part };
}

/* The bytes of the group's requests that have ended since the last call. */
static u64 more_of(struct fairq_group *group)
{
	u64 before = group->had;
	int cpu;

	if (!group->counts || !READ_ONCE(group->counted))
		return 0;
	WRITE_ONCE(group->counted, false);
	group->had = 0;
	for_each_possible_cpu(cpu) {
		const struct fairq_counts *counts = per_cpu_ptr(group->counts, cpu);

		group->had += READ_ONCE(counts->bytes[0]) + READ_ONCE(counts->bytes[1]) +
			      READ_ONCE(counts->bytes[2]);
	}
	return group->had - before;
}

static void add_received(struct scan *scan, struct fairq_group *group)
{
	group->more = more_of(group);
	scan->all += group->more;
}

static void set_received(struct scan *scan, struct fairq_group *group)
{
	group->received = scan->all ? div64_u64(group->more * 10000, scan->all) : 0;
}

/* Computes the part of all bytes that each cgroup has received. */
static void receive(struct fairq_queue *fq)
{
	u64 now_ns = ktime_get_ns(), passed_ns = now_ns - fq->received_ns;
	struct scan scan = { .fq = fq, .at = add_received };

	if (passed_ns < RECEIVED_NS)
		return;
	scan_all(&scan);
	scan.at = set_received;
	if (passed_ns >= STALE_NS)
		scan.all = 0;
	scan_all(&scan);
	WRITE_ONCE(fq->received_ns, now_ns);
}

void fairq_weigh(struct fairq_queue *fq)
{
	struct scan scan = { .fq = fq, .at = add_up, .backwards = true };

	scan_all(&scan);
	scan.at = set_part;
	scan.backwards = false;
	scan_all(&scan);
	receive(fq);
}

struct blkcg_policy fairq_policy = {
	.dfl_cftypes = fairq_files,
	.cpd_alloc_fn = alloc_cgroup,
	.cpd_free_fn = free_cgroup,
	.pd_alloc_fn = alloc_group,
	.pd_online_fn = online_group,
	.pd_offline_fn = offline_group,
	.pd_free_fn = free_group,
};

int fairq_activate_groups(struct fairq_queue *fq)
{
	int error = blkcg_activate_policy(fq->q->disk, &fairq_policy);

	if (error)
		return error;
	spin_lock_irq(&fq->q->queue_lock);
	fq->is_started = true;
	spin_unlock_irq(&fq->q->queue_lock);
	/* The queue is frozen, so all groups get their flows before the first request arrives. */
	fairq_add_flows(fq);
	return 0;
}

void fairq_deactivate_groups(struct fairq_queue *fq)
{
	blkcg_deactivate_policy(fq->q->disk, &fairq_policy);
}

int fairq_register_groups(void)
{
	return blkcg_policy_register(&fairq_policy);
}

void fairq_unregister_groups(void)
{
	blkcg_policy_unregister(&fairq_policy);
}
