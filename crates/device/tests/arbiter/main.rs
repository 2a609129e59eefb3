//! The arbiter's laws over random backlogs and histories, and arbiters broken on purpose that the
//! laws must catch.

use fairq_core::{Class, ClassWeights};
use fairq_device::{Arbiter, Arbitration, Burst, Mechanism, QueueIndex, Window};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use laws::{Backlog, Build, History, Step, round_robin, shares, weights_between_rounds};
use subject::{CLASSES, Fault, Naive, Subject};

mod laws;
mod subject;

fn real(mechanism: Mechanism, queues: usize, arbitration: Arbitration) -> Box<dyn Subject> {
    Box::new(Arbiter::new(mechanism, queues, arbitration))
}

fn naive(fault: Fault) -> impl Fn(Mechanism, usize, Arbitration) -> Box<dyn Subject> {
    move |mechanism, queues, arbitration| {
        Box::new(Naive::new(fault, mechanism, queues, arbitration))
    }
}

fn any_weights(most: u16) -> impl Strategy<Value = ClassWeights> {
    (1..=most, 1..=most, 1..=most).prop_map(|(high, medium, low)| ClassWeights {
        high,
        medium,
        low,
    })
}

fn any_arbitration(most: u16) -> impl Strategy<Value = Arbitration> {
    (0u8..8, any_weights(most))
        .prop_map(|(burst, weights)| Arbitration { burst: Burst::power(burst), weights })
}

/// Weighted queues only, at least one.
fn any_backlog() -> impl Strategy<Value = Backlog> {
    (any_arbitration(256), 0u16..6, 0u16..6, 0u16..70).prop_map(
        |(arbitration, high, medium, low)| {
            let low = if high + medium == 0 { low.max(1) } else { low };
            Backlog { arbitration, queues: [0, high, medium, low] }
        },
    )
}

fn any_class() -> impl Strategy<Value = Class> {
    (0usize..4).prop_map(|index| CLASSES[index])
}

fn any_history() -> impl Strategy<Value = History> {
    let classes = prop::collection::vec(any_class(), 1..90);
    let mechanism = prop_oneof![1 => Just(Mechanism::RoundRobin), 3 => Just(Mechanism::Weighted)];
    (mechanism, any_arbitration(9), classes).prop_flat_map(|(mechanism, arbitration, classes)| {
        let queue = 0..classes.len() as u16;
        let step = prop_oneof![
            6 => (queue.clone(), 1u32..40).prop_map(|(queue, commands)| Step::Post { queue, commands }),
            6 => (1u32..30).prop_map(|commands| Step::Fetch { commands }),
            1 => any_arbitration(9).prop_map(Step::Set),
            1 => (queue, any_class()).prop_map(|(queue, class)| Step::Replace { queue, class }),
        ];
        let classes = Just(classes);
        (classes, prop::collection::vec(step, 1..60)).prop_map(move |(classes, steps)| History {
            mechanism,
            arbitration,
            classes,
            steps,
        })
    })
}

/// Checks a law over many cases.
fn hold<T: std::fmt::Debug>(
    cases: u32,
    strategy: impl Strategy<Value = T>,
    law: impl Fn(T) -> Result<(), String>,
) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let verdict =
        TestRunner::new(config).run(&strategy, |case| law(case).map_err(TestCaseError::fail));
    verdict.map_err(|error| error.to_string())
}

/// Every law, for one arbiter.
fn all_laws(build: &Build<'_>, cases: u32) -> Result<(), String> {
    hold(cases, any_backlog(), |backlog| shares(build, &backlog))?;
    hold(cases, any_backlog(), |backlog| round_robin(build, &backlog, Mechanism::Weighted))?;
    hold(cases, any_backlog(), |backlog| round_robin(build, &backlog, Mechanism::RoundRobin))?;
    hold(cases, (any_backlog(), any_weights(256), 0u32..800), |(backlog, new, after)| {
        weights_between_rounds(build, &backlog, new, after)
    })?;
    hold(cases, any_history(), |history| {
        let trace = history.run(build)?;
        trace.each_once()?;
        if history.mechanism == Mechanism::RoundRobin {
            return Ok(());
        }
        trace.urgent_first()?;
        // The weights of histories are at most 9; a turn may begin before low has commands and end
        // after.
        trace.low_is_not_starved(2 * 9)
    })?;
    let urgent = (any_backlog(), 1u16..5);
    hold(cases, urgent, |(mut backlog, urgent)| {
        backlog.queues[0] = urgent;
        round_robin(build, &backlog, Mechanism::Weighted)
    })
}

#[test]
fn the_arbiter_keeps_the_laws() {
    all_laws(&real, 256).unwrap();
}

#[test]
fn the_naive_arbiter_keeps_the_laws() {
    all_laws(&naive(Fault::None), 64).unwrap();
}

