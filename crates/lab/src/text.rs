//! Reports for terminals, and as Markdown.

use std::fmt::Write;

use comfy_table::{Cell, ColumnConstraint, ContentArrangement, Table as Grid, Width};
use fairq_config::table::plain_table;

use crate::claims::{Paper, frozen};
use crate::figure::Table;
use crate::record::{Claim, Record};
use crate::{band_table, flips};

/// Width of tables in columns if the terminal's is not known.
const USUAL_WIDTH: u16 = 120;
const WIDEST: u16 = 160;

/// A table that is at most as wide as the terminal; long texts are wrapped.
pub(crate) fn wrapped() -> Grid {
    let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col);
    // 0 columns mean no terminal, or one that does not know its size.
    let width = if columns == 0 { USUAL_WIDTH } else { columns.clamp(60, WIDEST) };
    let mut table = plain_table();
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table
}

/// All claims as a table, and how many hold.
pub(crate) fn table(record: &Record) -> String {
    let mut table = wrapped();
    table.set_header(vec!["id", "", "paper's value (within)", "ours", "note"]);
    for claim in &record.claims {
        let verdict = match claim.holds {
            Some(true) if claim.calibration => "(holds)",
            Some(false) if claim.calibration => "(NOT)",
            Some(true) => "holds",
            Some(false) => "NOT",
            None => "-",
        };
        let verdict = match claim.on_seeds() {
            None => verdict.to_owned(),
            Some(seeds) => format!("{verdict}\n{seeds}"),
        };
        let cells = [&claim.id, &verdict, &said(claim), &claim.measured, &claim.remarks()];
        table.add_row(cells.map(Cell::new).to_vec());
    }
    for (column, share) in [(2, 20), (3, 35), (4, 30)] {
        let column = table.column_mut(column).expect("there are five");
        column.set_constraint(ColumnConstraint::UpperBoundary(Width::Percentage(share)));
    }
    let mut text = table.to_string();
    for table in record.tables.iter().chain(&beside(record)) {
        let _ = write!(text, "\n\n{}\n\n{}", table.title, grid(table));
    }
    format!("{text}\n\n{}.", capitalised(&record.summary()))
}

/// The tables beside the claims: ablations, proxies and the band.
pub(crate) fn beside(record: &Record) -> Vec<Table> {
    let tables = [flips::table(record), flips::predictions(record), band_table::table(record)];
    tables.into_iter().flatten().collect()
}

/// Explanation of results over several seeds.
pub(crate) fn over_seeds(record: &Record) -> &'static str {
    match record.seeds {
        0 | 1 => "",
        _ => {
            " A claim holds if it does on nine tenths of the seeds; beside the verdict stands on how \
             many it does. A figure is the median over seeds, with the least and the greatest in \
             brackets where they differ. Drawings are of the first seed."
        }
    }
}

fn grid(table: &Table) -> String {
    let mut grid = wrapped();
    grid.set_header(table.header.clone());
    for row in &table.rows {
        grid.add_row(row.clone());
    }
    grid.to_string()
}

/// The paper's value, with the tolerance.
pub(crate) fn said(claim: &Claim) -> String {
    let within = claim.within();
    if within.is_empty() {
        claim.expected.clone()
    } else {
        format!("{} ({within})", claim.expected)
    }
}

