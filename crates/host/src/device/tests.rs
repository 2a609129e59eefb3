//! Compares all devices with a plain array of bytes: random commands of any alignment, several at a
//! time on several queues.

use std::path::PathBuf;

use fairq_core::Op;
use proptest::prelude::*;

use crate::device::any::{AnyDevice, AnyQueue, DeviceSpec};
use crate::device::file::{Direct, FileSpec};
use crate::device::harness::{Driver, Tamper, command, place};
use crate::device::nvme_soft::{BackingSpec, NvmeSoftSpec, Poller, Timing};
use crate::device::paced::Pace;
use crate::device::{Command, Device};
use crate::io::ring::Event;

/// The size of two regions of the file device's guard and a part of a third.
const SIZE: usize = (2 << 20) + (64 << 10);
const QUEUES: usize = 3;

/// A directory on the file system of the build, which is more likely to support direct I/O than
/// `/tmp`.
pub(crate) fn scratch() -> tempfile::TempDir {
    let target = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    tempfile::tempdir_in(target).unwrap()
}

pub(super) fn file_spec(path: impl Into<PathBuf>, size: u64, direct: Direct) -> DeviceSpec {
    DeviceSpec::File { files: vec![FileSpec::new(path, Some(size))], direct }
}

/// A software controller with few queues and a small window, so that commands wait in every stage.
pub(crate) fn nvme_soft(backing: BackingSpec) -> NvmeSoftSpec {
    NvmeSoftSpec { backing, timing: None, window: 3, queues: 9, wrr: true, poller: Poller::Inline }
}

#[derive(Clone, Debug)]
struct Action {
    /// Bytes skipped before the range, and bytes of the range.
    gap: u32,
    length: u32,
    op: Op,
    queue: usize,
    fua: bool,
    no_hole: bool,
    fast_only: bool,
    /// The stretches of its memory: the length of each, and its offset from a page boundary; the
    /// list is repeated.
    stretches: Vec<(u32, usize)>,
    seed: u8,
}

/// Disjoint commands that are in flight together, starting at an offset.
type Batch = (u32, Vec<Action>);

fn actions() -> impl Strategy<Value = Action> {
    let op = prop_oneof![
        4 => Just(Op::Write),
        2 => Just(Op::Read),
        2 => Just(Op::WriteZeroes),
        1 => Just(Op::Discard),
        1 => Just(Op::Flush)
    ];
    let gap = prop_oneof![4 => Just(0u32), 2 => 0..600u32, 1 => (0..16u32).prop_map(|blocks| blocks * 512)];
    let length = prop_oneof![
        4 => 1..600u32,
        4 => (1..20u32).prop_map(|blocks| blocks * 512),
        2 => 1..20_000u32,
        1 => 200_000..700_000u32
    ];
    let shift = prop_oneof![3 => Just(0usize), 1 => 0..4096usize];
    let stretch = prop_oneof![2 => Just(4096_u32), 1 => Just(512), 1 => 1..9000u32];
    let stretches = prop_oneof![
        2 => shift.clone().prop_map(|shift| vec![(u32::MAX, shift)]),
        1 => Just(vec![(4096, 0)]),
        2 => prop::collection::vec((stretch, shift), 1..4),
    ];
    (gap, length, op, 0..QUEUES, any::<[bool; 3]>(), stretches, 1..=255u8).prop_map(
        |(gap, length, op, queue, [fua, no_hole, fast_only], stretches, seed)| Action {
            gap,
            length,
            op,
            queue,
            fua,
            no_hole,
            fast_only,
            stretches,
            seed,
        },
    )
}

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let start = prop_oneof![Just(0u32), (1u32 << 20) - 9000..1 << 20, 0..SIZE as u32];
    let start = prop_oneof![start.clone(), start.prop_map(|start| start / 4096 * 4096)];
    prop::collection::vec((start, prop::collection::vec(actions(), 1..12)), 1..8)
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| seed.wrapping_add((index / 256) as u8).wrapping_mul(31) ^ index as u8)
        .collect()
}

