//! The arbiter: chooses the submission queue whose next command the controller fetches (NVMe 2.1,
//! 3.4.4).
//!
//! **Problem.** Commands wait in a thousand or more submission queues, and one is to be fetched. At
//! most times nearly all queues are empty, and a decision must cost nanoseconds. **Model.** Two
//! mechanisms, chosen for as long as the controller is enabled:
//!
//! - *Round robin*: every queue with commands in turn, each starting up to a burst.
//! - *Weighted round robin with urgent priority*: queues have classes. Urgent queues are served
//!   before all others, round robin among themselves; nothing protects the others from them. The
//!   weighted classes share the rest in rounds: high starts up to its weight in commands, then
//!   medium, then low. Within its turn a class goes around its queues, each starting at most
//!   min(burst, the class's remaining credits), again and again until the weight or the class's
//!   commands are used up. (With one command per queue and pass, as in some models, weights above
//!   the number of queues would have no effect.) A class without commands yields its turn at once:
//!   its unused credits go to the others and are not saved.
//!
//! The controller serves the admin queue before all of these, without the arbiter.
//!
//! **Choices where the specification is silent.**
//! - A queue counts as empty only at the moment of a fetch: a class that gets new commands earlier
//!   has not yielded. A call while nothing waits changes nothing, so results do not depend on how
//!   often a controller polls.
//! - A new urgent command goes before the rest of a weighted queue's burst, which then continues: a
//!   burst is an upper bound, not a promise.
//! - A queue whose burst was cut short by the end of its class's turn has had its turn; the next
//!   queue follows.
//! - Weights that are changed count from the next round on; a change in the burst from the next
//!   queue's turn on.
//!
//! **Worked example** (D2FQ, Fig. 3b). Weights 3:2:1, burst 1, two high queues A and B, a medium
//! queue M and a low queue L, all with many commands: A B A | M M | L, then B A B | M M | L.
//!
//! **Cost.** A bit per queue with commands and a summary over them: a decision reads a few words,
//! with 3 queues as with 4096.

use fairq_core::{Class, ClassWeights};

use ring::Ring;

pub use feature::{Arbitration, Burst, class_of_qprio, qprio};

mod feature;
mod ring;

/// The arbitration mechanism (CC.AMS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mechanism {
    /// All queues alike; their classes are ignored.
    RoundRobin,
    /// Weighted round robin with urgent priority class.
    Weighted,
}

/// Names a submission queue: an index below the arbiter's bound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueIndex(pub u16);

/// Chooses the queue whose command is fetched next. See the [module's text](self).
pub struct Arbiter {
    mechanism: Mechanism,
    burst: u32,
    weights: ClassWeights,
    /// The weights from the next round on.
    next_weights: ClassWeights,
    /// The weighted class that is served now, as the index of its ring.
    turn: usize,
    /// The commands that this class may still start in this round.
    credits: u32,
    rounds: u64,
    queues: Box<[Queue]>,
    rings: [Ring; 4],
    /// A bit for each ring with commands.
    busy: u8,
}

#[derive(Clone, Copy)]
struct Queue {
    /// Commands posted and not fetched.
    waiting: u32,
    /// The ring in which it takes its turns; [`NOWHERE`] if there is no such queue.
    ring: u8,
}

/// The ring of urgent queues, and of all queues under plain round robin.
const URGENT: usize = 0;
const HIGH: usize = 1;
const MEDIUM: usize = 2;
const LOW: usize = 3;
const NOWHERE: u8 = u8::MAX;

impl Arbiter {
    /// The most queues an arbiter may have.
    pub const MAX_QUEUES: usize = ring::MAX_QUEUES;

    /// An arbiter for queues with indexes below `queues`, none of which exists yet.
    ///
    /// # Panics
    /// When `queues` exceeds [`MAX_QUEUES`](Self::MAX_QUEUES), or a weight is not 1 to 256.
    pub fn new(mechanism: Mechanism, queues: usize, arbitration: Arbitration) -> Self {
        assert!(queues <= Self::MAX_QUEUES, "{queues} queues: at most {}", Self::MAX_QUEUES);
        let Arbitration { weights, .. } = arbitration;
        let mut arbiter = Arbiter {
            mechanism,
            burst: 0,
            weights,
            next_weights: weights,
            turn: HIGH,
            credits: u32::from(weights.high),
            rounds: 0,
            queues: vec![Queue { waiting: 0, ring: NOWHERE }; queues].into(),
            rings: std::array::from_fn(|_| Ring::new(queues)),
            busy: 0,
        };
        arbiter.set(arbitration);
        arbiter
    }

