//! A policy with ports, a device and a host, without threads or clocks.
//!
//! The host keeps the contract: it calls `next` on every port that submitted, completed or was
//! woken. But it does so late: pending calls are kept in `owed` and made when the script says so,
//! one at a time, so that verbs of all ports interleave. Everything observable goes into a
//! [`Trace`]; the laws are functions of traces. The device serves all that it is given and
//! completes in any order.

use fairq_core::{
    CostModel, FlowError, FlowId, Growth, Limits, Next, Op, Outcome, Policy, Port, PortId, PortSet,
    Request, SubmitError, Submitted, Tag, Weight,
};

/// The bounds and parameters a policy is built with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) ports: usize,
    /// The most flows at a time.
    pub(crate) flows: usize,
    /// Live requests per port.
    pub(crate) tags: usize,
    /// The most requests outstanding (D).
    pub(crate) slots: u32,
    /// The throttling threshold (T), in bytes at the reference weight.
    pub(crate) threshold: u64,
    pub(crate) cost: CostModel,
    /// The most bytes that are merged to one command.
    pub(crate) merge_bytes: u32,
}

/// A policy that laws are applied to, with its type.
pub(crate) trait TypedSubject {
    type Policy: Limits;

    fn build(&self, shape: &Shape) -> (Self::Policy, Vec<<Self::Policy as Policy>::Port>);

    /// The lead over virtual time at which a request may still be dispatched, in units; if it [is
    /// relative](Self::is_relative), at weights of 100.
    fn threshold(&self, shape: &Shape) -> u64;

    /// Whether its threshold is in bytes at the reference weight.
    fn is_relative(&self) -> bool {
        false
    }

    /// Whether `next` on one port decides what another port issues: then the moment of dispatch
    /// cannot be observed until all pending calls have been made.
    fn assigns_to_ports(&self) -> bool;

    /// Time at which scripts begin, in nanoseconds.
    fn starts_ns(&self) -> u64 {
        0
    }

    /// Whether it shares requests, whatever their length: then it is checked with requests of one
    /// length.
    fn counts_requests(&self) -> bool {
        false
    }
}

/// A policy that laws are applied to, without its type: laws are compiled once, not for each
/// policy.
pub(crate) trait Subject {
    fn build(&self, shape: &Shape) -> (Box<dyn Limits>, Vec<Box<dyn Handle>>);
    fn threshold(&self, shape: &Shape) -> u64;
    fn is_relative(&self) -> bool;
    fn assigns_to_ports(&self) -> bool;
    fn starts_ns(&self) -> u64;
    fn counts_requests(&self) -> bool;
}

impl<S: TypedSubject> Subject for S {
    fn build(&self, shape: &Shape) -> (Box<dyn Limits>, Vec<Box<dyn Handle>>) {
        let (policy, ports) = TypedSubject::build(self, shape);
        let handles = ports.into_iter().map(|port| Box::new(port) as Box<dyn Handle>).collect();
        (Box::new(policy), handles)
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        TypedSubject::threshold(self, shape)
    }
    fn is_relative(&self) -> bool {
        TypedSubject::is_relative(self)
    }
    fn assigns_to_ports(&self) -> bool {
        TypedSubject::assigns_to_ports(self)
    }
    fn starts_ns(&self) -> u64 {
        TypedSubject::starts_ns(self)
    }
    fn counts_requests(&self) -> bool {
        TypedSubject::counts_requests(self)
    }
}

/// The verbs of a [`Port`] that laws use, for any port.
pub(crate) trait Handle {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError>;
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next;
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool;
    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool;
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool;
    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted>;
    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool;
    fn has_work(&self) -> bool;
    fn staged(&self, flow: FlowId) -> Option<Tag>;
    fn barrier(&mut self, flow: FlowId);
}

