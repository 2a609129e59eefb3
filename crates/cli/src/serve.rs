//! `fairq serve`: from a plan to a running server, and its messages to the operator.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use fairq_config::device::FileConfig;
use fairq_config::engine::{FLOWS_MIN, Shape, available_cpus, shards_in_words, topology};
use fairq_config::layout::pool::{Found, Media, Start, state_directory};
use fairq_config::layout::record::Record;
use fairq_config::listen::{self, Listen, guest_socket};
use fairq_config::refusal::Refusal;
use fairq_config::settings::{self, Plan, Settings, Source, Surroundings};
use fairq_config::table::{align_right, plain_table};
use fairq_config::tenant::{Range, Tenant, layout};
use fairq_config::units::{exact_size, show_percent};
use fairq_host::device::Device;
use fairq_host::front::attach::QUEUE_TAGS;
use fairq_host::nbd::serve::conn;
use fairq_host::nbd::session::handshake::HandshakeOptions;
use fairq_host::server::handover::{LeftTenant, State};
use fairq_host::server::{self, Before};

use crate::args::ServeArgs;
use crate::companion::Companion;
use crate::machine;
use crate::operate::{self, Console, Given};
use crate::parts::{build_policy, default_tenant, server_group, server_tenant, tls_mode};
use crate::take_over::{self, Left};

/// The configuration of a server, and its sources.
pub(crate) struct Sources {
    given: Given,
    /// The settings of file and flags together.
    pub(crate) settings: Settings,
    /// Whether this program only checks that it could continue the state of a running server.
    is_check: bool,
}

/// Reads the configuration: the file and flags, or the settings in force in the previous program.
pub(crate) fn settings(args: ServeArgs, before: Option<&Before>) -> anyhow::Result<Sources> {
    let file = args.config.clone();
    let (is_check, failure) = (args.check_upgrade, args.after_failure.clone());
    let companion = args.run.clone().map(Companion::new).transpose()?;
    let flags = args.settings();
    let settings = match before {
        Some(before) => Left::of(&before.state)?.settings()?,
        None => {
            let written = file.as_deref().map(settings::load).transpose()?.unwrap_or_default();
            written.overlaid(flags.clone()).with_tenants()
        }
    };
    let socket_of = |name, usual: fn() -> PathBuf| {
        companion.as_ref().map_or_else(usual, |companion| companion.socket(name))
    };
    let surroundings = Surroundings {
        cpus: available_cpus(),
        inherited_sockets: inherited_sockets(),
        default_socket: socket_of("fairq.sock", listen::default_socket),
        default_control: socket_of("fairq.ctl", listen::default_control),
    };
    let given = Given { file, flags, surroundings, failure, companion };
    Ok(Sources { given, settings, is_check })
}

/// Checks whether this program could continue a server's state. The check performs the steps of a
/// start, except the steps that change something.
fn check(given: &Given, written: &Settings) -> anyhow::Result<()> {
    let state = take_over::state_to_check()?;
    let plan = Left::plan(&Left::of(&state)?.settings()?, &state, &given.surroundings)?;
    tls_mode(plan.tls.as_ref())?;
    operate::check_web_token(plan.web_token.as_deref())?;
    let written = written.plan(&given.surroundings)?;
    if written.device != plan.device {
        bail!(
            "the configuration names another device ({}) than the one that is served ({}): \
             restart the server instead",
            written.device.describe(),
            plan.device.describe()
        );
    }
    for file in &state.device.files {
        if !file.is_there() {
            bail!(
                "{} is not the file that is served: that file was moved or replaced; restore it, \
                 or restart the server",
                file.path.display()
            );
        }
    }
    if let Some(FileConfig { path, .. }) = plan.device.shared_file()
        && !matches!(Media::open(path)?.find()?, Found::Whole(_))
    {
        bail!(
            "the layout record of {0} is missing or damaged: fairq layout check {0} prints details",
            path.display()
        );
    }
    take_over::fits();
    Ok(())
}

