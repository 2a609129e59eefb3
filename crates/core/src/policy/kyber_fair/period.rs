//! Periods: their beginning, the flows that have run out of tokens, and the ports that sleep.
//!
//! **Words.** The *period* word holds the period's number (63 bits: it never wraps) and a bit that
//! says that a port is about to begin the next one. All ports read it with each `next`; it changes
//! once a period. Beside it are the tokens per unit of weight. A flow's *pot* holds the *tag* of
//! the period whose tokens are in it (the low bits of the number), and how many are left. The first
//! port that finds an earlier tag, or none, fills the pot with `tokens per weight x weight` and the
//! tokens left of the period before, up to the same number, by the same compare-and-swap that takes
//! from it. So to begin a period is to add up a few sums (`census`) and to write some words,
//! however many flows there are, and no token is handed out twice: of all ports that find an old
//! tag, one succeeds.
//!
//! **The period of a pot** is given by its tag, which is compared for equality only ([`Pot`]).
//!
//! **The tokens per weight**, and the other fields of a [`Period`], are written while the bit is
//! set, before the number that they belong to. A port reads the number first, so the fields that it
//! reads after that are those of this period or of the next: if the next period begins just then,
//! the port may fill a pot by the next period's tokens per weight.
//!
//! **To begin a period** a port (or `tick`) *claims* it: it sets the bit by compare-and-swap; a
//! port that fails leaves it to the winner. The winner reads the active flows from the census
//! (those seen in this period, or so recently that all their requests may be in the device), sets
//! `unspent` to their number, publishes the new words, and wakes all sleeping ports. The port that
//! sees one of those flows first in the new period marks it as `counted`.
//!
//! **Flows that have run out.** The port that takes the last tokens out of a counted flow's pot
//! decrements `unspent`. At 0 all active flows have run out.
//!
//! **Sleepers, and why none is left asleep**: argued above the verbs of [`Periods`].
//!
//! **Patience.** A port tolerates fewer than `busy` outstanding requests for a 64th of the period
//! so far (`bear_until_ns`).
//!
//! **Bounds of loops.** A compare-and-swap of a pot fails when another port has taken a batch (a
//! pot has as many batches as stated below, and one more for each port), or when a period begins,
//! which ends the loop. A compare-and-swap of `unspent` fails when another flow has run out: once a
//! flow and period. A period is claimed by one attempt. `port` bounds the number of periods that a
//! call of `next` follows.
//!
//! **Batches.** A port takes a 32nd of a flow's tokens at a time, or less if there are many ports.

use crossbeam_utils::CachePadded;

use super::census::Census;
use super::predict::MAX_TOKENS;
use super::{Latency, Line, Planner, Shared};
use crate::contract::flow::Weight;
use crate::contract::platform::{AtomicWord, Lock, Ordering, Platform};
use crate::contract::port_set::{PortBits, PortId, PortSet};

/// The period word: a port is about to begin the next period.
const CLAIMED: u64 = 1;
/// A pot: there is a tag above its tokens, which have `TAG_SHIFT` bits.
const FILLED: u64 = 1 << 63;
const TAG_SHIFT: u32 = 47;
const LEFT: u64 = (1 << TAG_SHIFT) - 1;
/// The most tokens of a flow in a period; a pot has room for twice as many.
const MOST_SHARE: u64 = LEFT / 2;
/// Fractional bits of tokens per 256th of a weight. Tokens are at most 2^38.
const FRACTION: u32 = 20;
/// Bits of the number of flows in `unspent`, at most 2^24. 39 bits of the period's number are above
/// them, and only ports in the midst of a verb compare them.
const COUNT_BITS: u32 = 25;
/// Bits of the weight in [`Pot::seen`]. 42 bits of the period's number are above them: enough for
/// 50 days of periods of 1 us, or 13 years of periods of 100 us.
const WEIGHT_BITS: u32 = Weight::BITS;
/// The fewest batches that a flow's tokens are divided into.
const LEAST_BATCHES: usize = 32;

/// A period, as a port knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Period {
    /// From 1; 0 stands for none.
    number: u64,
    /// Tokens per 256th of a weight, times 2^[`FRACTION`].
    per_weight: u64,
    /// Number of periods before this one whose flows count in it.
    pub(super) reach: u8,
    /// Whether the tokens left of the period before are valid in this one.
    pub(super) keeps: bool,
}

