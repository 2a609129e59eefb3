//! The environment of a policy: atomics and a lock.
//!
//! Every shared word of a policy is a [`Platform`] atomic, so that the same code runs natively,
//! under the model checker (`Loom`, `--cfg loom`), and in the laboratory, where a traced platform
//! charges each access to a simulated cache-coherence protocol. Data that only one port accesses
//! are plain memory.

pub use core::sync::atomic::Ordering;

/// Atomics and locks of one environment.
pub trait Platform: Send + Sync + 'static {
    /// A 64-bit atomic word.
    type U64: AtomicWord;
    /// A mutual-exclusion lock around a `T`.
    type Mutex<T: Send + 'static>: Lock<T>;
    /// Reports to the environment that the caller waits for another thread in a loop.
    fn relax();
    /// A fence between a thread's write of one word and its read of another, where its peer does
    /// the reverse and at least one of the two must see the other's write. Sequentially consistent
    /// accesses guarantee that by themselves, so the default does nothing; the model checker takes
    /// them for acquire and release, and needs a fence.
    #[inline]
    fn fence() {}
}

/// The operations that policies use on a shared 64-bit word; semantics as in
/// [`core::sync::atomic::AtomicU64`].
#[allow(missing_docs)]
pub trait AtomicWord: Send + Sync + 'static {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    fn fetch_and(&self, value: u64, order: Ordering) -> u64;
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

/// A lock that runs a closure while it is held; it cannot be poisoned.
pub trait Lock<T>: Send + Sync + 'static {
    /// A lock around `value`.
    fn new(value: T) -> Self;
    /// Runs `f` with exclusive access to the value.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

macro_rules! forward_atomic_word {
    ($atomic:ty) => {
        impl AtomicWord for $atomic {
            #[inline]
            fn new(value: u64) -> Self {
                <$atomic>::new(value)
            }
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order)
            }
            #[inline]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                self.swap(value, order)
            }
            #[inline]
            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_add(value, order)
            }
            #[inline]
            fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_sub(value, order)
            }
            #[inline]
            fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_or(value, order)
            }
            #[inline]
            fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_and(value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
}

/// The real machine: processor atomics and a spin lock.
pub struct Native;

forward_atomic_word!(core::sync::atomic::AtomicU64);

impl Platform for Native {
    type U64 = core::sync::atomic::AtomicU64;
    type Mutex<T: Send + 'static> = spin::mutex::SpinMutex<T>;
    #[inline]
    fn relax() {
        core::hint::spin_loop();
    }
}

impl<T: Send + 'static> Lock<T> for spin::mutex::SpinMutex<T> {
    fn new(value: T) -> Self {
        Self::new(value)
    }
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.lock())
    }
}

/// The model checker's machine.
#[cfg(loom)]
pub struct Loom;

#[cfg(loom)]
mod under_loom {
    use super::{AtomicWord, Lock, Loom, Ordering, Platform};

    forward_atomic_word!(loom::sync::atomic::AtomicU64);

    impl Platform for Loom {
        type U64 = loom::sync::atomic::AtomicU64;
        type Mutex<T: Send + 'static> = loom::sync::Mutex<T>;
        fn relax() {
            loom::thread::yield_now();
        }
        fn fence() {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    impl<T: Send + 'static> Lock<T> for loom::sync::Mutex<T> {
        fn new(value: T) -> Self {
            Self::new(value)
        }
        fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            f(&mut self.lock().expect("a model does not panic while it holds a lock"))
        }
    }
}
