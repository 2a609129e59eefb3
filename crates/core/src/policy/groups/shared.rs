//! State that ports and the control side of [`Grouped`](super::Grouped) share: the buckets of flows
//! with a reservation, and each port's counts.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use super::supply::Total;
use crate::contract::flow::FlowId;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::share::Reservation;
use crate::policy::bucket::{Bucket, Time};
use crate::structures::allocation::boxed;

/// A reservation may catch up at once on its rate's amount in a second, divided by this.
const BURST: u64 = 20;

/// State that ports and the control side share.
pub(super) struct Shared<P: Platform> {
    /// Requests on the device that went before all others, of all ports.
    pub(super) ahead: P::U64,
    /// The most requests that a port may have on the device beside those that went ahead for a
    /// reservation; [`u64::MAX`] is no bound.
    pub(super) room: P::U64,
    /// The ports' work for this layer, a [`Level`]; it only rises.
    pub(super) level: P::U64,
    /// The policy schedules by the device's classes.
    pub(super) has_classes: bool,
    /// Number of times that a flow has got or lost a reservation.
    pub(super) epoch: P::U64,
    /// For each flow its generation in the upper half, and its buckets in the lower, a bit each.
    pub(super) flows: Box<[P::U64]>,
    pub(super) accounts: Box<[Account<P>]>,
    pub(super) ports: Box<[CachePadded<Words<P>>]>,
    /// By port and flow.
    pub(super) activity: Box<[Box<[Activity<P>]>]>,
}

/// The ports' work for this layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Nothing: there never was a group or a reservation.
    Off,
    /// They count each flow's requests: there has been a group.
    Shares,
    /// They also count staged requests and the device's completions: there has been a reservation.
    Reservations,
}

/// Shared state of a flow with a reservation: a cache line.
#[repr(align(64))]
pub(super) struct Account<P: Platform> {
    pub(super) buckets: [Bucket<P>; 2],
    pub(super) ahead: P::U64,
    /// Number of ports that have requests of it staged.
    pub(super) lanes: P::U64,
}

/// A flow's requests on a port. Only the port writes them.
pub(super) struct Activity<P: Platform> {
    /// Submitted requests in the lower half, completed ones in the upper; both wrap.
    pub(super) requests: P::U64,
    /// Bytes of completed requests; wraps.
    pub(super) bytes: P::U64,
}

/// A flow's requests on all ports.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Asked {
    pub(super) submitted: u32,
    pub(super) completed: u32,
    pub(super) bytes: u64,
}

impl Asked {
    /// Number of live requests.
    pub(super) fn live(self) -> u32 {
        self.submitted.wrapping_sub(self.completed)
    }

    /// Requests and bytes completed since then.
    pub(super) fn since(self, before: Asked) -> [u64; 2] {
        let requests = self.completed.wrapping_sub(before.completed);
        [requests.into(), self.bytes.wrapping_sub(before.bytes)]
    }
}

impl<P: Platform> Activity<P> {
    pub(super) fn asked(&self) -> Asked {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        Asked { submitted, completed, bytes: self.bytes.load(Ordering::Relaxed) }
    }

    /// Counts a submitted request, or takes one off the count.
    #[inline]
    pub(super) fn submitted(&self, more: bool) {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        let submitted = if more { submitted.wrapping_add(1) } else { submitted.wrapping_sub(1) };
        self.requests.store(of_halves(submitted, completed), Ordering::Relaxed);
    }

