//! The memory of a queue.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::nvme::queue::Entries;
use crate::device::nvme::spec::{CQE, Cqe, SQE, Sqe};
use crate::front::guest_memory::{Guest, Outside, read16};

/// The rule that a guest has broken, so that its controller fails.
#[derive(Debug, Error)]
pub(in crate::front::vfio_user) enum Fault {
    #[error("a queue: {0}")]
    Queue(#[from] Outside),
    #[error("the doorbell of {0} has a value that it cannot have ({1})")]
    Doorbell(Which, u32),
    #[error("the file of a region of memory has become shorter")]
    Shrunk,
}

/// A queue of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::front::vfio_user) enum Which {
    Submission(u16),
    Completion(u16),
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Submission(id) => write!(f, "submission queue {id}"),
            Which::Completion(id) => write!(f, "completion queue {id}"),
        }
    }
}

/// The memory of a queue: an address of the guest, and the number of entries.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::front::vfio_user) struct GuestRing {
    pub(in crate::front::vfio_user) address: u64,
    pub(in crate::front::vfio_user) size: u16,
}

impl Entries for GuestRing {
    #[inline]
    fn size(&self) -> u16 {
        self.size
    }
}

impl GuestRing {
    /// Copies a submission entry.
    #[inline]
    pub(in crate::front::vfio_user) fn read(
        self,
        guest: &Guest,
        index: u16,
    ) -> Result<Sqe, Outside> {
        let at = self.address.wrapping_add(u64::from(index) * SQE as u64);
        let from = guest.range(at, SQE as u64)?;
        let mut words = [0; SQE / 8];
        for (pair, to) in words.chunks_exact_mut(2).enumerate() {
            // SAFETY: the generation has just resolved these bytes, and is mapped.
            to.copy_from_slice(&unsafe { read16(from.add(16 * pair)) });
        }
        Ok(Sqe::from_words(words))
    }

    /// Writes a completion entry; its phase comes last.
    #[inline]
    pub(in crate::front::vfio_user) fn write(
        self,
        guest: &Guest,
        (index, phase): (u16, bool),
        cqe: Cqe,
    ) -> Result<(), Outside> {
        let at = self.address.wrapping_add(u64::from(index) * CQE as u64);
        let outside = Outside { address: at, length: CQE as u64 };
        let to = guest.range(at, CQE as u64)?.cast::<u64>();
        if !to.is_aligned() {
            return Err(outside);
        }
        let [first, second] = cqe.to_words(phase);
        // SAFETY: mapped, as above, and aligned; the guest reads it from outside the process.
        unsafe {
            AtomicU64::from_ptr(to).store(first, Ordering::Relaxed);
            AtomicU64::from_ptr(to.add(1)).store(second, Ordering::Release);
        }
        Ok(())
    }
}
