//! Caps of a running server: stored, changed, shown, and refused if they are invalid.

use std::time::Instant;

use serde_json::{Value, json};

use super::common::until;
use super::http::{free_address, get};
use super::{CONFIG, Server};

impl Server {
    /// Number of a tenant's answered requests.
    fn served(&self, name: &str) -> u64 {
        let list: Value = serde_json::from_str(&self.said(&["tenants", "--json"])).unwrap();
        let tenant = list.as_array().unwrap().iter().find(|tenant| tenant["name"] == name).unwrap();
        ["reads", "writes", "others"].iter().filter_map(|key| tenant[key].as_u64()).sum()
    }

    fn tenant(&self) -> Value {
        let list: Value = serde_json::from_str(&self.said(&["tenants", "--json"])).unwrap();
        list[0].clone()
    }
}

#[test]
fn caps_are_kept_changed_shown_and_read_again() {
    let config = CONFIG.replace("weight = 300", "weight = 300\nmax-iops = 50\nburst = 5");
    let address = free_address();
    let server = Server::start(&config, &["--metrics", &format!("tcp:{address}")]);
    assert_eq!(
        server.tenant()["capped"]["caps"],
        json!({ "max-iops": { "per_s": 50, "burst": 5 } })
    );
    let mut client = server.load("db", "60s");
    // The load always has waiting requests. The cap allows 50 requests a second, in addition to one
    // burst.
    let reads = until("the cap holds", || {
        let tenant = server.tenant();
        let waits = tenant["capped"]["waiting"].as_u64().is_some_and(|waiting| waiting > 0);
        tenant["reads"].as_f64().filter(|reads| waits && *reads > 30.0)
    });
    let most = 5.0 + 50.0 * server.uptime_s();
    assert!(reads <= most, "{reads} of {most}");
    let (_, text) = get(&address, "/metrics");
    let labels = "{tenant=\"db\",device=\"ram\"";
    assert!(text.contains(&format!("fairq_tenant_cap{labels},key=\"max-iops\"}} 50")), "{text}");
    assert!(text.contains(&format!("fairq_tenant_capped_requests{labels}}}")), "{text}");
    assert_eq!(
        server.said(&["caps", "db", "read-max-bandwidth=100M/s"]),
        "db: caps max-iops=50 -> read-max-bandwidth=100M/s\n"
    );
    assert!(server.said(&["config", "dump"]).contains("read-max-bandwidth = \"100M/s\""));
    until("more than before", || {
        server.tenant()["last_second"]["iops"].as_f64().filter(|iops| *iops > 100.0)
    });
    // Another policy keeps the caps.
    server.said(&["policy", "none"]);
    assert_eq!(server.tenant()["capped"]["caps"]["read-max-bandwidth"]["per_s"], json!(100 << 20));
    let told = server.said(&["config", "reload"]);
    assert!(told.contains("tenant.db.max-iops: (nothing) -> 50"), "{told}");
    assert_eq!(server.said(&["caps", "db", "off"]), "db: caps max-iops=50 -> none\n");
    assert_eq!(server.tenant()["capped"], Value::Null);
    client.kill().unwrap();
    client.wait().unwrap();
}

/// The next policy gets the requests that wait for a cap, and the cap's present state: the change
/// does not wait for the tenant, and the tenant gets no more than the cap allows.
#[test]
fn a_policy_change_does_not_wait_for_caps_and_gives_no_new_burst() {
    let config = CONFIG.replace("weight = 300", "weight = 300\nmax-iops = 1\nburst = 4");
    let server = Server::start(&config, &[]);
    let start = Instant::now();
    let mut clients = ["db", "web"].map(|tenant| server.load(tenant, "60s"));
    let waits = || {
        let waiting = server.tenant()["capped"]["waiting"].as_u64();
        waiting.filter(|waiting| *waiting > 3)
    };
    until("requests wait for the cap", waits);
    for policy in ["sfqd", "kyber-fair", "none", "mqfq"] {
        let before = server.served("web");
        server.said(&["policy", policy]);
        until("the others go on", || (server.served("web") > before).then_some(()));
        until("the capped tenant's requests wait again", waits);
    }
    // At least one interval, and two requests for rounding and for requests under way.
    let served = server.served("db");
    let most = start.elapsed().as_secs() + 4 + 2;
    assert!(served <= most, "{served} of {most}");
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
}

#[test]
fn caps_that_make_no_sense_are_refused_with_the_cure() {
    let server = Server::start(CONFIG, &[]);
    for (pair, cure) in [
        ("max-iops=0", "leave the cap out"),
        ("burst=1s", "add max-iops=1000, say"),
        ("max-iops", "is not KEY=VALUE"),
        ("max-iop=1", "did you mean `max-iops`?"),
        ("max-bandwidth=fast", "`fast` is not a bandwidth"),
    ] {
        let (code, text) = server.refused(&["caps", "db", pair]);
        assert!(code == 2 && text.contains(cure), "{code} {text}");
    }
    let (code, text) = server.refused(&["caps", "nobody", "max-iops=1"]);
    assert!(code == 1 && text.contains("there is no tenant nobody"), "{code} {text}");
}
