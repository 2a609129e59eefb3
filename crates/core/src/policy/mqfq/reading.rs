//! Which text of MQFQ runs: fairq's own, or its paper's to the letter.
//!
//! **Problem.** `end_tags` and `mindicator` save lines that the paper's own MQFQ moves between
//! cores. The authors measured their own algorithm, so the laboratory, which checks their figures,
//! needs that one too; and it must cost a server nothing. **Model.** A type parameter of
//! [`Mqfq`](super::Mqfq) that has constants only: the compiler drops what the other reading does,
//! and a server, which names [`Ours`], has none of it.
//!
//! | | [`Ours`] | [`StrictPaper`] | paper |
//! |---|---|---|---|
//! | a flow's end tag | a port charges late | a shared fetch-and-add a request | 3.1 |
//! | window | T less what is kept for late charges | T | 2.1 |
//! | a port's lead | published past a lag | published after each dispatch | Figure 2 |
//! | a request arrives at the head | pinned up to virtual time | up to where the least changes | 3.1 |
//! | virtual time | read when the last one read holds back | read for each request | Figure 2 |
//! | polling | for virtual time | for virtual time and for slots | 4.3.2 |
//!
//! **What the paper leaves open.** Figure 2 moves the end tag on when a request is submitted,
//! Section 3.1 "on each request dispatch". It is done at submission: the next request's start tag
//! is this one's end tag and is given then, so that at dispatch it would be too late; either way it
//! is one shared fetch-and-add a request. Figure 2 says `MAX(VT, end tag)`, which an addition alone
//! cannot do: a flow that lags is brought up to virtual time by a swap of its own.
//!
//! **Bounds.** Both theorems hold where verbs do not overlap: nothing is late, so that W is T.
//! "Logic to mitigate races has been elided", says Figure 2, and it is not there: where verbs
//! overlap a request may start before virtual time. `StrictPaper` is for the simulator, where verbs
//! are whole.
//!
//! [`Anticipating`] is [`Ours`] with slots that are kept for a moment, which costs each verb 4 ns.
//! [`Untimed`] is `StrictPaper` without virtual time, as Section 4.3.3 runs it: no port is
//! throttled. [`OnPath`] is `StrictPaper` whose ports find the tokens of their own path alone
//! (Section 3.2). One may then wait while tokens lie elsewhere, for ever if no port below those
//! sends anything more; the laws show it, and no server has it.

/// A reading of the paper.
pub trait Reading: Send + Sync + 'static {
    /// The paper's text to the letter.
    const IS_STRICT: bool;
    /// Virtual time is computed.
    const IS_TIMED: bool;
    /// The slot of a request that completes is kept for its flow for a moment, where that has had
    /// less than its share and mostly comes back at once (`kept`).
    const KEEPS_SLOTS: bool = false;
    /// A port that finds no token on its path through the token tree looks at the other nodes, too.
    const LOOKS_ELSEWHERE: bool = true;
}

/// As servers run it.
#[derive(Debug)]
pub enum Ours {}

/// As Linux runs it: not work-conserving, by a 64th of the slots' time.
#[derive(Debug)]
pub enum Anticipating {}

/// As the paper has it.
#[derive(Debug)]
pub enum StrictPaper {}

/// As the paper has it, without virtual time.
#[derive(Debug)]
pub enum Untimed {}

/// As the paper has it, for ports that look for tokens nowhere but on their path.
#[derive(Debug)]
pub enum OnPath {}

impl Reading for Ours {
    const IS_STRICT: bool = false;
    const IS_TIMED: bool = true;
}

impl Reading for Anticipating {
    const IS_STRICT: bool = false;
    const IS_TIMED: bool = true;
    const KEEPS_SLOTS: bool = true;
}

impl Reading for StrictPaper {
    const IS_STRICT: bool = true;
    const IS_TIMED: bool = true;
}

impl Reading for Untimed {
    const IS_STRICT: bool = true;
    const IS_TIMED: bool = false;
}

impl Reading for OnPath {
    const IS_STRICT: bool = true;
    const IS_TIMED: bool = true;
    const LOOKS_ELSEWHERE: bool = false;
}
