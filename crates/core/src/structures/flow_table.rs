//! The flows of a policy: their existence, their weights, and the reuse of their slots.
//!
//! The [`FlowTable`] is the part of every policy that knows which flows exist. A flow's shared
//! state is one read-mostly **control word** (generation, weight, state), so that a port validates
//! and weighs a request with one load that hits its own cache.
//!
//! # Removal without counting on the hot path
//! A slot may be used again only when no port holds a request of the old flow. Counting live
//! requests in a shared word would make each request of a tenant bounce a cache line. So each port
//! counts its own in private memory ([`PortFlows`](super::port_flows::PortFlows)), and removal
//! involves the ports:
//! 1. `close` marks the control word closed, sets every port's bit of the slot's `pending`, appends
//!    the flow's name to a log, and raises the table's `closings` and `news` counters.
//! 2. A port that notices a new `news` value in `next` (one load of a line that hardly ever
//!    changes) reads the names that are new in the log, some at a time, marks those flows as
//!    closing in its private memory, and clears its bit of each as soon as it holds no request of
//!    that flow. The log has as many places as there are slots. A slot is closed again only when
//!    all ports have released it, so no name is overwritten that a port has not read.
//! 3. The port that clears the last bit adds the slot to the free ones; `add` takes the lowest of
//!    them and gives it a new generation.
//!
//! *Ordering.* `closings` and `news` are raised with Release after the word, the bits and the name
//! are written, and read with Acquire, so a port that sees the new value sees the closed word,
//! refuses the flow from then on, and can hold no request of the slot that it has not counted. The
//! bits are cleared with SeqCst, so `add`, which reads `pending == 0` with Acquire, happens after
//! everything any port did with the old flow. A stale [`FlowId`] fails the generation check.

use alloc::boxed::Box;
use core::ops::Range;

use crossbeam_utils::CachePadded;

use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Ordering, Platform};
use crate::contract::port_set::{PortId, PortSet, SharedPorts, words};
use crate::structures::allocation::boxed;
use crate::structures::extremes::Extremes;
use crate::structures::free_slots::FreeSlots;
use crate::structures::reference::ReferenceWeight;

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
pub struct FlowTable<P: Platform> {
    words: Box<[P::U64]>,
    /// For each slot the ports that have not released its closed flow, [`words`] words a slot.
    pending: Box<[P::U64]>,
    pending_words: usize,
    /// Raised by every event that ports have to notice.
    pub news: CachePadded<P::U64>,
    /// Number of flows that have been closed, and the names of the last ones: as many as there are
    /// slots, so that no name is overwritten before all ports have released its flow.
    pub closings: CachePadded<P::U64>,
    closed: Box<[P::U64]>,
    ports: PortSet,
    /// Slots that may be free: never used, or released by all ports.
    free: FreeSlots<P>,
    /// Held by `add`, `set_weight` and `close`, so that only ports run concurrently with each of
    /// them. It guards the extremes of the weights of open flows.
    control: P::Mutex<Extremes>,
}

impl<P: Platform> FlowTable<P> {
    /// A table of at most `flows` flows over ports `0..ports`.
    pub fn new(flows: usize, ports: usize) -> Self {
        FlowTable {
            words: boxed(flows, |_| P::U64::new(FREE)),
            pending: boxed(flows * words(ports), |_| P::U64::new(0)),
            pending_words: words(ports),
            news: CachePadded::new(P::U64::new(0)),
            closings: CachePadded::new(P::U64::new(0)),
            closed: boxed(flows, |_| P::U64::new(0)),
            ports: PortSet::first(ports),
            free: FreeSlots::all(flows),
            control: P::Mutex::new(Extremes::new(flows)),
        }
    }

    /// The most flows there can be.
    pub fn capacity(&self) -> usize {
        self.words.len()
    }

    /// All ports.
    pub fn ports(&self) -> PortSet {
        self.ports
    }

    /// Makes every port's next [`PortFlows::poll`](super::port_flows::PortFlows::poll) report news,
    /// of state that ports seldom read.
    pub fn tell(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds a flow; one that is known keeps its name. `prepare` sets up the policy's own state of
    /// the slot before any port can use it.
    pub fn add(
        &self,
        known: Option<FlowId>,
        weight: Weight,
        prepare: impl FnOnce(usize),
    ) -> Result<FlowId, FlowError> {
        self.control.with(|extremes| {
            // Only the control side writes these words, under this lock, hence Relaxed.
            let control = |slot: usize| {
                let word = self.words.get(slot)?.load(Ordering::Relaxed);
                let is_free =
                    Control(word).state() != OPEN && self.pending(slot).is_empty(Ordering::Acquire);
                is_free.then_some(Control(word))
            };
            let flow = match known {
                Some(flow) => {
                    control(flow.slot()).ok_or(FlowError::Taken)?;
                    self.free.remove(flow.slot());
                    flow
                }
                // Two ports that release a slot at once may both add it, the second one when
                // another flow has the slot. Then the slot is not free, and it is added again when
                // that flow is gone.
                None => loop {
                    let slot = self.free.take().ok_or(FlowError::Full)?;
                    if let Some(old) = control(slot) {
                        break FlowId::new(slot as u32, old.generation().wrapping_add(1));
                    }
                },
            };
            prepare(flow.slot());
            if let Some(word) = self.words.get(flow.slot()) {
                let control = Control::new(flow.generation(), weight, OPEN);
                word.store(control.0, Ordering::Release);
            }
            self.note(extremes, flow.slot(), None, Some(weight));
            Ok(flow)
        })
    }

    /// Changes a flow's weight.
    pub fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.control.with(|extremes| self.replace(extremes, flow, weight, OPEN))
    }

