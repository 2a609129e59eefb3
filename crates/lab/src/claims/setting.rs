//! The setting of an experiment: a seed, and at most one change, of a [constant](super::band) or by
//! an [ablation](super::ablations).
//!
//! The setting changes the jobs of [proxies](fairq_sim::proxy), each scenario and each policy
//! before they run. So no experiment has code for constants, and only a few have code for
//! ablations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use fairq_sim::Run;
use fairq_sim::policies::AnySubject;
use fairq_sim::scenario::{Job, Scenario};

use super::ablations::{Ablation, EXPERIMENT};
use super::band::{CONSTANTS, Constant, End};
use super::keys::{self, Change};

/// The setting of an experiment.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    /// Seed of the runs.
    pub(super) seed: u64,
    /// The change.
    pub(super) varied: Varied,
    /// Record of the runs of this experiment.
    pub(super) used: &'a Used,
    /// The runs of the same experiment without a change.
    pub(super) usual: Option<&'a Used>,
}

/// A change from the rules.
#[derive(Clone, Copy)]
pub(super) enum Varied {
    /// No change.
    Nothing,
    /// A constant has its least or its greatest value.
    Constant(&'static Constant, End),
    /// A part of the rules is removed or replaced.
    Ablation(&'static Ablation),
}

impl Varied {
    /// The keys of a place that have other values.
    fn behind(self, place: &str) -> Vec<(&'static str, Change<'static>)> {
        match self {
            Varied::Nothing => Vec::new(),
            Varied::Constant(constant, end) => {
                constant.behind(place).map(|key| (key, end.change())).collect()
            }
            Varied::Ablation(ablation) => ablation.behind(place).collect(),
        }
    }
}

/// The places that an experiment used, and its runs.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// Prefixes of the keys that could affect the experiment.
    places: Mutex<BTreeSet<String>>,
    /// Runs by policy and scenario in their `Debug` form.
    runs: Mutex<BTreeMap<String, Run>>,
}

impl Used {
    /// The constants that can affect the experiment.
    pub(super) fn constants(&self) -> Vec<&'static Constant> {
        let used = self.places();
        let matters =
            |constant: &&'static Constant| used.iter().any(|at| constant.behind(at).count() > 0);
        CONSTANTS.iter().filter(matters).collect()
    }

    /// Whether all runs of this setting were reused from the usual setting.
    pub(super) fn has_no_runs(&self) -> bool {
        self.runs().is_empty()
    }

    /// The record without the runs, which are large.
    pub(super) fn without_runs(self) -> Used {
        Used { places: self.places, runs: Mutex::default() }
    }

    fn places(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.places.lock().expect("no thread panics while it holds the lock")
    }

    fn runs(&self) -> MutexGuard<'_, BTreeMap<String, Run>> {
        self.runs.lock().expect("no thread panics while it holds the lock")
    }

    fn add(&self, place: &str) {
        let mut places = self.places();
        if !places.contains(place) {
            places.insert(place.to_owned());
        }
    }
}

