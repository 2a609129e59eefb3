//! Queries and changes of a running server.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fairq_core::{CapStats, ClassWeights, ShareStats, Stats, TargetStats, Tuning};

use crate::device::CutOff;
use crate::device::file::FileSpec;
use crate::nbd::session::tls::TlsMode;
use crate::observe::record::{DepthChange, Recording};
use crate::observe::stats::Totals;
use crate::server::{
    AdminError, BuiltPolicy, DefaultTenant, Group, GroupStatus, Listen, Member, Tenant, TenantList,
    TenantSettings, Turns,
};
use crate::shard::fence::FenceStats;

/// The status of the server.
#[derive(Clone, Debug)]
pub struct Status {
    /// Time since the server started.
    pub elapsed: Duration,
    /// The counts since the start; a tenant's index is its
    /// [`Member::number`](crate::server::Member::number).
    pub totals: Totals,
    /// Open connections of each shard.
    pub connections: Vec<usize>,
    /// Bytes of the connections' buffers, and their limit.
    pub memory: (u64, u64),
    /// The state of the policies of all stores together. Values that cannot be summed, such as
    /// virtual time, are present only if there is one store.
    pub policy: Stats,
    /// The stores that have files, in the order of their numbers.
    pub stores: Vec<StoreStatus>,
    /// The time for which requests have been waiting until the previous policy finishes; `None` if
    /// no change of the policy is in progress.
    pub changing: Option<Duration>,
    /// The weights of the device's classes, if the policy sets them.
    pub classes: Option<ClassWeights>,
    /// Whether the server drains: it accepts no new connections and ends when the last one ends.
    pub is_draining: bool,
    /// Files that have become shorter while they were served.
    pub cut_off: Vec<CutOff>,
    /// Tenants whose data may be lost because a write-back failed, each with the errno, by their
    /// [`Member::number`](crate::server::Member::number).
    pub write_back_errors: Vec<(u16, i32)>,
    /// Writes of ended connections, and the requests that waited for them, by the tenants'
    /// [`Member::number`](crate::server::Member::number).
    pub fences: Vec<(u16, FenceStats)>,
    /// The latencies of the tenants with a latency target, by their
    /// [`Member::number`](crate::server::Member::number).
    pub targets: HashMap<u16, TargetStats>,
    /// The statistics of caps, by the numbers of the tenants with caps.
    pub caps: HashMap<u16, CapStats>,
    /// The groups of tenants, by name.
    pub groups: Vec<GroupStatus>,
    /// The tenants' effective weights and reservations, by their numbers; empty while no tenant is
    /// in a group or has a reservation.
    pub shares: HashMap<u16, ShareStats>,
    /// The sockets for guests, by the tenants' numbers; the sockets of one tenant are sorted by
    /// path.
    pub attachments: HashMap<u16, Vec<AttachmentStatus>>,
    /// The durations of the control thread's turns so far.
    pub control: Turns,
    /// The number of upgrades in this process.
    pub upgrades: u64,
}

/// A store: files that fail and hang together, and the policy that they share.
#[derive(Clone, Debug)]
pub struct StoreStatus {
    /// Its number; see [`Member::store`].
    pub number: u16,
    /// The name: the operator's `store` name, or the name of its device.
    pub name: String,
    /// Requests that the store has not completed.
    pub on_device: u64,
    /// Age of the oldest of these requests, updated every half second.
    pub oldest: Duration,
    /// Whether the oldest request is older than
    /// [`Timeouts::stuck`](crate::server::Timeouts::stuck).
    pub is_stuck: bool,
    /// The state of its policy.
    pub policy: Stats,
}

/// The way in which a guest or this machine attaches a tenant's range as a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachmentKind {
    /// A socket at which a guest attaches the disk.
    VhostUser,
    /// A socket at which a guest attaches the disk as an NVMe controller.
    VfioUser,
    /// A block device of this machine.
    Ublk,
}

impl AttachmentKind {
    /// Its name in the output of commands.
    pub fn name(self) -> &'static str {
        match self {
            AttachmentKind::VhostUser => "vhost-user",
            AttachmentKind::VfioUser => "vfio-user",
            AttachmentKind::Ublk => "ublk",
        }
    }
}

