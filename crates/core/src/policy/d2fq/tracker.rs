//! Global virtual time: one word with a holder (`gvt`), but never before a floor.

use crossbeam_utils::CachePadded;

use super::activity::FlowState;
use super::gvt::{Floor, Gvt};
use crate::contract::platform::Platform;
use crate::contract::vtime::VTime;

/// Global virtual time.
pub(super) struct Tracker<P: Platform> {
    pub(super) gvt: Gvt<P>,
    /// In lines of its own, because it is hardly ever written.
    floor: CachePadded<Floor<P>>,
}

impl<P: Platform> Tracker<P> {
    pub(super) fn new() -> Self {
        Tracker { gvt: Gvt::new(), floor: CachePadded::new(Floor::new()) }
    }

    #[inline]
    pub(super) fn floor(&self) -> VTime {
        self.floor.get()
    }

    /// Raises the floor, and the word to it.
    pub(super) fn raise(&self, floor: VTime) {
        self.floor.raise(floor);
        self.follow();
    }

    /// Raises the word to the floor if it is before the floor, after one of them has been written.
    pub(super) fn follow(&self) {
        P::fence();
        self.gvt.raise(self.floor());
    }
}

/// The least virtual time of the active flows among these.
pub(super) fn least<P: Platform>(
    states: &[FlowState<P>],
    now_ns: u64,
    grace_ns: u64,
) -> Option<VTime> {
    let active = states.iter().filter(|state| state.activity().is_active(now_ns, grace_ns));
    active.map(FlowState::vt).reduce(VTime::min)
}
