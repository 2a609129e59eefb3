//! A sound policy behind a shim that misbehaves.

use std::sync::atomic::{AtomicU64, Ordering};

use fairq_core::{
    ConfigError, FlowError, FlowId, FlowStats, Growth, Limits, Next, Outcome, Policy, Port,
    PortSet, Reason, Request, Stats, SubmitError, Submitted, Tag, Weight,
};
use fairq_sim::{Promise, Scenario, Subject};

/// The fault of the shim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    LosesRequests,
    SaysIdle,
    IssuesTwice,
    LosesWakeUps,
    TimeGoesBack,
}

/// A policy and the shim's fault.
pub(crate) struct Shim<S>(pub(crate) S, pub(crate) Fault);

pub(crate) struct ShimPolicy<P> {
    inner: P,
    fault: Fault,
    asked: AtomicU64,
}

pub(crate) struct ShimPort<P> {
    inner: P,
    fault: Fault,
    calls: u64,
    last: Option<Next>,
}

impl<S: Subject> Subject for Shim<S> {
    type Policy = ShimPolicy<S::Policy>;

    fn build(
        &self,
        scenario: &Scenario,
    ) -> Result<(Self::Policy, Vec<ShimPort<<S::Policy as Policy>::Port>>), ConfigError> {
        let (inner, ports) = self.0.build(scenario)?;
        let shim = |inner| ShimPort { inner, fault: self.1, calls: 0, last: None };
        let ports = ports.into_iter().map(shim).collect();
        Ok((ShimPolicy { inner, fault: self.1, asked: AtomicU64::new(0) }, ports))
    }

    fn promise(&self) -> Promise {
        self.0.promise()
    }
}

impl<P: Limits> Limits for ShimPolicy<P> {}

impl<P: Limits> Policy for ShimPolicy<P> {
    type Port = ShimPort<P::Port>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.inner.add_flow_as(known, weight)
    }
    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.inner.set_weight(flow, weight)
    }
    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.inner.remove_flow(flow)
    }
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        self.inner.tick(now_ns, wake)
    }
    fn stats(&self) -> Stats {
        let mut stats = self.inner.stats();
        if self.fault == Fault::TimeGoesBack
            && self.asked.fetch_add(1, Ordering::Relaxed) % 100 == 99
        {
            stats.virtual_time = stats.virtual_time.map(|units| units.saturating_sub(1));
        }
        stats
    }
}

impl<P> ShimPort<P> {
    fn every(&mut self, nth: u64, fault: Fault) -> bool {
        self.calls += 1;
        self.fault == fault && self.calls.is_multiple_of(nth)
    }
}

impl<P: Port> Port for ShimPort<P> {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        if self.every(1001, Fault::LosesRequests) {
            return Ok(Submitted::Staged);
        }
        self.inner.submit(now_ns, request, wake)
    }

    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        if self.every(101, Fault::IssuesTwice)
            && let Some(last) = self.last.take()
        {
            return last;
        }
        let next = self.inner.next(now_ns, wake);
        match next {
            Next::Issue { .. } => self.last = Some(next),
            Next::Blocked if self.fault == Fault::SaysIdle => return Next::Idle,
            _ => {}
        }
        if self.fault == Fault::LosesWakeUps {
            *wake = PortSet::EMPTY;
        }
        next
    }

    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let was_issued = self.inner.complete(now_ns, tag, outcome, wake);
        if self.fault == Fault::LosesWakeUps {
            *wake = PortSet::EMPTY;
        }
        was_issued
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.inner.admit(flow)
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.inner.cancel(now_ns, tag, wake)
    }

    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.inner.expedite(now_ns, tag, wake)
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        self.inner.hold(tag, flow)
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        self.inner.requeue(now_ns, tag, wake)
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        self.inner.grow(now_ns, tag, growth, wake)
    }

    fn has_work(&self) -> bool {
        self.inner.has_work()
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
