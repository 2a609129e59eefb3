//! A group's doorbells: the commands that are there, and when the group sleeps.

use std::sync::atomic::{Ordering, fence};

use fairq_device::QueueIndex;

use super::guest_ring::{Fault, Which};
use super::{QueueGroup, State};
use crate::front::guest_memory::{Outside, word};

impl QueueGroup {
    #[inline]
    fn tail(&self, sqid: u16) -> Result<u32, Outside> {
        match self.shadow {
            None => Ok(self.bridge.tail(sqid)),
            Some([tails, _]) => {
                let address = tails.wrapping_add(8 * u64::from(sqid));
                Ok(word(&self.guest, address)?.load(Ordering::Acquire))
            }
        }
    }

    fn head(&self, cqid: u16) -> Result<u32, Outside> {
        match self.shadow {
            None => Ok(self.bridge.head(cqid)),
            Some([heads, _]) => {
                let address = heads.wrapping_add(8 * u64::from(cqid) + 4);
                Ok(word(&self.guest, address)?.load(Ordering::SeqCst))
            }
        }
    }

    /// Has the guest write the doorbell at this place when it passes `value`.
    fn want_event(&self, place: u64, value: u16) -> Result<(), Outside> {
        if let Some([_, events]) = self.shadow {
            let address = events.wrapping_add(4 * place);
            word(&self.guest, address)?.store(value.into(), Ordering::SeqCst);
        }
        Ok(())
    }

    /// Reads the doorbells, and gives the arbiter the commands for whose completions there is room.
    #[inline]
    fn see(&mut self) -> Result<(), Fault> {
        let was_crowded = std::mem::replace(&mut self.is_crowded, false);
        for place in 0..self.active.len() {
            let id = self.active[place];
            let tail = self.tail(id)?;
            let Some(sq) = self.sqs[usize::from(id)].as_mut() else { continue };
            let new = sq.ring.see(tail);
            sq.ring.held += new.ok_or(Fault::Doorbell(Which::Submission(id), tail))?;
            if sq.ring.held > 0 {
                self.admit(id)?;
            }
        }
        if was_crowded && !self.is_crowded {
            self.bridge.set_crowded(self.shard, false);
        }
        Ok(())
    }

    fn admit(&mut self, id: u16) -> Result<(), Fault> {
        let Some(sq) = self.sqs[usize::from(id)].as_mut() else { return Ok(()) };
        let (cqid, held) = (sq.ring.cqid, sq.ring.held);
        let Some(cq) = self.cqs[usize::from(cqid)].as_mut() else { return Ok(()) };
        let mut granted = cq.ring.reserve(held);
        if granted < held {
            granted += self.admit_after(cqid, held - granted)?;
        }
        if let Some(sq) = self.sqs[usize::from(id)].as_mut() {
            sq.ring.held -= granted;
            self.arbiter.post(QueueIndex(id), granted);
        }
        Ok(())
    }

    /// The number of commands for which a completion queue has room after the guest has read it.
    #[cold]
    fn admit_after(&mut self, cqid: u16, held: u32) -> Result<u32, Fault> {
        let mut granted = 0;
        for pass in 0..2 {
            let head = self.head(cqid)?;
            let Some(cq) = self.cqs[usize::from(cqid)].as_mut() else { break };
            if !cq.ring.see(head) {
                return Err(Fault::Doorbell(Which::Completion(cqid), head));
            }
            granted += cq.ring.reserve(held - granted);
            if granted == held || pass > 0 {
                break;
            }
            // Noted, and then read once more: the next head kicks the group.
            self.is_crowded = true;
            self.bridge.set_crowded(self.shard, true);
            self.want_event(2 * u64::from(cqid) + 1, head as u16)?;
        }
        Ok(granted)
    }

    fn takes_commands(&self) -> bool {
        self.state == State::Open
    }

    /// Reads the doorbells in each turn from now on. True if it did not.
    pub fn awake(&mut self) -> bool {
        if std::mem::replace(&mut self.is_awake, true) {
            return false;
        }
        self.bridge.set_asleep(self.shard, false);
        true
    }

    /// Whether it reads the doorbells in each turn.
    pub fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Waits for kicks, or naps, from now on; false if there is a command already.
    pub fn sleep(&mut self) -> bool {
        if self.takes_commands() {
            self.bridge.set_asleep(self.shard, true);
            if let Err(outside) = self.want_events() {
                self.fail(outside.into());
            }
            fence(Ordering::SeqCst);
            if self.has_news() {
                self.bridge.set_asleep(self.shard, false);
                return false;
            }
        }
        (self.is_awake, self.is_napping) = (self.naps(), self.naps());
        true
    }

    /// Whether doorbells come without a kick, so that it reads them after a time.
    #[inline]
    pub fn naps(&self) -> bool {
        self.takes_commands() && self.bridge.is_mapped()
    }

    fn want_events(&self) -> Result<(), Outside> {
        if self.shadow.is_none() {
            return Ok(());
        }
        self.active.iter().try_for_each(|&id| {
            let tail = self.sq(id).map_or(0, |sq| sq.ring.tail());
            self.want_event(2 * u64::from(id), tail)
        })
    }

    /// Whether there is a command that it would take.
    #[inline]
    pub fn has_news(&mut self) -> bool {
        if !self.takes_more() {
            return false;
        }
        if !self.again.is_empty() {
            return true;
        }
        if let Err(fault) = self.see() {
            self.fail(fault);
        }
        self.takes_commands() && self.arbiter.has_commands()
    }

    /// Whether it would take another command now.
    #[inline]
    pub fn takes_more(&self) -> bool {
        self.takes_commands() && !self.is_blocked()
    }

    /// Whether a poll may find a command: one that is used, and would take it.
    #[inline]
    pub fn is_polled(&self) -> bool {
        self.takes_more() && !self.is_napping
    }

    /// Whether it goes on with a completion, and not with a kick.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        !self.to_submit.is_empty() || self.is_full() || self.has_all()
    }

    /// Whether its last turn was cut short, so that it needs another one, and no event brings that.
    pub fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// Whether it has as many commands as it may.
    pub(super) fn has_all(&self) -> bool {
        self.free.is_empty() || self.commands.len() - self.free.len() >= self.window
    }

    pub(super) fn is_full(&self) -> bool {
        self.orders as usize >= self.commands.len()
    }

    /// Whether it has orders to submit and does not wait for its turn yet; it does then.
    #[inline]
    pub fn wants_turn(&mut self) -> bool {
        self.is_cut_short = false;
        let has_some = !self.is_full() && (!self.to_submit.is_empty() || self.has_news());
        self.is_napping &= !has_some;
        has_some && !std::mem::replace(&mut self.has_turn, true)
    }
}
