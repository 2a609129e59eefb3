//! The paper's rules, one by one, on the whole policy.

use std::vec::Vec;

use super::*;
use crate::{Cost, Next, Op, Outcome, Port, Request, SubmitError, Submitted, Tag};

const MS: u64 = 1_000_000;
const TOKENS: u64 = 4000;

/// One port, a flow of each weight, 4000 tokens a period, `busy` 1, and requests that cost their
/// length.
fn setup<const N: usize>(weights: [u16; N]) -> (KyberFair, Vec<KyberFairPort>, [FlowId; N]) {
    let config = KyberFairConfig {
        busy: 1,
        tokens: Totals::fixed(TOKENS),
        ..KyberFairConfig::new(2, N, 256)
    };
    let (policy, ports) = KyberFair::<Native>::new(&config).unwrap();
    let flows = weights.map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
    (policy, ports, flows)
}

fn submit(
    port: &mut KyberFairPort,
    tag: u32,
    flow: FlowId,
    op: Op,
    length: u32,
) -> Result<Submitted, SubmitError> {
    let cost = Cost::bytes(length.into());
    let request = Request { cost, ..Request::new(Tag(tag), flow, op, 0, length) };
    port.submit(0, &request, &mut { PortSet::EMPTY })
}

fn issue_all(port: &mut KyberFairPort, now_ns: u64) -> Vec<u32> {
    let mut issued = Vec::new();
    while let Next::Issue { tag, .. } = port.next(now_ns, &mut { PortSet::EMPTY }) {
        issued.push(tag.0);
    }
    issued
}

/// Lets the flows use up their tokens in one period, so that they count in the next, which begins
/// at `now_ns`, and bring no tokens into it.
fn warm_up(policy: &KyberFair, port: &mut KyberFairPort, flows: &[FlowId], now_ns: u64) {
    policy.tick(0, &mut { PortSet::EMPTY });
    for &flow in flows {
        let weight = policy.shared.flows.weight(flow).unwrap();
        // No flow was active, so the flow gets its weight's part of the largest weight (`NOBODY`).
        let share = tokens(policy).tokens * u64::from(weight.get()) / 10_000;
        submit(port, 0, flow, Op::Read, share as u32).unwrap();
        assert_eq!(issue_all(port, 0), [0]);
        port.complete(0, Tag(0), Outcome::Done, &mut { PortSet::EMPTY });
    }
    assert_eq!(policy.tick(now_ns, &mut { PortSet::EMPTY }), Some(now_ns + 100 * MS));
}

fn tokens<P: Policy>(policy: &P) -> TokenStats {
    policy.stats().tokens.expect("it hands out tokens")
}

#[test]
fn tokens_follow_weights_and_a_period_ends_when_all_have_run_out() {
    let (policy, mut ports, [a, b]) = setup([100, 300]);
    let port = &mut ports[0];
    warm_up(&policy, port, &[a, b], 100 * MS);
    let periods = tokens(&policy).periods;
    for tag in 0..20 {
        submit(port, tag, a, Op::Read, 200).unwrap();
    }
    // 1000 tokens: five requests; a sixth would be the next period's, which is not due while these
    // are on the device.
    assert_eq!(issue_all(port, 100 * MS).len(), 5);
    assert_eq!(port.next(100 * MS, &mut { PortSet::EMPTY }), Next::Blocked);
    for tag in 100..114 {
        submit(port, tag, b, Op::Read, 200).unwrap();
    }
    assert_eq!(issue_all(port, 100 * MS), (100..114).collect::<Vec<_>>());
    assert_eq!(tokens(&policy).periods, periods);
    // b has 200 tokens left. With these gone a new period begins at once, for both.
    (114..117).for_each(|tag| assert!(submit(port, tag, b, Op::Read, 200).is_ok()));
    let issued = issue_all(port, 100 * MS);
    assert_eq!(tokens(&policy).periods, periods + 1);
    assert!(issued.starts_with(&[114]) && issued.contains(&115) && issued.len() >= 6, "{issued:?}");
}

