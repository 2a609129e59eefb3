//! Races: cores' accesses to shared words, one by one in the order of their times.
//!
//! **Problem.** Where verbs take their time as wholes no line is stolen between two accesses of one
//! verb, and no compare-and-swap fails: contention costs less than it does. **Model.** A core's
//! verbs are done at once, as ever, for what they decide; what they do with shared words and locks
//! is written down as [steps](Step). Then the steps of all cores are taken in the order of their
//! times, each when its core comes to it, and the caches say what it takes there. So other cores'
//! accesses come between a verb's own.
//!
//! ```text
//!   core 0:  load w ── 4 cycles ── swap w                                ✓
//!   core 1:      load w ─ line moves ── swap w: fails ─ again ── swap w  ✓
//! ```
//!
//! - **A compare-and-swap fails** if another core has written the word since the verb read it. Then
//!   what the verb did in between is done again, and the swap, as loops around one do.
//! - **Locks** are waited for at the moment of asking. The lock's line and what it guards move when
//!   its holder changes, and only then. Who waits has a copy of the line, which the holder's release
//!   has to fetch back before it is seen: as of a ticket lock, each handing over is two transfers
//!   and what is guarded. Of a [test-and-set](LockKind::TestAndSet) lock it belongs to whoever comes
//!   first.
//!
//! **What is left out.** A verb's decisions are those that it makes when it runs alone, at the
//! moment when it begins: a race costs time and never changes what is decided, so that every law
//! that holds of a policy holds here. Who finds after a failure that nothing is left to do would not
//! try again; here it does. Values are not compared: a word that was changed and changed back fails
//! a swap.
//!
//! **Deterministic.** Times are integers; of two steps at the same time the lesser core's is first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fairq_core::Class;

use crate::coherence::{Access, Caches};

/// What a core does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Reads a word; which of its values that was.
    Load { line: u32, word: u32, seen: u32 },
    /// Writes one, whatever is there.
    Write { line: u32, word: u32, access: Access },
    /// Writes one if it is what the step `since` has read, and else goes on from step `again`. The
    /// last step of this number stands for none: then it cannot fail. One that does not `win`
    /// writes nothing.
    Swap { line: u32, word: u32, seen: u32, since: u32, again: u32, wins: bool },
    /// Does something else for so long.
    Work(u64),
    /// Takes a lock, with what it guards, so many lines.
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

/// What takes effect when a core comes to it.
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

/// No step.
const NONE: u32 = u32::MAX;

impl Step {
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
                // What was held or given back in between stays so.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockKind {
    /// In turn, as they came: tickets, or Linux's queue.
    #[default]
    InTurn,
    /// Whoever comes first once it is free, who looks until it is: test, and test-and-set.
    TestAndSet,
}

/// What a core spent since it began.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Raced {
    /// In verbs.
    pub(crate) verbs_ps: u64,
    /// Of that waiting for locks and what they guard.
    pub(crate) locks_ps: u64,
    /// Compare-and-swaps that failed.
    pub(crate) failed: u64,
}

/// A core that has something to do.
#[derive(Default)]
struct Runner {
    core: usize,
    steps: Vec<Step>,
    at: usize,
    now_ps: u64,
    entered_ps: u64,
    /// When it asked for the lock that it waits for.
    asked_ps: Option<u64>,
    raced: Raced,
}

/// A lock that is raced for.
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
    /// Who is when at its next step.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// How often each word was written.
    written: Vec<u32>,
    locks: Vec<Contended>,
    spare: Vec<Vec<Step>>,
}

/// What happened at a core.
pub(crate) struct Happened {
    pub(crate) port: usize,
    pub(crate) at_ps: u64,
    pub(crate) effect: Effect,
    /// Of the end what it spent.
    pub(crate) raced: Raced,
}

