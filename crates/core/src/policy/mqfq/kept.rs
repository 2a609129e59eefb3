//! Slots that are kept for a moment for a flow that comes back.
//!
//! **Problem.** A flow with one request at a time never has one waiting when a slot becomes free.
//! When its request completes, the slot goes to another flow, and the flow's next request, which
//! arrives a moment later and is due before all others, waits for the next completion. If requests
//! end together, that wait is as long as the device takes for a request: such a flow gets half of
//! its throughput of running alone, at any weight.
//!
//! **Model.** This is anticipatory scheduling (Iyer and Druschel, SOSP 2001) of one slot of D, and
//! not of the whole device. The slot of a request that completes is *kept* for its flow if
//! - the flow has nothing waiting on this port, but another flow has, or no slot of D is free, so
//!   that another port may wait for one;
//! - the flow has had less than its share: its next request, at the cost of this one, would end in
//!   virtual time no later than the request that would get the slot. So the flow takes nothing that
//!   is due to another flow by weight;
//! - the flow mostly comes back within the *patience*, half of the device's time for a request.
//!
//! If the flow's next request arrives within the patience, it is issued at once. Otherwise the slot
//! is released.
//!
//! **Bounds.** Each completion adds a 64th of the device's time for a request to the port's
//! *credit*, and a kept slot spends the time that it waits: at most a 64th of the slots' time is
//! lost. The window also holds for a request that gets a kept slot, and a kept slot is one of D, so
//! the bounds of Section 2.2 stand as they are. If the device takes less than [`LEAST_NS`] for a
//! request, no slot is kept: a timer costs as much.
//!
//! **Example.** 16 slots, 4 ms a request; a flow of depth 1 and weight 10,000 beside four of depth
//! 64 and weight 1. The flow comes back 0.2 ms after each completion, so one of 16 slots is idle
//! for 0.2 of 4.2 ms, 0.3 %, and the flow gets its throughput of running alone, instead of half of
//! it.

use alloc::boxed::Box;

use crate::contract::bounds::boxed;
use crate::contract::port::{Next, Tag};

/// The most slots that a port keeps at a time.
const MOST: usize = 4;
/// The patience is one part in this many of the device's time for a request.
const PATIENCE: u64 = 2;
/// Each completion adds one part in this many of the device's time for a request to the credit.
const CREDIT: u64 = 64;
/// The shortest time of the device for a request at which slots are kept, in nanoseconds.
const LEAST_NS: u64 = 64_000;
/// A flow's score rises by one when it comes back within the patience, and falls by one when it
/// does not. A slot is kept for a flow with at least this score, and no score is higher than
/// [`BEST`].
const GOOD: u8 = 2;
const BEST: u8 = 7;

/// The record of a flow's returns.
#[derive(Clone, Copy, Default)]
struct Habit {
    /// Time at which a request of the flow completed with none waiting, in microseconds; 0 if a
    /// request has arrived since then.
    left_us: u32,
    score: u8,
}

/// A slot that is kept for the flow in a seat.
#[derive(Clone, Copy)]
struct Kept {
    seat: usize,
    until_ns: u64,
    /// The flow's next request has arrived, and may be issued.
    has_come: bool,
}

/// The slots that a port keeps.
pub(super) struct KeptSlots {
    /// By seat.
    habits: Box<[Habit]>,
    kept: [Option<Kept>; MOST],
    /// The number of slots kept now.
    count: usize,
    /// A request whose time on the device is measured, and its time of issue in nanoseconds.
    sample: Option<(Tag, u64)>,
    /// The mean of the device's time for a request, over some eight samples.
    device_ns: u64,
    credit_ns: u64,
}

impl KeptSlots {
    /// `seats`: the most flows that the port may have.
    pub(super) fn new(seats: usize) -> Self {
        KeptSlots {
            habits: boxed(seats, |_| Habit::default()),
            kept: [None; MOST],
            count: 0,
            sample: None,
            device_ns: 0,
            credit_ns: 0,
        }
    }

