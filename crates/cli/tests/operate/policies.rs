//! A running server's policy: replaced, and its parameters changed.

use serde_json::{Value, json};

use super::common::until;
use super::{CONFIG, Server, tenant};

#[test]
fn the_policy_changes_under_load_and_a_bad_one_does_not() {
    let server = Server::start(CONFIG, &["--policy", "none"]);
    let mut clients = ["db", "web"].map(|tenant| server.load(tenant, "600s"));
    until("both are connected", || (server.connections() >= 2).then_some(()));
    assert_eq!(server.said(&["policy", "mqfq", "D=8", "T=32k"]), "none -> mqfq D=8 T=32k\n");
    assert_eq!(
        server.said(&["policy", "kyber-fair:period=20ms"]),
        "mqfq D=8 T=32k -> kyber-fair period=20.0 ms busy=auto\n"
    );
    assert_eq!(
        server.said(&["policy", "nass+bfq", "D=16"]),
        "kyber-fair period=20.0 ms busy=auto -> nass+bfq D=16\n"
    );
    let (code, text) = server.refused(&["policy", "d2fq"]);
    assert!(
        code == 1 && text.contains("the device (ram") && text.contains("or another policy"),
        "{code} {text}"
    );
    let (code, text) = server.refused(&["policy", "mqf"]);
    assert!(
        code == 2 && text.contains("unknown value `mqf`; did you mean `mqfq`?"),
        "{code} {text}"
    );
    let (code, text) = server.refused(&["policy", "mqfq:T=9P"]);
    assert!(code != 0 && text.contains("threshold 9216T is not in 0..1T"), "{code} {text}");
    let (code, text) = server.refused(&["policy", "cfq", "slice=2h"]);
    assert!(code != 0 && text.contains("slice"), "{code} {text}");
    assert!(server.said(&["status"]).contains("nass+bfq D=16"), "the old one goes on");
    server.said(&["remove", "web"]);
    server.said(&["weight", "db", "50"]);
    server.said(&["add", "new=4M,weight=7"]);
    server.said(&["policy", "cfq"]);
    assert_eq!(server.tenants(), [tenant("db", 50, 0, 16), tenant("new", 7, 16, 4)]);
    let mut new = server.load("new", "200ms");
    assert!(until("its client ends", || new.try_wait().unwrap()).success());
    let [db, web] = &mut clients;
    assert!(!until("the removed tenant's client ends", || web.try_wait().unwrap()).success());
    server.goes_on(db);
    let dump = server.said(&["config", "dump"]);
    assert!(dump.contains("name = \"cfq\""), "{dump}");
}

#[test]
fn a_device_with_classes_takes_d2fq_and_gives_it_back() {
    let server =
        Server::start(CONFIG, &["--device", "nvme-soft,backing=ram,size=64M", "--policy", "mqfq"]);
    let mut client = server.load("db", "600s");
    until("it is connected", || (server.connections() >= 1).then_some(()));
    server.said(&["policy", "d2fq", "hl=static-8"]);
    let classes = || {
        let policy: Value = serde_json::from_str(&server.said(&["policy", "--json"])).unwrap();
        policy["state"]["class_weights"].clone()
    };
    assert_eq!(classes(), json!({ "high": 8, "medium": 3, "low": 1 }));
    let said = server.said(&["params", "hl=static-4,tau-l=1M,period=200ms"]);
    assert_eq!(
        said,
        "policy.hl: static-8 -> static-4\npolicy.period: (nothing) -> 200ms\npolicy.tau-l: \
         (nothing) -> 1M\n"
    );
    assert_eq!(classes(), json!({ "high": 4, "medium": 2, "low": 1 }));
    let (code, text) = server.refused(&["params", "tau-m=2M"]);
    assert!(code == 1 && text.contains("tau_m <= tau_l <= tau_w must hold"), "{code} {text}");
    assert!(server.said(&["params"]).contains("static-4"));
    server.said(&["policy", "none"]);
    assert_eq!(classes(), Value::Null);
    server.goes_on(&mut client);
}

#[test]
fn parameters_change_all_or_none() {
    let server = Server::start(CONFIG, &[]);
    assert_eq!(server.said(&["params", "threshold=128k"]), "policy.threshold: 64k -> 128k\n");
    assert!(server.said(&["policy"]).contains("policy       mqfq D=auto T=128k"));
    server.said(&["params", "D=8"]);
    let policy: Value = serde_json::from_str(&server.said(&["policy", "--json"])).unwrap();
    assert_eq!(policy["state"]["slots"], json!(8));
    let (code, text) = server.refused(&["params", "threshold=1M,slots=0"]);
    assert!(code == 2 && text.contains("slots 0 is not in 1..65536"), "{code} {text}");
    assert!(server.said(&["policy"]).contains("T=128k"), "nothing was changed");
    let (code, text) = server.refused(&["params", "slot-kind=bitmap"]);
    assert!(code == 2 && text.contains("fairq lab run M-11"), "{code} {text}");
    let list = server.said(&["params"]);
    let has = |key: &str, value: &str| {
        list.lines().any(|line| line.split_whitespace().take(2).eq([key, value]))
    };
    assert!(has("threshold", "128k") && has("slots", "8") && !list.contains("slot-kind"), "{list}");
    // The operator sets D until it is automatic again.
    assert_eq!(policy["state"]["depth"], Value::Null);
    assert_eq!(server.said(&["params", "slots=9"]), "policy.slots: 8 -> 9\n");
    let policy: Value = serde_json::from_str(&server.said(&["policy", "--json"])).unwrap();
    assert_eq!(policy["state"]["slots"], json!(9));
    let (code, text) = server.refused(&["params", "budget=1M"]);
    assert!(code == 2 && text.contains("mqfq takes no `budget`"), "{code} {text}");
    let serial = Server::start(CONFIG, &["--policy", "sfqd:D=4"]);
    assert_eq!(serial.said(&["params", "D=9"]), "policy.slots: 4 -> 9\n");
    let policy: Value = serde_json::from_str(&serial.said(&["policy", "--json"])).unwrap();
    assert_eq!(policy["state"]["slots"], json!(9));
}

/// The value of a retired key that is served anyway is accepted, and logged once.
#[test]
fn keys_without_effect_are_logged_once() {
    let mut server = Server::start(CONFIG, &["--policy", "mqfq:slot-kind=tree"]);
    server.said(&["params", "slots=9,unthrottle=wheel"]);
    let mut log = server.process.stderr.take().unwrap();
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.end(), 0);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut log, &mut text).unwrap();
    for (key, times) in [("slot-kind", 1), ("unthrottle", 1), ("virtual-time", 0)] {
        let warning = format!("policy mqfq ignores the key {key}: remove the key");
        assert_eq!(text.matches(&warning).count(), times, "{text}");
    }
}
