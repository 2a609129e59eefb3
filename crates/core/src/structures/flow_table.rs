//! The flows of a policy: which there are, with what weight, and when a slot may be used again.
//!
//! The [`FlowTable`] is the part of every policy that knows which flows exist. A flow's shared
//! state is one read-mostly **control word** (generation, weight, state) in a cache line of its
//! own, so that a port validates and weighs a request with one load that hits its own cache.
//!
//! # Removal without counting on the hot path
//! A slot may be used again only when no port holds a request of the old flow. Counting live
//! requests in a shared word would make each request of a tenant bounce a cache line. So each port
//! counts its own in private memory ([`PortFlows`]), and removal asks the ports:
//! 1. `close` marks the control word closed, sets every port's bit of the slot's `pending`, appends
//!    the flow's name to a log, and raises the table's `closings` and `news` counters.
//! 2. A port that notices a new `news` value in `next` (one load of a line that hardly ever
//!    changes) reads the names that are new in the log, some at a time, marks those flows as
//!    closing in its private memory, and clears its bit of each as soon as it holds no request of
//!    it. The log is as long as there are slots: a slot is closed again only when all ports have
//!    let go of it, so no name is overwritten that a port has not read.
//! 3. The port that clears the last bit frees the slot; `add` gives it a new generation.
//!
//! *Ordering.* `closings` and `news` are raised with Release after the word, the bits and the name
//! are written, and read with Acquire, so a port that sees the new value sees the closed word,
//! refuses from then on, and can hold no request of the slot that it has not counted. The bits are
//! cleared with AcqRel, so `add`, which reads `pending == 0` with Acquire, happens after everything
//! any port did with the old flow. A stale [`FlowId`] fails the generation check.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Ordering, Platform};
use crate::contract::port::SubmitError;
use crate::contract::port_set::{PortId, PortSet, SharedPorts, words};
use crate::structures::allocation::boxed;
use crate::structures::fifo::{Fifo, Links};

/// The control word: generation in the upper 32 bits, then weight (24 bits) and state (8 bits).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Control(u64);

const STATE_BITS: u32 = 8;
const _: () = assert!(STATE_BITS + Weight::BITS <= 32);

const FREE: u64 = 0;
const OPEN: u64 = 1;
const CLOSED: u64 = 2;

impl Control {
    fn new(generation: u32, weight: Weight, state: u64) -> Control {
        let weight = u64::from(weight.in_256ths());
        Control(u64::from(generation) << 32 | weight << STATE_BITS | state)
    }
    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
    fn state(self) -> u64 {
        self.0 & ((1 << STATE_BITS) - 1)
    }
    fn weight(self) -> Weight {
        Weight::of_word(self.0 >> STATE_BITS)
    }
    fn is_open_as(self, flow: FlowId) -> bool {
        self.state() == OPEN && self.generation() == flow.generation()
    }
}

/// The flows of one policy; shared by its ports and its control side.
pub(crate) struct FlowTable<P: Platform> {
    words: Box<[P::U64]>,
    /// For each flow the ports that have not let go of it, [`words`] words a flow.
    pending: Box<[P::U64]>,
    pending_words: usize,
    /// Raised by everything that ports are to hear of.
    news: CachePadded<P::U64>,
    /// How many flows have been closed, and the names of the last ones: as many as there are
    /// slots, so that none is overwritten before all ports have let go of it.
    closings: CachePadded<P::U64>,
    closed: Box<[P::U64]>,
    ports: PortSet,
    /// Held by `add`, `set_weight` and `close`, so that only ports run beside each of them.
    control: P::Mutex<()>,
}

impl<P: Platform> FlowTable<P> {
    /// A table of at most `flows` flows over ports `0..ports`.
    pub(crate) fn new(flows: usize, ports: usize) -> Self {
        FlowTable {
            words: boxed(flows, |_| P::U64::new(FREE)),
            pending: boxed(flows * words(ports), |_| P::U64::new(0)),
            pending_words: words(ports),
            news: CachePadded::new(P::U64::new(0)),
            closings: CachePadded::new(P::U64::new(0)),
            closed: boxed(flows, |_| P::U64::new(0)),
            ports: PortSet::first(ports),
            control: P::Mutex::new(()),
        }
    }

