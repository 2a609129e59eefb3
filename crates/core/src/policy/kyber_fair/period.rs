//! Periods: how one begins, who has run out of tokens, and who sleeps until the next.
//!
//! **Words.** The *period* word holds the period's number (16 bits, wrapping), the tokens per unit
//! of weight and a bit that says that somebody is about to begin the next one. All ports read it
//! with each `next`; it changes once a period. A flow's *pot* holds the number of the period whose
//! tokens are in it, and how many are left. It is filled by whoever finds it filled for an earlier
//! period: `tokens per weight x weight`, by the same compare-and-swap that takes from it. So to
//! begin a period is to write one word, however many flows there are, and no token is handed out
//! twice: of all ports that find an old number, one succeeds. What was left of an earlier period is
//! forgotten by that.
//!
//! **To begin a period** a port (or `tick`) *claims* it: it sets the bit by compare-and-swap;
//! whoever fails leaves it to the winner. The winner counts the active flows (whose `seen` word
//! says this period), marks them as `counted` for the next, sets `unspent` to their number,
//! publishes the new word, and wakes all who sleep.
//!
//! **Who has run out.** Whoever takes the last tokens out of a pot of a counted flow takes one off
//! `unspent`. At 0 all active flows have run out.
//!
//! **Sleepers, and why none is left asleep.** A port that has nothing it may send sets its bit in
//! `sleepers` and *then* looks (1) whether the period is another by now, (2) whether nothing is
//! unspent, (3) whether nothing is outstanding, or for as long as its patience lasts fewer than
//! `busy` requests are, (4) whether the period's time is over; if any of 2 to 4, it begins the
//! next. On the other side,
//! 1. whoever publishes a period *then* takes all bits and wakes those ports;
//! 2. whoever takes the last one off `unspent` *then* reads `sleepers` and wakes one, which does
//!    the rest;
//! 3. a port whose own count of outstanding requests falls below `busy` writes it and *then* reads
//!    `sleepers` and adds up the counts of all: if they are below `busy` it wakes one, but not
//!    while one is known to be waiting out its patience. (While its own count is at least `busy`
//!    the sum is, too, and it need not look; under load that is always.)
//! 4. `tick` comes.
//!
//! These are sequentially consistent, so in each case one side sees the other. If the claim fails
//! because another has begun, that one's bits are taken after ours was set, and we are woken. A bit
//! is never assumed to be still set: a port that stops sets it again, since a late publisher may
//! have taken it. `P::fence` marks the places.
//!
//! **Patience.** Clients that keep many requests outstanding send and receive them by the handful,
//! so for some microseconds there may be next to none. To end the period for that would give the
//! others tokens that are not theirs. So a port that finds fewer than `busy` outstanding (but not
//! none: then it acts) writes since when, and asks again when a 64th of what has passed of the
//! period has gone by; whoever sends the request that makes them enough takes that back. A period
//! lasts as long as its tokens, so the device is short for no more than a 64th of the time. That
//! word orders nothing: taken back too late, a period ends early, as it would without patience; and
//! if nobody acts when it is over, the next completion wakes one who will.
//!
//! *The number wraps* after 65,536 periods. A flow that slept for exactly that long finds its pot
//! as it left it: it has what it had not used then instead of a period's tokens, until the next
//! period. As harmless are marks of that age.

use crossbeam_utils::CachePadded;

use super::Shared;
use super::predict::MAX_TOKENS;
use crate::contract::flow::Weight;
use crate::contract::platform::{AtomicWord, Lock, Ordering, Platform};
use crate::contract::port_set::{PortBits, PortId, PortSet};

const NUMBER_SHIFT: u32 = 48;
const LOW: u64 = (1 << NUMBER_SHIFT) - 1;
const CLAIMED: u64 = 1;
/// Tokens per weight have so many fractional bits.
const FRACTION: u32 = 8;
/// Each port takes so little of a flow's tokens at a time: 1/32.
const BATCH_SHIFT: u32 = 5;

/// The period word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Period(u64);