pub(crate) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// The whole record as Markdown for a repository, with figures in the folder `results` beside it.
pub(crate) fn markdown(record: &Record, command: &str) -> String {
    let mut text = format!(
        "# What the papers claim, and what came out\n\n\
         Made by `{command}`; the same command gives the same bytes. Virtual time, models of the \
         papers' devices, the \
         schedulers that fairq serves with. \
         [As a page with the figures](results/report.html). \
         Figures 6, 11 and 15 of D2FQ in a stock Linux kernel, with cgroups: \
         [decision 56](decisions/0056-classes-in-linux.md).\n\n\
         {}.{} By [rules](../crates/lab/claims.toml) of {}, which have each claim in the paper's \
         words, what is measured, and what was changed and why. A claim cannot be decided where the \
         paper does not say what decides it. One that a model was derived from is calibration.\n",
        capitalised(&record.summary()),
        over_seeds(record),
        frozen()
    );
    for paper in Paper::ALL {
        let claims: Vec<&Claim> =
            record.claims.iter().filter(|claim| claim.paper == paper.name()).collect();
        if claims.is_empty() {
            continue;
        }
        let [hold, fail, open] = record.counts(&[paper]);
        let _ = write!(text, "\n## {}\n\n", paper.title());
        if paper != Paper::Beyond {
            let _ = write!(text, "{hold} hold, {fail} do not, {open} cannot be decided.\n\n");
        }
        text.push_str(
            "| id | claim | paper's value (within) | ours | | note |\n|---|---|---|---|---|---|\n",
        );
        for claim in claims {
            let verdict = match claim.holds {
                _ if claim.calibration => format!("calibration ({})", claim.verdict()),
                Some(false) => "**does not hold**".into(),
                _ => claim.verdict().into(),
            };
            let verdict: String = match claim.on_seeds() {
                None => verdict,
                Some(seeds) => format!("{verdict}, {seeds}"),
            };
            let cells = [&claim.claim, &said(claim), &claim.measured].map(|cell| escaped(cell));
            let [what, paper, ours] = cells;
            let _ = writeln!(
                text,
                "| {} | {what} | {paper} | {ours} | {verdict} | {} |",
                claim.id,
                escaped(&claim.remarks())
            );
        }
    }
    for table in record.tables.iter().chain(&beside(record)) {
        let _ = write!(
            text,
            "\n### {}\n\n| {} |\n|{}\n",
            table.title,
            table.header.join(" | "),
            "---|".repeat(table.header.len())
        );
        for row in &table.rows {
            let _ = writeln!(
                text,
                "| {} |",
                row.iter().map(|cell| escaped(cell)).collect::<Vec<_>>().join(" | ")
            );
        }
    }
    if !record.figures.is_empty() {
        let _ = write!(
            text,
            "\n## Figures\n\n\
             [The page](results/report.html) has them all. The same command with `--output DIR` \
             writes each into `DIR/results`, as a drawing (ID.svg) and as data (ID.csv).\n\n"
        );
    }
    for figure in &record.figures {
        let _ = writeln!(text, "- `{}`: {}", figure.id, figure.title);
    }
    text
}

/// Text escaped for a cell of Markdown.
fn escaped(text: &str) -> String {
    // A cell of Markdown may hold HTML, and ends with its line.
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::OnSeed;

    fn record() -> Record {
        let claim = |id: &str, holds, note: &str| Claim {
            id: id.into(),
            paper: "mqfq".into(),
            claim: "never | more".into(),
            expected: "never exceeded".into(),
            measured: "never exceeded in so many requests that the line would be far too long for \
             any terminal"
                .into(),
            holds,
            note: note.into(),
            intervals: Vec::new(),
            by_seed: Vec::new(),
            calibration: false,
            counted: true,
            band: Vec::new(),
            ablations: Vec::new(),
        };
        let claims = vec![
            claim("M-T1", Some(true), ""),
            claim("M-T2", Some(false), "a<b"),
            claim("M-T3", None, "why"),
        ];
        Record { seed: 1, seeds: 1, claims, ..Record::default() }
    }

    #[test]
    fn what_several_seeds_say_is_told() {
        let mut ten = record();
        ten.seeds = 10;
        let on = |seed| OnSeed {
            seed,
            holds: Some(seed > 1),
            measured: String::new(),
            note: String::new(),
        };
        ten.claims[0].by_seed = (1..=10).map(on).collect();
        assert!(markdown(&ten, "").contains("| holds, 9 of 10 |"), "{}", markdown(&ten, ""));
        assert!(markdown(&ten, "").contains("on nine tenths of the seeds"));
        assert!(table(&ten).contains("9 of 10"), "{}", table(&ten));
        assert!(!markdown(&record(), "").contains("seeds"));
    }

    #[test]
    fn tables_fit_and_say_everything() {
        let text = table(&record());
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(WIDEST)), "{text}");
        assert!(
            text.ends_with("Of 3 counted claims 1 hold, 1 do not, 1 cannot be decided."),
            "{text}"
        );
        assert!(text.contains("NOT") && text.contains("why"), "{text}");
    }

    #[test]
    fn markdown_keeps_its_cells() {
        let text = markdown(&record(), "fairq lab run all");
        assert!(
            text.contains(
                "| never \\| more | never exceeded (a unit per flow and port, for rounding) |"
            ),
            "{text}"
        );
        assert!(text.contains("**does not hold** | a&lt;b |"), "{text}");
        assert!(text.contains("1 hold, 1 do not, 1 cannot be decided."), "{text}");
    }
}
