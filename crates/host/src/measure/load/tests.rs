//! Tests of jobs and of load runs.

use super::*;
use std::cell::Cell;

use crate::device::null::NullDevice;
use crate::io::clock::Clock;
use crate::io::ring::Asker;
use crate::io::wakers::Wakers;
use crate::observe::cpu_time::CpuTime;
use fairq_core::Weight;
use fairq_core::none::NonePolicy;
use fairq_core::serial::SerialConfig;
use fairq_core::sfqd::Sfqd;

fn common() -> Common<NullDevice> {
    let wakers = Arc::new(Wakers::new(2).unwrap());
    Common::new(Arc::new(NullDevice::new(1 << 30)), wakers, 256, 1)
}

pub(in crate::measure) fn job(flow: FlowId) -> Job {
    Job {
        tenant: 0,
        flow,
        file: 0,
        base: 0,
        size: 1 << 20,
        block: 4096,
        depth: 16,
        read_percent: 100,
        random: true,
        rate: None,
        think_ns: 0,
        starts_ns: 0,
        stops_ns: u64::MAX,
        seed: 1,
    }
}

fn counts_what_it_did(path: Path) {
    let (policy, ports) = NonePolicy::<fairq_core::Native>::new(2, 4, 256).unwrap();
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    let limited = Job { rate: Some(40_960_000), read_percent: 0, ..job(flow) };
    let times = Times {
        warmup: Duration::from_millis(20),
        measured: Duration::from_millis(100),
        interval: None,
    };
    let run = run(
        &policy,
        ports,
        &common(),
        Threads { path, ..Threads::default() },
        vec![vec![job(flow)], vec![limited]],
        times,
        |_| (),
    )
    .unwrap();
    let got = &run.tenants[0];
    assert!(got.reads > 0 && run.elapsed >= times.measured, "{got:?}");
    assert!(got.read_bytes == got.reads * 4096);
    // The job submits 10,000 writes a second for the measured time.
    let expected = 10_000.0 * run.elapsed.as_secs_f64();
    assert!(
        (got.writes as f64) <= expected * 1.05 + 2.0 && got.writes > 0,
        "{} against {expected}",
        got.writes
    );
    assert_eq!(got.latency_ns.len(), got.operations());
}

fn lives_as_long_as_it_is_told(path: Path) {
    let (policy, ports) = NonePolicy::<fairq_core::Native>::new(2, 4, 256).unwrap();
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    let ms = Duration::from_millis;
    let guest = Job { tenant: 1, starts_ns: 50_000_000, stops_ns: 100_000_000, ..job(flow) };
    let times = Times { warmup: ms(20), measured: ms(150), interval: Some(ms(10)) };
    let common = Common { tenants: 2, ..common() };
    let jobs = vec![vec![job(flow)], vec![guest]];
    let threads = Threads { path, ..Threads::default() };
    let run = run(&policy, ports, &common, threads, jobs, times, |_| ()).unwrap();
    assert_eq!((run.series.len(), run.series[0].len()), (2, 15));
    let alive: Vec<usize> = (0..15).filter(|&at| run.series[1][at] > 0).collect();
    assert!(alive.first().is_none_or(|&first| first >= 5), "never early: {alive:?}");
    assert!(run.class_weights.is_empty(), "`none` wants no weights");
}

/// The number of requests that a front end submits at a time, at most `depth`; they are then
/// finished.
fn made(front: &mut LoadFront, now_ns: u64) -> usize {
    front.look(now_ns);
    let orders: Vec<Order> =
        (0..front.jobs.len()).filter_map(|index| front.next(index, now_ns)).collect();
    for order in &orders {
        front.finished(now_ns, Finished { asker: Asker::Nbd, cookie: order.cookie(), errno: 0 });
    }
    orders.len()
}

fn flow() -> FlowId {
    let (policy, _ports) = NonePolicy::<fairq_core::Native>::new(1, 1, 1).unwrap();
    policy.add_flow(Weight::DEFAULT).unwrap()
}

#[test]
fn a_job_that_starts_later_waits_until_the_measurement_has_begun() {
    let series = Arc::new(Series::new(100, Duration::from_nanos(500)));
    let guest = Job { starts_ns: 100, stops_ns: 300, ..job(flow()) };
    let mut front = LoadFront::new(vec![(guest, Some(series.clone()))], None).unwrap();
    assert_eq!((made(&mut front, 1_000_000), front.deadline_ns()), (0, None));
    front.begin(1_000);
    let times = [1_000, 1_099, 1_100, 1_299, 1_300, 2_000];
    assert_eq!(times.map(|now_ns| made(&mut front, now_ns)), [0, 0, 1, 1, 0, 0]);
    let all = total_series(1, &[(0, series)]);
    assert_eq!(all, [[0, 4096, 4096, 0, 0]]);
}

#[test]
fn a_job_that_is_there_from_the_start_counts_from_the_beginning_of_the_measurement() {
    let series = Arc::new(Series::new(100, Duration::from_nanos(200)));
    let jobs = vec![(job(flow()), Some(series.clone()))];
    let mut front = LoadFront::new(jobs, None).unwrap();
    assert_eq!(made(&mut front, 10), 1);
    front.begin(1_000);
    assert_eq!([1_000, 1_150, 1_200].map(|now_ns| made(&mut front, now_ns)), [1; 3]);
    assert_eq!(total_series(1, &[(0, series)]), [[4096, 4096]]);
}

