//! The command line: what can be said, and the help for it.
// Doc comments here are help texts, in which [brackets] mean optional.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fairq_sim::lab::Shard;
use toml::Spanned;

use crate::config::device::DeviceTable;
use crate::config::listen::Listen;
use crate::config::policy::{self, PolicyTable};
use crate::config::tenant::TenantTable;
use crate::config::{CpuList, LimitsTable, Settings, TlsMode, TlsTable};
use crate::job::Job;
use crate::units::{Nanos, Size};

const EXIT_STATUS: &str = "Exit status: 0 when all went well, 1 when something failed while running, 2 when the command \
line or the configuration cannot be used.";

const UNITS: &str = "Sizes are in bytes or binary units (4k = 4096, 64KiB, 10G), bandwidths likewise (1G/s); counts are \
decimal (100k = 100000); durations need their unit (80us, 1ms, 10s).";

/// Share one fast SSD between tenants by weight.
///
/// Every tenant gets its part of the device whenever it wants it, and the others use what it leaves: the device is never
/// idle while somebody wants it.
#[derive(Debug, Parser)]
#[command(name = "fairq", version, after_help = EXIT_STATUS, max_term_width = 110, subcommand_required = true)]
pub(crate) struct Cli {
    /// What to log: error, warn, info, debug, trace, or directives such as info,fairq_host=debug [env: FAIRQ_LOG]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log: Option<String>,

    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a device to tenants over NBD
    ///
    /// Without arguments: a paced device in memory (4G, 20k IOPS, 400M/s, 100us) for two tenants, gold and silver, three
    /// to one, on a Unix socket; it prints the commands to attach with.
    #[command(after_help = serve_examples())]
    Serve(Box<ServeArgs>),
    /// Ask and change a running server
    ///
    /// Over its control socket, which only its own user and root may use. Changes hold at once and interrupt no connection.
    #[command(after_help = ctl_examples())]
    Ctl(CtlArgs),
    /// Watch a running server: who gets what, who hurts whom
    ///
    /// Once a second, on the whole terminal. Bars are what a tenant got, the mark in them is what it is entitled to; `hurt by`
    /// says whose requests were served while its own waited. s sorts, w changes a weight, space pauses, q ends.
    #[command(after_help = top_examples())]
    Top(TopArgs),
    /// Drive a device with a load, one policy after the other, and compare what each tenant gets
    ///
    /// The load is made inside this process: closed-loop jobs in the manner of fio. After the runs there is a table for
    /// each policy, or one JSON object.
    #[command(after_help = bench_examples())]
    Bench(BenchArgs),
    /// Find the D and T that suit a device
    ///
    /// Raises the number of outstanding requests until the device gives no more: the smallest number that reaches
    /// the most is D. Then finds the smallest T at which many shards with small requests lose nothing.
    #[command(after_help = calibrate_examples())]
    Calibrate(CalibrateArgs),
    /// Show the profiles of devices, or find out what a real one is like
    ///
    /// A profile says what a device is like: its queues, times and bandwidths, and what is known of it.
    #[command(after_help = device_examples())]
    Device {
        /// What to do with them.
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Put the papers' claims to the test, in virtual time
    ///
    /// Runs the schedulers on models of the papers' devices and says of each claim what the paper says, what came out and
    /// whether it holds. The same seed gives the same answers on any machine.
    #[command(after_help = lab_examples(), subcommand_required = true)]
    Lab(LabArgs),
    /// Print a shell's completions
    ///
    /// For example: fairq completions bash > /etc/bash_completion.d/fairq
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages into a folder
    ///
    /// For example: fairq man /usr/local/share/man/man1
    Man {
        /// The folder; it is made if it is not there
        folder: PathBuf,
    },
}

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List the profiles that are built in
    #[command(after_help = device_examples())]
    List {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Show a profile, and what is known of the device beside what its model does
    #[command(after_help = device_examples())]
    Show(ShowArgs),
    /// Measure a file or disk, and derive a profile from it
    ///
    /// It reads at growing depths. In a directory it makes a scratch file without a name and writes too.
    #[command(after_help = device_examples())]
    Probe(ProbeArgs),
}

fn lab_examples() -> String {
    format!(
        "\
Examples:
  fairq lab list
  fairq lab run M-5a M-T1
  fairq lab run --paper mqfq --json
  fairq lab run all --jobs 2 --output docs
  fairq lab run my.toml --policy all
  fairq lab run all --shard 1/2 --output part1; fairq lab merge part1 part2 --output whole

{EXIT_STATUS}"
    )
}

fn serve_examples() -> String {
    format!(
        "\
Examples:
  fairq serve
  fairq serve --device file,path=/srv/disk.img,size=64G,create --tenant db=10G,weight=300 --tenant web,weight=100
  fairq serve --device /dev/nvme1n1 --tenant db=100G,weight=300 --tenant web=100G --policy mqfq:slots=64
  fairq serve --tenant db,weight=300,path=/srv/db.img --tenant web,path=/srv/web.img --listen tcp:0.0.0.0
  fairq serve --config fairq.toml --policy none

{UNITS}

{EXIT_STATUS}"
    )
}

fn ctl_examples() -> String {
    format!(
        "\
Examples:
  fairq ctl status
  fairq ctl tenants --json
  fairq ctl add web=10G,weight=200
  fairq ctl weight web 400
  fairq ctl weight db cgroup:/tenants/db
  fairq ctl params threshold=128k
  fairq ctl config reload
  fairq ctl trace --seconds 1 --format perfetto -o trace.json
  fairq ctl --control /run/other.ctl drain

{EXIT_STATUS}"
    )
}

fn top_examples() -> String {
    format!(
        "\
Examples:
  fairq top
  fairq top --once
  fairq top --control /run/other.ctl --json

{EXIT_STATUS}"
    )
}

fn bench_examples() -> String {
    format!(
        "\
Examples:
  fairq bench --policy none,mqfq --tenant small=weight:300,bs:4k,depth:64 --tenant large=bs:64k,depth:32
  fairq bench --device ram --tenant a=depth:128,jobs:4 --tenant b=rw:randwrite,rate:100M/s --json
  fairq bench --device file,path=/srv/test.img,size=1G,create --overwrite --alone --fio tenants.fio
  fairq bench --device nvme-soft,backing=ram --policy none,d2fq --path direct --tenant a=depth:1
  fairq bench --seconds 30 --series 10ms --moves --tenant base --tenant guest=weight:300,start:10s,stop:20s
  fairq bench --connect 'nbd+unix:///?socket=/run/fairq.sock' --tenant gold=depth:64 --tenant silver=depth:64

A tenant is NAME=key:value,…
  weight  1 to 10000 (100)        bs     size of a request (4k)
  depth   in flight, each job (32)  jobs   how many run at once (1)
  rw      read, write, randread, randwrite, rw, randrw (randread)
  rwmix   percentage of reads (50)  size   how much it touches (an equal part)
  rate    bytes a second, at most   iops   requests a second, at most
  think   pause after each request  start, stop  when it comes and goes, from the start of the measurement

{UNITS}

{EXIT_STATUS}"
    )
}

fn calibrate_examples() -> String {
    format!(
        "\
Examples:
  fairq calibrate --device /dev/nvme1n1
  fairq calibrate --device paced,iops=200k,latency=100us --bs 4k --json

It only reads unless --write is given.

{EXIT_STATUS}"
    )
}

fn device_examples() -> String {
    format!(
        "\
Examples:
  fairq device list
  fairq device show z-ssd
  fairq device show z-ssd --toml > mine.toml
  fairq device probe /dev/nvme1n1 --output mine.toml
  fairq device probe /srv --size 4G --output srv.toml
  fairq device probe /dev/nvme1n1 --overwrite --json
  fairq device probe nvme-soft,backing=ram,profile=z-ssd

It writes only into a scratch file of its own, unless --overwrite is given.

{UNITS}

{EXIT_STATUS}"
    )
}

/// `fairq serve`.
#[derive(Debug, Args, Default)]
pub(crate) struct ServeArgs {
    /// Read this TOML file first; flags win over it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The store: null | ram | paced | file | nvme-soft, then keys
    ///
    /// Keys: size (null, ram, paced: 4G); iops, bandwidth, latency, parallelism (paced); path, create (with a size, if it is
    /// not there), direct=auto|on|off (file). A path alone is a file. nvme-soft, a software controller with weighted round
    /// robin: backing=ram|null|PATH, size, profile=z-ssd|FILE|none, state=fresh|steady, window, queues, wrr=true|false,
    /// poller=inline|core.
    #[arg(long, value_name = "KIND[,KEY=VALUE…]")]
    pub(crate) device: Option<DeviceTable>,
    /// A tenant; may be given many times
    ///
    /// Keys: size (default: an equal part of what the others leave), weight=1..10000 (100) or cgroup:/NAME, offset,
    /// path=FILE (a file of its own), create (that file), keep-data (when added live: do not zero), read-only, urgent (d2fq), identity=NAME (of the client's
    /// certificate), description. A comma in a value is written twice.
    #[arg(long, value_name = "NAME[=SIZE][,KEY=VALUE…]")]
    pub(crate) tenant: Vec<TenantTable>,
    /// How to share: none | sfqd | mqfq | mqfq-serial | d2fq | kyber | kyber-fair | cfq | cfq-na | bfq | bfq-na | flashfq |
    /// fiops, or nass+ and one of cfq, bfq, flashfq, fiops; then keys
    ///
    /// Keys: slots (or D: the most requests outstanding on the device), threshold (or T: how far, in bytes, a tenant
    /// may run ahead), virtual-time=mindicator|scan, slot-kind=tree|counter|bitmap, unthrottle=wheel|poll:1us,
    /// read-cost, write-cost (factors); all but none, mqfq and d2fq: merge=on|off|SIZE (adjacent requests as one
    /// command); d2fq: tau-l, tau-m, tau-w (bytes), hl=dynamic|static-N, initial, period, grace,
    /// tracker=sloppy|scan|mindicator, strict-paper, urgent; cfq: slice, target, quantum, idle; bfq: budget, timeout,
    /// idle; flashfq: idle, request-cost; nass: channels, sub-request, history, decay, reserve, queue-length,
    /// aggressiveness, sequentiality, idleness; kyber: read-target, write-target,
    /// read-depth, write-depth; kyber-fair: period, busy, tokens.
    #[arg(long, value_name = "NAME[:KEY=VALUE…]")]
    pub(crate) policy: Option<PolicyTable>,
    /// Where clients connect, unix:PATH or tcp:ADDRESS[:PORT]; may be given many times
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<Listen>,
    /// The control socket, for `fairq ctl` and `fairq top` [default: beside the default socket, if that is used]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Where metrics for Prometheus and a web page are served, unix:PATH or tcp:ADDRESS:PORT; may be given many times
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Vec<Listen>,
    /// Serve the one connection on standard input, then end (inetd)
    #[arg(long)]
    pub(crate) stdio: bool,
    /// Where to run
    #[command(flatten)]
    pub(crate) shards: ShardArgs,
    /// Whether clients use TLS; required once there is a certificate
    #[arg(long, value_name = "MODE")]
    pub(crate) tls: Option<TlsMode>,
    /// The server's certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Who signs clients' certificates, PEM; clients must then show one
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// The most connections at a time
    #[arg(long, value_name = "N")]
    pub(crate) connections: Option<u32>,
    /// The most memory for requests and replies of one connection
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_per_connection: Option<Size>,
    /// The most requests of one connection in flight
    #[arg(long, value_name = "N")]
    pub(crate) depth_per_connection: Option<u32>,
    /// Print the status each second even if standard output is not a terminal
    #[arg(long)]
    pub(crate) status: bool,
}

/// `fairq ctl`.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// The server's control socket [default: beside the default socket] [env: FAIRQ_CONTROL]
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) control: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to ask or change.
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

