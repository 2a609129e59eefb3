/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The driver's interface to its queue classes, for schedulers and programs; a part of pci.c, as classes.c is.
 *
 * - Schedulers: fairq_nvme_classes, see ../module/classes.h.
 * - Programs: the attribute `classes` of the controller (/sys/class/nvme/nvme0/classes) has a line for each class with its
 *   weight and the number of commands that it has got. Three numbers that are written are the weights of high, medium and low.
 */

static const char *fairq_refusal(struct request_queue *q)
{
	struct nvme_dev *dev;

	if (!q->tag_set || q->tag_set->ops != &nvme_mq_ops)
		return "its driver is not the NVMe driver that has queue classes";
	dev = to_nvme_dev(q->tag_set->driver_data);
	if (dev->has_classes)
		return NULL;
	if (!(dev->ctrl.cap & FAIRQ_CAP_WRR))
		return "its controller has no weighted round robin (CAP.AMS)";
	return wrr ? "its controller has a quirk or too few queues for classes, or there was no memory" :
		     "the NVMe driver was loaded with wrr=0";
}

static int fairq_set_class_weights(struct nvme_dev *dev, u16 high, u16 medium, u16 low)
{
	if (!high || !medium || !low || max3(high, medium, low) > 256)
		return -EINVAL;
	/* The arbitration burst is one command, so the weight of a class is the number of its commands in a round. */
	WRITE_ONCE(dev->arbitration, (high - 1) << 24 | (medium - 1) << 16 | (low - 1) << 8);
	return fairq_set_arbitration(dev);
}

static int fairq_set_weights(struct request_queue *q, u16 high, u16 medium, u16 low)
{
	return fairq_set_class_weights(to_nvme_dev(q->tag_set->driver_data), high, medium, low);
}

const struct fairq_classes fairq_nvme_classes = {
	.refusal = fairq_refusal,
	.set_weights = fairq_set_weights,
};
EXPORT_SYMBOL_GPL(fairq_nvme_classes);

static ssize_t classes_show(struct device *device, struct device_attribute *attr, char *text)
{
	static const char *const names[FAIRQ_SQS] = { "urgent", "high", "medium", "low" };
	struct nvme_dev *dev = to_nvme_dev(dev_get_drvdata(device));
	ssize_t length = 0;
	unsigned int class, i;

	if (!dev->has_classes)
		return sysfs_emit(text, "none\n");
	for (class = 0; class < FAIRQ_SQS; class++) {
		u32 weight = 0;
		u64 sent = 0;

		if (class == FAIRQ_URGENT && dev->sqs < FAIRQ_SQS)
			continue;
		/* Bits 31:24, 23:16 and 15:8 have the weights of high, medium and low, less 1; urgent has none. */
		if (class != FAIRQ_URGENT)
			weight = (READ_ONCE(dev->arbitration) >> (8 * (FAIRQ_SQS - class)) & 0xff) + 1;
		for (i = 1; i < dev->online_queues; i++) {
			struct nvme_queue *nvmeq = &dev->queues[i];

			sent += data_race(class == FAIRQ_MEDIUM ? nvmeq->sent : nvmeq->more[class].sent);
		}
		length += sysfs_emit_at(text, length, "%s %u %llu\n", names[class], weight, sent);
	}
	return length;
}

static ssize_t classes_store(struct device *device, struct device_attribute *attr, const char *text, size_t count)
{
	struct nvme_dev *dev = to_nvme_dev(dev_get_drvdata(device));
	u16 high, medium, low;
	int error;

	if (!dev->has_classes)
		return -EOPNOTSUPP;
	if (sscanf(text, "%hu %hu %hu", &high, &medium, &low) != 3)
		return -EINVAL;
	error = fairq_set_class_weights(dev, high, medium, low);
	return error ? error : count;
}
static DEVICE_ATTR_RW(classes);
