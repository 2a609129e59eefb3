//! `fairq serve`: from a plan to a running server, and what it tells the operator.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Context;
use fairq_core::Policy;
use fairq_host::device::Device;
use fairq_host::device::any::AnyDevice;
use fairq_host::nbd::handshake::HandshakeOptions;
use fairq_host::nbd::{conn, tls};
use fairq_host::server::{self, Observer, ServerError, Status};
use fairq_host::stats::TenantStats;
use std::sync::Arc;

use crate::args::ServeArgs;
use crate::config::device::{DeviceConfig, FileConfig};
use crate::config::listen::{self, Listen};
use crate::config::tenant::{Range, Tenant, layout};
use crate::config::{self, Plan, Refusal, Source, Surroundings};
use crate::engine::{Shape, WithPolicy, available_cpus, describe_policy, shards_in_words, with_policy};
use crate::report::{align_right, plain_table, show_percent};
use crate::status;
use crate::units::exact_size;

/// Reads the configuration; the log level in it is for the caller.
pub(crate) fn settings(args: ServeArgs) -> Result<config::Settings, Refusal> {
    let file = args.config.as_deref().map(config::load).transpose()?.unwrap_or_default();
    Ok(file.overlaid(args.settings()))
}

/// Serves until told to end.
pub(crate) fn run(settings: config::Settings) -> anyhow::Result<()> {
    let surroundings = Surroundings {
        cpus: available_cpus(),
        inherited_sockets: inherited_sockets(),
        default_socket: listen::default_socket(),
    };
    let plan = settings.plan(&surroundings)?;
    let device = plan.device.open(own_files(&plan.tenants))?;
    let ranges = ranges(&plan, &device.info().sizes)?;
    let config = server_config(&plan, &ranges, surroundings.inherited_sockets)?;
    let shape =
        Shape { cpus: &plan.cpus, flows: plan.tenants.len(), tags: config.tags, slots: plan.device.default_slots() };
    let console = Console::new(&plan, &ranges);
    with_policy(&plan.policy, shape, Serve { device, config, console })??;
    Ok(())
}

struct Serve<'a> {
    device: Arc<AnyDevice>,
    config: server::Config,
    console: Console<'a>,
}

impl WithPolicy for Serve<'_> {
    type Output = Result<(), ServerError>;

    fn run<L: Policy>(mut self, policy: L, ports: Vec<L::Port>) -> Self::Output
    where
        L::Port: 'static,
    {
        server::serve(policy, ports, self.device, self.config, &mut self.console)
    }
}

/// The sockets that the service manager passed to this process.
fn inherited_sockets() -> usize {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    let ours = number("LISTEN_PID").is_none_or(|pid| pid == std::process::id() as usize);
    number("LISTEN_FDS").filter(|_| ours).unwrap_or(0)
}

/// The files of tenants that have one of their own.
fn own_files(tenants: &[Tenant]) -> Vec<FileConfig> {
    let file =
        |tenant: &Tenant| Some(FileConfig { path: tenant.path.clone()?, size: tenant.size, create: tenant.create });
    tenants.iter().filter_map(file).collect()
}

/// Each tenant's range of the opened device.
fn ranges(plan: &Plan, sizes: &[u64]) -> Result<Vec<Range>, Refusal> {
    match (&plan.device, sizes) {
        (DeviceConfig::File { file: None, .. }, own) => layout(&plan.tenants, None, own),
        (_, [shared, own @ ..]) => layout(&plan.tenants, Some(*shared), own),
        (_, []) => layout(&plan.tenants, None, &[]),
    }
}

