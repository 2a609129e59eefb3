//! The end tags of flows: the virtual time at which each flow's next request starts, on any port.
//!
//! **Problem.** A flow that is served on several ports has one place in virtual time. The paper
//! keeps that place in an integer, changed by an atomic addition for each request (Section 3.1,
//! which leaves a scalable counter to future work). The integer's cache line goes from core to core
//! with the requests, and each addition waits for it, which costs more than all the rest of a
//! request.
//!
//! **Model.** A counter that may be a little behind. While a flow has requests waiting on a port,
//! the port starts the flow's next request where its last one ended, without reading the shared
//! word, and adds the cost to its *arrears*. Before the arrears exceed [`most`](EndTags::most),
//! called `L`, the port adds them to the word together with the cost of the request at hand, which
//! starts no earlier than the old word plus the arrears. So each request is charged once, no
//! virtual time is reserved that might not be used, and the word is behind the flow's true end tag
//! `X` by at most the arrears of its `P` ports. A request that costs more than `L` is charged at
//! once, and so is each request if T is small or 0. A lone port has no arrears.
//!
//! **Cache lines.** A charged request moves one line, if another port has charged the flow since
//! this port's last charge; any other request moves none. Of requests that cost `c` units, every
//! `L / c + 1`-th is charged (rounded down).
//!
//! **The bounds of Section 2.2** grow by `4 A`, with `A = P L`; the argument is above the verbs.
//!
//! So that Theorems 1 and 2 hold as they stand, ports are throttled not by T but by the *window*
//! `W = T - T/5`, rounded down, ([`EndTags::window`]), and `L` is `W / 8` divided by the number of
//! ports (rounded up to a power of two): then `4 A <= W / 2`, and `2 W + 4 A <= 2 T`.
//!
//! **Worked example.** T = 45 KiB = 46,080 and two ports: W = 36,864, L = 2,304. Requests of 4 KiB
//! cost 4,096 units at weight 100 and are charged one by one; at weight 200 they cost 2,048 and
//! every second one charges both; at weight 1000, 410, every sixth.
//!
//! **Memory ordering.** A word is a flow's own counter: each request's place follows from one
//! atomic operation on it, no other data is published through it, so it is accessed with Relaxed.

use alloc::boxed::Box;

use crate::contract::bounds::boxed;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::vtime::VTime;

/// The part of T that is reserved for arrears, as a divisor.
const RESERVE: u64 = 5;

/// The most arrears of a flow on all ports, as a part of the window and a power of two: an eighth.
const ARREARS_SHIFT: u32 = 3;

/// The end tags of all flows.
pub(super) struct EndTags<P: Platform> {
    words: Box<[Word<P>]>,
    /// The logarithm of the number of ports, rounded up.
    ports_log2: u32,
}

/// A flow's end tag less the arrears of all ports, in a cache line of its own. (Not in two lines,
/// as `CachePadded` would align it: with thousands of flows the footprint costs more than the
/// processor's prefetch of neighbouring lines.)
#[repr(align(64))]
struct Word<P: Platform>(P::U64);

/// A port's copy of a flow's end tag, and its arrears; private to the port.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Account {
    /// The end tag of the flow's newest request on this port. Valid while that request waits; later
    /// it may be any distance behind.
    end: VTime,
    /// The arrears: units that have been tagged but not charged.
    arrears: u64,
}

impl Account {
    /// The part of `units` that is charged if the flow's newest request grows by `units`.
    pub(super) fn charge(&self, now: VTime, units: u64) -> u64 {
        self.end.charge(now, units)
    }

    /// The distance from `start` to the end tag, in units; 0 if the end tag is earlier.
    pub(super) fn since(&self, start: VTime) -> u64 {
        self.end.since(start).max(0).unsigned_abs()
    }
}