impl Period {
    pub(super) fn new(number: u16, tokens: u64, weights: u64) -> Period {
        // Tokens are at most 2^38: with the fraction 2^46.
        let per_weight = ((tokens << FRACTION) / weights.max(1)).clamp(1, MAX_TOKENS << FRACTION);
        Period(u64::from(number) << NUMBER_SHIFT | per_weight << 1)
    }

    /// Its number.
    #[inline]
    pub(super) fn number(self) -> u16 {
        (self.0 >> NUMBER_SHIFT) as u16
    }

    fn is_claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }

    /// The tokens of a flow: at least 1, and 2^47 at most.
    #[inline]
    fn share(self, weight: Weight) -> u64 {
        let per_weight = (self.0 & LOW) >> 1;
        ((per_weight * u64::from(weight.get())) >> FRACTION).clamp(1, 1 << 47)
    }
}

/// A flow's tokens, and what its ports tell of it; in two cache lines of its own, which some
/// processors fetch as one.
#[repr(align(128))]
pub(super) struct Pot<P: Platform> {
    /// Number of the period, and tokens left.
    tokens: P::U64,
    /// The last period in which the flow sent, or waited to.
    seen: P::U64,
    /// The last period in which it counted as active.
    counted: P::U64,
}

/// What came of taking tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// So many, and more are left.
    Some(u64),
    /// So many, and those were the last.
    Last(u64),
    /// None: the flow is throttled.
    None,
    /// None: the port does not know yet that there is another period.
    Stale,
}

impl<P: Platform> Pot<P> {
    pub(super) fn new() -> Self {
        // As if last used half a round ago.
        let old = 1 << 15;
        Pot {
            tokens: P::U64::new(old << NUMBER_SHIFT),
            seen: P::U64::new(old),
            counted: P::U64::new(old),
        }
    }

    /// For a new flow in the slot: full, and not counted.
    pub(super) fn reset(&self, now: Period) {
        let old = u64::from(now.number().wrapping_sub(1));
        self.tokens.store(old << NUMBER_SHIFT, Ordering::Relaxed);
        self.seen.store(old, Ordering::Relaxed);
        self.counted.store(old, Ordering::Relaxed);
    }

    /// The flow sent in this period, or waits to.
    #[inline]
    pub(super) fn see(&self, period: Period) {
        self.seen.store(u64::from(period.number()), Ordering::Relaxed);
    }

    /// Takes a batch beyond what is `owed`, or what there is.
    #[inline]
    pub(super) fn take(&self, period: Period, weight: Weight, owed: u64) -> Taken {
        let share = period.share(weight);
        let want = owed + (share >> BATCH_SHIFT).max(1);
        let number = period.number();
        let mut old = self.tokens.load(Ordering::Relaxed);
        loop {
            let age = number.wrapping_sub((old >> NUMBER_SHIFT) as u16) as i16;
            let left = match age {
                0 => old & LOW,
                1.. => share,
                _ => return Taken::Stale,
            };
            let take = left.min(want);
            if take == 0 {
                return Taken::None;
            }
            let new = u64::from(number) << NUMBER_SHIFT | (left - take);
            // Tokens guard no data: each taker's tokens follow from this one word.
            match self.tokens.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if take == left => return Taken::Last(take),
                Ok(_) => return Taken::Some(take),
                Err(now) => old = now,
            }
        }
    }
}

/// What all ports know of periods.
pub(super) struct Periods<P: Platform> {
    word: CachePadded<P::U64>,
    /// Number of the period, and how many active flows have tokens left in their pots.
    unspent: CachePadded<P::U64>,
    sleepers: CachePadded<PortBits<P>>,
    /// Since when too few requests have been seen outstanding in this period; 0 if they are not.
    short_ns: CachePadded<P::U64>,
    end_ns: P::U64,
    length_ns: u64,
    /// Patience lasts for one part in so many of what has passed of the period; 0: there is none.
    patience: u64,
}

/// The weights that a period is divided by if nobody was active. Nobody counts in it, so it ends as
/// soon as anybody runs out; what comes until then gets no more than it would beside the largest
/// weight.
const NOBODY: u64 = Weight::MAX.get() as u64;

