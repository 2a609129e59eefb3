//! Costs by the device's time: windows of a busy device, and the costs that come of them.
//!
//! **Control.** A hundred times a second the layer looks at what ports have counted. While policies
//! hold requests the device is busy, and what completes is added to a window; a window that has
//! [`ENOUGH`] goes to the estimator (`fit`), which says what requests cost. Costs move at most by a
//! factor of 2 from window to window, half the way to what was found, and no further from bytes
//! than windows bear out (`fit`) and than makes a difference (`mix`).
//!
//! **Where costs do not matter** (`mix`: one flow, or one class of requests) nothing is tried or
//! found.
//!
//! **Trials.** Windows tell only as much as they differ. Therefore each class of requests costs an
//! eighth more or less than is believed, by chance, and in the window after that as much less or
//! more: tenants that send the same requests notice nothing, and between others it evens out within
//! two windows.

use alloc::boxed::Box;

use super::fit::{self, FIRST, MAX_BASE, MAX_PRICE, PARTS, Parts, WINDOWS, Window};
use super::mix::Mix;
use super::tally::{CLASSES, KINDS, Sum, class, direction, of_class};
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::CostStats;

/// How often ports' counts are read, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;
/// The least time of a window, in nanoseconds, and its fewest requests: these, and twice those that
/// tenants have under way.
pub(super) const SHORTEST_NS: u64 = 50_000_000;
const ENOUGH: u64 = 64;
/// But no more time than that.
const LONGEST_NS: u64 = 1_000_000_000;
/// Costs are tried out by one part in 2 to the power of this; a word's shift of 63 leaves nothing.
const TRIAL: u32 = 3;
const NO_TRIAL: u32 = 63;
/// Windows of trials after the last one in which costs changed by an eighth, and the most in all;
/// even numbers, since each has its opposite.
const TRIALS: u32 = 12;
const LONG: u32 = 48;
/// There are trials again after this number of windows without; or as soon as the policy has ended
/// a search of its own (for D), for which they wait no more windows than `LATEST`.
const RARELY: u32 = 200;
const LATEST: u32 = 600;
/// And when the load is another one: two windows in a row spend this part, in 1024ths, on something
/// else than usual. Not before `SOONEST` windows, so that loads that come and go leave time
/// without.
const STRANGE: u64 = 256;
const SOONEST: u32 = 16;
/// Windows before costs move.
const FEWEST: usize = 3;
/// A direct policy holds nothing; its device is busy with this number of requests.
const BUSY: u64 = 32;
/// Costs go to at least this, in bytes and in 65536ths of one: a factor needs something to
/// multiply.
const LEAST_BASE: u64 = 1024;
const LEAST_PRICE: u64 = 16;

/// What requests cost now; ports read it when a request comes.
pub(super) struct Prices<P: Platform> {
    /// Of each kind: its base in bytes and, above it, the price of a byte in 65536ths.
    kinds: [P::U64; KINDS],
    /// A bit for each kind and power of 2: whether such requests cost more or less than that.
    trial: P::U64,
    /// By one part in 2 to the power of this.
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

    /// What a request costs as a command of its own, and as a part of another one.
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

/// Finds what requests cost.
pub(super) struct Finder {
    is_direct: bool,
    /// What was found, how far it is believed, in 256ths, and what requests cost therefore: bytes,
    /// or what was found, or something in between.
    parts: Parts,
    belief: u64,
    shown: Parts,
    /// What is asked for, and whether costs matter for that.
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
    /// What was counted at the last look, if the device was busy then.
    last: Option<Sum>,
    random: u64,
    trial: u64,
    /// Windows of trials that are left, and how many there have been without a pause.
    left: u32,
    tried: u32,
    /// What the first window without trials was spent on, in 1024ths of each part, and how many of
    /// them there have been.
    usual: [u64; PARTS],
    idle: u32,
    /// Windows in a row that were unlike it.
    strange: u32,
    /// What is being tried began with another load.
    is_new: bool,
    /// The policy has searched for nothing since the last trials began.
    was_calm: bool,
    next_ns: u64,
}

impl Finder {
    /// On the heap, by a call of its own: it is some KiB, and what builds a policy inside Linux has
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

    /// When to look next, in nanoseconds.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.next_ns
    }

    /// What requests cost, trials left aside.
    pub(super) fn stats(&self) -> CostStats {
        let [random_read, sequential_read, random_write, sequential_write, read, write] =
            self.shown;
        CostStats {
            bases: [random_read, sequential_read, random_write, sequential_write],
            per_kib: [read, write].map(|price| price >> 6),
            windows: self.count as u64,
        }
    }

    /// Takes in what ports have counted. Tells whether costs vary from now on, and whether by much.
    pub(super) fn look<P: Platform>(
        &mut self,
        now_ns: u64,
        sum: &Sum,
        prices: &Prices<P>,
        is_calm: impl FnOnce() -> bool,
    ) -> Option<bool> {
        self.next_ns = now_ns.saturating_add(LOOK_NS);
        let is_busy = sum.staged > 0 || self.is_direct && sum.live >= BUSY;
        // Only what lies between two looks that found the device busy goes into a window.
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
        // From completion to completion: what was done after the last one is in no count yet.
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
            // What requests cost does not matter.
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

    /// A window without trials is over: time for some?
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
            // Once a search for D has ended, trials are due as soon as a window has shown what is
            // usual.
            let is_due = self.idle >= if self.was_calm { RARELY } else { 2 };
            if !is_due || !is_calm && self.idle < LATEST {
                return None;
            }
        }
        (self.left, self.was_calm) = (TRIALS, true);
        self.try_next(prices)?;
        Some(false)
    }

    /// The next window's trial: by chance, then its opposite; `None` if there is to be none.
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

    /// Goes to what was found; true if that is far for what takes much time.
    fn approach(&mut self, found: &fit::Found) -> bool {
        let before = self.shown;
        for (part, (now, found)) in self.parts.iter_mut().zip(&found.parts).enumerate() {
            let (least, most) =
                if part < KINDS { (LEAST_BASE, MAX_BASE) } else { (LEAST_PRICE, MAX_PRICE) };
            let half = now.midpoint(*found);
            *now = half.clamp(*now / 2, (*now).max(least) * 2).min(most);
        }
        // Both have to bear it out: that costs are no chance, and that they make a difference.
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