// **The bounds of Section 2.2.** Let `A = P L` be the most arrears of a flow on all ports.
// 1. *Too early.* A request that is not charged at once may start before `X`, where requests of
//    other ports have been tagged already. On each port such requests follow each other from one
//    charge to the next, and the request of that charge starts after everything that it found in
//    the word. So of all requests that start before any one point, the requests that are not yet in
//    the word at that point come, on each port, after the port's last charge, and cost at most `L`;
//    on all ports, at most `A`.
// 2. *Too late.* The word may be before virtual time although the flow is backlogged, since arrears
//    are not in it; so, unlike in the paper, the word must not be moved up to virtual time. It is
//    moved up to `A` before virtual time: it can be farther back only if the flow has been idle. A
//    flow that was idle may thus return with `X` up to `A` before its first start tag, which is
//    virtual time. While the flow stays backlogged that distance does not grow: a request starts at
//    its port's last end or at the word, or at virtual time, which is not after the flow's first
//    waiting request. Whenever the word is moved up, the distance shrinks by as much, so the units
//    lost in this way come to at most `A` as well.
// 3. Except in these two cases, requests tile the flow's virtual time. The flow's service in an
//    interval may thus be `2 A` below the lemmas' lower bound and `2 A` above their upper bound,
//    and the services of two flows may differ by `4 A` more.
//
// When T is lowered, a port whose arrears exceed the new `L` charges them with the flow's next
// request.
impl<P: Platform> EndTags<P> {
    /// All end tags are virtual time 0.
    pub(super) fn new(flows: usize, ports: usize) -> Self {
        EndTags {
            words: boxed(flows, |_| Word(P::U64::new(0))),
            ports_log2: ports.next_power_of_two().trailing_zeros(),
        }
    }

    #[inline]
    fn alone(&self) -> bool {
        self.ports_log2 == 0
    }

    /// The window W in units: the most that a port may dispatch ahead of virtual time, so that T
    /// holds for any arrears.
    pub(super) fn window(&self, threshold: u64) -> u64 {
        if self.alone() { threshold } else { threshold - threshold.div_ceil(RESERVE) }
    }

    /// `L`: the most arrears of a flow on one port, in units.
    #[inline]
    fn most(&self, window: u64) -> u64 {
        // The shift is below 64 anyway; the mask shows this to the compiler.
        if self.alone() { 0 } else { window >> ((ARREARS_SHIFT + self.ports_log2) & 63) }
    }

    /// `A`: the most arrears of a flow on all ports, in units, for the number of ports rounded up
    /// to a power of two.
    #[inline]
    fn most_of_all(&self, window: u64) -> u64 {
        self.most(window) << (self.ports_log2 & 63)
    }

    /// Sets a new flow's end tag to virtual time. No port uses the slot yet; the flow table makes
    /// it visible.
    pub(super) fn start(&self, slot: usize, time: VTime) {
        if let Some(Word(word)) = self.words.get(slot) {
            word.store(time.to_word(), Ordering::Relaxed);
        }
    }

    /// Lifts the end tag of a lagging flow to `A` before virtual time. This changes no start tag,
    /// because each is at least virtual time anyway.
    pub(super) fn lift(&self, slot: usize, time: VTime, window: u64) {
        // Not to `time` itself: arrears are not in the word, so the word of a backlogged flow may
        // lag by as much.
        let floor = time.minus(self.most_of_all(window));
        let Some(Word(word)) = self.words.get(slot) else { return };
        let mut old = word.load(Ordering::Relaxed);
        // Ports add to the word meanwhile: a plain store would lose their charges.
        while VTime::from_word(old).is_before(floor) {
            match word.compare_exchange(old, floor.to_word(), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(newer) => old = newer,
            }
        }
    }

