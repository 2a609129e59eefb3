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
 * io.fairq.stat says for each drive what a cgroup has had; obytes and oios are what is neither read
 * nor written: discards and zeroes. A staged request keeps its cgroup's data until it has ended.
 * Once a second fairq_weigh() finds out what part each one has received, for which it adds up the
 * counts of all CPUs of those that have had something.
 */
#include <linux/backing-dev.h>
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

/* What a cgroup has had from a drive, on one CPU; by FAIRQ_READ, FAIRQ_WRITE and all others. */
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
	/* The queue whose engine has the flow; NULL: none has. Written under q->queue_lock. */
	struct fairq_queue *fq;
	u64 flow;
	/* On this drive; 0: the cgroup's. */
	u32 weight;
	/* It has sent a request since the last look; for how many looks it has not. */
	bool sent;
	u8 silent;
	/* What the scheduler was told last, in 256ths. */
	u32 told;
	struct fairq_counts __percpu *counts;
	/* It has had something since receive() looked; its bytes by then, and since the look before. */
	bool counted;
	u64 had;
	u64 more;
	/* Its part of what all have had, in 10,000ths. */
	u32 received;
	/* The weights of its children that send, and its own if it sends and has such; its part. */
	u64 sum;
	u64 part;
};

/* How many looks a cgroup counts as sending after its last request. */
#define SILENT 5
/* The whole, which a cgroup alone has: the largest weight there is, in 256ths. */
#define WHOLE ((u64)MOST_WEIGHT << 8)
/* How long it is counted what each one receives. */
#define RECEIVED_NS NSEC_PER_SEC
/* Not known after such a pause; the looks stop with the requests, and come late on a busy machine. */
#define STALE_NS (5 * RECEIVED_NS)

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
	if (smp_load_acquire(&group->fq) != fq)
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

	if (!group)
		return NULL;
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

/* Where there is no room for another flow the group is root's. */
static void add_flow(struct fairq_queue *fq, struct blkcg_gq *blkg, struct fairq_group *group)
{
	u64 flow = fq->root;

	group->silent = SILENT;
	group->sum = 0;
	group->part = 0;
	group->told = part_of(blkg, group);
	if (!blkg->parent)
		fairq_core_set_weight(fq->engine, flow, group->told);
	else if (!fairq_core_add_flow(fq->engine, group->told, &flow))
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
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);

	free_percpu(group->counts);
	kfree(group);
}

void fairq_readd_groups(struct fairq_queue *fq)
{
	struct fairq_group *group;
	struct blkcg_gq *blkg;

	list_for_each_entry_reverse(blkg, &fq->q->blkg_list, q_node) {
		group = group_of(blkg);
		if (group && group->fq == fq) {
			WRITE_ONCE(group->fq, NULL);
			add_flow(fq, blkg, group);
		}
	}
}

