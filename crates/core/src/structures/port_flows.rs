//! A port's account of the flows that have requests there: the seat of each, and the number of its
//! requests.

use alloc::boxed::Box;

use crate::contract::bounds::{boxed, zeroes};
use crate::contract::flow::{FlowId, Weight};
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::{SubmitError, Tag};
use crate::contract::port_set::{PortId, PortSet};
use crate::structures::flow_table::FlowTable;
use crate::structures::queues::{Fifo, Links};

/// One port's private account of flows: the number of requests of each that it holds, and its
/// policy's state of each, a `T`.
///
/// **Memory.** A port has a *seat* for each flow that has requests there, and for flows that had
/// some lately: as many seats as tags, or as flows if there are fewer flows, and a word for each
/// flow. A flow that comes to a port where all seats are taken gets the one that has been idle
/// longest. Such a seat exists: each live request has a tag, so at least one seat is idle until the
/// new request takes its tag. The flow that loses the seat starts from `T::default()` when it comes
/// back. Its last state is passed to the policy's `left`, which takes over the cost that the flow
/// is still to be charged.
///
/// **Outside.** A request that waits in front of the policy ([`hold`](crate::Port::hold)), or that
/// went to the device before all others ([`expedite`](crate::Port::expedite)), is outside of the
/// policy. The account keeps the request's tag and counts the request for its flow, so that the
/// flow's seat is not idle and its slot is not free before the request is gone.
///
/// **Alignment.** Every policy's port contains an account, and so its alignment, two cache lines
/// (processors fetch them in pairs), becomes the port's. Ports are adjacent in memory, and each is
/// written by its own thread at every verb. Without the alignment two of them would share a line,
/// which cost more than all the data that they share on purpose.
#[repr(align(128))]
pub struct PortFlows<T = ()> {
    port: PortId,
    /// The seat of each flow's slot, [`NONE`] without one; empty if each slot has a seat of the
    /// same number.
    seats: Box<[u32]>,
    records: Box<[Record<T>]>,
    /// The seats whose flows have no request, the longest idle first; unused if each slot has a
    /// seat.
    idle: Fifo,
    idle_links: Links,
    /// Number of flows that have requests.
    in_use: u32,
    tags: u32,
    /// Number of requests outside of the policy; and for each tag the seat and the reason, 0 if its
    /// request is not outside.
    outside: u32,
    outsiders: Box<[u32]>,
    /// The value of the table's `news` that this port has acted on, and of its `closings`.
    news_seen: u64,
    closings_seen: u64,
}

/// No seat.
const NONE: u32 = u32::MAX;

/// Removals that a port acts on in one verb; if there are more, the port wakes itself.
const CLOSINGS_AT_ONCE: u64 = 64;

/// The reason why a tag is outside, in the bits below its seat: the request waits in front of the
/// policy, or went before all others.
const HELD: u32 = 1;
const AHEAD: u32 = 2;
const WHY: u32 = 3;

/// The word of no flow: slots are below 2^24.
const NO_OWNER: u64 = u64::MAX;

/// A flow's name in one word.
#[inline]
fn word(flow: FlowId) -> u64 {
    (flow.slot() as u64) << 32 | u64::from(flow.generation())
}

/// The flow of a word.
#[inline]
fn flow_of(word: u64) -> Option<FlowId> {
    (word != NO_OWNER).then(|| FlowId::new((word >> 32) as u32, word as u32))
}

/// A port's state of a flow.
struct Record<T> {
    /// The flow's name in one word, so that a verb compares it at once; [`NO_OWNER`] without one.
    owner: u64,
    /// Live requests of the policy in the lower half, those outside in the upper ([`OUTSIDE`]
    /// each), and [`CLOSING`]: one word, because verbs check all of them at once.
    count: u64,
    kept: T,
}

/// One request outside, in `count`.
const OUTSIDE: u64 = 1 << 32;

/// The flow was removed, and the table waits for this port.
const CLOSING: u64 = 1 << 63;

impl<T: Default> Record<T> {
    fn new() -> Self {
        Record { owner: NO_OWNER, count: 0, kept: T::default() }
    }

    /// Gives the seat to another flow. `left` gets the state of the flow that had it.
    #[cold]
    #[inline(never)]
    fn change_hands<P: Platform>(
        &mut self,
        table: &FlowTable<P>,
        flow: FlowId,
        left: impl FnOnce(FlowId, &T),
    ) {
        // An open flow keeps its slot during this verb, even if it is closed meanwhile: this port
        // has not released the slot, and releases none in the middle of a verb. The state of a
        // removed flow is dropped.
        if let Some(old) = flow_of(self.owner)
            && table.weight(old).is_some()
        {
            left(old, &self.kept);
        }
        *self = Record { owner: word(flow), ..Record::new() };
    }

