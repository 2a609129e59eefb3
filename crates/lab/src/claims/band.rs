//! The models' constants that are guessed or derived, and what becomes of claims where they are
//! others.
//!
//! `constants.toml` has each of them, with what it could be as well and why. An experiment is run
//! in a [`Setting`]: on a seed, and with one constant changed or with none. It asks the setting for
//! its [proxies](fairq_sim::proxy), and each scenario and each policy passes through it before it
//! runs, so that no experiment knows of constants.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};
use std::sync::{LazyLock, Mutex, MutexGuard};

use fairq_device::Profile;
use fairq_sim::Run;
use fairq_sim::host::Machine;
use fairq_sim::policies::{AnySubject, Scheduler, SerialSubject};
use fairq_sim::proxy::{self, Proxy};
use fairq_sim::scenario::{Job, Scenario};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// A constant, and what it could be as well.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// What a report calls it.
    pub name: String,
    /// Keys of a device's profile, all of which are changed at once; or of the machine, of proxies
    /// or of FlashFQ.
    pub keys: Vec<String>,
    /// The devices whose keys they are.
    #[serde(default)]
    pub devices: Vec<String>,
    /// The proxies whose keys they are.
    #[serde(default)]
    pub proxies: Vec<String>,
    /// The least that it could be, times what the lab runs with.
    #[serde(default = "as_it_is")]
    pub low: f64,
    /// The most.
    #[serde(default = "as_it_is")]
    pub high: f64,
    /// What it could be where the lab runs without it.
    pub instead: Option<f64>,
    /// Why these.
    pub source: String,
}

fn as_it_is() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constants {
    constant: Vec<Constant>,
}

/// All of them.
pub static CONSTANTS: LazyLock<Vec<Constant>> = LazyLock::new(|| {
    let text = include_str!("../../constants.toml");
    toml::from_str::<Constants>(text).expect("a test reads the file").constant
});

/// What stands before a key of the machine.
const MACHINE: &str = "machine.";
/// Before one of a proxy.
const PROXY: &str = "proxy.";
/// Before one of fio as NASS' authors run it.
const FIO: &str = "fio.";
/// Before one of FlashFQ.
const FLASHFQ: &str = "flashfq.";

/// What a constant is where it is another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum End {
    /// So many times what the lab runs with.
    Times(f64),
    /// This, where the lab runs without it.
    Instead(f64),
}

impl Display for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Times(times) => write!(f, "{times} times"),
            End::Instead(value) => write!(f, "{value}, not none"),
        }
    }
}

/// What came out of a row on the first seed where a constant was another.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elsewhere {
    /// The constant.
    pub constant: String,
    /// What it was there, as in `0.5 times`.
    pub end: String,
    /// Whether the row holds there.
    pub holds: Option<bool>,
    /// What was measured there.
    pub measured: String,
}

/// What an experiment is run in.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    /// Names the run.
    pub(super) seed: u64,
    /// The constant that is another, and what it is.
    pub(super) varied: Option<(&'static Constant, End)>,
    /// Is told what was run.
    pub(super) used: &'a Used,
    /// What the same experiment ran with no constant changed.
    pub(super) usual: Option<&'a Used>,
}

/// What an experiment ran on, and what came out of each run.
#[derive(Debug, Default)]
pub(super) struct Used {
    devices: Mutex<Devices>,
    /// By policy and scenario, as they print.
    runs: Mutex<BTreeMap<String, Run>>,
}

#[derive(Debug, Default)]
struct Devices {
    names: BTreeSet<String>,
    proxies: BTreeSet<&'static str>,
    has_machine: bool,
    has_fio: bool,
    has_flashfq: bool,
}

