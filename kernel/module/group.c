// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Cgroups: a flow of the scheduler for each one on each queue, and their weights.
 *
 * io.fairq.weight of a cgroup is its weight among its siblings, 1 to 10,000, 100 by default; on one
 * drive it may have another. Of what its parent has, a cgroup has its weight's part of the weights of
 * all siblings that send requests; what it does not use is theirs. So ten times a second, while there
 * are requests, fairq_weigh() looks which cgroups have sent some lately, and tells the scheduler for
 * each its part of the whole. Root's own requests, those without a cgroup and those of one that is
 * gone are root's, which is beside its children with a weight of 100.
 *
 * The scheduler has as many flows as it was made for. A cgroup that finds none left is root's until
 * a look finds one: flows of cgroups that are gone are free once their requests have ended.
 *
 * A look takes the queue's lock, which switches interrupts off, for a few groups at a time.
 *
 * A staged request keeps its cgroup's data until it has ended. Once a second fairq_weigh() finds out
 * what part each one has received, for which it adds up the counts of all CPUs of those that have had
 * something.
 */
#include <linux/blkdev.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "elevator.h"
#include "blk-cgroup.h"

#include "group.h"

/* How long a look keeps the queue's lock. */
#define LOOK_NS (10 * NSEC_PER_USEC)

/* Its weight on this drive. */
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
	/* The bio has it until then. */
	*blkg = rq->bio->bi_blkg;
	blkg_get(*blkg);
	if (!has_flow(fq, group))
		return fq->root;
	if (!READ_ONCE(group->sent))
		WRITE_ONCE(group->sent, true);
	return READ_ONCE(group->flow);
}

/* With interrupts off, so nothing else counts on this CPU. */
void fairq_count(struct fairq_slot *slot, u64 served_ns)
{
	struct fairq_group *group = slot->blkg ? group_of(slot->blkg) : NULL;
	u32 kind = min_t(u32, slot->op, 2);
	struct fairq_counts *counts;

	/* Without memory for them there are none. */
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

/* It sends, or some below it do. */
static bool counts(const struct fairq_group *group)
{
	return group->silent < SILENT || group->sum;
}

/* Its part of the whole, or what that is once it sends beside those that do now. */
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

/* Whether the scheduler had room for its flow; until then it is root's. Under q->queue_lock. */
static bool add_flow(struct fairq_queue *fq, struct fairq_group *group)
{
	struct blkcg_gq *blkg = group->pd.blkg;
	u64 flow = fq->root;

	group->told = part_of(blkg, group);
	if (!blkg->parent)
		fairq_core_set_weights(fq->engine, &(struct fairq_weight) { flow, group->told }, 1);
	else if (!fairq_core_add_flow(fq->engine, group->told, &flow))
		return false;
	WRITE_ONCE(group->flow, flow);
	/* Whoever sees the number sees the flow. */
	smp_store_release(&group->build, fq->builds);
	return true;
}

static void online_group(struct blkg_policy_data *pd)
{
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);
	struct fairq_queue *fq = fairq_of(pd->blkg->q);

	/* Where the policy is activated there are some that have gone, which do not go again. */
	if (!fq || hlist_unhashed(&pd->blkg->blkcg_node))
		return;
	/* Parents come first. */
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
	fairq_ask_later(fq, &wake);
}

static void free_group(struct blkg_policy_data *pd)
{
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);

	free_percpu(group->counts);
	kfree(group);
}

/* A look at all groups, one after the other. */
struct look {
	struct fairq_queue *fq;
	void (*at)(struct look *look, struct fairq_group *group);
	/* Children before their parents. */
	bool backwards;
	/* The scheduler has no room for another flow. */
	bool is_full;
	/* All bytes. */
	u64 all;
	/* What the scheduler is told before the lock is given back. */
	struct fairq_weight weights[FAIRQ_WEIGHTS];
	u32 count;
};

static void tell(struct look *look)
{
	if (look->count)
		fairq_core_set_weights(look->fq->engine, look->weights, look->count);
	look->count = 0;
}

/*
 * The queue's lock is given back every LOOK_NS: groups come and go in between. A mark in the list
 * keeps the place. One look is made at a time.
 */
