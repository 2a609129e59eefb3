//! Races: the cores' accesses to shared words, one after the other in the order of their times.
//!
//! **Problem.** If each verb runs without interruption, no line moves to another core between two
//! accesses of a verb, and no compare-and-swap fails: contention costs less than on a real machine,
//! and no core finds that another one has done its work. **Model.** Each port's verbs run on a
//! stack of their own (a coroutine). The simulated caches give the time of each access, which takes
//! effect at the end of that time. If another core has an earlier access, the running core stops
//! there, and the other core runs first.
//!
//! ```text
//!   core 0:  load w ──── swap w                                ✓
//!   core 1:      load w ─ line moves ── swap w: fails, it tries again or finds nothing left to do
//! ```
//!
//! **Locks.** A core waits from the time at which it requests the lock. The lock's line and the
//! guarded lines move only when the holder changes. Waiting cores have copies of the lock's line,
//! so a release takes effect only when the line is back in the holder's cache: a change of the
//! holder takes two transfers of the lock's line and those of the guarded lines. Locks are granted
//! in the order of the requests, like Linux's queued spinlocks. A verb releases its last lock only
//! after it has returned, because the host does its work for the request under that lock.
//!
//! **Deterministic.** Times are integers; of two cores at the same time the one with the lower port
//! is first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fairq_core::PortSet;
use generator::{Generator, Gn};

use crate::coherence::{Access, Caches};
use crate::host::Host;
use crate::traced::{self, Loads, Racing};
use crate::verb::{Answer, Pause, Verb};

/// The stack of a verb, in words.
const STACK_WORDS: usize = 32 << 10;

/// A core that runs until this time stops for no other core.
const ALONE_PS: u64 = u64::MAX - 1;

/// A port's core and its verb.
struct Runner {
    at: Racing,
    verbs: Generator<'static, (Verb, u64), Pause>,
    /// The verb that the core is to call next, and the verb's `now_ns`.
    begins: Option<(Verb, u64)>,
    entered_ps: u64,
    /// The lock that it is acquiring, and the number of lines that the lock guards.
    wants: Option<(usize, u64)>,
    /// Start of that acquisition.
    asked_ps: Option<u64>,
    /// Number of locks that it holds.
    inside: u32,
    /// The lock that the core releases as soon as it acquires another one, or its verb has
    /// returned.
    gives: Option<usize>,
    locks_ps: u64,
}

/// A lock, its holder, and the ports that wait for it.
#[derive(Default)]
struct Contended {
    is_held: bool,
    /// The last core that held it.
    last: Option<usize>,
    /// Time of the last release.
    free_ps: u64,
    waiting: VecDeque<usize>,
}

/// All cores.
pub(crate) struct Races {
    runners: Vec<Runner>,
    /// Time at which each port continues.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    locks: Vec<Contended>,
}

/// A verb that has returned.
pub(crate) struct Answered {
    pub(crate) port: usize,
    pub(crate) at_ps: u64,
    pub(crate) answer: Answer,
    pub(crate) wake: PortSet,
    /// Time of the verb, and the part of it that the verb waited for locks and the lines that they
    /// guard.
    pub(crate) verb_ps: u64,
    pub(crate) locks_ps: u64,
    /// Compare-and-swaps that failed.
    pub(crate) failed: u64,
    /// Whether the port still holds a lock, which [`Races::give_back`] releases.
    pub(crate) gives: bool,
}

impl Races {
    /// The cores of a host; each of `ports` runs a verb.
    pub(crate) fn new<F>(host: &Host, ports: impl Iterator<Item = F>) -> Self
    where
        F: FnMut(Verb, u64) -> (Answer, PortSet) + Send + 'static,
    {
        let runner = |(core, mut port): (usize, F)| {
            let mut verbs = Gn::new_opt(STACK_WORDS, move || {
                let mut done = Pause::Later;
                loop {
                    #[expect(deprecated, reason = "as in `pause`")]
                    let Some((verb, now_ns)) = generator::yield_(done) else { return Pause::Later };
                    let (answer, wake) = port(verb, now_ns);
                    traced::take_turn();
                    done = Pause::Done(answer, wake);
                }
            });
            // Runs the coroutine up to the wait for its first verb.
            verbs.resume();
            Runner {
                at: Racing { core, now_ps: 0, failed: 0, loads: Loads::NONE },
                verbs,
                begins: None,
                entered_ps: 0,
                wants: None,
                asked_ps: None,
                inside: 0,
                gives: None,
                locks_ps: 0,
            }
        };
        Races {
            runners: host.cores().into_iter().zip(ports).map(runner).collect(),
            due: BinaryHeap::new(),
            locks: Vec::new(),
        }
    }

