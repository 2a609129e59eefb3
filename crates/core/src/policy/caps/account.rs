//! The state of flows and groups with caps that ports and the control side share: their buckets,
//! and counts of the requests that wait for them.
//!
//! **Model.** Each flow and each group has a word with its caps and the nearest group around it
//! that has some. A request's *path* is the flow and those groups, at most [`Group::LEVELS`] + 1,
//! and a bucket of each cap on the path that counts the request has to let it go. It takes from all
//! of them at once or from none.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use super::{AGAIN_NS, AT_ONCE, DISCARD_BYTES, is_write};
use crate::contract::flow::{Caps, Counted, FlowId, Side, Weight};
use crate::contract::op::Op;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::{Growth, Request, Tag};
use crate::contract::share::{Group, GroupId};
use crate::policy::bucket::{Bucket, Time};
use crate::structures::allocation::boxed;

/// A flow itself and the groups that it can be in.
const LEVELS: usize = Group::LEVELS + 1;
/// Shift of the nearest group with caps in a word: its number plus one, or 0.
const ABOVE_SHIFT: u32 = 8;
/// The caps of a word: a bit each.
const CAPS: u64 = (1 << Caps::COUNT) - 1;

/// State that ports and the control side share.
pub(super) struct Shared<P: Platform> {
    /// 0 until a flow or a group has a cap; then the number of changes of caps.
    is_on: P::U64,
    /// The [`Word`] of each flow and, after them, of each group.
    words: Box<[P::U64]>,
    pub(super) accounts: Box<[CachePadded<Account<P>>]>,
    flows: usize,
}

/// Shared state of a flow or a group with caps.
pub(super) struct Account<P: Platform> {
    pub(super) buckets: [Bucket<P>; Caps::COUNT],
    /// Sum of the weights of lanes of reads, and of lanes of writes, in 256ths.
    pub(super) lanes: [P::U64; 2],
    /// The flow's weight beside others that the same caps hold, in 256ths.
    pub(super) weight: P::U64,
    pub(super) held: P::U64,
    pub(super) held_ns: P::U64,
    pub(super) waiting: P::U64,
}

/// The caps of a flow or group, and the nearest group around it that has some.
#[derive(Clone, Copy, Default)]
pub(super) struct Word {
    pub(super) caps: u64,
    pub(super) above: Option<GroupId>,
    /// The flow's generation; 0 for a group.
    pub(super) generation: u32,
}

impl Word {
    fn pack(self) -> u64 {
        let above = self.above.map_or(0, |GroupId(id)| u64::from(id) + 1);
        u64::from(self.generation) << 32 | above << ABOVE_SHIFT | self.caps
    }

    fn unpack(word: u64) -> Word {
        let above = (word >> ABOVE_SHIFT & 0xffff) as u16;
        let above = above.checked_sub(1).map(GroupId);
        Word { caps: word & CAPS, above, generation: (word >> 32) as u32 }
    }
}

/// The accounts with caps that count a request, and those caps: the flow's, if it has some, and
/// those of its groups, inner ones first.
#[derive(Clone, Copy)]
pub(super) struct Path {
    steps: [(u32, u64); LEVELS],
    length: usize,
    /// The groups around the flow that have caps of any kind.
    pub(super) groups: Groups,
}

/// The groups with caps around a flow: their numbers plus one, and 0 for none.
pub(super) type Groups = [u16; Group::LEVELS];

impl Path {
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn steps(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.steps.iter().copied().take(self.length)
    }
}

/// The result of a flow's own word for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// No cap counts it.
    Uncounted,
    /// One cap counts it, and the request has taken from it.
    Taken,
    /// Its whole path has to be checked.
    Unknown,
}

/// A request may not go yet: the time of the next try, and the group whose cap holds it longest, as
/// its number plus one; 0 is the flow's own cap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wait {
    pub(super) until: Time,
    pub(super) by: u16,
}

/// The caps that count reads, and those that count writes.
const READS: u64 = bits(Side::Both) | bits(Side::Reads);
const WRITES: u64 = bits(Side::Both) | bits(Side::Writes);

