//! The data path of one shard: a request goes to the policy, from the policy to the device, and
//! back.
//!
//! ```text
//!   submit ──▶ port.submit ──▶ Issue ─────────────────────────▶ queue.issue
//!                        └───▶ Staged ─ dispatch: port.next ──▶ queue.issue
//!   finished ◀── port.complete ◀── reap: queue.reap
//! ```
//!
//! **Memory.** The data of an order are in one range of memory (a stretch) or in several. The
//! stretches after the first are kept in an arena until the order has ended (`path/arena.rs`).
//!
//! **Merged requests** are one command to the device. The path collects the requests that the
//! policy joins, up to the request that completes the command, and passes the command to the queue
//! with the memory of each part. The requests end when the command ends. If the command fails, each
//! part is issued once more on its own: the device reports an error for the whole command without
//! its position, so one bad block would otherwise fail up to a hundred unrelated requests. It is
//! safe to repeat the parts, since no client has a reply yet. Nothing is joined to a durable write
//! or across it, and the policy joins nothing across a flush.
//!
//! **Cancelled requests**, whose client has disconnected or whose tenant was removed, are withdrawn
//! from the policy ([`DataPath::cancel`]). Requests on the device run to their end, and so do
//! requests that the policy has merged with others.
//!
//! A live request has a [`Tag`], an index into the table of live requests. The number of tags is
//! fixed, which bounds the requests of a shard ([`DataPath::has_room`]). Their tables are allocated
//! when the shard starts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fairq_core::{
    Class, FlowId, Next, Op, Outcome, Port, PortId, PortSet, Request, SubmitError, Submitted, Tag,
};

use crate::device::write_back::WriteBack;
use crate::device::{Command, Completion, Device, Queue, STRETCHES};
use crate::io::memory::Memory;
use crate::io::ring::{Asker, Event, Ring, UserData};
use crate::observe::interference::Observed;
use crate::observe::record::{Kind, Recorder};
use crate::observe::stats::{ShardCounters, StoreLoad, TenantStats, Times};
use crate::shard::charge::{self, Charged, Observation};
use crate::shard::cut::Cut;
use crate::shard::dirty::Dirty;
use crate::shard::fence::{Client, Fences};
use crate::shard::shared::Common;
use crate::shard::turns::Weights;
use crate::shard::volume::Order;

use arena::{Arena, Rest};

/// The number of requests that are issued before the shard reaps completions and sends replies. A
/// large batch makes the cost of a send small beside the requests. A small batch lets a client with
/// a deep queue process the first replies while the device (or this thread, for a device that
/// completes at once) works on the rest.
const BATCH: u32 = 8;

/// An order that has been carried out.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// The front end that has submitted it.
    pub asker: Asker,
    /// The number by which the front end identifies it.
    pub cookie: u64,
    /// 0, or the errno it failed with.
    pub errno: i32,
}

/// The owner of a live request: the layer that ends it or passes it on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// The policy: the request is staged there, or on the device and counted by the policy.
    Policy,
    /// No layer: it waited for a cap of the policy that is being replaced, and goes to the next
    /// policy.
    Nothing,
    /// The shard: the write waits because the tenant has too many dirty bytes.
    Throttle,
    /// The device: the policy that dispatched the request is replaced, or will be, before it ends.
    Device,
}

/// A live request.
#[derive(Clone, Copy)]
struct Live {
    command: Command,
    tenant: u16,
    flow: FlowId,
    /// The front end, and the number by which it identifies the order.
    cookie: u64,
    /// The memory of the data after `command.memory`.
    rest: Rest,
    arrived_ns: u64,
    issued_ns: u64,
    /// See [`Volume::void`](crate::shard::volume::Volume::void).
    is_void: bool,
    /// See [`Piece::begins`](crate::shard::volume::Piece::begins).
    begins: bool,
    held_by: Holder,
    /// For a flush: the number of the tenant's writes that had ended when the flush arrived.
    covers: u64,
    /// Bytes that [`Dirty`] counts: of a write, until it has ended; of a flush, the bytes that it
    /// writes back.
    dirty: u64,
    /// The next request of the same merged command.
    after: Option<Tag>,
}

