//! The vhost-user front end of a shard: its vrings.
//!
//! **Kicks and polling.** A vring is *awake* from a kick until the shard is about to sleep: its
//! kicks are suppressed, and each turn of the shard reads its ring. Before the shard sleeps it
//! polls the awake rings for a while ([`Front::polls_ns`]), which spares the guest an exit and the
//! shard a wake-up; the time adapts to the success of polls (`poll = auto`). Then the vrings
//! sleep: their kicks are enabled, and their rings read once more ([`Front::rest`]).

use std::sync::Arc;

use fairq_core::Port;

use crate::device::Device;
use crate::front::guest_memory::Guest;
use crate::front::vhost::vring::{Key, Start, Vring};
use crate::io::ring::{Event, Ring};
use crate::shard::path::{DataPath, Finished};
use crate::shard::spin::Patience;
use crate::shard::turns::{Turn, Turns, Weights};
use crate::shard::{Front, Notice};

use std::sync::mpsc::Sender;

/// The most orders that a vring, or the queues of a controller, submit in a turn to a policy that
/// stages. A guest makes requests about as fast as a shard takes them: without a bound, the
/// policy would dispatch the first request only after the last one, and the guest would sleep
/// meanwhile.
pub(in crate::front) const STAGED: u32 = 8;

/// When a shard polls the rings of its guests instead of sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Poll {
    /// As long as that pays.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A message of a session.
pub enum Message {
    /// Serve this vring.
    Start(Box<Start>),
    /// Take nothing more from a vring; the answer is its position when its requests have ended.
    Stop {
        /// The vring.
        key: Key,
        /// Gets the position.
        reply: Sender<u32>,
    },
    /// The guest's memory has changed: the session's vrings on this shard use the new one.
    Memory {
        /// The session.
        session: u32,
        /// The memory.
        guest: Arc<Guest>,
        /// Gets an answer when the vrings use it.
        reply: Sender<()>,
    },
    /// Another file for the calls of a vring.
    Call {
        /// The vring.
        key: Key,
        /// The eventfd, if there is to be one.
        file: Option<std::os::fd::OwnedFd>,
    },
    /// The monitor's session has ended: its vrings end at once. The sender is dropped when all of
    /// them have ended.
    Close {
        /// The session.
        session: u32,
        /// Dropped at the end.
        reply: Sender<()>,
    },
}

/// The vrings of one shard.
pub struct VhostFront {
    vrings: Vec<Option<Box<Vring>>>,
    /// The awake ones.
    awake: Vec<u16>,
    /// The ones with something to publish, or that may have ended.
    changed: Vec<u16>,
    turns: Turns,
    weights: Arc<Weights>,
    poll: Poll,
    patience: Patience,
    is_stopping: bool,
    is_halted: bool,
}

impl VhostFront {
    /// Without vrings yet. Tenants share the shard's CPU by these weights.
    pub fn new(poll: Poll, weights: Arc<Weights>) -> VhostFront {
        VhostFront {
            vrings: Vec::new(),
            awake: Vec::new(),
            changed: Vec::new(),
            turns: Turns::default(),
            weights,
            poll,
            patience: Patience::default(),
            is_stopping: false,
            is_halted: false,
        }
    }