    /// The most flows there can be.
    pub(crate) fn capacity(&self) -> usize {
        self.words.len()
    }

    /// All ports.
    pub(crate) fn ports(&self) -> PortSet {
        self.ports
    }

    /// Makes every port's next [`PortFlows::poll`] say that there is news, of something that ports
    /// seldom look at.
    pub(crate) fn tell(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds a flow; one that is known keeps its name. `prepare` sets up the policy's own state of
    /// the slot before any port can use it.
    pub(crate) fn add(
        &self,
        known: Option<FlowId>,
        weight: Weight,
        prepare: impl FnOnce(usize),
    ) -> Result<FlowId, FlowError> {
        self.control.with(|()| {
            // Only the control side writes these words, under this lock, hence Relaxed.
            let free = |(slot, word): &(usize, &P::U64)| {
                Control(word.load(Ordering::Relaxed)).state() != OPEN
                    && self.pending(*slot).is_empty(Ordering::Acquire)
            };
            let mut slots = self.words.iter().enumerate();
            let flow = match known {
                Some(flow) => {
                    slots.nth(flow.slot()).filter(free).map(|_| flow).ok_or(FlowError::Taken)?
                }
                None => {
                    let slot = slots.position(|slot| free(&slot)).ok_or(FlowError::Full)?;
                    let old = Control(self.words[slot].load(Ordering::Relaxed));
                    FlowId::new(slot as u32, old.generation().wrapping_add(1))
                }
            };
            prepare(flow.slot());
            self.words[flow.slot()]
                .store(Control::new(flow.generation(), weight, OPEN).0, Ordering::Release);
            Ok(flow)
        })
    }

    /// Changes a flow's weight.
    pub(crate) fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.control.with(|()| self.replace(flow, weight, OPEN))
    }

    /// Closes a flow; the ports returned must run `next` for its slot to become free.
    pub(crate) fn close(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|()| {
            let weight = self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
            // The bits go first: a slot whose word says closed is not free before each port has
            // answered.
            self.pending(flow.slot()).store(self.ports, Ordering::Release);
            self.replace(flow, weight, CLOSED)?;
            let closings = self.closings.load(Ordering::Relaxed);
            if let Some(place) = self.closed_place(closings) {
                let name = u64::from(flow.generation()) << 32 | flow.slot() as u64;
                place.store(name, Ordering::Relaxed);
            }
            // In this order: a port that sees the news finds the number, and by that the name.
            self.closings.store(closings.wrapping_add(1), Ordering::Release);
            self.news.fetch_add(1, Ordering::Release);
            Ok(self.ports)
        })
    }

    /// The flow's weight, if it is open.
    pub(crate) fn weight(&self, flow: FlowId) -> Option<Weight> {
        let control = Control(self.words.get(flow.slot())?.load(Ordering::Acquire));
        control.is_open_as(flow).then(|| control.weight())
    }

    /// The weight of the flow in `slot`, open or closed, while a port holds requests of it.
    #[inline]
    pub(crate) fn weight_in(&self, slot: usize) -> Weight {
        self.words
            .get(slot)
            .map_or(Weight::DEFAULT, |word| Control(word.load(Ordering::Relaxed)).weight())
    }

    /// The flow in `slot` and its weight, if it is open.
    pub(crate) fn open_in(&self, slot: usize) -> Option<(FlowId, Weight)> {
        let control = Control(self.words.get(slot)?.load(Ordering::Acquire));
        let flow = FlowId::new(slot as u32, control.generation());
        (control.state() == OPEN).then(|| (flow, control.weight()))
    }

    /// The slots of open flows.
    pub(crate) fn open_slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.words
            .iter()
            .enumerate()
            .filter(|(_, word)| Control(word.load(Ordering::Acquire)).state() == OPEN)
            .map(|(slot, _)| slot)
    }

    /// The slots and weights of open flows.
    pub(crate) fn open_weights(&self) -> impl Iterator<Item = (usize, Weight)> + '_ {
        let control = |word: &P::U64| Control(word.load(Ordering::Acquire));
        let open = self
            .words
            .iter()
            .map(control)
            .enumerate()
            .filter(|(_, control)| control.state() == OPEN);
        open.map(|(slot, control)| (slot, control.weight()))
    }

    /// Where the name of the flow stands that was closed as number `closing`.
    fn closed_place(&self, closing: u64) -> Option<&P::U64> {
        self.closed.get(closing.checked_rem(self.closed.len() as u64)? as usize)
    }

    /// The flow that was closed as number `closing`, until all ports have let go of it.
    fn closed(&self, closing: u64) -> Option<FlowId> {
        let name = self.closed_place(closing)?.load(Ordering::Relaxed);
        Some(FlowId::new(name as u32, (name >> 32) as u32))
    }

    /// The ports that have not let go of the slot's closed flow.
    #[inline]
    fn pending(&self, slot: usize) -> SharedPorts<'_, P::U64> {
        let first = slot.saturating_mul(self.pending_words);
        let of_slot = self.pending.get(first..first.saturating_add(self.pending_words));
        SharedPorts::of(of_slot.unwrap_or(&[]))
    }

    /// Rewrites the word of an open flow; the caller holds the control lock.
    fn replace(&self, flow: FlowId, weight: Weight, state: u64) -> Result<(), FlowError> {
        self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
        self.words[flow.slot()]
            .store(Control::new(flow.generation(), weight, state).0, Ordering::Release);
        Ok(())
    }
}