/// One shard's port, device queue and live requests. Between two policies `P` is `()`.
pub struct DataPath<P, D: Device> {
    port: P,
    id: PortId,
    device: Arc<D>,
    /// The device's block, in bytes.
    block: u32,
    queue: D::Queue,
    /// The front end whose orders are being submitted.
    asker: Asker,
    arena: Arena,
    /// The live requests by tag. The vector grows to the highest tag used, so unused tags take no
    /// memory.
    live: Vec<Option<Live>>,
    /// The tags that have been used and are free.
    free: Vec<Tag>,
    /// The number of tags.
    tags: usize,
    /// The number of live requests on the device that no policy knows ([`Self::let_go`]), and of
    /// those that wait for the next policy ([`Self::withdraw`]).
    orphans: usize,
    withdrawn: usize,
    /// The requests that the policy has joined to the command that its next `Issue` completes, and
    /// the memory of a command's parts.
    joined: Vec<Tag>,
    memories: Vec<Memory>,
    /// Ports that the port or the device has unblocked since the shard last delivered wake-ups.
    wake: PortSet,
    completions: Vec<Completion>,
    /// Orders without work that the policy has dispatched.
    void: Vec<Tag>,
    finished: Vec<Finished>,
    /// Orders that were refused since the last `reap`.
    refused: Vec<Finished>,
    stats: Vec<TenantStats>,
    /// The tenants whose counts have changed since the last report.
    changed: Vec<bool>,
    counters: ShardCounters,
    observed: Observed,
    charges: Observation,
    /// The requests on each store at the last count, and the time of the next count.
    loads: Vec<StoreLoad>,
    loads_ns: u64,
    write_back: Arc<WriteBack>,
    fences: Arc<Fences>,
    dirty: Arc<Dirty>,
    weights: Arc<Weights>,
    /// Writes that wait until their tenant may have more dirty bytes, by tenant and in order of
    /// arrival; and their number.
    throttled: BTreeMap<u16, VecDeque<Tag>>,
    throttled_count: usize,
    /// [`Dirty::changes`] at the last attempt to submit the throttled writes.
    throttle_seen: u64,
    /// The recorder of decisions, while a recording is running.
    recorder: Option<Box<Recorder>>,
    /// The time that `next` returned last. The shard then calls `next` again without an event.
    wait_until_ns: Option<u64>,
    /// Whether the last `next` returned that requests wait for another call to a port.
    blocked: bool,
    /// Whether something was issued since the last `dispatch`.
    issued: bool,
    /// Requests issued since the last `reap`.
    batch: u32,
}

impl<D: Device> DataPath<(), D> {
    /// The data path of shard `id`, without a port.
    pub fn new(id: PortId, queue: D::Queue, common: &Common<D>) -> Self {
        let (tags, tenants) = (common.tags, common.tenants);
        DataPath {
            port: (),
            id,
            device: common.device.clone(),
            block: common.device.info().block_size,
            queue,
            asker: Asker::Nbd,
            arena: Arena::default(),
            live: Vec::with_capacity(tags),
            free: Vec::with_capacity(tags),
            tags,
            orphans: 0,
            withdrawn: 0,
            joined: Vec::with_capacity(tags),
            memories: Vec::with_capacity(tags),
            wake: PortSet::EMPTY,
            completions: Vec::with_capacity(tags),
            void: Vec::with_capacity(tags),
            finished: Vec::with_capacity(tags),
            refused: Vec::new(),
            stats: vec![TenantStats::default(); tenants],
            changed: vec![false; tenants],
            counters: ShardCounters::default(),
            observed: Observed::new(common.served.clone(), usize::from(id.0)),
            charges: Observation::new(tenants),
            loads: Vec::new(),
            loads_ns: 0,
            write_back: common.write_back.clone(),
            fences: common.fences.clone(),
            dirty: common.dirty.clone(),
            weights: common.weights.clone(),
            throttled: BTreeMap::new(),
            throttled_count: 0,
            throttle_seen: 0,
            recorder: None,
            wait_until_ns: None,
            blocked: false,
            issued: false,
            batch: 0,
        }
    }

    /// This path with a port.
    pub fn with_port<P: Port>(self, port: P) -> DataPath<P, D> {
        self.with(port).0
    }
}