impl Setting<'_> {
    /// The keys of a place that have other values. Each call records the place as used, because
    /// the places used in the first run determine the constants that are varied.
    fn behind(&self, place: &str) -> Vec<(&'static str, Change<'static>)> {
        self.used.add(place);
        self.varied.behind(place)
    }

    /// Whether an ablation requires this change of the experiment itself.
    pub(super) fn asks_for(&self, what: &str) -> bool {
        let asked = self.varied.behind(EXPERIMENT);
        asked.iter().any(|(key, _)| *key == what)
    }

    /// The scenario with the setting's changes.
    pub(super) fn applied(&self, scenario: &Scenario) -> Result<Scenario, String> {
        let mut scenario = Scenario { seed: self.seed, ..scenario.clone() };
        // If a disk replaces the drive, no key of the profile has an effect.
        if scenario.disk.is_none() {
            let device = scenario.profile.name.clone();
            for (key, change) in self.behind(&device) {
                keys::on_device(&mut scenario.profile, key, change)?;
            }
        }
        if let Some(host) = &mut scenario.host {
            for (key, change) in self.behind("machine") {
                keys::on_machine(&mut host.machine, key, change)?;
            }
        }
        for (key, change) in self.behind("cost") {
            keys::on_cost(&mut scenario.cost, key, change)?;
        }
        Ok(scenario)
    }

    /// Applies the setting's changes to the job of an application.
    pub(super) fn on_proxy(&self, name: &str, job: &mut Job) -> Result<(), String> {
        let changes = self.behind(&format!("proxy.{name}"));
        changes.into_iter().try_for_each(|(key, change)| keys::on_job(job, key, change))
    }

    /// Applies the setting's changes to a job of fio, as NASS's authors run it.
    pub(super) fn on_fio(&self, job: &mut Job) -> Result<(), String> {
        self.behind("fio").into_iter().try_for_each(|(key, change)| keys::on_job(job, key, change))
    }

    /// Runs a policy on a scenario in this setting. A run of the same policy and scenario is
    /// reused: some experiments repeat a run, and a change does not affect runs that do not use the
    /// changed key.
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

    /// The policy with the setting's changes, on a device that [`Setting::applied`] has changed.
    pub(super) fn policy(
        &self,
        mut policy: AnySubject,
        scenario: &Scenario,
    ) -> Result<AnySubject, String> {
        for place in keys::places_of(&policy) {
            for (key, change) in self.behind(place) {
                keys::on_policy(&mut policy, place, key, change)?;
            }
        }
        // A scheduler of Linux has at most as many requests on the device as the device has tags.
        if let AnySubject::Serial(lock) = &mut policy
            && scenario.disk.is_none()
        {
            lock.slots = lock.slots.min(scenario.profile.host.window.get());
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use fairq_device::Profile;
    use fairq_sim::host::Machine;
    use fairq_sim::policies::{Scheduler, SerialSubject};
    use fairq_sim::scenario::Tenant;

    use super::*;

    fn z_ssd(tenants: Vec<Tenant>, duration_ns: u64) -> Scenario {
        Scenario::new(Profile::named("z-ssd").unwrap(), 1, tenants, duration_ns)
    }

    fn constant(name: &str) -> Varied {
        let constant = CONSTANTS.iter().find(|constant| constant.name == name).unwrap();
        Varied::Constant(constant, constant.ends().next().unwrap())
    }

    #[test]
    fn a_scheduler_has_no_more_on_the_drive_than_its_queue_holds() {
        let used = Used::default();
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
        let tags = constant("tags of the SATA drive");
        assert_eq!((slots(Varied::Nothing), slots(tags)), (31, 32));
    }

    #[test]
    fn what_was_run_says_which_constants_can_matter() {
        let used = Used::default();
        let setting = Setting { seed: 7, varied: Varied::Nothing, used: &used, usual: None };
        let scenario = z_ssd(Vec::new(), 1);
        assert_eq!(setting.applied(&scenario).unwrap().seed, 7);
        let names = || used.constants().iter().map(|of| of.name.as_str()).collect::<Vec<_>>();
        assert!(names().contains(&"planes") && !names().contains(&"page"), "{:?}", names());
        assert!(!names().contains(&"sending a wake-up"));
        setting.applied(&scenario.clone().on(Machine::GOLD_5112.host(1))).unwrap();
        assert!(names().contains(&"sending a wake-up"));
        assert!(!names().contains(&"FlashFQ's threshold") && !names().contains(&"YCSB computes"));
        let flashfq = SerialSubject::new(Scheduler::FlashFq, 32);
        setting.policy(AnySubject::Serial(flashfq), &scenario).unwrap();
        setting.on_proxy("ycsb", &mut Job::random_read(4096, 1)).unwrap();
        assert!(names().contains(&"FlashFQ's threshold") && names().contains(&"YCSB computes"));
    }

    #[test]
    fn a_run_that_nothing_changes_is_not_made_again() {
        let (usual, used) = (Used::default(), Used::default());
        let run = |used, usual, varied| {
            let tenant = Tenant::new("a", 100, vec![0], Job::random_read(4096, 1));
            let setting = Setting { seed: 1, varied, used, usual };
            setting.run(AnySubject::None, &z_ssd(vec![tenant], 1_000_000)).unwrap().digest
        };
        let first = run(&usual, None, Varied::Nothing);
        assert_eq!((run(&usual, None, Varied::Nothing), usual.runs().len()), (first, 1));
        assert_eq!(run(&used, Some(&usual), constant("tags of the SATA drive")), first);
        assert!(used.has_no_runs(), "it was made again");
        assert_ne!(run(&used, Some(&usual), constant("latency beside dies and links")), first);
        assert_eq!(used.runs().len(), 1);
    }
}
