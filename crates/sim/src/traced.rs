//! The traced platform: the policies' own code, with every access to a shared word charged to the
//! caches of a simulated host.
//!
//! **Problem.** A scheduler's cost on 32 cores is mainly the cost of its shared words, and a
//! machine with 32 cores is not available. **Model.** [`Traced`] is a [`Platform`] like the
//! processor's. While a simulated core is *inside* a verb, each access goes to `Caches` and takes
//! that core's time; outside of verbs (control threads, checks) an access is free. A run is one
//! thread, so its state is in a thread-local; the words' values are ordinary.
//!
//! **Lines.** The words of a line follow from their places in memory, and must not depend on the
//! allocator. Words are numbered in the order of their construction. Two words share a line if the
//! distance of their addresses equals the distance of their numbers, which shows that they are in
//! one array or structure, and if they fit into one line. A line begins with its first accessed
//! word, and later gets the words before and after it. This is exact for structures that are
//! aligned to lines, as all relevant structures are, and an approximation for arrays of words. (A
//! traced word is larger than a real one: it carries its number.)
//!
//! On a host where cores race, the core stops before an access begins and before it takes effect,
//! until no other core has an earlier access. A plain store stays in the core's store buffer until
//! its line has arrived and all stores before it are done; until then other cores read the old
//! value.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64};

use fairq_core::platform::{AtomicWord, Lock, Ordering, Platform};

use crate::coherence::{Access, Caches};
use crate::random::Random;
use crate::verb::{self, Pause};

/// Words and locks whose accesses take a simulated core's time.
pub struct Traced;

/// A word.
#[derive(Debug)]
pub struct Word {
    value: AtomicU64,
    number: u32,
    /// Its line plus 1; 0 before its first access.
    line: AtomicU32,
    /// The number plus 1 of the core whose store to this word is still in its store buffer; 0 if
    /// there is none.
    storer: AtomicU32,
    stored: AtomicU64,
    /// Time at which other cores read that value.
    seen_ps: AtomicU64,
}

/// A lock.
#[derive(Debug)]
pub struct TracedLock<T> {
    value: Mutex<T>,
    /// Its number plus 1; 0 before its first acquisition.
    lock: AtomicU32,
}

impl Platform for Traced {
    type U64 = Word;
    type Mutex<T: Send + 'static> = TracedLock<T>;
    fn relax() {}
}

/// Number of words of a line.
const LINE_WORDS: u32 = 8;

/// A core that waits for a line retries when the line is free, after a random time below this
/// (picoseconds). So waiting cores get a line in random order.
const ORDER_PS: u64 = 1000;

/// The state of the simulated host on this thread. The fields that each access needs are plain
/// cells, so that an access costs few loads.
struct Trace {
    /// Whether a run is in progress.
    is_on: Cell<bool>,
    /// The core that is inside a verb.
    core: Cell<Option<usize>>,
    /// The bit of that core, if cores do not race; else 0.
    own: Cell<u64>,
    now_ps: Cell<u64>,
    /// Time before which no other core continues; without races `u64::MAX`.
    until_ps: Cell<u64>,
    /// Random order in which waiting cores get a line.
    order: RefCell<Option<Random>>,
    /// Loads in flight at the same time.
    loads: Cell<Loads>,
    /// Compare-and-swaps that found another value.
    failed: Cell<u64>,
    waited_ps: Cell<u64>,
    /// The lock that was released last.
    released: Cell<Option<usize>>,
    words: Cell<u32>,
    caches: RefCell<Caches>,
    /// The lines of each array or structure, with their first and last word numbers; the key is the
    /// address that word 0 would have there.
    arrays: RefCell<BTreeMap<usize, Vec<Span>>>,
}

/// Loads of a racing core with only other loads and stores between them. The core fetches the lines
/// of these loads at the same time, up to the number that the machine allows. This assumes that no
/// load's address depends on an earlier load, as in a scan of an array or of a tree of fixed shape.
#[derive(Clone, Copy)]
pub(crate) struct Loads {
    from_ps: u64,
    until_ps: u64,
    /// The line of the last load: repeated loads of the same word, by a core that waits for a
    /// change, do not overlap.
    line: usize,
    lines: u64,
}

impl Loads {
    pub(crate) const NONE: Loads = Loads { from_ps: 0, until_ps: 0, line: usize::MAX, lines: 0 };
}

#[derive(Clone, Copy)]
struct Span {
    first: u32,
    last: u32,
    line: usize,
}

