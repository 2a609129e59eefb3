//! The interrupts of controllers, on one shard.
//!
//! A *line* is an interrupt vector of a session; completion queues and the admin queue may share
//! it. It exists from its first use on the shard to the end of the session, also while its vector
//! has no eventfd and while the controller is reset, so that writes under way are counted as long
//! as the kernel has them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::front::guest_calls::Calls;
use crate::io::ring::{Asker, Event, Ring, UserData};

/// The name of a cancellation.
const CANCELLATION: UserData = UserData { asker: Asker::VfioUser, value: u32::MAX as u64 };

/// The lines of all sessions.
#[derive(Default)]
pub(super) struct Interrupts(Vec<Option<Line>>);

struct Line {
    session: u32,
    vector: u16,
    calls: Calls,
    /// Its session has ended.
    is_over: bool,
}

impl Interrupts {
    /// The number of a vector's line.
    pub(super) fn line(&mut self, session: u32, vector: u16) -> usize {
        let is_it = |line: &Line| (line.session, line.vector) == (session, vector);
        let number = self.0.iter().position(|line| line.as_ref().is_some_and(is_it));
        number.unwrap_or_else(|| {
            let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
            if free == self.0.len() {
                self.0.push(None);
            }
            let name = UserData { asker: Asker::VfioUser, value: free as u64 };
            let calls = Calls::new(None, name, CANCELLATION);
            self.0[free] = Some(Line { session, vector, calls, is_over: false });
            free
        })
    }

    /// Interrupts the guest.
    pub(super) fn signal(&mut self, ring: &mut Ring, line: usize) {
        if let Some(Some(line)) = self.0.get_mut(line) {
            line.calls.call(ring);
        }
    }

    /// Gives a vector another eventfd.
    pub(super) fn replace(
        &mut self,
        ring: &mut Ring,
        (session, vector): (u32, u16),
        file: Option<Arc<OwnedFd>>,
    ) {
        let line = self.line(session, vector);
        if let Some(line) = &mut self.0[line] {
            line.calls.replace(ring, file);
        }
    }

    /// Ends the lines of a session.
    pub(super) fn end(&mut self, ring: &mut Ring, session: u32) {
        for line in self.0.iter_mut().flatten().filter(|line| line.session == session) {
            line.is_over = true;
        }
        self.drop_ended(ring);
    }

    /// Drops the lines that have ended. The kernel may not find a write that it is just repeating,
    /// so the writes that remain are cancelled once more.
    pub(super) fn drop_ended(&mut self, ring: &mut Ring) {
        for line in &mut self.0 {
            line.take_if(|line| line.is_over && line.calls.has_ended(ring));
        }
    }

    /// A write has completed, or was cancelled.
    pub(super) fn ended(&mut self, ring: &mut Ring, event: Event) {
        let number = event.data.value as usize;
        if let Some(Some(line)) = self.0.get_mut(number) {
            line.calls.ended(ring);
            if line.is_over && line.calls.has_ended(ring) {
                self.0[number] = None;
            }
        }
    }
}
