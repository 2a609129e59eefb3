//! The operator's view of a running server and its controls: the terminal, the control socket,
//! metrics and the web page.
//!
//! One [`Console`] holds the state beside the server itself: the configuration in force, and the
//! counts up to the last second. It runs in the server's control thread. Each change is checked,
//! made by the server's [`Admin`], and only then stored in the configuration that `config dump`
//! shows.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairq_config::engine::Shape;
use fairq_config::group::Group;
use fairq_config::layout::pool::Pool;
use fairq_config::listen::Listen;
use fairq_config::refusal::Refusal;
use fairq_config::settings::{Plan, Settings, Source, Surroundings};
use fairq_config::tenant::Tenant;
use fairq_config::weight::Cgroups;
use fairq_core::FlowId;
use fairq_host::observe::interference::{Matrix, empty_matrix};
use fairq_host::observe::stats::TenantStats;
use fairq_host::server::{self, Admin, Operator, Status, TenantList};
use sd_notify::NotifyState;
use toml::Spanned;

use crate::companion::{self, Companion};
use crate::status::{self, Row};
use crate::view::LastSecond;

use background::Background;
use keeper::Keeper;

mod background;
mod caps;
mod changes;
mod cpu_waits;
mod failures;
mod groups;
mod keeper;
mod latency;
mod layout;
pub(crate) mod losses;
mod methods;
pub(crate) mod metrics;
mod overview;
mod record;
mod reload;
pub(crate) mod rpc;
mod storage;
mod stored;
pub(crate) mod table;
mod upgrade;
mod viewers;
mod web;

/// Each tenant's last second; `None` for an idle one.
type Seconds = HashMap<FlowId, Option<LastSecond>>;

/// Seconds over which interference is shown.
const INTERFERENCE_S: usize = 10;

/// The text that is printed when the server listens, from its addresses.
pub(crate) type Greeting = Box<dyn Fn(&[server::Listen]) -> String>;

/// The input at the server's start. It does not change until the server ends.
pub(crate) struct Given {
    /// The configuration file for a reload.
    pub(crate) file: Option<PathBuf>,
    /// The flags, which override the file.
    pub(crate) flags: Settings,
    /// The machine.
    pub(crate) surroundings: Surroundings,
    /// The reason for which an upgrade to the next program has failed, if it has.
    pub(crate) failure: Option<String>,
    /// The command that runs while the server serves.
    pub(crate) companion: Option<Companion>,
}

/// The operator side of a server; see the module's text.
pub(crate) struct Console {
    given: Given,
    plan: Arc<Plan>,
    /// The configuration in force. It is shared, because the thread that reads a new configuration
    /// compares it with this one.
    settings: Arc<Settings>,
    /// The root of cgroups, and the disk of `io.max`.
    cgroups: Cgroups,
    /// Groups of tenants whose names are also names of groups of users on this machine.
    ambiguous: HashSet<String>,
    /// Tenants to be added, while their users are resolved.
    adding: Background<Result<Tenant, Refusal>>,
    /// Lookups whether a new group of tenants has the name of a group of users.
    naming: Background<bool>,
    /// The configuration file, while a reload reads it.
    reading: Background<Result<Arc<reload::Reading>, Refusal>>,
    /// Checks whether the next program can take over.
    checking: Background<Result<(), String>>,
    upgrades: upgrade::Upgrades,
    stored: stored::Stored,
    /// Size of the shared device if it is in memory, in bytes; a file's size is in its record.
    shared: u64,
    /// The layout record of the shared file.
    layout: Option<Keeper>,
    /// The tenants whose written data may be lost, on storage.
    losses: losses::Keeper,
    /// The open files of tenants, with their numbers and their sizes in bytes.
    own: HashMap<PathBuf, (u16, u64)>,
    /// The shape of every policy of this server.
    shape: Shape,
    /// Number of stores, each with a policy of its own.
    stores: usize,
    welcome: Greeting,
    /// The counts at the last full second.
    last: (Duration, HashMap<FlowId, Arc<TenantStats>>),
    /// The counts of an idle tenant.
    idle: Arc<TenantStats>,
    /// The last settings of groups that follow cgroups.
    followed: HashMap<String, Group>,
    /// Each tenant's last second; `None` for an idle one.
    second: Arc<Seconds>,
    /// The server's status at the last second, if its tenants are still the same.
    latest: Option<Arc<Status>>,
    /// The views for viewers and for scrapers, until the next second or change.
    viewed: Option<Arc<viewers::Shared>>,
    scraped: Option<Arc<viewers::Shared>>,
    /// The counts of interference at the end of each of the last [`INTERFERENCE_S`] seconds and of
    /// the second before them, the oldest first.
    matrices: VecDeque<Arc<Matrix>>,
    /// The clients that may change weights on the web page.
    writers: web::Writers,
    /// The tenants whose requests fail.
    failures: failures::Failures,
    /// Whether shards wait for their CPUs.
    cpu_waits: cpu_waits::CpuWaits,
    /// The tenants whose latency targets are missed.
    targets: latency::TargetLog,
    /// Stores that do not answer.
    stuck: storage::Stuck,
    /// Recordings of decisions.
    records: record::Records,
    /// Time when SIGHUP began a reload that is not over.
    reload_since: Option<Instant>,
}

