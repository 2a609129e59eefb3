//! The load of a run: tenants' jobs, dealt over the shards or over connections to a server, with a
//! part of the device each.

use std::io::IsTerminal;
use std::time::Duration;

use fairq_config::engine::WithPolicy;
use fairq_config::group::Group;
use fairq_config::refusal::Refusal;
use fairq_config::units::exact_size;
use fairq_core::{FlowError, FlowId, GroupId, Limits, Share};
use fairq_host::device::any::AnyDevice;
use fairq_host::measure::client;
use fairq_host::measure::load::{self, Measured, Times};
use fairq_host::shard::shared::Common;

use crate::job::Job;

/// The connections of a load on an NBD server. A tenant's export is the one that it names, else the
/// address's, else, if there are several tenants, the export of the tenant's name.
pub(crate) fn connections(
    jobs: &[Job],
    target: &client::Target,
    timeout: Duration,
) -> Vec<client::Job> {
    let export = |job: &Job| match &job.export {
        Some(export) => export.clone(),
        None if target.export.is_empty() && jobs.len() > 1 => job.name.clone(),
        None => target.export.clone(),
    };
    let connection = |tenant: usize, job: &Job, copy: u16| client::Job {
        tenant,
        target: client::Target { export: export(job), ..target.clone() },
        block: job.block,
        depth: job.depth,
        read_percent: job.read_percent,
        random: job.random,
        // The tenant's rate is divided among its jobs; a small rate does not become 0.
        rate: job.rate.map(|rate| (rate / u64::from(job.jobs.max(1))).max(1)),
        think_ns: job.think_ns,
        size: job.size,
        timeout,
        seed: seed(tenant, copy),
    };
    let copies = |(tenant, job): (usize, &Job)| -> Vec<_> {
        (0..job.jobs).map(|copy| connection(tenant, job, copy)).collect()
    };
    jobs.iter().enumerate().flat_map(copies).collect()
}

/// A seed for each job, the same in each run.
fn seed(tenant: usize, copy: u16) -> u64 {
    (tenant as u64) << 16 | u64::from(copy)
}

/// A load that is complete except for its policy.
pub(crate) struct Load<'a> {
    pub(crate) jobs: &'a [Job],
    /// Groups of tenants, outer ones first.
    pub(crate) groups: &'a [Group],
    /// Each tenant's first byte and size.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// The jobs of each shard: the tenant, and the number of the copy.
    pub(crate) hands: Vec<Vec<(usize, u16)>>,
    pub(crate) common: Common<AnyDevice>,
    pub(crate) threads: load::Threads<'a>,
    pub(crate) times: Times,
    pub(crate) progress: Progress,
}

impl WithPolicy for Load<'_> {
    type Output = anyhow::Result<Measured>;

    fn run<L: Limits>(mut self, policy: L, ports: Vec<L::Port>) -> anyhow::Result<Measured>
    where
        L::Port: 'static,
    {
        // Outer groups come first, so a parent exists when its child names it.
        for (id, group) in (0..).zip(self.groups) {
            let parent = group.parent().and_then(|name| id_of(name, self.groups));
            let Group { weight, reservation, caps, .. } = *group;
            let settings = fairq_core::Group { parent, weight, reservation, caps };
            policy.set_group(GroupId(id), Some(&settings))?;
        }
        // Flows are added after the groups, because a flow's share names a group.
        let flows: Vec<FlowId> = self
            .jobs
            .iter()
            .map(|job| add_flow(&policy, job, self.groups))
            .collect::<Result<_, _>>()?;
        let job = |&(tenant, copy): &(usize, u16)| {
            expand(&self.jobs[tenant], copy, tenant, flows[tenant], self.ranges[tenant])
        };
        let jobs = self.hands.iter().map(|hand| hand.iter().map(job).collect()).collect();
        let progress = |part| self.progress.show(part);
        Ok(load::run(&policy, ports, &self.common, self.threads, jobs, self.times, progress)?)
    }
}

