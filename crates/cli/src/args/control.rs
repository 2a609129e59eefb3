//! `fairq ctl` and `fairq top`.
// Doc comments here are help texts, in which [brackets] mean optional.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use fairq_config::flags::parse_time;
use fairq_config::units::{Nanos, Size};
use serde::Serialize;

/// `fairq ctl`.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// The server's control socket [default: beside the default socket] [env: FAIRQ_CONTROL]
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) control: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// A query or a change.
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

/// `fairq top`.
#[cfg(feature = "top")]
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
    /// Watch the schedulers inside Linux (fairq.ko) instead of a server: cgroups, on all drives or
    /// on this one
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, conflicts_with = "control")]
    pub(crate) kernel: Option<Option<String>>,
}

// A variant is the method of its name, and its fields are the parameters. `crate::ctl` translates
// those whose arguments are written otherwise than the method takes them. This is no doc comment,
// since clap would print it.
/// A query or a change.
#[derive(Debug, Serialize, Subcommand)]
#[serde(tag = "method", content = "params", rename_all = "snake_case")]
pub(crate) enum CtlCommand {
    /// Show what the server serves, and what it does now
    Status,
    /// Show the tenants, and what each got in the last second
    Tenants,
    /// Add a tenant, in a free part of the device or with a file of its own (path=FILE)
    ///
    /// The part is zeroed before the tenant can be opened, since it may hold data of a tenant that
    /// was removed. keep-data leaves what is there.
    Add {
        /// Name, size and keys, as for serve --tenant
        #[arg(value_name = "NAME[=SIZE][,KEY=VALUE…]")]
        tenant: String,
        /// Write the tenant's table into the server's configuration file, too
        #[arg(long)]
        #[serde(skip)]
        save: bool,
        /// Make it a block device of the server's machine, too, like the key ublk
        #[arg(long)]
        #[serde(skip)]
        ublk: bool,
    },
    /// Show whose block device (ublk) /dev/ublkbN is: the tenant's name, and the device's owner,
    /// group and mode, for udev
    ///
    /// Fails if it is no tenant's.
    #[serde(skip)]
    Disk {
        /// The device's number
        #[arg(value_name = "N")]
        number: u32,
    },
    /// Remove a tenant: its requests in flight are answered, then its connections end
    ///
    /// Its data stay until another tenant is placed there; a file of its own is closed.
    Remove {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// Keep its range and its data: a tenant of this name that is added later has them
        #[arg(long)]
        keep: bool,
    },
    /// Rename a tenant: its clients and its data stay
    Rename {
        /// Its name
        #[arg(value_name = "OLD")]
        tenant: String,
        /// The new one
        #[arg(value_name = "NEW")]
        name: String,
    },
    /// Change a tenant's size
    ///
    /// It grows into the free space behind its range, which is zeroed first. Clients see the new
    /// size when they connect again.
    Resize {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// The size that it is to have
        #[arg(value_name = "SIZE")]
        size: Size,
        /// Let it become smaller, and lose what is behind its new end
        #[arg(long)]
        discard: bool,
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
    /// Change a tenant's latency target, or take it away
    Latency {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// The longest time from a request's arrival to its completion: 200us, say, or off
        #[arg(value_name = "TIME")]
        latency: Option<String>,
        /// The percentile of its requests that meets it, 50 to 99.9999 [default: 99]
        #[arg(long, value_name = "PERCENTILE")]
        percentile: Option<String>,
        /// The part of their share by weight that all others together keep [default: 50%]
        #[arg(long, value_name = "PART")]
        floor: Option<String>,
    },
    /// Change a tenant's caps, the most that it gets, or take them away
    ///
    /// Keys: max-iops, read-max-iops, write-max-iops (requests a second), max-bandwidth,
    /// read-max-bandwidth, write-max-bandwidth (bytes a second), burst (what may come above a cap
    /// at once: a time such as 100ms, or a number of requests). A cap that is not named is taken
    /// away.
    Caps {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// The caps that it has from now on, or off
        #[arg(value_name = "KEY=VALUE|off", required = true)]
        caps: Vec<String>,
    },
    /// Show the groups of tenants
    Groups,
    /// Add a group of tenants, change it, or take it away
    ///
    /// Keys: weight (1 to 10000), min-iops, min-bandwidth (what its tenants have together at
    /// least), max-iops, max-bandwidth, the same with read- or write- before them, burst (what
    /// they have together at most), latency, latency-percentile, floor (the target of each tenant
    /// in it that has none), cgroup=/NAME (weight and caps are that cgroup's io.weight and
    /// io.max). A key that is not named stays; min-iops=off takes one away.
    Group {
        /// Its name, after those of the groups that it is in: acme/batch
        #[arg(value_name = "NAME")]
        group: String,
        /// Its keys from now on; or off, which takes the group away if no tenant is in it
        #[arg(value_name = "KEY=VALUE|off", required = true)]
        keys: Vec<String>,
    },
    /// Change a tenant's group or reservation
    ///
    /// Keys: group (a group of tenants), min-iops, min-bandwidth (what it has at least in a
    /// second, while the device can). A key that is not named stays; KEY=off takes one away.
    Share {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// Its keys from now on
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Change keys of a tenant, as they are written in its table
    ///
    /// A key that is not named stays; KEY=off takes one away. Keys that clients get when they
    /// connect need a restart, such as read-only and uid.
    ///
    /// Examples: `fairq ctl set web weight=500 max-iops=20000`; `fairq ctl set web max-iops=off`.
    Set {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// Its keys from now on
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Let a tenant's flushes succeed again after data that it wrote may have been lost
    ///
    /// When the storage fails to take data that it was given before, each tenant that wrote there
    /// since its last good flush gets errors for every flush and FUA write, so that it cannot take
    /// lost data for safe. Mend the storage, have the tenant check or restore its data, then this.
    ClearError {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
    },
    /// Show how the device is shared; with a name, share it by another policy from now on
    ///
    /// The policy in force finishes the requests that it has, and requests that come meanwhile
    /// wait. No connection is dropped.
    Policy {
        /// As for serve --policy: keys stand behind a colon, or as further arguments
        #[arg(value_name = "NAME[:KEY=VALUE…]")]
        name: Option<String>,
        /// Its parameters
        #[arg(value_name = "KEY=VALUE", requires = "name")]
        keys: Vec<String>,
    },
    /// Show the policy's parameters, with values and ranges; or change some of them
    ///
    /// If one of the values is refused, none is changed.
    Params {
        /// As behind the colon of serve --policy
        #[arg(value_name = "KEY=VALUE,…")]
        params: Option<String>,
    },
    /// Listen at another address, too
    Listen {
        /// unix:PATH or tcp:ADDRESS:PORT
        address: String,
    },
    /// Stop listening at an address; connections that were made there go on
    Unlisten {
        /// As `fairq ctl status` shows it
        address: String,
    },
    /// Show who hurts whom: whose requests were served while each tenant's own waited, in the last
    /// ten seconds
    Interference,
    /// The configuration
    #[serde(skip)]
    Config {
        /// The action on it.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Have another version of the program take the server over, without its clients noticing
    ///
    /// The server's process executes the program, which goes on with all connections, data and
    /// settings. It is first run beside the server, to see whether it can: if not, nothing changes.
    /// Connections with TLS end, and their clients connect again.
    ///
    /// Examples: `fairq ctl upgrade` after a package was installed; `fairq ctl upgrade
    /// /opt/fairq-0.2.0/bin/fairq`; the same with the old path goes back.
    Upgrade {
        /// The program [default: the path from which the server was started]
        #[arg(value_name = "PATH")]
        program: Option<PathBuf>,
    },
    /// Take no more connections, and end when the last client has gone
    Drain {
        /// End at once: finish what is in flight, and disconnect the clients that are left
        #[arg(long)]
        now: bool,
    },
    /// Record the scheduler's decisions for a while, with the numbers that caused them
    ///
    /// Meanwhile each shard keeps its last decisions in memory: when a request arrives, goes to the
    /// device (virtual time, start tag, class, free slots), is held back (and why) and completes.
    /// Recording takes CPU; a server records only during this command.
    #[serde(skip)]
    Trace(TraceArgs),
    /// Call a method of the control socket; rpc.discover lists them
    #[serde(skip)]
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
    /// The time of the recording, up to 600 s; a number alone is seconds
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = parse_time)]
    pub(crate) seconds: Nanos,
    /// The number of its last decisions that each shard keeps, up to 1048576 [default: 262144]
    #[arg(long, value_name = "N")]
    pub(crate) events: Option<u64>,
    /// The format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: TraceFormat,
    /// The file to write, in place of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The format of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TraceFormat {
    /// A line for each decision
    Text,
    /// For ui.perfetto.dev
    Perfetto,
    /// For programs and `fairq lab run`, which replays it
    Csv,
}

/// An action on the configuration.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the configuration in force, as a file that could be given to serve
    Dump,
    /// Read the file again and change the server accordingly; a bad file changes nothing
    ///
    /// A tenant that the file does not name stays, with its data and its clients.
    Reload {
        /// Remove this tenant, which the file does not name; may be given many times
        #[arg(long, value_name = "NAME")]
        remove: Vec<String>,
        /// Change nothing, and say what would be changed
        #[arg(long)]
        dry_run: bool,
    },
}
