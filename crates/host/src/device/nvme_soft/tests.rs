//! The properties of the software controller that other devices lack: classes, weights, shared
//! queues.

use fairq_core::{Class, ClassWeights, Op};
use fairq_device::{Profile, State};

use super::*;
use crate::device::harness::{Driver as Harness, command, place};
use crate::device::nvme::spec::{Sqe, admin, feature};
use crate::device::tests::nvme_soft;
use crate::device::{Command, Queue};

const SIZE: u64 = 16 << 20;

fn ram() -> NvmeSoftSpec {
    nvme_soft(BackingSpec::Ram { size: SIZE })
}

fn timed(window: u16) -> NvmeSoftSpec {
    let profile = Profile::named("z-ssd").unwrap();
    let timing = Some(Timing { profile, state: State::Fresh, slowdown: 1 });
    NvmeSoftSpec { timing, window, ..ram() }
}

fn weights(high: u16, medium: u16, low: u16) -> ClassWeights {
    ClassWeights { high, medium, low }
}

/// The weights that the controller reports: high, medium and low.
fn weights_of(device: &NvmeSoft) -> [u32; 3] {
    let get =
        Sqe { opcode: admin::GET_FEATURES, cdw10: feature::ARBITRATION.into(), ..Sqe::default() };
    let cdw11 = device.shared.driver().command(&device.shared, "Get Features", get).unwrap();
    [24, 16, 8].map(|shift| (cdw11 >> shift & 0xff) + 1)
}

#[test]
fn weights_are_set_checked_and_set_again_after_a_reset() {
    let device = NvmeSoft::open(&ram()).unwrap();
    assert!(device.info().has_classes);
    device.set_class_weights(weights(256, 16, 1)).unwrap();
    assert_eq!(weights_of(&device), [256, 16, 1]);
    device.reset().unwrap();
    assert_eq!(weights_of(&device), [256, 16, 1]);
    assert!(device.set_class_weights(weights(257, 1, 1)).is_err());
    assert!(device.set_class_weights(weights(1, 0, 1)).is_err());
    assert_eq!(weights_of(&device), [256, 16, 1]);
    let harness = Harness::open(&device);
    device.set_class_weights(weights(9, 3, 1)).unwrap();
    assert_eq!(weights_of(&device), [9, 3, 1], "while a shard is there");
    assert!(device.reset().unwrap_err().to_string().contains("close them first"));
    drop(harness);
    device.reset().unwrap();
    let plain = NvmeSoft::open(&NvmeSoftSpec { wrr: false, ..ram() }).unwrap();
    assert!(!plain.info().has_classes);
    let error = plain.set_class_weights(weights(9, 3, 1)).unwrap_err();
    assert!(
        error.kind() == io::ErrorKind::Unsupported && error.to_string().contains("CAP.AMS"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_opened_says_why() {
    let refusal = |spec: NvmeSoftSpec| NvmeSoft::open(&spec).map(|_| ()).unwrap_err().to_string();
    assert!(refusal(NvmeSoftSpec { queues: 2, ..ram() }).contains("choose 3 to 61"));
    assert!(refusal(NvmeSoftSpec { window: 0, ..ram() }).contains("choose 1 to 4096"));
    assert!(refusal(nvme_soft(BackingSpec::Ram { size: 1000 })).contains("blocks of 512"));
    let device = NvmeSoft::open(&ram()).unwrap();
    let mut ring = Ring::new(0).unwrap();
    let first = device.open_queue(&place(0, 2), &mut ring).unwrap();
    let twice = device.open_queue(&place(0, 2), &mut ring).map(|_| ()).unwrap_err();
    assert!(twice.to_string().contains("has its queue already"), "{twice}");
    let other = device.open_queue(&place(0, 3), &mut ring).map(|_| ()).unwrap_err();
    assert!(other.to_string().contains("another number of shards"), "{other}");
    drop(first);
    drop(device.open_queue(&place(2, 3), &mut ring).unwrap());
}

/// High, medium and low, backlogged by far more than their queues have slots for: they share as the
/// weights say, what has no slot waits in its class, and everything ends.
#[test]
fn classes_share_by_weight_and_keep_to_themselves() {
    const EACH: usize = 2500;
    let device = NvmeSoft::open(&timed(4)).unwrap();
    device.set_class_weights(weights(8, 4, 1)).unwrap();
    let mut harness = Harness::open(&device);
    for index in 0..EACH as u64 {
        for class in [Class::Low, Class::Medium, Class::High] {
            let read = Command { class, ..command(Op::Read, index % 1000 * 4096, 512) };
            harness.issue(read, &[], 0);
        }
    }
    let (mut done, mut total) = ([0usize; 3], 0);
    let mut at_two_thousand = None;
    while harness.is_busy() {
        for ended in harness.turn() {
            assert_eq!(ended.errno, 0);
            done[ended.command.class as usize - 1] += 1;
            total += 1;
            if done[0] == 2000 && at_two_thousand.is_none() {
                at_two_thousand = Some(done);
            }
        }
    }
    assert_eq!(total, 3 * EACH);
    let [_, medium, low] = at_two_thousand.expect("high ones were done");
    assert!(
        (980..=1020).contains(&medium) && (240..=260).contains(&low),
        "{medium} and {low} for 1000 and 250"
    );
}

/// A batch rings the doorbell of each queue that it put something in, not only of the last.
#[test]
fn every_doorbell_is_rung_at_the_end_of_a_batch() {
    let device = NvmeSoft::open(&ram()).unwrap();
    let mut harness = Harness::open(&device);
    let classes = [Class::Low, Class::High, Class::Urgent, Class::Medium];
    for class in classes {
        harness.issue(Command { class, ..command(Op::Read, 0, 512) }, &[], 0);
    }
    assert_eq!(harness.turn().len(), classes.len());
}

/// The urgent class goes before all others.
#[test]
fn urgent_commands_go_first() {
    let device = NvmeSoft::open(&timed(1)).unwrap();
    let mut harness = Harness::open(&device);
    for class in [Class::High, Class::Low, Class::Urgent, Class::Medium, Class::Urgent] {
        harness.issue(Command { class, ..command(Op::Read, 0, 512) }, &[], 0);
    }
    let order: Vec<Class> = harness.finish().into_iter().map(|ended| ended.command.class).collect();
    assert_eq!(order[..2], [Class::Urgent, Class::Urgent], "{order:?}");
}

/// Shards that share a set leave each other's completions in its mailbox.
#[test]
fn shards_that_share_a_set_get_their_own_completions() {
    let device = NvmeSoft::open(&NvmeSoftSpec { queues: 3, ..ram() }).unwrap();
    let mut drivers: Vec<Harness<NvmeQueue>> =
        (0..3).map(|port| Harness::open_at(&device, &place(port, 3))).collect();
    for (index, driver) in drivers.iter_mut().enumerate() {
        driver.issue(command(Op::Write, index as u64 * 4096, 4096), &[index as u8 + 1; 4096], 0);
        driver.queue.ring(0, &mut driver.ring, &mut PortSet::default());
    }
    // The last one takes all there is, and keeps only its own.
    assert_eq!(drivers[2].turn().len(), 1);
    assert!(
        drivers[..2].iter().all(|driver| driver.queue.deadline_ns() == Some(0)),
        "mail is waiting"
    );
    assert!(drivers[..2].iter_mut().all(|driver| driver.turn().len() == 1));
    assert_eq!(drivers[0].read(4096, 4096), [2; 4096]);
}