impl<P: Port> Handle for P {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        Port::submit(self, now_ns, request, wake)
    }
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        Port::next(self, now_ns, wake)
    }
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        Port::complete(self, now_ns, tag, outcome, wake)
    }
    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        Port::cancel(self, now_ns, tag, wake)
    }
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        Port::expedite(self, now_ns, tag, wake)
    }
    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        Port::requeue(self, now_ns, tag, wake)
    }
    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        Port::grow(self, now_ns, tag, growth, wake)
    }
    fn has_work(&self) -> bool {
        Port::has_work(self)
    }
    fn staged(&self, flow: FlowId) -> Option<Tag> {
        Port::staged(self, flow)
    }
    fn barrier(&mut self, flow: FlowId) {
        Port::barrier(self, flow);
    }
}

/// A flow's life, from `add_flow` on; a reused slot belongs to another flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) id: FlowId,
    /// The weights it has had, latest last.
    pub(crate) weights: Vec<u16>,
    pub(crate) open: bool,
    /// The range that its stream has covered, if requests are merged.
    stream: (u64, u64),
    /// Barriers so far, by port.
    barriers: Vec<u32>,
}

/// Fixed-point scale of exact service.
pub(crate) const ONE_UNIT: i128 = 1 << 32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Req {
    pub(crate) port: usize,
    pub(crate) tag: Tag,
    /// Index into [`Trace::flows`].
    pub(crate) flow: usize,
    pub(crate) cost: u64,
    pub(crate) weight: u16,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Barriers of its flow before it, on its port.
    pub(crate) barriers: u32,
    /// The command that it was issued in: commands are numbered as they are issued.
    pub(crate) command: usize,
}

impl Req {
    /// Its service per weight, in units of virtual time times [`ONE_UNIT`], exact to 2^-32 of a
    /// unit.
    pub(crate) fn service(&self) -> i128 {
        i128::from(self.cost) * 100 * ONE_UNIT / i128::from(self.weight)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Submitted(usize),
    /// The request is `None` if the tag was not staged on that port.
    Issued {
        port: usize,
        tag: Tag,
        request: Option<usize>,
        /// Whether the command continues with the next issue.
        joined: bool,
    },
    Completed(usize),
    /// A staged request was cancelled.
    Cancelled(usize),
    /// An issued request was requeued.
    Requeued(usize),
    /// Virtual time after a verb, in units.
    VirtualTime(u64),
    /// No port needs a `next`.
    Settled {
        free_slots: Option<u64>,
        outstanding: usize,
        staged: usize,
    },
    /// `next` returned `Idle`: nothing is staged on this port.
    SaidIdle {
        port: usize,
        staged: usize,
    },
    /// `next` returned `Blocked` or `WaitUntil`: something is staged.
    SaidBlocked {
        port: usize,
        staged: usize,
    },
    /// The policy broke the contract in a way that needs no law of its own.
    Broken(String),
}

/// Everything that happened.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) shape: Shape,
    /// The largest threshold that was in force, in units.
    pub(crate) threshold: u64,
    pub(crate) flows: Vec<Flow>,
    pub(crate) requests: Vec<Req>,
    pub(crate) events: Vec<Event>,
}

pub(crate) struct World {
    pub(crate) policy: Box<dyn Limits>,
    ports: Vec<Box<dyn Handle>>,
    /// The threshold at weight 100, if it is relative.
    relative: Option<u64>,
    pub(crate) now_ns: u64,
    /// Ports that need a `next`.
    owed: PortSet,
    timers: Vec<Option<u64>>,
    /// Per port and tag: the request, and whether it has been issued.
    tags: Vec<Vec<Option<(usize, bool)>>>,
    staged: Vec<usize>,
    /// Requests on the device, in the order of issue.
    pub(crate) device: Vec<usize>,
    /// Live requests of each command.
    commands: Vec<usize>,
    /// Commands with live requests.
    outstanding: usize,
    /// Per port, the requests joined to a command that is not complete yet.
    joined: Vec<Vec<usize>>,
    /// Times at which each request was submitted and issued; 0 before.
    pub(crate) submitted_ns: Vec<u64>,
    pub(crate) issued_ns: Vec<u64>,
    pub(crate) trace: Trace,
    random: u64,
}

