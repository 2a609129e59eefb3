//! Load from inside the process: closed-loop jobs that drive the data path without a protocol, as
//! fio does a device.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairq_core::{ClassWeights, FlowId, Op, Policy, Port};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::device::Device;
use crate::device::control::Control;
use crate::io::memory::{Buffer, Region};
use crate::io::ring::{Event, Ring};
use crate::observe::stats::{ShardCounters, TenantStats};
use crate::shard::Front;
use crate::shard::path::{DataPath, Finished};
use crate::shard::pool::{Shards, policy_loops};
use crate::shard::shared::Common;
use crate::shard::volume::{Order, Piece, Volume};

mod direct;
mod moves;

use moves::{Homes, Moves};

/// How long a run goes on unwatched.
const WATCH: Duration = Duration::from_millis(100);

/// What a job does, in the manner of fio.
#[derive(Clone, Debug)]
pub struct Job {
    /// The tenant's index.
    pub tenant: u16,
    /// The tenant's flow.
    pub flow: FlowId,
    /// Which of the device's files.
    pub file: u16,
    /// Where in the file its range begins, in bytes.
    pub base: u64,
    /// Size of its range, in bytes; at least one block.
    pub size: u64,
    /// Bytes of each request.
    pub block: u32,
    /// Requests it keeps in flight.
    pub depth: u16,
    /// Percentage of requests that are reads.
    pub read_percent: u8,
    /// Offsets at random, rather than one block after the other.
    pub random: bool,
    /// The most bytes a second it asks for.
    pub rate: Option<u64>,
    /// Pause between a completion and the request that follows it, in nanoseconds.
    pub think_ns: u64,
    /// When it begins, in nanoseconds after the measurement has; at 0 it is there from the start of
    /// the warm-up.
    pub starts_ns: u64,
    /// When it asks for no more, likewise.
    pub stops_ns: u64,
    /// Seed of its random numbers.
    pub seed: u64,
}

/// Bytes completed in each interval of a measurement. One job writes it, so it adds without a
/// locked instruction; others read it when the run is over.
#[derive(Debug)]
pub struct Series {
    /// When the first interval begins.
    begins_ns: u64,
    interval_ns: u64,
    bytes: Box<[AtomicU64]>,
}

impl Series {
    fn new(begins_ns: u64, interval_ns: u64, measured: Duration) -> Series {
        let intervals = (measured.as_nanos() as u64).div_ceil(interval_ns.max(1));
        let bytes = (0..intervals).map(|_| AtomicU64::new(0)).collect();
        Series { begins_ns, interval_ns: interval_ns.max(1), bytes }
    }

    #[inline]
    fn add(&self, now_ns: u64, bytes: u64) {
        let Some(since_ns) = now_ns.checked_sub(self.begins_ns) else { return };
        let Some(slot) = self.bytes.get((since_ns / self.interval_ns) as usize) else { return };
        slot.store(slot.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }
}

/// The jobs of one shard.
pub struct LoadFront {
    jobs: Vec<Running>,
    /// Which of them are at home here, if they are on all shards.
    homes: Option<Homes>,
    /// Which submits first; another one each turn, since who is first may take all the room there
    /// is.
    first: usize,
    stopping: bool,
}

struct Running {
    job: Job,
    volume: Volume,
    /// What it did when, if somebody wants to know.
    series: Option<Arc<Series>>,
    /// When it ends.
    ends_ns: u64,
    region: Region,
    /// One for each request in flight.
    buffers: Vec<Buffer>,
    /// Buffers not in use, and when each may be used again.
    idle: std::collections::VecDeque<(u16, u64)>,
    rng: SmallRng,
    /// The next block of a sequential job.
    next_block: u64,
    /// When the next request may go: when the job begins, and later as its rate says.
    next_ns: u64,
}

impl LoadFront {
    /// A front end that runs these jobs until it is stopped, of a run whose measurement begins at
    /// `begins_ns`; each job writes its series, if it has one.
    fn new(
        jobs: Vec<(Job, Option<Arc<Series>>)>,
        homes: Option<Homes>,
        begins_ns: u64,
    ) -> io::Result<LoadFront> {
        let running = |(job, series)| Running::new(job, series, begins_ns);
        let jobs = jobs.into_iter().map(running).collect::<io::Result<_>>()?;
        Ok(LoadFront { jobs, homes, first: 0, stopping: false })
    }