/// `fairq top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The server's control socket [default: beside the default socket] [env: FAIRQ_CONTROL]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Print the table once, as text
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON object instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to ask or change.
#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// What the server is, and what it does now
    Status,
    /// The tenants, and what each got in the last second
    Tenants,
    /// Add a tenant, in a part of the device that nobody has now, or with a file of its own (path=FILE)
    ///
    /// What others left in that part is zeroed before the tenant can be opened, unless keep-data says that it is the tenant's.
    Add {
        /// As --tenant of serve
        #[arg(value_name = "NAME[=SIZE][,KEY=VALUE…]")]
        tenant: String,
    },
    /// Remove a tenant: its connections end when what they have in flight is answered
    ///
    /// Its data stay until another tenant is placed there; a file of its own stays open until the server ends.
    Remove {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
    },
    /// Change a tenant's weight
    Weight {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// 1 to 10000, or cgroup:/NAME to follow a cgroup's io.weight
        #[arg(value_name = "WEIGHT")]
        weight: String,
    },
    /// How the device is shared; with a name, share it by another policy from now on
    ///
    /// The policy in force finishes the requests it has, those that come meanwhile wait, and no connection is dropped.
    Policy {
        /// As --policy of serve, with the keys behind a colon or as further arguments
        #[arg(value_name = "NAME[:KEY=VALUE…]")]
        name: Option<String>,
        /// Its parameters
        #[arg(value_name = "KEY=VALUE", requires = "name")]
        keys: Vec<String>,
    },
    /// The policy's parameters, what they are and what they take; or change some, all or none
    Params {
        /// As behind --policy NAME:
        #[arg(value_name = "KEY=VALUE,…")]
        params: Option<String>,
    },
    /// Listen somewhere else too
    Listen {
        /// unix:PATH or tcp:ADDRESS:PORT
        address: String,
    },
    /// Listen there no more; connections made there go on
    Unlisten {
        /// As it stands in the status
        address: String,
    },
    /// Who hurts whom: what each tenant's requests waited for in the last ten seconds
    Interference,
    /// The configuration
    Config {
        /// What to do with it.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Take no more connections, and end when the last client has gone
    Drain {
        /// End at once: finish what is in flight and cut off who stays
        #[arg(long)]
        now: bool,
    },
    /// Record the scheduler's decisions for a while, with the numbers that caused them
    ///
    /// Each shard keeps its last decisions in memory meanwhile: when requests arrive, go to the device (virtual time, start tag,
    /// class, free slots), are held back (and why) and complete. Without a recording none of this is done.
    Trace(TraceArgs),
    /// Call a method of the control socket; rpc.discover lists them
    Call {
        /// The method
        method: String,
        /// Its parameters, a JSON object
        #[arg(value_name = "JSON")]
        params: Option<String>,
    },
}

