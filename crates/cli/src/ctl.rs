//! `fairq ctl`: the control socket as commands.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fairq_config::files;
use fairq_config::refusal::Refusal;
use fairq_config::settings;
use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{exact_size, show_bandwidth, show_count, show_duration, show_percent};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::args::{ConfigCommand, CtlArgs, CtlCommand};
use crate::connection::{Connection, socket};
use crate::view::{
    Attachment, ClassWeights, Cost, Depth, DepthState, Group, LastSecond, PolicyState, Status,
    Tenant,
};

/// Time limit for a policy to finish its requests.
const CHANGE: Duration = Duration::from_secs(60);

/// Carries out a command.
pub(crate) fn run(args: CtlArgs) -> anyhow::Result<()> {
    if let CtlCommand::Trace(trace) = &args.command {
        return crate::trace::run(&socket(args.control), trace);
    }
    let (method, params) = call_of(&args.command)?;
    let mut server = Connection::open(&socket(args.control))?;
    let result = server.call(&method, params)?;
    // The server answers when the change has begun. This program waits until the change is done, so
    // that the next command finds it done.
    if matches!(
        args.command,
        CtlCommand::Policy { name: Some(_), .. } | CtlCommand::Params { params: Some(_) }
    ) {
        wait_for_policy(&mut server)?;
    }
    if let CtlCommand::Add { save, .. } = args.command {
        wait_for_tenant(&mut server, &string(&result["tenant"]))?;
        if save {
            save_table(&result)?;
        }
    }
    if let CtlCommand::Resize { tenant, size, .. } = &args.command {
        wait_for_size(&mut server, tenant, size.0)?;
    }
    if let Some(warning) = result["warning"].as_str().filter(|_| !args.json) {
        eprintln!("warning: {warning}");
    }
    if let CtlCommand::Disk { number } = args.command {
        println!("{}", disk(&read::<Vec<Tenant>>(result)?, number)?);
        return Ok(());
    }
    let text = if args.json { format!("{result:#}\n") } else { text(&args.command, &result)? };
    std::io::stdout().write_all(text.as_bytes()).context("cannot print")?;
    Ok(())
}

/// An answer of the server, or a part of it.
fn read<T: DeserializeOwned>(answer: Value) -> anyhow::Result<T> {
    serde_json::from_value(answer).context("the server is of another version than this program")
}

/// A tenant of the server.
fn tenant(server: &mut Connection, name: &str) -> anyhow::Result<Option<Tenant>> {
    let tenants: Vec<Tenant> = read(server.call("tenants", json!({}))?)?;
    Ok(tenants.into_iter().find(|tenant| tenant.row.name == name))
}

