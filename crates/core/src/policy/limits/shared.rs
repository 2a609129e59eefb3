//! State that ports and the control side share: a word and an account of each flow and group, and
//! the way from a request to the buckets that count it.
//!
//! **Model.** The word of a flow or group has a bit for each of its buckets, and the nearest group
//! around it that has caps. A request's *path* is its flow and those groups, at most
//! [`Group::LEVELS`] + 1. Each cap on the path that counts the request has to let it pass; the
//! request takes from all these caps at once or from none. Only the flow has buckets of a
//! reservation: their rates contain its part of the groups' reservations.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use super::bucket::{Bucket, Time};
use super::{AGAIN_NS, AT_ONCE};
use crate::contract::bounds::boxed;
use crate::contract::flow::{FlowId, Weight};
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::{Op, Request};
use crate::contract::share::{CapStats, Caps, Counted, Group, GroupId, Reservation, Side, Taken};

/// A flow itself and the groups that it can be in.
const LEVELS: usize = Group::LEVELS + 1;
/// Shift of the nearest group with caps in a word: its number plus one, or 0.
const ABOVE_SHIFT: u32 = 8;
/// The caps in a set of buckets; above them are the two buckets of a reservation.
pub(crate) const CAPS: u8 = (1 << Caps::COUNT) - 1;
pub(crate) const LEAST_SHIFT: u32 = Caps::COUNT as u32;
/// The buckets that count bytes.
pub(crate) const BYTES: u8 = 0b1010_1010;
/// Bytes that a discard counts for.
const DISCARD_BYTES: u32 = 512;
/// The burst of a reservation is the amount of its rate in a second, divided by this.
const BURST: u64 = 20;
/// Turns are counted in 256ths.
const ONE: u64 = 256;

/// State that ports and the control side share.
pub(crate) struct Shared<P: Platform> {
    /// The most requests that a port may have on the device beside those that went ahead for a
    /// reservation; [`u64::MAX`] is no bound.
    pub(crate) room: P::U64,
    /// The policy schedules by the device's classes.
    pub(crate) has_classes: bool,
    pub(crate) flows: usize,
    /// The [`Word`] of each flow and, after them, of each group.
    words: Box<[P::U64]>,
    pub(crate) accounts: Box<[CachePadded<Account<P>>]>,
    /// Requests on the device that went before all others, of all ports.
    pub(crate) ahead: CachePadded<P::U64>,
}

/// Shared state of a flow or a group: one cache line of words for reservations, and before it one
/// and a half lines of words for caps.
#[repr(C)]
pub(crate) struct Account<P: Platform> {
    pub(crate) caps: [Bucket<P>; Caps::COUNT],
    /// Sum of the weights of lanes of reads, and of lanes of writes, in 256ths.
    pub(crate) lanes: [P::U64; 2],
    /// The flow's effective weight, in 256ths.
    pub(crate) weight: P::U64,
    held: P::U64,
    held_ns: P::U64,
    waiting: P::U64,
    pub(crate) least: [Bucket<P>; 2],
    pub(crate) ahead: P::U64,
    /// Number of ports that have requests of it staged.
    ports: P::U64,
}

/// The buckets of a flow or group, and the nearest group around it that has caps.
#[derive(Clone, Copy, Default)]
pub(crate) struct Word {
    pub(crate) kinds: u8,
    pub(crate) above: Option<GroupId>,
    /// The flow's generation; 0 for a group.
    pub(crate) generation: u32,
}

impl Word {
    fn pack(self) -> u64 {
        let above = self.above.map_or(0, |GroupId(id)| u64::from(id) + 1);
        u64::from(self.generation) << 32 | above << ABOVE_SHIFT | u64::from(self.kinds)
    }

    #[inline(always)]
    fn unpack(word: u64) -> Word {
        let above = (word >> ABOVE_SHIFT) as u16;
        let above = above.checked_sub(1).map(GroupId);
        Word { kinds: word as u8, above, generation: (word >> 32) as u32 }
    }
}

/// The caps that a request has to pass: those of its flow and then of the groups around the flow,
/// inner groups first.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    slot: u32,
    word: Word,
    /// The caps that count the request, and its bytes.
    counted: u8,
    bytes: u32,
    is_write: bool,
}

