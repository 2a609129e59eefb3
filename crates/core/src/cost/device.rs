//! Costs by the device's time: windows of a busy device, and the costs that they give.
//!
//! **Control.** A hundred times a second the finder reads the ports' counts. While ports stop
//! because the device has as many requests as it may have, or because their flows are ahead, the
//! device is busy, and completions belong to a window. A window of a trial goes to the estimator
//! (`fit`). If the estimator finds other costs to be clearly better, it aims at the mean of
//! those and the present ones.
//!
//! **Steps.** With each reading charges move towards that aim, and none by more than a sixteenth
//! of itself. A factor of 16 takes half a second.
//!
//! **Trials.** Windows carry information only where they differ. In a trial each class of requests
//! (kind and power of 2) costs a sixteenth more, or does not, by the bits of a number; the next
//! trial is the opposite. While charges still move there is no other trial: their move is one.
//! Tenants that send the same requests are charged the same throughout.
//!
//! **Seasons.** Trials disturb every comparison of rates, such as the search for D, so they end
//! after [`TRIALS`] and begin again after [`SEASON`], or when a class of requests comes. A load of
//! one class is shared alike by any costs and has no trials. A flow that is alone has the device
//! for itself: its ports do not stop, so there are no windows.
//!
//! **Bytes.** Costs stay those of bytes where found ones differ from them little ([`NEAR`]).
use alloc::boxed::Box;
use core::array;

use bytemuck::Zeroable;
use bytemuck::allocation::zeroed_box;

use super::fit::{self, FIRST, ONE, Parts, WINDOWS};
#[cfg(all(test, not(loom)))]
use super::tally::class;
use super::tally::{BLOCK, CLASSES, KINDS, SOME, Sum, WORDS, bits, of_class};
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::{CostStats, Stats};
use crate::policy::depth::meter::{TICK_NS, per_second};

/// The least time of a window, in nanoseconds: five readings.
const SHORTEST_NS: u64 = 5 * TICK_NS;
/// The trial, and a step of the costs, change charges by one part in this; with each window counts
/// lose one, so that classes are gone after some seconds. At 8 charges follow chance, at 32 trials
/// drown in it.
const STEP: u64 = 16;
/// The length of trials, and of a season with its pause, in quarters of a window: 24 windows, in
/// which a difference of a sixteenth shows, and 100, so that trials take a quarter of the time. A
/// window in which charges move counts a quarter: with whole ones the reader of a Z-SSD that has
/// been written over has 0.28 of its rate alone, not 0.63.
const TRIALS: u64 = 96;
const SEASON: u64 = 400;
/// The first quarters of a season, whose windows are not remembered: D and T still change.
const SETTLES: u64 = 16;
/// Costs are those of bytes if the costs per byte of any two classes differ by at most this factor;
/// from twice that factor on they are the ones found, and in between a mean of both. Most devices
/// are within a factor of 3 for most mixtures, where other costs than bytes move shares away from
/// equal parts without a gain for either tenant.
const NEAR: u64 = 3 * ONE;
/// 2^64 divided by the golden ratio: the bits of its multiples are a trial for each class.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The present costs of requests; ports read them when a request comes.
pub(crate) struct Prices<P: Platform> {
    /// For each kind its base in bytes and, in the upper half, the price of a byte in 65536ths.
    kinds: [P::U64; KINDS],
    /// A bit for each class whose requests cost a sixteenth more in the trial.
    trial: P::U64,
}

/// The lower half of a word.
const LOW: u64 = u32::MAX as u64;

impl<P: Platform> Prices<P> {
    pub(crate) fn new() -> Self {
        let kinds = array::from_fn(|_| P::U64::new(0));
        let prices = Prices { kinds, trial: P::U64::new(0) };
        prices.show(&FIRST);
        prices
    }

    fn show(&self, parts: &Parts) {
        for (kind, word) in self.kinds.iter().enumerate() {
            let (base, price) = (parts[kind], parts[KINDS + kind / 2]);
            // In one word, so that no request is charged a base and a price of different windows.
            word.store(price << u32::BITS | base & LOW, Ordering::Relaxed);
        }
    }

