//! Policies that are broken on purpose: each law must catch some of them. [`Serial`] is a naive
//! fair queue on the serial contract with one fault; [`Wrapped`] is a correct policy behind a shim
//! that misbehaves; [`PerPort`] is fair on each port, but not over all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fairq_core::serial::{
    Arrival, Job, Lane, Lanes, Selection, SerialConfig, SerialPolicy, SerialPort,
};
use fairq_core::sfqd::{Sfqd, SfqdPort};
use fairq_core::{
    Class, FlowError, FlowId, FlowStats, Growth, Limits, Next, Op, Outcome, Policy, Port, PortId,
    PortSet, Reason, Request, Stats, SubmitError, Submitted, Tag, Weight,
};

use crate::world::{Shape, TypedSubject};

/// The law must have caught the policy, and for the right reason.
#[track_caller]
pub(crate) fn caught(verdict: Result<(), String>, how: &str) {
    match verdict {
        Ok(()) => panic!("a broken policy passed"),
        Err(why) => assert!(why.contains(how), "caught for another reason: {why}"),
    }
}

pub(crate) fn serial_config(shape: &Shape) -> SerialConfig {
    SerialConfig::new(shape.ports, shape.flows, shape.tags).with(|config| {
        config.slots = shape.slots;
        config.merge_bytes = shape.merge_bytes;
    })
}

/// The fault of the naive fair queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    FirstComeFirstServed,
    /// Larger weights count as 100.
    WeightsUpTo100,
    /// Serves the flow that it served last while that is less than 2^20 units ahead of the least
    /// start tag.
    AheadByAMegabyte,
    /// A flow starts at its last end tag, however old that is.
    IdleCredit,
    ByFinishTag,
    /// Among equal start tags, the latest arrival goes first.
    LastOfEquals,
    /// Loses the remainder of cost / weight.
    RoundsDown,
    /// Orders tags as if virtual time never wrapped.
    ForgetsTheWrap,
    /// The growth of a request costs nothing.
    GrowsForNothing,
    /// Cancelled requests are charged.
    ChargesForCancelled,
    /// Requests with the first two tags of the first port cost nothing.
    ForgetsWhatAPortOwes,
}

#[derive(Clone, Copy)]
struct Queued {
    job: Job,
    flow: usize,
    start: u128,
    finish: u128,
}

/// A naive SFQ(D): tags are in units times 10^6.
pub(crate) struct Naive {
    fault: Fault,
    now: u128,
    max_finish: u128,
    ends: Vec<u128>,
    queue: Vec<Queued>,
    last_flow: usize,
    in_service: usize,
}

const SCALE: u128 = 1_000_000;

impl SerialPolicy for Naive {
    fn add_flow(&mut self, flow: usize, _weight: Weight) {
        self.ends[flow] = self.now;
    }

    fn insert(&mut self, _now_ns: u64, arrival: &Arrival) {
        let weight = match self.fault {
            Fault::WeightsUpTo100 => arrival.weight.get().min(100),
            _ => arrival.weight.get(),
        };
        let units = match self.fault {
            Fault::RoundsDown => u128::from(arrival.cost) * 100 / u128::from(weight) * SCALE,
            _ => u128::from(arrival.cost) * 100 * SCALE / u128::from(weight),
        };
        let is_forgotten = self.fault == Fault::ForgetsWhatAPortOwes && arrival.job.0 < 2;
        let units = if is_forgotten { 0 } else { units };
        let end = self.ends[arrival.flow];
        let start = if self.fault == Fault::IdleCredit { end } else { end.max(self.now) };
        let finish = start + units;
        self.ends[arrival.flow] = finish;
        self.queue.push(Queued { job: arrival.job, flow: arrival.flow, start, finish });
    }

