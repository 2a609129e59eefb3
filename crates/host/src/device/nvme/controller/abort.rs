//! The Abort command: a command that waits in its queue ends without having been carried out.
//!
//! The entry stays in its queue. When arbitration selects it, it completes as *aborted*, and then
//! the Abort completes. So queues empty in their order, and the places reserved in completion
//! queues stay reserved. A command that has been fetched is with the storage, which cannot cancel
//! it: *not aborted*. Asynchronous event requests end at once.

use fairq_core::PortSet;

use super::admin_commands::{Abort, Admin, Answer};
use super::{ABORTS, Controller, State};
use crate::device::nvme::dma::Dma;
use crate::device::nvme::spec::{Sqe, Status};

/// Result of an Abort whose command goes on, or is unknown.
const NOT_ABORTED: u32 = 1;

impl Admin {
    /// The Abort that waits for the command at this place of a queue, if one does.
    #[inline]
    pub(super) fn abort_of(&mut self, sqid: u16, index: u16) -> Option<u16> {
        if self.aborts.is_empty() { None } else { self.find_abort(sqid, index) }
    }

    #[cold]
    fn find_abort(&mut self, sqid: u16, index: u16) -> Option<u16> {
        let at = self.aborts.iter().position(|abort| (abort.sqid, abort.index) == (sqid, index))?;
        Some(self.aborts.swap_remove(at).cid)
    }
}

impl State {
    /// Carries out an Abort: now, or when its command's turn comes.
    pub(super) fn abort<M: Dma>(
        &mut self,
        controller: &Controller<M>,
        wake: &mut PortSet,
        sqe: &Sqe,
    ) -> Result<Answer, Status> {
        let (sqid, cid) = (sqe.cdw10 as u16, (sqe.cdw10 >> 16) as u16);
        // Of the commands of the admin queue only event requests can be taken back.
        if sqid == 0 {
            return Ok(Answer::Now(self.abort_event_request(controller, wake, cid)));
        }
        if self.admin.aborts.len() == ABORTS {
            return Err(Status::ABORT_LIMIT);
        }
        // A queue that is being deleted gives its commands no turn.
        let sq = self
            .sqs
            .get(usize::from(sqid))
            .and_then(Option::as_ref)
            .filter(|_| !self.admin.is_deleting(sqid));
        let Some(index) = sq.and_then(|sq| sq.find(cid)) else {
            return Ok(Answer::Now(NOT_ABORTED));
        };
        // Only one Abort may wait for a command: its turn ends one, and a second would never end.
        if self.admin.aborts.iter().any(|abort| (abort.sqid, abort.index) == (sqid, index)) {
            return Ok(Answer::Now(NOT_ABORTED));
        }
        self.admin.aborts.push(Abort { sqid, index, cid: sqe.cid });
        Ok(Answer::Later)
    }

    fn abort_event_request<M: Dma>(
        &mut self,
        controller: &Controller<M>,
        wake: &mut PortSet,
        cid: u16,
    ) -> u32 {
        let Some(at) = self.admin.event_requests.iter().position(|&request| request == cid) else {
            return NOT_ABORTED;
        };
        self.admin.event_requests.remove(at);
        self.post(controller, wake, 0, cid, 0, Status::ABORT_REQUESTED);
        0
    }

    /// The queue is being deleted, so the commands that wait in it are never carried out, which is
    /// what the Abort requests.
    pub(super) fn end_aborts<M: Dma>(
        &mut self,
        controller: &Controller<M>,
        wake: &mut PortSet,
        sqid: u16,
    ) {
        while let Some(at) = self.admin.aborts.iter().position(|abort| abort.sqid == sqid) {
            let Abort { cid, .. } = self.admin.aborts.swap_remove(at);
            self.post(controller, wake, 0, cid, 0, Status::SUCCESS);
        }
    }
}