    fn of_kind(&self, kind: usize) -> u64 {
        self.kinds.get(kind).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The cost of a request as a command of its own.
    #[inline]
    pub(crate) fn cost(&self, kind: usize, class: usize, length: u32) -> u64 {
        let word = self.of_kind(kind);
        let alone = (word & LOW) + of_bytes(word, length);
        let is_more = self.trial.load(Ordering::Relaxed) >> class & 1;
        alone + alone / STEP * is_more
    }

    /// The cost of a request as a part of another one.
    pub(crate) fn of_bytes(&self, kind: usize, length: u32) -> u64 {
        of_bytes(self.of_kind(kind), length)
    }
}

/// The cost of this number of bytes, by a word of [`Prices`].
#[inline]
fn of_bytes(word: u64, length: u32) -> u64 {
    u64::from(length) * (word >> u32::BITS) / ONE
}

/// Finds the costs of requests.
#[derive(Zeroable)]
pub(crate) struct Finder {
    /// The costs that are charged, and those found.
    now: Parts,
    found: Parts,
    /// The count of each class, in parts of a request, which fades.
    counts: Sum,
    /// A bit for each class that has been present in the season.
    mix: u64,
    windows: [Parts; WINDOWS],
    /// Windows remembered since the start.
    count: u64,
    /// Time and counts at the begin of the window; time 0: the device has not been busy since.
    start_ns: u64,
    start: Sum,
    /// The times that ports stopped, and requests completed, at the last call of `look`.
    seen: (u64, u64),
    /// D at the end of the last window.
    slots: u64,
    /// Windows since the season began.
    age: u64,
    /// Time of the next call of `look`, in nanoseconds.
    pub(crate) next_ns: u64,
}

/// The cost of a request of a class.
fn cost(parts: &Parts, class: usize) -> u64 {
    let (kind, length) = of_class(class);
    (parts[kind] + parts[KINDS + kind / 2] * length / ONE).max(BLOCK)
}

impl Finder {
    /// Made on the heap: it has some KiB, and the builder of a policy inside Linux has a stack of
    /// 16 KiB.
    pub(crate) fn boxed() -> Box<Self> {
        let mut finder: Box<Self> = zeroed_box();
        (finder.now, finder.found) = (FIRST, FIRST);
        finder
    }

    /// The costs of requests, without trials.
    pub(crate) fn stats(&self) -> CostStats {
        let [bases @ .., read, write] = self.now;
        CostStats {
            bases,
            per_kib: [read, write].map(|price| price * 2 * BLOCK / ONE),
            windows: self.count,
        }
    }

    /// Reads the ports' counts, which `add` sums, if it is time; `stats` are those of the policy.
    /// `Some` if costs vary from now on, true if they change by much.
    pub(crate) fn tick<P: Platform>(
        &mut self,
        now_ns: u64,
        prices: &Prices<P>,
        add: impl FnOnce(&mut Sum),
        stats: impl FnOnce() -> Stats,
    ) -> Option<bool> {
        if self.next_ns > now_ns {
            return None;
        }
        let mut sum = [0; WORDS];
        add(&mut sum);
        self.look(now_ns, &sum, &stats(), prices)
    }

    /// Reads the sum of the ports' counts.
    fn look<P: Platform>(
        &mut self,
        now_ns: u64,
        sum: &Sum,
        stats: &Stats,
        prices: &Prices<P>,
    ) -> Option<bool> {
        self.next_ns = now_ns.saturating_add(TICK_NS);
        // A port that completes a request dispatches the next one, unless it has none, or has to
        // stop because the device is busy with as many as it may have.
        let seen = (stats.blocks + stats.throttles, sum.iter().take(CLASSES).sum());
        let last = core::mem::replace(&mut self.seen, seen);
        let is_idle = seen.0 == last.0 && seen.1 != last.1;
        if is_idle || self.start_ns == 0 {
            (self.start_ns, self.start) = (if is_idle { 0 } else { now_ns }, *sum);
            return None;
        }
        let window: Sum = array::from_fn(|word| sum[word].wrapping_sub(self.start[word]));
        let mut units = [0, 0, 0, 0, window[CLASSES] / BLOCK, window[CLASSES + 1] / BLOCK];
        (0..CLASSES).for_each(|class| units[of_class(class).0] += window[class]);
        let time_ns = now_ns - self.start_ns;
        let enough = SOME.max(2 * stats.slots.unwrap_or(0));
        let count = units.iter().take(KINDS).sum::<u64>();
        let is_moving = self.now != self.found;
        self.step();
        prices.show(&self.now);
        if time_ns < SHORTEST_NS || count < enough {
            return None;
        }
        (self.start_ns, self.start) = (now_ns, *sum);
        let was_trial = prices.trial.load(Ordering::Relaxed) != 0;
        let slots = core::mem::replace(&mut self.slots, stats.slots.unwrap_or(0));
        if was_trial && self.age >= SETTLES && slots == self.slots {
            self.windows[self.count as usize % WINDOWS] =
                units.map(|units| per_second(units * STEP, time_ns));
            self.count = self.count.wrapping_add(1);
            let windows = &self.windows[..WINDOWS.min(self.count as usize)];
            if let Some(found) = fit::fit(windows, &self.now) {
                // Costs that differ little for each byte are those of bytes.
                let each = |class| cost(&found, class) * ONE / of_class(class).1;
                let most = bits(self.mix).map(each).max().unwrap_or(1);
                let apart = most * ONE / bits(self.mix).map(each).min().unwrap_or(1).max(1);
                let weight = apart.saturating_sub(NEAR).min(NEAR);
                let mean = |part| (found[part] * weight + FIRST[part] * (NEAR - weight)) / NEAR;
                self.found = array::from_fn(|part: usize| self.now[part].midpoint(mean(part)));
            }
        }
        let mix = self.mix(&window);
        self.age += if is_moving { 1 } else { 4 };
        if self.age >= SEASON || mix & !self.mix != 0 {
            (self.mix, self.age) = (if self.age < SEASON { self.mix | mix } else { mix }, 0);
        }
        // Any costs share a load of one class in the same way.
        let is_trial = self.age < TRIALS && mix.count_ones() > 1;
        // A step or another trial, not both, so that no charge changes by more than a sixteenth.
        if !is_moving {
            let trial = (self.count / 2 + 1).wrapping_mul(GOLDEN) ^ (self.count % 2).wrapping_neg();
            prices.trial.store(if is_trial { trial } else { 0 }, Ordering::Relaxed);
        }
        (was_trial || is_trial).then_some(is_moving)
    }

