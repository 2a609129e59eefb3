//! Races: the accesses of all cores to shared words, one by one in the order of their times.
//!
//! **Problem.** Where a verb takes its time as a whole, no line is stolen between two of its
//! accesses and no compare-and-swap fails: contention costs less than on a real machine.
//! **Model.** A verb is called as without races. Its accesses to shared words and locks are not
//! charged but recorded as [steps](Step). The steps of all cores are then taken in the order of
//! their times, and each is charged by where its line is at that moment. So accesses of other cores
//! come between those of one verb.
//!
//! ```text
//!   core 0:  load w ── 4 cycles ── swap w                                ✓
//!   core 1:      load w ─ line moves ── swap w: fails ─ again ── swap w  ✓
//! ```
//!
//! - **A compare-and-swap fails** if another core has written the word since the verb read it. Then
//!   the steps between that reading and the swap are taken again, as a loop around the swap does.
//! - **Locks** are waited for from the moment of asking. The lock's line and the lines that it guards
//!   move when the holder changes, and only then. Waiting cores have copies of the lock's line, so a
//!   release takes effect only when the line is back with the holder: handing a lock over takes two
//!   transfers, and those of the guarded lines. Locks are given in the order of asking, as ticket
//!   locks and Linux's queued spinlocks are; a [test-and-set lock](LockKind::TestAndSet) goes to the
//!   core that comes first, which is often the one that has just released it.
//!
//! **Left out.** A verb decides as if it ran alone at the moment when it begins: a race costs time
//! and changes no decision, so the laws of a policy hold as they do without. After a failure a verb
//! that finds nothing left to do would stop; here it tries again. Values are not compared: a word
//! that was changed and changed back fails a swap, too.
//!
//! **Deterministic.** Times are integers; of two steps at the same time that of the lower port is
//! first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fairq_core::Class;

use crate::coherence::{Access, Caches};
use crate::host::Host;

/// A step of a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Reads a word; `seen`: how often it had been written by then.
    Load { line: u32, word: u32, seen: u32 },
    /// Writes a word without looking at its value.
    Write { line: u32, word: u32, access: Access },
    /// A compare-and-swap: it writes if no core has since step `since` read the word, and else goes
    /// back to step `again`. Without such a step (`NONE`) it cannot fail. One that does not `win`
    /// was called with another value than the word had: it writes nothing, and is not repeated.
    Swap { line: u32, word: u32, seen: u32, since: u32, again: u32, wins: bool },
    /// Other work, in picoseconds.
    Work(u64),
    /// Takes a lock and the lines that it guards.
    Acquire { lock: u32, guarded: u32 },
    /// Gives it back.
    Release { lock: u32 },
    /// Begins a verb.
    Enter,
    /// Ends it.
    Leave,
    /// This takes effect now.
    Do(Effect),
}

/// A step that the rest of the simulation sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// A command is in its queue.
    Post(u32, Class),
    /// A wake-up for a port is on its way.
    Wake(u8),
    /// The core is done.
    Free,
    /// It comes back to the policy.
    GoOn,
}

/// How many lines a core fetches at the same time: the line fill buffers of Intel's cores from
/// Nehalem to Cascade Lake (Optimization Reference Manual).
const LINES_AT_ONCE: u64 = 10;

/// No step.
const NONE: u32 = u32::MAX;

impl Step {
    /// The line that it accesses, and how.
    #[inline]
    fn access(self) -> Option<(usize, Access)> {
        match self {
            Step::Load { line, .. } => Some((line as usize, Access::Load)),
            Step::Write { line, access, .. } => Some((line as usize, access)),
            Step::Swap { line, .. } => Some((line as usize, Access::Atomic)),
            _ => None,
        }
    }

    /// A compare-and-swap after these steps.
    pub(crate) fn swap(before: &[Step], line: u32, word: u32, wins: bool) -> Step {
        let (mut since, mut again) = (NONE, None);
        for (at, step) in before.iter().enumerate().rev() {
            match *step {
                Step::Load { word: other, .. } | Step::Swap { word: other, .. }
                    if other == word =>
                {
                    since = at as u32;
                    break;
                }
                // A lock that was taken or released in between is not taken or released again.
                Step::Acquire { .. } | Step::Release { .. } => {
                    _ = again.get_or_insert(at as u32 + 1)
                }
                Step::Enter => break,
                _ => {}
            }
        }
        Step::Swap {
            line,
            word,
            seen: 0,
            since,
            again: again.unwrap_or(since.wrapping_add(1)),
            wins,
        }
    }
}

/// How cores wait for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// In the order of asking: tickets, or Linux's queue.
    InTurn,
    /// The first core to come once it is free: test, then test-and-set.
    TestAndSet,
}

