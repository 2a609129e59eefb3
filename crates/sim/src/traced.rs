//! The traced platform: the policies' own code, with every access to a shared word charged to the
//! caches of a simulated host.
//!
//! **Problem.** A scheduler's cost on 32 cores is what its shared words cost, and nobody here has
//! 32 cores. **Model.** [`Traced`] is a [`Platform`] like the processor's. While a simulated core
//! is *inside* a verb, each access goes to `Caches` and takes that core's time; outside (control
//! threads, checks) it is free. A run is one thread, which is what the thread-local is for; the
//! words' values are ordinary.
//!
//! **Which words share a line** is decided by their places in memory, and must not depend on what
//! the allocator did. Words are numbered as they are made. Two words share a line if they are as
//! far apart in memory as their numbers are, so lie in one array or structure, and no more than a
//! line's worth of words is between them; a line begins with the word of it that is touched first,
//! and grows to either side. That is exact for structures that are aligned to lines, as all are
//! that matter, and a fair guess for arrays of words. (A traced word is twice as large as a real
//! one: it carries its number.)
//!
//! On a host with [races](crate::races) nothing is charged while a verb runs: what it does with
//! shared words is recorded, and takes its time as other cores' accesses come between.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64};

use fairq_core::platform::{AtomicWord, Lock, Ordering, Platform};

use crate::coherence::{Access, Caches};
use crate::races::Step;

/// Words and locks whose accesses take a simulated core's time.
pub struct Traced;

/// A word.
#[derive(Debug)]
pub struct Word {
    value: AtomicU64,
    number: u32,
    /// Its line and 1; 0 before it is first touched.
    line: AtomicU32,
}

/// A lock.
#[derive(Debug)]
pub struct TracedLock<T> {
    value: Mutex<T>,
    /// Its number and 1; 0 before it is first taken.
    lock: AtomicU32,
}

impl Platform for Traced {
    type U64 = Word;
    type Mutex<T: Send + 'static> = TracedLock<T>;
    fn relax() {}
}

/// How many words a line has.
const LINE_WORDS: u32 = 8;

/// What the simulated host is doing on this thread. What each access needs lies bare, so that it
/// costs a few loads.
struct Trace {
    /// A run is on.
    is_on: Cell<bool>,
    /// Who is inside a verb.
    inside: Cell<Inside>,
    now_ps: Cell<u64>,
    waited_ps: Cell<u64>,
    /// The lock that was last given back.
    released: Cell<Option<usize>>,
    words: Cell<u32>,
    caches: RefCell<Caches>,
    /// By where word 0 would be: the lines of an array or structure, each with its first and last
    /// number.
    arrays: RefCell<BTreeMap<usize, Vec<Span>>>,
    /// What is recorded.
    steps: RefCell<Vec<Step>>,
}

/// What becomes of an access.
#[derive(Clone, Copy)]
enum Inside {
    /// No core is inside a verb: it is free.
    No,
    /// It takes this core's time at once.
    Charged(usize),
    /// It is written down.
    Recorded,
}

#[derive(Clone, Copy)]
struct Span {
    first: u32,
    last: u32,
    line: usize,
}

thread_local! {
    static TRACE: Trace = const {
        Trace {
            is_on: Cell::new(false),
            inside: Cell::new(Inside::No),
            now_ps: Cell::new(0),
            waited_ps: Cell::new(0),
            released: Cell::new(None),
            words: Cell::new(0),
            caches: RefCell::new(Caches::NONE),
            arrays: RefCell::new(BTreeMap::new()),
            steps: RefCell::new(Vec::new()),
        }
    };
}

/// Begins a run on a host with these caches; words and locks that are made from now on belong to
/// it.
pub(crate) fn begin(caches: Caches) {
    reset(true, caches);
}

/// Ends the run: nothing is charged any more.
pub(crate) fn end() {
    reset(false, Caches::NONE);
}

fn reset(is_on: bool, caches: Caches) {
    TRACE.with(|trace| {
        trace.is_on.set(is_on);
        trace.inside.set(Inside::No);
        trace.words.set(0);
        trace.caches.replace(caches);
        trace.arrays.take();
        trace.steps.take();
    });
}

