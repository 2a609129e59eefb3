//! Upgrades: another program takes over the server, and no client notices.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use fairq_host::nbd::wire::proto::{Command, CommandFlags};

use super::http::free_address;
use super::storage::{Client, open_on};
use super::*;

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

fn json(server: &Server, words: &[&str]) -> Value {
    serde_json::from_str(&server.said(&[words, &["--json"]].concat())).unwrap()
}

/// A tenant as `ctl tenants` shows it.
fn tenant(server: &Server, name: &str) -> Value {
    let tenants = json(server, &["tenants"]);
    let mut tenants = tenants.as_array().unwrap().iter();
    tenants.find(|tenant| tenant["name"] == name).unwrap().clone()
}

/// Sends a write without waiting for its answer.
fn send<S: Read + Write>(client: &mut Client<S>, offset: u64, data: &[u8]) {
    client.ask(Command::Write, CommandFlags(0), offset, data.len() as u64);
    client.stream.write_all(data).unwrap();
}

/// Upgrades a server; repeats this if a busy machine does not stop its shards in time.
fn upgrade(server: &Server) {
    until("the server is upgraded", || {
        let Output { status, stdout, stderr } = server.ctl(&["upgrade"]);
        let said = String::from_utf8([stdout, stderr].concat()).unwrap();
        let is_late = said.contains("within");
        assert!(status.success() || is_late, "{said}");
        (!is_late).then(|| assert!(said.contains("serves"), "{said}"))
    });
}

/// A server with a pool of 64 MiB, and the pool's folder.
fn with_pool(tenants: &str) -> (Server, tempfile::TempDir) {
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("pool");
    std::fs::File::create(&path).unwrap().set_len(64 * MIB).unwrap();
    let config = format!("device = \"file,path={}\"\nshards = 2\n{tenants}", path.display());
    (Server::start(&config, &[]), disk)
}

const TWO: &str = "[[tenant]]\nname = \"db\"\nsize = \"16M\"\n\
                   [[tenant]]\nname = \"web\"\nsize = \"16M\"\n";

/// Connections in every state: requests that wait for a cap, half of a write received, half of a
/// reply sent, and an idle one over TCP.
#[test]
fn clients_do_not_notice_an_upgrade() {
    let (server, _disk) = with_pool(TWO);
    let address = server.said(&["listen", "tcp:127.0.0.1:0"]);
    let address = address.trim().rsplit_once("tcp:").unwrap().1.to_owned();
    let pattern: Vec<u8> =
        (0..8 * MIB as usize / 2).flat_map(|n| (n as u16).to_be_bytes()).collect();

    let mut tcp = open_on(TcpStream::connect(&address).unwrap(), "web").unwrap();
    assert_eq!(tcp.write(0, &pattern), 0);
    let mut slow = Client::of(&server, "web");
    slow.ask(Command::Read, CommandFlags(0), 0, 8 * MIB);
    // The client has read the first bytes of the reply, so the rest of the reply fills the socket.
    assert_eq!(slow.answer(), 0);
    let mut half = Client::of(&server, "web");
    half.ask(Command::Write, CommandFlags(0), 9 * MIB, 1 << 20);
    half.stream.write_all(&pattern[..300_000]).unwrap();
    server.said(&["caps", "db", "max-iops=1"]);
    let mut staged = Client::of(&server, "db");
    for page in 0..8 {
        send(&mut staged, page * PAGE as u64, &[b'a' + page as u8; PAGE]);
    }
    until("requests wait for the cap", || {
        (tenant(&server, "db")["in_flight"].as_u64()? > 4).then_some(())
    });

    server.said(&["weight", "web", "700"]);
    server.said(&["add", "new=8M"]);
    server.said(&["params", "T=128k"]);
    let (web, db) = (tenant(&server, "web"), tenant(&server, "db"));
    let params = json(&server, &["policy"])["params"].clone();
    let pid = server.process.id();
    for count in 1..=2 {
        upgrade(&server);
        assert_eq!(json(&server, &["status"])["upgrades"], count);
    }
    assert_eq!(server.process.id(), pid);
    assert!(UnixStream::connect(server.path("ctl")).is_ok());

    half.stream.write_all(&pattern[300_000..MIB as usize]).unwrap();
    assert_eq!(half.answer(), 0);
    let mut reply = vec![0; 8 * MIB as usize];
    slow.stream.read_exact(&mut reply).unwrap();
    assert!(reply == pattern, "the reply is whole");
    assert!(slow.read(9 * MIB, 1 << 20).unwrap() == pattern[..1 << 20], "the write is whole");
    assert!(tcp.read(0, PAGE).unwrap() == pattern[..PAGE]);

    let (now, before) = (tenant(&server, "web"), web);
    for key in ["weight", "offset", "size"] {
        assert_eq!(now[key], before[key]);
    }
    assert!(now["written_bytes"].as_u64() >= before["written_bytes"].as_u64());
    assert_eq!(tenant(&server, "db")["caps"], db["caps"]);
    assert_eq!(json(&server, &["policy"])["params"], params);
    assert_eq!(Client::of(&server, "new").size, 8 * MIB);
    assert_eq!(tenant(&server, "db")["in_flight"].as_u64().map(|left| left > 2), Some(true));
    server.said(&["caps", "db", "off"]);
    for _ in 0..8 {
        assert_eq!(staged.answer(), 0);
    }
    for page in 0..8 {
        assert_eq!(staged.read(page * PAGE as u64, PAGE).unwrap(), [b'a' + page as u8; PAGE]);
    }
    let again = open_on(TcpStream::connect(&address).unwrap(), "db").unwrap();
    assert_eq!(again.size, 16 * MIB);
}

