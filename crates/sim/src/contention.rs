//! Cores that do the same over and over to the same words, with [races](crate::races): the modelled
//! side of `cargo bench --bench coherence`, which measures the other side on this machine.

use crate::host::Host;
use crate::races::{Effect, Happened, LockKind, Races, Step};
use crate::random::Random;
use crate::traced;

/// The outcome of a contest.
#[derive(Clone, PartialEq, Debug)]
pub struct Contended {
    /// How often each core did it.
    pub times: Vec<u64>,
    /// How often the core that finished was another one than the time before.
    pub turns: u64,
    /// Compare-and-swaps that failed.
    pub failed: u64,
    /// For how long, in nanoseconds.
    pub lasts_ns: u64,
}

impl Contended {
    /// Nanoseconds for each time, of all cores together.
    pub fn each_ns(&self) -> f64 {
        self.lasts_ns as f64 / self.times.iter().sum::<u64>() as f64
    }

    /// Failed compare-and-swaps for each time.
    pub fn failures(&self) -> f64 {
        self.failed as f64 / self.times.iter().sum::<u64>() as f64
    }
}

/// A contest.
#[derive(Clone, Copy, Debug)]
pub struct Contest {
    /// How locks are waited for.
    pub locks: LockKind,
    /// How long it lasts.
    pub lasts_ns: u64,
    /// The time of each call beside shared words, in picoseconds.
    pub takes_ps: u64,
    /// The time between two calls of a core.
    pub pause_ps: u64,
}

/// Calls the closure that `build` makes over and over on each hardware thread of the host, with the
/// thread's number. Shared words and locks are those of [`Traced`](crate::traced::Traced) that
/// `build` makes.
pub fn contend<F: FnMut(usize)>(
    host: &Host,
    contest: &Contest,
    build: impl FnOnce() -> F,
) -> Contended {
    let Contest { locks, lasts_ns, takes_ps, pause_ps } = *contest;
    let cores = host.cores();
    let mut contended = Contended { times: vec![0; cores.len()], turns: 0, failed: 0, lasts_ns };
    let mut races = Races::new(host, locks);
    traced::begin(host.caches());
    let mut verb = build();
    let begin = |races: &mut Races, verb: &mut F, port: usize, from_ps| {
        traced::record(takes_ps, || verb(port));
        traced::then(Step::Do(Effect::Free));
        let steps = traced::recorded(races.empty());
        races.start(port, from_ps, steps);
    };
    // Cores begin in a random order: in that of their places each line would cross sockets only
    // twice a round.
    let mut ports: Vec<usize> = (0..cores.len()).collect();
    Random::new(1, 0).shuffle(&mut ports);
    for (from_ps, &port) in (0..).zip(&ports) {
        begin(&mut races, &mut verb, port, from_ps * (1 + pause_ps / cores.len() as u64));
    }
    let mut last = None;
    while races.next_ps().is_some_and(|next_ps| next_ps < lasts_ns * 1000) {
        let happened = traced::with_caches(|caches| races.run(caches, u64::MAX));
        let Some(Happened { port, at_ps, raced, .. }) = happened else { continue };
        contended.times[port] += 1;
        contended.failed += raced.failed;
        contended.turns += u64::from(last.replace(port) != Some(port));
        begin(&mut races, &mut verb, port, at_ps + pause_ps);
    }
    traced::end();
    contended
}

/// Within a call: other work, in nanoseconds.
pub fn work_ns(takes_ns: f64) {
    traced::work((takes_ns.max(0.0) * 1000.0) as u64);
}
