//! The server: tenants, listeners and the life of the process; everything but the data path.
//!
//! One thread, beside the shards, runs a small async runtime: it accepts connections, performs their handshakes (so that a
//! flood of them, or a slow TLS client, never holds up a shard), hands each to the shard with the fewest, calls the
//! policy's `tick`, asks the shards for their statistics once a second, and does what the control socket asks for.
//!
//! **Changes.** Whatever changes the running server is an [`Admin`]'s method, called by the [`Operator`] in this thread,
//! one after the other; the shards learn of it by messages. No connection is dropped but those of a removed tenant.
//!
//! **Another policy** ([`Admin::change_policy`]) takes the old one's place in every shard when no shard holds a request of the old
//! one any more. Until then both are ticked, and what is changed meanwhile is changed in the new one: nobody is admitted to
//! the old one any more. Flows keep their names, so that connections, statistics and the roster need not hear of it.
//!
//! **Floods.** Handshakes under way are bounded. Clients that connect and say nothing would hold all places for as long as
//! a handshake may take: so when all are taken, the one that has been at it longest, beyond `UNHURRIED`, loses its place
//! to whoever waits. Handshakes that fail are told of once a second, however many they are.
//!
//! **The end.** SIGTERM or SIGINT: no more connections, no more requests; what is in flight is finished, answered and put on
//! stable storage; then [`serve`] returns. Clients that do not take their answers within [`GRACE`] are cut
//! off. A second signal ends the process at once. A server that drains ends in the same way when its last client has gone.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fairq_core::{ClassWeights, FlowError, FlowId, Policy, PortSet, Stats, TuneError, Tuning, Weight};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;

use crate::control::{Control, ControlError};
use crate::device::Device;
use crate::device::any::AnyDevice;
use crate::device::error::DeviceError;
use crate::device::file::FileSpec;
use crate::interference::Served;
use crate::nbd::conn::{Limits, Volume};
use crate::nbd::exports::ExportsError;
use crate::nbd::front::{Connect, Message as NbdMessage, NbdFront};
use crate::nbd::handshake::{HandshakeError, HandshakeOptions, Outcome, handshake};
use crate::nbd::pace::SEND_BUFFER;
use crate::nbd::tls::Established;
use crate::nbd::wipe::{Wipe, Wiping};
use crate::record::Recording;
use crate::shard::{Clock, Common, Meeting, Message, Wakers};
use crate::shards::{Regimes, Shards, regimes};
use crate::stats::Totals;

mod asks;
mod listen;
mod roster;

pub use asks::{HttpRequest, HttpResponse};
pub use listen::Listen;
pub use roster::{Member, Roster};

use asks::Ask;
use listen::{Listener, Stream};

/// How long clients may take to accept their last answers.
pub const GRACE: Duration = Duration::from_secs(5);
/// Handshakes under way at a time; further connections wait to be accepted.
const MAX_HANDSHAKES: usize = 256;
/// What a handshake may take even if others wait for its place.
const UNHURRIED: Duration = Duration::from_secs(1);
/// What the control socket and scrapers have asked for and has not been looked at.
const MAX_ASKS: usize = 16;
/// How often a server that drains looks whether its last client has gone.
const DRAIN_PERIOD: Duration = Duration::from_millis(20);
/// How often a server that prepares a tenant's range looks how far that is.
const PREPARE_PERIOD: Duration = Duration::from_millis(5);
/// How often a server that changes its policy looks whether the old one has finished.
const CHANGE_PERIOD: Duration = Duration::from_millis(2);

/// One tenant.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name, and its export's.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Its share relative to the others'.
    pub weight: Weight,
    /// Which of the device's files holds its data.
    pub file: u16,
    /// Where in the file its range begins, in bytes.
    pub base: u64,
    /// The size of its range, in bytes.
    pub size: u64,
    /// Whether it may only read.
    pub read_only: bool,
    /// Whether it may use the urgent class, within the policy's budget.
    pub urgent: bool,
    /// The only client that may open it, by its certificate's name.
    pub identity: Option<String>,
}

/// A policy, built for the server's shards.
pub struct BuiltPolicy {
    policy: Arc<dyn Policy>,
    ports: Regimes<AnyDevice, NbdFront>,
}

