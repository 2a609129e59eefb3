//! NASS's state of a flow: half a cache line.

use fairq_core::contract::flow::Weight;
use fairq_core::serial::Lane;

/// The state of a flow.
#[derive(Clone, Copy, Default)]
#[repr(align(32))]
pub(super) struct FlowState {
    pub(super) weight: Weight,
    pub(super) is_present: bool,
    pub(super) is_expected: bool,
    /// [`LEAVING`] and [`FALLEN`]: two marks in a byte, so that a flow takes 32.
    pub(super) marks: u8,
    /// The lane last set in the scheduler inside.
    pub(super) lane: Lane,
    pub(super) staged: u32,
    pub(super) dispatched: u32,
    /// Aggressiveness.
    pub(super) channels: u32,
    /// MDN, if set in this round.
    pub(super) limit: u32,
    pub(super) round: u32,
    /// The number of its last arrival.
    pub(super) arrival: u32,
}

/// The flow's tenant is gone, so no further request arrives.
pub(super) const LEAVING: u8 = 1;
/// Its aggressiveness fell when it last changed.
pub(super) const FALLEN: u8 = 2;

const _: () = assert!(size_of::<FlowState>() == 32);

impl FlowState {
    /// Whether it has no request staged or on the device.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.staged == 0 && self.dispatched == 0
    }
}
