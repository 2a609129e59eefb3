//! A scheduler for each store: one port made of the ports of several policies.
//!
//! **Problem.** A policy shares one device by D slots. Requests on a store that hangs would occupy
//! the slots for ever, and so block all tenants of all other stores.
//!
//! **Model.** Each store has a policy of its own (of the same kind, with the same parameters), and
//! a shard has one port of each policy. [`StorePort`] combines these ports: a request goes to the
//! port of its flow's store, `next` tries one store after the other, and a completion goes to the
//! store of its tag. So a shard has one loop for any number of stores; with a single store the
//! shard uses the policy's port directly, at no cost. A store's policy is built when its first
//! tenant is added; its ports wait in a [`Stock`] until each shard notices the new store.
//!
//! **Names.** Each policy numbers its flows from 0, and each tenant has one number in the server.
//! The server's name of a flow is the policy's name with the slot replaced by the tenant's number
//! ([`Names`]). A number stands for one slot of one store, so a policy's rules about slots (a slot
//! is reused only after all ports have released it) hold for numbers. If no number is free, the
//! numbers of removed tenants without requests in flight are released, and can then stand for slots
//! of any store. The generations of a number are offset so that they increase from one flow to the
//! next, even if the slots differ. So the name of a removed tenant's flow is never used again.
//!
//! **Example.** Number 3 was slot 2 of store A, last with generation 7. It becomes slot 0 of store
//! B, whose flow has generation 1 in B's policy: in the server it is number 3, generation 8.
//!
//! *Memory ordering.* A name is stored (Release) before the flow is published, and loaded (Acquire)
//! by ports that have received the flow. A port that uses the name of a removed flow may load the
//! number's old entry, no entry, or a later one; the policy refuses the flow in each case.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fairq_core::{
    FlowId, FlowStats, Growth, Next, Outcome, Port, PortSet, Reason, Request, SubmitError,
    Submitted, Tag,
};

/// The entry of a number that stands for no flow.
const NOTHING: u64 = u64::MAX;

/// The store and the flow that each number stands for.
pub struct Names {
    /// For each number: the difference between the generations of the number and of its slot (upper
    /// 32 bits), the store (16 bits), and the slot of the store's policy (lower 16 bits).
    of: Box<[AtomicU64]>,
    /// The number of stores that have or had a flow; stores are used in order.
    used: AtomicU32,
    numbers: Mutex<Numbers>,
}

/// The numbers that have been assigned.
#[derive(Default)]
struct Numbers {
    /// The number of each store's slot.
    assigned: BTreeMap<u32, u32>,
    /// The numbers that were released.
    free: Vec<u32>,
    /// The generation of the last flow of each number. The length of this vector is the count of
    /// numbers ever assigned.
    last: Vec<u32>,
}