    fn vring(&mut self, index: usize) -> Option<&mut Vring> {
        self.vrings.get_mut(index)?.as_deref_mut()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Vring> {
        self.vrings.iter_mut().flatten().map(|vring| &mut **vring)
    }

    /// The vrings of a session.
    fn of(&mut self, session: u32) -> impl Iterator<Item = &mut Vring> {
        self.all().filter(move |vring| vring.key.session == session)
    }

    fn find(&mut self, key: Key) -> Option<&mut Vring> {
        self.all().find(|vring| vring.key == key)
    }

    /// Notes that a vring has something to publish or may have ended.
    fn change(&mut self, index: usize) {
        let Some(vring) = self.vrings.get_mut(index).and_then(Option::as_mut) else { return };
        if !std::mem::replace(&mut vring.is_changed, true) {
            self.changed.push(index as u16);
        }
    }

    fn change_all(&mut self) {
        (0..self.vrings.len()).for_each(|index| self.change(index));
    }

    /// Reads a vring's ring in each turn from now on.
    fn awake(&mut self, index: usize) {
        let Some(vring) = self.vrings.get_mut(index).and_then(Option::as_mut) else { return };
        if vring.awake() {
            self.awake.push(index as u16);
        }
    }

    /// Publishes the used buffers to the guests, and drops the vrings that have ended.
    fn publish(&mut self, ring: &mut Ring) {
        let (mut changed, mut has_called) = (std::mem::take(&mut self.changed), false);
        for index in changed.drain(..) {
            let Some(vring) = self.vring(index.into()) else { continue };
            vring.is_changed = false;
            has_called |= vring.flush(ring);
            if vring.has_ended(ring) {
                self.awake.retain(|&awake| awake != index);
                self.vrings[usize::from(index)] = None;
            }
        }
        self.changed = changed;
        // A guest that sleeps takes tens of microseconds to wake up, in which the shard serves the
        // rest of its requests.
        if has_called {
            ring.enter(0, None);
        }
    }

    fn start(&mut self, ring: &mut Ring, start: Start, client: crate::shard::fence::Client) {
        let free = self.vrings.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.vrings.push(None);
            self.vrings.len() - 1
        });
        let mut vring = Box::new(Vring::new(index as u16, start, client));
        if !self.is_halted {
            vring.await_kick(ring);
        }
        self.vrings[index] = Some(vring);
        // Chains may have come before the kick is awaited, or come from the last server.
        self.awake(index);
    }

    /// Cancels the orders of dead vrings that the policy still has.
    fn cancel<P: Port, D: Device>(&mut self, now_ns: u64, path: &mut DataPath<P, D>) {
        let vrings = &self.vrings;
        path.cancel(now_ns, libc::ECANCELED, |cookie| {
            let vring = vrings.get(Vring::index_of(cookie)).and_then(Option::as_ref);
            vring.is_some_and(|vring| vring.is_dead())
        });
        while let Some(finished) = path.finished() {
            self.finished(now_ns, finished);
        }
    }
}

impl Front for VhostFront {
    type Message = Message;

