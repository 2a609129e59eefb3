//! The server: tenants, listeners and the life cycle of the process; everything except the data
//! path.
//!
//! One thread beside the shards runs a small async runtime. It accepts connections, performs their
//! handshakes (so that many handshakes or a slow TLS client never delay a shard), passes each
//! connection to the shard that has the fewest connections of its tenant, calls the policy's
//! `tick`, collects the shards' statistics once a second, and carries out the requests of the
//! control socket.
//!
//! **Changes.** Each change of a running server is a method of [`Admin`]. The [`Operator`] calls it
//! in this thread, one method after the other, and messages pass the change on to the shards. Only
//! the connections of removed tenants are dropped.
//!
//! **The end.** After SIGTERM or SIGINT the server refuses new connections and requests. It
//! completes and answers requests in flight and makes their data durable; then [`serve`] returns.
//! Clients that do not take their answers within [`Timeouts::answers`] are disconnected. A second
//! signal ends the process at once. A server that drains ends in the same way when its last client
//! has disconnected.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fairq_core::FlowId;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

use crate::device::any::AnyDevice;
use crate::device::control::ControlError;
use crate::device::write_back::WriteBack;
use crate::device::{ControllerLimits, Device};
use crate::front::Fronts;
use crate::front::attach::Places;
use crate::front::ublk::control_commands::NoUblk;
use crate::front::ublk::disk_queues::UblkFront;
use crate::front::vfio_user::controllers::{self, Controllers};
use crate::front::vfio_user::queue_groups::VfioUserFront;
use crate::front::vhost::sessions::{self, Sessions};
use crate::front::vhost::vrings::VhostFront;
use crate::io::budget::Budget;
use crate::io::clock::Clock;
use crate::io::memory;
use crate::io::wakers::Wakers;
use crate::nbd::serve::front::{Message as NbdMessage, NbdFront};
use crate::nbd::serve::survey::Surveyor;
use crate::nbd::session::exports::ExportsError;
use crate::nbd::session::handshake::HandshakeOptions;
use crate::nbd::session::tls::{TlsMode, TlsThreads};
use crate::observe::record::DepthRecorder;
use crate::shard::fence::Fences;
use crate::shard::pool::Shards;
use crate::shard::shared::Common;
use crate::shard::stores::Names;
use crate::shard::turns::Weights;
use crate::shard::{Message, Notice};

mod accept;
mod admin;
mod admin_error;
mod built;
mod calls;
mod closing;
mod control_thread;
mod control_time;
mod crowd;
mod disks;
mod groups;
mod guests;
pub mod handover;
mod listeners;
mod opening;
mod places;
mod schedulers;
mod server_config;
mod tenant_list;
mod tenants;

pub use admin::{Admin, AttachmentKind, AttachmentStatus, Status, StoreStatus, Successor};
pub use admin_error::AdminError;
pub use built::BuiltPolicy;
pub use calls::{Answer, Bytes, Door, HttpRequest, HttpResponse, Made, Reply};
pub use control_time::{TURN_BOUNDS_NS, Turns};
pub use groups::GroupStatus;
pub use handover::Before;
pub use listeners::{Listen, STORED};
pub use server_config::{Config, DefaultTenant, Group, Tenant, TenantSettings, Timeouts};
pub use tenant_list::{Member, Resizing, TenantList};

use accept::{Failures, Listening};
use calls::{Call, Caller};
use closing::Closing;
use control_thread::Leaving;
use crowd::Crowd;
use disks::Disks;
use guests::GuestSocket;
use handover::Role;
use opening::Opening;
use schedulers::{PolicyCounts, Schedulers};
use tenants::add_flows;

/// The largest number of handshakes in progress. If clients connect as fast as they can, 1024 of
/// them connect in about 50 ms; a client has to send its first bytes within that time.
const MAX_HANDSHAKES: usize = 1024;
/// Descriptors of a server apart from the connections of shards: handshakes, HTTP and control
/// connections, files and shards.
const OTHER_DESCRIPTORS: u64 = 1024 + MAX_HANDSHAKES as u64;
/// The largest number of threads that compute slow answers.
const MAX_VIEWS: usize = 2;
/// The largest number of requests of the control socket and of scrapers that wait for the control
/// thread.
const MAX_ASKS: usize = 16;
/// The pause between two checks of a draining server for its last client.
const DRAIN_PERIOD: Duration = Duration::from_millis(20);
/// The pause between two checks of the preparation of a tenant's range, or the closing of its file.
const PREPARE_PERIOD: Duration = Duration::from_millis(5);
/// The longest pause between these checks while requests of removed tenants stay under way.
const PREPARE_PAUSE: Duration = Duration::from_millis(160);
/// The pause between two checks of whether the old policy has finished, during a change.
const CHANGE_PERIOD: Duration = Duration::from_millis(2);