    /// Counts a completed request.
    #[inline]
    pub(super) fn completed(&self, length: u32) {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        let word = of_halves(submitted, completed.wrapping_add(1));
        self.requests.store(word, Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(bytes.wrapping_add(length.into()), Ordering::Relaxed);
    }
}

/// The counts that a port publishes.
pub(super) struct Words<P: Platform> {
    pub(super) done: [P::U64; 2],
    /// Staged requests in the lower half, live ones in the upper.
    pub(super) held: P::U64,
}

/// The lower half of a word, and the upper one.
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn of_halves(lower: u32, upper: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

impl<P: Platform> Words<P> {
    pub(super) fn show(&self, done: [u64; 2], staged: u32, live: u32) {
        self.done.iter().zip(done).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.held.store(of_halves(staged, live), Ordering::Relaxed);
    }

    pub(super) fn add_to(&self, total: &mut Total) {
        let done = self.done.each_ref().map(|word| word.load(Ordering::Relaxed));
        for (sum, value) in total.done.iter_mut().zip(done) {
            *sum = sum.wrapping_add(value);
        }
        let [staged, live] = halves(self.held.load(Ordering::Relaxed));
        total.staged = total.staged.saturating_add(staged.into());
        total.live = total.live.saturating_add(live.into());
    }
}

impl<P: Platform> Shared<P> {
    pub(super) fn new(ports: usize, flows: usize, has_classes: bool) -> Self {
        let words = |count| boxed(count, |_| P::U64::new(0));
        let account = || Account {
            buckets: core::array::from_fn(|_| Bucket::new()),
            ahead: P::U64::new(0),
            lanes: P::U64::new(0),
        };
        let port =
            || Words { done: core::array::from_fn(|_| P::U64::new(0)), held: P::U64::new(0) };
        let activity = || Activity { requests: P::U64::new(0), bytes: P::U64::new(0) };
        Shared {
            ahead: P::U64::new(0),
            room: P::U64::new(u64::MAX),
            level: P::U64::new(Level::Off as u64),
            has_classes,
            epoch: P::U64::new(0),
            flows: words(flows),
            accounts: boxed(flows, |_| account()),
            ports: boxed(ports, |_| CachePadded::new(port())),
            activity: boxed(ports, |_| boxed(flows, |_| activity())),
        }
    }

    #[inline]
    pub(super) fn level(&self) -> Level {
        match self.level.load(Ordering::Relaxed) {
            0 => Level::Off,
            1 => Level::Shares,
            _ => Level::Reservations,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.level() != Level::Off
    }

    /// Whether the device works on requests that went before all others.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead.load(Ordering::Relaxed) > 0
    }

    /// Sets the most requests that flows may have on the device beside those that went ahead for a
    /// reservation; [`u64::MAX`] is no bound. Each port with live requests gets an equal part of
    /// it, and at least one request.
    pub(super) fn make_room(&self, most: u64) {
        let has_some =
            |words: &&CachePadded<Words<P>>| words.held.load(Ordering::Relaxed) >> 32 > 0;
        let ports = self.ports.iter().filter(has_some).count().max(1) as u64;
        let room = if most == u64::MAX { most } else { most.div_ceil(ports).max(1) };
        self.room.store(room, Ordering::Relaxed);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn account(&self, slot: usize) -> Option<&Account<P>> {
        self.accounts.get(slot)
    }

    pub(super) fn word(&self, slot: usize) -> [u32; 2] {
        halves(self.flows.get(slot).map_or(0, |word| word.load(Ordering::Acquire)))
    }

    /// The buckets that the flow has, a bit each.
    pub(super) fn kinds(&self, flow: FlowId) -> u32 {
        let [kinds, generation] = self.word(flow.slot());
        if generation == flow.generation() { kinds } else { 0 }
    }

    /// The flow in this slot, if it has a reservation.
    pub(super) fn reserved_in(&self, slot: usize) -> Option<FlowId> {
        let [kinds, generation] = self.word(slot);
        (kinds != 0).then(|| FlowId::new(slot as u32, generation))
    }

    /// The flow's buckets, and the amount that a request of this length takes from each.
    pub(super) fn buckets(
        &self,
        slot: usize,
        kinds: u32,
        length: u32,
    ) -> impl Iterator<Item = (&Bucket<P>, u64)> {
        let buckets = self.account(slot).into_iter().flat_map(|account| &account.buckets);
        let amounts = [1, u64::from(length)];
        let all = buckets.zip(amounts).zip(0..).filter(move |(_, at)| kinds >> at & 1 != 0);
        all.map(|(bucket, _)| bucket)
    }

    /// Sets the rates at which the flow's buckets fill; new ones are empty.
    pub(super) fn grant(
        &self,
        now_ns: u64,
        flow: FlowId,
        before: Reservation,
        granted: Reservation,
    ) {
        let slot = flow.slot();
        let (Some(account), Some(word)) = (self.account(slot), self.flows.get(slot)) else {
            return;
        };
        if before == granted {
            return;
        }
        let mut kinds = 0;
        let rates = granted.rates().into_iter().zip(before.rates());
        for (((rate, before), bucket), at) in rates.zip(&account.buckets).zip(0..) {
            if rate == 0 {
                continue;
            }
            kinds |= 1 << at;
            // A rate below one in that time still has room for one request.
            let burst = (rate / BURST).max(1);
            bucket.set_rate(rate, burst);
            if before == 0 {
                bucket.spend(Time::of_ns(now_ns), burst);
            }
        }
        // Last: a port that sees the bits finds the rate, and a new bucket empty.
        word.store(of_halves(kinds, flow.generation()), Ordering::Release);
        // In a new epoch ports search for requests of such flows that are staged already.
        if before.is_none() || granted.is_none() {
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the request's amounts from the flow's buckets if one of them has enough, or gives the
    /// time from which one has. The other one may be left with a debt.
    pub(super) fn take(&self, now: Time, slot: usize, kinds: u32, length: u32) -> Result<(), Time> {
        let mut first = Err(now);
        let mut is_any = false;
        for (at, (bucket, amount)) in self.buckets(slot, kinds, length).enumerate() {
            match bucket.take(now, bucket.cost(amount)) {
                Ok(()) => {
                    let others = self.buckets(slot, kinds, length).enumerate();
                    others
                        .filter(|(other, _)| *other != at)
                        .for_each(|(_, (bucket, amount))| bucket.spend(now, amount));
                    return Ok(());
                }
                Err(when) => {
                    first = first.map_err(|sooner| if is_any { when.min(sooner) } else { when });
                    is_any = true;
                }
            }
        }
        first
    }

    /// Whether the flow has more than its reservation without going before others.
    pub(super) fn has_more(&self, now: Time, flow: FlowId) -> bool {
        let kinds = self.kinds(flow);
        kinds != 0 && self.buckets(flow.slot(), kinds, 0).all(|(bucket, _)| bucket.owes(now))
    }

    /// The time from which one of the flow's buckets is not empty.
    pub(super) fn when(&self, now: Time, slot: usize, kinds: u32) -> Time {
        // The request is not known yet: this checks for one byte, and `take` for all of them.
        let all = self.buckets(slot, kinds, 1);
        all.map(|(bucket, amount)| bucket.when(now, bucket.cost(amount))).min().unwrap_or(now)
    }

    /// Takes the amounts of a request that goes regardless of the buckets.
    pub(super) fn spend(&self, now: Time, slot: usize, kinds: u32, length: u32) {
        self.buckets(slot, kinds, length).for_each(|(bucket, amount)| bucket.spend(now, amount));
    }

    /// Takes the growth of a request that has gone regardless of the buckets.
    pub(super) fn spend_bytes(&self, now: Time, slot: usize, kinds: u32, length: u32) {
        // The second bucket is that of bytes.
        self.buckets(slot, kinds & 2, length).for_each(|(bucket, bytes)| bucket.spend(now, bytes));
    }

    /// Refunds the amounts of a request that has not gone.
    pub(super) fn give_back(&self, slot: usize, kinds: u32, length: u32) {
        let all = self.buckets(slot, kinds, length);
        all.for_each(|(bucket, amount)| bucket.give_back(bucket.cost(amount)));
    }

    /// Time for which a port that has sent such a request of the flow waits, until all other ports
    /// with requests of the flow have had a turn, in nanoseconds.
    pub(super) fn turn_ns(&self, now: Time, slot: usize, kinds: u32, length: u32) -> u64 {
        let Some(account) = self.account(slot) else { return 0 };
        // If no other port has requests of the flow, the bucket alone determines when the next one
        // goes.
        let turns = account.lanes.load(Ordering::Relaxed).saturating_sub(1);
        if turns == 0 {
            return 0;
        }
        let all = self.buckets(slot, kinds, length);
        let all = all.map(|(bucket, amount)| (bucket, bucket.cost(amount)));
        let least = all.map(|(bucket, cost)| (bucket.when(now, cost), cost)).min();
        least.map_or(0, |(when, cost)| {
            let until_ns = when.ns().saturating_sub(now.ns());
            until_ns.saturating_add(cost.ns().saturating_mul(turns))
        })
    }

    /// Counts a port that has requests of the flow staged, or takes it off the count.
    pub(super) fn lanes(&self, slot: usize, has_some: bool) {
        let Some(account) = self.account(slot) else { return };
        match has_some {
            true => account.lanes.fetch_add(1, Ordering::Relaxed),
            false => account.lanes.fetch_sub(1, Ordering::Relaxed),
        };
    }

    pub(super) fn went_ahead(&self, slot: usize) {
        if let Some(account) = self.account(slot) {
            account.ahead.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The requests of the flow in this slot, on all ports.
    pub(super) fn asked(&self, slot: usize) -> Asked {
        let all = self.activity.iter().filter_map(|flows| flows.get(slot)).map(Activity::asked);
        all.fold(Asked::default(), |sum, one| Asked {
            submitted: sum.submitted.wrapping_add(one.submitted),
            completed: sum.completed.wrapping_add(one.completed),
            bytes: sum.bytes.wrapping_add(one.bytes),
        })
    }

    pub(super) fn total(&self) -> Total {
        let mut total = Total::default();
        self.ports.iter().for_each(|words| words.add_to(&mut total));
        total
    }
}