    /// The next request of a job, if one may go now.
    #[inline]
    fn next(&mut self, index: usize, now_ns: u64) -> Option<Order> {
        let running = &mut self.jobs[index];
        let cookie = (index as u64) << 16;
        let Some(homes) = &self.homes else { return running.next(now_ns, cookie) };
        if !homes.take(index) {
            return None;
        }
        let order = running.next(now_ns, cookie);
        if order.is_none() {
            homes.give(index);
        }
        order
    }

    /// Learns which jobs are at home.
    #[inline]
    fn look(&mut self, now_ns: u64) {
        if let Some(homes) = &mut self.homes {
            homes.look(now_ns);
        }
    }
}

impl Running {
    fn new(job: Job, series: Option<Arc<Series>>, begins_ns: u64) -> io::Result<Running> {
        let depth = usize::from(job.depth);
        let mut region =
            Region::map(depth * (job.block as usize).next_multiple_of(crate::io::memory::PAGE))?;
        let mut rng = SmallRng::seed_from_u64(job.seed);
        let buffers = (0..depth)
            .map(|_| {
                let mut buffer = region.allocate(job.block).ok_or(io::ErrorKind::OutOfMemory)?;
                // Incompressible, and no two alike.
                rng.fill(buffer.bytes_mut());
                Ok(buffer)
            })
            .collect::<io::Result<_>>()?;
        let idle = (0..job.depth).map(|index| (index, 0)).collect();
        let next_ns = if job.starts_ns == 0 { 0 } else { begins_ns + job.starts_ns };
        let ends_ns = begins_ns.saturating_add(job.stops_ns);
        let &Job { tenant, flow, file, base, size, .. } = &job;
        let volume = Volume { tenant, flow, file, base, size, read_only: false, block: 1 };
        let next_block = 0;
        Ok(Running {
            job,
            volume,
            series,
            ends_ns,
            region,
            buffers,
            idle,
            rng,
            next_block,
            next_ns,
        })
    }

    /// The next request, if one may go now.
    fn next(&mut self, now_ns: u64, cookie: u64) -> Option<Order> {
        let &(buffer, ready_ns) = self.idle.front()?;
        if ready_ns > now_ns || self.next_ns > now_ns || now_ns >= self.ends_ns {
            return None;
        }
        self.idle.pop_front();
        let job = &self.job;
        if let Some(rate) = job.rate {
            // A job that could not keep up does not burst afterwards by more than one request.
            let interval_ns = u64::from(job.block) * 1_000_000_000 / rate.max(1);
            self.next_ns = (self.next_ns + interval_ns).max(now_ns);
        }
        let blocks = (job.size / u64::from(job.block)).max(1);
        let block = if job.random {
            self.rng.random_range(0..blocks)
        } else {
            let block = self.next_block;
            self.next_block = (block + 1) % blocks;
            block
        };
        let read = self.rng.random_range(0..100) < job.read_percent;
        let op = if read { Op::Read } else { Op::Write };
        let (offset, memory) =
            (block * u64::from(job.block), self.buffers[usize::from(buffer)].memory());
        let piece = Piece::new(op, offset, job.block, memory, cookie | u64::from(buffer));
        Some(self.volume.order(&piece).expect("a job's blocks lie in its range"))
    }
}

impl Front for LoadFront {
    type Message = ();

    fn message<P: Port, D: Device>(
        &mut self,
        _: u64,
        _: &mut Ring,
        _: &mut DataPath<P, D>,
        (): (),
    ) {
    }

    fn event(&mut self, _now_ns: u64, _ring: &mut Ring, _event: Event) {}

    fn arrivals<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        if self.stopping {
            return;
        }
        self.look(now_ns);
        let count = self.jobs.len();
        self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        for index in (self.first..count).chain(0..self.first) {
            while path.has_room() {
                let Some(order) = self.next(index, now_ns) else { break };
                // SAFETY: the buffer left `idle`, and returns there when the order is finished;
                // until then nobody touches it, and the region lives as long as the front end,
                // which outlives its orders.
                unsafe { path.submit(now_ns, ring, &order) }
                    .expect("flows of a load run are not removed");
            }
        }
    }

