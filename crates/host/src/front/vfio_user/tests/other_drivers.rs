//! Drivers in user space: clients that map the doorbells, and the commands that their test suites
//! send.

use std::time::Duration;

use super::*;
use crate::front::vfio_user::framing;

impl Client {
    /// Begins as a client that knows no capabilities, and maps the doorbells of BAR 0.
    pub(super) fn map_doorbells(&mut self) -> Guest {
        self.call(command::VERSION, &[0; 4], &[]).unwrap();
        let mut ask = [0; 1024];
        ask[..4].copy_from_slice(&1024u32.to_ne_bytes());
        self.send(command::GET_REGION_INFO, 0, &ask, &[]);
        let (mut reply, mut files) = ([0; 80], Vec::new());
        let length = socket::receive(&self.0, &mut reply, &mut files, 1).unwrap();
        let words: Vec<u32> = (0..20).map(|at| framing::word(&reply, 4 * at)).collect();
        assert_eq!((length, words[1], words[2]), (80, 80, 1));
        assert_eq!(
            words[4..],
            [64, 15, 0, 32, BAR as u32, 0, 0, 0, 0x1_0001, 0, 1, 0, 0x1000, 0, 0x1000, 0]
        );
        let plan = Plan { guest: 0, size: PAGE, user: 0, offset: 0x1000 };
        Guest::map([(plan, files.pop().unwrap())]).unwrap()
    }
}

/// Doorbells in a mapped page reach the admin queue and queues on each shard, whether the server is
/// busy or has slept for long; others keep their messages.
#[test]
fn doorbells_may_be_mapped() {
    for (shards, poll) in [(1, Poll::Never), (2, Poll::Auto), (1, Poll::Always)] {
        let host = Host::start(shards, poll);
        let mut other = host.boot();
        let mut client = Client(host.connect(false));
        let page = client.map_doorbells();
        let mut machine = Machine::start(client, 0, Some(page));
        for _ in 0..2 {
            assert_eq!(machine.create(4, 0, 0), Status::SUCCESS);
        }
        for cid in 0..50 {
            if cid % 25 == 0 {
                // The longest nap begins after twice its length.
                std::thread::sleep(Duration::from_millis(20));
            }
            let pair = usize::from(cid % 2);
            machine.push(pair, transfer(nvm::WRITE, cid, cid.into(), 1, DATA));
            assert_eq!(machine.pop(pair).status, Status::SUCCESS);
        }
        // A write by a message is not refused.
        let tail = machine.pairs[0].sq.push(&transfer(nvm::READ, 99, 0, 1, DATA));
        machine.client.set(register::DOORBELLS + 8, tail.into());
        assert_eq!(machine.pop(0).cid, 99);
        assert_eq!(other.create(4, 0, 0), Status::SUCCESS);
        assert_eq!(other.io(transfer(nvm::READ, 1, 0, 1, DATA)), Status::SUCCESS);
        // After a reset, the doorbells of the page are zero.
        machine.client.set(register::CC, 0);
        machine.enable();
        assert_eq!(machine.create(4, 0, 0), Status::SUCCESS);
        assert_eq!(machine.io(transfer(nvm::READ, 2, 0, 1, DATA)), Status::SUCCESS);
        drop((machine, other));
        host.stop();
    }
}

#[test]
fn features_and_namespaces_that_are_not_there_have_the_specified_answers() {
    let host = Host::start(1, Poll::Never);
    let mut machine = host.boot();
    let identify = |nsid| Sqe { opcode: admin::IDENTIFY, nsid, data: [DATA, 0], ..Sqe::default() };
    for nsid in [0, 2, NSID_ALL] {
        assert_eq!(machine.admin(identify(nsid)).status, Status::INVALID_NAMESPACE);
    }
    let feature = |opcode, id: u8, select: u32, cdw11| {
        let cdw10 = u32::from(id) | select << 8;
        Sqe { opcode, cdw10, cdw11, data: [DATA, 0], ..Sqe::default() }
    };
    let get = |id, select| feature(admin::GET_FEATURES, id, select, 0);
    let set = |id, cdw11| feature(admin::SET_FEATURES, id, 0, cdw11);
    let (timer, behavior) = (feature::KEEP_ALIVE, feature::HOST_BEHAVIOR);
    let cqe = machine.admin(get(timer, 0));
    assert_eq!((cqe.status, cqe.result), (Status::SUCCESS, 0));
    assert_eq!(machine.admin(set(timer, 0)).status, Status::SUCCESS);
    assert_eq!(machine.admin(set(timer, 1000)).status, Status::INVALID_FIELD);
    machine.fill(DATA, &[1; 512]);
    assert_eq!(machine.admin(set(behavior, 0)).status, Status::SUCCESS);
    for (select, value) in [(1, 0), (0, 1)] {
        machine.fill(DATA, &[9; 513]);
        assert_eq!(machine.admin(get(behavior, select)).status, Status::SUCCESS);
        assert_eq!(machine.bytes(DATA, 513), [&[value; 512][..], &[9]].concat());
    }
    let nowhere = Sqe { data: [0, 0], ..set(behavior, 0) };
    assert_eq!(machine.admin(nowhere).status, Status::DATA_TRANSFER);
    drop(machine);
    host.stop();
}