/// Serves until the server ends; `before` is the state of the previous program in this process.
pub(crate) fn run(sources: Sources, mut before: Option<Before>) -> anyhow::Result<ExitCode> {
    let Sources { given, settings, is_check } = sources;
    if is_check {
        return check(&given, &settings).map(|()| ExitCode::SUCCESS);
    }
    let plan = match &before {
        Some(before) => Left::plan(&settings, &before.state, &given.surroundings)?,
        None => settings.plan(&given.surroundings)?,
    };
    // The mark is set before threads start, because they inherit it from this thread. A program
    // that takes over keeps the mark.
    if before.is_none() {
        machine::become_io_flusher(plan.device.is_in_memory());
    }
    let shared = plan.device.shared_file().map(|file| file.path.clone());
    // An empty file gets its size like a missing one, so it counts as new.
    let is_made =
        shared.as_ref().is_some_and(|path| path.metadata().is_ok_and(|file| file.len() == 0))
            || shared.as_ref().is_some_and(|path| !path.exists());
    let inherited = before.as_mut().map(Before::device).transpose()?.unwrap_or_default();
    let device = plan.device.open_after(own_files(&plan.tenants), inherited)?;
    let sizes = device.info().sizes.clone();
    let (ranges, pool) = match (&shared, &*sizes) {
        (Some(path), [size, own @ ..]) => {
            let start = Media::open(path)?.within(*size).start(is_made, &plan.tenants, own)?;
            report(&start);
            (start.placed.ranges, Some(start.pool))
        }
        _ => (ranges(&plan, &sizes)?, None),
    };
    if let Some(before) = &before {
        check_places(&plan, &ranges, &before.state)?;
    }
    let record = pool.as_ref().map(|pool| pool.record());
    let mut config = server_config(&plan, &ranges, record, given.surroundings.inherited_sockets)?;
    if let Some(before) = &before {
        let state = &before.state;
        let zero = state.tenants.iter().filter(|left| left.zero).map(|left| left.name.clone());
        config.zero = zero.collect();
        let default = state.default.clone();
        config.default = default.map(|(name, is_named)| server::DefaultTenant { name, is_named });
    }
    let flows = config.most_tenants;
    let stores: Vec<u16> = ranges.iter().map(|range| device.store_of(range.file)).collect();
    let welcome = Welcome::new(&plan, &ranges, stores);
    let welcome = Box::new(move |listening: &[server::Listen]| welcome.text(listening));
    let shape =
        Shape::new(topology(&plan.cpus), flows, config.tags).before(plan.device.default_slots());
    let stores = device.room_for_stores();
    let policy = build_policy(&plan.policy, &shape, stores)?;
    let mut console = Console::new(given, plan, settings, sizes, (shape, stores), welcome)?;
    console.keep(pool)?;
    if let Some(before) = &before {
        console.follow(Left::of(&before.state)?, &before.state);
    }
    let served = server::serve(policy, device, config, before, &mut console);
    let code = console.end();
    served?;
    tracing::info!("ended: all acknowledged data are on stable storage");
    Ok(code)
}

/// Refuses ranges that moved, because connections rely on them.
fn check_places(plan: &Plan, ranges: &[Range], state: &State) -> Result<(), Refusal> {
    for (tenant, range) in plan.tenants.iter().zip(ranges) {
        let left = state.tenants.iter().find(|left| left.name == tenant.name);
        let left = left.map(|LeftTenant { base, size, .. }| (*base, *size));
        if left != Some((range.offset, range.size)) {
            return Err(Refusal::new(format!(
                "tenant {} would have {} bytes at {}, and has {left:?}",
                tenant.name, range.size, range.offset
            )));
        }
    }
    Ok(())
}

/// The sockets that the service manager passed to this process.
fn inherited_sockets() -> usize {
    let number =
        |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    // Child processes inherit the variables, too: `LISTEN_PID` names the intended process.
    let ours = number("LISTEN_PID").is_none_or(|pid| pid == std::process::id() as usize);
    number("LISTEN_FDS").filter(|_| ours).unwrap_or(0)
}

/// The tenants' own files.
fn own_files(tenants: &[Tenant]) -> Vec<FileConfig> {
    let file = |tenant: &Tenant| {
        let (path, store) = (tenant.path.clone()?, tenant.store.clone());
        Some(FileConfig { path, size: tenant.size, create: tenant.create, store })
    };
    tenants.iter().filter_map(file).collect()
}

