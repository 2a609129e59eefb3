//! The configuration of `fairq serve`: a TOML file, flags that override it, and the resulting plan.
//!
//! It takes three steps, each of which refuses the faults that it can find:
//! 1. [`Settings`] are the values of a file or of flags: single values are checked here, where the
//!    file's line is known.
//! 2. [`Settings::overlaid`] overrides the file by flags, key by key.
//! 3. [`Settings::plan`] fills in defaults, checks values against each other, returns a [`Plan`].
//!
//! Every refusal names the fault, its place, and a remedy.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, Visitor};
use toml::Spanned;

use crate::access::{Directory, List};
use crate::device::{DeviceConfig, DeviceTable, Kind};
use crate::files::read_text;
use crate::group::{self, Group, GroupTable};
use crate::listen::Listen;
use crate::name::Origin;
use crate::pairs::explain;
use crate::policy::{PolicyConfig, PolicyTable};
use crate::poll::Poll;
use crate::refusal::Refusal;
use crate::tenant::{Tenant, TenantTable};
use crate::timeouts::{Timeouts, TimeoutsTable};
use crate::units::{Size, exact_size};
use crate::weight::Cgroups;
use crate::{keys, weight};

mod cpus;
mod whole_device;

pub use cpus::CpuList;

/// The most shards: each is a port of the policy.
const SHARDS_MAX: usize = fairq_core::PortSet::MAX_PORTS;
/// The least memory of a connection, in bytes: enough for a request of the largest size.
const MEMORY_MIN: u64 = fairq_host::nbd::serve::conn::Limits::MIN_MEMORY as u64;
/// The most tenants of a server.
const TENANTS_MAX: usize = 10_000;
/// The most tenants that a refusal names.
const NAMED_MAX: usize = 20;

/// Whether clients must use TLS.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, serde::Deserialize, serde::Serialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum TlsMode {
    /// No TLS.
    Off,
    /// Clients may use TLS.
    Optional,
    /// Clients must use TLS.
    Required,
}

/// `[tls]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs, reason = "fields are keys of files, which docs/REFERENCE.md describes")]
pub struct TlsTable {
    pub mode: Option<TlsMode>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub client_ca: Option<PathBuf>,
    pub client_crl: Option<PathBuf>,
}

/// `[limits]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs, reason = "fields are keys of files, which docs/REFERENCE.md describes")]
pub struct LimitsTable {
    pub connections: Option<u32>,
    pub memory: Option<Size>,
    pub memory_per_connection: Option<Size>,
    pub depth_per_connection: Option<u32>,
    pub guest_queues: Option<u32>,
}

/// The configuration of a file or of flags, without defaults.
#[derive(Clone, PartialEq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs, reason = "fields are keys of files, which docs/REFERENCE.md describes")]
pub struct Settings {
    #[serde(default, deserialize_with = "device_text_or_table")]
    pub device: Option<DeviceTable>,
    #[serde(default, deserialize_with = "policy_text_or_table")]
    pub policy: Option<PolicyTable>,
    #[serde(default)]
    pub tenant: Vec<Spanned<TenantTable>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<Spanned<GroupTable>>,
    /// The tenant whose export clients get if they name none.
    #[serde(rename = "default")]
    pub default_tenant: Option<String>,
    #[serde(default)]
    pub listen: Vec<Listen>,
    pub control: Option<PathBuf>,
    #[serde(default)]
    pub metrics: Vec<Listen>,
    #[serde(default)]
    pub metrics_host: Vec<String>,
    pub web_token: Option<PathBuf>,
    pub cgroup_root: Option<PathBuf>,
    pub stdio: Option<bool>,
    pub shards: Option<u32>,
    pub cpus: Option<CpuList>,
    pub poll: Option<Poll>,
    #[serde(default)]
    pub tls: TlsTable,
    #[serde(default)]
    pub limits: LimitsTable,
    #[serde(default)]
    pub timeouts: TimeoutsTable,
    pub status: Option<bool>,
    pub log: Option<String>,
}