/// Refuses a file for `web-token` that a server could not use.
pub(crate) fn check_web_token(file: Option<&Path>) -> Result<(), Refusal> {
    web::Writers::new(file).map(drop)
}

impl Console {
    pub(crate) fn new(
        given: Given,
        plan: Plan,
        settings: Settings,
        sizes: Vec<u64>,
        (shape, stores): (Shape, usize),
        welcome: Greeting,
    ) -> Result<Console, Refusal> {
        let writers = web::Writers::new(plan.web_token.as_deref()).or_else(|refusal| {
            // A server that continues after a failed upgrade has clients, so an unreadable token
            // file must not end it.
            if given.failure.is_none() {
                return Err(refusal);
            }
            tracing::error!("{refusal}: weights cannot be changed over HTTP");
            web::Writers::new(None)
        })?;
        Ok(Console {
            given,
            writers,
            shared: sizes.first().copied().unwrap_or(0),
            layout: None,
            losses: losses::Keeper::default(),
            own: own_files(&plan, &sizes),
            cgroups: settings.cgroups(),
            ambiguous: ambiguous(&plan.groups),
            adding: Background::default(),
            naming: Background::default(),
            reading: Background::default(),
            checking: Background::default(),
            upgrades: upgrade::Upgrades::new(),
            stored: stored::Stored::default(),
            plan: Arc::new(plan),
            settings: Arc::new(settings),
            shape,
            stores,
            welcome,
            last: (Duration::ZERO, HashMap::new()),
            second: Arc::default(),
            idle: Arc::default(),
            followed: HashMap::new(),
            latest: None,
            viewed: None,
            scraped: None,
            matrices: VecDeque::from([Arc::new(empty_matrix())]),
            failures: failures::Failures::default(),
            cpu_waits: cpu_waits::CpuWaits::default(),
            targets: latency::TargetLog::default(),
            stuck: storage::Stuck::default(),
            records: record::Records::default(),
            reload_since: None,
        })
    }

    /// Ends the command that runs while the server serves; the status of the program.
    pub(crate) fn end(self) -> ExitCode {
        self.given.companion.map_or(ExitCode::SUCCESS, Companion::end)
    }

    /// Takes charge of the layout record of the shared file.
    pub(crate) fn keep(&mut self, pool: Option<Pool>) -> anyhow::Result<()> {
        self.layout = pool.map(Keeper::new).transpose()?;
        Ok(())
    }