pub(super) const fn bits(side: Side) -> u64 {
    1 << Caps::index(side, Counted::Requests) | 1 << Caps::index(side, Counted::Bytes)
}

/// The caps that count the operation.
pub(super) fn counted_by(op: Op) -> u64 {
    match op {
        Op::Read => READS,
        Op::Write | Op::WriteZeroes | Op::Discard => WRITES,
        Op::Flush => 0,
    }
}

impl<P: Platform> Shared<P> {
    pub(super) fn new(flows: usize, groups: usize) -> Self {
        let word = || P::U64::new(0);
        let account = || Account {
            buckets: core::array::from_fn(|_| Bucket::new()),
            lanes: core::array::from_fn(|_| word()),
            weight: P::U64::new(Weight::DEFAULT.in_256ths().into()),
            held: word(),
            held_ns: word(),
            waiting: word(),
        };
        let all = flows.saturating_add(groups);
        Shared {
            is_on: word(),
            words: boxed(all, |_| word()),
            accounts: boxed(all, |_| CachePadded::new(account())),
            flows,
        }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed) != 0
    }

    /// Notes that caps have changed. Called under the lock.
    pub(super) fn changes(&self) {
        let changes = self.is_on.load(Ordering::Relaxed);
        self.is_on.store(changes.wrapping_add(1).max(1), Ordering::Relaxed);
    }

    /// Number of changes of caps.
    #[inline]
    pub(super) fn changed(&self) -> u16 {
        self.is_on.load(Ordering::Relaxed) as u16
    }

    pub(super) fn account(&self, flow: FlowId) -> Option<&Account<P>> {
        self.accounts.get(flow.slot()).map(|account| &**account)
    }

    fn place(&self, group: GroupId) -> usize {
        self.flows.saturating_add(group.0.into())
    }

    pub(super) fn group(&self, group: GroupId) -> Option<&Account<P>> {
        self.accounts.get(self.place(group)).map(|account| &**account)
    }

    /// The account of a group by its number plus one, as in [`Wait::by`].
    pub(super) fn numbered(&self, number: u16) -> Option<&Account<P>> {
        self.group(GroupId(number.checked_sub(1)?))
    }

    pub(super) fn put(&self, slot: usize, word: Word) {
        if let Some(place) = self.words.get(slot) {
            place.store(word.pack(), Ordering::Release);
        }
    }

    pub(super) fn put_group(&self, group: GroupId, word: Word) {
        self.put(self.place(group), word);
    }

    fn word(&self, slot: usize) -> Word {
        Word::unpack(self.words.get(slot).map_or(0, |word| word.load(Ordering::Acquire)))
    }

    /// Takes from the flow's own cap, if its word shows that only this cap counts the request.
    #[inline]
    pub(super) fn take_own(&self, now: Time, request: &Request) -> Own {
        let Word { caps, above, generation } = self.word(request.flow.slot());
        let caps = caps & counted_by(request.op);
        // A flow that is gone has no caps: the policy refuses its request.
        if generation != request.flow.generation() || (caps == 0 && above.is_none()) {
            return Own::Uncounted;
        }
        // From several buckets a request takes all or nothing, which `take` does.
        if above.is_some() || !caps.is_power_of_two() {
            return Own::Unknown;
        }
        let (index, account) = (caps.trailing_zeros() as usize, self.account(request.flow));
        let bucket = account.and_then(|account| account.buckets.get(index));
        match bucket.map(|bucket| bucket.take(now, bucket.cost(amount(index, request)))) {
            Some(Ok(())) => Own::Taken,
            Some(Err(_)) | None => Own::Unknown,
        }
    }

    /// Refunds the amounts that the request has taken.
    pub(super) fn give_back(&self, request: &Request) {
        for (index, bucket) in self.buckets(&self.path(request.flow, request.op)) {
            bucket.give_back(bucket.cost(amount(index, request)));
        }
    }

    /// Charges the bytes by which a request that has passed its caps has grown: it is still one
    /// request.
    pub(super) fn owe(&self, now: Time, flow: FlowId, growth: &Growth) {
        let request = Request::new(Tag(0), flow, growth.op, growth.offset, growth.length);
        for (index, bucket) in self.buckets(&self.path(flow, growth.op)) {
            if index & 1 == Counted::Bytes as usize && growth.op != Op::Discard {
                bucket.owe(now, bucket.cost(amount(index, &request)));
            }
        }
    }

    /// The caps that count such a request of the flow; none if the flow is gone. One step a level.
    pub(super) fn path(&self, flow: FlowId, op: Op) -> Path {
        let mut path = Path { steps: [(0, 0); LEVELS], length: 0, groups: [0; Group::LEVELS] };
        let counted = counted_by(op);
        let mut at = flow.slot();
        let mut word = self.word(at);
        if word.generation != flow.generation() {
            return path;
        }
        for level in 0..LEVELS {
            let caps = word.caps & counted;
            if caps != 0
                && let Some(step) = path.steps.get_mut(path.length)
            {
                *step = (at as u32, caps);
                path.length += 1;
            }
            let Some(group) = word.above else { break };
            let Some(place) = path.groups.get_mut(level) else { break };
            *place = group.0.wrapping_add(1);
            at = self.place(group);
            word = self.word(at);
        }
        path
    }

    /// The accounts on the path, and the caps of each that count the request.
    fn on<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = (u32, &'a Account<P>, u64)> {
        let account = |at: u32| self.accounts.get(at as usize);
        path.steps().filter_map(move |(at, caps)| Some((at, &**account(at)?, caps)))
    }

    /// The buckets on the path in order, each with its cap's number.
    fn buckets<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = (usize, &'a Bucket<P>)> {
        self.on(path).flat_map(|(_, account, caps)| chosen(&account.buckets, caps))
    }

    fn by(&self, at: u32) -> u16 {
        (at as usize).checked_sub(self.flows).map_or(0, |group| group as u16 + 1)
    }

    /// Time from one request of a lane to its next, in nanoseconds, in which all other lanes that
    /// the same caps count have their shares by weight; 0 if there are none. While a cap is not
    /// empty, this lane's own turn is left out.
    pub(super) fn pace_ns(&self, now: Time, path: &Path, request: &Request, weight: u64) -> u64 {
        let pace = |(_, account, caps): (_, &Account<P>, _)| {
            let turns = account.turns(caps, is_write(request), weight);
            let is_empty = account.when(now, caps, request) > now;
            let own = if is_empty && turns > 0 { ONE } else { 0 };
            of_turns(account.lasts(caps, request), turns.saturating_add(own))
        };
        self.on(path).map(pace).max().unwrap_or(0).min(AGAIN_NS)
    }

    /// Takes the request's amounts from all caps on its path, or gives the time from which it may
    /// go.
    pub(super) fn take(&self, now: Time, path: &Path, request: &Request) -> Result<(), Wait> {
        // All are checked before any is taken from: a request that has to wait writes no shared
        // word.
        let waits = self
            .on(path)
            .map(|(at, account, caps)| Wait {
                until: account.when(now, caps, request),
                by: self.by(at),
            })
            .max_by_key(|wait| wait.until);
        if let Some(wait) = waits
            && wait.until > now
        {
            return Err(wait);
        }
        for (nth, (index, bucket)) in self.buckets(path).enumerate() {
            if let Err(until) = bucket.take(now, bucket.cost(amount(index, request))) {
                // Another port was faster; the amounts taken from the caps before this one are
                // refunded.
                for (index, bucket) in self.buckets(path).take(nth) {
                    bucket.give_back(bucket.cost(amount(index, request)));
                }
                return Err(Wait { until, by: 0 });
            }
        }
        Ok(())
    }

    /// Time at which a lane whose request has to wait is tried again, in nanoseconds. With many
    /// lanes at one cap some of them are tried later, so that the cap is checked `AT_ONCE` times
    /// for each request that it lets go.
    pub(super) fn again_ns(
        &self,
        now: Time,
        wait: Wait,
        path: &Path,
        request: &Request,
        weight: u64,
    ) -> u64 {
        let later = |(_, account, caps): (_, &Account<P>, _)| {
            let turns = account.turns(caps, is_write(request), weight);
            // In whole turns: up to `AT_ONCE` other lanes of the same weight delay nothing.
            of_turns(account.lasts(caps, request), turns / AT_ONCE as u64 / ONE * ONE)
        };
        let later_ns = self.on(path).map(later).max().unwrap_or(0);
        let again_ns = wait.until.ns().saturating_add(later_ns);
        again_ns.min(now.ns().saturating_add(AGAIN_NS))
    }

    /// Counts a lane of this flow and of these groups, or (`false`) takes it off the count.
    pub(super) fn lane(
        &self,
        flow: FlowId,
        groups: &Groups,
        is_write: bool,
        weight: u64,
        is_there: bool,
    ) {
        let groups = groups.iter().filter_map(|&number| self.numbered(number));
        for account in self.account(flow).into_iter().chain(groups) {
            let Account { lanes: [reads, writes], .. } = account;
            let lanes = if is_write { writes } else { reads };
            match is_there {
                true => lanes.fetch_add(weight, Ordering::Relaxed),
                false => lanes.fetch_sub(weight, Ordering::Relaxed),
            };
        }
    }
}