impl Races {
    /// On these cores: the core of each port.
    pub(crate) fn new(cores: &[usize], kind: LockKind) -> Self {
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

    /// Takes the next core's steps up to then, as long as no other core's come before; says what
    /// takes effect, at which it stops.
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
                _ => runner.take(step, caches, &mut self.written),
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
    /// It has a lock, and what that guards comes from its last holder.
    fn takes(&mut self, caches: &Caches, last: Option<usize>, guarded: u32, asked_ps: u64) {
        if let Some(last) = last.filter(|&last| last != self.core) {
            self.now_ps += u64::from(guarded) * caches.transfer_ps(self.core, 1 << last, true);
        }
        self.raced.locks_ps += self.now_ps - asked_ps;
        self.asked_ps = None;
    }

    /// A step that is the core's own matter, and its caches'.
    #[inline]
    fn take(&mut self, step: Step, caches: &mut Caches, written: &mut Vec<u32>) {
        let place = self.at - 1;
        let mut access = |runner: &mut Self, line: u32, access| {
            runner.now_ps = caches.access(runner.core, line as usize, access, runner.now_ps);
        };
        match step {
            Step::Load { line, word, .. } => {
                access(self, line, Access::Load);
                self.sees(place, *times(written, word));
            }
            Step::Write { line, word, access: how } => {
                access(self, line, how);
                *times(written, word) += 1;
            }
            Step::Swap { line, word, since, again, wins, .. } => {
                access(self, line, Access::Atomic);
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
    fn a_swap_fails_where_another_core_writes_between_and_somebody_always_wins() {
        let [adds, swaps] = [add, swap].map(on(2, LockKind::InTurn, 0));
        assert_eq!(adds.failed, 0);
        assert!(swaps.failures() > 0.3, "{swaps:?}");
        assert!(swaps.each_ns() > 1.2 * adds.each_ns(), "{swaps:?} {adds:?}");
        let [a, b] = swaps.times[..] else { panic!("two cores") };
        assert!(a.min(b) * 4 > a.max(b), "nobody starves: {swaps:?}");
        assert_eq!(on(2, LockKind::InTurn, 5_000_000)(swap).failed, 0, "far apart");
        assert_eq!(on(1, LockKind::InTurn, 0)(swap).failed, 0, "alone");
    }

    /// Two cores of a socket, a line of 39 ns: each handing over takes one way.
    #[test]
    fn a_contended_counter_is_handed_on_line_by_line() {
        let one = on(1, LockKind::InTurn, 0)(add).each_ns();
        let [near, socket, both] =
            [2, 8, 16].map(|threads| on(threads, LockKind::InTurn, 0)(add).each_ns());
        assert!(one < 8.0 && (39.0..50.0).contains(&near), "{one} {near}");
        assert!((socket / near - 1.0).abs() < 0.1, "within a socket it stays: {socket}");
        assert!(both > 1.3 * socket, "and falls beyond: {both}");
    }

    #[test]
    fn a_lock_in_turn_goes_around_and_one_that_is_tested_stays() {
        let turn = on(2, LockKind::InTurn, 0)(lock);
        let free = on(2, LockKind::TestAndSet, 0)(lock);
        let all = |contended: &Contended| contended.times.iter().sum::<u64>();
        assert!(turn.turns * 10 >= all(&turn) * 9, "{turn:?}");
        assert!(free.turns * 2 < all(&free), "{free:?}");
        assert!(free.each_ns() * 2.0 < turn.each_ns(), "what is guarded stays, too");
    }

    #[test]
    fn what_a_lock_guards_moves_when_its_holder_changes() {
        let alone = on(1, LockKind::InTurn, 0)(lock).each_ns();
        let both = on(2, LockKind::InTurn, 0)(lock).each_ns();
        assert!(alone < 10.0, "{alone}");
        assert!(both > 2.0 * 39.0, "{both}");
    }

    #[test]
    fn who_failed_goes_on_behind_the_lock_that_it_took_since() {
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
