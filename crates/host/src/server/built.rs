//! Policies that are built and not in force yet: the first store's with a port for each shard, and
//! the function that builds those of later stores.

use std::any::Any;
use std::sync::Arc;

use fairq_core::{Policy, Port};

use crate::device::any::AnyDevice;
use crate::front::Fronts;
use crate::shard::pool::{PolicyLoops, policy_loops};
use crate::shard::stores::{Names, Stock, StorePort};

/// Builds the policy of one more store, or returns the reason why it cannot.
type Build = Box<dyn Fn() -> Result<BuiltPolicy, String> + Send>;

/// A policy, built for the server's shards.
pub struct BuiltPolicy {
    pub(super) policy: Arc<dyn Policy>,
    ports: Box<dyn Ports>,
    /// The most stores, and the function that builds the policies after the first.
    more: Option<(usize, Build)>,
}

impl BuiltPolicy {
    /// From a policy and its ports.
    pub fn new<L: Policy>(policy: L, ports: Vec<L::Port>) -> BuiltPolicy
    where
        L::Port: 'static,
    {
        BuiltPolicy { policy: Arc::new(policy), ports: Box::new(ports), more: None }
    }

    /// For a device of up to `stores` stores: when a store other than the first gets a tenant,
    /// `build` builds its policy from the same configuration.
    #[must_use]
    pub fn for_stores(
        mut self,
        stores: usize,
        build: impl Fn() -> Result<BuiltPolicy, String> + Send + 'static,
    ) -> BuiltPolicy {
        // A device with one store needs no choice between ports, and `StorePort` would make each
        // verb dearer.
        self.more = (stores > 1).then(|| (stores, Box::new(build) as Build));
        self
    }

    /// The number of shards that it was built for.
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

/// The first store's policy, and the source of the others.
pub(super) struct Policies {
    pub(super) first: Arc<dyn Policy>,
    /// `None` for a device that has one store.
    pub(super) later: Option<Later>,
}

/// The policies of stores after the first.
pub(super) struct Later {
    /// The most stores.
    pub(super) most: usize,
    build: Build,
    stock: Box<dyn AnyStock>,
}

impl Later {
    /// The next store's policy, which goes to [`Self::put`] when it is ready for flows.
    pub(super) fn build(&self) -> Result<BuiltPolicy, String> {
        (self.build)()
    }

    /// Gives shards the next store's ports.
    pub(super) fn put(&self, built: BuiltPolicy) {
        self.stock.put(built.ports);
    }
}

/// Ports of one type, by shard.
trait Ports: Any + Send {
    fn shards(&self) -> usize;
    /// Converts them to the ports of the only store.
    fn alone(self: Box<Self>) -> PolicyLoops<AnyDevice, Fronts>;
    /// Converts them to the ports of the first of several stores, with the stock into which the
    /// ports of later stores are put.
    fn among(
        self: Box<Self>,
        stores: usize,
        names: &Arc<Names>,
        tags: usize,
    ) -> (PolicyLoops<AnyDevice, Fronts>, Box<dyn AnyStock>);
}

/// The stock into which the ports of later stores are put.
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
