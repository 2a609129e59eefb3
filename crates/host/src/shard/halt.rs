//! A shard that stands still: nothing of it is in the kernel's hands, and nothing is lost.
//!
//! **Problem.** When the process executes another program, its rings go, and with them what a
//! receive or a command of the device would have brought. **Model.** A shard that is told to halt
//! takes nothing in and issues nothing. It waits for the commands that the device has, and cancels
//! receives and sends; an event says how much of each was done. Then it says so, and waits for
//! messages: to pack its connections, or to go on. Packing copies and changes nothing, so that a
//! shard may go on at any time as if nothing had happened. Requests that the scheduler holds stay
//! there.

use std::sync::mpsc::Sender;

use fairq_core::Port;

use crate::device::Device;
use crate::shard::{Front, Shard};

/// How often a cancellation is repeated: an operation that is just being started is not found.
const AGAIN_NS: u64 = 5_000_000;

/// A shard is to stand still.
pub struct Halt {
    /// Gets the shard's number when it does.
    reply: Option<Sender<usize>>,
    /// When the front end is called again.
    again_ns: u64,
}

impl Halt {
    /// Says to `reply` when the shard stands still.
    pub fn new(reply: Sender<usize>) -> Halt {
        Halt { reply: Some(reply), again_ns: 0 }
    }

    /// When to have a turn though no event comes.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.reply.is_some().then_some(self.again_ns)
    }
}

impl<P: Port, D: Device, F: Front> Shard<P, D, F> {
    /// A turn without arrivals and without new commands. True if there may be more to do at once.
    #[cold]
    pub(super) fn halted_turn(&mut self) -> bool {
        let now_ns = self.clock.now_ns();
        self.path.halt();
        let reaped = self.reap(now_ns);
        let issued = self.path.ring(now_ns, &mut self.ring);
        let Some(halt) = self.halt.as_mut().filter(|halt| halt.reply.is_some()) else {
            return reaped || issued;
        };
        // An event may have ended the last operation, so the front end is called at each turn.
        let is_due = now_ns >= halt.again_ns;
        if is_due {
            halt.again_ns = now_ns + AGAIN_NS;
        }
        if self.front.halt(&mut self.ring, is_due)
            && !self.path.is_on_device()
            && let Some(reply) = halt.reply.take()
        {
            // The control thread may have given up waiting.
            let _ = reply.send(self.index);
        }
        reaped || issued
    }

    /// Goes on.
    #[cold]
    pub(super) fn go_on(&mut self) {
        if self.halt.take().is_some() {
            self.front.go_on(&mut self.ring);
            self.front.resume();
        }
    }
}
