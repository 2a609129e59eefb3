//! Machines that break a guarantee of atomics. On such a machine a model must find a violation of
//! its law, which shows that it checks the law.
//!
//! [`NoOrder`] has no total order between writing one word and reading another; [`Unordered`] has
//! no order at all; [`NoStamp`] swaps words whose tag is the same though the stamp is not; [`Torn`]
//! adds in two steps.

use std::marker::PhantomData;

use crate::contract::platform::{AtomicWord, Loom, Ordering, Platform};

/// The fault of a broken machine.
pub trait Fault: Send + Sync + 'static {
    /// The memory order that the machine uses instead of `order`.
    fn order(order: Ordering) -> Ordering;
    /// The bits in which a compare-and-swap may differ unnoticed.
    const BLIND: u64 = 0;
    /// Whether an addition reads and then writes.
    const TORN: bool = false;
    /// Whether a fence orders anything.
    const FENCES: bool = false;
}

impl<F: Fault> Platform for F {
    type U64 = Faulty<F>;
    type Mutex<T: Send + 'static> = <Loom as Platform>::Mutex<T>;
    fn relax() {
        Loom::relax();
    }
    fn fence() {
        if F::FENCES {
            Loom::fence();
        }
    }
}

/// A machine without a total order: its accesses are only acquire and release.
pub struct NoOrder;

impl Fault for NoOrder {
    fn order(order: Ordering) -> Ordering {
        if order == Ordering::SeqCst { Ordering::AcqRel } else { order }
    }
}

/// A machine whose accesses are atomic and have no order.
pub struct Unordered;

impl Fault for Unordered {
    fn order(_: Ordering) -> Ordering {
        Ordering::Relaxed
    }
}

/// A machine whose compare-and-swap ignores stamps.
pub struct NoStamp;

impl Fault for NoStamp {
    fn order(order: Ordering) -> Ordering {
        order
    }
    const BLIND: u64 = 0x7f;
    const FENCES: bool = true;
}

/// A machine whose additions are not atomic.
pub struct Torn;

impl Fault for Torn {
    fn order(order: Ordering) -> Ordering {
        order
    }
    const TORN: bool = true;
    const FENCES: bool = true;
}

/// A word of a broken machine.
pub struct Faulty<F>(<Loom as Platform>::U64, PhantomData<F>);

impl<F: Fault> Faulty<F> {
    fn load_order(order: Ordering) -> Ordering {
        if F::order(order) == Ordering::AcqRel { Ordering::Acquire } else { F::order(order) }
    }
    fn store_order(order: Ordering) -> Ordering {
        if F::order(order) == Ordering::AcqRel { Ordering::Release } else { F::order(order) }
    }
}

impl<F: Fault> AtomicWord for Faulty<F> {
    fn new(value: u64) -> Self {
        Faulty(AtomicWord::new(value), PhantomData)
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(Self::load_order(order))
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, Self::store_order(order))
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, F::order(order))
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        if F::TORN {
            let old = self.0.load(Ordering::Relaxed);
            self.0.store(old.wrapping_add(value), Ordering::Relaxed);
            return old;
        }
        self.0.fetch_add(value, F::order(order))
    }
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_sub(value, F::order(order))
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, F::order(order))
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, F::order(order))
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let mut expected = current;
        loop {
            match self.0.compare_exchange(
                expected,
                new,
                F::order(success),
                Self::load_order(failure),
            ) {
                Err(now) if (now ^ current) & !F::BLIND == 0 => expected = now,
                result => return result,
            }
        }
    }
}

/// Runs the model in every interleaving with at most `preemptions` preemptions. `FAIRQ_PREEMPTIONS`
/// raises the bound of models that have a smaller one (`tests/long models`).
pub fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let raised = std::env::var("FAIRQ_PREEMPTIONS").ok().and_then(|bound| bound.parse().ok());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions.max(raised.unwrap_or(0)));
    builder.max_branches = 20_000;
    builder.check(model);
}
