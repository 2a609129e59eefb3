//! The low-latency path: an in-process client that rings the device's class queues itself and polls
//! for completions.
//!
//! **Problem.** A [shard](crate::shard) handles events and messages, batches requests, sleeps and
//! is woken. A program with its own thread for I/O needs none of this. **Model.** A request is
//! dispatched when it is submitted, for policies that never stage ([`Port::IS_DIRECT`]). The policy
//! chooses the class (D2FQ, section 4.3), the caller's thread puts the command in the queue of that
//! class, and the next [`poll`](DirectPath::poll) rings the doorbell and reaps completions. The
//! path has no request queue, io_uring, sleep, statistics or clock; the caller supplies the time.
//!
//! ```text
//!   submit ──▶ port.submit ──▶ class ──▶ queue.issue
//!   poll ────▶ queue.ring, queue.reap ──▶ port.complete ──▶ Completed
//! ```
//!
//! Each path is one port of the policy and one queue of the device, so paths and shards can share a
//! policy and a device. A path wakes the shards that it unblocks, and the shards whose commands it
//! completes while polling. A path itself needs no wake-up, as it is polled.
//!
//! **The caller's duty.** The caller polls as long as [`is_idle`](DirectPath::is_idle) is false,
//! even if it has no command of its own in flight: on a device that any poller may advance, other
//! paths rely on its polls.
//!
//! **The gain.** It is small compared with a client in the same process that uses a shard: of the
//! 260 ns of a 4 KiB read on `nvme-soft` over memory, the direct path saves 10 to 12 % at depth 1
//! and 15 to 17 % at depth 16 (`fairq bench --path`). The rest is the controller, the copy and the
//! clock. Compared with a client over NBD it saves three quarters of the latency of a fast SSD's
//! read.

use std::sync::Arc;

use fairq_core::{Next, Op, Outcome, Port, PortId, PortSet, Request, SubmitError, Submitted, Tag};

use crate::device::{Completion, Device, Place, Queue};
use crate::io::ring::Ring;
use crate::io::wakers::Wakers;
use crate::shard::shared::Common;
use crate::shard::volume::Order;

/// The reason why a direct path cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The policy holds requests back.
    #[error(
        "the direct path needs a policy that never holds a request back: use none or d2fq, or the \
         path of the shards"
    )]
    Stages,
    /// The device does not complete requests by polling alone.
    #[error(
        "the direct path polls for completions, and those of the device ({device}) come as events: \
         use one that is polled, such \
         as --device nvme-soft,backing=ram, or the path of the shards"
    )]
    NotPolled {
        /// The device's name.
        device: String,
    },
    /// The queue cannot be opened.
    #[error("cannot open a queue on the device ({device}): {source}")]
    Queue {
        /// The device's name.
        device: String,
        /// The error.
        source: std::io::Error,
    },
}

/// An order that has been carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The caller's identifier of the order.
    pub cookie: u64,
    /// 0, or the errno it failed with.
    pub errno: i32,
    /// Its operation.
    pub op: Op,
    /// The time when it was submitted, in nanoseconds of the caller's clock.
    pub submitted_ns: u64,
}

/// A live request.
#[derive(Clone, Copy)]
struct Live {
    cookie: u64,
    submitted_ns: u64,
    op: Op,
}

/// See the [module's text](self).
pub struct DirectPath<P: Port, D: Device> {
    port: P,
    id: PortId,
    queue: D::Queue,
    /// The ring with which the device's queues are opened; a polled device puts nothing on it.
    ring: Ring,
    wakers: Arc<Wakers>,
    live: Box<[Live]>,
    free: Vec<Tag>,
    completions: Vec<Completion>,
    wake: PortSet,
}

