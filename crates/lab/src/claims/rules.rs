//! The rules of `claims.toml`: every claim in the papers' own words, with the tolerance within
//! which our result must be for the claim to hold.
//!
//! That file is the only place with tolerances: experiments read each number that they compare with
//! by [`rule`]. Tests check that every number is used, and that words and numbers of a row agree.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::Paper;

/// A claim, and the rule for its verdict.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(test), expect(dead_code, reason = "some is for readers of the file"))]
pub(crate) struct Row {
    /// Identifier, as in D-11a.1.
    pub(crate) id: String,
    /// Section or figure of the paper.
    #[serde(rename = "where", default)]
    pub(crate) place: String,
    /// The paper's own words.
    #[serde(default)]
    pub(crate) says: Vec<String>,
    /// The claim in short.
    pub(crate) claim: String,
    /// The quantity that is compared.
    #[serde(default)]
    pub(crate) measures: String,
    /// The paper's value.
    #[serde(default)]
    pub(crate) expected: String,
    /// The tolerance in words.
    #[serde(default)]
    pub(crate) within: String,
    /// The paper's value and the tolerance as numbers, by name.
    #[serde(default)]
    pub(crate) numbers: BTreeMap<String, f64>,
    /// The part of a model that was derived from this claim; such a claim is reported and not
    /// counted.
    pub(crate) calibration: Option<String>,
    /// Another reason why the claim is reported and not counted.
    pub(crate) uncounted: Option<String>,
    /// A limit of the claim's significance, which applies to any result.
    pub(crate) caveat: Option<String>,
    /// Whether the runs are on a host with races: accesses of one core come between those of
    /// another core's verb.
    #[serde(default)]
    pub(crate) races: bool,
    /// Earlier versions of the row.
    #[serde(default)]
    pub(crate) changed: Vec<Change>,
}

/// A change of a row.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(test), expect(dead_code, reason = "for readers of the file; tests check it"))]
pub(crate) struct Change {
    /// The day, as in 2026-11-25.
    pub(crate) on: String,
    /// The earlier text.
    pub(crate) from: String,
    /// The reason for the change.
    pub(crate) why: String,
}

impl Row {
    /// The paper of the claim, by the first letter of the identifier.
    pub(crate) fn paper(&self) -> Paper {
        match self.id.as_bytes().first() {
            Some(b'D') => Paper::D2fq,
            Some(b'M') => Paper::Mqfq,
            Some(b'K') => Paper::Kyber,
            Some(b'N') => Paper::Nass,
            _ => Paper::Beyond,
        }
    }

    /// Whether the claim is counted: it is a claim of a paper, and no model was derived from it.
    pub(crate) fn is_counted(&self) -> bool {
        self.paper() != Paper::Beyond && self.calibration.is_none() && self.uncounted.is_none()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    frozen: String,
    claim: Vec<Row>,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| {
    toml::from_str(include_str!("../../claims.toml")).expect("a test reads the file")
});

/// Every claim of the four papers, and the users' questions beyond them. A row without a tolerance
/// claims nothing.
pub(crate) static ROWS: LazyLock<&'static [Row]> = LazyLock::new(|| &RULES.claim);

/// The date since which rules change only with an entry under `changed`, as in 2026-11-25.
pub(crate) fn frozen() -> &'static str {
    &RULES.frozen
}

/// The row with this identifier.
pub(super) fn row(id: &str) -> Result<&'static Row, String> {
    ROWS.iter().find(|row| row.id == id).ok_or_else(|| format!("there is no row {id}"))
}

/// A number of a row: the paper's value, or the tolerance.
///
/// # Panics
///
/// If the row has no number of this name; a test checks all names.
pub(super) fn rule(id: &str, name: &str) -> f64 {
    let row = ROWS.iter().find(|row| row.id == id).expect("a row of this name");
    *row.numbers.get(name).unwrap_or_else(|| panic!("{id} has no number called `{name}`"))
}

