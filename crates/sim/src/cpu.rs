//! A hardware thread of a host whose CPUs take time: its queued work and its counters.

use std::collections::VecDeque;

use fairq_core::Outcome;

use crate::host::Times;

/// A piece of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// One of the `depth` places of a thread submits a request.
    Ask(u32),
    /// A thread takes a completed request.
    Reap(Reaped),
    /// The device has completed a command.
    Complete(u32, Outcome),
    /// Another core has sent a wake-up.
    Wake,
    /// The port's timer has expired.
    Timer,
    /// The core calls `next` again, because there may be more to issue.
    GoOn,
}

/// A completed request on its way to its thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaped {
    pub(crate) thread: u32,
    pub(crate) id: u32,
    pub(crate) bytes: u32,
    /// Start of its latency.
    pub(crate) since_ns: u64,
}

impl Task {
    fn is_interrupt(self) -> bool {
        matches!(self, Task::Complete(..) | Task::Wake | Task::Timer)
    }

    /// Whether this task calls the policy although no request was submitted or completed here.
    fn is_reschedule(self) -> bool {
        matches!(self, Task::Wake | Task::Timer)
    }

    /// Time of the task before the policy's verbs; `after` means that the task follows an interrupt
    /// that has just ended.
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

/// The work of a hardware thread while it was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuUse {
    /// Time at work, in nanoseconds.
    pub busy_ns: u64,
    /// The part of `busy_ns` in the policy's verbs.
    pub verbs_ns: u64,
    /// The part of `busy_ns` in waits for locks and for the lines that these guard.
    pub locks_ns: u64,
    /// Interrupts by wake-ups and timers.
    pub reschedules: u64,
    /// The number of `reschedules` after which the core issued no request.
    pub idle_reschedules: u64,
    /// Failed compare-and-swaps that were retried, where cores race.
    pub failed_swaps: u64,
}

/// A hardware thread.
#[derive(Default)]
pub(crate) struct Cpu {
    interrupts: VecDeque<Task>,
    threads: VecDeque<Task>,
    /// The task in progress, and its start.
    now: Option<Task>,
    since_ns: u64,
    /// End of the last interrupt, if it was the last task.
    interrupted_ns: Option<u64>,
    /// Whether the task in progress has issued a request.
    issued: bool,
    /// Whether the core has to call the policy again before the task ends.
    comes_back: bool,
}

impl Cpu {
    /// Queues a task.
    #[inline]
    pub(crate) fn add(&mut self, task: Task) {
        let queue = if task.is_interrupt() { &mut self.interrupts } else { &mut self.threads };
        queue.push_back(task);
    }

    /// Queues a task before all other tasks of threads: the working thread continues with it.
    #[inline]
    pub(crate) fn add_next(&mut self, task: Task) {
        self.threads.push_front(task);
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.now.is_some()
    }

    /// Start of the task in progress.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Takes the next task, interrupts first.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Task> {
        self.interrupts.pop_front().or_else(|| self.threads.pop_front())
    }

    /// Begins a task; returns its time before the policy's verbs, alone on its core, in
    /// picoseconds.
    #[inline]
    pub(crate) fn start(&mut self, task: Task, now_ns: u64, times: &Times) -> u64 {
        // A task that begins at the moment when an interrupt ended is done within that interrupt,
        // which is entered and left once.
        let after = self.interrupted_ns == Some(now_ns);
        (self.now, self.since_ns, self.issued) = (Some(task), now_ns, false);
        task.takes_ps(times, after)
    }

    /// The task in progress; `GoOn` if the core has to call the policy again.
    #[inline]
    pub(crate) fn task(&mut self) -> Option<Task> {
        if std::mem::take(&mut self.comes_back) { Some(Task::GoOn) } else { self.now }
    }

    pub(crate) fn has_issued(&mut self) {
        self.issued = true;
    }

    /// Makes the core call the policy again before the task ends.
    pub(crate) fn goes_on(&mut self) {
        self.comes_back = true;
    }

    /// Ends the task; returns whether it was a reschedule, and whether it was one that issued
    /// nothing.
    #[inline]
    pub(crate) fn end(&mut self, now_ns: u64) -> (bool, bool) {
        let task = self.now.take();
        // Work of a thread runs outside of interrupts, so the next interrupt is entered anew.
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