impl Period {
    /// A period in which flows of the last period count, and their remaining tokens are valid.
    pub(super) fn new(number: u64, tokens: u64, weights: u64) -> Period {
        let most = MAX_TOKENS << FRACTION;
        let per_weight = ((tokens << FRACTION) / weights.max(1)).clamp(1, most);
        Period { number, per_weight, reach: 1, keeps: true }
    }

    /// Its number.
    #[inline]
    pub(super) fn number(self) -> u64 {
        self.number
    }

    /// The bits above the tokens in a pot of this period.
    #[inline]
    fn tag(self) -> u64 {
        tag(self.number)
    }

    /// Its `reach` and, above that, whether it `keeps`.
    fn terms(self) -> u64 {
        u64::from(self.keeps) << u8::BITS | u64::from(self.reach)
    }

    /// The tokens of a flow: at least 1, and less than 2^46. (Only a flow that does not count in a
    /// period of light flows can saturate here, at 2^44 tokens.) Fractions of a token are handed
    /// out in turn: while nothing else changes, `n` periods hand out `n` times the exact share, to
    /// within one token.
    #[inline]
    fn share(self, weight: Weight) -> u64 {
        let exact = self.per_weight.saturating_mul(weight.in_256ths().into());
        let handed = self.number.wrapping_mul(exact) & ((1 << FRACTION) - 1);
        (exact.saturating_add(handed) >> FRACTION).clamp(1, MOST_SHARE)
    }
}

/// The bits above the tokens in a pot of a period.
#[inline]
fn tag(number: u64) -> u64 {
    FILLED | number << TAG_SHIFT & !FILLED
}

/// A flow's tokens and activity, written by all ports; in two cache lines of its own, which some
/// processors fetch as one.
#[repr(align(128))]
pub(super) struct Pot<P: Platform> {
    /// The tag of a period and the tokens left of it; 0: of no period.
    tokens: P::U64,
    /// The last period in which the flow sent, or waited to send, and its weight then in the lowest
    /// [`WEIGHT_BITS`]; 0: none.
    seen: P::U64,
    /// The last period in which it counted as active.
    counted: P::U64,
    /// The flow's debt on ports where another flow has taken its seat, in tokens.
    debt: P::U64,
}

/// The result of taking tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// This many, and more are left.
    Some(u64),
    /// This many, and those were the last.
    Last(u64),
    /// None: the flow is throttled, or there is a later period than the port knows.
    None,
}

// **The period of a pot.** Tags are compared for equality only; no tag has an age. A tag that is
// not the port's own is of an earlier period, unless the port is behind. A port finds out that it
// is behind by reading the number again *after* the pot: the port that filled the pot had read the
// later number (acquire) and published the pot after that (release), so a port that sees the pot
// (acquire) sees that number as well, takes nothing, and follows. A tag is used again after 65,536
// periods. A tag that is the port's own is nevertheless of this period, because ticks empty all
// pots that are of neither this period nor the last: each period they begin a walk over all pots,
// unless one is under way, and a walk takes a millisecond for each 1,024 pots, at most 16 s. 65,536
// periods take longer than a walk, unless each serves next to nothing. (If they take less, or a
// verb is suspended for that long in the midst of its compare-and-swap, the flow finds the tokens
// left 65,536 periods ago, for one period.)
impl<P: Platform> Pot<P> {
    pub(super) fn new() -> Self {
        let [tokens, seen, counted, debt] = [(); 4].map(|()| P::U64::new(0));
        Pot { tokens, seen, counted, debt }
    }

