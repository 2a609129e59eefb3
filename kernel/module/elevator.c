// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The elevators: one for each scheduler that the Rust part has, with a file in queue/iosched for
 * each of its knobs.
 *
 * A knob that the scheduler can change while it runs is changed; for another one the queue is
 * frozen for a moment and the scheduler is made anew, with all its cgroups. The scheduler has the
 * default of each knob.
 */
#include <linux/blkdev.h>
#include <linux/module.h>
#include <linux/sched/mm.h>

#include "elevator.h"

#include "fairq.h"
#include "compat.h"

#define MOST_ELEVATORS 16

static struct elevator_type elevators[MOST_ELEVATORS];
static char names[MOST_ELEVATORS][FAIRQ_NAME];
/* The knobs, stats, and the end of the list. */
static struct elv_fs_entry files[MOST_ELEVATORS][FAIRQ_KNOBS + 2];
static char file_names[MOST_ELEVATORS][FAIRQ_KNOBS][FAIRQ_NAME];
static u32 registered;

/*
 * Here and in store_knob() memory must not wait for requests: the lock is held that a change of schedulers takes when
 * the queue is frozen.
 */
static ssize_t show_knob(struct elevator_queue *eq, u32 knob, char *page)
{
	struct fairq_queue *fq = eq->elevator_data;
	unsigned int noio = memalloc_noio_save();
	void *memory = fairq_lend(FAIRQ_SCRATCH);
	size_t length = 0;

	if (memory) {
		length = fairq_core_value(fq->scheduler, knob, fq->slots, fq->keys, fq->key_count, page,
					  PAGE_SIZE - 1);
		fairq_end_lending();
		kvfree(memory);
	}
	memalloc_noio_restore(noio);
	if (!memory)
		return -ENOMEM;
	page[length] = '\n';
	return length + 1;
}

/* The value that is written to a knob, and the change of the scheduler that follows. */
static int parse(struct fairq_queue *fq, u32 knob, const char *page, size_t count, u64 *value,
		 struct fairq_change *change)
{
	void *memory = fairq_lend(FAIRQ_SCRATCH);
	int said;

	if (!memory)
		return -ENOMEM;
	said = fairq_core_parse(fq->scheduler, knob, page, count, value);
	if (said >= 0)
		fairq_core_change(fq->scheduler, knob, fq->slots, said == 0, *value, change);
	fairq_end_lending();
	kvfree(memory);
	return said < 0 ? -EINVAL : said;
}

/* Keeps a knob's value, or removes it. */
static void keep(struct fairq_queue *fq, u32 knob, bool is_given, u64 value)
{
	u32 i;

	for (i = 0; i < fq->key_count && fq->keys[i].knob != knob; i++)
		;
	if (is_given) {
		fq->keys[i] = (struct fairq_key) { .knob = knob, .value = value };
		fq->key_count = max(fq->key_count, i + 1);
	} else if (i < fq->key_count) {
		fq->keys[i] = fq->keys[--fq->key_count];
	}
}

/* Makes the scheduler anew with the keys that there are now. */
static int rebuild(struct fairq_queue *fq)
{
	unsigned int flags = fairq_freeze(fq->q);
	int error;

	blk_mq_quiesce_queue(fq->q);
	error = fairq_start(fq, 0);
	blk_mq_unquiesce_queue(fq->q);
	fairq_unfreeze(fq->q, flags);
	return error;
}

/* The scheduler's lock for sysfs is held, so one knob is written at a time, and the scheduler stays. */
static ssize_t change_knob(struct elevator_queue *eq, u32 knob, const char *page, size_t count)
{
	struct fairq_queue *fq = eq->elevator_data;
	struct fairq_key *before;
	u32 count_before = fq->key_count;
	struct fairq_change change;
	struct fairq_wake wake = {};
	bool is_given, done = false;
	u64 value = 0;
	int said = parse(fq, knob, page, count, &value, &change);

	if (said < 0)
		return said;
	is_given = said == 0;
	before = kmemdup(fq->keys, sizeof(fq->keys), GFP_KERNEL);
	if (!before)
		return -ENOMEM;
	if (change.what != FAIRQ_BUILT_ANEW) {
		spin_lock_irq(&fq->q->queue_lock);
		done = fairq_core_tune(fq->engine, &change, &wake);
		spin_unlock_irq(&fq->q->queue_lock);
		fairq_run_later(fq, &wake);
	}
	/* More tags may have it made anew at the same time. */
	mutex_lock(&fq->building);
	keep(fq, knob, is_given, value);
	mutex_unlock(&fq->building);
	said = done ? 0 : rebuild(fq);
	if (said) {
		mutex_lock(&fq->building);
		memcpy(fq->keys, before, sizeof(fq->keys));
		fq->key_count = count_before;
		mutex_unlock(&fq->building);
	}
	kfree(before);
	return said ? said : count;
}

