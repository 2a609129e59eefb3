//! The bell and the meeting under the model checker, as in [`crate::policy::mqfq`]'s models; each
//! law is also checked on a broken machine or a broken use that the model must catch. Sleeping is a
//! flag here: a thread that sleeps has ended, and must have been woken if a bell has rung since.

use std::sync::Arc;
use std::vec::Vec;

use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::{Bell, Meeting};
use crate::contract::platform::{Loom, Ordering, Platform};
use crate::structures::broken::{NoOrder, Unordered, check};

/// A thread that can be woken, as by an eventfd: the number of its wake-ups (`told`), and of those
/// that it has read (`heard`).
struct Sleeper<P: Platform> {
    bell: Bell<P>,
    told: AtomicU64,
    heard: AtomicU64,
}

impl<P: Platform> Default for Sleeper<P> {
    fn default() -> Self {
        Sleeper { bell: Bell::default(), told: AtomicU64::new(0), heard: AtomicU64::new(0) }
    }
}

impl<P: Platform> Sleeper<P> {
    fn ring(&self) {
        if self.bell.ring() {
            self.told.fetch_add(1, Ordering::Release);
        }
    }

    /// False if it sleeps, and has not been woken so far.
    fn sleep(&self, looks_again: bool) -> bool {
        let sleeps = self.bell.park() || !looks_again;
        if sleeps && !self.is_told() {
            return false;
        }
        self.heard.store(self.told.load(Ordering::Acquire), Ordering::Relaxed);
        self.bell.wake();
        true
    }

    fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire) != self.heard.load(Ordering::Relaxed)
    }
}

// The bell.

#[derive(Clone, Copy)]
struct Use {
    looks_again: bool,
    says_first: bool,
}

const RIGHT: Use = Use { looks_again: true, says_first: true };

/// Threads write and ring; the owner takes the bell, polls it and sleeps by turns.
fn everything_said_is_heard<P: Platform>(ringers: usize, how: Use) {
    check(3, move || {
        let shared = Arc::new((Sleeper::<P>::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
        let threads: Vec<_> = (0..ringers)
            .map(|number| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (owner, said) = &*shared;
                    if how.says_first {
                        said[number].store(1, Ordering::Relaxed);
                        owner.ring();
                    } else {
                        owner.ring();
                        said[number].store(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let (owner, said) = &*shared;
        let hear = || said.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>() as usize;
        let mut heard = 0;
        while heard < ringers {
            if owner.bell.take() {
                heard = hear();
                continue;
            }
            owner.bell.look();
            let is_rung = owner.bell.is_rung();
            owner.bell.wake();
            if !is_rung && !owner.sleep(how.looks_again) {
                break;
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(heard == ringers || owner.is_told(), "asleep though a bell rang");
        assert!(heard == ringers || (owner.bell.take() && hear() == ringers), "woken for nothing");
    });
}

#[test]
fn what_one_says_is_heard() {
    everything_said_is_heard::<Loom>(1, RIGHT);
}

#[test]
fn what_two_say_is_heard() {
    everything_said_is_heard::<Loom>(2, RIGHT);
}

#[test]
#[should_panic(expected = "asleep though a bell rang")]
fn without_a_total_order_a_ring_is_missed() {
    everything_said_is_heard::<NoOrder>(1, RIGHT);
}

#[test]
#[should_panic(expected = "asleep though a bell rang")]
fn without_any_order_what_was_said_is_missed() {
    everything_said_is_heard::<Unordered>(1, RIGHT);
}

#[test]
#[should_panic(expected = "asleep though a bell rang")]
fn without_the_second_look_a_ring_is_missed() {
    everything_said_is_heard::<Loom>(1, Use { looks_again: false, ..RIGHT });
}

#[test]
#[should_panic(expected = "asleep though a bell rang")]
fn what_is_said_after_the_ring_is_missed() {
    everything_said_is_heard::<Loom>(1, Use { says_first: false, ..RIGHT });
}

// The meeting.

/// Threads that each hold a request of the old policy complete it, meet and go on, as a shard that
/// drains does.
fn all_go_on_together<P: Platform>(threads: usize, last_rings: bool) {
    check(3, move || {
        let meeting = Meeting::<P>::new(threads);
        let held: Vec<_> = (0..threads).map(|_| AtomicU64::new(1)).collect();
        let sleepers: Vec<_> = (0..threads).map(|_| Sleeper::<P>::default()).collect();
        let shared = Arc::new((meeting, held, sleepers));
        let drain = |own: usize| {
            let shared = shared.clone();
            move || {
                let (meeting, held, sleepers) = &*shared;
                held[own].store(0, Ordering::Relaxed);
                if meeting.arrive() && last_rings {
                    sleepers.iter().for_each(Sleeper::ring);
                }
                while !meeting.is_over() {
                    if !sleepers[own].sleep(true) {
                        return false;
                    }
                    sleepers[own].bell.take();
                }
                assert!(
                    held.iter().all(|held| held.load(Ordering::Relaxed) == 0),
                    "another holds a request"
                );
                true
            }
        };
        let others: Vec<_> = (1..threads).map(|own| thread::spawn(drain(own))).collect();
        let first = drain(0)();
        let mut gone = std::vec![first];
        gone.extend(others.into_iter().map(|other| other.join().unwrap()));
        for (sleeper, gone) in shared.2.iter().zip(gone) {
            assert!(gone || sleeper.is_told(), "the meeting is over and somebody sleeps");
        }
        assert!(shared.0.is_over());
    });
}

#[test]
fn two_go_on_together() {
    all_go_on_together::<Loom>(2, true);
}

#[test]
fn three_go_on_together() {
    all_go_on_together::<Loom>(3, true);
}

#[test]
#[should_panic(expected = "another holds a request")]
fn without_any_order_one_goes_on_early() {
    all_go_on_together::<Unordered>(2, true);
}

#[test]
#[should_panic(expected = "the meeting is over and somebody sleeps")]
fn without_a_total_order_one_sleeps_on() {
    all_go_on_together::<NoOrder>(2, true);
}

#[test]
#[should_panic(expected = "the meeting is over and somebody sleeps")]
fn if_the_last_rings_nobody_one_sleeps_on() {
    all_go_on_together::<Loom>(2, false);
}
