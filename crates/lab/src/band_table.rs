//! The band as a table: the verdicts that change with one of the models' constants.

use crate::claims::CONSTANTS;
use crate::figure::Table;
use crate::record::{Claim, Record};

/// A row for each least or greatest value of a constant with which a verdict changes; `None`
/// without `--band`.
pub(crate) fn table(record: &Record) -> Option<Table> {
    let touched = |constant: &&str| {
        record.claims.iter().any(|claim| claim.band.iter().any(|one| one.constant == *constant))
    };
    let names: Vec<&str> =
        CONSTANTS.iter().map(|constant| constant.name.as_str()).filter(touched).collect();
    let claims = record.claims.iter().filter(|claim| !claim.band.is_empty()).count();
    let steady = record.claims.iter().filter(|claim| !claim.band.is_empty() && is_steady(claim));
    let failed = |claim: &&Claim| !claim.band.is_empty() && claim.on_first_seed() == Some(false);
    let failed = record.claims.iter().filter(failed);
    let somewhere = |claim: &&Claim| claim.band.iter().any(|one| one.holds == Some(true));
    let title = format!(
        "What hangs on constants that are guessed or derived: of {claims} claims {} have the same \
         verdict at both ends of each of {}; of {} that do not hold {} do at an end of one (seed {})",
        steady.count(),
        names.len(),
        failed.clone().count(),
        failed.filter(somewhere).count(),
        record.seed
    );
    let header =
        ["constant", "is there", "claims", "hold there", "do not there", "undecided there"];
    let rows = names.iter().flat_map(|name| rows_of(record, name));
    let turns = |row: &Vec<String>| row[3..].iter().any(|ids| !ids.is_empty());
    let rows: Vec<Vec<String>> = rows.filter(turns).collect();
    (claims > 0).then(|| Table {
        id: "constants".into(),
        title,
        header: header.map(str::to_owned).to_vec(),
        rows,
    })
}

/// Whether the claim has the same verdict with every value of every constant.
fn is_steady(claim: &Claim) -> bool {
    claim.band.iter().all(|one| one.holds == claim.on_first_seed())
}

/// The rows of the least and the greatest value of a constant.
fn rows_of(record: &Record, constant: &str) -> Vec<Vec<String>> {
    let mut ends: Vec<&str> = Vec::new();
    for one in record.claims.iter().flat_map(|claim| &claim.band) {
        if one.constant == constant && !ends.contains(&one.end.as_str()) {
            ends.push(&one.end);
        }
    }
    let row = |end: &str| {
        let there = |claim: &Claim| {
            let mut band = claim.band.iter();
            band.find(|one| one.constant == constant && one.end == end).map(|one| one.holds)
        };
        let tried = record.claims.iter().filter(|claim| there(claim).is_some()).count();
        let turned = |verdict: Option<bool>| {
            let turns =
                |claim: &&Claim| there(claim) == Some(verdict) && claim.on_first_seed() != verdict;
            let ids: Vec<&str> =
                record.claims.iter().filter(turns).map(|claim| claim.id.as_str()).collect();
            ids.join(" ")
        };
        let outcomes = [Some(true), Some(false), None].map(turned);
        [vec![constant.to_owned(), end.to_owned(), tried.to_string()], outcomes.to_vec()].concat()
    };
    ends.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{Elsewhere, OnSeed};

    fn claim(id: &str, holds: bool, elsewhere: [Option<bool>; 2]) -> Claim {
        let one = |(end, holds): (&str, _)| Elsewhere {
            constant: "planes".into(),
            end: end.into(),
            holds,
            measured: String::new(),
        };
        Claim {
            id: id.into(),
            paper: "mqfq".into(),
            claim: String::new(),
            expected: String::new(),
            measured: String::new(),
            holds: Some(holds),
            note: String::new(),
            intervals: Vec::new(),
            by_seed: vec![OnSeed {
                seed: 1,
                holds: Some(holds),
                measured: String::new(),
                note: String::new(),
            }],
            calibration: false,
            counted: true,
            ablations: Vec::new(),
            band: ["0.5 times", "2 times"].into_iter().zip(elsewhere).map(one).collect(),
        }
    }

    #[test]
    fn each_end_of_a_constant_names_the_claims_that_turn() {
        let claims = vec![
            claim("M-T1", true, [Some(true), Some(true)]),
            claim("M-T2", true, [Some(false), None]),
            claim("M-T3", false, [Some(true), Some(false)]),
        ];
        let found = table(&Record { seed: 1, claims, ..Record::default() }).unwrap();
        assert!(found.title.contains("of 3 claims 1 have the same verdict"), "{}", found.title);
        assert!(found.title.contains("of 1 that do not hold 1 do"), "{}", found.title);
        assert_eq!(
            found.rows,
            [
                ["planes", "0.5 times", "3", "M-T3", "M-T2", ""],
                ["planes", "2 times", "3", "", "", "M-T2"]
            ]
        );
        assert!(table(&Record::default()).is_none());
        let steady = vec![claim("M-T1", true, [Some(true); 2])];
        let found = table(&Record { seed: 1, claims: steady, ..Record::default() }).unwrap();
        assert!(found.rows.is_empty() && found.title.contains("of 1 claims 1"));
    }
}
