//! Making a range read as zeroes before a new tenant may open it: what a tenant that was removed
//! left there is nobody's business.
//!
//! It goes the way of every request, in the new tenant's flow, so that it takes no more of the
//! device than that tenant's weight gives it: a piece at a time, and at the end a flush, so that
//! old data do not come back after a power cut.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fairq_core::{FlowId, Op, Port};

use crate::device::Device;
use crate::io::memory::Memory;
use crate::io::ring::Ring;
use crate::nbd::serve::conn::Volume;
use crate::shard::path::{DataPath, Order};

/// What is zeroed at a time, in bytes: where it has to be written it takes some milliseconds.
/// Pieces end at multiples of it in the file, so that no block is cut.
const PIECE: u64 = 2 << 20;
/// Marks cookies that are no connection's.
const COOKIE: u64 = 1 << 63;
/// Not over.
const RUNS: i32 = -1;

/// How far a new tenant's range is prepared: first it waits until nothing of removed tenants can
/// arrive there any more, then it is zeroed. Shared by the control thread and a shard.
#[derive(Debug)]
pub struct Wiping {
    size: u64,
    since: Instant,
    /// The removed tenants whose requests are still under way.
    waits_for: Mutex<Vec<String>>,
    done: AtomicU64,
    /// [`RUNS`], 0, or the errno that ended it.
    outcome: AtomicI32,
}

impl Wiping {
    /// Of a range in which so many bytes are to be zeroed (0: it is kept as it is), not begun.
    pub fn new(size: u64) -> Wiping {
        Wiping {
            size,
            since: Instant::now(),
            waits_for: Mutex::default(),
            done: AtomicU64::new(0),
            outcome: AtomicI32::new(RUNS),
        }
    }

    /// The removed tenants for whose requests it waits; none if it has begun.
    pub fn waits_for(&self) -> Vec<String> {
        self.names().clone()
    }

    /// For how long it has waited for requests of removed tenants, if it still does.
    pub fn waited(&self) -> Option<Duration> {
        (!self.names().is_empty()).then(|| self.since.elapsed())
    }

    /// It waits for these; or may begin, if there are none.
    pub(crate) fn wait_for(&self, names: Vec<String>) {
        *self.names() = names;
    }

    /// There is nothing to be zeroed.
    pub(crate) fn skip(&self) {
        self.outcome.store(0, Ordering::Release);
    }

    fn names(&self) -> MutexGuard<'_, Vec<String>> {
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes to be zeroed.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that are zero.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The errno it ended with, or 0; `None` as long as it goes on.
    pub fn outcome(&self) -> Option<i32> {
        let outcome = self.outcome.load(Ordering::Acquire);
        (outcome != RUNS).then_some(outcome)
    }
}

/// A range to be zeroed by a shard.
pub struct Wipe {
    volume: Volume,
    state: Arc<Wiping>,
    /// Bytes submitted.
    at: u64,
    is_outstanding: bool,
    is_flushed: bool,
}

impl Wipe {
    /// The first bytes of a volume, as many as `state` says.
    pub fn new(volume: Volume, state: Arc<Wiping>) -> Wipe {
        Wipe { volume, state, at: 0, is_outstanding: false, is_flushed: false }
    }

    pub(super) fn is_of(&self, flow: FlowId) -> bool {
        self.volume.flow == flow
    }

    /// Whether nothing more will happen to it.
    pub(super) fn is_over(&self) -> bool {
        !self.is_outstanding && self.state.outcome().is_some()
    }

    /// Ends it where it is.
    pub(super) fn cancel(&mut self) {
        self.end(libc::ECANCELED);
    }

    fn end(&self, errno: i32) {
        // The first outcome stands: an order that ends well does not undo a cancellation.
        if self.state.outcome().is_none() {
            self.state.outcome.store(errno, Ordering::Release);
        }
    }

    fn cookie(&self) -> u64 {
        COOKIE | u64::from(self.volume.tenant)
    }

    /// Whether this order is its own. The wipe of a tenant that had the slot before may be here
    /// still, without an order.
    pub(super) fn has_cookie(&self, cookie: u64) -> bool {
        self.is_outstanding && self.cookie() == cookie
    }

    /// Submits the next piece, if there is room and the last one is done.
    pub(super) fn submit<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        if self.is_outstanding || self.state.outcome().is_some() || !path.has_room() {
            return;
        }
        let length = (self.state.size - self.at).min(PIECE - (self.volume.base + self.at) % PIECE);
        let (op, offset) =
            if length > 0 { (Op::WriteZeroes, self.volume.base + self.at) } else { (Op::Flush, 0) };
        let order = Order {
            tenant: self.volume.tenant,
            flow: self.volume.flow,
            op,
            file: self.volume.file,
            offset,
            length: length as u32,
            fua: false,
            no_hole: false,
            fast_only: false,
            memory: Memory::NONE,
            cookie: self.cookie(),
            is_void: false,
        };
        // SAFETY: the order has no memory.
        match unsafe { path.submit(now_ns, ring, &order) } {
            Ok(()) => {
                self.is_outstanding = true;
                self.is_flushed = op == Op::Flush;
                self.at += length;
            }
            // The tenant has been removed again.
            Err(_) => self.cancel(),
        }
    }

    /// Takes the end of its order.
    pub(super) fn finished(&mut self, errno: i32) {
        self.is_outstanding = false;
        self.state.done.store(self.at, Ordering::Relaxed);
        // An order that was taken back with its tenant is no failure of the device.
        if errno != 0 && self.state.outcome().is_none() {
            tracing::error!(
                errno,
                offset = self.volume.base,
                "a new tenant's range cannot be zeroed, so it stays closed"
            );
        }
        if errno != 0 || self.is_flushed {
            self.end(errno);
        }
    }
}

/// Whether an order's cookie is a wipe's.
pub(super) fn is_wipe(cookie: u64) -> bool {
    cookie & COOKIE != 0
}
