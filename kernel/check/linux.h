/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The part of Linux's interface that ../module/queue.c, staged.c, engine.c and group.c use. These
 * files are compiled unchanged: this header is included first, and the headers of Linux that they
 * include are empty files. Another CPU can run at each step(): at each lock, and at each access to
 * shared memory without a lock.
 */
#ifndef FAIRQ_CHECK_LINUX_H
#define FAIRQ_CHECK_LINUX_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef uint16_t u16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint8_t u8;
typedef int64_t ktime_t;
typedef unsigned int gfp_t, blk_opf_t, blk_insert_t;
typedef u32 fairq_dev_t;
#define dev_t fairq_dev_t

/* ../module/core.h tests this macro. */
#define __KERNEL__
#define __init
#define __exit
#define __noreturn __attribute__((noreturn))
#define ____cacheline_aligned_in_smp
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(7, 2, 0)
#define module_param(name, type, mode) unsigned int *parameter_##name(void) { return &name; }
unsigned int *parameter_groups(void);
#define MODULE_PARM_DESC(name, text)

void step(void);
void __noreturn fail(const char *format, ...);

/* Arithmetic and memory. */
#define ARRAY_SIZE(array) (sizeof(array) / sizeof(*(array)))
#define BITS_TO_LONGS(bits) (((bits) + 63) / 64)
#define DIV_ROUND_UP(n, d) (((n) + (d) - 1) / (d))
#define min_t(type, a, b) ((type)(a) < (type)(b) ? (type)(a) : (type)(b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define div64_u64(a, b) ((u64)(a) / (u64)(b))
#define abs_diff(a, b) ((u64)(a) > (u64)(b) ? (u64)(a) - (u64)(b) : (u64)(b) - (u64)(a))
#define swap(a, b) do { __typeof__(a) old_ = (a); (a) = (b); (b) = old_; } while (0)
#define clamp(value, low, high) ((value) < (low) ? (low) : (value) > (high) ? (high) : (value))
#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))
#define check_mul_overflow(a, b, to) __builtin_mul_overflow(a, b, to)
#define array_size(a, b) ((size_t)(a) * (b))
typedef int64_t s64;
#define __ffs64(word) ((u32)__builtin_ctzll(word))
#define roundup_pow_of_two(n) ((n) < 2 ? 1UL : 1UL << (64 - __builtin_clzl((n) - 1)))
#define U32_MAX UINT32_MAX
#define PAGE_SIZE 4096UL
#define GFP_KERNEL 0
#define __GFP_NOWARN 0
/* Returns zeroed memory that begins at a page boundary. */
void *take_memory(size_t size);
void give_memory(const void *memory);
#define kzalloc(size, gfp) take_memory(size)
#define kzalloc_node(size, gfp, node) take_memory(size)
#define kvcalloc(count, size, gfp) take_memory((size_t)(count) * (size))
#define kvmalloc(size, gfp) take_memory(size)
#define kvfree(memory) give_memory(memory)
#define kfree(memory) give_memory(memory)
#define memalloc_noio_save() 0
#define memalloc_noio_restore(flags) ((void)(flags))

/* Accesses that another CPU sees. */
#define READ_ONCE(x) (step(), *(volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value), step())
#define smp_store_release(pointer, value) (*(volatile __typeof__(*(pointer)) *)(pointer) = (value), step())
#define smp_mb() step()
#define smp_load_acquire(pointer) READ_ONCE(*(pointer))
#define xchg(pointer, value) ({			\
	__typeof__(*(pointer)) old_;		\
	step();					\
	old_ = *(pointer);			\
	*(pointer) = (value);			\
	old_; })

static inline void set_bit(u32 bit, unsigned long *words)
{
	step();
	words[bit / 64] |= 1UL << (bit % 64);
}

static inline bool test_and_clear_bit(u32 bit, unsigned long *words)
{
	bool was;

	step();
	was = words[bit / 64] >> (bit % 64) & 1;
	words[bit / 64] &= ~(1UL << (bit % 64));
	return was;
}

#define smp_mb__after_atomic() step()
typedef struct { int value; } atomic_t;
#define atomic_inc(atomic) (step(), (void)(atomic)->value++)
#define atomic_dec(atomic) (step(), (void)(atomic)->value--)
#define atomic_read(atomic) READ_ONCE((atomic)->value)

