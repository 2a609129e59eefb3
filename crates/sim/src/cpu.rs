//! A hardware thread of a host whose CPUs take time: what it has to do, and what it did.

use std::collections::VecDeque;

use fairq_core::{Op, Outcome};

use crate::host::Times;

/// A piece of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// A place of a thread asks.
    Ask(u32),
    /// A thread takes an answer.
    Reap(Reaped),
    /// The device has completed a command.
    Complete(u32, Outcome),
    /// Another core has sent a wake-up.
    Wake,
    /// A time has come.
    Timer,
    /// There may be more to issue.
    GoOn,
}

/// A completed request on its way to its thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaped {
    pub(crate) thread: u32,
    pub(crate) id: u32,
    pub(crate) op: Op,
    pub(crate) bytes: u32,
    /// From when on its latency counts.
    pub(crate) since_ns: u64,
}

impl Task {
    fn is_interrupt(self) -> bool {
        matches!(self, Task::Complete(..) | Task::Wake | Task::Timer)
    }

    /// Whether the policy is asked although nothing has come or gone here.
    fn is_reschedule(self) -> bool {
        matches!(self, Task::Wake | Task::Timer)
    }

    /// What it takes before the policy's verbs; `after` an interrupt that has just ended.
    fn takes_ps(self, times: &Times, after: bool) -> u64 {
        match self {
            Task::Ask(_) => times.submit_ps,
            Task::Reap(_) => times.reap_ps,
            Task::Complete(..) if after => times.complete_ps,
            Task::Complete(..) => times.interrupt_complete_ps,
            Task::Wake if after => 0,
            Task::Wake => times.interrupt_ps,
            Task::Timer if after => times.timer_ps,
            Task::Timer => times.interrupt_ps + times.timer_ps,
            Task::GoOn => 0,
        }
    }
}

/// What a hardware thread did while it was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuUse {
    /// How long it worked, in nanoseconds.
    pub busy_ns: u64,
    /// How much of that in the policy's verbs.
    pub verbs_ns: u64,
    /// And of that, how long it waited for locks and what they guard.
    pub locks_ns: u64,
    /// Wake-ups and timers that it was interrupted by.
    pub reschedules: u64,
    /// How many of these found nothing to issue.
    pub idle_reschedules: u64,
    /// Compare-and-swaps that failed and were tried again, where cores race.
    pub failed_swaps: u64,
}

/// A hardware thread.
#[derive(Default)]
pub(crate) struct Cpu {
    interrupts: VecDeque<Task>,
    threads: VecDeque<Task>,
    /// What it does now, and since when.
    now: Option<Task>,
    since_ns: u64,
    /// When an interrupt ended after which nothing else was done.
    interrupted_ns: Option<u64>,
    /// Whether the work so far has issued something.
    issued: bool,
    /// Whether it is to come back to the policy.
    comes_back: bool,
}

impl Cpu {
    /// More to do.
    #[inline]
    pub(crate) fn add(&mut self, task: Task) {
        let queue = if task.is_interrupt() { &mut self.interrupts } else { &mut self.threads };
        queue.push_back(task);
    }

    /// More to do, before anything else of the threads: whoever works goes on with it.
    #[inline]
    pub(crate) fn add_next(&mut self, task: Task) {
        self.threads.push_front(task);
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.now.is_some()
    }

    /// Since when it works.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// What is next, interrupts first.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Task> {
        self.interrupts.pop_front().or_else(|| self.threads.pop_front())
    }

    /// Takes this up; says how long it takes, alone on its core, before the policy is asked.
    #[inline]
    pub(crate) fn start(&mut self, task: Task, now_ns: u64, times: &Times) -> u64 {
        // Work that begins the moment an interrupt ended is done within it: it is entered and left
        // once.
        let after = self.interrupted_ns == Some(now_ns);
        (self.now, self.since_ns, self.issued) = (Some(task), now_ns, false);
        task.takes_ps(times, after)
    }

    /// What it does.
    #[inline]
    pub(crate) fn task(&mut self) -> Option<Task> {
        if std::mem::take(&mut self.comes_back) { Some(Task::GoOn) } else { self.now }
    }

    pub(crate) fn has_issued(&mut self) {
        self.issued = true;
    }

    /// It comes back to the policy before it is done.
    pub(crate) fn goes_on(&mut self) {
        self.comes_back = true;
    }

    /// It is done; says whether that was a reschedule, and whether one for nothing.
    #[inline]
    pub(crate) fn end(&mut self, now_ns: u64) -> (bool, bool) {
        let task = self.now.take();
        // A thread's work leaves the interrupt, so the next one is entered anew.
        self.interrupted_ns = task.filter(|task| task.is_interrupt()).map(|_| now_ns);
        let reschedule = task.is_some_and(Task::is_reschedule);
        (reschedule, reschedule && !self.issued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_come_first_and_enter_once() {
        let times = Times {
            submit_ps: 1,
            interrupt_ps: 100,
            complete_ps: 10,
            interrupt_complete_ps: 110,
            ..Times::default()
        };
        let mut cpu = Cpu::default();
        for task in [Task::Ask(0), Task::Complete(0, Outcome::Done), Task::Wake] {
            cpu.add(task);
        }
        let mut takes = |start_ns, end_ns| {
            let task = cpu.next()?;
            Some((cpu.start(task, start_ns, &times), cpu.end(end_ns)))
        };
        assert_eq!(takes(5, 6), Some((110, (false, false))));
        assert_eq!(takes(6, 7), Some((0, (true, true))), "in the same interrupt, and for nothing");
        assert_eq!(takes(7, 8), Some((1, (false, false))));
        assert_eq!(takes(8, 9), None);
    }
}