/// Runs batches on `device` and on a model of it, and compares all bytes after each batch.
fn compare(device: &AnyDevice, batches: &[Batch], tamper: Option<fn(u64) -> Tamper>) {
    let mut model = vec![0u8; SIZE];
    let mut drivers: Vec<Driver<AnyQueue>> =
        (0..QUEUES as u8).map(|port| Driver::open_at(device, &place(port, QUEUES))).collect();
    if let Some(tamper) = tamper {
        drivers.iter_mut().zip(1..).for_each(|(driver, seed)| driver.tamper = tamper(seed));
    }
    for (start, actions) in batches {
        let mut at = *start as usize;
        let mut expected = model.clone();
        for action in actions {
            let from = (at + action.gap as usize).min(SIZE);
            let to = (from + action.length as usize).min(SIZE);
            at = to;
            let &Action { op, fua, no_hole, fast_only, .. } = action;
            let issued =
                Command { fua, no_hole, fast_only, ..command(op, from as u64, (to - from) as u32) };
            let data = if op == Op::Write { pattern(action.seed, to - from) } else { Vec::new() };
            let driver = &mut drivers[action.queue];
            // Each stretch has pages of its own, and the region's number of pages is bounded.
            let least = action.stretches.iter().map(|(length, _)| *length).min().unwrap_or(1);
            match issued.length.div_ceil(least) {
                ..=300 => driver.issue_scattered(issued, &data, &action.stretches),
                _ => driver.issue(issued, &data, action.stretches[0].1),
            }
            match op {
                Op::Write => expected[from..to].copy_from_slice(&data),
                Op::WriteZeroes => expected[from..to].fill(0),
                _ => {}
            }
        }
        let mut advised = Vec::new();
        finish(&mut drivers, |ended| {
            let range = ended.command.offset as usize
                ..ended.command.offset as usize + ended.command.length as usize;
            match ended.command.op {
                Op::Read => {
                    assert!(ended.data == model[range.clone()], "read of {range:?} in {actions:?}")
                }
                Op::Discard => advised.push(range),
                _ => {}
            }
            assert_eq!(ended.errno, 0, "{ended:?}");
        });
        let actual = drivers[0].read(0, SIZE as u32);
        for range in advised {
            // Discarded bytes are unchanged or zero; on some devices they must be zero.
            for index in range {
                let is_zero = actual[index] == 0;
                assert!(is_zero || !device.info().discard_zeroes && actual[index] == model[index]);
                expected[index] = actual[index];
            }
        }
        if let Some(index) = (0..SIZE).find(|&index| actual[index] != expected[index]) {
            panic!(
                "byte {index}: {} for {} after {start} {actions:?}",
                actual[index], expected[index]
            );
        }
        check_extents(device, &actual);
        model = expected;
    }
}

/// Runs turns of all queues until all commands have ended, since one queue may wait for another.
fn finish(drivers: &mut [Driver<AnyQueue>], mut each: impl FnMut(crate::device::harness::Ended)) {
    let start = std::time::Instant::now();
    while drivers.iter().any(Driver::is_busy) {
        for driver in drivers.iter_mut() {
            driver.turn().into_iter().for_each(&mut each);
        }
        assert!(start.elapsed().as_secs() < 20, "commands that never end");
    }
}

/// Extents cover the requested range, and no range with data is reported as a hole.
fn check_extents(device: &AnyDevice, actual: &[u8]) {
    let (mut at, mut last) = (100usize, None);
    while at < SIZE {
        let extents = device.extents(0, at as u64, (SIZE - at) as u64, 3).unwrap();
        assert!((1..=3).contains(&extents.len()));
        for extent in extents {
            let end = at + extent.length as usize;
            assert!(end > at && end <= SIZE);
            assert!(
                !extent.is_hole || actual[at..end].iter().all(|&byte| byte == 0),
                "a hole with data at {at}..{end}"
            );
            (at, last) = (end, Some(extent));
        }
    }
    assert!(last.is_some());
}