fn server_config(plan: &Plan, ranges: &[Range], inherited: usize) -> anyhow::Result<server::Config> {
    let tenant = |(tenant, range): (&Tenant, &Range)| server::Tenant {
        name: tenant.name.clone(),
        description: tenant.description.clone(),
        weight: tenant.weight,
        file: range.file,
        base: range.offset,
        size: range.size,
        read_only: tenant.read_only,
        urgent: tenant.urgent,
        identity: tenant.identity.clone(),
    };
    let mut listen: Vec<server::Listen> = Vec::new();
    match &plan.source {
        Source::Stdio => listen.push(server::Listen::Stdio),
        Source::Sockets(addresses) => {
            if inherited > 0 {
                listen.push(server::Listen::Inherited);
            }
            listen.extend(addresses.iter().map(|address| match address {
                Listen::Unix(path) => server::Listen::Unix(path.clone()),
                Listen::Tcp(address) => server::Listen::Tcp(*address),
            }));
        }
    }
    let tls = match &plan.tls {
        None => tls::TlsMode::Off,
        Some(config) => {
            let keys = tls::Tls::load(&config.cert, &config.key, config.client_ca.as_deref())
                .map_err(|error| Refusal::new(format!("tls: {error}")))?;
            if config.is_required { tls::TlsMode::Required(keys) } else { tls::TlsMode::Optional(keys) }
        }
    };
    let memory = usize::try_from(plan.limits.memory_per_connection).context("memory-per-connection")?;
    let limits = conn::Limits { depth: plan.limits.depth_per_connection as u16, memory };
    let connections = (plan.limits.connections as usize).div_ceil(plan.cpus.len());
    Ok(server::Config {
        tenants: plan.tenants.iter().zip(ranges).map(tenant).collect(),
        listen,
        cpus: plan.cpus.clone(),
        limits,
        connections,
        tags: limits.tags(connections),
        handshake: HandshakeOptions { tls, ..HandshakeOptions::default() },
    })
}

/// What the operator sees.
struct Console<'a> {
    plan: &'a Plan,
    ranges: &'a [Range],
    names: Vec<(String, u16)>,
    last: (Duration, Vec<TenantStats>),
}

impl<'a> Console<'a> {
    fn new(plan: &'a Plan, ranges: &'a [Range]) -> Console<'a> {
        let names: Vec<_> = plan.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.weight.get())).collect();
        let none = names.iter().map(|_| TenantStats::default()).collect();
        Console { plan, ranges, names, last: (Duration::ZERO, none) }
    }

    /// What is served, to whom, and how to attach.
    fn welcome(&self, listening: &[server::Listen]) -> String {
        let plan = self.plan;
        let cpus: Vec<String> = plan.cpus.iter().map(usize::to_string).collect();
        let mut text = format!(
            "fairq {}: {} · {} · {} on CPU {}\n\n",
            env!("CARGO_PKG_VERSION"),
            plan.device.describe(),
            describe_policy(&plan.policy, plan.device.default_slots()),
            shards_in_words(cpus.len()),
            cpus.join(","),
        );
        let addresses: Vec<Listen> = listening
            .iter()
            .filter_map(|at| match at {
                server::Listen::Unix(path) => Some(Listen::Unix(path.clone())),
                server::Listen::Tcp(address) => Some(Listen::Tcp(*address)),
                server::Listen::Inherited | server::Listen::Stdio => None,
            })
            .collect();
        let with_tls = plan.tls.as_ref().is_some_and(|tls| tls.is_required);
        text += &self.tenant_table(&addresses, with_tls);
        if let (Some(address), Some(tenant)) = (addresses.first(), plan.tenants.first()) {
            text += &attach(address, tenant, with_tls);
        }
        text
    }

    fn tenant_table(&self, addresses: &[Listen], with_tls: bool) -> String {
        let total: f64 = self.names.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let mut table = plain_table();
        table.set_header(["tenant", "weight", "entitled", "size", "at"]);
        for (tenant, range) in self.plan.tenants.iter().zip(self.ranges) {
            let uris: Vec<String> = addresses.iter().map(|address| address.uri(&tenant.name, with_tls)).collect();
            let size = if tenant.read_only { format!("{} ro", exact_size(range.size)) } else { exact_size(range.size) };
            table.add_row([
                tenant.name.clone(),
                tenant.weight.get().to_string(),
                show_percent(f64::from(tenant.weight.get()) / total),
                size,
                uris.join("\n"),
            ]);
        }
        align_right(&mut table);
        if let Some(column) = table.column_mut(4) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        format!("{}\n", table.trim_fmt())
    }
}

