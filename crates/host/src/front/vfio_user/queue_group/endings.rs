//! Changes of a group from outside, its failure, and its end.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::guest_ring::Fault;
use super::{Old, QueueGroup, State};
use crate::front::guest_memory::Guest;
use crate::front::vfio_user::interrupts::Interrupts;
use crate::io::ring::Ring;
use crate::observe::log_limit::STRANGERS;

impl QueueGroup {
    /// Calls the guest for the completions that it has got.
    pub(in crate::front::vfio_user) fn flush(
        &mut self,
        ring: &mut Ring,
        interrupts: &mut Interrupts,
    ) {
        if std::mem::take(&mut self.has_posted) && !self.is_dead() {
            for cq in self.cqs.iter_mut().flatten() {
                if std::mem::take(&mut cq.has_posted)
                    && let Some(line) = cq.line
                {
                    interrupts.signal(ring, line);
                }
            }
            if self.guest.is_broken() {
                self.fail(Fault::Shrunk);
            }
        }
        if self.bridge.has_failed() {
            self.hang_up();
        }
    }

    /// Goes on in another generation of the guest's memory; drops `moved` when no command has
    /// memory of the one before.
    pub(in crate::front::vfio_user) fn move_to(
        &mut self,
        ring: &mut Ring,
        interrupts: &mut Interrupts,
        guest: &Arc<Guest>,
        moved: Option<Sender<()>>,
    ) {
        self.flush(ring, interrupts);
        let old = std::mem::replace(&mut self.guest, guest.clone());
        if self.of_generation > 0 {
            let (number, commands) = (self.generation, self.of_generation);
            self.old.push(Old { number, commands, _guest: old, _moved: moved });
        }
        (self.generation, self.of_generation) = (self.generation.wrapping_add(1), 0);
    }

    /// The guest's controller fails: this group now, and the others when they see it.
    pub(super) fn fail(&mut self, fault: Fault) {
        if STRANGERS.allows() {
            tracing::warn!(
                disk = self.bridge.name(), %fault,
                "a guest breaks the rules of NVMe: its controller has failed until it is reset"
            );
        }
        self.bridge.fail();
        self.hang_up();
    }

    /// Takes nothing more. One whose controller has failed has nothing to answer, and ends.
    pub fn drain(&mut self) {
        match self.state {
            State::Open => self.state = State::Draining,
            State::Dead => self.is_given_up = true,
            State::Draining | State::Detached => {}
        }
    }

    /// Its tenant was removed: fails what is not submitted, and ends the session.
    pub fn detach(&mut self) {
        match self.state {
            State::Open | State::Draining => self.state = State::Detached,
            State::Dead => self.is_given_up = true,
            State::Detached => {}
        }
    }

    /// Answers nothing more, and ends its session.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
        self.hang_up();
    }

    /// Answers nothing more. `reply` is dropped when the device has no order of it.
    pub fn close(&mut self, reply: &Sender<()>) {
        self.closing.push(reply.clone());
        self.hang_up();
    }

    /// Answers nothing more. A group whose controller has failed stays until it is closed.
    pub(super) fn hang_up(&mut self) {
        if self.state == State::Dead {
            return;
        }
        self.state = State::Dead;
        if self.client.end() {
            for (place, command) in (0..).zip(&self.commands) {
                if command.is_busy
                    && command.is_change
                    && let Some(reach) = command.reach
                {
                    self.client.leave(u32::from(self.index) << 16 | place, reach);
                }
            }
        }
        for (sqid, _) in self.again.drain(..) {
            if let Some(sq) = self.sqs[usize::from(sqid)].as_mut() {
                sq.ring.in_flight -= 1;
            }
        }
        if let Some(buffer) = &mut self.buffer {
            self.to_submit.extend(buffer.waiting.drain(..));
        }
        // Orders that are not submitted end here; the front end cancels those that the policy has.
        while let Some(place) = self.to_submit.pop_front() {
            if let Some(command) = self.commands.get_mut(usize::from(place)) {
                command.is_queued = false;
                command.orders.fail(libc::ECANCELED);
            }
            self.answer(place);
        }
    }

    /// The range has this many bytes.
    pub fn resize(&mut self, size: u64) {
        self.volume.size = size;
    }

    /// A second has passed.
    pub fn second(&mut self) {
        if self.guest.is_broken() && !self.is_dead() {
            self.fail(Fault::Shrunk);
        }
        if !self.is_behind {
            return;
        }
        self.behind_s = self.behind_s.saturating_add(1);
        if self.behind_s > self.client.patience_s()
            && let Some(&place) = self.to_submit.front()
            && let Some(command) = self.commands.get_mut(usize::from(place))
        {
            tracing::error!(
                disk = self.bridge.name(),
                "a request fails: writes of an earlier client of the tenant to the same bytes have \
                 not ended, and would land after it; see to the storage"
            );
            (command.reach, self.is_behind, self.behind_s) = (None, false, 0);
            command.orders.fail(libc::EIO);
        }
    }

    /// Whether nothing is left to do; it may then be dropped.
    pub fn has_ended(&self) -> bool {
        let is_over = match self.state {
            State::Open => false,
            State::Draining | State::Detached => true,
            State::Dead => !self.closing.is_empty() || self.is_given_up,
        };
        if !is_over || self.free.len() < self.commands.len() || !self.again.is_empty() {
            return false;
        }
        if self.closing.is_empty() {
            self.bridge.hang_up();
        }
        true
    }
}