/// One port's private account of flows: how many requests of each it holds, and what else its
/// policy keeps of them, a `T`.
///
/// **Memory.** A port keeps a *seat* for each flow that has requests there, and for those that had
/// some lately: as many seats as tags, or as flows if those are fewer, and a word for each flow. A
/// flow that comes to a port where all seats are taken gets the one that has been idle longest.
/// There is one: a live request takes a tag, so at least one seat is idle before the tag of the
/// request that comes is taken. What was kept of the seat's flow is then forgotten, and starts from
/// `T::default()` when that flow comes back.
///
/// **Alignment.** Every policy's port contains one, and so its alignment, two cache lines
/// (processors fetch them in pairs), becomes the port's. Ports are handed out side by side and each
/// is written by its own thread at every verb: without it two of them would share a line, which
/// cost more than all that they share on purpose.
#[repr(align(128))]
pub(crate) struct PortFlows<T = ()> {
    port: PortId,
    /// The seat of each flow's slot, [`NONE`] without one; empty if each slot has a seat of the
    /// same number.
    seats: Box<[u32]>,
    records: Box<[Record<T>]>,
    /// The seats whose flows have no live request, the longest idle first; unused if each slot has
    /// a seat.
    idle: Fifo,
    idle_links: Links,
    /// How many flows have live requests.
    in_use: u32,
    tags: u32,
    /// The value of the table's `news` that this port has acted on, and of its `closings`.
    news_seen: u64,
    closings_seen: u64,
}

/// No seat.
const NONE: u32 = u32::MAX;

/// How many removals a port acts on in one verb: what is left waits for the next.
const CLOSINGS_AT_ONCE: u64 = 16;

/// No flow's word: slots are below 2^24.
const NO_OWNER: u64 = u64::MAX;

/// A flow's name in one word.
#[inline]
fn word(flow: FlowId) -> u64 {
    (flow.slot() as u64) << 32 | u64::from(flow.generation())
}

/// The flow of a word.
#[inline]
fn flow_of(word: u64) -> Option<FlowId> {
    (word != NO_OWNER).then(|| FlowId::new((word >> 32) as u32, word as u32))
}

