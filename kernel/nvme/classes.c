/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Submission queues for the classes of NVMe's weighted round robin; `change` includes this file in the driver's pci.c.
 *
 * Each I/O queue of the driver belongs to a hardware context, and is of the medium class. nvmeq->more has a further struct
 * nvme_queue for each other class, of which only the submission side is used. All of them share the completion queue: a context
 * has one set of tags, so no more commands can be under way than the completion queue has entries. Each submission queue has as
 * many entries, so none of them can become full.
 *
 * nvmeq->classes has the queue of each class once the queues are created, and only NULL pointers on a drive without classes.
 * Without queues of the urgent class, its entry is the queue of the high class. The classes medium, high, low and urgent have the
 * indices N = 0 to 3: the queue of class N in context C has the number C + N * (number of contexts).
 */

static bool wrr = true;
module_param(wrr, bool, 0444);
MODULE_PARM_DESC(wrr, "use weighted round robin where the controller has it (Y)");

static bool urgent;
module_param(urgent, bool, 0444);
MODULE_PARM_DESC(urgent, "have queues of the urgent class, too (N); without them, urgent commands use the high class");

static bool passthrough_classes;
module_param(passthrough_classes, bool, 0644);
MODULE_PARM_DESC(passthrough_classes, "take the class of a passthrough command from its dword 3 (N): 0xf in bits 31:28, "
		 "the queue priority in 25:24; both are cleared");

static int adapter_alloc_sq(struct nvme_dev *dev, u16 qid, struct nvme_queue *nvmeq);
static int adapter_delete_sq(struct nvme_dev *dev, u16 sqid);
static int nvme_alloc_sq_cmds(struct nvme_dev *dev, struct nvme_queue *nvmeq, int qid);
static int nvme_delete_queue(struct nvme_queue *nvmeq, u8 opcode);

/* CAP.AMS */
#define FAIRQ_CAP_WRR BIT_ULL(17)
/* Drives with these quirks get no classes: their tags, queue entries or queue depths differ from those of NVMe. */
#define FAIRQ_QUIRKS (NVME_QUIRK_SHARED_TAGS | NVME_QUIRK_128_BYTES_SQES | NVME_QUIRK_QDEPTH_ONE)

/* Finds the number of classes once for a device: sizes of memory depend on it, so a reset must not change it. */
static void fairq_find_classes(struct nvme_dev *dev)
{
	if (dev->sqs)
		return;
	dev->sqs = 1;
	if (wrr && dev->ctrl.cap & FAIRQ_CAP_WRR && !(dev->ctrl.quirks & FAIRQ_QUIRKS))
		dev->sqs = urgent ? 4 : 3;
}

/* nvme-core always selects plain round robin in CC, so the method (CC.AMS) is added here when CC is written. */
static u32 fairq_register(struct nvme_dev *dev, u32 off, u32 val)
{
	return off == NVME_REG_CC && dev->sqs > 1 ? val | NVME_CC_AMS_WRRU : val;
}

static u16 fairq_cqid(struct nvme_queue *nvmeq)
{
	return nvmeq->cq ? nvmeq->cq->qid : nvmeq->qid;
}

static int fairq_priority(struct nvme_queue *nvmeq)
{
	if (nvmeq->dev->sqs == 1)
		return 0;
	return (nvmeq->cq ? nvmeq - nvmeq->cq->more : FAIRQ_MEDIUM) << 1;
}

/* Requests as many queues as all classes need. If the controller grants fewer, there are fewer contexts. */
static int fairq_set_queue_count(struct nvme_dev *dev, int *count)
{
	int all = *count * dev->sqs;
	int error = nvme_set_queue_count(&dev->ctrl, &all);

	if (error < 0)
		return error;
	*count = all / dev->sqs;
	/* Too few queues for the classes of even one context: it gets only its queue of the medium class. */
	if (!*count)
		*count = min(all, 1);
	return 0;
}

