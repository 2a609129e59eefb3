//! One port of Kyber: the three verbs.

use alloc::boxed::Box;
use alloc::sync::Arc;

use bytemuck::Zeroable;

use super::depths::KEEPS;
use super::{KyberConfig, Shared};
use fairq_core::contract::bounds::zeroes;
use fairq_core::contract::flow::FlowId;
use fairq_core::contract::platform::{Native, Platform};
use fairq_core::contract::port::{
    Class, FlowStats, Growth, Next, Outcome, Port, Reason, Request, SubmitError, Submitted, Tag,
};
use fairq_core::contract::port_set::{PortId, PortSet};
use fairq_core::kyber_fair::domain::{Again, DOMAINS, Domain, QueueSet, State};
use fairq_core::kyber_fair::units::{Units, next_of};
use fairq_core::serial::merge::{Piece, Placed};
use fairq_core::structures::port_flows::PortFlows;
use fairq_core::structures::queues::Links;

/// One shard's port of Kyber.
pub struct KyberPort<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    id: PortId,
    account: PortFlows,
    entries: Box<[Entry]>,
    units: Units,
    links: Links,
    queues: QueueSet,
    again: Again,
    /// Number of tokens in a row that it has kept, by domain.
    kept: [u32; DOMAINS],
}

/// State of a tag. An entry of zeroes is free.
#[derive(Clone, Copy, Zeroable)]
struct Entry {
    submitted_ns: u64,
    issued_ns: u64,
    /// Its flow's seat.
    seat: u32,
    domain: Domain,
    state: State,
}

impl<P: Platform> KyberPort<P> {
    pub(super) fn new(id: PortId, config: &KyberConfig, shared: Arc<Shared<P>>) -> Self {
        let account = PortFlows::new(id, &shared.flows, config.tags);
        let units = Units::new(account.seats(), config.tags, config.merge_bytes);
        KyberPort {
            shared,
            id,
            account,
            entries: zeroes(config.tags),
            links: Links::new(units.bound()),
            units,
            queues: QueueSet::default(),
            again: Again::new(config.tags),
            kept: [0; DOMAINS],
        }
    }

    #[inline]
    fn pick(&mut self) -> Option<u32> {
        let KyberPort { shared, id, links, queues, .. } = self;
        queues.pick(links, |domain| shared.depths.acquire(domain, *id))
    }

    /// Marks the port as waiting in each domain in which it has requests, and tries again.
    #[cold]
    fn wait(&mut self) -> Option<u32> {
        for domain in Domain::ALL {
            if self.queues.has(domain) {
                self.shared.depths.enlist(domain, self.id);
            }
        }
        self.pick()
    }

    /// The flow's staged requests; of each command the first part.
    fn staged_of(&self, flow: FlowId) -> impl Iterator<Item = Tag> + '_ {
        let seat = self.account.seat(flow);
        let units = self.queues.iter(&self.links).filter_map(|unit| self.units.first(unit));
        self.again.iter().map(Tag).chain(units).filter(move |tag| {
            let entry = self.entries.get(tag.0 as usize);
            seat.is_some() && entry.map(|entry| entry.seat as usize) == seat
        })
    }

    /// Takes back a request that is staged or to be issued again; gives its flow's seat. Its
    /// latency is not recorded: the device has not served it.
    fn take_back(&mut self, tag: Tag, wake: &mut PortSet) -> Option<usize> {
        let entry = self.entries.get_mut(tag.0 as usize)?;
        let Entry { seat, domain, state, .. } = *entry;
        match state {
            State::Staged => {
                // A request that was merged with others goes with them (the port's contract).
                let unit = self.units.alone(tag)?;
                entry.state = State::Free;
                self.queues.remove(&mut self.links, domain, unit);
                self.units.cancel(tag, unit);
            }
            State::Again => {
                entry.state = State::Free;
                self.again.remove(tag.0);
                self.give_back(tag, domain, Outcome::Done, wake);
            }
            State::Free | State::Issued => return None,
        }
        Some(seat as usize)
    }

    /// Ends an issued request. The token belongs to the command, and is returned with the last of
    /// its parts.
    #[inline]
    fn give_back(&mut self, tag: Tag, domain: Domain, outcome: Outcome, wake: &mut PortSet) {
        if !self.units.completed(tag, outcome) {
            return;
        }
        let Some(kept) = self.kept.get_mut(domain as usize) else { return };
        let woken = self.shared.depths.release(domain, self.id, *kept < KEEPS);
        // Counts beyond `KEEPS` make no difference.
        *kept = if woken.contains(self.id) { (*kept + 1).min(KEEPS) } else { 0 };
        wake.extend(woken);
    }

    /// The next request to issue again.
    #[inline]
    fn issue_again(&mut self) -> Option<Next> {
        let tag = Tag(self.again.pop()?);
        self.entries.get_mut(tag.0 as usize)?.state = State::Issued;
        Some(Next::Issue { tag, class: Class::Medium })
    }

    /// Issues a part of a command.
    #[inline]
    fn issue(&mut self, now_ns: u64, piece: &Piece) -> Next {
        if let Some(entry) = self.entries.get_mut(piece.job as usize) {
            entry.issued_ns = now_ns;
            entry.state = State::Issued;
        }
        next_of(piece)
    }
}

