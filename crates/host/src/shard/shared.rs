//! The state that all shards of one run share.

use std::sync::Arc;

use crate::device::write_back::WriteBack;
use crate::io::clock::Clock;
use crate::io::wakers::Wakers;
use crate::observe::interference::Served;
use crate::shard::dirty::Dirty;
use crate::shard::fence::Fences;
use crate::shard::turns::Weights;

/// The state that all shards of one run share.
pub struct Common<D> {
    /// The device.
    pub device: Arc<D>,
    /// The wakers of the shards.
    pub wakers: Arc<Wakers>,
    /// The clock.
    pub clock: Clock,
    /// The largest number of live requests of a shard; the policy was built for it.
    pub tags: usize,
    /// The largest number of tenants. The tenants' numbers are below it.
    pub tenants: usize,
    /// The service of each shard.
    pub served: Arc<Served>,
    /// The tenants whose data may be lost.
    pub write_back: Arc<WriteBack>,
    /// The bytes in the page cache that are not on the disk.
    pub dirty: Arc<Dirty>,
    /// The weights by which tenants share a shard's CPU.
    pub weights: Arc<Weights>,
    /// The requests that ended clients have left in flight.
    pub fences: Arc<Fences>,
    /// The number of registered buffers that a front end may use.
    pub fixed_buffers: u32,
}

impl<D> Common<D> {
    /// The state for a device and the shards that `wakers` wakes, with `tags` live requests a shard
    /// and `tenants` tenants; without registered buffers.
    pub fn new(device: Arc<D>, wakers: Arc<Wakers>, tags: usize, tenants: usize) -> Common<D> {
        let shards = wakers.count();
        let served = Arc::new(Served::new(shards));
        Common {
            device,
            clock: Clock::default(),
            tags,
            tenants,
            dirty: Arc::new(Dirty::new(wakers.clone(), served.clone())),
            served,
            write_back: Arc::new(WriteBack::new(shards, tenants)),
            weights: Arc::new(Weights::new(tenants)),
            fences: Arc::new(Fences::new(tenants, wakers.clone())),
            wakers,
            fixed_buffers: 0,
        }
    }
}

impl<D> Clone for Common<D> {
    fn clone(&self) -> Self {
        let (device, wakers) = (self.device.clone(), self.wakers.clone());
        let (served, write_back) = (self.served.clone(), self.write_back.clone());
        let (weights, fences) = (self.weights.clone(), self.fences.clone());
        let dirty = self.dirty.clone();
        Common { device, wakers, served, write_back, dirty, weights, fences, ..*self }
    }
}
