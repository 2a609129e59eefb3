//! The command line of `fairq kernel`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fairq_config::flags::{EXIT_STATUS, parse_time};
use fairq_config::units::Nanos;

/// A query or a change.
#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Show the drives, their schedulers, and the share of each cgroup
    ///
    /// Takes two samples, a second apart. `entitled` is the part of the drive that a cgroup should
    /// get, among the cgroups that send requests, and `share` is the part that it got.
    Status {
        /// Only these drives, such as nvme0n1 [default: all with one of fairq's schedulers]
        #[arg(value_name = "DEVICE")]
        devices: Vec<String>,
        /// Print one JSON object instead
        #[arg(long)]
        json: bool,
    },
    /// Select a drive's scheduler, or change its parameters
    ///
    /// Keys are `scheduler`, `nr_requests` and the files in queue/iosched, which differ by
    /// scheduler: `fairq kernel status` shows them. `scheduler` is set before all other keys.
    /// Values last until the drive is removed or the machine restarts; a rule for udev can set them
    /// again.
    Set {
        /// The drive, such as nvme0n1
        device: String,
        /// The scheduler, and its parameters
        #[arg(value_name = "KEY=VALUE", required = true)]
        values: Vec<String>,
    },
    /// Give a cgroup its weight, on all drives or on one
    Weight {
        /// The cgroup, below the root of cgroups or as a whole path
        cgroup: String,
        /// 1 to 10000, or default (100; with --device: the weight for all drives)
        weight: String,
        /// Only on this drive, which must have one of fairq's schedulers
        #[arg(long)]
        device: Option<String>,
    },
    /// Copy io.weight to io.fairq.weight, continuously while this command runs
    ///
    /// systemd (IOWeight=) and container runtimes write to io.weight, which belongs to io.cost.
    /// While this command runs, each cgroup's io.weight is also its weight for fairq; weights that
    /// were written to io.fairq.weight by hand are overwritten.
    Follow {
        /// The time between two checks
        #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_time)]
        every: Nanos,
        /// Copy once, and end
        #[arg(long)]
        once: bool,
    },
    /// Print the counters, in the text format of Prometheus
    ///
    /// With --output for the textfile collector of Prometheus' node exporter.
    Metrics {
        /// Write the counters to this file every 15 seconds, and replace it atomically
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The time between two writes
        #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_time)]
        every: Nanos,
    },
}

/// Arguments of `fairq kernel`.
#[derive(Debug, Args)]
#[command(after_help = examples(), subcommand_required = true)]
pub(crate) struct KernelArgs {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: KernelCommand,
}

fn examples() -> String {
    format!(
        "\
Examples:
  fairq kernel set nvme0n1 scheduler=mqfq nr_requests=256
  fairq kernel weight system.slice/postgresql.service 300
  fairq kernel weight /tenants/db 1000 --device nvme0n1
  fairq kernel status
  fairq kernel set nvme0n1 slots=auto
  fairq kernel follow
  fairq kernel metrics -o /var/lib/prometheus/node-exporter/fairq.prom

{EXIT_STATUS}"
    )
}
