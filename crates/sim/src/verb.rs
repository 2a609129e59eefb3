//! The verbs of a port that a core calls, as values, because several verbs are in progress at the
//! same time where cores race.

use fairq_core::{Next, Outcome, Port, PortSet, Request, SubmitError, Submitted, Tag};

/// A verb and its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Submit(Request),
    Next,
    Complete(Tag, Outcome),
}

/// The result of a verb.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Submitted(Result<Submitted, SubmitError>),
    Next(Next),
    Completed,
}

impl Verb {
    /// Calls the verb; also returns the ports to wake.
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

/// The reason why a verb stops before its end.
#[derive(Debug)]
pub(crate) enum Pause {
    /// Another core has earlier work.
    Later,
    /// The verb acquires a lock that guards this many cache lines.
    Acquire { lock: usize, guarded: u64 },
    /// The verb releases a lock.
    Release { lock: usize },
    /// The verb has returned this result; the caller wakes these ports.
    Done(Answer, PortSet),
}

/// Stops the verb that runs.
#[inline]
pub(crate) fn pause(pause: Pause) {
    #[expect(deprecated, reason = "a word does not know the coroutine that reads it")]
    generator::yield_with(pause);
}