impl<P: Port, D: Device> DirectPath<P, D> {
    /// Opens the path of port `id` for the calling thread. The path has at most [`Common::tags`]
    /// live requests.
    pub fn open(id: PortId, port: P, common: &Common<D>) -> Result<Self, DirectError> {
        let name = || common.device.info().name.clone();
        if !P::IS_DIRECT {
            return Err(DirectError::Stages);
        }
        if !common.device.is_polled() {
            return Err(DirectError::NotPolled { device: name() });
        }
        let place = Place { port: id, ports: common.wakers.count(), wakers: common.wakers.clone() };
        let opened = Ring::new(0)
            .and_then(|mut ring| Ok((common.device.open_queue(&place, &mut ring)?, ring)));
        let (queue, ring) =
            opened.map_err(|source| DirectError::Queue { device: name(), source })?;
        Ok(DirectPath {
            port,
            id,
            queue,
            ring,
            wakers: common.wakers.clone(),
            live: vec![Live { cookie: 0, submitted_ns: 0, op: Op::Read }; common.tags]
                .into_boxed_slice(),
            free: (0..common.tags as u32).rev().map(Tag).collect(),
            completions: Vec::with_capacity(common.tags),
            wake: PortSet::EMPTY,
        })
    }

    /// Whether one more order may be submitted.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether neither this path nor a queue that it advances has a command in flight, so that the
    /// path may be dropped.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.live.len() && self.queue.is_idle()
    }

    /// Puts a command in the queue of the class that the policy chooses; the next [`Self::poll`]
    /// rings the doorbell for all submitted commands. Fails if the flow was removed.
    /// [`Self::has_room`] must be true.
    ///
    /// # Safety
    /// The order's memory must stay valid and unused until `poll` has returned the order.
    #[inline]
    pub unsafe fn submit(&mut self, now_ns: u64, order: &Order) -> Result<(), SubmitError> {
        let tag = self.free.pop().expect("the caller asked has_room first");
        let request = Request::new(tag, order.flow(), order.op(), order.offset(), order.length());
        let class = match self.port.submit(now_ns, &request, &mut self.wake) {
            Ok(Submitted::Issue { class }) => class,
            Ok(Submitted::Staged) => unreachable!("a port that is direct stages nothing"),
            Err(error) => {
                self.free.push(tag);
                return Err(error);
            }
        };
        self.live[tag.0 as usize] =
            Live { cookie: order.cookie(), submitted_ns: now_ns, op: order.op() };
        let command = order.command(tag, class);
        // SAFETY: the caller keeps the memory valid and unused until the order is returned, which
        // is after its completion has been reaped.
        unsafe { self.queue.issue(now_ns, &mut self.ring, &command, &[]) };
        Ok(())
    }

    /// Rings the doorbell for the submitted commands, and calls `completed` for each completed
    /// order.
    #[inline]
    pub fn poll(&mut self, now_ns: u64, mut completed: impl FnMut(Completed)) {
        self.queue.ring(now_ns, &mut self.ring, &mut self.wake);
        self.queue.reap(now_ns, &mut self.ring, &mut self.completions, &mut self.wake);
        for Completion { tag, errno } in self.completions.drain(..) {
            let outcome = if errno == 0 { Outcome::Done } else { Outcome::Failed };
            self.port.complete(now_ns, tag, outcome, &mut self.wake);
            self.free.push(tag);
            let Live { cookie, submitted_ns, op } = self.live[tag.0 as usize];
            completed(Completed { cookie, errno, op, submitted_ns });
        }
        // The port's contract requires a call of `next` after completions, even if the port stages
        // nothing.
        let next = self.port.next(now_ns, &mut self.wake);
        debug_assert_eq!(next, Next::Idle, "a port that is direct has nothing staged");
        self.wake.remove(self.id);
        if !self.wake.is_empty() {
            self.wakers.wake_all(std::mem::take(&mut self.wake));
        }
    }
}

#[cfg(test)]
mod tests {
    use fairq_core::Topology;
    use fairq_core::d2fq::{D2fq, D2fqConfig};
    use fairq_core::none::NonePolicy;
    use fairq_core::serial::SerialConfig;
    use fairq_core::sfqd::Sfqd;
    use fairq_core::{FlowId, Native, Policy, Weight};

