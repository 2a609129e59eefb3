//! Racing cores that repeat one operation on the same words: the modelled side of `cargo bench
//! --bench coherence`, which measures the other side on this machine.

use fairq_core::PortSet;

use crate::host::Host;
use crate::races::{Answered, Races};
use crate::random::Random;
use crate::traced;
use crate::verb::{Answer, Verb};

/// The outcome of a contest.
#[derive(Clone, PartialEq, Debug)]
pub struct Contended {
    /// Number of operations of each core.
    pub times: Vec<u64>,
    /// Number of operations that finished on another core than the operation before them.
    pub turns: u64,
    /// Compare-and-swaps that failed.
    pub failed: u64,
    /// Duration, in nanoseconds.
    pub lasts_ns: u64,
}

impl Contended {
    /// Nanoseconds per operation, of all cores together.
    pub fn each_ns(&self) -> f64 {
        self.lasts_ns as f64 / self.times.iter().sum::<u64>() as f64
    }

    /// Failed compare-and-swaps per operation.
    pub fn failures(&self) -> f64 {
        self.failed as f64 / self.times.iter().sum::<u64>() as f64
    }
}

/// A contest.
#[derive(Clone, Copy, Debug)]
pub struct Contest {
    /// Duration, in nanoseconds.
    pub lasts_ns: u64,
    /// The time of each call without its accesses to shared words, in picoseconds.
    pub takes_ps: u64,
    /// The time between two calls of a core, in picoseconds.
    pub pause_ps: u64,
}

/// Calls the closures that `build` makes over and over, one on each hardware thread of the host.
/// Shared words and locks are those of [`Traced`](crate::traced::Traced) that `build` makes.
pub fn contend<F: FnMut() + Send + 'static>(
    host: &Host,
    contest: &Contest,
    build: impl FnOnce() -> Vec<F>,
) -> Contended {
    let Contest { lasts_ns, takes_ps, pause_ps } = *contest;
    traced::begin(host.caches());
    let calls = build().into_iter().map(|mut call| {
        move |_, _| {
            traced::work(takes_ps);
            call();
            (Answer::Completed, PortSet::EMPTY)
        }
    });
    let mut races = Races::new(host, calls);
    let cores = host.cores().len();
    let mut contended = Contended { times: vec![0; cores], turns: 0, failed: 0, lasts_ns };
    // Cores begin in a random order: in the order of their places each line would cross sockets
    // only twice a round.
    let mut ports: Vec<usize> = (0..cores).collect();
    Random::new(1, 0).shuffle(&mut ports);
    for (at, &port) in (0..).zip(&ports) {
        races.begin(port, at * (1 + pause_ps / cores as u64), 0, Verb::Next, 0);
    }
    let mut last = None;
    while races.next_ps().is_some_and(|next_ps| next_ps < lasts_ns * 1000) {
        let Some(Answered { port, at_ps, failed, .. }) = races.run(u64::MAX) else { continue };
        contended.times[port] += 1;
        contended.failed += failed;
        contended.turns += u64::from(last.replace(port) != Some(port));
        races.give_back(port, at_ps);
        races.begin(port, at_ps + pause_ps, 0, Verb::Next, 0);
    }
    races.end();
    traced::end();
    contended
}