/// What a port keeps of a flow.
struct Record<T> {
    /// The flow's name in one word, so that a verb compares it at once; [`NO_OWNER`] without one.
    owner: u64,
    /// Live requests.
    live: u32,
    /// The flow was removed, and the table waits for this port.
    is_closing: bool,
    kept: T,
}

impl<T: Default> Record<T> {
    fn new() -> Self {
        Record { owner: NO_OWNER, live: 0, is_closing: false, kept: T::default() }
    }
}

impl<T: Default> PortFlows<T> {
    /// The account of `port`, which has `tags` tags, for `table`.
    pub(crate) fn new<P: Platform>(port: PortId, table: &FlowTable<P>, tags: usize) -> Self {
        let (flows, seats) = (table.capacity(), table.capacity().min(tags));
        let is_pooled = seats < flows;
        let mut account = PortFlows {
            port,
            seats: boxed(if is_pooled { flows } else { 0 }, |_| NONE),
            records: boxed(seats, |_| Record::new()),
            idle: Fifo::default(),
            idle_links: Links::new(if is_pooled { seats } else { 0 }),
            in_use: 0,
            tags: tags as u32,
            news_seen: 0,
            closings_seen: 0,
        };
        if is_pooled {
            (0..seats as u32).for_each(|seat| account.idle_links.push(&mut account.idle, seat));
        }
        account
    }

    /// How many seats there are; all are below.
    pub(crate) fn seats(&self) -> usize {
        self.records.len()
    }

    /// Counts a request of `flow`, whose tag was free; gives the flow's weight and its seat, if
    /// there is such a flow.
    #[inline(always)]
    pub(crate) fn admit<P: Platform>(
        &mut self,
        table: &FlowTable<P>,
        flow: FlowId,
    ) -> Option<(Weight, usize)> {
        let weight = table.weight(flow)?;
        let seat = if self.seats.is_empty() { flow.slot() } else { self.sit(flow)? };
        let record = self.records.get_mut(seat)?;
        // While the flow has requests here its seat cannot have changed hands.
        if record.live == 0 {
            self.in_use += 1;
            if record.owner != word(flow) {
                // A new flow begins without what was kept of the one before.
                *record = Record { owner: word(flow), ..Record::new() };
            }
        }
        record.live += 1;
        Some((weight, seat))
    }

    /// The seat for a request of the flow, where there are fewer than flows: it is not idle from
    /// now on. Out of line, so that there is room for the rest in the verbs.
    #[inline(never)]
    fn sit(&mut self, flow: FlowId) -> Option<usize> {
        let seat = *self.seats.get(flow.slot())?;
        if let Some(record) = self.records.get(seat as usize) {
            if record.live == 0 {
                self.idle_links.remove(&mut self.idle, seat);
            }
            return Some(seat as usize);
        }
        let seat = self.idle_links.pop(&mut self.idle)?;
        if let Some(old) = self.owner(seat as usize)
            && let Some(place) = self.seats.get_mut(old.slot())
        {
            *place = NONE;
        }
        *self.seats.get_mut(flow.slot())? = seat;
        Some(seat as usize)
    }

    /// The flow's seat, if it has one.
    #[inline]
    pub(crate) fn seat(&self, flow: FlowId) -> Option<usize> {
        let seat = match self.seats.is_empty() {
            true => flow.slot(),
            false => *self.seats.get(flow.slot())? as usize,
        };
        (self.records.get(seat)?.owner == word(flow)).then_some(seat)
    }

    /// Whether the flow may stage another request here ([`Port::admit`](crate::Port::admit)).
    pub(crate) fn has_room<P: Platform>(
        &self,
        table: &FlowTable<P>,
        flow: FlowId,
    ) -> Result<(), SubmitError> {
        table.weight(flow).ok_or(SubmitError::NoSuchFlow)?;
        let live = self.seat(flow).map_or(0, |seat| self.live(seat));
        // `in_use` counts this flow only while it has requests. One part is for a flow to come.
        let parts = self.in_use.saturating_add(u32::from(live == 0) + 1);
        let part = self.tags.checked_div(parts).unwrap_or(0).max(1);
        if live < part { Ok(()) } else { Err(SubmitError::Full) }
    }