    use super::*;
    use crate::device::any::{AnyDevice, DeviceSpec};
    use crate::device::file::{Direct, FileSpec};
    use crate::device::harness::{Driver, place};
    use crate::device::nvme_soft::{BackingSpec, NvmeSoftSpec, Poller};
    use crate::device::tests::{nvme_soft, scratch};
    use crate::io::clock::Clock;
    use crate::io::memory::{Buffer, Region};
    use crate::shard::volume::{Piece, Volume};

    const TAGS: usize = 8;

    fn common(device: AnyDevice, ports: usize) -> Common<AnyDevice> {
        Common::new(Arc::new(device), Arc::new(Wakers::new(ports).unwrap()), TAGS, 1)
    }

    fn soft(spec: NvmeSoftSpec) -> AnyDevice {
        DeviceSpec::NvmeSoft(Box::new(spec)).open().unwrap()
    }

    fn ram() -> NvmeSoftSpec {
        nvme_soft(BackingSpec::Ram { size: 1 << 20 })
    }

    fn order(flow: FlowId, op: Op, offset: u64, buffer: &Buffer, length: u32) -> Order {
        let (tenant, file, base, size) = (0, 0, 0, u64::MAX);
        let volume = Volume { tenant, flow, file, base, size, read_only: false, block: 1 };
        volume.order(&Piece::new(op, offset, length, buffer.memory(), offset)).unwrap()
    }

    /// Polls until `count` orders have completed.
    fn finish<P: Port>(path: &mut DirectPath<P, AnyDevice>, count: usize) -> Vec<Completed> {
        let (clock, mut ended) = (Clock::default(), Vec::new());
        let start_ns = clock.now_ns();
        while ended.len() < count {
            path.poll(clock.now_ns(), |one| ended.push(one));
            assert!(clock.now_ns() - start_ns < 20_000_000_000, "commands that never end");
        }
        ended
    }

    /// Data written through the direct path can be read through a shard's queue and vice versa, at
    /// any alignment.
    fn both_paths_see_the_same<L: Policy>((policy, ports): (L, Vec<L::Port>), device: AnyDevice) {
        let common = common(device, 2);
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let mut path =
            DirectPath::open(PortId(0), ports.into_iter().next().unwrap(), &common).unwrap();
        let mut shard = Driver::open_at(&*common.device, &place(1, 2));
        let mut region = Region::map(1 << 20).unwrap();
        for (offset, length) in [(0, 4096), (4096, 512), (9001, 1500)] {
            let mut buffer = region.allocate(length).unwrap();
            let data: Vec<u8> = (0..length).map(|at| (at * 7 + 3) as u8).collect();
            buffer.bytes_mut()[..length as usize].copy_from_slice(&data);
            // SAFETY: the buffer is unused until `finish` has returned the order, and lives longer.
            unsafe { path.submit(5, &order(flow, Op::Write, offset, &buffer, length)) }.unwrap();
            let ended = finish(&mut path, 1);
            assert_eq!(
                ended,
                [Completed { cookie: offset, errno: 0, op: Op::Write, submitted_ns: 5 }]
            );
            assert_eq!(shard.read(offset, length), data);
            let changed: Vec<u8> = data.iter().map(|byte| !byte).collect();
            shard.write(offset, &changed);
            // SAFETY: as above.
            unsafe { path.submit(6, &order(flow, Op::Read, offset, &buffer, length)) }.unwrap();
            assert_eq!(finish(&mut path, 1)[0].errno, 0);
            assert_eq!(buffer.bytes_mut()[..length as usize], changed);
            region.free(buffer);
        }
        assert!(path.is_idle() && path.has_room());
    }

    #[test]
    fn the_direct_path_and_a_shard_see_the_same_data() {
        let none = || NonePolicy::<Native>::new(2, 1, TAGS).unwrap();
        both_paths_see_the_same(none(), soft(ram()));
        both_paths_see_the_same(none(), soft(NvmeSoftSpec { poller: Poller::Core, ..ram() }));
        both_paths_see_the_same(none(), DeviceSpec::Ram { size: 1 << 20 }.open().unwrap());
        let d2fq = D2fqConfig::new(Topology::flat(2), 1, TAGS);
        both_paths_see_the_same(D2fq::<Native>::new(d2fq).unwrap(), soft(ram()));
    }

