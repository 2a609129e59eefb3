//! Causes of rows that do not hold: an ablation removes or replaces a part of the rules, and the
//! row is run again.
//!
//! `ablations.toml` lists the ablations, and the evidence for rows that hold with no ablation. An
//! ablation never decides a verdict: it shows the assumption with which the row would have the
//! paper's figure.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::keys::Change;

/// Prefix of the keys that an experiment itself has to apply.
pub(super) const EXPERIMENT: &str = "experiment";

/// A part of the rules that is removed or replaced.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ablation {
    /// The rows that are run with this ablation.
    pub(crate) rows: Vec<String>,
    /// The change as text, which reports print.
    pub(crate) what: String,
    /// The arguments for it or against it.
    pub(crate) why: String,
    /// The published number by which a proxy is calibrated. Such an ablation shows the proxy's
    /// predictions for other rows; it does not explain a row that fails.
    pub(crate) number: Option<String>,
    /// The new values by place and key; empty if the proxy reproduces its number without a change.
    change: Table,
}

/// Evidence that a paper's figure does not follow from the paper's text, for rows that hold with no
/// ablation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Evidence {
    /// The rows.
    pub(crate) rows: Vec<String>,
    /// The evidence in words.
    pub(crate) shows: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    ablation: Vec<Ablation>,
    evidence: Vec<Evidence>,
}

static FILE: LazyLock<File> = LazyLock::new(|| {
    toml::from_str(include_str!("../../ablations.toml")).expect("a test reads the file")
});

/// All ablations of `ablations.toml`.
pub(crate) static ABLATIONS: LazyLock<&'static [Ablation]> = LazyLock::new(|| &FILE.ablation);

/// All evidence of `ablations.toml`.
pub(crate) static EVIDENCE: LazyLock<&'static [Evidence]> = LazyLock::new(|| &FILE.evidence);

/// The result of a row on the first seed with an ablation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ablated {
    /// The change in words (`Ablation::what`).
    pub(crate) what: String,
    /// Whether the row holds with the change.
    pub(crate) holds: Option<bool>,
    /// The measurement, or the error.
    pub(crate) measured: String,
}

impl Ablated {
    /// The ablation for this row; `None` if this version does not know it.
    pub(crate) fn of(&self, row: &str) -> Option<&'static Ablation> {
        ABLATIONS.iter().find(|ablation| ablation.what == self.what && ablation.is_of(row))
    }
}

impl Ablation {
    /// Whether this ablation belongs to a row.
    pub(crate) fn is_of(&self, row: &str) -> bool {
        self.rows.iter().any(|id| id == row)
    }

    /// Whether the ablation changes any value, so that it has to be run.
    pub(crate) fn is_run(&self) -> bool {
        !self.change.is_empty()
    }

    /// The keys with this place as their prefix, and their values.
    pub(super) fn behind(
        &'static self,
        place: &str,
    ) -> impl Iterator<Item = (&'static str, Change<'static>)> {
        self.change.iter().filter_map(move |(name, value)| {
            let key = name.strip_prefix(place)?.strip_prefix('.')?;
            let times = value.as_str().and_then(|text| text.strip_suffix(" times")?.parse().ok());
            Some((key, times.map_or(Change::To(value), Change::Times)))
        })
    }