    /// Whose seat it is.
    #[inline]
    pub(crate) fn owner(&self, seat: usize) -> Option<FlowId> {
        flow_of(self.records.get(seat)?.owner)
    }

    /// What is kept of the flow in the seat.
    #[inline]
    pub(crate) fn kept(&self, seat: usize) -> Option<&T> {
        self.records.get(seat).map(|record| &record.kept)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn kept_mut(&mut self, seat: usize) -> Option<&mut T> {
        self.records.get_mut(seat).map(|record| &mut record.kept)
    }

    /// How many requests of the seat's flow this port holds.
    #[inline]
    pub(crate) fn live(&self, seat: usize) -> u32 {
        self.records.get(seat).map_or(0, |record| record.live)
    }

    /// Counts a request of the seat's flow as gone.
    #[inline]
    pub(crate) fn finish<P: Platform>(&mut self, table: &FlowTable<P>, seat: usize) {
        let Some(record) = self.records.get_mut(seat) else { return };
        record.live = record.live.saturating_sub(1);
        if record.live > 0 {
            return;
        }
        self.in_use = self.in_use.saturating_sub(1);
        if core::mem::take(&mut record.is_closing)
            && let Some(flow) = flow_of(record.owner)
        {
            release(table, self.port, flow.slot());
        }
        if !self.seats.is_empty() {
            self.idle_links.push(&mut self.idle, seat as u32);
        }
    }

    /// Acts on removals since the last call: one load when there were none. True if there was news
    /// of any kind.
    #[inline]
    pub(crate) fn poll<P: Platform>(&mut self, table: &FlowTable<P>) -> bool {
        let news = table.news.load(Ordering::Acquire);
        let is_news = news != self.news_seen;
        if is_news {
            self.answer(table, news);
        }
        is_news
    }

    /// Whether the next call of [`PortFlows::poll`] has news.
    pub(crate) fn has_news<P: Platform>(&self, table: &FlowTable<P>) -> bool {
        table.news.load(Ordering::Acquire) != self.news_seen
    }

    /// Lets go of flows that were removed, some at a time.
    #[cold]
    fn answer<P: Platform>(&mut self, table: &FlowTable<P>, news: u64) {
        let closings = table.closings.load(Ordering::Acquire);
        let last = closings.min(self.closings_seen.saturating_add(CLOSINGS_AT_ONCE));
        for closing in self.closings_seen..last {
            let Some(flow) = table.closed(closing) else { continue };
            let record = self.seat(flow).and_then(|seat| self.records.get_mut(seat));
            match record.filter(|record| record.live > 0) {
                Some(record) => record.is_closing = true,
                None => release(table, self.port, flow.slot()),
            }
        }
        self.closings_seen = last;
        // News stay unseen until all names are read, so that the next call goes on here.
        if last == closings {
            self.news_seen = news;
        }
    }
}

/// Clears the port's bit of a closed slot.
fn release<P: Platform>(table: &FlowTable<P>, port: PortId, slot: usize) {
    table.pending(slot).remove(port, Ordering::AcqRel);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn weight_of(admitted: Option<(Weight, usize)>) -> Option<Weight> {
        admitted.map(|(weight, _)| weight)
    }

    fn table() -> (FlowTable<Native>, PortFlows, PortFlows) {
        let table = FlowTable::new(2, 2);
        let ports = [0, 1].map(|port| PortFlows::new(PortId(port), &table, 8));
        let [a, b] = ports;
        (table, a, b)
    }

    #[test]
    fn a_slot_is_free_again_only_when_every_port_has_let_go() {
        let (table, mut a, mut b) = table();
        let flow = table.add(None, Weight::DEFAULT, |_| ()).unwrap();
        let other = table.add(None, Weight::MAX, |_| ()).unwrap();
        assert_eq!(table.add(None, Weight::MIN, |_| ()), Err(FlowError::Full));
        assert_eq!(weight_of(a.admit(&table, flow)), Some(Weight::DEFAULT));
        assert_eq!(table.close(flow), Ok(PortSet::first(2)));
        assert_eq!(weight_of(a.admit(&table, flow)), None);
        a.poll(&table);
        b.poll(&table);
        assert_eq!(
            table.add(None, Weight::MIN, |_| ()),
            Err(FlowError::Full),
            "port 0 still holds a request"
        );
        a.finish(&table, flow.slot());
        let new = table.add(None, Weight::MIN, |_| ()).unwrap();
        assert_eq!(new.slot(), flow.slot());
        assert_ne!(new, flow);
        assert_eq!(table.weight(flow), None);
        assert_eq!(table.set_weight(flow, Weight::MAX), Err(FlowError::NoSuchFlow));
        assert_eq!(table.close(flow), Err(FlowError::NoSuchFlow));
        assert_eq!(table.weight(new), Some(Weight::MIN));
        assert_eq!(table.weight(other), Some(Weight::MAX));
    }

    #[test]
    fn a_known_flow_keeps_its_name_and_old_ones_stay_unknown() {
        let (old, mut a, mut b) = table();
        let first = old.add(None, Weight::DEFAULT, |_| ()).unwrap();
        let gone = old.add(None, Weight::DEFAULT, |_| ()).unwrap();
        old.close(gone).unwrap();
        a.poll(&old);
        b.poll(&old);
        let second = old.add(None, Weight::MAX, |_| ()).unwrap();
        assert_eq!(second.slot(), gone.slot());

        let (new, mut port, _) = table();
        assert_eq!(
            new.add(Some(second), Weight::MIN, |slot| assert_eq!(slot, second.slot())),
            Ok(second)
        );
        assert_eq!(new.add(Some(second), Weight::MIN, |_| ()), Err(FlowError::Taken));
        assert_eq!(weight_of(port.admit(&new, gone)), None);
        assert_eq!(weight_of(port.admit(&new, second)), Some(Weight::MIN));
        assert_eq!(new.add(Some(first), Weight::DEFAULT, |_| ()), Ok(first));
        assert_eq!(new.add(None, Weight::DEFAULT, |_| ()), Err(FlowError::Full));
        let small = FlowTable::<Native>::new(1, 1);
        assert_eq!(
            small.add(Some(second), Weight::DEFAULT, |_| ()),
            Err(FlowError::Taken),
            "beyond the bound"
        );
    }

    #[test]
    fn weights_change_at_once_and_only_between_1_and_10000() {
        let (table, mut a, _) = table();
        let flow = table.add(None, Weight::new(300).unwrap(), |_| ()).unwrap();
        table.set_weight(flow, Weight::new(7).unwrap()).unwrap();
        assert_eq!(weight_of(a.admit(&table, flow)), Weight::new(7));
        assert_eq!(Weight::new(0), None);
        assert_eq!(Weight::new(10_001), None);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Add,
        Remove(usize),
        Submit(usize, usize),
        Complete(usize, usize),
        Poll(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Add),
            1 => (0usize..40).prop_map(Step::Remove),
            6 => (0usize..2, 0usize..40).prop_map(|(port, flow)| Step::Submit(port, flow)),
            5 => (0usize..2, 0usize..4).prop_map(|(port, nth)| Step::Complete(port, nth)),
            2 => (0usize..2).prop_map(Step::Poll),
        ];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        /// Up to 20 flows come and go on two ports with four tags, and so four seats, each: a
        /// request finds what was kept of its flow, or nothing, never another flow's; what a port
        /// holds is counted; and slots are free again when both ports have let go, whenever they
        /// come to hear of a removal.
        #[test]
        fn a_seat_is_its_flows_alone(steps in steps()) {
            const TAGS: usize = 4;
            let table = FlowTable::<Native>::new(20, 2);
            let mut ports =
                [0, 1].map(|port| PortFlows::<Option<FlowId>>::new(PortId(port), &table, TAGS));
            let mut live: [Vec<(FlowId, usize)>; 2] = [Vec::new(), Vec::new()];
            let mut open: Vec<FlowId> = Vec::new();
            for step in steps {
                match step {
                    Step::Add => open.extend(table.add(None, Weight::DEFAULT, |_| ())),
                    Step::Remove(at) if at < open.len() => {
                        table.close(open.swap_remove(at)).unwrap();
                    }
                    Step::Submit(at, flow) if live[at].len() < TAGS && flow < open.len() => {
                        let flow = open[flow];
                        let (_, seat) = ports[at].admit(&table, flow).unwrap();
                        prop_assert!(seat < TAGS);
                        let kept = ports[at].kept_mut(seat).unwrap();
                        prop_assert!(kept.is_none_or(|kept| kept == flow));
                        *kept = Some(flow);
                        prop_assert!(live[at].iter().all(|held| (held.0 == flow) == (held.1 == seat)));
                        live[at].push((flow, seat));
                    }
                    Step::Complete(at, nth) if nth < live[at].len() => {
                        let (_, seat) = live[at].swap_remove(nth);
                        ports[at].finish(&table, seat);
                    }
                    Step::Poll(at) => _ = ports[at].poll(&table),
                    _ => {}
                }
                for (port, live) in ports.iter().zip(&live) {
                    for (flow, seat) in live {
                        let count = live.iter().filter(|held| held.0 == *flow).count();
                        prop_assert_eq!(port.live(*seat) as usize, count);
                        prop_assert_eq!(port.seat(*flow), Some(*seat));
                    }
                }
            }
            for flow in open.drain(..) {
                table.close(flow).unwrap();
            }
            // At most so many removals are heard of in one go.
            for _ in 0..=20 / CLOSINGS_AT_ONCE {
                ports.iter_mut().for_each(|port| _ = port.poll(&table));
            }
            for (port, live) in ports.iter_mut().zip(&live) {
                live.iter().for_each(|(_, seat)| port.finish(&table, *seat));
            }
            let again = core::iter::from_fn(|| table.add(None, Weight::DEFAULT, |_| ()).ok());
            prop_assert_eq!(again.count(), 20, "every slot is free again");
        }
    }

