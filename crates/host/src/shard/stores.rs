//! A scheduler for each store: one port made of the ports of several policies.
//!
//! **Problem.** A policy shares one device by D slots. Requests on a store that hangs would keep
//! the slots for ever, and with them all tenants of all other stores.
//!
//! **Model.** Each store has a policy of its own (the same kind, the same parameters), and a shard
//! has a port of each. [`StorePort`] is these ports together: a request goes to the port of its
//! flow's store, `next` asks one store after the other, and a completion goes back to where its tag
//! came from. So a shard's loop is one, whatever the number of stores, and a device with one store
//! has its policy's port itself and pays nothing.
//!
//! **Names.** Each policy numbers its flows from 0. Tenants have one number each, so the flow that
//! is known outside is the policy's own with the tenant's number in the slot's place
//! ([`Names`]): a number is a store's slot for ever, so that a policy's rules about slots (none is
//! another flow's before all ports have let go) hold for numbers.
//!
//! *Memory ordering.* A name is stored (Release) before the flow is told to anybody, and loaded
//! (Acquire) by ports that have been told; it does not change afterwards.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fairq_core::{
    FlowId, FlowStats, Growth, Next, Outcome, Port, PortSet, Reason, Request, SubmitError,
    Submitted, Tag,
};

/// No flow.
const NOTHING: u32 = u32::MAX;

/// Which store's flow each number is.
pub struct Names {
    /// The store in the upper 16 bits, the slot of its policy in the lower ones.
    of: Box<[AtomicU32]>,
    /// Stores that have had a flow, from the first on.
    used: AtomicU32,
    /// The numbers that are taken, from the first on.
    assigned: Mutex<BTreeMap<u32, u32>>,
}

impl Names {
    /// For at most so many numbers.
    pub fn new(most: usize) -> Names {
        Names {
            of: (0..most).map(|_| AtomicU32::new(NOTHING)).collect(),
            used: AtomicU32::new(0),
            assigned: Mutex::default(),
        }
    }

    /// The number of a slot of a store's policy; `None` if all numbers are taken.
    pub fn assign(&self, store: u16, slot: usize) -> Option<u32> {
        let mut assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        let name = u32::from(store) << 16 | slot as u32;
        if let Some(number) = assigned.get(&name) {
            return Some(*number);
        }
        let number = assigned.len();
        self.of.get(number)?.store(name, Ordering::Release);
        self.used.fetch_max(u32::from(store) + 1, Ordering::Release);
        assigned.insert(name, number as u32);
        Some(number as u32)
    }

    /// The store of a flow, and its name in that store's policy.
    #[inline]
    pub fn of(&self, flow: FlowId) -> Option<(usize, FlowId)> {
        let name = self.of.get(flow.slot())?.load(Ordering::Acquire);
        (name != NOTHING).then(|| ((name >> 16) as usize, flow.at(name & 0xffff)))
    }

    /// Stores that have or had a flow, from the first on.
    #[inline]
    fn used(&self) -> usize {
        self.used.load(Ordering::Acquire) as usize
    }
}

/// One shard's ports of all stores.
pub struct StorePort<P> {
    ports: Box<[P]>,
    names: Arc<Names>,
    /// The store of each live request.
    of_tag: Box<[u8]>,
    /// The store that is asked first, and the one that spoke last.
    first: usize,
    last: usize,
}

impl<P: Port> StorePort<P> {
    /// These, one for each store, for at most `tags` live requests.
    pub fn new(ports: Vec<P>, names: Arc<Names>, tags: usize) -> StorePort<P> {
        let of_tag = vec![0; tags].into_boxed_slice();
        StorePort { ports: ports.into_boxed_slice(), names, of_tag, first: 0, last: 0 }
    }

    #[inline]
    fn of_tag(&mut self, tag: Tag) -> Option<&mut P> {
        let store = *self.of_tag.get(tag.0 as usize)?;
        self.ports.get_mut(usize::from(store))
    }
}