impl Used {
    /// The constants that can matter to it.
    pub(super) fn constants(&self) -> Vec<&'static Constant> {
        let used = self.devices();
        let matters = |constant: &&Constant| {
            (constant.is_of(MACHINE) && used.has_machine)
                || (constant.is_of(FIO) && used.has_fio)
                || (constant.is_of(FLASHFQ) && used.has_flashfq)
                || constant.proxies.iter().any(|name| used.proxies.contains(name.as_str()))
                || constant.devices.iter().any(|name| used.names.contains(name))
        };
        CONSTANTS.iter().filter(matters).collect()
    }

    /// Without the runs, which are large.
    pub(super) fn without_runs(self) -> Used {
        Used { devices: self.devices, runs: Mutex::default() }
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().expect("no thread panics while it holds the lock")
    }

    fn runs(&self) -> MutexGuard<'_, BTreeMap<String, Run>> {
        self.runs.lock().expect("no thread panics while it holds the lock")
    }

    fn add(&self, scenario: &Scenario) {
        let mut used = self.devices();
        // A disk stands in the drive's place, and then no constant of the profile matters.
        if scenario.disk.is_none() && !used.names.contains(&scenario.profile.name) {
            used.names.insert(scenario.profile.name.clone());
        }
        used.has_machine |= scenario.host.is_some();
    }
}

impl Constant {
    /// What stands before its keys: nothing if they are a profile's.
    fn is_of(&self, place: &str) -> bool {
        self.keys.iter().any(|key| key.starts_with(place))
    }

    /// What it could be as well.
    pub(super) fn ends(&self) -> impl Iterator<Item = End> {
        // An end that is what the lab runs with has been run.
        let times = [self.low, self.high].into_iter().filter(|&times| times != 1.0);
        times.map(End::Times).chain(self.instead.map(End::Instead))
    }

    /// The device where this is another.
    fn on_device(&self, profile: &Profile, end: End) -> Result<Profile, String> {
        let wrong = |error: &dyn Display| format!("{}, {end}: {error}", self.name);
        let mut table = Table::try_from(profile).map_err(|error| wrong(&error))?;
        for key in &self.keys {
            let (section, name) = key.split_once('.').ok_or_else(|| wrong(key))?;
            let missing = || wrong(&format!("there is no {key}"));
            let section =
                table.get_mut(section).and_then(Value::as_table_mut).ok_or_else(missing)?;
            let value = match end {
                End::Instead(value) => Value::Float(value),
                End::Times(times) => match section.get(name).ok_or_else(missing)? {
                    Value::Integer(count) => Value::Integer((*count as f64 * times).round() as i64),
                    Value::Float(value) => Value::Float(value * times),
                    _ => return Err(wrong(&format!("{key} is no number"))),
                },
            };
            section.insert(name.to_owned(), value);
        }
        Profile::parse(&table.to_string()).map_err(|error| wrong(&error))
    }

    /// The machine where this is another.
    fn on_machine(&self, mut machine: Machine, end: End) -> Result<Machine, String> {
        let change = |value: &mut u64| *value = scaled(*value, end);
        for key in &self.keys {
            let layer = &mut machine.layer;
            match key.strip_prefix(MACHINE) {
                Some("layer") => {
                    let parts = [&mut layer.submit, &mut layer.issue, &mut layer.interrupt];
                    parts.into_iter().for_each(change);
                    [&mut layer.complete, &mut layer.reap].into_iter().for_each(change);
                }
                Some("layer.submit") => change(&mut layer.submit),
                Some("layer.stage") => change(&mut layer.stage),
                Some("layer.interrupt") => change(&mut layer.interrupt),
                Some("layer.complete") => change(&mut layer.complete),
                Some("send") => change(&mut machine.cycles.send),
                Some("wakes.near") => change(&mut machine.wakes.near_ns),
                // Less than alone it cannot take.
                Some("shared") => {
                    change(&mut machine.shared_percent);
                    machine.shared_percent = machine.shared_percent.max(100);
                }
                _ => return Err(format!("{}: no machine has {key}", self.name)),
            }
        }
        Ok(machine)
    }

