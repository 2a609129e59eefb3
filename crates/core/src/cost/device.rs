//! Costs by the device's time: windows of a busy device, and the costs that they give.
//!
//! **Control.** A hundred times a second the layer reads the ports' counts. While policies hold
//! requests the device is busy, and completions are added to a window; a window that has [`ENOUGH`]
//! goes to the estimator (`fit`), which computes costs. From window to window costs move half the
//! way to the ones computed, by a factor of 2 at most. The costs charged are between those and
//! bytes, nearer to bytes the less the windows show that costs differ from bytes (`fit`) and the
//! less that matters (`mix`).
//!
//! **Where costs do not matter** (`mix`: one flow, or one class of requests) there are no trials
//! and costs do not change.
//!
//! **Trials.** Windows carry information only where they differ. Therefore each class of requests
//! costs an eighth more or less than computed, at random, and in the next window as much less or
//! more. Tenants that send the same requests notice nothing, and between others the difference
//! evens out within two windows.

use alloc::boxed::Box;

use super::fit::{self, FIRST, MAX_BASE, MAX_PRICE, PARTS, Parts, WINDOWS, Window};
use super::mix::Mix;
use super::tally::{CLASSES, KINDS, Sum, class, direction, of_class};
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::CostStats;

/// Time between two reads of the ports' counts, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;
/// The least time of a window, in nanoseconds, and its fewest requests: `ENOUGH`, or twice the live
/// requests if that is more.
pub(super) const SHORTEST_NS: u64 = 50_000_000;
const ENOUGH: u64 = 64;
/// The most time of a window, in nanoseconds.
const LONGEST_NS: u64 = 1_000_000_000;
/// Trials change costs by one part in 2 to the power of this; `NO_TRIAL` shifts all bits out.
const TRIAL: u32 = 3;
const NO_TRIAL: u32 = 63;
/// Windows of trials after the last one in which costs changed by more than an eighth; and the
/// number of windows from which on such a change adds no more. Even numbers, because each trial has
/// its opposite.
const TRIALS: u32 = 12;
const LONG: u32 = 48;
/// Windows without trials before trials begin again. They begin earlier when the policy has ended a
/// search of its own (for D); they wait for the end of a search for at most `LATEST` windows.
const RARELY: u32 = 200;
const LATEST: u32 = 600;
/// Trials also begin when the load has changed: the shares of the parts in the costs of two windows
/// in a row differ from the usual ones by more than this in sum, in 1024ths. Not before `SOONEST`
/// windows, so that loads that come and go leave time without trials.
const STRANGE: u64 = 256;
const SOONEST: u32 = 16;
/// Windows before costs move.
const FEWEST: usize = 3;
/// A direct policy holds no requests; its device is busy with this number of live requests.
const BUSY: u64 = 32;
/// Smaller costs count as this for the factor of 2 that bounds their growth, in bytes and in
/// 65536ths of one: a cost of 0 could not grow otherwise.
const LEAST_BASE: u64 = 1024;
const LEAST_PRICE: u64 = 16;

/// The present costs of requests; ports read them when a request comes.
pub(super) struct Prices<P: Platform> {
    /// For each kind its base in bytes and, in the upper half, the price of a byte in 65536ths.
    kinds: [P::U64; KINDS],
    /// A bit for each class: whether its requests cost more (1) or less (0) in the trial.
    trial: P::U64,
    /// The trial changes costs by one part in 2 to the power of this.
    power: P::U64,
}

/// The lower half of a word.
const LOW: u64 = u32::MAX as u64;

impl<P: Platform> Prices<P> {
    pub(super) fn new() -> Self {
        let prices = Prices {
            kinds: core::array::from_fn(|_| P::U64::new(0)),
            trial: P::U64::new(0),
            power: P::U64::new(NO_TRIAL.into()),
        };
        prices.show(&FIRST);
        prices
    }

    fn show(&self, parts: &Parts) {
        for (kind, word) in self.kinds.iter().enumerate() {
            let (base, price) = (parts[kind], parts[KINDS + direction(kind)]);
            // In one word, so that no request is charged a base and a price of different windows.
            word.store(price << 32 | base & LOW, Ordering::Relaxed);
        }
    }

    fn try_out(&self, trial: u64, power: u32) {
        self.trial.store(trial, Ordering::Relaxed);
        self.power.store(power.into(), Ordering::Relaxed);
    }

    /// The cost of a request as a command of its own, and as a part of another one.
    #[inline]
    pub(super) fn cost(&self, kind: usize, length: u32) -> (u64, u64) {
        let word = self.kinds.get(kind).map_or(0, |word| word.load(Ordering::Relaxed));
        let bytes = (u64::from(length) * (word >> 32)) >> 16;
        let alone = (word & LOW) + bytes;
        // There are 64 classes, so each has a bit.
        let bit = self.trial.load(Ordering::Relaxed) >> (class(kind, length) & 63) & 1;
        let part = alone >> (self.power.load(Ordering::Relaxed) & 63);
        (if bit == 1 { alone + part } else { alone - part }, bytes)
    }
}

