//! The record of results: claims, figures and tables, and the seed that reproduces them.
//!
//! `--json` prints only the claims. The record has all data of a report, and all data that
//! `--against` compares with a later run.

use std::path::Path;

use fairq_config::refusal::Refusal;
use serde::{Deserialize, Serialize};

use crate::claims::{self, Ablated, Elsewhere, Extent, Findings, Interval, OnSeed, ROWS, Row};
use crate::figure::{Figure, Table};

/// The claims, for programs.
#[derive(Serialize)]
pub(crate) struct Claims<'a> {
    pub(crate) claims: &'a [Claim],
}

/// A claim and its results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    pub(crate) id: String,
    pub(crate) paper: String,
    pub(crate) claim: String,
    pub(crate) expected: String,
    /// The measurement. Over several seeds each figure is the median, with the least and the
    /// greatest.
    pub(crate) measured: String,
    /// The verdict over all seeds; `None` if it cannot be decided.
    pub(crate) holds: Option<bool>,
    pub(crate) note: String,
    /// The figures in `measured`, in their order; empty for one seed, and if seeds differ in more
    /// than figures.
    #[serde(default)]
    pub(crate) intervals: Vec<Interval>,
    /// Results by seed.
    #[serde(default)]
    pub(crate) by_seed: Vec<OnSeed>,
    /// Whether a model was derived from the claim, so that the verdict is reported and not counted.
    #[serde(default)]
    pub(crate) calibration: bool,
    /// Whether the claim is counted.
    #[serde(default)]
    pub(crate) counted: bool,
    /// Results with other values of constants, with `--band`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) band: Vec<Elsewhere>,
    /// Results of ablations, with `--ablations`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ablations: Vec<Ablated>,
}

/// All results of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The first seed.
    pub(crate) seed: u64,
    /// Number of seeds. Default 1.
    #[serde(default = "one_seed")]
    pub(crate) seeds: usize,
    /// The requested claims, as on the command line.
    #[serde(default)]
    pub(crate) asked: String,
    /// Whether claims were also run with other values of each constant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) band: bool,
    /// Whether failing claims were also run with ablations.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ablations: bool,
    pub(crate) claims: Vec<Claim>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) tables: Vec<Table>,
}

fn one_seed() -> usize {
    1
}

impl Record {
    pub(crate) fn new(extent: Extent, asked: String, findings: Findings) -> Record {
        let Extent { seeds, band, ablations } = extent;
        Record {
            band,
            ablations,
            seed: seeds.first,
            seeds: seeds.count,
            asked,
            claims: findings.rows.into_iter().map(Claim::from).collect(),
            figures: findings.figures,
            tables: findings.tables,
        }
    }

    /// The command that reproduces this record.
    pub(crate) fn command(&self) -> String {
        let seeds = match self.seeds {
            0 | 1 => String::new(),
            seeds => format!(" --seeds {seeds}"),
        };
        let band = if self.band { " --band" } else { "" };
        let ablations = if self.ablations { " --ablations" } else { "" };
        format!("fairq lab run {} --seed {}{seeds}{band}{ablations}", self.asked, self.seed)
    }

    /// Reads the file that a report has in its folder.
    pub(crate) fn read(path: &Path) -> Result<Record, Refusal> {
        let refuse = |what: String| Refusal::new(format!("{}: {what}", path.display()));
        let what = "it has to be a folder that --output made";
        let text = std::fs::read_to_string(path)
            .map_err(|error| refuse(format!("cannot be read: {error}: {what}")))?;
        let record: Record =
            serde_json::from_str(&text).map_err(|error| refuse(format!("{error}: {what}")))?;
        match record.claims.iter().find(|claim| claim.row().is_none()) {
            Some(claim) => Err(refuse(format!(
                "no claim is called `{}`: was it made by another version?",
                claim.id
            ))),
            None => Ok(record),
        }
    }

