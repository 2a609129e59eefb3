//! The storage behind a controller, which carries out the commands that it has fetched.

use fairq_core::{Op, PortSet};

use crate::device::Command;
use crate::device::store::Store;

/// Carries out commands, at once or later. One for each poller of a controller.
pub trait Storage {
    /// Carries out a piece of a command, whose tag is the controller's slot: the errno (or 0) if it
    /// is done, `None` if [`finished`](Storage::finished) returns it later. `owners` has the ports
    /// that the command may have come from.
    ///
    /// # Safety
    /// The memory of the piece must be valid until the piece is done.
    unsafe fn start(
        &mut self,
        now_ns: u64,
        owners: impl Fn() -> PortSet,
        piece: &Command,
    ) -> Option<i32>;

    /// A slot whose piece has been done since, and its errno.
    fn finished(&mut self) -> Option<(u16, i32)> {
        None
    }

    /// Whether `finished` has anything.
    fn has_finished(&self) -> bool {
        false
    }
}

/// Stores nothing.
#[derive(Clone, Copy, Default)]
pub struct NullStorage;

impl Storage for NullStorage {
    unsafe fn start(
        &mut self,
        _now_ns: u64,
        _owners: impl Fn() -> PortSet,
        _piece: &Command,
    ) -> Option<i32> {
        Some(0)
    }
}

/// Memory: one namespace, carried out on the spot.
#[derive(Clone, Copy)]
pub struct RamStorage<'a>(pub(crate) &'a Store);

impl Storage for RamStorage<'_> {
    #[inline]
    unsafe fn start(
        &mut self,
        _now_ns: u64,
        _owners: impl Fn() -> PortSet,
        piece: &Command,
    ) -> Option<i32> {
        debug_assert!(piece.file == 0 || piece.op == Op::Flush);
        // SAFETY: the caller vouches for the memory.
        Some(unsafe { self.0.execute(piece) })
    }
}
