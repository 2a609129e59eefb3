//! Flows: who is charged, with what weight, and when their slot may be used again.
//!
//! The [`FlowTable`] is the part of every policy that knows which flows exist. A flow's shared
//! state is one read-mostly **control word** (generation, weight, state) in a cache line of its
//! own, so that a port validates and weighs a request with one load that hits its own cache.
//!
//! # Removal without counting on the hot path
//! A slot may be used again only when no port holds a request of the old flow. Counting live
//! requests in a shared word would make each request of a tenant bounce a cache line. So each port
//! counts its own in private memory ([`PortFlows`]), and removal asks the ports:
//! 1. `close` marks the control word closed, sets every port's bit in the slot's `pending` word and
//!    raises the table's `closings` counter.
//! 2. A port that notices a new `closings` value in `next` (one load of a line that hardly ever
//!    changes) marks the slot closed in its private memory, and clears its bit as soon as it holds
//!    no request of it.
//! 3. The port that clears the last bit frees the slot; `add` gives it a new generation.
//!
//! *Ordering.* `closings` is raised with Release after the word and the bits are written, and read
//! with Acquire, so a port that sees the new value sees the closed word, refuses from then on, and
//! can hold no request of the slot that it has not counted. The bits are cleared with AcqRel, so
//! `add`, which reads `pending == 0` with Acquire, happens after everything any port did with the
//! old flow. A stale [`FlowId`] fails the generation check.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

use crate::contract::platform::{AtomicWord, Lock, Ordering, Platform};
use crate::contract::port_set::{PortId, PortSet, SharedPorts, words};

/// A flow's share relative to the others': 1 to 10,000, as in Linux cgroup v2; 100 by default.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Weight(u16);

impl Weight {
    /// The smallest weight.
    pub const MIN: Weight = Weight(1);
    /// The largest weight.
    pub const MAX: Weight = Weight(10_000);
    /// The weight of a flow of which nothing is said.
    pub const DEFAULT: Weight = Weight(100);

    /// The weight, if it is in 1..=10000.
    pub const fn new(weight: u16) -> Option<Weight> {
        if weight >= Self::MIN.0 && weight <= Self::MAX.0 { Some(Weight(weight)) } else { None }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::DEFAULT
    }
}

/// Names a flow: a dense slot, and a generation that tells it from earlier flows in the same slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowId {
    slot: u32,
    generation: u32,
}

impl FlowId {
    /// The slot: an index below the policy's bound of flows.
    #[inline]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// The generation.
    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        self.generation
    }
}

/// Why the control side refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FlowError {
    /// Every slot is taken (a removed flow's slot is taken until its last request has completed).
    #[error("all flow slots are in use")]
    Full,
    /// The slot that a flow had in another policy is taken here, or beyond the bound.
    #[error(
        "the flow's slot is not free in this policy: build it for as many flows as the one before \
         it"
    )]
    Taken,
    /// The flow was removed, or never was.
    #[error("no such flow: it was removed or never added")]
    NoSuchFlow,
    /// The policy never uses the urgent class, or was built without a budget for it.
    #[error("no urgent class: only d2fq has one, and only with a budget (urgent=10%, say)")]
    NotUrgent,
}

/// The control word: generation in the upper 32 bits, then weight (16 bits) and state (lowest
/// bits).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Control(u64);

const FREE: u64 = 0;
const OPEN: u64 = 1;
const CLOSED: u64 = 2;

impl Control {
    fn new(generation: u32, weight: Weight, state: u64) -> Control {
        Control(u64::from(generation) << 32 | u64::from(weight.get()) << 16 | state)
    }
    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
    fn state(self) -> u64 {
        self.0 & 0xffff
    }
    fn weight(self) -> Weight {
        Weight((self.0 >> 16) as u16)
    }
    fn is_open_as(self, flow: FlowId) -> bool {
        self.state() == OPEN && self.generation() == flow.generation
    }
}

