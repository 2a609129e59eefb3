//! A shard: one pinned thread with its own ring, port, device queue and front end.
//!
//! One turn (iteration) of the loop ([`Shard::run`]) handles events, messages, completions and
//! arrivals, sends replies, issues requests while the port returns some, submits them to the
//! device, delivers wake-ups and parks. Shards share only the policy's state, the [`Wakers`] and
//! the accounts in [`Common`].
//!
//! **Waking a shard** is the task of [`Wakers`]. A shard parks when it has nothing to do. If
//! another shard runs and may wake it, it first polls for the wake-up for a bounded time (see
//! `spin`).
//!
//! **Changing the policy.** A loop is compiled for one policy's port. A shard that changes its
//! policy leaves its loop and enters another one ([`PolicyLoop`]); it keeps its connections, ring,
//! device queue and statistics. Between the two loops it accepts nothing, dispatches all staged
//! requests and waits for requests in flight (`Shard::drain`), for at most [`Change::patience_ns`].
//! The shard then detaches the requests that remain on the device: no port is notified of their
//! completion. A port may need other ports to dispatch its requests, so a shard without requests
//! keeps running turns until no shard has requests (a [`Meeting`], explained in
//! `fairq_core::wake`). No shard enters its new loop before that. A wake-up of a shard that has not
//! yet entered the new loop is not lost, since a loop begins with a turn. While serving, the cost
//! is one check of an `Option` per turn.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use fairq_core::{FlowId, Native, Port, PortId, PortSet};
use io_uring::{opcode, types};

use crate::device::{Device, Place};
use crate::io::clock::Clock;
use crate::io::ring::{Asker, Event, Ring, UserData};
use crate::io::wakers::Wakers;
use crate::observe::cpu_time::CpuClock;
use crate::observe::record::Recording;
use crate::observe::stats::{Counted, ShardReport};
use crate::shard::cut::Cut;
use crate::shard::halt::Halt;
use crate::shard::least_sleep::LeastSleep;
use crate::shard::path::{DataPath, Finished};
use crate::shard::shared::Common;
use crate::shard::spin::{AWAY_NS, Patience, YIELD_NS};
use crate::shard::wipe::{Wipe, Wipes};

mod charge;
pub mod cut;
pub mod direct;
pub mod dirty;
pub mod fence;
pub mod halt;
mod least_sleep;
pub mod path;
pub mod pool;
pub mod request;
pub mod shared;
pub(crate) mod spin;
pub mod stores;
pub mod turns;
pub mod volume;
pub mod wipe;

/// The largest number of turns of the inner loop between two checks of the ring. It bounds the
/// delay of events if the device completes requests as fast as the shard issues them.
const INNER_TURNS: usize = 8;

/// A shard that ends answers a request with an error if the policy would hold it back for longer
/// than this, in nanoseconds. The bound suffices for a policy that anticipates a tenant's next
/// request. The next constant bounds the sum of all such waits.
const SHORT_WAIT_NS: u64 = 20_000_000;
const SHORT_WAITS_NS: u64 = 1_000_000_000;

/// The source of requests and the receiver of replies; one per shard.
pub trait Front: 'static {
    /// The messages that other threads may send to the front end.
    type Message: Send + 'static;

    /// Handles a message for this front end.
    fn message<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        message: Self::Message,
    );

    /// Handles a message that all front ends receive.
    fn notice<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        notice: Notice,
    );

    /// Handles the event of an operation that the front end put on the ring.
    fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event);

    /// Submits the requests that have arrived.
    fn arrivals<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    );

    /// Handles an order that has been carried out.
    fn finished(&mut self, now_ns: u64, finished: Finished);

    /// Sends the pending replies. True if this freed resources for requests that have already
    /// arrived.
    fn flush(&mut self, now_ns: u64, ring: &mut Ring) -> bool;

    /// The latest time at which `arrivals` has to run again, even if no event comes.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// The time for which an idle shard polls for requests that arrive without an event, in
    /// nanoseconds; 0 if there are no such requests.
    fn polls_ns(&mut self) -> u64 {
        0
    }

    /// Whether a request has arrived without an event.
    fn has_news(&mut self) -> bool {
        false
    }

    /// Records that a poll found work after this many nanoseconds, or found none (`None`).
    fn polled(&mut self, _waited_ns: Option<u64>) {}

    /// Called before the shard sleeps: from now on requests must arrive with an event. Returns
    /// false if the shard must not sleep, because a request has already arrived.
    fn rest(&mut self) -> bool {
        true
    }

    /// Resumes after a time in which `arrivals` was not called. Requests that arrived in that time
    /// are still to be submitted.
    fn resume(&mut self);

    /// Starts no more operations on the ring until [`Front::go_on`], and cancels the operations in
    /// flight if `cancel`. True if no operation is in flight.
    fn halt(&mut self, _ring: &mut Ring, _cancel: bool) -> bool {
        true
    }

    /// Resumes after [`Front::halt`].
    fn go_on(&mut self, _ring: &mut Ring) {}

    /// Accepts no more requests.
    fn stop(&mut self);

    /// Whether, after `stop`, all accepted requests have been answered and the front end holds no
    /// resource of the ring.
    fn is_stopped(&self) -> bool;
}