    fn finished(&mut self, now_ns: u64, finished: Finished) {
        let index = (finished.cookie >> 16) as usize;
        if let Some(homes) = &self.homes {
            homes.give(index);
        }
        let running = &mut self.jobs[index];
        if let Some(series) = &running.series {
            series.add(now_ns, u64::from(running.job.block));
        }
        running.idle.push_back((finished.cookie as u16, now_ns + running.job.think_ns));
    }

    fn flush(&mut self, _now_ns: u64, _ring: &mut Ring) -> bool {
        false
    }

    fn deadline_ns(&self) -> Option<u64> {
        if self.stopping {
            return None;
        }
        if let Some(homes) = &self.homes {
            return Some(homes.deadline_ns());
        }
        let next = |running: &Running| {
            running.idle.front().map(|&(_, ready_ns)| ready_ns.max(running.next_ns))
        };
        // A job that has ended waits for nothing.
        self.jobs
            .iter()
            .filter_map(|running| next(running).filter(|&at_ns| at_ns < running.ends_ns))
            .min()
    }

    fn resume(&mut self) {}

    fn stop(&mut self) {
        self.stopping = true;
    }

    fn is_stopped(&self) -> bool {
        self.jobs.iter().all(|running| running.idle.len() == running.buffers.len())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A buffer that an order has is not given back: the region then stays mapped.
        if self.idle.len() == self.buffers.len() {
            self.buffers.drain(..).for_each(|buffer| self.region.free(buffer));
        }
    }
}

/// How long to run.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Not counted, at the start.
    pub warmup: Duration,
    /// Counted.
    pub measured: Duration,
    /// Into how long intervals the measured time is cut for a series of what each tenant got; none
    /// if there is no need.
    pub interval: Option<Duration>,
}

/// Which way requests take to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Path {
    /// The loop of a [shard](crate::shard).
    #[default]
    Shards,
    /// The [`DirectPath`](crate::shard::direct::DirectPath), polled by the thread that makes the
    /// requests.
    Direct,
}

/// The threads that make a load, one for each port of the policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads<'a> {
    /// The CPU of each; those without one are not pinned.
    pub cpus: &'a [usize],
    /// How their requests get to the device.
    pub path: Path,
    /// How long a job stays on one of them, if they do not stay: it then moves to one at random.
    pub moves: Option<Duration>,
}

/// What came out of a load run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What each tenant got while it was measured.
    pub tenants: Vec<TenantStats>,
    /// How long that was.
    pub elapsed: Duration,
    /// CPU time of the whole process meanwhile.
    pub cpu: Duration,
    /// How often one of its threads had to give its CPU to somebody else's meanwhile.
    pub preempted: u64,
    /// The part of the time that its shards were ready to run and others had their CPUs, 0 to 1 on
    /// average, if the kernel tells.
    pub cpu_wait: Option<f64>,
    /// Bytes of each tenant in each interval, if [`Times::interval`] asks for it.
    pub series: Vec<Vec<u64>>,
    /// The weights that the policy had the device's classes given, and from when: after the
    /// measurement began, or 0.
    pub class_weights: Vec<(Duration, ClassWeights)>,
    /// What was known of D in the end ([`fairq_core::Stats::known_slots`]).
    pub slots: Option<u64>,
}