/// Finds the costs of requests.
pub(super) struct Finder {
    is_direct: bool,
    /// The costs that were found, their weight against bytes, in 256ths (`belief`), and the mean by
    /// that weight, which is charged (`shown`).
    parts: Parts,
    belief: u64,
    shown: Parts,
    /// The mix of requests, and whether costs matter for it.
    mix: Mix,
    is_mixed: bool,
    windows: [Window; WINDOWS],
    /// Windows remembered since the start.
    count: usize,
    /// The window that is being counted.
    counted: Window,
    classes: [u64; CLASSES],
    are_several: bool,
    time_ns: u64,
    /// The counts at the last call of `look`, if the device was busy then.
    last: Option<Sum>,
    random: u64,
    trial: u64,
    /// Windows of trials that are left, and those that there have been without a pause.
    left: u32,
    tried: u32,
    /// The share of each part in the costs of the first window without trials, in 1024ths, and the
    /// number of windows without trials.
    usual: [u64; PARTS],
    idle: u32,
    /// Windows in a row that differed from `usual`.
    strange: u32,
    /// The present trials began because the load had changed.
    is_new: bool,
    /// The policy has not searched for D since the last trials began.
    was_calm: bool,
    next_ns: u64,
}

impl Finder {
    /// On the heap, and not inlined: it has some KiB, and the builder of a policy inside Linux has
    /// a stack of 16 KiB.
    #[inline(never)]
    pub(super) fn boxed(is_direct: bool) -> Box<Self> {
        Box::new(Self::new(is_direct))
    }

    pub(super) fn new(is_direct: bool) -> Self {
        Finder {
            is_direct,
            parts: FIRST,
            belief: 0,
            shown: FIRST,
            mix: Mix::EMPTY,
            is_mixed: false,
            windows: [Window::default(); WINDOWS],
            count: 0,
            counted: Window::default(),
            classes: [0; CLASSES],
            are_several: false,
            time_ns: 0,
            last: None,
            // Any number but 0, which xorshift never leaves.
            random: 0x9e37_79b9_7f4a_7c15,
            trial: 0,
            left: 0,
            tried: 0,
            usual: [0; PARTS],
            idle: 0,
            strange: 0,
            is_new: true,
            was_calm: true,
            next_ns: 0,
        }
    }

