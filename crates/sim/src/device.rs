//! The device as its host sees it: submission queues on one side, completions on the other.
//!
//! ```text
//!   port 0  urgent high medium low ─┐
//!   port 1  urgent high medium low ─┼─▶ Arbiter ─▶ Window ─▶ Ssd or Disk ─▶ completion
//!   ...                            ─┘  (weighted if the policy schedules with classes, else round robin; several ports may
//!                                       share a set of queues)
//! ```
//!
//! All of it is `fairq-device`, the code that serves in real time; here are the queues between, and
//! what goes wrong: commands that fail, and times in which nothing completes.

use std::collections::VecDeque;

use fairq_core::{Class, ClassWeights, Op, Outcome};
use fairq_device::{
    Arbiter, Arbitration, Burst, Completed, Disk, Mechanism, Parts, QueueIndex, Setup, Ssd, Usage,
    Window,
};

use crate::random::Random;
use crate::scenario::{Faults, Scenario};

/// What the host sends.
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
    /// Of each set, the classes' queues.
    queues: Box<[VecDeque<Command>]>,
    /// How many ports share a set.
    ports_per_set: usize,
    /// Commands in them.
    waiting: usize,
    faults: Faults,
    random: Random,
}

/// What stands behind the window.
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
    /// With weights if the policy has some.
    pub(crate) fn new(scenario: &Scenario, weights: Option<ClassWeights>, random: Random) -> Self {
        let (profile, queues) =
            (&scenario.profile, scenario.ports.div_ceil(scenario.cores_per_queue) * CLASSES.len());
        // A policy without classes finds the device as it is after a reset.
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

    /// How busy an SSD's parts have been, and how many there are; `None` for a disk.
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

    /// Fetches what the window has room for, and names each command.
    #[inline]
    pub(crate) fn fetch(&mut self, now_ns: u64, mut fetched: impl FnMut(u32)) {
        // In this order: a place that is taken for no command would never be given back.
        while self.waiting > 0 && self.window.take() {
            let queue = self.arbiter.next().expect("commands wait");
            let queued = self.queues[usize::from(queue.0)].pop_front();
            let command = queued.expect("the arbiter was told of each");
            self.waiting -= 1;
            self.drive.start(now_ns, command);
            fetched(command.id);
        }
    }

    /// The first command that completes by then: when, which, and how it went.
    #[inline]
    pub(crate) fn pop(&mut self, until_ns: u64) -> Option<(u64, u32, Outcome)> {
        // The world asks before each of its events, and mostly nothing is due.
        if self.drive.next_ns().is_some_and(|next_ns| next_ns > until_ns) {
            return None;
        }
        self.pop_due(until_ns)
    }

    fn pop_due(&mut self, until_ns: u64) -> Option<(u64, u32, Outcome)> {
        // Without stalls the drive need not be asked twice.
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

    /// The same on a device that stands still at times: then what was to happen happens at the end
    /// of that.
    fn pop_between_stalls(&mut self, until_ns: u64) -> Option<(u64, u32)> {
        loop {
            let due_ns = self.drive.next_ns()?;
            let stall =
                self.faults.stalls.iter().find(|&&(from, until)| (from..until).contains(&due_ns));
            let at_ns = stall.map_or(due_ns, |&(_, until)| until);
            if at_ns > until_ns {
                return None;
            }
            // What was due may be a step inside the drive that completes nothing.
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

    /// How many more it could work on.
    pub(crate) fn idle_slots(&self) -> u32 {
        self.window.free()
    }
}
