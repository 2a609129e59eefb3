//! Groups of tenants and reservations of a running server: kept, changed, shown, read again, and
//! refused where they make no sense.

use serde_json::{Value, json};

use super::common::{fairq, until};
use super::{CONFIG, Server, free_address, get};

const GROUPS: &str =
    "[[group]]\nname = \"acme\"\nweight = 300\n\n[[group]]\nname = \"acme/batch\"\n";

/// The usual configuration with these keys of its first tenant, and two groups.
fn config(keys: &str) -> String {
    format!("{}{GROUPS}", CONFIG.replace("weight = 300", &format!("weight = 300\n{keys}")))
}

impl Server {
    fn place(&self, tenant: usize) -> Value {
        let list: Value = serde_json::from_str(&self.said(&["tenants", "--json"])).unwrap();
        list[tenant].clone()
    }
}

#[test]
fn groups_are_kept_changed_shown_and_read_again() {
    let address = free_address();
    let config = config("group = \"acme/batch\"\nmin-iops = 200");
    let server = Server::start(&config, &["--metrics", &format!("tcp:{address}")]);
    assert_eq!(server.place(0)["group"], json!("acme/batch"));
    assert_eq!(server.place(0)["place"]["min_iops"], json!(200));
    let told = server.said(&["groups"]);
    assert!(told.contains("acme: weight 300; "), "{told}");
    assert!(told.contains("acme/batch: weight 100; "), "{told}");
    assert!(told.contains("tenants: db"), "{told}");
    // Alone in its group it has all that the group has.
    let mut client = server.load("db", "60s");
    until("it is active", || {
        let place = server.place(0)["place"].clone();
        (place["active"] == json!(true) && place["effective_weight"] == json!(300.0)).then_some(())
    });
    until("the reservation is met", || {
        (server.place(0)["place"]["reservation"] == json!("met")).then_some(())
    });
    let (_, text) = get(&address, "/metrics");
    assert!(text.contains("fairq_group_weight{group=\"acme\"} 300"), "{text}");
    assert!(text.contains("fairq_tenant_reserved{tenant=\"db\",key=\"min-iops\"} 200"), "{text}");
    assert_eq!(
        server.said(&["group", "acme", "weight=500", "min-iops=1000"]),
        "acme: weight 300 -> weight 500, min-iops=1000\n"
    );
    assert_eq!(
        server.said(&["group", "solo", "weight=50"]),
        "solo: none -> weight 50\n",
        "a group that was not there"
    );
    assert_eq!(
        server.said(&["share", "web", "group=solo", "min-bandwidth=1M/s"]),
        "web: group none, reservation none -> group solo, reservation min-bandwidth=1M/s\n"
    );
    until("the new weight", || {
        (server.place(0)["place"]["effective_weight"] == json!(500.0)).then_some(())
    });
    let dump = server.said(&["config", "dump"]);
    assert!(
        dump.contains("name = \"solo\"") && dump.contains("min-bandwidth = \"1M/s\""),
        "{dump}"
    );
    // Under another policy they are as they were.
    server.said(&["policy", "sfqd"]);
    assert_eq!(server.place(1)["group"], json!("solo"));
    assert_eq!(server.place(1)["place"]["min_bandwidth"], json!(1 << 20));
    let told = server.said(&["config", "reload"]);
    assert!(told.contains("group.acme.weight: 500 -> 300"), "{told}");
    assert!(told.contains("tenant.web.min-bandwidth: 1M/s -> (nothing)"), "{told}");
    assert!(!told.contains("restart"), "{told}");
    assert_eq!(server.place(1)["group"], Value::Null);
    assert!(!server.said(&["groups"]).contains("solo"), "a group that the file does not have");
    assert_eq!(
        server.said(&["share", "db", "group=off", "min-iops=off"]),
        "db: group acme/batch, reservation min-iops=200 -> group none, reservation none\n"
    );
    assert_eq!(server.said(&["group", "acme/batch", "off"]), "removed group acme/batch\n");
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn what_makes_no_sense_is_refused_with_the_cure() {
    let server = Server::start(&config("group = \"acme\"\nmax-iops = 100"), &[]);
    for (args, cure) in [
        (&["group", "acme", "weight=0"][..], "`0` is not a weight"),
        (&["group", "acme", "wieght=3"], "did you mean `weight`?"),
        (&["group", "acme", "min-iops=0"], "min-iops 0 keeps nothing: write 1 or more"),
        (&["group", "other/inner", "weight=3"], "add [[group]] name = \"other\""),
        (&["group", "acme", "off"], "the group has members: move or remove them first"),
        (&["group", "nothing", "off"], "no such group"),
        (&["share", "db", "group=nothing"], "there is no group nothing: add it with"),
        (&["share", "db", "min-iops=200"], "is above what max-iops allows, 100: lower it"),
        (&["share", "nobody", "min-iops=200"], "there is no tenant nobody"),
        (&["share", "db", "weight=2"], "write group, min-iops or min-bandwidth"),
        (&["add", "new=1M,group=nothing/at/all"], "there is no group nothing/at/all: add"),
    ] {
        let (code, text) = server.refused(args);
        assert!(code > 0 && text.contains(cure), "{args:?}: {code} {text}");
    }
    server.said(&["share", "db", "min-iops=60"]);
    let (_, text) = server.refused(&["caps", "db", "max-iops=50"]);
    assert!(text.contains("min-iops 60 is above what max-iops allows, 50"), "{text}");
    assert_eq!(server.place(0)["capped"]["caps"]["max-iops"]["per_s"], json!(100));
    // A group that goes while it has a tenant: nothing changes.
    let file = server.path("fairq.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, before.replace(GROUPS, "")).unwrap();
    let (_, text) = server.refused(&["config", "reload"]);
    assert!(text.contains("there is no group `acme`") && text.contains("fairq.toml:"), "{text}");
    assert_eq!(server.place(0)["group"], json!("acme"));
}

/// At the start a file is refused as a whole, with its line.
#[test]
fn a_file_with_a_group_that_is_not_there_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |text: &str| {
        let file = folder.path().join("fairq.toml");
        std::fs::write(&file, format!("device = \"ram,size=64M\"\n{text}")).unwrap();
        let output = fairq(&["serve", "--config", &file.display().to_string()]).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refusal("[[tenant]]\nname = \"db\"\ngroup = \"acme/batch\"\n");
    assert!(
        text.contains("fairq.toml:2: tenant db: group: there is no group acme/batch"),
        "{text}"
    );
    let text = refusal("[[tenant]]\nname = \"db\"\nmax-iops = 1\nmin-iops = 2\n");
    assert!(text.contains("fairq.toml:2: tenant db: min-iops 2 is above what"), "{text}");
    let text = refusal("[[group]]\nname = \"a/b\"\n");
    assert!(text.contains("fairq.toml:2: group a/b is in a, and there is no such group"), "{text}");
}