fn device_text_or_table<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<DeviceTable>, D::Error> {
    text_or_table("a device: \"ram,size=4G\", or a table", deserializer)
}

fn policy_text_or_table<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PolicyTable>, D::Error> {
    text_or_table("a policy: \"mqfq:slots=64\", or a table", deserializer)
}

/// Reads a value in the form of the command line, or a table.
fn text_or_table<'de, T, D>(expecting: &'static str, deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err = String> + DeserializeOwned,
    D: Deserializer<'de>,
{
    struct TextOrTable<T>(&'static str, PhantomData<T>);

    impl<'de, T: FromStr<Err = String> + DeserializeOwned> Visitor<'de> for TextOrTable<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(table))
        }
    }

    deserializer.deserialize_any(TextOrTable(expecting, PhantomData)).map(Some)
}

/// Reads a configuration file.
pub fn load(path: &Path) -> Result<Settings, Refusal> {
    let text = read_text(path)?;
    parse(&text, &path.display().to_string())
}

/// Parses a configuration; `path` is for messages.
pub fn parse(text: &str, path: &str) -> Result<Settings, Refusal> {
    let mut settings: Settings =
        toml::from_str(text).map_err(|error| misread(text, path, &error))?;
    let mut lines = Lines { text, line: 1, at: 0 };
    for tenant in &mut settings.tenant {
        let line = lines.of(tenant.span().start);
        tenant.get_mut().origin = Origin::File(path.to_owned(), line);
    }
    let mut lines = Lines { text, line: 1, at: 0 };
    for group in &mut settings.group {
        let line = lines.of(group.span().start);
        group.get_mut().origin = Origin::File(path.to_owned(), line);
    }
    Ok(settings)
}

/// Counts lines for positions in increasing order, so that each line of the file is counted once.
struct Lines<'a> {
    text: &'a str,
    line: usize,
    at: usize,
}

impl Lines<'_> {
    fn of(&mut self, start: usize) -> usize {
        self.line += self.text.get(self.at..start).unwrap_or("").matches('\n').count();
        self.at = start.max(self.at);
        self.line
    }
}

/// The refusal of a file with a fault, with the faulty line.
pub fn misread(text: &str, path: &str, error: &toml::de::Error) -> Refusal {
    let message = explain(error.message());
    let Some(span) = error.span() else { return Refusal::new(format!("{path}: {message}")) };
    let (line, column) = line_and_column(text, span.start);
    let shown = text.lines().nth(line - 1).unwrap_or("");
    // An error of a value does not name its key, but the line does. Columns count characters, and
    // `get` counts bytes: beyond ASCII the key is left out.
    let key = shown.get(..column - 1).and_then(|before| before.trim_end().strip_suffix('='));
    let key = key
        .and_then(|before| before.rsplit(['{', ',']).next())
        .map(|key| format!("{}: ", key.trim()));
    let width = text
        .get(span.clone())
        .map_or(1, |marked| marked.lines().next().unwrap_or("").chars().count().max(1));
    let gutter = " ".repeat(line.to_string().len());
    Refusal::new(format!(
        "{path}:{line}:{column}: {}{message}\n {gutter} |\n {line} | {shown}\n {gutter} | {}{}",
        key.unwrap_or_default(),
        " ".repeat(column - 1),
        "^".repeat(width),
    ))
}

/// Line and column of a byte, from 1.
pub fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// The value that is set, or both values combined by `together`.
fn both<T>(under: Option<T>, over: Option<T>, together: impl FnOnce(T, T) -> T) -> Option<T> {
    match (under, over) {
        (Some(under), Some(over)) => Some(together(under, over)),
        (under, over) => over.or(under),
    }
}