    /// A job where this is another, whosever it is.
    fn on_job(&self, place: &str, job: &mut Job, end: End) -> Result<(), String> {
        for key in &self.keys {
            match key.strip_prefix(place) {
                Some("depth") => job.depth = scaled(u64::from(job.depth), end) as u32,
                Some("think") => job.think_ns = scaled(job.think_ns, end),
                Some("interval") => job.interval_ns = scaled(job.interval_ns, end),
                _ => return Err(format!("{}: no job has {key}", self.name)),
            }
        }
        Ok(())
    }

    /// FlashFQ where this is another.
    fn on_flashfq(&self, mut lock: SerialSubject, end: End) -> Result<SerialSubject, String> {
        for key in &self.keys {
            let flashfq = &mut lock.flashfq;
            match key.strip_prefix(FLASHFQ) {
                Some("threshold") => flashfq.threshold_bytes = scaled(flashfq.threshold_bytes, end),
                Some("idle") => flashfq.idle_ns = scaled(flashfq.idle_ns, end),
                _ => return Err(format!("{}: FlashFQ has no {key}", self.name)),
            }
        }
        Ok(lock)
    }
}

fn scaled(value: u64, end: End) -> u64 {
    match end {
        End::Times(times) => (value as f64 * times).round() as u64,
        End::Instead(other) => other.round() as u64,
    }
}

impl Setting<'_> {
    /// The scenario in this setting.
    pub(super) fn applied(&self, scenario: &Scenario) -> Result<Scenario, String> {
        self.used.add(scenario);
        // Noted above for any setting: the first run tells which constants are worth varying.
        let mut scenario = Scenario { seed: self.seed, ..scenario.clone() };
        let Some((constant, end)) = self.varied else { return Ok(scenario) };
        if constant.is_of(MACHINE) {
            if let Some(host) = &mut scenario.host {
                host.machine = constant.on_machine(host.machine, end)?;
            }
        } else if constant.devices.contains(&scenario.profile.name) {
            scenario.profile = constant.on_device(&scenario.profile, end)?;
        }
        Ok(scenario)
    }

    /// The application of this name in this setting.
    pub(super) fn proxy(&self, name: &'static str) -> Result<Proxy, String> {
        self.used.devices().proxies.insert(name);
        let (threads, mut job) =
            proxy::named(name).ok_or_else(|| format!("no proxy is called {name}"))?;
        if let Some((constant, end)) = self.varied
            && constant.proxies.iter().any(|of| of == name)
        {
            constant.on_job(PROXY, &mut job, end)?;
        }
        Ok((threads, job))
    }

    /// A job of fio in this setting, as NASS' authors run it.
    pub(super) fn fio(&self, mut job: Job) -> Result<Job, String> {
        self.used.devices().has_fio = true;
        if let Some((constant, end)) = self.varied
            && constant.is_of(FIO)
        {
            constant.on_job(FIO, &mut job, end)?;
        }
        Ok(job)
    }

    /// What a policy makes of a scenario in this setting. A run that was made is not made again:
    /// experiments ask for some more than once, and where a constant is another the runs that do
    /// not have it are as they were.
    pub(super) fn run(&self, policy: AnySubject, scenario: &Scenario) -> Result<Run, String> {
        let scenario = self.applied(scenario)?;
        let policy = self.policy(policy, &scenario)?;
        let name = format!("{policy:?} {scenario:?}");
        let made = [Some(self.used), self.usual].into_iter().flatten();
        if let Some(run) = made.into_iter().find_map(|used| used.runs().get(&name).cloned()) {
            return Ok(run);
        }
        let run = policy.run(&scenario).map_err(|error| error.to_string())?;
        self.used.runs().insert(name, run.clone());
        Ok(run)
    }

    /// The policy in this setting, on a device that was changed by [`Setting::applied`].
    pub(super) fn policy(
        &self,
        policy: AnySubject,
        scenario: &Scenario,
    ) -> Result<AnySubject, String> {
        let AnySubject::Serial(mut lock) = policy else { return Ok(policy) };
        // Linux' schedulers have no more on the device than there are tags.
        if scenario.disk.is_none() {
            lock.slots = lock.slots.min(scenario.profile.host.window.get());
        }
        if lock.scheduler == Scheduler::FlashFq {
            self.used.devices().has_flashfq = true;
            if let Some((constant, end)) = self.varied
                && constant.is_of(FLASHFQ)
            {
                lock = constant.on_flashfq(lock, end)?;
            }
        }
        Ok(AnySubject::Serial(lock))
    }
}