/// Each tenant's range if there is no record: in memory, or in files of their own.
fn ranges(plan: &Plan, sizes: &[u64]) -> Result<Vec<Range>, Refusal> {
    match sizes {
        [shared, own @ ..] if plan.device.has_shared_file() => {
            layout(&plan.tenants, Some(*shared), own)
        }
        // Without a shared file the first size is a tenant's own.
        own => layout(&plan.tenants, None, own),
    }
}

/// Logs the results of the start on a pool that the operator has to know.
fn report(start: &Start) {
    let pool = start.pool.path().display().to_string();
    if start.adopted {
        let ranges: Vec<String> =
            start.pool.record().ranges().iter().map(ToString::to_string).collect();
        tracing::warn!(
            pool,
            ranges = ranges.join(", "),
            "the pool had data and no layout record: its tenants were placed by the rule of \
             version 0.1.0, and keep their data; if the order or the sizes of tenants in the \
             configuration have changed since the pool was last served, stop the server, restore \
             the old order and sizes in the configuration, and run fairq layout adopt"
        );
    }
    for held in &start.placed.reserved {
        tracing::warn!(
            pool,
            tenant = held.name,
            size = held.size,
            offset = held.offset,
            "the tenant is not in the configuration and is not served: its range stays reserved; \
             write its table again, or free the range with fairq layout forget, or, if it has \
             another name now, use fairq layout rename"
        );
    }
}

fn server_config(
    plan: &Plan,
    ranges: &[Range],
    record: Option<&Record>,
    inherited: usize,
) -> anyhow::Result<server::Config> {
    let mut listen: Vec<server::Listen> = Vec::new();
    match &plan.source {
        Source::Stdio => listen.push(server::Listen::Stdio),
        Source::Sockets(addresses) => {
            if inherited > 0 {
                listen.push(server::Listen::Inherited);
            }
            listen.extend(addresses.iter().cloned().map(server::Listen::from));
        }
    }
    let memory =
        usize::try_from(plan.limits.memory_per_connection).context("memory-per-connection")?;
    let limits = conn::Limits { depth: plan.limits.depth_per_connection as u16, memory };
    // A connection goes to the shard with the fewest connections, so each shard has an equal part.
    let connections = (plan.limits.connections as usize).div_ceil(plan.cpus.len());
    let queues = (plan.limits.guest_queues as usize).div_ceil(plan.cpus.len());
    Ok(server::Config {
        tenants: plan
            .tenants
            .iter()
            .zip(ranges)
            .map(|(tenant, range)| server_tenant(tenant, range))
            .collect(),
        zero: record.map_or_else(Vec::new, |record| {
            let held = record.ranges().iter().filter(|held| !held.zeroed);
            held.map(|held| held.name.clone()).collect()
        }),
        default: plan.default.clone().map(default_tenant),
        groups: plan.groups.iter().map(server_group).collect(),
        most_tenants: plan.tenants.len() + FLOWS_MIN,
        listen,
        state: state_directory(),
        control: plan.control.clone(),
        metrics: plan.metrics.iter().cloned().map(server::Listen::from).collect(),
        cpus: plan.cpus.clone(),
        limits,
        connections,
        queues,
        poll: plan.poll.into(),
        memory: plan.limits.memory.unwrap_or_else(|| machine::memory() / 2),
        tags: limits.tags(connections) + queues * QUEUE_TAGS,
        handshake: HandshakeOptions {
            tls: tls_mode(plan.tls.as_ref())?,
            timeout: plan.timeouts.handshake,
            tls_threads: None,
        },
        timeouts: plan.timeouts.server,
    })
}

/// The text that is printed when the server is ready.
struct Welcome {
    plan: Plan,
    ranges: Vec<Range>,
    /// The store of each tenant.
    stores: Vec<u16>,
}

impl Welcome {
    fn new(plan: &Plan, ranges: &[Range], stores: Vec<u16>) -> Welcome {
        Welcome { plan: plan.clone(), ranges: ranges.to_vec(), stores }
    }

