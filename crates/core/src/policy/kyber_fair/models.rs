//! Pots, periods and sleepers under the model checker, as in [`crate::policy::mqfq`]'s models; each
//! law is also checked on a broken machine: [`NoOrder`] has no total order between writing one word
//! and reading another, [`Unordered`] has no order at all, [`Torn`]'s compare-and-swap is two
//! steps.

use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::census::Census;
use super::period::{Period, Periods, Pot, Taken};
use super::{KyberFair, KyberFairConfig, KyberFairPort, Totals};
use crate::contract::flow::{FlowId, Weight};
use crate::contract::platform::{AtomicWord, Loom, Ordering, Platform};
use crate::contract::port::{Next, Op, Outcome, Policy, Port, Request, Tag, Tuning};
use crate::contract::port_set::PortSet;
use crate::structures::broken::{NoOrder, Unordered, check};

/// A machine whose compare-and-swap can be interrupted.
struct Torn;

impl Platform for Torn {
    type U64 = TornWord;
    type Mutex<T: Send + 'static> = <Loom as Platform>::Mutex<T>;
    fn relax() {
        Loom::relax();
    }
    fn fence() {
        Loom::fence();
    }
}

struct TornWord(<Loom as Platform>::U64);

impl AtomicWord for TornWord {
    fn new(value: u64) -> Self {
        TornWord(AtomicWord::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order)
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_sub(value, order)
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _: Ordering,
        _: Ordering,
    ) -> Result<u64, u64> {
        match self.0.load(Ordering::SeqCst) {
            now if now == current => {
                self.0.store(new, Ordering::SeqCst);
                Ok(current)
            }
            now => Err(now),
        }
    }
}

/// Tokens of weight 100, with one token for each 32 of weight.
const SHARE: u64 = 3;
const OWED: u64 = 1;

/// Takes tokens until the pot has no more of this period. Returns the number of tokens taken, and
/// how often a call returned [`Taken::Last`].
fn empty<P: Platform>(pot: &Pot<P>, periods: &Periods<P>, period: Period) -> (u64, u32) {
    let (mut tokens, mut lasts) = (0, 0);
    loop {
        match pot.take(periods, period, Weight::DEFAULT, OWED) {
            Taken::Some(taken) => tokens += taken,
            Taken::Last(taken) => {
                tokens += taken;
                lasts += 1;
            }
            Taken::None => return (tokens, lasts),
        }
    }
}

/// Two ports take from one pot: together all its tokens, and one of them takes the last. If one of
/// them begins the next period first, it gets all tokens of that period and those that the other
/// has left.
fn tokens_are_neither_lost_nor_doubled<P: Platform>(begins: bool) {
    check(6, move || {
        let pot = Arc::new(Pot::<P>::new());
        let [now, next] = [1, 2].map(|number| Period::new(number, 1, 32 * Weight::ONE));
        let periods = Arc::new(Periods::<P>::new(2, PERIOD_NS, 1, 0));
        let (other, clock) = (pot.clone(), periods.clone());
        let second = thread::spawn(move || {
            if begins {
                clock.publish(next);
                other.expire(&clock);
            }
            empty(&other, &clock, if begins { next } else { now })
        });
        let first = empty(&pot, &periods, now);
        let second = second.join().unwrap();
        let sum = (first.0 + second.0, first.1 + second.1);
        if begins {
            // A pot that was filled in the first period keeps the tokens that are left.
            let periods = if first.0 == 0 { 1 } else { 2 };
            assert_eq!((sum.0, second.1), (periods * SHARE, 1), "tokens were lost or doubled");
        } else {
            assert_eq!(sum, (SHARE, 1), "tokens were lost or doubled");
        }
    });
}

#[test]
fn two_ports_share_a_pot() {
    tokens_are_neither_lost_nor_doubled::<Loom>(false);
}

#[test]
fn two_ports_share_a_pot_over_two_periods() {
    tokens_are_neither_lost_nor_doubled::<Loom>(true);
}

#[test]
#[should_panic(expected = "tokens were lost or doubled")]
fn without_a_compare_and_swap_tokens_are_doubled() {
    tokens_are_neither_lost_nor_doubled::<Torn>(false);
}