    /// Changes the weights of several flows, and calls `changed` for each that is open.
    pub fn set_weights(
        &self,
        weights: &[(FlowId, Weight)],
        mut changed: impl FnMut(FlowId, Weight),
    ) {
        self.control.with(|extremes| {
            for &(flow, weight) in weights {
                if self.replace(extremes, flow, weight, OPEN).is_ok() {
                    changed(flow, weight);
                }
            }
        });
    }

    /// The reference weight of open flows.
    pub fn reference(&self) -> ReferenceWeight {
        let extremes = self.control.with(|extremes| extremes.get());
        let weights = extremes.into_iter().flat_map(|(least, most)| [least, most]);
        ReferenceWeight::of(weights.filter_map(Weight::of_256ths))
    }

    /// Records that the weight of the flow in this slot has changed; `None` is no flow.
    fn note(&self, extremes: &mut Extremes, slot: usize, old: Option<Weight>, new: Option<Weight>) {
        let [old, new] = [old, new].map(|weight| weight.map(Weight::in_256ths));
        let at = |slot| self.open_in(slot).map(|(_, weight)| weight.in_256ths());
        extremes.change(slot, old, new, at);
    }

    /// Closes a flow; the ports returned must run `next` for its slot to become free.
    pub fn close(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|extremes| {
            let weight = self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
            // The bits are written first: a slot whose word is closed is not free before each port
            // has released it.
            self.pending(flow.slot()).store(self.ports, Ordering::Release);
            self.replace(extremes, flow, weight, CLOSED)?;
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
    pub fn weight(&self, flow: FlowId) -> Option<Weight> {
        let control = Control(self.words.get(flow.slot())?.load(Ordering::Acquire));
        control.is_open_as(flow).then(|| control.weight())
    }

    /// The weight of the flow in `slot`, open or closed, while a port holds requests of it.
    #[inline]
    pub fn weight_in(&self, slot: usize) -> Weight {
        self.words
            .get(slot)
            .map_or(Weight::DEFAULT, |word| Control(word.load(Ordering::Relaxed)).weight())
    }

    /// The flow in `slot` and its weight, if it is open.
    pub fn open_in(&self, slot: usize) -> Option<(FlowId, Weight)> {
        let control = Control(self.words.get(slot)?.load(Ordering::Acquire));
        let flow = FlowId::new(slot as u32, control.generation());
        (control.state() == OPEN).then(|| (flow, control.weight()))
    }

    /// The slots among these that have open flows.
    pub fn open_among(&self, slots: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let words = self.words.get(slots.clone()).unwrap_or_default();
        slots
            .zip(words)
            .filter(|(_, word)| Control(word.load(Ordering::Acquire)).state() == OPEN)
            .map(|(slot, _)| slot)
    }

    /// The place in the log of the flow that was closed as number `closing`.
    fn closed_place(&self, closing: u64) -> Option<&P::U64> {
        self.closed.get(closing.checked_rem(self.closed.len() as u64)? as usize)
    }

    /// The flow that was closed as number `closing`; valid until all ports have released it.
    pub fn closed(&self, closing: u64) -> Option<FlowId> {
        let name = self.closed_place(closing)?.load(Ordering::Relaxed);
        Some(FlowId::new(name as u32, (name >> 32) as u32))
    }

    /// The ports that have not released the slot's closed flow.
    #[inline]
    fn pending(&self, slot: usize) -> SharedPorts<'_, P::U64> {
        let first = slot.saturating_mul(self.pending_words);
        let of_slot = self.pending.get(first..first.saturating_add(self.pending_words));
        SharedPorts::of(of_slot.unwrap_or(&[]))
    }

    /// Records that the port has released the slot's closed flow.
    pub fn release(&self, port: PortId, slot: usize) {
        self.pending(slot).remove(port, Ordering::SeqCst);
        // Of two ports whose bits are in two words, at least one sees that both bits are cleared.
        P::fence();
        if self.pending(slot).is_empty(Ordering::SeqCst) {
            self.free.insert(slot);
        }
    }

    /// Rewrites the word of an open flow; the caller holds the control lock.
    fn replace(
        &self,
        extremes: &mut Extremes,
        flow: FlowId,
        weight: Weight,
        state: u64,
    ) -> Result<(), FlowError> {
        let old = self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
        if let Some(word) = self.words.get(flow.slot()) {
            word.store(Control::new(flow.generation(), weight, state).0, Ordering::Release);
        }
        self.note(extremes, flow.slot(), Some(old), (state == OPEN).then_some(weight));
        Ok(())
    }
}