/// The stage of a server's shutdown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// The server is not shutting down.
    No,
    /// The server waits for its last client to disconnect.
    Waiting,
    /// The server shuts down now.
    Now,
}

/// The control thread's state: everything that a running server can change.
struct ControlThread<'a> {
    server: Arc<Server>,
    device: &'a Arc<AnyDevice>,
    /// Files that are being opened.
    openings: Vec<Opening>,
    wakers: Arc<Wakers>,
    write_back: Arc<WriteBack>,
    weights: Arc<Weights>,
    fences: Arc<Fences>,
    /// The policies in force, and the numbers of their flows.
    schedulers: Schedulers<'a>,
    names: Arc<Names>,
    /// The previous policy, while a shard still holds requests of it.
    leaving: Option<Leaving<'a>>,
    /// The last flow of each slot, from the first slot on.
    flows: Vec<FlowId>,
    /// Removed tenants that may have requests under way.
    leftovers: Vec<(Tenant, FlowId)>,
    /// The tenants whose range is zeroed once no requests of removed tenants are under way there.
    waiting: Vec<FlowId>,
    /// The tenant of clients that name no export.
    default: Option<DefaultTenant>,
    /// Files that are to be closed.
    closing: Vec<Closing>,
    /// The time of the next check whether removed tenants have requests in flight, and the pause
    /// after it. The pause grows while nothing changes, for example on a store that hangs.
    next_look: (Instant, Duration),
    /// The device's preferred size of a transfer, in bytes.
    preferred: u32,
    listeners: Vec<Listening>,
    /// The sockets for guests, by path, and the directories that have one for each tenant.
    guests: HashMap<PathBuf, GuestSocket>,
    guest_directories: Vec<Listen>,
    /// The time until which no client is accepted because an upgrade waits for handshakes.
    accepts_again: Option<Instant>,
    /// The listeners of HTTP and of the control socket.
    others: Vec<(Role, Listening)>,
    /// The number of upgrades in this process.
    upgrades: u64,
    /// The counts of the policies that were in force before the present ones, also in earlier
    /// programs.
    counted: PolicyCounts,
    /// The connection of the control socket whose line is being carried out.
    caller: Option<Caller>,
    started: Instant,
    drain: Drain,
    /// Records the search for D while decisions are recorded.
    depths: Option<DepthRecorder>,
    turns: Turns,
    /// The block devices of tenants, once there is one, and the tenant list from which they were
    /// made.
    disks: Option<Disks>,
    disks_of: Option<Arc<TenantList>>,
    /// Whether each tenant that needs no certificate has a block device ([`Listen::Ublk`]).
    has_disks_of_all: bool,
}

/// The program that runs the server. The server notifies it of events and passes it the lines of
/// the control socket to interpret.
pub trait Operator {
    /// The server accepts connections at `listening`. These addresses contain the port that the
    /// system chose if the configuration gave none.
    fn ready(&mut self, admin: &dyn Admin, listening: &[Listen]);
    /// This program has taken over the server from the previous program in this process, and the
    /// previous program is not executed again even if this one ends. Returns false if an upgrade
    /// has failed and this program had begun it.
    fn took_over(&mut self, _admin: &mut dyn Admin) -> bool {
        true
    }
    /// A second has passed.
    fn second(&mut self, admin: &mut dyn Admin);
    /// A line came on the control socket.
    fn call(&mut self, admin: &mut dyn Admin, line: &str, made: Made) -> Reply;
    /// A request came at an HTTP address.
    fn http(&mut self, admin: &mut dyn Admin, request: &HttpRequest) -> HttpResponse;
    /// A tenant's range has been zeroed, and no client has opened it yet. If this returns false,
    /// the tenant stays closed and the call is repeated.
    fn opening(&mut self, _tenant: &Tenant) -> bool {
        true
    }
    /// SIGHUP: the configuration is to be read again. True if this is not finished yet; the call is
    /// then repeated soon.
    fn reload(&mut self, admin: &mut dyn Admin) -> bool;
    /// The server begins to shut down.
    fn stopping(&mut self) {}
}

