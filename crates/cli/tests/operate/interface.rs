//! The interface for programs, scripts and dashboards is stable: commands and flags, keys of the
//! configuration, methods and fields of the control socket, metrics, JSON.
//!
//! `crates/cli/interface.txt` has a line for each item. The test takes the items from the program:
//! its help, `rpc.discover`, a scrape of a server that uses everything, the example of the
//! configuration, and the JSON output of commands. `FAIRQ_WRITE_INTERFACE=1` writes the list anew.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Server;
use super::common::{fairq, until};
use super::http::{free_address, get};

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/interface.txt");
const EXAMPLE: &str = include_str!("../../../../docs/fairq.example.toml");

/// A configuration that uses everything: a group with a cap and a reservation, tenants with all
/// keys.
const ALL: &str = r#"
device = "ram,size=64M"
shards = 1

[[group]]
name = "acme"
max-iops = "100k"
min-iops = 100

[[tenant]]
name = "db"
size = "16M"
group = "acme"
latency = "10ms"
max-iops = "100k"
read-max-bandwidth = "1G"
min-iops = 100

[[tenant]]
name = "web"
size = "16M"
"#;

fn printed(args: &[&str]) -> String {
    let output = fairq(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The flags of a command and of its subcommands, from its help.
fn commands(path: &[&str], lines: &mut BTreeSet<String>) {
    let help = printed(&[path, &["--help"]].concat());
    let command = [&["fairq"], path].concat().join(" ");
    lines.insert(format!("command {command}"));
    let words = |line: &str| -> Vec<String> {
        line.split([' ', ',', '=']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    for line in help.lines().filter(|line| line.trim_start().starts_with('-')) {
        let flags = words(line).into_iter().take(2).filter(|word| word.starts_with("--"));
        lines.extend(flags.map(|flag| format!("flag {command} {flag}")));
    }
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in below.take_while(|line| !line.is_empty()) {
        let is_name = line.starts_with("  ") && !line[2..].starts_with(' ');
        let Some(name) = words(line).into_iter().next().filter(|name| is_name && name != "help")
        else {
            continue;
        };
        commands(&[path, &[&*name]].concat(), lines);
    }
}

/// The keys of the example, which has every key (a test of `fairq-config` checks this), many of
/// them in comments.
fn keys(lines: &mut BTreeSet<String>) {
    let mut table = String::new();
    for line in EXAMPLE.lines() {
        let line = line.trim_start_matches("# ").trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            let name = name.trim_start_matches('[');
            if name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-') {
                table = format!("{name}.");
            }
        } else if let Some((key, _)) = line.split_once(" = ")
            && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
        {
            lines.insert(format!("key {table}{key}"));
        }
    }
}

/// The fields of an output; all items of a list share one name.
fn fields(what: &str, value: &Value, path: &str, lines: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = format!("{path}.{key}");
                lines.insert(format!("json {what} {path}"));
                fields(what, value, &path, lines);
            }
        }
        Value::Array(list) => {
            list.iter().for_each(|value| fields(what, value, &format!("{path}[]"), lines));
        }
        _ => {}
    }
}

/// The interface of a running server.
fn served(lines: &mut BTreeSet<String>) {
    let address = free_address();
    let server = Server::start(ALL, &["--metrics", &format!("tcp:{address}")]);
    let mut client = server.load("db", "1200ms");
    assert!(until("the client ends", || client.try_wait().unwrap()).success());
    let document: Value = serde_json::from_str(&server.said(&["call", "rpc.discover"])).unwrap();
    for method in document["methods"].as_array().unwrap() {
        let name = method["name"].as_str().unwrap();
        lines.insert(format!("method {name}"));
        for param in method["params"].as_array().unwrap() {
            lines.insert(format!("method {name} {}", param["name"].as_str().unwrap()));
        }
    }
    for policy in ["mqfq", "mqfq:cost=device", "kyber-fair"] {
        if policy == "kyber-fair" {
            // It has no D, and so no targets.
            server.said(&["latency", "db", "off"]);
        }
        server.said(&["policy", policy]);
        for what in ["status", "tenants", "look", "groups", "params", "policy"] {
            let told: Value = serde_json::from_str(&server.said(&["call", what])).unwrap();
            fields(what, &told, "", lines);
        }
        let (_, metrics) = get(&address, "/metrics");
        let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        lines.extend(types.map(|line| format!("metric {line}")));
    }
}

/// The output of commands that compare policies.
fn compared(lines: &mut BTreeSet<String>) {
    let bench = ["bench", "--policy", "mqfq", "--seconds", "100ms", "--warmup", "0s", "--json"];
    fields("bench", &serde_json::from_str(&printed(&bench)).unwrap(), "", lines);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.toml").display().to_string();
    let scenario = "device = \"z-ssd\"\ncores = 2\nduration = \"5ms\"\n\
                    [[tenant]]\nname = \"heavy\"\nweight = 300\ndepth = 64\n\
                    [[tenant]]\nname = \"light\"\nweight = 100\ndepth = 64\n";
    std::fs::write(&file, scenario).unwrap();
    let lab = printed(&["lab", "run", &file, "--policy", "mqfq", "--json"]);
    fields("lab", &serde_json::from_str(&lab).unwrap(), "", lines);
    let claims = printed(&["lab", "run", "D-2", "--json"]);
    fields("claims", &serde_json::from_str(&claims).unwrap(), "", lines);
}

#[test]
fn what_others_rely_on_stays() {
    let mut now = BTreeSet::new();
    commands(&[], &mut now);
    keys(&mut now);
    served(&mut now);
    compared(&mut now);
    if std::env::var_os("FAIRQ_WRITE_INTERFACE").is_some() {
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(LIST, text).unwrap();
    }
    let text = std::fs::read_to_string(LIST).unwrap();
    let then: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let gone: Vec<_> = then.difference(&now).collect();
    assert!(gone.is_empty(), "gone, and somebody relies on it: {gone:#?}");
    let new: Vec<_> = now.difference(&then).collect();
    assert!(new.is_empty(), "new: FAIRQ_WRITE_INTERFACE=1 writes {LIST}: {new:#?}");
}
