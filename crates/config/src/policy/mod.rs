//! `--policy NAME[:key=value,…]` and `[policy]`: the policy of the device. Names, keys, ranges and
//! help are in the [registry].

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use fairq_classic::registry::{self, Error, Knob, Registered, Shape, Unit};
use fairq_core::{ConfigError, Topology};
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::{Serialize, Serializer};

use crate::pairs::{self, Pair};
use crate::refusal::Refusal;
use crate::units::{TextOrNumber, show_duration};

mod retired;
pub mod value;

/// The default policy.
const USUAL: &str = "mqfq";

/// The names of all policies.
pub static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| registry::ALL.iter().map(|policy| policy.name).collect());

/// The knobs of all policies, each once.
static KNOBS: LazyLock<Vec<Knob>> = LazyLock::new(|| {
    let mut knobs: Vec<Knob> = Vec::new();
    for knob in registry::ALL.iter().flat_map(Registered::knobs) {
        if knobs.iter().all(|known| known.key != knob.key) {
            knobs.push(knob);
        }
    }
    knobs
});

/// The keys that a policy table may have.
static KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let of_knobs = KNOBS.iter().flat_map(|knob| knob.alias.into_iter().chain([knob.key]));
    std::iter::once("name").chain(of_knobs).collect()
});

fn knob(key: &str) -> Option<&'static Knob> {
    KNOBS.iter().find(|knob| knob.key == key || knob.alias == Some(key))
}

/// The knob of this key; the key may be a retired one.
fn any_knob(key: &str) -> Option<&'static Knob> {
    knob(key).or_else(|| retired::find(key).map(|retired| &retired.knob))
}

/// A policy's name and keys as configured, in a table or as `NAME:key=value,…`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PolicyTable {
    name: Option<&'static Registered>,
    keys: BTreeMap<&'static str, u64>,
    /// Keys that a server ignores or refuses.
    retired: BTreeMap<&'static str, u64>,
}

/// The policy, complete except for values that depend on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyConfig {
    /// The registered policy.
    pub policy: &'static Registered,
    /// The configured keys with their values.
    pub keys: Vec<(&'static str, u64)>,
    /// Keys of the laboratory with their values, which select the form of the policy in its paper.
    /// A server has none.
    pub of_paper: Vec<(&'static str, u64)>,
}

impl PolicyTable {
    /// A table of this policy with these keys.
    pub fn of(name: &str, keys: &[(&'static str, u64)]) -> PolicyTable {
        PolicyTable {
            name: registry::find(name),
            keys: keys.iter().copied().collect(),
            retired: BTreeMap::new(),
        }
    }

    /// The same keys for this policy.
    pub fn named(self, policy: &'static Registered) -> PolicyTable {
        PolicyTable { name: Some(policy), ..self }
    }

    /// Overrides keys with those of `flags`. If `flags` has another policy, none of these keys
    /// remain.
    pub fn overlaid(mut self, flags: PolicyTable) -> PolicyTable {
        // A key of one policy means nothing, or something else, to another.
        if flags.name.is_some() && flags.name != self.name {
            return flags;
        }
        self.keys.extend(flags.keys);
        self.retired.extend(flags.retired);
        self
    }

    /// Warnings about keys without effect.
    pub fn warnings(&self) -> Vec<String> {
        self.told().filter_map(Result::ok).collect()
    }

    fn told(&self) -> impl Iterator<Item = Result<String, String>> + '_ {
        let retired = |(key, value): (&&str, &u64)| Some(retired::find(key)?.told(*value));
        self.retired.iter().filter_map(retired)
    }

    /// Refuses invalid keys and values.
    pub fn complete(self) -> Result<PolicyConfig, Refusal> {
        let told = self.told().find_map(Result::err);
        let config = self.complete_for_lab()?;
        told.map_or(Ok(config), |refusal| Err(Refusal::new(refusal)))
    }

    /// Like [`complete`](Self::complete), for the laboratory, which also has the papers' policies.
    pub fn complete_for_lab(self) -> Result<PolicyConfig, Refusal> {
        let of_paper = self.told().any(|told| told.is_err());
        let usual = || registry::find(USUAL).expect("the usual policy is registered");
        let policy = self.name.unwrap_or_else(usual);
        let keys: Vec<(&str, u64)> = self.keys.into_iter().collect();
        let of_paper = if of_paper { self.retired.clone() } else { BTreeMap::new() };
        let config = PolicyConfig { policy, keys, of_paper: of_paper.into_iter().collect() };
        config.refuse_foreign_keys(self.retired.keys().copied())?;
        // The smallest shape is enough for ranges. Values that depend on the machine are checked
        // when the policy is built.
        match policy.configured(&config.keys, &Shape::new(Topology::flat(1), 1, 1)) {
            Ok(_) => Ok(config),
            Err(Error::Config(ConfigError::Knob { knob: key, value, .. })) => {
                Err(out_of_range(policy, key, value))
            }
            Err(error) => Err(Refusal::new(format!("policy: {error}"))),
        }
    }
}

fn out_of_range(policy: &Registered, key: &str, value: u64) -> Refusal {
    let knobs = policy.knobs();
    let knob = knobs.iter().find(|knob| knob.key == key).expect("the policy refused it");
    let [value, least, most] = [value, knob.least, knob.most].map(|value| value::show(knob, value));
    Refusal::new(format!("policy: {key} {value} is not in {least}..{most}: it is {}", knob.help))
}

impl PolicyConfig {
    /// The policy's name.
    pub fn name(&self) -> &'static str {
        self.policy.name
    }

    /// The policy's knobs with their values for a device of `device_slots` requests; `None` if the
    /// policy finds a value itself.
    pub fn knobs(&self, device_slots: u32) -> Vec<(Knob, Option<u64>)> {
        let shape = Shape::new(Topology::flat(1), 1, 1).before(device_slots);
        self.policy.configured(&self.keys, &shape).expect("it is complete")
    }

    /// The value of a key as it is written.
    pub fn shown(&self, key: &str, value: u64) -> String {
        any_knob(key).map_or_else(|| value.to_string(), |knob| value::show(knob, value))
    }

    /// The policy in short: `mqfq D=auto T=auto`.
    pub fn describe(&self, device_slots: u32) -> String {
        let mut text = self.name().to_owned();
        for (knob, value) in self.knobs(device_slots) {
            let Some(brief) = knob.brief else { continue };
            text += &match (knob.unit, value) {
                (Unit::Switch, Some(1)) => format!(" {brief}"),
                (Unit::Switch, _) => String::new(),
                (_, Some(0)) if knob.word_of(0) == Some("off") => String::new(),
                (Unit::Nanoseconds, Some(ns)) => format!(" {brief}={}", show_duration(ns as f64)),
                (_, value) => format!(" {brief}={}", value::show_or_auto(&knob, value)),
            };
        }
        text
    }

    fn refuse_foreign_keys(
        &self,
        mut retired: impl Iterator<Item = &'static str>,
    ) -> Result<(), Refusal> {
        let keys = |policy: &Registered| -> Vec<&str> {
            policy.knobs().iter().map(|knob| knob.key).collect()
        };
        let own = keys(self.policy);
        let foreign = self.keys.iter().map(|(key, _)| *key).find(|key| !own.contains(key));
        let is_foreign = |key: &&str| !retired::find(key).is_some_and(|it| it.is_of(self.name()));
        let Some(key) = foreign.or_else(|| retired.find(is_foreign)) else { return Ok(()) };
        let takes = if own.is_empty() { "no keys at all".into() } else { own.join(", ") };
        let is_of = |other: &&Registered| {
            keys(other).contains(&key) || retired::find(key).is_some_and(|it| it.is_of(other.name))
        };
        let others = registry::ALL.iter().filter(is_of);
        let others: Vec<&str> = others.map(|other| other.name).collect();
        Err(Refusal::new(format!(
            "policy: {} takes no `{key}` (it takes: {takes}): leave it out; it is for {}",
            self.name(),
            others.join(", "),
        )))
    }
}

impl FromStr for PolicyTable {
    type Err = String;

    fn from_str(text: &str) -> Result<PolicyTable, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut list = vec![Pair::new("name", name.trim())];
        list.extend(pairs::pairs(&pairs::items(rest)));
        pairs::read(list)
    }
}

