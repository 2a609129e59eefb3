//! Several shards at once on the software NVMe controller: no wake-up is lost, and weights may
//! change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairq_core::none::NonePolicy;
use fairq_core::{ClassWeights, Native, Policy, Weight};
use fairq_device::{Profile, State};
use fairq_host::device::Device;
use fairq_host::device::any::{AnyDevice, DeviceSpec};
use fairq_host::device::file::{Direct, FileSpec};
use fairq_host::device::nvme_soft::{BackingSpec, NvmeSoftSpec, Poller, Timing};
use fairq_host::io::wakers::Wakers;
use fairq_host::measure::load::{self, Job, Path, Threads, Times};
use fairq_host::shard::shared::Common;

const SIZE: u64 = 16 << 20;

fn soft(backing: BackingSpec) -> NvmeSoftSpec {
    NvmeSoftSpec { backing, timing: None, window: 3, queues: 9, wrr: true, poller: Poller::Inline }
}

fn ram() -> NvmeSoftSpec {
    soft(BackingSpec::Ram { size: SIZE })
}

fn timed(window: u16) -> NvmeSoftSpec {
    let profile = Profile::named("z-ssd").unwrap();
    let timing = Some(Timing { profile, state: State::Fresh, slowdown: 1 });
    NvmeSoftSpec { timing, window, ..ram() }
}

fn common(device: Arc<AnyDevice>, shards: usize) -> Common<AnyDevice> {
    Common::new(device, Arc::new(Wakers::new(shards).unwrap()), 256, 1)
}

/// Loads on several shards that sleep and wake all the time, so that a lost wake-up would stop a
/// shard for ever; and, on a polled device, on several direct paths that carry out each other's
/// commands.
fn no_wake_up_is_lost(spec: NvmeSoftSpec, shards: usize) {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let device = Arc::new(DeviceSpec::NvmeSoft(Box::new(spec)).open().unwrap());
        // The CPUs may be busy in a round; the test is that each round ends.
        let mut operations = 0;
        for round in 0..6u64 {
            let (policy, ports) = NonePolicy::<Native>::new(shards, 1, 256).unwrap();
            let flow = policy.add_flow(Weight::DEFAULT).unwrap();
            let job = |shard: usize| Job {
                tenant: 0,
                flow,
                file: 0,
                base: 0,
                size: SIZE,
                block: 4096,
                depth: if shard.is_multiple_of(2) { 1 } else { 3 },
                read_percent: 50,
                random: true,
                rate: None,
                think_ns: 2000 * (round % 3),
                starts_ns: 0,
                stops_ns: u64::MAX,
                seed: shard as u64,
            };
            let path = if round >= 3 && device.is_polled() { Path::Direct } else { Path::Shards };
            let jobs = (0..shards).map(|shard| vec![job(shard)]).collect();
            let times = Times {
                warmup: Duration::ZERO,
                measured: Duration::from_millis(60),
                interval: None,
            };
            let common = common(device.clone(), shards);
            let measured = load::run(
                &policy,
                ports,
                &common,
                Threads { path, ..Threads::default() },
                jobs,
                times,
                |_| (),
            )
            .unwrap();
            assert_eq!(measured.tenants[0].errors, 0);
            operations += measured.tenants[0].operations();
        }
        assert!(operations > 0);
        sender.send(()).unwrap();
    });
    done.recv_timeout(Duration::from_secs(60)).expect("every run ends");
}

#[test]
fn no_wake_up_is_lost_over_memory() {
    no_wake_up_is_lost(ram(), 2);
    no_wake_up_is_lost(NvmeSoftSpec { queues: 3, ..ram() }, 3);
}

#[test]
fn no_wake_up_is_lost_in_time() {
    no_wake_up_is_lost(timed(1), 3);
    no_wake_up_is_lost(NvmeSoftSpec { queues: 3, ..timed(2) }, 2);
}

#[test]
fn no_wake_up_is_lost_with_a_core_of_its_own() {
    no_wake_up_is_lost(NvmeSoftSpec { poller: Poller::Core, ..timed(2) }, 2);
}

#[test]
fn no_wake_up_is_lost_over_a_file() {
    // The file is beside the build, where direct I/O is more likely than in `/tmp`.
    let target = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let scratch = tempfile::tempdir_in(target).unwrap();
    let files = vec![FileSpec::new(scratch.path().join("disk"), Some(SIZE))];
    let spec = soft(BackingSpec::File { files, direct: Direct::Auto });
    no_wake_up_is_lost(NvmeSoftSpec { window: 1, ..spec.clone() }, 3);
    no_wake_up_is_lost(NvmeSoftSpec { poller: Poller::Core, ..spec }, 2);
}

/// Weights are changed while shards work.
#[test]
fn weights_change_under_load() {
    let device = Arc::new(DeviceSpec::NvmeSoft(Box::new(timed(8))).open().unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut changes = 0;
            while !stop.load(Ordering::Relaxed) {
                changes += 1;
                device
                    .set_class_weights(ClassWeights { high: changes % 256 + 1, medium: 2, low: 1 })
                    .unwrap();
            }
            assert!(changes > 10, "{changes}");
        });
        let (policy, ports) = NonePolicy::<Native>::new(2, 1, 256).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let job = Job {
            tenant: 0,
            flow,
            file: 0,
            base: 0,
            size: SIZE,
            block: 4096,
            depth: 16,
            read_percent: 100,
            random: true,
            rate: None,
            think_ns: 0,
            starts_ns: 0,
            stops_ns: u64::MAX,
            seed: 1,
        };
        let times =
            Times { warmup: Duration::ZERO, measured: Duration::from_millis(200), interval: None };
        let jobs = vec![vec![job.clone()], vec![job]];
        let measured = load::run(
            &policy,
            ports,
            &common(device.clone(), 2),
            Threads::default(),
            jobs,
            times,
            |_| (),
        )
        .unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(measured.tenants[0].operations() > 100);
    });
}