/// Each broken arbiter is caught by the law that it breaks.
#[test]
fn the_laws_catch_broken_arbiters() {
    let faults = [
        (Fault::OnePass, "share:"),
        (Fault::Forgetful, "turn:"),
        (Fault::NoBurst, "turn:"),
        (Fault::BurstBeyondCredits, "turn:"),
        (Fault::Strict, "share:"),
        (Fault::WeightsAtOnce, "weights:"),
        (Fault::IdleTurn, "idle:"),
        (Fault::SavesCredits, "starved:"),
        (Fault::PatientUrgent, "urgent:"),
        (Fault::Twice, "count:"),
        (Fault::ZeroBased, "share:"),
    ];
    for (fault, how) in faults {
        match all_laws(&naive(fault), 256) {
            Ok(()) => panic!("{fault:?} passed"),
            Err(why) => {
                assert!(why.contains(how), "{fault:?} was caught for another reason: {why}")
            }
        }
    }
}

/// The laws determine every decision: command by command the arbiter decides as the naive one.
#[test]
fn the_arbiter_decides_as_the_naive_one() {
    let same = |history: History| {
        let (ours, theirs) =
            (history.run(&real)?.queues(), history.run(&naive(Fault::None))?.queues());
        if ours == theirs { Ok(()) } else { Err(format!("{ours:?}, and naively {theirs:?}")) }
    };
    hold(512, any_history(), same).unwrap();
}

/// D2FQ Fig. 3 (D-3.1): weights L:M:H = 1:2:3, all queues backlogged: three from high, two from
/// medium, one from low, round robin within a class.
#[test]
fn weights_1_2_3_fetch_3_2_1() {
    let weights = ClassWeights { high: 3, medium: 2, low: 1 };
    let mut arbiter =
        Arbiter::new(Mechanism::Weighted, 5, Arbitration { burst: Burst::ONE, weights });
    let classes = [Class::High, Class::High, Class::Medium, Class::Medium, Class::Low];
    for (queue, class) in (0..).map(QueueIndex).zip(classes) {
        arbiter.add(queue, class);
        arbiter.post(queue, 100);
    }
    let fetched: Vec<u16> = (0..12).map(|_| arbiter.next().unwrap().0).collect();
    assert_eq!(fetched, [0, 1, 0, 2, 3, 4, 1, 0, 1, 2, 3, 4]);
    assert_eq!(arbiter.rounds(), 1, "the second round ends when the next command is fetched");
}

#[test]
fn a_thousand_queues_take_turns() {
    let mut arbiter = Arbiter::new(Mechanism::RoundRobin, 1024, Arbitration::RESET);
    for queue in (0..1024).map(QueueIndex) {
        arbiter.add(queue, Class::Low);
    }
    for queue in [1023, 64, 63, 500, 0].map(QueueIndex) {
        arbiter.post(queue, 2);
    }
    let fetched: Vec<u16> = std::iter::from_fn(|| arbiter.next()).map(|queue| queue.0).collect();
    assert_eq!(fetched, [0, 63, 64, 500, 1023, 0, 63, 64, 500, 1023]);
}

#[test]
fn an_urgent_command_interrupts_a_burst_which_then_goes_on() {
    let weights = ClassWeights { high: 8, medium: 1, low: 1 };
    let mut arbiter =
        Arbiter::new(Mechanism::Weighted, 3, Arbitration { burst: Burst::power(2), weights });
    for (queue, class) in [(0, Class::High), (1, Class::High), (2, Class::Urgent)] {
        arbiter.add(QueueIndex(queue), class);
    }
    arbiter.post(QueueIndex(0), 100);
    arbiter.post(QueueIndex(1), 100);
    assert_eq!([arbiter.next(), arbiter.next()].map(|queue| queue.unwrap().0), [0, 0]);
    arbiter.post(QueueIndex(2), 1);
    let fetched: Vec<u16> = (0..7).map(|_| arbiter.next().unwrap().0).collect();
    assert_eq!(fetched, [2, 0, 0, 1, 1, 1, 1]);
}

/// Weights act only while commands wait: with a window of 4 and more outstanding commands in every
/// class, the fetched commands are 3:1; with a window above the number of all outstanding commands
/// they follow the depths, 1:1.
#[test]
fn weights_need_a_window() {
    let share_of_high = |window: u32| {
        let weights = ClassWeights { high: 3, medium: 1, low: 1 };
        let mut arbiter =
            Arbiter::new(Mechanism::Weighted, 2, Arbitration { burst: Burst::ONE, weights });
        let mut window = Window::new(window);
        let (high, low) = (QueueIndex(0), QueueIndex(1));
        arbiter.add(high, Class::High);
        arbiter.add(low, Class::Low);
        arbiter.post(high, 32);
        arbiter.post(low, 32);
        let mut on_device = std::collections::VecDeque::new();
        let mut completed = [0u32; 2];
        // The device serves the oldest command; its submitter posts another at once.
        for _ in 0..4000 {
            while window.free() > 0 {
                let Some(queue) = arbiter.next() else { break };
                assert!(window.take());
                on_device.push_back(queue);
            }
            let queue = on_device.pop_front().unwrap();
            window.release();
            completed[usize::from(queue.0)] += 1;
            arbiter.post(queue, 1);
        }
        f64::from(completed[0]) / 4000.0
    };
    assert!((share_of_high(4) - 0.75).abs() < 0.01, "{}", share_of_high(4));
    assert!((share_of_high(128) - 0.5).abs() < 0.01, "{}", share_of_high(128));
}