    /// Differences between this record and another one, in words. Claims are compared on the seeds
    /// of this record, so a record of one seed can be compared with one of ten.
    pub(crate) fn differences(&self, other: &Record) -> Vec<String> {
        let mut found = Vec::new();
        for claim in &self.claims {
            match other.claims.iter().find(|known| known.id == claim.id) {
                Some(known) => found.extend(claim.differences(known)),
                None => found.push(format!("{}: not recorded", claim.id)),
            }
        }
        if self.seed != other.seed {
            // Figures and tables are those of the first seed, so records with different first seeds
            // differ.
            found.push(format!("seed {} and {}", self.seed, other.seed));
            return found;
        }
        let changed = self.figures.iter().filter(|figure| !other.figures.contains(figure));
        found.extend(changed.map(|figure| format!("figure {}", figure.id)));
        let changed = self.tables.iter().filter(|table| !other.tables.contains(table));
        found.extend(changed.map(|table| format!("table {}", table.id)));
        found
    }

    /// Number of counted claims whose verdict depends on the seed.
    pub(crate) fn by_the_seed(&self) -> usize {
        let differs = |claim: &&Claim| {
            let first = claim.by_seed.first().map(|on| on.holds);
            claim.counted && claim.by_seed.iter().any(|on| Some(on.holds) != first)
        };
        self.claims.iter().filter(differs).count()
    }

    /// Numbers of the papers' counted claims that hold, that do not, and that cannot be decided.
    pub(crate) fn counts(&self, papers: &[claims::Paper]) -> [usize; 3] {
        let mine = |claim: &&Claim| papers.iter().any(|paper| paper.name() == claim.paper);
        let counted = || self.claims.iter().filter(mine).filter(|claim| claim.counted);
        let count = |holds| counted().filter(|claim| claim.holds == holds).count();
        [count(Some(true)), count(Some(false)), count(None)]
    }

    /// Number of the papers' claims that are reported and not counted.
    pub(crate) fn uncounted(&self) -> usize {
        let beyond = claims::Paper::Beyond.name();
        self.claims.iter().filter(|claim| !claim.counted && claim.paper != beyond).count()
    }

    /// The counts over all papers, in words.
    pub(crate) fn summary(&self) -> String {
        let papers = claims::Paper::ALL
            .into_iter()
            .filter(|paper| *paper != claims::Paper::Beyond)
            .collect::<Vec<_>>();
        let [hold, fail, open] = self.counts(&papers);
        let all = hold + fail + open;
        let told = match self.uncounted() {
            0 => String::new(),
            more => format!("; {more} more are told and not counted"),
        };
        let seeds = match self.seeds {
            0 | 1 => String::new(),
            seeds => format!(
                "; the outcome of {} differs between the {seeds} seeds",
                match self.by_the_seed() {
                    0 => "none".to_owned(),
                    some => some.to_string(),
                }
            ),
        };
        format!(
            "of {all} counted claims {hold} hold, {fail} do not, {open} cannot be \
             decided{told}{seeds}"
        )
    }
}

