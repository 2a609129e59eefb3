//! The world: simulates a host's cores, a policy, a device and tenants, event by event.
//!
//! **Problem.** A run has to show the behaviour of a scheduler on a device that is not available,
//! with the same result every time. **Model.** Each simulated core has a port. It submits its
//! threads' requests to the policy, issues the requests that the policy dispatches, and takes
//! completions, each at the moment when it is due. A wake-up from one core's verb to another core
//! arrives after the time of a wake-up; a core to which a wake-up is in flight gets no second one.
//! After each other verb a core calls `next` until there is nothing to issue, as the contract
//! requires. The device completes commands in its own time.
//!
//! On a scenario's [host](crate::host), if it has one, this work takes time: a task is queued at
//! its core, begins when the core is free, and takes effect when it is done. The policy's verb is
//! called when the work before it is done, and facts describe the policy's state at that moment.
//! After each issued request the core calls `next` again in a later event, so that the verbs of
//! different cores are called in the order of their times. Without a host only the device takes
//! time.
//!
//! ```text
//!   event:  request     ─▶ submit ┐                ┌▶ Issue ─▶ queues ─▶ device ─▶ completion
//!           wake-up, timer        ├▶ next, next … ─┤
//!           completion ─▶ complete┘                └▶ wake other cores later; set a timer
//! ```
//!
//! **Order.** By time; at equal times the device's completions come first, then events in the order
//! in which they were added ([`crate::agenda`]). One event is done at a time, to its end.

mod clock;
mod verbs;

use clock::Clock;
use fairq_core::{
    Class, FlowId, GroupId, Limits, Op, Outcome, PortId, PortSet, Request, Share, Tag, Weight,
};
use verbs::Stage;

use crate::agenda::Agenda;
use crate::check::Check;
use crate::cpu::{Cpu, Reaped, Task};
use crate::device::{Command, Device};
use crate::fact::{Fact, Live, Moment};
use crate::host::Host;
use crate::meter::{Meter, Run, Violation};
use crate::races::Races;
use crate::random::Random;
use crate::scenario::{SECOND, Scenario, ScenarioError, Tenant, US};
use crate::subject::Subject;
use crate::traced::{self, Traced};
use crate::verb::Verb;
use crate::workload::{NEVER, Thread, Turns};

/// Time after the end of submissions in which all requests must complete, in nanoseconds, in
/// addition to the time for which caps hold them.
pub const CALM_NS: u64 = 5 * SECOND;

/// The events of all parts but the device.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A place of a thread submits a request.
    Ask(u32),
    /// A wake-up reaches a port.
    Wake(u8),
    /// A port's timer expires.
    Timer(u8),
    /// A core has done the work that precedes the policy's verbs.
    Run(u8),
    /// A core has done its work.
    Free(u8),
    /// A command arrives in its queue.
    Post(u32, Class),
    Tick,
    /// A tenant's life begins, or ends.
    Begin(u32),
    End(u32),
    Reweigh(u32, u16),
    /// Threads are placed anew.
    Move,
}

/// A port and the state of its core.
struct Core<P> {
    /// `None` where cores race, because [`Races`] then has the port.
    port: Option<P>,
    /// The verb in progress, where cores race.
    stage: Option<Stage>,
    requests: Box<[Option<Kept>]>,
    free: Vec<u32>,
    staged: usize,
    /// Tags of the requests that were joined to the command of the next issued request.
    joined: Vec<u32>,
    /// Whether a wake-up to the core is in flight.
    woken: bool,
    timer_ns: Option<u64>,
    cpu: Cpu,
}

/// A live request.
#[derive(Clone, Copy)]
struct Kept {
    live: Live,
    thread: u32,
    op: Op,
    offset: u64,
    issued: bool,
    /// Tag of the next request of its command.
    after: Option<u32>,
    /// Length of the command, in its first request, in bytes.
    length: u32,
    /// Whether the scheduler staged it.
    staged: bool,
    /// Start of its latency.
    since_ns: u64,
}

