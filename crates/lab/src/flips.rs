//! Tables of the ablations with which failing rows hold, and of the predictions by proxies that one
//! number calibrates.

use crate::claims::{ABLATIONS, Ablated, EVIDENCE};
use crate::figure::Table;
use crate::record::{Claim, Record};

/// A table with a row for each ablation of each claim that does not hold on the first seed, and a
/// row for other evidence; `None` without `--ablations`.
pub(crate) fn table(record: &Record) -> Option<Table> {
    let failed = |claim: &&Claim| record.ablations && claim.on_first_seed() == Some(false);
    let failed: Vec<&Claim> = record.claims.iter().filter(failed).collect();
    let (mut flipped, mut shown) = (0, 0);
    for claim in &failed {
        match flips(claim) {
            true => flipped += 1,
            false => shown += usize::from(evidence(claim).is_some()),
        }
    }
    let title = format!(
        "What would make claims hold that do not: of {} {flipped} hold where something is taken \
         away or replaced, of {shown} it is shown why the paper's figure does not follow from what \
         the paper says, {} are open (seed {})",
        failed.len(),
        failed.len() - flipped - shown,
        record.seed
    );
    (!failed.is_empty()).then(|| Table {
        id: "ablations".into(),
        title,
        header: ["id", "what is another", "ours then", "", "what stands for or against it"]
            .map(str::to_owned)
            .to_vec(),
        rows: failed.into_iter().flat_map(rows_of).collect(),
    })
}

/// A table of the rows that each proxy calibrated by one published number has to predict; `None`
/// without `--ablations`.
pub(crate) fn predictions(record: &Record) -> Option<Table> {
    let set = ABLATIONS.iter().filter_map(|one| Some((one, one.number.as_ref()?)));
    let told = set.flat_map(|(one, number)| {
        let of = record.claims.iter().filter(|claim| record.ablations && one.is_of(&claim.id));
        of.filter_map(move |claim| {
            let usual = claim.by_seed.first()?;
            let (measured, holds) = match one.is_run() {
                true => {
                    let run = claim.ablations.iter().find(|run| run.what == one.what)?;
                    (&run.measured, run.holds)
                }
                false => (&usual.measured, usual.holds),
            };
            let sets_it = if number.contains(&claim.id) { "; sets it" } else { "" };
            let cells = [
                &claim.id,
                &one.what,
                number,
                &claim.expected,
                &usual.measured,
                measured,
                &format!("{}{sets_it}", verdict(holds)),
            ];
            Some(cells.map(String::clone).to_vec())
        })
    });
    let rows: Vec<Vec<String>> = told.collect();
    (!rows.is_empty()).then(|| Table {
        id: "proxies".into(),
        title: format!(
            "Proxies of applications, each set by one number that its paper tells, and what they \
             predict of the others (seed {})",
            record.seed
        ),
        header: ["id", "the proxy", "is set by", "the paper", "ours", "ours then", ""]
            .map(str::to_owned)
            .to_vec(),
        rows,
    })
}

fn verdict(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => "holds",
        Some(false) => "does not hold",
        None => "cannot be decided",
    }
}

/// The ablations of a claim, without proxies.
fn taken_away(claim: &Claim) -> impl Iterator<Item = &Ablated> {
    let is_proxy = |one: &Ablated| one.of(&claim.id).is_some_and(|known| known.number.is_some());
    claim.ablations.iter().filter(move |one| !is_proxy(one))
}

fn flips(claim: &Claim) -> bool {
    taken_away(claim).any(|one| one.holds == Some(true))
}

fn evidence(claim: &Claim) -> Option<&'static str> {
    let of = EVIDENCE.iter().find(|evidence| evidence.rows.contains(&claim.id));
    of.map(|evidence| evidence.shows.as_str())
}

