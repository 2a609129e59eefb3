//! The resources that all front ends share, and the share of one attachment.
//!
//! **Problem.** A shard has a fixed number of tags, for which the policy was built. A front end
//! that used more tags than its share would delay the others' requests. **Model.** The number of
//! tags of a shard is the sum of the orders that its front ends may have in flight: those of NBD's
//! connections, and [`QUEUE_TAGS`] for each queue of a guest or a block device. The number of these
//! queues on a shard is bounded ([`Places`]). A queue reserves its place when it starts; if none is
//! free, the queue is refused with a message that names the exhausted resource.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

use crate::device::ControllerLimits;
use crate::shard::volume::Volume;

/// The disk that a guest attaches.
pub struct Disk {
    /// The tenant's name.
    pub name: String,
    /// The tenant's range.
    pub volume: Volume,
    /// The block of the underlying device, in bytes.
    pub block: u32,
    /// The size of requests that the device serves best, in bytes.
    pub preferred: u32,
    /// The limits of a controller that has the whole device; `None` for a tenant beside others.
    pub whole: Option<ControllerLimits>,
}

/// The largest number of orders that one queue of a guest has in flight.
pub const QUEUE_TAGS: usize = 256;

/// The resource of which an attachment needs more than is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Exhausted {
    /// The shard has its largest number of queues.
    #[error(
        "all {0} queues of guests and block devices on a shard are in use: detach one, or raise \
         limits.guest-queues and restart the server"
    )]
    Queues(usize),
    /// The memory of connections is used up.
    #[error("no memory is left for another guest (limits.memory): detach one, or try again later")]
    Memory,
}

/// The bounded number of queues on each shard.
#[derive(Debug)]
pub struct Places {
    used: Box<[AtomicUsize]>,
    most: usize,
}

impl Places {
    /// At most `most` queues on each of `shards` shards.
    pub fn new(shards: usize, most: usize) -> Places {
        Places { used: (0..shards).map(|_| AtomicUsize::new(0)).collect(), most }
    }
}

/// An attached guest or block device; it exists as long as its session or one of its queues.
#[derive(Debug)]
pub struct Attachment {
    places: Arc<Places>,
    queues: AtomicUsize,
    /// Resources that are released with it, such as its part of the server's memory.
    _guard: Box<dyn Any + Send + Sync>,
}

impl Attachment {
    /// A guest without queues yet, whose queues will take their places from `places`.
    pub fn new(places: Arc<Places>) -> Arc<Attachment> {
        Attachment::with_guard(places, Box::new(()))
    }

    /// As [`Self::new`]; `guard` is dropped at the end of the attachment.
    pub(crate) fn with_guard(
        places: Arc<Places>,
        guard: Box<dyn Any + Send + Sync>,
    ) -> Arc<Attachment> {
        Arc::new(Attachment { places, queues: AtomicUsize::new(0), _guard: guard })
    }

    /// Reserves a place for one more queue on a shard.
    pub fn take(self: &Arc<Self>, shard: usize) -> Result<QueuePlace, Exhausted> {
        let Places { used, most } = &*self.places;
        let one_more = |used: usize| (used < *most).then_some(used + 1);
        let taken = used[shard].fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.map_err(|_| Exhausted::Queues(*most))?;
        self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(QueuePlace { attachment: self.clone(), shard })
    }

    /// The number of its queues.
    pub fn queues(&self) -> usize {
        self.queues.load(Ordering::Relaxed)
    }
}

/// The place of a queue; it is free again when this is dropped.
#[derive(Debug)]
pub struct QueuePlace {
    attachment: Arc<Attachment>,
    shard: usize,
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.attachment.queues.fetch_sub(1, Ordering::Relaxed);
        self.attachment.places.used[self.shard].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_a_bound_of_queues_whosever_they_are() {
        let places = Arc::new(Places::new(2, 2));
        let [one, other] = [(); 2].map(|()| Attachment::new(places.clone()));
        let first = one.take(0).unwrap();
        let _second = other.take(0).unwrap();
        let refused = one.take(0).unwrap_err();
        assert_eq!(refused, Exhausted::Queues(2));
        assert!(refused.to_string().contains("limits.guest-queues"));
        let _elsewhere = one.take(1).unwrap();
        assert_eq!((one.queues(), other.queues()), (2, 1));
        drop(first);
        assert_eq!(one.queues(), 1);
        assert!(other.take(0).is_ok());
    }
}
