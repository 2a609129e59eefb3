//! The paced device: RAM with the timing of a slower device, so that contention can be reproduced
//! on any machine.
//!
//! **Model.** Commands of all shards form one queue, in the order in which the shards ring. Command
//! `k`, of `bytes(k)` (0 for commands without data), enters the queue at `now(k)` and completes at
//! `done(k)`:
//!
//! ```text
//! begin(k)  = max(now(k), done(k - parallelism))     at most `parallelism` are inside at once
//! server(k) = max(begin(k), server(k-1)) + 1 / iops  the controller serves one after the other
//! link(k)   = max(begin(k), link(k-1)) + bytes(k) / bandwidth
//! done(k)   = max(server(k), link(k)) + latency
//! ```
//!
//! A limit of 0 is no limit. All times are monotonic from one command to the next, so commands
//! complete in the order of arrival. So `done(k - parallelism)` is the time at which a place inside
//! becomes free, and the times of a command are computed on arrival with a few additions.
//!
//! - *Rate.* With a backlog `now` has no effect: the device is busy without a gap even if a shard
//!   reaps late. Fractions of a nanosecond are carried over, so the long-term rate is exactly the
//!   smallest of `iops`, `bandwidth` over size, and `parallelism` over the time of one command
//!   (`latency` and the longer of its times at the controller and on the link). Like a real device,
//!   it does not make up for times without commands.
//! - *Shares.* First come, first served: unscheduled tenants share by the number of commands that
//!   each keeps queued.
//! - *Flush* and the other commands without data cost `1 / iops` of the controller's time. A flush
//!   completes after all earlier commands.
//!
//! **Example.** 4 KiB reads with iops 100 000, bandwidth 1 GB/s and latency 80 us: a single read
//! takes 10 + 80 us. The controller needs 10 us a read and the link 4.1 us, so the rate is 100 000
//! a second from depth 9 on. 64 KiB reads are limited by the link to 15 259 a second.
//!
//! **Sharing.** Shards share one mutex. A shard takes it once per turn of its loop for all commands
//! issued in the turn, and holds it for about 10 ns a command. A lock-free design would not be
//! better, because each command depends on the previous one.
//!
//! **Data** is stored when a write is issued and read when a read is reaped. Both are within the
//! time in which the command is in flight, so readers see a result that a disk could also have
//! produced. In both cases the bytes are copied while they are in the CPU's cache: after the front
//! end has received them, or before it sends them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use fairq_core::{Op, PortSet};

use crate::device::ram::memory_info;
use crate::device::store::Store;
use crate::device::{Command, Completion, Device, Extent, Info, Place, Queue};
use crate::io::memory::Memory;
use crate::io::ring::Ring;

/// The limits of a paced device; 0 is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pace {
    /// Commands a second.
    pub iops: u64,
    /// Bytes a second.
    pub bandwidth: u64,
    /// Nanoseconds that each command takes in addition to its time at the controller and on the
    /// link.
    pub latency_ns: u64,
    /// The largest number of commands that the device processes at once.
    pub parallelism: u32,
}

/// A paced device.
pub struct PacedDevice {
    info: Info,
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    schedule: Mutex<Schedule>,
}

/// One shard's queue on it.
pub struct PacedQueue {
    shared: Arc<Shared>,
    /// The commands that were issued since the last ring.
    fresh: Vec<Pending>,
    /// The rung commands, in the order of completion.
    pending: VecDeque<Pending>,
    /// Lists of stretches that are not in use.
    spare: Vec<Vec<Memory>>,
}

struct Pending {
    command: Command,
    /// The stretches of its data after the first.
    rest: Vec<Memory>,
    errno: i32,
    done_ns: u64,
}

impl PacedDevice {
    /// A paced device of `size` bytes, all zero.
    pub fn new(size: u64, pace: Pace) -> io::Result<PacedDevice> {
        let shared = Shared { store: Store::map(size)?, schedule: Mutex::new(Schedule::new(pace)) };
        Ok(PacedDevice { info: memory_info("paced", size), shared: Arc::new(shared) })
    }
}

impl PacedDevice {
    /// The memory that holds its data.
    pub(super) fn store(&self) -> &Store {
        &self.shared.store
    }
}