    /// Adds an empty queue. Its place in the round follows from its index.
    ///
    /// # Panics
    /// When the index is out of bounds or in use.
    pub fn add(&mut self, queue: QueueIndex, class: Class) {
        let slot = &mut self.queues[usize::from(queue.0)];
        assert!(slot.ring == NOWHERE, "{queue:?} exists");
        let ring = match (self.mechanism, class) {
            (Mechanism::RoundRobin, _) | (_, Class::Urgent) => URGENT,
            (_, Class::High) => HIGH,
            (_, Class::Medium) => MEDIUM,
            (_, Class::Low) => LOW,
        };
        *slot = Queue { waiting: 0, ring: ring as u8 };
    }

    /// Removes a queue; returns the number of its unfetched commands, which are dropped.
    ///
    /// # Panics
    /// When there is no such queue.
    pub fn remove(&mut self, queue: QueueIndex) -> u32 {
        let index = usize::from(queue.0);
        let Queue { waiting, ring } = self.queues[index];
        self.deactivate_if(true, usize::from(ring), index);
        self.queues[index] = Queue { waiting: 0, ring: NOWHERE };
        waiting
    }

    /// The queue has `commands` more: its tail doorbell was rung.
    ///
    /// # Panics
    /// When there is no such queue.
    #[inline]
    pub fn post(&mut self, queue: QueueIndex, commands: u32) {
        let index = usize::from(queue.0);
        let slot = &mut self.queues[index];
        slot.waiting += commands;
        // A doorbell that is rung without a new entry does not make a queue busy.
        if slot.waiting > 0 {
            self.rings[usize::from(slot.ring)].activate(index);
            self.busy |= 1 << slot.ring;
        }
    }

    /// The queue whose oldest command is to be fetched now; `None` if no queue has commands.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "commands may be posted after it has returned None"
    )]
    pub fn next(&mut self) -> Option<QueueIndex> {
        // Checked for each command: an urgent command goes before the rest of a weighted queue's
        // burst.
        let ring = if self.is_busy(URGENT) { URGENT } else { self.weighted()? };
        let index = self.rings[ring].pick(self.burst);
        let slot = &mut self.queues[index];
        slot.waiting -= 1;
        let is_empty = slot.waiting == 0;
        self.deactivate_if(is_empty, ring, index);
        Some(QueueIndex(index as u16))
    }

    /// The weighted class that starts a command now.
    #[inline]
    fn weighted(&mut self) -> Option<usize> {
        if self.busy == 0 {
            return None;
        }
        if self.credits == 0 || !self.is_busy(self.turn) {
            self.begin_turn();
        }
        self.credits -= 1;
        Some(self.turn)
    }

    /// Continues with the next weighted class with commands. The caller has checked that there is
    /// one, and that no urgent queue has commands.
    #[inline]
    fn begin_turn(&mut self) {
        // This code has no branches that depend on the classes with commands, because a CPU cannot
        // predict them. The same applies to the rest of a decision.
        let later_in_round = self.busy & (u8::MAX << self.turn) << 1;
        let ends_round = later_in_round == 0;
        self.rounds += u64::from(ends_round);
        let kept = self.weights;
        self.weights = if ends_round { self.next_weights } else { kept };
        let classes = if ends_round { self.busy } else { later_in_round };
        self.turn = classes.trailing_zeros() as usize;
        let ClassWeights { high, medium, low } = self.weights;
        self.credits = u32::from([high, medium, low][self.turn - HIGH]);
        self.rings[self.turn].begin_turn();
    }

    /// Changes the burst, and the weights from the next round on.
    ///
    /// # Panics
    /// When a weight is not 1 to 256.
    pub fn set(&mut self, arbitration: Arbitration) {
        let Arbitration { burst, weights } = arbitration;
        assert!(feature::legal(weights), "{weights:?}: weights are 1 to 256");
        self.burst = burst.commands().unwrap_or(u32::MAX);
        // `weights` stay those of the current round, which ends with the weights with which it
        // began.
        self.next_weights = weights;
    }

    /// The number of commands of the queue that wait to be fetched.
    #[inline]
    pub fn waiting(&self, queue: QueueIndex) -> u32 {
        self.queues[usize::from(queue.0)].waiting
    }

    /// Whether there is such a queue.
    pub fn exists(&self, queue: QueueIndex) -> bool {
        self.queues.get(usize::from(queue.0)).is_some_and(|slot| slot.ring != NOWHERE)
    }

    /// Whether [`next`](Self::next) would return a queue.
    #[inline]
    pub fn has_commands(&self) -> bool {
        self.busy != 0
    }

    #[inline]
    fn is_busy(&self, ring: usize) -> bool {
        self.busy >> ring & 1 != 0
    }

    #[inline]
    fn deactivate_if(&mut self, is_empty: bool, ring: usize, index: usize) {
        let ring_of = &mut self.rings[ring];
        ring_of.deactivate_if(is_empty, index);
        self.busy &= !(u8::from(!ring_of.has_commands()) << ring);
    }

    /// The weights of the current round.
    pub fn weights(&self) -> ClassWeights {
        self.weights
    }

    /// The number of completed rounds of the weighted classes.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// The mechanism, which is fixed at construction.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }
}
