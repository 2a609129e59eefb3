//! The models' constants that are guessed or derived, and the verdicts of claims with other values
//! of them.
//!
//! `constants.toml` lists the constants with their possible values and the reasons. Experiments run
//! in a [setting](super::setting) in which one constant has another value.

use std::fmt::{Display, Formatter};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::keys::Change;

/// A constant and its other possible values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Constant {
    /// Its name in reports.
    pub(crate) name: String,
    /// Keys of a device's profile, of the machine, of proxies, of FlashFQ or of Linux's BFQ. All of
    /// them are changed at once.
    pub(crate) keys: Vec<String>,
    /// The devices to whose profiles the keys belong.
    #[serde(default)]
    pub(crate) devices: Vec<String>,
    /// The proxies to which the keys belong.
    #[serde(default)]
    pub(crate) proxies: Vec<String>,
    /// The least possible value, as a factor of the lab's own. Default 1.
    #[serde(default = "as_it_is")]
    pub(crate) low: f64,
    /// The greatest possible value, as a factor of the lab's own. Default 1.
    #[serde(default = "as_it_is")]
    pub(crate) high: f64,
    /// The value to try, for a constant that the lab normally does not use.
    pub(crate) instead: Option<f64>,
    /// The source of these values.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers of the file; tests check it"))]
    pub(crate) source: String,
}

fn as_it_is() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constants {
    constant: Vec<Constant>,
}

/// All constants of `constants.toml`.
pub(crate) static CONSTANTS: LazyLock<Vec<Constant>> = LazyLock::new(|| {
    let text = include_str!("../../constants.toml");
    toml::from_str::<Constants>(text).expect("a test reads the file").constant
});

/// Prefixes of keys that belong to neither a device nor a proxy.
const PLACES: [&str; 4] = ["machine", "fio", "flashfq", "bfq"];

/// The other value of a constant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum End {
    /// A factor of the lab's value.
    Times(f64),
    /// An absolute value, for a constant that the lab normally does not use.
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

/// The result of a row on the first seed with another value of a constant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Elsewhere {
    /// Name of the constant.
    pub(crate) constant: String,
    /// The constant's value, as in `0.5 times`.
    pub(crate) end: String,
    /// Whether the row holds with this value.
    pub(crate) holds: Option<bool>,
    /// The measurement with this value.
    pub(crate) measured: String,
}

impl End {
    pub(super) fn change(self) -> Change<'static> {
        match self {
            End::Times(times) => Change::Times(times),
            End::Instead(value) => Change::Number(value),
        }
    }
}

impl Constant {
    /// Its keys without their place, which is the name of a device, `proxy.` and the name of a
    /// proxy, or one of [`PLACES`].
    pub(super) fn behind(&'static self, place: &str) -> impl Iterator<Item = &'static str> {
        let (before, is_of) = match place.strip_prefix("proxy.") {
            Some(name) => ("proxy", self.proxies.iter().any(|of| of == name)),
            None if PLACES.contains(&place) => (place, true),
            None => ("", self.devices.iter().any(|of| of == place)),
        };
        let before = before.to_owned();
        self.keys.iter().filter(move |_| is_of).filter_map(move |key| {
            let key = key.strip_prefix(before.as_str())?;
            if before.is_empty() { Some(key) } else { key.strip_prefix('.') }
        })
    }

    /// The values to try.
    pub(super) fn ends(&self) -> impl Iterator<Item = End> {
        // A factor of 1 gives the usual run, so it is left out.
        let times = [self.low, self.high].into_iter().filter(|&times| times != 1.0);
        times.map(End::Times).chain(self.instead.map(End::Instead))
    }
}

#[cfg(test)]
mod tests {
    use fairq_classic::flashfq::FlashFqConfig;
    use fairq_device::Profile;
    use fairq_sim::host::Machine;
    use fairq_sim::policies::{AnySubject, Kernel, LinuxBfqConfig, Scheduler, SerialSubject};
    use fairq_sim::proxy;
    use fairq_sim::scenario::Job;

    use super::*;
    use crate::claims::keys;

    /// Keys whose values are not numbers, so that no constant has a range for them.
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
            let place = format!("proxy.{name}");
            let of = |key: &str| {
                CONSTANTS.iter().any(|constant| constant.behind(&place).any(|of| of == key))
            };
            assert!(job.think_ns == 0 || of("think"), "{name} thinks");
            assert!(job.interval_ns == 0 || of("interval"), "{name} has an interval");
        }
    }

    /// Whether the least or greatest value of a constant changes the printed value, if the constant
    /// has keys of this place.
    fn is_another<T: Clone + std::fmt::Debug>(
        constant: &'static Constant,
        end: End,
        place: &str,
        usual: T,
        change: impl Fn(&mut T, &str, Change<'static>) -> Result<(), String>,
    ) -> T {
        let mut other = usual.clone();
        for key in constant.behind(place) {
            change(&mut other, key, end.change()).unwrap();
        }
        let (usual, found) = (format!("{usual:?}"), format!("{other:?}"));
        assert_eq!(usual == found, constant.behind(place).count() == 0, "{}", constant.name);
        other
    }

    #[test]
    fn each_end_of_each_range_is_another_device_machine_proxy_or_scheduler() {
        for constant in CONSTANTS.iter() {
            assert!(!constant.source.is_empty() && constant.low <= 1.0 && constant.high >= 1.0);
            assert!(constant.ends().count() > 0, "{}", constant.name);
            for end in constant.ends() {
                let machine = Machine::GOLD_5112;
                is_another(constant, end, "machine", machine, keys::on_machine).check().unwrap();
                let flashfq = FlashFqConfig::default();
                is_another(constant, end, "flashfq", flashfq, keys::on_flashfq);
                let bfq = LinuxBfqConfig {
                    kernel: Kernel::V4_15,
                    processes: 0,
                    budget: 0,
                    cycles: LinuxBfqConfig::CYCLES,
                    low_latency: false,
                };
                let bfq = AnySubject::Serial(SerialSubject::new(Scheduler::LinuxBfq(bfq), 8192));
                is_another(constant, end, "bfq", bfq, |policy, key, change| {
                    keys::on_policy(policy, "bfq", key, change)
                });
                let fio = Job { interval_ns: 10_000, ..Job::random_read(4096, 1) };
                is_another(constant, end, "fio", fio, keys::on_job);
                for name in &constant.proxies {
                    let (_, job) = proxy::named(name).unwrap();
                    is_another(constant, end, &format!("proxy.{name}"), job, keys::on_job);
                }
                for name in &constant.devices {
                    let profile = Profile::named(name).unwrap();
                    is_another(constant, end, name, profile, keys::on_device);
                }
            }
        }
    }
}
