//! Jobs that move between shards, as threads move between cores: a job's shard changes at
//! intervals.
//!
//! **Problem.** If one thread of each tenant is pinned to each shard, the CPUs alone give all
//! tenants equal service, and a scheduler that limits the lead of one tenant over another has
//! nothing to do. An operating system, however, moves threads between cores. **Model.** Every shard
//! has all jobs and runs those whose home it is. The homes depend only on the number of the
//! interval and on the jobs that run when it begins, so shards agree on them without communication:
//! running jobs are distributed at random, and the shards' numbers of jobs differ by at most one. A
//! request ends on the shard where it began, and the job's next one begins on its home. **Memory
//! order.** The requests that a job may still send are counted in one word for all shards, which
//! guards no other data, so access is relaxed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::Job;

/// The pause after which an idle shard checks again whether requests of its jobs have completed on
/// other shards, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 20_000;

/// The jobs of all shards.
pub(super) struct Moves {
    interval_ns: u64,
    shards: usize,
    /// The start and the end of each job, relative to the start of the measurement; a job that
    /// starts at 0 also runs during the warm-up.
    lives_ns: Vec<(u64, u64)>,
    /// The number of requests that each job may still send.
    spare: Box<[CachePadded<AtomicU32>]>,
}

impl Moves {
    /// Jobs whose homes change every `interval_ns`.
    pub(super) fn new(jobs: &[Job], shards: usize, interval_ns: u64) -> Moves {
        let spare = |job: &Job| CachePadded::new(AtomicU32::new(job.depth.into()));
        Moves {
            interval_ns: interval_ns.max(1),
            shards: shards.max(1),
            lives_ns: jobs.iter().map(|job| (job.starts_ns, job.stops_ns)).collect(),
            spare: jobs.iter().map(spare).collect(),
        }
    }

    /// Each job's home in the interval that contains `now_ns`, in a run whose measurement begins at
    /// `begins_ns`.
    fn homes(&self, now_ns: u64, begins_ns: u64) -> Vec<usize> {
        let mut rng = SmallRng::seed_from_u64(now_ns / self.interval_ns);
        let is_here = |job: &usize| {
            let (starts_ns, stops_ns) = self.lives_ns[*job];
            (starts_ns == 0 || begins_ns.saturating_add(starts_ns) <= now_ns)
                && now_ns < begins_ns.saturating_add(stops_ns)
        };
        let (mut here, mut away): (Vec<usize>, Vec<usize>) =
            (0..self.lives_ns.len()).partition(is_here);
        let mut shards: Vec<usize> = (0..self.shards).collect();
        here.shuffle(&mut rng);
        away.shuffle(&mut rng);
        shards.shuffle(&mut rng);
        let mut homes = vec![0; self.lives_ns.len()];
        // Jobs that have not begun yet may begin before the interval ends.
        here.iter()
            .chain(&away)
            .zip(shards.iter().cycle())
            .for_each(|(&job, &shard)| homes[job] = shard);
        homes
    }
}

/// The jobs whose home is one shard.
pub(super) struct Homes {
    moves: Arc<Moves>,
    shard: usize,
    homes: Vec<usize>,
    /// The time of the last update.
    now_ns: u64,
    until_ns: u64,
}

impl Homes {
    pub(super) fn new(moves: Arc<Moves>, shard: usize) -> Homes {
        Homes { moves, shard, homes: Vec::new(), now_ns: 0, until_ns: 0 }
    }

    /// Updates the homes of jobs to the interval of `now_ns`.
    #[inline]
    pub(super) fn look(&mut self, now_ns: u64, begins_ns: u64) {
        self.now_ns = now_ns;
        if now_ns >= self.until_ns {
            self.homes = self.moves.homes(now_ns, begins_ns);
            self.until_ns = (now_ns / self.moves.interval_ns + 1) * self.moves.interval_ns;
        }
    }

    /// True if the job's home is here and it may send a request; [`Self::give`] must be called when
    /// that request has ended.
    #[inline]
    pub(super) fn take(&self, job: usize) -> bool {
        let less = |spare: u32| spare.checked_sub(1);
        self.homes[job] == self.shard
            && self.moves.spare[job]
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                .is_ok()
    }

    /// Records that one of the job's requests has completed, or was not sent.
    #[inline]
    pub(super) fn give(&self, job: usize) {
        self.moves.spare[job].fetch_add(1, Ordering::Relaxed);
    }

    /// The time of the next check.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.now_ns + LOOK_AGAIN_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::load::tests::job;
    use fairq_core::none::NonePolicy;
    use fairq_core::{Policy, Weight};
    use proptest::prelude::*;

    proptest! {
        /// Each job has one home, running jobs are distributed evenly over shards, and all shards
        /// agree on the homes.
        #[test]
        fn homes_are_dealt_evenly(jobs in 1..20usize, late in 0..10usize, shards in 1..8usize, interval in 0..100u64) {
            let (policy, _ports) = NonePolicy::<fairq_core::Native>::new(1, 1, 1).unwrap();
            let flow = policy.add_flow(Weight::DEFAULT).unwrap();
            let later = crate::measure::load::Job { starts_ns: u64::MAX - 1, ..job(flow) };
            let all: Vec<_> = (0..jobs).map(|_| job(flow)).chain((0..late).map(|_| later.clone())).collect();
            let moves = Moves::new(&all, shards, 1000);
            let homes = moves.homes(interval * 1000, 0);
            prop_assert_eq!(&homes, &moves.homes(interval * 1000 + 999, 0));
            let here = |shard: usize| homes[..jobs].iter().filter(|&&home| home == shard).count();
            prop_assert!((0..shards).all(|shard| (jobs / shards..=jobs.div_ceil(shards)).contains(&here(shard))));
        }
    }

    #[test]
    fn a_job_sends_at_home_alone_and_never_more_than_its_depth() {
        let (policy, _ports) = NonePolicy::<fairq_core::Native>::new(1, 1, 1).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let moves = Arc::new(Moves::new(&[job(flow)], 2, 1000));
        let mut shards = [0, 1].map(|shard| Homes::new(moves.clone(), shard));
        let mut homes = [0; 2];
        let depth = u32::from(job(flow).depth);
        for interval in 0..100 {
            shards.iter_mut().for_each(|shard| shard.look(interval * 1000, 0));
            let sent: Vec<u32> = shards
                .iter()
                .map(|shard| (0..).take_while(|_| shard.take(0)).count() as u32)
                .collect();
            assert_eq!(sent.iter().sum::<u32>(), depth, "{sent:?}");
            let home = sent.iter().position(|&sent| sent == depth).expect("all at one home");
            homes[home] += 1;
            // Requests may end on any shard.
            (0..depth).for_each(|end| shards[end as usize % 2].give(0));
        }
        assert!(homes.iter().all(|&times| times > 20), "it moves: {homes:?}");
    }
}
