//! Tests of a running server as its operator uses it: `fairq ctl`, the control socket itself,
//! reloads, metrics.

#[path = "operate/caps.rs"]
mod caps;
mod common;
#[path = "operate/control.rs"]
mod control;
#[path = "operate/doors.rs"]
mod doors;
#[path = "operate/groups.rs"]
mod groups;
#[path = "operate/guests.rs"]
mod guests;
#[path = "operate/http.rs"]
mod http;
#[path = "operate/interface.rs"]
mod interface;
#[path = "operate/latency.rs"]
mod latency;
#[path = "operate/layout.rs"]
mod layout;
#[path = "operate/memory.rs"]
mod memory;
#[path = "operate/policies.rs"]
mod policies;
#[path = "operate/storage.rs"]
mod storage;
#[path = "operate/toy.rs"]
mod toy;
#[path = "operate/upgrade.rs"]
mod upgrade;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use common::{fairq, until};
use http::{get, sample};

/// A server in a folder of its own; killed if its test fails.
struct Server {
    process: Child,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const CONFIG: &str = r#"
device = "ram,size=64M"
policy = "mqfq:T=64k"
shards = 2

[[tenant]]
name = "db"
size = "16M"
weight = 300

[[tenant]]
name = "web"
size = "16M"
"#;

impl Server {
    /// Starts a server with this configuration and these flags.
    fn start(config: &str, flags: &[&str]) -> Server {
        Server::start_into(Stdio::null(), config, flags)
    }

    /// Like [`start`](Self::start), with this standard output.
    fn start_into(output: Stdio, config: &str, flags: &[&str]) -> Server {
        Server::start_with(|_| (), output, config, flags)
    }

    /// Like [`start_into`](Self::start_into), after `set` has changed the command.
    fn start_with(
        set: impl FnOnce(&mut Command),
        output: Stdio,
        config: &str,
        flags: &[&str],
    ) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("fairq.toml"), config).unwrap();
        let listen = format!("unix:{}", path("sock"));
        let args = [
            "serve",
            "--config",
            &path("fairq.toml"),
            "--listen",
            &listen,
            "--control",
            &path("ctl"),
        ];
        let mut command = fairq(&[&args, flags].concat());
        set(&mut command);
        let process = command.stdout(output).stderr(Stdio::piped()).spawn().unwrap();
        let server = Server { process, folder };
        until("the server listens", || UnixStream::connect(server.path("ctl")).ok());
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ctl(&self, args: &[&str]) -> Output {
        let control = self.path("ctl").display().to_string();
        fairq(&[&["ctl", "--control", &control], args].concat()).output().unwrap()
    }