    /// Makes a port's core call a verb at `from_ps`; the verb's first instruction follows
    /// `takes_ps` later.
    pub(crate) fn begin(
        &mut self,
        port: usize,
        from_ps: u64,
        takes_ps: u64,
        verb: Verb,
        now_ns: u64,
    ) {
        let runner = &mut self.runners[port];
        runner.begins = Some((verb, now_ns));
        (runner.entered_ps, runner.at.now_ps) = (from_ps, from_ps + takes_ps);
        (runner.locks_ps, runner.at.failed) = (0, 0);
        self.due.push(Reverse((runner.at.now_ps, port)));
    }

    /// Time at which the next core continues.
    #[inline]
    pub(crate) fn next_ps(&self) -> Option<u64> {
        self.due.peek().map(|&Reverse((at_ps, _))| at_ps)
    }

    /// Runs the core with the earliest time until `until_ps`, until another core is earlier, or
    /// until its verb has returned.
    #[inline]
    pub(crate) fn run(&mut self, until_ps: u64) -> Option<Answered> {
        let Reverse((_, port)) = self.due.pop()?;
        let until_ps = self.next_ps().map_or(until_ps, |next_ps| next_ps.min(until_ps));
        self.go_on(port, until_ps.min(ALONE_PS - 1))
    }

    #[inline]
    fn go_on(&mut self, port: usize, until_ps: u64) -> Option<Answered> {
        loop {
            if let Some((lock, guarded)) = self.runners[port].wants
                && !self.acquire(port, lock, guarded)
            {
                return None;
            }
            match self.resume(port, until_ps) {
                Pause::Later => {
                    self.due.push(Reverse((self.runners[port].at.now_ps, port)));
                    return None;
                }
                Pause::Acquire { lock, guarded } => {
                    self.give_back(port, self.runners[port].at.now_ps);
                    let runner = &mut self.runners[port];
                    runner.wants = Some((lock, guarded));
                    // Cores that requested the lock earlier run first, so they get the lock first.
                    if until_ps < ALONE_PS {
                        self.due.push(Reverse((runner.at.now_ps, port)));
                        return None;
                    }
                }
                Pause::Release { lock } => {
                    self.give_back(port, self.runners[port].at.now_ps);
                    let runner = &mut self.runners[port];
                    runner.at.now_ps += traced::with_caches(|caches| caches.store_ps());
                    runner.inside -= 1;
                    runner.gives = Some(lock);
                    if until_ps == ALONE_PS && runner.inside == 0 {
                        self.give_back(port, self.runners[port].at.now_ps);
                        self.due.push(Reverse((self.runners[port].at.now_ps, port)));
                        return None;
                    }
                }
                Pause::Done(answer, wake) => {
                    let Runner { at, entered_ps, locks_ps, gives, .. } = &self.runners[port];
                    return Some(Answered {
                        port,
                        at_ps: at.now_ps,
                        answer,
                        wake,
                        verb_ps: at.now_ps - entered_ps,
                        locks_ps: *locks_ps,
                        failed: at.failed,
                        gives: gives.is_some(),
                    });
                }
            }
        }
    }

    /// Continues a verb until it stops.
    #[inline]
    fn resume(&mut self, port: usize, until_ps: u64) -> Pause {
        let runner = &mut self.runners[port];
        let (begins, verbs) = (runner.begins.take(), &mut runner.verbs);
        let pause = traced::resume(&mut runner.at, until_ps, || match begins {
            Some(verb) => verbs.raw_send(Some(verb)),
            None => verbs.resume(),
        });
        pause.expect("a port waits for its next verb and does not end")
    }

    /// A port acquires a lock; false if it has to wait.
    fn acquire(&mut self, port: usize, lock: usize, guarded: u64) -> bool {
        if self.locks.len() <= lock {
            self.locks.resize_with(lock + 1, Contended::default);
        }
        let (contended, runner) = (&mut self.locks[lock], &mut self.runners[port]);
        runner.asked_ps.get_or_insert(runner.at.now_ps);
        traced::with_caches(|caches| {
            let line = caches.line_of(lock);
            runner.at.now_ps =
                caches.access(runner.at.core, line, Access::Atomic, runner.at.now_ps);
            if contended.is_held {
                // The waiting core spins on its copy of the line until the copy is invalidated.
                runner.at.now_ps =
                    caches.access(runner.at.core, line, Access::Load, runner.at.now_ps);
                contended.waiting.push_back(port);
                return false;
            }
            if contended.free_ps > runner.at.now_ps {
                runner.at.now_ps = contended.free_ps;
                self.due.push(Reverse((runner.at.now_ps, port)));
                return false;
            }
            contended.is_held = true;
            runner.takes(caches, contended.last, guarded);
            true
        })
    }