/// A message to all front ends.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// This flow was removed. Its clients are disconnected after the replies to their requests in
    /// flight.
    Detach {
        /// The flow.
        flow: FlowId,
        /// Whether to disconnect the clients at once.
        cut_off: bool,
    },
    /// The range of this flow's tenant now has this many bytes; requests beyond them are refused.
    Resize {
        /// The flow.
        flow: FlowId,
        /// The range's size in bytes.
        size: u64,
    },
    /// Disconnect all remaining clients, even if they wait for replies.
    HangUp,
    /// A second has passed: front ends check the deadlines of clients and detect clients that have
    /// vanished without closing their connection.
    Second,
}

/// A message to a shard.
pub enum Message<D: Device, F: Front> {
    /// A message for the shard's front end.
    Front(F::Message),
    /// A message for every front end.
    Notice(Notice),
    /// Make a range read as zeroes.
    Wipe(Box<Wipe>),
    /// Report when no live request reaches beyond this cut.
    Cut(Cut),
    /// Stop zeroing the ranges of this flow, which was removed.
    EndWipes(FlowId),
    /// Send a copy of the statistics, with the shard's number.
    Stats(Sender<(usize, ShardReport)>),
    /// This tenant's number now belongs to another tenant.
    Forget(u16),
    /// Record the scheduler's decisions from now on; the number is the most events kept.
    Record(usize),
    /// Stop recording, and send the recording, with the shard's number.
    Recorded(Sender<(usize, Recording)>),
    /// Complete all requests under this policy and go on under another.
    Change(Change<D, F>),
    /// Pause the shard; see [`halt`].
    Halt(Halt),
    /// Resume after `Halt`.
    GoOn,
    /// Start with these counts, which the previous program passed on.
    Count(Box<Counted>),
    /// Accept no more requests, complete the ones in flight and end.
    Stop,
}

/// The next policy of a shard, and how the shards change to it.
pub struct Change<D: Device, F: Front> {
    /// The next policy's port, and the loop compiled for that port.
    pub next: Box<dyn PolicyLoop<D, F>>,
    /// The exchange, shared with the other shards.
    pub exchange: Arc<Exchange>,
    /// The longest time to wait for requests on stores that do not answer, in nanoseconds.
    pub patience_ns: u64,
}

/// A policy's port, and the loop that is compiled for it.
pub trait PolicyLoop<D: Device, F: Front>: Send {
    /// Runs a shard under this policy until the shard has to end (`None`) or to change its policy.
    fn run(self: Box<Self>, shard: Shard<(), D, F>) -> Option<Handover<D, F>>;
}

/// A shard between two policies, and the next.
pub type Handover<D, F> = (Shard<(), D, F>, Box<dyn PolicyLoop<D, F>>);

impl<P: Port + 'static, D: Device, F: Front> PolicyLoop<D, F> for P {
    fn run(self: Box<Self>, shard: Shard<(), D, F>) -> Option<Handover<D, F>> {
        shard.under(*self).serve()
    }
}

/// A barrier at which threads wait for each other.
pub type Meeting = fairq_core::wake::Meeting<Native>;

/// A change of the policy, which all shards make together.
pub struct Exchange {
    /// The barrier at which shards wait until no port holds a request.
    drained: Meeting,
    /// The barrier that is released when the new policy may be used.
    over: Meeting,
    hand_over: Box<dyn Fn() + Send + Sync>,
}

