//! The command line: commands, flags, and their help.
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
/// Each tenant gets its share of the device whenever it needs it. Other tenants use the rest, so
/// the device is not idle while a request waits.
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
    /// Query and change a running server
    ///
    /// Uses the server's control socket, which only the server's user and root may use. Changes
    /// take effect at once and interrupt no connection.
    #[command(after_help = ctl_examples())]
    Ctl(CtlArgs),
    /// Show and edit the layout record of a file or block device that tenants share, without a
    /// server
    ///
    /// The layout record holds the range of each tenant's data. It is in the last MiB of a block
    /// device, or in FILE.layout beside a file. A running server locks its pool: then use fairq ctl
    /// add, remove, rename and resize.
    Layout(LayoutArgs),
    /// Watch a running server: each tenant's share, and which tenants delay which
    ///
    /// Fills the terminal, and updates it once a second. A bar shows a tenant's share, and the mark
    /// in it the share to which the tenant is entitled; `hurt by` lists the tenants whose requests
    /// were served while its own waited. s sorts, w changes a weight, space pauses, q ends.
    #[cfg(feature = "top")]
    #[command(after_help = texts::top_examples())]
    Top(TopArgs),
    /// Use the schedulers inside Linux (fairq.ko): drives, cgroups, weights
    ///
    /// A drive's scheduler is selected like any other scheduler of Linux, and tenants are cgroups.
    /// The commands read and write files in /sys, and need no server; changes need root.
    Kernel(KernelArgs),
    /// Run a load on a device, under one policy after the other, and compare each tenant's service
    ///
    /// This process generates the load: closed-loop jobs like those of fio. After the runs it
    /// prints a table for each policy, or one JSON object.
    #[command(after_help = bench_examples())]
    Bench(BenchArgs),
    /// Find D and T for a device
    ///
    /// Raises the number of outstanding requests until throughput does not rise: the smallest
    /// number that reaches the highest throughput is D. Then finds the smallest T with which small
    /// requests of many shards have the same throughput as without throttling.
    #[command(after_help = calibrate_examples())]
    Calibrate(CalibrateArgs),
    /// Show the profiles of devices, or measure a real one
    ///
    /// A profile describes a device: its queues, times and bandwidths, and its known figures.
    #[command(after_help = device_examples())]
    Device {
        /// The action on them.
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Test the papers' claims, in virtual time
    ///
    /// Runs the schedulers on models of the papers' devices and prints, for each claim, the paper's
    /// statement, the result, and whether the claim holds. The same seed gives the same results on
    /// any machine.
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
        /// The folder; it is made if it does not exist
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