/// If only one shard ran this job, the job would not run in half of the intervals.
#[test]
fn a_job_that_moves_is_on_one_shard_at_all_times() {
    let moves = Arc::new(Moves::new(&[job(flow())], 2, 1_000));
    let mut fronts = [0, 1].map(|shard| {
        let homes = Homes::new(moves.clone(), shard);
        LoadFront::new(vec![(job(flow()), None)], Some(homes)).unwrap()
    });
    let made: Vec<[usize; 2]> = (0..100)
        .map(|interval| [0, 1].map(|shard| made(&mut fronts[shard], interval * 1_000)))
        .collect();
    assert!(made.iter().all(|made| made[0] + made[1] == 1), "{made:?}");
    assert!([0, 1].iter().all(|&shard| made.iter().any(|made| made[shard] == 1)), "{made:?}");
}

#[test]
fn a_run_whose_time_jumps_is_disturbed_and_one_that_stalls_before_it_is_not() {
    const JUMP: Duration = Duration::from_secs(60);
    struct Jumping {
        clock: Clock,
        jumped: Cell<u64>,
    }
    impl Time for Jumping {
        fn now_ns(&self) -> u64 {
            self.clock.now_ns() + self.jumped.get()
        }
        /// The first sleep takes a minute more on this clock, but not for the shards.
        fn sleep(&self, duration: Duration) {
            std::thread::sleep(duration);
            self.jumped.set(JUMP.as_nanos() as u64);
        }
    }
    let [before, within] = [300, 0].map(|warmup_ms| {
        let (policy, ports) = NonePolicy::<fairq_core::Native>::new(1, 1, 256).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let ms = Duration::from_millis;
        let times = Times { warmup: ms(warmup_ms), measured: ms(200), interval: None };
        let time = Jumping { clock: Clock::default(), jumped: Cell::new(0) };
        let (jobs, threads) = (vec![vec![job(flow)]], Threads::default());
        let run = run_by(&time, &policy, ports, &common(), threads, jobs, times, |_| ()).unwrap();
        assert!(run.elapsed >= times.measured, "{run:?}");
        matches!(run.disturbance, Some(Disturbance::Stalled(time)) if time >= JUMP)
    });
    assert!(!before && within);
}

#[test]
fn waiting_is_that_of_the_mean_shard_if_all_tell() {
    let counters = |waited_ns: Option<u64>| ShardCounters {
        cpu: waited_ns.map(|waited_ns| CpuTime { ran_ns: 5, waited_ns }),
        ..Default::default()
    };
    let [before, after] =
        [[7, 1_000], [2_000_007, 4_001_000]].map(|waited| waited.map(|ns| counters(Some(ns))));
    assert_eq!(cpu_wait(&before, &after), Some(Duration::from_millis(3)));
    assert_eq!(cpu_wait(&before, &[after[0], counters(None)]), None);
}

#[test]
fn a_load_run_counts_what_it_did() {
    counts_what_it_did(Path::Shards);
    counts_what_it_did(Path::Direct);
}

#[test]
fn a_job_lives_as_long_as_it_is_told_and_its_series_shows_it() {
    lives_as_long_as_it_is_told(Path::Shards);
    lives_as_long_as_it_is_told(Path::Direct);
}

/// A device that completes at once accepts all requests that a shard may submit in each turn.
/// Without rotation, all of them would be the first job's.
#[test]
fn jobs_of_one_shard_take_turns() {
    let (policy, ports) = NonePolicy::<fairq_core::Native>::new(1, 4, 256).unwrap();
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    let second = Job { tenant: 1, depth: 64, ..job(flow) };
    let times =
        Times { warmup: Duration::ZERO, measured: Duration::from_millis(50), interval: None };
    let common = Common { tenants: 2, ..common() };
    let jobs = vec![vec![Job { depth: 64, ..job(flow) }, second]];
    let run = run(&policy, ports, &common, Threads::default(), jobs, times, |_| ()).unwrap();
    let [first, second] = [0, 1].map(|tenant: usize| run.tenants[tenant].reads);
    assert!(first.min(second) * 4 > first.max(second) * 3, "{first} and {second}");
}

#[test]
fn a_policy_that_stages_is_refused_the_direct_path() {
    let config = SerialConfig::new(2, 1, 256).with(|config| config.slots = 1);
    let (policy, ports) = Sfqd::<fairq_core::Native>::new(&config).unwrap();
    let times =
        Times { warmup: Duration::ZERO, measured: Duration::from_millis(10), interval: None };
    let threads = Threads { path: Path::Direct, ..Threads::default() };
    let refused = run(&policy, ports, &common(), threads, Vec::new(), times, |_| ()).unwrap_err();
    assert!(refused.to_string().contains("never holds a request back"), "{refused}");
}

/// Shards that end must deliver the wake-ups of their last completions. Otherwise, with a single
/// slot, the shard that ends last waits for a wake-up for ever.
#[test]
fn a_shard_that_ends_wakes_those_that_it_unblocked() {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..40 {
            let config = SerialConfig::new(2, 1, 256).with(|config| config.slots = 1);
            let (policy, ports) = Sfqd::<fairq_core::Native>::new(&config).unwrap();
            let flow = policy.add_flow(Weight::DEFAULT).unwrap();
            let times = Times {
                warmup: Duration::ZERO,
                measured: Duration::from_millis(2),
                interval: None,
            };
            let jobs = vec![vec![job(flow)], vec![job(flow)]];
            run(&policy, ports, &common(), Threads::default(), jobs, times, |_| ()).unwrap();
        }
        sender.send(()).unwrap();
    });
    done.recv_timeout(Duration::from_secs(60)).expect("every run ends");
}
