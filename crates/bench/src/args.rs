//! `fairq bench`, `fairq calibrate` and `fairq device`.
// Doc comments here are help texts, in which [brackets] mean optional.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use fairq_config::device::DeviceTable;
use fairq_config::flags::{EXIT_STATUS, Policies, ShardArgs, UNITS, parse_policies, parse_time};
use fairq_config::group::GroupTable;
use fairq_config::units::{Nanos, Size};

use crate::job::Job;

/// `fairq bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The device, as for serve [default: paced]
    #[arg(long, value_name = "KIND[,KEY=VALUE…]")]
    pub device: Option<DeviceTable>,
    /// Drive an NBD server instead, fairq's or another: nbd+unix:///EXPORT?socket=PATH or
    /// nbd://HOST[:PORT]/EXPORT
    ///
    /// With TLS nbds+unix: or nbds:, and tls-certificates=DIR in the query: a directory with
    /// ca-cert.pem and, if the server requests them, client-cert.pem and client-key.pem.
    ///
    /// Each of several tenants connects to the export of its own name, unless the address names an
    /// export or the tenant does (export:NAME).
    #[arg(long, value_name = "URI")]
    pub connect: Option<String>,
    /// The longest silence of the server of --connect while it has requests, and the longest
    /// handshake with it [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "connect")]
    pub timeout: Option<Nanos>,
    /// The policies to compare, as for serve, in one list or in several [default: none,mqfq]
    #[arg(long, value_name = "NAME[:KEY=VALUE…],…", value_parser = parse_policies)]
    pub policy: Vec<Policies>,
    /// The way to the device [default: shards]
    ///
    /// With shards, requests go through the loop that serve runs. With direct, the client's thread
    /// rings the device's class queues itself and polls for completions; this needs a policy that
    /// never holds a request back (none, d2fq) and a device that is polled (all except files).
    #[arg(long, value_name = "PATH")]
    pub path: Option<Way>,
    /// A tenant and its load; may be given many times [default: two like gold and silver of serve]
    #[arg(long, value_name = "NAME[=KEY:VALUE,…]")]
    pub tenant: Vec<Job>,
    /// A group of tenants, with the keys that serve takes; may be given many times
    #[arg(long, value_name = "NAME[=KEY:VALUE,…]")]
    pub group: Vec<GroupTable>,
    /// Tenants from a fio job file; may be given many times
    #[arg(long, value_name = "FILE")]
    pub fio: Vec<PathBuf>,
    /// Measure each policy for this time: seconds, or a duration [default: 10, or the fio file's
    /// runtime]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub seconds: Option<Nanos>,
    /// Run for this time before measuring [default: 1s, or the fio file's ramp_time]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub warmup: Option<Nanos>,
    /// Report the shares over time, too, in intervals of this length
    ///
    /// In the table: each tenant's share of every phase (from one tenant's start or stop to the
    /// next) and how much it varies from interval to interval. In the JSON object: the bytes of
    /// each interval, too.
    #[arg(long, value_name = "INTERVAL", value_parser = parse_time, num_args = 0..=1, default_missing_value = "10ms")]
    pub series: Option<Nanos>,
    /// Move each job to a random shard at such intervals, as a system does with threads that are
    /// not pinned
    ///
    /// Without this flag, jobs are distributed to the shards in turn and stay there; tenants that
    /// have a job on each shard then behave alike to the microsecond. The default INTERVAL is
    /// 120ms, about as often as Linux moves the threads of such loads.
    #[arg(long, value_name = "INTERVAL", value_parser = parse_time)]
    pub moves: Option<Option<Nanos>>,
    /// Run each tenant alone first, with policy none, to measure its slowdown
    #[arg(long)]
    pub alone: bool,
    /// Allow writing to a file or block device: the data on it are lost
    #[arg(long)]
    pub overwrite: bool,
    /// Print one JSON object instead of tables, or write it to FILE beside them
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// The shards, and their CPUs.
    #[command(flatten)]
    pub shards: ShardArgs,
}

/// The path of requests to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Way {
    /// By a shard's loop
    #[default]
    Shards,
    /// By the class queues, rung and polled by the client
    Direct,
}