    /// Computes the counts since the last call, about a second ago; returns each tenant's row, the
    /// counts behind it, and the seconds. Tenants without requests cost next to nothing.
    fn count<'a>(
        &mut self,
        now: &Status,
        tenants: &'a TenantList,
    ) -> (Vec<Row<'a>>, Vec<Arc<TenantStats>>, f64) {
        let (elapsed, earlier) = &self.last;
        // Rates are divided by the seconds, which must not be 0.
        let seconds = (now.elapsed - *elapsed).as_secs_f64().max(1e-3);
        let stats = |member: &server::Member| &now.totals.tenants[usize::from(member.number())];
        let counted: Vec<Arc<TenantStats>> = tenants
            .members()
            .map(|member| match (earlier.get(&member.flow), stats(member)) {
                // The counts are the same object as a second ago, so the tenant had no requests in
                // between.
                (Some(earlier), stats) if Arc::ptr_eq(earlier, stats) && stats.in_flight == 0 => {
                    self.idle.clone()
                }
                (Some(earlier), stats) => Arc::new(stats.since(earlier)),
                (None, stats) => stats.clone(),
            })
            .collect();
        let names: Vec<(&str, u16)> = tenants
            .members()
            .map(|member| {
                // The effective weight of a tenant in a group is a part of the group's weight.
                let weight =
                    now.share_of(member).map_or(member.tenant.settings.weight, |of| of.weight);
                (&*member.tenant.name, weight.get())
            })
            .collect();
        let stores: Vec<u16> = tenants.members().map(|member| member.store).collect();
        let rows = status::rows(&names, &stores, &counted, seconds);
        let flows = || tenants.members().map(|member| member.flow);
        self.second = Arc::new(flows().zip(rows.iter().map(|row| row.now)).collect());
        self.last = (
            now.elapsed,
            flows().zip(tenants.members().map(|member| stats(member).clone())).collect(),
        );
        self.matrices.push_back(Arc::new(now.totals.matrix.clone()));
        if self.matrices.len() > INTERFERENCE_S + 1 {
            self.matrices.pop_front();
        }
        (rows, counted, seconds)
    }

    /// Shows a second's numbers on a terminal, or as lines with `--status`.
    fn show(&self, now: &Status, rows: &[Row<'_>], counted: &[Arc<TenantStats>], seconds: f64) {
        // With --run standard output belongs to the command, and with stdio it is the client's
        // connection: then nothing is printed there.
        let is_free = self.given.companion.is_none();
        let rows_of_terminal = status::terminal_rows().filter(|_| is_free);
        if self.plan.source == Source::Stdio || (rows_of_terminal.is_none() && !self.plan.status) {
            return;
        }
        // The server continues if its terminal is gone, so an error is ignored.
        let _ = match rows_of_terminal.filter(|_| !self.plan.status) {
            Some(rows_of_terminal) => {
                let most = rows_of_terminal.saturating_sub(6).max(1);
                status::redraw(&status::table(rows, most, &summary(now, counted, seconds)))
            }
            None => status::write(&status::lines(rows, now.elapsed)),
        };
    }
}

impl Operator for Console {
    fn ready(&mut self, admin: &dyn Admin, listening: &[server::Listen]) {
        let places: Vec<String> = listening.iter().map(ToString::to_string).collect();
        let (places, tenants) = (places.join(", "), self.plan.tenants.len());
        // No client is accepted before this returns.
        self.read_losses(admin, true);
        // The number of bytes outside of all ranges, which `fairq ctl add` can give to a tenant.
        let unassigned = self.unassigned(&admin.tenants());
        let s = if tenants == 1 { "" } else { "s" };
        tracing::info!(
            listening = places,
            tenants,
            device = self.plan.device.describe(),
            unassigned = (unassigned > 0).then_some(unassigned),
            "serving"
        );
        methods::warn_of_policy(&self.settings, &Settings::default());
        self.warn_of_groups(self.settings.tenant.iter().map(Spanned::get_ref));
        for tenant in self.plan.tenants.iter().filter(|tenant| !tenant.settings.caps.is_empty()) {
            caps::warn(&format!("tenant {}", tenant.name), &tenant.settings.caps);
        }
        for group in self.plan.groups.iter().filter(|group| !group.caps.is_empty()) {
            caps::warn(&format!("group {}", group.name), &group.caps);
        }
        notify(&[
            NotifyState::Ready,
            NotifyState::Status(&format!("serving {tenants} tenant{s} at {places}")),
        ]);
        self.stored.put(admin);
        if let Some(companion) = &mut self.given.companion {
            // Standard output belongs to the command, so nothing is printed there.
            let addresses: Vec<Listen> =
                listening.iter().filter_map(|at| at.clone().try_into().ok()).collect();
            let with_tls = self.plan.tls.as_ref().is_some_and(|tls| tls.is_required);
            let address = addresses.first().zip(self.plan.tenants.first());
            let uri = address.map(|(address, tenant)| address.uri(&tenant.name, with_tls));
            if let Err(error) = companion.start(&addresses, uri, self.plan.control.clone()) {
                tracing::error!("{error:#}");
                companion::end_server();
            }
        } else if self.plan.source != Source::Stdio {
            // The greeting is printed only if standard output is not the client's connection. The
            // server continues if standard output is closed.
            let _ = status::write(&format!("{}\n", (self.welcome)(listening)));
        }
    }