/* Allocates the queues of the other classes of a context. If this fails, the context has no classes. */
static void fairq_alloc(struct nvme_dev *dev, struct nvme_queue *nvmeq)
{
	struct nvme_queue *sq;
	int class;

	if (!nvmeq->qid || dev->sqs == 1)
		return;
	nvmeq->more = kcalloc_node(FAIRQ_SQS, sizeof(*sq), GFP_KERNEL, dev_to_node(dev->dev));
	if (!nvmeq->more)
		return;
	for (class = 0; class < FAIRQ_SQS; class++) {
		if (class == FAIRQ_MEDIUM || (class == FAIRQ_URGENT && dev->sqs < FAIRQ_SQS))
			continue;
		sq = &nvmeq->more[class];
		sq->dev = dev;
		sq->cq = nvmeq;
		sq->sqes = nvmeq->sqes;
		sq->q_depth = nvmeq->q_depth;
		spin_lock_init(&sq->sq_lock);
		/* The number 0, the admin queue's, keeps the queue out of the controller's memory, which is sized for one a context. */
		if (nvme_alloc_sq_cmds(dev, sq, 0))
			sq->sq_cmds = NULL;
	}
}

static void fairq_free(struct nvme_queue *nvmeq)
{
	int class;

	for (class = 0; nvmeq->more && class < FAIRQ_SQS; class++) {
		struct nvme_queue *sq = &nvmeq->more[class];

		if (sq->sq_cmds)
			dma_free_coherent(nvmeq->dev->dev, SQ_SIZE(sq), sq->sq_cmds, sq->sq_dma_addr);
	}
	kfree(nvmeq->more);
	nvmeq->more = NULL;
}

static int fairq_create_sq(struct nvme_dev *dev, struct nvme_queue *nvmeq, int class)
{
	/* The index N of each class (see above). The urgent class is the last one, because it may have no queue. */
	static const int places[FAIRQ_SQS] = { 3, 1, 0, 2 };
	struct nvme_queue *sq = &nvmeq->more[class];
	u16 qid = nvmeq->qid + places[class] * dev->max_qid;
	int error = sq->sq_cmds ? adapter_alloc_sq(dev, qid, sq) : -ENOMEM;

	if (error)
		return error;
	sq->qid = qid;
	sq->sq_tail = 0;
	sq->last_sq_tail = 0;
	sq->q_db = &dev->dbs[qid * 2 * dev->db_stride];
	nvme_dbbuf_init(dev, sq, qid);
	nvmeq->classes[class] = sq;
	return 0;
}

static void fairq_forget(struct nvme_queue *nvmeq)
{
	memset(nvmeq->classes, 0, sizeof(nvmeq->classes));
}

/* Whether the class has a submission queue of its own, and this queue has been created. */
static bool fairq_is_created(struct nvme_queue *nvmeq, int class)
{
	return nvmeq->more && nvmeq->classes[class] == &nvmeq->more[class];
}

static void fairq_delete(struct nvme_queue *nvmeq)
{
	int class;

	for (class = 0; class < FAIRQ_SQS; class++)
		if (fairq_is_created(nvmeq, class))
			adapter_delete_sq(nvmeq->dev, nvmeq->classes[class]->qid);
	fairq_forget(nvmeq);
}

/* Creates the classes of a queue, all or none. */
static void fairq_create(struct nvme_dev *dev, struct nvme_queue *nvmeq)
{
	int class, error = 0;

	fairq_forget(nvmeq);
	if (!nvmeq->more)
		return;
	for (class = 0; class < FAIRQ_SQS && !error; class++)
		if (nvmeq->more[class].cq)
			error = fairq_create_sq(dev, nvmeq, class);
	if (error) {
		fairq_delete(nvmeq);
		return;
	}
	nvmeq->classes[FAIRQ_MEDIUM] = nvmeq;
	if (!nvmeq->classes[FAIRQ_URGENT])
		nvmeq->classes[FAIRQ_URGENT] = nvmeq->classes[FAIRQ_HIGH];
}

/* Deletes the queues of the other classes, before those of the medium class. Returns false if the controller does not answer. */
static bool fairq_delete_all(struct nvme_dev *dev)
{
	unsigned long timeout = dev->ctrl.admin_timeout;
	int i, class;

	for (i = 1; i < dev->ctrl.queue_count && timeout; i++) {
		struct nvme_queue *nvmeq = &dev->queues[i];

		for (class = 0; class < FAIRQ_SQS && timeout; class++) {
			if (!fairq_is_created(nvmeq, class) ||
			    nvme_delete_queue(nvmeq->classes[class], nvme_admin_delete_sq))
				continue;
			timeout = wait_for_completion_io_timeout(&nvmeq->classes[class]->delete_done, timeout);
		}
		fairq_forget(nvmeq);
	}
	return timeout;
}