/// The flows of one policy; shared by its ports and its control side.
pub struct FlowTable<P: Platform> {
    words: Box<[P::U64]>,
    /// For each flow the ports that have not let go of it, [`words`] words a flow.
    pending: Box<[P::U64]>,
    pending_words: usize,
    closings: CachePadded<P::U64>,
    ports: PortSet,
    /// Held by `add`, `set_weight` and `close`, so that only ports run beside each of them.
    control: P::Mutex<()>,
}

impl<P: Platform> FlowTable<P> {
    /// A table of at most `flows` flows over ports `0..ports`.
    pub fn new(flows: usize, ports: usize) -> Self {
        FlowTable {
            words: (0..flows).map(|_| P::U64::new(FREE)).collect(),
            pending: SharedPorts::empty::<P>(flows * words(ports)),
            pending_words: words(ports),
            closings: CachePadded::new(P::U64::new(0)),
            ports: PortSet::first(ports),
            control: P::Mutex::new(()),
        }
    }

    /// The most flows there can be.
    pub fn capacity(&self) -> usize {
        self.words.len()
    }

    /// All ports.
    pub(crate) fn ports(&self) -> PortSet {
        self.ports
    }

    /// Makes every port's next [`PortFlows::poll`] say that there is news, of something that ports
    /// seldom look at.
    pub(crate) fn tell(&self) {
        self.closings.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds a flow; one that is known keeps its name. `prepare` sets up the policy's own state of
    /// the slot before any port can use it.
    pub fn add(
        &self,
        known: Option<FlowId>,
        weight: Weight,
        prepare: impl FnOnce(usize),
    ) -> Result<FlowId, FlowError> {
        self.control.with(|()| {
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
                    FlowId { slot: slot as u32, generation: old.generation().wrapping_add(1) }
                }
            };
            prepare(flow.slot());
            self.words[flow.slot()]
                .store(Control::new(flow.generation, weight, OPEN).0, Ordering::Release);
            Ok(flow)
        })
    }

    /// Changes a flow's weight.
    pub fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.control.with(|()| self.replace(flow, weight, OPEN))
    }

    /// Closes a flow; the ports returned must run `next` for its slot to become free.
    pub fn close(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|()| {
            let weight = self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
            // The bits go first: a slot whose word says closed is not free before each port has
            // answered.
            self.pending(flow.slot()).store(self.ports, Ordering::Release);
            self.replace(flow, weight, CLOSED)?;
            self.closings.fetch_add(1, Ordering::Release);
            Ok(self.ports)
        })
    }

    /// The flow's weight, if it is open.
    pub fn weight(&self, flow: FlowId) -> Option<Weight> {
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
        let flow = FlowId { slot: slot as u32, generation: control.generation() };
        (control.state() == OPEN).then(|| (flow, control.weight()))
    }

    /// The slots of open flows.
    pub fn open_slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.words
            .iter()
            .enumerate()
            .filter(|(_, word)| Control(word.load(Ordering::Acquire)).state() == OPEN)
            .map(|(slot, _)| slot)
    }

    /// The slots and weights of open flows.
    pub fn open_weights(&self) -> impl Iterator<Item = (usize, Weight)> + '_ {
        let control = |word: &P::U64| Control(word.load(Ordering::Acquire));
        let open = self
            .words
            .iter()
            .map(control)
            .enumerate()
            .filter(|(_, control)| control.state() == OPEN);
        open.map(|(slot, control)| (slot, control.weight()))
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
            .store(Control::new(flow.generation, weight, state).0, Ordering::Release);
        Ok(())
    }
}

/// One port's private account of flows: how many requests of each it holds.
///
/// Every policy's port contains one, and so its alignment, two cache lines (processors fetch them
/// in pairs), becomes the port's. Ports are handed out side by side and each is written by its own
/// thread at every verb: without it two of them would share a line, which cost more than all that
/// they share on purpose.
#[repr(align(128))]
pub struct PortFlows {
    port: PortId,
    live: Box<[u32]>,
    /// The value of the table's `closings` that this port has acted on.
    closings_seen: u64,
    /// Slots that are closed but of which this port still holds requests; never more than the flows
    /// there are.
    closing: Vec<u32>,
}