impl World {
    pub(crate) fn new(subject: &dyn Subject, shape: Shape, seed: u64) -> Self {
        let (policy, ports) = subject.build(&shape);
        assert_eq!(ports.len(), shape.ports);
        let threshold = subject.threshold(&shape);
        let relative = subject.is_relative().then_some(threshold);
        let threshold = if relative.is_some() { 0 } else { threshold };
        World {
            policy,
            ports,
            relative,
            now_ns: subject.starts_ns(),
            owed: PortSet::EMPTY,
            timers: vec![None; shape.ports],
            tags: vec![vec![None; shape.tags]; shape.ports],
            staged: vec![0; shape.ports],
            device: Vec::new(),
            commands: Vec::new(),
            outstanding: 0,
            joined: vec![Vec::new(); shape.ports],
            submitted_ns: Vec::new(),
            issued_ns: Vec::new(),
            trace: Trace {
                shape,
                threshold,
                flows: Vec::new(),
                requests: Vec::new(),
                events: Vec::new(),
            },
            random: seed | 1,
        }
    }

    /// A deterministic choice below `bound`.
    pub(crate) fn random(&mut self, bound: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound.max(1)
    }

    pub(crate) fn staged(&self) -> usize {
        self.staged.iter().sum()
    }

    pub(crate) fn add_flow(&mut self, weight: u16) -> Result<usize, FlowError> {
        let id = self.policy.add_flow(Weight::new(weight).expect("scripts use legal weights"))?;
        let live = self.tags.iter().flatten().flatten();
        let mut of = live.map(|&(index, _)| self.trace.flows[self.trace.requests[index].flow].id);
        if let Some(old) = of.find(|old| old.slot() == id.slot()) {
            self.broken(format!("{id:?} has the slot of {old:?}, of which a request is live"));
        }
        let barriers = vec![0; self.ports.len()];
        self.trace.flows.push(Flow {
            id,
            weights: vec![weight],
            open: true,
            stream: (1 << 30, 1 << 30),
            barriers,
        });
        Ok(self.trace.flows.len() - 1)
    }

    pub(crate) fn set_weight(&mut self, flow: usize, weight: u16) {
        let state = &mut self.trace.flows[flow];
        let result = self
            .policy
            .set_weight(state.id, Weight::new(weight).expect("scripts use legal weights"));
        if result.is_ok() != state.open {
            self.broken(format!("set_weight on flow {flow} gave {result:?}"));
        } else if state.open {
            state.weights.push(weight);
        }
    }

    pub(crate) fn remove_flow(&mut self, flow: usize) {
        let state = &mut self.trace.flows[flow];
        let was_open = std::mem::replace(&mut state.open, false);
        match self.policy.remove_flow(state.id) {
            Ok(ports) if was_open => self.owed.extend(ports),
            Err(FlowError::NoSuchFlow) if !was_open => {}
            other => self.broken(format!("remove_flow on flow {flow} gave {other:?}")),
        }
    }