impl BuiltPolicy {
    /// From what building it gave.
    pub fn new<L: Policy>(policy: L, ports: Vec<L::Port>) -> BuiltPolicy
    where
        L::Port: 'static,
    {
        BuiltPolicy { policy: Arc::new(policy), ports: regimes(ports) }
    }
}

/// What to serve and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The tenants; the first is the export that clients get who name none.
    pub tenants: Vec<Tenant>,
    /// The most tenants at a time; the policy was built for so many flows.
    pub most_tenants: usize,
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// Where metrics and the web page are served over HTTP.
    pub metrics: Vec<Listen>,
    /// The CPU of each shard; as many as the policy has ports, or empty to pin none.
    pub cpus: Vec<usize>,
    /// Bounds of each connection.
    pub limits: Limits,
    /// The most connections of each shard.
    pub connections: usize,
    /// Live requests of each shard; the policy was built with the same number.
    pub tags: usize,
    /// Handshakes.
    pub handshake: HandshakeOptions,
}

/// What the server is doing.
#[derive(Clone, Debug)]
pub struct Status {
    /// Since the server started.
    pub elapsed: Duration,
    /// What was counted since then; a tenant's place is its [`Member::number`].
    pub totals: Totals,
    /// Open connections of each shard.
    pub connections: Vec<usize>,
    /// The policy's state.
    pub policy: Stats,
    /// For how long requests have been waiting for the policy before it to finish, if they are.
    pub changing: Option<Duration>,
    /// The weights of the device's classes, if the policy sets them.
    pub classes: Option<ClassWeights>,
    /// It takes no more connections and ends with the last.
    pub is_draining: bool,
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
    /// The policy refuses.
    #[error("tenant {name}: {error}")]
    Flow {
        /// The tenant.
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
    /// The policy does not fit the device.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The last change of the policy is not over.
    #[error("the policy before this one has not finished its requests yet: wait until `status` says so, and try again")]
    Changing,
    /// A listener.
    #[error("cannot listen on {at}: {cause}")]
    Listen {
        /// Where.
        at: Listen,
        /// Why, and what to do.
        cause: String,
    },
    /// It does not listen there.
    #[error("does not listen on {0}")]
    NotListening(Listen),
}

/// What can be asked of and changed in a running server. Changes hold at once and interrupt nobody.
pub trait Admin {
    /// What the server is doing now.
    fn status(&self) -> Status;
    /// The tenants.
    fn roster(&self) -> Arc<Roster>;
    /// Where it listens.
    fn listening(&self) -> Vec<Listen>;
    /// Opens (or creates) one more file for tenants; gives its number and its size in bytes.
    fn open_file(&mut self, spec: &FileSpec) -> Result<(u16, u64), AdminError>;
    /// Adds a tenant; its range must be its own. If it is to be wiped, it reads as zeroes before anybody may open it.
    fn add(&mut self, tenant: Tenant, wipe: bool) -> Result<(), AdminError>;
    /// Removes a tenant: its connections are ended when what they have in flight is answered, and cut off after [`GRACE`].
    fn remove(&mut self, name: &str) -> Result<(), AdminError>;
    /// Changes a weight, for requests that come from now on.
    fn set_weight(&mut self, name: &str, weight: Weight) -> Result<(), AdminError>;
    /// Changes a parameter of the policy.
    fn tune(&mut self, tuning: Tuning) -> Result<(), AdminError>;
    /// Goes on with this policy when the one in force has finished all its requests; those that come meanwhile wait for
    /// it. It must have been built for as many shards, tenants and tags. [`Status::changing`] says whether it is over.
    fn change_policy(&mut self, next: BuiltPolicy) -> Result<(), AdminError>;
    /// Listens somewhere else too; gives where.
    fn listen(&mut self, at: &Listen) -> Result<Listen, AdminError>;
    /// Listens there no more; connections made there go on.
    fn unlisten(&mut self, at: &Listen) -> Result<(), AdminError>;
    /// Records the scheduler's decisions, the last `events` of each shard.
    fn record(&mut self, events: usize);
    /// Ends that; what each shard recorded.
    fn recorded(&mut self) -> Vec<Recording>;
    /// Takes no more connections and ends when the last has gone; or as at SIGTERM, `now`.
    fn drain(&mut self, now: bool);
}

/// Who runs the server: is told how it goes, and says what its control socket means.
pub trait Operator {
    /// It accepts connections; `listening` is where, with the port that was chosen if it was left open.
    fn ready(&mut self, listening: &[Listen]);
    /// A second has passed.
    fn second(&mut self, admin: &mut dyn Admin);
    /// A line came on the control socket; gives the answer, if there is to be one.
    fn call(&mut self, admin: &mut dyn Admin, line: &str) -> Option<String>;
    /// A request came on an HTTP address.
    fn http(&mut self, admin: &mut dyn Admin, request: &HttpRequest) -> HttpResponse;
    /// SIGHUP: the configuration is to be read again.
    fn reload(&mut self, admin: &mut dyn Admin);
    /// It was told to end.
    fn stopping(&mut self) {}
}

/// Why the server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A listener could not be set up.
    #[error("cannot listen on {at}: {cause}")]
    Listen {
        /// Where.
        at: Listen,
        /// Why, and what to do.
        cause: String,
    },
    /// The exports are not ones the protocol allows.
    #[error(transparent)]
    Exports(#[from] ExportsError),
    /// The policy and the device do not fit.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A tenant's flow could not be added.
    #[error("tenant {name}: {error}")]
    Flow {
        /// The tenant.
        name: String,
        /// Why.
        error: fairq_core::FlowError,
    },
    /// Something that the system refuses.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        error: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |error| ServerError::System { what, error }
}

/// Serves until told to end; see the module's text.
pub fn serve(
    BuiltPolicy { policy, ports }: BuiltPolicy,
    device: Arc<AnyDevice>,
    config: Config,
    operator: &mut dyn Operator,
) -> Result<(), ServerError> {
    ignore_file_size_signal();
    let preferred = device.info().preferred_size;
    let roster = Roster::new(add_flows(&*policy, &config.tenants)?, preferred)?;
    let flows = roster.members().iter().map(|member| member.flow).collect();
    let common = Common {
        device: device.clone(),
        wakers: Arc::new(Wakers::new(ports.len()).map_err(system("cannot make eventfds"))?),
        clock: Clock::default(),
        tags: config.tags,
        tenants: config.most_tenants.max(config.tenants.len()),
        served: Arc::new(Served::new(ports.len())),
        fixed_buffers: if device.has_fixed_buffers() { config.connections as u32 } else { 0 },
    };
    let counts: Vec<Arc<AtomicUsize>> = ports.iter().map(|_| Arc::default()).collect();
    let front = |shard: usize| Ok(NbdFront::new(config.connections, config.limits, counts[shard].clone()));
    let control = Control::start(policy, &*device, common.wakers.clone())?;
    let shards = Shards::start(ports, &common, &config.cpus, front).map_err(system("cannot start the shards"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("cannot start the control thread's runtime"))?;
    let roster = Mutex::new(Arc::new(roster));
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let (crowded, failures) = (Notify::new(), Mutex::default());
    let server = Arc::new(Server { config, roster, counts, shards, handshakes, crowded, failures });
    let mut desk = Desk {
        server: server.clone(),
        device: &device,
        wakers: common.wakers,
        control,
        leaving: None,
        flows,
        leftovers: Vec::new(),
        waiting: Vec::new(),
        preferred,
        listeners: Vec::new(),
        started: Instant::now(),
        drain: Drain::No,
    };
    let result = runtime.block_on(run(&mut desk, common.clock, operator));
    runtime.block_on(end(&mut desk, common.clock));
    drop((desk, runtime));
    match Arc::into_inner(server) {
        Some(server) => server.shards.stop(),
        None => unreachable!("the runtime and its tasks are gone"),
    }
    device.sync().map_err(system("cannot flush the device at the end"))?;
    result
}

/// Makes a write beyond a file size limit an error of that write, instead of the end of the process.
fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler, so there is no code that could run at a bad time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// What the control thread's tasks share.
struct Server {
    config: Config,
    roster: Mutex<Arc<Roster>>,
    counts: Vec<Arc<AtomicUsize>>,
    shards: Shards<AnyDevice, NbdFront>,
    handshakes: Arc<Semaphore>,
    /// Told when a handshake has to make room.
    crowded: Notify,
    failures: Mutex<Failures>,
}

/// Handshakes that have failed since they were last told of.
#[derive(Default)]
struct Failures {
    count: u64,
    /// The last one's peer and reason.
    last: Option<(String, String)>,
}

fn add_flow(policy: &dyn Policy, known: Option<FlowId>, tenant: &Tenant) -> Result<FlowId, FlowError> {
    let flow = policy.add_flow_as(known, tenant.weight)?;
    if tenant.urgent {
        policy.set_urgent(flow, true).inspect_err(|_| {
            // No port has heard of it yet.
            let _ = policy.remove_flow(flow);
        })?;
    }
    Ok(flow)
}

fn add_flows(policy: &dyn Policy, tenants: &[Tenant]) -> Result<Vec<Member>, ServerError> {
    let add = |tenant: &Tenant| match add_flow(policy, None, tenant) {
        Ok(flow) => Ok(Member { tenant: tenant.clone(), flow, preparing: None }),
        Err(error) => Err(ServerError::Flow { name: tenant.name.clone(), error }),
    };
    tenants.iter().map(add).collect()
}

/// Whether two tenants' ranges have bytes in common.
fn overlap(a: &Tenant, b: &Tenant) -> bool {
    a.file == b.file && a.base < b.base + b.size && b.base < a.base + a.size
}

/// How far a server is from its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// It serves.
    No,
    /// It waits for its last client to go.
    Waiting,
    /// It is to end now.
    Now,
}

/// What the control thread itself holds: all that can be changed.
struct Desk<'a> {
    server: Arc<Server>,
    device: &'a AnyDevice,
    wakers: Arc<Wakers>,
    control: Control<'a, Arc<dyn Policy>, AnyDevice>,
    /// The policy before, as long as a shard holds requests of it.
    leaving: Option<Leaving<'a>>,
    /// The last flow of each slot, from the first slot on.
    flows: Vec<FlowId>,
    /// Who has been removed, and may have requests under way.
    leftovers: Vec<(Tenant, FlowId)>,
    /// Whose range is to be zeroed when nobody else writes there any more.
    waiting: Vec<FlowId>,
    /// The device's preferred size of a transfer.
    preferred: u32,
    listeners: Vec<(Listen, AbortHandle)>,
    started: Instant,
    drain: Drain,
}