/// The number of the group with this name.
fn id_of(name: &str, groups: &[Group]) -> Option<GroupId> {
    groups.iter().position(|group| group.name == name).map(|at| GroupId(at as u16))
}

/// Adds a tenant's flow. A policy without targets or without an urgent class only causes a message,
/// because it may run for comparison.
fn add_flow<L: Limits>(policy: &L, job: &Job, groups: &[Group]) -> Result<FlowId, FlowError> {
    let flow = policy.add_flow(job.weight)?;
    let urgent = if job.urgent { policy.set_urgent(flow, true) } else { Ok(()) };
    let target = if job.target.is_some() { policy.set_target(flow, job.target) } else { Ok(()) };
    policy.set_caps(flow, &job.caps)?;
    let group = job.group.as_ref().and_then(|name| id_of(name, groups));
    let share = Share { group, reservation: job.reservation };
    if share != Share::default() {
        policy.set_share(flow, &share)?;
    }
    // Both calls come first: a policy without one feature may have the other.
    for error in [urgent, target].into_iter().filter_map(Result::err) {
        match error {
            FlowError::NoTargets | FlowError::NotUrgent => {
                eprintln!("fairq: tenant {} runs without this feature: {error}", job.name);
            }
            error => return Err(error),
        }
    }
    Ok(flow)
}

/// One of a tenant's jobs in the form of the load generator. Random jobs share the tenant's range;
/// sequential jobs have a part of it each, so that their requests differ.
fn expand(
    job: &Job,
    copy: u16,
    tenant: usize,
    flow: FlowId,
    (base, size): (u64, u64),
) -> load::Job {
    let (block, copies) = (u64::from(job.block), u64::from(job.jobs.max(1)));
    // With less than a block for each job, sequential jobs share the range, as random ones do.
    let part = size / copies / block * block;
    let (start, size) =
        if job.random || part == 0 { (0, size) } else { (u64::from(copy) * part, part) };
    load::Job {
        tenant: tenant as u16,
        flow,
        file: 0,
        base: base + start,
        size,
        block: job.block,
        depth: job.depth,
        read_percent: job.read_percent,
        random: job.random,
        rate: job.rate.map(|rate| (rate / copies).max(1)),
        think_ns: job.think_ns,
        starts_ns: job.starts_ns,
        stops_ns: job.stops_ns,
        seed: seed(tenant, copy),
    }
}

/// Deals the jobs of all tenants to the shards in turn, so that the shards have nearly equal work.
pub(crate) fn deal(jobs: &[Job], shards: usize) -> Vec<Vec<(usize, u16)>> {
    let mut hands = vec![Vec::new(); shards];
    let all = jobs
        .iter()
        .enumerate()
        .flat_map(|(tenant, job)| (0..job.jobs).map(move |copy| (tenant, copy)));
    all.enumerate().for_each(|(turn, card)| hands[turn % shards].push(card));
    hands
}

/// The range of each tenant, as offset and size: its configured size, or an equal part of the rest.
pub(crate) fn ranges(jobs: &[Job], sizes: &[u64]) -> Result<Vec<(u64, u64)>, Refusal> {
    let device = sizes.first().copied().unwrap_or(0);
    let asked: u64 = jobs.iter().filter_map(|job| job.size).sum();
    let others = jobs.iter().filter(|job| job.size.is_none()).count() as u64;
    let part = device.saturating_sub(asked) / others.max(1);
    let mut at: u64 = 0;
    let range = |job: &Job| {
        let block = u64::from(job.block);
        // A range consists of whole blocks; the space that this costs reduces the last ranges.
        let base = at.next_multiple_of(block);
        let wanted = job.size.unwrap_or(part);
        let left = device.saturating_sub(base);
        let size = wanted.min(left) / block * block;
        if size == 0 || job.size.is_some_and(|size| size > left) {
            return Err(Refusal::new(format!(
                "tenant {}: too little is left of the device's {}: make it larger, or the tenants' \
                 sizes smaller",
                job.name,
                exact_size(device)
            )));
        }
        at = base + size;
        Ok((base, size))
    };
    jobs.iter().map(range).collect()
}