impl Path {
    /// The path of a request of the flow with this word.
    #[inline(always)]
    pub(crate) fn of(request: &Request, word: Word) -> Path {
        let (counted, bytes) = (counted_by(request.op), counted_bytes(request.op, request.length));
        let slot = request.flow.slot() as u32;
        Path { slot, word, counted, bytes, is_write: is_write(request) }
    }

    /// Whether a cap may count the request; groups around the flow are not read.
    #[inline(always)]
    pub(crate) fn may_have_caps(&self) -> bool {
        self.word.kinds & self.counted != 0 || self.word.above.is_some()
    }

    /// The caps that count the request's operation, and the buckets of the flow's reservation.
    #[inline(always)]
    pub(crate) fn kinds(&self) -> u8 {
        self.counted | self.word.kinds & !CAPS
    }
}

/// The groups with caps around a flow: their numbers plus one, and 0 for none.
pub(crate) type Groups = [u16; Group::LEVELS];

/// The reason why a request may not go yet: the time of the next try, and the group whose cap holds
/// it longest, as its number plus one; 0 is the flow's own cap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    pub(crate) until: Time,
    pub(crate) by: u16,
}

/// The caps of one side.
pub(crate) const fn of_side(side: Side) -> u8 {
    1 << Caps::index(side, Counted::Requests) | 1 << Caps::index(side, Counted::Bytes)
}

/// The caps that count the operation.
#[inline(always)]
pub(crate) fn counted_by(op: Op) -> u8 {
    match op {
        Op::Read => of_side(Side::Both) | of_side(Side::Reads),
        Op::Write | Op::WriteZeroes | Op::Discard => of_side(Side::Both) | of_side(Side::Writes),
        Op::Flush => 0,
    }
}

/// The bytes that are counted for this operation on `length` bytes.
pub(crate) fn counted_bytes(op: Op, length: u32) -> u32 {
    if op == Op::Discard { DISCARD_BYTES } else { length }
}

/// The buckets whose bits are set, and what a request of these bytes takes from each.
#[inline(always)]
fn chosen<P: Platform>(
    buckets: &[Bucket<P>],
    kinds: u8,
    bytes: u32,
) -> impl Iterator<Item = (&Bucket<P>, Time)> {
    let mut left = kinds;
    core::iter::from_fn(move || {
        let at = left.trailing_zeros() as usize;
        let bucket = buckets.get(at)?;
        left &= left.wrapping_sub(1);
        let amount = if at % 2 == Counted::Requests as usize { 1 } else { bytes.into() };
        Some((bucket, bucket.cost(amount)))
    })
}

impl<P: Platform> Shared<P> {
    pub(crate) fn new(flows: usize, groups: usize, has_classes: bool) -> Self {
        let word = || P::U64::new(0);
        let all = flows.saturating_add(groups);
        Shared {
            room: P::U64::new(u64::MAX),
            has_classes,
            flows,
            words: boxed(all, |_| word()),
            accounts: boxed(all, |_| CachePadded::new(Account::new())),
            ahead: CachePadded::new(word()),
        }
    }

    /// Sets the most requests that flows may have on the device beside those that went ahead for a
    /// reservation; [`u64::MAX`] is no bound. Each of the `ports` with live requests gets an equal
    /// part of it, and at least one request.
    pub(crate) fn make_room(&self, most: u64, ports: u64) {
        let room = if most == u64::MAX { most } else { most.div_ceil(ports.max(1)).max(1) };
        self.room.store(room, Ordering::Relaxed);
    }

    /// Sets the weight of the flow's lanes.
    pub(crate) fn weigh(&self, flow: FlowId, weight: Weight) {
        if let Some(account) = self.account(flow.slot()) {
            account.weight.store(weight.in_256ths().into(), Ordering::Relaxed);
        }
    }

    /// The account of the flow in this slot.
    pub(crate) fn account(&self, slot: usize) -> Option<&Account<P>> {
        self.accounts.get(slot).map(|account| &**account)
    }

    /// The place of the group's word and account.
    pub(crate) fn place(&self, GroupId(id): GroupId) -> usize {
        self.flows.saturating_add(id.into())
    }