    /// Counts the classes of a window; the classes that are present.
    fn mix(&mut self, window: &Sum) -> u64 {
        for (sum, count) in self.counts.iter_mut().zip(window).take(CLASSES) {
            *sum = (*sum - *sum / STEP).saturating_add(count.saturating_mul(STEP * STEP));
        }
        let charge = |class: usize| self.counts[class].saturating_mul(cost(&self.now, class));
        let least = (0..CLASSES).map(charge).fold(0, u64::saturating_add) / SOME;
        let present = (0..CLASSES).filter(|class| charge(*class) > least);
        present.fold(0, |mix, class| mix | 1 << class)
    }

    /// Moves the costs towards those found, and charges by at most a sixteenth.
    fn step(&mut self) {
        let mut part = ONE;
        for class in (0..CLASSES).filter(|class| self.counts[*class] > 0) {
            let (old, new) = (cost(&self.now, class), cost(&self.found, class));
            part = part.min(old * ONE / STEP / old.abs_diff(new).max(1));
        }
        for (now, found) in self.now.iter_mut().zip(self.found) {
            let moved = (found as i64 - *now as i64) * part as i64;
            *now = now.saturating_add_signed(moved / ONE as i64);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::contract::platform::Native;

    /// 512 bytes beside 1 MiB, each with half of the charges, on a device of 4,000 requests a
    /// second: both come to cost the same, and from one reading to the next no charge changes by
    /// more than a sixteenth.
    #[test]
    fn charges_change_by_a_sixteenth_at_most() {
        let (prices, mut finder) = (Prices::<Native>::new(), Finder::boxed());
        let lengths = [512, 1 << 20];
        let charges = || lengths.map(|length| prices.cost(0, class(0, length), length).max(512));
        let (mut sum, mut done, mut stats) = ([0; 64], [0.0; 2], Stats::default());
        for look in 1..400 {
            let before = charges();
            let [small, large] = before.map(|charge| 1.0 / charge as f64);
            for (done, part) in done.iter_mut().zip([small, large]) {
                *done += 40.0 * part / (small + large);
            }
            for (length, done) in lengths.into_iter().zip(done) {
                sum[class(0, length)] = done as u64;
            }
            sum[CLASSES] =
                done.into_iter().zip(lengths).map(|(n, l)| n as u64 * u64::from(l)).sum();
            stats.blocks += 1;
            finder.look(look * TICK_NS, &sum, &stats, &prices);
            for ((before, now), length) in before.into_iter().zip(charges()).zip(lengths) {
                // And by the rounding of a price, which is in 65536ths.
                let most = before / 16 + u64::from(length >> 16) + 1;
                assert!(before.abs_diff(now) <= most, "reading {look}: {before}, {now}");
            }
        }
        let [small, large] = charges().map(|charge| charge as f64);
        assert!((0.8..1.25).contains(&(large / small)), "{small}, {large}: {:?}", finder.now);
    }
}