/// A socket of a tenant at which a guest attaches its disk, or a tenant's block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachmentStatus {
    /// Its kind.
    pub kind: AttachmentKind,
    /// Its path; empty while there is no block device.
    pub path: PathBuf,
    /// Whether a guest is attached, or the block device is served.
    pub is_connected: bool,
    /// The number of queues that are served.
    pub queues: usize,
    /// The reason why there is no block device.
    pub error: Option<String>,
}

impl Status {
    /// A tenant's sockets for guests, and its block device.
    pub fn attachments_of(&self, member: &Member) -> &[AttachmentStatus] {
        self.attachments.get(&member.number()).map_or(&[], Vec::as_slice)
    }

    /// The name of a tenant's store.
    pub fn store_of(&self, member: &Member) -> Option<&str> {
        let store = self.stores.iter().find(|store| store.number == member.store);
        store.map(|store| &*store.name)
    }

    /// The statistics of a tenant's caps and of its groups' caps; `None` without caps.
    pub fn caps_of(&self, member: &Member) -> Option<&CapStats> {
        self.caps.get(&member.number())
    }

    /// A tenant's effective weight and reservation; `None` while no tenant is in a group or has a
    /// reservation.
    pub fn share_of(&self, member: &Member) -> Option<&ShareStats> {
        self.shares.get(&member.number())
    }

    /// A tenant's latency against its target; `None` without a target.
    pub fn target_of(&self, member: &Member) -> Option<&TargetStats> {
        self.targets.get(&member.number())
    }

    /// Writes of a tenant's ended connections, and the requests that waited for them.
    pub fn fence_of(&self, member: &Member) -> FenceStats {
        let of = self.fences.binary_search_by_key(&member.number(), |(number, _)| *number);
        of.map_or_else(|_| FenceStats::default(), |at| self.fences[at].1)
    }

    /// The errno with which a tenant's flushes fail, because its written data may be lost.
    pub fn write_back_errno(&self, member: &Member) -> Option<i32> {
        let errors = self.write_back_errors.iter();
        errors.copied().find_map(|(tenant, errno)| (tenant == member.number()).then_some(errno))
    }
}

/// The program that takes over the server in an upgrade.
#[derive(Clone, Debug)]
pub struct Successor {
    /// Its path.
    pub program: PathBuf,
    /// Its `argv[0]`.
    pub name: OsString,
    /// Its arguments; the server appends `Predecessor` as the last one.
    pub args: Vec<OsString>,
}