/// A policy that finishes what it has.
struct Leaving<'a> {
    control: Control<'a, Arc<dyn Policy>, AnyDevice>,
    /// Over when it has finished.
    meeting: Arc<Meeting>,
    since: Instant,
}

impl Admin for Desk<'_> {
    fn status(&self) -> Status {
        Status {
            elapsed: self.started.elapsed(),
            totals: self.server.shards.stats(),
            connections: self.server.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            policy: self.policy().stats(),
            changing: self.leaving.as_ref().map(|leaving| leaving.since.elapsed()),
            classes: self.control.class_weights(),
            is_draining: self.drain != Drain::No,
        }
    }

    fn roster(&self) -> Arc<Roster> {
        self.server.roster()
    }

    fn listening(&self) -> Vec<Listen> {
        self.listeners.iter().map(|(at, _)| at.clone()).collect()
    }

    fn open_file(&mut self, spec: &FileSpec) -> Result<(u16, u64), AdminError> {
        Ok(self.device.add_file(spec)?)
    }

    fn add(&mut self, tenant: Tenant, wipe: bool) -> Result<(), AdminError> {
        let roster = self.server.roster();
        let name = tenant.name.clone();
        if roster.find(&name).is_some() {
            return Err(AdminError::TenantExists(name));
        }
        let flow = add_flow(self.policy(), None, &tenant).map_err(|error| AdminError::Flow { name, error })?;
        self.note(flow);
        let mut members = roster.members().to_vec();
        let preparing = wipe.then(|| Arc::new(Wiping::new(tenant.size)));
        members.push(Member { tenant, flow, preparing });
        let roster = Roster::new(members, self.preferred).inspect_err(|_| self.remove_flow(flow))?;
        // Each shard hears of this before it hears of a connection of the tenant's.
        for shard in 0..self.server.shards.count() {
            self.server.shards.send(shard, Message::Forget(flow.slot() as u16));
        }
        self.server.set_roster(roster);
        self.waiting.extend(wipe.then_some(flow));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), AdminError> {
        let roster = self.server.roster();
        let Member { flow, tenant, .. } =
            roster.find(name).ok_or_else(|| AdminError::NoSuchTenant(name.into()))?.clone();
        let rest = roster.members().iter().filter(|member| member.flow != flow).cloned().collect();
        self.server.set_roster(Roster::new(rest, self.preferred)?);
        let shards = self.server.shards.count();
        let tell = move |server: &Server, cut_off| {
            for shard in 0..shards {
                server.shards.send(shard, Message::Front(NbdMessage::Detach { flow, cut_off }));
            }
        };
        tell(&self.server, false);
        self.remove_flow(flow);
        self.waiting.retain(|waiting| *waiting != flow);
        let flows = &self.flows;
        self.leftovers.retain(|(_, old)| flows[old.slot()] == *old);
        self.leftovers.push((tenant, flow));
        let server = Arc::downgrade(&self.server);
        tokio::spawn(async move {
            tokio::time::sleep(GRACE).await;
            if let Some(server) = server.upgrade() {
                tell(&server, true);
            }
        });
        Ok(())
    }

    fn set_weight(&mut self, name: &str, weight: Weight) -> Result<(), AdminError> {
        let roster = self.server.roster();
        let mut members = roster.members().to_vec();
        let member = members.iter_mut().find(|member| member.tenant.name == name);
        let member = member.ok_or_else(|| AdminError::NoSuchTenant(name.into()))?;
        let refused = |error| AdminError::Flow { name: name.into(), error };
        self.policy().set_weight(member.flow, weight).map_err(refused)?;
        member.tenant.weight = weight;
        self.server.set_roster(Roster::new(members, self.preferred)?);
        Ok(())
    }

    fn tune(&mut self, tuning: Tuning) -> Result<(), AdminError> {
        let mut wake = PortSet::EMPTY;
        let result = self.policy().tune(tuning, &mut wake);
        self.server.shards.wake(wake);
        Ok(result?)
    }

    fn change_policy(&mut self, BuiltPolicy { policy, ports }: BuiltPolicy) -> Result<(), AdminError> {
        if self.leaving.is_some() {
            return Err(AdminError::Changing);
        }
        let roster = self.server.roster();
        for &flow in &self.flows {
            match roster.members().iter().find(|member| member.flow == flow) {
                Some(Member { tenant, .. }) => {
                    let refused = |error| AdminError::Flow { name: tenant.name.clone(), error };
                    add_flow(&*policy, Some(flow), tenant).map_err(refused)?;
                }
                // A removed tenant's connections may still know its flow: the policy must tell it from a later one.
                None => {
                    let refused = |error| AdminError::Flow { name: "(removed)".into(), error };
                    policy.add_flow_as(Some(flow), Weight::DEFAULT).map_err(refused)?;
                    policy.remove_flow(flow).map_err(refused)?;
                }
            }
        }
        let control = Control::start(policy, self.device, self.wakers.clone())?;
        let control = std::mem::replace(&mut self.control, control);
        let meeting = self.server.shards.change(ports);
        self.leaving = Some(Leaving { control, meeting, since: Instant::now() });
        Ok(())
    }

    fn listen(&mut self, at: &Listen) -> Result<Listen, AdminError> {
        let fail = |cause: String| AdminError::Listen { at: at.clone(), cause };
        let mut place = at.clone();
        for listener in listen::bind(at).map_err(fail)? {
            place = listener.place(at).map_err(|error| fail(error.to_string()))?;
            let task = tokio::spawn(accept(self.server.clone(), listener));
            self.listeners.push((place.clone(), task.abort_handle()));
        }
        Ok(place)
    }

    fn unlisten(&mut self, at: &Listen) -> Result<(), AdminError> {
        let before = self.listeners.len();
        self.listeners.retain(|(place, task)| {
            let stays = place != at;
            if !stays {
                task.abort();
            }
            stays
        });
        if self.listeners.len() < before { Ok(()) } else { Err(AdminError::NotListening(at.clone())) }
    }

    fn record(&mut self, events: usize) {
        self.server.shards.record(events);
    }

    fn recorded(&mut self) -> Vec<Recording> {
        self.server.shards.recorded()
    }

    fn drain(&mut self, now: bool) {
        self.listeners.drain(..).for_each(|(_, task)| task.abort());
        self.drain = if now { Drain::Now } else { Drain::Waiting };
    }
}

