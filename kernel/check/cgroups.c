// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A model of block/blk-cgroup.c: it calls a policy's functions at the same points, and under the
 * same locks.
 */
#include "group.h"

struct cftype fairq_files[1];
struct blkcg_gq *root_group;
u32 rcu_readers;
static bool is_active;
/* Stands for q->blkcg_mutex: set while a cgroup is freed, and while the policy is deactivated. */
static bool is_freeing;

/* Under the queue's lock. */
static void begin(struct blkcg_gq *blkg)
{
	static struct gendisk disk;

	blkg->pd = fairq_policy.pd_alloc_fn(&disk, blkg->blkcg, 0);
	blkg->pd->blkg = blkg;
	fairq_policy.pd_online_fn(blkg->pd);
	blkg->pd->online = true;
}

static void end(struct blkcg_gq *blkg)
{
	if (!blkg->pd || !blkg->pd->online)
		return;
	fairq_policy.pd_offline_fn(blkg->pd);
	blkg->pd->online = false;
}

struct blkcg_gq *make_group(struct request_queue *q, struct blkcg_gq *parent, u32 weight)
{
	struct blkcg_gq *blkg = calloc(1, sizeof(*blkg));

	blkg->q = q;
	blkg->parent = parent;
	blkg->users = 1;
	if (parent) {
		blkg_get(parent);
		parent->children++;
	} else {
		root_group = blkg;
	}
	blkg->blkcg = calloc(1, sizeof(*blkg->blkcg));
	blkg->blkcg->css.cgroup = (void *)blkg->blkcg;
	blkg->blkcg->cpd = fairq_policy.cpd_alloc_fn(0);
	cgroup_of(blkg->blkcg)->weight = weight;
	blkg->blkcg_node.is_in = true;
	list_add(&blkg->q_node, &q->blkg_list);
	if (is_active)
		begin(blkg);
	return blkg;
}

void remove_group(struct blkcg_gq *blkg)
{
	end(blkg);
	blkg->blkcg_node.is_in = false;
	blkg->is_dying = true;
	if (blkg->parent)
		blkg->parent->children--;
	blkg_put(blkg);
}

struct blkcg_gq *unused_group(struct request_queue *q)
{
	struct blkcg_gq *blkg;

	if (rcu_readers)
		return NULL;
	list_for_each_entry(blkg, &q->blkg_list, q_node)
		if (blkg->is_dying && !blkg->users)
			return blkg;
	return NULL;
}

void free_group_of(struct blkcg_gq *blkg)
{
	while (is_freeing)
		step();
	is_freeing = true;
	/* As in Linux, the policy's data are freed before the cgroup leaves the list. */
	if (blkg->pd)
		fairq_policy.pd_free_fn(blkg->pd);
	step();
	take(&blkg->q->queue_lock);
	if (blkg->parent)
		blkg_put(blkg->parent);
	list_del(&blkg->q_node);
	give(&blkg->q->queue_lock);
	is_freeing = false;
	fairq_policy.cpd_free_fn(blkg->blkcg->cpd);
	free(blkg->blkcg);
	free(blkg);
}

/* Forgets the groups of the last queue. */
void forget_groups(void)
{
	root_group = NULL;
	is_active = is_freeing = false;
}

int blkcg_activate_policy(struct gendisk *disk, const struct blkcg_policy *policy)
{
	struct blkcg_gq *blkg;

	take(&disk->queue->queue_lock);
	/* Groups of removed cgroups get data, too. */
	list_for_each_entry_reverse(blkg, &disk->queue->blkg_list, q_node)
		if (!blkg->pd)
			begin(blkg);
	is_active = true;
	give(&disk->queue->queue_lock);
	return 0;
}

void blkcg_deactivate_policy(struct gendisk *disk, const struct blkcg_policy *policy)
{
	struct blkcg_gq *blkg;

	while (is_freeing)
		step();
	is_freeing = true;
	take(&disk->queue->queue_lock);
	is_active = false;
	list_for_each_entry(blkg, &disk->queue->blkg_list, q_node) {
		end(blkg);
		if (blkg->pd)
			policy->pd_free_fn(blkg->pd);
		blkg->pd = NULL;
	}
	give(&disk->queue->queue_lock);
	is_freeing = false;
}