/// What a core did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// When it was done.
    pub(crate) until_ps: u64,
    /// How much of the time it waited for locks.
    pub(crate) waited_ps: u64,
    /// The lock that it held last, if it held any.
    pub(crate) held: Option<usize>,
}

/// A core runs this from a moment on; what it does with shared words takes its time.
#[inline]
pub(crate) fn inside<R>(core: usize, from_ps: u64, verb: impl FnOnce() -> R) -> (R, Spent) {
    TRACE.with(|trace| {
        trace.inside.set(if trace.is_on.get() { Inside::Charged(core) } else { Inside::No });
        trace.now_ps.set(from_ps);
        trace.waited_ps.set(0);
        trace.released.set(None);
    });
    let result = verb();
    let spent = TRACE.with(|trace| {
        trace.inside.set(Inside::No);
        Spent {
            until_ps: trace.now_ps.get(),
            waited_ps: trace.waited_ps.get(),
            held: trace.released.get(),
        }
    });
    (result, spent)
}

/// A core held a lock longer than it took to touch shared words: until then.
pub(crate) fn held_until(lock: usize, until_ps: u64) {
    TRACE.with(|trace| trace.caches.borrow_mut().held_until(lock, until_ps));
}

/// The core that is inside a verb does something else for so long.
pub(crate) fn work(takes_ps: u64) {
    TRACE.with(|trace| match trace.inside.get() {
        Inside::No => {}
        Inside::Charged(_) => trace.now_ps.set(trace.now_ps.get() + takes_ps),
        Inside::Recorded => trace.steps.borrow_mut().push(Step::Work(takes_ps)),
    });
}

/// Runs a verb and records its steps; says which lock it held last, if it held any. `takes_ps` is
/// the time it takes beside its shared words.
pub(crate) fn record<R>(takes_ps: u64, verb: impl FnOnce() -> R) -> (R, Option<usize>) {
    TRACE.with(|trace| {
        trace.inside.set(Inside::Recorded);
        trace.released.set(None);
        trace.steps.borrow_mut().extend([Step::Enter, Step::Work(takes_ps)]);
    });
    let result = verb();
    let held = TRACE.with(|trace| {
        trace.inside.set(Inside::No);
        trace.steps.borrow_mut().push(Step::Leave);
        trace.released.get()
    });
    (result, held)
}

/// Beside a verb the core does this.
pub(crate) fn then(step: Step) {
    TRACE.with(|trace| trace.steps.borrow_mut().push(step));
}

/// The work that was recorded last is done under this lock, which is released after it.
pub(crate) fn kept(lock: usize) {
    TRACE.with(|trace| {
        let steps = &mut *trace.steps.borrow_mut();
        let release = Step::Release { lock: lock as u32 };
        if let Some(at) = steps.iter().rposition(|step| *step == release) {
            steps.remove(at);
            steps.push(release);
        }
    });
}

/// Takes the recorded steps, and leaves an empty vector for more.
pub(crate) fn recorded(empty: Vec<Step>) -> Vec<Step> {
    TRACE.with(|trace| trace.steps.replace(empty))
}

/// The run's caches.
pub(crate) fn with_caches<R>(act: impl FnOnce(&mut Caches) -> R) -> R {
    TRACE.with(|trace| act(&mut trace.caches.borrow_mut()))
}

impl Trace {
    /// A core accesses a word. Not inlined, so that what leads here is.
    #[inline(never)]
    fn access(&self, core: usize, word: &Word, access: Access) {
        let mut caches = self.caches.borrow_mut();
        let line = self.line_of(&mut caches, word);
        self.now_ps.set(caches.access(core, line, access, self.now_ps.get()));
    }

    #[inline]
    fn line_of(&self, caches: &mut Caches, word: &Word) -> usize {
        match word.line.load(Ordering::Relaxed) {
            0 => {
                let line = self.line(caches, std::ptr::from_ref(word).addr(), word.number);
                word.line.store(line as u32 + 1, Ordering::Relaxed);
                line
            }
            line => line as usize - 1,
        }
    }