#[test]
fn a_period_ends_in_time_whoever_has_tokens_left() {
    let (policy, mut ports, [a, b]) = setup([100, 300]);
    let port = &mut ports[0];
    warm_up(&policy, port, &[a, b], 100 * MS);
    (0..20).for_each(|tag| assert!(submit(port, tag, a, Op::Read, 500).is_ok()));
    assert_eq!(issue_all(port, 100 * MS), [0, 1]);
    assert_eq!(issue_all(port, 200 * MS - 1), []);
    let wake = &mut { PortSet::EMPTY };
    assert_eq!(policy.tick(200 * MS - 1, wake), Some(200 * MS));
    assert!(wake.is_empty());
    assert_eq!(policy.tick(200 * MS, wake), Some(300 * MS));
    assert!(wake.contains(PortId(0)));
    // b was not active: a has all the tokens, and whenever it has run out all have, and a new
    // period begins.
    let periods = tokens(&policy).periods;
    assert_eq!(issue_all(port, 200 * MS).len(), 18);
    assert_eq!(tokens(&policy).periods, periods + 2);
}

#[test]
fn nobody_waits_beside_an_idle_device() {
    let (policy, mut ports, [a, b]) = setup([100, 10_000]);
    warm_up(&policy, &mut ports[0], &[a, b], 100 * MS);
    let [first, second] = &mut ports[..] else { panic!("two ports") };
    // b has one request at a time, and nearly all tokens.
    submit(second, 0, b, Op::Read, 10).unwrap();
    assert_eq!(issue_all(second, 100 * MS), [0]);
    (0..3).for_each(|tag| assert!(submit(first, tag, a, Op::Read, 4000).is_ok()));
    assert_eq!(issue_all(first, 100 * MS), [0]);
    first.complete(100 * MS, Tag(0), Outcome::Done, &mut { PortSet::EMPTY });
    assert_eq!(first.next(100 * MS, &mut { PortSet::EMPTY }), Next::Blocked, "b has the device");
    let wake = &mut { PortSet::EMPTY };
    second.complete(100 * MS, Tag(0), Outcome::Done, wake);
    assert_eq!(*wake, PortSet::only(PortId(0)));
    assert!(issue_all(first, 100 * MS).starts_with(&[1]), "whatever its debt is");
}

/// Ports of a and b sleep, and a's request is taken back before or after the device has run empty.
/// The port whose request was the last on the device wakes one sleeper. b's request is issued in
/// each case.
#[test]
fn a_port_that_has_taken_back_its_last_request_sleeps_for_nobody() {
    for is_late in [false, true] {
        let config = KyberFairConfig {
            busy: 1,
            tokens: Totals::fixed(TOKENS),
            ..KyberFairConfig::new(3, 3, 256)
        };
        let (policy, mut ports) = KyberFair::<Native>::new(&config).unwrap();
        let flows =
            [100, 100, 9800].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
        warm_up(&policy, &mut ports[0], &flows, 100 * MS);
        submit(&mut ports[2], 0, flows[2], Op::Read, 10).unwrap();
        assert_eq!(issue_all(&mut ports[2], 100 * MS), [0]);
        let wake = &mut { PortSet::EMPTY };
        for (port, flow) in ports.iter_mut().zip(flows).take(2) {
            (0..2).for_each(|tag| assert!(submit(port, tag, flow, Op::Read, 400).is_ok()));
            assert_eq!(issue_all(port, 100 * MS), [0]);
            port.complete(100 * MS, Tag(0), Outcome::Done, wake);
            assert_eq!(port.next(100 * MS, wake), Next::Blocked);
        }
        *wake = PortSet::EMPTY;
        if is_late {
            ports[2].complete(100 * MS, Tag(0), Outcome::Done, wake);
            assert_eq!(*wake, PortSet::only(PortId(0)), "one is enough");
        }
        assert!(ports[0].cancel(100 * MS, Tag(1), wake));
        if !is_late {
            ports[2].complete(100 * MS, Tag(0), Outcome::Done, wake);
        }
        assert!(wake.contains(PortId(1)), "{wake:?}");
        assert_eq!(ports[0].next(100 * MS, wake), Next::Idle);
        assert_eq!(issue_all(&mut ports[1], 100 * MS), [1]);
    }
}

