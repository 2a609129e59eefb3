//! The device as its host sees it: submission queues on one side, completions on the other.
//!
//! ```text
//!   port 0  urgent high medium low ─┐
//!   port 1  urgent high medium low ─┼─▶ Arbiter ─▶ Window ─▶ Ssd or Disk ─▶ completion
//!   ...                            ─┘  (weighted if the policy schedules with classes, else round
//!                                       robin; several ports may share a set of queues)
//! ```
//!
//! Arbiter, window, SSD and disk are those of `fairq-device`, which also serve in real time. This
//! module adds the queues and faults: commands that fail, and times in which no command completes.

use std::collections::VecDeque;

use fairq_core::{Class, ClassWeights, Op, Outcome};
use fairq_device::{
    Arbiter, Arbitration, Burst, Completed, Disk, Mechanism, Parts, QueueIndex, Setup, Ssd, Usage,
    Window,
};

use crate::random::Random;
use crate::scenario::{Faults, Scenario};

/// A command of the host.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    pub(crate) id: u32,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

pub(crate) struct Device {
    arbiter: Arbiter,
    window: Window,
    drive: Drive,
    /// The queues of the classes, set by set.
    queues: Box<[VecDeque<Command>]>,
    /// Number of ports that share a set.
    ports_per_set: usize,
    /// Number of commands in the queues.
    waiting: usize,
    faults: Faults,
    random: Random,
}

/// The drive behind the window.
enum Drive {
    Ssd(Box<Ssd>),
    Disk(Disk),
}

impl Drive {
    #[inline]
    fn start(&mut self, now_ns: u64, command: Command) {
        let Command { id, op, offset, length } = command;
        match self {
            Drive::Ssd(ssd) => ssd.start(now_ns, id, op, offset, length),
            Drive::Disk(disk) => disk.start(now_ns, id, op, offset, length),
        }
    }

    fn ssd(&self) -> Option<&Ssd> {
        match self {
            Drive::Ssd(ssd) => Some(ssd),
            Drive::Disk(_) => None,
        }
    }

    #[inline]
    fn next_ns(&self) -> Option<u64> {
        match self {
            Drive::Ssd(ssd) => ssd.next_ns(),
            Drive::Disk(disk) => disk.next_ns(),
        }
    }

    #[inline]
    fn pop(&mut self, now_ns: u64) -> Option<Completed> {
        match self {
            Drive::Ssd(ssd) => ssd.pop(now_ns),
            Drive::Disk(disk) => disk.pop(now_ns),
        }
    }
}

const CLASSES: [Class; 4] = [Class::Urgent, Class::High, Class::Medium, Class::Low];

impl Device {
    /// Arbitration is weighted if the policy has class weights.
    pub(crate) fn new(scenario: &Scenario, weights: Option<ClassWeights>, random: Random) -> Self {
        let (profile, queues) =
            (&scenario.profile, scenario.ports.div_ceil(scenario.cores_per_queue) * CLASSES.len());
        // For a policy without classes the device has the settings that follow a reset.
        let (mechanism, arbitration) = match weights {
            Some(weights) => (Mechanism::Weighted, Arbitration { burst: Burst::ONE, weights }),
            None => (Mechanism::RoundRobin, Arbitration::RESET),
        };
        let mut arbiter = Arbiter::new(mechanism, queues, arbitration);
        (0..queues).for_each(|queue| {
            arbiter.add(QueueIndex(queue as u16), CLASSES[queue % CLASSES.len()])
        });
        let (window, drive) = match &scenario.disk {
            Some(disk) => (disk.queue.get(), Drive::Disk(Disk::new(disk))),
            None => {
                let (window, capacity) = (profile.host.window.get(), profile.host.capacity());
                let setup = Setup {
                    capacity,
                    state: scenario.state,
                    outstanding: window,
                    seed: scenario.seed,
                };
                (window, Drive::Ssd(Box::new(Ssd::new(profile, &setup))))
            }
        };
        Device {
            arbiter,
            window: Window::new(window),
            drive,
            queues: (0..queues).map(|_| VecDeque::new()).collect(),
            ports_per_set: scenario.cores_per_queue,
            waiting: 0,
            faults: scenario.faults.clone(),
            random,
        }
    }

