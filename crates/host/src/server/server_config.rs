//! The configuration of a server: its tenants, addresses, bounds and timeouts.

use std::path::PathBuf;
use std::time::Duration;

use fairq_core::{Caps, Reservation, Target, Weight};

use crate::front::vhost::vrings::Poll;
use crate::nbd::serve::conn::Limits;
use crate::nbd::session::exports::Identity;
use crate::nbd::session::handshake::HandshakeOptions;
use crate::nbd::session::users::Users;
use crate::server::Listen;

/// One tenant.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name, which is also the name of its export.
    pub name: String,
    /// The number of the device's file that holds its data.
    pub file: u16,
    /// Start of its range in the file, in bytes.
    pub base: u64,
    /// The size of its range, in bytes.
    pub size: u64,
    /// All other settings.
    pub settings: TenantSettings,
}

/// The settings of a tenant, apart from its name and range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantSettings {
    /// A description for human readers.
    pub description: String,
    /// Its share relative to the others'.
    pub weight: Weight,
    /// Whether it may only read.
    pub read_only: bool,
    /// Whether it may use the urgent class, within the policy's budget.
    pub urgent: bool,
    /// The latency target of its requests, if it has one.
    pub target: Option<Target>,
    /// The upper limits of its service, even if the device is idle.
    pub caps: Caps,
    /// The group that it is in.
    pub group: Option<String>,
    /// The lower limits of its service, as far as the device can provide them.
    pub reservation: Reservation,
    /// The identity in the certificate that a client needs to open it.
    pub identity: Option<Identity>,
    /// The users of this machine who may open it, over a Unix socket; any user if none is named.
    pub users: Users,
    /// The most connections that it may have; by default half of all.
    pub connections: Option<u32>,
    /// Whether it is also a block device of this machine (ublk).
    pub ublk: bool,
    /// The path of its own socket for guests, if it has one.
    pub vhost_user: Option<PathBuf>,
    /// The path of the socket of its own NVMe controller, if it has one.
    pub vfio_user: Option<PathBuf>,
}

impl TenantSettings {
    /// The settings after an [update](crate::server::Admin::update) to `new`. Settings that only a
    /// restart changes keep their old values: those that clients received in their handshakes, and
    /// `urgent`, `connections` and `ublk`.
    #[must_use]
    pub fn updated(&self, new: &TenantSettings) -> TenantSettings {
        let TenantSettings { read_only, urgent, connections, ublk, .. } = *self;
        let TenantSettings { description, identity, users, .. } = self.clone();
        TenantSettings {
            description,
            read_only,
            urgent,
            identity,
            users,
            connections,
            ublk,
            ..new.clone()
        }
    }
}

/// The tenant of clients that send no export name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DefaultTenant {
    /// Its name. While no tenant has this name, such clients are refused.
    pub name: String,
    /// Whether the operator has chosen it; otherwise it is the default only while there is no other
    /// tenant.
    pub is_named: bool,
}

/// The longest times for which a server waits for clients, stores and the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// The longest silence of a TCP client on the network; keepalive probes and acknowledgements
    /// end a silence.
    pub peer: Duration,
    /// The longest time that clients may take to accept their last answers.
    pub answers: Duration,
    /// The age of a store's oldest request from which the store is reported as stuck.
    pub stuck: Duration,
    /// The longest time that a change of the policy waits for requests in flight. Without this
    /// bound, a slow store would delay the tenants of all stores.
    pub change: Duration,
    /// The longest time that a request waits for writes of an earlier connection to the same bytes.
    /// The default is longer than a kernel's command timeout of 30 s and the retry that follows it.
    pub overlap: Duration,
    /// The longest time for which a call of the control socket waits for a file system.
    pub call: Duration,
    /// The longest time that a client of HTTP or of the control socket may take to send a request,
    /// from its first byte to its last, and to accept an answer.
    pub http: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let seconds = Duration::from_secs;
        Timeouts {
            peer: seconds(30),
            answers: seconds(5),
            stuck: seconds(5),
            change: seconds(3),
            overlap: seconds(60),
            call: seconds(8),
            http: seconds(10),
        }
    }
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// The names of the tenants whose ranges are zeroed before they can be opened.
    pub zero: Vec<String>,
    /// The tenant of clients that send no export name.
    pub default: Option<DefaultTenant>,
    /// The groups of the tenants, outer ones first.
    pub groups: Vec<Group>,
    /// The largest number of tenants at a time; the policy was built for the same number of flows.
    pub most_tenants: usize,
    /// The addresses where clients connect.
    pub listen: Vec<Listen>,
    /// The folder in which the server keeps notes about block devices.
    pub state: PathBuf,
    /// The path of the control socket.
    pub control: Option<PathBuf>,
    /// The addresses where metrics and the web page are served over HTTP.
    pub metrics: Vec<Listen>,
    /// The CPU of each shard: one for each port of the policy, or empty to pin no shard.
    pub cpus: Vec<usize>,
    /// Bounds of each connection.
    pub limits: Limits,
    /// The most connections of each shard.
    pub connections: usize,
    /// The most queues of guests of each shard.
    pub queues: usize,
    /// Whether and when shards poll the rings of guests instead of sleeping.
    pub poll: Poll,
    /// The most bytes of all connections' buffers.
    pub memory: u64,
    /// The number of live requests of each shard, over its connections and its queues of guests.
    /// The policy was built with the same number.
    pub tags: usize,
    /// The options of handshakes.
    pub handshake: HandshakeOptions,
    /// The longest times for which the server waits.
    pub timeouts: Timeouts,
}

/// A group of tenants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name, which begins with the names of the groups that it is in: `acme/batch`.
    pub name: String,
    /// Its weight relative to the other members of its parent group.
    pub weight: Weight,
    /// The lower limits of the service of all its tenants together.
    pub reservation: Reservation,
    /// The upper limits of the service of all its tenants together, for each store.
    pub caps: Caps,
}
