//! A halted shard: it has no operation in the kernel, so that no result can be lost.
//!
//! **Problem.** When the process executes another program, its rings are closed, and the results of
//! receives and commands would be lost. **Model.** A shard that halts accepts nothing and issues
//! nothing. It waits for the commands on the device, and cancels receives and sends; each
//! operation's event has the number of bytes that it transferred. Then the shard reports that it is
//! halted, and waits for messages: to pack its connections, or to resume. Packing copies and
//! changes nothing, so a shard can resume at any time. Requests in the scheduler stay there.

use std::sync::mpsc::Sender;

use fairq_core::Port;

use crate::device::Device;
use crate::shard::{Front, Shard};

/// The period after which a cancellation is repeated: a cancellation does not find an operation
/// that is just being started.
const AGAIN_NS: u64 = 5_000_000;

/// The state of a shard that halts.
pub struct Halt {
    /// Receives the shard's number when the shard is halted.
    reply: Option<Sender<usize>>,
    /// The time of the next attempt to halt the front end.
    again_ns: u64,
}

impl Halt {
    /// `reply` receives the shard's number when the shard is halted.
    pub fn new(reply: Sender<usize>) -> Halt {
        Halt { reply: Some(reply), again_ns: 0 }
    }

    /// The time of the next turn even if no event comes.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.reply.is_some().then_some(self.again_ns)
    }
}

impl<P: Port, D: Device, F: Front> Shard<P, D, F> {
    /// A turn without arrivals and new commands. True if there may be more to do at once.
    #[cold]
    pub(super) fn halted_turn(&mut self) -> bool {
        let now_ns = self.clock.now_ns();
        self.path.halt();
        let reaped = self.reap(now_ns);
        let issued = self.path.ring(now_ns, &mut self.ring);
        let Some(halt) = self.halt.as_mut().filter(|halt| halt.reply.is_some()) else {
            return reaped || issued;
        };
        // An event may have completed the last operation, so the front end is called in each turn.
        let is_due = now_ns >= halt.again_ns;
        if is_due {
            halt.again_ns = now_ns + AGAIN_NS;
        }
        if self.front.halt(&mut self.ring, is_due)
            && !self.path.is_on_device()
            && let Some(reply) = halt.reply.take()
        {
            // The control thread may have stopped waiting.
            let _ = reply.send(self.index);
        }
        reaped || issued
    }

    /// Resumes the shard.
    #[cold]
    pub(super) fn go_on(&mut self) {
        if self.halt.take().is_some() {
            self.front.go_on(&mut self.ring);
            self.front.resume();
        }
    }
}