static void look_at_all(struct look *look)
{
	struct list_head *groups = &look->fq->groups, *at, mark;
	spinlock_t *lock = &look->fq->q->queue_lock;
	u64 began_ns;

	spin_lock_irq(lock);
	began_ns = ktime_get_ns();
	if (look->backwards)
		list_add_tail(&mark, groups);
	else
		list_add(&mark, groups);
	while ((at = look->backwards ? mark.prev : mark.next) != groups) {
		list_del(&mark);
		if (look->backwards)
			list_add_tail(&mark, at);
		else
			list_add(&mark, at);
		look->at(look, list_entry(at, struct fairq_group, entry));
		if (look->count == FAIRQ_WEIGHTS)
			tell(look);
		if (ktime_get_ns() - began_ns < LOOK_NS)
			continue;
		tell(look);
		spin_unlock_irq(lock);
		cond_resched();
		spin_lock_irq(lock);
		began_ns = ktime_get_ns();
	}
	list_del(&mark);
	tell(look);
	spin_unlock_irq(lock);
}

static void find_flow(struct look *look, struct fairq_group *group)
{
	if (!has_flow(look->fq, group) && !look->is_full)
		look->is_full = !add_flow(look->fq, group);
}

void fairq_add_flows(struct fairq_queue *fq)
{
	struct look look = { .fq = fq, .at = find_flow };

	look_at_all(&look);
}

/* Which groups have sent requests lately, and what their weights come to. Children are before their parents. */
static void add_up(struct look *look, struct fairq_group *group)
{
	struct blkcg_gq *blkg = group->pd.blkg;
	struct fairq_group *parent = blkg->parent ? group_of(blkg->parent) : NULL;

	/* What a group without a flow sends is root's. */
	if (has_flow(look->fq, group) && READ_ONCE(group->sent)) {
		WRITE_ONCE(group->sent, false);
		group->silent = 0;
	} else if (group->silent < SILENT) {
		group->silent++;
	}
	group->sum = group->summing;
	group->summing = 0;
	/* Requests of its own, beside those of its children. */
	if (group->silent < SILENT && (group->sum || !blkg->parent))
		group->sum += USUAL_WEIGHT;
	if (parent && counts(group))
		parent->summing += weight_of(blkg, group);
}

/* What each one's part is. Parents are before their children. */
static void tell_part(struct look *look, struct fairq_group *group)
{
	struct blkcg_gq *blkg = group->pd.blkg;
	u32 part;

	find_flow(look, group);
	group->part = group->sum && !blkg->parent ? WHOLE : part_of(blkg, group);
	if (!has_flow(look->fq, group))
		return;
	part = group->part;
	if (group->sum)
		part = max(4ULL, div64_u64(group->part * USUAL_WEIGHT, group->sum));
	/* What is a part in 64 off stays: a change of weights has its cost. */
	if (abs_diff(part, group->told) <= group->told / 64)
		return;
	group->told = part;
	look->weights[look->count++] = (struct fairq_weight) { group->flow, part };
}

/* The bytes that have ended for it since it was asked last. */
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

static void add_received(struct look *look, struct fairq_group *group)
{
	group->more = more_of(group);
	look->all += group->more;
}

static void set_received(struct look *look, struct fairq_group *group)
{
	group->received = look->all ? div64_u64(group->more * 10000, look->all) : 0;
}

/* Finds out what part of all bytes each cgroup has received. */
static void receive(struct fairq_queue *fq)
{
	u64 now_ns = ktime_get_ns(), passed_ns = now_ns - fq->received_ns;
	struct look look = { .fq = fq, .at = add_received };

	if (passed_ns < RECEIVED_NS)
		return;
	look_at_all(&look);
	look.at = set_received;
	if (passed_ns >= STALE_NS)
		look.all = 0;
	look_at_all(&look);
	WRITE_ONCE(fq->received_ns, now_ns);
}

void fairq_weigh(struct fairq_queue *fq)
{
	struct look look = { .fq = fq, .at = add_up, .backwards = true };

	look_at_all(&look);
	look.at = tell_part;
	look.backwards = false;
	look_at_all(&look);
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
	/* The queue is frozen: all have theirs before the first request comes. */
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
