// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Cgroups: a flow of the scheduler for each one on each queue, and their weights.
 *
 * io.fairq.weight of a cgroup is its weight among its siblings, 1 to 10,000, 100 by default; on one
 * device it may have another. What the scheduler is told is the product over the levels of the tree
 * in units of 100. A request without a cgroup, or of one that is gone, is root's.
 */
#include <linux/blkdev.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "elevator.h"
#include "blk-cgroup.h"

#include "fairq.h"
#include "compat.h"

#define LEAST_WEIGHT 1
#define MOST_WEIGHT 10000
#define USUAL_WEIGHT 100

/* A cgroup. */
struct fairq_cgroup {
	struct blkcg_policy_data cpd;
	u32 weight;
};

/* A cgroup on a queue. */
struct fairq_group {
	struct blkg_policy_data pd;
	/* The queue whose engine has the flow; NULL: none has. Written under q->queue_lock. */
	struct fairq_queue *fq;
	u64 flow;
	/* On this device; 0: the cgroup's. */
	u32 weight;
};

static struct blkcg_policy fairq_policy;

static struct fairq_cgroup *cgroup_of(struct blkcg *blkcg)
{
	return container_of(blkcg_to_cpd(blkcg, &fairq_policy), struct fairq_cgroup, cpd);
}

static struct fairq_group *group_of(struct blkcg_gq *blkg)
{
	struct blkg_policy_data *pd = blkg_to_pd(blkg, &fairq_policy);

	return pd ? container_of(pd, struct fairq_group, pd) : NULL;
}

/* In 256ths: its own weight times those of all above it, in units of 100. */
static u32 weight_of(struct blkcg_gq *blkg)
{
	u64 weight = USUAL_WEIGHT << 8;
	struct fairq_group *group;

	for (; blkg->parent; blkg = blkg->parent) {
		u32 own;

		group = group_of(blkg);
		own = group ? READ_ONCE(group->weight) : 0;
		if (!own)
			own = READ_ONCE(cgroup_of(blkg->blkcg)->weight);
		weight = clamp(weight * own / USUAL_WEIGHT, 4ULL, (u64)MOST_WEIGHT << 8);
	}
	return weight;
}

u64 fairq_flow_of(struct fairq_queue *fq, struct request *rq)
{
	struct fairq_group *group = rq->bio ? group_of(rq->bio->bi_blkg) : NULL;

	return group && smp_load_acquire(&group->fq) == fq ? READ_ONCE(group->flow) : fq->root;
}

u64 fairq_flow_of_current(struct fairq_queue *fq)
{
	struct fairq_group *group;
	u64 flow = fq->root;

	rcu_read_lock();
	group = group_of(blkg_lookup(css_to_blkcg(task_css(current, io_cgrp_id)), fq->q));
	if (group && smp_load_acquire(&group->fq) == fq)
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

	return group ? &group->pd : NULL;
}

/* Where there is no room for another flow the group is root's. */
static void add_flow(struct fairq_queue *fq, struct blkcg_gq *blkg, struct fairq_group *group)
{
	u64 flow = fq->root;

	if (blkg->parent && !fairq_core_add_flow(fq->engine, weight_of(blkg), &flow))
		return;
	WRITE_ONCE(group->flow, flow);
	/* Whoever sees the queue sees the flow. */
	smp_store_release(&group->fq, fq);
}

static void online_group(struct blkg_policy_data *pd)
{
	struct fairq_queue *fq = fairq_of(pd->blkg->q);

	if (fq)
		add_flow(fq, pd->blkg, container_of(pd, struct fairq_group, pd));
}

static void offline_group(struct blkg_policy_data *pd)
{
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);
	struct fairq_queue *fq = fairq_of(pd->blkg->q);
	struct fairq_wake wake = {};

	if (!fq || group->fq != fq)
		return;
	WRITE_ONCE(group->fq, NULL);
	if (!pd->blkg->parent)
		return;
	fairq_core_remove_flow(fq->engine, group->flow, &wake);
	fairq_ask_later(fq, &wake);
}