/// Queries and changes of a running server. Changes take effect at once and disconnect no client.
pub trait Admin {
    /// The status of the server now.
    fn status(&self) -> Status;
    /// The tenants.
    fn tenants(&self) -> Arc<TenantList>;
    /// The addresses at which the server listens for clients.
    fn listening(&self) -> Vec<Listen>;
    /// The listening sockets of clients, except those that the service manager has made.
    fn sockets(&self) -> Vec<(Listen, BorrowedFd<'_>)>;
    /// Opens (or creates) one more file for tenants, or cancels the pending closing of an open one;
    /// returns its number and its size in bytes. Fails with [`AdminError::Opening`] if this takes
    /// longer than 20 ms. The opening then continues, and the same call returns its result later.
    fn open_file(&mut self, spec: &FileSpec) -> Result<(u16, u64), AdminError>;
    /// Begins to open a file in advance; [`Admin::open_file`] has to be called for it within a
    /// minute. Returns [`AdminError::Opening`] while the file is being opened, and `Ok` when it is
    /// open or cannot be opened; also fails if no thread can be started for it.
    fn prepare_file(&mut self, spec: &FileSpec) -> Result<(), AdminError>;
    /// Closes a file that no tenant uses, once no request to it is in flight.
    fn close_file(&mut self, file: u16);
    /// Adds tenants, whose ranges must be free. A client can open a new tenant only after all
    /// requests of removed tenants to the same range have ended and, if the range is to be wiped
    /// (`true`), after it reads as zeroes ([`Member::preparing`]). Each tenant is added or refused
    /// independently of the others. A call with many tenants costs little more than a call with
    /// one.
    fn add(&mut self, tenants: Vec<(Tenant, bool)>) -> Vec<Result<(), AdminError>>;
    /// Removes tenants. Their connections end when their requests in flight are answered; after a
    /// timeout they are closed ([`Timeouts::answers`](crate::server::Timeouts::answers)). A call
    /// with many tenants costs little more than a call with one.
    fn remove(&mut self, names: &[&str]) -> Vec<Result<(), AdminError>>;
    /// Renames a tenant, which keeps its connections and all its state.
    fn rename(&mut self, name: &str, new: &str) -> Result<(), AdminError>;
    /// Changes the size of a tenant's range. Added bytes must be free, and are zeroed first if
    /// `wipe`. Requests to removed bytes are refused at once; these bytes become free when
    /// [`Member::resizing`] is over. Clients see the new size when they connect again.
    fn resize(&mut self, name: &str, size: u64, wipe: bool) -> Result<(), AdminError>;
    /// Sets the tenant of clients that name no export.
    fn set_default(&mut self, default: Option<DefaultTenant>) -> Result<(), AdminError>;
    /// The size of a file at the last check (one a second), in bytes; `None` unless the device
    /// is a file device.
    fn size_of(&self, file: u16) -> Option<u64>;
    /// Changes the settings of tenants, for requests that arrive from now on
    /// ([`TenantSettings::updated`]). Each tenant is updated or refused independently; if one of
    /// its settings is refused, it keeps all its old ones. A call with many tenants costs little
    /// more than one.
    fn update(&mut self, updates: &[(String, TenantSettings)]) -> Vec<Result<(), AdminError>>;
    /// Adds a group of tenants, or changes it; its parent group must exist.
    fn set_group(&mut self, group: &Group) -> Result<(), AdminError>;
    /// Removes a group that has no members.
    fn remove_group(&mut self, name: &str) -> Result<(), AdminError>;
    /// Makes a tenant's flushes fail with `EIO` until [`Admin::clear_error`], because an earlier
    /// server recorded with the error `errno` that the tenant's data may be lost.
    fn lose(&self, member: &Member, errno: i32);
    /// Clears the error of a tenant whose flushes fail after a failed write-back; returns its
    /// errno, if there was one.
    fn clear_error(&mut self, name: &str) -> Result<Option<i32>, AdminError>;
    /// Changes a parameter of the policy.
    fn tune(&mut self, tuning: Tuning) -> Result<(), AdminError>;
    /// Replaces the policy once the present one has completed all its requests; new requests wait
    /// until then. The new policy must have been built for the same number of shards, tenants and
    /// tags. [`Status::changing`] reports whether the change is complete.
    fn change_policy(&mut self, next: BuiltPolicy) -> Result<(), AdminError>;
    /// Sets the TLS mode of handshakes that begin from now on.
    fn set_tls(&mut self, tls: TlsMode);
    /// Listens at one more address; returns the address.
    fn listen(&mut self, at: &Listen) -> Result<Listen, AdminError>;
    /// Stops listening at an address; connections made there stay open.
    fn unlisten(&mut self, at: &Listen) -> Result<(), AdminError>;
    /// Records the scheduler's decisions, the last `events` of each shard, and the search for D.
    fn record(&mut self, events: usize);
    /// Stops recording; returns each shard's events and the changes of D.
    fn recorded(&mut self) -> (Vec<Recording>, Vec<DepthChange>);
    /// The state that [`Admin::upgrade`] passes on, without connections and memory, so that the
    /// next program can check it before the upgrade.
    fn upgrade_state(&self, operator: serde_json::Value) -> Result<File, AdminError>;
    /// Stops accepting clients until the upgrade, or for two seconds; clients wait meanwhile. True
    /// if no handshake is in progress, or if 500 ms have passed since the first call.
    fn is_ready_for_upgrade(&mut self) -> bool;
    /// Executes another program in this process; that program takes over the server. Returns only
    /// if this fails, with the reason; the server then continues unchanged.
    fn upgrade(&mut self, successor: &Successor, operator: serde_json::Value) -> AdminError;
    /// Accepts no more connections and ends when the last one has ended. With `now`, the server
    /// ends as after SIGTERM.
    fn drain(&mut self, now: bool);
}
