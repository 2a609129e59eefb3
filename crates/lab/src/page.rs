//! The report: one self-contained page, and the files beside it.

use std::path::Path;

use anyhow::{Context, bail};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use crate::claims::Paper;
use crate::figure::{Figure, Table};
use crate::plot::svg;
use crate::record::{Claim, Record};
use crate::text::{beside, capitalised, markdown, over_seeds, said};

const STYLE: &str = include_str!("page.css");

/// Writes `RESULTS.md` and, in the folder `results`, the page, the record, and each figure with its
/// data.
pub(crate) fn write(record: &Record, command: &str, into: &Path) -> anyhow::Result<()> {
    let folder = into.join("results");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let put = |name: &Path, text: &str| {
        std::fs::write(name, text).with_context(|| format!("cannot write {}", name.display()))
    };
    let mut drawn = Vec::new();
    for figure in &record.figures {
        let svg = svg(figure)?;
        put(&folder.join(format!("{}.svg", figure.id)), &svg)?;
        put(&folder.join(format!("{}.csv", figure.id)), &figure.csv())?;
        drawn.push((figure, svg));
    }
    put(&folder.join("lab.json"), &a_line_each(record)?)?;
    put(&folder.join("report.html"), &page(record, command, &drawn).into_string())?;
    put(&into.join("RESULTS.md"), &markdown(record, command))
}

/// The record as JSON, with a line for each claim, figure and table.
fn a_line_each(record: &Record) -> anyhow::Result<String> {
    let Value::Object(fields) = serde_json::to_value(record)? else {
        bail!("a record is an object");
    };
    let text = |value: &Value| match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            format!("[\n{}\n]", items.join(",\n"))
        }
        other => other.to_string(),
    };
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("\"{name}\":{}", text(value))).collect();
    Ok(format!("{{{}}}\n", fields.join(",\n")))
}

fn page(record: &Record, command: &str, drawn: &[(&Figure, String)]) -> Markup {
    let beside = beside(record);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "fairq lab: what the papers claim, and what came out" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "What the papers claim, and what came out" }
                    p.lead {
                        "Four papers on sharing fast storage, claim by claim: what they say, what \
                         fairq's schedulers do on "
                        "models of the papers' devices in virtual time, and whether it holds. What \
                         counts as the same "
                        "stands beside each claim."
                    }
                    (overview(record))
                    @if !over_seeds(record).is_empty() { p { (over_seeds(record).trim_start()) } }
                    p.made { "Made by " code { (command) } ", which gives the same bytes on any \
                     machine." }
                }
                nav {
                    @for paper in papers(record) { a href={ "#" (paper.name()) } { (paper.title()) } }
                    @for table in &beside { a href={ "#" (table.id) } { (capitalised(&table.id)) } }
                }
                @for paper in papers(record) { (section(record, paper, drawn)) }
                @for table in &beside { section id=(table.id) { (grid(table)) } }
            }
        }
    }
}

fn papers(record: &Record) -> Vec<Paper> {
    let is_there = |paper: &Paper| record.claims.iter().any(|claim| claim.paper == paper.name());
    Paper::ALL.into_iter().filter(is_there).collect()
}

/// A bar for each paper: how many of its claims hold.
fn overview(record: &Record) -> Markup {
    html! {
        p.sum { (capitalised(&record.summary())) "." }
        div.bars {
            @for paper in papers(record).into_iter().filter(|paper| *paper != Paper::Beyond) {
                @let [hold, fail, open] = record.counts(&[paper]);
                span.name { (paper.title()) }
                span.bar role="img" aria-label={ (hold) " hold, " (fail) " do not, " (open) " open" } {
                    @for (kind, count) in [("yes", hold), ("no", fail), ("open", open)] {
                        @if count > 0 { span class=(kind) style={ "flex:" (count) } { (count) } }
                    }
                }
            }
            span.name {}
            span.key { span.yes { "holds" } span.no { "does not \
             hold" } span.open { "cannot be decided" } }
        }
    }
}

fn section(record: &Record, paper: Paper, drawn: &[(&Figure, String)]) -> Markup {
    // Figures and tables are named after the first letter of their paper's claims.
    let claims: Vec<&Claim> =
        record.claims.iter().filter(|claim| claim.paper == paper.name()).collect();
    let letter = claims
        .first()
        .and_then(|claim| claim.id.chars().next())
        .map(|letter| letter.to_ascii_lowercase());
    let mine = |id: &str| id.chars().next() == letter;
    html! {
        section id=(paper.name()) {
            h2 { (paper.title()) }
            div.wide {
                table {
                    thead { tr { th { "claim" } th { "paper’s \
                     value" } th { "ours" } th {} th { "note" } } }
                    tbody { @for claim in claims { (row(claim)) } }
                }
            }
            @for table in record.tables.iter().filter(|table| mine(&table.id)) { (grid(table)) }
            div.figures {
                @for (figure, svg) in drawn.iter().filter(|(figure, _)| mine(&figure.id)) {
                    figure id={ "figure-" (figure.id) } {
                        (PreEscaped(svg))
                        figcaption { (figure.title) }
                    }
                }
            }
        }
    }
}

fn row(claim: &Claim) -> Markup {
    let kind = match claim.holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "open",
    };
    html! {
        tr id=(claim.id) {
            td { b { (claim.id) } " " (claim.claim) }
            td { (said(claim)) }
            td { (claim.measured) }
            td { @if claim.paper != Paper::Beyond.name() {
                @if claim.calibration { "calibration " }
                span.chip.(kind) { (claim.verdict()) }
                @if let Some(seeds) = claim.on_seeds() { " " (seeds) }
            } }
            td.note { (claim.remarks()) }
        }
    }
}

fn grid(table: &Table) -> Markup {
    html! {
        h3 { (table.title) }
        div.wide {
            table.plain {
                thead { tr { @for cell in &table.header { th { (cell) } } } }
                tbody { @for row in &table.rows { tr { @for cell in row { td { (cell) } } } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_else_and_escapes_what_it_shows() {
        let claim = Claim {
            id: "M-T1".into(),
            paper: "mqfq".into(),
            claim: "a < b".into(),
            expected: "never".into(),
            measured: "<script>".into(),
            holds: Some(false),
            note: String::new(),
            intervals: Vec::new(),
            by_seed: Vec::new(),
            calibration: false,
            counted: true,
            band: Vec::new(),
            ablations: Vec::new(),
        };
        let record = Record { seed: 1, claims: vec![claim], ..Record::default() };
        let page = page(&record, "fairq lab run all", &[]).into_string();
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"), "{page}");
        assert!(
            !page.contains("http://") && !page.contains("https://") && !page.contains("src="),
            "{page}"
        );
    }

    #[test]
    fn everything_is_written_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let record = Record { seed: 7, ..Record::default() };
        write(&record, "fairq lab run all --seed 7", folder.path()).unwrap();
        assert_eq!(Record::read(&folder.path().join("results/lab.json")).unwrap(), record);
        assert!(
            folder.path().join("results/report.html").exists()
                && folder.path().join("RESULTS.md").exists()
        );
    }
}