impl Claim {
    /// The claim's row in the catalogue.
    pub(crate) fn row(&self) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.id == self.id)
    }

    /// The verdict on the first seed, on which the band is run.
    pub(crate) fn on_first_seed(&self) -> Option<bool> {
        self.by_seed.first().and_then(|on| on.holds)
    }

    /// The tolerance in words.
    pub(crate) fn within(&self) -> &'static str {
        self.row().map_or("", |row| row.within.as_str())
    }

    /// Remarks beside the verdict: on this result, and on the claim in general.
    pub(crate) fn remarks(&self) -> String {
        let row = self.row();
        let lasting = row.and_then(|row| row.caveat.clone());
        let uncounted = row.and_then(|row| {
            let calibration = row.calibration.as_ref().map(|why| format!("calibration: {why}"));
            calibration.or(row.uncounted.as_ref().map(|why| format!("not counted: {why}")))
        });
        let mut said: Vec<String> = uncounted.into_iter().collect();
        // Adds notes of other seeds that differ, such as that of a broken law.
        for note in std::iter::once(&self.note).chain(self.by_seed.iter().map(|on| &on.note)) {
            if !note.is_empty() && !said.contains(note) {
                said.push(note.clone());
            }
        }
        said.extend(lasting);
        said.join(". ")
    }

    /// The verdict in a few words.
    pub(crate) fn verdict(&self) -> &'static str {
        self.said(self.holds)
    }

    fn said(&self, holds: Option<bool>) -> &'static str {
        match holds {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None if self.paper == claims::Paper::Beyond.name() => "–",
            None => "cannot be decided",
        }
    }

    /// The number of seeds on which the claim holds, as in `9 of 10`; `None` for one seed, or for a
    /// row that claims nothing.
    pub(crate) fn on_seeds(&self) -> Option<String> {
        let hold = self.by_seed.iter().filter(|on| on.holds == Some(true)).count();
        let is_claim = self.paper != claims::Paper::Beyond.name();
        (is_claim && self.by_seed.len() > 1).then(|| format!("{hold} of {}", self.by_seed.len()))
    }

    fn note_on<'a>(&'a self, on: &'a OnSeed) -> &'a str {
        if on.note.is_empty() { &self.note } else { &on.note }
    }

    /// Differences from another record of the claim, on the seeds of this one.
    fn differences(&self, known: &Claim) -> Vec<String> {
        let Claim { id, .. } = self;
        let mut found = Vec::new();
        if (&self.claim, &self.expected, self.counted, self.calibration)
            != (&known.claim, &known.expected, known.counted, known.calibration)
        {
            found.push(format!("{id}: another rule"));
        }
        if self.by_seed.is_empty() {
            found.push(format!("{id}: not run"));
        }
        if !self.band.is_empty() && self.band != known.band {
            found.push(format!("{id}: another band"));
        }
        if !self.ablations.is_empty() && self.ablations != known.ablations {
            found.push(format!("{id}: another outcome of an ablation"));
        }
        for here in &self.by_seed {
            let on = |what: String| match self.by_seed.len() {
                1 => format!("{id}: {what}"),
                _ => format!("{id} on seed {}: {what}", here.seed),
            };
            let told = |on: &OnSeed| format!("`{}` ({})", on.measured, self.said(on.holds));
            match known.by_seed.iter().find(|there| there.seed == here.seed) {
                None => found.push(on(format!("seed {} is not recorded", here.seed))),
                Some(there) if (there.holds, &there.measured) != (here.holds, &here.measured) => {
                    found.push(on(format!("{}, recorded {}", told(here), told(there))));
                }
                Some(there) => {
                    let (here, there) = (self.note_on(here), known.note_on(there));
                    if here != there {
                        found.push(on(format!("`{here}`, recorded `{there}`")));
                    }
                }
            }
        }
        found
    }
}