/// The percentages in the paper's words of a row, in their order, as fractions (0.5 for 50 %).
///
/// # Panics
///
/// If there is no such row; a test checks all names.
pub(super) fn percents_said(id: &str) -> Vec<f64> {
    let row = ROWS.iter().find(|row| row.id == id).expect("a row of this name");
    let words = row.says.join(" ");
    let number = |(at, _): (usize, &str)| {
        let before = &words[..at];
        let others = before.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        before[others.len()..].parse::<f64>().ok()
    };
    words.match_indices('%').filter_map(number).map(|percents| percents / 100.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::experiment::{EXPERIMENTS, FILES};

    /// Each `@name` of a row's expressions, and each `number('ID', 'NAME')` of the others.
    fn asked_for() -> Vec<(String, String)> {
        let mut found = Vec::new();
        for row in EXPERIMENTS.iter().flat_map(|experiment| &experiment.row) {
            let own = row.expressions();
            let names = own.split('@').skip(1).map(|rest| {
                let ends = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                (row.id.clone(), rest[..ends.unwrap_or(rest.len())].to_owned())
            });
            found.extend(names);
        }
        for text in FILES {
            for call in text.split("number(").skip(1) {
                let words: Vec<&str> = call.split('\'').take(4).collect();
                let &["", id, ", ", name] = &words[..] else {
                    panic!("names are texts: {call:.60}")
                };
                found.push((id.to_owned(), name.to_owned()));
            }
        }
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn each_number_is_what_an_experiment_compares_with_and_there_is_no_other() {
        let mut written: Vec<(String, String)> = ROWS
            .iter()
            .flat_map(|row| row.numbers.keys().map(|name| (row.id.clone(), name.clone())))
            .collect();
        written.sort();
        assert_eq!(written, asked_for());
    }

    /// Whether the text contains the number in one of the usual spellings.
    fn is_said(text: &str, number: f64) -> bool {
        let hundred = 1e4 * number / 100.0;
        let hundred = (hundred * 1e6).round() / 1e6;
        let forms = [
            format!("{number}"),
            format!("{hundred} %"),
            format!("{hundred} points"),
            format!("{} K", number / 1e3),
            format!("{} M", number / 1e6),
        ];
        let ends = |before: Option<char>| !before.is_some_and(|c| c.is_ascii_digit() || c == '.');
        forms.iter().any(|form| {
            text.match_indices(form.as_str()).any(|(at, _)| {
                let after = text[at + form.len()..].chars().next();
                ends(text[..at].chars().next_back()) && !after.is_some_and(|c| c.is_ascii_digit())
            })
        })
    }

    #[test]
    fn what_is_said_and_what_is_compared_agree() {
        for row in ROWS.iter() {
            let said = format!("{}; {}", row.expected, row.within);
            for (name, &number) in &row.numbers {
                assert!(is_said(&said, number), "{}: {name} = {number} is not in `{said}`", row.id);
            }
        }
        assert!(is_said("more than 5 % off", 0.05) && !is_said("15 %", 0.05));
        assert!(is_said("exactly 3", 3.0) && !is_said("32", 3.0) && !is_said("1.3", 3.0));
    }

    #[test]
    fn percentages_are_read_from_the_papers_words() {
        assert_eq!(percents_said("N-9.2"), [0.04, 0.11, 0.57]);
        assert_eq!(percents_said("N-11.2"), [0.06, 0.02, 0.02, 0.03, 0.13, 0.06, 0.09, 0.12]);
        assert_eq!(percents_said("N-12.1"), [0.16, 0.11, 0.15, 0.23]);
        assert_eq!(percents_said("N-12.3"), [0.35, 0.54]);
        assert_eq!(percents_said("N-12.4"), [0.09, 0.18, 0.29]);
        assert_eq!(percents_said("N-13.3"), [0.1]);
    }

    #[test]
    fn a_claim_comes_with_the_papers_words_and_a_tolerance() {
        for row in ROWS.iter() {
            let is_claim = row.paper() != Paper::Beyond;
            let filled = |text: &str| text.trim() == text && !text.is_empty();
            assert!(filled(&row.id) && filled(&row.claim), "{}", row.id);
            for (what, text) in [
                ("where", &row.place),
                ("measures", &row.measures),
                ("expected", &row.expected),
                ("within", &row.within),
            ] {
                assert_eq!(filled(text), is_claim, "{}: {what} is `{text}`", row.id);
            }
            assert_eq!(!row.says.is_empty(), is_claim, "{}: the paper's words", row.id);
            assert!(row.calibration.is_none() || row.uncounted.is_none(), "{}", row.id);
            for text in [&row.calibration, &row.uncounted, &row.caveat].into_iter().flatten() {
                assert!(filled(text) && !text.ends_with('.'), "{}: {text}", row.id);
            }
        }
    }

    /// An experiment that answers several rows runs once, so all its rows have the same host.
    #[test]
    fn races_are_of_the_rows_about_lines_and_of_no_other() {
        let racing: Vec<&str> =
            ROWS.iter().filter(|row| row.races).map(|row| row.id.as_str()).collect();
        let of = ["D-17.", "M-8.", "M-9.", "M-10.", "M-11."];
        assert!(racing.iter().all(|id| of.iter().any(|paper| id.starts_with(paper))), "{racing:?}");
        let all = ROWS.iter().filter(|row| of.iter().any(|paper| row.id.starts_with(paper)));
        assert_eq!(racing.len(), all.count());
    }

    #[test]
    fn changes_have_a_day_and_a_reason() {
        let is_day = |text: &str| {
            let parts: Vec<&str> = text.split('-').collect();
            parts.iter().map(|part| part.len()).eq([4, 2, 2])
                && parts.concat().bytes().all(|byte| byte.is_ascii_digit())
        };
        assert!(is_day(frozen()));
        for row in ROWS.iter() {
            for Change { on, from, why } in &row.changed {
                // Dates in this form can be compared as texts.
                assert!(is_day(on) && on.as_str() >= frozen(), "{}: {on}", row.id);
                assert!(!from.is_empty() && !why.is_empty(), "{}", row.id);
            }
        }
    }

    #[test]
    fn what_models_are_derived_from_is_not_counted() {
        let ids = |is: fn(&Row) -> bool| -> Vec<&str> {
            ROWS.iter().filter(|row| is(row)).map(|row| row.id.as_str()).collect()
        };
        assert_eq!(ids(|row| row.calibration.is_some()), ["D-16.2", "M-P.1", "M-P.2", "K-T4"]);
        assert_eq!(ids(|row| row.uncounted.is_some()), ["N-4.3"]);
        assert_eq!(ids(Row::is_counted).len(), 121);
    }
}
