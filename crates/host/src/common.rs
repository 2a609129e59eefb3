//! What all shards of one run share, and the time that they go by.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use crate::interference::Served;
use crate::wakers::Wakers;
use crate::write_back::WriteBack;

/// Nanoseconds since the first clock was made: one time for all shards, devices and runs of a
/// process, so that a device that works in time may be used by one run after the other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Clock { start: *START }
    }
}

impl Clock {
    /// Now, in nanoseconds.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// What all shards of one run share.
pub struct Common<D> {
    /// The device.
    pub device: Arc<D>,
    /// How to wake each shard.
    pub wakers: Arc<Wakers>,
    /// The clock.
    pub clock: Clock,
    /// The most live requests of a shard; what the policy was built with.
    pub tags: usize,
    /// The most tenants; their numbers are below it.
    pub tenants: usize,
    /// What each shard has served.
    pub served: Arc<Served>,
    /// Whose data may be lost.
    pub write_back: Arc<WriteBack>,
    /// Registered buffers a front end may use.
    pub fixed_buffers: u32,
}

impl<D> Clone for Common<D> {
    fn clone(&self) -> Self {
        let (device, wakers) = (self.device.clone(), self.wakers.clone());
        let (served, write_back) = (self.served.clone(), self.write_back.clone());
        Common { device, wakers, served, write_back, ..*self }
    }
}