/* Lists without a lock. */
struct llist_node { struct llist_node *next; };
struct llist_head { struct llist_node *first; };
#define llist_empty(list) (READ_ONCE((list)->first) == NULL)
#define llist_add(node, list) (step(), (node)->next = (list)->first, (void)((list)->first = (node)))
#define llist_del_all(list) xchg(&(list)->first, NULL)
static inline struct llist_node *llist_reverse_order(struct llist_node *node)
{
	struct llist_node *reversed = NULL, *next;

	for (; node; node = next) {
		next = node->next;
		node->next = reversed;
		reversed = node;
	}
	return reversed;
}
#define llist_entry(node, type, member) ((node) ? container_of(node, type, member) : NULL)
#define llist_for_each_entry_safe(at, after, node, member)				\
	for (at = llist_entry(node, __typeof__(*at), member);				\
	     at && (after = llist_entry(at->member.next, __typeof__(*at), member), true);	\
	     at = after)

#define WARN_ON_ONCE(condition) ({ bool bad_ = !!(condition); if (bad_) fail("warned: %s", #condition); bad_; })
#define pr_warn_once(...) fail(__VA_ARGS__)
#define pr_warn(...) fail(__VA_ARGS__)
#define pr_emerg(...) fail(__VA_ARGS__)
#define BUG() abort()

/* Lists. */
struct list_head { struct list_head *next, *prev; };
#define INIT_LIST_HEAD(list) ((list)->next = (list)->prev = (list))
static inline bool list_empty(const struct list_head *list) { return list->next == list; }
static inline bool list_empty_careful(const struct list_head *list) { step(); return list->next == list; }
static inline void list_del(struct list_head *entry)
{
	entry->prev->next = entry->next;
	entry->next->prev = entry->prev;
}
static inline void list_del_init(struct list_head *entry)
{
	list_del(entry);
	INIT_LIST_HEAD(entry);
}
static inline void list_add_tail(struct list_head *entry, struct list_head *list)
{
	entry->prev = list->prev;
	entry->next = list;
	list->prev->next = entry;
	list->prev = entry;
}
static inline void list_add(struct list_head *entry, struct list_head *list) { list_add_tail(entry, list->next); }
#define LIST_HEAD(name) struct list_head name = { &(name), &(name) }
#define list_entry(entry, type, member) container_of(entry, type, member)
#define list_first_entry(list, type, member) list_entry((list)->next, type, member)
#define list_first_entry_or_null(list, type, member) \
	(list_empty(list) ? NULL : list_first_entry(list, type, member))
#define list_for_each_entry(at, list, member)						\
	for (at = list_entry((list)->next, __typeof__(*at), member); &at->member != (list);	\
	     at = list_entry(at->member.next, __typeof__(*at), member))
#define list_for_each_entry_reverse(at, list, member)					\
	for (at = list_entry((list)->prev, __typeof__(*at), member); &at->member != (list);	\
	     at = list_entry(at->member.prev, __typeof__(*at), member))

/* Locks. */
typedef struct { const void *owner; } spinlock_t;
struct mutex { int unused; };
void take(spinlock_t *lock);
void give(spinlock_t *lock);
bool irqs_disabled(void);
bool in_interrupt(void);
#define task_is_running(task) is_awake()
bool is_awake(void);
#define spin_lock_init(lock) ((lock)->owner = NULL)
#define spin_lock_irqsave(lock, flags) ((flags) = 0, take(lock))
#define spin_unlock_irqrestore(lock, flags) ((void)(flags), give(lock))
/* spin_lock() takes a lock while a port's lock is held. */
#define spin_lock(lock) take_within(lock)
#define spin_unlock(lock) ((lock)->owner = NULL)
void take_within(spinlock_t *lock);
/* Raw locks are taken after all other locks. */
typedef struct { const void *owner; } raw_spinlock_t;
void take_raw(raw_spinlock_t *lock);
void give_raw(raw_spinlock_t *lock);
#define raw_spin_lock_init(lock) ((lock)->owner = NULL)
#define raw_spin_lock_irqsave(lock, flags) ((flags) = 0, take_raw(lock))
#define raw_spin_unlock_irqrestore(lock, flags) ((void)(flags), give_raw(lock))
struct lock_class_key { int unused; };
#define lockdep_set_class(lock, key) ((void)(key))
#define BUILD_BUG_ON(condition) _Static_assert(!(condition), #condition)
#define spin_lock_irq(lock) take(lock)
#define spin_unlock_irq(lock) give(lock)
#define local_irq_disable()
#define local_irq_enable()
/* The number of CPUs in RCU read-side sections; no cgroup is freed meanwhile. */
extern u32 rcu_readers;
#define rcu_read_lock() ((void)rcu_readers++)
#define rcu_read_unlock() ((void)rcu_readers--)
#define cond_resched() step()
#define DEFINE_MUTEX(name) struct mutex name
#define mutex_init(mutex) ((mutex)->unused = 0)
#define mutex_lock(mutex) ((void)(mutex))
#define mutex_unlock(mutex) ((void)(mutex))