/// a of weight 100 is out of tokens 10 ms into a period; b, which has nearly all, has as many
/// requests outstanding as keep the device `busy`. Gives a's port and b's.
fn out_of_tokens_beside(busy: u32, patience: u32) -> (KyberFair, [KyberFairPort; 2], FlowId) {
    let config = KyberFairConfig {
        busy,
        patience,
        tokens: Totals::fixed(TOKENS),
        ..KyberFairConfig::new(2, 2, 256)
    };
    let (policy, ports) = KyberFair::<Native>::new(&config).unwrap();
    let flows = [100, 3900].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
    let mut ports: [KyberFairPort; 2] = ports.try_into().ok().unwrap();
    warm_up(&policy, &mut ports[0], &flows, 100 * MS);
    (0..busy).for_each(|tag| assert!(submit(&mut ports[1], tag, flows[1], Op::Read, 10).is_ok()));
    assert_eq!(issue_all(&mut ports[1], 110 * MS).len(), busy as usize);
    (0..3).for_each(|tag| assert!(submit(&mut ports[0], tag, flows[0], Op::Read, 100).is_ok()));
    assert_eq!(issue_all(&mut ports[0], 110 * MS), [0], "100 tokens");
    ports[0].complete(110 * MS, Tag(0), Outcome::Done, &mut { PortSet::EMPTY });
    assert_eq!(
        ports[0].next(110 * MS, &mut { PortSet::EMPTY }),
        Next::Blocked,
        "b keeps the device busy"
    );
    (policy, ports, flows[1])
}

#[test]
fn a_moment_with_few_outstanding_ends_no_period() {
    let (policy, [mut first, mut second], b) = out_of_tokens_beside(2, 64);
    let periods = tokens(&policy).periods;
    let mut now_ns = 110 * MS;
    for _ in 0..20 {
        // One of b's requests completes, and its successor goes 100 us later.
        let wake = &mut { PortSet::EMPTY };
        second.complete(now_ns, Tag(0), Outcome::Done, wake);
        assert_eq!(*wake, PortSet::only(PortId(0)));
        let Next::WaitUntil(until_ns) = first.next(now_ns, &mut { PortSet::EMPTY }) else {
            panic!("it has to call again")
        };
        assert_eq!(until_ns, now_ns + (now_ns - 100 * MS) / 64);
        submit(&mut second, 0, b, Op::Read, 10).unwrap();
        assert_eq!(issue_all(&mut second, now_ns + MS / 10), [0]);
        assert_eq!(first.next(until_ns, &mut { PortSet::EMPTY }), Next::Blocked);
        now_ns += 2 * MS;
    }
    assert_eq!(tokens(&policy).periods, periods);
}

#[test]
fn a_device_that_stays_short_ends_the_period() {
    let (policy, [mut first, mut second], _) = out_of_tokens_beside(2, 64);
    let periods = tokens(&policy).periods;
    let wake = &mut { PortSet::EMPTY };
    second.complete(110 * MS, Tag(0), Outcome::Done, wake);
    let due_ns = 110 * MS + 10 * MS / 64;
    assert_eq!(first.next(110 * MS, &mut { PortSet::EMPTY }), Next::WaitUntil(due_ns));
    assert_eq!(first.next(due_ns - 1, &mut { PortSet::EMPTY }), Next::WaitUntil(due_ns));
    assert!(matches!(first.next(due_ns, &mut { PortSet::EMPTY }), Next::Issue { tag: Tag(1), .. }));
    assert_eq!(tokens(&policy).periods, periods + 1);
}