    /// An access of a verb that is recorded.
    #[inline(never)]
    fn record(&self, word: &Word, step: impl FnOnce(u32, u32) -> Step) {
        let line = self.line_of(&mut self.caches.borrow_mut(), word) as u32;
        self.steps.borrow_mut().push(step(line, word.number));
    }

    /// A compare-and-swap of a verb that is recorded: it depends on the last access by which the
    /// verb saw the word.
    #[inline(never)]
    fn record_swap(&self, word: &Word, wins: bool) {
        let line = self.line_of(&mut self.caches.borrow_mut(), word) as u32;
        let steps = &mut *self.steps.borrow_mut();
        steps.push(Step::swap(steps, line, word.number, wins));
    }

    /// The line of a word that is touched for the first time.
    #[cold]
    fn line(&self, caches: &mut Caches, address: usize, number: u32) -> usize {
        let mut arrays = self.arrays.borrow_mut();
        // Words of one array or structure have this difference in common. It is a name and no
        // address, so it may wrap.
        let array =
            arrays.entry(address.wrapping_sub(number as usize * size_of::<Word>())).or_default();
        let fits = |span: &&mut Span| number.max(span.last) - number.min(span.first) < LINE_WORDS;
        if let Some(span) = array.iter_mut().find(fits) {
            (span.first, span.last) = (span.first.min(number), span.last.max(number));
            return span.line;
        }
        let line = caches.line();
        array.push(Span { first: number, last: number, line });
        line
    }
}

impl Word {
    #[inline]
    fn trace(&self, access: Access) {
        TRACE.with(|trace| match trace.inside.get() {
            Inside::No => {}
            Inside::Charged(core) => trace.access(core, self, access),
            Inside::Recorded => trace.record(self, |line, word| match access {
                Access::Load => Step::Load { line, word, seen: 0 },
                _ => Step::Write { line, word, access },
            }),
        });
    }
}

impl AtomicWord for Word {
    fn new(value: u64) -> Self {
        let number = TRACE.with(|trace| trace.words.replace(trace.words.get() + 1));
        Word { value: AtomicU64::new(value), number, line: AtomicU32::new(0) }
    }

    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.trace(Access::Load);
        self.value.load(order)
    }

    /// A sequentially consistent store waits until all see it: on the papers' processors it is an
    /// exchange.
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.trace(if order == Ordering::SeqCst { Access::Atomic } else { Access::Store });
        self.value.store(value, order);
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.trace(Access::Atomic);
        self.value.swap(value, order)
    }

    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.trace(Access::Atomic);
        self.value.fetch_add(value, order)
    }

    #[inline]
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.trace(Access::Atomic);
        self.value.fetch_sub(value, order)
    }

    #[inline]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.trace(Access::Atomic);
        self.value.fetch_or(value, order)
    }

    #[inline]
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.trace(Access::Atomic);
        self.value.fetch_and(value, order)
    }

    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        TRACE.with(|trace| {
            let inside = trace.inside.get();
            if let Inside::Charged(core) = inside {
                trace.access(core, self, Access::Atomic);
            }
            let result = self.value.compare_exchange(current, new, success, failure);
            if let Inside::Recorded = inside {
                trace.record_swap(self, result.is_ok());
            }
            result
        })
    }
}

impl<T> TracedLock<T> {
    /// Does something with the caches at this core's time, if a core is inside a verb; says how
    /// long it took. Where verbs are recorded this is a step.
    fn trace(
        &self,
        act: impl FnOnce(&mut Caches, usize, usize, u64) -> u64,
        step: impl FnOnce(u32) -> Step,
    ) -> u64 {
        TRACE.with(|trace| {
            let inside = trace.inside.get();
            if let Inside::No = inside {
                return 0;
            }
            // The borrow ends with this call, before the guarded code runs: that touches words and
            // other locks.
            let caches = &mut *trace.caches.borrow_mut();
            let lock = match self.lock.load(Ordering::Relaxed) {
                0 => {
                    let lock = caches.lock();
                    self.lock.store(lock as u32 + 1, Ordering::Relaxed);
                    lock
                }
                lock => lock as usize - 1,
            };
            trace.released.set(Some(lock));
            let Inside::Charged(core) = inside else {
                trace.steps.borrow_mut().push(step(lock as u32));
                return 0;
            };
            let before_ps = trace.now_ps.get();
            let after_ps = act(caches, core, lock, before_ps);
            trace.now_ps.set(after_ps);
            after_ps - before_ps
        })
    }
}