/* Time. */
#define NSEC_PER_USEC 1000ULL
#define NSEC_PER_SEC 1000000000ULL
#define CLOCK_MONOTONIC 1
#define HRTIMER_MODE_ABS 0
enum hrtimer_restart { HRTIMER_NORESTART, HRTIMER_RESTART };
struct hrtimer {
	enum hrtimer_restart (*function)(struct hrtimer *timer);
	u64 expires_ns;
	bool is_armed, is_running;
	struct hrtimer *next;
};
u64 ktime_get_ns(void);
#define ns_to_ktime(ns) ((ktime_t)(ns))
/* Scans of the groups are twenty times as frequent as in Linux, so that a short run has many. */
#define msecs_to_jiffies(ms) ((u64)(ms) * 50000)
void hrtimer_setup(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *), int clock, int mode);
void hrtimer_start(struct hrtimer *timer, ktime_t at, int mode);
#define hrtimer_set_expires(timer, at) ((timer)->expires_ns = (u64)(at))
#define hrtimer_get_expires(timer) ((ktime_t)(timer)->expires_ns)
#define ktime_to_ns(at) ((s64)(at))
#define hrtimer_is_queued(timer) ((timer)->is_armed)
/* Waits for the timer's function if it runs, and disarms the timer again if it has armed it. */
void hrtimer_cancel(struct hrtimer *timer);

/* A work item, which one thread of the kernel runs at a time. */
struct work_struct {
	void (*function)(struct work_struct *work);
	bool is_due, is_running;
	u32 disabled;
	struct work_struct *next;
};
struct delayed_work {
	struct work_struct work;
	struct hrtimer timer;
};
#define system_dfl_wq NULL
void kblockd_schedule_work(struct work_struct *work);
#define schedule_work(work) kblockd_schedule_work(work)
void init_work(struct work_struct *work, void (*function)(struct work_struct *));
void queue_delayed_work(const void *queue, struct delayed_work *work, u64 delay_ns);
#define queue_work(queue, work) kblockd_schedule_work(work)
#define INIT_WORK(work, function) init_work(work, function)
#define INIT_DELAYED_WORK(delayed, function) init_delayed_work(delayed, function)
void init_delayed_work(struct delayed_work *delayed, void (*function)(struct work_struct *));
/*
 * When this returns, the work item does not run and is not pending. It cannot be queued until it is
 * enabled.
 */
void disable_work_sync(struct work_struct *work);
void disable_delayed_work_sync(struct delayed_work *delayed);
#define enable_work(work) ((work)->disabled--, step())
#define enable_delayed_work(delayed) enable_work(&(delayed)->work)
/* The same, but the work item can be queued again afterwards. */
#define cancel_work_sync(work) (disable_work_sync(work), enable_work(work))
#define cancel_delayed_work_sync(delayed) (disable_delayed_work_sync(delayed), enable_delayed_work(delayed))

/* The number of users of a queue. freeze() waits until it is 0. */
struct percpu_ref { u64 count; };
#define percpu_ref_get(ref) ((void)(ref)->count++)
#define percpu_ref_put(ref) (step(), (void)(ref)->count--)