/// The reason why the server could not start or keep running.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A listener could not be set up.
    #[error("cannot listen on {at}: {cause}")]
    Listen {
        /// The address.
        at: Listen,
        /// The reason, and what to do.
        cause: String,
    },
    /// The protocol does not allow the exports.
    #[error(transparent)]
    Exports(#[from] ExportsError),
    /// The policy and the device are not compatible.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A group could not be added.
    #[error("group {name}: {error}")]
    Group {
        /// The group.
        name: String,
        /// The reason.
        error: fairq_core::FlowError,
    },
    /// A tenant's flow could not be added.
    #[error("tenant {name}: {error}")]
    Flow {
        /// The tenant.
        name: String,
        /// The reason.
        error: fairq_core::FlowError,
    },
    /// The system offers no ublk block devices.
    #[error("cannot make block devices (ublk): {0}")]
    Ublk(#[from] NoUblk),
    /// The system refuses an operation.
    #[error("{what}: {error}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error.
        error: io::Error,
    },
}

impl ServerError {
    /// Whether the configuration can never work; otherwise a retry may succeed.
    pub fn is_refusal(&self) -> bool {
        match self {
            ServerError::Exports(_) | ServerError::Flow { .. } | ServerError::Group { .. } => true,
            ServerError::Control(error) => error.is_refusal(),
            ServerError::Listen { .. } | ServerError::Ublk(_) | ServerError::System { .. } => false,
        }
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |error| ServerError::System { what, error }
}

/// Serves until a signal or a drain ends the server. `before` is the state that the previous
/// program in this process has passed on.
pub fn serve(
    built: BuiltPolicy,
    device: Arc<AnyDevice>,
    config: Config,
    before: Option<Before>,
    operator: &mut dyn Operator,
) -> Result<(), ServerError> {
    ignore_file_size_signal();
    let shards = built.shards();
    raise_descriptor_limit(config.connections as u64 * shards as u64);
    memory::give_back_large_pieces();
    let preferred = device.info().preferred_size;
    let most = config.most_tenants.max(config.tenants.len());
    let names = Arc::new(Names::new(most));
    let (policies, ports) = built.split(&names, config.tags);
    let wakers = Arc::new(Wakers::new(shards).map_err(system("cannot make eventfds"))?);
    let mut schedulers = Schedulers::new(policies, names.clone(), &device, &wakers)?;
    schedulers.fit_device()?;
    // Groups come before tenants: a tenant whose group is not there is refused.
    for group in &config.groups {
        let refused = |error| ServerError::Group { name: group.name.clone(), error };
        schedulers.set_group(group).map_err(refused)?;
    }
    let members = add_flows(&mut schedulers, &device, &config, shards)?;
    let waiting: Vec<FlowId> =
        members.iter().filter(|member| member.preparing.is_some()).map(|one| one.flow).collect();
    let tenants = TenantList::new(members, preferred, config.default.as_ref())?;
    schedulers.hurry();
    let mut flows: Vec<FlowId> = tenants.members().map(|member| member.flow).collect();
    // `ControlThread::note` expects the flow of slot n in place n.
    flows.sort_by_key(|flow| flow.slot());
    let common = Common {
        fixed_buffers: if device.has_fixed_buffers() { config.connections as u32 } else { 0 },
        ..Common::new(device.clone(), wakers, config.tags, most)
    };
    common.fences.set_patience(config.timeouts.overlap);
    let counts: Vec<Arc<AtomicUsize>> = ports.iter().map(|_| Arc::default()).collect();
    let surveyor = Surveyor::start(&common).map_err(system("cannot start a thread"))?;
    let budget = Arc::new(Budget::new(config.memory, most));
    let front = |shard: usize| {
        let (connections, count) = (config.connections, counts[shard].clone());
        let nbd = NbdFront::new(connections, config.limits, count, surveyor.client(shard))
            .within(budget.clone())
            .weighed_by(common.weights.clone());
        let vhost = VhostFront::new(config.poll, common.weights.clone());
        let ublk = UblkFront::new(common.weights.clone(), budget.clone());
        let vfio_user = VfioUserFront::new(config.poll, common.weights.clone());
        Ok(Fronts::new(nbd, vhost, ublk, vfio_user))
    };
    for Member { flow, tenant, .. } in tenants.members() {
        common.write_back.assign(flow.slot() as u16, Some((&tenant.name, tenant.file)));
        common.weights.set(flow.slot() as u16, tenant.settings.weight);
    }
    match &before {
        // The files stayed open, so the next flush reports their write-back errors.
        Some(before) => {
            before.state.resume_data(&tenants, &common.write_back, &common.fences);
        }
        // Unflushed writes of a previous server may be lost without an error to a client.
        None => {
            for (file, error) in device.sync() {
                common.write_back.fail_all(file, error.raw_os_error().unwrap_or(libc::EIO));
            }
        }
    }
    let shards = Shards::start(ports, &common, &config.cpus, front)
        .map_err(system("cannot start the shards"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // These threads compute slow answers, so that the control thread is not delayed.
        .thread_name("fairq-view")
        .max_blocking_threads(MAX_VIEWS)
        .build()
        .map_err(system("cannot start the control thread's runtime"))?;
    let tenants = Mutex::new(Arc::new(tenants));
    let send = shards.sender();
    let to_guests: sessions::Send = Arc::new(move |shard, message| send(shard, message.into()));
    let send = shards.sender();
    let to_queues: controllers::Send = Arc::new(move |shard, message| send(shard, message.into()));
    let places = Arc::new(Places::new(shards.count(), config.queues));
    let (handshakes, failures) = (Crowd::new(MAX_HANDSHAKES), Mutex::default());
    // Without TLS these threads are not needed: TLS cannot be enabled in a running server.
    let tls_threads = match config.handshake.tls {
        TlsMode::Off => None,
        TlsMode::Optional(_) | TlsMode::Required(_) => {
            Some(TlsThreads::start().map_err(system("cannot start the threads for TLS"))?)
        }
    };
    let handshake = HandshakeOptions { tls_threads, ..config.handshake.clone() };
    let handshake = Mutex::new(Arc::new(handshake));
    let is_whole = config.listen.iter().any(|at| matches!(at, Listen::VfioUserDevice(_)));
    let whole = is_whole.then(|| device.controller_limits());
    let server = Arc::new(Server {
        config,
        tenants,
        counts,
        budget,
        shards,
        handshake,
        handshakes,
        failures,
        sessions: Sessions::default(),
        controllers: Controllers::default(),
        places,
        to_guests,
        to_queues,
        block: device.info().block_size,
        preferred,
        whole,
    });
    let mut control = ControlThread {
        server: server.clone(),
        device: &device,
        openings: Vec::new(),
        wakers: common.wakers,
        write_back: common.write_back,
        weights: common.weights,
        fences: common.fences,
        schedulers,
        names,
        leaving: None,
        flows,
        leftovers: Vec::new(),
        waiting,
        default: server.config.default.clone(),
        closing: Vec::new(),
        next_look: (Instant::now(), PREPARE_PERIOD),
        preferred,
        listeners: Vec::new(),
        guests: HashMap::new(),
        guest_directories: Vec::new(),
        accepts_again: None,
        others: Vec::new(),
        upgrades: 0,
        counted: PolicyCounts::default(),
        caller: None,
        started: Instant::now(),
        drain: Drain::No,
        depths: None,
        turns: Turns::default(),
        disks: None,
        disks_of: None,
        has_disks_of_all: server.config.listen.contains(&Listen::Ublk),
    };
    control.start_disks()?;
    let result = runtime.block_on(run(&mut control, common.clock, before, operator));
    runtime.block_on(end(&mut control, common.clock));
    drop(control);
    // The server does not wait for a thread that is blocked on a store.
    runtime.shutdown_background();
    match Arc::into_inner(server) {
        Some(server) => server.shards.stop(),
        None => unreachable!("the runtime and its tasks are gone"),
    }
    // The shards' front ends are the surveyor's clients, and it ends with the last of them.
    surveyor.end();
    let unsynced = device.sync().into_iter().next();
    unsynced.map_or(result, |(_, error)| Err(system("cannot flush the device at the end")(error)))
}

/// Raises the soft limit of open files to the hard one. The soft limit is low by default for the
/// sake of programs that use `select`; this program does not. Logs a warning if the hard limit is
/// too low for `connections` connections.
fn raise_descriptor_limit(connections: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let needed = connections + OTHER_DESCRIPTORS;
    if let Some(most) = maximum.filter(|most| *most < needed) {
        tracing::warn!(
            most,
            needed,
            "the limit of open files is below what the connections may need: raise LimitNOFILE= \
             (ulimit -Hn), or lower limits.connections"
        );
    }
}

/// Makes a write beyond the file size limit fail with an error, instead of ending the process.
fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler, so no code runs asynchronously.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The state that the control thread's tasks share.
struct Server {
    config: Config,
    tenants: Mutex<Arc<TenantList>>,
    counts: Vec<Arc<AtomicUsize>>,
    budget: Arc<Budget>,
    shards: Shards<AnyDevice, Fronts>,
    /// The options of handshakes that begin now.
    handshake: Mutex<Arc<HandshakeOptions>>,
    handshakes: Arc<Crowd>,
    failures: Mutex<Failures>,
    /// The guests that are attached by vhost-user.
    sessions: Sessions,
    /// The guests that are attached by vfio-user.
    controllers: Controllers,
    /// The bounded places of the queues of guests and block devices.
    places: Arc<Places>,
    /// Functions that send the messages of the guests' sessions to the shards.
    to_guests: sessions::Send,
    to_queues: controllers::Send,
    /// The device's block and its preferred size of a transfer, in bytes.
    block: u32,
    preferred: u32,
    /// The limits of a controller that has the whole device, if one has.
    whole: Option<ControllerLimits>,
}

impl Server {
    fn tenants(&self) -> Arc<TenantList> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_roster(&self, tenants: TenantList) {
        *self.tenants.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(tenants);
    }

    fn handshake(&self) -> Arc<HandshakeOptions> {
        self.handshake.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_tls(&self, tls: TlsMode) {
        let mut options = self.handshake.lock().unwrap_or_else(PoisonError::into_inner);
        *options = Arc::new(HandshakeOptions { tls, ..HandshakeOptions::clone(&options) });
    }

    /// Sends a notice to all shards' front ends.
    fn notify_all(&self, notice: Notice) {
        (0..self.shards.count()).for_each(|shard| self.shards.send(shard, Message::Notice(notice)));
    }

    /// Sends a message to a shard's front end for NBD.
    fn send_nbd(&self, shard: usize, message: NbdMessage) {
        self.shards.send(shard, Message::Front(message.into()));
    }

    /// Sends a message to all shards' front ends for NBD.
    fn send_nbd_all(&self, message: impl Fn() -> NbdMessage) {
        (0..self.shards.count()).for_each(|shard| self.send_nbd(shard, message()));
    }

    /// Whether there is no connection and no guest.
    fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
            && self.sessions.is_empty()
            && self.controllers.is_empty()
    }
}

/// The signals that the server handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal that ends the server.
    async fn end(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {} _ = self.interrupt.recv() => {} }
    }
}

/// The control thread's next event.
enum Event {
    Tick,
    Second,
    Asked(Call),
    Reload,
    Chores,
    Nothing,
}

/// The periodic timers of the control thread. Other events do not reset them: a timer that
/// restarted in each iteration would never expire while events come faster than its period.
struct Timers {
    seconds: Interval,
    drain: Interval,
    chores: Interval,
    change: Interval,
    reload: Interval,
}

impl Timers {
    fn new() -> Timers {
        let every = |period| {
            let mut interval = tokio::time::interval(period);
            // Missed ticks are not repeated, because one check does the work of several.
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        };
        Timers {
            seconds: tokio::time::interval(Duration::from_secs(1)),
            drain: every(DRAIN_PERIOD),
            chores: every(PREPARE_PERIOD),
            change: every(CHANGE_PERIOD),
            reload: every(calls::CALL_PERIOD),
        }
    }
}

/// Accepts clients, calls `tick`, reports, and carries out requests, until a signal comes, a drain
/// has no client left, or the connection on standard input has ended.
async fn run(
    control: &mut ControlThread<'_>,
    clock: Clock,
    before: Option<Before>,
    operator: &mut dyn Operator,
) -> Result<(), ServerError> {
    let mut signals = Signals::new().map_err(system("cannot handle signals"))?;
    // Signals are blocked while one program takes over from another.
    handover::unblock_signals();
    let (over, mut is_over) = mpsc::channel(1);
    let (calls, mut asked) = mpsc::channel(MAX_ASKS);
    match before {
        None => {
            let places = control.open(&over, &calls)?;
            operator.ready(control, &places);
        }
        Some(mut before) => {
            control.open_left(&mut before, &calls)?;
            control.resume(&mut before);
            let is_next = operator.took_over(control);
            control.upgrades += u64::from(is_next);
            control.take_over(before, &calls);
        }
    }
    let mut timers = Timers::new();
    // The first tick of an interval comes at once, before a second has passed, so it is skipped.
    timers.seconds.tick().await;
    let mut is_reloading = false;
    while !control.is_over() {
        let deadline_ns = control.deadline_ns();
        let tick = async {
            match deadline_ns {
                Some(time_ns) => {
                    tokio::time::sleep(Duration::from_nanos(
                        time_ns.saturating_sub(clock.now_ns()),
                    ))
                    .await;
                }
                None => std::future::pending().await,
            }
        };
        let Signals { terminate, interrupt, hangup } = &mut signals;
        let Timers { seconds, drain, chores, change, reload } = &mut timers;
        let event = tokio::select! {
            () = tick => Event::Tick,
            _ = seconds.tick() => Event::Second,
            Some(ask) = asked.recv() => Event::Asked(ask),
            _ = hangup.recv() => Event::Reload,
            _ = reload.tick(), if is_reloading => Event::Reload,
            // The loop's condition checks whether the last client has disconnected.
            _ = drain.tick(), if control.drain == Drain::Waiting => Event::Nothing,
            _ = chores.tick(), if control.has_chores() => Event::Chores,
            // The shards do not notify this thread of the end of a change, so `tick` checks.
            _ = change.tick(), if control.leaving.is_some() => Event::Tick,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(()) = is_over.recv() => break,
        };
        let mut turns = control.turns;
        turns.turn(|| match event {
            Event::Tick => control.tick(clock.now_ns()),
            Event::Second => control.second(operator),
            // The client may have disconnected meanwhile.
            Event::Asked(Call::Line(caller, reply)) => {
                control.caller = Some(caller.clone());
                drop(reply.send(operator.call(control, &caller.line, caller.made)));
                control.caller = None;
            }
            Event::Asked(Call::Http(request, reply)) => {
                drop(reply.send(operator.http(control, &request)));
            }
            Event::Reload => is_reloading = operator.reload(control),
            Event::Chores => control.do_chores(operator),
            Event::Nothing => {}
        });
        control.turns = turns;
        control.update_disks();
    }
    control.server.log_failures();
    control.drain(true);
    operator.stopping();
    // A second signal must end the process even while it waits for clients.
    tokio::spawn(async move {
        signals.end().await;
        tracing::warn!("second signal: ending at once");
        std::process::exit(1);
    });
    // This sends the last answers, such as the one to `drain`.
    tokio::task::yield_now().await;
    Ok(())
}

/// Stops the shards, and disconnects clients that delay their end.
async fn end(control: &mut ControlThread<'_>, clock: Clock) {
    let server = control.server.clone();
    let patience = server.config.timeouts.answers;
    // A block device ends when its requests end, and these may wait for ticks of their policy.
    control.end_disks();
    let deadline = Instant::now() + patience;
    while !control.has_ended_disks() && Instant::now() < deadline {
        control.tick(clock.now_ns());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for shard in 0..server.shards.count() {
        server.shards.send(shard, Message::Stop);
    }
    let deadline = Instant::now() + patience;
    while !server.shards.are_finished() {
        if Instant::now() > deadline {
            tracing::warn!("clients do not take their answers: disconnecting them");
            server.notify_all(Notice::HangUp);
            break;
        }
        // Requests in flight may wait for their policy's ticks.
        control.tick(clock.now_ns());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let deadline = Instant::now() + patience;
    while !server.shards.are_finished() {
        if Instant::now() > deadline {
            // Requests on a device that hangs can neither be cancelled nor awaited.
            tracing::error!(
                "ending with requests that the storage has not answered: data acknowledged as \
                 durable are safe, other written data may be lost; check the device"
            );
            std::process::exit(1);
        }
        control.tick(clock.now_ns());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test sends an event every 4 ms, while chores are due every 5 ms.
    #[tokio::test]
    async fn a_timer_goes_on_through_other_events() {
        let mut timers = Timers::new();
        let mut chores = 0;
        for _ in 0..100 {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(4)) => {}
                _ = timers.chores.tick() => chores += 1,
            }
        }
        assert!(chores > 20, "{chores} of 100 turns");
    }
}