    #[test]
    fn no_flow_may_take_all_tags_of_a_port() {
        let table = FlowTable::<Native>::new(8, 1);
        let mut port = PortFlows::<()>::new(PortId(0), &table, 12);
        let [a, b, c] = [(); 3].map(|()| table.add(None, Weight::DEFAULT, |_| ()).unwrap());
        let fill = |port: &mut PortFlows, flow| {
            let mut count = 0;
            while port.has_room(&table, flow).is_ok() {
                port.admit(&table, flow).unwrap();
                count += 1;
            }
            assert_eq!(port.has_room(&table, flow), Err(SubmitError::Full));
            count
        };
        assert_eq!([a, b, c].map(|flow| fill(&mut port, flow)), [6, 4, 3], "12/2, 12/3, 12/4");
        table.close(c).unwrap();
        assert_eq!(port.has_room(&table, c), Err(SubmitError::NoSuchFlow));
    }

    /// 64 ports for 10,000 flows: a word for each flow and port, and what requests can need.
    #[test]
    fn a_port_keeps_a_word_for_each_flow() {
        let table = FlowTable::<Native>::new(10_000, 1);
        let port = PortFlows::<[u64; 8]>::new(PortId(0), &table, 512);
        let bytes = port.seats.len() * size_of::<u32>()
            + port.records.len() * size_of::<Record<[u64; 8]>>();
        assert!(bytes < 100_000, "{bytes}");
    }
}
