//! The vfio-user front end of a shard: a group of queues for each controller that has some here.
//!
//! **Kicks and polling.** A group is *awake* from a kick until the shard is about to sleep: each
//! turn of the shard reads its doorbells. Before the shard sleeps it polls the awake groups for a
//! while ([`Front::polls_ns`]), which spares the guest's commands a wake-up; the time adapts to
//! what that brings (`poll = auto`). Then the groups sleep, after their doorbells were read once
//! more ([`Front::rest`]).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fairq_core::Port;
use fairq_device::Arbitration;

use crate::device::Device;
use crate::front::guest_memory::Guest;
use crate::front::vfio_user::interrupts::Interrupts;
use crate::front::vfio_user::queue_group::{LeftQueues, NewCq, NewGroup, NewSq, QueueGroup};
use crate::front::vhost::vrings::{Poll, STAGED};
use crate::io::ring::{Event, Ring};
use crate::shard::path::{DataPath, Finished};
use crate::shard::spin::Patience;
use crate::shard::turns::{Turn, Turns, Weights};
use crate::shard::{Front, Notice};

/// A message of a session. A `reply` is dropped when the message was carried out.
pub enum Message {
    /// Serve a completion queue, in a new group if there is none of the session.
    AddCq {
        /// The group to begin with.
        group: Box<NewGroup>,
        /// The queue.
        cq: NewCq,
        /// Dropped at the end.
        reply: Sender<()>,
    },
    /// Serve a submission queue.
    AddSq {
        /// The session.
        session: u32,
        /// The queue.
        sq: Box<NewSq>,
        /// Dropped at the end.
        reply: Sender<()>,
    },
    /// Take nothing more from a submission queue, and end its commands.
    DeleteSq {
        /// The session.
        session: u32,
        /// The queue.
        id: u16,
        /// Dropped when its commands have ended.
        reply: Sender<()>,
    },
    /// Serve a completion queue no longer.
    DeleteCq {
        /// The session.
        session: u32,
        /// The queue.
        id: u16,
        /// Dropped at the end.
        reply: Sender<()>,
    },
    /// The guest's memory is another: the session's group goes on in it.
    Memory {
        /// The session.
        session: u32,
        /// The memory.
        guest: Arc<Guest>,
        /// Whether memory was removed: `reply` is then dropped when no command has memory of an
        /// earlier generation, and else at once.
        is_removal: bool,
        /// See `is_removal`.
        reply: Sender<()>,
    },
    /// The weights of the session's classes.
    Arbitration {
        /// The session.
        session: u32,
        /// The weights.
        arbitration: Arbitration,
        /// Dropped at the end.
        reply: Sender<()>,
    },
    /// The doorbells are in the guest's memory.
    Shadow {
        /// The session.
        session: u32,
        /// The guest's addresses of doorbells and event indexes.
        addresses: [u64; 2],
        /// Dropped at the end.
        reply: Sender<()>,
    },
    /// Another eventfd for an interrupt vector.
    Vector {
        /// The session.
        session: u32,
        /// The vector.
        vector: u16,
        /// The eventfd, if there is to be one.
        call: Option<Arc<OwnedFd>>,
        /// Dropped at the end.
        reply: Sender<()>,
    },
    /// Send the state of the session's queues for the next program; the shard stands still.
    Leave {
        /// The session.
        session: u32,
        /// Gets the state, if there are queues.
        reply: Sender<LeftQueues>,
    },
    /// A doorbell was rung while the session's group slept.
    Kick {
        /// The session.
        session: u32,
    },
    /// Interrupt the guest.
    Signal {
        /// The session.
        session: u32,
        /// The vector.
        vector: u16,
    },
    /// The client has gone, or resets the controller: the session's group ends at once.
    Close {
        /// The session.
        session: u32,
        /// Whether the session ends, and with it its interrupts.
        is_end: bool,
        /// Dropped at the end.
        reply: Sender<()>,
    },
}

/// The first and the longest nap, in nanoseconds: the time after which a shard that has nothing to
/// do reads doorbells which a client writes without a message.
const FIRST_NAP_NS: u64 = 50_000;
const LAST_NAP_NS: u64 = 1_000_000;

/// The naps of a shard. Each that no command ends is followed by one of twice the length.
struct Naps {
    /// The time of the shard's turn.
    now_ns: u64,
    length_ns: u64,
    end_ns: Option<u64>,
}

impl Naps {
    fn end(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if self.end_ns.take().is_some_and(|end_ns| now_ns >= end_ns) {
            self.length_ns = (2 * self.length_ns).min(LAST_NAP_NS);
        }
    }

    /// A command has come.
    fn are_used(&mut self) {
        (self.length_ns, self.end_ns) = (FIRST_NAP_NS, None);
    }

    fn begin(&mut self) {
        self.end_ns = Some(self.now_ns + self.length_ns);
    }
}