impl Settings {
    /// Overrides values with those of `flags`: key by key in tables, tenants and groups by name,
    /// and lists of addresses as a whole.
    pub fn overlaid(self, flags: Settings) -> Settings {
        let mut tenant = self.tenant;
        for flag in flags.tenant {
            // A flag does not override another flag: two flags of one new name are a mistake, which
            // is refused later.
            match tenant.iter_mut().find(|tenant| {
                tenant.get_ref().name == flag.get_ref().name
                    && tenant.get_ref().origin != Origin::Flag
            }) {
                Some(place) => {
                    *place.get_mut() = place.get_ref().clone().overlaid(flag.into_inner())
                }
                None => tenant.push(flag),
            }
        }
        let mut group = self.group;
        for flag in flags.group {
            match group.iter_mut().find(|group| {
                group.get_ref().name == flag.get_ref().name
                    && group.get_ref().origin != Origin::Flag
            }) {
                Some(place) => {
                    *place.get_mut() = place.get_ref().clone().overlaid(flag.into_inner())
                }
                None => group.push(flag),
            }
        }
        Settings {
            group,
            default_tenant: flags.default_tenant.or(self.default_tenant),
            device: both(self.device, flags.device, DeviceTable::overlaid),
            policy: both(self.policy, flags.policy, PolicyTable::overlaid),
            tenant,
            listen: if flags.listen.is_empty() { self.listen } else { flags.listen },
            control: flags.control.or(self.control),
            metrics: if flags.metrics.is_empty() { self.metrics } else { flags.metrics },
            metrics_host: if flags.metrics_host.is_empty() {
                self.metrics_host
            } else {
                flags.metrics_host
            },
            web_token: flags.web_token.or(self.web_token),
            cgroup_root: flags.cgroup_root.or(self.cgroup_root),
            stdio: flags.stdio.or(self.stdio),
            shards: flags.shards.or(self.shards),
            cpus: flags.cpus.or(self.cpus),
            poll: flags.poll.or(self.poll),
            tls: keys::overlay(&self.tls, &flags.tls),
            limits: keys::overlay(&self.limits, &flags.limits),
            timeouts: keys::overlay(&self.timeouts, &flags.timeouts),
            status: flags.status.or(self.status),
            log: flags.log.or(self.log),
        }
    }

    /// The settings with only the tenants that `is_wanted` selects.
    pub fn of_tenants(&self, is_wanted: impl Fn(&str) -> bool) -> Settings {
        let tenants = self.tenant.iter().filter(|tenant| is_wanted(&tenant.get_ref().name));
        Settings {
            device: self.device.clone(),
            policy: self.policy.clone(),
            tenant: tenants.cloned().collect(),
            group: self.group.clone(),
            default_tenant: self.default_tenant.clone(),
            listen: self.listen.clone(),
            control: self.control.clone(),
            metrics: self.metrics.clone(),
            metrics_host: self.metrics_host.clone(),
            web_token: self.web_token.clone(),
            cgroup_root: self.cgroup_root.clone(),
            stdio: self.stdio,
            shards: self.shards,
            cpus: self.cpus.clone(),
            poll: self.poll,
            tls: self.tls.clone(),
            limits: self.limits.clone(),
            timeouts: self.timeouts.clone(),
            status: self.status,
            log: self.log.clone(),
        }
    }
}

/// Properties of the machine, as an argument so that tests can set them.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The CPUs that this process may use.
    pub cpus: Vec<usize>,
    /// Sockets from the service manager.
    pub inherited_sockets: usize,
    /// Default address for clients.
    pub default_socket: PathBuf,
    /// Default control socket, beside `default_socket`.
    pub default_control: PathBuf,
}

/// The source of requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// One connection, on standard input and output.
    Stdio,
    /// Addresses, and sockets from the service manager.
    Sockets(Vec<Listen>),
}

/// Complete settings of TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// Whether clients must use TLS.
    pub is_required: bool,
    /// The server's certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that signs clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// List of revoked client certificates.
    pub client_crl: Option<PathBuf>,
}

/// Complete limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most open connections of the server.
    pub connections: u32,
    /// The most bytes of requests and replies of all connections; half of the memory if `None`.
    pub memory: Option<u64>,
    /// The most bytes of requests and replies of one connection.
    pub memory_per_connection: u64,
    /// The most requests of one connection that are being served.
    pub depth_per_connection: u32,
    /// The most virtqueues of all guests.
    pub guest_queues: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 256,
            memory: None,
            memory_per_connection: MEMORY_MIN,
            depth_per_connection: 512,
            guest_queues: 64,
        }
    }
}