/// Runs jobs, `jobs[n]` on thread n (from where they may [move](Threads::moves)), through a policy
/// on a device; `watch` is called at least every 100 ms with the part that is done, and ends the
/// run early by returning false.
pub fn run<L: Policy, D: Device>(
    policy: &L,
    ports: Vec<L::Port>,
    common: &Common<D>,
    threads: Threads<'_>,
    jobs: Vec<Vec<Job>>,
    times: Times,
    mut watch: impl FnMut(f64) -> bool,
) -> io::Result<Measured>
where
    L::Port: 'static,
{
    let begins_ns = common.clock.now_ns() + times.warmup.as_nanos() as u64;
    let series = |job: &Job| {
        let interval_ns = times.interval?.as_nanos() as u64;
        Some((job.tenant, Arc::new(Series::new(begins_ns, interval_ns, times.measured))))
    };
    let mut all_series = Vec::new();
    let mut with_series = |job: Job| {
        let series = series(&job);
        all_series.extend(series.clone());
        (job, series.map(|(_, series)| series))
    };
    let Threads { cpus, path, moves } = threads;
    let (mut jobs, moves) = match moves {
        None => (jobs, None),
        Some(interval) => {
            let all = jobs.concat();
            let moves = Moves::new(&all, ports.len(), interval.as_nanos() as u64, begins_ns);
            (vec![all; ports.len()], Some(Arc::new(moves)))
        }
    };
    jobs.resize_with(ports.len(), Vec::new);
    let mut jobs = jobs.into_iter();
    let mut control =
        Control::start(policy, &*common.device, common.wakers.clone()).map_err(io::Error::other)?;
    let front = |shard| {
        let jobs = jobs.next().unwrap_or_default().into_iter().map(&mut with_series).collect();
        LoadFront::new(jobs, moves.clone().map(|moves| Homes::new(moves, shard)), begins_ns)
    };
    let shards = match path {
        Path::Shards => Shards::start(policy_loops(ports), common, cpus, front)?,
        Path::Direct => direct::start(ports, common, cpus, front)?,
    };
    let total = times.warmup + times.measured;
    let started = Instant::now();
    let mut class_weights: Vec<(Duration, ClassWeights)> = Vec::new();
    let mut pause = |until: Duration| {
        while started.elapsed() < until {
            let now_ns = common.clock.now_ns();
            control.tick(now_ns);
            if let Some(weights) = control.class_weights()
                && class_weights.last().is_none_or(|&(_, last)| last != weights)
            {
                class_weights
                    .push((Duration::from_nanos(now_ns.saturating_sub(begins_ns)), weights));
            }
            if !watch(started.elapsed().as_secs_f64() / total.as_secs_f64()) {
                return;
            }
            let next_ns =
                control.deadline_ns().unwrap_or(u64::MAX).saturating_sub(common.clock.now_ns());
            let left = until.saturating_sub(started.elapsed());
            std::thread::sleep(left.min(WATCH).min(Duration::from_nanos(next_ns)));
        }
    };
    pause(times.warmup);
    let (before, cpu_before, start) = (shards.stats(), Usage::now(), Instant::now());
    pause(total);
    let (after, cpu_after, elapsed) = (shards.stats(), Usage::now(), start.elapsed());
    let slots = policy.stats().known_slots();
    shards.stop();
    let tenants = after
        .tenants
        .iter()
        .zip(&before.tenants)
        .map(|(after, before)| after.since(before))
        .collect();
    let series = total_series(common.tenants, &all_series);
    let Usage { cpu, preempted } = cpu_after.since(cpu_before);
    let cpu_wait = cpu_wait(&before.shards, &after.shards)
        .map(|waited| waited.as_secs_f64() / elapsed.as_secs_f64());
    Ok(Measured { tenants, elapsed, cpu, preempted, cpu_wait, series, class_weights, slots })
}

/// How long a shard waited for its CPU between two looks, on average.
fn cpu_wait(before: &[ShardCounters], after: &[ShardCounters]) -> Option<Duration> {
    let waited = |(before, after): (&ShardCounters, &ShardCounters)| {
        Some(Duration::from_nanos(after.cpu?.waited_ns.saturating_sub(before.cpu?.waited_ns)))
    };
    let each: Option<Vec<Duration>> = before.iter().zip(after).map(waited).collect();
    each.map(|each| each.iter().sum::<Duration>() / each.len().max(1) as u32)
}

/// What each tenant's jobs did in each interval, together.
fn total_series(tenants: usize, series: &[(u16, Arc<Series>)]) -> Vec<Vec<u64>> {
    let Some((_, first)) = series.first() else { return Vec::new() };
    let mut totals = vec![vec![0; first.bytes.len()]; tenants];
    for (tenant, series) in series {
        let total = totals[usize::from(*tenant)].iter_mut();
        total.zip(&series.bytes).for_each(|(total, bytes)| *total += bytes.load(Ordering::Relaxed));
    }
    totals
}