impl Exchange {
    /// An exchange among `shards` shards. `hand_over` passes state of the old policy to the new
    /// one, after the last use of the old one.
    pub(crate) fn new(shards: usize, hand_over: Box<dyn Fn() + Send + Sync>) -> Exchange {
        Exchange { drained: Meeting::new(shards), over: Meeting::new(1), hand_over }
    }

    /// Records that a shard's port no longer holds a request. True if this was the last such shard;
    /// it then has to wake the others.
    fn arrive(&self) -> bool {
        if !self.drained.arrive() {
            return false;
        }
        (self.hand_over)();
        self.over.arrive()
    }

    /// Whether all shards may run under the new policy.
    pub fn is_over(&self) -> bool {
        self.over.is_over()
    }
}

/// The state of a shard: everything that its thread owns. Between two policies `P` is `()`.
pub struct Shard<P, D: Device, F: Front> {
    index: usize,
    ring: Ring,
    path: DataPath<P, D>,
    front: F,
    wipes: Wipes,
    cuts: Vec<Cut>,
    inbox: Receiver<Message<D, F>>,
    wakers: Arc<Wakers>,
    clock: Clock,
    patience: Patience,
    cpu: CpuClock,
    least_sleep: LeastSleep,
    /// The time from which the shard accepts no more requests.
    stopping_ns: Option<u64>,
    /// The change of the policy that a message has requested and the shard has not yet begun.
    change: Option<Change<D, F>>,
    /// Set while the shard is paused.
    halt: Option<Halt>,
    /// During a change of the policy, the time at which the shard stops waiting for stores that do
    /// not answer.
    let_go_ns: Option<u64>,
}

impl<D: Device, F: Front> Shard<(), D, F> {
    /// Opens the ring, queue and front end of the calling thread.
    pub fn open(
        id: PortId,
        common: &Common<D>,
        front: F,
        inbox: Receiver<Message<D, F>>,
    ) -> io::Result<Self> {
        let mut ring = Ring::new(common.fixed_buffers)?;
        let place = Place { port: id, ports: common.wakers.count(), wakers: common.wakers.clone() };
        let queue = common.device.open_queue(&place, &mut ring)?;
        let path = DataPath::new(id, queue, common);
        let mut shard = Shard {
            index: usize::from(id.0),
            ring,
            path,
            front,
            wipes: Wipes::default(),
            cuts: Vec::new(),
            inbox,
            wakers: common.wakers.clone(),
            clock: common.clock,
            patience: Patience::default(),
            cpu: CpuClock::of_this_thread(),
            least_sleep: LeastSleep::new(!common.device.runs_on_shards()),
            stopping_ns: None,
            change: None,
            halt: None,
            let_go_ns: None,
        };
        shard.arm_eventfd();
        Ok(shard)
    }

    /// Runs under this policy and the following ones, until [`Message::Stop`] has come and all
    /// requests in flight are completed.
    pub fn run(self, first: Box<dyn PolicyLoop<D, F>>) {
        let mut now = Some((self, first));
        while let Some((shard, regime)) = now {
            now = regime.run(shard);
        }
    }

    /// This shard with the policy's port in its data path.
    fn under<P: Port>(self, port: P) -> Shard<P, D, F> {
        self.with(|path| path.with_port(port))
    }
}

impl<P, D: Device, F: Front> Shard<P, D, F> {
    /// This shard with the data path that `exchange` makes of its present one.
    fn with<Q>(self, exchange: impl FnOnce(DataPath<P, D>) -> DataPath<Q, D>) -> Shard<Q, D, F> {
        let Shard {
            index,
            ring,
            path,
            front,
            wipes,
            cuts,
            inbox,
            wakers,
            clock,
            patience,
            cpu,
            least_sleep,
            stopping_ns,
            change,
            halt,
            let_go_ns,
        } = self;
        Shard {
            index,
            ring,
            path: exchange(path),
            front,
            wipes,
            cuts,
            inbox,
            wakers,
            clock,
            patience,
            cpu,
            least_sleep,
            stopping_ns,
            change,
            halt,
            let_go_ns,
        }
    }

    /// Queues a poll of the eventfd on the ring.
    fn arm_eventfd(&mut self) {
        let fd = types::Fd(self.wakers.of(self.index).fd());
        let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
        // SAFETY: a poll operation references no memory.
        unsafe { self.ring.push(poll, UserData { asker: Asker::Shard, value: 0 }) };
    }

