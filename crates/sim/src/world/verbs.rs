//! The verbs of a port that a core calls for a task, one after the other.
//!
//! ```text
//!   a thread asks ── submit ──┐
//!   a command ends ─ complete ┼─ next ─ next ─ …
//!   a wake-up, a timer ───────┘
//! ```

use fairq_core::{Next, Outcome, Policy, PortSet, Request, Submitted, Tag};

use super::{Event, Kept, MOST_SELF_WAKES, World};
use crate::cpu::{Reaped, Task};
use crate::fact::{Fact, Live};
use crate::verb::{Answer, Verb};

/// A verb that a core calls, and what it does with the answer.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// `submit` of this request.
    Submit(Live, Request),
    /// `next`, and how often the port has woken itself since.
    Next { self_wakes: u32 },
    /// `complete` of this request.
    Complete(Kept, Outcome),
}

impl Stage {
    #[inline]
    fn verb(&self) -> Verb {
        match *self {
            Stage::Submit(_, request) => Verb::Submit(request),
            Stage::Next { .. } => Verb::Next,
            Stage::Complete(kept, outcome) => Verb::Complete(Tag(kept.live.tag), outcome),
        }
    }
}

impl<P: Policy> World<'_, P> {
    /// Calls this verb, and those that follow from what it answers, until there is nothing to issue.
    /// Where cores race, only the first: the rest follows when [it has answered](Self::answered).
    #[inline]
    pub(super) fn go_through(&mut self, port: usize, stage: Stage) {
        let mut stages = Some(stage);
        while let Some(stage) = stages {
            let Some((answer, wake)) = self.call(port, stage.verb()) else {
                self.cores[port].stage = Some(stage);
                return;
            };
            stages = self.take(port, stage, answer, wake);
        }
    }

    /// Does what a verb has answered; gives the verb that follows.
    #[inline]
    pub(super) fn take(
        &mut self,
        port: usize,
        stage: Stage,
        answer: Answer,
        wake: PortSet,
    ) -> Option<Stage> {
        match (stage, answer) {
            (Stage::Submit(live, _), Answer::Submitted(submitted)) => {
                // Told before what the verb answered is done: an `Issue` follows it.
                self.tell(Fact::Submitted(live));
                match submitted {
                    Ok(Submitted::Issue { class }) => self.issue(port, live.tag, class),
                    Ok(Submitted::Staged) => {
                        self.stage();
                        if let Some(kept) = &mut self.cores[port].requests[live.tag as usize] {
                            kept.staged = true;
                        }
                    }
                    Err(_) => self.broken("a request that it owes is refused"),
                }
                self.wake(Some(port), wake);
                self.drive(port)
            }
            (Stage::Complete(kept, outcome), _) => {
                let Kept { live, thread, op, after, staged, since_ns, .. } = kept;
                if staged {
                    self.stage();
                }
                self.tell(Fact::Completed(live, outcome));
                self.wake(Some(port), wake);
                let id = (port * self.tags) as u32 + live.tag;
                let answer = Reaped { thread, id, op, bytes: live.bytes, since_ns };
                self.arrive(port, Task::Reap(answer));
                match after {
                    Some(tag) => Some(self.part(port, tag, outcome)),
                    None => self.drive(port),
                }
            }
            (Stage::Next { self_wakes }, Answer::Next(next)) => {
                self.take_next(port, next, wake, self_wakes)
            }
            (Stage::Submit(..) | Stage::Next { .. }, _) => None,
        }
    }

    /// Asks a port what to do from now on.
    #[inline]
    pub(super) fn drive(&mut self, port: usize) -> Option<Stage> {
        // Each round of `next` ends with an answer that says anew whether a timer is needed.
        self.cores[port].timer_ns = None;
        self.violation.is_none().then_some(Stage::Next { self_wakes: 0 })
    }

    #[inline]
    fn take_next(
        &mut self,
        index: usize,
        next: Next,
        wake: PortSet,
        self_wakes: u32,
    ) -> Option<Stage> {
        let again = |world: &Self, self_wakes| {
            world.violation.is_none().then_some(Stage::Next { self_wakes })
        };
        let woke_itself = self.wake(Some(index), wake);
        match next {
            Next::Issue { tag, class } => {
                self.stage();
                self.issue(index, tag.0, class);
                if self.scenario.host.is_some() {
                    self.clock.goes_on = true;
                    return None;
                }
                return again(self, self_wakes);
            }
            Next::Join { tag } => {
                self.stage();
                self.cores[index].joined.push(tag.0);
                return again(self, self_wakes);
            }
            Next::WaitUntil(at_ns) => {
                // A time that is past would bring the port back within this moment, for ever.
                let at_ns = at_ns.max(self.now_ns + 1);
                self.cores[index].timer_ns = Some(at_ns);
                self.agenda.add(at_ns, Event::Timer(index as u8));
            }
            Next::Blocked => {}
            Next::Idle => self.tell(Fact::SaidIdle { port: index }),
        }
        if !woke_itself {
            return None;
        }
        if self_wakes >= MOST_SELF_WAKES {
            self.broken("a port keeps waking itself");
        }
        again(self, self_wakes + 1)
    }
}
