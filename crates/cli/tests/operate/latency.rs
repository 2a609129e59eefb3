//! Latency targets of a running server: changed, shown, and refused if the policy cannot hold them.

use serde_json::{Value, json};

use super::common::until;
use super::{CONFIG, Server};

impl Server {
    /// The state of the first tenant's target.
    fn target(&self) -> Value {
        let list: Value = serde_json::from_str(&self.said(&["tenants", "--json"])).unwrap();
        list[0]["latency_target"].clone()
    }
}

#[test]
fn a_target_is_changed_shown_and_read_again() {
    let server = Server::start(&CONFIG.replace("weight = 300", "latency = \"1h\""), &[]);
    assert_eq!(server.target()["target_ns"], json!(3_600_000_000_000u64));
    let mut client = server.load("db", "60s");
    until("an hour is met", || (server.target()["state"] == json!("met")).then_some(()));
    let said = server.said(&["latency", "db", "1ns", "--percentile", "99.9", "--floor", "80%"]);
    assert_eq!(said, "db: latency target 99 % within 3600s -> 99.9 % within 1ns\n");
    // No memory answers in a nanosecond, and the state says so.
    let cause = until("a nanosecond is out of reach", || {
        server.target()["cause"].as_str().map(str::to_owned)
    });
    assert!(cause.contains("raise latency"), "{cause}");
    let status = server.said(&["status"]);
    assert!(status.contains("db: 99.9 % within 1ns: unreachable"), "{status}");
    assert!(server.said(&["config", "dump"]).contains("latency-percentile = \"99.9\""));
    assert!(server.said(&["config", "reload"]).contains("tenant.db.latency: 1ns -> 3600s"));
    assert_eq!(server.target()["target_ns"], json!(3_600_000_000_000u64));
    assert_eq!(
        server.said(&["latency", "db", "off"]),
        "db: latency target 99 % within 3600s -> none\n"
    );
    assert_eq!(server.target(), Value::Null);
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn a_target_that_makes_no_sense_is_refused_with_the_cure() {
    let server = Server::start(CONFIG, &[]);
    for (args, cure) in [
        (&["latency", "db", "0"][..], "latency 0ns is not from 1ns to 1h"),
        (&["latency", "db", "1ms", "--floor", "100%"], "write 0% to 99%"),
        (&["latency", "db", "1ms", "--percentile", "100"], "write 99 or 99.9"),
        (&["latency", "db", "--floor", "10%"], "add latency=200us"),
    ] {
        let (code, text) = server.refused(args);
        assert!(code == 2 && text.contains(cure), "{code} {text}");
    }
    let (code, text) = server.refused(&["latency", "nobody", "1ms"]);
    assert!(code == 1 && text.contains("there is no tenant nobody"), "{code} {text}");
    server.said(&["latency", "db", "1ms"]);
    // A policy without D cannot replace one that holds a target.
    let (code, text) = server.refused(&["policy", "none"]);
    assert!(code == 1 && text.contains("no latency targets"), "{code} {text}");
    server.said(&["policy", "sfqd"]);
    assert_eq!(server.target()["target_ns"], json!(1_000_000));
    server.said(&["latency", "db", "off"]);
    server.said(&["policy", "none"]);
    let (code, text) = server.refused(&["latency", "db", "1ms"]);
    assert!(code == 1 && text.contains("this policy has no D"), "{code} {text}");
}