/// The tenant whose export clients get if they name none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DefaultTenant {
    /// Its name.
    pub name: String,
    /// Whether the configuration names it; otherwise it is the default only while it is the only
    /// tenant.
    pub is_named: bool,
}

/// A server's complete configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The device.
    pub device: DeviceConfig,
    /// The policy of the device.
    pub policy: PolicyConfig,
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// The groups of tenants, outer ones first.
    pub groups: Vec<Group>,
    /// The tenant whose export clients get if they name none.
    pub default: Option<DefaultTenant>,
    /// The source of requests.
    pub source: Source,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// Addresses of metrics and the web page.
    pub metrics: Vec<Listen>,
    /// Additional host names for these addresses.
    pub metrics_host: Vec<String>,
    /// The file with the token for changing weights on the page; without it no client can.
    pub web_token: Option<PathBuf>,
    /// The folder of tenants' cgroups.
    pub cgroup_root: PathBuf,
    /// The CPU of each shard.
    pub cpus: Vec<usize>,
    /// When the shards poll the rings of guests instead of sleeping.
    pub poll: Poll,
    /// TLS, if it is on.
    pub tls: Option<Tls>,
    /// Limits of connections and memory.
    pub limits: Limits,
    /// Time limits for clients, storage and requests.
    pub timeouts: Timeouts,
    /// Whether status lines are printed without a terminal.
    pub status: bool,
}

impl Settings {
    /// Fills in defaults and refuses values that do not fit. Resolving users may take time.
    pub fn plan(&self, surroundings: &Surroundings) -> Result<Plan, Refusal> {
        let cgroup_root = self.cgroups().root;
        let directory = Directory::default();
        let mut groups = self.complete_groups()?;
        let tables = || self.tenant.iter().map(Spanned::get_ref);
        let users = tables().flat_map(|table| &table.user).flat_map(|List(names)| names);
        let named = tables().flat_map(|table| [&table.group, &table.unix_group]);
        let named = named.flatten().flat_map(|List(names)| names);
        let groups_named = named.chain(groups.iter().map(|group| &group.name));
        directory.learn(users.map(String::as_str), groups_named.map(String::as_str));
        group::mark_ambiguous(&mut groups, &directory);
        let tenants = self.complete_tenants(&cgroup_root, &groups, &directory)?;
        self.check_whole_device(tenants.len())?;
        let all_have_files = tenants.iter().all(|tenant| tenant.path.is_some());
        // Without a device the demo's is used, unless all tenants have files of their own.
        let implied = if all_have_files { Kind::File } else { Kind::Paced };
        let device = self.device.clone().unwrap_or_default().complete(implied)?;
        check_files(&device, &tenants)?;
        let tls = complete_tls(&self.tls)?;
        // TLS is completed first: identities are valid only with client certificates.
        check_identities(&tenants, tls.as_ref())?;
        Ok(Plan {
            default: self.complete_default(&tenants)?,
            device,
            policy: self.policy_table().complete()?,
            tenants,
            groups,
            source: self.source(surroundings)?,
            control: self.control_socket(surroundings),
            metrics: self.metrics.clone(),
            metrics_host: complete_hosts(&self.metrics_host)?,
            web_token: self.web_token.clone(),
            cgroup_root,
            cpus: complete_cpus(self.shards, self.cpus.as_ref(), &surroundings.cpus)?,
            poll: self.poll.unwrap_or_default(),
            tls,
            limits: complete_limits(&self.limits)?,
            timeouts: self.timeouts.complete()?,
            status: self.status.unwrap_or(false),
        })
    }

    /// The named default tenant, or the only tenant.
    fn complete_default(&self, tenants: &[Tenant]) -> Result<Option<DefaultTenant>, Refusal> {
        let Some(name) = &self.default_tenant else {
            let [only] = tenants else { return Ok(None) };
            return Ok(Some(DefaultTenant { name: only.name.clone(), is_named: false }));
        };
        if tenants.iter().all(|tenant| tenant.name != *name) {
            return Err(Refusal::new(format!(
                "default: there is no tenant {name}: name one of the tenants, or leave default out"
            )));
        }
        Ok(Some(DefaultTenant { name: name.clone(), is_named: true }))
    }

