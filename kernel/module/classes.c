// SPDX-License-Identifier: MIT OR Apache-2.0
/* The queue classes of a drive, for a scheduler that needs some: see classes.h. */
#include <linux/blkdev.h>
#include <linux/module.h>

#include "fairq.h"
#include "compat.h"

static u64 packed(const struct fairq_class_weights *weights)
{
	return (u64)weights->high << 32 | weights->medium << 16 | weights->low;
}

/* If the driver fails, it logs a warning. fq->weights then still differs from the wanted weights, so the next tick retries. */
void fairq_reweigh(struct work_struct *work)
{
	struct fairq_queue *fq = container_of(work, struct fairq_queue, reweigh);
	struct fairq_class_weights weights;
	bool has_weights;

	spin_lock_irq(&fq->q->queue_lock);
	has_weights = fairq_core_class_weights(fq->engine, &weights);
	spin_unlock_irq(&fq->q->queue_lock);
	if (has_weights && !fq->classes->set_weights(fq->q, weights.high, weights.medium, weights.low))
		WRITE_ONCE(fq->weights, packed(&weights));
}

void fairq_follow_weights(struct fairq_queue *fq)
{
	struct fairq_class_weights weights;

	if (fq->classes && fairq_core_class_weights(fq->engine, &weights) &&
	    packed(&weights) != READ_ONCE(fq->weights))
		queue_work(FAIRQ_WORKQUEUE, &fq->reweigh);
}

int fairq_begin_classes(struct fairq_queue *fq, const char *name)
{
	const char *refusal = "no NVMe driver with queue classes is loaded (kernel/nvme of fairq builds it)";
	const struct fairq_classes *classes;

	if (!fairq_core_needs_classes(fq->scheduler))
		return 0;
	classes = symbol_get(fairq_nvme_classes);
	if (classes)
		refusal = classes->refusal(fq->q);
	if (!refusal) {
		fq->classes = classes;
		atomic_inc(&fq->waiting);
		return 0;
	}
	if (classes)
		symbol_put(fairq_nvme_classes);
	pr_warn("fairq: %s needs queue classes, which %s has not: %s\n", name, fq->q->disk->disk_name, refusal);
	return -EOPNOTSUPP;
}

void fairq_end_classes(struct fairq_queue *fq)
{
	if (fq->classes)
		symbol_put(fairq_nvme_classes);
}