    /// Tags a request that costs `units` and returns its start tag; `None` if that might be before
    /// `bound`, which virtual time cannot pass during the call. `waiting`: the flow's newest
    /// request on this port has not been dispatched.
    #[inline]
    pub(super) fn tag_from(
        &self,
        slot: usize,
        account: &mut Account,
        units: u64,
        bound: VTime,
        waiting: bool,
        window: u64,
    ) -> Option<VTime> {
        let Word(word) = self.words.get(slot)?;
        let owed = account.arrears.wrapping_add(units);
        // A lone port's word is exact. Once the newest request has been dispatched, `end` is not
        // valid.
        if !self.alone() && waiting && !account.end.is_before(bound) {
            let start = account.end;
            if owed <= self.most(window) {
                *account = Account { end: start.plus(units), arrears: owed };
                return Some(start);
            }
            let old = VTime::from_word(
                word.fetch_add(VTime::from_units(owed).to_word(), Ordering::Relaxed),
            );
            // The word may be behind this copy: other ports have arrears, or have refunded credit.
            let start = old.plus(account.arrears).max(start);
            *account = Account { end: start.plus(units), arrears: 0 };
            return Some(start);
        }
        // Only refunds decrease the word, so the value read here may be stale but is seldom too
        // late.
        let raw = word.load(Ordering::Relaxed);
        let known = VTime::from_word(raw);
        if known.is_before(bound) {
            return None;
        }
        let start = if self.alone() {
            // Besides this port only `lift` writes the word, and only if it lags: a lost lift does
            // no harm.
            word.store(raw.wrapping_add(VTime::from_units(units).to_word()), Ordering::Relaxed);
            known
        } else {
            let old = VTime::from_word(
                word.fetch_add(VTime::from_units(owed).to_word(), Ordering::Relaxed),
            );
            // Another port may have refunded credit after the word was read.
            old.plus(account.arrears).max(bound)
        };
        *account = Account { end: start.plus(units), arrears: 0 };
        Some(start)
    }

    /// Charges a flow for the growth of a request that waits on this port, in units.
    pub(super) fn charge(&self, slot: usize, account: &mut Account, units: u64, window: u64) {
        let Some(Word(word)) = self.words.get(slot) else { return };
        account.end = account.end.plus(units);
        account.arrears = account.arrears.wrapping_add(units);
        if account.arrears > self.most(window) {
            let owed = core::mem::take(&mut account.arrears);
            word.fetch_add(VTime::from_units(owed).to_word(), Ordering::Relaxed);
        }
    }

    /// Charges a flow for all of the port's arrears, and for `part`, a part of a unit in 256ths.
    pub(super) fn pay(&self, slot: usize, account: &mut Account, part: u64) {
        // The bits of a word below its units count these parts, and carry into the units.
        let owed = VTime::from_units(core::mem::take(&mut account.arrears)).to_word();
        if let Some(Word(word)) = self.words.get(slot).filter(|_| owed + part > 0) {
            word.fetch_add(owed.wrapping_add(part), Ordering::Relaxed);
        }
    }

    /// Refunds `units` that a flow was charged for cancelled requests.
    pub(super) fn give_back(&self, slot: usize, account: &mut Account, units: u64) {
        account.end = account.end.minus(units);
        // Arrears are reduced first, because this writes no shared word.
        let owed = account.arrears.min(units);
        account.arrears -= owed;
        if let Some(Word(word)) = self.words.get(slot).filter(|_| units > owed) {
            word.fetch_sub(VTime::from_units(units - owed).to_word(), Ordering::Relaxed);
        }
    }

    /// The start tag that a request would get at virtual time `time`; later requests do not start
    /// earlier.
    pub(super) fn earliest(&self, slot: usize, account: &Account, time: VTime) -> Option<VTime> {
        let Word(word) = self.words.get(slot)?;
        Some(VTime::from_word(word.load(Ordering::Relaxed)).plus(account.arrears).max(time))
    }

    /// Tags a request that costs `units`; returns its start tag, which is not before virtual time
    /// `time`.
    pub(super) fn tag_at(
        &self,
        slot: usize,
        account: &mut Account,
        units: u64,
        time: VTime,
        window: u64,
    ) -> Option<VTime> {
        let Word(word) = self.words.get(slot)?;
        let floor = time.minus(self.most_of_all(window));
        let mut old = word.load(Ordering::Relaxed);
        loop {
            // A word farther back than the most arrears belongs to a flow that has been idle.
            let base = VTime::from_word(old).plus(account.arrears).max(floor);
            match word.compare_exchange(
                old,
                base.plus(units).to_word() | part_of(old),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let start = base.max(time);
                    *account = Account { end: start.plus(units), arrears: 0 };
                    return Some(start);
                }
                Err(newer) => old = newer,
            }
        }
    }
}