impl Desk<'_> {
    /// The policy in force.
    fn policy(&self) -> &dyn Policy {
        self.control.policy()
    }

    /// Notes the last flow of its slot.
    fn note(&mut self, flow: FlowId) {
        match self.flows.get_mut(flow.slot()) {
            Some(last) => *last = flow,
            // Slots are taken in order.
            None => self.flows.push(flow),
        }
    }

    /// Whether a tenant's range is being prepared.
    fn is_preparing(&self) -> bool {
        self.server.roster().members().iter().any(|member| {
            member.preparing.as_ref().is_some_and(|wiping| wiping.outcome().is_none_or(|errno| errno == 0))
        })
    }

    /// Begins to zero the ranges on which nobody writes any more, and opens those that are zero.
    fn prepare(&mut self) {
        if !self.waiting.is_empty() {
            self.begin_wipes();
        }
        let roster = self.server.roster();
        let mut members = roster.members().to_vec();
        let mut is_changed = false;
        for member in &mut members {
            if member.preparing.as_ref().and_then(|wiping| wiping.outcome()) == Some(0) {
                tracing::info!(tenant = member.tenant.name, "its range reads as zeroes: open");
                member.preparing = None;
                is_changed = true;
            }
        }
        if is_changed {
            match Roster::new(members, self.preferred) {
                Ok(roster) => self.server.set_roster(roster),
                Err(error) => tracing::error!(%error, "cannot open a tenant's export"),
            }
        }
    }

    /// What was submitted for a tenant that has been removed is still carried out: a range is zeroed after that.
    fn begin_wipes(&mut self) {
        let totals = self.server.shards.stats();
        let flows = &self.flows;
        // A slot is another flow's only when no shard holds a request of the one before.
        self.leftovers.retain(|(_, flow)| flows[flow.slot()] == *flow && totals.tenants[flow.slot()].in_flight > 0);
        let roster = self.server.roster();
        let (server, leftovers) = (&self.server, &self.leftovers);
        self.waiting.retain(|flow| {
            let Some(Member { tenant, preparing: Some(wiping), .. }) =
                roster.members().iter().find(|member| member.flow == *flow)
            else {
                return false;
            };
            if leftovers.iter().any(|(old, _)| overlap(old, tenant)) {
                return true;
            }
            let volume = Volume { tenant: flow.slot() as u16, flow: *flow, file: tenant.file, base: tenant.base };
            let wipe = Box::new(Wipe::new(volume, wiping.clone()));
            server.shards.send(flow.slot() % server.shards.count(), Message::Front(NbdMessage::Wipe(wipe)));
            false
        });
    }

    fn remove_flow(&self, flow: FlowId) {
        // It was there a moment ago, and nobody else removes flows.
        if let Ok(ports) = self.policy().remove_flow(flow) {
            self.server.shards.wake(ports);
        }
    }

    /// When to call [`Self::tick`] next; never again if `None`.
    fn deadline_ns(&self) -> Option<u64> {
        let leaving = self.leaving.as_ref().and_then(|leaving| leaving.control.deadline_ns());
        [self.control.deadline_ns(), leaving].into_iter().flatten().min()
    }

    /// Ticks what is due, and lets a policy go that has finished.
    fn tick(&mut self, now_ns: u64) {
        self.control.tick(now_ns);
        if let Some(leaving) = &mut self.leaving {
            leaving.control.tick_policy(now_ns);
            if leaving.meeting.is_over() {
                tracing::info!(waited_ms = leaving.since.elapsed().as_millis() as u64, "the policy has changed");
                self.leaving = None;
            }
        }
    }

    /// Whether it is time to end.
    fn is_over(&self) -> bool {
        match self.drain {
            Drain::No => false,
            Drain::Waiting => self.server.is_empty(),
            Drain::Now => true,
        }
    }

    /// Serves the one connection on standard input; `over` is told when it has ended.
    fn serve_stdio(&self, over: mpsc::Sender<()>) -> Result<(), String> {
        let stream = listen::stdio()?;
        let server = self.server.clone();
        tokio::spawn(async move {
            let permit = server.handshakes.clone().acquire_owned().await.expect("never closed");
            server.welcome(stream, permit, "standard input".into()).await;
            // The shard has it: the server ends when the shard has it no more.
            while !server.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let _ = over.send(()).await;
        });
        Ok(())
    }

    /// Sets up all listeners; each accepts in a task of its own. `over` is told when there is nothing more to wait for.
    fn open(&mut self, over: &mpsc::Sender<()>, asks: &asks::Asks) -> Result<Vec<Listen>, ServerError> {
        let config = self.server.config.clone();
        let mut places = Vec::new();
        for at in &config.listen {
            if *at == Listen::Stdio {
                self.serve_stdio(over.clone()).map_err(|cause| ServerError::Listen { at: at.clone(), cause })?;
                places.push(Listen::Stdio);
                continue;
            }
            match Admin::listen(self, at) {
                Ok(place) => places.push(place),
                Err(AdminError::Listen { at, cause }) => return Err(ServerError::Listen { at, cause }),
                Err(error) => unreachable!("{error}"),
            }
        }
        if let Some(path) = &config.control {
            let fail = |cause| ServerError::Listen { at: Listen::Unix(path.clone()), cause };
            tokio::spawn(asks::serve_control(listen::bind_private(path).map_err(fail)?, asks.clone()));
        }
        for at in &config.metrics {
            let fail = |cause| ServerError::Listen { at: at.clone(), cause };
            let listeners = match at {
                Listen::Unix(path) => vec![listen::bind_private(path).map_err(fail)?],
                _ => listen::bind(at).map_err(fail)?,
            };
            for listener in listeners {
                tokio::spawn(asks::serve_http(listener, asks.clone()));
            }
        }
        Ok(places)
    }
}

