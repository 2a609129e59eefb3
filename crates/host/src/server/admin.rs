//! Queries and changes of a running server.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fairq_core::{
    CapStats, Caps, ClassWeights, FlowError, Reservation, ShareStats, Stats, Target, TargetStats,
    TuneError, Tuning, Weight,
};

use crate::device::CutOff;
use crate::device::control::ControlError;
use crate::device::error::DeviceError;
use crate::device::file::FileSpec;
use crate::nbd::session::exports::ExportsError;
use crate::nbd::session::tls::TlsMode;
use crate::observe::record::{DepthChange, Recording};
use crate::observe::stats::Totals;
use crate::server::{
    BuiltPolicy, DefaultTenant, Group, GroupStatus, Listen, Member, Successor, Tenant, TenantList,
    Turns,
};
use crate::shard::fence::FenceStats;

/// The status of the server.
#[derive(Clone, Debug)]
pub struct Status {
    /// Since the server started.
    pub elapsed: Duration,
    /// The counts since then; a tenant's place is its
    /// [`Member::number`](crate::server::Member::number).
    pub totals: Totals,
    /// Open connections of each shard.
    pub connections: Vec<usize>,
    /// Bytes that connections have for their buffers, and may have.
    pub memory: (u64, u64),
    /// The state of the policies of all stores together; virtual time is the first store's.
    pub policy: Stats,
    /// The stores that have files, in the order of their numbers.
    pub stores: Vec<StoreStatus>,
    /// For how long requests have been waiting for the policy before it to finish, if they are.
    pub changing: Option<Duration>,
    /// The weights of the device's classes, if the policy sets them.
    pub classes: Option<ClassWeights>,
    /// It takes no more connections and ends with the last.
    pub is_draining: bool,
    /// Files that have become shorter while they were served.
    pub cut_off: Vec<CutOff>,
    /// Tenants whose data may be lost since a write-back failed, by their
    /// [`Member::number`](crate::server::Member::number), and the error.
    pub write_back_errors: Vec<(u16, i32)>,
    /// Writes of ended connections, and the requests that waited for them, by the tenants'
    /// [`Member::number`](crate::server::Member::number).
    pub fences: Vec<(u16, FenceStats)>,
    /// How the tenants that have a latency target do, by their
    /// [`Member::number`](crate::server::Member::number).
    pub targets: HashMap<u16, TargetStats>,
    /// The statistics of caps, by the numbers of the tenants that have some.
    pub caps: HashMap<u16, CapStats>,
    /// The groups of tenants, by name.
    pub groups: Vec<GroupStatus>,
    /// The tenants' effective weights and reservations, by their numbers; none while no tenant has
    /// any.
    pub shares: HashMap<u16, ShareStats>,
    /// The control thread's turns so far.
    pub control: Turns,
    /// The number of upgrades in this process.
    pub upgrades: u64,
}

/// A store: what fails and hangs as one, and is shared by a policy of its own.
#[derive(Clone, Debug)]
pub struct StoreStatus {
    /// Its number; see [`Member::store`].
    pub number: u16,
    /// Its name: the operator's, or its device.
    pub name: String,
    /// Requests that it has and has not answered.
    pub on_device: u64,
    /// For how long it has had the oldest of them, as of the last half second.
    pub oldest: Duration,
    /// Whether that is longer than [`Timeouts::stuck`](crate::server::Timeouts::stuck).
    pub is_stuck: bool,
    /// The state of its policy.
    pub policy: Stats,
}

impl Status {
    /// The name of a tenant's store.
    pub fn store_of(&self, member: &Member) -> Option<&str> {
        let store = self.stores.iter().find(|store| store.number == member.store);
        store.map(|store| &*store.name)
    }

    /// The statistics of a tenant's caps and of its groups' caps; `None` without caps.
    pub fn caps_of(&self, member: &Member) -> Option<&CapStats> {
        self.caps.get(&member.number())
    }

    /// A tenant's effective weight and reservation; `None` while no tenant has any.
    pub fn share_of(&self, member: &Member) -> Option<&ShareStats> {
        self.shares.get(&member.number())
    }

    /// How a tenant does beside its latency target; `None` without one.
    pub fn target_of(&self, member: &Member) -> Option<&TargetStats> {
        self.targets.get(&member.number())
    }