#[test]
fn without_patience_and_beside_an_idle_device_a_period_ends_at_once() {
    let (policy, [mut first, mut second], _) = out_of_tokens_beside(2, 0);
    let periods = tokens(&policy).periods;
    second.complete(110 * MS, Tag(0), Outcome::Done, &mut { PortSet::EMPTY });
    assert!(matches!(first.next(110 * MS, &mut { PortSet::EMPTY }), Next::Issue { .. }));
    assert_eq!(tokens(&policy).periods, periods + 1);
    let (_policy, [mut first, mut second], _) = out_of_tokens_beside(2, 64);
    second.complete(110 * MS, Tag(0), Outcome::Done, &mut { PortSet::EMPTY });
    assert!(matches!(first.next(110 * MS, &mut { PortSet::EMPTY }), Next::WaitUntil(_)));
    let wake = &mut { PortSet::EMPTY };
    second.complete(110 * MS + 1, Tag(1), Outcome::Done, wake);
    assert_eq!(*wake, PortSet::only(PortId(0)), "though it is waiting out its patience");
    assert!(matches!(first.next(110 * MS + 1, &mut { PortSet::EMPTY }), Next::Issue { .. }));
}

/// While a port waits out its patience no port is woken again; if it does not act when that is
/// over, the next completion wakes a port that does.
#[test]
fn patience_that_is_over_calls_for_help() {
    let (_policy, [mut first, mut second], _) = out_of_tokens_beside(6, 64);
    let due_ns = 110 * MS + 10 * MS / 64;
    for (tag, now_ns, woken) in
        [(0, 110 * MS, true), (1, 110 * MS, false), (2, due_ns - 1, false), (3, due_ns, true)]
    {
        let wake = &mut { PortSet::EMPTY };
        second.complete(now_ns, Tag(tag), Outcome::Done, wake);
        assert_eq!(!wake.is_empty(), woken, "tag {tag}");
        if tag == 0 {
            assert_eq!(first.next(now_ns, &mut { PortSet::EMPTY }), Next::WaitUntil(due_ns));
        }
    }
}

#[test]
fn what_a_request_uses_beyond_its_tokens_is_owed() {
    let (policy, mut ports, [a, b]) = setup([100, 100]);
    let port = &mut ports[0];
    warm_up(&policy, port, &[a, b], 100 * MS);
    // 2000 tokens each. a's first takes nearly three periods' worth.
    submit(port, 0, a, Op::Read, 5900).unwrap();
    submit(port, 1, a, Op::Read, 100).unwrap();
    assert_eq!(issue_all(port, 100 * MS), [0]);
    for (number, tag) in (2..4).zip(10..) {
        // b keeps active.
        submit(port, tag, b, Op::Read, 100).unwrap();
        assert_eq!(issue_all(port, number * 100 * MS - 1), [tag]);
        policy.tick(number * 100 * MS, &mut { PortSet::EMPTY });
    }
    assert_eq!(issue_all(port, 300 * MS), [1], "two periods have paid for it");
}

/// A port of two tags has two seats. a has a debt for a large request when b and c take them, and
/// still has it when it returns.
#[test]
fn what_is_owed_outlives_the_seat() {
    let config =
        KyberFairConfig { busy: 1, tokens: Totals::fixed(TOKENS), ..KyberFairConfig::new(1, 4, 2) };
    let (policy, mut ports) = KyberFair::<Native>::new(&config).unwrap();
    let [a, b, c] = [(); 3].map(|()| policy.add_flow(Weight::DEFAULT).unwrap());
    let port = &mut ports[0];
    warm_up(&policy, port, &[a, b], 100 * MS);
    let serve = |port: &mut KyberFairPort, flow, length, now_ns| {
        submit(port, 0, flow, Op::Read, length).unwrap();
        assert_eq!(issue_all(port, now_ns), [0]);
        port.complete(now_ns, Tag(0), Outcome::Done, &mut { PortSet::EMPTY });
    };
    // 2000 tokens: nearly three periods' worth.
    serve(port, a, 5900, 100 * MS);
    assert!(port.flow_stats(a).tokens < Some(-3000));
    serve(port, b, 100, 100 * MS);
    serve(port, c, 100, 100 * MS);
    assert_eq!(port.flow_stats(a).tokens, None, "it has no seat");
    submit(port, 1, a, Op::Read, 100).unwrap();
    assert!(port.flow_stats(a).tokens < Some(-3000));
    port.cancel(100 * MS, Tag(1), &mut { PortSet::EMPTY });
    // A new flow in the slot has no debt.
    policy.remove_flow(a).unwrap();
    port.next(100 * MS, &mut { PortSet::EMPTY });
    let new = policy.add_flow(Weight::DEFAULT).unwrap();
    assert_eq!(new.slot(), a.slot());
    submit(port, 1, new, Op::Read, 100).unwrap();
    assert_eq!(port.flow_stats(new).tokens, Some(0));
}