/// The signals that mean something.
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

    /// The next that asks for the end.
    async fn end(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {} _ = self.interrupt.recv() => {} }
    }
}

/// Listens, ticks, reports and does what it is asked until a signal comes or nothing is left to wait for.
async fn run(desk: &mut Desk<'_>, clock: Clock, operator: &mut dyn Operator) -> Result<(), ServerError> {
    let mut signals = Signals::new().map_err(system("cannot handle signals"))?;
    let (over, mut is_over) = mpsc::channel(1);
    let (asks, mut asked) = mpsc::channel(MAX_ASKS);
    let places = desk.open(&over, &asks)?;
    operator.ready(&places);
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.tick().await;
    while !desk.is_over() {
        let deadline_ns = desk.deadline_ns();
        let tick = async {
            match deadline_ns {
                Some(time_ns) => {
                    tokio::time::sleep(Duration::from_nanos(time_ns.saturating_sub(clock.now_ns()))).await;
                }
                None => std::future::pending().await,
            }
        };
        let Signals { terminate, interrupt, hangup } = &mut signals;
        tokio::select! {
            () = tick => desk.tick(clock.now_ns()),
            _ = seconds.tick() => {
                operator.second(desk);
                desk.server.tell_failures();
            }
            Some(ask) = asked.recv() => match ask {
                // Whoever asked may have gone away meanwhile.
                Ask::Call(line, reply) => drop(reply.send(operator.call(desk, &line))),
                Ask::Http(request, reply) => drop(reply.send(operator.http(desk, &request))),
            },
            _ = hangup.recv() => operator.reload(desk),
            () = tokio::time::sleep(DRAIN_PERIOD), if desk.drain == Drain::Waiting => {}
            () = tokio::time::sleep(PREPARE_PERIOD), if desk.is_preparing() => desk.prepare(),
            () = tokio::time::sleep(CHANGE_PERIOD), if desk.leaving.is_some() => desk.tick(clock.now_ns()),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(()) = is_over.recv() => break,
        }
    }
    desk.server.tell_failures();
    desk.drain(true);
    operator.stopping();
    // A second signal must not find us waiting for clients.
    tokio::spawn(async move {
        signals.end().await;
        tracing::warn!("second signal: ending at once");
        std::process::exit(1);
    });
    // The last answers leave: the one to `drain` among them.
    tokio::task::yield_now().await;
    Ok(())
}

