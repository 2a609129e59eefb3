//! The data path of one shard: a request goes to the policy, from the policy to the device, and back.
//!
//! ```text
//!   submit ──▶ port.submit ──▶ Issue ─────────────────────────▶ queue.issue
//!                        └───▶ Staged ─ dispatch: port.next ──▶ queue.issue
//!   finished ◀── port.complete ◀── reap: queue.reap
//! ```
//!
//! A live request has a [`Tag`], an index into what is live; tags are handed out from a fixed stock, so the
//! requests of a shard are bounded ([`DataPath::has_room`]). Nothing here allocates once a shard runs.

use std::sync::Arc;

use fairq_core::{FlowId, Next, Op, Outcome, Port, PortId, PortSet, Request, SubmitError, Submitted, Tag};

use crate::device::{Command, Completion, Device, Queue};
use crate::interference::Observed;
use crate::memory::Memory;
use crate::record::{Decision, Kind, Recorder, Recording};
use crate::ring::{Event, Ring};
use crate::shard::Common;
use crate::stats::{ShardCounters, ShardReport, TenantStats, Times};

/// Requests issued before completions are looked at and replies leave again: so much that a send for it costs little beside,
/// and so little that a client with a deep queue works on the first replies while the device, or this thread in the
/// device's place, works on the rest.
const BATCH: u32 = 8;

/// What a front end asks of the data path.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The tenant's index, for the statistics.
    pub tenant: u16,
    /// Whom to charge.
    pub flow: FlowId,
    /// What to do.
    pub op: Op,
    /// Which of the device's files.
    pub file: u16,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u32,
    /// See [`Command::fua`].
    pub fua: bool,
    /// See [`Command::no_hole`].
    pub no_hole: bool,
    /// See [`Command::fast_only`].
    pub fast_only: bool,
    /// The data.
    pub memory: Memory,
    /// The front end's name for it.
    pub cookie: u64,
}

/// An order that has been carried out.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// The front end's name for it.
    pub cookie: u64,
    /// 0, or the errno it failed with.
    pub errno: i32,
}

/// A live request.
#[derive(Clone, Copy)]
struct Live {
    command: Command,
    tenant: u16,
    cookie: u64,
    arrived_ns: u64,
    issued_ns: u64,
}

/// One shard's port, device queue and live requests.
pub struct DataPath<P: Port, D: Device> {
    port: P,
    id: PortId,
    device: Arc<D>,
    queue: D::Queue,
    live: Box<[Option<Live>]>,
    free: Vec<Tag>,
    /// Ports that the port or the device has unblocked since the shard last delivered wake-ups.
    wake: PortSet,
    completions: Vec<Completion>,
    finished: Vec<Finished>,
    stats: Vec<TenantStats>,
    /// To whom something has happened since the last report.
    changed: Vec<bool>,
    counters: ShardCounters,
    observed: Observed,
    /// Where decisions are recorded, while somebody wants them.
    recorder: Option<Box<Recorder>>,
    /// What `next` said last: when to call it again though nothing has happened.
    wait_until_ns: Option<u64>,
    /// Whether `next` said last that requests wait for what another verb does.
    blocked: bool,
    /// Something was issued since the last `dispatch`.
    issued: bool,
    /// Requests issued since the last `reap`.
    batch: u32,
}

impl<P: Port, D: Device> DataPath<P, D> {
    /// The data path of port `id`.
    pub fn new(port: P, id: PortId, queue: D::Queue, common: &Common<D>) -> Self {
        let (tags, tenants) = (common.tags, common.tenants);
        DataPath {
            port,
            id,
            device: common.device.clone(),
            queue,
            live: vec![None; tags].into_boxed_slice(),
            free: (0..tags as u32).rev().map(Tag).collect(),
            wake: PortSet::EMPTY,
            completions: Vec::with_capacity(tags),
            finished: Vec::with_capacity(tags),
            stats: vec![TenantStats::default(); tenants],
            changed: vec![false; tenants],
            counters: ShardCounters::default(),
            observed: Observed::new(common.served.clone(), usize::from(id.0)),
            recorder: None,
            wait_until_ns: None,
            blocked: false,
            issued: false,
            batch: 0,
        }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Whether to `submit` now: there is a tag, and the batch is not full.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() && self.batch < BATCH
    }