/// A server's counters only increase: over changes of the policy and over upgrades.
#[test]
fn counts_of_the_policy_survive_another_policy_and_an_upgrade() {
    let server = Server::start(CONFIG, &[]);
    let blocks = || json(&server, &["policy"])["state"]["blocks"].as_u64().expect("it is a number");
    server.said(&["params", "slots=1"]);
    let mut web = Client::of(&server, "web");
    // 16 pieces for one slot.
    until("a shard has stopped for a slot", || {
        web.ask(Command::Read, CommandFlags(0), 0, MIB);
        assert_eq!(web.answer(), 0);
        web.stream.read_exact(&mut vec![0; MIB as usize]).unwrap();
        (blocks() > 0).then_some(())
    });
    server.said(&["params", "slots=64"]);
    let before = blocks();
    server.said(&["policy", "none"]);
    assert!(blocks() >= before, "{} after {before}", blocks());
    until("the policy has changed", || {
        json(&server, &["policy"])["state"]["changing_s"].is_null().then_some(())
    });
    upgrade(&server);
    assert!(blocks() >= before, "{} after {before}", blocks());
}

/// The recording has decisions from before two upgrades and after them, each with its own tenant,
/// although the tenants' numbers change after a removal.
#[test]
fn a_recording_goes_on_over_upgrades() {
    let server = Server::start(CONFIG, &[]);
    server.said(&["remove", "db"]);
    server.said(&["add", "late=8M"]);
    let call = |words: &[&str]| -> Value {
        serde_json::from_str(&server.said(&[&["call"], words].concat())).unwrap()
    };
    let mut web = Client::of(&server, "web");
    let mut late = Client::of(&server, "late");
    call(&["trace.start", r#"{"seconds": 60, "events": 1000}"#]);
    for round in 0..3 {
        for page in 0..10 {
            assert_eq!(web.write(page * PAGE as u64, &[1; PAGE]), 0);
        }
        assert_eq!(late.write(0, &[1; PAGE]), 0);
        if round < 2 {
            upgrade(&server);
        }
    }
    let told = call(&["trace.stop"]);
    let name = |number: &Value| {
        let mut tenants = told["tenants"].as_array().unwrap().iter();
        tenants.find(|pair| pair[0] == *number).map(|pair| pair[1].as_str().unwrap().to_owned())
    };
    let shards = told["shards"].as_array().unwrap();
    let mut arrived: HashMap<String, usize> = HashMap::new();
    for (shard, said) in shards.iter().enumerate() {
        assert_eq!(said["lost"], 0);
        let rows = call(&["trace.read", &format!(r#"{{"shard": {shard}, "from": 0}}"#)]);
        let rows = rows["rows"].as_array().unwrap();
        assert_eq!(said["events"], rows.len());
        let times: Vec<u64> = rows.iter().map(|row| row[0].as_u64().unwrap()).collect();
        assert!(times.is_sorted(), "the process's time goes on");
        for row in rows.iter().filter(|row| row[1] == "arrive") {
            *arrived.entry(name(&row[2]).unwrap()).or_default() += 1;
        }
    }
    assert_eq!(arrived, HashMap::from([("web".into(), 30), ("late".into(), 3)]));
    assert!(server.refused(&["call", "trace.stop"]).1.contains("nothing is being recorded"));
}

/// An upgrade keeps the data of a device in memory, the ranges of tenants that `ctl add` has
/// placed, and the state that no tenant is the default.
#[test]
fn an_upgrade_keeps_what_is_in_memory_where_it_is() {
    let server = Server::start(CONFIG, &[]);
    let mut web = Client::of(&server, "web");
    assert_eq!(web.write(5 * MIB + 7, b"kept"), 0);
    server.said(&["remove", "db"]);
    server.said(&["add", "small=4M"]);
    let mut small = Client::of(&server, "small");
    assert_eq!(small.write(0, b"too"), 0);
    let before = server.tenants();
    upgrade(&server);
    assert_eq!(server.tenants(), before);
    assert_eq!(web.read(5 * MIB + 7, 4).unwrap(), b"kept");
    assert_eq!((small.read(0, 3).unwrap(), small.read(9, 3).unwrap()), (b"too".into(), vec![0; 3]));
}

/// A program that the server executes as the next one.
fn script(server: &Server, text: &str) -> String {
    let path = server.path("next");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn a_program_that_cannot_take_over_leaves_the_server_as_it_is() {
    let keys = tempfile::tempdir().unwrap();
    let token = keys.path().join("token");
    std::fs::write(&token, "a-token-for-the-web").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let address = free_address();
    let web = format!("metrics = [\"tcp:{address}\"]\nweb-token = {token:?}\n");
    let (server, disk) = with_pool(&format!("{web}{TWO}"));
    let fairq = env!("CARGO_BIN_EXE_fairq");
    let mut client = Client::of(&server, "db");
    let mut serves = |server: &Server, byte: u8| {
        assert_eq!(client.write(0, &[byte; PAGE]), 0);
        assert_eq!(client.read(0, PAGE).unwrap(), [byte; PAGE]);
        assert_eq!(json(server, &["status"])["upgrades"], 0);
    };
    for (program, why) in [
        ("/bin/false", "cannot continue: it ended with"),
        ("/bin/true", "is not a fairq that can continue"),
        ("/nowhere", "cannot execute /nowhere"),
    ] {
        let (code, said) = server.refused(&["upgrade", program]);
        assert!(code == 1 && said.contains(why), "{said}");
        serves(&server, 1);
    }
    // The next program passes the check, but later fails because of its arguments. The token file,
    // which the previous program has read, no longer exists by then.
    let hidden = keys.path().join("hidden");
    let next = script(
        &server,
        &format!(
            "case \"$*\" in *--check-*) exec {fairq} \"$@\";; esac\n\
                  mv {} {}; exec {fairq} \"$@\" --no-such-argument",
            token.display(),
            hidden.display()
        ),
    );
    let (code, said) = server.refused(&["upgrade", &next]);
    assert!(code == 1 && said.contains("the program that was to take over has failed"), "{said}");
    serves(&server, 2);
    std::fs::rename(&hidden, &token).unwrap();
    // A wrong configuration.
    let config = std::fs::read_to_string(server.path("fairq.toml")).unwrap();
    std::fs::write(server.path("fairq.toml"), format!("{config}nonsense = 1\n")).unwrap();
    let (_, said) = server.refused(&["upgrade"]);
    assert!(said.contains("nonsense"), "{said}");
    let other = config.replace("/pool", "/other");
    std::fs::write(server.path("fairq.toml"), other).unwrap();
    let (_, said) = server.refused(&["upgrade"]);
    assert!(said.contains("names another device"), "{said}");
    std::fs::write(server.path("fairq.toml"), &config).unwrap();
    // The files that a server opens or reads at its start.
    let (pool, record) = (disk.path().join("pool"), disk.path().join("pool.layout"));
    for (path, why) in [
        (&pool, "is not the file that is served"),
        (&record, "layout record"),
        (&token, "web-token"),
    ] {
        std::fs::rename(path, &hidden).unwrap();
        let (_, said) = server.refused(&["upgrade"]);
        assert!(said.contains(why), "{said}");
        serves(&server, 3);
        std::fs::rename(&hidden, path).unwrap();
    }
    upgrade(&server);
    assert_eq!(client.read(0, PAGE).unwrap(), [3; PAGE]);
}

/// The next program gets a copy of each descriptor, because the old program may have to continue.
#[test]
fn an_upgrade_without_descriptors_for_both_programs_is_refused() {
    let (server, _disk) = with_pool(TWO);
    let mut client = Client::of(&server, "db");
    assert_eq!(client.write(0, &[b'D'; PAGE]), 0);
    let pid = server.process.id().to_string();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let flag = format!("--nofile={0}:{0}", open + 20);
    let status = std::process::Command::new("prlimit").args(["--pid", &pid, &flag]).status();
    assert!(status.unwrap().success());
    let (_, said) = server.refused(&["upgrade"]);
    assert!(said.contains("raise LimitNOFILE="), "{said}");
    assert_eq!(client.read(0, PAGE).unwrap(), [b'D'; PAGE]);
    assert_eq!(Client::of(&server, "web").write(0, &[b'W'; PAGE]), 0);
}

#[test]
fn an_upgrade_does_not_wait_for_a_device_that_does_not_answer() {
    let server = Server::start("device = \"paced,size=64M,latency=4s\"\nshards = 2\n", &[]);
    let mut client = Client::of(&server, "gold");
    send(&mut client, 0, b"late");
    let (code, said) = server.refused(&["upgrade"]);
    assert!(code == 1 && said.contains("has not answered its requests"), "{said}");
    assert_eq!(client.answer(), 0);
    upgrade(&server);
    client.ask(Command::Flush, CommandFlags(0), 0, 0);
    assert_eq!(client.answer(), 0);
}