#[cfg(test)]
mod tests {
    use fairq_sim::scenario::Tenant;

    use super::*;

    /// Names that are on no list of numbers: a policy is told nothing by them.
    const NO_NUMBERS: [&str; 1] = ["host.wrr"];
    const DEVICES: [&str; 7] =
        ["z-ssd", "p3700", "p4500", "980-pro", "p4800x", "intel-530", "nvmf-ramdisk"];

    /// The keys of a profile whose value is marked as guessed or derived.
    fn marked(name: &str) -> Vec<String> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/profiles");
        let text = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
        let (mut section, mut found) = ("", Vec::new());
        for line in text.lines() {
            if let Some(named) = line.strip_prefix('[') {
                section = named.trim_end_matches(']');
            } else if let Some((key, rest)) = line.split_once(" = ")
                && !section.starts_with('[')
                && (rest.contains("# [G]") || rest.contains("# [D]") || rest.ends_with("[G]"))
            {
                found.push(format!("{section}.{key}"));
            }
        }
        found
    }

    #[test]
    fn each_constant_that_is_guessed_or_derived_has_a_range() {
        for name in DEVICES {
            for key in marked(name).into_iter().filter(|key| !NO_NUMBERS.contains(&key.as_str())) {
                let of = |constant: &&Constant| {
                    constant.keys.contains(&key) && constant.devices.iter().any(|of| of == name)
                };
                assert!(CONSTANTS.iter().any(|constant| of(&constant)), "{name}: {key}");
            }
        }
        assert!(marked("z-ssd").len() > 10);
    }

    #[test]
    fn each_thing_that_a_proxy_computes_has_a_range() {
        for (name, proxy) in proxy::ALL {
            let (_, job) = proxy();
            let of = |key: &str| {
                CONSTANTS.iter().any(|constant| {
                    constant.proxies.iter().any(|of| of == name)
                        && constant.keys.contains(&format!("{PROXY}{key}"))
                })
            };
            assert!(job.think_ns == 0 || of("think"), "{name} thinks");
            assert!(job.interval_ns == 0 || of("interval"), "{name} has an interval");
        }
    }

    #[test]
    fn each_end_of_each_range_is_another_device_machine_proxy_or_scheduler() {
        for constant in CONSTANTS.iter() {
            assert!(!constant.source.is_empty() && constant.low <= 1.0 && constant.high >= 1.0);
            assert!(constant.ends().count() > 0, "{}", constant.name);
            for end in constant.ends() {
                if constant.is_of(MACHINE) {
                    let other = constant.on_machine(Machine::GOLD_5112, end).unwrap();
                    assert_ne!(Machine::GOLD_5112, other, "{}", constant.name);
                    other.check().unwrap();
                }
                if constant.is_of(FLASHFQ) {
                    let usual = SerialSubject::new(Scheduler::FlashFq, 32);
                    let other = constant.on_flashfq(usual, end).unwrap();
                    assert_ne!(usual.flashfq, other.flashfq, "{}", constant.name);
                }
                let is_other_job = |place: &str, usual: Job| {
                    let mut other = usual.clone();
                    constant.on_job(place, &mut other, end).unwrap();
                    assert_ne!(format!("{usual:?}"), format!("{other:?}"), "{}", constant.name);
                };
                for name in &constant.proxies {
                    is_other_job(PROXY, proxy::named(name).unwrap().1);
                }
                if constant.is_of(FIO) {
                    is_other_job(FIO, Job { interval_ns: 10_000, ..Job::random_read(4096, 1) });
                }
                for name in &constant.devices {
                    let profile = Profile::named(name).unwrap();
                    let other = constant.on_device(&profile, end).unwrap();
                    assert_ne!(format!("{profile:?}"), format!("{other:?}"), "{}", constant.name);
                }
            }
        }
    }

    #[test]
    fn a_scheduler_has_no_more_on_the_drive_than_its_queue_holds() {
        let used = Used::default();
        let tags = CONSTANTS.iter().find(|constant| constant.name == "tags of the SATA drive");
        let lock = AnySubject::Serial(SerialSubject::new(Scheduler::Fiops, 32));
        let slots = |varied| {
            let setting = Setting { seed: 1, varied, used: &used, usual: None };
            let scenario = Scenario::new(Profile::named("intel-530").unwrap(), 1, Vec::new(), 1);
            let scenario = setting.applied(&scenario).unwrap();
            match setting.policy(lock, &scenario).unwrap() {
                AnySubject::Serial(lock) => lock.slots,
                _ => 0,
            }
        };
        let end = tags.and_then(|tags| tags.ends().next()).unwrap();
        assert_eq!((slots(None), slots(tags.map(|tags| (tags, end)))), (32, 31));
    }

    #[test]
    fn what_was_run_says_which_constants_can_matter() {
        let used = Used::default();
        let setting = Setting { seed: 7, varied: None, used: &used, usual: None };
        let scenario = Scenario::new(Profile::named("z-ssd").unwrap(), 1, Vec::new(), 1);
        assert_eq!(setting.applied(&scenario).unwrap().seed, 7);
        let names = || used.constants().iter().map(|of| of.name.as_str()).collect::<Vec<_>>();
        assert!(names().contains(&"planes") && !names().contains(&"page"), "{:?}", names());
        assert!(!names().contains(&"sending a wake-up"));
        setting.applied(&scenario.clone().on(Machine::GOLD_5112.host(1))).unwrap();
        assert!(names().contains(&"sending a wake-up"));
        assert!(!names().contains(&"FlashFQ's threshold") && !names().contains(&"YCSB computes"));
        let flashfq = SerialSubject::new(Scheduler::FlashFq, 32);
        setting.policy(AnySubject::Serial(flashfq), &scenario).unwrap();
        setting.proxy("ycsb").unwrap();
        assert!(names().contains(&"FlashFQ's threshold") && names().contains(&"YCSB computes"));
    }

    #[test]
    fn a_run_that_a_constant_does_not_change_is_not_made_again() {
        let (usual, used) = (Used::default(), Used::default());
        let run = |used, usual, varied| {
            let tenant = Tenant::new("a", 100, vec![0], Job::random_read(4096, 1));
            let z_ssd = Profile::named("z-ssd").unwrap();
            let scenario = Scenario::new(z_ssd, 1, vec![tenant], 1_000_000);
            let setting = Setting { seed: 1, varied, used, usual };
            setting.run(AnySubject::None, &scenario).unwrap().digest
        };
        let varied = |name| {
            let constant = CONSTANTS.iter().find(|constant| constant.name == name).unwrap();
            constant.ends().next().map(|end| (constant, end))
        };
        let first = run(&usual, None, None);
        assert_eq!((run(&usual, None, None), usual.runs().len()), (first, 1));
        assert_eq!(run(&used, Some(&usual), varied("tags of the SATA drive")), first);
        assert!(used.runs().is_empty(), "it was made again");
        assert_ne!(run(&used, Some(&usual), varied("latency beside dies and links")), first);
        assert_eq!(used.runs().len(), 1);
    }
}