    pub(crate) fn group(&self, group: GroupId) -> Option<&Account<P>> {
        self.account(self.place(group))
    }

    /// The flow's account, and the account of a group by its number plus one, as in [`Wait::by`].
    fn both(&self, slot: usize, number: u16) -> impl Iterator<Item = &Account<P>> {
        let group = number.checked_sub(1).and_then(|id| self.group(GroupId(id)));
        self.account(slot).into_iter().chain(group)
    }

    pub(crate) fn put(&self, slot: usize, word: Word) {
        if let Some(place) = self.words.get(slot) {
            place.store(word.pack(), Ordering::Release);
        }
    }

    #[inline(always)]
    fn word(&self, slot: usize) -> Word {
        Word::unpack(self.words.get(slot).map_or(0, |word| word.load(Ordering::Acquire)))
    }

    /// The word of a flow; the default word if the flow is gone.
    #[inline(always)]
    pub(crate) fn word_of(&self, flow: FlowId) -> Word {
        let word = self.word(flow.slot());
        if word.generation == flow.generation() { word } else { Word::default() }
    }

    /// The buckets of the flow's reservation, a bit each.
    pub(crate) fn least_of(&self, flow: FlowId) -> u8 {
        self.word_of(flow).kinds >> LEAST_SHIFT
    }

    /// The flow in this slot, if it has a reservation.
    pub(crate) fn reserved_in(&self, slot: usize) -> Option<FlowId> {
        let Word { kinds, generation, .. } = self.word(slot);
        (kinds >> LEAST_SHIFT != 0).then(|| FlowId::new(slot as u32, generation))
    }

    /// The path of a request.
    #[inline(always)]
    pub(crate) fn path(&self, request: &Request) -> Path {
        Path::of(request, self.word_of(request.flow))
    }

    /// The path of a live request of the flow in this slot, which the caps among `kinds` count.
    pub(crate) fn path_of(&self, slot: u32, kinds: u8, bytes: u32) -> Path {
        let word = self.word(slot as usize);
        Path { slot, word, counted: kinds & CAPS, bytes, is_write: false }
    }

    /// The words of the flow and of the groups with caps around it, and their places.
    #[inline]
    fn words_on(&self, path: &Path) -> impl Iterator<Item = (usize, Word)> {
        let mut next = Some((path.slot as usize, path.word));
        let step = move || {
            let (at, word) = next?;
            next = word.above.map(|group| self.place(group)).map(|at| (at, self.word(at)));
            Some((at, word))
        };
        core::iter::from_fn(step).take(LEVELS)
    }

    /// The groups with caps around the flow.
    pub(crate) fn groups_on(&self, path: &Path) -> Groups {
        let mut groups = Groups::default();
        let around = self.words_on(path).skip(1);
        for (place, (at, _)) in groups.iter_mut().zip(around) {
            *place = self.by(at);
        }
        groups
    }

    /// The accounts on the path with caps that count the request, and those caps.
    #[inline]
    fn on(&self, path: &Path) -> impl Iterator<Item = (usize, &Account<P>, u8)> {
        let counted = path.counted;
        let steps = self.words_on(path).filter(move |(_, word)| word.kinds & counted != 0);
        steps.filter_map(move |(at, word)| Some((at, self.account(at)?, word.kinds & counted)))
    }

    /// Whether no cap counts the request.
    pub(crate) fn is_free(&self, path: &Path) -> bool {
        !path.may_have_caps() || self.on(path).next().is_none()
    }

    /// Takes the request's amount, if one cap alone counts it and lets it pass.
    #[inline(always)]
    pub(crate) fn take_one(&self, now: Time, path: &Path) -> bool {
        let kinds = path.word.kinds & path.counted;
        if path.word.above.is_none()
            && kinds.is_power_of_two()
            && let Some(account) = self.account(path.slot as usize)
            && let Some((bucket, cost)) = chosen(&account.caps, kinds, path.bytes).next()
        {
            return bucket.take(now, cost).is_ok();
        }
        false
    }

    /// The caps on the path in order, and what the request takes from each.
    fn caps(&self, path: &Path) -> impl Iterator<Item = (&Bucket<P>, Time)> {
        let bytes = path.bytes;
        self.on(path).flat_map(move |(_, account, caps)| chosen(&account.caps, caps, bytes))
    }