    /// Live requests of the policy.
    #[inline]
    fn live(&self) -> u32 {
        self.count as u32
    }

    /// All requests of the flow.
    #[inline]
    fn all(&self) -> u32 {
        self.live().wrapping_add(((self.count & !CLOSING) / OUTSIDE) as u32)
    }
}

impl<T: Default> PortFlows<T> {
    /// The account of `port`, which has `tags` tags, for `table`.
    pub fn new<P: Platform>(port: PortId, table: &FlowTable<P>, tags: usize) -> Self {
        let (flows, seats) = (table.capacity(), table.capacity().min(tags));
        let is_pooled = seats < flows;
        let mut account = PortFlows {
            port,
            seats: boxed(if is_pooled { flows } else { 0 }, |_| NONE),
            records: boxed(seats, |_| Record::new()),
            idle: Fifo::default(),
            idle_links: Links::new(if is_pooled { seats } else { 0 }),
            in_use: 0,
            tags: tags as u32,
            outside: 0,
            outsiders: zeroes(tags),
            news_seen: 0,
            closings_seen: 0,
        };
        if is_pooled {
            (0..seats as u32).for_each(|seat| account.idle_links.push(&mut account.idle, seat));
        }
        account
    }

    /// The number of seats; all seats are below it.
    pub fn seats(&self) -> usize {
        self.records.len()
    }

    /// Counts a request of `flow`, whose tag the policy does not use; gives the flow's weight and
    /// its seat. `left` gets the state of the seat's last flow, if that was another one.
    #[inline(always)]
    pub fn admit<P: Platform>(
        &mut self,
        table: &FlowTable<P>,
        flow: FlowId,
        tag: Tag,
        left: impl FnOnce(FlowId, &T),
    ) -> Result<(Weight, usize), SubmitError> {
        let weight = table.weight(flow).ok_or(SubmitError::NoSuchFlow)?;
        if self.outside > 0 {
            self.take_in(tag)?;
        }
        let seat = self.enter(table, flow, 1, left).ok_or(SubmitError::NoSuchFlow)?;
        Ok((weight, seat))
    }

    /// The seat of an open flow that gets a request; adds `more` to its count.
    #[inline(always)]
    fn enter<P: Platform>(
        &mut self,
        table: &FlowTable<P>,
        flow: FlowId,
        more: u64,
        left: impl FnOnce(FlowId, &T),
    ) -> Option<usize> {
        let seat = if self.seats.is_empty() { flow.slot() } else { self.sit(flow)? };
        let record = self.records.get_mut(seat)?;
        // While the flow has requests here its seat cannot have changed hands.
        if record.count == 0 {
            self.in_use += 1;
            if record.owner != word(flow) {
                record.change_hands(table, flow, left);
            }
        }
        record.count = record.count.wrapping_add(more);
        Some(seat)
    }

    /// The seat for a request of the flow, if there are fewer seats than flows; the seat is not
    /// idle from now on. Out of line, to keep the verbs small.
    #[inline(never)]
    fn sit(&mut self, flow: FlowId) -> Option<usize> {
        let seat = *self.seats.get(flow.slot())?;
        if let Some(record) = self.records.get(seat as usize) {
            if record.count == 0 {
                self.idle_links.remove(&mut self.idle, seat);
            }
            return Some(seat as usize);
        }
        let seat = self.idle_links.pop(&mut self.idle)?;
        if let Some(old) = self.owner(seat as usize)
            && let Some(place) = self.seats.get_mut(old.slot())
        {
            *place = NONE;
        }
        *self.seats.get_mut(flow.slot())? = seat;
        Some(seat as usize)
    }

    /// Passes the tag to the policy; a held request is no longer outside. Refused if the request of
    /// the tag is on the device.
    #[cold]
    #[inline(never)]
    fn take_in(&mut self, tag: Tag) -> Result<(), SubmitError> {
        let Some(place) = self.outsiders.get_mut(tag.0 as usize) else { return Ok(()) };
        match *place & WHY {
            0 => Ok(()),
            HELD => {
                let seat = core::mem::take(place) >> 2;
                self.outside = self.outside.saturating_sub(1);
                if let Some(record) = self.records.get_mut(seat as usize) {
                    // The request's flow is open, so the record is not marked as closing.
                    record.count = record.count.saturating_sub(OUTSIDE);
                    if record.count == 0 {
                        self.rest(seat as usize);
                    }
                }
                Ok(())
            }
            _ => Err(SubmitError::BadTag),
        }
    }

