//! The cores of a host whose CPUs take time: one task after the other.

use fairq_core::Limits;

use super::verbs::Stage;
use super::{Core, Event, World};
use crate::cpu::Task;
use crate::host::Times;
use crate::races::Races;
use crate::traced;

/// The state of the core that works, on a host whose CPUs take time.
#[derive(Default)]
pub(super) struct Clock {
    /// The time of the core that works, in picoseconds; at first the time of the event.
    pub(super) now_ps: u64,
    /// Whether another hardware thread of the same core works, too.
    pub(super) is_shared: bool,
    /// Whether the core has to call the policy again.
    pub(super) goes_on: bool,
    /// Time of the policy's verbs, and the part of it in waits for locks.
    pub(super) verbs_ps: u64,
    pub(super) locks_ps: u64,
    /// The lock that the last verb held, if any.
    pub(super) held: Option<usize>,
    /// Where cores race: the port whose last verb still holds a lock.
    pub(super) gives: Option<usize>,
    /// Number of commands that are issued and not yet in a queue, or completed by the device and
    /// not yet by the policy.
    pub(super) in_hand: usize,
    /// Number of cores that will call the policy again.
    pub(super) going_on: usize,
    /// The host's times; all 0 without a host.
    pub(super) times: Times,
    /// The core of each port, and the other ports of that core.
    pub(super) cores: Vec<usize>,
    pub(super) siblings: Vec<Vec<usize>>,
    /// The racing cores; `None` if cores do not race.
    pub(super) races: Option<Box<Races>>,
}

/// Longest time that a core runs before the device is polled, in picoseconds: less than the time
/// from a completion until its core calls the policy.
const LOOK_PS: u64 = 64_000;