impl From<claims::Finding> for Claim {
    fn from(finding: claims::Finding) -> Claim {
        let claims::Finding { row, mut by_seed, band, ablations } = finding;
        let [id, paper, claim, expected] =
            [row.id.as_str(), row.paper().name(), &row.claim, &row.expected].map(str::to_owned);
        let texts: Vec<&str> = by_seed.iter().map(|on| on.measured.as_str()).collect();
        let (measured, intervals) = claims::told(&texts);
        let each: Vec<Option<bool>> = by_seed.iter().map(|on| on.holds).collect();
        let holds = claims::verdict(&each);
        let note = by_seed.first().map_or("interrupted".to_owned(), |on| on.note.clone());
        // Most claims have the same note on all seeds.
        by_seed.iter_mut().filter(|on| on.note == note).for_each(|on| on.note.clear());
        let (calibration, counted) = (row.calibration.is_some(), row.is_counted());
        Claim {
            id,
            paper,
            claim,
            expected,
            measured,
            holds,
            note,
            intervals,
            by_seed,
            calibration,
            counted,
            band,
            ablations,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seed: u64, ids: &[&str]) -> Record {
        let claim = |id: &&str| Claim {
            id: (*id).to_owned(),
            paper: "mqfq".into(),
            claim: "c".into(),
            expected: "e".into(),
            measured: "m".into(),
            holds: Some(true),
            note: String::new(),
            intervals: Vec::new(),
            by_seed: vec![on(seed, Some(true), "m")],
            calibration: false,
            counted: true,
            band: Vec::new(),
            ablations: Vec::new(),
        };
        Record { seed, seeds: 1, claims: ids.iter().map(claim).collect(), ..Record::default() }
    }

    fn on(seed: u64, holds: Option<bool>, measured: &str) -> OnSeed {
        OnSeed { seed, holds, measured: measured.to_owned(), note: String::new() }
    }

    #[test]
    fn what_is_not_counted_is_told() {
        let mut one = record(1, &["M-T1", "M-P.1"]);
        (one.claims[1].calibration, one.claims[1].counted) = (true, false);
        let said = "of 1 counted claims 1 hold, 0 do not, 0 cannot be decided; \
                    1 more are told and not counted";
        assert_eq!(one.summary(), said);
        assert!(one.claims[1].remarks().starts_with("calibration: how long the fabric takes"));
    }

    #[test]
    fn what_differs_is_told() {
        let (mut now, known) = (record(1, &["M-T1", "M-T2"]), record(1, &["M-T1"]));
        assert_eq!(now.differences(&known), ["M-T2: not recorded"]);
        now.claims.truncate(1);
        assert!(now.differences(&known).is_empty());
        now.claims[0].by_seed[0].holds = Some(false);
        assert_eq!(now.differences(&known), ["M-T1: `m` (does not hold), recorded `m` (holds)"]);
        now.claims[0].by_seed.clear();
        assert_eq!(now.differences(&known), ["M-T1: not run"]);
    }

    #[test]
    fn one_seed_is_held_against_a_record_of_several() {
        let mut known = record(1, &["M-T1"]);
        known.seeds = 2;
        known.claims[0].by_seed.push(on(2, None, "other"));
        assert!(record(1, &["M-T1"]).differences(&known).is_empty());
        let mut both = known.clone();
        both.claims[0].by_seed[1].measured = "m".into();
        let said = "M-T1 on seed 2: `m` (cannot be decided), recorded `other` (cannot be decided)";
        assert_eq!(both.differences(&known), [said]);
        let said = record(2, &["M-T1"]).differences(&record(1, &["M-T1"]));
        assert_eq!(said, ["M-T1: seed 2 is not recorded", "seed 2 and 1"]);
    }

    #[test]
    fn several_seeds_are_told_together() {
        let row = ROWS.iter().find(|row| row.id == "M-T1").unwrap();
        let by_seed: Vec<OnSeed> = (1..=10)
            .map(|seed| OnSeed {
                note: if seed == 3 { "broken" } else { "n" }.into(),
                ..on(seed, Some(seed > 1), &format!("{seed} us"))
            })
            .collect();
        let claim = Claim::from(claims::Finding {
            row,
            by_seed: by_seed.clone(),
            band: Vec::new(),
            ablations: Vec::new(),
        });
        assert_eq!((claim.holds, claim.measured.as_str()), (Some(true), "6 [1 to 10] us"));
        assert_eq!((claim.remarks().as_str(), claim.by_seed[1].note.as_str()), ("n. broken", ""));
        assert_eq!((claim.note.as_str(), claim.on_seeds().as_deref()), ("n", Some("9 of 10")));
        let mut other = claim.clone();
        other.by_seed[2].note.clear();
        assert_eq!(claim.differences(&other), ["M-T1 on seed 3: `broken`, recorded `n`"]);
        let interval = Interval { median: 5.5, least: 1.0, greatest: 10.0 };
        assert_eq!((claim.intervals.as_slice(), claim.by_seed.len()), ([interval].as_slice(), 10));
        let record = Record { seeds: 10, claims: vec![claim], ..Record::default() };
        let said = "of 1 counted claims 1 hold, 0 do not, 0 cannot be decided; \
                    the outcome of 1 differs between the 10 seeds";
        assert_eq!(record.summary(), said);
        let one = Claim::from(claims::Finding {
            row,
            by_seed: by_seed[..1].to_vec(),
            band: Vec::new(),
            ablations: Vec::new(),
        });
        assert_eq!((one.measured.as_str(), one.holds, one.on_seeds()), ("1 us", Some(false), None));
    }
}