/// Every device accepts the largest number of stretches of a command, of any length and at any
/// address.
#[test]
fn every_device_takes_scattered_commands() {
    let scratch = scratch();
    let file = |name: &str, direct| file_spec(scratch.path().join(name), SIZE as u64, direct);
    let pace = Pace { iops: 100_000, ..Pace::default() };
    let soft = |spec| DeviceSpec::NvmeSoft(Box::new(spec));
    let over_a_file = || {
        let files = vec![FileSpec::new(scratch.path().join("soft"), Some(SIZE as u64))];
        nvme_soft(BackingSpec::File { files, direct: Direct::Auto })
    };
    let devices = [
        DeviceSpec::Ram { size: SIZE as u64 },
        DeviceSpec::Paced { size: SIZE as u64, pace },
        file("cached", Direct::Off),
        file("direct", Direct::Auto),
        soft(nvme_soft(BackingSpec::Ram { size: SIZE as u64 })),
        soft(over_a_file()),
    ];
    for spec in devices {
        let device = spec.open().unwrap();
        let mut driver = Driver::open(&device);
        let data = pattern(7, 128 << 10);
        // Up to 16 commands are in flight at a time, each with a list of stretches.
        for round in 0..40u64 {
            let write = command(Op::Write, round % 16 * (128 << 10), 128 << 10);
            driver.issue_scattered(write, &data, &[(4096, 0)]);
            if round % 16 == 15 {
                driver.finish();
            }
        }
        assert!(driver.finish().iter().all(|ended| ended.errno == 0), "{spec:?}");
        assert_eq!(driver.read(128 << 10, 128 << 10), data, "{spec:?}");
        for (offset, length, stretches) in [
            (128 << 10, 128 << 10, &[(4096, 0)][..]),
            (512, 9000, &[(1000, 0)]),
            (8192, 3 * 4096, &[(4096, 0), (4096, 8)]),
            (0, 64_000, &[(64, 3)]),
        ] {
            let written = pattern(offset as u8 + 9, length as usize);
            driver.issue_scattered(command(Op::Write, offset, length), &written, stretches);
            assert_eq!(driver.finish()[0].errno, 0, "{spec:?} {stretches:?}");
            assert_eq!(driver.read(offset, length), written, "{spec:?} {stretches:?}");
            driver.issue_scattered(command(Op::Read, offset, length), &[], stretches);
            assert_eq!(driver.finish()[0].data, written, "{spec:?} {stretches:?}");
        }
    }
}

/// Turns some successful results of the kernel into `EAGAIN` or `EINTR`, and shortens some others
/// to whole blocks.
fn troubled(seed: u64) -> Tamper {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Box::new(move |event| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let result = match state >> 60 {
            0 if event.result >= 0 => -libc::EAGAIN,
            1 if event.result >= 0 => -libc::EINTR,
            2..=5 if event.result >= 1024 => event.result / 2 / 512 * 512,
            _ => event.result,
        };
        Event { result, ..event }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn ram_is_an_array(batches in batches()) {
        compare(&DeviceSpec::Ram { size: SIZE as u64 }.open().unwrap(), &batches, None);
    }

    #[test]
    fn paced_is_an_array(batches in batches()) {
        let pace = Pace { iops: 100_000, bandwidth: 1 << 30, latency_ns: 80_000, parallelism: 4 };
        compare(&DeviceSpec::Paced { size: SIZE as u64, pace }.open().unwrap(), &batches, None);
    }

    #[test]
    fn a_file_through_the_page_cache_is_an_array(batches in batches()) {
        let scratch = scratch();
        let device = file_spec(scratch.path().join("disk"), SIZE as u64, Direct::Off).open().unwrap();
        compare(&device, &batches, None);
    }

    #[test]
    fn a_file_past_the_page_cache_is_an_array(batches in batches()) {
        let scratch = scratch();
        let device = file_spec(scratch.path().join("disk"), SIZE as u64, Direct::Auto).open().unwrap();
        compare(&device, &batches, None);
    }

    #[test]
    fn short_and_interrupted_system_calls_are_not_seen(batches in batches(), direct in any::<bool>()) {
        let scratch = scratch();
        let direct = if direct { Direct::Auto } else { Direct::Off };
        let device = file_spec(scratch.path().join("disk"), SIZE as u64, direct).open().unwrap();
        compare(&device, &batches, Some(troubled));
    }

    #[test]
    fn nvme_soft_over_ram_is_an_array(batches in batches(), queues in 3..=9u16, is_timed in any::<bool>()) {
        let profile = fairq_device::Profile::named("z-ssd").unwrap();
        let state = fairq_device::State::Steady;
        let timing = is_timed.then_some(Timing { profile, state, slowdown: 1 });
        let spec = NvmeSoftSpec { queues, timing, ..nvme_soft(BackingSpec::Ram { size: SIZE as u64 }) };
        compare(&DeviceSpec::NvmeSoft(Box::new(spec)).open().unwrap(), &batches, None);
    }

    #[test]
    fn nvme_soft_over_a_file_is_an_array(batches in batches(), queues in 3..=9u16, is_core in any::<bool>()) {
        let scratch = scratch();
        let files = vec![FileSpec::new(scratch.path().join("disk"), Some(SIZE as u64))];
        let backing = BackingSpec::File { files, direct: Direct::Auto };
        let poller = if is_core { Poller::Core } else { Poller::Inline };
        let spec = NvmeSoftSpec { queues, poller, ..nvme_soft(backing) };
        compare(&DeviceSpec::NvmeSoft(Box::new(spec)).open().unwrap(), &batches, None);
    }
}