impl<P: Limits> World<'_, P> {
    // Work.

    /// Gives a core a task, which the core begins at once, or when it is free.
    #[inline]
    pub(super) fn arrive(&mut self, port: usize, task: Task) {
        if self.scenario.host.is_none() {
            return self.perform(port, task);
        }
        let cpu = &mut self.cores[port].cpu;
        if cpu.is_busy() { cpu.add(task) } else { self.start(port, task) }
    }

    #[inline]
    pub(super) fn perform(&mut self, port: usize, task: Task) {
        match task {
            Task::Ask(thread) => self.ask(port, thread),
            Task::Reap(answer) => self.reap(&answer),
            Task::Complete(id, outcome) => self.complete(id, outcome),
            Task::Wake => {
                self.cores[port].woken = false;
                self.wakes_under_way -= 1;
                self.drive(port);
            }
            Task::Timer | Task::GoOn => self.drive(port),
        }
    }

    /// A free core begins a task.
    #[inline]
    pub(super) fn start(&mut self, port: usize, task: Task) {
        let alone_ps = self.cores[port].cpu.start(task, self.now_ns, &self.clock.times);
        // The sibling's state is read when the task begins; a later change of that state has no
        // effect on this task.
        let takes_ps =
            if self.is_shared(port) { self.clock.times.shared_ps(alone_ps) } else { alone_ps };
        self.agenda.add(self.now_ns + takes_ps.div_ceil(1000), Event::Run(port as u8));
    }

    /// Whether another hardware thread of the port's core works.
    #[inline]
    pub(super) fn is_shared(&self, port: usize) -> bool {
        self.clock.siblings[port].iter().any(|&other| self.cores[other].cpu.is_busy())
    }

    /// Calls the policy's verbs after the work that precedes them.
    pub(super) fn work(&mut self, port: usize) {
        let Some(task) = self.cores[port].cpu.task() else { return };
        self.clock.now_ps = self.now_ns * 1000;
        self.clock.is_shared = self.is_shared(port);
        if matches!(task, Task::GoOn) {
            self.clock.going_on -= 1;
        }
        self.perform(port, task);
        if self.cores[port].stage.is_none() {
            self.performed(port);
        }
    }

    /// Schedules the end of a task whose verbs have all been called.
    pub(super) fn performed(&mut self, port: usize) {
        let until_ns = self.effect_ns();
        // The core stays busy until it has called the policy again; tasks that arrive meanwhile are
        // queued.
        if std::mem::take(&mut self.clock.goes_on) {
            self.clock.going_on += 1;
            self.cores[port].cpu.goes_on();
            self.agenda.add(until_ns, Event::Run(port as u8));
        } else {
            self.agenda.add(until_ns, Event::Free(port as u8));
        }
        let (verbs_ps, locks_ps) =
            (std::mem::take(&mut self.clock.verbs_ps), std::mem::take(&mut self.clock.locks_ps));
        self.meter.verbs(self.now_ns, port, verbs_ps, locks_ps);
    }

    /// Runs the racing core with the earliest time, if that is before all events; returns false if
    /// there is none.
    pub(super) fn race(&mut self, before_ns: Option<u64>, end_ns: u64) -> bool {
        let before_ps = before_ns.map_or(u64::MAX, |before_ns| before_ns.saturating_mul(1000));
        while let Some(races) = &mut self.clock.races
            && let Some(next_ps) = races.next_ps().filter(|&next_ps| next_ps < before_ps)
        {
            if let Some((at_ns, id, outcome)) = self.device.pop((next_ps / 1000).min(end_ns)) {
                self.interrupt(at_ns, id, outcome);
            } else if let Some(answered) = races.run((next_ps + LOOK_PS).min(before_ps - 1)) {
                self.answered(&answered);
            } else {
                continue;
            }
            self.fetch();
            self.settled();
            return true;
        }
        false
    }

    /// Releases the lock that the last verb of a racing core held, at `at_ps`.
    pub(super) fn give_back(&mut self, at_ps: u64) {
        if let Some(port) = self.clock.gives.take()
            && let Some(races) = &mut self.clock.races
        {
            races.give_back(port, at_ps);
        }
    }

    /// Whether a racing core is in a verb.
    pub(super) fn is_in_a_verb(&self) -> bool {
        self.clock.races.as_ref().is_some_and(|races| races.next_ps().is_some())
    }

    /// Whether a racing core is submitting a request of this tenant.
    pub(super) fn is_submitting(&self, tenant: usize) -> bool {
        let Some(present) = &self.present[tenant] else { return false };
        let submits = |core: &Core<P::Port>| match core.stage {
            Some(Stage::Submit(_, request)) => request.flow == present.id,
            _ => false,
        };
        self.cores.iter().any(submits)
    }

    /// Lets racing cores release their locks, because the world is about to call the policy itself.
    pub(super) fn quiet(&mut self) {
        if let Some(races) = &mut self.clock.races {
            races.quiet();
        }
    }

    /// Ends a core's task, and begins the next one.
    pub(super) fn free(&mut self, port: usize) {
        let cpu = &mut self.cores[port].cpu;
        let since_ns = cpu.since_ns();
        let (reschedule, for_nothing) = cpu.end(self.now_ns);
        self.meter.worked(port, since_ns, self.now_ns, reschedule, for_nothing);
        if let Some(task) = self.cores[port].cpu.next() {
            self.start(port, task);
        }
    }

    /// Adds time to the working core, and more if its sibling works; `alone_ps` is 0 without a
    /// host.
    #[inline]
    pub(super) fn spend(&mut self, alone_ps: u64) {
        self.clock.now_ps +=
            if self.clock.is_shared { self.clock.times.shared_ps(alone_ps) } else { alone_ps };
    }

    /// Adds the time of a scheduler's hook for a request that it keeps: a third of the layer's
    /// `stage`, under the lock that the verb held, if any.
    #[inline]
    pub(super) fn stage(&mut self) {
        self.spend(self.clock.times.stage_ps);
        if let Some(lock) = self.clock.held.take() {
            traced::held_until(lock, self.clock.now_ps);
        }
        self.give_back(self.clock.now_ps);
    }

    /// Calls a verb of a port, and adds its time.
    #[inline]
    pub(super) fn verb<R>(&mut self, port: usize, verb: impl FnOnce(&mut P::Port, u64) -> R) -> R {
        let now_ns = self.now_ns;
        let core = self.cores[port].port.as_mut().expect("only racing cores' ports are elsewhere");
        if self.scenario.host.is_none() {
            return verb(core, now_ns);
        }
        let clock = &mut self.clock;
        // A verb's computing comes before its accesses to shared words: the same time for every
        // policy.
        let from_ps = clock.now_ps + clock.times.verb_ps;
        let (result, spent) = traced::inside(clock.cores[port], from_ps, || verb(core, now_ns));
        clock.verbs_ps += spent.until_ps - clock.now_ps;
        clock.locks_ps += spent.waited_ps;
        clock.held = spent.held;
        clock.now_ps = spent.until_ps;
        result
    }

    /// Time at which the current work takes effect, in nanoseconds.
    #[inline]
    pub(super) fn effect_ns(&self) -> u64 {
        if self.scenario.host.is_some() { self.clock.now_ps.div_ceil(1000) } else { self.now_ns }
    }
}