    /// The group with this account, as in [`Wait::by`].
    fn by(&self, at: usize) -> u16 {
        at.checked_sub(self.flows).map_or(0, |id| id as u16 + 1)
    }

    /// Takes the request's amounts from all caps on its path, or gives the time from which it may
    /// go.
    #[inline(never)]
    pub(crate) fn take(&self, now: Time, path: &Path) -> Result<(), Wait> {
        // All are checked before any is taken from: a request that has to wait writes no shared
        // word.
        let waits = self.on(path).map(|(at, account, caps)| Wait {
            until: account.when(now, caps, path.bytes),
            by: self.by(at),
        });
        if let Some(wait) = waits.max_by_key(|wait| wait.until)
            && wait.until > now
        {
            return Err(wait);
        }
        for (nth, (bucket, cost)) in self.caps(path).enumerate() {
            if let Err(until) = bucket.take(now, cost) {
                // Another port was faster; the amounts taken from the caps before this one are
                // refunded.
                self.caps(path).take(nth).for_each(|(bucket, cost)| bucket.refund(cost));
                return Err(Wait { until, by: 0 });
            }
        }
        Ok(())
    }

    /// Refunds the amounts that the request has taken from the caps on its path.
    pub(crate) fn refund(&self, path: &Path) {
        self.caps(path).for_each(|(bucket, cost)| bucket.refund(cost));
    }

    /// Charges the path's caps for the growth of a request that has passed them: a debt.
    pub(crate) fn charge(&self, now: Time, path: &Path) {
        self.caps(path).for_each(|(bucket, cost)| bucket.charge(now, cost));
    }

    /// Time from one request of a lane to its next, in nanoseconds. In this time each other lane
    /// that the same caps count can send its share by weight; the time is 0 if there is no other
    /// lane. It includes the time for the lane's own request only while the cap is empty.
    pub(crate) fn pace_ns(&self, now: Time, path: &Path, weight: u64) -> u64 {
        let pace = |(_, account, caps): (_, &Account<P>, _)| {
            let turns = account.turns(caps, path.is_write, weight);
            let is_empty = account.when(now, caps, path.bytes) > now;
            let own = if is_empty && turns > 0 { ONE } else { 0 };
            of_turns(account.lasts(caps, path.bytes), turns.saturating_add(own))
        };
        self.on(path).map(pace).max().unwrap_or(0).min(AGAIN_NS)
    }

    /// Time at which a lane whose request has to wait is tried again, in nanoseconds. With many
    /// lanes at one cap some of them are tried later, so that the cap is checked `AT_ONCE` times
    /// for each request that passes it.
    pub(crate) fn again_ns(&self, now: Time, wait: Wait, path: &Path, weight: u64) -> u64 {
        let later = |(_, account, caps): (_, &Account<P>, _)| {
            let turns = account.turns(caps, path.is_write, weight);
            // Only whole turns count, so up to `AT_ONCE` other lanes of the same weight delay
            // nothing.
            of_turns(account.lasts(caps, path.bytes), turns / AT_ONCE as u64 / ONE * ONE)
        };
        let later_ns = self.on(path).map(later).max().unwrap_or(0);
        let again_ns = wait.until.ns().saturating_add(later_ns);
        again_ns.min(now.ns().saturating_add(AGAIN_NS))
    }