    /// Handles a wake-up: empties the eventfd, so that the next poll waits for the next wake-up.
    fn clear_eventfd(&mut self) {
        self.wakers.of(self.index).clear();
        self.arm_eventfd();
    }
}

impl<P: Port, D: Device, F: Front> Shard<P, D, F> {
    /// Serves until a change of the policy, or until [`Message::Stop`] has come and all requests in
    /// flight are completed.
    fn serve(mut self) -> Option<Handover<D, F>> {
        self.path.resubmit(self.clock.now_ns(), &mut self.ring);
        self.front.resume();
        loop {
            self.take_events();
            self.take_messages();
            if let Some(change) = self.change.take() {
                return Some(self.drain(change));
            }
            if self.halt.is_some() {
                let busy = self.halted_turn();
                self.park(busy);
                continue;
            }
            let mut busy = self.turn();
            if !self.cuts.is_empty() {
                self.end_cuts();
            }
            if let Some(since_ns) = self.stopping_ns {
                if self.is_stopped() {
                    break;
                }
                busy |= self.give_up_waits(since_ns);
            }
            self.park(busy);
        }
        // The last completions may have unblocked other shards, which would otherwise sleep on.
        self.wakers.wake_all(self.path.take_wakes().0);
        tracing::debug!(shard = self.index, "stopped");
        None
    }

    /// A shard that ends waits for the device, but not for caps: requests that a cap holds back are
    /// answered with an error, since they could wait for hours. True if there were such requests:
    /// the shard then runs another turn, for the next requests of their connections.
    #[cold]
    fn give_up_waits(&mut self, since_ns: u64) -> bool {
        let now_ns = self.clock.now_ns();
        let Some(until_ns) = self.path.waits_until_ns() else { return false };
        let is_short = until_ns.saturating_sub(now_ns) < SHORT_WAIT_NS;
        if is_short && now_ns.saturating_sub(since_ns) < SHORT_WAITS_NS {
            return false;
        }
        self.path.cancel_all(now_ns, libc::ESHUTDOWN);
        self.take_finished(now_ns)
    }

    /// Accepts nothing until no shard's port holds a request; returns the shard for its next loop.
    /// Requests that wait for caps move to the next port. The shard waits for requests on a store
    /// that does not answer for at most `patience_ns`.
    #[cold]
    fn drain(mut self, Change { next, exchange, patience_ns }: Change<D, F>) -> Handover<D, F> {
        let (mut arrived, mut has_let_go) = (false, false);
        let start_ns = self.clock.now_ns();
        self.path.withdraw(start_ns);
        self.let_go_ns = Some(start_ns.saturating_add(patience_ns));
        loop {
            let now_ns = self.clock.now_ns();
            if self.let_go_ns.take_if(|at_ns| now_ns >= *at_ns).is_some() {
                self.path.let_go(now_ns, &mut self.ring);
                has_let_go = true;
            }
            let busy = self.drain_turn(now_ns, has_let_go);
            if !arrived && self.path.is_free_of_port() {
                arrived = true;
                // The last shard to arrive wakes the others, which are perhaps asleep.
                if exchange.arrive() {
                    self.wakers.wake_all(PortSet::first(self.wakers.count()));
                }
            }
            if exchange.is_over() {
                break;
            }
            self.park(busy);
            self.take_events();
            self.take_messages();
        }
        self.let_go_ns = None;
        tracing::debug!(shard = self.index, "goes on under another policy");
        (self.with(DataPath::without_port), next)
    }

    /// One turn that takes no arrivals.
    fn drain_turn(&mut self, now_ns: u64, has_let_go: bool) -> bool {
        let reaped = self.reap(now_ns);
        self.front.flush(now_ns, &mut self.ring);
        // The port must not be called after `let_go` has detached its requests.
        let issued = match has_let_go {
            true => self.path.ring(now_ns, &mut self.ring),
            false => self.path.dispatch(now_ns, &mut self.ring),
        };
        reaped || issued
    }

    /// Passes completions to the front end. True if there were any.
    #[inline]
    fn reap(&mut self, now_ns: u64) -> bool {
        let reaped = self.path.reap(now_ns, &mut self.ring);
        self.take_finished(now_ns);
        reaped
    }