/// `fairq ctl trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// How long to record, up to 600; a number alone is seconds
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = parse_time)]
    pub(crate) seconds: Nanos,
    /// How many decisions each shard keeps, the last ones, up to 1048576
    #[arg(long, value_name = "N")]
    pub(crate) events: Option<u64>,
    /// How to write them
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: TraceFormat,
    /// Where to write them, in place of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// How a recording is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TraceFormat {
    /// A line for each decision
    Text,
    /// For ui.perfetto.dev
    Perfetto,
    /// For programs and `fairq lab run`, which replays it
    Csv,
}

/// What to do with the configuration.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the configuration in force, as a file that could be given to serve
    Dump,
    /// Read the file again and make the server so; a bad file changes nothing
    Reload,
}

/// Where to run.
#[derive(Debug, Args, Default, Clone)]
pub(crate) struct ShardArgs {
    /// Threads, each pinned to a CPU [default: one for each CPU]
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<u32>,
    /// The CPUs to run on, as in 0-3,6
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,
}

/// `fairq bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The device, as for serve [default: paced]
    #[arg(long, value_name = "KIND[,KEY=VALUE…]")]
    pub(crate) device: Option<DeviceTable>,
    /// Drive an NBD server instead, ours or another: nbd+unix:///EXPORT?socket=PATH or nbd://HOST[:PORT]/EXPORT
    ///
    /// With TLS nbds+unix: or nbds:, and tls-certificates=DIR in the query: a directory with ca-cert.pem and, if the server
    /// asks for them, client-cert.pem and client-key.pem.
    ///
    /// Several tenants connect to the exports of their names, unless the address names one or the tenant does
    /// (export:NAME).
    #[arg(long, value_name = "URI")]
    pub(crate) connect: Option<String>,
    /// The policies to compare, as for serve, in one list or in several [default: none,mqfq]
    #[arg(long, value_name = "NAME[:KEY=VALUE…],…", value_parser = parse_policies)]
    pub(crate) policy: Vec<Policies>,
    /// The way to the device [default: shards]
    ///
    /// shards is the loop that serve runs, too. direct is a client's own: its thread rings the device's class queues itself
    /// and polls for completions, for policies that never hold a request back (none, d2fq) on devices that are polled (all
    /// but files).
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<Way>,
    /// A tenant and its load; may be given many times [default: two like gold and silver of serve]
    #[arg(long, value_name = "NAME[=KEY:VALUE,…]")]
    pub(crate) tenant: Vec<Job>,
    /// Tenants from a fio job file; may be given many times
    #[arg(long, value_name = "FILE")]
    pub(crate) fio: Vec<PathBuf>,
    /// How long to measure each policy: seconds, or a duration [default: 10, or the fio file's runtime]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) seconds: Option<Nanos>,
    /// How long to run before measuring [default: 1s, or the fio file's ramp_time]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) warmup: Option<Nanos>,
    /// Also tell how shares went over time, in intervals this long
    ///
    /// In the table: each tenant's share of every phase (from one tenant's start or stop to the next) and how much it varies
    /// from interval to interval. In the JSON object: the bytes of each interval, too.
    #[arg(long, value_name = "INTERVAL", value_parser = parse_time, num_args = 0..=1, default_missing_value = "10ms")]
    pub(crate) series: Option<Nanos>,
    /// Place every job on a shard at random, and anew at such intervals, as a system does with threads that are not pinned
    ///
    /// Otherwise jobs are dealt to the shards in turn and stay there, so that tenants with as many jobs as there are shards
    /// are alike to the microsecond.
    #[arg(long, value_name = "INTERVAL", value_parser = parse_time, num_args = 0..=1, default_missing_value = "100ms")]
    pub(crate) moves: Option<Nanos>,
    /// Run each tenant alone first, with policy none, to tell its slowdown
    #[arg(long)]
    pub(crate) alone: bool,
    /// Allow writing to a file or block device: what is on it is lost
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print one JSON object instead of tables, or write it to FILE beside them
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Where to run.
    #[command(flatten)]
    pub(crate) shards: ShardArgs,
}

