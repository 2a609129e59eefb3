//! The command line: what can be said, and the help for it.
// Doc comments here are help texts, in which [brackets] mean optional.
#![allow(rustdoc::broken_intra_doc_links)]

use clap::{Parser, Subcommand};
use fairq_bench::args::{
    BenchArgs, CalibrateArgs, DeviceCommand, bench_examples, calibrate_examples, device_examples,
};
use fairq_config::flags::EXIT_STATUS;

mod control;
mod kernel;
mod layout;
mod serve;
mod texts;

#[cfg(feature = "top")]
pub(crate) use control::TopArgs;
pub(crate) use control::{ConfigCommand, CtlArgs, CtlCommand, TraceArgs, TraceFormat};
pub(crate) use kernel::{KernelArgs, KernelCommand};
pub(crate) use layout::{LayoutArgs, LayoutCommand};
pub(crate) use serve::ServeArgs;

use texts::{ctl_examples, serve_examples};

/// Share one fast SSD between tenants by weight.
///
/// Every tenant gets its share of the device whenever it wants it; the others use what it leaves,
/// so the device is not idle while a request waits.
#[derive(Debug, Parser)]
#[command(name = "fairq", version, after_help = EXIT_STATUS, max_term_width = 110, subcommand_required = true)]
pub(crate) struct Cli {
    /// The log's level: error, warn, info, debug, trace, or directives such as
    /// info,fairq_host=debug [env: FAIRQ_LOG]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log: Option<String>,

    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a device to tenants over NBD
    ///
    /// Without arguments: a paced device in memory (4G, 20k IOPS, 400M/s, 100us) for two tenants,
    /// gold and silver, three to one, on a Unix socket; it prints the commands to attach with.
    #[command(after_help = serve_examples())]
    Serve(Box<ServeArgs>),
    /// Ask and change a running server
    ///
    /// Over its control socket, which only its own user and root may use. Changes hold at once and
    /// interrupt no connection.
    #[command(after_help = ctl_examples())]
    Ctl(CtlArgs),
    /// Where tenants' data are on a file or block device that they share, without a server
    ///
    /// The record of that belongs to the device: the last MiB of a block device, FILE.layout
    /// beside a file. A running server has its pool alone: see fairq ctl add, remove, rename and
    /// resize.
    Layout(LayoutArgs),
    /// Watch a running server: who gets what, who hurts whom
    ///
    /// Fills the terminal, once a second. A bar is what a tenant got, the mark in it what the
    /// tenant is entitled to; `hurt by` names the tenants whose requests were served while its own
    /// waited. s sorts, w changes a weight, space pauses, q ends.
    #[cfg(feature = "top")]
    #[command(after_help = texts::top_examples())]
    Top(TopArgs),
    /// Use the schedulers inside Linux (fairq.ko): drives, cgroups, weights
    ///
    /// There a drive's scheduler is selected as any other, and tenants are cgroups. All of this
    /// reads and writes files in /sys, and needs no server; changes need root.
    Kernel(KernelArgs),
    /// Drive a device with a load, one policy after the other, and compare what each tenant gets
    ///
    /// The load is made inside this process: closed-loop jobs in the manner of fio. After the runs
    /// there is a table for each policy, or one JSON object.
    #[command(after_help = bench_examples())]
    Bench(BenchArgs),
    /// Find the D and T that suit a device
    ///
    /// Raises the number of outstanding requests until the device gives no more: the smallest
    /// number that reaches the most is D. Then finds the smallest T at which many shards with small
    /// requests lose nothing.
    #[command(after_help = calibrate_examples())]
    Calibrate(CalibrateArgs),
    /// Show the profiles of devices, or measure a real one
    ///
    /// A profile describes a device: its queues, times and bandwidths, and what is known of it.
    #[command(after_help = device_examples())]
    Device {
        /// The action on them.
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Put the papers' claims to the test, in virtual time
    ///
    /// Runs the schedulers on models of the papers' devices and says of each claim what the paper
    /// says, what came out and whether it holds. The same seed gives the same answers on any
    /// machine.
    #[cfg(feature = "lab")]
    #[command(after_help = fairq_lab::args::examples(), subcommand_required = true)]
    Lab(fairq_lab::args::LabArgs),
    #[cfg(feature = "man")]
    /// Print a shell's completions
    ///
    /// For example: fairq completions bash > /etc/bash_completion.d/fairq
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    #[cfg(feature = "man")]
    /// Write man pages into a folder
    ///
    /// For example: fairq man /usr/local/share/man/man1
    Man {
        /// The folder; it is made if it is not there
        folder: std::path::PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use fairq_config::settings::{CpuList, TlsMode};
    use fairq_config::units::Nanos;

    use super::*;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_value_names_the_flag_and_the_cure() {
        let error =
            Cli::try_parse_from(["fairq", "serve", "--tenant", "db=10G,wieght=3"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(
            text.contains(
                "'--tenant <NAME[=SIZE][,KEY=VALUE…]>': unknown key `wieght`; did you \
             mean `weight`?"
            ),
            "{text}"
        );
        let error = Cli::try_parse_from(["fairq", "serve", "--listen", "/run/x"]).unwrap_err();
        assert!(error.to_string().contains("is none of unix:PATH, tcp:ADDRESS:PORT"));
    }

    #[test]
    fn bench_takes_policies_in_one_list_or_in_several() {
        let parse = |args: &[&str]| {
            let cli = Cli::try_parse_from([&["fairq", "bench"], args].concat()).unwrap();
            let Command::Bench(bench) = cli.command else { panic!("not bench") };
            bench
        };
        let names = |bench: &BenchArgs| -> Vec<&str> {
            bench
                .policy
                .iter()
                .flat_map(|list| &list.0)
                .map(|policy| policy.clone().complete().unwrap().name())
                .collect()
        };
        assert_eq!(parse(&[]).policy.len(), 0);
        assert_eq!(
            names(&parse(&["--policy", "sfqd:slots=4,mqfq", "--policy", "none"])),
            ["sfqd", "mqfq", "none"]
        );
        assert_eq!(parse(&["--json"]).json.as_deref(), Some("-".as_ref()));
        assert_eq!(parse(&["--json", "x.json"]).json.as_deref(), Some("x.json".as_ref()));
        let bench = parse(&["--seconds", "2.5", "--warmup", "300ms"]);
        assert_eq!(
            (bench.seconds, bench.warmup),
            (Some(Nanos(2_500_000_000)), Some(Nanos(300_000_000)))
        );
    }

    #[test]
    fn flags_become_settings() {
        let args = [
            "fairq",
            "serve",
            "--device",
            "ram,size=1G",
            "--tenant",
            "a=512M",
            "--listen",
            "unix:/x",
            "--cpus",
            "0",
            "--tls",
            "optional",
            "--connections",
            "7",
            "--status",
        ];
        let Command::Serve(serve) = Cli::try_parse_from(args).unwrap().command else {
            panic!("not serve")
        };
        let settings = serve.settings();
        assert_eq!(settings.tenant[0].get_ref().name, "a");
        assert_eq!(settings.cpus, Some(CpuList(vec![0])));
        assert_eq!(
            (settings.tls.mode, settings.limits.connections),
            (Some(TlsMode::Optional), Some(7))
        );
        assert_eq!((settings.status, settings.stdio), (Some(true), None));
    }
}
