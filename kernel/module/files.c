// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The files of a cgroup: io.fairq.weight and io.fairq.stat.
 *
 * io.fairq.stat has the service of a cgroup by each drive; obytes and oios count operations other
 * than reads and writes: discards and zeroes.
 */
#include <linux/backing-dev.h>
#include <linux/blkdev.h>

#include "elevator.h"
#include "blk-cgroup.h"

#include "group.h"
#include "compat.h"

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

/*
 * Completes the queue's ended requests in the scheduler, so that the counts are up to date. Called
 * under q->queue_lock, which keeps the engine.
 */
static void take_ends(struct fairq_queue *fq)
{
	struct fairq_wake wake = {};
	unsigned long irq;
	u32 i;

	fairq_find_ends(fq, &wake);
	for (i = 0; i < fq->nr_ports; i++) {
		if (!(wake.words[i / 64] & (1ULL << (i % 64))))
			continue;
		spin_lock_irqsave(&fq->ports[i].lock, irq);
		fairq_take_ends(&fq->ports[i], &wake);
		spin_unlock_irqrestore(&fq->ports[i].lock, irq);
	}
	fairq_run_later(fq, &wake);
}

/* Prints a flow's numbers. Called under q->queue_lock, which keeps the engine. */
static void tell_flow(struct seq_file *file, struct fairq_queue *fq, u64 flow)
{
	struct fairq_flow_state state, all = {};
	unsigned long irq;
	u32 i;

	for (i = 0; i < fq->nr_ports; i++) {
		struct fairq_port *port = &fq->ports[i];

		if (!READ_ONCE(port->live))
			continue;
		spin_lock_irqsave(&port->lock, irq);
		fairq_core_tell_flow(fq->engine, i, flow, &state);
		spin_unlock_irqrestore(&port->lock, irq);
		all.staged += state.staged;
		all.in_flight += state.in_flight;
		if (state.has_lag)
			all.lag = max(all.lag, state.lag);
		all.has_lag |= state.has_lag;
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
	take_ends(fq);
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
	if (has_flow(fq, group) && group->silent < SILENT)
		hundredths = div64_u64(group->given * 10000ULL, WHOLE);
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
	/*
	 * The requests of a group without a flow of its own are charged to root, so it has no
	 * numbers.
	 */
	if (has_flow(fq, group))
		tell_flow(file, fq, group->flow);
	seq_putc(file, '\n');
	return 0;
}

static int show_stat(struct seq_file *file, void *unused)
{
	blkcg_print_blkgs(file, css_to_blkcg(seq_css(file)), print_stat, &fairq_policy, 0, false);
	return 0;
}

struct cftype fairq_files[] = {
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