/// `fairq calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// The device, as for serve [default: paced]
    #[arg(long, value_name = "KIND[,KEY=VALUE…]")]
    pub device: Option<DeviceTable>,
    /// Sizes of requests to try; the size that needs the largest D decides
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "4k,64k")]
    pub bs: Vec<Size>,
    /// The most outstanding requests to try
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub most: u32,
    /// Measure each point for this time: seconds, or a duration; each is measured in three rounds,
    /// and the best counts
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1s")]
    pub seconds: Nanos,
    /// D is the smallest number that reaches this part of the most throughput
    #[arg(long, value_name = "PERCENT", default_value_t = 98, value_parser = clap::value_parser!(u32).range(50..=100))]
    pub enough: u32,
    /// Write instead of reading: the data on the device are lost
    #[arg(long)]
    pub write: bool,
    /// Use a device that has tenants' data, by its layout record
    #[arg(long)]
    pub overwrite: bool,
    /// Print one JSON object instead of a picture
    #[arg(long)]
    pub json: bool,
    /// The shards, and their CPUs.
    #[command(flatten)]
    pub shards: ShardArgs,
}

/// The action on profiles.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// List the profiles that are built in
    #[command(after_help = device_examples())]
    List {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Show a profile, and the known figures of the device beside those of its model
    #[command(after_help = device_examples())]
    Show(ShowArgs),
    /// Measure a file or disk, and derive a profile from it
    ///
    /// Reads with a growing number of outstanding requests. If PATH is a directory, makes a scratch
    /// file without a name there, and measures writes, too.
    #[command(after_help = device_examples())]
    Probe(ProbeArgs),
}

/// `fairq device show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A built-in profile, or the path of a profile file
    #[arg(value_name = "NAME|FILE")]
    pub name: String,
    /// Print JSON instead of text
    #[arg(long, conflicts_with = "toml")]
    pub json: bool,
    /// Print the profile's file, with its comments, to begin your own with
    #[arg(long)]
    pub toml: bool,
}

/// `fairq device probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// A file or block device, or a directory to make a scratch file in; or nvme-soft,KEY=VALUE… as
    /// for serve, to see whether its queue classes differ in speed
    #[arg(value_name = "PATH|DEVICE")]
    pub path: PathBuf,
    /// Write the profile to this file
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The profile's name [default: probed]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The size of the scratch file [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Measure writes too: the data in the file or on the device are lost
    #[arg(long)]
    pub overwrite: bool,
    /// The most outstanding requests to try
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub most: u32,
    /// Measure each point for this time: seconds, or a duration
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1s")]
    pub seconds: Nanos,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// The shards, and their CPUs.
    #[command(flatten)]
    pub shards: ShardArgs,
}

/// The text at the end of the help of `fairq bench`.
pub fn bench_examples() -> String {
    format!(
        "\
Examples:
  fairq bench --policy none,mqfq --tenant small=weight:300,bs:4k,depth:64 --tenant \
  large=bs:64k,depth:32
  fairq bench --device ram --tenant a=depth:128,jobs:4 --tenant b=rw:randwrite,rate:100M/s --json
  fairq bench --device file,path=/srv/test.img,size=1G,create --overwrite --alone --fio tenants.fio
  fairq bench --device nvme-soft,backing=ram --policy none,d2fq --path direct --tenant a=depth:1
  fairq bench --seconds 30 --series 10ms --moves --tenant base --tenant \
  guest=weight:300,start:10s,stop:20s
  fairq bench --connect 'nbd+unix:///?socket=/run/fairq.sock' --tenant gold=depth:64 --tenant \
  silver=depth:64

A tenant is NAME=key:value,…
  weight  1 to 10000 (100)        bs     size of a request (4k)
  latency target of its requests, with latency-percentile (99), floor (50%); urgent (d2fq)
  max-iops, max-bandwidth  upper limits, also with read- or write- before them; burst (100ms)
  min-iops, min-bandwidth  reserved rates; group  a group of tenants (--group)
  depth   requests in flight of each job (32)  jobs  number of jobs (1)
  rw      read, write, randread, randwrite, rw, randrw (randread)
  rwmix   percentage of reads (50)  size   of its range (an equal part)
  rate    bytes a second, at most   iops   requests a second, at most
  think   pause after each request  start, stop  times of its load, from the start of \
  the measurement

{UNITS}

{EXIT_STATUS}"
    )
}

/// The text at the end of the help of `fairq calibrate`.
pub fn calibrate_examples() -> String {
    format!(
        "\
Examples:
  fairq calibrate --device /dev/nvme1n1
  fairq calibrate --device paced,iops=200k,latency=100us --bs 4k --json

It only reads unless --write is given.

{EXIT_STATUS}"
    )
}

/// The text at the end of the help of `fairq device`.
pub fn device_examples() -> String {
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