impl Names {
    /// An empty set of at most `most` numbers.
    pub fn new(most: usize) -> Names {
        Names {
            of: (0..most).map(|_| AtomicU64::new(NOTHING)).collect(),
            used: AtomicU32::new(0),
            numbers: Mutex::default(),
        }
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a number to the flow of a store's policy, and returns the flow with that number;
    /// `None` if all numbers are taken.
    pub fn assign(&self, store: u16, flow: FlowId) -> Option<FlowId> {
        let mut numbers = self.numbers();
        let Numbers { assigned, free, last } = &mut *numbers;
        let slot = u32::from(store) << 16 | flow.slot() as u32;
        let number = match assigned.get(&slot) {
            Some(&number) => number,
            None => {
                let number = free.pop().unwrap_or(last.len() as u32);
                let name = self.of.get(number as usize)?;
                let ahead = match last.get(number as usize) {
                    Some(last) => last.wrapping_add(1).wrapping_sub(flow.generation()),
                    None => {
                        last.push(0);
                        0
                    }
                };
                name.store(u64::from(ahead) << 32 | u64::from(slot), Ordering::Release);
                self.used.fetch_max(u32::from(store) + 1, Ordering::Release);
                assigned.insert(slot, number);
                number
            }
        };
        let ahead = (self.of[number as usize].load(Ordering::Acquire) >> 32) as u32;
        let generation = flow.generation().wrapping_add(ahead);
        last[number as usize] = generation;
        Some(FlowId::new(number, generation))
    }

    /// Whether [`Self::assign`] has no number for another slot.
    pub fn is_full(&self) -> bool {
        let numbers = self.numbers();
        numbers.free.is_empty() && numbers.last.len() == self.of.len()
    }

    /// Releases a number for the slots of any store. Its flow must have been removed, and no port
    /// may have a request of it.
    pub fn give_back(&self, number: u32) {
        let mut numbers = self.numbers();
        let before = numbers.assigned.len();
        numbers.assigned.retain(|_, assigned| *assigned != number);
        // A number that is already free is not released twice.
        if numbers.assigned.len() < before {
            self.of[number as usize].store(NOTHING, Ordering::Release);
            numbers.free.push(number);
        }
    }

    /// The store of a flow, and its name in that store's policy.
    #[inline]
    pub fn of(&self, flow: FlowId) -> Option<(usize, FlowId)> {
        let name = self.of.get(flow.slot())?.load(Ordering::Acquire);
        let generation = flow.generation().wrapping_sub((name >> 32) as u32);
        (name != NOTHING).then(|| {
            ((name >> 16 & 0xffff) as usize, FlowId::new(name as u32 & 0xffff, generation))
        })
    }

    /// The number of stores that have or had a flow; stores are used in order.
    #[inline]
    fn used(&self) -> usize {
        self.used.load(Ordering::Acquire) as usize
    }
}

/// The ports of stores that were added while shards run, until each shard takes its own.
pub struct Stock<P>(Box<[Mutex<VecDeque<P>>]>);

impl<P> Stock<P> {
    /// An empty stock for `shards` shards.
    pub fn new(shards: usize) -> Stock<P> {
        Stock((0..shards).map(|_| Mutex::default()).collect())
    }

    /// Adds the ports of the next store, one for each shard. This must precede the first
    /// [`Names::assign`] for that store.
    pub fn put(&self, ports: Vec<P>) {
        for (of_shard, port) in self.0.iter().zip(ports) {
            of_shard.lock().unwrap_or_else(PoisonError::into_inner).push_back(port);
        }
    }