    fn grow(&mut self, _now_ns: u64, arrival: &Arrival) {
        if self.fault == Fault::GrowsForNothing {
            return;
        }
        let units = u128::from(arrival.cost) * 100 * SCALE / u128::from(arrival.weight.get());
        self.ends[arrival.flow] += units;
        let of_the_flow = self.queue.iter_mut().filter(|queued| queued.flow == arrival.flow);
        for queued in of_the_flow.skip_while(|queued| queued.job != arrival.job) {
            queued.finish += units;
            queued.start += if queued.job == arrival.job { 0 } else { units };
        }
    }

    fn cancel(&mut self, job: Job, flow: usize) {
        let Some(at) = self.queue.iter().position(|queued| queued.job == job) else { return };
        let Queued { start, finish, .. } = self.queue.remove(at);
        if self.fault != Fault::ChargesForCancelled {
            self.ends[flow] -= finish - start;
        }
    }

    fn set_lane(&mut self, _flow: usize, _lane: Lane) {}

    fn select(&mut self, _now_ns: u64, _lanes: Lanes) -> Selection {
        let staged = || self.queue.iter().enumerate();
        let by_start = || staged().min_by_key(|(_, queued)| queued.start);
        let pick = match self.fault {
            Fault::FirstComeFirstServed => staged().next(),
            Fault::ByFinishTag => staged().min_by_key(|(_, queued)| queued.finish),
            Fault::ForgetsTheWrap => {
                staged().min_by_key(|(_, queued)| queued.start / SCALE % (1 << 56))
            }
            Fault::LastOfEquals => staged().rev().min_by_key(|(_, queued)| queued.start),
            Fault::AheadByAMegabyte => {
                let limit = by_start().map_or(0, |(_, queued)| queued.start) + (SCALE << 20);
                let again = staged()
                    .find(|(_, queued)| queued.flow == self.last_flow && queued.start <= limit);
                again.or_else(by_start)
            }
            _ => by_start(),
        };
        let Some((at, _)) = pick else { return Selection::Nothing };
        let queued = self.queue.remove(at);
        self.last_flow = queued.flow;
        self.now = self.now.max(queued.start);
        self.max_finish = self.max_finish.max(queued.finish);
        self.in_service += 1;
        Selection::Serve(queued.job, queued.flow)
    }

    fn completed(&mut self, _now_ns: u64, _job: Job, _flow: usize, _outcome: Outcome) {
        self.in_service -= 1;
        if self.in_service == 0 && self.queue.is_empty() {
            self.now = self.max_finish;
        }
    }
    fn tick(&mut self, _now_ns: u64) -> Option<u64> {
        None
    }
    fn virtual_time(&self) -> Option<u64> {
        Some((self.now / SCALE) as u64)
    }
}

/// The naive fair queue with a fault.
pub(crate) struct Serial(pub(crate) Fault);

impl TypedSubject for Serial {
    type Policy = fairq_core::serial::Serial<Naive>;

    fn build(&self, shape: &Shape) -> (Self::Policy, Vec<SerialPort<Naive>>) {
        let policy = Naive {
            fault: self.0,
            now: 0,
            max_finish: 0,
            ends: vec![0; shape.flows],
            queue: Vec::new(),
            last_flow: 0,
            in_service: 0,
        };
        fairq_core::serial::Serial::with_policy(policy, &serial_config(shape))
            .expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

/// The fault of the shim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misbehave {
    OneSlotTooMany,
    OneSlotTooFew,
    ForgetCompletions,
    VirtualTimeJitters,
    LoseWakeUps,
    LoseRequests,
    IssueTwice,
    WrongPort,
    WakeForEver,
    SayIdle,
    SayBlocked,
    TakeBadTags,
    KeepRemovedFlows,
    /// Nothing is issued while the time, in ticks, for which the last flow that came had been away
    /// is negative as a signed number of 16 bits.
    AgeInSixteenBits,
    /// Confirms a cancellation, and serves the request.
    CancelOnlySays,
    /// Refuses to cancel a staged request.
    CancelForgets,
    /// Confirms that a request is requeued, and does not requeue it.
    RequeueForgets,
    /// Forgets an expedited request: its flow's slot and its tag are free too soon.
    ExpediteForgets,
    /// Reports the completion of a staged request as that of an issued one.
    CompletesStaged,
    /// Ignores weights that are set for several flows at once.
    WeightsStay,
}

/// SFQ(D) behind a shim that misbehaves.
pub(crate) struct Wrapped(pub(crate) Misbehave);

pub(crate) struct Shim {
    inner: Sfqd,
    fault: Misbehave,
    ports: usize,
    count: AtomicU64,
    ticks: Arc<AtomicU64>,
}

pub(crate) struct ShimPort {
    inner: SfqdPort,
    fault: Misbehave,
    index: usize,
    ports: usize,
    count: u64,
    last: Option<Next>,
    ticks: Arc<AtomicU64>,
    /// The tick in which each flow, by slot, was last served.
    seen: Vec<u64>,
    /// Ticks for which the flow that came last had been away.
    age: u64,
    /// A request that another port was to issue, and that port's index.
    stolen: Arc<Mutex<Option<(usize, Next)>>>,
}

impl TypedSubject for Wrapped {
    type Policy = Shim;

