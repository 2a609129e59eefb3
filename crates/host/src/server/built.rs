//! Policies that are built and not yet in force: the first store's policy with a port for each
//! shard, and the function that builds the policies of later stores.

use std::any::Any;
use std::sync::Arc;

use fairq_core::{Limits, Port};

use crate::device::any::AnyDevice;
use crate::front::Fronts;
use crate::shard::pool::{PolicyLoops, policy_loops};
use crate::shard::stores::{Names, Stock, StorePort};

/// Builds the policy of one more store, or returns the reason why it cannot.
type Build = Box<dyn Fn() -> Result<BuiltPolicy, String> + Send>;

/// A policy, built for the server's shards.
pub struct BuiltPolicy {
    pub(super) policy: Arc<dyn Limits>,
    ports: Box<dyn Ports>,
    /// The largest number of stores, and the function that builds the policies of the later ones.
    more: Option<(usize, Build)>,
}

impl BuiltPolicy {
    /// A built policy with its ports.
    pub fn new<L: Limits>(policy: L, ports: Vec<L::Port>) -> BuiltPolicy
    where
        L::Port: 'static,
    {
        BuiltPolicy { policy: Arc::new(policy), ports: Box::new(ports), more: None }
    }

    /// Makes it suitable for a device of up to `stores` stores: when another store gets its first
    /// tenant, `build` builds that store's policy from the same configuration.
    #[must_use]
    pub fn for_stores(
        mut self,
        stores: usize,
        build: impl Fn() -> Result<BuiltPolicy, String> + Send + 'static,
    ) -> BuiltPolicy {
        // A device with one store needs no choice between ports, and `StorePort` would make each
        // call more expensive.
        self.more = (stores > 1).then(|| (stores, Box::new(build) as Build));
        self
    }

    /// The number of shards for which it was built.
    pub(super) fn shards(&self) -> usize {
        self.ports.shards()
    }

    /// The policies, and the ports in the form that shards use.
    pub(super) fn split(
        self,
        names: &Arc<Names>,
        tags: usize,
    ) -> (Policies, PolicyLoops<AnyDevice, Fronts>) {
        let BuiltPolicy { policy: first, ports, more } = self;
        match more {
            None => (Policies { first, later: None }, ports.alone()),
            Some((most, build)) => {
                let (loops, stock) = ports.among(most, names, tags);
                (Policies { first, later: Some(Later { most, build, stock }) }, loops)
            }
        }
    }
}

/// The first store's policy, and the builder of the others.
pub(super) struct Policies {
    pub(super) first: Arc<dyn Limits>,
    /// `None` for a device that has one store.
    pub(super) later: Option<Later>,
}

/// The policies of stores after the first.
pub(super) struct Later {
    /// The largest number of stores.
    pub(super) most: usize,
    build: Build,
    stock: Box<dyn AnyStock>,
}

impl Later {
    /// Builds the next store's policy. The caller passes it to [`Self::put`] when it is ready for
    /// flows.
    pub(super) fn build(&self) -> Result<BuiltPolicy, String> {
        (self.build)()
    }

    /// Makes the next store's ports available to the shards.
    pub(super) fn put(&self, built: BuiltPolicy) {
        self.stock.put(built.ports);
    }
}

/// Ports of one type, one for each shard.
trait Ports: Any + Send {
    fn shards(&self) -> usize;
    /// Converts them to the loops of a server with a single store.
    fn alone(self: Box<Self>) -> PolicyLoops<AnyDevice, Fronts>;
    /// Converts them to the loops of the first of several stores; also returns the stock for the
    /// ports of later stores.
    fn among(
        self: Box<Self>,
        stores: usize,
        names: &Arc<Names>,
        tags: usize,
    ) -> (PolicyLoops<AnyDevice, Fronts>, Box<dyn AnyStock>);
}

/// The stock for the ports of later stores, whatever their type.
trait AnyStock {
    fn put(&self, ports: Box<dyn Ports>);
}

impl<P: Port + 'static> Ports for Vec<P> {
    fn shards(&self) -> usize {
        self.len()
    }

    fn alone(self: Box<Self>) -> PolicyLoops<AnyDevice, Fronts> {
        policy_loops(*self)
    }

    fn among(
        self: Box<Self>,
        stores: usize,
        names: &Arc<Names>,
        tags: usize,
    ) -> (PolicyLoops<AnyDevice, Fronts>, Box<dyn AnyStock>) {
        let stock = Arc::new(Stock::new(self.len()));
        let of_shard = |(shard, port)| {
            StorePort::new(port, (stock.clone(), shard), names.clone(), (stores, tags))
        };
        let ports = self.into_iter().enumerate().map(of_shard).collect();
        (policy_loops(ports), Box::new(stock))
    }
}

impl<P: Port + 'static> AnyStock for Arc<Stock<P>> {
    fn put(&self, ports: Box<dyn Ports>) {
        let ports: Box<dyn Any> = ports;
        let ports = ports.downcast().expect("the same configuration gives the same type");
        Stock::put(self, *ports);
    }
}
