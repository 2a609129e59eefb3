/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tracepoints: /sys/kernel/tracing/events/fairq. They record a request at its arrival, the
 * decisions of its port with their numbers, and the time that it took. Virtual times are in units
 * (a byte at weight 100); -1 stands for a number that a scheduler does not have.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM fairq

#if !defined(FAIRQ_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define FAIRQ_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(fairq_insert,
	TP_PROTO(dev_t dev, u32 port, const struct fairq_order *order, u64 cgroup),
	TP_ARGS(dev, port, order, cgroup),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u32, port)
		__field(u32, tag)
		__field(u32, op)
		__field(u32, length)
		__field(u64, offset)
		__field(u64, cgroup)
	),
	TP_fast_assign(
		__entry->dev = dev;
		__entry->port = port;
		__entry->tag = order->tag;
		__entry->op = order->op;
		__entry->length = order->length;
		__entry->offset = order->offset;
		__entry->cgroup = cgroup;
	),
	TP_printk("%u:%u port=%u tag=%u %s %u@%llu cgroup=%llu", MAJOR(__entry->dev), MINOR(__entry->dev),
		  __entry->port, __entry->tag,
		  __print_symbolic(__entry->op, { FAIRQ_READ, "read" }, { FAIRQ_WRITE, "write" },
				   { FAIRQ_DISCARD, "discard" }, { FAIRQ_WRITE_ZEROES, "zero" }),
		  __entry->length, __entry->offset, __entry->cgroup)
);

TRACE_EVENT(fairq_decide,
	TP_PROTO(dev_t dev, u32 port, const struct fairq_chosen *chosen, const struct fairq_why *why),
	TP_ARGS(dev, port, chosen, why),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u32, port)
		__field(u32, what)
		__field(u32, tag)
		__field(u64, until_ns)
		__field(s64, virtual_time)
		__field(s64, start_tag)
		__field(s32, free_slots)
		__field(u32, held)
	),
	TP_fast_assign(
		__entry->dev = dev;
		__entry->port = port;
		__entry->what = chosen->what;
		__entry->tag = chosen->tag;
		__entry->until_ns = chosen->until_ns;
		__entry->virtual_time = why->virtual_time;
		__entry->start_tag = why->start_tag;
		__entry->free_slots = why->free_slots;
		__entry->held = why->held;
	),
	TP_printk("%u:%u port=%u %s tag=%d until=%llu virtual_time=%lld start_tag=%lld free_slots=%d %s",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->port,
		  __print_symbolic(__entry->what, { FAIRQ_NOTHING, "hold" }, { FAIRQ_ISSUE, "issue" },
				   { FAIRQ_WAIT, "wait" }),
		  __entry->what == FAIRQ_ISSUE ? (int)__entry->tag : -1, __entry->until_ns,
		  __entry->virtual_time, __entry->start_tag, __entry->free_slots,
		  __print_symbolic(__entry->held, { FAIRQ_NOT_HELD, "free" }, { FAIRQ_AHEAD, "ahead" },
				   { FAIRQ_NO_SLOT, "no-slot" }, { FAIRQ_CAP, "cap" }))
);

TRACE_EVENT(fairq_complete,
	TP_PROTO(dev_t dev, u32 port, u32 tag, const struct fairq_slot *slot, u64 now_ns),
	TP_ARGS(dev, port, tag, slot, now_ns),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u32, port)
		__field(u32, tag)
		__field(u32, bytes)
		__field(u64, waited_ns)
		__field(u64, served_ns)
	),
	TP_fast_assign(
		__entry->dev = dev;
		__entry->port = port;
		__entry->tag = tag;
		__entry->bytes = slot->bytes;
		__entry->waited_ns = slot->waited_ns;
		__entry->served_ns = now_ns - slot->since_ns;
	),
	TP_printk("%u:%u port=%u tag=%u bytes=%u wait_ns=%llu device_ns=%llu", MAJOR(__entry->dev),
		  MINOR(__entry->dev), __entry->port, __entry->tag, __entry->bytes, __entry->waited_ns,
		  __entry->served_ns)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