    /// The root of cgroups, and the disk of `io.max`.
    pub fn cgroups(&self) -> Cgroups {
        let root = self.cgroup_root.clone().unwrap_or_else(weight::cgroup_root);
        Cgroups::new(root, self.device.as_ref().and_then(|device| device.path.as_deref()))
    }

    /// The groups of tenants, outer ones first.
    pub fn complete_groups(&self) -> Result<Vec<Group>, Refusal> {
        let tables = self.group.iter().map(Spanned::get_ref);
        if !tables.clone().any(GroupTable::follows) {
            return group::complete(tables, None);
        }
        group::complete(tables, Some(&self.cgroups()))
    }

    /// The groups without cgroups' values, for their names, places and targets.
    pub fn known_groups(&self) -> Result<Vec<Group>, Refusal> {
        group::complete(self.group.iter().map(Spanned::get_ref), None)
    }

    /// Whether the device is a file or disk, which may have its owner's data.
    fn is_of_a_file(&self) -> bool {
        self.device.as_ref().is_some_and(|device| {
            device.kind == Some(Kind::File)
                || (device.kind.is_none() && device.path.is_some())
                || device
                    .backing
                    .as_deref()
                    .is_some_and(|backing| !matches!(backing, "ram" | "null"))
        })
    }

    fn complete_tenants(
        &self,
        cgroups: &Path,
        groups: &[Group],
        directory: &Directory,
    ) -> Result<Vec<Tenant>, Refusal> {
        let mut tables: Vec<TenantTable> =
            self.tenant.iter().map(|tenant| tenant.get_ref().clone()).collect();
        if tables.is_empty() {
            tables = self.implied_tenants();
        }
        if tables.is_empty() {
            return Err(Refusal::new(
                "no tenants: name the tenants that share the device, as in --tenant \
                 db=10G,weight=300 --tenant web,weight=100",
            ));
        }
        if tables.len() > TENANTS_MAX {
            return Err(Refusal::new(format!(
                "{} tenants are too many: at most {TENANTS_MAX}",
                tables.len()
            )));
        }
        let mut names = HashMap::with_capacity(tables.len());
        for table in &tables {
            if let Some(earlier) = names.insert(table.name.as_str(), table) {
                return Err(Refusal::new(format!(
                    "{}: tenant {} is already there ({}): rename one",
                    table.origin, table.name, earlier.origin
                )));
            }
        }
        tables.into_iter().map(|table| table.complete(cgroups, groups, directory)).collect()
    }

    /// The configured control socket, or the default one if the default address is used.
    fn control_socket(&self, surroundings: &Surroundings) -> Option<PathBuf> {
        // Other addresses have no default place for the control socket.
        let is_default = self.listen.is_empty()
            && surroundings.inherited_sockets == 0
            && self.stdio != Some(true);
        self.control.clone().or_else(|| is_default.then(|| surroundings.default_control.clone()))
    }

    /// The settings with the default tenants if none is named.
    pub fn with_tenants(mut self) -> Settings {
        if self.tenant.is_empty() {
            let tenants = self.implied_tenants().into_iter();
            self.tenant = tenants.map(|tenant| Spanned::new(0..0, tenant)).collect();
        }
        self
    }

    fn source(&self, surroundings: &Surroundings) -> Result<Source, Refusal> {
        if self.stdio.unwrap_or(false) {
            if !self.listen.is_empty() {
                return Err(Refusal::new(
                    "stdio serves one connection and listens nowhere: leave out listen, or stdio",
                ));
            }
            return Ok(Source::Stdio);
        }
        if let Some(metrics) = self.metrics.iter().find(|at| !at.is_nbd()) {
            return Err(Refusal::new(format!(
                "metrics {metrics}: HTTP is served at unix:PATH or tcp:ADDRESS:PORT"
            )));
        }
        for (index, listen) in self.listen.iter().enumerate() {
            if self.listen[..index].contains(listen) {
                return Err(Refusal::new(format!("listen {listen} is given twice: leave one out")));
            }
        }
        if self.listen.is_empty() && surroundings.inherited_sockets == 0 {
            return Ok(Source::Sockets(vec![Listen::Unix(surroundings.default_socket.clone())]));
        }
        Ok(Source::Sockets(self.listen.clone()))
    }
}