impl<P: Port> Port for StorePort<P> {
    const IS_DIRECT: bool = P::IS_DIRECT;

    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let (store, flow) = self.names.of(request.flow).ok_or(SubmitError::NoSuchFlow)?;
        let of_tag = self.of_tag.get_mut(request.tag.0 as usize).ok_or(SubmitError::BadTag)?;
        *of_tag = store as u8;
        self.ports[store].submit(now_ns, &Request { flow, ..*request }, wake)
    }

    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let used = self.names.used().min(self.ports.len());
        let (mut until, mut is_blocked) = (None::<u64>, false);
        for step in 0..used {
            let store =
                if self.first + step < used { self.first + step } else { self.first + step - used };
            match self.ports[store].next(now_ns, wake) {
                next @ Next::Issue { .. } => {
                    (self.first, self.last) = (if store + 1 < used { store + 1 } else { 0 }, store);
                    return next;
                }
                // What follows is the same store's.
                next @ Next::Join { .. } => {
                    (self.first, self.last) = (store, store);
                    return next;
                }
                Next::WaitUntil(time_ns) => {
                    until = Some(until.map_or(time_ns, |other| other.min(time_ns)));
                    self.last = store;
                }
                Next::Blocked => {
                    is_blocked = true;
                    self.last = store;
                }
                Next::Idle => {}
            }
        }
        // A time says more than `Blocked`: a wake-up ends the wait for either.
        match until {
            Some(time_ns) => Next::WaitUntil(time_ns),
            None if is_blocked => Next::Blocked,
            None => Next::Idle,
        }
    }

    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) {
        if let Some(port) = self.of_tag(tag) {
            port.complete(now_ns, tag, outcome, wake);
        }
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        let (store, flow) = self.names.of(flow).ok_or(SubmitError::NoSuchFlow)?;
        self.ports[store].admit(flow)
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.of_tag(tag).is_some_and(|port| port.cancel(now_ns, tag, wake))
    }

    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.of_tag(tag).is_some_and(|port| port.expedite(now_ns, tag, wake))
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        self.of_tag(tag)?.requeue(now_ns, tag, wake)
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        self.of_tag(tag).is_some_and(|port| port.grow(now_ns, tag, growth, wake))
    }

    fn has_work(&self) -> bool {
        self.ports.iter().any(Port::has_work)
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        let (store, flow) = self.names.of(flow)?;
        self.ports[store].staged(flow)
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let of = self.names.of(flow);
        of.map_or_else(FlowStats::default, |(store, flow)| self.ports[store].flow_stats(flow))
    }

    fn barrier(&mut self, flow: FlowId) {
        if let Some((store, flow)) = self.names.of(flow) {
            self.ports[store].barrier(flow);
        }
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let of = |tag: Tag| self.of_tag.get(tag.0 as usize).map(|&store| usize::from(store));
        let port = self.ports.get(tag.and_then(of).unwrap_or(self.last));
        port.map_or_else(Reason::default, |port| port.reason(tag))
    }
}

#[cfg(test)]
mod tests {
    use fairq_core::serial::SerialConfig;
    use fairq_core::sfqd::Sfqd;
    use fairq_core::{Native, Op, Policy, Weight};

    use super::*;

    const SLOTS: u32 = 2;

    /// Two stores with a flow each (or `flows` on the first), and the port of one shard.
    fn two(weights: [&[u16]; 2]) -> (impl Port, Vec<FlowId>) {
        let names = Arc::new(Names::new(8));
        let (mut ports, mut flows) = (Vec::new(), Vec::new());
        for (store, weights) in weights.into_iter().enumerate() {
            let config = SerialConfig::new(1, 4, 64).with(|config| config.slots = SLOTS);
            let (policy, mut made) = Sfqd::<Native>::new(&config).unwrap();
            for &weight in weights {
                let flow = policy.add_flow(Weight::new(weight).unwrap()).unwrap();
                flows.push(flow.at(names.assign(store as u16, flow.slot()).unwrap()));
            }
            ports.push(made.pop().unwrap());
        }
        (StorePort::new(ports, names, 64), flows)
    }

    fn submit(port: &mut impl Port, flow: FlowId, tag: u32) {
        let request = Request::new(Tag(tag), flow, Op::Read, u64::from(tag) << 20, 4096);
        port.submit(0, &request, &mut PortSet::EMPTY.clone()).unwrap();
    }

    fn issued(port: &mut impl Port) -> Vec<u32> {
        let mut tags = Vec::new();
        while let Next::Issue { tag, .. } = port.next(0, &mut PortSet::EMPTY.clone()) {
            tags.push(tag.0);
        }
        tags
    }

    /// A store that completes nothing keeps its own slots, and no others.
    #[test]
    fn stores_do_not_share_slots() {
        let (mut port, flows) = two([&[100], &[100]]);
        (0..8).for_each(|tag| submit(&mut port, flows[0], tag));
        assert_eq!(issued(&mut port), [0, 1], "D of the first store");
        (8..16).for_each(|tag| submit(&mut port, flows[1], tag));
        for tag in 8..16 {
            let issued = issued(&mut port);
            assert_eq!(issued.len(), if tag == 8 { 2 } else { usize::from(tag < 15) });
            port.complete(0, Tag(tag), Outcome::Done, &mut PortSet::EMPTY.clone());
        }
        assert_eq!(port.next(0, &mut PortSet::EMPTY.clone()), Next::Blocked);
        assert!(port.cancel(0, Tag(7), &mut PortSet::EMPTY.clone()));
        port.complete(0, Tag(0), Outcome::Done, &mut PortSet::EMPTY.clone());
        assert_eq!(issued(&mut port), [2], "the first store goes on when it completes");
    }

    /// Weights compare the tenants of a store: a neighbour in another one changes nothing.
    #[test]
    fn weights_hold_within_a_store() {
        let (mut port, flows) = two([&[300, 100], &[1]]);
        let mut of = std::collections::HashMap::new();
        for tag in 0..60 {
            let flow = tag as usize % 3;
            submit(&mut port, flows[flow], tag);
            of.insert(tag, flow);
        }
        let mut served = [0; 3];
        while served[0] < 15 {
            for tag in issued(&mut port) {
                served[of[&tag]] += 1;
                port.complete(0, Tag(tag), Outcome::Done, &mut PortSet::EMPTY.clone());
            }
        }
        assert!((4..=6).contains(&served[1]), "300 to 100: {served:?}");
        assert!(served[2] >= 15, "a store of its own: {served:?}");
    }

    #[test]
    fn a_number_is_one_slot_for_ever() {
        let names = Names::new(2);
        assert_eq!(names.assign(0, 5), Some(0));
        assert_eq!(names.assign(3, 5), Some(1));
        assert_eq!((names.assign(0, 5), names.assign(1, 0)), (Some(0), None));
        assert_eq!(names.used(), 4);
    }
}