impl<P: Platform> Port for KyberPort<P> {
    #[inline]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        _wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let free = |entry: &&mut Entry| entry.state == State::Free;
        let entry =
            self.entries.get_mut(request.tag.0 as usize).filter(free).ok_or(SubmitError::BadTag)?;
        let (weight, at) =
            self.account.admit(&self.shared.flows, request.flow, request.tag, |_, _| ())?;
        let (domain, seat) = (Domain::of(request.op), at as u32);
        *entry = Entry { submitted_ns: now_ns, issued_ns: 0, seat, domain, state: State::Staged };
        if let Placed::New(unit) = self.units.place(request, at, weight) {
            self.queues.stage(&mut self.links, domain, unit.0);
        }
        Ok(Submitted::Staged)
    }

    #[inline]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        // The caller is in the midst of a command, and nothing else may come between its parts.
        if let Some(piece) = self.units.piece() {
            return self.issue(now_ns, &piece);
        }
        if let Some(next) = self.issue_again() {
            return next;
        }
        self.account.poll(&self.shared.flows, wake);
        let mut picked = self.pick();
        if picked.is_none() && !self.queues.is_empty() {
            picked = self.wait();
        }
        let Some(piece) = picked.and_then(|unit| self.units.begin(unit)) else {
            wake.extend(self.shared.depths.give_back(self.id, |domain| self.queues.has(domain)));
            return if self.queues.is_empty() { Next::Idle } else { Next::Blocked };
        };
        self.issue(now_ns, &piece)
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let issued = |entry: &&mut Entry| entry.state == State::Issued;
        let Some(entry) = self.entries.get_mut(tag.0 as usize).filter(issued) else {
            return self.account.complete_ahead(&self.shared.flows, tag);
        };
        entry.state = State::Free;
        let Entry { submitted_ns, issued_ns, seat, domain, .. } = *entry;
        self.account.finish(&self.shared.flows, seat as usize);
        let (total_ns, device_ns) =
            (now_ns.saturating_sub(submitted_ns), now_ns.saturating_sub(issued_ns));
        self.shared.latencies.record(self.id, domain, total_ns, device_ns);
        self.give_back(tag, domain, outcome, wake);
        true
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.account.has_room(&self.shared.flows, flow)
    }

    fn cancel(&mut self, _now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        match self.take_back(tag, wake) {
            Some(seat) => self.account.finish(&self.shared.flows, seat),
            None => return self.account.cancel_held(&self.shared.flows, tag),
        }
        true
    }

    fn expedite(&mut self, _now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        match self.take_back(tag, wake) {
            Some(seat) => self.account.goes_ahead(tag, seat),
            None => return self.account.expedite_held(tag),
        }
        true
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        let free = |entry: &&Entry| entry.state == State::Free;
        self.entries.get(tag.0 as usize).filter(free).ok_or(SubmitError::BadTag)?;
        self.account.hold(&self.shared.flows, flow, tag, |_, _| ())
    }

    fn requeue(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
        let issued = |entry: &&mut Entry| entry.state == State::Issued;
        let Some(entry) = self.entries.get_mut(tag.0 as usize).filter(issued) else {
            let again = Submitted::Issue { class: Class::Medium };
            return self.account.is_ahead(tag).then_some(again);
        };
        self.units.alone(tag)?;
        entry.state = State::Again;
        self.again.push(tag.0);
        Some(Submitted::Staged)
    }

    /// Kyber charges nothing for growth.
    fn grow(&mut self, _now_ns: u64, tag: Tag, _growth: &Growth, _wake: &mut PortSet) -> bool {
        let state = self.entries.get(tag.0 as usize).map(|entry| entry.state);
        !self.units.merges() && matches!(state, Some(State::Staged | State::Again))
    }

    fn has_work(&self) -> bool {
        self.units.is_in_command()
            || !self.again.is_empty()
            || !self.queues.is_empty()
            || self.account.has_closings(&self.shared.flows)
    }

    /// Searches all staged requests: the queues are not by flow.
    fn staged(&self, flow: FlowId) -> Option<Tag> {
        self.staged_of(flow).next()
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let Some(seat) = self.account.seat(flow) else { return FlowStats::default() };
        let mut stats = FlowStats::default();
        stats.staged = self.staged_of(flow).count() as u32;
        stats.in_flight = self.account.all(seat).saturating_sub(stats.staged);
        stats
    }

    fn reason(&self, _tag: Option<Tag>) -> Reason {
        Reason::default()
    }

    #[inline]
    fn barrier(&mut self, flow: FlowId) {
        // A flow without a seat has no requests here.
        if let Some(seat) = self.account.seat(flow) {
            self.units.barrier(seat);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Kyber, KyberConfig};
    use super::*;
    use fairq_core::{Native, Op, Policy, Weight};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const MS: u64 = 1_000_000;

    fn request(tag: u32, flow: fairq_core::FlowId, op: Op) -> Request {
        Request::new(Tag(tag), flow, op, 0, 4096)
    }

    fn issue_all(port: &mut KyberPort, now_ns: u64) -> Vec<u32> {
        let mut issued = Vec::new();
        while let Next::Issue { tag, .. } = port.next(now_ns, &mut { PortSet::EMPTY }) {
            issued.push(tag.0);
        }
        issued
    }

    /// A request that was requeued and cancelled would count as congestion if it were measured,
    /// because it was issued a second before.
    #[test]
    fn what_is_requeued_and_cancelled_is_not_measured() {
        let (policy, mut ports) = Kyber::<Native>::new(&KyberConfig::new(1, 1, 4)).unwrap();
        let (flow, wake) = (policy.add_flow(Weight::DEFAULT).unwrap(), &mut { PortSet::EMPTY });
        let (port, depths) = (&mut ports[0], policy.stats().slots);
        let mut now_ns = 0;
        policy.tick(now_ns, wake);
        for _ in 0..600 {
            port.submit(now_ns, &request(0, flow, Op::Write), wake).unwrap();
            assert_eq!(issue_all(port, now_ns), [0]);
            port.complete(now_ns, Tag(0), Outcome::Done, wake);
            port.submit(now_ns, &request(1, flow, Op::Read), wake).unwrap();
            assert_eq!(issue_all(port, now_ns), [1]);
            now_ns += 1000 * MS;
            assert_eq!(port.requeue(now_ns, Tag(1), wake), Some(Submitted::Staged));
            assert!(port.cancel(now_ns, Tag(1), wake));
        }
        policy.tick(now_ns, wake);
        assert_eq!(policy.stats().slots, depths);
    }

    #[test]
    fn each_domain_has_its_depth_whatever_the_others_hold() {
        let config = KyberConfig { depths: [3, 2, 1, 1], ..KyberConfig::new(2, 1, 20) };
        let (policy, mut ports) = Kyber::<Native>::new(&config).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let wake = &mut { PortSet::EMPTY };
        let [a, b] = &mut ports[..] else { panic!("two ports") };
        for (tag, op) in
            (0..).zip([Op::Read; 4].into_iter().chain([Op::Write; 4]).chain([Op::Discard; 2]))
        {
            a.submit(0, &request(tag, flow, op), wake).unwrap();
        }
        assert_eq!(issue_all(a, 0), [0, 1, 2, 4, 5, 8]);
        assert_eq!(a.next(0, wake), Next::Blocked);
        assert_eq!((policy.stats().slots, policy.stats().free_slots), (Some(7), Some(1)));
        // The depths are for all ports; any port may take a free token.
        b.submit(0, &request(0, flow, Op::Read), wake).unwrap();
        b.submit(0, &request(1, flow, Op::Flush), wake).unwrap();
        assert_eq!(issue_all(b, 0), [1]);
        *wake = PortSet::EMPTY;
        a.complete(0, Tag(4), Outcome::Done, wake);
        a.complete(0, Tag(4), Outcome::Done, wake);
        a.complete(0, Tag(7), Outcome::Done, wake);
        assert_eq!(*wake, PortSet::only(PortId(0)), "b waits for no write");
        a.complete(0, Tag(1), Outcome::Failed, wake);
        assert_eq!(*wake, PortSet::only(PortId(0)), "a waits for a read, too, and keeps it");
        let mut issued = issue_all(a, 0);
        issued.sort_unstable();
        assert_eq!((issue_all(b, 0), issued), (Vec::new(), Vec::from([3, 6])));
    }

    proptest! {
        /// The worst case: a port that completes takes all tokens that it can get before any other
        /// port runs; any request completes next, if none has been on the device for too long. A
        /// waiting port has a token after at most as many returns as the other ports may keep.
        #[test]
        fn no_port_waits_longer_than_a_round(
            ports in 2usize..5,
            depth in 1u32..4,
            most in 1usize..9,
            choices in vec(any::<prop::sample::Index>(), 500..1000),
        ) {
            let config = KyberConfig { depths: [depth; 4], ..KyberConfig::new(ports, 1, 8) };
            let (policy, mut ports) = Kyber::<Native>::new(&config).unwrap();
            let flow = policy.add_flow(Weight::DEFAULT).unwrap();
            let patience = 4 * depth as usize;
            let bound = (patience + depth as usize) * ports.len() * (KEEPS as usize + 1);
            // The port, the tag and the time of issue of each request; the time at which each port
            // was served last.
            let mut device: Vec<(usize, u32, usize)> = Vec::new();
            let mut served = vec![0; ports.len()];
            let mut wake = PortSet::EMPTY;
            for (index, port) in ports.iter_mut().enumerate() {
                (0..most as u32).for_each(|tag| _ = port.submit(0, &request(tag, flow, Op::Read), &mut wake).unwrap());
                device.extend(issue_all(port, 0).into_iter().map(|tag| (index, tag, 0)));
            }
            for (step, choice) in choices.iter().enumerate() {
                let late = device.iter().position(|&(_, _, since)| step - since > patience);
                let (index, tag, _) = device.remove(late.unwrap_or(choice.index(device.len())));
                ports[index].complete(0, Tag(tag), Outcome::Done, &mut wake);
                ports[index].submit(0, &request(tag, flow, Op::Read), &mut wake).unwrap();
                let woken = core::iter::from_fn(|| wake.next()).map(|port| usize::from(port.0));
                for index in core::iter::once(index).chain(woken) {
                    let issued = issue_all(&mut ports[index], 0);
                    if !issued.is_empty() {
                        served[index] = step;
                    }
                    device.extend(issued.into_iter().map(|tag| (index, tag, step)));
                }
                let on_device = |port| device.iter().any(|&(index, ..)| index == port);
                for (port, &since) in served.iter().enumerate() {
                    prop_assert!(on_device(port) || step - since <= bound, "port {port} waits \
                     since step {since}");
                }
                prop_assert_eq!(device.len(), (depth as usize).min(most * ports.len()), "a token \
                 lies idle");
            }
        }
    }

    #[test]
    fn a_token_that_comes_back_goes_round() {
        let config = KyberConfig { depths: [2, 1, 1, 1], ..KyberConfig::new(3, 1, 4) };
        let (policy, mut ports) = Kyber::<Native>::new(&config).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let wake = &mut { PortSet::EMPTY };
        let [a, b, c] = &mut ports[..] else { panic!("three ports") };
        (0..2).for_each(|tag| _ = a.submit(0, &request(tag, flow, Op::Read), wake).unwrap());
        assert_eq!(issue_all(a, 0), [0, 1]);
        for port in [&mut *b, &mut *c] {
            port.submit(0, &request(0, flow, Op::Read), wake).unwrap();
            assert_eq!(issue_all(port, 0), []);
        }
        a.complete(0, Tag(0), Outcome::Done, wake);
        assert_eq!(*wake, PortSet::only(PortId(1)));
        for round in 0..=KEEPS {
            let (tag, other) = (round % 2, 1 - round % 2);
            b.submit(0, &request(other, flow, Op::Read), wake).unwrap();
            assert_eq!(issue_all(b, 0), [tag]);
            *wake = PortSet::EMPTY;
            b.complete(0, Tag(tag), Outcome::Done, wake);
            let next = if round < KEEPS { PortId(1) } else { PortId(2) };
            assert_eq!(*wake, PortSet::only(next), "b keeps it for some time, and then c is next");
        }
        assert_eq!(issue_all(c, 0), [0]);
        *wake = PortSet::EMPTY;
        a.complete(0, Tag(1), Outcome::Done, wake);
        assert_eq!(*wake, PortSet::only(PortId(1)));
        assert_eq!((issue_all(b, 0), policy.stats().free_slots), (Vec::from([0]), Some(3)));
        b.complete(0, Tag(0), Outcome::Done, wake);
        c.complete(0, Tag(0), Outcome::Done, wake);
        [a, b, c].into_iter().for_each(|port| assert_eq!(port.next(0, wake), Next::Idle));
        assert_eq!(policy.stats().free_slots, Some(5), "no grant is left");
    }

    #[test]
    fn slow_reads_take_depth_from_quick_writes() {
        let (policy, mut ports) = Kyber::<Native>::new(&KyberConfig::new(1, 1, 64)).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let port = &mut ports[0];
        let wake = &mut { PortSet::EMPTY };
        let mut now_ns = policy.tick(0, wake).unwrap();
        assert_eq!(now_ns, 100 * MS);
        for _ in 0..20 {
            for tag in 0..64 {
                let op = if tag % 2 == 0 { Op::Read } else { Op::Write };
                port.submit(now_ns, &request(tag, flow, op), wake).unwrap();
            }
            let issued = issue_all(port, now_ns);
            assert_eq!(issued.len(), 64);
            // Reads take 4 ms, twice their target, and writes 1 ms, a tenth of it.
            for tag in issued {
                port.complete(
                    now_ns + if tag % 2 == 0 { 4 * MS } else { MS },
                    Tag(tag),
                    Outcome::Done,
                    wake,
                );
            }
            now_ns += 5 * MS;
        }
        policy.tick(now_ns, wake);
        assert_eq!(policy.depths(), [256, 32, 64, 16]);
    }

    #[test]
    fn bounds_that_make_no_sense_are_refused() {
        use fairq_core::ConfigError;
        let config = KyberConfig::new(1, 1, 1);
        let refused = |config: KyberConfig| Kyber::<Native>::new(&config).err();
        assert_eq!(refused(config), None);
        let knob = |error: Option<ConfigError>| match error {
            Some(ConfigError::Knob { knob, value, .. }) => Some((knob, value)),
            _ => None,
        };
        let of = |config| knob(refused(config));
        assert_eq!(of(KyberConfig { depths: [1, 0, 1, 1], ..config }), Some(("depth", 0)));
        assert_eq!(of(KyberConfig { read_target_ns: 0, ..config }), Some(("target", 0)));
        let longest = u64::MAX;
        assert_eq!(
            of(KyberConfig { discard_target_ns: longest, ..config }),
            Some(("target", longest))
        );
        assert_eq!(refused(KyberConfig { ports: 257, ..config }), Some(ConfigError::Ports(257)));
    }
}
