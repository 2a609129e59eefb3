//! Flags that several commands share, and texts at the end of their help.
// Doc comments here are help texts, in which [brackets] mean optional.
#![allow(rustdoc::broken_intra_doc_links)]

use clap::Args;

use crate::policy::{PolicyTable, parse_list};
use crate::settings::CpuList;
use crate::units::Nanos;

/// The meaning of each exit status, at the end of each help.
pub const EXIT_STATUS: &str = "Exit status: 0 when all went well, 1 when something failed \
 while running, 2 when the command \
line or the configuration cannot be used.";

/// The notation of sizes, bandwidths and times, at the end of helps that need it.
pub const UNITS: &str = "Sizes are in bytes or binary units (4k = 4096, 64KiB, 10G), \
 bandwidths likewise (1G/s); counts are \
decimal (100k = 100000); durations need their unit (80us, 1ms, 10s).";

/// The shards, and their CPUs.
#[derive(Debug, Args, Default, Clone)]
pub struct ShardArgs {
    /// Threads, each pinned to a CPU [default: one for each CPU]
    #[arg(long, value_name = "N")]
    pub shards: Option<u32>,
    /// The CPUs to run on, as in 0-3,6
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
}

/// A list of policies.
#[derive(Clone, Debug)]
pub struct Policies(pub Vec<PolicyTable>);

impl Policies {
    /// The policies that are compared by default.
    pub fn usual() -> Policies {
        parse_policies("none,mqfq").expect("the usual policies are well formed")
    }
}

/// Parses a list of policies, as in `none,mqfq:slots=64`.
pub fn parse_policies(text: &str) -> Result<Policies, String> {
    parse_list(text).map(Policies)
}

/// Parses a duration; a plain number is in seconds.
pub fn parse_time(text: &str) -> Result<Nanos, String> {
    let seconds = text.chars().all(|c| c.is_ascii_digit() || c == '.') && !text.is_empty();
    let time: Nanos = if seconds { format!("{text}s").parse()? } else { text.parse()? };
    Ok(time)
}