    /// Whether no request is live, and neither the port nor the device's queue has something to do for other shards. A port
    /// behind a lock that waits for a time may be the only one that was told so, and others' requests wait with it.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.live.len() && self.wait_until_ns.is_none() && self.queue.is_idle()
    }

    /// What has been counted; of tenants, what has changed since the last report.
    pub fn report(&mut self, now_ns: u64) -> ShardReport {
        let tenants = self.stats.iter().zip(&mut self.changed).enumerate();
        let changed = tenants.filter_map(|(index, (stats, changed))| {
            // Who waits starves without anything happening.
            let again = std::mem::replace(changed, stats.staged > 0);
            again.then(|| (index as u16, stats.at(now_ns)))
        });
        ShardReport { tenants: changed.collect(), counters: self.counters, matrix: self.observed.matrix().clone() }
    }

    /// Counts a turn of the shard's loop, and whether it slept.
    #[inline]
    pub fn count_turn(&mut self, slept: bool) {
        self.counters.turns += 1;
        self.counters.sleeps += u64::from(slept);
    }

    /// A tenant's number is another's from now on: nothing has been counted for it.
    pub fn forget(&mut self, tenant: u16) {
        if let Some(stats) = self.stats.get_mut(usize::from(tenant)) {
            *stats = TenantStats::default();
            self.changed[usize::from(tenant)] = true;
            self.observed.forget(tenant);
        }
    }

    /// Records decisions from now on, the last `events` of them.
    pub fn record(&mut self, events: usize) {
        self.recorder = Some(Box::new(Recorder::new(events)));
    }

    /// Ends that; what was recorded.
    pub fn recorded(&mut self) -> Recording {
        self.recorder.take().map_or_else(Recording::default, |recorder| recorder.finish())
    }

    /// Writes down what happened to a live request.
    #[cold]
    fn note(&mut self, at_ns: u64, kind: Kind, tag: Tag) {
        let reason = self.port.reason(Some(tag));
        if let (Some(recorder), Some(Some(live))) = (&mut self.recorder, self.live.get(tag.0 as usize)) {
            let Command { op, class, offset, length, .. } = live.command;
            recorder.add(Decision { at_ns, kind, tag, tenant: live.tenant, op, class, offset, length, reason });
        }
    }

    /// Takes an order. Fails if its flow is gone; there must be room.
    ///
    /// # Safety
    /// The order's memory must stay valid and untouched until the order comes back from [`Self::finished`].
    pub unsafe fn submit(&mut self, now_ns: u64, ring: &mut Ring, order: &Order) -> Result<(), SubmitError> {
        let tag = self.free.pop().expect("the front end asked has_room first");
        let request = Request { tag, flow: order.flow, op: order.op, offset: order.offset, length: order.length };
        let submitted = match self.port.submit(now_ns, &request, &mut self.wake) {
            Ok(submitted) => submitted,
            Err(error) => {
                self.free.push(tag);
                return Err(error);
            }
        };
        let command = Command {
            tag,
            op: order.op,
            class: fairq_core::Class::Medium,
            file: order.file,
            offset: order.offset,
            length: order.length,
            fua: order.fua,
            no_hole: order.no_hole,
            fast_only: order.fast_only,
            memory: order.memory,
        };
        self.live[tag.0 as usize] =
            Some(Live { command, tenant: order.tenant, cookie: order.cookie, arrived_ns: now_ns, issued_ns: 0 });
        self.stats[usize::from(order.tenant)].arrive(now_ns);
        self.changed[usize::from(order.tenant)] = true;
        self.observed.arrived(now_ns, tag);
        if self.recorder.is_some() {
            self.note(now_ns, Kind::Arrive, tag);
        }
        if let Submitted::Issue { class } = submitted {
            self.issue(now_ns, ring, tag, class);
        }
        Ok(())
    }

    /// Issues what the policy lets go, at most a batch, and rings the device. True if anything was issued since the last call, by
    /// `submit` or here: the device may have completed it already.
    pub fn dispatch(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        self.wait_until_ns = None;
        self.blocked = false;
        while self.batch < BATCH {
            match self.port.next(now_ns, &mut self.wake) {
                Next::Issue { tag, class } => {
                    self.issue(now_ns, ring, tag, class);
                }
                Next::WaitUntil(time_ns) => {
                    self.wait_until_ns = Some(time_ns);
                    self.hold(now_ns);
                    break;
                }
                Next::Blocked => {
                    self.blocked = true;
                    self.hold(now_ns);
                    break;
                }
                Next::Idle => break,
            }
        }
        self.queue.ring(now_ns, ring, &mut self.wake);
        std::mem::take(&mut self.issued)
    }

    /// Nothing may go.
    #[inline]
    fn hold(&mut self, now_ns: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.hold(now_ns, self.port.reason(None));
        }
    }

    fn issue(&mut self, now_ns: u64, ring: &mut Ring, tag: Tag, class: fairq_core::Class) {
        let live = self.live[tag.0 as usize].as_mut().expect("the policy issues live tags only");
        live.command.class = class;
        live.issued_ns = now_ns;
        self.stats[usize::from(live.tenant)].issue(now_ns);
        self.counters.issued[class as usize] += 1;
        self.issued = true;
        self.batch += 1;
        // SAFETY: whoever submitted the order keeps its memory valid and untouched until it is finished, and it is
        // not finished before its completion has been reaped.
        unsafe { self.queue.issue(now_ns, ring, &live.command) };
        if self.recorder.is_some() {
            self.note(now_ns, Kind::Issue, tag);
        }
    }

    /// Passes an event of the device's to it.
    pub fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event) {
        self.queue.event(now_ns, ring, event);
    }

    /// Takes completions from the device; [`Self::finished`] then gives them. True if there were any.
    pub fn reap(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        self.batch = 0;
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.reap(now_ns, ring, &mut completions, &mut self.wake);
        let any = !completions.is_empty();
        for completion in completions.drain(..) {
            if self.recorder.is_some() {
                let failed = completion.errno != 0;
                self.note(now_ns, if failed { Kind::Fail } else { Kind::Complete }, completion.tag);
            }
            let live = self.live[completion.tag.0 as usize].take().expect("the device completes live tags only");
            let failed = completion.errno != 0;
            let outcome = if failed { Outcome::Failed } else { Outcome::Done };
            self.port.complete(now_ns, completion.tag, outcome, &mut self.wake);
            self.free.push(completion.tag);
            let Command { op, length, .. } = live.command;
            let times = Times { arrived_ns: live.arrived_ns, issued_ns: live.issued_ns, done_ns: now_ns };
            self.stats[usize::from(live.tenant)].complete(op, length, failed, times);
            self.changed[usize::from(live.tenant)] = true;
            let bytes = if matches!(op, Op::Read | Op::Write) { u64::from(length) } else { 0 };
            self.counters.completed += 1;
            self.counters.bytes += bytes;
            self.observed.ended(completion.tag, live.tenant, bytes, times.latency_ns());
            self.finished.push(Finished { cookie: live.cookie, errno: completion.errno });
        }
        self.completions = completions;
        any
    }

    /// The next order that has been carried out.
    pub fn finished(&mut self) -> Option<Finished> {
        self.finished.pop()
    }

    /// The other ports that were unblocked since the last call; and whether this one was.
    pub fn take_wakes(&mut self) -> (PortSet, bool) {
        let mut others = std::mem::take(&mut self.wake);
        let own = others.contains(self.id);
        others.remove(self.id);
        (others, own)
    }

    /// Whether requests are held back until another shard, or a completion, lets them go.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// When to run again though no event comes.
    pub fn deadline_ns(&self) -> Option<u64> {
        match (self.wait_until_ns, self.queue.deadline_ns()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
