//! Requests that wait for writes which ended clients of the same tenant have left in flight: see
//! [`crate::shard::fence`].

use super::*;

/// The key of the part of the client's stream that is not yet read. The key of an op is its index.
const STREAM: u32 = u32::MAX;

/// An op that waits.
pub(super) struct Behind {
    op: u16,
    /// The number of seconds for which it has waited.
    waited_s: u32,
}

impl Conn {
    /// Ends the client. Requests of other clients then wait for its requests in flight that change
    /// data, and for the unread part of its stream.
    pub(super) fn leave(&mut self) {
        if self.client.end() {
            let mut is_free = vec![false; self.ops.len()];
            self.free.iter().for_each(|&index| is_free[usize::from(index)] = true);
            for (index, op) in (0u16..).zip(&mut self.ops) {
                if !is_free[usize::from(index)] && matches!(op.reply, Reply::Pending) {
                    op.leave(&self.client, index, &self.volume);
                }
            }
            if self.state == State::Open {
                self.client.leave(STREAM, Reach::All);
            }
        }
        if self.state != State::Open {
            self.client.over(STREAM);
        }
    }

    /// Whether an op has to wait; it is then added to the waiting ops. Waiting ops are submitted in
    /// order, so each waits for the first.
    pub(super) fn goes_behind(&mut self, index: u16) -> bool {
        if !self.client.is_fenced() {
            return false;
        }
        let op = &self.ops[usize::from(index)];
        let waits = op.orders.errno() == 0
            && op.reach(&self.volume).is_some_and(|reach| self.client.waits(reach));
        if waits {
            self.client.count();
            self.behind.push_back(Behind { op: index, waited_s: 0 });
        }
        waits
    }

    /// Queues the ops that no longer have to wait for submission.
    pub(super) fn take_up(&mut self) {
        if !self.client.has_news() {
            return;
        }
        while let Some(&Behind { op: index, .. }) = self.behind.front() {
            let reach = self.ops[usize::from(index)].reach(&self.volume);
            if reach.is_some_and(|reach| self.client.waits(reach)) {
                return;
            }
            self.behind.pop_front();
            self.to_submit.push_back(index);
        }
    }

    /// Ends all waits, because the connection is being closed.
    pub(super) fn end_waits(&mut self) {
        self.to_submit.extend(self.behind.drain(..).map(|behind| behind.op));
    }

    /// Called once a second: fails the ops that have waited for too long. True if there were any.
    pub(super) fn fail_late(&mut self) -> bool {
        let (mut failed, patience_s) = (0, self.client.patience_s());
        let (ops, to_submit) = (&mut self.ops, &mut self.to_submit);
        self.behind.retain_mut(|behind| {
            behind.waited_s = behind.waited_s.saturating_add(1);
            if behind.waited_s <= patience_s {
                return true;
            }
            ops[usize::from(behind.op)].is_late = true;
            ops[usize::from(behind.op)].orders.fail(libc::EIO);
            to_submit.push_back(behind.op);
            failed += 1;
            false
        });
        if failed > 0 {
            tracing::error!(
                connection = self.index,
                tenant = self.volume.tenant,
                requests = failed,
                waited_s = patience_s,
                "requests fail with EIO: writes of an earlier connection of the tenant to the same \
                 bytes have not ended, and could overwrite newer data; check the storage"
            );
        }
        failed > 0
    }
}