/// The port that is behind finds a pot of the next period, takes it for an old one, and fills it.
#[test]
#[should_panic(expected = "tokens were lost or doubled")]
fn without_any_order_a_port_that_is_behind_takes_tokens_twice() {
    tokens_are_neither_lost_nor_doubled::<Unordered>(true);
}

/// Two ports see a flow that was last seen in the first period, and one of them may still use that
/// period's number: the flow is counted once, in the second.
fn a_flow_is_counted_once<P: Platform>(is_behind: bool) {
    check(6, move || {
        let (pot, census) = (Arc::new(Pot::<P>::new()), Arc::new(Census::<P>::new()));
        let [first, second] = [1, 2].map(|number| Period::new(number, 1, 32 * Weight::ONE));
        if !is_behind {
            pot.see(&census, first, Weight::DEFAULT);
        }
        census.open(2);
        let (other_pot, other) = (pot.clone(), census.clone());
        let peer = thread::spawn(move || {
            other_pot.see(&other, if is_behind { first } else { second }, Weight::DEFAULT);
        });
        pot.see(&census, second, Weight::DEFAULT);
        peer.join().unwrap();
        let counted = [census.sum(2, 1), census.sum(2, 2)];
        assert_eq!(counted, [(1, 100 * Weight::ONE); 2], "not once");
    });
}

#[test]
fn a_flow_that_two_ports_see_is_counted_once() {
    a_flow_is_counted_once::<Loom>(false);
}

#[test]
fn a_port_that_is_behind_moves_no_flow_back() {
    a_flow_is_counted_once::<Loom>(true);
}

#[test]
#[should_panic(expected = "not once")]
fn without_a_compare_and_swap_a_flow_is_counted_twice() {
    a_flow_is_counted_once::<Torn>(false);
}

/// The event that ends the period for a port that is out of tokens.
#[derive(Clone, Copy)]
enum End {
    /// The device runs empty.
    Completion,
    /// The device has fewer requests than `busy`, and it stays so.
    Shortage,
    /// The other flow runs out of tokens, too.
    RunningOut,
    /// `busy` is raised.
    Busier,
    /// The period's time is over.
    Tick,
    /// Nothing: the canary of the model itself.
    Nothing,
}

const PERIOD_NS: u64 = 1000;

fn submit<P: Platform>(port: &mut KyberFairPort<P>, tag: u32, flow: FlowId, length: u32) {
    let request = Request::new(Tag(tag), flow, Op::Read, 0, length);
    port.submit(PERIOD_NS, &request, &mut { PortSet::EMPTY }).unwrap();
}