/// Moves all fields of a data path except its port, because the port's type depends on the policy.
macro_rules! moved {
    ($($field:ident)*) => {
        impl<P, D: Device> DataPath<P, D> {
            /// This path with another port; also returns the old port.
            fn with<Q>(self, port: Q) -> (DataPath<Q, D>, P) {
                let DataPath { port: old, $($field),* } = self;
                (DataPath { port, $($field),* }, old)
            }
        }
    };
}

moved! {
    id device block queue asker arena live free tags orphans withdrawn joined memories wake
    completions void finished refused stats changed counters observed charges loads loads_ns
    write_back fences dirty weights throttled throttled_count throttle_seen recorder
    wait_until_ns blocked issued batch
}

impl<P, D: Device> DataPath<P, D> {
    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// A client of a tenant whose requests pass through this path.
    pub fn client(&self, tenant: u16) -> Client {
        Client::new(self.fences.clone(), tenant, self.id)
    }

    /// Makes a front end the submitter (and canceller) of the following orders; returns the
    /// previous one. A shard with a single front end need not call this.
    pub fn serve(&mut self, asker: Asker) -> Asker {
        std::mem::replace(&mut self.asker, asker)
    }

    /// Makes a shard run one more turn of its loop.
    pub fn wake(&mut self, shard: PortId) {
        self.wake.insert(shard);
    }
}

impl<P: Port, D: Device> DataPath<P, D> {
    /// This path without its port, which must hold no request ([`Self::is_free_of_port`]).
    pub fn without_port(self) -> DataPath<(), D> {
        self.with(()).0
    }

    /// Whether `submit` may be called: a tag is free, and the batch is not full.
    pub fn has_room(&self) -> bool {
        (!self.free.is_empty() || self.live.len() < self.tags) && self.batch < BATCH
    }

    /// Whether no request is live, and neither the port nor the device's queue has work for other
    /// shards. Among ports that share a lock, the port that waits for a time may be the only one
    /// that knows that time, and requests of the other ports wait with it.
    pub fn is_idle(&self) -> bool {
        self.orphans + self.withdrawn + self.throttled_count == 0 && self.is_free_of_port()
    }

    /// Whether the port holds no request. As [`Self::is_idle`], but other live requests may exist.
    pub fn is_free_of_port(&self) -> bool {
        let unknown = self.orphans + self.withdrawn + self.throttled_count;
        self.free.len() + unknown == self.live.len()
            && self.wait_until_ns.is_none()
            && self.queue.is_idle()
    }

    /// Submits the issued requests to the device. True if there were any.
    pub fn ring(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        self.queue.ring(now_ns, ring, &mut self.wake);
        std::mem::take(&mut self.issued)
    }