    /// The output of a command, which must succeed.
    fn said(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.ctl(args);
        assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    /// The exit status and the error of a command.
    fn refused(&self, args: &[&str]) -> (i32, String) {
        let Output { status, stderr, .. } = self.ctl(args);
        (status.code().unwrap(), String::from_utf8(stderr).unwrap())
    }

    fn tenants(&self) -> Vec<(String, u64, u64, u64)> {
        let list: Value = serde_json::from_str(&self.said(&["tenants", "--json"])).unwrap();
        let number = |tenant: &Value, key: &str| tenant[key].as_u64().unwrap();
        let one = |tenant: &Value| {
            let name = tenant["name"].as_str().unwrap().to_owned();
            (
                name,
                number(tenant, "weight"),
                number(tenant, "offset") >> 20,
                number(tenant, "size") >> 20,
            )
        };
        list.as_array().unwrap().iter().map(one).collect()
    }

    fn weight(&self, name: &str) -> u64 {
        self.tenants().into_iter().find(|tenant| tenant.0 == name).map_or(0, |tenant| tenant.1)
    }

    /// Starts a load on one tenant in another process.
    fn load(&self, tenant: &str, seconds: &str) -> Child {
        let uri = format!("nbd+unix:///{tenant}?socket={}", self.path("sock").display());
        let job = format!("{tenant}=depth:8");
        let args = [
            "bench",
            "--connect",
            &uri,
            "--tenant",
            &job,
            "--seconds",
            seconds,
            "--warmup",
            "0s",
            "--json",
        ];
        fairq(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn connections(&self) -> u64 {
        let status: Value = serde_json::from_str(&self.said(&["status", "--json"])).unwrap();
        status["connections"].as_u64().unwrap()
    }

    /// Waits for this number of open connections.
    fn until_connections(&self, wanted: u64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.connections() != wanted {
            let tenants = || self.said(&["tenants", "--json"]);
            assert!(Instant::now() < deadline, "still not {wanted} connections: {}", tenants());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the load on the first tenant has read more data, then ends the load.
    fn goes_on(&self, load: &mut Child) {
        let reads = || {
            let list: Value = serde_json::from_str(&self.said(&["tenants", "--json"])).unwrap();
            list[0]["reads"].as_u64().unwrap()
        };
        let before = reads();
        until("the first tenant's load goes on", || (reads() > before).then_some(()));
        assert!(load.try_wait().unwrap().is_none(), "its connection was not kept");
        load.kill().unwrap();
        load.wait().unwrap();
    }

    fn uptime_s(&self) -> f64 {
        let status: Value = serde_json::from_str(&self.said(&["status", "--json"])).unwrap();
        status["uptime_s"].as_f64().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn end(&mut self) -> i32 {
        until("the server ends", || self.process.try_wait().unwrap()).code().unwrap()
    }
}

fn tenant(name: &str, weight: u64, offset: u64, size: u64) -> (String, u64, u64, u64) {
    (name.to_owned(), weight, offset, size)
}

#[test]
fn tenants_come_and_go_and_change_while_the_server_runs() {
    let server = Server::start(CONFIG, &[]);
    assert_eq!(server.tenants(), [tenant("db", 300, 0, 16), tenant("web", 100, 16, 16)]);
    assert_eq!(server.said(&["add", "batch=8M,weight=50"]), "added batch: 8M at 32M\n");
    assert_eq!(server.said(&["weight", "web", "400"]), "web: weight 100 -> 400\n");
    assert_eq!(server.said(&["remove", "db"]), "removed db\n");
    assert_eq!(server.said(&["add", "db=4M"]), "added db: 4M at 0\n");
    assert_eq!(
        server.tenants(),
        [tenant("web", 400, 16, 16), tenant("batch", 50, 32, 8), tenant("db", 100, 0, 4)]
    );
    assert!(server.said(&["tenants"]).contains("batch"));
    assert!(server.said(&["status"]).contains("mqfq D=auto T=64k"));

    let (code, text) = server.refused(&["add", "batch=8M"]);
    assert!(code == 1 && text.contains("tenant batch: there is one already"), "{code} {text}");
    let (code, text) = server.refused(&["add", "huge=1G"]);
    assert!(code == 1 && text.contains("tenant huge wants 1G, but"), "{code} {text}");
    let (code, text) = server.refused(&["add", "x,wieght=3"]);
    assert!(
        code == 2 && text.contains("unknown key `wieght`; did you mean `weight`?"),
        "{code} {text}"
    );
    let (code, text) = server.refused(&["weight", "nobody", "7"]);
    assert!(code == 1 && text == "fairq: there is no tenant nobody\n", "{code} {text}");
    let (code, text) = server.refused(&["weight", "web", "0"]);
    assert!(code == 2 && text.contains("`0` is not a weight"), "{code} {text}");
    let (code, text) = server.refused(&["remove", "nobody"]);
    assert!(code == 1 && text.contains("there is no tenant nobody"), "{code} {text}");
    assert_eq!(server.tenants().len(), 3);

    // The dumped configuration works for another server.
    let dump = server.said(&["config", "dump"]);
    let mut other =
        Server::start(&dump.replace(&*server.path("").to_string_lossy(), "/nowhere/"), &[]);
    assert_eq!(other.tenants(), server.tenants());
    let in_force = |server: &Server| {
        server.said(&["config", "dump"]).replace(&*server.path("").to_string_lossy(), "/nowhere/")
    };
    assert_eq!(in_force(&other), in_force(&server), "a dump starts an equal server");
    other.signal(Signal::TERM);
    assert_eq!(other.end(), 0);
}

#[test]
fn a_removed_tenants_clients_end_and_the_others_go_on() {
    let server = Server::start(CONFIG, &[]);
    let mut web = server.load("web", "600s");
    let mut db = server.load("db", "600s");
    until("both are connected", || (server.connections() >= 2).then_some(()));
    server.said(&["weight", "db", "1"]);
    server.said(&["remove", "web"]);
    let status = until("the removed tenant's client ends", || web.try_wait().unwrap());
    assert!(!status.success(), "it lost its server");
    server.goes_on(&mut db);
    server.until_connections(0);
    // The new tenant has the old one's slot, but none of its counts.
    server.said(&["add", "new=16M"]);
    let list: Value = serde_json::from_str(&server.said(&["tenants", "--json"])).unwrap();
    assert_eq!(
        (&list[1]["name"], &list[1]["reads"], &list[1]["in_flight"]),
        (&json!("new"), &json!(0), &json!(0))
    );
    assert!(list[0]["reads"].as_u64().unwrap() > 0);
    let mut new = server.load("new", "200ms");
    assert!(until("its client ends", || new.try_wait().unwrap()).success());
}

/// A pipe has space for some four hundred of these lines.
#[test]
fn a_log_that_nobody_reads_keeps_nobody_waiting() {
    let mut server = Server::start(CONFIG, &[]);
    let mut stream = BufReader::new(UnixStream::connect(server.path("ctl")).unwrap());
    for weight in 1..2000 {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "weight", "params": { "tenant": "db", "weight": weight } });
        writeln!(stream.get_mut(), "{call}").unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        assert!(answer.contains("result"), "{answer}");
    }
    assert_eq!(server.weight("db"), 1999);
    // A late reader gets the first lines, and then the number of lost ones.
    let mut log = BufReader::new(server.process.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = log.find(|line| line.contains("weight")).unwrap();
    assert!(first.contains("db"), "{first}");
    std::thread::scope(|scope| {
        let lost = scope.spawn(|| log.find(|line| line.contains("lines of the log were lost")));
        until("it is said again", || {
            server.ctl(&["weight", "web", "7"]);
            lost.is_finished().then_some(())
        });
        assert!(serde_json::from_str::<Value>(&lost.join().unwrap().unwrap()).is_ok());
    });
}

/// Four hundred tenants make some 16 KiB of lines a second, and a pipe whose writer has limited it
/// to one page has space for a quarter of them.
#[test]
fn status_lines_that_nobody_reads_keep_nobody_waiting() {
    let tenants: String = (0..400)
        .map(|tenant| format!("[[tenant]]\nname = \"t{tenant}\"\nsize = \"1M\"\n"))
        .collect();
    let config = format!("device = \"ram,size=512M\"\nstatus = true\n{tenants}");
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let server = Server::start_into(writer.into(), &config, &[]);
    // The pipe is not read, but the control thread still answers.
    until("lines of two seconds are written or lost", || {
        server.said(&["weight", "t7", "8"]);
        (server.uptime_s() > 2.5).then_some(())
    });
    // A late reader gets the number of lost lines.
    let mut lines = BufReader::new(reader)
        .lines()
        .map(Result::unwrap)
        .filter(|line| line.starts_with("status "));
    let lost = lines
        .find_map(|line| Some(line.strip_prefix("status lost_lines=")?.parse::<u32>().unwrap()))
        .unwrap();
    assert!(lost > 50, "{lost}");
    assert!(lines.next().unwrap().starts_with("status seconds="));
}

/// Hundreds of tenants with files of their own, some of them with clients, are added and removed
/// during another tenant's load. Their files are closed, and the next tenant can use a file at
/// once.
#[test]
fn the_file_of_a_removed_tenant_is_closed() {
    let devices = [
        ("file,path=", "", 300),
        ("nvme-soft,backing=", "", 60),
        ("nvme-soft,backing=", ",poller=core", 20),
    ];
    for (kind, more, rounds) in devices {
        let disk = tempfile::tempdir().unwrap();
        let device = format!("{kind}{}/disk,size=64M,create{more}", disk.path().display());
        // Its log is not read during the test.
        let server = Server::start(CONFIG, &["--device", &device, "--log", "warn"]);
        let mut other = server.load("db", "600s");
        server.until_connections(1);
        let mut stream = BufReader::new(UnixStream::connect(server.path("ctl")).unwrap());
        let mut ask = |method: &str, tenant: &str| {
            let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "tenant": tenant } });
            writeln!(stream.get_mut(), "{call}").unwrap();
            let mut answer = String::new();
            stream.read_line(&mut answer).unwrap();
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert!(answer["error"].is_null(), "{method} {tenant}: {answer}");
        };
        let file = |round: usize| disk.path().join(format!("own{}", round % 3));
        let spec = |round: usize| format!("guest,path={},size=1M,create", file(round).display());
        let descriptors = || {
            let open = std::fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap();
            let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            let (own, all) = targets.fold((0, 0), |(own, all), target| {
                (own + usize::from(target.starts_with(disk.path())), all + 1)
            });
            (own, all)
        };
        // An answer on this connection shows that the server has accepted it.
        ask("add", &spec(0));
        ask("remove", "guest");
        let before =
            // The shared file, and its layout record.
            until("its file is closed", || Some(descriptors()).filter(|(own, _)| *own == 2));
        for round in 0..rounds {
            ask("add", &spec(round));
            let client = (round % 50 == 7).then(|| {
                let client = server.load("guest", "60s");
                server.until_connections(2);
                client
            });
            ask("remove", "guest");
            if round % 3 == 0 {
                ask("add", &spec(round));
                ask("remove", "guest");
            }
            if let Some(mut client) = client {
                assert!(
                    !until("the removed tenant's client ends", || client.try_wait().unwrap())
                        .success()
                );
            }
            if round % 20 == 0 {
                until("its file is closed", || (descriptors() == before).then_some(()));
                let file = std::fs::File::open(file(round)).unwrap();
                let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
                // The kernel closes a ring's files a moment later.
                until("its lock is gone", || rustix::fs::flock(&file, lock).ok());
            }
        }
        until("all files are closed", || (descriptors() == before).then_some(()));
        assert_eq!(other.try_wait().unwrap(), None, "the other's client goes on");
        let _ = other.kill();
        let _ = other.wait();
    }
}

#[test]
fn the_file_is_read_again_and_a_bad_one_changes_nothing() {
    let server = Server::start(CONFIG, &[]);
    let file = server.path("fairq.toml");
    assert_eq!(server.said(&["config", "reload"]), "nothing differs\n");
    std::fs::write(&file, CONFIG.replace("weight = 300", "wieght = 300")).unwrap();
    let (code, text) = server.refused(&["config", "reload"]);
    assert!(
        code == 1 && text.contains("fairq.toml:9:1: unknown key `wieght`; did you mean `weight`?"),
        "{code} {text}"
    );
    assert_eq!(server.weight("db"), 300);
    let new = CONFIG
        .replace("weight = 300", "weight = 200")
        .replace("T=64k", "T=32k,D=8")
        .replace("shards = 2", "shards = 1")
        .replace("name = \"web\"\nsize = \"16M\"", "name = \"mail\"\nsize = \"8M\"");
    std::fs::write(&file, &new).unwrap();
    let said = server.said(&["config", "reload"]);
    let expected = [
        "policy.slots: (nothing) -> 8",
        "policy.threshold: 64k -> 32k",
        "shards: 2 -> 1   needs a restart",
        "tenant.db.weight: 300 -> 200",
        "tenant.mail.name: (nothing) -> mail",
        "tenant.mail.size: (nothing) -> 8M",
        "tenant.web.name: web -> (nothing)",
        "tenant.web.size: 16M -> (nothing)",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    assert_eq!(server.tenants(), [tenant("db", 200, 0, 16), tenant("mail", 100, 16, 8)]);
    assert!(server.said(&["policy"]).contains("mqfq D=8 T=32k"));
    std::fs::write(
        &file,
        new.replace("mqfq:T=32k,D=8", "d2fq").replace("weight = 200", "weight = 1"),
    )
    .unwrap();
    let (code, text) = server.refused(&["config", "reload"]);
    assert!(code == 1 && text.contains("the device (ram"), "{code} {text}");
    assert_eq!(server.weight("db"), 200, "an invalid configuration changes nothing");
    std::fs::write(&file, new.replace("mqfq:T=32k,D=8", "sfqd:D=3")).unwrap();
    let said = server.said(&["config", "reload"]);
    assert!(
        said.contains("policy.name: mqfq -> sfqd\n") && said.contains("policy.slots: 8 -> 3\n"),
        "{said}"
    );
    assert!(server.said(&["status"]).contains("sfqd D=3"));
    std::fs::write(&file, new.replace("weight = 200", "weight = 250")).unwrap();
    server.signal(Signal::HUP);
    until("the signal is heard", || (server.weight("db") == 250).then_some(()));
}

#[test]
fn a_weight_follows_a_cgroup() {
    let root = tempfile::tempdir().unwrap();
    let cgroup = root.path().join("web");
    std::fs::create_dir(&cgroup).unwrap();
    let weight = |weight: &str| {
        std::fs::write(cgroup.join("io.weight"), format!("default {weight}\n")).unwrap()
    };
    weight("250");
    let config = format!("cgroup-root = {:?}\n{CONFIG}", root.path());
    let server = Server::start(&config, &[]);
    let source = "cgroup:/web";
    assert_eq!(server.said(&["weight", "web", source]), "web: weight 100 -> 250\n");
    weight("700");
    until("the weight is followed", || (server.weight("web") == 700).then_some(()));
    std::fs::remove_file(cgroup.join("io.weight")).unwrap();
    assert!(server.said(&["config", "dump"]).contains(source));
    assert_eq!(server.weight("web"), 700, "the last weight stays");
}

#[test]
fn a_server_that_drains_ends_with_its_last_client() {
    let mut server = Server::start(CONFIG, &[]);
    let mut client = server.load("db", "600s");
    until("it is connected", || (server.connections() >= 1).then_some(()));
    assert!(server.said(&["drain"]).starts_with("draining: "));
    assert!(server.said(&["status"]).contains("no more connections"));
    until("it takes no more connections", || UnixStream::connect(server.path("sock")).err());
    server.goes_on(&mut client);
    assert_eq!(server.end(), 0);
    assert!(
        !server.path("ctl").exists() && !server.path("sock").exists(),
        "sockets vanish with the server"
    );
    let mut idle = Server::start(CONFIG, &[]);
    idle.said(&["drain", "--now"]);
    assert_eq!(idle.end(), 0);
}

#[test]
fn listeners_come_and_go() {
    let server = Server::start(CONFIG, &[]);
    let address = format!("unix:{}", server.path("second").display());
    server.said(&["listen", &address]);
    assert!(UnixStream::connect(server.path("second")).is_ok());
    let chosen = server.said(&["listen", "tcp:127.0.0.1:0"]);
    let port = chosen
        .trim()
        .rsplit(':')
        .next()
        .unwrap()
        .parse::<u16>()
        .expect("it says which port was chosen");
    let dump = server.said(&["config", "dump"]);
    let listen = format!(
        "\"unix:{}\", \"{address}\", \"tcp:127.0.0.1:{port}\"",
        server.path("sock").display()
    );
    let written: String = dump.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(written.contains(&listen), "{dump}");
    assert!(dump.contains(&format!("control = \"{}\"", server.path("ctl").display())), "{dump}");
    server.said(&["unlisten", &format!("tcp:127.0.0.1:{port}")]);
    server.said(&["unlisten", &address]);
    assert!(!server.said(&["config", "dump"]).contains("second"), "it is not in force any more");
    until("its name is gone", || (!server.path("second").exists()).then_some(()));
    let (code, text) = server.refused(&["unlisten", &address]);
    assert!(code == 1 && text.contains("does not listen on"), "{code} {text}");
    assert!(server.refused(&["listen", "nonsense"]).1.contains("is none of unix:PATH, tcp:"));
}

#[test]
fn the_control_socket_speaks_json_rpc_to_its_user_only() {
    let server = Server::start(CONFIG, &[]);
    let mode = std::fs::metadata(server.path("ctl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = BufReader::new(UnixStream::connect(server.path("ctl")).unwrap());
    let mut ask = |line: &str| {
        writeln!(stream.get_mut(), "{line}").unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    let document = ask(r#"{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}"#);
    let methods = document["result"]["methods"].as_array().unwrap().clone();
    // Every listed method exists, whatever it answers without parameters. `drain` would end the
    // server.
    for method in methods
        .iter()
        .map(|method| method["name"].as_str().unwrap())
        .filter(|name| *name != "drain")
    {
        let answer = ask(&json!({ "jsonrpc": "2.0", "id": method, "method": method }).to_string());
        assert_ne!(answer["error"]["code"], json!(-32601), "{method}");
        assert_eq!(answer["id"], json!(method));
    }
    assert_eq!(ask("nonsense")["error"]["code"], json!(-32700));
    let typo = ask(r#"{"jsonrpc":"2.0","id":1,"method":"remove","params":{"name":"db"}}"#);
    assert_eq!(typo["error"]["code"], json!(-32602));
    let absent = fairq(&["ctl", "--control", "/nonexistent", "status"]).output().unwrap();
    let text = String::from_utf8(absent.stderr).unwrap();
    assert!(
        text.starts_with("fairq: no server answers at /nonexistent: start it with --control"),
        "{text}"
    );
}

#[test]
fn decisions_are_recorded_and_the_lab_replays_them() {
    let config = CONFIG.replace("ram,size=64M", "paced,size=64M,iops=2000,latency=1ms");
    let server = Server::start(&config, &[]);
    let (db, web) = (server.load("db", "600s"), server.load("web", "600s"));
    until("both move", || {
        let list: Value = serde_json::from_str(&server.said(&["tenants", "--json"])).unwrap();
        list.as_array()
            .unwrap()
            .iter()
            .all(|tenant| tenant["reads"].as_u64() > Some(50))
            .then_some(())
    });
    let file = |name: &str| server.path(name).display().to_string();
    let record = |format: &str, path: &str| {
        let said = server.ctl(&["trace", "--seconds", "0.4", "--format", format, "-o", path]);
        let said = (said.status.success(), String::from_utf8(said.stderr).unwrap());
        assert!(
            said.0 && said.1.contains(" decisions within ") && !said.1.contains("were lost"),
            "{said:?}"
        );
        std::fs::read_to_string(path).unwrap()
    };
    let of = |rows: &[Vec<String>], event: &str, tenant: &str| {
        rows.iter().filter(|row| row[2] == event && row[3] == tenant).count()
    };
    let counts = |rows: &[Vec<String>], tenant: &str| {
        ["arrive", "issue", "complete"].map(|event| of(rows, event, tenant))
    };
    // On a busy machine a recording may be too short.
    let rows = until("both have decisions enough", || {
        let csv = record("csv", &file("trace.csv"));
        let rows = csv.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect());
        let rows: Vec<Vec<String>> = rows.collect();
        ["db", "web"].iter().all(|tenant| counts(&rows, tenant)[0] > 50).then_some(rows)
    });
    for tenant in ["db", "web"] {
        let counts = counts(&rows, tenant);
        assert!(counts.iter().all(|count| count.abs_diff(counts[0]) <= 8), "{tenant}: {counts:?}");
    }
    for row in rows.iter().filter(|row| row[2] == "issue") {
        let [free, now, start] = [9, 10, 11].map(|column| row[column].parse::<u64>().unwrap());
        assert!(
            free < 64 && start <= now + 2 * 65_536,
            "a request more than T ahead was issued: {row:?}"
        );
    }
    let text = record("text", &file("trace.txt"));
    assert!(
        text.contains("  issue  ")
            && text.contains(" of virtual time ")
            && text.contains(" in all"),
        "{text}"
    );
    // A policy's tick records D; a recording on a busy machine may end before a tick.
    assert!((0..20).any(|_| record("text", &file("trace.txt")).contains("  depth  ")));
    let perfetto: Value = serde_json::from_str(&record("perfetto", &file("trace.json"))).unwrap();
    let events = perfetto["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().any(|event| event["args"]["name"] == json!(name));
    assert!(named("tenant db") && named("tenant web") && named("shard 1") && events.len() > 50);
    // A ring that is too small keeps the last decisions, and reports the lost ones.
    let said = server.ctl(&["trace", "--seconds", "300ms", "--events", "10"]);
    assert!(String::from_utf8(said.stderr).unwrap().contains("earlier decisions were lost"));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.lines().filter(|line| !line.contains("  depth  ")).count() <= 21, "{said}");
    assert!(server.refused(&["call", "trace.stop"]).1.contains("nothing is being recorded"));
    for mut client in [db, web] {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    let scenario = ["db", "web"].map(|tenant| {
        format!(
            "[[tenant]]\nname = \"{tenant}\"\ntrace = \"trace.csv\"\nformat = \"fairq\"\nvolume = \
             \"{tenant}\"\n"
        )
    });
    std::fs::write(
        server.path("replay.toml"),
        format!("device = \"z-ssd\"\nduration = \"300ms\"\n{}", scenario.concat()),
    )
    .unwrap();
    let lab = fairq(&["lab", "run", &file("replay.toml")]).output().unwrap();
    let said = String::from_utf8([lab.stdout, lab.stderr].concat()).unwrap();
    assert!(lab.status.success() && said.contains("db") && said.contains("web"), "{said}");
}

#[test]
fn the_example_of_the_default_socket_works_without_saying_where() {
    let folder = tempfile::tempdir().unwrap();
    let with_runtime = |args: &[&str]| {
        let mut command = fairq(args);
        command.env("XDG_RUNTIME_DIR", folder.path());
        command
    };
    let mut command = with_runtime(&["serve", "--device", "ram,size=8M"]);
    let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let server = Server { process, folder: tempfile::tempdir().unwrap() };
    until("the server listens", || UnixStream::connect(folder.path().join("fairq.ctl")).ok());
    let output = with_runtime(&["ctl", "tenants"]).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("gold"));
    drop(server);
    assert!(Path::new(folder.path()).exists());
}

#[test]
fn top_shows_what_there_is() {
    let server = Server::start(CONFIG, &[]);
    let control = server.path("ctl").display().to_string();
    let top = |args: &[&str]| {
        let output = fairq(&[&["top", "--control", &control], args].concat()).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
        )
    };
    let (code, text) = top(&["--once"]);
    assert!(
        code == 0 && text.contains("db           300 idle") && !text.contains("q quit"),
        "{text}"
    );
    let (code, text) = top(&["--json"]);
    let look: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &look["tenants"][1]["name"], &look["status"]["device"]),
        (0, &json!("web"), &json!("ram 64M"))
    );
    let (code, text) = top(&[]);
    assert!(
        code == 2 && text.contains("standard output is no terminal: add --once or --json"),
        "{text}"
    );
}

#[test]
fn the_service_manager_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let said = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap().trim().to_owned()
    };
    let listen = format!("unix:{}", folder.path().join("sock").display());
    let mut command = fairq(&["serve", "--device", "ram,size=8M", "--listen", &listen]);
    let process = command
        .env("NOTIFY_SOCKET", &path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = Server { process, folder: tempfile::tempdir().unwrap() };
    assert_eq!(said(), format!("READY=1\nSTATUS=serving 2 tenants at {listen}"));
    assert!(said().starts_with("FDSTORE=1\nFDNAME=listen-unix-"));
    assert_eq!(said(), "WATCHDOG=1");
    server.signal(Signal::TERM);
    assert_eq!(
        until("it says so", || Some(said()).filter(|said| said != "WATCHDOG=1")),
        "STOPPING=1"
    );
    assert_eq!(server.end(), 0);
}

#[test]
fn completions_and_man_pages_are_made() {
    let output = fairq(&["completions", "bash"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("complete -F _fairq") && text.contains("interference"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("man1");
    assert!(fairq(&["man", &man.display().to_string()]).status().unwrap().success());
    let page = std::fs::read_to_string(man.join("fairq-serve.1")).unwrap();
    assert!(page.contains("fairq serve") && page.contains(".SH EXAMPLES"), "{page}");
    assert!(man.join("fairq.1").exists() && man.join("fairq-ctl-weight.1").exists());
}

#[test]
fn logs_are_json_where_nobody_looks() {
    let mut server = Server::start(CONFIG, &[]);
    let mut client = server.load("db", "100ms");
    assert!(until("the client ends", || client.try_wait().unwrap()).success());
    server.said(&["weight", "db", "50"]);
    server.said(&["params"]);
    server.signal(Signal::TERM);
    assert_eq!(server.end(), 0);
    let mut log = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let mut lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The presence of this line depends on the user who runs the tests.
    lines.retain(|line| !line["message"].as_str().unwrap().contains("I/O flusher"));
    let [serving, connected, ..] = &lines[..] else { panic!("{log}") };
    assert_eq!((&serving["message"], &serving["tenants"]), (&json!("serving"), &json!(2)));
    assert_eq!(
        (&connected["level"], &connected["message"], &connected["tenant"]),
        (&json!("INFO"), &json!("connected"), &json!("db"))
    );
    // The logged change, and the end.
    let [changed, ending, ended] = &lines[2..] else { panic!("{log}") };
    assert_eq!(
        (&changed["method"], &changed["params"]),
        (&json!("weight"), &json!(r#"{"tenant":"db","weight":"50"}"#))
    );
    assert!(
        ending["message"].as_str().unwrap().starts_with("ending")
            && ended["message"].as_str().unwrap().starts_with("ended")
    );

    // The error of a failed start is one JSON object, too.
    let file = server.path("bad.toml");
    std::fs::write(&file, "[device]\nkind = \"ram\"\nsize = \"nothing\"\n").unwrap();
    let output = fairq(&["serve", "--config", file.to_str().unwrap()]).output().unwrap();
    let last: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((output.status.code(), &last["level"]), (Some(2), &json!("ERROR")));
    assert!(last["message"].as_str().unwrap().contains("`nothing`"), "{last}");
}
