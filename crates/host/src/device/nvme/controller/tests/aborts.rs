//! Aborts, and event requests, which wait until they are aborted.

use super::*;

fn abort(sqid: u16, cid: u16, own: u16) -> Sqe {
    Sqe {
        opcode: admin::ABORT,
        cid: own,
        cdw10: u32::from(cid) << 16 | u32::from(sqid),
        ..Sqe::default()
    }
}

/// Sends admin commands whose answers may come later.
fn ask(foreign: &mut Foreign, sqes: &[Sqe]) {
    let tail = sqes.iter().map(|sqe| foreign.admin.sq.push(sqe)).last().expect("there is one");
    foreign.doorbell(0, false, tail);
    foreign.poll();
}

/// The completions of admin commands: identifier, status, result.
fn answers(foreign: &mut Foreign) -> Vec<(u16, Status, u32)> {
    let answers = std::iter::from_fn(|| foreign.admin.cq.pop())
        .map(|cqe| (cqe.cid, cqe.status, cqe.result))
        .collect();
    foreign.doorbell(0, true, foreign.admin.cq.head());
    answers
}

#[test]
fn a_command_that_waits_is_aborted_and_one_that_was_fetched_is_not() {
    let mut foreign = Foreign::with_pairs(timed(2), &[16, 16]);
    let tail = (0..6).map(|cid| foreign.push(0, read(cid, 0))).last().unwrap();
    foreign.ring(0, tail);
    foreign.poll();
    // 0 and 1 are in the window; 9 is nowhere; queue 2 is empty, and there is no queue 7.
    let unknown = [abort(1, 1, 0x11), abort(1, 9, 0x12), abort(2, 3, 0x13), abort(7, 3, 0x14)];
    ask(&mut foreign, &unknown);
    let not_aborted = |cid: u16| (cid, Status::SUCCESS, 1);
    assert_eq!(answers(&mut foreign), [0x11, 0x12, 0x13, 0x14].map(not_aborted));
    ask(&mut foreign, &[abort(1, 3, 0x21), abort(1, 5, 0x22), abort(1, 3, 0x23)]);
    assert_eq!(
        answers(&mut foreign),
        [not_aborted(0x23)],
        "one Abort is enough, and their commands come first"
    );
    let mut ended = Vec::new();
    while ended.len() < 6 {
        run_out(&mut foreign);
        while let Some(cqe) = foreign.pop(0) {
            ended.push((cqe.cid, cqe.status));
        }
    }
    ended.sort_unstable_by_key(|&(cid, _)| cid);
    let [well, aborted] = [Status::SUCCESS, Status::ABORT_REQUESTED];
    assert_eq!(ended, [(0, well), (1, well), (2, well), (3, aborted), (4, well), (5, aborted)]);
    assert_eq!(answers(&mut foreign), [(0x21, well, 0), (0x22, well, 0)]);
    let smart = Sqe {
        opcode: admin::GET_LOG_PAGE,
        cdw10: 127 << 16 | u32::from(log::SMART),
        nsid: u32::MAX,
        data: [DATA, 0],
        ..Sqe::default()
    };
    assert_eq!(foreign.admin(smart).status, Status::SUCCESS);
    assert_eq!(
        foreign.bytes(DATA + 64, 8),
        4u64.to_le_bytes(),
        "what was aborted was not carried out"
    );
}

#[test]
fn aborts_that_wait_are_limited_and_end_with_their_queue() {
    let mut foreign = Foreign::with_pairs(timed(1), &[16]);
    let tail = (0..8).map(|cid| foreign.push(0, read(cid, 0))).last().unwrap();
    foreign.ring(0, tail);
    foreign.poll();
    let aborts: Vec<Sqe> = (1..6).map(|cid| abort(1, cid, 0x30 + cid)).collect();
    ask(&mut foreign, &aborts);
    assert_eq!(answers(&mut foreign), [(0x35, Status::ABORT_LIMIT, 0)]);
    ask(&mut foreign, &[Sqe { opcode: admin::DELETE_SQ, cid: 9, cdw10: 1, ..Sqe::default() }]);
    run_out(&mut foreign);
    let mut ended: Vec<u16> = answers(&mut foreign)
        .into_iter()
        .map(|(cid, status, _)| {
            assert_eq!(status, Status::SUCCESS);
            cid
        })
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, [9, 0x31, 0x32, 0x33, 0x34]);
    assert_eq!(std::iter::from_fn(|| foreign.pop(0)).count(), 1, "the one that was fetched");
}

#[test]
fn an_event_request_is_aborted_at_once() {
    let mut foreign = Foreign::new(options());
    ask(&mut foreign, &[Sqe { opcode: admin::ASYNC_EVENT_REQUEST, cid: 3, ..Sqe::default() }]);
    assert_eq!(answers(&mut foreign), []);
    ask(&mut foreign, &[abort(0, 3, 4), abort(0, 3, 5)]);
    let well = Status::SUCCESS;
    assert_eq!(
        answers(&mut foreign),
        [(3, Status::ABORT_REQUESTED, 0), (4, well, 0), (5, well, 1)]
    );
}

#[test]
fn event_requests_are_kept_up_to_a_limit() {
    let mut foreign = Foreign::new(options());
    for cid in 0..5 {
        let tail = foreign.admin.sq.push(&Sqe {
            opcode: admin::ASYNC_EVENT_REQUEST,
            cid,
            ..Sqe::default()
        });
        foreign.doorbell(0, false, tail);
        foreign.poll();
    }
    let answer = foreign.admin.cq.pop();
    assert_eq!(answer.map(|cqe| (cqe.cid, cqe.status)), Some((4, Status::AER_LIMIT)));
}
