//! Interrupts of a guest that does not read its eventfds.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// The largest number of writes of a vector under way, and the one that follows them.
const MOST: u64 = 17;

impl Client {
    fn set_vector(&mut self, vector: u32, call: &OwnedFd) {
        let body = [20u32, 4 | 32, 2, vector, 1].map(u32::to_ne_bytes).concat();
        self.call(command::SET_IRQS, &body, &[call.as_fd()]).unwrap();
    }

    /// Interrupts the guest.
    fn trigger(&mut self, vector: u32) {
        let body = [20u32, 1 | 32, 2, vector, 1].map(u32::to_ne_bytes).concat();
        self.call(command::SET_IRQS, &body, &[]).unwrap();
    }
}

/// An eventfd that makes each writer wait.
fn full() -> OwnedFd {
    let call = eventfd(0, EventfdFlags::empty()).unwrap();
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    call
}

/// The events of an eventfd; waits for the first one.
fn read(call: &OwnedFd) -> u64 {
    let patience = Timespec::try_from(PATIENCE).unwrap();
    let ready = poll(&mut [PollFd::new(call, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ready, 1, "no interrupt");
    let mut count = [0; 8];
    rustix::io::read(call, &mut count).unwrap();
    u64::from_ne_bytes(count)
}

/// Interrupts for completions of I/O commands and of admin commands, and interrupts that the
/// monitor triggers: each of them once made another write wait in the kernel.
#[test]
fn interrupts_that_a_guest_does_not_take_are_bounded_and_none_is_lost() {
    let host = Host::start(1, Poll::Never);
    let mut machine = host.boot();
    let [of_admin, of_queue] = [(); 2].map(|()| full());
    machine.client.set_vector(0, &of_admin);
    machine.client.set_vector(1, &of_queue);
    assert_eq!(machine.create(64, 1, 0), Status::SUCCESS);
    let get = Sqe { opcode: admin::GET_FEATURES, cdw10: 1, ..Sqe::default() };
    for cid in 0..300 {
        assert_eq!(machine.io(transfer(nvm::READ, cid, 0, 1, DATA)), Status::SUCCESS);
        assert_eq!(machine.admin(Sqe { cid, ..get }).status, Status::SUCCESS);
        machine.client.trigger(0);
        machine.client.trigger(1);
    }
    // The guest reads its events: the writes that waited end, and each later event comes.
    let (mut admin_events, mut events) = (0, 0);
    assert_eq!([&of_admin, &of_queue].map(read), [u64::MAX - 1; 2]);
    for cid in 0..100 {
        assert_eq!(machine.io(transfer(nvm::READ, cid, 0, 1, DATA)), Status::SUCCESS);
        events += read(&of_queue);
        assert_eq!(machine.admin(Sqe { cid, ..get }).status, Status::SUCCESS);
        admin_events += read(&of_admin);
    }
    assert!(events <= 100 + MOST && admin_events <= 100 + MOST, "{events}, {admin_events}");
    drop(machine);
    host.stop();
}

/// A queue is deleted, a vector gets another eventfd, and a client goes, while writes wait.
#[test]
fn another_eventfd_gets_the_interrupts_for_which_the_old_one_has_no_room() {
    let host = Host::start(2, Poll::Auto);
    let mut machine = host.boot();
    let delete = |opcode, id| Sqe { opcode, cdw10: id, ..Sqe::default() };
    for _ in 0..3 {
        machine.client.set_vector(1, &full());
        assert_eq!(machine.create(8, 1, 0), Status::SUCCESS);
        for cid in 0..40 {
            assert_eq!(machine.io(transfer(nvm::READ, cid, 0, 1, DATA)), Status::SUCCESS);
        }
        let call = eventfd(0, EventfdFlags::empty()).unwrap();
        machine.client.set_vector(1, &call);
        // More commands than events that stand for those of the old eventfd.
        for cid in 0..5 {
            assert_eq!(machine.io(transfer(nvm::READ, cid, 0, 1, DATA)), Status::SUCCESS);
            assert!(read(&call) > 0);
        }
        machine.client.set_vector(1, &full());
        for cid in 0..40 {
            assert_eq!(machine.io(transfer(nvm::READ, cid, 0, 1, DATA)), Status::SUCCESS);
        }
        assert_eq!(machine.admin(delete(admin::DELETE_SQ, 1)).status, Status::SUCCESS);
        assert_eq!(machine.admin(delete(admin::DELETE_CQ, 1)).status, Status::SUCCESS);
        (machine.pairs, machine.free) = (Vec::new(), QUEUES);
    }
    drop(machine);
    let mut next = host.boot();
    let call = eventfd(0, EventfdFlags::empty()).unwrap();
    next.client.set_vector(1, &call);
    assert_eq!(next.create(8, 1, 0), Status::SUCCESS);
    assert_eq!(next.io(transfer(nvm::READ, 1, 0, 1, DATA)), Status::SUCCESS);
    assert!(read(&call) > 0);
    drop(next);
    host.stop();
}