    /// Passes finished orders to their submitter: the wipes or the front end. True if there were
    /// any.
    #[inline]
    fn take_finished(&mut self, now_ns: u64) -> bool {
        let mut has_some = false;
        while let Some(finished) = self.path.finished() {
            has_some = true;
            match finished.asker {
                Asker::Shard => self.wipes.finished(finished),
                _ => self.front.finished(now_ns, finished),
            }
        }
        has_some
    }

    /// Reaps completions, sends replies and issues a batch of new commands; repeats while the
    /// device completes at once. True if there may be more to do at once.
    fn turn(&mut self) -> bool {
        let mut busy = true;
        for _ in 0..INNER_TURNS {
            let now_ns = self.clock.now_ns();
            let reaped = self.reap(now_ns);
            self.path.unthrottle(now_ns, &mut self.ring);
            self.front.arrivals(now_ns, &mut self.ring, &mut self.path);
            self.wipes.submit(now_ns, &mut self.ring, &mut self.path);
            let has_more = self.front.flush(now_ns, &mut self.ring);
            let issued = self.path.dispatch(now_ns, &mut self.ring);
            busy = reaped || has_more || issued;
            if !busy {
                break;
            }
        }
        busy
    }

    /// Reports each cut that no request of this shard crosses.
    #[cold]
    fn end_cuts(&mut self) {
        let path = &self.path;
        let over = self.cuts.extract_if(.., |cut| !path.crosses(cut));
        over.for_each(Cut::end);
    }

    /// Whether all accepted requests have been answered and no command is under way.
    fn is_stopped(&self) -> bool {
        self.front.is_stopped() && self.wipes.are_over() && self.path.is_idle()
    }

    fn take_events(&mut self) {
        let now_ns = self.clock.now_ns();
        while let Some(event) = self.ring.event() {
            match event.data.asker {
                Asker::Device => self.path.event(now_ns, &mut self.ring, event),
                Asker::Shard => self.clear_eventfd(),
                _ => self.front.event(now_ns, &mut self.ring, event),
            }
        }
    }

