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
    /// Print every claim, and whether there is an experiment for it yet
    List,
    /// Run experiments and print what came out
    Run(LabRunArgs),
}

/// `fairq lab run`.
#[derive(Debug, Args)]
pub struct LabRunArgs {
    /// Claims, as in M-5a.1; a part stands for all that begin with it (M-5), `all` for all, `fast`
    /// for those that take seconds; or scenario files (.toml)
    #[arg(value_name = "ID|FILE", required_unless_present = "paper")]
    pub ids: Vec<String>,
    /// All claims of a paper, or the questions beyond them
    #[arg(long, value_name = "NAME", value_parser = ["d2fq", "mqfq", "kyber", "nass", "beyond"], conflicts_with = "ids")]
    pub paper: Option<String>,
    /// Names the run: another seed, other random numbers [default: 1, or what a scenario file says]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Run on N seeds, from --seed on [default: 1]. A claim holds if it does on nine tenths of
    /// them; its figures are the median, the least and the greatest. Scenario files have means,
    /// and intervals of 95 %
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub seeds: Option<u16>,
    /// Run claims also with each constant of the models that is a guess or derived, at both ends of
    /// what it could be (crates/lab/constants.toml), on the first seed: reports the verdicts that
    /// depend on it. Takes some thirty times as long
    #[arg(long)]
    pub band: bool,
    /// Run claims that do not hold also with what they may hang on taken away or replaced, and
    /// those of applications with proxies that are set by one number of their paper
    /// (crates/lab/ablations.toml), on the first seed: reports the changes that would make claims
    /// hold, and the predictions of such proxies. Takes up to three times as long
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
    /// Write a report into DIR. Of claims: RESULTS.md, and in results/ a page, figures (SVG) and
    /// their data (CSV); of scenario files: report.md, figures, results.csv and results.json
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Scenario files: run each tenant alone first, with policy none, to measure its slowdown
    #[arg(long)]
    pub alone: bool,
    /// Scenario files: put each tenant's whole histogram of latencies into the JSON
    #[arg(long)]
    pub histograms: bool,
    /// Fail unless all that comes out is what the report in DIR says
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