static ssize_t store_knob(struct elevator_queue *eq, u32 knob, const char *page, size_t count)
{
	unsigned int noio = memalloc_noio_save();
	ssize_t said = change_knob(eq, knob, page, count);

	memalloc_noio_restore(noio);
	return said;
}

static ssize_t show_stats(struct elevator_queue *eq, char *page)
{
	static const char *const searches[] = { "off", "searching", "found", "all-demand", "alone" };
	struct fairq_queue *fq = eq->elevator_data;
	struct fairq_state state;

	spin_lock_irq(&fq->q->queue_lock);
	fairq_core_tell(fq->engine, &state);
	spin_unlock_irq(&fq->q->queue_lock);
	return sysfs_emit(page, "slots %llu\nfree_slots %llu\nthrottles %llu\nblocks %llu\nwakes %llu\n"
			  "periods %llu\nsearch %s\n", state.slots, state.free_slots, state.throttles,
			  state.blocks, state.wakes, state.periods, searches[state.search]);
}

/* The H/L ratio that is in force: the knob itself may say that it is adjusted. */
static ssize_t show_ratio(struct elevator_queue *eq, char *page)
{
	struct fairq_queue *fq = eq->elevator_data;
	struct fairq_class_weights weights = { .low = 1 };

	spin_lock_irq(&fq->q->queue_lock);
	fairq_core_class_weights(fq->engine, &weights);
	spin_unlock_irq(&fq->q->queue_lock);
	return sysfs_emit(page, "%u\n", weights.high / weights.low);
}

/* A file has no more than its two functions, so there is a pair for each place in the list of knobs. */
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15) \
	f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23) f(24) f(25) f(26) f(27) f(28) f(29) f(30) f(31)
#define PAIR(i)								\
static ssize_t show_##i(struct elevator_queue *eq, char *page)		\
{									\
	return show_knob(eq, i, page);					\
}									\
static ssize_t store_##i(struct elevator_queue *eq, const char *page, size_t count) \
{									\
	return store_knob(eq, i, page, count);				\
}
EACH(PAIR)

#define ENTRY(i) { .show = show_##i, .store = store_##i },
static const struct elv_fs_entry pairs[FAIRQ_KNOBS] = { EACH(ENTRY) };

#if FAIRQ_ELEVATOR_IS_GIVEN
static int init_sched(struct request_queue *q, struct elevator_queue *eq)
{
	return fairq_queue_start(q, eq, eq->type - elevators);
}
#else
static int init_sched(struct request_queue *q, struct elevator_type *type)
{
	struct elevator_queue *eq = elevator_alloc(q, type);
	int error = eq ? fairq_queue_start(q, eq, type - elevators) : -ENOMEM;

	if (eq && error)
		kobject_put(&eq->kobj);
	return error;
}
#endif

/* The knobs' files of the elevator of this number. */
static void list_files(u32 number)
{
	struct elv_fs_entry *file = files[number];
	u32 knob;

	for (knob = 0; knob < FAIRQ_KNOBS; knob++, file++) {
		char *name = file_names[number][knob];

		if (!fairq_core_knob(number, knob, name, FAIRQ_NAME - 1))
			break;
		*file = pairs[knob];
		file->attr = (struct attribute) { .name = name, .mode = 0644 };
		if (!strcmp(name, "hl"))
			file->show = show_ratio;
	}
	file->attr = (struct attribute) { .name = "stats", .mode = 0444 };
	file->show = show_stats;
}

/* Names and knobs of all, which stay. */
static int list_elevators(void)
{
	void *memory = fairq_lend(FAIRQ_SCRATCH);
	u32 i;

	if (!memory)
		return -ENOMEM;
	for (i = 0; i < MOST_ELEVATORS; i++)
		if (fairq_core_name(i, names[i], FAIRQ_NAME - 1))
			list_files(i);
	fairq_end_lending();
	kvfree(memory);
	return 0;
}

int fairq_register_elevators(void)
{
	struct elevator_type *type;
	int error = list_elevators();

	for (registered = 0; !error && registered < MOST_ELEVATORS && *names[registered]; registered++) {
		type = &elevators[registered];
		type->ops = fairq_ops;
		type->ops.init_sched = init_sched;
		type->ops.exit_sched = fairq_queue_stop;
		type->elevator_name = names[registered];
		type->elevator_attrs = files[registered];
		type->elevator_owner = THIS_MODULE;
		error = elv_register(type);
		if (error)
			break;
	}
	if (error)
		fairq_unregister_elevators();
	return error;
}

void fairq_unregister_elevators(void)
{
	while (registered)
		elv_unregister(&elevators[--registered]);
}