    fn message<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        message: Message,
    ) {
        match message {
            // The session ends with its vrings.
            Message::Start(start) if self.is_stopping => start.link.hang_up(),
            Message::Start(start) => {
                let client = path.client(start.volume.tenant);
                self.start(ring, *start, client);
            }
            Message::Stop { key, reply } => {
                if let Some(vring) = self.find(key) {
                    vring.stop(reply);
                    let index = vring.index();
                    self.change(index);
                }
            }
            Message::Memory { session, guest, reply } => {
                self.of(session).for_each(|vring| vring.move_to(ring, &guest));
                let _ = reply.send(());
            }
            Message::Call { key, file } => {
                if let Some(vring) = self.find(key) {
                    vring.set_call(ring, file);
                }
            }
            Message::Close { session, reply } => {
                self.of(session).for_each(|vring| vring.close(&reply));
                self.cancel(now_ns, path);
                self.change_all();
            }
        }
    }

    fn notice<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        _ring: &mut Ring,
        path: &mut DataPath<P, D>,
        notice: Notice,
    ) {
        match notice {
            Notice::Detach { flow, cut_off } => {
                for vring in self.all().filter(|vring| vring.is_of(flow)) {
                    if cut_off { vring.give_up() } else { vring.detach() }
                }
                if cut_off {
                    self.cancel(now_ns, path);
                }
                (0..self.vrings.len()).for_each(|index| self.awake(index));
                self.change_all();
            }
            Notice::Resize { flow, size } => {
                self.all().filter(|vring| vring.is_of(flow)).for_each(|vring| vring.resize(size));
            }
            Notice::HangUp => {
                self.all().for_each(Vring::give_up);
                self.cancel(now_ns, path);
                self.change_all();
            }
            Notice::Second => self.all().for_each(Vring::second),
        }
    }

    fn event(&mut self, _now_ns: u64, ring: &mut Ring, event: Event) {
        let Some(index) = Vring::of_event(event.data.value) else { return };
        let awaits_kicks = !self.is_halted;
        if self.vring(index).is_some_and(|vring| vring.take(ring, event, awaits_kicks)) {
            self.awake(index);
        }
        self.change(index);
    }

    fn arrivals<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        // The guests process the used buffers while the shard takes their next requests.
        self.publish(ring);
        for &index in &self.awake {
            if let Some(vring) = self.vrings[usize::from(index)].as_mut()
                && vring.wants_turn()
            {
                self.turns.push(vring.tenant(), index.into());
            }
        }
        while path.has_room()
            && let Some(Turn { connection, orders }) = self.turns.next(&self.weights)
        {
            // A policy that stages schedules the orders itself, so weights do not bound the turn.
            let most = if P::IS_DIRECT { orders } else { STAGED };
            let turn = match self.vring(connection as usize) {
                None => (0, false),
                Some(vring) => vring.take_turn(now_ns, ring, path, most),
            };
            self.turns.end(turn.0, turn.1);
            self.change(connection as usize);
        }
    }

    fn finished(&mut self, _now_ns: u64, finished: Finished) {
        let index = Vring::index_of(finished.cookie);
        let Some(vring) = self.vring(index) else { return };
        vring.finished(finished);
        // A blocked vring submits its next orders after a completion, without a kick.
        if vring.is_blocked() {
            self.awake(index);
        }
        self.change(index);
    }

    fn flush(&mut self, _now_ns: u64, ring: &mut Ring) -> bool {
        self.publish(ring);
        false
    }

    fn resume(&mut self) {
        (0..self.vrings.len()).for_each(|index| self.awake(index));
        self.change_all();
    }

    fn polls_ns(&mut self) -> u64 {
        let can_come = |index: &u16| {
            let vring = self.vrings[usize::from(*index)].as_ref();
            vring.is_some_and(|vring| vring.takes_more())
        };
        match self.poll {
            Poll::Never => 0,
            _ if !self.awake.iter().any(can_come) => 0,
            Poll::Always => u64::MAX,
            Poll::Auto => self.patience.bound_ns(),
        }
    }

    #[inline]
    fn has_news(&mut self) -> bool {
        let vrings = &mut self.vrings;
        self.awake.iter().any(|&index| {
            let vring = vrings[usize::from(index)].as_mut();
            vring.is_some_and(|vring| vring.has_news())
        })
    }

    fn polled(&mut self, waited_ns: Option<u64>) {
        match waited_ns {
            Some(waited_ns) => self.patience.rewarded(waited_ns),
            None => self.patience.in_vain(),
        }
    }

    fn rest(&mut self) -> bool {
        let (mut may_sleep, vrings, poll) = (true, &mut self.vrings, self.poll);
        self.awake.retain(|&index| {
            let Some(vring) = vrings[usize::from(index)].as_mut() else { return false };
            // A blocked vring continues after a completion, and needs no kick.
            if vring.is_blocked() {
                may_sleep &= !vring.is_cut_short();
                return true;
            }
            let is_awake = !vring.sleep();
            may_sleep &= !is_awake;
            is_awake
        });
        may_sleep && (poll != Poll::Always || self.vrings.iter().all(Option::is_none))
    }

    fn halt(&mut self, ring: &mut Ring, cancel: bool) -> bool {
        self.is_halted = true;
        let mut is_quiet = true;
        for vring in self.all() {
            is_quiet &= vring.halt(ring, cancel);
        }
        is_quiet
    }

    fn go_on(&mut self, ring: &mut Ring) {
        self.is_halted = false;
        self.all().for_each(|vring| vring.await_kick(ring));
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        self.all().for_each(Vring::drain);
        self.change_all();
    }

    fn is_stopped(&self) -> bool {
        self.vrings.iter().all(Option::is_none)
    }
}