    /// Submits a request; the port then needs a `next`. Returns the request, unless no tag is left
    /// or the flow is closed.
    pub(crate) fn submit(
        &mut self,
        port: usize,
        flow: usize,
        op: Op,
        length: u32,
    ) -> Option<usize> {
        let tag = self.tags[port].iter().position(Option::is_none)?;
        let merges = self.trace.shape.merge_bytes > 0;
        let alone = merges && self.random(16) == 0;
        let offset = if merges { self.place(flow, length) } else { 0 };
        let state = &mut self.trace.flows[flow];
        let (open, weight) = (state.open, state.weights[state.weights.len() - 1]);
        let id = state.id;
        let cost = self.trace.shape.cost.charge(op, length);
        let request = Request { cost, ..Request::new(Tag(tag as u32), id, op, offset, length) };
        state.barriers[port] += u32::from(alone || !matches!(op, Op::Read | Op::Write));
        let barriers = state.barriers[port];
        if alone {
            self.ports[port].barrier(id);
        }
        let result = self.verb(port, |port, now, wake| port.submit(now, &request, wake));
        if alone {
            self.ports[port].barrier(id);
            self.trace.flows[flow].barriers[port] += 1;
        }
        match result {
            Ok(submitted) if open => {
                let cost = self.trace.shape.cost.cost(op, length);
                let index = self.trace.requests.len();
                self.submitted_ns.push(self.now_ns);
                self.issued_ns.push(0);
                let (tag, command) = (request.tag, usize::MAX);
                let req =
                    Req { port, tag, flow, cost, weight, op, offset, length, barriers, command };
                self.trace.requests.push(req);
                self.trace.events.push(Event::Submitted(index));
                self.tags[port][tag.0 as usize] = Some((index, false));
                self.staged[port] += 1;
                if let Submitted::Issue { .. } = submitted {
                    self.issue(port, request.tag, false);
                }
                Some(index)
            }
            Err(SubmitError::NoSuchFlow) if !open => None,
            other => {
                self.broken(format!("submit for flow {flow} (open: {open}) gave {other:?}"));
                None
            }
        }
    }

    /// Calls of a faulty host: each must be refused and leave no trace.
    pub(crate) fn misuse(&mut self, port: usize) {
        let beyond = Tag(self.trace.shape.tags as u32);
        let live = self.tags[port].iter().position(Option::is_some).map(|tag| Tag(tag as u32));
        let unissued =
            self.tags[port].iter().position(|tag| matches!(tag, Some((_, false)) | None));
        let staged = self.tags[port].iter().position(|tag| matches!(tag, Some((_, false))));
        let Some(flow) = self.trace.flows.iter().find(|flow| flow.open) else { return };
        let request = |tag| Request::new(tag, flow.id, Op::Read, 0, 4096);
        let requests: Vec<_> =
            [Some(beyond), Some(Tag(u32::MAX)), live].into_iter().flatten().map(request).collect();
        for request in requests {
            let result = self.verb(port, |port, now, wake| port.submit(now, &request, wake));
            if result != Err(SubmitError::BadTag) {
                self.broken(format!("submit with a bad tag {:?} gave {result:?}", request.tag));
            }
        }
        let unissued = [unissued, staged].map(|tag| tag.map(|tag| Tag(tag as u32)));
        for tag in
            [Some(beyond), Some(Tag(u32::MAX)), unissued[0], unissued[1]].into_iter().flatten()
        {
            if self.verb(port, |port, now, wake| port.complete(now, tag, Outcome::Done, wake)) {
                self.broken(format!("completed {tag:?}, which is not issued"));
            }
            if self.verb(port, |port, now, wake| port.requeue(now, tag, wake)).is_some() {
                self.broken(format!("requeued {tag:?}, which is not issued"));
            }
        }
        let unstaged = self.tags[port].iter().position(|tag| matches!(tag, Some((_, true)) | None));
        for tag in [beyond, Tag(u32::MAX)].into_iter().chain(unstaged.map(|tag| Tag(tag as u32))) {
            let growth = Growth { op: Op::Read, offset: 0, length: 4096, cost: 4096 };
            if self.verb(port, |port, now, wake| port.cancel(now, tag, wake))
                || self.verb(port, |port, now, wake| port.grow(now, tag, &growth, wake))
            {
                self.broken(format!("cancelled or grew {tag:?}, which is not staged"));
            }
        }
    }

    /// The staged request for a script's number, if any is staged.
    pub(crate) fn staged_request(&self, pick: usize) -> Option<usize> {
        let staged: Vec<usize> = self
            .tags
            .iter()
            .flatten()
            .filter_map(|tag| tag.filter(|(_, issued)| !issued).map(|(index, _)| index))
            .collect();
        (!staged.is_empty()).then(|| staged[pick % staged.len()])
    }

