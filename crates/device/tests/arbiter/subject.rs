//! The subjects of the laws: the real arbiter, and a naive one that can be broken.

use fairq_core::{Class, ClassWeights};
use fairq_device::{Arbiter, Arbitration, Burst, Mechanism, QueueIndex};

/// The interface of an arbiter for the laws: queues by number, added at the start or later.
pub(crate) trait Subject {
    fn add(&mut self, queue: u16, class: Class);
    fn remove(&mut self, queue: u16) -> u32;
    fn post(&mut self, queue: u16, commands: u32);
    fn next(&mut self) -> Option<u16>;
    fn set(&mut self, arbitration: Arbitration);
}

impl Subject for Arbiter {
    fn add(&mut self, queue: u16, class: Class) {
        Arbiter::add(self, QueueIndex(queue), class);
    }
    fn remove(&mut self, queue: u16) -> u32 {
        Arbiter::remove(self, QueueIndex(queue))
    }
    fn post(&mut self, queue: u16, commands: u32) {
        Arbiter::post(self, QueueIndex(queue), commands);
    }
    fn next(&mut self) -> Option<u16> {
        Arbiter::next(self).map(|queue| queue.0)
    }
    fn set(&mut self, arbitration: Arbitration) {
        Arbiter::set(self, arbitration);
    }
}

/// The fault of a naive arbiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    /// Each queue starts one command in its class's turn, and then the turn is over.
    OnePass,
    /// A class's round robin starts anew with each of its turns.
    Forgetful,
    /// Every queue starts one command at a time.
    NoBurst,
    /// A queue continues its burst when its class has no credits left.
    BurstBeyondCredits,
    /// High goes before medium and medium before low while they have commands.
    Strict,
    /// New weights count at once.
    WeightsAtOnce,
    /// A class without commands keeps its turn: nothing is fetched.
    IdleTurn,
    /// A class that had nothing to start may start twice as much in its next turn.
    SavesCredits,
    /// Urgent commands wait for the end of the turn of a weighted class.
    PatientUrgent,
    /// Some commands are fetched twice.
    Twice,
    /// Weights are 0's-based values used without adding 1.
    ZeroBased,
}

struct Queue {
    class: Class,
    waiting: u32,
}

/// A naive arbiter: linear scans over all queues.
pub(crate) struct Naive {
    fault: Fault,
    mechanism: Mechanism,
    burst: Burst,
    weights: ClassWeights,
    next_weights: ClassWeights,
    queues: Vec<Option<Queue>>,
    /// By class as in [`CLASSES`]: the queue served last, and the number of commands that it may
    /// still start.
    served: [(usize, u32); 4],
    turn: usize,
    credits: u32,
    saved: [bool; 4],
    picks: u32,
}

pub(crate) const CLASSES: [Class; 4] = [Class::Urgent, Class::High, Class::Medium, Class::Low];

impl Naive {
    pub(crate) fn new(
        fault: Fault,
        mechanism: Mechanism,
        queues: usize,
        arbitration: Arbitration,
    ) -> Self {
        let mut naive = Naive {
            fault,
            mechanism,
            burst: arbitration.burst,
            weights: arbitration.weights,
            next_weights: arbitration.weights,
            queues: (0..queues).map(|_| None).collect(),
            served: [(queues - 1, 0); 4],
            turn: 1,
            credits: 0,
            saved: [false; 4],
            picks: 0,
        };
        naive.credits = naive.weight(1);
        naive
    }

    fn weight(&self, turn: usize) -> u32 {
        let weights =
            if self.fault == Fault::WeightsAtOnce { self.next_weights } else { self.weights };
        let weight = u32::from([0, weights.high, weights.medium, weights.low][turn]);
        if self.fault == Fault::ZeroBased { weight.saturating_sub(1).max(1) } else { weight }
    }

    fn waits(&self, ring: usize, queue: usize) -> bool {
        let ring_of = |class| match self.mechanism {
            Mechanism::RoundRobin => 0,
            Mechanism::Weighted => {
                CLASSES.iter().position(|&other| other == class).expect("all classes are there")
            }
        };
        self.queues[queue]
            .as_ref()
            .is_some_and(|queue| queue.waiting > 0 && ring_of(queue.class) == ring)
    }

    fn some_wait(&self, ring: usize) -> bool {
        (0..self.queues.len()).any(|queue| self.waits(ring, queue))
    }

    fn pick(&mut self, ring: usize) -> Option<u16> {
        let count = self.queues.len();
        let (mut queue, mut left) = self.served[ring];
        if left == 0 || !self.waits(ring, queue) {
            queue = (1..=count)
                .map(|step| (queue + step) % count)
                .find(|&next| self.waits(ring, next))?;
            left = if self.fault == Fault::NoBurst {
                1
            } else {
                self.burst.commands().unwrap_or(u32::MAX)
            };
        }
        self.served[ring] = (queue, left - 1);
        self.picks += 1;
        if self.fault != Fault::Twice || !self.picks.is_multiple_of(50) {
            self.queues[queue].as_mut().expect("it waits").waiting -= 1;
        }
        Some(queue as u16)
    }

    fn end_turn(&mut self) {
        let idle = self.credits == self.weight(self.turn) && !self.some_wait(self.turn);
        self.saved[self.turn] = self.fault == Fault::SavesCredits && idle;
        if self.fault == Fault::Forgetful {
            self.served[self.turn].0 = self.queues.len() - 1;
        }
        if self.fault != Fault::BurstBeyondCredits {
            self.served[self.turn].1 = 0;
        }
        self.turn = self.turn % 3 + 1;
        if self.turn == 1 {
            self.weights = self.next_weights;
        }
        self.credits = self.weight(self.turn) * (1 + u32::from(self.saved[self.turn]));
    }
}

impl Subject for Naive {
    fn add(&mut self, queue: u16, class: Class) {
        self.queues[usize::from(queue)] = Some(Queue { class, waiting: 0 });
    }

    fn remove(&mut self, queue: u16) -> u32 {
        self.queues[usize::from(queue)].take().expect("it is there").waiting
    }

    fn post(&mut self, queue: u16, commands: u32) {
        self.queues[usize::from(queue)].as_mut().expect("it is there").waiting += commands;
    }

    fn next(&mut self) -> Option<u16> {
        let patient =
            self.fault == Fault::PatientUrgent && self.credits > 0 && self.some_wait(self.turn);
        if self.some_wait(0) && !patient {
            return self.pick(0);
        }
        if !(1..4).any(|ring| self.some_wait(ring)) {
            return None;
        }
        if self.fault == Fault::Strict {
            let ring = (1..4).find(|&ring| self.some_wait(ring))?;
            return self.pick(ring);
        }
        if self.fault == Fault::WeightsAtOnce {
            self.credits = self.credits.min(self.weight(self.turn));
        }
        if self.fault == Fault::IdleTurn && !self.some_wait(self.turn) {
            self.end_turn();
            return None;
        }
        while self.credits == 0 || !self.some_wait(self.turn) {
            self.end_turn();
        }
        self.credits -= 1;
        if self.fault == Fault::OnePass {
            let queues = self
                .queues
                .iter()
                .flatten()
                .filter(|queue| queue.waiting > 0)
                .map(|queue| queue.class);
            let passes = self.weight(self.turn) - self.credits;
            if passes as usize >= queues.filter(|&class| class == CLASSES[self.turn]).count() {
                self.credits = 0;
            }
        }
        self.pick(self.turn)
    }

    fn set(&mut self, arbitration: Arbitration) {
        self.burst = arbitration.burst;
        self.next_weights = arbitration.weights;
    }
}
