/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Declarations of Linux's cgroups that ../module/group.c uses. linux.h includes this file, and
 * cgroups.c implements the functions.
 */
#ifndef FAIRQ_CHECK_CGROUPS_H
#define FAIRQ_CHECK_CGROUPS_H

#define __percpu
/* The model has one copy of per-CPU data. */
#define alloc_percpu_gfp(type, gfp) ((type *)take_memory(sizeof(type)))
#define alloc_percpu(type) alloc_percpu_gfp(type, 0)
#define get_cpu_ptr(pointer) (pointer)
#define put_cpu_ptr(pointer) ((void)(pointer))
struct task_struct;
const struct task_struct *current_task(void);
#define current current_task()
#define free_percpu(memory) give_memory(memory)
#define this_cpu_ptr(pointer) (pointer)
#define per_cpu_ptr(pointer, cpu) (pointer)
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (cpu) < 1; (cpu)++)

struct cftype { int unused; };
struct hlist_node { struct hlist_node *next; bool is_in; };
#define hlist_unhashed(node) (!(node)->is_in)
struct blkcg_policy_data { int unused; };
struct blkg_policy_data {
	struct blkcg_gq *blkg;
	bool online;
};
struct blkcg;
struct blkcg_policy {
	struct cftype *dfl_cftypes;
	struct blkcg_policy_data *(*cpd_alloc_fn)(gfp_t gfp);
	void (*cpd_free_fn)(struct blkcg_policy_data *cpd);
	struct blkg_policy_data *(*pd_alloc_fn)(struct gendisk *disk, struct blkcg *blkcg, gfp_t gfp);
	void (*pd_online_fn)(struct blkg_policy_data *pd);
	void (*pd_offline_fn)(struct blkg_policy_data *pd);
	void (*pd_free_fn)(struct blkg_policy_data *pd);
};
/* A cgroup. The model has one drive, so a cgroup has one blkcg_gq. */
struct cgroup_subsys_state { struct { int unused; } *cgroup; };
struct blkcg {
	struct cgroup_subsys_state css;
	struct blkcg_policy_data *cpd;
};
struct blkcg_gq {
	struct request_queue *q;
	struct list_head q_node;
	struct hlist_node blkcg_node;
	struct blkcg *blkcg;
	struct blkcg_gq *parent;
	struct blkg_policy_data *pd;
	/* Fields that only the model has. */
	u32 users, children;
	bool is_dying;
};
#define blkcg_to_cpd(blkcg, policy) ((void)(policy), (blkcg)->cpd)
#define blkg_to_pd(blkg, policy) ((void)(policy), (blkg) ? (blkg)->pd : NULL)
#define blkg_get(blkg) ((void)(blkg)->users++)
#define blkg_put(blkg) ((void)(blkg)->users--)
#define css_to_blkcg(css) ((struct blkcg *)(css))
#define cgroup_id(cgroup) ((void)(cgroup), 0)
/* The cgroup of the calling task. */
struct blkcg_gq *blkg_of_task(void);
#define io_cgrp_id 0
#define task_css(task, id) NULL
#define blkg_lookup(blkcg, q) ((void)(blkcg), (void)(q), blkg_of_task())
int blkcg_activate_policy(struct gendisk *disk, const struct blkcg_policy *policy);
void blkcg_deactivate_policy(struct gendisk *disk, const struct blkcg_policy *policy);
#define blkcg_policy_register(policy) ((void)(policy), 0)
#define blkcg_policy_unregister(policy) ((void)(policy))

/* In cgroups.c: the root cgroup on the drive. */
extern struct blkcg_gq *root_group;
/* Under the queue's lock. */
struct blkcg_gq *make_group(struct request_queue *q, struct blkcg_gq *parent, u32 weight);
void remove_group(struct blkcg_gq *blkg);
/*
 * Returns a removed cgroup without users, or NULL. The caller frees it by free_group_of(), which
 * takes the queue's lock and removes the cgroup from the queue's list.
 */
struct blkcg_gq *unused_group(struct request_queue *q);
void free_group_of(struct blkcg_gq *blkg);
void forget_groups(void);

#endif