thread_local! {
    // The state is never dropped, so that no access has to check whether it was. The end of a run
    // empties it.
    static TRACE: ManuallyDrop<Trace> = const {
        ManuallyDrop::new(Trace {
            is_on: Cell::new(false),
            core: Cell::new(None),
            own: Cell::new(0),
            now_ps: Cell::new(0),
            until_ps: Cell::new(u64::MAX),
            order: RefCell::new(None),
            loads: Cell::new(Loads::NONE),
            failed: Cell::new(0),
            waited_ps: Cell::new(0),
            released: Cell::new(None),
            words: Cell::new(0),
            caches: RefCell::new(Caches::NONE),
            arrays: RefCell::new(BTreeMap::new()),
        })
    };
}

/// Begins a run on a host with these caches; words and locks that are made from now on belong to
/// the run.
pub(crate) fn begin(caches: Caches) {
    reset(true, caches);
}

/// Ends the run: accesses are free from now on.
pub(crate) fn end() {
    reset(false, Caches::NONE);
}

fn reset(is_on: bool, caches: Caches) {
    TRACE.with(|trace| {
        trace.is_on.set(is_on);
        trace.core.set(None);
        trace.own.set(0);
        trace.until_ps.set(u64::MAX);
        trace.words.set(0);
        trace.caches.replace(caches);
        trace.arrays.take();
        trace.order.replace(is_on.then(|| Random::new(0, 0)));
    });
}

/// The time that a core spent in a verb.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// End of the verb.
    pub(crate) until_ps: u64,
    /// Time in waits for locks.
    pub(crate) waited_ps: u64,
    /// The lock that the verb released last, if any.
    pub(crate) held: Option<usize>,
}

/// Runs `verb` on a core from `from_ps` on; accesses to shared words take the core's time.
#[inline]
pub(crate) fn inside<R>(core: usize, from_ps: u64, verb: impl FnOnce() -> R) -> (R, Spent) {
    TRACE.with(|trace| {
        trace.core.set(trace.is_on.get().then_some(core));
        trace.own.set(u64::from(trace.is_on.get()) << core);
        trace.now_ps.set(from_ps);
        trace.waited_ps.set(0);
        trace.released.set(None);
    });
    let result = verb();
    let spent = TRACE.with(|trace| {
        trace.core.set(None);
        trace.own.set(0);
        Spent {
            until_ps: trace.now_ps.get(),
            waited_ps: trace.waited_ps.get(),
            held: trace.released.get(),
        }
    });
    (result, spent)
}

/// A core that races, while it does not run.
#[derive(Clone, Copy)]
pub(crate) struct Racing {
    pub(crate) core: usize,
    /// Its time.
    pub(crate) now_ps: u64,
    /// Compare-and-swaps that found another value.
    pub(crate) failed: u64,
    pub(crate) loads: Loads,
}

/// Continues a core's verb; no other core runs until `until_ps`.
#[inline]
pub(crate) fn resume<R>(racing: &mut Racing, until_ps: u64, go_on: impl FnOnce() -> R) -> R {
    TRACE.with(|trace| {
        trace.core.set(Some(racing.core));
        trace.now_ps.set(racing.now_ps);
        trace.failed.set(racing.failed);
        trace.loads.set(racing.loads);
        trace.until_ps.set(until_ps);
    });
    let result = go_on();
    TRACE.with(|trace| {
        trace.core.set(None);
        trace.until_ps.set(u64::MAX);
        (racing.now_ps, racing.failed) = (trace.now_ps.get(), trace.failed.get());
        racing.loads = trace.loads.get();
    });
    result
}

/// Where cores race, lets cores with earlier work run before the running core.
pub(crate) fn take_turn() {
    TRACE.with(|trace| trace.take_turn());
}

/// The run's caches.
pub(crate) fn with_caches<R>(act: impl FnOnce(&mut Caches) -> R) -> R {
    TRACE.with(|trace| act(&mut trace.caches.borrow_mut()))
}

/// Records that a core held a lock until `until_ps`, longer than its accesses to shared words.
pub(crate) fn held_until(lock: usize, until_ps: u64) {
    TRACE.with(|trace| trace.caches.borrow_mut().held_until(lock, until_ps));
}

/// Adds `takes_ps` of work without shared words to the core that is inside a verb.
pub(crate) fn work(takes_ps: u64) {
    TRACE.with(|trace| {
        if trace.core.get().is_some() {
            trace.now_ps.set(trace.now_ps.get() + takes_ps);
        }
    });
}

impl Trace {
    // Each kind of access is called from the policies' code. It is not inlined, so that this code
    // does not grow, and begins with the most frequent case: the line is in the core's cache.