    /// Time of the next call of `look`, in nanoseconds.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.next_ns
    }

    /// The costs of requests, without trials.
    pub(super) fn stats(&self) -> CostStats {
        let [random_read, sequential_read, random_write, sequential_write, read, write] =
            self.shown;
        CostStats {
            bases: [random_read, sequential_read, random_write, sequential_write],
            per_kib: [read, write].map(|price| price >> 6),
            windows: self.count as u64,
        }
    }

    /// Adds the ports' counts to the window. `Some` if costs vary from now on, true if they have
    /// changed by much.
    pub(super) fn look<P: Platform>(
        &mut self,
        now_ns: u64,
        sum: &Sum,
        prices: &Prices<P>,
        is_calm: impl FnOnce() -> bool,
    ) -> Option<bool> {
        self.next_ns = now_ns.saturating_add(LOOK_NS);
        let is_busy = sum.staged > 0 || self.is_direct && sum.live >= BUSY;
        // A window gets only the time between two calls that found the device busy.
        let last = core::mem::replace(&mut self.last, is_busy.then_some(*sum))?;
        if !is_busy {
            return None;
        }
        let (bases, bytes) = self.counted.units.split_at_mut(KINDS);
        for (class, now) in sum.counts.iter().enumerate() {
            let count = now.wrapping_sub(last.counts[class]);
            self.classes[class] += count;
            bases[of_class(class).0] += count;
        }
        for (way, units) in bytes.iter_mut().enumerate() {
            *units += sum.bytes[way].wrapping_sub(last.bytes[way]);
        }
        self.are_several |= sum.are_several || sum.turns != last.turns;
        // From completion to completion: the work after the last completion is in no count yet.
        self.time_ns += sum.last_ns.saturating_sub(last.last_ns);
        let count: u64 = self.counted.units.iter().take(KINDS).sum();
        let has_enough = self.time_ns >= SHORTEST_NS && count >= ENOUGH.max(2 * sum.live);
        if !has_enough && self.time_ns < LONGEST_NS {
            return None;
        }
        let mut window = core::mem::take(&mut self.counted);
        window.time_us = core::mem::take(&mut self.time_ns) / 1000;
        for units in window.units.iter_mut().skip(KINDS) {
            *units >>= 9;
        }
        let are_several = core::mem::take(&mut self.are_several);
        self.mix.add(&core::mem::replace(&mut self.classes, [0; CLASSES]), are_several);
        let was_mixed = core::mem::replace(&mut self.is_mixed, self.mix.is_mixed(&self.shown));
        if !self.is_mixed {
            // Costs do not matter.
            if was_mixed {
                self.left = 0;
                prices.try_out(0, NO_TRIAL);
            }
            return None;
        }
        if !was_mixed {
            (self.left, self.tried, self.is_new, self.was_calm) = (TRIALS, 0, true, true);
            self.try_next(prices)?;
            return Some(false);
        }
        let is_calm = is_calm();
        self.was_calm &= is_calm;
        if self.left > 0 {
            self.learn(window, prices)
        } else {
            self.watch(&window, prices, is_calm)
        }
    }

    /// A window of trials is over.
    fn learn<P: Platform>(&mut self, window: Window, prices: &Prices<P>) -> Option<bool> {
        self.windows[self.count % WINDOWS] = window;
        self.count = self.count.wrapping_add(1);
        (self.left, self.tried) = (self.left - 1, self.tried.saturating_add(1));
        let mut is_much = false;
        if self.count >= FEWEST {
            let count = self.count.min(WINDOWS);
            let newest =
                (1..=count).map(|age| &self.windows[self.count.wrapping_sub(age) % WINDOWS]);
            if let Some(found) = fit::fit(newest, &self.parts) {
                is_much = self.approach(&found);
                prices.show(&self.shown);
            }
        }
        if is_much && self.tried < LONG {
            // A trial that has not had its opposite has it next.
            self.left = TRIALS - self.left % 2;
        }
        self.try_next(prices)?;
        Some(is_much && self.is_new)
    }

    /// A window without trials is over. Begins trials if they are due.
    fn watch<P: Platform>(
        &mut self,
        window: &Window,
        prices: &Prices<P>,
        is_calm: bool,
    ) -> Option<bool> {
        let spent: [u64; PARTS] = core::array::from_fn(|part| {
            let unit = if part < KINDS { self.shown[part] } else { self.shown[part] >> 7 };
            window.units[part].saturating_mul(unit).min(1 << 40)
        });
        let total = spent.iter().sum::<u64>().max(1);
        let spent = spent.map(|spent| (spent << 10) / total);
        self.idle = self.idle.saturating_add(1);
        if self.idle == 1 {
            self.usual = spent;
        }
        let apart: u64 = spent.iter().zip(&self.usual).map(|(a, b)| a.abs_diff(*b)).sum();
        self.strange = if apart > STRANGE { self.strange + 1 } else { 0 };
        self.is_new = self.strange >= 2 && self.idle >= SOONEST;
        if !self.is_new {
            // Once a search for D has ended, trials are due as soon as a window has shown the usual
            // shares.
            let is_due = self.idle >= if self.was_calm { RARELY } else { 2 };
            if !is_due || !is_calm && self.idle < LATEST {
                return None;
            }
        }
        (self.left, self.was_calm) = (TRIALS, true);
        self.try_next(prices)?;
        Some(false)
    }

    /// Begins the next window's trial: a random one, then its opposite; `None` if no trial is left.
    fn try_next<P: Platform>(&mut self, prices: &Prices<P>) -> Option<()> {
        if self.left == 0 {
            (self.tried, self.idle, self.strange) = (0, 0, 0);
            prices.try_out(0, NO_TRIAL);
            return None;
        }
        self.trial = if self.left % 2 == 1 { !self.trial } else { self.random() };
        prices.try_out(self.trial, TRIAL);
        Some(())
    }

    /// Moves the costs towards the ones found; true if that changes much for a part that takes much
    /// time.
    fn approach(&mut self, found: &fit::Found) -> bool {
        let before = self.shown;
        for (part, (now, found)) in self.parts.iter_mut().zip(&found.parts).enumerate() {
            let (least, most) =
                if part < KINDS { (LEAST_BASE, MAX_BASE) } else { (LEAST_PRICE, MAX_PRICE) };
            let half = now.midpoint(*found);
            *now = half.clamp(*now / 2, (*now).max(least) * 2).min(most);
        }
        // The smaller weight counts: the costs have to be more than chance, and to make a
        // difference.
        let belief = self.mix.belief(&self.parts).min(found.belief);
        self.belief =
            if belief.abs_diff(self.belief) < 16 { belief } else { self.belief.midpoint(belief) };
        let shown =
            |part: usize| (self.parts[part] * self.belief + FIRST[part] * (256 - self.belief)) >> 8;
        self.shown = core::array::from_fn(shown);
        let far = |((before, now), share): ((&u64, &u64), &u64)| {
            // A part that takes less than a sixteenth of the device's time hardly moves shares.
            *share >= 1 << 12 && before.abs_diff(*now) > before >> 3
        };
        before.iter().zip(&self.shown).zip(&found.shares).any(far)
    }

    fn random(&mut self) -> u64 {
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
