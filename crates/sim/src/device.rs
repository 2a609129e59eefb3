//! The device as its host sees it: submission queues on one side, completions on the other.
//!
//! ```text
//!   port 0  urgent high medium low ─┐
//!   port 1  urgent high medium low ─┼─▶ Arbiter ─▶ Window ─▶ Ssd ─▶ completion
//!   ...                            ─┘  (weighted if the policy schedules with classes, else round robin)
//! ```
//!
//! All of it is `fairq-device`, the code that serves in real time; here are the queues between, and what goes wrong:
//! commands that fail, and times in which nothing completes.

use std::collections::VecDeque;

use fairq_core::{Class, ClassWeights, Op, Outcome};
use fairq_device::{Arbiter, Arbitration, Burst, Mechanism, QueueIndex, Setup, Ssd, Window};

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
    ssd: Ssd,
    /// Per port, the classes' queues.
    queues: Box<[VecDeque<Command>]>,
    /// Commands in them.
    waiting: usize,
    faults: Faults,
    random: Random,
}

const CLASSES: [Class; 4] = [Class::Urgent, Class::High, Class::Medium, Class::Low];

impl Device {
    /// With weights if the policy has some.
    pub(crate) fn new(scenario: &Scenario, weights: Option<ClassWeights>, random: Random) -> Self {
        let (profile, queues) = (&scenario.profile, scenario.ports * CLASSES.len());
        let (mechanism, arbitration) = match weights {
            Some(weights) => (Mechanism::Weighted, Arbitration { burst: Burst::ONE, weights }),
            None => (Mechanism::RoundRobin, Arbitration::RESET),
        };
        let mut arbiter = Arbiter::new(mechanism, queues, arbitration);
        (0..queues).for_each(|queue| arbiter.add(QueueIndex(queue as u16), CLASSES[queue % CLASSES.len()]));
        let window = profile.host.window.get();
        let capacity = profile.host.capacity();
        let setup = Setup { capacity, state: scenario.state, outstanding: window, seed: scenario.seed };
        Device {
            arbiter,
            window: Window::new(window),
            ssd: Ssd::new(profile, &setup),
            queues: (0..queues).map(|_| VecDeque::new()).collect(),
            waiting: 0,
            faults: scenario.faults.clone(),
            random,
        }
    }

    /// Sets the weights of the classes.
    pub(crate) fn weigh(&mut self, weights: ClassWeights) {
        self.arbiter.set(Arbitration { burst: Burst::ONE, weights });
    }

    /// Puts a command into the queue of a port and class.
    #[inline]
    pub(crate) fn post(&mut self, port: usize, class: Class, command: Command) {
        let queue = port * CLASSES.len() + class as usize;
        self.queues[queue].push_back(command);
        self.waiting += 1;
        self.arbiter.post(QueueIndex(queue as u16), 1);
    }

    /// Fetches what the window has room for, and names each command.
    #[inline]
    pub(crate) fn fetch(&mut self, now_ns: u64, mut fetched: impl FnMut(u32)) {
        while self.waiting > 0 && self.window.take() {
            let queue = self.arbiter.next().expect("commands wait");
            let queued = self.queues[usize::from(queue.0)].pop_front();
            let Command { id, op, offset, length } = queued.expect("the arbiter was told of each");
            self.waiting -= 1;
            self.ssd.start(now_ns, id, op, offset, length);
            fetched(id);
        }
    }

    /// When to call [`pop`](Self::pop).
    #[inline]
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let at_ns = self.ssd.next_ns()?;
        let stall = self.faults.stalls.iter().find(|&&(from, until)| (from..until).contains(&at_ns));
        Some(stall.map_or(at_ns, |&(_, until)| until))
    }

    /// A command that has completed by now.
    #[inline]
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<(u32, Outcome)> {
        let completed = self.ssd.pop(now_ns)?;
        self.window.release();
        let errors = u64::from(self.faults.errors_per_million);
        let failed = errors > 0 && self.random.below(1_000_000) < errors;
        Some((completed.id, if failed { Outcome::Failed } else { Outcome::Done }))
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