/// A present tenant's flow: the policy's identifier and the number in facts.
#[derive(Clone, Copy)]
struct Present {
    id: FlowId,
    flow: usize,
    weight: u16,
}

struct World<'a, P: Limits> {
    scenario: &'a Scenario,
    policy: P,
    cores: Vec<Core<P::Port>>,
    device: Device,
    threads: Vec<Thread>,
    /// Random numbers for the placement of threads.
    moves: Random,
    present: Vec<Option<Present>>,
    flows: usize,
    agenda: Agenda<Event>,
    now_ns: u64,
    /// End of the run: requests that are not served by then count as lost.
    end_ns: u64,
    live: usize,
    wakes_under_way: usize,
    clock: Clock,
    meter: Meter,
    checks: Vec<Box<dyn Check>>,
    violation: Option<Violation>,
    tags: usize,
}

/// Threads have streams from 0 on; the device and the placement have the last two.
const DEVICE_STREAM: u64 = u64::MAX;
const MOVES_STREAM: u64 = u64::MAX - 1;

/// Number of times that a port may wake itself before the world reports an endless loop.
const MOST_SELF_WAKES: u32 = 1000;

/// Runs a scenario under a policy, with these checks.
pub fn run<S: Subject>(
    scenario: &Scenario,
    subject: &S,
    checks: Vec<Box<dyn Check>>,
) -> Result<Run, ScenarioError> {
    scenario.check()?;
    if scenario.host.is_some() {
        return Err(ScenarioError::Illegal("a host's CPUs take time: use run_traced".to_owned()));
    }
    let (policy, ports) = subject.build(scenario)?;
    Ok(simulate(scenario, policy, ports, checks))
}

/// Runs a scenario on its host, where the policy's accesses to shared words take time.
pub fn run_traced<S: Subject<Traced>>(
    scenario: &Scenario,
    subject: &S,
    checks: Vec<Box<dyn Check>>,
) -> Result<Run, ScenarioError> {
    scenario.check()?;
    let Some(host) = &scenario.host else {
        return Err(ScenarioError::Illegal("a scenario without a host: use run".to_owned()));
    };
    let simulated = || {
        Ok(subject
            .build(scenario)
            .map(|(policy, ports)| simulate(scenario, policy, ports, checks))?)
    };
    on_host(host, simulated)
}

/// Builds and [simulates](simulate) on a host: a policy's accesses to words of the [`Traced`]
/// platform take time only if the policy is also built inside this call.
pub fn on_host<R>(host: &Host, build_and_simulate: impl FnOnce() -> R) -> R {
    traced::begin(host.caches());
    let result = build_and_simulate();
    traced::end();
    result
}

/// Runs a scenario, which was [checked](Scenario::check), under a policy that was built for its
/// ports, flows and tags.
pub fn simulate<P: Limits>(
    scenario: &Scenario,
    policy: P,
    ports: Vec<P::Port>,
    checks: Vec<Box<dyn Check>>,
) -> Run {
    let mut world = World::new(scenario, policy, ports, checks);
    world.begin();
    while world.violation.is_none() && world.step() {}
    world.finish()
}