impl PortFlows {
    /// The account of `port` for `table`.
    pub fn new<P: Platform>(port: PortId, table: &FlowTable<P>) -> Self {
        PortFlows {
            port,
            live: (0..table.capacity()).map(|_| 0).collect(),
            closings_seen: 0,
            closing: Vec::with_capacity(table.capacity()),
        }
    }

    /// Admits a request of `flow` and counts it; gives the flow's weight, if there is such a flow.
    #[inline]
    pub fn admit<P: Platform>(&mut self, table: &FlowTable<P>, flow: FlowId) -> Option<Weight> {
        let weight = table.weight(flow)?;
        *self.live.get_mut(flow.slot())? += 1;
        Some(weight)
    }

    /// How many requests of `slot` this port holds.
    #[inline]
    pub fn live(&self, slot: usize) -> u32 {
        self.live.get(slot).copied().unwrap_or(0)
    }

    /// Counts a request of `slot` as gone.
    #[inline]
    pub fn finish<P: Platform>(&mut self, table: &FlowTable<P>, slot: usize) {
        let Some(live) = self.live.get_mut(slot) else { return };
        *live = live.saturating_sub(1);
        if *live == 0 && !self.closing.is_empty() {
            self.closing.retain(|&closing| {
                let released = closing as usize == slot;
                if released {
                    release(table, self.port, slot);
                }
                !released
            });
        }
    }

    /// Acts on removals since the last call: one load when there were none. True if there was news
    /// of any kind.
    #[inline]
    pub fn poll<P: Platform>(&mut self, table: &FlowTable<P>) -> bool {
        let closings = table.closings.load(Ordering::Acquire);
        let is_news = closings != self.closings_seen;
        if is_news {
            self.closings_seen = closings;
            self.answer(table);
        }
        is_news
    }

    #[cold]
    fn answer<P: Platform>(&mut self, table: &FlowTable<P>) {
        for (slot, (word, live)) in table.words.iter().zip(self.live.iter()).enumerate() {
            let closed = Control(word.load(Ordering::Acquire)).state() == CLOSED;
            if !closed
                || !table.pending(slot).contains(self.port, Ordering::Acquire)
                || self.closing.contains(&(slot as u32))
            {
                continue;
            }
            if *live == 0 {
                release(table, self.port, slot);
            } else if self.closing.len() < self.closing.capacity() {
                self.closing.push(slot as u32);
            }
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

    fn table() -> (FlowTable<Native>, PortFlows, PortFlows) {
        let table = FlowTable::new(2, 2);
        let ports = [0, 1].map(|port| PortFlows::new(PortId(port), &table));
        let [a, b] = ports;
        (table, a, b)
    }

    #[test]
    fn a_slot_is_free_again_only_when_every_port_has_let_go() {
        let (table, mut a, mut b) = table();
        let flow = table.add(None, Weight::DEFAULT, |_| ()).unwrap();
        let other = table.add(None, Weight::MAX, |_| ()).unwrap();
        assert_eq!(table.add(None, Weight::MIN, |_| ()), Err(FlowError::Full));
        assert_eq!(a.admit(&table, flow), Some(Weight::DEFAULT));
        assert_eq!(table.close(flow), Ok(PortSet::first(2)));
        assert_eq!(a.admit(&table, flow), None);
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
        assert_eq!(port.admit(&new, gone), None);
        assert_eq!(port.admit(&new, second), Some(Weight::MIN));
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
        assert_eq!(a.admit(&table, flow), Weight::new(7));
        assert_eq!(Weight::new(0), None);
        assert_eq!(Weight::new(10_001), None);
    }
}