/* Under q->queue_lock: nothing is added to the list or taken out. Parents are behind children. */
static void weigh(struct fairq_queue *fq)
{
	struct fairq_group *group, *parent;
	struct blkcg_gq *blkg;
	u32 part;

	list_for_each_entry(blkg, &fq->q->blkg_list, q_node) {
		group = group_of(blkg);
		if (!group || group->fq != fq)
			continue;
		if (READ_ONCE(group->sent)) {
			WRITE_ONCE(group->sent, false);
			group->silent = 0;
		} else if (group->silent < SILENT) {
			group->silent++;
		}
		group->sum = 0;
	}
	list_for_each_entry(blkg, &fq->q->blkg_list, q_node) {
		group = group_of(blkg);
		if (!group || group->fq != fq)
			continue;
		/* Requests of its own, beside those of its children. */
		if (group->silent < SILENT && (group->sum || !blkg->parent))
			group->sum += USUAL_WEIGHT;
		parent = blkg->parent ? group_of(blkg->parent) : NULL;
		if (parent && counts(group))
			parent->sum += weight_of(blkg, group);
	}
	list_for_each_entry_reverse(blkg, &fq->q->blkg_list, q_node) {
		group = group_of(blkg);
		if (!group || group->fq != fq)
			continue;
		group->part = group->sum && !blkg->parent ? WHOLE : part_of(blkg, group);
		part = group->part;
		if (group->sum)
			part = max(4ULL, div64_u64(group->part * USUAL_WEIGHT, group->sum));
		/* What is a part in 64 off stays: a change of weights has its cost. */
		if (abs_diff(part, group->told) <= group->told / 64)
			continue;
		group->told = part;
		fairq_core_set_weight(fq->engine, group->flow, part);
	}
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

/* Finds out what part of all bytes each cgroup has received; under q->queue_lock. */
static void receive(struct fairq_queue *fq)
{
	u64 now_ns = ktime_get_ns(), passed_ns = now_ns - fq->received_ns, all = 0;
	struct fairq_group *group;
	struct blkcg_gq *blkg;

	if (passed_ns < RECEIVED_NS)
		return;
	list_for_each_entry(blkg, &fq->q->blkg_list, q_node) {
		group = group_of(blkg);
		if (!group)
			continue;
		group->more = more_of(group);
		all += group->more;
	}
	if (passed_ns >= STALE_NS)
		all = 0;
	list_for_each_entry(blkg, &fq->q->blkg_list, q_node) {
		group = group_of(blkg);
		if (group)
			group->received = all ? div64_u64(group->more * 10000, all) : 0;
	}
	fq->received_ns = now_ns;
}

void fairq_weigh(struct fairq_queue *fq)
{
	spin_lock_irq(&fq->q->queue_lock);
	weigh(fq);
	receive(fq);
	spin_unlock_irq(&fq->q->queue_lock);
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
	return error ? error : count;
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

/* Under q->queue_lock: its engine stays. Counts what has ended. */
static void hear_ends(struct fairq_queue *fq)
{
	struct fairq_wake wake = {};
	unsigned long irq;
	u32 i;

	fairq_find_ends(fq, &wake);
	for (i = 0; i < fq->nr_ports; i++) {
		if (!(wake.words[i / 64] & (1ULL << (i % 64))))
			continue;
		spin_lock_irqsave(&fq->ports[i].lock, irq);
		fairq_hear_ends(&fq->ports[i], &wake);
		spin_unlock_irqrestore(&fq->ports[i].lock, irq);
	}
	fairq_ask_later(fq, &wake);
}

/* Under q->queue_lock: its engine stays. */
static void tell_flow(struct seq_file *file, struct fairq_queue *fq, u64 flow)
{
	struct fairq_flow_told told, all = {};
	unsigned long irq;
	u32 i;

	for (i = 0; i < fq->nr_ports; i++) {
		struct fairq_port *port = &fq->ports[i];

		if (!READ_ONCE(port->live))
			continue;
		spin_lock_irqsave(&port->lock, irq);
		fairq_core_tell_flow(fq->engine, i, flow, &told);
		spin_unlock_irqrestore(&port->lock, irq);
		all.staged += told.staged;
		all.in_flight += told.in_flight;
		if (told.has_lag)
			all.lag = max(all.lag, told.lag);
		all.has_lag |= told.has_lag;
	}
	seq_printf(file, " staged=%u inflight=%u", all.staged, all.in_flight);
	if (all.has_lag)
		seq_printf(file, " lag=%llu", all.lag);
}

static u64 print_stat(struct seq_file *file, struct blkg_policy_data *pd, int unused)
{
	struct fairq_group *group = container_of(pd, struct fairq_group, pd);
	struct fairq_queue *fq = fairq_of(pd->blkg->q);
	struct fairq_counts all = {};
	u32 kind, hundredths = 0, received = 0;
	int cpu;

	if (!fq || !group->counts)
		return 0;
	hear_ends(fq);
	for_each_possible_cpu(cpu) {
		const struct fairq_counts *counts = per_cpu_ptr(group->counts, cpu);

		for (kind = 0; kind < 3; kind++) {
			all.requests[kind] += READ_ONCE(counts->requests[kind]);
			all.bytes[kind] += READ_ONCE(counts->bytes[kind]);
		}
		all.waited_ns += READ_ONCE(counts->waited_ns);
		all.served_ns += READ_ONCE(counts->served_ns);
		all.throttled += READ_ONCE(counts->throttled);
	}
	if (group->fq == fq && group->silent < SILENT)
		hundredths = div64_u64(group->told * 10000ULL, WHOLE);
	if (ktime_get_ns() - fq->received_ns < STALE_NS)
		received = group->received;
	seq_printf(file, "%s rbytes=%llu wbytes=%llu obytes=%llu rios=%llu wios=%llu oios=%llu",
		   bdi_dev_name(pd->blkg->q->disk->bdi), all.bytes[0], all.bytes[1], all.bytes[2],
		   all.requests[0], all.requests[1], all.requests[2]);
	seq_printf(file, " wait_usec=%llu device_usec=%llu throttled=%llu",
		   div_u64(all.waited_ns, NSEC_PER_USEC), div_u64(all.served_ns, NSEC_PER_USEC),
		   all.throttled);
	seq_printf(file, " entitled=%u.%02u received=%u.%02u", hundredths / 100, hundredths % 100,
		   received / 100, received % 100);
	/* A group without a flow of its own is root's. */
	if (group->fq == fq)
		tell_flow(file, fq, group->flow);
	seq_putc(file, '\n');
	return 0;
}

static int show_stat(struct seq_file *file, void *unused)
{
	blkcg_print_blkgs(file, css_to_blkcg(seq_css(file)), print_stat, &fairq_policy, 0, false);
	return 0;
}

static struct cftype files[] = {
	{
		.name = "fairq.stat",
		.seq_show = show_stat,
	},
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