    #[test]
    fn a_failure_is_told_and_a_flow_that_is_gone_takes_no_room() {
        let (policy, mut ports) = NonePolicy::<Native>::new(1, 1, TAGS).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let mut path =
            DirectPath::open(PortId(0), ports.pop().unwrap(), &common(soft(ram()), 1)).unwrap();
        let mut region = Region::map(4096).unwrap();
        let buffer = region.allocate(512).unwrap();
        // SAFETY: the buffer is unused and outlives the path's use of it.
        unsafe { path.submit(0, &order(flow, Op::Read, 1 << 20, &buffer, 512)) }.unwrap();
        assert_eq!(finish(&mut path, 1)[0].errno, libc::EINVAL);
        policy.remove_flow(flow).unwrap();
        for _ in 0..2 * TAGS {
            // SAFETY: as above.
            let refused = unsafe { path.submit(0, &order(flow, Op::Read, 0, &buffer, 512)) };
            assert_eq!(refused, Err(SubmitError::NoSuchFlow));
        }
        assert!(path.is_idle());
        region.free(buffer);
    }

    /// Paths that share a set of queues reap each other's completions; each path finally receives
    /// its own.
    #[test]
    fn a_path_polls_for_the_others() {
        let device = soft(NvmeSoftSpec { queues: 3, ..ram() });
        let common = common(device, 3);
        let (policy, ports) = NonePolicy::<Native>::new(3, 1, TAGS).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let mut region = Region::map(1 << 16).unwrap();
        let buffers: Vec<Buffer> = (0..3).map(|_| region.allocate(4096).unwrap()).collect();
        let open = |(index, port)| DirectPath::open(PortId(index as u8), port, &common).unwrap();
        let mut paths: Vec<_> = ports.into_iter().enumerate().map(open).collect();
        for (index, path) in paths.iter_mut().enumerate() {
            // SAFETY: the buffers are unused and live longer than the paths use them.
            unsafe {
                path.submit(0, &order(flow, Op::Read, index as u64 * 4096, &buffers[index], 4096))
            }
            .unwrap();
            path.queue.ring(0, &mut path.ring, &mut path.wake);
        }
        // The last path reaps all completions.
        assert_eq!(finish(&mut paths[2], 1)[0].cookie, 8192);
        assert!(
            common.wakers.take_pending(0) && common.wakers.take_pending(1),
            "it wakes those whose commands ended"
        );
        assert!(!common.wakers.take_pending(2));
        for (index, path) in paths[..2].iter_mut().enumerate() {
            assert_eq!(finish(path, 1)[0].cookie, index as u64 * 4096);
            assert!(path.is_idle());
        }
        buffers.into_iter().for_each(|buffer| region.free(buffer));
    }

    #[test]
    fn what_cannot_go_this_way_says_why() {
        let config = SerialConfig::new(1, 1, TAGS);
        let (_policy, mut ports) = Sfqd::<Native>::new(&config).unwrap();
        let staged =
            DirectPath::open(PortId(0), ports.pop().unwrap(), &common(soft(ram()), 1)).map(|_| ());
        assert!(staged.unwrap_err().to_string().contains("use none or d2fq"));
        let folder = scratch();
        let file = FileSpec::new(folder.path().join("disk"), Some(1 << 20));
        let files = BackingSpec::File { files: vec![file], direct: Direct::Auto };
        let open = |spec: NvmeSoftSpec| {
            let (_policy, mut ports) = NonePolicy::<Native>::new(1, 1, TAGS).unwrap();
            DirectPath::open(PortId(0), ports.pop().unwrap(), &common(soft(spec), 1)).map(|_| ())
        };
        let refused = open(nvme_soft(files.clone())).unwrap_err().to_string();
        assert!(
            refused.contains("disk") && refused.contains("use one that is polled"),
            "{refused}"
        );
        open(NvmeSoftSpec { poller: Poller::Core, ..nvme_soft(files) }).unwrap();
    }
}
