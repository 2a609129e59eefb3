//! Writes to the page cache that wait in the shard, before the port, until their tenant may have
//! more dirty bytes of the file ([`Dirty`](crate::shard::dirty::Dirty)).

use std::collections::VecDeque;

use fairq_core::{Op, Port, SubmitError, Submitted, Tag};

use super::{BATCH, DataPath, Holder, Live};
use crate::device::{Command, Device, Queue};
use crate::io::ring::Ring;
use crate::shard::dirty::Round;

impl<P: Port, D: Device> DataPath<P, D> {
    /// Submits an arrived request to the port, unless it has to wait.
    #[inline]
    pub(super) fn admit(
        &mut self,
        now_ns: u64,
        tag: Tag,
        live: &mut Live,
    ) -> Result<Submitted, SubmitError> {
        if self.is_dirtying(&live.command) {
            self.throttle(now_ns, tag, live)
        } else {
            self.give(now_ns, tag, live)
        }
    }

    /// Whether a command ends with bytes in the page cache that are not on the disk.
    #[inline]
    fn is_dirtying(&self, command: &Command) -> bool {
        let Command { op, file, fua, no_hole, .. } = *command;
        let writes = match op {
            Op::Write => true,
            Op::WriteZeroes => !self.device.zeroes_by_map(file, no_hole),
            Op::Read | Op::Flush | Op::Discard => false,
        };
        writes && !fua && self.queue.is_cached(file)
    }

    /// [`Self::admit`] for a write to the page cache.
    fn throttle(
        &mut self,
        now_ns: u64,
        tag: Tag,
        live: &mut Live,
    ) -> Result<Submitted, SubmitError> {
        live.dirty = live.command.length.into();
        // A write also waits if earlier writes of its tenant wait.
        if self.throttled.contains_key(&live.tenant) || !self.has_room_for(live) {
            live.held_by = Holder::Throttle;
            self.throttled.entry(live.tenant).or_default().push_back(tag);
            self.throttled_count += 1;
            return Ok(Submitted::Staged);
        }
        let submitted = self.give(now_ns, tag, live);
        if submitted.is_err() {
            self.dirtied(live, false);
        }
        submitted
    }

    fn has_room_for(&self, live: &Live) -> bool {
        let Command { file, length, .. } = live.command;
        let weight = self.weights.get(live.tenant);
        let (has_room, round) = self.dirty.admit(file, live.tenant, length, weight, self.id);
        self.begin(round);
        has_room
    }

    /// Handles the end of an admitted write; `is_cached` if its data are in the cache.
    #[cold]
    pub(super) fn dirtied(&self, live: &Live, is_cached: bool) {
        let Command { file, offset, length, .. } = live.command;
        let round = self.dirty.ended(file, live.tenant, offset, length, is_cached);
        self.begin(round);
    }

    fn begin(&self, round: Option<Round>) {
        if let Some(round) = round {
            let (file, dirty) = (round.file(), self.dirty.clone());
            self.device.write_out(file, Box::new(move |write_out| dirty.run(round, write_out)));
        }
    }

    /// Accounts for a flush of a cached file that is issued; returns the bytes that it covers.
    #[cold]
    pub(super) fn flush_dirty(&mut self, tag: Tag) -> u64 {
        let Some(live) = self.live[tag.0 as usize].as_mut() else { return 0 };
        let Command { file, offset, span, .. } = live.command;
        let (bytes, end) = self.dirty.flush(file, live.tenant);
        live.dirty = bytes;
        span.max(end.saturating_sub(offset))
    }

    /// Submits to the port the waiting writes that may now be admitted.
    #[inline]
    pub fn unthrottle(&mut self, now_ns: u64, ring: &mut Ring) {
        if self.throttled_count > 0 && self.throttle_seen != self.dirty.changes() {
            self.retry(now_ns, ring);
        }
    }

    fn retry(&mut self, now_ns: u64, ring: &mut Ring) {
        // The number is read before the first attempt, so that a later change causes another
        // attempt.
        let changes = self.dirty.changes();
        let mut throttled = std::mem::take(&mut self.throttled);
        let is_batch_full =
            throttled.values_mut().any(|tags| self.retry_tenant(now_ns, ring, tags));
        throttled.retain(|_, tags| !tags.is_empty());
        self.throttled = throttled;
        if !is_batch_full {
            self.throttle_seen = changes;
        }
    }

    /// [`Self::unthrottle`] for one tenant. True if the batch is full.
    fn retry_tenant(&mut self, now_ns: u64, ring: &mut Ring, tags: &mut VecDeque<Tag>) -> bool {
        while let Some(&tag) = tags.front() {
            if self.batch >= BATCH {
                return true;
            }
            let live = self.live[tag.0 as usize].expect("a write that waits is live");
            if !self.has_room_for(&live) {
                return false;
            }
            tags.pop_front();
            self.throttled_count -= 1;
            let live = Live { held_by: Holder::Policy, ..live };
            self.live[tag.0 as usize] = Some(live);
            match self.give(now_ns, tag, &live) {
                Ok(Submitted::Staged) => {}
                Ok(Submitted::Issue { class }) => self.issue(now_ns, ring, tag, class),
                // The write's tenant has been removed.
                Err(_) => self.cancelled(now_ns, tag, &live, libc::ESHUTDOWN),
            }
        }
        false
    }

    /// Removes the waiting writes that have been cancelled.
    #[cold]
    pub(super) fn forget_throttled(&mut self) {
        let live = &self.live;
        let waits =
            |tag: &Tag| live[tag.0 as usize].is_some_and(|live| live.held_by == Holder::Throttle);
        self.throttled.values_mut().for_each(|tags| tags.retain(waits));
        self.throttled.retain(|_, tags| !tags.is_empty());
        self.throttled_count = self.throttled.values().map(VecDeque::len).sum();
    }
}
