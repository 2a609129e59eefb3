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

// Each variant is the method of the same name, and its fields are the method's parameters.
// `crate::ctl` converts the arguments of a variant whose form differs from that of the method. This
// is not a doc comment, because clap would print it.
/// A query or a change.
#[derive(Debug, Serialize, Subcommand)]
#[serde(tag = "method", content = "params", rename_all = "snake_case")]
pub(crate) enum CtlCommand {
    /// Show the server's configuration and its present state
    Status,
    /// Show the tenants, and the service of each in the last second
    Tenants,
    /// Add a tenant, in a free part of the device or with a file of its own (path=FILE)
    ///
    /// The part is zeroed before the tenant can be opened, because it may hold data of a tenant
    /// that was removed. With keep-data it is not zeroed.
    Add {
        /// Name, size and keys, as for serve --tenant
        #[arg(value_name = "NAME[=SIZE][,KEY=VALUE…]")]
        tenant: String,
        /// Also write the tenant's table into the server's configuration file
        #[arg(long)]
        #[serde(skip)]
        save: bool,
        /// Also make it a block device of the server's machine, like the key ublk
        #[arg(long)]
        #[serde(skip)]
        ublk: bool,
    },
    /// Show the tenant of the block device (ublk) /dev/ublkbN: its name, and the device's owner,
    /// group and mode, for udev
    ///
    /// Fails if the block device belongs to no tenant.
    #[serde(skip)]
    Disk {
        /// The device's number
        #[arg(value_name = "N")]
        number: u32,
    },
    /// Remove a tenant: its requests in flight are answered, then its connections end
    ///
    /// Its data stay until its range is given to another tenant. If it has a file of its own, the
    /// file is closed.
    Remove {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// Reserve its range with its data for a tenant of this name that is added later
        #[arg(long)]
        keep: bool,
    },
    /// Rename a tenant: its clients and its data stay
    Rename {
        /// Its name
        #[arg(value_name = "OLD")]
        tenant: String,
        /// The new name
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
        /// The new size
        #[arg(value_name = "SIZE")]
        size: Size,
        /// Allow a smaller size: the data behind the new end are lost
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
    /// Change or remove a tenant's latency target
    Latency {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// The longest time from a request's arrival to its completion: 200us, say, or off
        #[arg(value_name = "TIME")]
        latency: Option<String>,
        /// The percentile of its requests that must meet the target, 50 to 99.9999 [default: 99]
        #[arg(long, value_name = "PERCENTILE")]
        percentile: Option<String>,
        /// The part of their shares by weight that all other tenants together keep [default: 50%]
        #[arg(long, value_name = "PART")]
        floor: Option<String>,
    },
    /// Set a tenant's caps (the upper limits of its rate), or remove them
    ///
    /// Keys: max-iops, read-max-iops, write-max-iops (requests a second), max-bandwidth,
    /// read-max-bandwidth, write-max-bandwidth (bytes a second), burst (how much a tenant may
    /// exceed a cap at once: a time such as 100ms, or a number of requests). This command removes
    /// each cap that it does not name.
    Caps {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// The new caps, or off
        #[arg(value_name = "KEY=VALUE|off", required = true)]
        caps: Vec<String>,
    },
    /// Show the groups of tenants
    Groups,
    /// Add, change or remove a group of tenants
    ///
    /// Keys: weight (1 to 10000), min-iops, min-bandwidth (reserved for its tenants together),
    /// max-iops, max-bandwidth, also with read- or write- before them, burst (the caps of its
    /// tenants together), latency, latency-percentile, floor (the target of each tenant in it that
    /// has none of its own), cgroup=/NAME (weight and caps follow that cgroup's io.weight and
    /// io.max). A key that is not named stays; KEY=off removes a key.
    Group {
        /// Its name, with the names of its outer groups before it: acme/batch
        #[arg(value_name = "NAME")]
        group: String,
        /// Its new keys; or off, which removes the group if no tenant is in it
        #[arg(value_name = "KEY=VALUE|off", required = true)]
        keys: Vec<String>,
    },
    /// Change a tenant's group or reservation
    ///
    /// Keys: group (a group of tenants), min-iops, min-bandwidth (the reserved rate, as far as the
    /// device can give it). A key that is not named stays; KEY=off removes a key.
    Share {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
        /// Its keys from now on
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Change keys of a tenant; their names are those in its table of the configuration file
    ///
    /// A key that is not named stays; KEY=off removes a key. Keys that clients read when they
    /// connect, such as read-only and uid, need a restart.
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
    /// If the storage fails to write data that it accepted earlier, every flush and FUA write of
    /// each tenant that wrote there after its last successful flush fails, so that the tenant does
    /// not take lost data for safe. Repair the storage, let the tenant's users check or restore its
    /// data, and then run this command.
    ClearError {
        /// Its name
        #[arg(value_name = "NAME")]
        tenant: String,
    },
    /// Show the policy; with a name, replace it by another policy
    ///
    /// The present policy finishes the requests that it has, and new requests wait until then. No
    /// connection is dropped.
    Policy {
        /// As for serve --policy: the keys follow a colon, or are further arguments
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
        /// As after the colon of serve --policy
        #[arg(value_name = "KEY=VALUE,…")]
        params: Option<String>,
    },
    /// Also listen at another address
    Listen {
        /// unix:PATH or tcp:ADDRESS:PORT
        address: String,
    },
    /// Stop listening at an address; connections that were made there stay open
    Unlisten {
        /// As `fairq ctl status` shows it
        address: String,
    },
    /// Show which tenants delay which: for each tenant, the tenants whose requests were served
    /// while its own waited, in the last ten seconds
    Interference,
    /// The configuration
    #[serde(skip)]
    Config {
        /// The action on it.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Upgrade the server to another version of the program, without interrupting its clients
    ///
    /// The server's process executes the new program, which continues with all connections, data
    /// and settings. Before that the new program runs beside the server to check whether it can
    /// continue; if it cannot, nothing changes. Connections with TLS end, and their clients have to
    /// connect again.
    ///
    /// Examples: `fairq ctl upgrade` after a package was installed; `fairq ctl upgrade
    /// /opt/fairq-0.2.0/bin/fairq`; the same command with the old path returns to the old version.
    Upgrade {
        /// The program [default: the path from which the server was started]
        #[arg(value_name = "PATH")]
        program: Option<PathBuf>,
    },
    /// Accept no more connections, and end when the last client has disconnected
    Drain {
        /// End at once: finish the requests in flight, and disconnect the remaining clients
        #[arg(long)]
        now: bool,
    },
    /// Record the scheduler's decisions for a while, with the numbers that caused them
    ///
    /// Meanwhile each shard keeps its last decisions in memory: when a request arrives, goes to the
    /// device (virtual time, start tag, class, free slots), is held back (and why) and completes.
    /// Recording takes CPU time; a server records only during this command.
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
    /// The length of the recording, up to 600 s; a number without a unit is in seconds
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
    /// Read the file again and change the server accordingly; an invalid file changes nothing
    ///
    /// A tenant that the file does not name stays, with its data and its clients.
    Reload {
        /// Remove this tenant, which the file does not name; may be given many times
        #[arg(long, value_name = "NAME")]
        remove: Vec<String>,
        /// Change nothing, but print the changes that a reload would make
        #[arg(long)]
        dry_run: bool,
    },
}