    /// Releases, at `given_ps`, the lock that a port still holds after its verb, if there is one.
    pub(crate) fn give_back(&mut self, port: usize, given_ps: u64) {
        let Some(lock) = self.runners[port].gives.take() else { return };
        let Races { runners, due, locks } = self;
        let contended = &mut locks[lock];
        traced::with_caches(|caches| {
            let line = caches.line_of(lock);
            let runner = &runners[port];
            caches.access(runner.at.core, line, Access::Store, given_ps);
            (contended.is_held, contended.last) = (false, Some(runner.at.core));
            contended.free_ps = given_ps;
            let Some(next) = contended.waiting.pop_front() else { return };
            let runner = &mut runners[next];
            let sees_ps = caches.access(runner.at.core, line, Access::Load, given_ps);
            runner.at.now_ps = runner.at.now_ps.max(sees_ps);
            contended.is_held = true;
            let guarded = runner.wants.map_or(0, |(_, guarded)| guarded);
            runner.takes(caches, contended.last, guarded);
            due.push(Reverse((runner.at.now_ps, next)));
            // The other waiting cores also read the line, which takes them no time, because they
            // wait in any case.
            for &other in &contended.waiting {
                caches.share(runners[other].at.core, line);
            }
        });
    }

    /// Runs each core that holds a lock until it has released the lock. Afterwards the world, which
    /// is not a core and cannot wait, can call the policy.
    pub(crate) fn quiet(&mut self) {
        let is_inside = |runner: &Runner| runner.inside > 0 && runner.wants.is_none();
        while let Some(port) = self.runners.iter().position(is_inside) {
            self.due.retain(|&Reverse((_, other))| other != port);
            self.go_on(port, ALONE_PS);
        }
    }

    /// Runs all verbs to their ends.
    pub(crate) fn end(mut self) {
        while !self.due.is_empty() {
            if let Some(Answered { port, at_ps, .. }) = self.run(ALONE_PS) {
                self.give_back(port, at_ps);
            }
        }
        for runner in &mut self.runners {
            runner.verbs.raw_send(None);
        }
    }
}