/// The time that a core spent since it began its steps.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Raced {
    /// In verbs.
    pub(crate) verbs_ps: u64,
    /// Of that waiting for locks and for the lines that they guard.
    pub(crate) locks_ps: u64,
    /// Compare-and-swaps that failed.
    pub(crate) failed: u64,
}

/// A port's core and the steps that it has to take.
#[derive(Default)]
struct Runner {
    core: usize,
    steps: Vec<Step>,
    at: usize,
    now_ps: u64,
    entered_ps: u64,
    /// The access of its next step is done, and takes effect now.
    accessed: bool,
    /// When it asked for the lock that it waits for.
    asked_ps: Option<u64>,
    raced: Raced,
}

/// A lock, its holder, and the ports that wait for it.
#[derive(Default)]
struct Contended {
    /// The port that has it.
    held: Option<usize>,
    /// The core that had it last.
    last: Option<usize>,
    waiting: VecDeque<usize>,
}

/// All cores.
pub(crate) struct Races {
    kind: LockKind,
    runners: Vec<Runner>,
    /// When each port is at its next step.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// How often each word was written.
    written: Vec<u32>,
    locks: Vec<Contended>,
    spare: Vec<Vec<Step>>,
}

/// An effect, and where and when it happened.
pub(crate) struct Happened {
    pub(crate) port: usize,
    pub(crate) at_ps: u64,
    pub(crate) effect: Effect,
    /// The time spent, if it is the end.
    pub(crate) raced: Raced,
}