    #[inline(never)]
    fn load(&self, word: &Word) -> u64 {
        if self.is_done_here(word, Access::Load) {
            return word.value.load(Ordering::Relaxed);
        }
        self.load_elsewhere(word)
    }

    #[inline(never)]
    fn load_elsewhere(&self, word: &Word) -> u64 {
        self.access(word, Access::Load);
        self.settle(word).unwrap_or_else(|| word.value.load(Ordering::Relaxed))
    }

    /// A store; the core does not wait for the line.
    #[inline(never)]
    fn store(&self, word: &Word, value: u64) {
        if self.is_done_here(word, Access::Store) {
            return word.value.store(value, Ordering::Relaxed);
        }
        self.access(word, Access::Store);
        if !self.buffer(word, value) {
            word.value.store(value, Ordering::Relaxed);
        }
    }

    /// The access of a read-modify-write, which takes effect after all earlier stores of its core.
    #[inline(never)]
    fn atomic(&self, word: &Word) {
        if !self.is_done_here(word, Access::Atomic) {
            self.access(word, Access::Atomic);
            self.settle(word);
        }
    }

    /// Performs the access if the core that is inside a verb holds the word's line in the state
    /// that it needs; returns whether it did. Always false where cores race, so no store is in a
    /// buffer here.
    #[inline(always)]
    fn is_done_here(&self, word: &Word, access: Access) -> bool {
        // A word that was never accessed has a line number beyond all lines (0 wraps around).
        let line = word.line.load(Ordering::Relaxed).wrapping_sub(1) as usize;
        let (own, now_ps) = (self.own.get(), self.now_ps.get());
        let done_ps = self.caches.borrow_mut().access_here(own, line, access, now_ps);
        if let Some(done_ps) = done_ps {
            self.now_ps.set(done_ps);
        }
        done_ps.is_some()
    }

    /// An access to a word, in whichever cache its line is.
    // Inlined, so that a core that stops inside of it executes few return instructions afterwards:
    // the processor predicts none of them after a change of stacks.
    #[inline(always)]
    fn access(&self, word: &Word, access: Access) {
        let Some(core) = self.core.get() else { return };
        let mut caches = self.caches.borrow_mut();
        let line = match word.line.load(Ordering::Relaxed) {
            0 => {
                let line = self.line(&mut caches, std::ptr::from_ref(word).addr(), word.number);
                word.line.store(line as u32 + 1, Ordering::Relaxed);
                line
            }
            line => line as usize - 1,
        };
        let now_ps = self.now_ps.get();
        if self.until_ps.get() == u64::MAX {
            return self.now_ps.set(caches.access(core, line, access, now_ps));
        }
        let stored_ps = caches.stored_ps(core);
        drop(caches);
        if access == Access::Atomic && stored_ps > now_ps {
            // An atomic operation takes effect after the core's earlier stores. The random delay
            // lets other cores that wait for these lines get them first.
            self.wait_until(stored_ps);
        }
        self.race(core, line, access);
    }

    /// An access where cores race.
    #[inline(always)]
    fn race(&self, core: usize, line: usize, access: Access) {
        loop {
            self.take_turn();
            let mut caches = self.caches.borrow_mut();
            let now_ps = self.now_ps.get();
            // The random delay lets any of the waiting cores get the line next. A store does not
            // wait here, because it is in the core's store buffer.
            if access != Access::Store
                && let Some(free_ps) = caches.waits(core, line, access, now_ps)
            {
                self.wait_until(free_ps);
                continue;
            }
            self.now_ps.set(match access {
                Access::Atomic => caches.access(core, line, access, now_ps),
                Access::Load | Access::Store => {
                    self.overlap(&mut caches, core, line, access, now_ps)
                }
            });
            break;
        }
        self.take_turn();
    }

    /// Waits until a moving line is free at `free_ps`, and for a random time longer, so that any of
    /// the waiting cores may get it next.
    fn wait_until(&self, free_ps: u64) {
        let mut order = self.order.borrow_mut();
        self.now_ps.set(free_ps + order.as_mut().map_or(0, |order| order.below(ORDER_PS)));
    }