#[test]
fn writes_cost_the_measured_ratio() {
    let (policy, mut ports, [a, b]) = setup([100, 100]);
    let port = &mut ports[0];
    let (mut now_ns, mut began_ns) = (0, 0);
    for _ in 0..8 {
        submit(port, 64, b, Op::Read, 10).unwrap();
        for tag in 0..64 {
            submit(port, tag, a, if tag % 2 == 0 { Op::Read } else { Op::Write }, 10).unwrap();
        }
        assert_eq!(issue_all(port, now_ns).len(), 65);
        for tag in 0..65 {
            let latency_ns = if tag % 2 == 0 { 100_000 } else { 350_000 };
            port.complete(now_ns + latency_ns, Tag(tag), Outcome::Done, &mut { PortSet::EMPTY });
        }
        began_ns = now_ns;
        now_ns = policy.tick(now_ns, &mut { PortSet::EMPTY }).unwrap();
    }
    assert_eq!(tokens(&policy).write_percent, 350);
    // a has 2000 tokens of this period, and 2000 left of the last one, in which it wanted less: at
    // 350 % these pay for some 12 writes of 100 bytes. b keeps its own tokens.
    (0..50).for_each(|tag| assert!(submit(port, tag, a, Op::Write, 100).is_ok()));
    let issued = issue_all(port, began_ns);
    assert!((11..=13).contains(&issued.len()), "{issued:?}");
}

/// If all flows always want more than they have, no period lasts its full time: each ends when the
/// last flow runs out.
#[test]
fn the_ratio_is_measured_however_early_periods_end() {
    let (policy, mut ports, [a, b]) = setup([100, 100]);
    let port = &mut ports[0];
    warm_up(&policy, port, &[a, b], 100 * MS);
    let (mut now_ns, periods) = (100 * MS, tokens(&policy).periods);
    for _ in 0..200 {
        // Each flow submits more than its 2000 tokens pay for, so each round takes a period or
        // more.
        (0..30).for_each(|tag| assert!(submit(port, tag, a, Op::Read, 100).is_ok()));
        (32..62).for_each(|tag| assert!(submit(port, tag, b, Op::Write, 100).is_ok()));
        let mut issued = 0;
        while issued < 60 {
            let tags = issue_all(port, now_ns);
            assert!(!tags.is_empty(), "{issued} of 60");
            issued += tags.len();
            now_ns += MS;
            for tag in tags {
                let latency_ns = if tag < 32 { 100_000 } else { 350_000 };
                port.complete(now_ns - MS + latency_ns, Tag(tag), Outcome::Done, &mut {
                    PortSet::EMPTY
                });
            }
        }
    }
    let TokenStats { periods: now, write_percent, .. } = tokens(&policy);
    assert!(
        now - periods > 200 && now_ns < (now - periods) * 50 * MS,
        "{} periods in {now_ns} ns",
        now - periods
    );
    assert_eq!(write_percent, 350);
}