    fn build(&self, shape: &Shape) -> (Shim, Vec<ShimPort>) {
        let mut config = serial_config(shape);
        match self.0 {
            Misbehave::OneSlotTooMany => config.slots += 1,
            Misbehave::OneSlotTooFew => config.slots = (config.slots - 1).max(1),
            _ => {}
        }
        let (inner, ports) = Sfqd::new(&config).expect("the shape is legal");
        let stolen = Arc::new(Mutex::new(None));
        let ticks = Arc::new(AtomicU64::new(0));
        let shim = |(index, inner)| ShimPort {
            inner,
            fault: self.0,
            index,
            ports: shape.ports,
            count: 0,
            last: None,
            ticks: ticks.clone(),
            seen: vec![0; shape.flows],
            age: 0,
            stolen: stolen.clone(),
        };
        let ports = ports.into_iter().enumerate().map(shim).collect();
        let count = AtomicU64::new(0);
        (Shim { inner, fault: self.0, ports: shape.ports, count, ticks }, ports)
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

impl Limits for Shim {}

impl Policy for Shim {
    type Port = ShimPort;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.inner.add_flow_as(known, weight)
    }
    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.inner.set_weight(flow, weight)
    }
    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        if self.fault != Misbehave::WeightsStay {
            self.inner.set_weights(weights);
        }
    }
    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        if self.fault == Misbehave::KeepRemovedFlows {
            return Ok(PortSet::first(self.ports));
        }
        self.inner.remove_flow(flow)
    }
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        self.ticks.fetch_add(1, Ordering::Relaxed);
        self.inner.tick(now_ns, wake)
    }
    fn stats(&self) -> Stats {
        let mut stats = self.inner.stats();
        let every_fifth = self.count.fetch_add(1, Ordering::Relaxed) % 5 == 4;
        if self.fault == Misbehave::VirtualTimeJitters && every_fifth {
            stats.virtual_time = stats.virtual_time.map(|units| units.saturating_sub(1));
        }
        stats
    }
}

impl ShimPort {
    fn every(&mut self, nth: u64, fault: Misbehave) -> bool {
        self.count += 1;
        self.fault == fault && self.count.is_multiple_of(nth)
    }

    fn steal(&mut self, next: Next) -> Option<Next> {
        let mut stolen = self.stolen.lock().expect("one thread");
        match *stolen {
            Some((victim, loot)) if victim != self.index => {
                *stolen = None;
                Some(loot)
            }
            None if matches!(next, Next::Issue { .. }) && self.ports > 1 => {
                *stolen = Some((self.index, next));
                None
            }
            _ => None,
        }
    }
}