impl Device for PacedDevice {
    type Queue = PacedQueue;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(&self, _place: &Place, _ring: &mut Ring) -> io::Result<PacedQueue> {
        Ok(PacedQueue {
            shared: self.shared.clone(),
            fresh: Vec::new(),
            pending: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn take_memory(&self, _file: u16, offset: u64, length: u64) -> io::Result<()> {
        self.shared.store.take_memory(offset, length)
    }

    fn extents(
        &self,
        _file: u16,
        offset: u64,
        length: u64,
        most: usize,
    ) -> io::Result<Vec<Extent>> {
        self.shared.store.extents(offset, length, most)
    }
}

impl Queue for PacedQueue {
    unsafe fn issue(&mut self, _: u64, _: &mut Ring, command: &Command, rest: &[Memory]) {
        let errno = match command.op {
            Op::Read => 0,
            // SAFETY: the caller of `issue` keeps the memory valid until the completion, which is
            // later.
            _ => unsafe { self.shared.store.execute_all(command, rest) },
        };
        let rest = match rest {
            [] => Vec::new(),
            _ => {
                let mut list = self.spare.pop().unwrap_or_default();
                list.extend_from_slice(rest);
                list
            }
        };
        self.fresh.push(Pending { command: *command, rest, errno, done_ns: 0 });
    }

    fn ring(&mut self, now_ns: u64, _ring: &mut Ring, _wake: &mut PortSet) {
        if self.fresh.is_empty() {
            return;
        }
        // A shard that panicked with the lock held may have left one command uncounted, which is
        // harmless.
        let mut schedule = self.shared.schedule.lock().unwrap_or_else(PoisonError::into_inner);
        for pending in &mut self.fresh {
            let has_data = matches!(pending.command.op, Op::Read | Op::Write);
            pending.done_ns =
                schedule.admit(now_ns, if has_data { pending.command.length } else { 0 });
        }
        drop(schedule);
        self.pending.extend(self.fresh.drain(..));
    }

    fn reap(
        &mut self,
        now_ns: u64,
        _ring: &mut Ring,
        done: &mut Vec<Completion>,
        _wake: &mut PortSet,
    ) {
        while self.pending.front().is_some_and(|pending| pending.done_ns <= now_ns) {
            let Some(mut pending) = self.pending.pop_front() else { break };
            let errno = match pending.command.op {
                // SAFETY: the memory belongs to the device until this completion is taken.
                Op::Read => unsafe {
                    self.shared.store.execute_all(&pending.command, &pending.rest)
                },
                _ => pending.errno,
            };
            if !pending.rest.is_empty() {
                pending.rest.clear();
                self.spare.push(pending.rest);
            }
            done.push(Completion { tag: pending.command.tag, errno });
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.pending.front().map(|pending| pending.done_ns)
    }
}

/// The queue of all commands; the formulas are in the module's text.
struct Schedule {
    pace: Pace,
    /// The latest `now` so far. It is kept because shards read the clock before they take the lock,
    /// so a later call may have an earlier time.
    now_ns: u64,
    server: Resource,
    link: Resource,
    /// The completion times of commands that are inside or waiting to enter, in order; at most the
    /// last `parallelism`.
    inside: VecDeque<u64>,
}

/// A resource that serves one command after the other.
#[derive(Default)]
struct Resource {
    free_ns: u64,
    /// The fraction of a nanosecond by which the resource is busy after `free_ns`, times the rate.
    rest: u64,
}

impl Schedule {
    fn new(pace: Pace) -> Schedule {
        let (server, link) = (Resource::default(), Resource::default());
        Schedule { pace, now_ns: 0, server, link, inside: VecDeque::new() }
    }

    /// Queues a command of `bytes`, and returns its time of completion.
    fn admit(&mut self, now_ns: u64, bytes: u32) -> u64 {
        self.now_ns = self.now_ns.max(now_ns);
        let begin = self.enter();
        let served = self.server.serve(begin, 1, self.pace.iops);
        let moved = self.link.serve(begin, u64::from(bytes), self.pace.bandwidth);
        let done = served.max(moved).saturating_add(self.pace.latency_ns);
        if self.pace.parallelism > 0 {
            self.inside.push_back(done);
        }
        done
    }

    /// The time at which the next command enters the device.
    fn enter(&mut self) -> u64 {
        while self.inside.front().is_some_and(|&done| done <= self.now_ns) {
            self.inside.pop_front();
        }
        let is_full = self.inside.len() >= self.pace.parallelism as usize;
        if is_full { self.inside.pop_front().unwrap_or(self.now_ns) } else { self.now_ns }
    }
}

impl Resource {
    /// Serves `units` at `rate` units a second, not before `begin`, and returns the time of the
    /// end.
    fn serve(&mut self, begin: u64, units: u64, rate: u64) -> u64 {
        if rate == 0 {
            return begin;
        }
        // At most 2^32 * 10^9 + rate.
        let work = (units * 1_000_000_000).saturating_add(self.rest);
        self.rest = work % rate;
        self.free_ns = self.free_ns.max(begin).saturating_add(work / rate);
        self.free_ns
    }
}

#[cfg(test)]
mod tests {
    use fairq_core::{Class, Tag};

    use super::*;
    use crate::device::harness::place;
    use crate::io::memory::Region;

    const SECOND: u64 = 1_000_000_000;

    /// Keeps `depth` commands of `bytes` queued for a second and submits each one `late` ns late;
    /// returns the number of completed commands.
    fn completed(pace: Pace, depth: usize, bytes: u32, late: u64) -> u64 {
        let mut schedule = Schedule::new(pace);
        let mut line: VecDeque<u64> = (0..depth).map(|_| schedule.admit(0, bytes)).collect();
        let mut count = 0;
        while let Some(done) = line.pop_front().filter(|&done| done <= SECOND) {
            count += 1;
            line.push_back(schedule.admit(done + late, bytes));
        }
        count
    }

    #[test]
    fn iops_are_exact_even_when_the_shard_is_late() {
        for iops in [7, 1000, 299_999, 300_000, 1_000_003] {
            let pace = Pace { iops, ..Pace::default() };
            assert_eq!(completed(pace, 1, 4096, 0), iops);
            assert_eq!(completed(pace, 64, 1 << 20, 10 * SECOND / iops), iops);
        }
    }

    #[test]
    fn bandwidth_is_exact_for_mixed_sizes() {
        let mut schedule = Schedule::new(Pace { bandwidth: 999_999_937, ..Pace::default() });
        let mut bytes = 0;
        for index in 0..100_000u64 {
            let size = [512, 4096, 65_536, 1][index as usize % 4];
            bytes += u64::from(size);
            let exact = bytes as u128 * u128::from(SECOND) / 999_999_937;
            assert_eq!(u128::from(schedule.admit(0, size)), exact);
        }
    }

    #[test]
    fn latency_bounds_what_a_shallow_queue_gets() {
        let pace = Pace { latency_ns: 100_000, ..Pace::default() };
        assert_eq!(completed(pace, 1, 4096, 0), 10_000);
        assert_eq!(completed(pace, 32, 4096, 0), 320_000);
        // A late shard loses service only while no command is waiting.
        assert_eq!(completed(pace, 1, 4096, 25_000), 8000);
    }

    #[test]
    fn at_most_so_many_are_inside_at_once() {
        let pace = Pace { latency_ns: 100_000, parallelism: 8, ..Pace::default() };
        assert_eq!(completed(pace, 4, 4096, 0), 40_000);
        for depth in [8, 9, 100] {
            assert_eq!(completed(pace, depth, 4096, 0), 80_000);
        }
        // With commands waiting to enter, the shard's lateness has no effect.
        assert_eq!(completed(pace, 100, 4096, 300_000), 80_000);
    }

    #[test]
    fn the_slowest_resource_decides() {
        let pace =
            Pace { iops: 100_000, bandwidth: 1_000_000_000, latency_ns: 80_000, parallelism: 64 };
        let mut alone = Schedule::new(pace);
        assert_eq!(alone.admit(5, 4096), 5 + 10_000 + 80_000);
        // The commands still in the pipeline at the end of the second are not counted.
        assert_eq!(completed(pace, 32, 4096, 0), 100_000 - 8);
        assert_eq!(completed(pace, 32, 65_536, 0), 15_258 - 1);
        let narrow = Pace { parallelism: 2, ..pace };
        assert!((21_000..23_000).contains(&completed(narrow, 32, 4096, 0)));
    }

    #[test]
    fn nothing_is_saved_up_while_idle_and_no_limit_is_no_limit() {
        let mut schedule = Schedule::new(Pace { iops: 1000, ..Pace::default() });
        assert_eq!(schedule.admit(0, 1), 1_000_000);
        assert_eq!(schedule.admit(SECOND, 1), SECOND + 1_000_000);
        assert_eq!(schedule.admit(SECOND, 1), SECOND + 2_000_000);
        let mut free = Schedule::new(Pace::default());
        assert!((0..10_000).all(|_| free.admit(17, u32::MAX) == 17));
        assert!(free.inside.is_empty());
    }

    #[test]
    fn order_survives_shards_whose_clocks_disagree() {
        let pace = Pace { iops: 1_000_000, bandwidth: SECOND, latency_ns: 10_000, parallelism: 3 };
        let mut schedule = Schedule::new(pace);
        let mut last = 0;
        for index in 0..10_000u64 {
            let done = schedule.admit(index * 500 + (index % 7) * 900, (index % 5) as u32 * 1000);
            assert!(done >= last);
            last = done;
        }
    }

    fn command(tag: u32, op: Op, memory: Memory) -> Command {
        let (file, offset, length) = (0, 0, memory.length);
        let (span, fua, no_hole, fast_only) = (0, false, false, false);
        Command {
            tag: Tag(tag),
            op,
            class: Class::Medium,
            file,
            offset,
            length,
            span,
            fua,
            no_hole,
            fast_only,
            memory,
        }
    }

    #[test]
    fn without_a_scheduler_the_deeper_queue_gets_more() {
        let mut ring = Ring::new(0).unwrap();
        let pace = Pace { iops: 10_000, parallelism: 4, ..Pace::default() };
        let device = PacedDevice::new(1 << 20, pace).unwrap();
        let mut region = Region::map(8192).unwrap();
        let buffer = region.allocate(4096).unwrap();
        let mut queues: Vec<PacedQueue> =
            (0..2).map(|port| device.open_queue(&place(port, 2), &mut ring).unwrap()).collect();
        let (mut now, mut counts, mut done) = (0, [0u64; 2], Vec::new());
        for (queue, depth) in queues.iter_mut().zip([48, 16]) {
            for tag in 0..depth {
                // SAFETY: the buffer outlives the queues. Several reads into it may overlap, since
                // all read zeroes.
                unsafe {
                    queue.issue(now, &mut ring, &command(tag, Op::Read, buffer.memory()), &[])
                };
            }
            queue.ring(now, &mut ring, &mut PortSet::default());
        }
        while counts[0] + counts[1] < 100_000 {
            now = queues.iter().filter_map(|queue| queue.deadline_ns()).min().unwrap();
            for (queue, count) in queues.iter_mut().zip(&mut counts) {
                queue.reap(now, &mut ring, &mut done, &mut PortSet::default());
                *count += done.len() as u64;
                for completion in done.drain(..) {
                    assert_eq!(completion.errno, 0);
                    // SAFETY: as above.
                    unsafe {
                        queue.issue(
                            now,
                            &mut ring,
                            &command(completion.tag.0, Op::Read, buffer.memory()),
                            &[],
                        )
                    };
                }
                queue.ring(now, &mut ring, &mut PortSet::default());
            }
        }
        assert_eq!(now, 10 * SECOND);
        assert!(counts[0].abs_diff(75_000) <= 48, "48 against 16: {counts:?}");
        drop(queues);
        region.free(buffer);
    }

    #[test]
    fn nothing_is_reaped_before_its_time_and_a_flush_comes_last() {
        let mut ring = Ring::new(0).unwrap();
        let device = PacedDevice::new(4096, Pace { iops: 1000, ..Pace::default() }).unwrap();
        let mut queue = device.open_queue(&place(0, 1), &mut ring).unwrap();
        let mut region = Region::map(8192).unwrap();
        let mut buffer = region.allocate(100).unwrap();
        buffer.bytes_mut().fill(7);
        let mut done = Vec::new();
        for (tag, op) in [(1, Op::Write), (2, Op::Flush), (3, Op::Read)] {
            let memory = if op == Op::Flush { Memory::NONE } else { buffer.memory() };
            // SAFETY: the buffer outlives the queue, and both commands may use it at once because
            // they copy the same bytes.
            unsafe { queue.issue(5, &mut ring, &command(tag, op, memory), &[]) };
        }
        assert_eq!(queue.deadline_ns(), None, "not rung");
        queue.ring(5, &mut ring, &mut PortSet::default());
        for tag in 1..=3 {
            let deadline = queue.deadline_ns().unwrap();
            assert_eq!(deadline, 5 + u64::from(tag) * 1_000_000);
            queue.reap(deadline - 1, &mut ring, &mut done, &mut PortSet::default());
            assert_eq!(done, []);
            queue.reap(deadline, &mut ring, &mut done, &mut PortSet::default());
            assert_eq!(std::mem::take(&mut done), [Completion { tag: Tag(tag), errno: 0 }]);
        }
        assert_eq!(queue.deadline_ns(), None);
        assert_eq!(buffer.bytes_mut(), [7; 100]);
        region.free(buffer);
    }
}