/// Parses several policies, as in `none,mqfq:slots=64,threshold=64k,sfqd`: a key without a policy's
/// name belongs to the policy before it.
pub fn parse_list(text: &str) -> Result<Vec<PolicyTable>, String> {
    let mut policies: Vec<String> = Vec::new();
    for item in pairs::items(text).into_iter().filter(|item| !item.trim().is_empty()) {
        // A `:` before the `=` ends the name of another policy. A `:` behind the `=` belongs to the
        // value, as in unthrottle=poll:1us.
        let is_key = item.find('=').is_some_and(|equals| !item[..equals].contains(':'));
        match policies.last_mut() {
            Some(policy) if is_key => {
                policy.push(if policy.contains(':') { ',' } else { ':' });
                policy.push_str(&item);
            }
            _ => policies.push(item),
        }
    }
    policies.iter().map(|policy| policy.parse()).collect()
}

impl Serialize for PolicyTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = self.name.map(|policy| ("name", value::Written::Text(policy.name.into())));
        let keys =
            self.keys.iter().chain(&self.retired).filter_map(|(key, value)| {
                Some((*key, value::Written::of(any_knob(key)?, *value)))
            });
        serializer.collect_map(name.into_iter().chain(keys))
    }
}

impl<'de> Deserialize<'de> for PolicyTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PolicyTable, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = PolicyTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a policy's name and keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PolicyTable, A::Error> {
                let mut table = PolicyTable::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "name" {
                        table.name = Some(map.next_value_seed(Name)?);
                        continue;
                    }
                    let found = any_knob(&key);
                    let knob = found.ok_or_else(|| de::Error::unknown_field(&key, &KEYS))?;
                    let value = map.next_value_seed(value::Of(knob))?;
                    let is_retired = retired::find(&key).is_some();
                    let keys = if is_retired { &mut table.retired } else { &mut table.keys };
                    // A key and its alias (`slots`, `D`) are the same knob.
                    if keys.insert(knob.key, value).is_some() {
                        return Err(de::Error::duplicate_field(knob.key));
                    }
                }
                Ok(table)
            }
        }

        deserializer.deserialize_map(Keys)
    }
}

/// A policy's name.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = &'static Registered;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let unknown = |text: &str| {
            let error: de::value::Error = de::Error::unknown_variant(text, &NAMES);
            error.to_string()
        };
        let parse = |text: &str| registry::find(text).ok_or_else(|| unknown(text));
        deserializer.deserialize_str(TextOrNumber { expecting: "a policy's name", parse })
    }
}

#[cfg(test)]
mod tests;
