use super::*;
use fairq_core::Op;

/// Queues with weights, whose requests of 4 KiB lie far from each other.
struct Drive {
    policy: LinuxBfq,
    next: u32,
    now_ns: u64,
}

impl Drive {
    fn new(kernel: Kernel, processes: usize, weights: &[u16]) -> Drive {
        Drive::with(kernel, processes, weights, false)
    }

    fn with(kernel: Kernel, processes: usize, weights: &[u16], low_latency: bool) -> Drive {
        let cycles = LinuxBfqConfig::CYCLES;
        let config = LinuxBfqConfig { kernel, processes, budget: 0, cycles, low_latency };
        let mut policy = LinuxBfq::new(&SerialConfig::new(1, weights.len(), 256), config, true);
        for (flow, &weight) in weights.iter().enumerate() {
            policy.add_flow(flow, Weight::new(weight).unwrap());
        }
        Drive { policy, next: 0, now_ns: 1000 * MS }
    }

    fn sends(&mut self, flow: usize, count: u32) {
        for _ in 0..count {
            let arrival = Arrival {
                job: Job(self.next),
                flow,
                weight: Weight::DEFAULT,
                op: Op::Read,
                offset: u64::from(self.next) << 24,
                length: 4096,
                cost: 4096,
            };
            self.next += 1;
            self.policy.insert(self.now_ns, &arrival);
        }
    }

    /// Dispatches a request; returns its queue, or `None` if no queue may send.
    fn goes(&mut self) -> Option<usize> {
        match self.policy.select(self.now_ns, Lanes::All) {
            Selection::Serve(_, flow) => Some(flow),
            _ => None,
        }
    }

    fn comes_back(&mut self, flow: usize) {
        self.policy.completed(self.now_ns, Job(u32::MAX), flow, Outcome::Done);
    }

    /// Whether another queue's request is dispatched after a queue has sent its only one.
    fn goes_beside(&mut self, served: usize, other: usize) -> bool {
        self.sends(served, 1);
        assert_eq!(self.goes(), Some(served));
        self.sends(other, 1);
        self.goes() == Some(other)
    }
}

use Kernel::{V4_15, V5_2, V5_3, V7_2};

#[test]
fn equals_without_groups_are_not_waited_for() {
    for kernel in Kernel::ALL {
        assert!(Drive::new(kernel, 0, &[100, 100]).goes_beside(0, 1), "{kernel:?}");
    }
}

#[test]
fn where_weights_differ_the_lightest_queue_is_waited_for_by_the_oldest_alone() {
    let goes_beside = |kernel, weights: [u16; 2]| Drive::new(kernel, 0, &weights).goes_beside(0, 1);
    assert_eq!(
        Kernel::ALL.map(|kernel| goes_beside(kernel, [100, 200])),
        [false, true, true, true]
    );
    assert_eq!([V4_15, V5_2, V5_3].map(|kernel| goes_beside(kernel, [200, 100])), [false; 3]);
}

#[test]
fn in_groups_equals_are_waited_for_but_not_within_one_by_the_latest() {
    let between = |kernel| Drive::new(kernel, 1, &[100, 100]).goes_beside(0, 1);
    assert_eq!(Kernel::ALL.map(between), [true, false, false, false]);
    let within = |kernel| Drive::new(kernel, 2, &[100, 100]).goes_beside(0, 1);
    assert_eq!(Kernel::ALL.map(within), [true, false, false, true]);
}

#[test]
fn by_4_15_a_group_counts_while_it_has_requests_that_wait() {
    for (others, is_waited_for) in [(vec![1], false), (vec![1, 2], true)] {
        let mut drive = Drive::new(V4_15, 1, &[300, 100, 200]);
        drive.sends(0, 1);
        assert_eq!(drive.goes(), Some(0));
        others.iter().for_each(|&flow| drive.sends(flow, 1));
        assert_eq!(drive.goes().is_none(), is_waited_for, "{others:?}");
    }
}

#[test]
fn a_heavier_queue_takes_the_drive_from_5_3_on() {
    let takes = |kernel| {
        let mut drive = Drive::new(kernel, 0, &[100, 200]);
        drive.sends(0, 8);
        assert_eq!(drive.goes(), Some(0));
        drive.sends(1, 1);
        drive.goes() == Some(1)
    };
    assert_eq!([V4_15, V5_2, V5_3, V7_2].map(takes), [false, false, true, true]);
}

#[test]
fn a_group_has_the_weight_of_its_processes_and_these_share_it_evenly() {
    for kernel in Kernel::ALL {
        let mut drive = Drive::new(kernel, 2, &[150, 150, 50, 50]);
        (0..4).for_each(|flow| drive.sends(flow, 4));
        let mut served = [0u32; 4];
        for _ in 0..200_000 {
            let flow = drive.goes().expect("all have something");
            drive.now_ns += MS / 10;
            drive.comes_back(flow);
            drive.sends(flow, 1);
            served[flow] += 1;
        }
        let parts = served.map(|count| f64::from(count) / 200_000.0);
        // A turn of 125 ms is a twentieth of the smallest share.
        for (part, due) in parts.into_iter().zip([0.375, 0.375, 0.125, 0.125]) {
            assert!((part / due - 1.0).abs() < 0.06, "{kernel:?}: {parts:?}");
        }
    }
}