    /// Prepares the pot for a new flow in the slot: the first port fills it, and the flow does not
    /// count yet.
    pub(super) fn reset(&self, census: &Census<P>) {
        self.forget(census);
        for word in [&self.tokens, &self.counted, &self.debt] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Marks the flow as not seen: from the next period on it does not count.
    pub(super) fn forget(&self, census: &Census<P>) {
        let (number, weight) = split(self.seen.swap(0, Ordering::AcqRel));
        census.leave(number, weight);
    }

    /// Leaves a debt for the port that the flow comes to next. The sum guards no data, so Relaxed
    /// is enough.
    pub(super) fn leave_debt(&self, tokens: u64) {
        self.debt.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Takes over all debts that were left.
    pub(super) fn take_up_debt(&self) -> u64 {
        match self.debt.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.debt.swap(0, Ordering::Relaxed),
        }
    }

    /// Notes that the flow sends in this period, or waits to send.
    #[inline]
    pub(super) fn see(&self, census: &Census<P>, period: Period, weight: Weight) {
        let mut old = self.seen.load(Ordering::Acquire);
        loop {
            let (last, old_weight) = split(old);
            // A port that is behind moves nothing back.
            let Some(age @ 1..) = period.number.checked_sub(last) else { return };
            if age <= u64::from(period.reach) {
                // `counted` is written before other ports can find the flow seen, because they may
                // use up its tokens at once.
                self.counted.store(period.number, Ordering::Relaxed);
            }
            let new = period.number << WEIGHT_BITS | u64::from(weight.in_256ths());
            // The flow enters the bucket before the word says so: another port may take it out at
            // once.
            census.enter(period.number, weight);
            match self.seen.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return census.leave(last, old_weight),
                Err(now) => old = now,
            }
            // Another port has moved the flow meanwhile, and the flow must not be counted twice.
            census.leave(period.number, weight);
        }
    }