impl Port for ShimPort {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        if self.every(11, Misbehave::LoseRequests) {
            return Ok(Submitted::Staged);
        }
        if let Some(seen) = self.seen.get_mut(request.flow.slot()) {
            self.age = self.ticks.load(Ordering::Relaxed) - *seen;
            *seen += self.age;
        }
        let result = self.inner.submit(now_ns, request, wake);
        match result {
            Err(SubmitError::BadTag) if self.fault == Misbehave::TakeBadTags => {
                Ok(Submitted::Staged)
            }
            result => result,
        }
    }

    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        if self.every(7, Misbehave::IssueTwice)
            && let Some(last) = self.last.take()
        {
            return last;
        }
        if self.fault == Misbehave::AgeInSixteenBits && (self.age as i16) < 0 {
            return Next::Blocked;
        }
        let mut next = self.inner.next(now_ns, wake);
        match self.fault {
            Misbehave::LoseWakeUps => *wake = PortSet::EMPTY,
            Misbehave::WakeForEver => wake.insert(PortId(((self.index + 1) % self.ports) as u8)),
            Misbehave::SayIdle if next == Next::Blocked => next = Next::Idle,
            Misbehave::SayBlocked if next == Next::Idle => next = Next::Blocked,
            Misbehave::WrongPort => next = self.steal(next).unwrap_or(next),
            _ => {}
        }
        if matches!(next, Next::Issue { .. }) {
            self.last = Some(next);
        }
        next
    }

    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let forgets = self.every(9, Misbehave::ForgetCompletions);
        let was_issued = forgets || self.inner.complete(now_ns, tag, outcome, wake);
        was_issued || self.fault == Misbehave::CompletesStaged
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.inner.admit(flow)
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        if self.every(3, Misbehave::CancelOnlySays) {
            return true;
        }
        !self.every(3, Misbehave::CancelForgets) && self.inner.cancel(now_ns, tag, wake)
    }

    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        match self.fault {
            Misbehave::ExpediteForgets => self.inner.cancel(now_ns, tag, wake),
            _ => self.inner.expedite(now_ns, tag, wake),
        }
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        self.inner.hold(tag, flow)
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        if self.every(3, Misbehave::RequeueForgets) {
            return Some(Submitted::Staged);
        }
        self.inner.requeue(now_ns, tag, wake)
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        self.inner.grow(now_ns, tag, growth, wake)
    }

    fn has_work(&self) -> bool {
        self.last.is_some() || self.inner.has_work()
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        self.inner.staged(flow)
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        self.inner.flow_stats(flow)
    }

    fn barrier(&mut self, flow: FlowId) {
        self.inner.barrier(flow);
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        self.inner.reason(tag)
    }
}

/// The rare verbs, passed on to the port inside.
macro_rules! verbs_of {
    ($inner:tt) => {
        fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
            self.$inner.admit(flow)
        }
        fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
            self.$inner.cancel(now_ns, tag, wake)
        }
        fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
            self.$inner.expedite(now_ns, tag, wake)
        }
        fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
            self.$inner.hold(tag, flow)
        }
        fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
            self.$inner.requeue(now_ns, tag, wake)
        }
        fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
            self.$inner.grow(now_ns, tag, growth, wake)
        }
        fn has_work(&self) -> bool {
            self.$inner.has_work()
        }
        fn staged(&self, flow: FlowId) -> Option<Tag> {
            self.$inner.staged(flow)
        }
        fn flow_stats(&self, flow: FlowId) -> FlowStats {
            self.$inner.flow_stats(flow)
        }
        fn reason(&self, tag: Option<Tag>) -> Reason {
            self.$inner.reason(tag)
        }
    };
}

/// The fault of the merging policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Joins {
    AcrossBarriers,
    TooMuch,
    Gaps,
    WritesToReads,
}

/// A policy that merges, behind a shim that misreports offsets, operations or barriers, or raises
/// the bound of bytes.
pub(crate) struct Joining<S>(pub(crate) S, pub(crate) Joins);

pub(crate) struct JoiningPort<P> {
    inner: P,
    fault: Joins,
    end: u64,
}