static unsigned int fairq_passthrough_class(struct nvme_command *cmd)
{
	u32 word = le32_to_cpu(cmd->common.cdw2[1]);

	if (word >> 28 != 0xf)
		return FAIRQ_MEDIUM;
	cmd->common.cdw2[1] = cpu_to_le32(word & 0xffffff);
	return word >> 24 & 3;
}

/* Rings the doorbells of all queues, except one, that have commands of which the controller has not been notified. */
static void fairq_ring(struct nvme_queue *nvmeq, struct nvme_queue *except)
{
	int class;

	if (!nvmeq->classes[FAIRQ_MEDIUM])
		return;
	for (class = 0; class < FAIRQ_SQS; class++) {
		struct nvme_queue *sq = nvmeq->classes[class];

		if (sq == except || data_race(sq->sq_tail == sq->last_sq_tail))
			continue;
		spin_lock(&sq->sq_lock);
		if (sq->sq_tail != sq->last_sq_tail)
			nvme_write_sq_db(sq, true);
		spin_unlock(&sq->sq_lock);
	}
}

/* The submission queue for a command; iod->sq records it. The last command of a list rings the other classes' doorbells. */
static struct nvme_queue *fairq_sq_for(struct nvme_queue *nvmeq, struct request *req, bool last)
{
	struct nvme_iod *iod = blk_mq_rq_to_pdu(req);

	if (!nvmeq->classes[FAIRQ_MEDIUM])
		return nvmeq;
	if (unlikely(passthrough_classes && blk_rq_is_passthrough(req)))
		iod->sq = nvmeq->classes[fairq_passthrough_class(&iod->cmd)];
	else
		iod->sq = nvmeq->classes[fairq_class_of(req)];
	if (last)
		fairq_ring(nvmeq, iod->sq);
	return iod->sq;
}

/* The submission queue to which a command was sent. */
static struct nvme_queue *fairq_sq_of(struct nvme_queue *nvmeq, struct request *req)
{
	struct nvme_iod *iod = blk_mq_rq_to_pdu(req);

	return nvmeq->classes[FAIRQ_MEDIUM] ? iod->sq : nvmeq;
}

/* Sends a list of commands, if the queue has classes. */
static bool fairq_submit_cmds(struct nvme_queue *nvmeq, struct rq_list *list)
{
	struct request *req;

	if (!nvmeq->classes[FAIRQ_MEDIUM])
		return false;
	while ((req = rq_list_pop(list))) {
		struct nvme_iod *iod = blk_mq_rq_to_pdu(req);
		struct nvme_queue *sq = fairq_sq_for(nvmeq, req, false);

		spin_lock(&sq->sq_lock);
		nvme_sq_copy_cmd(sq, &iod->cmd);
		nvme_write_sq_db(sq, false);
		spin_unlock(&sq->sq_lock);
	}
	fairq_ring(nvmeq, NULL);
	return true;
}

static int fairq_set_arbitration(struct nvme_dev *dev)
{
	u32 set = 0;
	int status = nvme_set_features(&dev->ctrl, NVME_FEAT_ARBITRATION, dev->arbitration, NULL, 0, NULL);

	if (!status)
		status = nvme_get_features(&dev->ctrl, NVME_FEAT_ARBITRATION, 0, NULL, 0, &set);
	if (!status && set != dev->arbitration)
		status = -EIO;
	if (status)
		dev_warn_ratelimited(dev->ctrl.device, "weights of queue classes: %#x was set, the controller has %#x (status %d)\n",
				     dev->arbitration, set, status);
	return status > 0 ? -EIO : status;
}

/* Called when all queues have been created, at first or after a reset. */
static void fairq_ready(struct nvme_dev *dev)
{
	unsigned int i;

	dev->has_classes = dev->sqs > 1 && dev->online_queues > 1;
	for (i = 1; i < dev->online_queues; i++)
		dev->has_classes &= dev->queues[i].classes[FAIRQ_MEDIUM] != NULL;
	if (dev->has_classes)
		dev_info(dev->ctrl.device, "weighted round robin, %u submission queues for each context\n", dev->sqs);
	else if (dev->sqs > 1)
		dev_warn(dev->ctrl.device, "weighted round robin, but no queues for its classes\n");
	if (dev->has_classes && dev->arbitration)
		fairq_set_arbitration(dev);
}
