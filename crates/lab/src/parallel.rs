//! Work in several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `count` pieces of work in `threads` threads. `on` receives the number of finished pieces;
/// if it returns `false`, no further piece begins. Returns the results in the order of the pieces,
/// whatever the number of threads; `None` for a piece that did not begin.
pub(crate) fn each<T: Send>(
    count: usize,
    threads: usize,
    on: impl Fn(usize) -> bool + Sync,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<Option<T>> {
    // Relaxed is enough, because no other data depend on the counters, and the lock orders access
    // to the results.
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let found: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    let thread = || {
        while on(done.load(Ordering::Relaxed)) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let made = work(number);
            found.lock().expect("no thread panics while it holds the lock")[number] = Some(made);
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let threads = threads.clamp(1, count.max(1));
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(thread))));
    // The thread with the lower count may have called `on` last, so the final count is reported
    // here.
    on(done.load(Ordering::Relaxed));
    found.into_inner().expect("no thread panics while it holds the lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_of_it_is_in_order_and_what_is_stopped_is_not_begun() {
        let all = each(100, 4, |_| true, |number| number * number);
        assert!(all.iter().enumerate().all(|(number, made)| *made == Some(number * number)));
        let some = each(100, 1, |done| done < 3, |number| number);
        assert_eq!(some.iter().flatten().count(), 3);
        assert!(each(0, 8, |_| true, |number| number).is_empty());
    }
}