/// Which way requests take to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Way {
    /// By a shard's loop
    #[default]
    Shards,
    /// By the class queues, rung and polled by the client
    Direct,
}

/// `fairq calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// The device, as for serve [default: paced]
    #[arg(long, value_name = "KIND[,KEY=VALUE…]")]
    pub(crate) device: Option<DeviceTable>,
    /// Sizes of requests to try; the one that needs most decides
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "4k,64k")]
    pub(crate) bs: Vec<Size>,
    /// The most outstanding requests to try
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) most: u32,
    /// How long to measure each point: seconds, or a duration; it is done in three rounds, of which the best counts
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1s")]
    pub(crate) seconds: Nanos,
    /// How much of the most throughput is enough
    #[arg(long, value_name = "PERCENT", default_value_t = 98, value_parser = clap::value_parser!(u32).range(50..=100))]
    pub(crate) enough: u32,
    /// Write instead of reading: what is on the device is lost
    #[arg(long)]
    pub(crate) write: bool,
    /// Print one JSON object instead of a picture
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to run.
    #[command(flatten)]
    pub(crate) shards: ShardArgs,
}

/// `fairq device show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A built-in profile, or the path of a profile file
    #[arg(value_name = "NAME|FILE")]
    pub(crate) name: String,
    /// Print JSON instead of text
    #[arg(long, conflicts_with = "toml")]
    pub(crate) json: bool,
    /// Print the profile as it is written, with its comments: to begin one's own with
    #[arg(long)]
    pub(crate) toml: bool,
}