#[test]
fn the_largest_budget_that_is_set_bounds_turns() {
    let config = LinuxBfqConfig {
        kernel: V5_3,
        processes: 0,
        budget: 256,
        cycles: LinuxBfqConfig::CYCLES,
        low_latency: false,
    };
    let mut drive = Drive::new(V5_3, 0, &[100, 100]);
    drive.policy = LinuxBfq::new(&SerialConfig::new(1, 2, 256), config, true);
    (0..2).for_each(|flow| drive.policy.add_flow(flow, Weight::new(100).unwrap()));
    let (mut turn, mut longest, mut last) = (0, 0, 0);
    (0..2).for_each(|flow| drive.sends(flow, 64));
    for round in 0..10_000 {
        let flow = drive.goes().expect("both have something");
        turn = if flow == last { turn + 1 } else { 1 };
        last = flow;
        // The first budgets still assume a drive of unknown rate.
        longest = longest.max(if round > 5000 { turn } else { 0 });
        drive.now_ns += MS / 100;
        drive.comes_back(flow);
        drive.sends(flow, 1);
    }
    assert_eq!(longest, 256 / 8);
}

#[test]
fn a_scenario_without_tenants_is_refused_and_does_not_stop_the_lab() {
    use crate::policies::{AnySubject, Scheduler, SerialSubject};
    let z_ssd = fairq_device::Profile::named("z-ssd").unwrap();
    let scenario = crate::scenario::Scenario::new(z_ssd, 1, Vec::new(), 1);
    let config = LinuxBfqConfig {
        kernel: V5_3,
        processes: 2,
        budget: 0,
        cycles: LinuxBfqConfig::CYCLES,
        low_latency: false,
    };
    let lock = SerialSubject::new(Scheduler::LinuxBfq(config), 8);
    assert!(AnySubject::Serial(lock).run(&scenario).is_err());
}

/// Sends this many requests to the drive, one after the other, and counts the requests of each of
/// two queues. Each queue always has eight requests waiting.
fn shares(drive: &mut Drive, requests: u64, each_ns: u64) -> [u32; 2] {
    let mut served = [0; 2];
    for _ in 0..requests {
        drive.now_ns += each_ns;
        if let Some(flow) = drive.goes() {
            drive.comes_back(flow);
            drive.sends(flow, 1);
            served[flow] += 1;
        }
    }
    served
}

#[test]
fn with_low_latency_a_newcomer_has_the_drive_until_it_is_old() {
    for kernel in Kernel::ALL {
        let mut drive = Drive::with(kernel, 0, &[40, 40], true);
        drive.sends(0, 8);
        assert_eq!(shares(&mut drive, 5000, MS), [5000, 0]);
        drive.sends(1, 8);
        let [old, new] = shares(&mut drive, 3000, MS);
        assert!(new > 2800, "{kernel:?}: {old} and {new}");
        shares(&mut drive, 2000, MS);
        let [old, new] = shares(&mut drive, 4000, MS);
        assert!(old.abs_diff(new) < 400, "{kernel:?}: {old} and {new}");
    }
}

#[test]
fn in_groups_raising_takes_from_others_only_what_slow_turns_cost_them() {
    for kernel in Kernel::ALL {
        let got = |each_ns| {
            let mut drive = Drive::with(kernel, 1, &[100, 100], true);
            drive.sends(0, 8);
            shares(&mut drive, 5_000_000_000 / each_ns, each_ns);
            drive.sends(1, 8);
            shares(&mut drive, 3000, each_ns)
        };
        // On a slow drive the old queue is charged for its time, and the new one for sectors.
        let [old, new] = got(MS);
        assert!(new > 2 * old, "{kernel:?}: {old} and {new}");
        let [old, new] = got(MS / 500);
        assert!(new < 2 * old, "{kernel:?}: {old} and {new}");
    }
}

#[test]
fn a_raised_queue_is_waited_for_and_nothing_goes_beside_it() {
    for kernel in Kernel::ALL {
        let mut drive = Drive::with(kernel, 0, &[40, 40], true);
        drive.sends(0, 64);
        shares(&mut drive, 5000, MS);
        drive.sends(1, 1);
        while drive.goes() != Some(1) {
            drive.now_ns += MS;
        }
        assert_eq!(drive.goes(), None, "{kernel:?}");
    }
}

#[test]
fn beside_raised_ones_a_raised_queue_is_waited_for_by_4_15() {
    let goes_beside = |kernel| Drive::with(kernel, 0, &[40, 40], true).goes_beside(0, 1);
    assert_eq!(Kernel::ALL.map(goes_beside), [false, true, true, true]);
}

#[test]
fn beside_raised_ones_with_four_on_the_drive_it_is_waited_for_from_5_3_on() {
    for (others, expected) in [(3, [false; 3]), (4, [false, true, true])] {
        let is_waited_for = |kernel| {
            let mut drive = Drive::with(kernel, 0, &[40, 40], true);
            drive.sends(0, others);
            (0..others).for_each(|_| assert_eq!(drive.goes(), Some(0)));
            drive.sends(1, 1);
            assert_eq!(drive.goes(), Some(1));
            drive.sends(0, 1);
            drive.goes().is_none()
        };
        assert_eq!([V5_2, V5_3, V7_2].map(is_waited_for), expected, "{others}");
    }
}