pub(crate) struct JoiningPolicy<P>(P);

impl<S: TypedSubject> TypedSubject for Joining<S> {
    type Policy = JoiningPolicy<S::Policy>;

    fn build(&self, shape: &Shape) -> (Self::Policy, Vec<<Self::Policy as Policy>::Port>) {
        let more = if self.1 == Joins::TooMuch { 4 } else { 1 };
        let (policy, ports) =
            self.0.build(&Shape { merge_bytes: shape.merge_bytes * more, ..*shape });
        let port = |inner| JoiningPort { inner, fault: self.1, end: 0 };
        (JoiningPolicy(policy), ports.into_iter().map(port).collect())
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        self.0.threshold(shape)
    }
    fn assigns_to_ports(&self) -> bool {
        self.0.assigns_to_ports()
    }
}

impl<P: Limits> Limits for JoiningPolicy<P> {}

impl<P: Limits> Policy for JoiningPolicy<P> {
    type Port = JoiningPort<P::Port>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.0.add_flow_as(known, weight)
    }
    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.0.set_weight(flow, weight)
    }
    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.0.remove_flow(flow)
    }
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        self.0.tick(now_ns, wake)
    }
    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

impl<P: Port> Port for JoiningPort<P> {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let mut told = *request;
        match self.fault {
            Joins::Gaps => told.offset = self.end,
            Joins::WritesToReads if told.op == Op::Write => told.op = Op::Read,
            _ => {}
        }
        self.end = told.offset + u64::from(told.length);
        self.inner.submit(now_ns, &told, wake)
    }
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        self.inner.next(now_ns, wake)
    }
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        self.inner.complete(now_ns, tag, outcome, wake)
    }
    verbs_of!(inner);
    fn barrier(&mut self, flow: FlowId) {
        if self.fault != Joins::AcrossBarriers {
            self.inner.barrier(flow);
        }
    }
}

/// A fair queue for each port with its part of the slots: fair on each port, and therefore unfair
/// over all.
pub(crate) struct PerPort;

pub(crate) struct PerPortPolicy(Vec<Sfqd>);

pub(crate) struct PerPortPort(SfqdPort);

impl TypedSubject for PerPort {
    type Policy = PerPortPolicy;

    fn build(&self, shape: &Shape) -> (PerPortPolicy, Vec<PerPortPort>) {
        let config = serial_config(shape).with(|config| {
            config.ports = 1;
            config.slots = shape.slots / shape.ports as u32;
        });
        let build = |_| {
            let (policy, mut ports) = Sfqd::new(&config).expect("the shape is legal");
            (policy, PerPortPort(ports.remove(0)))
        };
        let (policies, ports) = (0..shape.ports).map(build).unzip();
        (PerPortPolicy(policies), ports)
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

impl Limits for PerPortPolicy {}

impl Policy for PerPortPolicy {
    type Port = PerPortPort;

    /// Adds the same flow to all parts: each gives it the same slot and generation.
    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let mut flow = Err(FlowError::Full);
        for part in &self.0 {
            flow = part.add_flow_as(known, weight);
        }
        flow
    }
    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.0.iter().try_for_each(|part| part.set_weight(flow, weight))
    }
    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.0.iter().try_for_each(|part| part.remove_flow(flow).map(|_| ()))?;
        Ok(PortSet::first(self.0.len()))
    }
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        self.0.iter().filter_map(|part| part.tick(now_ns, wake)).min()
    }
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

impl Port for PerPortPort {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        self.0.submit(now_ns, request, wake)
    }
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        match self.0.next(now_ns, wake) {
            Next::Issue { tag, .. } => Next::Issue { tag, class: Class::Medium },
            next => next,
        }
    }
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        self.0.complete(now_ns, tag, outcome, wake)
    }
    verbs_of!(0);
    fn barrier(&mut self, flow: FlowId) {
        self.0.barrier(flow);
    }
}
