//! The fetch window: bounds the commands that a controller has fetched from the submission queues
//! and not completed.
//!
//! **Problem.** Arbitration decides the order of fetches and never reorders fetched commands. It
//! therefore matters only while commands wait in the submission queues: a controller that fetches
//! without limit empties them at once, and then weights have no effect. (D2FQ's weights have an
//! effect because a real controller fetches a limited number.) **Model.** W slots for the whole
//! device, not per queue. A fetch takes a slot, a completion releases it, and nothing is fetched
//! without a free slot. **Parameter.** W: as large as the store needs to be busy and no larger. In
//! a closed loop a class holds at most as many slots as it has commands outstanding, N; where
//! N_high is below W, shares end near N_high : (W - N_high), whatever the weights.

/// At most W commands fetched and not completed.
#[derive(Clone, Debug)]
pub struct Window {
    limit: u32,
    fetched: u32,
}

impl Window {
    /// A window of `limit` slots, all free.
    ///
    /// # Panics
    /// When `limit` is 0: nothing could ever be fetched.
    pub fn new(limit: u32) -> Self {
        assert!(limit > 0, "a window needs at least one slot");
        Window { limit, fetched: 0 }
    }

    /// Takes a slot for a command about to be fetched; false when there is none.
    #[inline]
    pub fn take(&mut self) -> bool {
        let free = self.fetched < self.limit;
        self.fetched += u32::from(free);
        free
    }

    /// Releases the slot of a completed command.
    ///
    /// # Panics
    /// When no slot is taken.
    #[inline]
    pub fn release(&mut self) {
        self.fetched = self.fetched.checked_sub(1).expect("a command completes once");
    }

    /// The number of commands that may be fetched now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.limit - self.fetched
    }

    /// The number of commands that are fetched and not completed.
    #[inline]
    pub fn fetched(&self) -> u32 {
        self.fetched
    }

    /// W.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_again_at_completion() {
        let mut window = Window::new(2);
        assert!(window.take() && window.take());
        assert!(!window.take(), "both are taken");
        assert_eq!((window.free(), window.fetched(), window.limit()), (0, 2, 2));
        window.release();
        assert_eq!(window.free(), 1);
        assert!(window.take() && !window.take());
    }

    #[test]
    #[should_panic(expected = "completes once")]
    fn a_second_completion_is_a_bug() {
        Window::new(1).release();
    }
}
