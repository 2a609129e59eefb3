//! `fairq lab`.
// Doc comments here are help texts, in which [brackets] mean optional.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fairq_config::flags::{EXIT_STATUS, Policies, parse_policies};
use fairq_config::policy::NAMES;

/// Seed of a run if `--seed` is not given.
pub(crate) const SEED: u64 = 1;

/// `fairq lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// The command.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// A command of the lab.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Print every claim, and whether an experiment tests it
    List,
    /// Run experiments and print the results
    Run(LabRunArgs),
}

/// `fairq lab run`.
#[derive(Debug, Args)]
pub struct LabRunArgs {
    /// Claims, such as M-5a.1; a beginning (M-5) stands for all claims that begin with it, `all`
    /// for all claims, `fast` for those that take seconds; or scenario files (.toml)
    #[arg(value_name = "ID|FILE", required_unless_present = "paper")]
    pub ids: Vec<String>,
    /// All claims of a paper, or the questions beyond them
    #[arg(long, value_name = "NAME", value_parser = ["d2fq", "mqfq", "kyber", "nass", "beyond"], conflicts_with = "ids")]
    pub paper: Option<String>,
    /// The seed of the random numbers [default: 1, or that of the scenario file]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Run on N seeds, from --seed on [default: 1]. A claim holds if it does on nine tenths of
    /// them; for each figure the median, the least and the greatest value are printed. Results of
    /// scenario files are means with intervals of 95 %
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub seeds: Option<u16>,
    /// Also run claims with the least and the greatest plausible value of each constant of the
    /// models that is guessed or derived (crates/lab/constants.toml), on the first seed, and report
    /// the verdicts that change. Takes some thirty times as long
    #[arg(long)]
    pub band: bool,
    /// Also run each claim that does not hold with parts of its rules removed or replaced, and
    /// claims about applications with proxies calibrated by one number of the paper
    /// (crates/lab/ablations.toml), on the first seed; report the changes with which claims hold,
    /// and the predictions of such proxies. Takes up to three times as long
    #[arg(long)]
    pub ablations: bool,
    /// The number of experiments at a time [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// The policies to compare on scenario files, as for bench; `all` for all of them [default:
    /// none,mqfq]
    #[arg(long, value_name = "NAME[:KEY=VALUE…],…", value_parser = parse_lab_policies)]
    pub policy: Option<Policies>,
    /// Print one JSON object instead of a table, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Write a report into DIR. For claims: RESULTS.md, and in results/ a page, figures (SVG) and
    /// their data (CSV). For scenario files: report.md, figures, results.csv and results.json
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Scenario files: run each tenant alone first, with policy none, to measure its slowdown
    #[arg(long)]
    pub alone: bool,
    /// Scenario files: put each tenant's whole histogram of latencies into the JSON
    #[arg(long)]
    pub histograms: bool,
    /// Fail if a result differs from the report in DIR
    #[arg(long, value_name = "DIR")]
    pub against: Option<PathBuf>,
}

fn parse_lab_policies(text: &str) -> Result<Policies, String> {
    let all = NAMES.join(",");
    parse_policies(if text == "all" { &all } else { text })
}

/// Examples at the end of the help.
pub fn examples() -> String {
    format!(
        "\
Examples:
  fairq lab list
  fairq lab run M-5a M-T1
  fairq lab run --paper mqfq --json
  fairq lab run all --seeds 10 --jobs 2 --output docs
  fairq lab run D-16 M-8 --band
  fairq lab run D-2.3 --ablations
  fairq lab run my.toml --policy all --seeds 10 --alone
  fairq lab run sweep.toml --policy mqfq,kyber-fair --output report

{EXIT_STATUS}"
    )
}