/// The progress of a run, on a terminal.
pub(crate) struct Progress {
    label: String,
    is_shown: bool,
}

impl Progress {
    pub(crate) fn new(label: &str, is_quiet: bool) -> Progress {
        Progress { label: label.to_owned(), is_shown: !is_quiet && std::io::stderr().is_terminal() }
    }

    /// Shows the part that is done.
    pub(crate) fn show(&mut self, part: f64) {
        if self.is_shown {
            let done = (part * 30.0) as usize;
            let bar = "█".repeat(done.min(30)) + &"░".repeat(30 - done.min(30));
            eprint!("\r{} {bar} {:3.0} %\x1b[K", self.label, (100.0 * part).min(100.0));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use fairq_core::Policy;

    use super::*;

    fn jobs(specs: &[&str]) -> Vec<Job> {
        specs.iter().map(|spec| spec.parse().unwrap()).collect()
    }

    #[test]
    fn jobs_are_dealt_over_all_shards() {
        let hands = deal(&jobs(&["a=jobs:3", "b"]), 2);
        assert_eq!(hands, [vec![(0, 0), (0, 2)], vec![(0, 1), (1, 0)]]);
    }

    #[test]
    fn ranges_are_whole_blocks_and_fit() {
        let ranges = |specs: &[&str], size| {
            ranges(&jobs(specs), &[size]).map_err(|refusal| refusal.to_string())
        };
        assert_eq!(ranges(&["a", "b"], 1 << 20), Ok(vec![(0, 512 << 10), (512 << 10, 512 << 10)]));
        assert_eq!(
            ranges(&["a=size:100k", "b=bs:64k"], 1 << 20),
            Ok(vec![(0, 100 << 10), (128 << 10, 896 << 10)]),
            "b's 924k begin at a multiple of its block"
        );
        assert_eq!(
            ranges(&["a=size:1M", "b"], 1 << 20).unwrap_err(),
            "tenant b: too little is left of the device's 1M: make it larger, or the tenants' \
             sizes smaller"
        );
    }

    #[test]
    fn sequential_jobs_have_a_part_each_and_random_ones_share() {
        let (policy, _) = fairq_core::none::NonePolicy::<fairq_core::Native>::new(1, 1, 1).unwrap();
        let flow = policy.add_flow(fairq_core::Weight::DEFAULT).unwrap();
        let place = |spec: &str, copy| {
            let job = expand(&spec.parse().unwrap(), copy, 0, flow, (1 << 20, 1 << 20));
            (job.base - (1 << 20), job.size)
        };
        assert_eq!(place("a=jobs:4,rw:read", 3), (768 << 10, 256 << 10));
        assert_eq!(place("a=jobs:4,rw:randread", 3), (0, 1 << 20));
        assert_eq!(
            place("a=jobs:4,rw:read,bs:512k", 3),
            (0, 1 << 20),
            "less than a block for each"
        );
        let limited = expand(&"a=jobs:4,rate:4M".parse().unwrap(), 0, 0, flow, (0, 1 << 20));
        assert_eq!(limited.rate, Some(1 << 20));
    }

    #[test]
    fn several_tenants_connect_to_exports_of_their_names() {
        let exports = |uri: &str, specs: &[&str]| -> Vec<String> {
            let target = client::Target::parse(uri).unwrap();
            connections(&jobs(specs), &target, Duration::MAX)
                .into_iter()
                .map(|job| job.target.export)
                .collect()
        };
        assert_eq!(exports("nbd+unix:///?socket=/s", &["a=jobs:2", "b"]), ["a", "a", "b"]);
        assert_eq!(exports("nbd+unix:///?socket=/s", &["a"]), [""]);
        assert_eq!(exports("nbd+unix:///x?socket=/s", &["a", "b=export:y"]), ["x", "y"]);
    }
}