impl<'a, P: Limits> World<'a, P> {
    fn new(
        scenario: &'a Scenario,
        policy: P,
        ports: Vec<P::Port>,
        checks: Vec<Box<dyn Check>>,
    ) -> Self {
        let tags = scenario.tags();
        let core = |port| Core {
            port: Some(port),
            stage: None,
            requests: vec![None; tags].into(),
            free: (0..tags as u32).rev().collect(),
            staged: 0,
            joined: Vec::new(),
            woken: false,
            timer_ns: None,
            cpu: Cpu::default(),
        };
        let capacity = scenario.capacity();
        let fed = scenario.tenants.iter().enumerate();
        let all = fed.flat_map(|(tenant, plan)| {
            let begins_ns = plan.lives.first().map_or(0, |life| life.0);
            let turns = move |thread| Turns::new(thread, plan.threads.len(), begins_ns);
            plan.threads
                .iter()
                .enumerate()
                .map(move |(thread, &port)| (tenant, port, &plan.job, turns(thread)))
        });
        let count =
            scenario.tenants.iter().map(|tenant| tenant.threads.len()).sum::<usize>().max(1) as u64;
        let threads = all.zip(0u64..).map(|((tenant, port, job, turns), number)| {
            let random = Random::new(scenario.seed, number);
            Thread::new(tenant, port, job, capacity, random, (number << 16) / count, turns)
        });
        let mut cores: Vec<Core<P::Port>> = ports.into_iter().map(core).collect();
        let clock = scenario.host.as_ref().map_or_else(Clock::default, |host| {
            let racing = cores.iter_mut().take(if host.races { usize::MAX } else { 0 });
            let verbs = racing
                .filter_map(|core| core.port.take())
                .map(|mut port| move |verb: Verb, now_ns| verb.call(&mut port, now_ns));
            Clock {
                times: host.times(),
                cores: host.cores(),
                siblings: host.siblings(),
                races: host.races.then(|| Box::new(Races::new(host, verbs))),
                ..Clock::default()
            }
        });
        let weights = policy.class_weights();
        let mut meter = Meter::new(scenario);
        if let Some(weights) = weights {
            meter.weigh(0, weights);
        }
        World {
            scenario,
            device: Device::new(scenario, weights, Random::new(scenario.seed, DEVICE_STREAM)),
            policy,
            cores,
            threads: threads.collect(),
            moves: Random::new(scenario.seed, MOVES_STREAM),
            present: vec![None; scenario.tenants.len()],
            flows: 0,
            agenda: Agenda::new(),
            now_ns: 0,
            end_ns: (scenario.duration_ns + CALM_NS).saturating_add(scenario.held_ns()),
            live: 0,
            wakes_under_way: 0,
            clock,
            meter,
            checks,
            violation: None,
            tags,
        }
    }

    /// Adds the groups, and the events that the scenario contains.
    fn begin(&mut self) {
        for (id, group) in (0..).zip(&self.scenario.groups) {
            // Ignores the error of a policy without the feature: scenarios also run under `none`.
            let _ = self.policy.set_group(GroupId(id), Some(group));
        }
        // Groups are added before the flows that join them.
        for (number, tenant) in (0u32..).zip(&self.scenario.tenants) {
            for &(from_ns, until_ns) in &tenant.lives {
                self.agenda.add(from_ns, Event::Begin(number));
                if until_ns < u64::MAX {
                    self.agenda.add(until_ns, Event::End(number));
                }
            }
            for &(at_ns, weight) in &tenant.reweights {
                self.agenda.add(at_ns, Event::Reweigh(number, weight));
            }
        }
        if self.scenario.moves_ns.is_some() {
            self.place();
        }
        self.tick();
    }

    /// Does the next event; false when the run is over.
    fn step(&mut self) -> bool {
        let end_ns = self.end_ns;
        let agenda_ns = self.agenda.next_ns();
        if self.clock.races.is_some() && self.race(agenda_ns, end_ns) {
            return true;
        }
        // Includes completions at the time of the next event, because at equal times the device's
        // completion comes first.
        if let Some((at_ns, id, outcome)) =
            self.device.pop(agenda_ns.map_or(end_ns, |at_ns| at_ns.min(end_ns)))
        {
            self.interrupt(at_ns, id, outcome);
        } else {
            let Some(at_ns) = agenda_ns.filter(|&at_ns| at_ns <= end_ns) else { return false };
            // All tenants have stopped and all requests are served: only timers, ticks and wake-ups
            // remain.
            if at_ns >= self.scenario.duration_ns && self.live == 0 && !self.is_in_a_verb() {
                return false;
            }
            self.now_ns = self.now_ns.max(at_ns);
            if let Some(event) = self.agenda.take() {
                self.happen(event);
            }
        }
        self.fetch();
        self.settled();
        true
    }

