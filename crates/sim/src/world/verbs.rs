//! The verbs of a port that a core calls for a task, one after the other.
//!
//! ```text
//!   a request ────── submit ──┐
//!   a command ends ─ complete ┼─ next ─ next ─ …
//!   a wake-up, a timer ───────┘
//! ```
//!
//! Where cores race, this module only begins a verb, and continues in [`World::answered`] when the
//! verb has returned.

use fairq_core::{Limits, Next, Outcome, Port, PortSet, Request, SubmitError, Submitted, Tag};

use super::{Event, Kept, MOST_SELF_WAKES, World};
use crate::cpu::{Reaped, Task};
use crate::fact::{Fact, Live};
use crate::races::Answered;
use crate::verb::{Answer, Verb};

/// The verb that a racing core is in, with the state that is needed after it.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// `submit` of this request.
    Submit(Live, Request),
    /// `next`, and the number of times that the port has woken itself in this round.
    Next { self_wakes: u32 },
    /// `complete` of this request.
    Complete(Kept, Outcome),
}

impl Stage {
    fn verb(&self) -> Verb {
        match *self {
            Stage::Submit(_, request) => Verb::Submit(request),
            Stage::Next { .. } => Verb::Next,
            Stage::Complete(kept, outcome) => Verb::Complete(Tag(kept.live.tag), outcome),
        }
    }
}

impl<P: Limits> World<'_, P> {
    /// Submits a request, and dispatches.
    #[inline]
    pub(super) fn submit(&mut self, port: usize, live: Live, request: Request) {
        if self.begins(port, || Stage::Submit(live, request)) {
            return;
        }
        let mut wake = PortSet::EMPTY;
        let submitted = self.verb(port, |port, now_ns| port.submit(now_ns, &request, &mut wake));
        self.submitted(port, live, submitted, wake);
        self.drive(port);
    }

    #[inline]
    fn submitted(
        &mut self,
        port: usize,
        live: Live,
        submitted: Result<Submitted, SubmitError>,
        wake: PortSet,
    ) {
        // The checks get this fact before the result of the verb is applied, because `Issued` has
        // to follow it.
        self.tell(Fact::Submitted(live));
        match submitted {
            Ok(Submitted::Issue { class }) => self.issue(port, live.tag, class),
            Ok(Submitted::Staged) => {
                self.stage();
                if let Some(kept) = &mut self.cores[port].requests[live.tag as usize] {
                    kept.staged = true;
                }
            }
            Err(_) => self.broken("the policy refuses a request that it must accept"),
        }
        self.wake(Some(port), wake);
    }

    /// Completes the requests of a command, from `first` on, and dispatches.
    #[inline]
    pub(super) fn complete_from(&mut self, port: usize, first: Option<u32>, outcome: Outcome) {
        let mut part = first;
        while let Some(tag) = part {
            let core = &mut self.cores[port];
            let kept =
                core.requests[tag as usize].take().expect("the device completes what it was sent");
            core.free.push(tag);
            self.live -= 1;
            if self.begins(port, || Stage::Complete(kept, outcome)) {
                return;
            }
            let mut wake = PortSet::EMPTY;
            self.verb(port, |port, now_ns| port.complete(now_ns, Tag(tag), outcome, &mut wake));
            self.completed(port, &kept, outcome, wake);
            part = kept.after;
        }
        self.drive(port);
    }

    #[inline]
    fn completed(&mut self, port: usize, kept: &Kept, outcome: Outcome, wake: PortSet) {
        let &Kept { live, thread, staged, since_ns, .. } = kept;
        if staged {
            self.stage();
        }
        self.tell(Fact::Completed(live, outcome));
        self.wake(Some(port), wake);
        let id = (port * self.tags) as u32 + live.tag;
        self.arrive(port, Task::Reap(Reaped { thread, id, bytes: live.bytes, since_ns }));
    }

    /// Calls `next` on a port until there is nothing to issue.
    #[inline]
    pub(super) fn drive(&mut self, port: usize) {
        // Each round of `next` ends with a result that sets a timer if one is needed.
        self.cores[port].timer_ns = None;
        self.ask_next(port, 0);
    }

    #[inline]
    fn ask_next(&mut self, port: usize, self_wakes: u32) {
        let mut asks = Some(self_wakes);
        while let Some(self_wakes) = asks.filter(|_| self.violation.is_none()) {
            if self.begins(port, || Stage::Next { self_wakes }) {
                return;
            }
            let mut wake = PortSet::EMPTY;
            let next = self.verb(port, |port, now_ns| port.next(now_ns, &mut wake));
            asks = self.do_next(port, next, wake, self_wakes);
        }
    }

    /// Applies the result of `next`; if `next` has to be called again, returns the number of times
    /// that the port has woken itself.
    #[inline]
    fn do_next(&mut self, index: usize, next: Next, wake: PortSet, self_wakes: u32) -> Option<u32> {
        let woke_itself = self.wake(Some(index), wake);
        match next {
            Next::Issue { tag, class } => {
                self.stage();
                self.issue(index, tag.0, class);
                if self.scenario.host.is_some() {
                    self.clock.goes_on = true;
                    return None;
                }
                return Some(self_wakes);
            }
            Next::Join { tag } => {
                self.stage();
                self.cores[index].joined.push(tag.0);
                return Some(self_wakes);
            }
            Next::WaitUntil(at_ns) => {
                // A time in the past would call the port again at this same time, for ever.
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
        Some(self_wakes + 1)
    }

    // Races.

    /// If cores race, begins a verb on this core; returns whether cores race.
    #[inline]
    fn begins(&mut self, port: usize, stage: impl FnOnce() -> Stage) -> bool {
        let clock = &mut self.clock;
        let Some(races) = &mut clock.races else { return false };
        let stage = stage();
        races.begin(port, clock.now_ps, clock.times.verb_ps, stage.verb(), self.now_ns);
        self.cores[port].stage = Some(stage);
        true
    }

    /// Applies the result of a racing core's verb that has returned.
    pub(super) fn answered(&mut self, answered: &Answered) {
        let &Answered { port, at_ps, answer, wake, verb_ps, locks_ps, failed, gives } = answered;
        let Some(stage) = self.cores[port].stage.take() else { return };
        self.now_ns = self.now_ns.max(at_ps / 1000);
        self.meter.verbs(self.now_ns, port, verb_ps, locks_ps);
        self.meter.failed(self.now_ns, port, failed);
        self.clock.now_ps = at_ps;
        self.clock.is_shared = self.is_shared(port);
        self.clock.gives = gives.then_some(port);
        match (stage, answer) {
            (Stage::Submit(live, _), Answer::Submitted(submitted)) => {
                self.submitted(port, live, submitted, wake);
                self.give_back(at_ps);
                self.drive(port);
            }
            (Stage::Next { self_wakes }, Answer::Next(next)) => {
                let asks = self.do_next(port, next, wake, self_wakes);
                self.give_back(at_ps);
                if let Some(self_wakes) = asks {
                    self.ask_next(port, self_wakes);
                }
            }
            (Stage::Complete(kept, outcome), _) => {
                self.completed(port, &kept, outcome, wake);
                self.give_back(at_ps);
                self.complete_from(port, kept.after, outcome);
            }
            (Stage::Submit(..) | Stage::Next { .. }, _) => {}
        }
        if self.cores[port].stage.is_none() {
            self.performed(port);
        }
    }
}
