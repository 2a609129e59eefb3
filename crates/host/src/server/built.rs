//! Policies that are built and not in force yet: one for each store, with a port for each shard.

use std::any::Any;
use std::sync::Arc;

use fairq_core::{Policy, Port};

use crate::device::any::AnyDevice;
use crate::nbd::serve::front::NbdFront;
use crate::shard::pool::{PolicyLoops, policy_loops};
use crate::shard::stores::{Names, StorePort};

/// A policy, built for the server's shards; or several of one kind, one for each store.
pub struct BuiltPolicy {
    pub(super) policies: Vec<Arc<dyn Policy>>,
    ports: Box<dyn Ports>,
}

impl BuiltPolicy {
    /// From what building it gave.
    pub fn new<L: Policy>(policy: L, ports: Vec<L::Port>) -> BuiltPolicy
    where
        L::Port: 'static,
    {
        BuiltPolicy { policies: vec![Arc::new(policy)], ports: Box::new(vec![ports]) }
    }

    /// With another store's, which has been built by the same configuration.
    #[must_use]
    pub fn and(mut self, other: BuiltPolicy) -> BuiltPolicy {
        self.policies.extend(other.policies);
        self.ports.append(other.ports);
        self
    }

    /// How many shards it was built for.
    pub(super) fn shards(&self) -> usize {
        self.ports.shards()
    }

    /// The policies, and the ports as shards take them.
    pub(super) fn split(
        self,
        names: &Arc<Names>,
        tags: usize,
    ) -> (Vec<Arc<dyn Policy>>, PolicyLoops<AnyDevice, NbdFront>) {
        (self.policies, self.ports.policy_loops(names, tags))
    }
}

/// Ports of one type, by store and shard.
trait Ports: Any + Send {
    fn append(&mut self, other: Box<dyn Ports>);
    fn shards(&self) -> usize;
    fn policy_loops(
        self: Box<Self>,
        names: &Arc<Names>,
        tags: usize,
    ) -> PolicyLoops<AnyDevice, NbdFront>;
}

impl<P: Port + 'static> Ports for Vec<Vec<P>> {
    fn append(&mut self, other: Box<dyn Ports>) {
        let other: Box<dyn Any> = other;
        let other = other.downcast::<Self>().expect("the same configuration gives the same type");
        self.extend(*other);
    }

    fn shards(&self) -> usize {
        self[0].len()
    }

    fn policy_loops(
        self: Box<Self>,
        names: &Arc<Names>,
        tags: usize,
    ) -> PolicyLoops<AnyDevice, NbdFront> {
        let mut stores = *self;
        // With one store there is nothing to choose between, and `StorePort` would cost each verb.
        if stores.len() == 1 {
            return policy_loops(stores.swap_remove(0));
        }
        let mut stores: Vec<_> = stores.into_iter().map(Vec::into_iter).collect();
        let shards = stores[0].len();
        let of_shard = |_| {
            let ports = stores.iter_mut().filter_map(Iterator::next).collect();
            StorePort::new(ports, names.clone(), tags)
        };
        policy_loops((0..shards).map(of_shard).collect())
    }
}