/// Two ports, a flow each. B has used up its tokens and goes to sleep with a request, while the
/// event that ends the period happens on A or elsewhere: when all wake-ups have been delivered, B's
/// request is issued.
fn nobody_is_left_asleep<P: Platform>(end: End) {
    check(4, move || {
        let config = KyberFairConfig {
            period_ns: PERIOD_NS,
            busy: if let End::Shortage = end { 2 } else { 1 },
            tokens: Totals::fixed(64 * 2048),
            measured_writes: false,
            ..KyberFairConfig::new(2, 2, 3)
        };
        let (policy, ports) = KyberFair::<P>::new(&config).unwrap();
        let policy = Arc::new(policy);
        let mut ports: Vec<_> = ports.into_iter().collect();
        let [a, b] = [0, 1].map(|_| policy.add_flow(Weight::DEFAULT).unwrap());
        let wake = &mut { PortSet::EMPTY };
        // Both use up their tokens in one period, so that both count in the next and bring no
        // tokens into it.
        policy.tick(0, wake);
        for (port, flow) in ports.iter_mut().zip([a, b]) {
            submit(port, 0, flow, 64 * 2048 / 100 + 1);
            assert!(matches!(port.next(0, wake), Next::Issue { .. }));
            port.complete(0, Tag(0), Outcome::Done, wake);
        }
        policy.tick(PERIOD_NS, wake);
        // Each flow has 65,536 tokens, in batches of 2048. A has a request on the device.
        submit(&mut ports[0], 0, a, 512);
        assert!(matches!(ports[0].next(PERIOD_NS, wake), Next::Issue { .. }));
        if let End::Shortage = end {
            submit(&mut ports[0], 2, a, 512);
            assert!(matches!(ports[0].next(PERIOD_NS, wake), Next::Issue { .. }));
        }
        // B's debt will be 64,000: more than is left of this period's tokens, less than the next
        // period's.
        submit(&mut ports[1], 0, b, 2048 + 64_000);
        assert!(matches!(ports[1].next(PERIOD_NS, wake), Next::Issue { .. }));
        // The rest of the pot pays for B's first request, and nothing is left for the second in
        // this period.
        ports[1].complete(PERIOD_NS, Tag(0), Outcome::Done, wake);
        submit(&mut ports[1], 1, b, 512);
        if let End::RunningOut = end {
            submit(&mut ports[0], 1, a, 1536 + 62_000);
            assert!(matches!(ports[0].next(PERIOD_NS, wake), Next::Issue { .. }));
            // A's debt is 62,000 and 63,488 are in the pot: its next request takes the last of them
            // and goes, and A is done.
            ports[0].complete(PERIOD_NS, Tag(1), Outcome::Done, wake);
            submit(&mut ports[0], 1, a, 512);
        }
        let mut second = ports.pop().unwrap();
        let mut first = ports.pop().unwrap();
        let sleeper = thread::spawn(move || {
            let mut wake = PortSet::EMPTY;
            let next = second.next(PERIOD_NS, &mut wake);
            (second, next, wake)
        });
        let mut wake = PortSet::EMPTY;
        match end {
            End::Completion | End::Shortage => {
                assert!(first.complete(PERIOD_NS, Tag(0), Outcome::Done, &mut wake));
            }
            End::RunningOut => _ = first.next(PERIOD_NS, &mut wake),
            End::Busier => policy.tune(Tuning::Slots(2), &mut wake).unwrap(),
            End::Tick => _ = policy.tick(2 * PERIOD_NS, &mut wake),
            End::Nothing => {}
        }
        let (mut second, mut next, woken) = sleeper.join().unwrap();
        wake.extend(woken);
        while let Some(port) = wake.next() {
            match (port.0, next) {
                (0, _) => _ = first.next(PERIOD_NS, &mut wake),
                (_, Next::Blocked | Next::WaitUntil(_)) => next = second.next(PERIOD_NS, &mut wake),
                _ => {}
            }
        }
        if let Next::WaitUntil(time_ns) = next {
            next = second.next(time_ns, &mut wake);
        }
        assert!(matches!(next, Next::Issue { .. }), "a port was left asleep");
    });
}

#[test]
fn a_completion_wakes_a_sleeper() {
    nobody_is_left_asleep::<Loom>(End::Completion);
}

#[test]
fn a_shortage_wakes_a_sleeper() {
    nobody_is_left_asleep::<Loom>(End::Shortage);
}

#[test]
fn the_last_to_run_out_wakes_a_sleeper() {
    nobody_is_left_asleep::<Loom>(End::RunningOut);
}

#[test]
fn a_device_that_takes_more_wakes_a_sleeper() {
    nobody_is_left_asleep::<Loom>(End::Busier);
}

#[test]
#[should_panic(expected = "a port was left asleep")]
fn without_a_total_order_a_device_that_takes_more_is_missed() {
    nobody_is_left_asleep::<NoOrder>(End::Busier);
}

#[test]
fn a_tick_wakes_a_sleeper() {
    nobody_is_left_asleep::<Loom>(End::Tick);
}

#[test]
#[should_panic(expected = "a port was left asleep")]
fn without_an_end_a_port_sleeps_on() {
    nobody_is_left_asleep::<Loom>(End::Nothing);
}

#[test]
#[should_panic(expected = "a port was left asleep")]
fn without_a_total_order_a_completion_is_missed() {
    nobody_is_left_asleep::<NoOrder>(End::Completion);
}

#[test]
#[should_panic(expected = "a port was left asleep")]
fn without_a_total_order_a_shortage_is_missed() {
    nobody_is_left_asleep::<NoOrder>(End::Shortage);
}

/// Acquire and release would be enough here: the port that publishes and the port that goes to
/// sleep both exchange the word of the sleepers.
#[test]
#[should_panic(expected = "a port was left asleep")]
fn without_any_order_a_tick_is_missed() {
    nobody_is_left_asleep::<Unordered>(End::Tick);
}

