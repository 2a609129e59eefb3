//! Load from inside the process: closed-loop jobs that drive the data path without a protocol, as
//! fio drives a device.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fairq_core::{ClassWeights, FlowId, Op, Policy, Port};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::device::Device;
use crate::device::control::Control;
use crate::io::memory::{Buffer, Region};
use crate::io::ring::{Event, Ring};
use crate::measure::stall::{Disturbance, Time, Watch};
use crate::observe::stats::{ShardCounters, TenantStats};
use crate::shard::path::{DataPath, Finished};
use crate::shard::pool::{Shards, policy_loops};
use crate::shard::shared::Common;
use crate::shard::volume::{Order, Piece, Volume};
use crate::shard::{Front, Message, Notice};

mod direct_load;
mod moves;

use moves::{Homes, Moves};

/// The measurement has not begun.
const NOT_BEGUN: u64 = u64::MAX;

/// A closed-loop job: it keeps a number of requests in flight, as a job of fio does.
#[derive(Clone, Debug)]
pub struct Job {
    /// The tenant's index.
    pub tenant: u16,
    /// The tenant's flow.
    pub flow: FlowId,
    /// The number of the device's file.
    pub file: u16,
    /// Start of its range in the file, in bytes.
    pub base: u64,
    /// Size of its range, in bytes; at least one block.
    pub size: u64,
    /// Bytes of each request.
    pub block: u32,
    /// Requests that it keeps in flight.
    pub depth: u16,
    /// Percentage of requests that are reads.
    pub read_percent: u8,
    /// Offsets at random, rather than one block after the other.
    pub random: bool,
    /// The most bytes a second that it requests.
    pub rate: Option<u64>,
    /// Pause between a completion and the request that follows it, in nanoseconds.
    pub think_ns: u64,
    /// The time when it begins, in nanoseconds after the start of the measurement. With 0 it
    /// already runs during the warm-up.
    pub starts_ns: u64,
    /// The time when it stops, in nanoseconds after the start of the measurement.
    pub stops_ns: u64,
    /// Seed of its random numbers.
    pub seed: u64,
}

/// Bytes completed in each interval of a measurement. One job writes it, so it adds without a
/// locked instruction; other threads read it when the run is over.
#[derive(Debug)]
pub struct Series {
    interval_ns: u64,
    bytes: Box<[AtomicU64]>,
}

impl Series {
    fn new(interval_ns: u64, measured: Duration) -> Series {
        let intervals = (measured.as_nanos() as u64).div_ceil(interval_ns.max(1));
        let bytes = (0..intervals).map(|_| AtomicU64::new(0)).collect();
        Series { interval_ns: interval_ns.max(1), bytes }
    }

    /// Adds bytes that completed at `now_ns`, in a measurement that began at `begins_ns`.
    #[inline]
    fn add(&self, begins_ns: u64, now_ns: u64, bytes: u64) {
        let Some(since_ns) = now_ns.checked_sub(begins_ns) else { return };
        let Some(slot) = self.bytes.get((since_ns / self.interval_ns) as usize) else { return };
        slot.store(slot.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }
}

/// The jobs of one shard.
pub struct LoadFront {
    jobs: Vec<Running>,
    /// The jobs that now run on this shard, if jobs move between shards.
    homes: Option<Homes>,
    /// The index of the job that submits first. It changes in each turn, since the first job may
    /// use up all free tags.
    first: usize,
    /// The time when the measurement began, or [`NOT_BEGUN`].
    begins_ns: u64,
    stopping: bool,
}

struct Running {
    job: Job,
    volume: Volume,
    /// Its completions over time, if requested.
    series: Option<Arc<Series>>,
    /// The time when it ends; [`NOT_BEGUN`] until the measurement has begun.
    ends_ns: u64,
    region: Region,
    /// A buffer for each request in flight.
    buffers: Vec<Buffer>,
    /// Buffers not in use, each with the time from which it may be used again.
    idle: std::collections::VecDeque<(u16, u64)>,
    rng: SmallRng,
    /// The next block of a sequential job.
    next_block: u64,
    /// The time from which the next request may be submitted: at first the start of the job, later
    /// determined by its rate. For a job that begins during the measurement, it is [`NOT_BEGUN`]
    /// until the measurement begins.
    next_ns: u64,
}

impl LoadFront {
    /// A front end that runs these jobs until it is stopped; each job writes its series, if it has
    /// one.
    fn new(jobs: Vec<(Job, Option<Arc<Series>>)>, homes: Option<Homes>) -> io::Result<LoadFront> {
        let running = |(job, series)| Running::new(job, series);
        let jobs = jobs.into_iter().map(running).collect::<io::Result<_>>()?;
        Ok(LoadFront { jobs, homes, first: 0, begins_ns: NOT_BEGUN, stopping: false })
    }