fn check_files(device: &DeviceConfig, tenants: &[Tenant]) -> Result<(), Refusal> {
    let with_file = tenants.iter().find(|tenant| tenant.path.is_some());
    let without = tenants.iter().find(|tenant| tenant.path.is_none());
    match (device, with_file, without) {
        (DeviceConfig::File { file: None, .. }, _, Some(tenant)) => Err(Refusal::new(format!(
            "{}: tenant {} has no file of its own and the device has none to share: add path=FILE \
             to the tenant, or to \
             the device",
            tenant.origin, tenant.name
        ))),
        (device, _, None) if device.shared_file().is_some_and(|_| !tenants.is_empty()) => {
            Err(Refusal::new(format!(
                "device: every tenant has a file of its own, so nobody would use {}: leave the \
                 device's path out",
                device.shared_file().map_or(String::new(), |file| file.path.display().to_string())
            )))
        }
        (DeviceConfig::File { .. }, ..) | (_, None, _) => Ok(()),
        // A software controller with a file opens tenants' files as well.
        (device, ..) if device.shared_file().is_some() => Ok(()),
        (_, Some(tenant), _) => Err(Refusal::new(format!(
            "{}: tenant {} has a file of its own, but the device keeps everything in memory: use \
             device file, or leave \
             out path",
            tenant.origin, tenant.name
        ))),
    }
}

/// Host names of this server as in browsers: without scheme, port and brackets.
fn complete_hosts(names: &[String]) -> Result<Vec<String>, Refusal> {
    let is_name = |name: &String| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        // 253 is the length of the longest name in DNS (RFC 1035).
        is_address || (!name.is_empty() && name.len() <= 253 && name.bytes().all(plain))
    };
    match names.iter().find(|name| !is_name(name)) {
        None => Ok(names.to_vec()),
        Some(name) => Err(Refusal::new(format!(
            "metrics-host: `{name}` is not the name of a host: write it without http:// and port, \
             as in fairq.example.org"
        ))),
    }
}

fn complete_tls(table: &TlsTable) -> Result<Option<Tls>, Refusal> {
    let mode =
        table.mode.unwrap_or(if table.cert.is_some() { TlsMode::Required } else { TlsMode::Off });
    if mode == TlsMode::Off {
        let given = [
            ("key", &table.key),
            ("client-ca", &table.client_ca),
            ("client-crl", &table.client_crl),
        ]
        .into_iter()
        .find(|(_, path)| path.is_some());
        return match given {
            // With an explicit `off` the paths may stay.
            Some((what, _)) if table.mode.is_none() => Err(Refusal::new(format!(
                "tls: {what} is given but no certificate: add --tls-cert FILE"
            ))),
            _ => Ok(None),
        };
    }
    if table.client_crl.is_some() && table.client_ca.is_none() {
        return Err(Refusal::new(
            "tls: client-crl lists revoked certificates of clients, but none are requested: add \
             --tls-client-ca FILE",
        ));
    }
    let (Some(cert), Some(key)) = (table.cert.clone(), table.key.clone()) else {
        let missing = if table.cert.is_none() {
            "certificate: add --tls-cert"
        } else {
            "private key: add --tls-key"
        };
        return Err(Refusal::new(format!("tls: TLS needs the server's {missing} FILE")));
    };
    Ok(Some(Tls {
        is_required: mode == TlsMode::Required,
        cert,
        key,
        client_ca: table.client_ca.clone(),
        client_crl: table.client_crl.clone(),
    }))
}

