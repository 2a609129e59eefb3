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

use crate::contract::bounds::boxed;
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Ordering, Platform};
use crate::contract::port_set::{PortId, PortSet, SharedPorts, words};
use crate::contract::vtime::ReferenceWeight;

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
    /// so that ports read again the state that they read seldom.
    pub fn tell(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds a flow; a `known` flow keeps its name. `prepare` sets up the policy's own state of the
    /// slot before any port can use it.
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
                // Two ports that release a slot at the same time may both add it to the free slots,
                // the second port when another flow already has the slot. Such a slot is skipped
                // here, and is added again after the other flow is gone.
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
            // `closings` is raised before `news`, so that a port that sees the news also reads the
            // new number of closings, and with it the name.
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

// **Free slots**: a set of numbers from which the lowest is taken.
//
// **Problem.** A table with thousands of flows needs a free slot for each flow that is added. A
// scan takes time in proportion to the number of flows, so that adding all of them takes time in
// proportion to its square. **Model.** There is a bit for each number. Each 64 words have a word
// above them with a bit for each of them that is not empty, and so on up to a single word. Threads
// add numbers at any time; one thread at a time takes them.
//
// **Bounds of loops.** Adding a number takes one step on each level, at most four. Taking a number
// takes as many for each bit that it clears on the way, and each bit that was set is cleared once.
//
// *Memory ordering.* A thread that adds a number sets the bits from the lowest word up. A thread
// that finds a word empty clears the bit above, *then* reads the word once more, and sets that bit
// again if the word is not empty. Both do read-modify-writes of the same two words, with acquire
// and release. Either the second read finds the number, or it comes before the addition in the
// order of the lower word; then the adding thread sets the bit above after it was cleared. So no
// number is lost.

/// Bits of a word.
const BITS: usize = 64;

/// The set.
pub(crate) struct FreeSlots<P: Platform> {
    /// The bits of numbers, and then those of each level above; the last one has one word.
    levels: Box<[Box<[P::U64]>]>,
}

impl<P: Platform> FreeSlots<P> {
    /// The numbers `0..count`.
    pub(crate) fn all(count: usize) -> Self {
        let mut sizes = [count.max(1), 0, 0, 0, 0];
        let mut used = 1;
        // 2^24 slots are the most there are: four levels of words.
        while let [.., below, above] = sizes.get_mut(..=used).unwrap_or_default()
            && (*below > 1 || used == 1)
        {
            *above = below.div_ceil(BITS);
            used += 1;
        }
        let level = |level: usize| {
            let [bits, words] = [level, level + 1].map(|at| sizes.get(at).copied().unwrap_or(0));
            let left = |word: usize| bits.saturating_sub(word * BITS).min(BITS);
            let full = |word| u64::MAX.checked_shr((BITS - left(word)) as u32).unwrap_or(0);
            boxed(words, |word| P::U64::new(full(word)))
        };
        FreeSlots { levels: boxed(used - 1, level) }
    }

    fn word(&self, level: usize, at: usize) -> Option<&P::U64> {
        self.levels.get(level)?.get(at)
    }

    /// Adds the number. Any thread may.
    pub(crate) fn insert(&self, number: usize) {
        let mut at = number;
        for words in &self.levels {
            if let Some(word) = words.get(at / BITS) {
                word.fetch_or(bit(at), Ordering::AcqRel);
            }
            at /= BITS;
        }
    }

    /// Takes the number out. One thread at a time calls this and [`Self::take`].
    pub(crate) fn remove(&self, number: usize) {
        if let Some(word) = self.word(0, number / BITS) {
            word.fetch_and(!bit(number), Ordering::AcqRel);
        }
    }

    /// Takes out the lowest number; `None` if there is none.
    pub(crate) fn take(&self) -> Option<usize> {
        self.take_by(Self::clear)
    }

    /// Takes out the lowest number; `clear` takes out the bit above a word that seems empty.
    pub(super) fn take_by(&self, clear: fn(&Self, usize, usize)) -> Option<usize> {
        let top = self.levels.len().checked_sub(1)?;
        let (mut level, mut at) = (top, 0);
        loop {
            let bits = self.word(level, at)?.load(Ordering::Acquire);
            if bits != 0 {
                at = at * BITS + bits.trailing_zeros() as usize;
                if level == 0 {
                    self.remove(at);
                    return Some(at);
                }
                level -= 1;
                continue;
            }
            if level == top {
                return None;
            }
            clear(self, level, at);
            (level, at) = (top, 0);
        }
    }

    /// [`Self::clear`] without the second read of the word: a number that was added in between is
    /// lost, which the model must find.
    #[cfg(all(test, loom))]
    pub(super) fn clear_without_second_read(&self, level: usize, at: usize) {
        if let Some(above) = self.word(level + 1, at / BITS) {
            above.fetch_and(!bit(at), Ordering::AcqRel);
        }
    }

    /// Takes out the bit above a word that seems empty.
    #[cold]
    pub(super) fn clear(&self, level: usize, at: usize) {
        let (Some(word), Some(above)) = (self.word(level, at), self.word(level + 1, at / BITS))
        else {
            return;
        };
        above.fetch_and(!bit(at), Ordering::AcqRel);
        // This second read is a read-modify-write, so that it comes before or after the one of the
        // thread that adds a number.
        if word.fetch_or(0, Ordering::AcqRel) != 0 {
            above.fetch_or(bit(at), Ordering::AcqRel);
        }
    }
}

fn bit(number: usize) -> u64 {
    1u64.wrapping_shl((number % BITS) as u32)
}

// **Extreme weights**: the least and the largest of many numbers, each of which changes at times.
//
// **Model.** Numbers are in blocks of 64. The least and the largest are kept for each block, for
// each 64 blocks, and so on up to one range. A number that changes is compared with the extremes
// of its block. The block is scanned only if the old number was one of them, and the blocks above
// are updated only if the block's extremes have changed.
//
// **Bounds.** A change takes at most 64 steps on each of at most four levels; mostly one step.

const BLOCK: usize = 64;

/// The least and the largest of some numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    least: u32,
    most: u32,
}

