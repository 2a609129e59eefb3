//! The order in which a controller fetches commands.

use super::*;
use crate::device::nvme::spec::CC_WRR;

fn set_weights(machine: &mut Machine, cdw11: u32) {
    let (opcode, cdw10) = (admin::SET_FEATURES, feature::ARBITRATION.into());
    let weights = Sqe { opcode, cdw10, cdw11, ..Sqe::default() };
    assert_eq!(machine.admin(weights).status, Status::SUCCESS);
}

/// Three submission queues of the classes high, medium and low, with one completion queue.
fn with_classes(stream: UnixStream, mechanism: u32, cdw11: u32, entries: u16) -> Machine {
    let mut machine = Machine::boot(stream, mechanism);
    machine.use_shadow();
    set_weights(&mut machine, cdw11);
    assert_eq!(machine.create((4 * entries).min(4096), 0, 1), Status::SUCCESS);
    for (id, qprio) in [(2, 2), (3, 3)] {
        let at = machine.free;
        machine.free += u64::from(entries) * 64;
        let (opcode, cdw10) = (admin::CREATE_SQ, u32::from(entries - 1) << 16 | id);
        let cdw11 = 1 << 16 | qprio << 1 | 1;
        let create = Sqe { opcode, cdw10, cdw11, data: [at, 0], ..Sqe::default() };
        assert_eq!(machine.admin(create).status, Status::SUCCESS);
        // Its completions go to the first one's queue; this place for them stays empty.
        machine.pairs.push(pair(&machine.memory, id as u16, at, at + (8 << 20) / 4, entries));
    }
    machine
}

/// Puts this many reads in a queue.
fn fill(machine: &mut Machine, place: usize, commands: u16) {
    for cid in 0..commands {
        let read = transfer(nvm::READ, cid, u32::from(cid) * 8, 8, DATA);
        let tail = machine.pairs[place].sq.push(&read);
        machine.set_shadow(2 * (place as u32 + 1), tail);
    }
}

/// A controller over a whole device like a Z-SSD, only slower: commands wait in their queues while
/// the device has as many as its window. Three classes have the shares of their weights within
/// 3 %, and equal ones without weighted round robin.
#[test]
fn a_whole_device_arbitrates_like_a_drive() {
    let (slowdown, window, commands) = (30, 64, 2000u16);
    let weights = 8 << 24 | 2 << 16;
    for (mechanism, shares) in [(CC_WRR, [9, 3, 1]), (0, [1, 1, 1])] {
        let profile = Profile::named("z-ssd").unwrap();
        let timing = Some(Timing { profile, state: State::Fresh, slowdown });
        let (backing, poller) = (BackingSpec::Ram { size: DISK }, Poller::Inline);
        let host =
            Host::whole(NvmeSoftSpec { backing, timing, window, queues: 8, wrr: true, poller });
        let mut machine = with_classes(host.connect(false), mechanism, weights, 2048);
        let since = Instant::now();
        // The lowest class has the device for itself, and then the others come.
        fill(&mut machine, 2, commands);
        machine.client.set(register::DOORBELLS + 4 * 6, commands.into());
        let mut done = [0u32; 3];
        let next = |machine: &mut Machine, done: &mut [u32; 3]| {
            let cqe = machine.pop(0);
            assert_eq!(cqe.status, Status::SUCCESS);
            done[usize::from(cqe.sqid) - 1] += 1;
        };
        (0..10).for_each(|_| next(&mut machine, &mut done));
        (0..2).for_each(|place| fill(&mut machine, place, commands));
        machine.client.set(register::DOORBELLS + 4 * 2, commands.into());
        while let Some(cqe) = machine.try_pop(0) {
            done[usize::from(cqe.sqid) - 1] += 1;
        }
        let before = done[2];
        while done[0] == 0 {
            next(&mut machine, &mut done);
        }
        // A turn of the shard may have fetched some between the doorbell and the last completion.
        let waited = done[2].saturating_sub(before);
        assert!(waited <= u32::from(window) + 32, "{waited} commands went before the first one");
        while done[0] < 100 {
            next(&mut machine, &mut done);
        }
        // As long as this, all classes have commands.
        let start = done;
        while done[0] < u32::from(commands) * 3 / 4 {
            next(&mut machine, &mut done);
        }
        let took = since.elapsed();
        let counted = [0, 1, 2].map(|class| done[class] - start[class]);
        let (all, total) = (counted.iter().sum::<u32>(), shares.iter().sum::<u32>());
        for (counted, share) in counted.into_iter().zip(shares) {
            let theory = share * all / total;
            assert!(
                counted.abs_diff(theory) * 100 <= 3 * theory,
                "{counted} for {theory} of {all}"
            );
        }
        // The drive reads 750,000 times a second.
        let each = Duration::from_nanos(1_000_000 / 750 * u64::from(slowdown));
        let least = each * done.iter().sum::<u32>() * 98 / 100;
        assert!(took >= least, "{done:?} took {took:?}, and a drive takes {least:?}");
        drop(machine);
        host.stop();
    }
}

/// Commands of three classes, all there before the first is fetched: they are carried out in the
/// order of weighted round robin, as one completion queue shows; the ones that end together, at
/// most a batch of the shard, are answered in any order.
#[test]
fn queues_have_classes_if_the_guest_wants_that() {
    let host = Host::start(2, Poll::Never);
    let weights = 8 << 24 | 2 << 16 | 7;
    let mut machine = with_classes(host.connect(false), CC_WRR, weights, 256);
    // The group sleeps: it has written its event indexes, and has taken a message after that.
    let event = |machine: &Machine| PAGES + PAGE + 4 * 2 * machine.pairs.len() as u64;
    machine.word(event(&machine)).store(99, Ordering::SeqCst);
    machine.client.set(register::DOORBELLS + 8, 0);
    let since = Instant::now();
    while machine.word(event(&machine)).load(Ordering::SeqCst) != 0 {
        assert!(since.elapsed() < PATIENCE, "the group does not sleep");
        std::thread::yield_now();
    }
    set_weights(&mut machine, weights);
    let commands = 255;
    (0..3).for_each(|place| fill(&mut machine, place, commands));
    // One write wakes the group, which finds all tails.
    machine.client.set(register::DOORBELLS + 8, commands.into());
    let mut fetched = [0u32; 3];
    for turn in 1..=3 * u32::from(commands) {
        let cqe = machine.pop(0);
        assert_eq!(cqe.status, Status::SUCCESS);
        fetched[usize::from(cqe.sqid) - 1] += 1;
        if turn <= 13 * 28 {
            for (fetched, share) in fetched.iter().zip([9, 3, 1]) {
                assert!(fetched.abs_diff(share * turn / 13) <= 12, "{fetched} of {turn}");
            }
        }
    }
    assert_eq!(fetched, [255; 3]);
    drop(machine);
    host.stop();
}