/// `fairq device probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// A file or block device, or a directory to make a scratch file in; or nvme-soft,KEY=VALUE… as for serve, to see
    /// whether its queue classes differ in speed
    #[arg(value_name = "PATH|DEVICE")]
    pub(crate) path: PathBuf,
    /// Write the profile to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// What to call the profile [default: probed]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// How large the scratch file is to be [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,
    /// Measure writes too: what is on the file or device is lost
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// The most outstanding requests to try
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(crate) most: u32,
    /// How long to measure each point: seconds, or a duration
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1s")]
    pub(crate) seconds: Nanos,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to run.
    #[command(flatten)]
    pub(crate) shards: ShardArgs,
}

/// `fairq lab`.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

/// What to do in the lab.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Print every claim, and whether there is an experiment for it yet
    List,
    /// Run experiments and print what came out
    Run(LabRunArgs),
    /// Put parts together that were run with --shard and --output
    Merge(LabMergeArgs),
}

/// `fairq lab run`.
#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    /// Claims, as in M-5a.1; a part stands for all that begin with it (M-5), `all` for all, `fast` for those that take seconds;
    /// or scenario files (.toml)
    #[arg(value_name = "ID|FILE", required_unless_present = "paper")]
    pub(crate) ids: Vec<String>,
    /// All claims of a paper, or what is asked beyond them
    #[arg(long, value_name = "NAME", value_parser = ["d2fq", "mqfq", "kyber", "nass", "beyond"], conflicts_with = "ids")]
    pub(crate) paper: Option<String>,
    /// Names the run: another seed, other random numbers [default: 1, or what a scenario file says]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// How many experiments at a time [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
    /// The policies to compare on scenario files, as for bench; `all` for all of them [default: none,mqfq]
    #[arg(long, value_name = "NAME[:KEY=VALUE…],…", value_parser = parse_lab_policies)]
    pub(crate) policy: Option<Policies>,
    /// Run only a part of the experiments, as in 2/3, the second of three; `fairq lab merge` puts the parts together
    #[arg(long, value_name = "PART/OF", value_parser = crate::lab::parse_shard)]
    pub(crate) shard: Option<Shard>,
    /// Print one JSON object instead of a table, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Write a report into DIR: RESULTS.md, and in results/ a page, figures (SVG) and their data (CSV)
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Fail unless all that comes out is what the report in DIR says
    #[arg(long, value_name = "DIR")]
    pub(crate) against: Option<PathBuf>,
}