/// Tells the shards to end, and cuts off clients that do not let them.
async fn end(desk: &mut Desk<'_>, clock: Clock) {
    let server = desk.server.clone();
    for shard in 0..server.shards.count() {
        server.shards.send(shard, Message::Stop);
    }
    let deadline = Instant::now() + GRACE;
    while !server.shards.are_finished() {
        if Instant::now() > deadline {
            tracing::warn!("clients do not take their answers: cutting them off");
            for shard in 0..server.shards.count() {
                server.shards.send(shard, Message::Front(NbdMessage::HangUp));
            }
            return;
        }
        // What is in flight may wait for its policy's time.
        desk.tick(clock.now_ns());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Accepts connections for ever.
async fn accept(server: Arc<Server>, listener: Listener) {
    loop {
        let permit = match server.handshakes.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                server.crowded.notify_one();
                server.handshakes.clone().acquire_owned().await.expect("never closed")
            }
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let server = server.clone();
                tokio::spawn(async move { server.welcome(stream, permit, peer).await });
            }
            Err(error) => asks::pause(&error).await,
        }
    }
}

/// A stream that becomes a file descriptor for a shard.
trait IntoFd: AsyncRead + AsyncWrite + Unpin {
    fn into_fd(self) -> io::Result<OwnedFd>;
}