/// Commands to attach with.
fn attach(address: &Listen, tenant: &Tenant, with_tls: bool) -> String {
    let uri = address.uri(&tenant.name, with_tls);
    let name = &tenant.name;
    let rw = if tenant.read_only { "randread" } else { "randrw" };
    let connect = match address {
        Listen::Unix(path) => format!("-unix {}", path.display()),
        Listen::Tcp(address) => format!("{} {}", address.ip(), address.port()),
    };
    let mut text = format!("\nAttach with, for example:\n  nbdinfo '{uri}'\n");
    if !with_tls {
        text += &format!(
            "  fio --name={name} --ioengine=nbd --uri='{uri}' --rw={rw} --bs=4k --iodepth=32 --time_based --runtime=30\n  \
             nbd-client {connect} /dev/nbd0 -N {name}\n"
        );
    }
    text + &format!("  qemu-img convert -n -f raw -O raw disk.img '{uri}'\n")
}

impl Observer for Console<'_> {
    fn ready(&mut self, listening: &[server::Listen]) {
        // On standard output only if it is not the connection itself.
        if self.plan.source != Source::Stdio {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{}", self.welcome(listening)).and_then(|()| out.flush());
        }
    }

    fn second(&mut self, now: &Status) {
        let rows_of_terminal = status::terminal_rows();
        if self.plan.source == Source::Stdio || (rows_of_terminal.is_none() && !self.plan.status) {
            return;
        }
        let (elapsed, earlier) = &self.last;
        let seconds = (now.elapsed - *elapsed).as_secs_f64().max(1e-3);
        let counted: Vec<TenantStats> = now.tenants.iter().zip(earlier).map(|(now, then)| now.since(then)).collect();
        let rows = status::rows(&self.names, &counted, seconds);
        // A terminal that went away is no reason to stop serving.
        let _ = match rows_of_terminal.filter(|_| !self.plan.status) {
            Some(rows_of_terminal) => {
                let most = rows_of_terminal.saturating_sub(6).max(1);
                status::redraw(&status::table(&rows, most, &summary(now, &counted, seconds)))
            }
            None => {
                let mut out = std::io::stdout().lock();
                out.write_all(status::lines(&rows, now.elapsed).as_bytes()).and_then(|()| out.flush())
            }
        };
        self.last = (now.elapsed, now.tenants.clone());
    }

    fn stopping(&mut self) {
        if std::io::stdout().is_terminal() && self.plan.source != Source::Stdio {
            println!("finishing what is in flight");
        }
    }
}

/// The last line of the status.
fn summary(now: &Status, counted: &[TenantStats], seconds: f64) -> String {
    let operations: u64 = counted.iter().map(TenantStats::operations).sum();
    let bytes: u64 = counted.iter().map(TenantStats::bytes).sum();
    let errors: u64 = now.tenants.iter().map(|tenant| tenant.errors).sum();
    let connections = match now.connections {
        1 => "1 connection".to_owned(),
        n => format!("{n} connections"),
    };
    let mut parts = vec![connections];
    if operations > 0 {
        parts.push(format!("{} IOPS", crate::units::show_count(operations as f64 / seconds)));
        parts.push(crate::units::show_bandwidth(bytes as f64 / seconds));
    }
    if let (Some(slots), Some(free)) = (now.policy.slots, now.policy.free_slots) {
        parts.push(format!("{} of {slots} slots in use", slots.saturating_sub(free)));
    }
    if errors > 0 {
        parts.push(format!("{errors} failed"));
    }
    parts.join(" · ")
}