    /// Begins the measurement at `begins_ns`.
    fn begin(&mut self, begins_ns: u64) {
        self.begins_ns = begins_ns;
        self.jobs.iter_mut().for_each(|running| running.begin(begins_ns));
    }

    /// The next request of a job, if it may submit one now.
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

    /// Updates the set of jobs that run on this shard.
    #[inline]
    fn look(&mut self, now_ns: u64) {
        if let Some(homes) = &mut self.homes {
            homes.look(now_ns, self.begins_ns);
        }
    }
}

impl Running {
    fn new(job: Job, series: Option<Arc<Series>>) -> io::Result<Running> {
        let depth = usize::from(job.depth);
        let mut region =
            Region::map(depth * (job.block as usize).next_multiple_of(crate::io::memory::PAGE))?;
        let mut rng = SmallRng::seed_from_u64(job.seed);
        let buffers = (0..depth)
            .map(|_| {
                let mut buffer = region.allocate(job.block).ok_or(io::ErrorKind::OutOfMemory)?;
                // The data are incompressible, and no two buffers are equal.
                rng.fill(buffer.bytes_mut());
                Ok(buffer)
            })
            .collect::<io::Result<_>>()?;
        let idle = (0..job.depth).map(|index| (index, 0)).collect();
        let next_ns = if job.starts_ns == 0 { 0 } else { NOT_BEGUN };
        let &Job { tenant, flow, file, base, size, .. } = &job;
        let volume = Volume { tenant, flow, file, base, size, read_only: false, block: 1 };
        let (ends_ns, next_block) = (NOT_BEGUN, 0);
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

    /// Sets the times at which the job begins and ends.
    fn begin(&mut self, begins_ns: u64) {
        if self.job.starts_ns > 0 {
            self.next_ns = begins_ns.saturating_add(self.job.starts_ns);
        }
        self.ends_ns = begins_ns.saturating_add(self.job.stops_ns);
    }

    /// The next request, if the job may submit one now.
    fn next(&mut self, now_ns: u64, cookie: u64) -> Option<Order> {
        let &(buffer, ready_ns) = self.idle.front()?;
        if ready_ns > now_ns || self.next_ns > now_ns || now_ns >= self.ends_ns {
            return None;
        }
        self.idle.pop_front();
        let job = &self.job;
        if let Some(rate) = job.rate {
            // A job that fell behind its rate bursts by at most one request afterwards.
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
    /// The time when the measurement begins.
    type Message = u64;

    fn message<P: Port, D: Device>(
        &mut self,
        _: u64,
        _: &mut Ring,
        _: &mut DataPath<P, D>,
        begins_ns: u64,
    ) {
        self.begin(begins_ns);
    }

    fn notice<P: Port, D: Device>(
        &mut self,
        _: u64,
        _: &mut Ring,
        _: &mut DataPath<P, D>,
        _: Notice,
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
                // until then no other code uses it, and the region lives as long as the front end,
                // which outlives its orders.
                unsafe { path.submit(now_ns, ring, &order, &[]) }
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
            series.add(self.begins_ns, now_ns, u64::from(running.job.block));
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
        // Only jobs that still run need a wake-up.
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
        // If an order still has a buffer, none is freed, and the region stays mapped.
        if self.idle.len() == self.buffers.len() {
            self.buffers.drain(..).for_each(|buffer| self.region.free(buffer));
        }
    }
}

/// The duration of a run.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The warm-up: the time at the start that is not measured.
    pub warmup: Duration,
    /// The time that is counted.
    pub measured: Duration,
    /// The interval of a series of each tenant's bytes; `None` for no series.
    pub interval: Option<Duration>,
}

/// The path of requests to the device.
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
    /// The CPU of each thread; threads without one are not pinned.
    pub cpus: &'a [usize],
    /// The path of their requests to the device.
    pub path: Path,
    /// The time that a job stays on one thread before a random thread, which may be the same, is
    /// chosen for it; `None` if jobs do not move.
    pub moves: Option<Duration>,
}

/// The result of a load run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The service of each tenant during the measurement.
    pub tenants: Vec<TenantStats>,
    /// The duration of the measurement; shorter than requested only after a disturbance.
    pub elapsed: Duration,
    /// The reason for which the figures must not be used, if there is one.
    pub disturbance: Option<Disturbance>,
    /// CPU time of the whole process during the measurement.
    pub cpu: Duration,
    /// The number of times that one of its threads lost its CPU to another thread, of any process,
    /// during the measurement.
    pub preempted: u64,
    /// The average fraction (0 to 1) of the time in which its shards were ready to run but other
    /// threads had their CPUs, if the kernel reports it.
    pub cpu_wait: Option<f64>,
    /// Bytes of each tenant in each interval, if [`Times::interval`] is set.
    pub series: Vec<Vec<u64>>,
    /// The weights that the policy set for the device's classes, each with its time after the start
    /// of the measurement; 0 for weights that were set earlier.
    pub class_weights: Vec<(Duration, ClassWeights)>,
    /// The value of D at the end, if it is known ([`fairq_core::Stats::known_slots`]).
    pub slots: Option<u64>,
}

/// Runs jobs through a policy on a device: `jobs[n]` start on thread n and may
/// [move](Threads::moves) later. `progress` is called at least every 100 ms with the completed
/// fraction.
pub fn run<L: Policy, D: Device>(
    policy: &L,
    ports: Vec<L::Port>,
    common: &Common<D>,
    threads: Threads<'_>,
    jobs: Vec<Vec<Job>>,
    times: Times,
    progress: impl FnMut(f64),
) -> io::Result<Measured>
where
    L::Port: 'static,
{
    run_by(&common.clock, policy, ports, common, threads, jobs, times, progress)
}

/// [`run`] with a separate clock for the measuring thread.
#[expect(clippy::too_many_arguments, reason = "those of `run`, and the time")]
fn run_by<L: Policy, D: Device>(
    time: &impl Time,
    policy: &L,
    ports: Vec<L::Port>,
    common: &Common<D>,
    threads: Threads<'_>,
    jobs: Vec<Vec<Job>>,
    times: Times,
    mut progress: impl FnMut(f64),
) -> io::Result<Measured>
where
    L::Port: 'static,
{
    let mut all_series = Vec::new();
    let mut control =
        Control::start(policy, &*common.device, common.wakers.clone()).map_err(io::Error::other)?;
    let shards = start(ports, common, threads, jobs, times, &mut all_series)?;
    let (started_ns, total) = (time.now_ns(), times.warmup + times.measured);
    let mut weights: Vec<(u64, ClassWeights)> = Vec::new();
    let mut step = |now_ns: u64| {
        control.tick(now_ns);
        if let Some(wanted) = control.class_weights()
            && weights.last().is_none_or(|&(_, last)| last != wanted)
        {
            weights.push((now_ns, wanted));
        }
        let elapsed_ns = now_ns.saturating_sub(started_ns) as f64;
        progress(elapsed_ns / total.as_nanos() as f64);
        Some(control.deadline_ns().unwrap_or(u64::MAX))
    };
    Watch::new(time).wait(started_ns.saturating_add(times.warmup.as_nanos() as u64), &mut step);
    let mut watch = Watch::new(time);
    let usage = Usage::now();
    let (before, begins_ns) = watch.read(|begins_ns| {
        (0..shards.count()).for_each(|shard| shards.send(shard, Message::Front(begins_ns)));
        shards.stats()
    });
    // The first reading of the last shard may be late, and its window must be as long as requested.
    let until_ns = watch.last_ns().saturating_add(times.measured.as_nanos() as u64);
    watch.wait(until_ns, &mut step);
    let (after, _) = watch.read(|_| shards.stats());
    // The elapsed time is from before the first reading to after the last one, so a rate is never
    // overstated.
    let elapsed = Duration::from_nanos(watch.last_ns().saturating_sub(begins_ns));
    let Usage { cpu, preempted } = Usage::now().since(usage);
    let slots = policy.stats().known_slots();
    shards.stop();
    let since = |(after, before): (&Arc<TenantStats>, &Arc<TenantStats>)| after.since(before);
    let tenants = after.tenants.iter().zip(&before.tenants).map(since).collect();
    let series = total_series(common.tenants, &all_series);
    let cpu_wait = cpu_wait(&before.shards, &after.shards)
        .map(|waited| waited.as_secs_f64() / elapsed.as_secs_f64());
    let disturbance = watch.judge(elapsed, times.measured, cpu_wait);
    let class_weights = weights
        .into_iter()
        .map(|(at_ns, weights)| (Duration::from_nanos(at_ns.saturating_sub(begins_ns)), weights))
        .collect();
    Ok(Measured {
        tenants,
        elapsed,
        disturbance,
        cpu,
        preempted,
        cpu_wait,
        series,
        class_weights,
        slots,
    })
}

/// Starts the threads with their jobs; collects in `all_series` the series of each job with its
/// tenant.
fn start<P: Port + 'static, D: Device>(
    ports: Vec<P>,
    common: &Common<D>,
    Threads { cpus, path, moves }: Threads<'_>,
    mut jobs: Vec<Vec<Job>>,
    times: Times,
    all_series: &mut Vec<(u16, Arc<Series>)>,
) -> io::Result<Shards<D, LoadFront>> {
    let moves = moves.map(|interval| {
        let all = jobs.concat();
        let moves = Moves::new(&all, ports.len(), interval.as_nanos() as u64);
        jobs = vec![all; ports.len()];
        Arc::new(moves)
    });
    jobs.resize_with(ports.len(), Vec::new);
    let mut jobs = jobs.into_iter();
    let mut with_series = |job: Job| {
        let series = times
            .interval
            .map(|interval| Arc::new(Series::new(interval.as_nanos() as u64, times.measured)));
        all_series.extend(series.clone().map(|series| (job.tenant, series)));
        (job, series)
    };
    let front = |shard| {
        let jobs = jobs.next().unwrap_or_default().into_iter().map(&mut with_series).collect();
        LoadFront::new(jobs, moves.clone().map(|moves| Homes::new(moves, shard)))
    };
    match path {
        Path::Shards => Shards::start(policy_loops(ports), common, cpus, front),
        Path::Direct => direct_load::start(ports, common, cpus, front),
    }
}

