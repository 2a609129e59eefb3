//! The resources that all front ends share, and the part that an attachment takes.
//!
//! **Problem.** A shard has a fixed number of tags, for which the policy was built, and a front end
//! that took more of them than its part would keep the others' requests waiting. **Model.** The
//! tags of a shard are the sum over the front ends of the orders under way: those of NBD's
//! connections, and [`QUEUE_TAGS`] for each queue of a guest. The queues of all guests have a bound
//! on each shard ([`Places`]); a queue takes its place when it starts, and is refused with a text
//! that names what is exhausted.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

use crate::device::ControllerLimits;
use crate::shard::volume::Volume;

/// The disk that a guest gets.
pub struct Disk {
    /// The tenant's name.
    pub name: String,
    /// The tenant's range.
    pub volume: Volume,
    /// The block of the device below, in bytes.
    pub block: u32,
    /// The size of requests that the device serves best, in bytes.
    pub preferred: u32,
    /// The limits of a controller that has the whole device; `None` for a tenant beside others.
    pub whole: Option<ControllerLimits>,
}

/// The most orders that one queue of a guest has under way.
pub const QUEUE_TAGS: usize = 256;

/// The resource that an attachment cannot have now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Exhausted {
    /// The shard has as many queues as it may.
    #[error(
        "all {0} queues of guests and block devices on a shard are in use: detach one, or raise limits.guest-queues \
         and restart the server"
    )]
    Queues(usize),
    /// The memory of connections is used up.
    #[error("no memory is left for another guest (limits.memory): detach one, or try again later")]
    Memory,
}

/// The places of queues on all shards.
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

/// A guest that is attached, as long as its session or one of its queues is there.
#[derive(Debug)]
pub struct Attachment {
    places: Arc<Places>,
    queues: AtomicUsize,
    /// Its part of the server's memory, for example.
    _guard: Box<dyn Any + Send + Sync>,
}

impl Attachment {
    /// A guest without queues yet, which will be in these places.
    pub fn new(places: Arc<Places>) -> Arc<Attachment> {
        Attachment::with_guard(places, Box::new(()))
    }

    /// The same; `guard` is dropped at its end.
    pub(crate) fn with_guard(
        places: Arc<Places>,
        guard: Box<dyn Any + Send + Sync>,
    ) -> Arc<Attachment> {
        Arc::new(Attachment { places, queues: AtomicUsize::new(0), _guard: guard })
    }

    /// Takes the place of one more queue on a shard.
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
