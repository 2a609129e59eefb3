//! Cancelling requests that have not been issued to the device.

use fairq_core::{Port, Tag};

use super::{DataPath, Holder, Live};
use crate::device::Device;
use crate::io::ring::UserData;
use crate::observe::record::Kind;

impl<P: Port, D: Device> DataPath<P, D> {
    /// Cancels the live requests of the current front end ([`Self::serve`]) for whose cookies
    /// `is_unwanted` is true, unless they were issued. They end with `errno`, and no tenant is
    /// charged. Requests that the device has, or that the policy has merged, run to their end.
    /// The memory of all requests stays in use until [`Self::finished`] has returned them.
    pub fn cancel(&mut self, now_ns: u64, errno: i32, is_unwanted: impl Fn(u64) -> bool) {
        let own = self.asker;
        self.cancel_those(now_ns, errno, |name| name.asker == own && is_unwanted(name.value));
    }

    /// [`Self::cancel`] for the requests of all front ends.
    pub(in crate::shard) fn cancel_all(&mut self, now_ns: u64, errno: i32) {
        self.cancel_those(now_ns, errno, |_| true);
    }

    fn cancel_those(&mut self, now_ns: u64, errno: i32, is_unwanted: impl Fn(UserData) -> bool) {
        // The number of live requests still to visit, so that the loop ends after the last one.
        let mut left = self.live.len() - self.free.len();
        let mut has_throttled = false;
        for index in 0..self.live.len() {
            if left == 0 {
                break;
            }
            let Some(live) = self.live[index] else { continue };
            left -= 1;
            let tag = Tag(index as u32);
            if !is_unwanted(UserData::from_word(live.cookie)) {
                continue;
            }
            let is_back = match live.held_by {
                Holder::Policy => self.port.cancel(now_ns, tag, &mut self.wake),
                Holder::Nothing => {
                    self.withdrawn -= 1;
                    true
                }
                Holder::Throttle => {
                    has_throttled = true;
                    true
                }
                Holder::Device => false,
            };
            if is_back {
                self.cancelled(now_ns, tag, &live, errno);
            }
        }
        if has_throttled {
            self.forget_throttled();
        }
    }

    /// Ends a request that the policy has cancelled.
    pub(super) fn cancelled(&mut self, now_ns: u64, tag: Tag, live: &Live, errno: i32) {
        if self.recorder.is_some() {
            self.note(now_ns, Kind::Cancel, tag);
        }
        // A write that never began counts like one that has ended, because none of its data can be
        // lost.
        self.write_back.end(usize::from(self.id.0), live.tenant, live.command.op);
        if live.dirty > 0 && live.held_by != Holder::Throttle {
            self.dirtied(live, false);
        }
        self.live[tag.0 as usize] = None;
        self.arena.free(live.rest);
        self.free.push(tag);
        self.stats[usize::from(live.tenant)].cancel(now_ns);
        self.changed[usize::from(live.tenant)] = true;
        self.observed.cancelled(tag);
        self.give_back(live, errno);
    }
}