impl Span {
    /// The span of no numbers.
    const NONE: Span = Span { least: u32::MAX, most: 0 };

    fn of(spans: impl Iterator<Item = Span>) -> Span {
        spans.fold(Span::NONE, Span::and)
    }

    fn one(number: Option<u32>) -> Span {
        number.map_or(Span::NONE, |number| Span { least: number, most: number })
    }

    fn and(self, other: Span) -> Span {
        Span { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    /// Whether this range may become narrower when `other` is taken out of it.
    fn hangs_on(self, other: Span) -> bool {
        other != Span::NONE && (self.least == other.least || self.most == other.most)
    }
}

/// The extremes of numbers that their owner keeps.
pub(crate) struct Extremes {
    levels: Box<[Box<[Span]>]>,
}

impl Extremes {
    /// The extremes of `count` places, none of which has a number.
    pub(crate) fn new(count: usize) -> Self {
        let size = |level: u32| count.max(1).div_ceil(BLOCK.saturating_pow(level + 1));
        let levels = (0..).find(|&level| size(level) == 1).unwrap_or(0) as usize + 1;
        Extremes { levels: boxed(levels, |level| boxed(size(level as u32), |_| Span::NONE)) }
    }

    /// The number at this place was `old` and is `new`; `at` gives the present number of a place.
    pub(crate) fn change(
        &mut self,
        place: usize,
        old: Option<u32>,
        new: Option<u32>,
        at: impl Fn(usize) -> Option<u32>,
    ) {
        let (mut index, mut old, mut new) = (place, Span::one(old), Span::one(new));
        for level in 0..self.levels.len() {
            let block = index / BLOCK;
            let first = block * BLOCK;
            let Some(&before) = self.levels.get(level).and_then(|spans| spans.get(block)) else {
                return;
            };
            let after = match before.hangs_on(old) {
                false => before.and(new),
                true if level == 0 => {
                    Span::of((first..first + BLOCK).map(|place| Span::one(at(place))))
                }
                true => {
                    let below = level.checked_sub(1).and_then(|level| self.levels.get(level));
                    let below = below.map_or(&[][..], |below| below);
                    Span::of(below.iter().copied().skip(first).take(BLOCK))
                }
            };
            if after == before {
                return;
            }
            if let Some(range) = self.levels.get_mut(level).and_then(|level| level.get_mut(block)) {
                *range = after;
            }
            (index, old, new) = (block, before, after);
        }
    }

    /// The least and the largest, if there are any.
    pub(crate) fn get(&self) -> Option<(u32, u32)> {
        let Span { least, most } = *self.levels.last()?.first()?;
        (least <= most).then_some((least, most))
    }
}

/// The slots of one step: a step takes some microseconds.
const AT_ONCE: usize = 1024;
/// The pause between two steps of a walk, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000;

/// A walk over all slots of a table, some in each tick, so that no tick takes long however many
/// flows there are. Only one thread ticks at a time (the port's contract), so the words need no
/// order.
pub(crate) struct SlotWalk<P: Platform> {
    at: P::U64,
    next_ns: P::U64,
}

impl<P: Platform> SlotWalk<P> {
    /// The first walk is due.
    pub(crate) fn new() -> Self {
        SlotWalk { at: P::U64::new(0), next_ns: P::U64::new(0) }
    }

    /// The slots of the step that is due now, of `capacity` slots; none if none is due. The next
    /// walk begins `period_ns` after the end of this one.
    pub(crate) fn step(&self, now_ns: u64, capacity: usize, period_ns: u64) -> Range<usize> {
        if now_ns < self.next_ns.load(Ordering::Relaxed) {
            return 0..0;
        }
        let first = (self.at.load(Ordering::Relaxed) as usize).min(capacity);
        let end = first.saturating_add(AT_ONCE).min(capacity);
        let (at, pause_ns) = if end == capacity { (0, period_ns) } else { (end, PAUSE_NS) };
        self.at.store(at as u64, Ordering::Relaxed);
        self.next_ns.store(now_ns.saturating_add(pause_ns), Ordering::Relaxed);
        first..end
    }

    /// The time of the next step, in nanoseconds.
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns.load(Ordering::Relaxed)
    }

    /// Whether a walk is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.at.load(Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_are_there_in_order_and_no_more() {
        for count in [1, 2, 63, 64, 65, 4096, 4097, 300_000] {
            let free = FreeSlots::<Native>::all(count);
            assert!((0..count).all(|number| free.take() == Some(number)), "{count}");
            assert_eq!(free.take(), None, "{count}");
        }
    }