    /// Cancels a staged request; its port must not know it afterwards.
    pub(crate) fn cancel(&mut self, pick: usize) {
        let Some(index) = self.staged_request(pick) else { return };
        let Req { port, tag, flow, .. } = self.trace.requests[index];
        let id = self.trace.flows[flow].id;
        if self.ports[port].staged(id).is_none() {
            self.broken(format!("{tag:?} is staged, and the port says that its flow has nothing"));
        }
        let cancelled = self.verb(port, |port, now, wake| port.cancel(now, tag, wake));
        if cancelled {
            self.tags[port][tag.0 as usize] = None;
            self.staged[port] -= 1;
            self.trace.events.push(Event::Cancelled(index));
        } else if self.trace.shape.merge_bytes == 0 {
            self.broken(format!("{tag:?} is staged and cannot be cancelled"));
        }
        if cancelled && self.verb(port, |port, now, wake| port.cancel(now, tag, wake)) {
            self.broken(format!("{tag:?} was cancelled twice"));
        }
    }

    /// Cancels the flow's staged request that the port names; false if there is none.
    pub(crate) fn cancel_of(&mut self, flow: usize, port: usize) -> bool {
        let Some(tag) = self.ports[port].staged(self.trace.flows[flow].id) else { return false };
        let Some((index, false)) = self.tags[port][tag.0 as usize] else {
            self.broken(format!("{tag:?} is not staged"));
            return false;
        };
        if self.trace.requests[index].flow != flow {
            self.broken(format!("{tag:?} is another flow's"));
        }
        let cancelled = self.verb(port, |port, now, wake| port.cancel(now, tag, wake));
        if cancelled {
            self.tags[port][tag.0 as usize] = None;
            self.staged[port] -= 1;
            self.trace.events.push(Event::Cancelled(index));
        }
        cancelled
    }

    /// Requeues an issued request that the device has not begun.
    pub(crate) fn requeue(&mut self, pick: usize) {
        let Some(position) = pick.checked_rem(self.device.len()) else { return };
        let index = self.device[position];
        let Req { port, tag, command, .. } = self.trace.requests[index];
        let answer = self.verb(port, |port, now, wake| port.requeue(now, tag, wake));
        match answer {
            // A request that was merged with others cannot be requeued.
            None if self.trace.shape.merge_bytes > 0 => {}
            None => self.broken(format!("{tag:?} is issued and cannot be requeued")),
            Some(answer) => {
                self.device.remove(position);
                self.commands[command] -= 1;
                self.outstanding -= 1;
                self.tags[port][tag.0 as usize] = Some((index, false));
                self.staged[port] += 1;
                self.trace.events.push(Event::Requeued(index));
                if let Submitted::Issue { .. } = answer {
                    self.issue(port, tag, false);
                }
            }
        }
    }

    /// Merges the range behind a staged request into it.
    pub(crate) fn grow(&mut self, pick: usize, length: u32) {
        let Some(index) = self.staged_request(pick) else { return };
        let Req { port, tag, op, offset, length: before, .. } = self.trace.requests[index];
        let cost = self.trace.shape.cost.cost(op, length);
        let growth = Growth { op, offset: offset + u64::from(before), length, cost };
        if self.verb(port, |port, now, wake| port.grow(now, tag, &growth, wake)) {
            let request = &mut self.trace.requests[index];
            request.length = before.saturating_add(length);
            request.cost += cost;
        } else if self.trace.shape.merge_bytes == 0 {
            self.broken(format!("{tag:?} is staged and cannot grow"));
        }
    }