    /// Writes of a tenant's ended connections, and the requests that waited for them.
    pub fn fence_of(&self, member: &Member) -> FenceStats {
        let of = self.fences.binary_search_by_key(&member.number(), |(number, _)| *number);
        of.map_or_else(|_| FenceStats::default(), |at| self.fences[at].1)
    }

    /// The error for which a tenant's flushes fail, since data that it wrote may be lost.
    pub fn write_back_errno(&self, member: &Member) -> Option<i32> {
        let errors = self.write_back_errors.iter();
        errors.copied().find_map(|(tenant, errno)| (tenant == member.number()).then_some(errno))
    }
}

/// Why a policy refuses a tenant, and what to do.
fn in_words(error: &FlowError) -> String {
    match error {
        FlowError::Full => "all places for tenants are taken: remove a tenant, or run fairq ctl \
                            upgrade, which makes room for 64 more; if the log names another \
                            reason, see to that"
            .into(),
        error => error.to_string(),
    }
}

/// Why a change was not made; nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// There is no tenant of that name.
    #[error("there is no tenant {0}")]
    NoSuchTenant(String),
    /// There is one already.
    #[error("there is a tenant {0} already: remove it first or choose another name")]
    TenantExists(String),
    /// The tenant's range has to be prepared, or is being resized.
    #[error("tenant {0} is being prepared or resized: wait until that is over, and try again")]
    Busy(String),
    /// The policy refuses.
    #[error("tenant {name}: {}", in_words(error))]
    Flow {
        /// The tenant.
        name: String,
        /// Why.
        error: FlowError,
    },
    /// The policy refuses a group.
    #[error("group {name}: {error}")]
    Group {
        /// The group.
        name: String,
        /// Why.
        error: FlowError,
    },
    /// The protocol has no words for it.
    #[error(transparent)]
    Exports(#[from] ExportsError),
    /// A parameter.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// A file.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A file's file system takes its time.
    #[error(
        "{} is still being opened, for {} s: its file system does not answer; see to it or to the \
         device, then ask again", path.display(), waited.as_secs()
    )]
    Opening {
        /// Which file.
        path: PathBuf,
        /// For how long.
        waited: Duration,
    },
    /// The policy does not fit the device.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The last change of the policy is not over.
    #[error(
        "the policy before this one has not finished its requests yet: wait until `status` says \
         so, and try again"
    )]
    Changing,
    /// A listener.
    #[error("cannot listen on {at}: {cause}")]
    Listen {
        /// Where.
        at: Listen,
        /// Why, and what to do.
        cause: String,
    },
    /// The service manager's socket.
    #[error(
        "{0} is a socket of the service manager's: stop it there (systemctl stop fairq.socket), or \
         clients would wait for ever"
    )]
    Inherited(Listen),
    /// The next program.
    #[error("not upgraded, and nothing has changed: {0}")]
    Upgrade(String),
    /// It does not listen there.
    #[error("does not listen on {0}")]
    NotListening(Listen),
}

/// A change of a tenant that no client has to notice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Its weight.
    Weight(Weight),
    /// Its latency target; `None` for none.
    Target(Option<Target>),
    /// Its caps, instead of those it has.
    Caps(Caps),
    /// Its group, or none, and its reservation.
    Place {
        /// The group.
        group: Option<String>,
        /// The least that it has, while the device can.
        reservation: Reservation,
    },
}

