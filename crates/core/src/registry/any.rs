//! [`AnyPolicy`] and [`AnyPort`]: each verb goes to the policy that is there.

use super::{AnyPolicy, AnyPort, forward};
use crate::contract::flow::{CapStats, Caps, FlowError, FlowId, Target, TargetStats, Weight};
use crate::contract::platform::Platform;
use crate::contract::port::{
    ClassWeights, FlowStats, Growth, Next, Outcome, Policy, Port, Reason, Request, Stats,
    SubmitError, Submitted, Tag, TuneError, Tuning,
};
use crate::contract::port_set::PortSet;
use crate::contract::share::{Group, GroupId, GroupStats, Share, ShareStats};

impl<P: Platform> Policy for AnyPolicy<P> {
    type Port = AnyPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        forward!(policy in self => policy.add_flow_as(known, weight))
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        forward!(policy in self => policy.set_weight(flow, weight))
    }

    fn set_urgent(&self, flow: FlowId, urgent: bool) -> Result<(), FlowError> {
        forward!(policy in self => policy.set_urgent(flow, urgent))
    }

    fn set_target(&self, flow: FlowId, target: Option<Target>) -> Result<(), FlowError> {
        forward!(policy in self => policy.set_target(flow, target))
    }

    fn target(&self, flow: FlowId) -> Option<TargetStats> {
        forward!(policy in self => policy.target(flow))
    }

    fn set_caps(&self, flow: FlowId, caps: &Caps) -> Result<(), FlowError> {
        forward!(policy in self => policy.set_caps(flow, caps))
    }

    fn caps(&self, flow: FlowId) -> Option<CapStats> {
        forward!(policy in self => policy.caps(flow))
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        forward!(policy in self => policy.set_weights(weights))
    }

    fn set_group(&self, id: GroupId, group: Option<&Group>) -> Result<(), FlowError> {
        forward!(policy in self => policy.set_group(id, group))
    }

    fn group(&self, id: GroupId) -> Option<GroupStats> {
        forward!(policy in self => policy.group(id))
    }

    fn set_share(&self, flow: FlowId, share: &Share) -> Result<(), FlowError> {
        forward!(policy in self => policy.set_share(flow, share))
    }

    fn share(&self, flow: FlowId) -> Option<ShareStats> {
        forward!(policy in self => policy.share(flow))
    }

    fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        forward!(policy in self => policy.tune(tuning, wake))
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        forward!(policy in self => policy.remove_flow(flow))
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        forward!(policy in self => policy.tick(now_ns, wake))
    }

    fn class_weights(&self) -> Option<ClassWeights> {
        forward!(policy in self => policy.class_weights())
    }

    fn stats(&self) -> Stats {
        forward!(policy in self => policy.stats())
    }
}

/// Its `submit` answers [`Submitted::Issue`] where the policy's submit is dispatch; since it may be
/// another policy's, `next` is owed all the same.
impl<P: Platform> Port for AnyPort<P> {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        forward!(port in self => port.submit(now_ns, request, wake))
    }

    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        forward!(port in self => port.next(now_ns, wake))
    }

    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) {
        forward!(port in self => port.complete(now_ns, tag, outcome, wake))
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        forward!(port in self => port.admit(flow))
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        forward!(port in self => port.cancel(now_ns, tag, wake))
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        forward!(port in self => port.requeue(now_ns, tag, wake))
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        forward!(port in self => port.grow(now_ns, tag, growth, wake))
    }

    fn has_work(&self) -> bool {
        forward!(port in self => port.has_work())
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        forward!(port in self => port.staged(flow))
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        forward!(port in self => port.flow_stats(flow))
    }

    fn barrier(&mut self, flow: FlowId) {
        forward!(port in self => port.barrier(flow));
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        forward!(port in self => port.reason(tag))
    }
}