    /// Calls `next` once.
    pub(crate) fn next(&mut self, port: usize) -> Next {
        self.owed.remove(PortId(port as u8));
        self.timers[port] = None;
        let has_work = self.ports[port].has_work();
        let next = self.verb_unowed(port, |port, now, wake| port.next(now, wake));
        let staged = self.staged[port];
        if !has_work && matches!(next, Next::Issue { .. } | Next::Join { .. }) {
            self.broken(format!("port {port} said that it has no work, and gave {next:?}"));
        }
        match next {
            Next::Issue { tag, .. } => {
                self.owed.insert(PortId(port as u8));
                self.issue(port, tag, false);
            }
            Next::Join { tag } => {
                self.owed.insert(PortId(port as u8));
                self.issue(port, tag, true);
            }
            Next::WaitUntil(time) => {
                self.timers[port] = Some(time);
                self.trace.events.push(Event::SaidBlocked { port, staged: self.staged() });
            }
            Next::Blocked => self.trace.events.push(Event::SaidBlocked { port, staged }),
            Next::Idle => self.trace.events.push(Event::SaidIdle { port, staged }),
        }
        next
    }

    /// Completes the request at a position in the device; its port then needs a `next`.
    pub(crate) fn complete(&mut self, position: usize) -> usize {
        let index = self.device.remove(position);
        let Req { port, tag, command, .. } = self.trace.requests[index];
        self.commands[command] -= 1;
        self.outstanding -= usize::from(self.commands[command] == 0);
        let outcome = if self.random(16) == 0 { Outcome::Failed } else { Outcome::Done };
        self.trace.events.push(Event::Completed(index));
        self.tags[port][tag.0 as usize] = None;
        self.verb(port, |port, now, wake| port.complete(now, tag, outcome, wake));
        index
    }

    pub(crate) fn tick(&mut self) -> Option<u64> {
        let mut wake = PortSet::EMPTY;
        let deadline = self.policy.tick(self.now_ns, &mut wake);
        self.owe(wake);
        self.note_virtual_time();
        deadline
    }

    /// Makes one pending call of `next`; false if there is none.
    pub(crate) fn pay_one(&mut self) -> bool {
        let pick = self.random(self.owed.len());
        let Some(port) = { self.owed }.nth(pick) else { return false };
        self.next(usize::from(port.0));
        true
    }

    /// Makes all pending calls, so that nothing more can be issued before the next completion or
    /// arrival.
    pub(crate) fn settle(&mut self) {
        loop {
            let issued = self.pay_all();
            // Timers of waiting ports fire, until none leads to an issue.
            if !self.fire_timers() || (self.pay_all() == 0 && issued == 0) {
                break;
            }
        }
        let free_slots = self.policy.stats().free_slots;
        let (outstanding, staged) = (self.outstanding, self.staged());
        self.trace.events.push(Event::Settled { free_slots, outstanding, staged });
    }

    fn pay_all(&mut self) -> usize {
        let before = self.device.len();
        let bound = 64 + 8 * self.trace.shape.ports * (self.staged() + 8);
        let mut rounds = 0;
        while self.pay_one() {
            rounds += 1;
            if rounds > bound {
                self.broken(format!(
                    "ports keep waking each other: {rounds} calls of next without an end"
                ));
                self.owed = PortSet::EMPTY;
            }
        }
        self.device.len() - before
    }

    /// Advances the clock until all timers of ports have fired; false if there is none.
    fn fire_timers(&mut self) -> bool {
        let Some(latest) = self.timers.iter().flatten().max() else { return false };
        self.now_ns = self.now_ns.max(*latest);
        let due = (0..self.timers.len()).filter(|&port| self.timers[port].is_some());
        due.for_each(|port| self.owed.insert(PortId(port as u8)));
        true
    }

    /// Completes everything, in any order; then nothing may be left. A policy may wait several
    /// times for flows that do not come, but not for ever.
    pub(crate) fn drain(&mut self) {
        let mut in_vain = 0;
        for _ in 0..1_000_000 {
            self.settle();
            if !self.device.is_empty() {
                let pick = self.random(self.device.len());
                self.complete(pick);
                in_vain = 0;
            } else if self.staged() > 0 && in_vain < 16 {
                in_vain += 1;
            } else {
                return;
            }
        }
        self.broken("waits for ever".into());
    }