    /// A load or store of a racing core.
    fn overlap(
        &self,
        caches: &mut Caches,
        core: usize,
        line: usize,
        access: Access,
        now_ps: u64,
    ) -> u64 {
        let mut loads = self.loads.get();
        if access == Access::Store {
            let done_ps = caches.access(core, line, access, now_ps);
            if loads.until_ps == now_ps {
                loads.until_ps = done_ps;
            }
            self.loads.set(loads);
            return done_ps;
        }
        if loads.until_ps != now_ps || loads.line == line || loads.lines == caches.lines_at_once() {
            (loads.from_ps, loads.lines) = (now_ps, 0);
        }
        let done_ps = if caches.has(core, line) {
            caches.access(core, line, access, now_ps)
        } else {
            loads.lines += 1;
            caches.access(core, line, access, loads.from_ps).max(now_ps)
        };
        (loads.until_ps, loads.line) = (done_ps, line);
        self.loads.set(loads);
        done_ps
    }

    /// Lets cores with earlier work run first.
    #[inline]
    fn take_turn(&self) {
        if self.now_ps.get() > self.until_ps.get() {
            verb::pause(Pause::Later);
        }
    }

    /// Applies a buffered store if other cores can read its value by now; otherwise returns the
    /// value if this core made the store.
    #[inline]
    fn settle(&self, word: &Word) -> Option<u64> {
        if word.storer.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let stored = word.stored.load(Ordering::Relaxed);
        if let Some(core) = self.core.get()
            && self.now_ps.get() < word.seen_ps.load(Ordering::Relaxed)
        {
            return (word.storer.load(Ordering::Relaxed) == core as u32 + 1).then_some(stored);
        }
        word.storer.store(0, Ordering::Relaxed);
        word.value.store(stored, Ordering::Relaxed);
        None
    }

    /// Where cores race, puts a store into its core's buffer; false if the store is done at once.
    #[inline]
    fn buffer(&self, word: &Word, value: u64) -> bool {
        let Some(core) = self.core.get() else { return false };
        if self.until_ps.get() == u64::MAX {
            return false;
        }
        let before = word.storer.load(Ordering::Relaxed);
        if before != 0 && before != core as u32 + 1 {
            // Applies the other core's store, which this one follows.
            word.value.store(word.stored.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let seen_ps = self.caches.borrow().stored_ps(core);
        let waits = seen_ps > self.now_ps.get();
        word.storer.store(if waits { core as u32 + 1 } else { 0 }, Ordering::Relaxed);
        word.stored.store(value, Ordering::Relaxed);
        word.seen_ps.store(seen_ps, Ordering::Relaxed);
        waits
    }

    /// The line of a word at its first access.
    #[cold]
    fn line(&self, caches: &mut Caches, address: usize, number: u32) -> usize {
        let mut arrays = self.arrays.borrow_mut();
        // All words of one array or structure have the same difference. It is used as a key and not
        // as an address, so it may wrap around.
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
    /// A read-modify-write; returns the old value. A run is one thread, so this code needs no real
    /// atomic operation, and a memory order only determines the cost of an access.
    #[inline]
    fn modify(&self, change: impl FnOnce(u64) -> u64) -> u64 {
        TRACE.with(|trace| trace.atomic(self));
        let old = self.value.load(Ordering::Relaxed);
        self.value.store(change(old), Ordering::Relaxed);
        old
    }
}

impl AtomicWord for Word {
    fn new(value: u64) -> Self {
        let number = TRACE.with(|trace| trace.words.replace(trace.words.get() + 1));
        Word {
            value: AtomicU64::new(value),
            number,
            line: AtomicU32::new(0),
            storer: AtomicU32::new(0),
            stored: AtomicU64::new(0),
            seen_ps: AtomicU64::new(0),
        }
    }

    #[inline]
    fn load(&self, _order: Ordering) -> u64 {
        TRACE.with(|trace| trace.load(self))
    }

    /// A sequentially consistent store waits until all cores see it: on the papers' processors it
    /// is an exchange.
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        if order == Ordering::SeqCst {
            self.modify(|_| value);
        } else {
            TRACE.with(|trace| trace.store(self, value));
        }
    }

    #[inline]
    fn swap(&self, value: u64, _order: Ordering) -> u64 {
        self.modify(|_| value)
    }

    #[inline]
    fn fetch_add(&self, value: u64, _order: Ordering) -> u64 {
        self.modify(|old| old.wrapping_add(value))
    }

    #[inline]
    fn fetch_sub(&self, value: u64, _order: Ordering) -> u64 {
        self.modify(|old| old.wrapping_sub(value))
    }

    #[inline]
    fn fetch_or(&self, value: u64, _order: Ordering) -> u64 {
        self.modify(|old| old | value)
    }

    #[inline]
    fn fetch_and(&self, value: u64, _order: Ordering) -> u64 {
        self.modify(|old| old & value)
    }

    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _success: Ordering,
        _failure: Ordering,
    ) -> Result<u64, u64> {
        let old = self.modify(|old| if old == current { new } else { old });
        if old != current {
            TRACE.with(|trace| trace.failed.set(trace.failed.get() + 1));
            return Err(old);
        }
        Ok(old)
    }
}

impl<T> TracedLock<T> {
    /// Where cores race, stops the verb, so that `races` grants or releases the lock. False if
    /// cores do not race.
    fn races(&self, pause: impl FnOnce(usize) -> Pause) -> bool {
        TRACE.with(|trace| {
            let races = trace.core.get().is_some() && trace.until_ps.get() < u64::MAX;
            if races {
                trace.take_turn();
                let lock = self.number(&mut trace.caches.borrow_mut());
                verb::pause(pause(lock));
            }
            races
        })
    }

