//! Making a range read as zeroes before a new tenant may open it, so that the new tenant cannot
//! read a removed tenant's data.
//!
//! The zeroing passes through the scheduler like every request, in the new tenant's flow, so that
//! it takes only that tenant's share of the device. It has one piece in flight at a time, and ends
//! with a flush, so that old data do not reappear after a power cut.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fairq_core::{FlowId, Op, Port};

use crate::device::Device;
use crate::io::memory::Memory;
use crate::io::ring::{Asker, Ring};
use crate::shard::path::{DataPath, Finished};
use crate::shard::request::Request;
use crate::shard::volume::Volume;

/// The number of bytes that are zeroed at a time if they have to be written; this takes some
/// milliseconds.
const PIECE: u32 = 2 << 20;
/// The outcome of a wipe that is in progress.
const RUNS: i32 = -1;

/// The progress of the preparation of a new tenant's range. It waits until no request of a removed
/// tenant can reach the range; then the range is zeroed. The control thread and a shard share it.
#[derive(Debug)]
pub struct Wiping {
    size: u64,
    since: Instant,
    /// The removed tenants whose requests are still in flight.
    waits_for: Mutex<Vec<String>>,
    done: AtomicU64,
    /// [`RUNS`], 0, or the errno of the failure.
    outcome: AtomicI32,
}

impl Wiping {
    /// The preparation, not yet begun, of a range in which `size` bytes are to be zeroed (0: its
    /// data are kept).
    pub fn new(size: u64) -> Wiping {
        Wiping {
            size,
            since: Instant::now(),
            waits_for: Mutex::default(),
            done: AtomicU64::new(0),
            outcome: AtomicI32::new(RUNS),
        }
    }

    /// The removed tenants for whose requests it waits; empty if it has begun.
    pub fn waits_for(&self) -> Vec<String> {
        self.names().clone()
    }

    /// The time for which it has waited for requests of removed tenants, if it still waits.
    pub fn waited(&self) -> Option<Duration> {
        (!self.names().is_empty()).then(|| self.since.elapsed())
    }

    /// Sets the tenants for which it waits; if there are none, it may begin.
    pub(crate) fn wait_for(&self, names: Vec<String>) {
        *self.names() = names;
    }

    /// Ends the preparation, because no byte is to be zeroed.
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

    /// Bytes zeroed so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The errno with which it ended, or 0; `None` while it is in progress.
    pub fn outcome(&self) -> Option<i32> {
        let outcome = self.outcome.load(Ordering::Acquire);
        (outcome != RUNS).then_some(outcome)
    }
}

/// A range to be zeroed by a shard.
pub struct Wipe {
    volume: Volume,
    state: Arc<Wiping>,
    /// The zeroing, which ends with a flush.
    request: Request,
    /// Bytes submitted so far.
    at: u64,
}

impl Wipe {
    /// A wipe of the first bytes of a volume; `state` has their number.
    pub fn new(volume: Volume, state: Arc<Wiping>) -> Wipe {
        let mut request = Request::new(Op::WriteZeroes, 0, state.size).of_server();
        (request.fua, request.written_piece) = (true, PIECE);
        Wipe { volume, state, request, at: 0 }
    }

    fn is_of(&self, flow: FlowId) -> bool {
        self.volume.flow == flow
    }

    /// Whether it has ended and has no order in flight.
    fn is_over(&self) -> bool {
        !self.is_outstanding() && self.state.outcome().is_some()
    }

    /// Ends it before all bytes are zeroed.
    fn cancel(&mut self) {
        self.end(libc::ECANCELED);
    }

    fn end(&self, errno: i32) {
        // The first outcome is kept: the success of an order does not undo a cancellation.
        if self.state.outcome().is_none() {
            self.state.outcome.store(errno, Ordering::Release);
        }
    }

    fn is_outstanding(&self) -> bool {
        self.request.outstanding() > 0
    }

    fn cookie(&self) -> u64 {
        self.volume.tenant.into()
    }

    /// Whether this order belongs to this wipe. The wipe of an earlier tenant of the slot may still
    /// exist, without an order.
    fn has_cookie(&self, cookie: u64) -> bool {
        self.is_outstanding() && self.cookie() == cookie
    }

    /// Submits the next piece, if a tag is free and the last piece has ended.
    fn submit<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        if !self.request.is_submittable() || self.state.outcome().is_some() || !path.has_room() {
            return;
        }
        let part = self.request.next(&self.volume, path.device());
        let order = part.order(&self.volume, Memory::NONE, self.cookie());
        let Ok(order) = order else { return self.end(libc::EINVAL) };
        // SAFETY: the order has no memory.
        match unsafe { path.submit(now_ns, ring, &order, &[]) } {
            Ok(()) => {
                self.request.submitted();
                self.at += u64::from(part.length());
            }
            // The tenant was removed while its range was being zeroed.
            Err(_) => self.cancel(),
        }
    }

    /// Handles the end of its order.
    fn finished(&mut self, errno: i32) {
        self.request.finished(errno);
        self.state.done.store(self.at, Ordering::Relaxed);
        // An order that was cancelled with its tenant is not a failure of the device.
        if errno != 0 && self.state.outcome().is_none() {
            tracing::error!(
                errno,
                offset = self.volume.base,
                "a new tenant's range cannot be zeroed, so it stays closed"
            );
        }
        if self.request.is_finished() {
            self.end(self.request.errno());
        }
    }
}

/// The ranges that a shard zeroes.
#[derive(Default)]
pub(super) struct Wipes(Vec<Wipe>);

impl Wipes {
    /// Adds a wipe.
    pub(super) fn push(&mut self, wipe: Wipe) {
        self.0.push(wipe);
    }

    /// Submits a piece of each wipe that has none in flight.
    pub(super) fn submit<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        if self.0.is_empty() {
            return;
        }
        let front = path.serve(Asker::Shard);
        self.0.iter_mut().for_each(|wipe| wipe.submit(now_ns, ring, path));
        path.serve(front);
    }

    /// Ends the wipes of a removed flow.
    pub(super) fn cancel<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        path: &mut DataPath<P, D>,
        flow: FlowId,
    ) {
        self.0.iter_mut().filter(|wipe| wipe.is_of(flow)).for_each(Wipe::cancel);
        // The flow is compared, because its slot may already belong to another flow.
        let wipes = &self.0;
        let front = path.serve(Asker::Shard);
        path.cancel(now_ns, libc::ESHUTDOWN, |cookie| {
            wipes.iter().any(|wipe| wipe.is_of(flow) && wipe.has_cookie(cookie))
        });
        path.serve(front);
        // Only cancelled orders are left here: all others were handled earlier.
        while let Some(finished) = path.finished() {
            self.finished(finished);
        }
    }

    /// Ends all wipes.
    pub(super) fn stop(&mut self) {
        self.0.iter_mut().for_each(Wipe::cancel);
    }

    /// Whether no wipe is in progress.
    pub(super) fn are_over(&self) -> bool {
        self.0.iter().all(Wipe::is_over)
    }

    /// Handles the end of an order of one of these wipes.
    pub(super) fn finished(&mut self, Finished { cookie, errno, .. }: Finished) {
        let own = self.0.iter_mut().filter(|wipe| wipe.has_cookie(cookie));
        own.for_each(|wipe| wipe.finished(errno));
        self.0.retain(|wipe| !wipe.is_over());
    }
}