/// The groups of one shard.
pub struct VfioUserFront {
    groups: Vec<Option<Box<QueueGroup>>>,
    /// The awake ones.
    awake: Vec<u16>,
    /// The ones with something to signal, or that may have ended.
    changed: Vec<u16>,
    interrupts: Interrupts,
    turns: Turns,
    weights: Arc<Weights>,
    poll: Poll,
    patience: Patience,
    naps: Naps,
    is_stopping: bool,
}

impl VfioUserFront {
    /// Without groups yet. Tenants share the shard's CPU by these weights.
    pub fn new(poll: Poll, weights: Arc<Weights>) -> VfioUserFront {
        VfioUserFront {
            groups: Vec::new(),
            awake: Vec::new(),
            changed: Vec::new(),
            interrupts: Interrupts::default(),
            turns: Turns::default(),
            weights,
            poll,
            patience: Patience::default(),
            naps: Naps { now_ns: 0, length_ns: FIRST_NAP_NS, end_ns: None },
            is_stopping: false,
        }
    }

    fn group(&mut self, index: usize) -> Option<&mut QueueGroup> {
        self.groups.get_mut(index)?.as_deref_mut()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut QueueGroup> {
        self.groups.iter_mut().flatten().map(|group| &mut **group)
    }

    /// The group of a session.
    fn of(&mut self, session: u32) -> Option<&mut QueueGroup> {
        self.all().find(|group| group.session == session)
    }

    /// Notes that a group has something to signal or may have ended.
    fn change(&mut self, index: usize) {
        let Some(group) = self.group(index) else { return };
        if !std::mem::replace(&mut group.is_changed, true) {
            self.changed.push(index as u16);
        }
    }

    fn change_all(&mut self) {
        (0..self.groups.len()).for_each(|index| self.change(index));
    }

    /// Reads a group's doorbells in each turn from now on.
    fn awake(&mut self, index: usize) {
        if self.group(index).is_some_and(QueueGroup::awake) {
            self.awake.push(index as u16);
        }
    }

    fn awake_all(&mut self) {
        (0..self.groups.len()).for_each(|index| self.awake(index));
    }

    /// Reads the doorbells of a session, and drops its group if that has ended.
    fn awake_of(&mut self, session: u32) {
        if let Some(index) = self.of(session).map(|group| group.index()) {
            self.awake(index);
            self.change(index);
        }
    }

    fn add<P: Port, D: Device>(&mut self, path: &mut DataPath<P, D>, new: NewGroup, cq: NewCq) {
        if self.is_stopping {
            // The session ends with its queues.
            return new.bridge.hang_up();
        }
        let line = cq.ring.vector.map(|vector| self.interrupts.line(new.session, vector));
        if let Some(group) = self.of(new.session) {
            return group.add_cq(cq, line);
        }
        let free = self.groups.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        let client = path.client(new.volume.tenant);
        let mut group = Box::new(QueueGroup::new(index as u16, new, client));
        group.add_cq(cq, line);
        self.groups[index] = Some(group);
    }

    /// Cancels the orders that the policy still has and whose results are wanted no longer.
    fn cancel<P: Port, D: Device>(&mut self, now_ns: u64, path: &mut DataPath<P, D>) {
        let groups = &self.groups;
        path.cancel(now_ns, libc::ECANCELED, |cookie| {
            let group = groups.get(QueueGroup::index_of(cookie)).and_then(Option::as_ref);
            group.is_some_and(|group| group.is_unwanted(cookie))
        });
        while let Some(finished) = path.finished() {
            self.finished(now_ns, finished);
        }
    }
}

impl Front for VfioUserFront {
    type Message = Message;

    fn message<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        message: Message,
    ) {
        match message {
            Message::AddCq { group, cq, reply: _reply } => self.add(path, *group, cq),
            Message::AddSq { session, sq, reply: _reply } => {
                if let Some(group) = self.of(session) {
                    group.add_sq(*sq);
                }
                self.awake_of(session);
            }
            Message::DeleteSq { session, id, reply } => {
                if let Some(group) = self.of(session) {
                    group.delete_sq(id, reply);
                }
                self.cancel(now_ns, path);
                self.awake_of(session);
            }
            Message::DeleteCq { session, id, reply: _reply } => {
                if let Some(group) = self.of(session) {
                    group.remove_cq(id);
                }
            }
            Message::Memory { session, guest, is_removal, reply } => {
                let mut groups = self.groups.iter_mut().flatten();
                if let Some(group) = groups.find(|group| group.session == session) {
                    let moved = is_removal.then_some(reply);
                    group.move_to(ring, &mut self.interrupts, &guest, moved);
                }
            }
            Message::Arbitration { session, arbitration, reply: _reply } => {
                if let Some(group) = self.of(session) {
                    group.set_arbitration(arbitration);
                }
            }
            Message::Shadow { session, addresses, reply: _reply } => {
                if let Some(group) = self.of(session) {
                    group.set_shadow(addresses);
                }
                self.awake_of(session);
            }
            Message::Vector { session, vector, call, reply: _reply } => {
                self.interrupts.replace(ring, (session, vector), call);
            }
            Message::Leave { session, reply } => {
                if let Some(group) = self.of(session) {
                    let _ = reply.send(group.left());
                }
            }
            Message::Kick { session } => self.awake_of(session),
            Message::Signal { session, vector } => {
                let line = self.interrupts.line(session, vector);
                self.interrupts.signal(ring, line);
            }
            Message::Close { session, is_end, reply } => {
                if is_end {
                    self.interrupts.end(ring, session);
                }
                if let Some(group) = self.of(session) {
                    group.close(&reply);
                }
                self.cancel(now_ns, path);
                self.awake_of(session);
            }
        }
    }

