//! The verbs of a port that a core calls, as values: where cores race a verb is
//! under way while others are.

use fairq_core::{Next, Outcome, Port, PortSet, Request, SubmitError, Submitted, Tag};

/// A verb, and what it is called with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Submit(Request),
    Next,
    Complete(Tag, Outcome),
}

/// What it answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Submitted(Result<Submitted, SubmitError>),
    Next(Next),
    Completed,
}

impl Verb {
    /// Calls it; gives the ports to wake, too.
    #[inline]
    pub(crate) fn call(self, port: &mut impl Port, now_ns: u64) -> (Answer, PortSet) {
        let mut wake = PortSet::EMPTY;
        let answer = match self {
            Verb::Submit(request) => Answer::Submitted(port.submit(now_ns, &request, &mut wake)),
            Verb::Next => Answer::Next(port.next(now_ns, &mut wake)),
            Verb::Complete(tag, outcome) => {
                port.complete(now_ns, tag, outcome, &mut wake);
                Answer::Completed
            }
        };
        (answer, wake)
    }
}

/// Why a verb stops on its way.
#[derive(Debug)]
pub(crate) enum Pause {
    /// Another core is first.
    Later,
    /// It asks for a lock, which guards so many lines.
    Acquire { lock: usize, guarded: u64 },
    /// It gives a lock back.
    Release { lock: usize },
    /// It has answered; these ports are to be woken.
    Done(Answer, PortSet),
}

/// Stops the verb that runs.
#[inline]
pub(crate) fn pause(pause: Pause) {
    #[expect(deprecated, reason = "a word does not know the coroutine that reads it")]
    generator::yield_with(pause);
}
