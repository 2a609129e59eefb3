//! `fairq ctl`: the control socket as commands.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fairq_config::files;
use fairq_config::refusal::Refusal;
use fairq_config::settings;
use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{exact_size, show_bandwidth, show_count, show_duration, show_percent};
use serde_json::{Value, json};

use crate::args::{ConfigCommand, CtlArgs, CtlCommand};
use crate::connection::{Connection, socket};

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
    // The answer comes when the change has begun; the next command has to find it done.
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
        println!("{}", disk(&result, number)?);
        return Ok(());
    }
    let text = if args.json { format!("{result:#}\n") } else { text(&args.command, &result) };
    std::io::stdout().write_all(text.as_bytes()).context("cannot print")?;
    Ok(())
}

/// Waits until a tenant can be opened, and prints the progress.
fn wait_for_tenant(server: &mut Connection, name: &str) -> anyhow::Result<()> {
    let (mut told, mut waited_for) = (Instant::now(), String::new());
    loop {
        let tenants = server.call("tenants", json!({}))?;
        let mut tenants = tenants.as_array().into_iter().flatten();
        let Some(tenant) = tenants.find(|tenant| tenant["name"] == json!(name)) else {
            // The server removes a new tenant that has waited too long for the requests of removed
            // ones.
            if !waited_for.is_empty() {
                bail!(
                    "tenant {name} was not added: requests of {waited_for}, which had its range or \
                     file and was removed, are still under way; see to the device (its requests \
                     may hang) and add the tenant again"
                );
            }
            bail!("tenant {name} was removed before it could be opened");
        };
        let preparing = &tenant["preparing"];
        if preparing.is_null() {
            return Ok(());
        }
        if let Some(errno) = preparing["errno"].as_i64() {
            let error = std::io::Error::from_raw_os_error(errno as i32);
            bail!(
                "tenant {name} stays closed, since its range cannot be zeroed: {error}: see to the \
                 device, remove it and add it again"
            );
        }
        let names = preparing["waits_for"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names = names.iter().map(string).collect::<Vec<_>>().join(", ");
        if !names.is_empty() && names != waited_for {
            eprintln!("waiting for requests of {names}, which was removed");
        }
        waited_for = names;
        // A short wait prints nothing; a long one prints a line a second.
        if waited_for.is_empty() && told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            let part = number(&preparing["done"]) / number(&preparing["size"]).max(1.0);
            eprintln!("zeroing its range: {}", show_percent(part));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a tenant has its new size, and prints the progress.
fn wait_for_size(server: &mut Connection, name: &str, size: u64) -> anyhow::Result<()> {
    let mut told = Instant::now();
    loop {
        let tenants = server.call("tenants", json!({}))?;
        let mut tenants = tenants.as_array().into_iter().flatten();
        let Some(tenant) = tenants.find(|tenant| tenant["name"] == json!(name)) else {
            bail!("tenant {name} was removed before it had its new size");
        };
        let resizing = &tenant["resizing"];
        if resizing.is_null() {
            if tenant["size"] == json!(size) {
                return Ok(());
            }
            bail!("tenant {name} keeps its size: the server's log says why");
        }
        if told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            let part = number(&resizing["done"]) / number(&resizing["size"]).max(1.0);
            eprintln!("preparing its new size: {}", show_percent(part));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes a tenant's table into the server's configuration file.
fn save_table(result: &Value) -> anyhow::Result<()> {
    let (name, table) = (string(&result["tenant"]), string(&result["table"]));
    let Some(path) = result["config"].as_str().map(std::path::PathBuf::from) else {
        bail!(
            "tenant {name} is there, but the server has no configuration file: start it with one \
             that has\n{table}"
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
        .with_context(|| format!("{shown} has its tenants in another form: add\n{table}"))?;
    files::replace(&path, &text)
}

/// Waits until the previous policy has finished its requests.
fn wait_for_policy(server: &mut Connection) -> anyhow::Result<()> {
    let deadline = Instant::now() + CHANGE;
    while !server.call("policy", json!({}))?["state"]["changing_s"].is_null() {
        if Instant::now() > deadline {
            bail!(
                "the policy before has not finished its requests in {CHANGE:?}: the new one \
                 follows it when it has"
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The call that a command stands for.
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
fn text(command: &CtlCommand, result: &Value) -> String {
    match command {
        CtlCommand::Status => status(result),
        CtlCommand::Tenants => tenants(result),
        CtlCommand::Policy { name: None, .. } => policy(result),
        CtlCommand::Policy { .. } => {
            format!("{} -> {}\n", string(&result["from"]), string(&result["to"]))
        }
        CtlCommand::Params { params: None } => parameters(result),
        CtlCommand::Interference => interference(result),
        CtlCommand::Config { command: ConfigCommand::Dump } => {
            result.as_str().unwrap_or_default().to_owned()
        }
        CtlCommand::Config { command: ConfigCommand::Reload { dry_run: true, .. } } => {
            foretold(result)
        }
        CtlCommand::Config { .. } | CtlCommand::Params { .. } => changes(result),
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
            let told = |key: &str| result[key].as_str().unwrap_or("none").to_owned();
            let (from, to) = (told("from"), told("to"));
            format!("{}: latency target {from} -> {to}\n", string(&result["tenant"]))
        }
        CtlCommand::Caps { .. } => {
            let [name, from, to] = ["tenant", "from", "to"].map(|key| string(&result[key]));
            format!("{name}: caps {from} -> {to}\n")
        }
        CtlCommand::Groups => groups(result),
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
            format!("listens no more on {}\n", string(&result["address"]))
        }
        CtlCommand::Upgrade { .. } => {
            let [from, to, program] = ["from", "to", "program"].map(|key| string(&result[key]));
            format!("{from} -> {to}: {program} serves\n")
        }
        CtlCommand::Drain { .. } => {
            format!("draining: {} left\n", connections(&result["connections"]))
        }
        CtlCommand::Trace(_) | CtlCommand::Call { .. } | CtlCommand::Disk { .. } => {
            format!("{result:#}\n")
        }
    }
}

fn string(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A line for each group.
fn groups(result: &Value) -> String {
    let all = result.as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |of: &Value| {
        let least = [("min-iops", "min_iops"), ("min-bandwidth", "min_bandwidth")]
            .into_iter()
            .filter(|(_, key)| number(&of[*key]) > 0.0)
            .map(|(name, key)| format!(", {name} {}", of[key]));
        let caps = of["caps"]["caps"].as_object().into_iter().flatten();
        let most: String = caps.map(|(key, cap)| format!(", {key} {}", cap["per_s"])).collect();
        let names = of["tenants"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names: Vec<String> = names.iter().map(string).collect();
        format!(
            "{}: weight {}{}{}{}; {} of {} active; tenants: {}\n",
            string(&of["name"]),
            of["weight"],
            least.collect::<String>(),
            most,
            of["latency"].as_str().map_or_else(String::new, |target| format!(", {target}")),
            of["active"],
            of["members"],
            if names.is_empty() { "none".into() } else { names.join(", ") }
        )
    };
    match all.is_empty() {
        true => "no groups\n".into(),
        false => all.iter().map(line).collect(),
    }
}

/// `1 connection`, `2 connections`.
fn connections(count: &Value) -> String {
    if *count == json!(1) { "1 connection".into() } else { format!("{count} connections") }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// The number of upgrades in words; empty for none.
fn upgrades(count: &Value) -> String {
    match count.as_u64() {
        None | Some(0) => String::new(),
        Some(1) => ", 1 upgrade".into(),
        Some(n) => format!(", {n} upgrades"),
    }
}

fn status(result: &Value) -> String {
    let list = |key: &str| {
        let items = result[key].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(string).collect::<Vec<_>>().join(" ")
    };
    let state = &result["policy_state"];
    let mut lines = vec![
        ("server", format!("fairq {}, process {}", string(&result["version"]), result["pid"])),
        ("up", format!("{:.0} s", number(&result["uptime_s"])) + &upgrades(&result["upgrades"])),
        ("device", string(&result["device"])),
        (
            "policy",
            match state["changing_s"].as_f64() {
                None => string(&result["policy"]),
                Some(s) => format!(
                    "{}, for {s:.1} s waiting for the one before to finish",
                    string(&result["policy"])
                ),
            },
        ),
        ("tenants", result["tenants"].to_string()),
        ("connections", result["connections"].to_string()),
        ("memory", format!("{} of {} bytes", result["memory"]["used"], result["memory"]["most"])),
        ("listening", list("listening")),
    ];
    let depth = &state["depth"];
    if state["slots"].is_null() && !depth.is_null() {
        // `kyber-fair` has no slots; its depth is the number of requests that keep the device busy.
        let busy = match depth["state"].as_str() {
            Some("found") => format!(
                "with {} requests on it ({} requests/s with this load)",
                depth["slots"], depth["requests_per_s"]
            ),
            Some("searching") => "being found".into(),
            Some("alone") => "no matter, since one tenant asks alone".into(),
            _ => "not, with all requests on it".into(),
        };
        lines.push(("device busy", busy));
    }
    if !state["slots"].is_null() {
        let why = match depth["state"].as_str() {
            None => String::new(),
            Some("searching") => "; looking for the least that fills the device".into(),
            Some("found") => format!(
                "; {} fill the device with this load ({} requests/s)",
                depth["slots"], depth["requests_per_s"]
            ),
            Some("alone") => "; no limit, since one tenant asks alone".into(),
            Some(_) => "; all requests are on the device and do not fill it".into(),
        };
        let in_use = format!("{} of {} in use{why}", state["slots_in_use"], state["slots"]);
        lines.push(("slots", in_use));
    }
    if !state["cost"].is_null() {
        let cost = &state["cost"];
        let costs = match cost["windows"].as_u64() {
            Some(0) | None => "by the device's time; not known yet".into(),
            Some(_) => format!(
                "a read {} (sequential {}) and {} each KiB; a write {} (sequential {}) and {} each KiB",
                cost["random_read"],
                cost["sequential_read"],
                cost["read_kib"],
                cost["random_write"],
                cost["sequential_write"],
                cost["written_kib"]
            ),
        };
        lines.push(("costs", costs));
    }
    if !state["class_weights"].is_null() {
        let weights = &state["class_weights"];
        lines.push((
            "classes",
            format!("high {} medium {} low {}", weights["high"], weights["medium"], weights["low"]),
        ));
    }
    for (index, shard) in
        result["shards"].as_array().map(Vec::as_slice).unwrap_or_default().iter().enumerate()
    {
        let operations = show_count(number(&shard["operations"]));
        let text = format!(
            "shard {index} on CPU {}: {}, {operations} requests",
            shard["cpu"],
            connections(&shard["connections"]),
        );
        lines.push((if index == 0 { "shards" } else { "" }, text));
    }
    if number(&result["unassigned"]) > 0.0 {
        let size = exact_size(result["unassigned"].as_u64().unwrap_or(0));
        lines.push(("unassigned", format!("{size} of the device are in no tenant's range")));
    }
    if result["write_back_errors"].as_array().is_some_and(|names| !names.is_empty()) {
        let text = format!("{}: flushes fail until clear-error NAME", list("write_back_errors"));
        lines.push(("lost data", text));
    }
    for of in result["outdated"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let (tenant, count) = (string(&of["tenant"]), connections(&of["connections"]));
        lines.push(("old size", format!("{tenant}: {count} must connect again to see its size")));
    }
    let targets = result["latency_targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, of) in targets.iter().enumerate() {
        let cause = of["cause"].as_str().map(|cause| format!(": {cause}")).unwrap_or_default();
        let late = match number(&of["completed"]) {
            0.0 => String::new(),
            completed => format!(", {} late", show_percent(number(&of["late"]) / completed)),
        };
        let [tenant, target, state] = ["tenant", "target", "state"].map(|key| string(&of[key]));
        let text = format!("{tenant}: {target}: {state}{late}{cause}");
        lines.push((if index == 0 { "latency" } else { "" }, text));
    }
    let reserved = result["reserved"].as_array().map(Vec::as_slice).unwrap_or_default();
    for of in reserved.iter().filter(|of| number(&of["granted"]) < 1.0) {
        let [asked, granted] = ["asked", "granted"].map(|key| show_percent(number(&of[key])));
        let text = format!(
            "{}: reservations are {asked} of what the device does; each has {granted} of its own: \
             lower some",
            string(&of["store"])
        );
        lines.push(("reserved", text));
    }
    for file in result["cut_off_files"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let [kept, all] = ["intact", "size"].map(|key| exact_size(file[key].as_u64().unwrap_or(0)));
        let text = format!("{} has kept {kept} of {all}: restore it", string(&file["path"]));
        lines.push(("cut off", text));
    }
    let stores = result["stores"].as_array().map(Vec::as_slice).unwrap_or_default();
    for store in stores.iter().filter(|store| stores.len() > 1 || store["stuck"] == json!(true)) {
        let names = store["tenants"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names: Vec<String> = names.iter().map(string).collect();
        let mut text = format!("{}: {}", string(&store["name"]), names.join(", "));
        if !store["slots"].is_null() {
            text += &format!(", {} of {} slots in use", store["slots_in_use"], store["slots"]);
        }
        if store["stuck"] == json!(true) {
            let oldest = number(&store["oldest_s"]);
            text += &format!(", stuck: has not answered for {oldest:.0} s, see to its device");
        }
        lines.push(("store", text));
    }
    if result["draining"] == json!(true) {
        lines.push(("draining", "no more connections; it ends with the last".into()));
    }
    lines.iter().map(|(key, value)| format!("{key:<12} {value}\n")).collect()
}

fn tenants(result: &Value) -> String {
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
    for tenant in result.as_array().map(Vec::as_slice).unwrap_or_default() {
        let last = &tenant["last_second"];
        let when = |text: String| if last.is_null() { "–".to_owned() } else { text };
        table.add_row([
            string(&tenant["name"]),
            tenant["weight"].to_string(),
            when(show_percent(number(&last["entitled"]))),
            when(show_percent(number(&last["share"]))),
            when(show_count(number(&last["iops"]))),
            when(show_bandwidth(number(&last["bytes_per_s"]))),
            when(show_duration(number(&last["p50_ns"]))),
            when(show_duration(number(&last["p99_ns"]))),
            format!(
                "{}+{}",
                tenant["staged"],
                number(&tenant["in_flight"]) - number(&tenant["staged"])
            ),
            tenant["errors"].to_string(),
            exact_size(tenant["size"].as_u64().unwrap_or(0)),
            string(&tenant["store"]),
        ]);
    }
    align_right(&mut table);
    format!("{table}\n{}", attachments(result))
}

/// The name, owner, group and mode of the tenant whose block device has this number.
fn disk(tenants: &Value, number: u32) -> anyhow::Result<String> {
    let path = json!(format!("/dev/ublkb{number}"));
    let has_it = |tenant: &&Value| {
        let attachments = tenant["attachments"].as_array().map(Vec::as_slice).unwrap_or_default();
        attachments.iter().any(|of| of["kind"] == "ublk" && of["path"] == path)
    };
    let mut tenants = tenants.as_array().into_iter().flatten();
    let Some(tenant) = tenants.find(has_it) else {
        bail!("/dev/ublkb{number} is no block device of this server's tenants");
    };
    let first = |key: &str| tenant[key].as_array().and_then(|all| all.first()?.as_u64());
    let (uid, gid) = (first("uids").unwrap_or(0), first("gids"));
    let mode = if gid.is_some() { "0660" } else { "0600" };
    Ok(format!("{} {uid} {} {mode}", string(&tenant["name"]), gid.unwrap_or(0)))
}

/// A line for each socket for guests and each block device.
fn attachments(result: &Value) -> String {
    let mut lines = String::new();
    for tenant in result.as_array().map(Vec::as_slice).unwrap_or_default() {
        for socket in tenant["attachments"].as_array().map(Vec::as_slice).unwrap_or_default() {
            if socket["kind"] == "ublk" {
                let state = socket["error"].as_str().map_or("", |_| ": there is none: ");
                lines += &format!(
                    "{}: ublk {}{state}{}\n",
                    string(&tenant["name"]),
                    string(&socket["path"]),
                    socket["error"].as_str().unwrap_or_default()
                );
                continue;
            }
            let state = match (socket["connected"].as_bool(), socket["queues"].as_u64()) {
                (Some(true), Some(1)) => "a guest with 1 queue".to_owned(),
                (Some(true), queues) => format!("a guest with {} queues", queues.unwrap_or(0)),
                _ => "no guest".to_owned(),
            };
            let (name, kind) = (string(&tenant["name"]), string(&socket["kind"]));
            lines += &format!("{name}: {kind} {}: {state}\n", string(&socket["path"]));
        }
    }
    lines
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
    table.set_header(["parameter", "now", "takes", "what it is"]);
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

/// The changes of a reload that was only checked, in words.
fn foretold(result: &Value) -> String {
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

fn interference(result: &Value) -> String {
    let rows = result.as_object().into_iter().flatten();
    let mut text = String::new();
    for (victim, others) in rows {
        let mut parts: Vec<(&String, f64)> = others
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, part)| (name, number(part)))
            .collect();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let part = |(name, part): &(&String, f64)| {
            let name = if *name == victim { "itself" } else { name.as_str() };
            format!("{name} {}", show_percent(*part))
        };
        text += &format!(
            "{victim} waited for: {}\n",
            parts.iter().map(part).collect::<Vec<_>>().join(", ")
        );
    }
    if text.is_empty() { "no tenant waited in the last ten seconds\n".into() } else { text }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::operate::table::Method;

    /// The commands that make one call.
    const LINES: [&str; 24] = [
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
