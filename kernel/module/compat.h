/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Differences between the supported kernels. */
#ifndef FAIRQ_COMPAT_H
#define FAIRQ_COMPAT_H

#include <linux/blk-mq.h>
#include <linux/hrtimer.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
static inline void hrtimer_setup(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *),
				 clockid_t clock, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock, mode);
	timer->function = function;
}
#endif

/* Since 6.18 or so init_sched() is given its elevator_queue, and depth_updated() its queue. */
#define FAIRQ_ELEVATOR_IS_GIVEN (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0))

#if FAIRQ_ELEVATOR_IS_GIVEN
#define FAIRQ_WORKQUEUE system_dfl_wq
#else
#define FAIRQ_WORKQUEUE system_unbound_wq
#endif

/* Stops new requests, and waits until no request is in flight. */
#if FAIRQ_ELEVATOR_IS_GIVEN
#define fairq_freeze(q) blk_mq_freeze_queue(q)
#define fairq_unfreeze(q, flags) blk_mq_unfreeze_queue(q, flags)
#else
static inline unsigned int fairq_freeze(struct request_queue *q)
{
	blk_mq_freeze_queue(q);
	return 0;
}

static inline void fairq_unfreeze(struct request_queue *q, unsigned int flags)
{
	blk_mq_unfreeze_queue(q);
}
#endif

/* For files that include block/blk-mq.h. */
#if FAIRQ_ELEVATOR_IS_GIVEN
#define fairq_map_queue(q, opf, ctx) blk_mq_map_queue(opf, ctx)
#else
#define fairq_map_queue(q, opf, ctx) blk_mq_map_queue(q, opf, ctx)
#endif

/* Since 7.0 or so queue/async_depth bounds the tags of asynchronous requests. */
#ifdef BLK_MQ_SCHED_H
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
static inline void fairq_begin_async_depth(struct request_queue *q)
{
	q->async_depth = q->nr_requests;
}

static inline void fairq_limit_async(struct blk_mq_alloc_data *data, blk_opf_t opf)
{
	if (!blk_mq_is_sync_read(opf) && data->q->async_depth < data->q->nr_requests)
		data->shallow_depth = data->q->async_depth;
}
#else
static inline void fairq_begin_async_depth(struct request_queue *q) {}
static inline void fairq_limit_async(struct blk_mq_alloc_data *data, blk_opf_t opf) {}
#endif
#endif

/*
 * For files that include block/blk-cgroup.h: parsing of a line for one drive; q->queue_lock is held
 * from the first of the two functions to the second.
 */
#ifdef _BLK_CGROUP_PRIVATE_H
#if FAIRQ_ELEVATOR_IS_GIVEN
static inline int fairq_conf_begin(struct blkcg *blkcg, const struct blkcg_policy *policy, struct blkg_conf_ctx *ctx)
{
	int error = blkg_conf_open_bdev(ctx);

	if (error)
		return error;
	error = blkg_conf_prep(blkcg, policy, ctx);
	if (error)
		blkg_conf_close_bdev(ctx);
	return error;
}

static inline void fairq_conf_end(struct blkg_conf_ctx *ctx)
{
	blkg_conf_unprep(ctx);
	blkg_conf_close_bdev(ctx);
}
#else
static inline int fairq_conf_begin(struct blkcg *blkcg, const struct blkcg_policy *policy, struct blkg_conf_ctx *ctx)
{
	int error = blkg_conf_prep(blkcg, policy, ctx);

	if (error)
		blkg_conf_exit(ctx);
	return error;
}

static inline void fairq_conf_end(struct blkg_conf_ctx *ctx)
{
	blkg_conf_exit(ctx);
}
#endif
#endif

#endif