    /// Interrupts the core of a command that the device has completed.
    #[inline]
    fn interrupt(&mut self, at_ns: u64, id: u32, outcome: Outcome) {
        self.now_ns = self.now_ns.max(at_ns);
        self.clock.in_hand += 1;
        self.arrive(id as usize / self.tags, Task::Complete(id, outcome));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask(thread) => {
                self.arrive(self.threads[thread as usize].port, Task::Ask(thread))
            }
            Event::Wake(port) => self.arrive(usize::from(port), Task::Wake),
            Event::Timer(port) => {
                let timer_ns = &mut self.cores[usize::from(port)].timer_ns;
                // The agenda cannot cancel events, so the event of a timer that was changed has no
                // effect.
                if *timer_ns == Some(self.now_ns) {
                    *timer_ns = None;
                    self.arrive(usize::from(port), Task::Timer);
                }
            }
            Event::Run(port) => self.work(usize::from(port)),
            Event::Free(port) => self.free(usize::from(port)),
            Event::Post(id, class) => self.post(id, class),
            Event::Tick => self.tick(),
            Event::Begin(tenant) => self.come(tenant as usize),
            Event::End(tenant) => self.go(tenant as usize),
            Event::Reweigh(tenant, weight) => self.reweigh(tenant as usize, weight),
            Event::Move => self.place(),
        }
    }

    // Tenants.

    fn come(&mut self, tenant: usize) {
        self.quiet();
        let weight = self.scenario.tenants[tenant].weight;
        let legal = Weight::new(weight).expect("the scenario was checked");
        // The policy was built for as many flows as there are lives.
        let Ok(id) = self.policy.add_flow(legal) else {
            return self.broken("the policy refuses a flow within its bounds");
        };
        if let Some(target) = self.scenario.tenants[tenant].target {
            // Ignores the error of a policy without the feature: scenarios also run under `none`.
            let _ = self.policy.set_target(id, Some(target));
        }
        let Tenant { share, caps, .. } = self.scenario.tenants[tenant];
        if share != Share::default() {
            // As above.
            let _ = self.policy.set_share(id, &share);
        }
        if !caps.is_empty() {
            // As above.
            let _ = self.policy.set_caps(id, &caps);
        }
        // For the checks every life is a separate flow, even if the policy reuses a number.
        let flow = self.flows;
        self.flows += 1;
        self.present[tenant] = Some(Present { id, flow, weight });
        self.tell(Fact::Added { flow, weight });
        for number in 0..self.threads.len() {
            if self.threads[number].tenant == tenant {
                self.threads[number].begin(self.now_ns);
                let resting = std::mem::take(&mut self.threads[number].resting);
                (0..resting).for_each(|_| self.go_on(number as u32));
            }
        }
    }

    fn go(&mut self, tenant: usize) {
        // The flow's live requests stay. Its threads find no flow at their next submission and do
        // not submit.
        if self.is_submitting(tenant) {
            // A submission of this tenant is in progress in a racing core and has to return first.
            return self.agenda.add(self.now_ns + US, Event::End(tenant as u32));
        }
        let Some(Present { id, flow, .. }) = self.present[tenant].take() else { return };
        self.quiet();
        let Ok(ports) = self.policy.remove_flow(id) else {
            return self.broken("the policy refuses to remove a flow that it has");
        };
        self.wake(None, ports);
        self.tell(Fact::Removed { flow });
    }

    /// Places the threads of present tenants on random cores, so that the numbers of threads on two
    /// cores differ by at most one.
    fn place(&mut self) {
        let Some(moves_ns) =
            self.scenario.moves_ns.filter(|_| self.now_ns < self.scenario.duration_ns)
        else {
            return;
        };
        let mut here: Vec<usize> = (0..self.threads.len())
            .filter(|&number| self.present[self.threads[number].tenant].is_some())
            .collect();
        self.moves.shuffle(&mut here);
        let mut ports: Vec<usize> = (0..self.scenario.ports).collect();
        self.moves.shuffle(&mut ports);
        for (number, &port) in here.into_iter().zip(ports.iter().cycle()) {
            self.threads[number].port = port;
        }
        self.agenda.add(self.now_ns + moves_ns, Event::Move);
    }

    fn reweigh(&mut self, tenant: usize, weight: u16) {
        // The weight of an absent tenant does not change: its next life begins with its first
        // weight.
        let Some(present) = &mut self.present[tenant] else { return };
        let legal = Weight::new(weight).expect("the scenario was checked");
        present.weight = weight;
        let Present { id, flow, .. } = *present;
        self.quiet();
        match self.policy.set_weight(id, legal) {
            Ok(()) => self.tell(Fact::Weighed { flow, weight }),
            Err(_) => self.broken("the policy refuses a weight of a flow that it has"),
        }
    }

    /// Lets a free place of a thread submit its next request when that is due.
    #[inline]
    fn go_on(&mut self, thread: u32) {
        let due_ns = self.threads[thread as usize].due_ns(self.now_ns);
        // The thread's trace has ended, so the place stays unused.
        if due_ns == NEVER {
            return;
        }
        let port = self.threads[thread as usize].port;
        if due_ns <= self.now_ns {
            // A thread submits again before it takes the next completed request, as fio does by
            // default.
            if self.cores[port].cpu.is_busy() {
                self.cores[port].cpu.add_next(Task::Ask(thread));
            } else {
                self.arrive(port, Task::Ask(thread));
            }
        } else {
            self.agenda.add(due_ns, Event::Ask(thread));
        }
    }

    /// A place of a thread submits a request on this port, if its tenant is present.
    #[inline]
    fn ask(&mut self, port: usize, number: u32) {
        let thread = &mut self.threads[number as usize];
        let present =
            self.present[thread.tenant].filter(|_| self.now_ns < self.scenario.duration_ns);
        let Some(Present { id, flow, weight }) = present else {
            return thread.rest();
        };
        let core = &mut self.cores[port];
        let Some(tag) = core.free.pop() else {
            // This happens only if threads move: requests of threads that were on this core earlier
            // fill the queue.
            return self.agenda.add(self.now_ns + US, Event::Ask(number));
        };
        let ask = thread.ask();
        let charge = self.scenario.cost.charge(ask.op, ask.length);
        let cost = charge.alone;
        // On a host the system call began when the core began the task, so latency counts from that
        // time.
        let submitted_ns =
            if self.scenario.host.is_some() { core.cpu.since_ns() } else { self.now_ns };
        let live =
            Live { port, tag, flow, bytes: ask.length, cost, weight, submitted_ns, joined: false };
        let (op, offset, length) = (ask.op, ask.offset, ask.length);
        core.requests[tag as usize] = Some(Kept {
            live,
            thread: number,
            op,
            offset,
            issued: false,
            after: None,
            length,
            staged: false,
            since_ns: ask.arrived_ns.unwrap_or(submitted_ns),
        });
        core.staged += 1;
        self.live += 1;
        let request =
            Request { cost: charge, ..Request::new(Tag(tag), id, ask.op, ask.offset, ask.length) };
        self.submit(port, live, request);
    }

    // Cores.

    /// Sends a request to the device, as one command with the requests that were joined to it.
    #[inline]
    fn issue(&mut self, port: usize, tag: u32, class: Class) {
        let mut joined = std::mem::take(&mut self.cores[port].joined);
        // A command has the tag of its first request; each request has the tag of the next one.
        let first = joined.first().copied().unwrap_or(tag);
        let mut length = 0;
        for (at, &part) in joined.iter().enumerate() {
            length += self.leave(port, part, Some(joined.get(at + 1).copied().unwrap_or(tag)));
        }
        length += self.leave(port, tag, None);
        // Returns the list's memory for reuse, so that a command needs no allocation.
        joined.clear();
        let core = &mut self.cores[port];
        core.joined = joined;
        let Some(kept) = core.requests.get_mut(first as usize).and_then(Option::as_mut) else {
            return;
        };
        kept.length = length;
        let Kept { thread, op, offset, .. } = *kept;
        let id = (port * self.tags) as u32 + first;
        self.meter.issued(self.now_ns, self.threads[thread as usize].tenant, class, length);
        if self.scenario.host.is_none() {
            return self.device.post(port, class, Command { id, op, offset, length });
        }
        self.spend(self.clock.times.issue_ps);
        self.cores[port].cpu.has_issued();
        self.clock.in_hand += 1;
        // The command reaches its queue when the core's work is done, not when the policy
        // dispatches it.
        self.agenda.add(self.effect_ns(), Event::Post(id, class));
    }

    /// Records that a request is no longer staged; returns its length in bytes.
    #[inline]
    fn leave(&mut self, port: usize, tag: u32, after: Option<u32>) -> u32 {
        let core = &mut self.cores[port];
        let kept = core
            .requests
            .get_mut(tag as usize)
            .and_then(Option::as_mut)
            .filter(|kept| !kept.issued);
        let Some(kept) = kept else {
            self.broken("a port issues a request that is not staged there");
            return 0;
        };
        (kept.issued, kept.after, kept.live.joined) = (true, after, after.is_some());
        core.staged -= 1;
        let live = kept.live;
        self.tell(Fact::Issued(live));
        live.bytes
    }

    /// Puts a command into its queue, on a host whose CPUs take time.
    fn post(&mut self, id: u32, class: Class) {
        let (port, tag) = (id as usize / self.tags, id as usize % self.tags);
        let Kept { length, op, offset, .. } =
            self.cores[port].requests[tag].expect("it was issued");
        self.clock.in_hand -= 1;
        self.device.post(port, class, Command { id, op, offset, length });
    }

    /// Sends wake-ups to ports other than `me`; returns whether `me` is among the ports.
    #[inline]
    fn wake(&mut self, me: Option<usize>, ports: PortSet) -> bool {
        // Most verbs wake no port.
        !ports.is_empty() && self.wake_some(me, ports)
    }

    fn wake_some(&mut self, me: Option<usize>, ports: PortSet) -> bool {
        let mut woke_itself = false;
        for PortId(port) in ports {
            if me == Some(usize::from(port)) {
                woke_itself = true;
                continue;
            }
            let Some(core) = self.cores.get_mut(usize::from(port)) else {
                self.broken("a port wakes a port that does not exist");
                continue;
            };
            if !core.woken {
                core.woken = true;
                self.wakes_under_way += 1;
                let arrives_ns = match (&self.scenario.host, me) {
                    (Some(host), Some(me)) => {
                        self.clock.now_ps += self.clock.times.send_ps;
                        self.effect_ns() + host.wake_ns(me, usize::from(port))
                    }
                    _ => self.now_ns + self.scenario.wake_ns,
                };
                self.agenda.add(arrives_ns, Event::Wake(port));
            }
        }
        woke_itself
    }

    fn tick(&mut self) {
        self.quiet();
        let mut wake = PortSet::EMPTY;
        if let Some(at_ns) = self.policy.tick(self.now_ns, &mut wake) {
            // A deadline in the past would repeat at the same time for ever, so the next tick is at
            // least 1 ns later.
            self.agenda.add(at_ns.max(self.now_ns + 1), Event::Tick);
        }
        self.wake(None, wake);
        // Read after the tick, because a policy changes its ratio in its tick.
        if let Some(weights) = self.policy.class_weights() {
            self.device.weigh(weights);
            self.meter.weigh(self.now_ns, weights);
        }
    }

    // The device.

    /// Completes each request of a command.
    #[inline]
    fn complete(&mut self, id: u32, outcome: Outcome) {
        let (index, first) = (id as usize / self.tags, id % self.tags as u32);
        // The busy times of the device's parts are read at the first completion after the warm-up
        // and at the first one after the end.
        if self.meter.is_to_know(self.now_ns) {
            self.meter.used(self.device.usage());
        }
        self.clock.in_hand -= 1;
        self.complete_from(index, Some(first), outcome);
    }

    /// A thread takes a completed request, and its place becomes free.
    #[inline]
    fn reap(&mut self, answer: &Reaped) {
        let tenant = self.threads[answer.thread as usize].tenant;
        self.meter.completed(self.now_ns, tenant, answer);
        let thread = answer.thread;
        self.go_on(thread);
    }

    /// Lets the device fetch as many commands as its window has room for.
    #[inline]
    fn fetch(&mut self) {
        if self.device.waiting() > 0 {
            self.fetch_waiting();
        }
    }

    fn fetch_waiting(&mut self) {
        let World { device, cores, checks, violation, now_ns, tags, .. } = self;
        device.fetch(*now_ns, |id| {
            if checks.is_empty() {
                return;
            }
            let requests = &cores[id as usize / *tags].requests;
            let mut part = Some(id % *tags as u32);
            while let Some(kept) = part.and_then(|tag| requests[tag as usize].as_ref()) {
                tell(checks, violation, *now_ns, &Fact::Fetched(kept.live));
                part = kept.after;
            }
        });
    }

    // Checks.

    /// Reports to the checks that an event is done.
    #[inline]
    fn settled(&mut self) {
        if !self.checks.is_empty() {
            self.tell_settled();
        }
    }

    fn tell_settled(&mut self) {
        let staged = self.cores.iter().map(|core| core.staged).sum();
        let moment = Moment {
            // Each of these cores calls `next` later: a core to which a wake-up is in flight, a
            // core that calls the policy again, and a core in a verb.
            wakes_under_way: self.wakes_under_way + self.clock.going_on + self.in_verbs(),
            staged,
            // Also counts commands that the policy has issued and that are not in a queue yet, and
            // commands that the device has completed and the policy has not.
            outstanding: self.device.outstanding() + self.clock.in_hand,
            unfetched: self.device.waiting(),
            idle_slots: self.device.idle_slots(),
            virtual_time: self.policy.stats().virtual_time,
        };
        self.tell(Fact::Settled(moment));
    }

    /// Number of racing cores that are in a verb.
    fn in_verbs(&self) -> usize {
        if self.clock.races.is_none() {
            return 0;
        }
        self.cores.iter().filter(|core| core.stage.is_some()).count()
    }

    /// Records that the policy broke the contract.
    fn broken(&mut self, what: &str) {
        let violation = Violation { check: "contract", at_ns: self.now_ns, what: what.to_owned() };
        self.violation.get_or_insert(violation);
    }

    #[inline]
    fn tell(&mut self, fact: Fact) {
        tell(&mut self.checks, &mut self.violation, self.now_ns, &fact);
    }

    fn finish(mut self) -> Run {
        let at_ns = self.now_ns;
        if let Some(races) = self.clock.races.take() {
            races.end();
        }
        for check in &mut self.checks {
            if self.violation.is_none()
                && let Err(what) = check.end(at_ns)
            {
                self.violation = Some(Violation { check: check.name(), at_ns, what });
            }
        }
        if self.meter.is_to_know(at_ns) {
            self.meter.used(self.device.usage());
        }
        self.meter.finish(self.policy.stats(), self.violation)
    }
}

/// Gives a fact to all checks; the first violation ends the run.
#[inline]
fn tell(
    checks: &mut [Box<dyn Check>],
    violation: &mut Option<Violation>,
    now_ns: u64,
    fact: &Fact,
) {
    for check in checks {
        if violation.is_none()
            && let Err(what) = check.see(now_ns, fact)
        {
            *violation = Some(Violation { check: check.name(), at_ns: now_ns, what });
        }
    }
}

#[cfg(test)]
mod tests;