/// Turns are counted in 256ths.
const ONE: u64 = 256;

/// Time of this number of turns, each of this length, in nanoseconds.
fn of_turns(one: Time, turns: u64) -> u64 {
    one.ns().saturating_mul(turns) / ONE
}

impl<P: Platform> Account<P> {
    /// The time from which these caps let the request go, if no other request takes from them.
    fn when(&self, now: Time, caps: u64, request: &Request) -> Time {
        let all = chosen(&self.buckets, caps);
        let when =
            all.map(|(index, bucket)| bucket.when(now, bucket.cost(amount(index, request)))).max();
        when.unwrap_or(now)
    }

    /// Time that the slowest of these caps needs for the request.
    fn lasts(&self, caps: u64, request: &Request) -> Time {
        let all = chosen(&self.buckets, caps);
        all.map(|(index, bucket)| bucket.cost(amount(index, request))).max().unwrap_or_default()
    }

    /// Requests due to all other lanes that these caps count, for each request of a lane of this
    /// weight, in 256ths.
    fn turns(&self, caps: u64, is_write: bool, weight: u64) -> u64 {
        let [reads, writes] = self.lanes.each_ref().map(|lanes| lanes.load(Ordering::Relaxed));
        let (own, others) = if is_write { (writes, reads) } else { (reads, writes) };
        // Lanes of the other side take nothing from a cap on this side alone.
        let others = if caps & bits(Side::Both) != 0 { others } else { 0 };
        let others = own.saturating_add(others).saturating_sub(weight);
        others.saturating_mul(ONE) / weight.max(1)
    }

    /// Counts a request that waits for a cap.
    pub(super) fn count(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a request that has waited off the count.
    pub(super) fn count_off(&self, held_ns: u64) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.held_ns.fetch_add(held_ns, Ordering::Relaxed);
    }

    /// Resets the counts of held requests.
    pub(super) fn begin(&self) {
        self.held.store(0, Ordering::Relaxed);
        self.held_ns.store(0, Ordering::Relaxed);
    }
}

/// The buckets whose bits are set.
fn chosen<P: Platform>(
    buckets: &[Bucket<P>; Caps::COUNT],
    caps: u64,
) -> impl Iterator<Item = (usize, &Bucket<P>)> {
    buckets.iter().enumerate().filter(move |(index, _)| caps >> index & 1 != 0)
}

/// The amount that the cap of this number counts for the request.
pub(super) fn amount(index: usize, request: &Request) -> u64 {
    match (index % 2 == Counted::Requests as usize, request.op) {
        (true, _) => 1,
        (false, Op::Discard) => DISCARD_BYTES,
        (false, _) => request.length.into(),
    }
}