impl Races {
    /// Of a host.
    pub(crate) fn new(host: &Host, kind: LockKind) -> Self {
        let cores = host.cores();
        let runner = |&core: &usize| Runner { core, ..Runner::default() };
        Races {
            kind,
            runners: cores.iter().map(runner).collect(),
            due: BinaryHeap::new(),
            written: Vec::new(),
            locks: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// A place for steps.
    pub(crate) fn empty(&mut self) -> Vec<Step> {
        self.spare.pop().unwrap_or_default()
    }

    /// A port begins these steps.
    pub(crate) fn start(&mut self, port: usize, from_ps: u64, steps: Vec<Step>) {
        let runner = &mut self.runners[port];
        *runner = Runner { core: runner.core, steps, now_ps: from_ps, ..Runner::default() };
        self.due.push(Reverse((from_ps, port)));
    }

    /// When the next step is due.
    #[inline]
    pub(crate) fn next_ps(&self) -> Option<u64> {
        self.due.peek().map(|&Reverse((at_ps, _))| at_ps)
    }

    /// Takes steps of the port that is next, until `until_ps`, until another port is before it, or
    /// until one has an effect, which it gives.
    pub(crate) fn run(&mut self, caches: &mut Caches, until_ps: u64) -> Option<Happened> {
        let Reverse((_, port)) = self.due.pop()?;
        let until_ps = self.next_ps().map_or(until_ps, |next_ps| next_ps.min(until_ps));
        loop {
            let runner = &mut self.runners[port];
            if runner.now_ps > until_ps {
                self.due.push(Reverse((runner.now_ps, port)));
                return None;
            }
            let step = runner.steps[runner.at];
            if let Some((line, access)) = step.access().filter(|_| !runner.accessed) {
                runner.now_ps = caches.access(runner.core, line, access, runner.now_ps);
                runner.accessed = true;
                continue;
            }
            runner.accessed = false;
            runner.at += 1;
            match step {
                Step::Acquire { lock, guarded } => {
                    if !self.acquire(caches, port, lock as usize, guarded) {
                        return None;
                    }
                }
                Step::Release { lock } => {
                    self.release(caches, port, lock as usize);
                    // Others may be before it now.
                    self.due.push(Reverse((self.runners[port].now_ps, port)));
                    return None;
                }
                Step::Do(effect) => {
                    let (at_ps, raced) = (runner.now_ps, runner.raced);
                    if matches!(effect, Effect::Free | Effect::GoOn) {
                        let mut steps = std::mem::take(&mut runner.steps);
                        steps.clear();
                        self.spare.push(steps);
                    } else {
                        self.due.push(Reverse((at_ps, port)));
                    }
                    return Some(Happened { port, at_ps, effect, raced });
                }
                _ => runner.take(step, &mut self.written),
            }
        }
    }

    /// A port asks for a lock; false if it has to wait.
    fn acquire(&mut self, caches: &mut Caches, port: usize, lock: usize, guarded: u32) -> bool {
        if self.locks.len() <= lock {
            self.locks.resize_with(lock + 1, Contended::default);
        }
        let (raced, runner) = (&mut self.locks[lock], &mut self.runners[port]);
        let asked_ps = *runner.asked_ps.get_or_insert(runner.now_ps);
        let line = caches.line_of(lock);
        runner.now_ps = caches.access(runner.core, line, Access::Atomic, runner.now_ps);
        if raced.held.is_some() {
            // It looks at the line until that changes.
            runner.now_ps = caches.access(runner.core, line, Access::Load, runner.now_ps);
            runner.at -= 1;
            raced.waiting.push_back(port);
            return false;
        }
        raced.held = Some(port);
        runner.takes(caches, raced.last, guarded, asked_ps);
        true
    }

    /// A port gives a lock back.
    fn release(&mut self, caches: &mut Caches, port: usize, lock: usize) {
        let raced = &mut self.locks[lock];
        let line = caches.line_of(lock);
        let runner = &mut self.runners[port];
        let given_ps = runner.now_ps;
        runner.now_ps = caches.access(runner.core, line, Access::Store, given_ps);
        (raced.held, raced.last) = (None, Some(runner.core));
        match self.kind {
            LockKind::InTurn => {
                let Some(next) = raced.waiting.pop_front() else { return };
                let runner = &mut self.runners[next];
                let sees_ps = caches.access(runner.core, line, Access::Load, given_ps);
                // The others see that it is not their turn, beside all this.
                for &other in &raced.waiting {
                    caches.share(self.runners[other].core, line);
                }
                raced.held = Some(next);
                let runner = &mut self.runners[next];
                let Step::Acquire { guarded, .. } = runner.steps[runner.at] else { return };
                runner.at += 1;
                let asked_ps = runner.asked_ps.unwrap_or(sees_ps);
                runner.now_ps = runner.now_ps.max(sees_ps);
                runner.takes(caches, raced.last, guarded, asked_ps);
                self.due.push(Reverse((runner.now_ps, next)));
            }
            LockKind::TestAndSet => {
                for next in raced.waiting.drain(..) {
                    let runner = &mut self.runners[next];
                    let sees_ps = caches.access(runner.core, line, Access::Load, given_ps);
                    runner.now_ps = runner.now_ps.max(sees_ps);
                    self.due.push(Reverse((runner.now_ps, next)));
                }
            }
        }
    }
}

impl Runner {
    /// It gets a lock, and the guarded lines come from the last holder.
    fn takes(&mut self, caches: &Caches, last: Option<usize>, guarded: u32, asked_ps: u64) {
        if let Some(last) = last.filter(|&last| last != self.core) {
            let times = u64::from(guarded).div_ceil(LINES_AT_ONCE);
            self.now_ps += times * caches.transfer_ps(self.core, 1 << last, true);
        }
        self.raced.locks_ps += self.now_ps - asked_ps;
        self.asked_ps = None;
    }

    /// A step that needs nothing but the core and the caches.
    #[inline]
    fn take(&mut self, step: Step, written: &mut Vec<u32>) {
        let place = self.at - 1;
        match step {
            Step::Load { word, .. } => self.sees(place, *times(written, word)),
            Step::Write { word, .. } => *times(written, word) += 1,
            Step::Swap { word, since, again, wins, .. } => {
                let now = times(written, word);
                if !wins {
                    return self.sees(place, *now);
                }
                if since != NONE && self.seen(since as usize) != *now {
                    self.sees(since as usize, *now);
                    self.raced.failed += 1;
                    self.at = again as usize;
                    return;
                }
                *now += 1;
                let now = *now;
                self.sees(place, now);
            }
            Step::Work(takes_ps) => self.now_ps += takes_ps,
            Step::Enter => self.entered_ps = self.now_ps,
            Step::Leave => self.raced.verbs_ps += self.now_ps - self.entered_ps,
            Step::Acquire { .. } | Step::Release { .. } | Step::Do(_) => {}
        }
    }

    fn sees(&mut self, place: usize, now: u32) {
        if let Step::Load { seen, .. } | Step::Swap { seen, .. } = &mut self.steps[place] {
            *seen = now;
        }
    }

    fn seen(&self, place: usize) -> u32 {
        match self.steps[place] {
            Step::Load { seen, .. } | Step::Swap { seen, .. } => seen,
            _ => NONE,
        }
    }
}

/// How often a word was written.
#[inline]
fn times(written: &mut Vec<u32>, word: u32) -> &mut u32 {
    let word = word as usize;
    if written.len() <= word {
        written.resize(word + 1, 0);
    }
    &mut written[word]
}

#[cfg(test)]
mod tests {
    use fairq_core::Platform;
    use fairq_core::platform::{AtomicWord, Lock, Ordering};

    use super::*;
    use crate::contention::{Contended, Contest, contend};
    use crate::host::Machine;
    use crate::traced::{self, Traced};

    type Word = <Traced as Platform>::U64;
    type Mutex<T> = <Traced as Platform>::Mutex<T>;

    fn on(threads: usize, locks: LockKind, pause_ps: u64) -> impl Fn(fn(&Shared)) -> Contended {
        move |verb| {
            let contest = Contest { locks, lasts_ns: 200_000, takes_ps: 0, pause_ps };
            contend(&Machine::E5_2630_V3.host(threads), &contest, || {
                let shared = Shared {
                    word: Box::new(Word::new(0)),
                    other: Box::new(Word::new(0)),
                    lock: Lock::new([0; 128]),
                };
                move |_| verb(&shared)
            })
        }
    }

    struct Shared {
        word: Box<Word>,
        other: Box<Word>,
        lock: Mutex<[u64; 128]>,
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
        let raced = on(1, LockKind::InTurn, 1_000)(all);
        let host = Machine::E5_2630_V3.host(1);
        traced::begin(host.caches());
        let shared = Shared {
            word: Box::new(Word::new(0)),
            other: Box::new(Word::new(0)),
            lock: Lock::new([0; 128]),
        };
        let mut now_ps = 0;
        let mut times = 0;
        while now_ps < 200_000_000 {
            now_ps = traced::inside(0, now_ps, || all(&shared)).1.until_ps + 1_000;
            times += 1;
        }
        traced::end();
        // The last one may be half done.
        assert!(raced.times[0].abs_diff(times) <= 1 && raced.failed == 0, "{raced:?} {times}");
    }

    #[test]
    fn a_swap_fails_where_another_core_writes_between_and_one_of_them_wins() {
        let [adds, swaps] = [add, swap].map(on(2, LockKind::InTurn, 0));
        assert_eq!(adds.failed, 0);
        assert!(swaps.failures() > 0.05, "{swaps:?}");
        assert!(swaps.each_ns() > adds.each_ns(), "{swaps:?} {adds:?}");
        let [a, b] = swaps.times[..] else { panic!("two cores") };
        assert!(a.min(b) * 4 > a.max(b), "neither starves: {swaps:?}");
        assert_eq!(on(2, LockKind::InTurn, 5_000_000)(swap).failed, 0, "far apart");
        assert_eq!(on(1, LockKind::InTurn, 0)(swap).failed, 0, "alone");
    }

    /// Two cores of a socket, a line of 39 ns.
    #[test]
    fn a_contended_counter_gives_less_than_one_core_and_least_across_sockets() {
        let [one, near, socket] =
            [1, 2, 8].map(|threads| on(threads, LockKind::InTurn, 0)(add).each_ns());
        assert!(one < 8.0, "{one}");
        assert!((38.0..48.0).contains(&near), "one after the other: {near}");
        assert!((socket / near - 1.0).abs() < 0.2, "within a socket it stays: {socket}");
        let apart = |threads| on(threads, LockKind::InTurn, 100_000)(add).each_ns();
        let [socket, both] = [apart(8), apart(16)];
        assert!(socket < 60.0 && both > 1.3 * socket, "beyond a socket it falls: {socket} {both}");
    }

    #[test]
    fn a_lock_in_turn_goes_around_and_one_that_is_tested_often_stays() {
        let turn = on(2, LockKind::InTurn, 0)(lock);
        let free = on(2, LockKind::TestAndSet, 0)(lock);
        let all = |contended: &Contended| contended.times.iter().sum::<u64>();
        assert!(turn.turns * 10 >= all(&turn) * 9, "{turn:?}");
        assert!(free.turns * 2 < all(&free), "{free:?}");
    }

    #[test]
    fn what_a_lock_guards_moves_when_its_holder_changes() {
        let alone = on(1, LockKind::InTurn, 0)(lock).each_ns();
        let both = on(2, LockKind::InTurn, 0)(lock).each_ns();
        assert!(alone < 10.0, "{alone}");
        assert!(both > 2.0 * 39.0, "{both}");
    }

    #[test]
    fn a_failed_swap_goes_on_behind_the_lock_that_was_taken_since() {
        let load = Step::Load { line: 0, word: 7, seen: 0 };
        let steps = [Step::Enter, load, Step::Acquire { lock: 0, guarded: 1 }, Step::Work(5)];
        let Step::Swap { since, again, .. } = Step::swap(&steps, 0, 7, true) else { panic!() };
        assert_eq!((since, again), (1, 3));
        let Step::Swap { since, .. } = Step::swap(&steps, 0, 8, true) else { panic!() };
        assert_eq!(since, NONE, "it has not read that one");
    }

    #[test]
    fn twice_the_same() {
        let go = || on(16, LockKind::InTurn, 30_000)(all);
        assert_eq!(go(), go());
    }
}
