//! Groups of tenants and reservations of a running server: stored, changed, shown, reloaded, and
//! refused if they are invalid.

use serde_json::{Value, json};

use super::common::{fairq, until};
use super::http::{free_address, get};
use super::{CONFIG, Server};

const GROUPS: &str =
    "[[group]]\nname = \"acme\"\nweight = 300\n\n[[group]]\nname = \"acme/batch\"\n";

/// The default configuration with these keys for its first tenant, and two groups.
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
    // A tenant that is alone in its group has the group's whole weight.
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
    assert!(
        text.contains("fairq_tenant_reserved{tenant=\"db\",device=\"ram\",key=\"min-iops\"} 200"),
        "{text}"
    );
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
    // Another policy keeps them.
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
        (&["group", "acme", "min-iops=0"], "min-iops 0 reserves nothing: write 1 or more"),
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
    // A file without a group that has a tenant changes nothing.
    let file = server.path("fairq.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, before.replace(GROUPS, "")).unwrap();
    let (_, text) = server.refused(&["config", "reload"]);
    assert!(text.contains("there is no group `acme`") && text.contains("fairq.toml:"), "{text}");
    assert_eq!(server.place(0)["group"], json!("acme"));
}

/// A server that starts refuses a file with an unknown group, and names the line.
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

/// Caps of a group apply to its tenants together; its target is for tenants without their own.
#[test]
fn caps_and_targets_of_groups_are_kept_changed_and_read_again() {
    let address = free_address();
    let group = "[[group]]\nname = \"acme\"\nmax-iops = 60\nburst = 6\nlatency = \"50ms\"\n";
    let tenants = CONFIG.replace("size = \"16M\"", "size = \"16M\"\ngroup = \"acme\"");
    let config = format!("{tenants}\n{group}");
    let server = Server::start(&config, &["--metrics", &format!("tcp:{address}")]);
    let mut clients = [server.load("db", "60s"), server.load("web", "60s")];
    let reads = until("the group's cap holds", || {
        let [db, web] = [0, 1].map(|tenant| server.place(tenant)["reads"].as_f64().unwrap());
        let waits = server.place(0)["capped"]["waiting"].as_u64() > Some(0);
        (waits && db > 10.0 && web > 10.0).then_some(db + web)
    });
    let most = 6.0 + 60.0 * server.uptime_s();
    assert!(reads <= most, "{reads} of {most}");
    let (_, metrics) = get(&address, "/metrics");
    assert!(metrics.contains("fairq_group_cap{group=\"acme\",key=\"max-iops\"} 60"), "{metrics}");
    assert!(metrics.contains("fairq_group_capped_requests{group=\"acme\"}"), "{metrics}");
    assert!(server.said(&["groups"]).contains("acme: weight 100, max-iops 60, 99 % within 50ms;"));
    assert_eq!(server.place(0)["latency_target"]["target_ns"], json!(50_000_000));
    assert_eq!(
        server.said(&["group", "acme", "max-iops=off", "burst=off", "latency=20ms"]),
        "acme: weight 100, max-iops=60, 99 % within 50ms -> weight 100, 99 % within 20ms\n"
    );
    assert_eq!(server.place(0)["latency_target"]["target_ns"], json!(20_000_000));
    until("nothing holds it", || {
        server.place(0)["last_second"]["iops"].as_f64().filter(|iops| *iops > 200.0)
    });
    // A tenant's own target takes precedence over its group's, until it is removed.
    server.said(&["latency", "db", "5ms"]);
    assert_eq!(server.place(0)["latency_target"]["target_ns"], json!(5_000_000));
    server.said(&["latency", "db", "off"]);
    assert_eq!(server.place(0)["latency_target"]["target_ns"], json!(20_000_000));
    server.said(&["share", "db", "group=off"]);
    assert_eq!(server.place(0)["latency_target"], Value::Null);
    let told = server.said(&["config", "reload"]);
    assert!(told.contains("group.acme.max-iops: (nothing) -> 60"), "{told}");
    assert!(!told.contains("restart"), "{told}");
    assert_eq!(server.place(0)["latency_target"]["target_ns"], json!(50_000_000));
    // A change that the policy refuses has no effect.
    server.said(&["group", "acme", "latency=off"]);
    server.said(&["policy", "none"]);
    let (_, refused) = server.refused(&["group", "acme", "latency=1ms", "weight=7"]);
    assert!(refused.contains("no latency targets"), "{refused}");
    assert!(server.said(&["groups"]).contains("acme: weight 100, max-iops 60;"));
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
}

/// A group has its weight and its caps from a cgroup, and follows changes of both.
#[test]
fn a_group_follows_a_cgroup() {
    let root = tempfile::tempdir().unwrap();
    let (cgroup, disk) = (root.path().join("acme"), root.path().join("disk.img"));
    std::fs::create_dir(&cgroup).unwrap();
    std::fs::write(&disk, vec![0; 32 << 20]).unwrap();
    let number = rustix::fs::stat(&disk).unwrap().st_dev;
    let number = (rustix::fs::major(number), rustix::fs::minor(number));
    let write = |weight: u16, riops: &str| {
        std::fs::write(cgroup.join("io.weight"), format!("default {weight}\n")).unwrap();
        let line = format!("{}:{} rbps=max wbps=max riops={riops} wiops=max\n", number.0, number.1);
        std::fs::write(cgroup.join("io.max"), line).unwrap();
    };
    write(250, "70");
    let config = format!(
        "cgroup-root = {:?}\ndevice = {:?}\n[[group]]\nname = \"acme\"\ncgroup = \"/acme\"\n\
         [[tenant]]\nname = \"db\"\ngroup = \"acme\"\n",
        root.path(),
        format!("{},direct=off", disk.display())
    );
    let mut server = Server::start(&config, &[]);
    let told = || server.said(&["groups"]);
    assert!(told().contains("acme: weight 250, read-max-iops 70; "), "{}", told());
    write(400, "max");
    until("the new settings", || told().contains("acme: weight 400; ").then_some(()));
    std::fs::remove_file(cgroup.join("io.weight")).unwrap();
    assert_eq!(server.said(&["share", "db", "min-iops=5"]).lines().count(), 1, "goes on");
    let (_, refused) = server.refused(&["group", "acme", "max-iops=5"]);
    assert!(refused.contains("the cgroup's io.max sets the caps"), "{refused}");
    let (_, refused) = server.refused(&["group", "other", "cgroup=/none"]);
    assert!(refused.contains("No such file"), "{refused}");
    // The cgroup has no weight, and limits only other disks.
    std::fs::write(cgroup.join("io.max"), "4095:7 riops=5\n").unwrap();
    until("the default weight", || {
        server.said(&["groups"]).contains("acme: weight 100; ").then_some(())
    });
    server.signal(rustix::process::Signal::TERM);
    let log = std::io::read_to_string(server.process.stderr.take().unwrap()).unwrap();
    let said = format!("io.max limits 4095:7, and {} is on ", disk.display());
    assert!(log.contains(&said), "{log}");
}