    /// The busy times of an SSD's parts, and the numbers of parts; `None` for a disk.
    pub(crate) fn usage(&self) -> Option<(Usage, Parts)> {
        self.drive.ssd().map(|ssd| (ssd.usage(), ssd.parts()))
    }

    /// Sets the weights of the classes.
    pub(crate) fn weigh(&mut self, weights: ClassWeights) {
        self.arbiter.set(Arbitration { burst: Burst::ONE, weights });
    }

    /// Puts a command into the queue of a port and class.
    #[inline]
    pub(crate) fn post(&mut self, port: usize, class: Class, command: Command) {
        let queue = port / self.ports_per_set * CLASSES.len() + class as usize;
        self.queues[queue].push_back(command);
        self.waiting += 1;
        self.arbiter.post(QueueIndex(queue as u16), 1);
    }

    /// Fetches as many commands as the window has room for, and calls `fetched` with the id of
    /// each.
    #[inline]
    pub(crate) fn fetch(&mut self, now_ns: u64, mut fetched: impl FnMut(u32)) {
        // `waiting` is tested first, because a place of the window that is taken without a command
        // would never be released.
        while self.waiting > 0 && self.window.take() {
            let queue = self.arbiter.next().expect("commands wait");
            let queued = self.queues[usize::from(queue.0)].pop_front();
            let command = queued.expect("the arbiter knows each queue with commands");
            self.waiting -= 1;
            self.drive.start(now_ns, command);
            fetched(command.id);
        }
    }

    /// The first command that completes by `until_ns`: time, id and outcome.
    #[inline]
    pub(crate) fn pop(&mut self, until_ns: u64) -> Option<(u64, u32, Outcome)> {
        // The world calls this before each of its events, and mostly nothing is due.
        if self.drive.next_ns().is_some_and(|next_ns| next_ns > until_ns) {
            return None;
        }
        self.pop_due(until_ns)
    }

    fn pop_due(&mut self, until_ns: u64) -> Option<(u64, u32, Outcome)> {
        // Without stalls one call of the drive is enough.
        let (at_ns, id) = if self.faults.stalls.is_empty() {
            self.drive.pop(until_ns).map(|completed| (completed.at_ns, completed.id))?
        } else {
            self.pop_between_stalls(until_ns)?
        };
        self.window.release();
        let errors = u64::from(self.faults.errors_per_million);
        let failed = errors > 0 && self.random.below(1_000_000) < errors;
        Some((at_ns, id, if failed { Outcome::Failed } else { Outcome::Done }))
    }

    /// The first completion on a device with stalls: a completion during a stall is delayed to the
    /// end of the stall.
    fn pop_between_stalls(&mut self, until_ns: u64) -> Option<(u64, u32)> {
        loop {
            let due_ns = self.drive.next_ns()?;
            let stall =
                self.faults.stalls.iter().find(|&&(from, until)| (from..until).contains(&due_ns));
            let at_ns = stall.map_or(due_ns, |&(_, until)| until);
            if at_ns > until_ns {
                return None;
            }
            // The event that was due may be a step inside the drive that completes nothing.
            if let Some(completed) = self.drive.pop(at_ns) {
                return Some((at_ns, completed.id));
            }
        }
    }

    /// Commands posted and not completed.
    pub(crate) fn outstanding(&self) -> usize {
        self.waiting + self.window.fetched() as usize
    }

    /// Commands posted and not fetched.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Number of further commands that the device could work on.
    pub(crate) fn idle_slots(&self) -> u32 {
        self.window.free()
    }
}
