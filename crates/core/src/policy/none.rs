//! `none`: first come, first served.
//!
//! **Problem.** None is solved: a tenant with more threads, deeper queues or larger requests gets
//! more of the device. The policy is the baseline that the papers measure against, and the cheapest
//! possible one. **Model.** Submit is dispatch; every request goes to the medium class at once.
//! **Bounds.** A verb reads at most two shared words, and a `tick` does nothing. **Knobs.** None.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::contract::bounds::{ConfigError, MAX_SLOTS, boxed, check, granted, zeroes};
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{Native, Platform};
use crate::contract::port::{
    Class, FlowStats, Growth, Next, Outcome, Policy, Port, Reason, Request, Stats, SubmitError,
    Submitted, Tag,
};
use crate::contract::port_set::{PortId, PortSet};
use crate::structures::flow_table::FlowTable;
use crate::structures::port_flows::PortFlows;

/// The control side of `none`.
pub struct NonePolicy<P: Platform = Native> {
    flows: Arc<FlowTable<P>>,
}

/// One shard's port of `none`.
pub struct NonePort<P: Platform = Native> {
    flows: Arc<FlowTable<P>>,
    account: PortFlows,
    /// The seat of each live tag's flow, plus one; 0 where the tag is not in use.
    live: Box<[u32]>,
}

impl<P: Platform> NonePolicy<P> {
    /// The policy and its ports, for at most `flows` flows and `tags` live requests per port.
    pub fn new(
        ports: usize,
        flows: usize,
        tags: usize,
    ) -> Result<(Self, Vec<NonePort<P>>), ConfigError> {
        check(ports, flows, tags, MAX_SLOTS)?;
        granted(|| Ok(Self::of(ports, flows, tags)))
    }

    /// Builds both; the arguments are within bounds.
    fn of(ports: usize, flows: usize, tags: usize) -> (Self, Vec<NonePort<P>>) {
        let table = Arc::new(FlowTable::new(flows, ports));
        let port = |index: usize| NonePort {
            flows: table.clone(),
            account: PortFlows::new(PortId(index as u8), &table, tags),
            live: zeroes(tags),
        };
        let ports = boxed(ports, port).into_vec();
        (NonePolicy { flows: table }, ports)
    }
}

impl<P: Platform> Policy for NonePolicy<P> {
    type Port = NonePort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.flows.add(known, weight, |_| ())
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.flows.set_weight(flow, weight)
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.flows.close(flow)
    }

    fn tick(&self, _now_ns: u64, _wake: &mut PortSet) -> Option<u64> {
        None
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

impl<P: Platform> Port for NonePort<P> {
    const IS_DIRECT: bool = true;

    #[inline]
    fn submit(
        &mut self,
        _now_ns: u64,
        request: &Request,
        _wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let live = self
            .live
            .get_mut(request.tag.0 as usize)
            .filter(|live| **live == 0)
            .ok_or(SubmitError::BadTag)?;
        let (_, seat) = self.account.admit(&self.flows, request.flow, request.tag, |_, _| ())?;
        *live = seat as u32 + 1;
        Ok(Submitted::Issue { class: Class::Medium })
    }

    #[inline]
    fn next(&mut self, _now_ns: u64, wake: &mut PortSet) -> Next {
        self.account.poll(&self.flows, wake);
        Next::Idle
    }

    #[inline]
    fn complete(&mut self, _now_ns: u64, tag: Tag, _outcome: Outcome, _wake: &mut PortSet) -> bool {
        let Some(live) = self.live.get_mut(tag.0 as usize).filter(|live| **live != 0) else {
            return self.account.complete_ahead(&self.flows, tag);
        };
        self.account.finish(&self.flows, *live as usize - 1);
        *live = 0;
        true
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.account.has_room(&self.flows, flow)
    }

    /// Only a held request can be cancelled, because nothing is ever staged.
    fn cancel(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> bool {
        self.account.cancel_held(&self.flows, tag)
    }

    fn expedite(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> bool {
        self.account.expedite_held(tag)
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        if self.live.get(tag.0 as usize) != Some(&0) {
            return Err(SubmitError::BadTag);
        }
        self.account.hold(&self.flows, flow, tag, |_, _| ())
    }

    fn requeue(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
        let is_issued = *self.live.get(tag.0 as usize)? != 0 || self.account.is_ahead(tag);
        // Nothing is staged here, so the request goes to the device again at once.
        is_issued.then_some(Submitted::Issue { class: Class::Medium })
    }

    /// Nothing is ever staged.
    fn grow(&mut self, _now_ns: u64, _tag: Tag, _growth: &Growth, _wake: &mut PortSet) -> bool {
        false
    }

    fn has_work(&self) -> bool {
        self.account.has_closings(&self.flows)
    }

    fn staged(&self, _flow: FlowId) -> Option<Tag> {
        None
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let in_flight = self.account.seat(flow).map_or(0, |seat| self.account.all(seat));
        FlowStats { in_flight, ..FlowStats::default() }
    }

    fn barrier(&mut self, _flow: FlowId) {}

    fn reason(&self, _tag: Option<Tag>) -> Reason {
        Reason::default()
    }
}