    fn take(&self, shard: usize) -> Option<P> {
        self.0[shard].lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// One shard's ports of all stores.
pub struct StorePort<P> {
    /// The ports that the shard has taken from the stock so far, in the order of the stores.
    ports: Vec<P>,
    stock: Arc<Stock<P>>,
    shard: usize,
    names: Arc<Names>,
    /// The store of each live request.
    of_tag: Box<[u8]>,
    /// The store that `next` tries first, and the store whose answer it returned last.
    first: usize,
    last: usize,
}

impl<P: Port> StorePort<P> {
    /// A port for at most `stores` stores and `tags` live requests. It begins with the first
    /// store's `port`; the shard takes the other stores' ports from `stock`.
    pub fn new(
        port: P,
        (stock, shard): (Arc<Stock<P>>, usize),
        names: Arc<Names>,
        (stores, tags): (usize, usize),
    ) -> StorePort<P> {
        // No call of the port allocates, even if it takes a port from the stock.
        let mut ports = Vec::with_capacity(stores);
        ports.push(port);
        let of_tag = vec![0; tags].into_boxed_slice();
        StorePort { ports, stock, shard, names, of_tag, first: 0, last: 0 }
    }

    /// The port of a flow's store. `None` if the flow belongs to another policy: stores that are
    /// added during a change of the policy belong to the next policy.
    #[inline]
    fn of_store(&mut self, store: usize) -> Option<&mut P> {
        if store >= self.ports.len() {
            self.take_ports();
        }
        self.ports.get_mut(store)
    }

    /// Takes the ports of new stores from the stock.
    #[cold]
    fn take_ports(&mut self) {
        while self.ports.len() < self.ports.capacity()
            && let Some(port) = self.stock.take(self.shard)
        {
            self.ports.push(port);
        }
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
        let port = self.of_store(store).ok_or(SubmitError::NoSuchFlow)?;
        port.submit(now_ns, &Request { flow, ..*request }, wake)
    }

    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let used = self.names.used();
        if used > self.ports.len() {
            self.take_ports();
        }
        let used = used.min(self.ports.len());
        let (mut until, mut is_blocked) = (None::<u64>, false);
        for step in 0..used {
            let store =
                if self.first + step < used { self.first + step } else { self.first + step - used };
            match self.ports[store].next(now_ns, wake) {
                next @ Next::Issue { .. } => {
                    (self.first, self.last) = (if store + 1 < used { store + 1 } else { 0 }, store);
                    return next;
                }
                // The answers after a `Join` must come from the same store, until the command is
                // complete.
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
        // A time takes precedence over `Blocked`: a wake-up ends either wait.
        match until {
            Some(time_ns) => Next::WaitUntil(time_ns),
            None if is_blocked => Next::Blocked,
            None => Next::Idle,
        }
    }

    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        self.of_tag(tag).is_some_and(|port| port.complete(now_ns, tag, outcome, wake))
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        let (store, flow) = self.names.of(flow).ok_or(SubmitError::NoSuchFlow)?;
        // A port that the shard has not yet taken holds no request, so it has all its tags.
        self.ports.get(store).map_or(Ok(()), |port| port.admit(flow))
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.of_tag(tag).is_some_and(|port| port.cancel(now_ns, tag, wake))
    }

    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.of_tag(tag).is_some_and(|port| port.expedite(now_ns, tag, wake))
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        let (store, flow) = self.names.of(flow).ok_or(SubmitError::NoSuchFlow)?;
        let of_tag = self.of_tag.get_mut(tag.0 as usize).ok_or(SubmitError::BadTag)?;
        *of_tag = store as u8;
        self.of_store(store).ok_or(SubmitError::NoSuchFlow)?.hold(tag, flow)
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
        self.ports.get(store)?.staged(flow)
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let stats = |(store, flow): (usize, _)| Some(self.ports.get(store)?.flow_stats(flow));
        self.names.of(flow).and_then(stats).unwrap_or_default()
    }

    fn barrier(&mut self, flow: FlowId) {
        if let Some((store, flow)) = self.names.of(flow)
            && let Some(port) = self.of_store(store)
        {
            port.barrier(flow);
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

    /// Two stores with flows of these weights, and the port of one shard.
    fn two(weights: [&[u16]; 2]) -> (impl Port, Vec<FlowId>) {
        let (names, stock) = (Arc::new(Names::new(8)), Arc::new(Stock::new(1)));
        let (mut first, mut flows) = (None, Vec::new());
        for (store, weights) in weights.into_iter().enumerate() {
            let config = SerialConfig::new(1, 4, 64).with(|config| config.slots = SLOTS);
            let (policy, mut made) = Sfqd::<Native>::new(&config).unwrap();
            for &weight in weights {
                let flow = policy.add_flow(Weight::new(weight).unwrap()).unwrap();
                flows.push(names.assign(store as u16, flow).unwrap());
            }
            match first {
                None => first = made.pop(),
                Some(_) => stock.put(made),
            }
        }
        (StorePort::new(first.unwrap(), (stock, 0), names, (2, 64)), flows)
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

    /// A store that completes nothing occupies only its own slots.
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

    /// Weights apply within a store: a tenant of another store changes nothing.
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
    fn a_number_is_one_slot_until_it_is_given_back() {
        let names = Names::new(2);
        let assign = |store, slot, generation| names.assign(store, FlowId::new(slot, generation));
        assert_eq!(assign(0, 5, 1), Some(FlowId::new(0, 1)));
        assert!(!names.is_full());
        let second = assign(3, 5, 7).unwrap();
        assert_eq!((second, names.used(), names.is_full()), (FlowId::new(1, 7), 4, true));
        assert_eq!((assign(0, 5, 2), assign(1, 0, 1)), (Some(FlowId::new(0, 2)), None));
        names.give_back(1);
        names.give_back(1);
        assert_eq!((names.of(second), names.is_full()), (None, false));
        let third = assign(1, 0, 1).unwrap();
        assert_eq!((third, assign(1, 1, 1)), (FlowId::new(1, 8), None), "once, and a later one");
        assert_eq!(names.of(third), Some((1, FlowId::new(0, 1))));
        // A connection may still use the name of the previous flow; that policy has no such flow.
        let stale = FlowId::new(0, 0);
        assert_eq!(names.of(second), Some((1, stale)));
        assert_eq!(assign(1, 0, 2), Some(FlowId::new(1, 9)));
        names.give_back(1);
        assert_eq!(assign(3, 5, 8), Some(FlowId::new(1, 10)), "a slot that had it before");
    }
}