    /// The lock's number among the run's locks.
    fn number(&self, caches: &mut Caches) -> usize {
        match self.lock.load(Ordering::Relaxed) {
            0 => {
                let lock = caches.lock();
                self.lock.store(lock as u32 + 1, Ordering::Relaxed);
                lock
            }
            lock => lock as usize - 1,
        }
    }

    /// Runs `act` on the caches at the core's time, if a core is inside a verb; returns its time in
    /// picoseconds.
    fn trace(&self, act: impl FnOnce(&mut Caches, usize, usize, u64) -> u64) -> u64 {
        TRACE.with(|trace| {
            let Some(core) = trace.core.get() else { return 0 };
            // The borrow ends with this call, before the guarded code runs, which accesses words
            // and other locks.
            let caches = &mut *trace.caches.borrow_mut();
            let lock = self.number(caches);
            let before_ps = trace.now_ps.get();
            let after_ps = act(caches, core, lock, before_ps);
            trace.released.set(Some(lock));
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
        if self.races(|lock| Pause::Acquire { lock, guarded }) {
            let result = f(&mut self.value.lock().expect("no policy panics while it holds a lock"));
            self.races(|lock| Pause::Release { lock });
            return result;
        }
        let waited_ps =
            self.trace(|caches, core, lock, now_ps| caches.acquire(core, lock, guarded, now_ps));
        TRACE.with(|trace| trace.waited_ps.set(trace.waited_ps.get() + waited_ps));
        let result = f(&mut self.value.lock().expect("no policy panics while it holds a lock"));
        self.trace(|caches, core, lock, now_ps| caches.release(core, lock, now_ps));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::Latencies;

    fn begin_with_two_cores() {
        let latencies = Latencies {
            load_ps: 1,
            store_ps: 2,
            atomic_ps: 5,
            near_ps: 40,
            far_ps: 100,
            lines_at_once: 10,
        };
        begin(Caches::new(latencies, vec![0, 0]));
    }

    /// Runs one verb after the other, so that no line is still moving.
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
        // Accessed in any order, everything is in core 0's cache.
        for (structure, word) in
            (0..20).rev().flat_map(|structure| [2, 0, 1].map(|word| (structure, word)))
        {
            cost(0, || add(structure, word));
        }
        assert_eq!(cost(1, || add(7, 1)), 45);
        assert_eq!(cost(1, || add(7, 0)), 5, "it came with the line");
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

    /// Core 2 is on another socket, and holds the line of `far`.
    #[test]
    fn others_see_a_store_after_the_stores_before_it_and_its_own_core_at_once() {
        let latencies = Latencies {
            load_ps: 1,
            store_ps: 2,
            atomic_ps: 5,
            near_ps: 40,
            far_ps: 100,
            lines_at_once: 10,
        };
        begin(Caches::new(latencies, vec![0, 0, 1]));
        let (far, word) = (Box::new(Word::new(0)), Box::new(Word::new(0)));
        let on = |core, now_ps, verb: &mut dyn FnMut()| {
            let mut racing = Racing { core, now_ps, failed: 0, loads: Loads::NONE };
            resume(&mut racing, u64::MAX - 1, verb);
        };
        let load = |core, now_ps| {
            let mut value = 0;
            on(core, now_ps, &mut || value = word.load(Ordering::Relaxed));
            value
        };
        on(2, 0, &mut || _ = far.fetch_add(1, Ordering::SeqCst));
        assert_eq!(load(1, 100), 0);
        on(0, 1_000, &mut || {
            far.store(1, Ordering::Relaxed);
            word.store(1, Ordering::Relaxed);
        });
        assert_eq!(load(0, 1_010), 1);
        assert_eq!(load(1, 1_050), 0, "it has the line at 1091, and sees the store at 1100");
        assert_eq!(load(1, 1_100), 1);
        end();
    }
}