/// The average time for which a shard waited for its CPU between two reports.
fn cpu_wait(before: &[ShardCounters], after: &[ShardCounters]) -> Option<Duration> {
    let waited = |(before, after): (&ShardCounters, &ShardCounters)| {
        Some(Duration::from_nanos(after.cpu?.waited_ns.saturating_sub(before.cpu?.waited_ns)))
    };
    let each: Option<Vec<Duration>> = before.iter().zip(after).map(waited).collect();
    each.map(|each| each.iter().sum::<Duration>() / each.len().max(1) as u32)
}

/// The sum of each tenant's jobs in each interval.
fn total_series(tenants: usize, series: &[(u16, Arc<Series>)]) -> Vec<Vec<u64>> {
    let Some((_, first)) = series.first() else { return Vec::new() };
    let mut totals = vec![vec![0; first.bytes.len()]; tenants];
    for (tenant, series) in series {
        let total = totals[usize::from(*tenant)].iter_mut();
        total.zip(&series.bytes).for_each(|(total, bytes)| *total += bytes.load(Ordering::Relaxed));
    }
    totals
}

/// The CPU time of this process, including its ended threads.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Time in user and kernel mode.
    pub(crate) cpu: Duration,
    /// The number of times that a thread lost its CPU.
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
mod tests;
