//! The models' constants that are guessed or derived, and what becomes of claims where they are
//! others.
//!
//! `constants.toml` has each of them, with what it could be as well and why. An experiment is run
//! in a [`Setting`]: on a seed, and with one constant changed or with none. Each scenario passes
//! through [`Setting::applied`] before it runs, so that no experiment knows of it.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex};

use fairq_device::Profile;
use fairq_sim::host::Machine;
use fairq_sim::scenario::Scenario;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// A constant, and what it could be as well.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// What a report calls it.
    pub name: String,
    /// Keys of a device's profile, all of which are changed at once; or of the machine.
    pub keys: Vec<String>,
    /// Whose they are; nobody's in particular if they are the machine's.
    #[serde(default)]
    pub devices: Vec<String>,
    /// The least that it could be, times what the lab runs with.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// Why these.
    pub source: String,
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

/// What came out of a row on the first seed where a constant was another.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elsewhere {
    /// The constant.
    pub constant: String,
    /// What it was, times what the lab runs with.
    pub times: f64,
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
    /// The constant that is another, and how many times what it is.
    pub(super) varied: Option<(&'static Constant, f64)>,
    /// Is told what was run.
    pub(super) used: &'a Used,
}

/// What an experiment ran on.
#[derive(Debug, Default)]
pub(super) struct Used(Mutex<Devices>);

#[derive(Debug, Default)]
struct Devices {
    names: BTreeSet<String>,
    has_machine: bool,
}

impl Used {
    /// The constants that can matter to it.
    pub(super) fn constants(&self) -> Vec<&'static Constant> {
        let used = self.0.lock().expect("no thread panics while it holds the lock");
        let matters = |constant: &&Constant| match constant.is_of_machine() {
            true => used.has_machine,
            false => constant.devices.iter().any(|name| used.names.contains(name)),
        };
        CONSTANTS.iter().filter(matters).collect()
    }

    fn add(&self, scenario: &Scenario) {
        let mut used = self.0.lock().expect("no thread panics while it holds the lock");
        // A disk stands in the drive's place, and then no constant of the profile matters.
        if scenario.disk.is_none() && !used.names.contains(&scenario.profile.name) {
            used.names.insert(scenario.profile.name.clone());
        }
        used.has_machine |= scenario.host.is_some();
    }
}

impl Constant {
    fn is_of_machine(&self) -> bool {
        self.keys.iter().any(|key| key.starts_with(MACHINE))
    }

    /// The device where this is so many times what it is.
    fn on_device(&self, profile: &Profile, times: f64) -> Result<Profile, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{} times {times}: {error}", self.name);
        let mut table = Table::try_from(profile).map_err(|error| wrong(&error))?;
        for key in &self.keys {
            let value = at(&mut table, key).ok_or_else(|| wrong(&format!("there is no {key}")))?;
            *value = match *value {
                Value::Integer(count) => Value::Integer((count as f64 * times).round() as i64),
                Value::Float(value) => Value::Float(value * times),
                _ => return Err(wrong(&format!("{key} is no number"))),
            };
        }
        Profile::parse(&table.to_string()).map_err(|error| wrong(&error))
    }

    /// The machine where this is so many times what it is.
    fn on_machine(&self, mut machine: Machine, times: f64) -> Result<Machine, String> {
        let change = |value: &mut u64| *value = (*value as f64 * times).round() as u64;
        for key in &self.keys {
            let layer = &mut machine.layer;
            match key.strip_prefix(MACHINE) {
                Some("layer") => {
                    let parts = [&mut layer.submit, &mut layer.issue, &mut layer.interrupt];
                    parts.into_iter().for_each(change);
                    [&mut layer.complete, &mut layer.reap].into_iter().for_each(change);
                }
                Some("layer.submit") => change(&mut layer.submit),
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
}

fn at<'a>(table: &'a mut Table, key: &str) -> Option<&'a mut Value> {
    let (section, name) = key.split_once('.')?;
    table.get_mut(section)?.as_table_mut()?.get_mut(name)
}

impl Setting<'_> {
    /// The scenario in this setting.
    pub(super) fn applied(&self, scenario: &Scenario) -> Result<Scenario, String> {
        self.used.add(scenario);
        // Noted above for any setting: the first run tells which constants are worth varying.
        let mut scenario = Scenario { seed: self.seed, ..scenario.clone() };
        let Some((constant, times)) = self.varied else { return Ok(scenario) };
        if constant.is_of_machine() {
            if let Some(host) = &mut scenario.host {
                host.machine = constant.on_machine(host.machine, times)?;
            }
        } else if constant.devices.contains(&scenario.profile.name) {
            scenario.profile = constant.on_device(&scenario.profile, times)?;
        }
        Ok(scenario)
    }
}

#[cfg(test)]
mod tests {
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
    fn each_end_of_each_range_is_another_machine_or_device() {
        for constant in CONSTANTS.iter() {
            assert!(!constant.source.is_empty() && constant.low <= 1.0 && constant.high >= 1.0);
            assert!(constant.low < constant.high, "{}", constant.name);
            for times in [constant.low, constant.high].into_iter().filter(|&times| times != 1.0) {
                let machine = Machine::GOLD_5112;
                if constant.is_of_machine() {
                    let other = constant.on_machine(machine, times).unwrap();
                    assert_ne!(machine, other, "{}", constant.name);
                    other.check().unwrap();
                }
                for name in &constant.devices {
                    let profile = Profile::named(name).unwrap();
                    let other = constant.on_device(&profile, times).unwrap();
                    assert_ne!(format!("{profile:?}"), format!("{other:?}"), "{}", constant.name);
                }
            }
        }
    }

    #[test]
    fn what_was_run_says_which_constants_can_matter() {
        let used = Used::default();
        let setting = Setting { seed: 7, varied: None, used: &used };
        let scenario = Scenario::new(Profile::named("z-ssd").unwrap(), 1, Vec::new(), 1);
        assert_eq!(setting.applied(&scenario).unwrap().seed, 7);
        let names = || used.constants().iter().map(|of| of.name.as_str()).collect::<Vec<_>>();
        assert!(names().contains(&"planes") && !names().contains(&"page"), "{:?}", names());
        assert!(!names().contains(&"sending a wake-up"));
        setting.applied(&scenario.on(Machine::GOLD_5112.host(1))).unwrap();
        assert!(names().contains(&"sending a wake-up"));
    }
}
