//! Sequentiality: whether a flow's requests merge (Eq. 6 and 7).
//!
//! `S = decay^-(T - T_last) S + 1` for an arrival that could be merged with a staged request, `- 1`
//! for another. With `S > 0` each arrival lowers the flow's limit by one while its aggressiveness
//! rises, so that requests wait and can be merged; and raises the limit by one when its
//! aggressiveness fell (lines 7 to 13).
//!
//! # Points that the paper leaves open
//! - *The unit of time* in Eq. 6: whole multiples of [`DECAY_UNIT_NS`].
//! - *Requests that can be merged* are those that [were merged](fairq_core::serial::merge): NASS
//!   gets the same calls as the scheduler inside. If requests are not merged (`merge_bytes` is 0)
//!   no flow is sequential, and there is no state to keep.

/// The unit of time in which sequentiality decays, in nanoseconds.
pub const DECAY_UNIT_NS: u64 = 1_000_000;

/// Sequentiality 1 in fixed point.
pub(super) const ONE: i64 = 1 << 16;

/// S of one flow.
#[derive(Clone, Copy, Default)]
pub(super) struct Sequentiality {
    /// In fixed point, at the time `decayed`.
    pub(super) value: i64,
    /// In [`DECAY_UNIT_NS`].
    decayed: u64,
}

impl Sequentiality {
    /// Notes the arrival of a request (Eq. 7); gives whether the flow is sequential now.
    pub(super) fn perceive(&mut self, now_ns: u64, merges: bool, decay: u32) -> bool {
        let now = now_ns / DECAY_UNIT_NS;
        let mut units = now.saturating_sub(self.decayed);
        self.decayed = now;
        // The factor is at least 2, so the value is 0 after at most 63 rounds, however long the
        // pause was.
        while units > 0 && self.value != 0 {
            self.value = self.value.checked_div(decay.into()).unwrap_or(0);
            units -= 1;
        }
        self.value = self.value.saturating_add(if merges { ONE } else { -ONE });
        self.value > 0
    }
}