    fn take_messages(&mut self) {
        // A message is sent before the bell rings, so there is none unless the bell has rung.
        if !self.wakers.take_pending(self.index) {
            return;
        }
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Front(message) => {
                    self.front.message(
                        self.clock.now_ns(),
                        &mut self.ring,
                        &mut self.path,
                        message,
                    );
                }
                Message::Notice(notice) => {
                    let now_ns = self.clock.now_ns();
                    self.front.notice(now_ns, &mut self.ring, &mut self.path, notice);
                }
                Message::Wipe(wipe) => self.wipes.push(*wipe),
                Message::Cut(cut) => self.cuts.push(cut),
                Message::EndWipes(flow) => {
                    self.wipes.cancel(self.clock.now_ns(), &mut self.path, flow);
                }
                Message::Stats(reply) => {
                    let mut report = self.path.report(self.clock.now_ns());
                    report.counters.cpu = self.cpu.read();
                    // The receiver may have been dropped meanwhile.
                    let _ = reply.send((self.index, report));
                }
                Message::Forget(tenant) => self.path.forget(tenant),
                Message::Record(events) => self.path.record(events),
                Message::Recorded(reply) => drop(reply.send((self.index, self.path.recorded()))),
                Message::Change(change) => self.change = Some(change),
                Message::Halt(halt) => self.halt = Some(halt),
                Message::GoOn => self.go_on(),
                Message::Count(counted) => self.path.count_before(*counted),
                Message::Stop => {
                    self.stopping_ns.get_or_insert(self.clock.now_ns());
                    self.wipes.stop();
                    self.front.stop();
                }
            }
        }
    }

    /// Delivers wake-ups and sleeps until something happens.
    fn park(&mut self, busy: bool) {
        let (others, own) = self.path.take_wakes();
        self.wakers.wake_all(others);
        self.least_sleep.measure(self.clock.now_ns(), &self.cpu);
        // A shard that has unblocked its own port needs no bell, only another turn.
        if busy || own || self.is_woken_in_time() || self.has_polled_news() || !self.front.rest() {
            self.path.count_turn(false);
            self.ring.enter(0, None);
            return;
        }
        let may_sleep = self.wakers.of(self.index).bell().park();
        let timeout_ns = self.sleep_ns();
        let sleeps = may_sleep && timeout_ns != Some(0);
        self.path.count_turn(sleeps);
        self.ring.enter(usize::from(sleeps), timeout_ns);
        self.wakers.of(self.index).bell().wake();
    }

    /// Polls for a wake-up or an event for a bounded time, if requests wait for another shard's
    /// action and another shard is running. True if there is work to do.
    fn is_woken_in_time(&mut self) -> bool {
        let may_poll = self.path.is_blocked() && !self.least_sleep.is_on_busy_host();
        if !may_poll || !self.wakers.any_runs(self.index) {
            return false;
        }
        // Queued operations are submitted first: the completion of one of them may free a slot.
        self.ring.enter(0, None);
        let bound_ns = self.patience.bound_ns().min(self.sleep_ns().unwrap_or(u64::MAX));
        self.wakers.of(self.index).bell().look();
        let is_woken = self.look(bound_ns);
        self.wakers.of(self.index).bell().wake();
        is_woken
    }

    /// Polls for a bounded time for requests that reach the front end without an event. True if
    /// there is work to do.
    #[inline]
    fn has_polled_news(&mut self) -> bool {
        let polls_ns = self.front.polls_ns();
        // With `poll = always` the operator states that this shard has a CPU of its own.
        let may_poll = polls_ns == u64::MAX || !self.least_sleep.is_on_busy_host();
        polls_ns > 0 && may_poll && self.poll_front(polls_ns)
    }

    fn poll_front(&mut self, polls_ns: u64) -> bool {
        // The eventfd writes that notify guests are submitted first: guests send their next
        // requests after them. The ends of these writes say nothing about the poll.
        self.ring.enter(0, None);
        if self.ring.has_news() {
            return true;
        }
        let start_ns = self.clock.now_ns();
        let bound_ns = polls_ns.min(self.sleep_ns().unwrap_or(u64::MAX));
        self.wakers.of(self.index).bell().look();
        let (mut waited_ns, mut yield_ns) = (0, YIELD_NS);
        let has_news = loop {
            if self.front.has_news() {
                self.front.polled(Some(waited_ns));
                break true;
            }
            // An event would have ended the shard's sleep as well, so the poll was of no use.
            if self.wakers.of(self.index).bell().is_rung() || self.ring.has_news() {
                self.front.polled(None);
                break true;
            }
            let before_ns = std::mem::replace(&mut waited_ns, self.clock.now_ns() - start_ns);
            if waited_ns >= bound_ns {
                self.front.polled(None);
                break false;
            }
            // Another thread, perhaps the guest itself, has used this CPU. The shard stops polling,
            // so that this thread can run.
            if waited_ns - before_ns > AWAY_NS && polls_ns != u64::MAX {
                break false;
            }
            if waited_ns >= yield_ns {
                std::thread::yield_now();
                yield_ns = waited_ns + YIELD_NS;
            }
            std::hint::spin_loop();
        };
        self.wakers.of(self.index).bell().wake();
        has_news
    }

    fn look(&mut self, bound_ns: u64) -> bool {
        let start_ns = self.clock.now_ns();
        let (mut waited_ns, mut yield_ns) = (0, YIELD_NS);
        loop {
            if self.wakers.of(self.index).bell().is_rung() || self.ring.has_news() {
                self.patience.rewarded(waited_ns);
                return true;
            }
            let before_ns = std::mem::replace(&mut waited_ns, self.clock.now_ns() - start_ns);
            if waited_ns >= bound_ns {
                self.patience.in_vain();
                return false;
            }
            // This poll was cut short, so it says nothing about the length of waits.
            if !self.wakers.any_runs(self.index) || waited_ns - before_ns > AWAY_NS {
                return false;
            }
            if waited_ns >= yield_ns {
                std::thread::yield_now();
                yield_ns = waited_ns + YIELD_NS;
            }
            std::hint::spin_loop();
        }
    }

    /// The time for which the shard may sleep, in nanoseconds; `None` means without limit.
    fn sleep_ns(&self) -> Option<u64> {
        let halt_ns = self.halt.as_ref().and_then(Halt::deadline_ns);
        let deadlines =
            [self.path.deadline_ns(), self.front.deadline_ns(), self.let_go_ns, halt_ns];
        let deadline_ns = deadlines.into_iter().flatten().min()?;
        Some(match deadline_ns.saturating_sub(self.clock.now_ns()) {
            0 => 0,
            sleep_ns => sleep_ns.max(self.least_sleep.ns()),
        })
    }
}
