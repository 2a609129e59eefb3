//! What rows that do not hold hang on: something is taken away from what the rules say, or replaced,
//! and the row is run again.
//!
//! `ablations.toml` has each of them, and what is known of the rows that nothing makes hold. An
//! ablation never makes a verdict: it shows what a reader would have to believe for the paper's
//! figure to come out.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::keys::Change;
use super::setting::EXPERIMENT;

/// Something that is taken away or replaced.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ablation {
    /// The rows that are run with it.
    pub rows: Vec<String>,
    /// What it is, as reports tell it.
    pub what: String,
    /// What stands for it, or against it.
    pub why: String,
    /// By place and key, the values that are others.
    change: Table,
}

/// Why a paper's figure does not follow from what the paper says, of rows that nothing makes hold.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Of these rows.
    pub rows: Vec<String>,
    /// What shows it.
    pub shows: String,
}

/// What was found of rows that nothing makes hold, where it is not known whether that is the
/// paper's doing or ours.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// These rows.
    pub rows: Vec<String>,
    /// What was found.
    pub known: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    ablation: Vec<Ablation>,
    evidence: Vec<Evidence>,
    open: Vec<Open>,
}

static FILE: LazyLock<File> = LazyLock::new(|| {
    toml::from_str(include_str!("../../ablations.toml")).expect("a test reads the file")
});

/// All of them.
pub static ABLATIONS: LazyLock<&'static [Ablation]> = LazyLock::new(|| &FILE.ablation);

/// Where a paper's figure does not follow from what it says.
pub static EVIDENCE: LazyLock<&'static [Evidence]> = LazyLock::new(|| &FILE.evidence);

/// Where that cannot be said.
pub static OPEN: LazyLock<&'static [Open]> = LazyLock::new(|| &FILE.open);

/// What came out of a row on the first seed with an ablation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ablated {
    /// What was another.
    pub what: String,
    /// Whether the row holds so.
    pub holds: Option<bool>,
    /// What was measured, or what went wrong.
    pub measured: String,
}

impl Ablated {
    /// What stands for it, or against it; nothing of what a later version does not know.
    pub fn why(&self) -> &'static str {
        let known = ABLATIONS.iter().find(|ablation| ablation.what == self.what);
        known.map_or("", |ablation| &ablation.why)
    }
}

impl Ablation {
    /// The keys behind a place, and their values.
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

    /// Whether it asks the experiment itself for something, and not only for other runs.
    pub(super) fn is_of_experiment(&'static self) -> bool {
        self.behind(EXPERIMENT).count() > 0
    }
}
