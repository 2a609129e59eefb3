//! A budget for the urgent class (beyond the paper, which announces it as future work).
//!
//! **Problem.** A controller serves urgent queues before all weighted ones, without limit: nothing
//! protects the others. **Model.** A flow that is marked urgent gets the urgent class where Eq. 1
//! would give it the high one, so it stays bound to its share, and only while there is **credit**:
//! every byte served earns `percent / 100` of a byte, every urgent byte takes one, and at most
//! [`Budget::burst`] are saved up. **Law.** In any interval urgent requests take at most `percent`
//! of all bytes, plus the burst, plus the bytes that ports have not published; the rest, at least
//! half, is for the weighted classes. **Units.** Credit is in hundredths of a byte, so nothing is
//! rounded. It is one shared word, which is written once per publication and per urgent request,
//! and is accessed with Relaxed, because nothing else depends on it.

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// The bytes that urgent requests may still take.
pub(super) struct Budget<P: Platform> {
    credit: P::U64,
    percent: u64,
    burst: u64,
}

impl<P: Platform> Budget<P> {
    /// Urgent requests may take `percent` of all bytes, and at most `burst_bytes` are saved up.
    pub(super) fn new(percent: u8, burst_bytes: u64) -> Self {
        Budget {
            credit: P::U64::new(0),
            percent: u64::from(percent),
            burst: burst_bytes.saturating_mul(100),
        }
    }

    /// Adds the credit for `bytes` that were served.
    pub(super) fn earn(&self, bytes: u64) {
        let earned = bytes.saturating_mul(self.percent);
        self.change(|credit| Some(credit.saturating_add(earned).min(self.burst)));
    }

    /// Takes credit for `bytes`, if there is enough.
    pub(super) fn spend(&self, bytes: u64) -> bool {
        // A cost that does not fit in hundredths is more than any credit.
        self.change(|credit| credit.checked_sub(bytes.checked_mul(100)?))
    }

    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> bool {
        let mut old = self.credit.load(Ordering::Relaxed);
        while let Some(new) = to(old) {
            match self.credit.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }
}