    /// Whether any slot is kept.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.count > 0
    }

    fn patience_ns(&self) -> u64 {
        self.device_ns / PATIENCE
    }

    /// Records that the request was issued.
    #[inline]
    pub(super) fn issued(&mut self, tag: Tag, now_ns: u64) {
        if self.sample.is_none() {
            self.sample = Some((tag, now_ns));
        }
    }

    /// Drops the sample of a request that the device has not done.
    pub(super) fn forgets(&mut self, tag: Tag) {
        self.sample = self.sample.filter(|(sampled, _)| *sampled != tag);
    }

    /// Records that a request has completed.
    #[inline]
    pub(super) fn completed(&mut self, tag: Tag, now_ns: u64) {
        if let Some((sampled, since_ns)) = self.sample
            && sampled == tag
        {
            let took_ns = now_ns.saturating_sub(since_ns);
            self.device_ns = match self.device_ns {
                // The first sample is the mean: a mean that starts at 0 would be too small for many
                // samples.
                0 => took_ns,
                mean_ns => mean_ns - mean_ns / 8 + took_ns / 8,
            };
            self.sample = None;
        }
        // The credit is bounded, so that the port waits for at most two flows in a row that do not
        // come back in time.
        self.credit_ns = (self.credit_ns + self.device_ns / CREDIT).min(self.device_ns);
    }

    /// Records that the flow in this seat has no request waiting. Returns true if the slot of its
    /// last request is worth keeping for it.
    pub(super) fn left(&mut self, seat: usize, now_ns: u64) -> bool {
        let patience_ns = self.patience_ns();
        let is_worth =
            self.device_ns >= LEAST_NS && self.count < MOST && self.credit_ns >= patience_ns;
        // The pause is recorded even if no slot is kept: habits are learned from all pauses.
        let Some(habit) = self.habits.get_mut(seat) else { return false };
        // 0 means that the flow has come back.
        habit.left_us = ((now_ns / 1000) as u32).max(1);
        is_worth && habit.score >= GOOD
    }

    /// Keeps the slot for the flow in the seat.
    pub(super) fn keep(&mut self, seat: usize, now_ns: u64) {
        let patience_ns = self.patience_ns();
        if let Some(place) = self.kept.iter_mut().find(|kept| kept.is_none()) {
            let until_ns = now_ns.saturating_add(patience_ns);
            *place = Some(Kept { seat, until_ns, has_come: false });
            self.count += 1;
            self.credit_ns = self.credit_ns.saturating_sub(patience_ns);
        }
    }

    /// Records that a request of the flow in the seat has arrived.
    pub(super) fn came(&mut self, seat: usize, now_ns: u64) {
        let patience_us = (self.patience_ns() / 1000) as u32;
        if let Some(habit) = self.habits.get_mut(seat)
            && habit.left_us != 0
        {
            // The difference wraps after 71 minutes: a pause of just that length counts as short,
            // once.
            let took_us = ((now_ns / 1000) as u32).wrapping_sub(habit.left_us);
            habit.score = match took_us <= patience_us {
                true => (habit.score + 1).min(BEST),
                false => habit.score.saturating_sub(1),
            };
            habit.left_us = 0;
        }
        let mine = |kept: &&mut Kept| kept.seat == seat && !kept.has_come;
        if self.count > 0
            && let Some(kept) = self.kept.iter_mut().flatten().find(mine)
        {
            kept.has_come = true;
        }
    }

    /// Removes a slot whose flow has come back or whose patience is over. In the first case it
    /// returns the flow's seat, in the second `Some(None)`.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<Option<usize>> {
        let is_due = |kept: &Kept| kept.has_come || kept.until_ns <= now_ns;
        let place = self.kept.iter_mut().find(|kept| kept.as_ref().is_some_and(is_due))?;
        let kept = place.take()?;
        self.count -= 1;
        // `keep` spent credit for the whole patience.
        let left_ns = kept.until_ns.saturating_sub(now_ns);
        let late_ns = now_ns.saturating_sub(kept.until_ns);
        self.credit_ns = (self.credit_ns + left_ns).saturating_sub(late_ns);
        Some(kept.has_come.then_some(kept.seat))
    }

    /// Adds the end of the patience to the port's answer, so that the caller calls `next` again
    /// then.
    #[inline]
    pub(super) fn and_ask(&self, next: Next) -> Next {
        if self.count == 0 {
            return next;
        }
        let until_ns = self.kept.iter().flatten().map(|kept| kept.until_ns).min();
        match (next, until_ns) {
            // The caller calls `next` then even if no request waits here, because the slot must go
            // to another port in the end.
            (Next::Blocked | Next::Idle, Some(until_ns)) => Next::WaitUntil(until_ns),
            (Next::WaitUntil(other_ns), Some(until_ns)) => Next::WaitUntil(other_ns.min(until_ns)),
            // After an `Issue` the caller calls `next` again at once.
            _ => next,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;
    use crate::Topology;
    use crate::contract::flow::{FlowId, Weight};
    use crate::contract::platform::Native;
    use crate::contract::port::{Op, Outcome, Policy, Port, Request, Submitted};
    use crate::contract::port_set::{PortId, PortSet};
    use crate::mqfq::{Mqfq, MqfqConfig};

    const MS: u64 = 1_000_000;
    const SLOTS: u32 = 16;
    /// The device's time for a request; it works on 16 requests at a time.
    const SERVICE_NS: u64 = 4 * MS;

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        Ends(usize, u32),
        Comes(usize),
        Asks(usize),
    }

    /// A client that keeps `depth` requests of one flow under way on one port. After an answer it
    /// waits for `think_ns` and sends the next one.
    struct Load {
        port: usize,
        weight: u16,
        depth: u32,
        think_ns: fn(u64) -> u64,
    }

    fn at_once(port: usize, weight: u16, depth: u32) -> Load {
        // Interrupts and system calls take time, so requests do not all end at once.
        Load { port, weight, depth, think_ns: |number| 100_000 + number * 7_919 % 100_000 }
    }

    /// The requests of each load served in `ms` milliseconds, and the part of the device in use.
    fn serve(ports: usize, loads: &[Load], anticipates: bool, ms: u64) -> (Vec<u64>, f64) {
        let tags = 256;
        let config = MqfqConfig::new(Topology::flat(ports), 8, tags).with(|config| {
            (config.slots, config.anticipates) = (SLOTS, anticipates);
        });
        let (policy, mut made) = Mqfq::<Native>::new(config).unwrap();
        let flows: Vec<FlowId> = loads
            .iter()
            .map(|load| policy.add_flow(Weight::new(load.weight).unwrap()).unwrap())
            .collect();
        let mut events = BTreeSet::new();
        let mut free: Vec<Vec<u32>> = (0..ports).map(|_| (0..tags as u32).collect()).collect();
        let mut owners = std::vec![std::vec![0; tags]; ports];
        let (mut served, mut in_flight, mut busy_ns, mut number) =
            (std::vec![0; loads.len()], 0, 0, 0);
        for (load, Load { depth, .. }) in loads.iter().enumerate() {
            (0..*depth).for_each(|_| {
                number += 1;
                events.insert((0, number, Event::Comes(load)));
            });
        }
        while let Some((now_ns, _, event)) = events.pop_first()
            && now_ns < ms * MS
        {
            let mut wake = PortSet::EMPTY;
            let port = match event {
                Event::Comes(load) => {
                    let port = loads[load].port;
                    let tag = free[port].pop().unwrap();
                    owners[port][tag as usize] = load;
                    let request = Request::new(Tag(tag), flows[load], Op::Read, 0, 4096);
                    let said = made[port].submit(now_ns, &request, &mut wake);
                    assert_eq!(said, Ok(Submitted::Staged));
                    port
                }
                Event::Ends(port, tag) => {
                    made[port].complete(now_ns, Tag(tag), Outcome::Done, &mut wake);
                    free[port].push(tag);
                    (in_flight, busy_ns) = (in_flight - 1, busy_ns + SERVICE_NS);
                    let load = owners[port][tag as usize];
                    served[load] += 1;
                    let comes_ns = now_ns + (loads[load].think_ns)(served[load]);
                    number += 1;
                    events.insert((comes_ns, number, Event::Comes(load)));
                    port
                }
                Event::Asks(port) => port,
            };
            wake.insert(PortId(port as u8));
            while let Some(PortId(port)) = wake.next() {
                let port = usize::from(port);
                loop {
                    number += 1;
                    match made[port].next(now_ns, &mut wake) {
                        Next::Issue { tag, .. } => {
                            in_flight += 1;
                            assert!(in_flight <= SLOTS, "no more than D are on the device");
                            // Requests end nearly together, as if one interrupt reported many.
                            let ends_ns = now_ns + SERVICE_NS + number % 10 * 1_000;
                            events.insert((ends_ns, number, Event::Ends(port, tag.0)));
                        }
                        Next::WaitUntil(until_ns) => {
                            assert!(until_ns > now_ns, "the time to call again is later");
                            events.insert((until_ns, number, Event::Asks(port)));
                            break;
                        }
                        _ => break,
                    }
                }
            }
        }
        (served, busy_ns as f64 / (ms * MS * u64::from(SLOTS)) as f64)
    }

    #[test]
    fn a_flow_of_depth_one_has_what_it_has_alone() {
        for (ports, weight) in [(1, 10_000), (1, 1), (2, 10_000), (2, 1)] {
            let alone = serve(ports, &[at_once(0, weight, 1)], true, 2_000).0[0];
            let beside = |anticipates| {
                let mut loads = std::vec![at_once(0, weight, 1)];
                loads.extend((0..4).map(|load| at_once(load % ports, 1, 48)));
                serve(ports, &loads, anticipates, 2_000)
            };
            let (plain, kept) = (beside(false), beside(true));
            let text =
                std::format!("{ports} ports, weight {weight}: {plain:?}, {kept:?} of {alone}");
            assert!(plain.0[0] * 10 < alone * 7, "without it the flow loses rate: {text}");
            assert!(kept.0[0] * 100 >= alone * 97, "{text}");
            assert!(kept.1 >= 0.98 && kept.1 >= plain.1 - 0.015, "{text}");
        }
    }

    #[test]
    fn a_64th_is_lost_at_most_whatever_flows_do() {
        // The flow comes back in time as often as is needed for a slot to be kept, and then too
        // late.
        let trick = |port| Load {
            port,
            weight: 1_000,
            depth: 1,
            think_ns: |number| if number % 3 == 0 { 5 * MS } else { 50_000 },
        };
        for ports in [1, 2] {
            let deep = || at_once(0, 1, 64);
            let loads = [trick(0), trick(0), trick(ports - 1), deep(), deep(), deep()];
            let (served, kept) = serve(ports, &loads, true, 4_000);
            let (_, plain) = serve(ports, &loads, false, 4_000);
            assert!(
                kept >= plain * (1.0 - 1.0 / 64.0) - 0.002,
                "{ports} ports: {served:?}, {kept}, {plain}"
            );
        }
    }

    /// The device's time for a request is not measured over an hour in which the request was not on
    /// the device. Otherwise the port would keep slots for half an hour.
    #[test]
    fn a_request_that_is_requeued_is_no_sample() {
        let config = MqfqConfig::new(Topology::flat(1), 2, 8)
            .with(|config| (config.slots, config.anticipates) = (1, true));
        let (policy, mut ports) = Mqfq::<Native>::new(config).unwrap();
        let flows =
            [10_000, 1].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
        let (port, wake) = (&mut ports[0], &mut { PortSet::EMPTY });
        let of = |tag: u32| Request::new(Tag(tag), flows[usize::from(tag > 0)], Op::Read, 0, 4096);
        let issue = |tag| Next::Issue { tag: Tag(tag), class: crate::Class::Medium };
        port.submit(0, &of(0), wake).unwrap();
        assert_eq!(port.next(0, wake), issue(0));
        assert_eq!(port.requeue(0, Tag(0), wake), Some(Submitted::Staged));
        let mut now_ns = 3_600_000 * MS;
        assert_eq!(port.next(now_ns, wake), issue(0));
        (1..4).for_each(|tag| _ = port.submit(now_ns, &of(tag), wake).unwrap());
        let mut is_kept = false;
        // The flow comes back soon, so that slots are kept for it.
        for _ in 0..100 {
            now_ns += 4 * MS;
            port.complete(now_ns, Tag(0), Outcome::Done, wake);
            let mut next = port.next(now_ns, wake);
            if let Next::WaitUntil(at_ns) = next {
                is_kept = true;
                assert!(at_ns <= now_ns + 8 * MS, "for {} ns", at_ns - now_ns);
            }
            now_ns += MS;
            port.submit(now_ns, &of(0), wake).unwrap();
            while next != issue(0) {
                if let Next::Issue { tag, .. } = next {
                    now_ns += 4 * MS;
                    port.complete(now_ns, tag, Outcome::Done, wake);
                    port.submit(now_ns, &of(tag.0), wake).unwrap();
                }
                next = port.next(now_ns, wake);
            }
        }
        assert!(is_kept);
    }

    #[test]
    fn what_has_its_share_or_comes_late_keeps_no_slot() {
        let late = Load { port: 0, weight: 1_000, depth: 1, think_ns: |_| 3 * MS };
        let loads = [late, at_once(0, 300, 64), at_once(0, 100, 64)];
        assert_eq!(serve(1, &loads, true, 2_000), serve(1, &loads, false, 2_000));
    }
}