impl Runner {
    /// Grants the core the lock that it requested, and moves the guarded lines from the last
    /// holder.
    fn takes(&mut self, caches: &Caches, last: Option<usize>, guarded: u64) {
        if let Some(last) = last.filter(|&last| last != self.at.core) {
            self.at.now_ps += guarded.div_ceil(caches.lines_at_once())
                * caches.transfer_ps(self.at.core, 1 << last, true);
        }
        let asked_ps = self.asked_ps.take().unwrap_or(self.at.now_ps);
        self.locks_ps += self.at.now_ps - asked_ps;
        self.wants = None;
        self.inside += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fairq_core::Platform;
    use fairq_core::platform::{AtomicWord, Lock, Ordering};

    use super::*;
    use crate::contention::{Contended, Contest, contend};
    use crate::host::Machine;
    use crate::traced::{self, Traced};

    type Word = <Traced as Platform>::U64;
    type Mutex<T> = <Traced as Platform>::Mutex<T>;

    fn on(threads: usize, pause_ps: u64) -> impl Fn(fn(&Shared)) -> Contended {
        move |verb| {
            let contest = Contest { lasts_ns: 200_000, takes_ps: 0, pause_ps };
            contend(&Machine::E5_2630_V3.host(threads), &contest, || {
                let shared = Arc::new(Shared::new());
                let call = |_| {
                    let shared = Arc::clone(&shared);
                    move || verb(&shared)
                };
                (0..threads).map(call).collect()
            })
        }
    }

    struct Shared {
        word: Box<Word>,
        other: Box<Word>,
        lock: Mutex<[u64; 128]>,
    }

    impl Shared {
        fn new() -> Shared {
            Shared {
                word: Box::new(Word::new(0)),
                other: Box::new(Word::new(0)),
                lock: Lock::new([0; 128]),
            }
        }
    }

    fn add(shared: &Shared) {
        shared.word.fetch_add(1, Ordering::SeqCst);
    }

    fn swap(shared: &Shared) {
        let mut old = shared.word.load(Ordering::Relaxed);
        let order = Ordering::SeqCst;
        while let Err(now) = shared.word.compare_exchange(old, old + 1, order, order) {
            old = now;
        }
    }

    fn lock(shared: &Shared) {
        shared.lock.with(|lines| lines[0] += 1);
    }

    /// Loads, stores, swaps and a lock.
    fn all(shared: &Shared) {
        swap(shared);
        shared.other.store(1, Ordering::Relaxed);
        lock(shared);
        add(shared);
        shared.other.load(Ordering::SeqCst);
    }

    #[test]
    fn alone_a_verb_takes_what_it_takes_as_a_whole() {
        let raced = on(1, 1_000)(all);
        let host = Machine::E5_2630_V3.host(1);
        traced::begin(host.caches());
        let shared = Shared::new();
        let mut now_ps = 0;
        let mut times = 0;
        while now_ps < 200_000_000 {
            now_ps = traced::inside(0, now_ps, || all(&shared)).1.until_ps + 1_000;
            times += 1;
        }
        traced::end();
        // The last call may be half done.
        assert!(raced.times[0].abs_diff(times) <= 1 && raced.failed == 0, "{raced:?} {times}");
    }

    #[test]
    fn a_swap_fails_where_another_core_writes_between_and_one_of_them_wins() {
        let [adds, swaps] = [add, swap].map(on(2, 0));
        assert_eq!(adds.failed, 0);
        assert!(swaps.failures() > 0.05, "{swaps:?}");
        assert!(swaps.each_ns() > adds.each_ns(), "{swaps:?} {adds:?}");
        let [a, b] = swaps.times[..] else { panic!("two cores") };
        assert!(a.min(b) * 4 > a.max(b), "neither starves: {swaps:?}");
        assert_eq!(on(2, 5_000_000)(swap).failed, 0, "far apart");
        assert_eq!(on(1, 0)(swap).failed, 0, "alone");
    }

    /// Two cores of a socket, where a line takes 39 ns.
    #[test]
    fn a_contended_counter_gives_less_than_one_core_and_least_across_sockets() {
        let [one, near, socket] = [1, 2, 8].map(|threads| on(threads, 0)(add).each_ns());
        assert!(one < 8.0, "{one}");
        assert!((38.0..48.0).contains(&near), "one after the other: {near}");
        assert!((socket / near - 1.0).abs() < 0.2, "within a socket it stays: {socket}");
        let apart = |threads| on(threads, 100_000)(add).each_ns();
        let [socket, both] = [apart(8), apart(16)];
        assert!(socket < 60.0 && both > 1.3 * socket, "beyond a socket it falls: {socket} {both}");
    }

    #[test]
    fn a_lock_goes_around() {
        let turn = on(2, 0)(lock);
        assert!(turn.turns * 10 >= turn.times.iter().sum::<u64>() * 9, "{turn:?}");
    }

    /// The world acquires a lock without waiting, in any state of the cores' verbs.
    #[test]
    fn no_core_holds_a_lock_once_it_is_quiet() {
        let host = Machine::E5_2630_V3.host(3);
        traced::begin(host.caches());
        let shared = Arc::new(Shared::new());
        let call = |_| {
            let shared = Arc::clone(&shared);
            move |_, _| {
                shared.lock.with(|lines| {
                    add(&shared);
                    lines[0] += 1;
                });
                (Answer::Completed, PortSet::EMPTY)
            }
        };
        let mut races = Races::new(&host, (0..3).map(call));
        for port in 0..3 {
            races.begin(port, port as u64, 0, Verb::Next, 0);
        }
        while races.runners.iter().all(|runner| runner.inside == 0) {
            assert!(races.run(u64::MAX).is_none(), "none is done yet");
        }
        races.quiet();
        assert!((1..=3).contains(&shared.lock.with(|lines| lines[0])));
        races.end();
        assert_eq!(shared.lock.with(|lines| lines[0]), 3);
        traced::end();
    }

    #[test]
    fn what_a_lock_guards_moves_when_its_holder_changes() {
        let alone = on(1, 0)(lock).each_ns();
        let both = on(2, 0)(lock).each_ns();
        assert!(alone < 10.0, "{alone}");
        assert!(both > 2.0 * 39.0, "{both}");
    }

    /// A core that wants to swap a word waits for a random number of the other waiting cores, and
    /// not for all of them.
    #[test]
    fn more_cores_that_swap_one_word_need_little_more_each() {
        let [four, eight] = [4, 8].map(|threads| on(threads, 0)(swap).each_ns());
        assert!((1.0..1.6).contains(&(eight / four)), "{four} {eight}");
    }

    #[test]
    fn lines_are_fetched_at_the_same_time() {
        let look = |lines: usize| {
            let contest = Contest { lasts_ns: 100_000, takes_ps: 0, pause_ps: 1_000_000 };
            contend(&Machine::E5_2630_V3.host(2), &contest, || {
                let words = |_| Box::new(Word::new(0));
                let words: Arc<Vec<Box<Word>>> = Arc::new((0..lines).map(words).collect());
                let call = |_| {
                    let words = Arc::clone(&words);
                    move || {
                        words.iter().for_each(|word| _ = word.load(Ordering::Relaxed));
                        words.iter().for_each(|word| word.store(1, Ordering::Relaxed));
                    }
                };
                (0..2).map(call).collect()
            })
            .each_ns()
        };
        let [one, ten, twenty] = [1, 10, 20].map(look);
        assert!(ten - one < 39.0 && (20.0..60.0).contains(&(twenty - ten)), "{one} {ten} {twenty}");
    }

    #[test]
    fn twice_the_same() {
        let go = || on(16, 30_000)(all);
        assert_eq!(go(), go());
    }
}