/// Queries and changes of a running server. Changes take effect at once and disconnect no client.
pub trait Admin {
    /// The status of the server now.
    fn status(&self) -> Status;
    /// The tenants.
    fn tenants(&self) -> Arc<TenantList>;
    /// Where it listens.
    fn listening(&self) -> Vec<Listen>;
    /// The sockets where it listens for clients, but for those that the service manager has made.
    fn sockets(&self) -> Vec<(Listen, BorrowedFd<'_>)>;
    /// Opens (or creates) one more file for tenants, or keeps one that was to be closed; gives its
    /// number and its size in bytes. [`AdminError::Opening`] if that takes longer than a moment:
    /// it goes on, and the same call gives what has come of it.
    fn open_file(&mut self, spec: &FileSpec) -> Result<(u16, u64), AdminError>;
    /// Begins to open a file that [`Admin::open_file`] is to be called for within a minute. Fails
    /// only with [`AdminError::Opening`], until the file is open or cannot be opened.
    fn prepare_file(&mut self, spec: &FileSpec) -> Result<(), AdminError>;
    /// Closes a file that no tenant has any more, as soon as nothing that they asked for is under
    /// way.
    fn close_file(&mut self, file: u16);
    /// Adds tenants; no others may have their ranges. No client may open one before all requests of
    /// removed tenants that had its range have ended, and, if it is to be wiped (`true`), before it
    /// reads as zeroes ([`Member::preparing`]). Each is added or refused by itself. Many in one
    /// call cost little more than one.
    fn add(&mut self, tenants: Vec<(Tenant, bool)>) -> Vec<Result<(), AdminError>>;
    /// Removes tenants: their connections are ended when what they have in flight is answered, and
    /// cut off after five seconds. Many in one call cost little more than one.
    fn remove(&mut self, names: &[&str]) -> Vec<Result<(), AdminError>>;
    /// Gives a tenant another name; its connections and all that it has stay.
    fn rename(&mut self, name: &str, new: &str) -> Result<(), AdminError>;
    /// Gives a tenant's range another end. What it grows by must be free, and is zeroed first if
    /// `wipe`; what it loses is refused at once, and free when [`Member::resizing`] is over.
    /// Connections see the new size when they are made again.
    fn resize(&mut self, name: &str, size: u64, wipe: bool) -> Result<(), AdminError>;
    /// Makes this the tenant of clients that name none.
    fn set_default(&mut self, default: Option<DefaultTenant>) -> Result<(), AdminError>;
    /// The size of a file as it was at the last second, in bytes; `None` if it has none of its own.
    fn size_of(&self, file: u16) -> Option<u64>;
    /// Makes these changes of tenants, for requests that come from now on; each is made or refused
    /// by itself. Many in one call cost little more than one.
    fn change(&mut self, changes: &[(String, Change)]) -> Vec<Result<(), AdminError>>;
    /// Makes one change of a tenant.
    fn change_one(&mut self, name: &str, change: Change) -> Result<(), AdminError> {
        self.change(&[(name.to_owned(), change)]).pop().expect("one result for each change")
    }
    /// Adds a group of tenants, or changes it; the group that it is in must be there.
    fn set_group(&mut self, group: &Group) -> Result<(), AdminError>;
    /// Takes away a group that has no members.
    fn remove_group(&mut self, name: &str) -> Result<(), AdminError>;
    /// A tenant's flushes fail no more because of a write-back that has failed; gives its error,
    /// if there was one.
    fn clear_error(&mut self, name: &str) -> Result<Option<i32>, AdminError>;
    /// Changes a parameter of the policy.
    fn tune(&mut self, tuning: Tuning) -> Result<(), AdminError>;
    /// Goes on with this policy when the one in force has finished all its requests; those that
    /// come meanwhile wait for it. It must have been built for as many shards, tenants and tags.
    /// [`Status::changing`] says whether it is over.
    fn change_policy(&mut self, next: BuiltPolicy) -> Result<(), AdminError>;
    /// Handshakes that begin from now on use this.
    fn set_tls(&mut self, tls: TlsMode);
    /// Listens somewhere else too; gives where.
    fn listen(&mut self, at: &Listen) -> Result<Listen, AdminError>;
    /// Listens there no more; connections made there go on.
    fn unlisten(&mut self, at: &Listen) -> Result<(), AdminError>;
    /// Records the scheduler's decisions, the last `events` of each shard, and the search for D.
    fn record(&mut self, events: usize);
    /// Ends that; what each shard recorded, and what D was.
    fn recorded(&mut self) -> (Vec<Recording>, Vec<DepthChange>);
    /// The state that [`Admin::upgrade`] hands over, without connections and memory: for the check
    /// by the next program.
    fn upgrade_state(&self, operator: serde_json::Value) -> Result<File, AdminError>;
    /// Accepts no more clients, which wait, until the upgrade or for two seconds. Whether no
    /// handshake is under way any more, or they have had their time.
    fn is_ready_for_upgrade(&mut self) -> bool;
    /// Executes another program in this process, which goes on where this one stands. Gives why
    /// that has failed; everything goes on as before then.
    fn upgrade(&mut self, successor: &Successor, operator: serde_json::Value) -> AdminError;
    /// Takes no more connections and ends when the last has gone; or as at SIGTERM, `now`.
    fn drain(&mut self, now: bool);
}
