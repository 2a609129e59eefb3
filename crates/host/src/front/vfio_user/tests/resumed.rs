//! A controller between two programs.

use std::sync::mpsc::channel;

use super::*;
use crate::device::paced::Pace;
use crate::front::vfio_user::left_controller::LeftController;
use crate::shard::halt::Halt;

/// Commands that wait for the device, some of them in part, when the shards stand still: the next
/// program completes each one once, and has the queues and features of the guest, and the doorbells
/// that its client has mapped.
#[test]
fn a_controller_goes_on_in_the_next_program() {
    [false, true].into_iter().for_each(goes_on);
}

fn goes_on(is_mapped: bool) {
    let pace = Pace { bandwidth: 64 << 20, ..Pace::default() };
    let host = || Host::of(2, Poll::Auto, &DeviceSpec::Paced { size: DISK, pace }, |_| None);
    let (before, next) = (host(), host());
    let mut client = Client(before.connect(false));
    let mut machine = match is_mapped {
        true => {
            let page = client.map_doorbells();
            Machine::start(client, 0, Some(page))
        }
        false => Machine::boot(client.0, 0),
    };
    let call = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let body = [20u32, 4 | 32, 2, 1, 1].map(u32::to_ne_bytes).concat();
    machine.client.call(command::SET_IRQS, &body, &[call.as_fd()]).unwrap();
    let (opcode, cdw10) = (admin::SET_FEATURES, feature::ARBITRATION.into());
    let weights = Sqe { opcode, cdw10, cdw11: 8 << 24 | 2 << 16, ..Sqe::default() };
    assert_eq!(machine.admin(weights).status, Status::SUCCESS);
    for vector in [1, 0] {
        assert_eq!(machine.create(64, vector, 0), Status::SUCCESS);
    }
    let commands = 40;
    for cid in 0..commands {
        let mut read = transfer(nvm::READ, cid, 0, 2048, 0);
        read.point_sgl(DATA, 1 << 20);
        machine.push(usize::from(cid % 2), read);
    }
    let mut done = vec![0; commands.into()];
    done[usize::from(machine.pop(0).cid)] += 1;
    // The shards stand still.
    let (reply, halted) = channel();
    before.send(|| Message::Halt(Halt::new(reply.clone())));
    let shards = [(); 2].map(|()| halted.recv_timeout(PATIENCE).unwrap());
    assert_ne!(shards[0], shards[1]);
    while let Some(cqe) = machine.try_pop(1) {
        done[usize::from(cqe.cid)] += 1;
    }
    let paused = before.controllers.pause();
    let over = paused.with_states(PATIENCE, |left| {
        let text = serde_json::to_value(&left()[0]).unwrap();
        let begun = text["queues"]["sqs"].as_array().unwrap().iter();
        let begun = begun.map(|sq| sq["begun"].as_array().unwrap().len()).sum::<usize>();
        assert!(begun > 0, "all commands have ended");
        let left: LeftController = serde_json::from_value(text).unwrap();
        // SAFETY: the descriptors are open as long as the sessions of the first host.
        let open = |fd| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        let (disk, send, place) = next.parts(false);
        next.controllers.resume(left, open, disk, 2, send, place).unwrap();
        while done.iter().sum::<u16>() < commands {
            for pair in 0..2 {
                while let Some(cqe) = machine.try_pop(pair) {
                    assert_eq!(cqe.status, Status::SUCCESS);
                    done[usize::from(cqe.cid)] += 1;
                }
            }
            std::thread::yield_now();
        }
        assert!(done.iter().all(|&times| times == 1), "{done:?}");
        assert!(rustix::io::read(&call, &mut [0; 8]).is_ok(), "no interrupt");
        // The queues go on where they were, and there are new ones.
        for cid in 0..200 {
            assert_eq!(machine.io(transfer(nvm::READ, cid, 0, 8, DATA)), Status::SUCCESS);
        }
        let feature = Sqe { opcode: admin::GET_FEATURES, ..weights };
        assert_eq!(machine.admin(feature).result, weights.cdw11);
        assert_eq!(machine.create(8, 0, 0), Status::SUCCESS);
        machine.push(2, transfer(nvm::READ, 1, 0, 8, DATA));
        assert_eq!(machine.pop(2).status, Status::SUCCESS);
        drop(machine);
    });
    assert!(over.is_some(), "the session is busy");
    before.give_up();
    next.stop();
}

impl Host {
    /// Ends the program that stood still. It would go on with doorbells that the next one has read,
    /// and its sessions send nothing to shards that end.
    fn give_up(&self) {
        let shards = self.shards.lock().unwrap().take().unwrap();
        for shard in 0..self.count {
            shards.send(shard, Message::Notice(Notice::HangUp));
            shards.send(shard, Message::GoOn);
        }
        shards.stop();
    }
}