impl IntoFd for UnixStream {
    fn into_fd(self) -> io::Result<OwnedFd> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        // Without it (the kernel grants less) replies leave in more pieces.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
        Ok(stream.into())
    }
}

impl IntoFd for TcpStream {
    fn into_fd(self) -> io::Result<OwnedFd> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream.into())
    }
}

impl Server {
    fn roster(&self) -> Arc<Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_roster(&self, roster: Roster) {
        *self.roster.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(roster);
    }

    /// Whether there is no connection.
    fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
    }

    async fn welcome(&self, stream: Stream, permit: OwnedSemaphorePermit, peer: String) {
        match stream {
            Stream::Unix(stream) => self.negotiate(stream, permit, peer).await,
            Stream::Tcp(stream) => self.negotiate(stream, permit, peer).await,
        }
    }

    /// Performs a connection's handshake and hands it to a shard. Holds `permit` meanwhile.
    async fn negotiate<S: IntoFd>(&self, stream: S, permit: OwnedSemaphorePermit, peer: String) {
        let roster = self.roster();
        let crowded_out = async {
            tokio::time::sleep(UNHURRIED).await;
            self.crowded.notified().await;
        };
        let outcome = tokio::select! {
            biased;
            outcome = handshake(stream, roster.exports(), &self.config.handshake) => outcome,
            () = crowded_out => Err(HandshakeError::Crowded(UNHURRIED)),
        };
        let (negotiated, stream) = match outcome {
            Ok(Outcome::Transmission { negotiated, stream }) => (negotiated, stream),
            Ok(Outcome::Closed) => return,
            Err(error) => return self.failed(peer, &error),
        };
        drop(permit);
        let (stream, tls) = match stream {
            Established::Plain(stream) => (stream, None),
            Established::Tls { stream, session } => (stream, Some(session)),
        };
        let fd = match stream.into_fd() {
            Ok(fd) => fd,
            Err(error) => return tracing::warn!(peer, %error, "lost a connection after its handshake"),
        };
        let Member { tenant, flow, .. } = roster.member_of(negotiated.export);
        if self.roster().members().iter().all(|member| member.flow != *flow) {
            return tracing::info!(peer, tenant = tenant.name, "the tenant was removed during the handshake");
        }
        let Some(shard) = self.choose_shard() else {
            return tracing::warn!(peer, most = self.config.connections, "too many connections: closing this one");
        };
        tracing::info!(peer, tenant = tenant.name, shard, "connected");
        let volume = Volume { tenant: flow.slot() as u16, flow: *flow, file: tenant.file, base: tenant.base };
        let connect = Connect { fd, tls, negotiated, volume };
        self.shards.send(shard, Message::Front(NbdMessage::Connect(Box::new(connect))));
    }

    /// Notes a failed handshake.
    fn failed(&self, peer: String, error: &HandshakeError) {
        tracing::debug!(peer, %error, "handshake failed");
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.count += 1;
        failures.last = Some((peer, error.to_string()));
    }

    /// Tells of the handshakes that have failed since the last call.
    fn tell_failures(&self) {
        let failures = std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some((peer, error)) = failures.last {
            tracing::warn!(count = failures.count, peer, error, "handshake failed");
        }
    }

    /// The shard with the fewest connections, which has one more now; `None` if all are full.
    fn choose_shard(&self) -> Option<usize> {
        let load = |shard: &usize| self.counts[*shard].load(Ordering::Relaxed);
        let shard = (0..self.counts.len()).min_by_key(load)?;
        if load(&shard) >= self.config.connections {
            return None;
        }
        self.counts[shard].fetch_add(1, Ordering::Relaxed);
        Some(shard)
    }
}
