//! What rows hang on that do not hold, as a table.

use crate::claims::{Ablated, EVIDENCE, OPEN};
use crate::record::{Claim, Record, Table};

/// For each claim that does not hold on the first seed a row for each ablation, and one for what
/// else is known; nothing without `--ablations`.
pub(crate) fn table(record: &Record) -> Option<Table> {
    let failed = |claim: &&Claim| record.ablations && claim.on_first_seed() == Some(false);
    let failed: Vec<&Claim> = record.claims.iter().filter(failed).collect();
    let (mut flipped, mut shown) = (0, 0);
    for claim in &failed {
        match claim.ablations.iter().any(|one| one.holds == Some(true)) {
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

fn evidence(claim: &Claim) -> Option<&'static str> {
    let of = EVIDENCE.iter().find(|evidence| evidence.rows.contains(&claim.id));
    of.map(|evidence| evidence.shows.as_str())
}

fn rows_of(claim: &Claim) -> Vec<Vec<String>> {
    let row = |cells: [&str; 4]| {
        std::iter::once(claim.id.as_str()).chain(cells).map(str::to_owned).collect::<Vec<_>>()
    };
    let one = |one: &Ablated| {
        let verdict = match one.holds {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None => "cannot be decided",
        };
        row([&one.what, &one.measured, verdict, one.why(&claim.id)])
    };
    let shown = evidence(claim).map(|shows| row(["", "", "shown", shows]));
    let open = OPEN.iter().find(|open| open.rows.contains(&claim.id));
    let open = open.map(|open| row(["", "", "open", &open.known]));
    claim.ablations.iter().map(one).chain(shown).chain(open).collect()
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
            claim("N-11.1", false, &[None]),
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
            ["N-11.1", "cannot be decided"],
            ["N-11.1", "open"],
        ];
        assert_eq!(told, asked);
        assert!(found.rows[2][4].contains("three sevenths"), "{:?}", found.rows[2]);
        assert!(table(&Record { ablations: false, ..record }).is_none());
        assert!(table(&Record::default()).is_none());
    }
}