    /// Counts a request that waits in front of the policy, which does not use its tag.
    pub fn hold<P: Platform>(
        &mut self,
        table: &FlowTable<P>,
        flow: FlowId,
        tag: Tag,
        left: impl FnOnce(FlowId, &T),
    ) -> Result<(), SubmitError> {
        if self.outsiders.get(tag.0 as usize).is_none_or(|&outside| outside != 0) {
            return Err(SubmitError::BadTag);
        }
        table.weight(flow).ok_or(SubmitError::NoSuchFlow)?;
        let seat = self.enter(table, flow, 0, left).ok_or(SubmitError::NoSuchFlow)?;
        self.put_outside(tag, seat, HELD);
        Ok(())
    }

    fn put_outside(&mut self, tag: Tag, seat: usize, why: u32) {
        if let Some(place) = self.outsiders.get_mut(tag.0 as usize)
            && let Some(record) = self.records.get_mut(seat)
        {
            *place = (seat as u32) << 2 | why;
            record.count = record.count.wrapping_add(OUTSIDE);
            self.outside = self.outside.wrapping_add(1);
        }
    }

    fn why(&self, tag: Tag) -> u32 {
        self.outsiders.get(tag.0 as usize).map_or(0, |place| place & WHY)
    }

    /// Records that a request of the seat's flow leaves the policy and goes before all others.
    pub fn goes_ahead(&mut self, tag: Tag, seat: usize) {
        if let Some(record) = self.records.get_mut(seat) {
            record.count = record.count.wrapping_sub(u64::from(record.live() > 0));
        }
        self.put_outside(tag, seat, AHEAD);
    }

    /// Records that a held request goes before all others; `false` if it is not held.
    pub fn expedite_held(&mut self, tag: Tag) -> bool {
        let is_held = self.why(tag) == HELD;
        if let Some(place) = self.outsiders.get_mut(tag.0 as usize).filter(|_| is_held) {
            *place ^= HELD ^ AHEAD;
        }
        is_held
    }

    /// Takes back a request that waits in front of the policy; `false` if it is not held.
    pub fn cancel_held<P: Platform>(&mut self, table: &FlowTable<P>, tag: Tag) -> bool {
        self.why(tag) == HELD && self.leave_outside(table, tag)
    }

    /// Whether the request went before all others.
    pub fn is_ahead(&self, tag: Tag) -> bool {
        self.outside > 0 && self.why(tag) == AHEAD
    }

    /// Counts a request that went before all others as completed; `false` if it did not.
    #[inline]
    pub fn complete_ahead<P: Platform>(&mut self, table: &FlowTable<P>, tag: Tag) -> bool {
        self.is_ahead(tag) && self.leave_outside(table, tag)
    }

    #[cold]
    fn leave_outside<P: Platform>(&mut self, table: &FlowTable<P>, tag: Tag) -> bool {
        let Some(place) = self.outsiders.get_mut(tag.0 as usize) else { return false };
        let seat = (core::mem::take(place) >> 2) as usize;
        self.outside = self.outside.saturating_sub(1);
        if let Some(record) = self.records.get_mut(seat) {
            record.count = record.count.wrapping_sub(OUTSIDE);
            if record.live() == 0 {
                self.end(table, seat);
            }
        }
        true
    }

    /// The flow's seat, if it has one.
    #[inline]
    pub fn seat(&self, flow: FlowId) -> Option<usize> {
        let seat = match self.seats.is_empty() {
            true => flow.slot(),
            false => *self.seats.get(flow.slot())? as usize,
        };
        (self.records.get(seat)?.owner == word(flow)).then_some(seat)
    }

    /// Whether the flow may stage another request here ([`Port::admit`](crate::Port::admit)).
    pub fn has_room<P: Platform>(
        &self,
        table: &FlowTable<P>,
        flow: FlowId,
    ) -> Result<(), SubmitError> {
        table.weight(flow).ok_or(SubmitError::NoSuchFlow)?;
        let live = self.seat(flow).map_or(0, |seat| self.all(seat));
        // `in_use` counts this flow only while it has requests. One part is for a flow to come.
        let parts = self.in_use.saturating_add(u32::from(live == 0) + 1);
        let part = self.tags.checked_div(parts).unwrap_or(0).max(1);
        if live < part { Ok(()) } else { Err(SubmitError::Full) }
    }