/// a has 1000 tokens a period beside b and uses one of them; then it sends nothing for some periods
/// in which b does. When it returns, it has 1333 tokens: 100 / 300 of the 4000, because the period
/// was planned for b's weight alone.
#[test]
fn what_is_left_is_good_for_one_more_period() {
    for (absence, issued) in [(0, 10), (1, 7), (5, 7)] {
        let (policy, mut ports, [a, b]) = setup([100, 300]);
        let port = &mut ports[0];
        warm_up(&policy, port, &[a, b], 100 * MS);
        let mut now_ns = 100 * MS;
        for period in 0..=absence {
            for flow in [a, b].into_iter().skip(usize::from(period > 0)) {
                submit(port, 0, flow, Op::Read, 1).unwrap();
                assert_eq!(issue_all(port, now_ns), [0]);
                port.complete(now_ns, Tag(0), Outcome::Done, &mut { PortSet::EMPTY });
            }
            now_ns = policy.tick(now_ns, &mut { PortSet::EMPTY }).unwrap();
            policy.tick(now_ns, &mut { PortSet::EMPTY });
        }
        (0..50).for_each(|tag| assert!(submit(port, tag, a, Op::Read, 200).is_ok()));
        assert_eq!(issue_all(port, now_ns).len(), issued, "after {absence} periods");
    }
}

#[test]
fn idle_time_saves_up_no_tokens() {
    let (policy, mut ports, [a, b]) = setup([100, 300]);
    for period in 0..50 {
        policy.tick(period * 100 * MS, &mut { PortSet::EMPTY });
    }
    warm_up(&policy, &mut ports[0], &[a, b], 5000 * MS);
    (0..50).for_each(|tag| assert!(submit(&mut ports[0], tag, a, Op::Read, 200).is_ok()));
    assert_eq!(issue_all(&mut ports[0], 5000 * MS).len(), 5);
}

/// Two flows on one port, and one of them sends nothing for `absence` ticks of 100 ms. Then it is
/// served or throttled as any other, and `next` says which.
#[test]
fn a_flow_returns_after_any_number_of_periods() {
    for absence in [1, 2, 32_767, 32_769, 65_535, 65_536, 65_537, 65_600, 140_000] {
        let (policy, mut ports, [a, b]) = setup([100, 300]);
        let port = &mut ports[0];
        warm_up(&policy, port, &[a, b], 100 * MS);
        // a uses up its tokens: those of its last period are no longer there when it is back.
        (0..10).for_each(|tag| assert!(submit(port, tag, a, Op::Read, 200).is_ok()));
        let mut live = issue_all(port, 100 * MS);
        assert_eq!(live.len(), 5);
        let mut now_ns = 100 * MS;
        while live.len() < 10 {
            now_ns = policy.tick(now_ns, &mut { PortSet::EMPTY }).unwrap();
            live.extend(issue_all(port, now_ns));
        }
        for tag in live {
            port.complete(now_ns, Tag(tag), Outcome::Done, &mut { PortSet::EMPTY });
        }
        for _ in 0..absence {
            now_ns = policy.tick(now_ns, &mut { PortSet::EMPTY }).unwrap();
            submit(port, 0, b, Op::Read, 10).unwrap();
            assert_eq!(issue_all(port, now_ns), [0]);
            port.complete(now_ns, Tag(0), Outcome::Done, &mut { PortSet::EMPTY });
        }
        submit(port, 0, a, Op::Read, 200).unwrap();
        assert_eq!(issue_all(port, now_ns), [0], "after {absence} periods");
    }
}

/// Each of 64 ports may take tokens for one small request, and the flow has 500 times as many as
/// these need: no port gets none because others have taken more than they use.
#[test]
fn ports_leave_tokens_for_each_other() {
    let config = KyberFairConfig {
        busy: 1,
        tokens: Totals::fixed(1 << 20),
        ..KyberFairConfig::new(64, 2, 4)
    };
    let (policy, mut ports) = KyberFair::<Native>::new(&config).unwrap();
    let flows = [(); 2].map(|()| policy.add_flow(Weight::DEFAULT).unwrap());
    warm_up(&policy, &mut ports[0], &flows, 100 * MS);
    for (number, port) in ports.iter_mut().enumerate() {
        submit(port, 0, flows[0], Op::Read, 16).unwrap();
        assert_eq!(issue_all(port, 100 * MS), [0], "port {number}");
    }
    assert_eq!(tokens(&policy).periods, 2, "in one period");
}