    /// The tenants, and the commands to attach to them.
    fn text(&self, listening: &[server::Listen]) -> String {
        let plan = &self.plan;
        let cpus: Vec<String> = plan.cpus.iter().map(usize::to_string).collect();
        let mut text = format!(
            "fairq {}: {} · {} · {} on CPU {}\n\n",
            env!("CARGO_PKG_VERSION"),
            plan.device.describe(),
            plan.policy.describe(plan.device.default_slots()),
            shards_in_words(cpus.len()),
            cpus.join(","),
        );
        let addresses: Vec<Listen> =
            listening.iter().filter_map(|at| at.clone().try_into().ok()).collect();
        // Where TLS is optional, the URI without it works for all clients.
        let with_tls = plan.tls.as_ref().is_some_and(|tls| tls.is_required);
        text += &self.tenant_table(&addresses, with_tls);
        let nbd = addresses.iter().find(|address| address.is_nbd());
        if let (Some(address), Some(tenant)) = (nbd.or(addresses.first()), plan.tenants.first()) {
            text += &attach(address, tenant, with_tls);
        }
        text
    }

    fn tenant_table(&self, addresses: &[Listen], with_tls: bool) -> String {
        let mut table = plain_table();
        table.set_header(["tenant", "weight", "entitled", "size", "at"]);
        let mut weights: BTreeMap<u16, f64> = BTreeMap::new();
        for (tenant, store) in self.plan.tenants.iter().zip(&self.stores) {
            *weights.entry(*store).or_default() += f64::from(tenant.settings.weight.get());
        }
        let places = self.ranges.iter().zip(&self.stores);
        for (tenant, (range, store)) in self.plan.tenants.iter().zip(places) {
            let settings = &tenant.settings;
            let disks = [("vhost-user", &settings.vhost_user), ("vfio-user", &settings.vfio_user)];
            let own = disks.into_iter().filter_map(|(kind, path)| {
                path.as_ref().map(|path| format!("{kind}:{}", path.display()))
            });
            // A directory has no socket of a tenant with an identity.
            let is_shown =
                |address: &&Listen| address.is_nbd() || tenant.settings.identity.is_none();
            let shown = addresses.iter().filter(is_shown);
            let uris: Vec<String> =
                shown.map(|address| address.uri(&tenant.name, with_tls)).chain(own).collect();
            let size = if tenant.settings.read_only {
                format!("{} ro", exact_size(range.size))
            } else {
                exact_size(range.size)
            };
            table.add_row([
                tenant.name.clone(),
                tenant.settings.weight.get().to_string(),
                show_percent(f64::from(tenant.settings.weight.get()) / weights[store]),
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

/// Commands with which a client attaches.
fn attach(address: &Listen, tenant: &Tenant, with_tls: bool) -> String {
    let uri = address.uri(&tenant.name, with_tls);
    let name = &tenant.name;
    let rw = if tenant.settings.read_only { "randread" } else { "randrw" };
    let connect = match address {
        Listen::Unix(path) => format!("-unix {}", path.display()),
        Listen::Tcp(address) => format!("{} {}", address.ip(), address.port()),
        Listen::Ublk => {
            return format!("\nUse with, for example:\n  mkfs.ext4 {uri} && mount {uri} /mnt\n");
        }
        Listen::VfioUser(_) | Listen::VfioUserDevice(_) => {
            let socket = uri.trim_start_matches("vfio-user:");
            return format!(
                "\nAttach with, for example:\n  \
                 qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on \
                 -machine memory-backend=mem -device '{{\"driver\":\"vfio-user-pci\",\"socket\":\
                 {{\"type\":\"unix\",\"path\":\"{socket}\"}}}}'\n"
            );
        }
        Listen::VhostUser(directory) => {
            let socket = guest_socket(directory, name);
            return format!(
                "\nAttach with, for example:\n  \
                 qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on \
                 -numa node,memdev=mem -chardev socket,id={name},path={},reconnect=1 -device \
                 vhost-user-blk-pci,chardev={name}\n",
                socket.display()
            );
        }
    };
    let mut text = format!("\nAttach with, for example:\n  nbdinfo '{uri}'\n");
    if !with_tls {
        text += &format!(
            "  fio --name={name} --ioengine=nbd --uri='{uri}' --rw={rw} --bs=4k --iodepth=32 \
             --time_based --runtime=30\n  \
             nbd-client {connect} /dev/nbd0 -N {name}\n"
        );
    }
    text + &format!("  qemu-img convert -n -f raw -O raw disk.img '{uri}'\n")
}