    proptest! {
        #[test]
        fn the_lowest_is_taken(
            count in prop::sample::select(std::vec![1usize, 64, 100, 5000]),
            steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..300),
        ) {
            let (free, mut model) = (FreeSlots::<Native>::all(count), (0..count).collect::<BTreeSet<_>>());
            for (step, number) in steps {
                let number = number.index(count);
                match step {
                    0 => {
                        free.insert(number);
                        model.insert(number);
                    }
                    1 => {
                        free.remove(number);
                        model.remove(&number);
                    }
                    _ => prop_assert_eq!(free.take(), model.pop_first()),
                }
            }
        }
    }

    proptest! {
        #[test]
        fn they_are_the_extremes(
            count in prop::sample::select(std::vec![1usize, 64, 65, 5000]),
            steps in prop::collection::vec(
                (any::<prop::sample::Index>(), prop::option::of(0u32..9)),
                1..300,
            ),
        ) {
            let (mut extremes, mut numbers) = (Extremes::new(count), std::vec![None; count]);
            for (place, number) in steps {
                // A few places, so that numbers change and go.
                let place = place.index(count.min(90)) * (count / count.min(90));
                let old = core::mem::replace(&mut numbers[place], number);
                extremes.change(place, old, number, |at| numbers.get(at).copied().flatten());
                let all = || numbers.iter().flatten().copied();
                prop_assert_eq!(extremes.get(), all().min().zip(all().max()));
            }
        }
    }

    #[test]
    fn each_walk_visits_each_slot_once() {
        let walk = SlotWalk::<Native>::new();
        let mut now_ns = 0;
        for _ in 0..3 {
            let mut end = 0;
            while end < 2500 {
                let early = now_ns > 0 && !walk.step(now_ns - 1, 2500, 0).is_empty();
                assert!(!early, "it is not due");
                let slots = walk.step(now_ns, 2500, 900_000_000);
                assert!(slots.start == end && slots.len() <= AT_ONCE && !slots.is_empty());
                end = slots.end;
                assert_eq!(walk.is_under_way(), end < 2500);
                now_ns = walk.next_ns();
            }
        }
        assert!(SlotWalk::<Native>::new().step(0, 0, 1).is_empty());
    }
}