    /// Takes the tokens `owed` and a batch, or the rest if that is less.
    #[inline]
    pub(super) fn take(
        &self,
        periods: &Periods<P>,
        period: Period,
        weight: Weight,
        owed: u64,
    ) -> Taken {
        let (tag, share) = (period.tag(), period.share(weight));
        let tag_before = self::tag(period.number.wrapping_sub(1));
        let want = owed + (share >> periods.batch_shift).max(1);
        // Acquire and release: see *The period of a pot*, above.
        let mut old = self.tokens.load(Ordering::Acquire);
        loop {
            let left = if old & !LEFT == tag {
                old & LEFT
            } else if periods.number() == period.number {
                let is_kept = period.keeps && old & !LEFT == tag_before;
                share + if is_kept { (old & LEFT).min(share) } else { 0 }
            } else {
                return Taken::None;
            };
            let take = left.min(want);
            if take == 0 {
                return Taken::None;
            }
            let new = tag | (left - take);
            match self.tokens.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if take == left => return Taken::Last(take),
                Ok(_) => return Taken::Some(take),
                Err(now) => old = now,
            }
        }
    }

    /// Empties the pot, unless it is of this period or the last. The period's number is read after
    /// the pot, as by a port that takes tokens; and if a port fills the pot meanwhile, the swap
    /// fails.
    pub(super) fn expire(&self, periods: &Periods<P>) {
        let old = self.tokens.load(Ordering::Acquire);
        let number = periods.number();
        if old != 0 && ![number, number.wrapping_sub(1)].map(tag).contains(&(old & !LEFT)) {
            // The swap guards nothing: an empty pot is filled by the port that reads the number
            // after it.
            _ = self.tokens.compare_exchange(old, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The period and the weight in a word of [`Pot::seen`].
fn split(seen: u64) -> (u64, Weight) {
    (seen >> WEIGHT_BITS, Weight::of_word(seen))
}

/// The state of periods, which all ports share.
pub(super) struct Periods<P: Platform> {
    clock: CachePadded<Clock<P>>,
    /// Number of the period, and how many active flows have tokens left in their pots.
    unspent: CachePadded<P::U64>,
    sleepers: CachePadded<PortBits<P>>,
    /// Time from which too few requests have been outstanding in this period; 0 if enough are.
    short_ns: CachePadded<P::U64>,
    end_ns: P::U64,
    length_ns: u64,
    /// Patience lasts for the elapsed time of the period divided by this; 0: there is none.
    patience: u64,
    // **Batches.** A port takes a 32nd of a flow's tokens at a time, and with more than 16 ports
    // less: one part in twice the ports (rounded up to a power of two). All ports together hold at
    // most half of the tokens without using them, so that no port finds the pot empty while most of
    // its tokens lie idle elsewhere. The price is that the pot's line moves up to twice (rounded:
    // four times) the number of ports a period: 128 times with 64 ports, 512 times with 256.
    /// A batch is one part in two to the power of this of a flow's tokens.
    batch_shift: u32,
}

/// The current period.
struct Clock<P: Platform> {
    /// Its number, and whether the next is claimed.
    word: P::U64,
    per_weight: P::U64,
    /// See [`Period::terms`].
    terms: P::U64,
}

/// The sum of weights by which a period's tokens are divided if no flow was active. No flow counts
/// in the period, so it ends as soon as a flow runs out; a flow that comes until then gets the part
/// of the tokens that its weight is of the largest weight.
const NOBODY: u64 = Weight::MAX.in_256ths() as u64;

// **Sleepers, and why none is left asleep.** A port that may send nothing sets its bit in
// `sleepers` and *then* checks (1) whether the period has changed, (2) whether nothing is unspent,
// (3) whether nothing is outstanding, or fewer than `busy` requests for as long as its patience
// lasts, (4) whether the period's time is over; in cases 2 to 4 it begins the next. On the other
// side,
// 1. the port that publishes a period *then* takes all bits and wakes those ports;
// 2. the port that takes the last one off `unspent` *then* reads `sleepers` and wakes one, which
//    begins the next period;
// 3. a port whose own count of outstanding requests falls below `busy` writes the count and *then*
//    reads `sleepers` and adds up the counts of all ports: if the sum is below `busy` it wakes one
//    port, but not while one is known to be waiting out its patience. (While its own count is at
//    least `busy` the sum is, too, and it need not read `sleepers`; under load that is always so.)
// 4. the thread that raises `busy` *then* reads `sleepers` and wakes them all. (A port that
//    completes a request may still read the smaller `busy` and wake none; a later completion
//    reads the new value and acts as in 3.)
// 5. `tick` begins the next period when the time is over.
//
// Cases 2 and 3 wake one port. Its requests may have been taken back by then, and it would do
// nothing. So a port whose last throttled request is taken back removes its own bit, and *then*
// reads `sleepers` and wakes another port.
//
// These accesses are sequentially consistent, so in each case one side sees the other. If the claim
// fails because another port has claimed the period, that port takes all bits after this port has
// set its own, and wakes this port. A bit is never assumed to be still set: a port that stops sets
// it again, since a late publisher may have taken it. `P::fence` marks the places.
impl<P: Platform> Periods<P> {
    /// The first period, for which no flow counts: it ends as soon as a flow runs out.
    pub(super) fn new(ports: usize, length_ns: u64, tokens: u64, patience: u32) -> Self {
        let word = |value| CachePadded::new(P::U64::new(value));
        let first = Period::new(1, tokens, NOBODY);
        let Period { number, per_weight, .. } = first;
        let clock = Clock {
            word: P::U64::new(number << 1),
            per_weight: P::U64::new(per_weight),
            terms: P::U64::new(first.terms()),
        };
        Periods {
            clock: CachePadded::new(clock),
            unspent: word(number << COUNT_BITS),
            sleepers: CachePadded::new(PortBits::new(ports)),
            short_ns: word(0),
            end_ns: P::U64::new(0),
            length_ns,
            patience: patience.into(),
            batch_shift: (2 * ports).max(LEAST_BATCHES).next_power_of_two().trailing_zeros(),
        }
    }

    /// The number of the current period.
    #[inline]
    pub(super) fn number(&self) -> u64 {
        self.clock.word.load(Ordering::SeqCst) >> 1
    }

    /// The current period.
    pub(super) fn now(&self) -> Period {
        let number = self.number();
        // These words are read after the number, so they are as new as the number, or newer.
        let Clock { per_weight, terms, .. } = &*self.clock;
        let terms = terms.load(Ordering::Relaxed);
        let (reach, keeps) = (terms as u8, terms >> u8::BITS != 0);
        Period { number, per_weight: per_weight.load(Ordering::Relaxed), reach, keeps }
    }

    /// Claims the right to begin the next period; false: another port has claimed it, or begun it.
    fn claim(&self, period: Period) -> bool {
        let free = period.number << 1;
        let claim = free | CLAIMED;
        self.clock.word.compare_exchange(free, claim, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the next period is claimed, or has begun.
    fn is_ending(&self, period: Period) -> bool {
        self.clock.word.load(Ordering::SeqCst) != period.number << 1
    }

    /// Ends a period that is claimed; gives the ports to wake. A port that reads the new number
    /// also reads everything that was written before it.
    pub(super) fn publish(&self, next: Period) -> PortSet {
        self.clock.per_weight.store(next.per_weight, Ordering::Relaxed);
        self.clock.terms.store(next.terms(), Ordering::Relaxed);
        self.clock.word.store(next.number << 1, Ordering::SeqCst);
        P::fence();
        self.sleepers.set().take(Ordering::SeqCst)
    }

    /// Latest end of the period, in nanoseconds.
    pub(super) fn end_ns(&self) -> u64 {
        self.end_ns.load(Ordering::Relaxed)
    }

    /// Whether its time is over.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns()
    }

    /// Marks the port as asleep. The caller then checks once more whether it has to sleep.
    pub(super) fn enlist(&self, port: PortId) {
        if !self.sleepers.set().contains(port, Ordering::SeqCst) {
            self.sleepers.set().insert(port, Ordering::SeqCst);
        }
        P::fence();
    }

    /// The ports that sleep. The caller has already written the words that they check.
    pub(super) fn sleepers(&self) -> PortSet {
        P::fence();
        self.sleepers.set().load(Ordering::SeqCst)
    }

    /// Whether too few requests are known to be outstanding.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.short_ns.load(Ordering::Relaxed) != 0
    }

    /// Notes that enough requests are outstanding.
    pub(super) fn is_supplied(&self) {
        if self.is_short() {
            self.short_ns.store(0, Ordering::Relaxed);
        }
    }

    // **Patience.** Clients that keep many requests outstanding send and receive them in bursts, so
    // for some microseconds there may be next to none. To end the period for that would give other
    // flows tokens that are not theirs. So a port that finds fewer than `busy` outstanding writes
    // the time, and checks again after a 64th of the elapsed time of the period; the port whose
    // request makes `busy` outstanding clears that word. (If none is outstanding, the port begins
    // the next period at once.) So one shortage lasts for at most a 64th of the period so far. The
    // word orders nothing: if it is cleared too late, a period ends early, as it would without
    // patience; and if no port acts when patience is over, the next completion wakes a port that
    // does.
    /// The time until which a port tolerates that too few requests, but not none, are outstanding.
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
        // `patience` is not 0 here; `max` shows that to the compiler.
        since_ns.saturating_add(since_ns.saturating_sub(began_ns) / self.patience.max(1))
    }

    /// Whether a sleeper is to be woken because only `outstanding` requests, too few, are
    /// outstanding.
    pub(super) fn calls_for_help(&self, outstanding: u64, now_ns: u64) -> bool {
        outstanding == 0 || !self.is_short() || self.bear_until_ns(now_ns) <= now_ns
    }

    /// A sleeper other than `port`, which has just changed a word that sleepers check.
    #[inline]
    pub(super) fn a_sleeper_beside(&self, port: PortId) -> Option<PortId> {
        let mut others = self.sleepers();
        others.remove(port);
        others.next()
    }

    /// Removes the mark of a port that has no request left that waits for another period. Gives
    /// another sleeper to wake, since this port may have been woken in place of that one.
    pub(super) fn delist(&self, port: PortId) -> Option<PortId> {
        // If the mark is gone, all sleepers have been woken after it was set.
        let is_marked = self.sleepers.set().remove(port, Ordering::SeqCst);
        is_marked.then(|| self.a_sleeper_beside(port)).flatten()
    }

    /// Notes that a flow has run out of tokens in this period; gives whether it was the last that
    /// counted.
    pub(super) fn run_out(&self, pot: &Pot<P>, period: Period) -> bool {
        if pot.counted.load(Ordering::Relaxed) != period.number {
            return false;
        }
        let none = period.number << COUNT_BITS;
        // The count is of this period, and not 0: for another period's number the difference is
        // larger.
        let counts = |old: u64| old.wrapping_sub(none).wrapping_sub(1) >> COUNT_BITS == 0;
        let mut old = self.unspent.load(Ordering::SeqCst);
        while counts(old) {
            match self.unspent.compare_exchange(old, old - 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return old - 1 == none,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Whether all counted flows have run out.
    pub(super) fn all_ran_out(&self, period: Period) -> bool {
        self.unspent.load(Ordering::SeqCst) == period.number << COUNT_BITS
    }
}

impl<P: Platform> Shared<P> {
    /// The time at which the next period is due, for a port that may send nothing; `None` if it is
    /// not due before another event.
    pub(super) fn due_ns(&self, period: Period, now_ns: u64) -> Option<u64> {
        let Shared { periods, .. } = self;
        if periods.is_ending(period) {
            return None;
        }
        if periods.all_ran_out(period) || periods.is_over(now_ns) {
            return Some(now_ns);
        }
        match self.outstanding() {
            0 => Some(now_ns),
            some if some < self.busy.load(Ordering::SeqCst) => Some(periods.bear_until_ns(now_ns)),
            // Enough are outstanding again: the next shortage has a patience of its own.
            _ => {
                periods.is_supplied();
                None
            }
        }
    }

    /// Begins the period after `period`; gives the ports to wake. `None`: another port does so, or
    /// has.
    pub(super) fn begin_period(&self, period: Period, now_ns: u64) -> Option<PortSet> {
        let Shared { census, periods, .. } = self;
        if !periods.claim(period) {
            return None;
        }
        // When a period ends early because the device has too little to do, flows lose the tokens
        // that they did not use.
        let keeps = periods.is_over(now_ns);
        let (tokens, reach) = self.plan(period, now_ns);
        let (active, weights) = census.sum(period.number, reach);
        let next = period.number + 1;
        // The sums are ready before the number is published, because ports that read it enter flows
        // and count them at once.
        census.open(next);
        periods.unspent.store(next << COUNT_BITS | active, Ordering::SeqCst);
        periods.end_ns.store(now_ns.saturating_add(periods.length_ns), Ordering::Relaxed);
        periods.is_supplied();
        let weights = if active == 0 { NOBODY } else { weights };
        Some(periods.publish(Period { reach, keeps, ..Period::new(next, tokens, weights) }))
    }

    /// The tokens of the next period and its reach; also updates the cost of writes.
    fn plan(&self, period: Period, now_ns: u64) -> (u64, u8) {
        // At the end of the time, `all_ran_out` says nothing: perhaps no flow was active.
        let ran_out_early = self.periods.all_ran_out(period) && !self.periods.is_over(now_ns);
        let used = self.sum(|line| &line.used);
        self.planner.with(|planner| {
            // Latencies are measured once in the length of a period, however early periods end.
            let elapsed_ns = now_ns.saturating_sub(planner.measured_ns);
            if elapsed_ns >= self.periods.length_ns {
                planner.measured_ns = now_ns;
                self.measure(planner, elapsed_ns);
            }
            // While the device has too little to do, only flows of the last period count, so that
            // waiting flows may use it.
            let is_short = self.outstanding() < self.busy();
            let horizon_ns = if is_short { 0 } else { planner.stay.horizon_ns() };
            let since_ns = now_ns.saturating_sub(horizon_ns);
            let reach = planner.ends.reach(period.number, now_ns, since_ns);
            let tokens = planner.predictor.next(now_ns, used, ran_out_early);
            self.predicted.store(planner.predictor.tokens(), Ordering::Relaxed);
            (tokens, reach)
        })
    }

    /// Measures requests' times in the device.
    fn measure(&self, planner: &mut Planner, elapsed_ns: u64) {
        let total = |kind: fn(&Line<P>) -> &Latency<P>| {
            [self.sum(|line| &kind(line).sum_ns), self.sum(|line| &kind(line).count)]
        };
        let (reads, writes) = (total(|line| &line.reads), total(|line| &line.writes));
        let others = total(|line| &line.others);
        planner.stay.update([reads, writes, others], elapsed_ns, self.outstanding() > 0);
        if self.measured_writes {
            self.write_ratio.store(planner.ratio.update(reads, writes), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;

    const WEIGHT: Weight = Weight::DEFAULT;

    /// A period of `tokens` tokens for this sum of whole weights.
    fn period(number: u64, tokens: u64, weights: u64) -> Period {
        Period::new(number, tokens, weights * Weight::ONE)
    }

    /// Period 7 of `tokens` tokens, on `ports` ports.
    fn seventh(ports: usize, tokens: u64, weights: u64) -> (Periods<Native>, Period) {
        let periods = Periods::new(ports, 1, 1, 0);
        let period = period(7, tokens, weights);
        periods.publish(period);
        (periods, period)
    }

    #[test]
    fn a_pot_is_filled_once_a_period_and_never_overdrawn() {
        let pot = Pot::<Native>::new();
        let (periods, first) = seventh(2, 3200, 100);
        let take = |period, weight, owed| pot.take(&periods, period, weight, owed);
        assert_eq!(take(first, WEIGHT, 0), Taken::Some(100));
        assert_eq!(take(first, WEIGHT, 2900), Taken::Some(3000));
        assert_eq!(take(first, WEIGHT, 2900), Taken::Last(100));
        assert_eq!(take(first, WEIGHT, 0), Taken::None);
        // A port that is behind has to read the period again.
        let second = period(8, 6400, 200);
        periods.publish(second);
        assert_eq!(take(second, Weight::new(200).unwrap(), 0), Taken::Some(200));
        assert_eq!(take(first, WEIGHT, 1), Taken::None);
        // Tokens left are valid for one more period, up to that period's share, unless that period
        // does not keep them.
        let third = period(9, 6400, 200);
        periods.publish(third);
        assert_eq!(take(third, WEIGHT, 0), Taken::Some(100));
        let fourth = Period { keeps: false, ..period(10, 6400, 200) };
        periods.publish(fourth);
        assert_eq!(take(fourth, WEIGHT, 1 << 40), Taken::Last(3200));
    }

    /// Tags repeat after 65,536 periods; a pot that was not used is empty by then.
    #[test]
    fn a_pot_is_of_no_other_period_than_its_own() {
        let pot = Pot::<Native>::new();
        let (periods, first) = seventh(2, 3200, 100);
        assert_eq!(pot.take(&periods, first, WEIGHT, 3000), Taken::Some(3100));
        for number in [8, 9] {
            pot.expire(&periods);
            assert_ne!(pot.tokens.load(Ordering::Relaxed), 0, "it is of this period or the last");
            periods.publish(period(number, 3200, 100));
        }
        pot.expire(&periods);
        let later = period(7 + (1 << 16), 3200, 100);
        assert_eq!(later.tag(), first.tag());
        periods.publish(later);
        assert_eq!(pot.take(&periods, later, WEIGHT, 3000), Taken::Some(3100), "a pot of its own");
    }

    #[test]
    fn ports_that_take_a_batch_each_leave_half() {
        for (ports, batches) in [(1, 32), (16, 32), (17, 64), (64, 128), (256, 512)] {
            let pot = Pot::<Native>::new();
            let (periods, period) = seventh(ports, 1 << 20, 100);
            let batch = (1 << 20) / batches;
            for _ in 0..ports {
                assert_eq!(pot.take(&periods, period, WEIGHT, 0), Taken::Some(batch));
            }
            let rest = pot.take(&periods, period, WEIGHT, 1 << 30);
            assert_eq!(rest, Taken::Last((1 << 20) - batch * ports as u64), "{ports} ports");
        }
    }

    #[test]
    fn tokens_follow_the_weight_whatever_the_numbers() {
        let share = |tokens, weights, weight| {
            period(1 << FRACTION, tokens, weights).share(Weight::new(weight).unwrap())
        };
        assert_eq!(share(1000, 100, 25), 250);
        assert_eq!(share(1, 1_000_000, 1), 1, "never none");
        assert_eq!(
            share(MAX_TOKENS, 1, 10_000),
            u64::MAX >> FRACTION,
            "a weight that did not count"
        );
        assert_eq!(share(10_001, 10_001, 10_000), 10_000);
    }

    #[test]
    fn fractions_of_tokens_are_handed_out_in_turn() {
        for (tokens, weights, weight, handed) in
            [(30_000, 20_000, 1, 1500), (1500, 10_003, 10, 1499), (7, 4, 3, 5250)]
        {
            let share =
                |number| period(number, tokens, weights).share(Weight::new(weight).unwrap());
            let sum = (1..=1000).map(share).sum::<u64>();
            assert!(sum.abs_diff(handed) <= 1, "{sum} instead of {handed}");
        }
    }
}
