//! The verbs of a port that a core calls, as values: where cores [race](crate::races) a verb is under
//! way while others are.

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