/// The part of a word below its units.
const fn part_of(word: u64) -> u64 {
    word ^ VTime::from_word(word).to_word()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use proptest::prelude::*;
    use std::vec::Vec;

    const THRESHOLD: u64 = 45 * 1024;

    fn word(ends: &EndTags<Native>) -> u64 {
        ends.earliest(0, &Account::default(), VTime::ZERO).unwrap().units()
    }

    proptest! {
        /// One flow, always backlogged on all ports, which run in any order: each request is
        /// charged once, no port's arrears exceed `L`, a port's tags do not decrease; and the
        /// requests that start before any point cost at least the distance of that point, and at
        /// most `A` and one request more.
        #[test]
        fn requests_tile_virtual_time_but_for_the_arrears(
            ports in 2usize..6,
            steps in prop::collection::vec((0usize..6, 1u64..6_000), 1..300),
        ) {
            let ends = EndTags::<Native>::new(1, ports);
            let window = ends.window(THRESHOLD);
            let mut accounts: Vec<_> = (0..ports).map(|_| Account::default()).collect();
            let mut requests: Vec<(u64, u64)> = Vec::new();
            for (port, units) in steps {
                let account = &mut accounts[port % ports];
                let before = account.end;
                let start = ends.tag_from(0, account, units, VTime::ZERO, true, window).unwrap();
                prop_assert!(!start.is_before(before) && account.arrears <= ends.most(window));
                requests.push((start.units(), units));
            }
            let owed: u64 = accounts.iter().map(|account| account.arrears).sum();
            prop_assert_eq!(word(&ends) + owed, requests.iter().map(|request| request.1).sum::<u64>());
            let bound = ends.most_of_all(window) + 6_000;
            for &(point, _) in &requests {
                let cost: u64 = requests.iter().filter(|request| request.0 < point).map(|request| request.1).sum();
                prop_assert!((point..=point + bound).contains(&cost), "{cost} before {point}");
            }
        }
    }

    /// The header's claim: two windows and four times `A` are at most two thresholds.
    #[test]
    fn the_window_leaves_room_for_the_arrears() {
        for ports in 1..=64 {
            let ends = EndTags::<Native>::new(1, ports);
            for threshold in (0..2_000).chain([THRESHOLD, crate::contract::bounds::MAX_THRESHOLD]) {
                let window = ends.window(threshold);
                assert!(ends.most(window) * ports as u64 <= ends.most_of_all(window));
                assert!(2 * window + 4 * ends.most_of_all(window) <= 2 * threshold);
                assert!(ports > 1 || window == threshold);
            }
        }
    }

    #[test]
    fn the_worked_example() {
        let ends = EndTags::<Native>::new(1, 2);
        let window = ends.window(THRESHOLD);
        assert_eq!((window, ends.most(window)), (36_864, 2_304));
        for (units, charged) in [(4096, [true; 6]), (2048, [false, true, false, true, false, true])]
        {
            let mut account = Account::default();
            for charged in charged {
                let before = word(&ends);
                ends.tag_from(0, &mut account, units, VTime::ZERO, true, window).unwrap();
                assert_eq!(word(&ends) != before, charged);
            }
        }
    }

    #[test]
    fn an_idle_flow_comes_back_at_virtual_time_and_its_word_not_far_behind() {
        let ends = EndTags::<Native>::new(1, 2);
        let window = ends.window(THRESHOLD);
        let mut account = Account { end: VTime::ZERO, arrears: 500 };
        let now = VTime::from_units(1 << 40);
        assert_eq!(ends.tag_from(0, &mut account, 100, now, false, window), None);
        assert_eq!(ends.tag_at(0, &mut account, 100, now, window), Some(now));
        assert_eq!(word(&ends), now.units() - ends.most_of_all(window) + 100);
        // Another port, with an empty account, starts the flow at virtual time as well.
        assert_eq!(ends.tag_at(0, &mut Account::default(), 100, now, window), Some(now));
        // While a request waits, the next one starts at its end, however far the word is behind.
        assert_eq!(ends.tag_from(0, &mut account, 100, now, true, window), Some(now.plus(100)));
    }
}
