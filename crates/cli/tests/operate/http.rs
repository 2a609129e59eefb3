//! Metrics, the HTTP server, and the files for Prometheus.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::common::{fairq, until};
use super::{CONFIG, Server};

/// The head and the body of a page.
pub(crate) fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The value of a sample.
pub(crate) fn sample(metrics: &str, name: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// A free port: it was bound once, so the system does not assign it again soon.
pub(crate) fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn metrics_are_what_prometheus_expects() {
    let address = free_address();
    let server = Server::start(
        CONFIG,
        &["--metrics", &format!("tcp:{address}"), "--device", "ram,size=64M"],
    );
    let mut client = server.load("db", "1500ms");
    assert!(until("the client ends", || client.try_wait().unwrap()).success());
    let (head, metrics) = get(&address, "/metrics");
    assert!(
        head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    let db = |name: &str, rest: &str| {
        sample(&metrics, &format!("{name}{{tenant=\"db\",device=\"ram\"{rest}}}"))
    };
    let reads = db("fairq_tenant_operations_total", ",op=\"read\"").unwrap();
    assert!(reads > 0.0);
    assert_eq!(db("fairq_tenant_requests_total", ",op=\"read\""), Some(reads), "of 4 KiB each");
    assert_eq!(db("fairq_tenant_read_bytes_total", ""), Some(reads * 4096.0));
    assert_eq!(db("fairq_tenant_latency_seconds_count", ""), Some(reads));
    assert_eq!(db("fairq_tenant_latency_seconds_bucket", ",le=\"+Inf\""), Some(reads));
    assert_eq!(db("fairq_tenant_weight", ""), Some(300.0));
    let by_shard = ["0", "1"].map(|shard| {
        sample(&metrics, &format!("fairq_shard_operations_total{{shard=\"{shard}\"}}"))
    });
    assert_eq!(by_shard.map(Option::unwrap).iter().sum::<f64>(), reads);
    if std::fs::exists("/proc/thread-self/schedstat").unwrap() {
        let seconds = |name: &str| {
            sample(&metrics, &format!("fairq_shard_cpu_{name}_total{{shard=\"0\"}}")).unwrap()
        };
        assert!(seconds("seconds") > 0.0 && seconds("wait_seconds") >= 0.0);
    }
    let policy = |metrics: &str, name: &str| {
        sample(metrics, &format!("fairq_policy_{name}{{store=\"ram\"}}"))
    };
    assert!(policy(&metrics, "slots_found").unwrap() >= 1.0);
    assert_eq!(server.said(&["params", "slots=64"]), "policy.slots: (nothing) -> 64\n");
    let (_, metrics) = get(&address, "/metrics");
    assert_eq!(sample(&metrics, "fairq_policy_slots"), Some(64.0));
    assert_eq!(policy(&metrics, "slots_found"), None);
    assert_eq!(server.said(&["params", "slots=auto"]), "policy.slots: 64 -> auto\n");
    let (_, metrics) = get(&address, "/metrics");
    assert!(policy(&metrics, "slots_found").unwrap() >= 1.0);
    check_with_promtool(&metrics);
    let own = "fairq_interference_seconds_total{tenant=\"db\",by=\"db\"}";
    assert!(sample(&metrics, own).unwrap() > 0.0, "it waited for itself");
    assert!(get(&address, "/nonsense").0.starts_with("HTTP/1.1 404"));
    check_with_promtool(&metrics);

    server.said(&["policy", "mqfq:cost=device"]);
    let (_, metrics) = get(&address, "/metrics");
    check_with_promtool(&metrics);
    let write = "fairq_policy_cost_base_bytes{store=\"ram\",operation=\"write\",access=\"random\"}";
    assert_eq!(sample(&metrics, write), Some(0.0), "by its bytes until more is known");
    assert!(server.said(&["status"]).contains("by the device's time; not known yet"));

    server.said(&["policy", "kyber-fair:period=20ms"]);
    let (_, metrics) = get(&address, "/metrics");
    check_with_promtool(&metrics);
    assert!(policy(&metrics, "tokens").unwrap() > 0.0);
    assert!(policy(&metrics, "write_cost").unwrap() >= 1.0);
    until("periods go by", || {
        let periods = policy(&get(&address, "/metrics").1, "periods_total")?;
        (periods > 2.0).then_some(())
    });

    // The page, and its data: the same as `top`'s.
    let (head, page) = get(&address, "/");
    assert!(head.contains("default-src 'none'") && page.contains("<title>fairq</title>"), "{head}");
    let control = server.path("ctl").display().to_string();
    // Both show the last full second, so they are the same unless a second ends between them.
    until("page and top show the same", || {
        let top = fairq(&["top", "--control", &control, "--json"]).output().unwrap();
        let (head, look) = get(&address, "/look.json");
        assert!(head.contains("fairq-write: off"), "{head}");
        let [page, top] = [look.as_bytes(), &top.stdout]
            .map(|text| serde_json::from_slice::<Value>(text).unwrap());
        assert_eq!(page["tenants"][0]["name"], json!("db"));
        (page == top).then_some(())
    });
}

#[test]
fn a_unix_socket_for_http_is_its_users_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http");
    let server = Server::start(CONFIG, &["--metrics", &format!("unix:{}", path.display())]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("fairq_tenants 2"), "{text}");
    drop(server);
}

/// Checks metrics with Prometheus' own tool, if it is installed.
fn check_with_promtool(metrics: &str) {
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return eprintln!("no promtool: the format was not checked by it");
    };
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = promtool.wait_with_output().unwrap();
    let said = [stdout, stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(status.success() && said.is_empty(), "{said}\n{metrics}");
}

#[test]
fn the_files_for_prometheus_are_sound() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let dashboard = std::fs::read_to_string(root.join("grafana/fairq.json")).unwrap();
    let rules = std::fs::read_to_string(root.join("prometheus/fairq.rules.yml")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    // Dashboards and rules name only existing metrics.
    let source = [
        include_str!("../../src/operate/metrics.rs"),
        include_str!("../../src/operate/metrics/promised.rs"),
    ]
    .concat();
    let names = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words
            .filter(|word| word.starts_with("fairq_"))
            .map(|word| word.trim_end_matches("_bucket").to_owned())
            .collect()
    };
    let used = [names(&rules), names(&dashboard.to_string())].concat();
    assert!(used.len() > 20);
    for name in used {
        assert!(source.contains(&format!("\"{name}\"")), "{name} is not there");
    }
    match Command::new("promtool")
        .args(["check", "rules"])
        .arg(root.join("prometheus/fairq.rules.yml"))
        .output()
    {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr))
        }
        Err(_) => eprintln!("no promtool: the rules were not checked by it"),
    }
}