fn rows_of(claim: &Claim) -> Vec<Vec<String>> {
    let row = |cells: [&str; 4]| {
        std::iter::once(claim.id.as_str()).chain(cells).map(str::to_owned).collect::<Vec<_>>()
    };
    let one = |one: &Ablated| {
        let why = one.of(&claim.id).map_or("", |known| &known.why);
        row([&one.what, &one.measured, verdict(one.holds), why])
    };
    let shown = evidence(claim).map(|shows| row(["", "", "shown", shows]));
    let is_open = !flips(claim) && shown.is_none();
    let open = is_open.then(|| row(["", "", "open", ""]));
    taken_away(claim).map(one).chain(shown).chain(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::OnSeed;

    fn claim(id: &str, holds: bool, ablated: &[Option<bool>]) -> Claim {
        let one = |&holds: &Option<bool>| Ablated {
            what: "another device".into(),
            holds,
            measured: "1.0".into(),
        };
        let on =
            OnSeed { seed: 1, holds: Some(holds), measured: String::new(), note: String::new() };
        Claim {
            id: id.into(),
            paper: "d2fq".into(),
            claim: String::new(),
            expected: String::new(),
            measured: String::new(),
            holds: Some(holds),
            note: String::new(),
            intervals: Vec::new(),
            by_seed: vec![on],
            calibration: false,
            counted: true,
            band: Vec::new(),
            ablations: ablated.iter().map(one).collect(),
        }
    }

    #[test]
    fn each_claim_that_does_not_hold_tells_what_would_make_it_hold() {
        let claims = vec![
            claim("D-2.1", true, &[]),
            claim("D-2.3", false, &[Some(false), Some(true)]),
            claim("D-3.4", false, &[]),
            claim("D-16.3", false, &[None]),
        ];
        let record = Record { seed: 1, claims, ablations: true, ..Record::default() };
        let found = table(&record).unwrap();
        assert!(found.title.contains("of 3 1 hold"), "{}", found.title);
        assert!(found.title.contains("of 1 it is shown") && found.title.contains("1 are open"));
        let told: Vec<[&str; 2]> =
            found.rows.iter().map(|row| [row[0].as_str(), row[3].as_str()]).collect();
        let asked = [
            ["D-2.3", "does not hold"],
            ["D-2.3", "holds"],
            ["D-3.4", "shown"],
            ["D-16.3", "cannot be decided"],
            ["D-16.3", "open"],
        ];
        assert_eq!(told, asked);
        assert!(found.rows[2][4].contains("three sevenths"), "{:?}", found.rows[2]);
        assert!(table(&Record { ablations: false, ..record }).is_none());
        assert!(table(&Record::default()).is_none());
    }

    #[test]
    fn a_proxy_that_is_set_by_a_number_predicts_and_flips_nothing() {
        let flashx =
            ABLATIONS.iter().find(|one| one.number.is_some() && one.is_of("M-6.2")).unwrap();
        let run = Ablated { what: flashx.what.clone(), holds: Some(true), measured: "3.8".into() };
        let with = |id: &str, runs: &[&Ablated]| Claim {
            ablations: runs.iter().map(|&run| run.clone()).collect(),
            ..claim(id, false, &[])
        };
        let claims = vec![
            with("M-6.1", &[&run]),
            with("M-6.2", &[&run]),
            // The ablation of M-6.3 was not run; M-7.1 has a proxy that meets its number unchanged.
            with("M-6.3", &[]),
            claim("M-7.1", true, &[]),
        ];
        let record = Record { seed: 1, claims, ablations: true, ..Record::default() };
        let told = predictions(&record).unwrap().rows;
        let told: Vec<[&str; 3]> =
            told.iter().map(|row| [0, 5, 6].map(|column| row[column].as_str())).collect();
        let asked =
            [["M-6.1", "3.8", "holds; sets it"], ["M-6.2", "3.8", "holds"], ["M-7.1", "", "holds"]];
        assert_eq!(told, asked);
        let failed = table(&record).unwrap();
        assert!(failed.title.contains("of 3 0 hold") && failed.title.contains("3 are open"));
        assert!(failed.rows.iter().all(|row| row[3] == "open"), "{:?}", failed.rows);
        assert!(predictions(&Record { ablations: false, ..record }).is_none());
    }
}