/* The block layer. */
#define SECTOR_SHIFT 9
enum { REQ_OP_READ, REQ_OP_WRITE, REQ_OP_DISCARD, REQ_OP_SECURE_ERASE, REQ_OP_WRITE_ZEROES };
enum { BLK_MQ_F_BLOCKING = 1, RQF_USE_SCHED = 1 };
enum { HCTX_TYPE_POLL = 2, QUEUE_FLAG_SQ_SCHED = 0 };
struct blkcg_gq;
struct request_queue;
struct elevator_queue;
struct bio_iter { u64 bi_sector; u32 bi_size; };
struct bio {
	struct bio_iter bi_iter;
	unsigned int bi_opf;
	unsigned short bi_ioprio;
	struct blkcg_gq *bi_blkg;
};
struct blk_mq_hw_ctx {
	struct request_queue *queue;
	void *sched_data;
	u32 flags;
	int numa_node;
	struct blk_mq_tags *sched_tags;
	/* Fields that only the model has. */
	struct list_head dispatch;
	bool is_due, wants_restart;
};
struct request {
	struct list_head queuelist;
	struct request_queue *q;
	struct blk_mq_hw_ctx *mq_hctx;
	int internal_tag;
	u32 rq_flags;
	struct { void *priv[2]; } elv;
	struct bio *bio, *biotail;
	u64 offset;
	u32 length, op;
	/* Fields that only the model has. */
	struct blkcg_gq *blkg;
	u64 due_ns;
	int where;
	u32 task;
};
struct blk_mq_tag_set {
	u32 queue_depth, flags, nr_maps;
	struct { u32 nr_queues; } map[3];
};
struct gendisk { const char *disk_name; int node_id; struct request_queue *queue; };
struct request_queue {
	spinlock_t queue_lock;
	struct elevator_queue *elevator;
	struct percpu_ref q_usage_counter;
	struct list_head blkg_list;
	struct request *last_merge;
	u32 nr_hw_queues, nr_requests, async_depth;
	int node;
	struct gendisk *disk;
	struct blk_mq_tag_set *tag_set;
	struct blk_mq_hw_ctx *contexts;
};
struct blk_mq_alloc_data {
	struct request_queue *q;
	struct blk_mq_hw_ctx *hctx;
	u32 shallow_depth;
};
struct elevator_mq_ops {
	int (*init_hctx)(struct blk_mq_hw_ctx *hctx, unsigned int index);
	void (*exit_hctx)(struct blk_mq_hw_ctx *hctx, unsigned int index);
	void (*depth_updated)(struct request_queue *q);
	bool (*bio_merge)(struct request_queue *q, struct bio *bio, unsigned int segments);
	void (*limit_depth)(blk_opf_t opf, struct blk_mq_alloc_data *data);
	void (*prepare_request)(struct request *rq);
	void (*finish_request)(struct request *rq);
	void (*requeue_request)(struct request *rq);
	void (*insert_requests)(struct blk_mq_hw_ctx *hctx, struct list_head *list, blk_insert_t flags);
	struct request *(*dispatch_request)(struct blk_mq_hw_ctx *hctx);
	bool (*has_work)(struct blk_mq_hw_ctx *hctx);
};
struct elevator_type { struct elevator_mq_ops ops; const char *elevator_name; };
struct elevator_queue {
	struct elevator_type *type;
	void *elevator_data;
};
#define queue_for_each_hw_ctx(q, hctx, i) \
	for (i = 0; i < (q)->nr_hw_queues && ((hctx) = &(q)->contexts[i], true); i++)
#define disk_devt(disk) ((void)(disk), 0)
#define req_op(rq) ((rq)->op)
#define blk_rq_pos(rq) ((rq)->offset >> SECTOR_SHIFT)
#define blk_rq_bytes(rq) ((rq)->length)
#define IOPRIO_PRIO_CLASS(ioprio) (ioprio)
enum { IOPRIO_CLASS_NONE, IOPRIO_CLASS_RT, IOPRIO_CLASS_BE, IOPRIO_CLASS_IDLE };
#define req_get_ioprio(rq) ((rq)->bio ? (rq)->bio->bi_ioprio : 0)
/* ../module/compat.h tests this macro. */
#define BLK_MQ_SCHED_H
#define blk_mq_is_sync_read(opf) (!(opf))
#define blk_mq_is_shared_tags(flags) ((flags) & 0)
#define blk_mq_set_min_shallow_depth(q, depth)
#define sbitmap_queue_min_shallow_depth(bitmap, depth)
#define blk_queue_flag_clear(flag, q)
#define blk_mq_get_ctx(q) NULL
struct blk_mq_hw_ctx *blk_mq_map_queue(blk_opf_t opf, const void *context);
bool blk_bio_list_merge(struct request_queue *q, struct list_head *list, struct bio *bio, unsigned int segments);
bool blk_mq_sched_try_insert_merge(struct request_queue *q, struct request *rq, struct list_head *free);
#define elv_rqhash_del(q, rq) ((void)(rq))
void blk_mq_free_requests(struct list_head *list);
void blk_mq_run_hw_queue(struct blk_mq_hw_ctx *hctx, bool async);
/* A driver with queue classes. */
#define symbol_get(name) (&(name))
#define symbol_put(name) ((void)(name))
#define blk_mq_freeze_queue(q) 0
#define blk_mq_unfreeze_queue(q, flags)

#include "cgroups.h"

/* Tracepoints are off. */
#define TP_PROTO(...) __VA_ARGS__
#define TRACE_EVENT(name, proto, ...)						\
	static inline void trace_##name(proto) {}				\
	static inline bool trace_##name##_enabled(void) { return false; }

#endif