    fn notice<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        notice: Notice,
    ) {
        match notice {
            Notice::Detach { flow, cut_off } => {
                for group in self.all().filter(|group| group.is_of(flow)) {
                    if cut_off { group.give_up() } else { group.detach() }
                }
                if cut_off {
                    self.cancel(now_ns, path);
                }
                self.awake_all();
                self.change_all();
            }
            Notice::Resize { flow, size } => {
                self.all().filter(|group| group.is_of(flow)).for_each(|group| group.resize(size));
            }
            Notice::HangUp => {
                self.all().for_each(QueueGroup::give_up);
                self.cancel(now_ns, path);
                self.change_all();
            }
            Notice::Second => {
                self.interrupts.drop_ended(ring);
                self.all().for_each(QueueGroup::second);
                self.change_all();
            }
        }
    }

    fn event(&mut self, _now_ns: u64, ring: &mut Ring, event: Event) {
        self.interrupts.ended(ring, event);
    }

    fn arrivals<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        for &index in &self.awake {
            if let Some(group) = self.groups[usize::from(index)].as_mut()
                && group.wants_turn()
            {
                if group.naps() {
                    self.naps.are_used();
                }
                self.turns.push(group.tenant(), index.into());
            }
        }
        while path.has_room()
            && let Some(Turn { connection, orders }) = self.turns.next(&self.weights)
        {
            // A policy that stages has room for all, and orders them itself.
            let most = if P::IS_DIRECT { orders } else { STAGED };
            let turn = match self.group(connection as usize) {
                None => (0, false),
                Some(group) => group.take_turn(now_ns, ring, path, most),
            };
            self.turns.end(turn.0, turn.1);
            self.change(connection as usize);
        }
    }

    fn finished(&mut self, _now_ns: u64, finished: Finished) {
        let index = QueueGroup::index_of(finished.cookie);
        let Some(group) = self.group(index) else { return };
        group.finished(finished);
        // The next piece of a command, or a place for another order, needs no kick.
        if group.is_blocked() {
            self.awake(index);
        }
        self.change(index);
    }

    fn flush(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        self.naps.end(now_ns);
        let mut changed = std::mem::take(&mut self.changed);
        for index in changed.drain(..) {
            let Some(group) = self.groups[usize::from(index)].as_mut() else { continue };
            group.is_changed = false;
            group.flush(ring, &mut self.interrupts);
            if group.has_ended() {
                self.awake.retain(|&awake| awake != index);
                self.groups[usize::from(index)] = None;
            }
        }
        self.changed = changed;
        false
    }

    fn resume(&mut self) {
        self.awake_all();
        self.change_all();
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.naps.end_ns
    }

    fn polls_ns(&mut self) -> u64 {
        let can_come = |index: &u16| {
            let group = self.groups[usize::from(*index)].as_ref();
            group.is_some_and(|group| group.is_polled())
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
        let groups = &mut self.groups;
        self.awake.iter().any(|&index| {
            let group = groups[usize::from(index)].as_mut();
            group.is_some_and(|group| group.has_news())
        })
    }

    fn polled(&mut self, waited_ns: Option<u64>) {
        match waited_ns {
            Some(waited_ns) => self.patience.rewarded(waited_ns),
            None => self.patience.in_vain(),
        }
    }

    fn rest(&mut self) -> bool {
        let (mut may_sleep, mut naps) = (true, false);
        let (groups, poll) = (&mut self.groups, self.poll);
        self.awake.retain(|&index| {
            let Some(group) = groups[usize::from(index)].as_mut() else { return false };
            // One that waits for room goes on with a completion, and needs no kick.
            if group.is_blocked() {
                may_sleep &= !group.is_cut_short();
                return true;
            }
            may_sleep &= group.sleep();
            naps |= group.naps();
            group.is_awake()
        });
        if naps {
            self.naps.begin();
        }
        may_sleep && (poll != Poll::Always || self.groups.iter().all(Option::is_none))
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        self.all().for_each(QueueGroup::drain);
        self.change_all();
    }

    fn is_stopped(&self) -> bool {
        self.groups.iter().all(Option::is_none)
    }
}