    /// Adds `more` to the sums of the weights of lanes of the flow and of these groups; wraps.
    pub(crate) fn weigh_lane(&self, slot: usize, groups: &Groups, is_write: bool, more: u64) {
        let groups = groups.iter().filter_map(|id| self.group(GroupId(id.checked_sub(1)?)));
        for account in self.account(slot).into_iter().chain(groups) {
            let [reads, writes] = &account.lanes;
            let lanes = if is_write { writes } else { reads };
            lanes.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Counts a request of the flow that waits for this group's cap.
    pub(crate) fn count_held(&self, slot: usize, by: u16) {
        for account in self.both(slot, by) {
            account.held.fetch_add(1, Ordering::Relaxed);
            account.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Subtracts a request that has waited from the count.
    pub(crate) fn count_off(&self, slot: usize, by: u16, held_ns: u64) {
        for account in self.both(slot, by) {
            account.waiting.fetch_sub(1, Ordering::Relaxed);
            account.held_ns.fetch_add(held_ns, Ordering::Relaxed);
        }
    }
}

/// The reservation of a flow: its buckets (a bit each), and the bytes of one of its requests.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) slot: usize,
    pub(crate) kinds: u8,
    pub(crate) bytes: u32,
}

impl<P: Platform> Shared<P> {
    fn least(&self, claim: Claim) -> impl Iterator<Item = (&Bucket<P>, Time)> {
        let account = self.account(claim.slot).into_iter();
        account.flat_map(move |account| chosen(&account.least, claim.kinds, claim.bytes))
    }

    /// Sets the rates at which the buckets of the flow in this slot fill; new ones are empty. Gives
    /// the buckets, for the flow's word.
    pub(crate) fn grant(
        &self,
        now: Time,
        slot: usize,
        before: Reservation,
        granted: Reservation,
    ) -> u8 {
        let mut kinds = 0;
        let buckets = self.account(slot).into_iter().flat_map(|account| &account.least);
        let rates = granted.rates().into_iter().zip(before.rates());
        for (((rate, before), bucket), at) in rates.zip(buckets).zip(0..) {
            kinds |= u8::from(rate > 0) << at;
            if rate == 0 || rate == before {
                continue;
            }
            // The bucket has room for one request even if the rate gives less than one in that
            // time.
            let burst = (rate / BURST).max(1);
            bucket.set_rate(rate, burst);
            if before == 0 {
                bucket.spend(now, bucket.cost(burst));
            }
        }
        kinds
    }

    /// Takes the request's amounts from the reservation's buckets if one of them has enough, or
    /// gives the time from which one of them has. The other bucket may be left with a debt.
    pub(crate) fn take_least(&self, now: Time, claim: Claim) -> Result<(), Time> {
        let mut first = None;
        for (at, (bucket, cost)) in self.least(claim).enumerate() {
            match bucket.take(now, cost) {
                Ok(()) => {
                    let others = self.least(claim).enumerate().filter(|(other, _)| *other != at);
                    others.for_each(|(_, (bucket, cost))| bucket.spend(now, cost));
                    return Ok(());
                }
                Err(when) => first = Some(first.map_or(when, |first: Time| first.min(when))),
            }
        }
        Err(first.unwrap_or(now))
    }

    /// Whether the flow has more than its reservation without going before others.
    pub(crate) fn has_more(&self, now: Time, flow: FlowId) -> bool {
        let claim = Claim { slot: flow.slot(), kinds: self.least_of(flow), bytes: 0 };
        claim.kinds != 0 && self.least(claim).all(|(bucket, _)| bucket.has_debt(now))
    }

    /// The time from which one of the buckets has the request's amount.
    pub(crate) fn when_least(&self, now: Time, claim: Claim) -> Time {
        self.least(claim).map(|(bucket, cost)| bucket.when(now, cost)).min().unwrap_or(now)
    }

    /// Takes the amounts of a request that goes regardless of the buckets.
    #[inline]
    pub(crate) fn spend(&self, now: Time, claim: Claim) {
        self.least(claim).for_each(|(bucket, cost)| bucket.spend(now, cost));
    }

    /// Refunds the amounts of a request that has not gone.
    pub(crate) fn refund_least(&self, claim: Claim) {
        self.least(claim).for_each(|(bucket, cost)| bucket.refund(cost));
    }

    /// Time in nanoseconds for which a port waits after it has sent a request for the flow's
    /// reservation, so that every other port with requests of the flow has a turn.
    pub(crate) fn turn_ns(&self, now: Time, claim: Claim) -> u64 {
        // If no other port has requests of the flow, the bucket alone determines when the next one
        // goes.
        let ports = self.account(claim.slot).map(|account| account.ports.load(Ordering::Relaxed));
        let turns = ports.unwrap_or(0).saturating_sub(1);
        if turns == 0 {
            return 0;
        }
        let least = self.least(claim).map(|(bucket, cost)| (bucket.when(now, cost), cost)).min();
        least.map_or(0, |(when, cost)| {
            let until_ns = when.ns().saturating_sub(now.ns());
            until_ns.saturating_add(cost.ns().saturating_mul(turns))
        })
    }

    /// Counts a port that has requests of the flow staged, or takes it off the count.
    pub(crate) fn count_port(&self, slot: usize, has_some: bool) {
        if let Some(account) = self.account(slot) {
            account.ports.fetch_add(if has_some { 1 } else { u64::MAX }, Ordering::Relaxed);
        }
    }

    /// Counts a request that goes before all others.
    pub(crate) fn count_ahead(&self, slot: usize) {
        if let Some(account) = self.account(slot) {
            account.ahead.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub(crate) fn is_write(request: &Request) -> bool {
    request.op != Op::Read
}

/// Time of this number of turns, each of this length, in nanoseconds.
fn of_turns(one: Time, turns: u64) -> u64 {
    one.ns().saturating_mul(turns) / ONE
}

impl<P: Platform> Account<P> {
    fn new() -> Self {
        let word = || P::U64::new(0);
        Account {
            caps: core::array::from_fn(|_| Bucket::new()),
            lanes: core::array::from_fn(|_| word()),
            weight: P::U64::new(Weight::DEFAULT.in_256ths().into()),
            held: word(),
            held_ns: word(),
            waiting: word(),
            least: core::array::from_fn(|_| Bucket::new()),
            ahead: word(),
            ports: word(),
        }
    }

    /// The time from which these caps let the request go, if no other request takes from them.
    fn when(&self, now: Time, caps: u8, bytes: u32) -> Time {
        let all = chosen(&self.caps, caps, bytes);
        all.map(|(bucket, cost)| bucket.when(now, cost)).max().unwrap_or(now)
    }

    /// Time that the slowest of these caps needs for the request.
    fn lasts(&self, caps: u8, bytes: u32) -> Time {
        chosen(&self.caps, caps, bytes).map(|(_, cost)| cost).max().unwrap_or_default()
    }

    /// Requests due to all other lanes that these caps count, for each request of a lane of this
    /// weight, in 256ths.
    fn turns(&self, caps: u8, is_write: bool, weight: u64) -> u64 {
        let [reads, writes] = self.lanes.each_ref().map(|lanes| lanes.load(Ordering::Relaxed));
        let (own, others) = if is_write { (writes, reads) } else { (reads, writes) };
        // Lanes of the other side take nothing from a cap on this side alone.
        let others = if caps & of_side(Side::Both) != 0 { others } else { 0 };
        let others = own.saturating_add(others).saturating_sub(weight);
        others.saturating_mul(ONE) / weight.max(1)
    }

    /// Resets the counts of an earlier flow or group.
    pub(crate) fn begin(&self) {
        for word in [&self.held, &self.held_ns, &self.ahead] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Gives the buckets new caps. A cap that does not change keeps the amounts taken from it;
    /// others start full.
    pub(crate) fn set_caps(&self, old: &Caps, caps: &Caps) {
        for (((_, cap), (_, old)), bucket) in caps.all().zip(old.all()).zip(&self.caps) {
            if let Some(cap) = cap
                && old != Some(cap)
            {
                bucket.set(cap.per_second(), cap.burst());
            }
        }
    }

    /// Continues from the state of these caps under another policy.
    pub(crate) fn resume_caps(&self, caps: &Caps, before: &CapStats) {
        self.held.store(before.held, Ordering::Relaxed);
        self.held_ns.store(before.held_ns, Ordering::Relaxed);
        let buckets = self.caps.iter().zip(before.taken.0);
        for (((_, cap), (_, old)), (bucket, taken)) in
            caps.all().zip(before.caps.all()).zip(buckets)
        {
            if cap.is_some() && cap == old {
                bucket.resume(taken);
            }
        }
    }

    /// Statistics of the caps; `None` if there are none and none has held a request.
    pub(crate) fn cap_stats(&self, caps: Caps) -> Option<CapStats> {
        let [held, held_ns, waiting] =
            [&self.held, &self.held_ns, &self.waiting].map(|word| word.load(Ordering::Relaxed));
        let taken = Taken(self.caps.each_ref().map(Bucket::taken));
        (!caps.is_empty() || held > 0).then_some(CapStats { caps, held, held_ns, waiting, taken })
    }
}