    /// Whether the experiment itself has to act on this ablation ([`EXPERIMENT`]).
    pub(super) fn is_of_experiment(&'static self) -> bool {
        self.behind(EXPERIMENT).count() > 0
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use fairq_classic::nass::NassConfig;
    use fairq_core::CostModel;
    use fairq_device::Profile;
    use fairq_sim::host::Machine;
    use fairq_sim::policies::{
        AnySubject, D2fqSubject, Kernel, LinuxBfqConfig, MqfqSubject, Scheduler, SerialSubject,
    };
    use fairq_sim::proxy;
    use fairq_sim::scenario::Job;

    use super::*;
    use crate::claims::experiment::FILES;
    use crate::claims::{ROWS, keys};

    /// Splits a name into its place and its key.
    fn divided(name: &str) -> (&str, &str) {
        let places = match name.strip_prefix("proxy.") {
            Some(rest) => "proxy.".len() + rest.find('.').unwrap(),
            None => name.find('.').unwrap(),
        };
        (&name[..places], &name[places + 1..])
    }

    /// Whether a change alters the printed value.
    fn changes<T: Debug>(
        mut it: T,
        key: &str,
        change: Change<'_>,
        on: impl Fn(&mut T, &str, Change<'_>) -> Result<(), String>,
    ) -> bool {
        let before = format!("{it:?}");
        on(&mut it, key, change).unwrap();
        before != format!("{it:?}")
    }

    /// One policy of each kind that has keys.
    fn policies() -> Vec<AnySubject> {
        let bfq = LinuxBfqConfig {
            kernel: Kernel::V5_3,
            processes: 0,
            budget: 256,
            cycles: LinuxBfqConfig::CYCLES,
            low_latency: false,
        };
        let schedulers =
            [Scheduler::LinuxCfq, Scheduler::LinuxBfq(bfq), Scheduler::FlashFq, Scheduler::Fiops];
        let lock = |scheduler| {
            SerialSubject::new(scheduler, 32).merging().limited_strictly(NassConfig::default())
        };
        let waiting =
            |scheduler| AnySubject::Serial(SerialSubject { waits: true, ..lock(scheduler) });
        let mqfq = MqfqSubject { slots: 128, threshold: 1 << 16 };
        let d2fq = D2fqSubject {
            ratio: fairq_core::d2fq::Ratio::Static(3),
            tau_l: 1,
            tau_m: None,
            strict_paper: false,
        };
        let others = [AnySubject::MqfqStrict(mqfq.parts()), AnySubject::D2fq(d2fq)];
        schedulers.map(waiting).into_iter().chain(others).collect()
    }

    fn acts(name: &str, change: Change<'_>) -> bool {
        let (place, key) = divided(name);
        match place {
            EXPERIMENT => {
                let asked = format!("asks('{key}')");
                let code = include_str!("mod.rs").contains(&format!("asks_for(\"{key}\")"));
                code || FILES.iter().any(|text| text.contains(&asked))
            }
            "machine" => changes(Machine::E5_2630_V3, key, change, keys::on_machine),
            "cost" => changes(CostModel::default(), key, change, keys::on_cost),
            "fio" => changes(Job::random_read(4096, 1), key, change, keys::on_job),
            _ => {
                if let Some(proxy) = place.strip_prefix("proxy.") {
                    return changes(proxy::named(proxy).unwrap().1, key, change, keys::on_job);
                }
                if let Ok(profile) = Profile::named(place) {
                    return changes(profile, key, change, keys::on_device);
                }
                let policies = policies();
                let mut mine =
                    policies.into_iter().filter(|of| keys::places_of(of).contains(&place));
                mine.any(|policy| {
                    changes(policy, key, change, |policy, key, change| {
                        keys::on_policy(policy, place, key, change)
                    })
                })
            }
        }
    }

    #[test]
    fn each_ablation_is_of_rows_that_there_are_and_changes_something() {
        for (at, ablation) in ABLATIONS.iter().enumerate() {
            let Ablation { rows, what, why, number, change } = ablation;
            assert!(!rows.is_empty() && !why.is_empty(), "{what}");
            assert!(ablation.is_run() || number.is_some(), "{what} changes nothing");
            let twice = ABLATIONS[..at]
                .iter()
                .any(|other| other.what == *what && other.rows.iter().any(|id| rows.contains(id)));
            assert!(!twice, "{what} is there twice");
            for (name, _) in change {
                let (place, key) = divided(name);
                let (_, change) = ablation.behind(place).find(|(of, _)| *of == key).unwrap();
                assert!(acts(name, change), "{what}: {name}");
            }
        }
    }

    #[test]
    fn what_else_is_known_is_of_rows_that_there_are_and_said_once() {
        let mut said: Vec<&String> = EVIDENCE.iter().flat_map(|one| &one.rows).collect();
        let ablated = ABLATIONS.iter().flat_map(|ablation| &ablation.rows);
        for id in said.iter().copied().chain(ablated) {
            assert!(ROWS.iter().any(|row| row.id == *id), "there is no {id}");
        }
        let all = said.len();
        said.sort_unstable();
        said.dedup();
        assert_eq!(said.len(), all, "a row is shown twice");
    }

    #[test]
    fn a_value_may_be_so_many_times_the_usual() {
        let table: File = toml::from_str(
            r#"
            evidence = []
            [[ablation]]
            rows = []
            what = ""
            why = ""
            change = { "machine.lines.far" = "10 times", "bfq.whose" = "fairq" }
            "#,
        )
        .unwrap();
        let ablation = &*Box::leak(Box::new(table.ablation[0].clone()));
        let only = |place| ablation.behind(place).collect::<Vec<_>>();
        assert_eq!(only("machine"), [("lines.far", Change::Times(10.0))]);
        assert!(matches!(only("bfq")[..], [("whose", Change::To(_))]), "{:?}", only("bfq"));
        assert!(only("lines").is_empty() && !ablation.is_of_experiment());
    }
}