impl<P: Platform> Periods<P> {
    /// The first period, for which nobody counts: it ends as soon as anybody runs out.
    pub(super) fn new(ports: usize, length_ns: u64, tokens: u64, patience: u32) -> Self {
        let word = |value| CachePadded::new(P::U64::new(value));
        Periods {
            word: word(Period::new(0, tokens, NOBODY).0),
            unspent: word(0),
            sleepers: CachePadded::new(PortBits::new(ports)),
            short_ns: word(0),
            end_ns: P::U64::new(0),
            length_ns,
            patience: patience.into(),
        }
    }

    /// The period that it is.
    #[inline]
    pub(super) fn now(&self) -> Period {
        Period(self.word.load(Ordering::SeqCst))
    }

    /// When it ends at the latest.
    pub(super) fn end_ns(&self) -> u64 {
        self.end_ns.load(Ordering::Relaxed)
    }

    /// Whether its time is over.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns()
    }

    /// Marks the port as asleep. The caller looks once more afterwards whether it has to be.
    pub(super) fn enlist(&self, port: PortId) {
        if !self.sleepers.set().contains(port, Ordering::SeqCst) {
            self.sleepers.set().insert(port, Ordering::SeqCst);
        }
        P::fence();
    }

    /// Whether too few requests are known to be outstanding.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.short_ns.load(Ordering::Relaxed) != 0
    }

    /// They are enough.
    pub(super) fn is_supplied(&self) {
        if self.is_short() {
            self.short_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Too few are outstanding, though not none: gives until when that is borne.
    fn bear_until_ns(&self, now_ns: u64) -> u64 {
        if self.patience == 0 {
            return now_ns;
        }
        let since_ns = match self.short_ns.load(Ordering::Relaxed) {
            0 => {
                self.short_ns.store(now_ns.max(1), Ordering::Relaxed);
                now_ns
            }
            since_ns => since_ns,
        };
        let began_ns = self.end_ns().saturating_sub(self.length_ns);
        since_ns.saturating_add(since_ns.saturating_sub(began_ns) / self.patience.max(1))
    }

    /// Whether somebody is to be woken since so many requests, fewer than enough, are outstanding.
    pub(super) fn calls_for_help(&self, outstanding: u64, now_ns: u64) -> bool {
        outstanding == 0 || !self.is_short() || self.bear_until_ns(now_ns) <= now_ns
    }

    /// A sleeper other than `port`, which has just made it worth its while to look.
    #[inline]
    pub(super) fn a_sleeper_beside(&self, port: PortId) -> Option<PortId> {
        P::fence();
        let mut others = self.sleepers.set().load(Ordering::SeqCst);
        others.remove(port);
        others.next()
    }

    /// A flow has run out of tokens in this period: gives whether it was the last that counted.
    pub(super) fn run_out(&self, pot: &Pot<P>, period: Period) -> bool {
        let number = u64::from(period.number());
        if pot.counted.load(Ordering::Relaxed) != number {
            return false;
        }
        let mut old = self.unspent.load(Ordering::SeqCst);
        while old >> NUMBER_SHIFT == number && old & LOW != 0 {
            match self.unspent.compare_exchange(old, old - 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return old & LOW == 1,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Whether all that counted have run out.
    pub(super) fn all_ran_out(&self, period: Period) -> bool {
        self.unspent.load(Ordering::SeqCst) == u64::from(period.number()) << NUMBER_SHIFT
    }
}

impl<P: Platform> Shared<P> {
    /// When the next period is due, seen by a port that has nothing it may send; `None`: not before
    /// something happens.
    pub(super) fn due_ns(&self, period: Period, now_ns: u64) -> Option<u64> {
        let Shared { periods, .. } = self;
        if period.is_claimed() {
            return None;
        }
        match self.outstanding() {
            _ if periods.all_ran_out(period) || periods.is_over(now_ns) => Some(now_ns),
            0 => Some(now_ns),
            some if some < self.busy => Some(periods.bear_until_ns(now_ns)),
            _ => {
                periods.is_supplied();
                None
            }
        }
    }

    /// Begins the period after `period`; gives the ports to wake. `None`: another does so, or has.
    pub(super) fn begin_period(&self, period: Period, now_ns: u64) -> Option<PortSet> {
        let Shared { flows, pots, periods, .. } = self;
        let Period(word) = period;
        if period.is_claimed() {
            return None;
        }
        periods
            .word
            .compare_exchange(word, word | CLAIMED, Ordering::SeqCst, Ordering::SeqCst)
            .ok()?;
        let tokens = self.plan(period, now_ns);
        let (number, next) = (u64::from(period.number()), period.number().wrapping_add(1));
        let (mut weights, mut active) = (0, 0u64);
        for (slot, weight) in flows.open_weights() {
            let Some(pot) = pots.get(slot) else { continue };
            if pot.seen.load(Ordering::Relaxed) == number {
                pot.counted.store(u64::from(next), Ordering::Relaxed);
                weights += u64::from(weight.get());
                active += 1;
            }
        }
        periods.unspent.store(u64::from(next) << NUMBER_SHIFT | active, Ordering::SeqCst);
        periods.end_ns.store(now_ns.saturating_add(periods.length_ns), Ordering::Relaxed);
        periods.is_supplied();
        let weights = if active == 0 { NOBODY } else { weights };
        // Whoever reads the new number reads all that was written before.
        periods.word.store(Period::new(next, tokens, weights).0, Ordering::SeqCst);
        P::fence();
        Some(periods.sleepers.set().take(Ordering::SeqCst))
    }

    /// The tokens of the next period; and what writes are to cost.
    fn plan(&self, period: Period, now_ns: u64) -> u64 {
        // At the end of its time it says nothing: perhaps nobody was active.
        let ran_out_early = self.periods.all_ran_out(period) && !self.periods.is_over(now_ns);
        let used = self.sum(|line| &line.used);
        self.planner.with(|planner| {
            // However early periods end.
            if self.measured_writes
                && now_ns.saturating_sub(planner.measured_ns) >= self.periods.length_ns
            {
                planner.measured_ns = now_ns;
                let [reads, writes] = [
                    [self.sum(|line| &line.reads.sum_ns), self.sum(|line| &line.reads.count)],
                    [self.sum(|line| &line.writes.sum_ns), self.sum(|line| &line.writes.count)],
                ];
                self.write_ratio.store(planner.ratio.update(reads, writes), Ordering::Relaxed);
            }
            planner.predictor.next(now_ns, used, ran_out_early)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;

    const WEIGHT: Weight = Weight::DEFAULT;

    #[test]
    fn a_pot_is_filled_once_a_period_and_never_overdrawn() {
        let pot = Pot::<Native>::new();
        let first = Period::new(7, 3200, 100);
        pot.reset(first);
        assert_eq!(pot.take(first, WEIGHT, 0), Taken::Some(100));
        assert_eq!(pot.take(first, WEIGHT, 2900), Taken::Some(3000));
        assert_eq!(pot.take(first, WEIGHT, 2900), Taken::Last(100));
        assert_eq!(pot.take(first, WEIGHT, 0), Taken::None);
        // What is left is forgotten; a port that is behind has to look again.
        let second = Period::new(8, 6400, 200);
        assert_eq!(pot.take(second, Weight::new(200).unwrap(), 0), Taken::Some(200));
        assert_eq!(pot.take(first, WEIGHT, 0), Taken::Stale);
        let third = Period::new(9, 6400, 200);
        assert_eq!(pot.take(third, WEIGHT, 1 << 40), Taken::Last(3200));
    }

    #[test]
    fn tokens_follow_the_weight_whatever_the_numbers() {
        let share = |tokens, weights, weight| {
            Period::new(u16::MAX, tokens, weights).share(Weight::new(weight).unwrap())
        };
        assert_eq!(share(1000, 100, 25), 250);
        assert_eq!(share(1, 1_000_000, 1), 1, "never none");
        assert_eq!(share(MAX_TOKENS, 1, 10_000), 1 << 47, "a weight that did not count");
        assert_eq!(share(10_001, 10_001, 10_000), 10_000);
        assert_eq!(Period::new(u16::MAX, MAX_TOKENS, 1).number(), u16::MAX);
    }
}