    /// Takes a free tag: the last one that became free, or one that was never used. The caller has
    /// checked that there is one.
    #[inline]
    fn take_tag(&mut self) -> Tag {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.live.len() < self.tags, "the front end asked has_room first");
            self.live.push(None);
            Tag(self.live.len() as u32 - 1)
        })
    }

    /// Submits an order. Fails if its flow was removed. The caller has checked [`Self::has_room`].
    /// The data of a read or write are in the memory of its piece, then in the stretches of `rest`.
    /// If their total length is not the order's, or there are more than [`STRETCHES`], the order
    /// ends with `EINVAL`.
    ///
    /// # Safety
    /// All of this memory must stay valid until the order comes back from [`Self::finished`]. Until
    /// then no code of this process except the device may access it; a guest may access its own
    /// memory at any time.
    pub unsafe fn submit(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        order: &Order,
        rest: &[Memory],
    ) -> Result<(), SubmitError> {
        let cookie = UserData { asker: self.asker, value: order.cookie() }.to_word();
        let is_whole = rest.is_empty() || rest.len() < STRETCHES && order.fits(rest);
        if !is_whole {
            self.refuse(cookie, libc::EINVAL);
            return Ok(());
        }
        let tag = self.take_tag();
        let mut live = Live {
            // The policy sets the class when it dispatches the request.
            command: order.command(tag, Class::Medium),
            tenant: order.tenant(),
            flow: order.flow(),
            cookie,
            rest: Rest::NONE,
            arrived_ns: now_ns,
            issued_ns: 0,
            is_void: order.is_void(),
            begins: order.begins(),
            held_by: Holder::Policy,
            covers: 0,
            dirty: 0,
            after: None,
        };
        let submitted = match self.admit(now_ns, tag, &mut live) {
            Ok(submitted) => submitted,
            Err(error) => {
                self.free.push(tag);
                return Err(error);
            }
        };
        // A write is counted before the device can have its data, which `WriteBack` relies on.
        // Orders without work write nothing and sync nothing.
        if !live.is_void {
            let shard = usize::from(self.id.0);
            live.covers = self.write_back.begin(shard, live.tenant, live.command.op);
        }
        live.rest = self.arena.keep(rest);
        self.live[tag.0 as usize] = Some(live);
        self.stats[usize::from(order.tenant())].arrive(now_ns);
        self.changed[usize::from(order.tenant())] = true;
        self.observed.arrived(now_ns, tag);
        if self.recorder.is_some() {
            self.note(now_ns, Kind::Arrive, tag);
        }
        if let Submitted::Issue { class } = submitted {
            self.issue(now_ns, ring, tag, class);
        }
        Ok(())
    }

    /// Ends an order before any lower layer has received it.
    #[cold]
    fn refuse(&mut self, cookie: u64, errno: i32) {
        let UserData { asker, value } = UserData::from_word(cookie);
        self.refused.push(Finished { asker, cookie: value, errno });
        // The front end receives it in the next turn; `issued` makes sure that there is one.
        self.issued = true;
    }

    /// Submits a request to the port, with the offset and length for which its flow is charged.
    #[inline]
    fn give(&mut self, now_ns: u64, tag: Tag, live: &Live) -> Result<Submitted, SubmitError> {
        let Live { flow, command: Command { file, no_hole, fua, .. }, .. } = *live;
        // A device that zeroes a range by changing its map is charged for a discard.
        let op = match live.command.op {
            Op::WriteZeroes if self.device.zeroes_by_map(file, no_hole) => Op::Discard,
            op => op,
        };
        let Charged { offset, length, stands_alone } = self.charged(live);
        let request = Request::new(tag, flow, op, offset, length);
        let stands_alone = stands_alone || fua;
        if stands_alone {
            self.port.barrier(flow);
        }
        let submitted = self.port.submit(now_ns, &request, &mut self.wake);
        if stands_alone {
            self.port.barrier(flow);
        }
        submitted
    }

    #[inline]
    fn charged(&self, live: &Live) -> Charged {
        let Command { op, offset, length, .. } = live.command;
        if op == Op::Flush && !live.is_void {
            let length = self.charges.flush_bytes(live.tenant);
            return Charged { offset, length, stands_alone: false };
        }
        charge::of_data(op, offset, length, self.block)
    }

    /// Issues at most a batch of the requests that the policy dispatches, and submits them to the
    /// device. True if `submit` or this call issued anything: the device may have completed it
    /// already.
    pub fn dispatch(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        self.wait_until_ns = None;
        self.blocked = false;
        // A merged command that has been begun is completed even if the batch is full: the contract
        // requires a call of `next` immediately after a `Join`.
        while self.batch < BATCH || !self.joined.is_empty() {
            match self.port.next(now_ns, &mut self.wake) {
                Next::Join { tag } => self.joined.push(tag),
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
        self.ring(now_ns, ring)
    }

    /// Records that the policy dispatches nothing now, and why.
    #[inline]
    fn hold(&mut self, now_ns: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.hold(now_ns, self.port.reason(None));
        }
    }

    #[inline]
    fn issue(&mut self, now_ns: u64, ring: &mut Ring, tag: Tag, class: Class) {
        if !self.joined.is_empty() {
            return self.issue_joined(now_ns, ring, tag, class);
        }
        self.batch += 1;
        let (command, rest) = self.leave(now_ns, tag, class);
        // An order without work is always a flush, so no other request pays for this check.
        if command.op == Op::Flush && self.is_void(tag) {
            return self.void.push(tag);
        }
        // SAFETY: the submitter of the order keeps its memory valid until it is finished, and it is
        // not finished before its completion has been reaped.
        unsafe { self.queue.issue(now_ns, ring, &command, self.arena.get(rest)) };
    }

    #[cold]
    fn is_void(&self, tag: Tag) -> bool {
        self.live[tag.0 as usize].is_some_and(|live| live.is_void)
    }

    /// Issues the merged command that the request `last` completes.
    fn issue_joined(&mut self, now_ns: u64, ring: &mut Ring, last: Tag, class: Class) {
        let mut parts = std::mem::take(&mut self.joined);
        parts.push(last);
        self.batch += 1;
        self.memories.clear();
        let mut whole: Option<Command> = None;
        for &part in &parts {
            let (command, rest) = self.leave(now_ns, part, class);
            self.memories.extend(command.stretches(self.arena.get(rest)));
            match &mut whole {
                None => whole = Some(command),
                Some(whole) => {
                    debug_assert!(
                        whole.file == command.file
                            && whole.offset + u64::from(whole.length) == command.offset
                    );
                    whole.length += command.length;
                }
            }
        }
        let mut whole = whole.expect("it has parts");
        if let Some((first, rest)) = self.memories.split_first()
            && self.memories.len() <= STRETCHES
        {
            whole.memory = *first;
            // SAFETY: as in `issue`; the parts are finished together, after the completion of the
            // whole.
            unsafe { self.queue.issue(now_ns, ring, &whole, rest) };
            self.counters.joined += parts.len() as u64 - 1;
            for two in parts.windows(2) {
                self.live[two[0].0 as usize].as_mut().expect("it has just gone").after =
                    Some(two[1]);
            }
        } else {
            parts.iter().for_each(|&part| self.issue_alone(now_ns, ring, part));
        }
        parts.clear();
        self.joined = parts;
    }

    /// Issues a dispatched request without merging it.
    fn issue_alone(&mut self, now_ns: u64, ring: &mut Ring, tag: Tag) {
        let Live { command, rest, .. } =
            self.live[tag.0 as usize].as_ref().expect("it is on its way");
        // SAFETY: as in `issue`.
        unsafe { self.queue.issue(now_ns, ring, command, self.arena.get(*rest)) };
    }

    /// Records that the policy has dispatched a request; returns its command.
    #[inline]
    fn leave(&mut self, now_ns: u64, tag: Tag, class: Class) -> (Command, Rest) {
        let live = self.live[tag.0 as usize].as_mut().expect("the policy issues live tags only");
        // The command is copied before its class is changed. A wide load that covers a narrow store
        // which is still in the store buffer stalls until that buffer is empty, and the data of the
        // last command may be in it.
        let (mut command, rest) = (Command { class, ..live.command }, live.rest);
        live.command.class = class;
        live.issued_ns = now_ns;
        self.stats[usize::from(live.tenant)].issue(now_ns);
        if command.op == Op::Flush && !live.is_void && self.queue.is_cached(command.file) {
            command.span = self.flush_dirty(tag);
        }
        self.counters.issued[class as usize] += 1;
        self.issued = true;
        if self.recorder.is_some() {
            self.note(now_ns, Kind::Issue, tag);
        }
        (command, rest)
    }

    /// Passes an event of the device's queue to that queue.
    pub fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event) {
        self.queue.event(now_ns, ring, event);
    }

    /// Takes completions from the device; [`Self::finished`] then returns them. True if there were
    /// any.
    pub fn reap(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        self.batch = 0;
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.reap(now_ns, ring, &mut completions, &mut self.wake);
        // Orders that end together are reported from the last to the first.
        completions.extend(self.void.drain(..).rev().map(|tag| Completion { tag, errno: 0 }));
        let any = !(completions.is_empty() && self.refused.is_empty());
        self.finished.append(&mut self.refused);
        for Completion { tag, errno } in completions.drain(..) {
            let after = self.live[tag.0 as usize].as_mut().and_then(|live| live.after.take());
            match after {
                None => self.end(now_ns, tag, errno),
                Some(after) => self.end_joined(now_ns, ring, tag, after, errno),
            }
        }
        self.completions = completions;
        any
    }

    /// Ends the requests of a merged command, or issues each of them alone if the command failed.
    fn end_joined(&mut self, now_ns: u64, ring: &mut Ring, first: Tag, second: Tag, errno: i32) {
        let mut part = Some((first, Some(second)));
        while let Some((tag, after)) = part {
            if errno == 0 {
                self.end(now_ns, tag, 0);
            } else {
                self.issued = true;
                self.issue_alone(now_ns, ring, tag);
            }
            part = after.map(|tag| {
                (tag, self.live[tag.0 as usize].as_mut().and_then(|live| live.after.take()))
            });
        }
    }

    /// Ends a request that the device has completed.
    #[inline]
    fn end(&mut self, now_ns: u64, tag: Tag, mut errno: i32) {
        let live = self.live[tag.0 as usize].expect("the device completes live tags only");
        self.write_back.end(usize::from(self.id.0), live.tenant, live.command.op);
        if !live.is_void {
            if live.command.op == Op::Flush || live.command.fua {
                errno = self.synced(&live, errno);
            }
            let Command { op, length, .. } = live.command;
            self.charges.ended(live.tenant, op, length, now_ns.saturating_sub(live.issued_ns));
        }
        match live.command.op {
            _ if live.dirty == 0 => {}
            Op::Flush => self.dirty.written(live.command.file, live.tenant, live.dirty),
            _ => self.dirtied(&live, errno == 0),
        }
        let failed = errno != 0;
        // This comes before the request is freed, because the record of a decision contains the
        // request.
        if self.recorder.is_some() {
            self.note(now_ns, if failed { Kind::Fail } else { Kind::Complete }, tag);
        }
        self.live[tag.0 as usize] = None;
        self.arena.free(live.rest);
        let outcome = if failed { Outcome::Failed } else { Outcome::Done };
        if live.held_by == Holder::Device {
            self.orphans -= 1;
        } else {
            self.port.complete(now_ns, tag, outcome, &mut self.wake);
        }
        self.free.push(tag);
        let Command { op, length, .. } = live.command;
        let times =
            Times { arrived_ns: live.arrived_ns, issued_ns: live.issued_ns, done_ns: now_ns };
        let stats = &mut self.stats[usize::from(live.tenant)];
        stats.complete(op, length, errno, times);
        if live.begins {
            stats.requests.count(op);
        }
        self.changed[usize::from(live.tenant)] = true;
        let bytes = if matches!(op, Op::Read | Op::Write) { u64::from(length) } else { 0 };
        self.counters.completed += 1;
        self.counters.bytes += bytes;
        // A write to the page cache counts as served only when its bytes are on the disk.
        let served = if live.dirty > 0 { 0 } else { bytes };
        self.observed.ended(tag, live.tenant, served, times.latency_ns());
        self.give_back(&live, errno);
    }

    /// Returns an order to its front end.
    #[inline]
    fn give_back(&mut self, live: &Live, errno: i32) {
        let UserData { asker, value: cookie } = UserData::from_word(live.cookie);
        self.finished.push(Finished { asker, cookie, errno });
    }

    /// Whether a live request reaches beyond a cut.
    pub fn crosses(&self, cut: &Cut) -> bool {
        self.live.iter().flatten().any(|live| cut.is_crossed_by(live.tenant, &live.command))
    }

    /// The errno for a flush or a durable write that the device has ended.
    #[cold]
    fn synced(&self, live: &Live, errno: i32) -> i32 {
        let covers = (live.command.op == Op::Flush).then_some(live.covers);
        let ask = |file| self.device.write_back_failed(file);
        self.write_back.synced(live.tenant, covers, errno, ask)
    }

    /// The next order that has been carried out.
    pub fn finished(&mut self) -> Option<Finished> {
        self.finished.pop()
    }

    /// The other ports that were unblocked since the last call, and whether this one was unblocked.
    pub fn take_wakes(&mut self) -> (PortSet, bool) {
        let mut others = std::mem::take(&mut self.wake);
        let own = others.contains(self.id);
        others.remove(self.id);
        (others, own)
    }

    /// Whether requests are held back until another shard or a completion allows them to be
    /// dispatched.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The time at which the policy dispatches the next request, if only time holds it back.
    pub fn waits_until_ns(&self) -> Option<u64> {
        self.wait_until_ns
    }

    /// The time at which the shard has to run even if no event comes.
    pub fn deadline_ns(&self) -> Option<u64> {
        match (self.wait_until_ns, self.queue.deadline_ns()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

mod accounts;
mod arena;
mod cancel;
mod change;

#[cfg(test)]
mod tests;
mod throttle;