/// `fairq lab merge`.
#[derive(Debug, Args)]
pub(crate) struct LabMergeArgs {
    /// What --output was in each part
    #[arg(value_name = "DIR", required = true)]
    pub(crate) parts: Vec<PathBuf>,
    /// Print one JSON object instead of a table, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report of the whole into DIR
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// One list of policies.
#[derive(Clone, Debug)]
pub(crate) struct Policies(pub(crate) Vec<PolicyTable>);

impl Policies {
    /// What is compared if nothing is said.
    pub(crate) fn usual() -> Policies {
        parse_policies("none,mqfq").expect("the usual policies are well formed")
    }
}

fn parse_policies(text: &str) -> Result<Policies, String> {
    policy::parse_list(text).map(Policies)
}

fn parse_lab_policies(text: &str) -> Result<Policies, String> {
    parse_policies(if text == "all" { policy::ALL } else { text })
}

/// A duration; a number alone is seconds.
fn parse_time(text: &str) -> Result<Nanos, String> {
    let seconds = text.chars().all(|c| c.is_ascii_digit() || c == '.') && !text.is_empty();
    let time: Nanos = if seconds { format!("{text}s").parse()? } else { text.parse()? };
    Ok(time)
}

impl ServeArgs {
    /// What the flags say, in the form that a file has.
    pub(crate) fn settings(self) -> Settings {
        let flag = |given: bool| given.then_some(true);
        Settings {
            device: self.device,
            policy: self.policy,
            tenant: self.tenant.into_iter().map(|tenant| Spanned::new(0..0, tenant)).collect(),
            listen: self.listen,
            control: self.control,
            metrics: self.metrics,
            web_token: None,
            stdio: flag(self.stdio),
            shards: self.shards.shards,
            cpus: self.shards.cpus,
            tls: TlsTable { mode: self.tls, cert: self.tls_cert, key: self.tls_key, client_ca: self.tls_client_ca },
            limits: LimitsTable {
                connections: self.connections,
                memory_per_connection: self.memory_per_connection,
                depth_per_connection: self.depth_per_connection,
            },
            status: flag(self.status),
            log: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_value_names_the_flag_and_the_cure() {
        let error = Cli::try_parse_from(["fairq", "serve", "--tenant", "db=10G,wieght=3"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(
            text.contains("'--tenant <NAME[=SIZE][,KEY=VALUE…]>': unknown key `wieght`; did you mean `weight`?"),
            "{text}"
        );
        let error = Cli::try_parse_from(["fairq", "serve", "--listen", "/run/x"]).unwrap_err();
        assert!(error.to_string().contains("says neither unix:PATH nor tcp:ADDRESS:PORT"));
    }

    #[test]
    fn bench_takes_policies_in_one_list_or_in_several() {
        let parse = |args: &[&str]| {
            let cli = Cli::try_parse_from([&["fairq", "bench"], args].concat()).unwrap();
            let Command::Bench(bench) = cli.command else { panic!("not bench") };
            bench
        };
        let names = |bench: &BenchArgs| -> Vec<&str> {
            bench.policy.iter().flat_map(|list| &list.0).map(|policy| policy.name.unwrap().name()).collect()
        };
        assert_eq!(parse(&[]).policy.len(), 0);
        assert_eq!(names(&parse(&["--policy", "sfqd:slots=4,mqfq", "--policy", "none"])), ["sfqd", "mqfq", "none"]);
        assert_eq!(parse(&["--json"]).json.as_deref(), Some("-".as_ref()));
        assert_eq!(parse(&["--json", "x.json"]).json.as_deref(), Some("x.json".as_ref()));
        let bench = parse(&["--seconds", "2.5", "--warmup", "300ms"]);
        assert_eq!((bench.seconds, bench.warmup), (Some(Nanos(2_500_000_000)), Some(Nanos(300_000_000))));
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
        let Command::Serve(serve) = Cli::try_parse_from(args).unwrap().command else { panic!("not serve") };
        let settings = serve.settings();
        assert_eq!(settings.tenant[0].get_ref().name, "a");
        assert_eq!(settings.cpus, Some(CpuList(vec![0])));
        assert_eq!((settings.tls.mode, settings.limits.connections), (Some(TlsMode::Optional), Some(7)));
        assert_eq!((settings.status, settings.stdio), (Some(true), None));
    }
}