#[test]
#[should_panic(expected = "a port was left asleep")]
fn without_a_total_order_running_out_is_missed() {
    nobody_is_left_asleep::<NoOrder>(End::RunningOut);
}

/// Three ports, a flow each. B sleeps with a request, which is taken back while the device runs
/// empty on A and C goes to sleep: when all wake-ups have been delivered, C's request is issued.
fn a_sleeper_that_leaves_passes_its_wake_up_on<P: Platform>(ends: bool) {
    check(3, move || {
        let config = KyberFairConfig {
            period_ns: PERIOD_NS,
            busy: 1,
            tokens: Totals::fixed(96 * 2048),
            measured_writes: false,
            ..KyberFairConfig::new(3, 3, 2)
        };
        let (policy, ports) = KyberFair::<P>::new(&config).unwrap();
        let mut ports: Vec<_> = ports.into_iter().collect();
        let flows = [0; 3].map(|_| policy.add_flow(Weight::DEFAULT).unwrap());
        let wake = &mut { PortSet::EMPTY };
        policy.tick(0, wake);
        for (port, flow) in ports.iter_mut().zip(flows) {
            submit(port, 0, flow, 96 * 2048 / 100 + 1);
            assert!(matches!(port.next(0, wake), Next::Issue { .. }));
            port.complete(0, Tag(0), Outcome::Done, wake);
        }
        policy.tick(PERIOD_NS, wake);
        // Each flow has 65,536 tokens, in batches of 2048. A has a request on the device; the
        // others' debts leave nothing for their second requests in this period.
        submit(&mut ports[0], 0, flows[0], 512);
        assert!(matches!(ports[0].next(PERIOD_NS, wake), Next::Issue { .. }));
        for (port, flow) in ports.iter_mut().zip(flows).skip(1) {
            submit(port, 0, flow, 2048 + 64_000);
            assert!(matches!(port.next(PERIOD_NS, wake), Next::Issue { .. }));
            port.complete(PERIOD_NS, Tag(0), Outcome::Done, wake);
            submit(port, 1, flow, 512);
        }
        assert_eq!(ports[1].next(PERIOD_NS, wake), Next::Blocked);
        let [mut first, mut second, mut third] =
            <[_; 3]>::try_from(ports).unwrap_or_else(|_| unreachable!());
        let leaver = thread::spawn(move || {
            let mut wake = PortSet::EMPTY;
            assert!(second.cancel(PERIOD_NS, Tag(1), &mut wake));
            (second, wake)
        });
        let sleeper = thread::spawn(move || {
            let mut wake = PortSet::EMPTY;
            let next = third.next(PERIOD_NS, &mut wake);
            (third, next, wake)
        });
        let mut wake = PortSet::EMPTY;
        if ends {
            first.complete(PERIOD_NS, Tag(0), Outcome::Done, &mut wake);
        }
        let (mut second, left) = leaver.join().unwrap();
        let (mut third, mut next, slept) = sleeper.join().unwrap();
        wake.extend(left);
        wake.extend(slept);
        while let Some(port) = wake.next() {
            match port.0 {
                0 => _ = first.next(PERIOD_NS, &mut wake),
                1 => _ = second.next(PERIOD_NS, &mut wake),
                _ if next == Next::Blocked => next = third.next(PERIOD_NS, &mut wake),
                _ => {}
            }
        }
        assert!(matches!(next, Next::Issue { .. }), "a port was left asleep");
    });
}

#[test]
fn a_request_that_is_taken_back_leaves_nobody_asleep() {
    a_sleeper_that_leaves_passes_its_wake_up_on::<Loom>(true);
}

#[test]
#[should_panic(expected = "a port was left asleep")]
fn without_an_end_a_port_sleeps_on_beside_one_that_leaves() {
    a_sleeper_that_leaves_passes_its_wake_up_on::<Loom>(false);
}

#[test]
#[should_panic(expected = "a port was left asleep")]
fn without_a_total_order_one_that_leaves_wakes_nobody() {
    a_sleeper_that_leaves_passes_its_wake_up_on::<NoOrder>(true);
}