impl<T: Send + 'static> Lock<T> for TracedLock<T> {
    fn new(value: T) -> Self {
        TracedLock { value: Mutex::new(value), lock: AtomicU32::new(0) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let guarded = size_of::<T>().div_ceil(64) as u64;
        let waited_ps = self.trace(
            |caches, core, lock, now_ps| caches.acquire(core, lock, guarded, now_ps),
            |lock| Step::Acquire { lock, guarded: guarded as u32 },
        );
        TRACE.with(|trace| trace.waited_ps.set(trace.waited_ps.get() + waited_ps));
        let result = f(&mut self.value.lock().expect("no policy panics while it holds a lock"));
        self.trace(
            |caches, core, lock, now_ps| caches.release(core, lock, now_ps),
            |lock| Step::Release { lock },
        );
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::Latencies;

    fn begin_with_two_cores() {
        let latencies =
            Latencies { load_ps: 1, store_ps: 2, atomic_ps: 5, near_ps: 40, far_ps: 100 };
        begin(Caches::new(latencies, vec![0, 0]));
    }

    /// One after the other: no line is still under way.
    fn cost(core: usize, verb: impl FnOnce()) -> u64 {
        let from_ps = TRACE.with(|trace| trace.now_ps.get()) + 1_000_000;
        inside(core, from_ps, verb).1.until_ps - from_ps
    }

    #[test]
    fn words_of_a_structure_share_a_line_and_others_do_not() {
        begin_with_two_cores();
        let new = |_| Box::new([(); 3].map(|()| Word::new(0)));
        let structures: Vec<Box<[Word; 3]>> = (0..20).map(new).collect();
        let add = |structure: usize, word: usize| {
            structures[structure][word].fetch_add(1, Ordering::Relaxed);
        };
        // Touched in any order, everything is in core 0's cache.
        for (structure, word) in
            (0..20).rev().flat_map(|structure| [2, 0, 1].map(|word| (structure, word)))
        {
            cost(0, || add(structure, word));
        }
        assert_eq!(cost(1, || add(7, 1)), 45);
        assert_eq!(cost(1, || add(7, 0)), 5, "it came along");
        assert_eq!(cost(1, || add(8, 0)), 45);
        assert_eq!(cost(0, || add(6, 2)), 5, "the neighbours stayed");
        end();
    }

    #[test]
    fn an_array_of_words_has_lines_of_eight() {
        begin_with_two_cores();
        let words: Vec<Word> = (0..32).map(Word::new).collect();
        let moved = |core| {
            words
                .iter()
                .filter(|word| cost(core, || _ = word.swap(0, Ordering::SeqCst)) > 5)
                .count()
        };
        assert_eq!((moved(0), moved(0), moved(1), moved(0)), (4, 0, 4, 4));
        end();
    }

    #[test]
    fn only_what_a_core_does_inside_a_verb_costs() {
        begin_with_two_cores();
        let (word, lock) = (Word::new(7), TracedLock::new([0u64; 16]));
        assert_eq!(word.load(Ordering::SeqCst), 7);
        let taken = cost(0, || lock.with(|value| value[0] = word.load(Ordering::Relaxed)));
        assert!(taken > 0);
        let (read, spent) = inside(1, 9_000_000, || lock.with(|value| value[0]));
        assert_eq!(read, 7);
        assert!(spent.waited_ps >= 3 * 40, "the lock's line and two that it guards: {spent:?}");
        end();
        assert_eq!(cost(0, || word.store(1, Ordering::SeqCst)), 0);
    }
}