static void free_group(struct blkg_policy_data *pd)
{
	kfree(container_of(pd, struct fairq_group, pd));
}

void fairq_readd_groups(struct fairq_queue *fq)
{
	struct fairq_group *group;
	struct blkcg_gq *blkg;

	list_for_each_entry(blkg, &fq->q->blkg_list, q_node) {
		/* The lock keeps reweigh() out of the old engine, which ends after this. */
		spin_lock(&blkg->blkcg->lock);
		group = group_of(blkg);
		if (group && group->fq == fq) {
			WRITE_ONCE(group->fq, NULL);
			add_flow(fq, blkg, group);
		}
		spin_unlock(&blkg->blkcg->lock);
	}
}

/* The weight of a cgroup has changed, and with it the products of all below it. */
static void reweigh(struct blkcg *top)
{
	struct cgroup_subsys_state *css;
	struct fairq_group *group;
	struct blkcg_gq *blkg;
	struct blkcg *blkcg;

	rcu_read_lock();
	css_for_each_descendant_pre(css, &top->css) {
		blkcg = css_to_blkcg(css);
		spin_lock_irq(&blkcg->lock);
		hlist_for_each_entry(blkg, &blkcg->blkg_list, blkcg_node) {
			group = group_of(blkg);
			if (group && group->fq && blkg->parent)
				fairq_core_set_weight(group->fq->engine, group->flow,
						      weight_of(blkg));
		}
		spin_unlock_irq(&blkcg->lock);
	}
	rcu_read_unlock();
}

static ssize_t write_weight(struct kernfs_open_file *of, char *text, size_t count, loff_t offset)
{
	struct blkcg *blkcg = css_to_blkcg(of_css(of));
	struct fairq_group *group;
	struct blkg_conf_ctx ctx;
	u32 weight;
	int error;

	text = strim(text);
	if (!kstrtou32(text, 10, &weight) || sscanf(text, "default %u", &weight) == 1) {
		if (weight < LEAST_WEIGHT || weight > MOST_WEIGHT)
			return -ERANGE;
		WRITE_ONCE(cgroup_of(blkcg)->weight, weight);
		reweigh(blkcg);
		return count;
	}

	blkg_conf_init(&ctx, text);
	error = fairq_conf_begin(blkcg, &fairq_policy, &ctx);
	if (error)
		return error;
	text = strim(ctx.body);
	if (!strcmp(text, "default"))
		weight = 0;
	else if (kstrtou32(text, 10, &weight))
		error = -EINVAL;
	else if (weight < LEAST_WEIGHT || weight > MOST_WEIGHT)
		error = -ERANGE;
	group = group_of(ctx.blkg);
	if (!error)
		WRITE_ONCE(group->weight, weight);
	fairq_conf_end(&ctx);
	if (error)
		return error;
	reweigh(blkcg);
	return count;
}

static u64 print_group(struct seq_file *file, struct blkg_policy_data *pd, int unused)
{
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);

	return group->weight ? __blkg_prfill_u64(file, pd, group->weight) : 0;
}

static int show_weight(struct seq_file *file, void *unused)
{
	struct blkcg *blkcg = css_to_blkcg(seq_css(file));

	seq_printf(file, "default %u\n", cgroup_of(blkcg)->weight);
	blkcg_print_blkgs(file, blkcg, print_group, &fairq_policy, 0, false);
	return 0;
}

static struct cftype files[] = {
	{
		.name = "fairq.weight",
		.flags = CFTYPE_NOT_ON_ROOT,
		.seq_show = show_weight,
		.write = write_weight,
	},
	{}
};

static struct blkcg_policy fairq_policy = {
	.dfl_cftypes = files,
	.cpd_alloc_fn = alloc_cgroup,
	.cpd_free_fn = free_cgroup,
	.pd_alloc_fn = alloc_group,
	.pd_online_fn = online_group,
	.pd_offline_fn = offline_group,
	.pd_free_fn = free_group,
};

int fairq_activate_groups(struct fairq_queue *fq)
{
	return blkcg_activate_policy(fq->q->disk, &fairq_policy);
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