    /// Adds flows until none fits: every slot must be free again. To be called after `drain`.
    pub(crate) fn check_flow_slots(&mut self) {
        (0..self.trace.shape.ports).for_each(|port| self.owed.insert(PortId(port as u8)));
        self.settle();
        let open = self.trace.flows.iter().filter(|flow| flow.open).count();
        let mut added = 0;
        while self.policy.add_flow(Weight::DEFAULT).is_ok() {
            added += 1;
        }
        if open + added != self.trace.shape.flows {
            self.broken(format!(
                "{open} flows are open and {added} fit, of {}",
                self.trace.shape.flows
            ));
        }
    }

    /// Mostly extends the flow's stream, at its end or before its beginning.
    fn place(&mut self, flow: usize, length: u32) -> u64 {
        let pick = self.random(10);
        let (begin, end) = self.trace.flows[flow].stream;
        let (offset, stream) = match pick {
            0..6 => (end, (begin, end + u64::from(length))),
            6..9 => (begin - u64::from(length), (begin - u64::from(length), end)),
            _ => (end + (1 << 20), (end + (1 << 20), end + (1 << 20) + u64::from(length))),
        };
        self.trace.flows[flow].stream = stream;
        offset
    }

    pub(crate) fn issue(&mut self, port: usize, tag: Tag, joined: bool) {
        let state = self.tags[port].get_mut(tag.0 as usize).and_then(Option::as_mut);
        let request = match state {
            Some((index, issued @ false)) => {
                *issued = true;
                self.staged[port] -= 1;
                self.joined[port].push(*index);
                self.issued_ns[*index] = self.now_ns;
                Some(*index)
            }
            _ => None,
        };
        if !joined {
            let parts = std::mem::take(&mut self.joined[port]);
            parts.iter().for_each(|&part| self.trace.requests[part].command = self.commands.len());
            self.commands.push(parts.len());
            self.outstanding += 1;
            self.device.extend(parts);
        }
        self.trace.events.push(Event::Issued { port, tag, request, joined });
        if request.is_none() {
            // Another `next` would repeat this for ever.
            self.owed.remove(PortId(port as u8));
        }
    }

    pub(crate) fn verb<R>(
        &mut self,
        port: usize,
        verb: impl FnOnce(&mut dyn Handle, u64, &mut PortSet) -> R,
    ) -> R {
        let result = self.verb_unowed(port, verb);
        self.owed.insert(PortId(port as u8));
        result
    }

    fn verb_unowed<R>(
        &mut self,
        port: usize,
        verb: impl FnOnce(&mut dyn Handle, u64, &mut PortSet) -> R,
    ) -> R {
        self.now_ns += 1;
        self.note_threshold();
        let mut wake = PortSet::EMPTY;
        let result = verb(&mut *self.ports[port], self.now_ns, &mut wake);
        self.owe(wake);
        self.note_virtual_time();
        result
    }

    pub(crate) fn owe(&mut self, wake: PortSet) {
        self.owed.extend(wake);
        if wake.and(PortSet::first(self.trace.shape.ports)) != wake {
            self.broken(format!("woke {wake:?}, of {} ports", self.trace.shape.ports));
            self.owed = PortSet::EMPTY;
        }
    }

    /// A relative threshold holds at the lightest open weight, or at a quarter of the heaviest.
    fn note_threshold(&mut self) {
        let Some(bytes) = self.relative else { return };
        let open = || self.trace.flows.iter().filter(|flow| flow.open);
        let weights = || open().filter_map(|flow| flow.weights.last().copied().map(u64::from));
        let (lightest, heaviest) = (weights().min().unwrap_or(100), weights().max().unwrap_or(100));
        let units = bytes * 400 / (4 * lightest).max(heaviest);
        self.trace.threshold = self.trace.threshold.max(units);
    }

    fn note_virtual_time(&mut self) {
        if let Some(units) = self.policy.stats().virtual_time {
            self.trace.events.push(Event::VirtualTime(units));
        }
    }

    pub(crate) fn broken(&mut self, what: String) {
        self.trace.events.push(Event::Broken(what));
    }
}
