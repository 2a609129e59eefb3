//! The state of one controller's session.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fairq_device::Arbitration;
use serde::{Deserialize, Serialize};

use crate::device::ControllerLimits;
use crate::device::nvme::queue::{CqTail, SqHead};
use crate::front::attach::Attachment;
use crate::front::guest_memory::Guest;
use crate::front::vfio_user::bridge::{Bridge, QUEUES};
use crate::front::vfio_user::pci_config::PciConfig;
use crate::front::vfio_user::queue_group::GuestRing;
use crate::front::vfio_user::queue_groups::Message;
use crate::shard::volume::Volume;

/// The most entries of a queue.
pub(super) const ENTRIES: u16 = 4096;
/// Interrupt vectors: one for the admin queue and each I/O queue.
pub(super) const VECTORS: u16 = QUEUES as u16 + 1;
/// Version 1.4, the last one whose mandatory log pages and data structures are all here.
pub(super) const VERSION: u32 = 0x0001_0400;
/// Asynchronous event requests that are kept (AERL + 1).
pub(super) const EVENT_REQUESTS: usize = 4;
/// The warning threshold of the temperature, in kelvin.
pub(super) const WARNING: u16 = 350;

/// Bytes of the data of Host Behavior Support.
pub(super) const HOST_BEHAVIOR: usize = 512;

/// Sends a message to the front end of a shard.
pub type Send = Arc<dyn Fn(usize, Message) + std::marker::Send + Sync>;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session, which is one controller.
pub(super) struct Session {
    pub(super) number: u32,
    pub(super) bridge: Arc<Bridge>,
    pub(super) volume: Volume,
    pub(super) block: u32,
    pub(super) preferred: u32,
    pub(super) whole: Option<ControllerLimits>,
    pub(super) shards: usize,
    pub(super) send: Send,
    pub(super) attachment: Arc<Attachment>,
    /// The protocol's version is agreed.
    pub(super) is_open: bool,
    /// The client gets the page of doorbells with the description of BAR 0.
    pub(super) offers_page: bool,
    pub(super) guest: Arc<Guest>,
    /// Regions of memory that cannot be reached: address and size.
    pub(super) blind: Vec<(u64, u64)>,
    pub(super) config: PciConfig,
    /// The MSI-X table, which only its writer reads.
    pub(super) table: Vec<u8>,
    /// The eventfd of each interrupt vector.
    pub(super) vectors: Vec<Option<Arc<OwnedFd>>>,
    pub(super) registers: Registers,
    /// There while the controller is enabled.
    pub(super) admin: Option<AdminQueue>,
}

/// The registers that a guest writes.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Registers {
    pub(super) interrupt_mask: u32,
    pub(super) cc: u32,
    pub(super) aqa: u32,
    pub(super) asq: u64,
    pub(super) acq: u64,
}

/// A completion queue that the guest has created.
#[derive(Clone, Copy, Debug)]
pub(super) struct CqPlace {
    pub(super) shard: usize,
    /// Its submission queues.
    pub(super) users: u16,
    pub(super) size: u16,
}

/// A submission queue that the guest has created.
#[derive(Clone, Copy, Debug)]
pub(super) struct SqPlace {
    pub(super) cqid: u16,
    pub(super) size: u16,
}

/// The admin queue of an enabled controller, and the properties that its commands have set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AdminQueue {
    pub(super) sq: SqHead<GuestRing>,
    pub(super) cq: CqTail<GuestRing>,
    pub(super) has_posted: bool,
    /// Whether the guest has chosen weighted round robin.
    pub(super) is_weighted: bool,
    /// I/O queues of each kind that there may be.
    pub(super) most: u16,
    /// I/O queues, which the next program creates anew.
    #[serde(skip, default = "no_queues")]
    pub(super) cqs: Vec<Option<CqPlace>>,
    #[serde(skip, default = "no_queues")]
    pub(super) sqs: Vec<Option<SqPlace>>,
    /// I/O queues of each kind that may be created, and whether any has been.
    pub(super) granted: u16,
    pub(super) has_queues: bool,
    pub(super) shadow: Option<[u64; 2]>,
    /// CDW11 of features, as they were set.
    pub(super) arbitration: u32,
    pub(super) error_recovery: u32,
    pub(super) thresholds: [u16; 2],
    pub(super) coalescing: u32,
    /// The vectors that are not coalesced.
    pub(super) uncoalesced: Vec<u16>,
    pub(super) atomicity: u32,
    pub(super) async_events: u32,
    /// The data of Host Behavior Support, none of which changes anything here.
    pub(super) host_behavior: Vec<u8>,
    pub(super) event_requests: Vec<u16>,
    /// The namespace has changed, which the guest has not read yet; and its event has been sent.
    pub(super) has_changed: bool,
    pub(super) is_notified: bool,
}

fn no_queues<T: Clone>() -> Vec<Option<T>> {
    vec![None; QUEUES + 1]
}

impl AdminQueue {
    pub(super) fn new(sq: GuestRing, cq: GuestRing, is_weighted: bool, most: u16) -> AdminQueue {
        AdminQueue {
            sq: SqHead::new(sq, 0),
            cq: CqTail::new(cq, Some(0)),
            has_posted: false,
            is_weighted,
            most,
            cqs: no_queues(),
            sqs: no_queues(),
            granted: most,
            has_queues: false,
            shadow: None,
            arbitration: Arbitration::RESET.cdw11(),
            error_recovery: 0,
            thresholds: [WARNING, 0],
            coalescing: 0,
            uncoalesced: Vec::new(),
            atomicity: 0,
            async_events: 0,
            host_behavior: vec![0; HOST_BEHAVIOR],
            event_requests: Vec::with_capacity(EVENT_REQUESTS),
            has_changed: false,
            is_notified: false,
        }
    }

    /// The shard of an I/O queue, and its number of entries.
    pub(super) fn place_of(&self, id: usize, is_completion: bool) -> Option<(usize, u16)> {
        let cq = |id: usize| self.cqs.get(id).copied().flatten();
        if is_completion {
            return cq(id).map(|cq| (cq.shard, cq.size));
        }
        let sq = self.sqs.get(id).copied().flatten()?;
        Some((cq(sq.cqid.into())?.shard, sq.size))
    }
}