/// Waits until a tenant can be opened, and prints the progress.
fn wait_for_tenant(server: &mut Connection, name: &str) -> anyhow::Result<()> {
    let (mut printed, mut waited_for) = (Instant::now(), String::new());
    loop {
        let Some(tenant) = tenant(server, name)? else {
            // The server removes a new tenant that has waited too long for the requests of removed
            // ones.
            if !waited_for.is_empty() {
                bail!(
                    "tenant {name} was not added: requests of {waited_for}, which had its range or \
                     file and was removed, are still in flight; check the device (its requests may \
                     hang) and add the tenant again"
                );
            }
            bail!("tenant {name} was removed before it could be opened");
        };
        let Some(preparing) = &tenant.preparing else { return Ok(()) };
        if let Some(errno) = preparing.errno {
            let error = std::io::Error::from_raw_os_error(errno);
            bail!(
                "tenant {name} stays closed, because its range cannot be zeroed: {error}: check \
                 the device, then remove the tenant and add it again"
            );
        }
        let names = preparing.waits_for.join(", ");
        if !names.is_empty() && names != waited_for {
            eprintln!("waiting for requests of {names}, which was removed and had this range");
        }
        waited_for = names;
        // A short wait prints nothing; a long one prints a line a second.
        if waited_for.is_empty() && printed.elapsed() > Duration::from_secs(1) {
            printed = Instant::now();
            let part = preparing.done as f64 / (preparing.size as f64).max(1.0);
            eprintln!("zeroing the range: {}", show_percent(part));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a tenant has its new size, and prints the progress.
fn wait_for_size(server: &mut Connection, name: &str, size: u64) -> anyhow::Result<()> {
    let mut printed = Instant::now();
    loop {
        let Some(tenant) = tenant(server, name)? else {
            bail!("tenant {name} was removed before it had its new size");
        };
        let Some(resizing) = &tenant.resizing else {
            if tenant.size == size {
                return Ok(());
            }
            bail!("tenant {name} keeps its size: the server's log has the reason");
        };
        if printed.elapsed() > Duration::from_secs(1) {
            printed = Instant::now();
            let size = resizing.size.unwrap_or(0).max(1) as f64;
            let part = resizing.done.unwrap_or(0) as f64 / size;
            eprintln!("preparing the new size: {}", show_percent(part));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes a tenant's table into the server's configuration file.
fn save_table(result: &Value) -> anyhow::Result<()> {
    let (name, table) = (string(&result["tenant"]), string(&result["table"]));
    let Some(path) = result["config"].as_str().map(std::path::PathBuf::from) else {
        bail!(
            "tenant {name} was added, but the server has no configuration file: start it with one \
             that contains\n{table}"
        );
    };
    let shown = path.display();
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {shown}"))?;
    let settings = settings::parse(&text, &shown.to_string())?;
    if settings.tenant.iter().any(|tenant| tenant.get_ref().name == name) {
        return Ok(());
    }
    let text = format!("{}\n\n{table}", text.trim_end());
    settings::parse(&text, &shown.to_string())
        .with_context(|| format!("{shown} has no [[tenant]] tables: add\n{table}"))?;
    files::replace(&path, &text)
}

/// Waits until the previous policy has finished its requests.
fn wait_for_policy(server: &mut Connection) -> anyhow::Result<()> {
    let deadline = Instant::now() + CHANGE;
    while !server.call("policy", json!({}))?["state"]["changing_s"].is_null() {
        if Instant::now() > deadline {
            bail!(
                "the previous policy has not finished its requests within {CHANGE:?}: the new \
                 policy starts when it has"
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The method and the parameters of a command.
fn call_of(command: &CtlCommand) -> Result<(String, Value), Refusal> {
    let (method, params) = match command {
        CtlCommand::Latency { tenant, latency, percentile, floor } => {
            let mut params = json!({ "tenant": tenant });
            // Without `latency` the server removes the target.
            let latency = latency.as_ref().filter(|text| *text != "off");
            let said = [("latency", latency), ("percentile", percentile.as_ref())];
            for (key, value) in said.into_iter().chain([("floor", floor.as_ref())]) {
                if let Some(value) = value {
                    params[key] = json!(value);
                }
            }
            ("latency", params)
        }
        CtlCommand::Caps { tenant, caps } => {
            ("caps", json!({ "tenant": tenant, "caps": object_of(caps, "max-iops=1000")? }))
        }
        CtlCommand::Group { group, keys } if *keys == ["off"] => {
            ("group.remove", json!({ "group": group }))
        }
        CtlCommand::Group { group, keys } => {
            ("group", json!({ "group": group, "keys": object_of(keys, "weight=200")? }))
        }
        CtlCommand::Share { tenant, keys } => {
            ("share", json!({ "tenant": tenant, "keys": object_of(keys, "min-iops=500")? }))
        }
        CtlCommand::Set { tenant, keys } => {
            ("update", json!({ "tenant": tenant, "keys": object_of(keys, "weight=200")? }))
        }
        CtlCommand::Policy { name: None, .. } => ("policy", json!({})),
        // The server may run in another folder, so the path is made absolute.
        CtlCommand::Upgrade { program: Some(program) } => {
            let whole = std::path::absolute(program)
                .map_err(|error| Refusal::new(format!("{}: {error}", program.display())))?;
            ("upgrade", json!({ "program": whole }))
        }
        CtlCommand::Policy { name: Some(name), keys } => {
            let policy = match keys.join(",") {
                keys if keys.is_empty() => name.clone(),
                keys => format!("{name}{}{keys}", if name.contains(':') { "," } else { ":" }),
            };
            ("policy.set", json!({ "policy": policy }))
        }
        CtlCommand::Params { params: None } => ("params", json!({})),
        CtlCommand::Disk { .. } => ("tenants", json!({})),
        CtlCommand::Add { tenant, ublk: true, .. } => {
            ("add", json!({ "tenant": format!("{tenant},ublk") }))
        }
        CtlCommand::Config { command: ConfigCommand::Dump } => ("config.dump", json!({})),
        CtlCommand::Config { command: ConfigCommand::Reload { remove, dry_run } } => {
            ("config.reload", json!({ "remove": remove, "dry_run": dry_run }))
        }
        CtlCommand::Trace(_) => unreachable!("more than one call"),
        CtlCommand::Call { method, params } => {
            let params = params.as_deref().unwrap_or("{}");
            let params = serde_json::from_str(params).map_err(|error| {
                Refusal::new(format!(
                    "the parameters are not JSON: {error}: write {{\"tenant\": \"db\"}}"
                ))
            })?;
            return Ok((method.clone(), params));
        }
        command => {
            let mut call = serde_json::to_value(command).expect("a command is plain data");
            return Ok((string(&call["method"]), call["params"].take()));
        }
    };
    Ok((method.to_owned(), params))
}

/// `KEY=VALUE` arguments as an object; a lone `off` is skipped.
fn object_of(pairs: &[String], example: &str) -> Result<serde_json::Map<String, Value>, Refusal> {
    let mut object = serde_json::Map::new();
    for pair in pairs.iter().filter(|text| *text != "off") {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            Refusal::new(format!("`{pair}` is not KEY=VALUE: write {example}, say, or off"))
        })?;
        object.insert(key.replace('_', "-"), json!(value));
    }
    Ok(object)
}

/// The answer as text for a person.
fn text(command: &CtlCommand, result: &Value) -> anyhow::Result<String> {
    Ok(match command {
        CtlCommand::Status => status(&read(result.clone())?),
        CtlCommand::Tenants => tenants(&read::<Vec<Tenant>>(result.clone())?),
        CtlCommand::Policy { name: None, .. } => policy(result),
        CtlCommand::Policy { .. } => {
            format!("{} -> {}\n", string(&result["from"]), string(&result["to"]))
        }
        CtlCommand::Params { params: None } => parameters(result),
        CtlCommand::Interference => interference(&read(result.clone())?),
        CtlCommand::Config { command: ConfigCommand::Dump } => {
            result.as_str().unwrap_or_default().to_owned()
        }
        CtlCommand::Config { command: ConfigCommand::Reload { dry_run: true, .. } } => {
            predicted(result)
        }
        CtlCommand::Config { .. } | CtlCommand::Params { .. } | CtlCommand::Set { .. } => {
            changes(result)
        }
        CtlCommand::Add { .. } => format!(
            "added {}: {} at {}\n",
            string(&result["tenant"]),
            exact_size(result["size"].as_u64().unwrap_or(0)),
            exact_size(result["offset"].as_u64().unwrap_or(0))
        ),
        CtlCommand::Remove { keep: false, .. } => {
            format!("removed {}\n", string(&result["tenant"]))
        }
        CtlCommand::Remove { .. } => {
            format!("removed {}: its data are kept\n", string(&result["tenant"]))
        }
        CtlCommand::Rename { .. } => {
            let (from, to) = (string(&result["from"]), string(&result["to"]));
            format!("{from} -> {to}: write the new name into the configuration, too\n")
        }
        CtlCommand::Resize { .. } => {
            let size = |key: &str| exact_size(result[key].as_u64().unwrap_or(0));
            let (name, from, to) = (string(&result["tenant"]), size("from"), size("to"));
            format!(
                "{name}: {from} -> {to}: if its size is in the configuration, write size = \
                 \"{to}\" there\n"
            )
        }
        CtlCommand::ClearError { .. } => {
            let tenant = string(&result["tenant"]);
            match result["errno"].as_i64() {
                None => format!("{tenant}: there was no error\n"),
                Some(errno) => {
                    let error = std::io::Error::from_raw_os_error(errno as i32);
                    format!("{tenant}: cleared: {error}\n")
                }
            }
        }
        CtlCommand::Weight { .. } => {
            format!(
                "{}: weight {} -> {}\n",
                string(&result["tenant"]),
                result["from"],
                result["to"]
            )
        }
        CtlCommand::Latency { .. } => {
            let words = |key: &str| result[key].as_str().unwrap_or("none").to_owned();
            let (from, to) = (words("from"), words("to"));
            format!("{}: latency target {from} -> {to}\n", string(&result["tenant"]))
        }
        CtlCommand::Caps { .. } => {
            let [name, from, to] = ["tenant", "from", "to"].map(|key| string(&result[key]));
            format!("{name}: caps {from} -> {to}\n")
        }
        CtlCommand::Groups => groups(&read::<Vec<Group>>(result.clone())?),
        CtlCommand::Group { keys, .. } if *keys == ["off"] => {
            format!("removed group {}\n", string(&result["group"]))
        }
        CtlCommand::Group { .. } => {
            let from = result["from"].as_str().unwrap_or("none");
            format!("{}: {from} -> {}\n", string(&result["group"]), string(&result["to"]))
        }
        CtlCommand::Share { .. } => {
            let [name, from, to] = ["tenant", "from", "to"].map(|key| string(&result[key]));
            format!("{name}: {from} -> {to}\n")
        }
        CtlCommand::Listen { .. } => format!("listens on {}\n", string(&result["address"])),
        CtlCommand::Unlisten { .. } => {
            format!("stopped listening on {}\n", string(&result["address"]))
        }
        CtlCommand::Upgrade { .. } => {
            let [from, to, program] = ["from", "to", "program"].map(|key| string(&result[key]));
            format!("{from} -> {to}: {program} serves\n")
        }
        CtlCommand::Drain { .. } => {
            let left = result["connections"].as_u64().unwrap_or(0);
            format!("draining: {} left\n", connections(left as usize))
        }
        CtlCommand::Trace(_) | CtlCommand::Call { .. } | CtlCommand::Disk { .. } => {
            format!("{result:#}\n")
        }
    })
}

fn string(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A line for each group.
fn groups(groups: &[Group]) -> String {
    let line = |of: &Group| {
        let least: String = [("min-iops", of.min_iops), ("min-bandwidth", of.min_bandwidth)]
            .iter()
            .filter(|(_, rate)| *rate > 0)
            .map(|(name, rate)| format!(", {name} {rate}"))
            .collect();
        let caps = of.caps.iter().flat_map(|capped| &capped.caps);
        let most: String = caps.map(|(key, cap)| format!(", {key} {}", cap.per_s)).collect();
        let target = of.latency.as_ref().map(|target| format!(", {target}")).unwrap_or_default();
        let Group { name, weight, active, members, .. } = of;
        let tenants = if of.tenants.is_empty() { "none".into() } else { of.tenants.join(", ") };
        format!(
            "{name}: weight {weight}{least}{most}{target}; {active} of {members} active; tenants: \
             {tenants}\n"
        )
    };
    match groups.is_empty() {
        true => "no groups\n".into(),
        false => groups.iter().map(line).collect(),
    }
}

/// `1 connection`, `2 connections`.
fn connections(count: usize) -> String {
    if count == 1 { "1 connection".into() } else { format!("{count} connections") }
}

/// The number of upgrades in words; empty for none.
fn upgrades(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => ", 1 upgrade".into(),
        n => format!(", {n} upgrades"),
    }
}

/// The slots of a policy and the reason for D; `None` without slots.
fn slots(state: &PolicyState) -> Option<String> {
    let why = match &state.depth {
        None => String::new(),
        Some(Depth { state: DepthState::Searching, .. }) => {
            "; searching for the least D that fills the device".into()
        }
        Some(Depth { state: DepthState::Found, slots, requests_per_s, .. }) => {
            format!("; {slots} fill the device with this load ({requests_per_s} requests/s)")
        }
        Some(Depth { state: DepthState::Alone, .. }) => {
            "; no limit, because only one tenant is active".into()
        }
        Some(_) => "; all requests are on the device and do not fill it".into(),
    };
    Some(format!("{} of {} in use{why}", state.slots_in_use?, state.slots?))
}

/// For a policy without slots, the number of requests that keep the device busy.
fn busy(depth: &Depth) -> String {
    match depth.state {
        DepthState::Found => format!(
            "with {} requests on it ({} requests/s with this load)",
            depth.slots, depth.requests_per_s
        ),
        DepthState::Searching => "searching".into(),
        DepthState::Alone => "not needed, because only one tenant is active".into(),
        _ => "no: all requests are on it and do not fill it".into(),
    }
}

/// Costs by the device's time.
fn costs(cost: &Cost) -> String {
    if cost.windows == 0 {
        return "by the device's time; not known yet".into();
    }
    let Cost { random_read, sequential_read, read_kib, .. } = cost;
    let Cost { random_write, sequential_write, written_kib, .. } = cost;
    format!(
        "a read {random_read} (sequential {sequential_read}) and {read_kib} each KiB; a write \
         {random_write} (sequential {sequential_write}) and {written_kib} each KiB"
    )
}

/// The lines about a store's policy, each with its key.
fn of_policy(state: &PolicyState) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    match (slots(state), &state.depth) {
        (Some(slots), _) => lines.push(("slots", slots)),
        (None, Some(depth)) => lines.push(("device busy", busy(depth))),
        (None, None) => {}
    }
    lines.extend(state.cost.as_ref().map(|cost| ("costs", costs(cost))));
    lines
}

fn status(status: &Status) -> String {
    let summary = &status.summary;
    let state = &summary.policy_state;
    let mut lines = vec![
        ("server", format!("fairq {}, process {}", status.version, status.pid)),
        ("up", format!("{:.0} s", summary.uptime_s) + &upgrades(status.upgrades)),
        ("device", summary.device.clone()),
        (
            "policy",
            match state.changing_s {
                None => summary.policy.clone(),
                Some(s) => {
                    format!(
                        "{}, waiting for {s:.1} s for the previous policy to finish",
                        summary.policy
                    )
                }
            },
        ),
        ("tenants", status.tenants.to_string()),
        ("connections", summary.connections.to_string()),
        ("memory", format!("{} of {} bytes", status.memory.used, status.memory.most)),
        ("listening", status.listening.join(" ")),
    ];
    // If there are several stores, each has a policy of its own, which is printed with the store.
    lines.extend(of_policy(state));
    if let Some(ClassWeights { high, medium, low }) = state.class_weights {
        lines.push(("classes", format!("high {high} medium {medium} low {low}")));
    }
    for (index, shard) in status.shards.iter().enumerate() {
        let cpu = shard.cpu.map_or_else(|| "?".into(), |cpu| cpu.to_string());
        let operations = show_count(shard.operations as f64);
        let text = format!(
            "shard {index} on CPU {cpu}: {}, {operations} operations",
            connections(shard.connections)
        );
        lines.push((if index == 0 { "shards" } else { "" }, text));
    }
    if status.unassigned > 0 {
        let size = exact_size(status.unassigned);
        lines.push(("unassigned", format!("{size} of the device are in no tenant's range")));
    }
    if !status.write_back_errors.is_empty() {
        let names = status.write_back_errors.join(" ");
        lines.push(("lost data", format!("{names}: flushes fail until clear-error NAME")));
    }
    for of in &status.outdated {
        let (tenant, count) = (&of.tenant, connections(of.connections));
        lines.push(("old size", format!("{tenant}: {count} must connect again to see its size")));
    }
    for (index, of) in status.latency_targets.iter().enumerate() {
        let cause = of.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        let late = match of.completed {
            0 => String::new(),
            completed => format!(", {} late", show_percent(of.late as f64 / completed as f64)),
        };
        let text = format!("{}: {}: {}{late}{cause}", of.tenant, of.target, of.state);
        lines.push((if index == 0 { "latency" } else { "" }, text));
    }
    for of in status.reserved.iter().filter(|of| of.granted < 1.0) {
        let [asked, granted] = [of.asked, of.granted].map(show_percent);
        let text = format!(
            "{}: the reservations add up to {asked} of the device's rate, so each gets only \
             {granted} of its rate: lower some",
            of.store
        );
        lines.push(("reserved", text));
    }
    for file in &status.cut_off_files {
        let [kept, all] = [file.intact, file.size].map(exact_size);
        let path = file.path.display();
        lines.push(("cut off", format!("{path} has kept {kept} of {all}: restore the file")));
    }
    let has_several = summary.stores.len() > 1;
    for store in summary.stores.iter().filter(|store| has_several || store.stuck) {
        let mut text = format!("{}: {}", store.name, store.tenants.join(", "));
        for (key, about) in of_policy(&store.policy_state) {
            text += &format!("; {key} {about}");
        }
        if store.stuck {
            let oldest = store.oldest_s;
            text += &format!("; stuck: has not answered for {oldest:.0} s, check its device");
        }
        lines.push(("store", text));
    }
    if summary.draining {
        lines.push(("draining", "no more connections; the server ends with the last one".into()));
    }
    lines.iter().map(|(key, value)| format!("{key:<12} {value}\n")).collect()
}

fn tenants(tenants: &[Tenant]) -> String {
    let mut table = plain_table();
    table.set_header([
        "tenant",
        "weight",
        "entitled",
        "share",
        "IOPS",
        "bandwidth",
        "p50",
        "p99",
        "queue",
        "errors",
        "size",
        "store",
    ]);
    for Tenant { row, size, .. } in tenants {
        let last = |value: fn(&LastSecond) -> String| {
            row.last_second.as_ref().map_or_else(|| "–".to_owned(), value)
        };
        table.add_row([
            row.name.clone(),
            row.weight.to_string(),
            last(|last| show_percent(last.entitled)),
            last(|last| show_percent(last.share)),
            last(|last| show_count(last.iops)),
            last(|last| show_bandwidth(last.bytes_per_s)),
            last(|last| show_duration(last.p50_ns as f64)),
            last(|last| show_duration(last.p99_ns as f64)),
            format!("{}+{}", row.staged, row.in_flight.saturating_sub(row.staged)),
            row.errors.to_string(),
            exact_size(*size),
            row.store.clone().unwrap_or_default(),
        ]);
    }
    align_right(&mut table);
    format!("{table}\n{}", attachments(tenants))
}

/// The name, owner, group and mode of the tenant whose block device has this number.
fn disk(tenants: &[Tenant], number: u32) -> anyhow::Result<String> {
    let path = PathBuf::from(format!("/dev/ublkb{number}"));
    let is_it = |of: &Attachment| of.kind == "ublk" && of.path == path;
    let Some(tenant) = tenants.iter().find(|tenant| tenant.row.attachments.iter().any(is_it))
    else {
        bail!("/dev/ublkb{number} is no block device of this server's tenants");
    };
    let (uid, gid) = (tenant.uids.first().unwrap_or(&0), tenant.gids.first());
    let mode = if gid.is_some() { "0660" } else { "0600" };
    Ok(format!("{} {uid} {} {mode}", tenant.row.name, gid.unwrap_or(&0)))
}

/// A line for each socket for guests and each block device.
fn attachments(tenants: &[Tenant]) -> String {
    let line = |name: &str, of: &Attachment| {
        let (kind, path) = (&of.kind, of.path.display());
        let state = match (&of.error, of.connected, of.queues) {
            (Some(error), ..) if kind == "ublk" => format!(": there is none: {error}"),
            _ if kind == "ublk" => String::new(),
            (_, true, 1) => ": a guest with 1 queue".into(),
            (_, true, queues) => format!(": a guest with {queues} queues"),
            _ => ": no guest".into(),
        };
        format!("{name}: {kind} {path}{state}\n")
    };
    let of_tenant = |tenant: &Tenant| -> String {
        tenant.row.attachments.iter().map(|of| line(&tenant.row.name, of)).collect()
    };
    tenants.iter().map(of_tenant).collect()
}

fn policy(result: &Value) -> String {
    let written = result["params"].as_object().into_iter().flatten();
    let written: Vec<String> =
        written.map(|(key, value)| format!("{key}={}", string(value))).collect();
    let mut text = format!("policy       {}\n", string(&result["description"]));
    if !written.is_empty() {
        text += &format!("given        {}\n", written.join(" "));
    }
    let state =
        result["state"].as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    for (key, value) in state {
        text += &format!("{:<12} {}\n", key.replace('_', " "), string(value));
    }
    text
}

fn parameters(result: &Value) -> String {
    let mut table = plain_table();
    table.set_header(["parameter", "now", "takes", "meaning"]);
    for parameter in result["params"].as_array().map(Vec::as_slice).unwrap_or_default() {
        table.add_row(["key", "value", "takes", "summary"].map(|field| string(&parameter[field])));
    }
    format!("{}\n", table.trim_fmt())
}

fn changes(result: &Value) -> String {
    let changes = result["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        return "nothing differs\n".into();
    }
    let side = |value: &Value| if value.is_null() { "(nothing)".to_owned() } else { string(value) };
    let line = |change: &Value| {
        let note = change["note"].as_str().map(|note| format!("   {note}"));
        let done = match note {
            _ if change["done"] == json!(true) => String::new(),
            None => "   needs a restart".into(),
            Some(note) => note,
        };
        format!(
            "{}: {} -> {}{done}\n",
            string(&change["key"]),
            side(&change["from"]),
            side(&change["to"])
        )
    };
    changes.iter().map(line).collect()
}

/// The changes that a reload would make (--dry-run), in words.
fn predicted(result: &Value) -> String {
    let changes = result["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        return "nothing would change\n".into();
    }
    let line = |change: &Value| match (change["note"].as_str(), &change["from"], &change["to"]) {
        (Some(note), ..) => format!("{note}\n"),
        (None, Value::Null, to) => format!("{} would be {}\n", string(&change["key"]), string(to)),
        (None, from, Value::Null) => {
            format!("{}, which is {}, would be unset\n", string(&change["key"]), string(from))
        }
        (None, from, to) => {
            format!(
                "{} would be {} instead of {}\n",
                string(&change["key"]),
                string(to),
                string(from)
            )
        }
    };
    changes.iter().map(line).collect()
}

/// The parts of each tenant's delay.
type Interference = BTreeMap<String, BTreeMap<String, f64>>;

fn interference(rows: &Interference) -> String {
    let mut text = String::new();
    for (victim, others) in rows {
        let mut parts: Vec<(&String, &f64)> = others.iter().collect();
        parts.sort_by(|a, b| b.1.total_cmp(a.1));
        let part = |(name, part): &(&String, &f64)| {
            let name = if *name == victim { "itself" } else { name.as_str() };
            format!("{name} {}", show_percent(**part))
        };
        text += &format!(
            "{victim} waited for: {}\n",
            parts.iter().map(part).collect::<Vec<_>>().join(", ")
        );
    }
    if text.is_empty() {
        "no tenant's requests waited in the last ten seconds\n".into()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::operate::table::Method;

    /// The commands that make one call.
    const LINES: [&str; 25] = [
        "status",
        "tenants",
        "add x=1M",
        "remove db",
        "weight db 300",
        "latency db 1ms --percentile 99 --floor 5%",
        "latency db off",
        "caps db max-iops=1000",
        "caps db off",
        "groups",
        "group acme weight=200",
        "group acme off",
        "share db group=acme",
        "set db weight=300 min-iops=off",
        "clear-error db",
        "policy",
        "policy mqfq T=64k",
        "params",
        "params T=64k",
        "listen unix:/s",
        "unlisten unix:/s",
        "interference",
        "config dump",
        "config reload",
        "drain --now",
    ];

    #[test]
    fn each_command_is_a_call_that_its_method_takes() {
        for line in LINES {
            let words = ["fairq", "ctl"].into_iter().chain(line.split(' '));
            let Command::Ctl(CtlArgs { command, .. }) = Cli::parse_from(words).command else {
                unreachable!("ctl is what was written");
            };
            let (name, params) = call_of(&command).unwrap();
            let taken = Method::named(&name).and_then(|method| method.given(params).map(drop));
            assert!(taken.is_ok(), "{line}: {}", taken.unwrap_err().message());
        }
    }
}