    /// The flow of the seat.
    #[inline]
    pub fn owner(&self, seat: usize) -> Option<FlowId> {
        flow_of(self.records.get(seat)?.owner)
    }

    /// The policy's state of the flow in the seat.
    #[inline]
    pub fn kept(&self, seat: usize) -> Option<&T> {
        self.records.get(seat).map(|record| &record.kept)
    }

    /// The policy's state of the flow in the seat, to be changed.
    #[inline]
    pub fn kept_mut(&mut self, seat: usize) -> Option<&mut T> {
        self.records.get_mut(seat).map(|record| &mut record.kept)
    }

    /// The requests of the seat's flow that the policy has.
    #[inline]
    pub fn live(&self, seat: usize) -> u32 {
        self.records.get(seat).map_or(0, Record::live)
    }

    /// All requests of the seat's flow: the policy's, and the ones outside.
    pub fn all(&self, seat: usize) -> u32 {
        self.records.get(seat).map_or(0, Record::all)
    }

    /// Counts a request of the seat's flow as gone.
    #[inline]
    pub fn finish<P: Platform>(&mut self, table: &FlowTable<P>, seat: usize) {
        let Some(record) = self.records.get_mut(seat) else { return };
        match record.count {
            1 => {
                record.count = 0;
                self.rest(seat);
            }
            count if count as u32 > 1 => record.count = count.wrapping_sub(1),
            // It was the policy's last request of a flow that is closing or has requests outside.
            count => {
                record.count = count.wrapping_sub((count as u32).into());
                self.end(table, seat);
            }
        }
    }

    /// Records that the seat's flow has no request left.
    #[inline]
    fn rest(&mut self, seat: usize) {
        self.in_use = self.in_use.saturating_sub(1);
        if !self.seats.is_empty() {
            self.idle_links.push(&mut self.idle, seat as u32);
        }
    }

    /// Records that the policy has no request left of the seat's flow, which may be closing or have
    /// requests outside.
    #[cold]
    #[inline(never)]
    fn end<P: Platform>(&mut self, table: &FlowTable<P>, seat: usize) {
        let Some(record) = self.records.get_mut(seat) else { return };
        if record.all() > 0 {
            return;
        }
        let is_closing = core::mem::take(&mut record.count) != 0;
        if let Some(flow) = flow_of(record.owner).filter(|_| is_closing) {
            table.release(self.port, flow.slot());
        }
        self.rest(seat);
    }

    /// Acts on removals since the last call: one load when there were none. True if there was news
    /// of any kind. If removals are left, the port wakes itself.
    #[inline]
    pub fn poll<P: Platform>(&mut self, table: &FlowTable<P>, wake: &mut PortSet) -> bool {
        let news = table.news.load(Ordering::Acquire);
        let is_news = news != self.news_seen;
        if is_news {
            self.answer(table, news, wake);
        }
        is_news
    }

    /// Whether the next call of [`PortFlows::poll`] has news.
    pub fn has_news<P: Platform>(&self, table: &FlowTable<P>) -> bool {
        table.news.load(Ordering::Acquire) != self.news_seen
    }

    /// Whether flows were removed that the port has not acted on.
    pub fn has_closings<P: Platform>(&self, table: &FlowTable<P>) -> bool {
        table.closings.load(Ordering::Acquire) != self.closings_seen
    }

    /// Releases removed flows, some at a time.
    #[cold]
    fn answer<P: Platform>(&mut self, table: &FlowTable<P>, news: u64, wake: &mut PortSet) {
        let closings = table.closings.load(Ordering::Acquire);
        let last = closings.min(self.closings_seen.saturating_add(CLOSINGS_AT_ONCE));
        for closing in self.closings_seen..last {
            let Some(flow) = table.closed(closing) else { continue };
            let record = self.seat(flow).and_then(|seat| self.records.get_mut(seat));
            match record.filter(|record| record.all() > 0) {
                Some(record) => record.count |= CLOSING,
                None => table.release(self.port, flow.slot()),
            }
        }
        self.closings_seen = last;
        // The news stays unseen until all names are read, so that the next call, for which the port
        // wakes itself, continues here.
        if last == closings {
            self.news_seen = news;
        } else {
            wake.insert(self.port);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
