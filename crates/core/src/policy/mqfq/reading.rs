//! The variants of MQFQ: fairq's own, and the paper's to the letter.
//!
//! **Problem.** `end_tags` and `mindicator` save transfers of cache lines that the paper's own MQFQ
//! makes between cores. The authors measured their own algorithm, so the laboratory, which checks
//! their figures, needs the paper's algorithm too, at no cost to a server. **Model.** A type
//! parameter of [`Mqfq`](super::Mqfq) that has constants only: the compiler drops the code of the
//! other readings, and a server, which names [`Ours`], contains none of it.
//!
//! | | [`Ours`] | [`StrictPaper`] | paper |
//! |---|---|---|---|
//! | a flow's end tag | a port charges late | a shared fetch-and-add a request | 3.1 |
//! | window | T less the reserve for late charges | T | 2.1 |
//! | a port's lead | published past a lag | published after each dispatch | Figure 2 |
//! | arrival at the head | pinned up to virtual time | up to where the least changes | 3.1 |
//! | virtual time | read again when the last value holds back | read for each request | Figure 2 |
//! | polling | for virtual time | for virtual time and for slots | 4.3.2 |
//!
//! **Open in the paper.** Figure 2 moves the end tag on when a request is submitted, Section 3.1
//! "on each request dispatch". Here the end tag moves on at submission: the next request's start
//! tag is this request's end tag and is assigned at submission, so dispatch would be too late.
//! Either way each request costs one shared fetch-and-add. Figure 2 says `MAX(VT, end tag)`, which
//! an addition alone cannot do: a lagging flow is brought up to virtual time by an additional swap.
//!
//! **Bounds.** Both theorems hold where verbs do not overlap: no charge is late, so W is T.
//! Figure 2 says "Logic to mitigate races has been elided", and `StrictPaper` has no such logic:
//! where verbs overlap, a request may start before virtual time. `StrictPaper` is for the
//! simulator, where verbs do not overlap.
//!
//! [`Anticipating`] is [`Ours`] with slots that are kept for a moment, which costs each verb 4 ns.
//! [`Untimed`] is `StrictPaper` without virtual time, as Section 4.3.3 runs it: no port is
//! throttled. [`OnPath`] is `StrictPaper` whose ports find only the tokens of their own path
//! (Section 3.2). A port may then wait while tokens lie in other nodes, for ever if no port below
//! those nodes sends another request; the laws show this, and no server uses it.

/// A reading of the paper.
pub trait Reading: Send + Sync + 'static {
    /// Whether the paper's text is followed to the letter.
    const IS_STRICT: bool;
    /// Whether virtual time is computed.
    const IS_TIMED: bool;
    /// Whether the slot of a completed request is kept for its flow for a moment, if the flow has
    /// had less than its share and mostly comes back at once (`kept`).
    const KEEPS_SLOTS: bool = false;
    /// Whether a port that finds no token on its path through the token tree searches the other
    /// nodes, too.
    const LOOKS_ELSEWHERE: bool = true;
}

/// The reading that servers run.
#[derive(Debug)]
pub enum Ours {}

/// The reading that the Linux kernel module runs: not work-conserving, by a 64th of the slots'
/// time.
#[derive(Debug)]
pub enum Anticipating {}

/// The paper's algorithm.
#[derive(Debug)]
pub enum StrictPaper {}

/// The paper's algorithm without virtual time.
#[derive(Debug)]
pub enum Untimed {}

/// The paper's algorithm with ports that search for tokens only on their path.
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