    fn took_over(&mut self, admin: &mut dyn Admin) -> bool {
        crate::take_over::commit();
        if let Some(recording) = self.upgrades.recording.take() {
            self.trace_go_on(admin, recording);
        }
        // The previous program's counts are not part of the next second's rates.
        let now = admin.status();
        self.matrices = VecDeque::from([Arc::new(now.totals.matrix.clone())]);
        self.count(&now, &admin.tenants());
        // The state of the previous program contains the tenants' errors, so the files are only
        // read and no tenant is marked.
        self.read_losses(admin, false);
        notify(&[NotifyState::Ready]);
        self.stored.put(admin);
        self.has_followed()
    }

    fn second(&mut self, admin: &mut dyn Admin) {
        self.follow_cgroups(admin);
        self.writers.log_refused();
        self.trace_expire(admin);
        self.give_up_waiting(admin);
        self.check_growth(admin);
        let (now, tenants) = (admin.status(), admin.tenants());
        // Every shard has answered for the status.
        notify(&[NotifyState::Watchdog]);
        let (rows, counted, seconds) = self.count(&now, &tenants);
        let members = tenants.members().zip(&counted);
        self.failures
            .log(now.elapsed, members.map(|(member, stats)| (&*member.tenant.name, &**stats)));
        self.cpu_waits.log(now.elapsed, &now.totals.shards);
        self.targets.log(&now, &tenants);
        self.stuck.log(&now, &tenants);
        self.keep_losses(&now, &tenants);
        self.show(&now, &rows, &counted, seconds);
        // The next viewer makes a new view; a second without viewers costs none.
        self.drop_snapshots();
        self.latest = Some(Arc::new(now));
    }

    fn opening(&mut self, tenant: &server::Tenant) -> bool {
        self.note_zeroed(tenant)
    }

    fn call(&mut self, admin: &mut dyn Admin, line: &str, made: server::Made) -> server::Reply {
        rpc::answer(line, made, |method, params| self.call_method(admin, method, params))
    }

    fn http(
        &mut self,
        admin: &mut dyn Admin,
        request: &server::HttpRequest,
    ) -> server::HttpResponse {
        web::answer(self, admin, request)
    }

    fn reload(&mut self, admin: &mut dyn Admin) -> bool {
        self.reload_by_signal(admin)
    }

    fn stopping(&mut self) {
        notify(&[NotifyState::Stopping]);
        self.stored.keep(&[]);
        tracing::info!("ending: finishing the requests in flight");
        if let Some(layout) = &mut self.layout {
            layout.end();
        }
        if std::io::stdout().is_terminal() && self.plan.source != Source::Stdio {
            println!("finishing the requests in flight");
        }
    }
}

/// Names of groups of tenants that are also names of groups of users.
fn ambiguous(groups: &[Group]) -> HashSet<String> {
    let ambiguous = groups.iter().filter(|group| group.is_ambiguous);
    ambiguous.map(|group| group.name.clone()).collect()
}

/// The files of tenants, with their numbers and sizes; their numbers follow the shared file's.
fn own_files(plan: &Plan, sizes: &[u64]) -> HashMap<PathBuf, (u16, u64)> {
    let paths = plan.tenants.iter().filter_map(|tenant| tenant.path.clone());
    let numbered =
        (0u16..).zip(sizes.iter().copied()).skip(usize::from(plan.device.has_shared_file()));
    paths.zip(numbered).collect()
}

/// Notifies the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// The last line of the status.
fn summary(now: &Status, counted: &[Arc<TenantStats>], seconds: f64) -> String {
    let operations: u64 = counted.iter().map(|tenant| tenant.operations()).sum();
    let bytes: u64 = counted.iter().map(|tenant| tenant.bytes()).sum();
    let errors: u64 = now.totals.tenants.iter().map(|tenant| tenant.errors).sum();
    let connections = match now.connections.iter().sum() {
        1 => "1 connection".to_owned(),
        n => format!("{n} connections"),
    };
    let mut parts = vec![connections];
    if operations > 0 {
        parts
            .push(format!("{} IOPS", fairq_config::units::show_count(operations as f64 / seconds)));
        parts.push(fairq_config::units::show_bandwidth(bytes as f64 / seconds));
    }
    if let (Some(slots), Some(free)) = (now.policy.slots, now.policy.free_slots) {
        parts.push(format!("{} of {slots} slots in use", slots.saturating_sub(free)));
    }
    if errors > 0 {
        parts.push(format!("{errors} failed"));
    }
    parts.join(" · ")
}