/// Identities require client certificates, and client certificates require identities: otherwise
/// any certificate of the authority would open a tenant without the key.
pub fn check_identities(tenants: &[Tenant], tls: Option<&Tls>) -> Result<(), Refusal> {
    let are_certified = tls.is_some_and(|tls| tls.client_ca.is_some());
    let named = tenants.iter().find(|tenant| tenant.settings.identity.is_some());
    if let (Some(tenant), false) = (named, are_certified) {
        return Err(Refusal::new(format!(
            "{}: tenant {}: identity needs client certificates: add --tls-cert, --tls-key and \
             --tls-client-ca",
            tenant.origin, tenant.name
        )));
    }
    let is_open =
        |tenant: &&Tenant| tenant.settings.identity.is_none() && tenant.settings.users.is_empty();
    let open: Vec<&Tenant> = tenants.iter().filter(is_open).collect();
    let (Some(first), true) = (open.first(), are_certified) else { return Ok(()) };
    let shown: Vec<&str> = open.iter().take(NAMED_MAX).map(|tenant| &*tenant.name).collect();
    let more = match open.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(Refusal::new(format!(
        "{}: with client-ca, but without identity, every certificate of that authority would open \
         {}{more}: give each identity = \"NAME\" of its client's certificate, or identity = \
         \"any\" if that is meant",
        first.origin,
        shown.join(", ")
    )))
}

/// The CPU of each shard; by default there is one shard for each CPU. More shards than CPUs share
/// them.
pub fn complete_cpus(
    shards: Option<u32>,
    cpus: Option<&CpuList>,
    available: &[usize],
) -> Result<Vec<usize>, Refusal> {
    if let Some(0) = shards {
        return Err(Refusal::new(format!("shards: 0 serves no client: write 1 to {SHARDS_MAX}")));
    }
    let list = cpus.map_or(available, |CpuList(list)| list.as_slice());
    if let Some(cpu) = list.iter().find(|cpu| !available.contains(cpu)) {
        let offered = available.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        return Err(Refusal::new(format!(
            "cpus: CPU {cpu} is not there for this process: choose from {offered}"
        )));
    }
    // A machine may have more CPUs than a policy can have ports.
    let count = shards.map_or(list.len().min(SHARDS_MAX), |shards| shards as usize);
    if count > SHARDS_MAX {
        return Err(Refusal::new(format!("shards: {count} are too many: write 1 to {SHARDS_MAX}")));
    }
    Ok(list.iter().copied().cycle().take(count).collect())
}

fn complete_limits(table: &LimitsTable) -> Result<Limits, Refusal> {
    let default = Limits::default();
    let within = |key: &str, value: Option<u32>, default: u32, most: u32| match value {
        Some(value) if !(1..=most).contains(&value) => Err(Refusal::new(format!(
            "limits: {key} {value} is not in 1..{most}: the default is {default}"
        ))),
        value => Ok(value.unwrap_or(default)),
    };
    let memory =
        table.memory_per_connection.map_or(default.memory_per_connection, |Size(bytes)| bytes);
    if !(MEMORY_MIN..=1 << 32).contains(&memory) {
        return Err(Refusal::new(format!(
            "limits: memory-per-connection {} is not in {}..4G: the default is {}",
            exact_size(memory),
            exact_size(MEMORY_MIN),
            exact_size(default.memory_per_connection)
        )));
    }
    let total = table.memory.map(|Size(bytes)| bytes);
    if let Some(bytes) = total.filter(|bytes| *bytes < MEMORY_MIN) {
        return Err(Refusal::new(format!(
            "limits: memory {} is below {}, which one connection may need: the default is half of \
             what the machine, or the service, has",
            exact_size(bytes),
            exact_size(MEMORY_MIN),
        )));
    }
    Ok(Limits {
        memory: total,
        connections: within("connections", table.connections, default.connections, 1 << 16)?,
        memory_per_connection: memory,
        depth_per_connection: within(
            "depth-per-connection",
            table.depth_per_connection,
            default.depth_per_connection,
            4096,
        )?,
        guest_queues: within("guest-queues", table.guest_queues, default.guest_queues, 4096)?,
    })
}

#[cfg(test)]
mod tests;
