//! **Work conservation.** The device does not idle while a request waits for it.
//!
//! - For the policy: while any request is staged, all D slots are in use, as soon as every wake-up
//!   has arrived. (Throttling is no exception: the staged request with the least start tag is never
//!   throttled.) A policy without slots stages nothing. Policies that hold requests back on purpose
//!   (anticipation, tokens, depths) are not checked.
//! - For the device: it fetches as long as commands wait and its window has room.

use super::Check;
use crate::fact::{Fact, Moment};
use crate::subject::Promise;

/// Checks each moment at which all due events are done.
pub struct Work {
    /// Requests may wait while at least this many are outstanding.
    slots: usize,
}

impl Work {
    /// A check for a policy with this promise.
    pub fn new(promise: &Promise) -> Self {
        let slots = promise.slots.map_or(usize::MAX, |slots| slots as usize);
        Work { slots: if promise.holds_back { 0 } else { slots } }
    }
}

impl Check for Work {
    fn name(&self) -> &'static str {
        "work conservation"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        let Fact::Settled(Moment {
            wakes_under_way,
            staged,
            outstanding,
            unfetched,
            idle_slots,
            ..
        }) = *fact
        else {
            return Ok(());
        };
        if idle_slots > 0 && unfetched > 0 {
            return Err(format!(
                "the device has room for {idle_slots} more and {unfetched} wait in its queues"
            ));
        }
        if wakes_under_way == 0 && staged > 0 && outstanding < self.slots {
            return Err(format!(
                "{staged} are staged and only {outstanding} of {} slots are in use",
                self.slots
            ));
        }
        Ok(())
    }
}