/// What this process has had of the CPUs, the threads that are gone included.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Time in user and kernel mode.
    pub(crate) cpu: Duration,
    /// How often a thread had to give its CPU away.
    pub(crate) preempted: u64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        // SAFETY: all-zero is a valid value, which the kernel overwrites.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a value of the right type.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
        Usage {
            cpu: Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
            preempted: usage.ru_nivcsw as u64,
        }
    }

    pub(crate) fn since(self, before: Usage) -> Usage {
        Usage { cpu: self.cpu - before.cpu, preempted: self.preempted - before.preempted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::null::NullDevice;
    use crate::io::wakers::Wakers;
    use crate::observe::cpu_time::CpuTime;
    use fairq_core::Weight;
    use fairq_core::none::NonePolicy;
    use fairq_core::serial::SerialConfig;
    use fairq_core::sfqd::Sfqd;

    fn common() -> Common<NullDevice> {
        let wakers = Arc::new(Wakers::new(2).unwrap());
        Common::new(Arc::new(NullDevice::new(1 << 30)), wakers, 256, 1)
    }

    pub(super) fn job(flow: FlowId) -> Job {
        Job {
            tenant: 0,
            flow,
            file: 0,
            base: 0,
            size: 1 << 20,
            block: 4096,
            depth: 16,
            read_percent: 100,
            random: true,
            rate: None,
            think_ns: 0,
            starts_ns: 0,
            stops_ns: u64::MAX,
            seed: 1,
        }
    }

    fn counts_what_it_did(path: Path) {
        let (policy, ports) = NonePolicy::<fairq_core::Native>::new(2, 4, 256).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let limited = Job { rate: Some(40_960_000), read_percent: 0, ..job(flow) };
        let times = Times {
            warmup: Duration::from_millis(20),
            measured: Duration::from_millis(300),
            interval: None,
        };
        let run = run(
            &policy,
            ports,
            &common(),
            Threads { path, ..Threads::default() },
            vec![vec![job(flow)], vec![limited]],
            times,
            |_| true,
        )
        .unwrap();
        let got = &run.tenants[0];
        assert!(got.reads > 1_000, "{got:?}");
        assert!(got.read_bytes == got.reads * 4096);
        // 10,000 writes a second for the time measured.
        let expected = 10_000.0 * run.elapsed.as_secs_f64();
        assert!(
            (got.writes as f64) <= expected * 1.05 + 2.0 && got.writes > 0,
            "{} against {expected}",
            got.writes
        );
        assert_eq!(got.latency_ns.len(), got.operations());
    }

    fn lives_as_long_as_it_is_told(path: Path) {
        let (policy, ports) = NonePolicy::<fairq_core::Native>::new(2, 4, 256).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let ms = Duration::from_millis;
        let guest = Job { tenant: 1, starts_ns: 100_000_000, stops_ns: 200_000_000, ..job(flow) };
        let times = Times { warmup: ms(20), measured: ms(300), interval: Some(ms(10)) };
        let common = Common { tenants: 2, ..common() };
        let run = run(
            &policy,
            ports,
            &common,
            Threads { path, ..Threads::default() },
            vec![vec![job(flow)], vec![guest]],
            times,
            |_| true,
        )
        .unwrap();
        assert_eq!(run.series.len(), 2);
        assert_eq!(run.series[0].len(), 30);
        let alive: Vec<usize> = (0..30).filter(|&at| run.series[1][at] > 0).collect();
        // Late by whole intervals where others have the CPU, never early.
        assert!(alive.first().is_some_and(|&first| (10..20).contains(&first)), "{alive:?}");
        assert!(alive.last().is_some_and(|&last| (10..28).contains(&last)), "{alive:?}");
        let total: u64 = run.series[1].iter().sum();
        assert_eq!(total, run.tenants[1].bytes());
        assert!(run.class_weights.is_empty(), "`none` wants no weights");
    }

    #[test]
    fn waiting_is_that_of_the_mean_shard_if_all_tell() {
        let counters = |waited_ns: Option<u64>| ShardCounters {
            cpu: waited_ns.map(|waited_ns| CpuTime { ran_ns: 5, waited_ns }),
            ..Default::default()
        };
        let [before, after] =
            [[7, 1_000], [2_000_007, 4_001_000]].map(|waited| waited.map(|ns| counters(Some(ns))));
        assert_eq!(cpu_wait(&before, &after), Some(Duration::from_millis(3)));
        assert_eq!(cpu_wait(&before, &[after[0], counters(None)]), None);
    }

    #[test]
    fn a_load_run_counts_what_it_did() {
        counts_what_it_did(Path::Shards);
        counts_what_it_did(Path::Direct);
    }

    #[test]
    fn a_job_lives_as_long_as_it_is_told_and_its_series_shows_it() {
        lives_as_long_as_it_is_told(Path::Shards);
        lives_as_long_as_it_is_told(Path::Direct);
    }

    /// On one shard it would be half of the intervals away.
    #[test]
    fn a_job_that_moves_is_somewhere_all_the_time() {
        for path in [Path::Shards, Path::Direct] {
            let (policy, ports) = NonePolicy::<fairq_core::Native>::new(2, 4, 256).unwrap();
            let flow = policy.add_flow(Weight::DEFAULT).unwrap();
            let ms = Duration::from_millis;
            let times = Times { warmup: ms(20), measured: ms(400), interval: Some(ms(20)) };
            let threads = Threads { path, moves: Some(ms(20)), ..Threads::default() };
            let run =
                run(&policy, ports, &common(), threads, vec![vec![job(flow)]], times, |_| true)
                    .unwrap();
            let served = run.series[0].iter().filter(|&&bytes| bytes > 0).count();
            assert!(served >= 13, "{path:?}: {:?}", run.series[0]);
        }
    }

    /// A device that is done at once takes what a shard may submit in a turn, turn for turn: all of
    /// it were the first job's.
    #[test]
    fn jobs_of_one_shard_take_turns() {
        let (policy, ports) = NonePolicy::<fairq_core::Native>::new(1, 4, 256).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let second = Job { tenant: 1, depth: 64, ..job(flow) };
        let times =
            Times { warmup: Duration::ZERO, measured: Duration::from_millis(50), interval: None };
        let common = Common { tenants: 2, ..common() };
        let jobs = vec![vec![Job { depth: 64, ..job(flow) }, second]];
        let run = run(&policy, ports, &common, Threads::default(), jobs, times, |_| true).unwrap();
        let [first, second] = [0, 1].map(|tenant: usize| run.tenants[tenant].reads);
        assert!(first.min(second) * 4 > first.max(second) * 3, "{first} and {second}");
    }

    #[test]
    fn a_policy_that_stages_is_refused_the_direct_path() {
        let config = SerialConfig::new(2, 1, 256).with(|config| config.slots = 1);
        let (policy, ports) = Sfqd::<fairq_core::Native>::new(&config).unwrap();
        let times =
            Times { warmup: Duration::ZERO, measured: Duration::from_millis(10), interval: None };
        let threads = Threads { path: Path::Direct, ..Threads::default() };
        let refused =
            run(&policy, ports, &common(), threads, Vec::new(), times, |_| true).unwrap_err();
        assert!(refused.to_string().contains("never holds a request back"), "{refused}");
    }

    /// Shards that ended did not deliver the wake-ups of their last completions: with one slot, the
    /// shard that ended last waited for it for ever.
    #[test]
    fn a_shard_that_ends_wakes_those_that_it_unblocked() {
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..40 {
                let config = SerialConfig::new(2, 1, 256).with(|config| config.slots = 1);
                let (policy, ports) = Sfqd::<fairq_core::Native>::new(&config).unwrap();
                let flow = policy.add_flow(Weight::DEFAULT).unwrap();
                let times = Times {
                    warmup: Duration::ZERO,
                    measured: Duration::from_millis(2),
                    interval: None,
                };
                let jobs = vec![vec![job(flow)], vec![job(flow)]];
                run(&policy, ports, &common(), Threads::default(), jobs, times, |_| true).unwrap();
            }
            sender.send(()).unwrap();
        });
        done.recv_timeout(Duration::from_secs(60)).expect("every run ends");
    }
}
