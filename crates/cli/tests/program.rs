//! The program as its users run it: what it prints, to where, and with which status it ends.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use common::{fairq, until};

fn run(args: &[&str]) -> Output {
    fairq(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server that is killed if its test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(args: &[&str]) -> Server {
        Server(
            fairq(args)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the program starts"),
        )
    }

    /// Sends a signal and returns the exit status.
    fn end(&mut self, signal: rustix::process::Signal) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("it still runs");
        until("the server ends", || self.0.try_wait().expect("it can be waited for")).code()
    }
}

#[test]
fn help_and_version_end_with_0() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(
        text(&help.stdout).contains("Exit status: 0 when all went well"),
        "{}",
        text(&help.stdout)
    );
    for command in ["serve", "ctl", "kernel", "bench", "calibrate", "device"] {
        let help = run(&[command, "--help"]);
        assert_eq!(help.status.code(), Some(0));
        assert!(
            text(&help.stdout).contains(&format!("Examples:\n  fairq {command}")),
            "{}",
            text(&help.stdout)
        );
    }
    assert_eq!(text(&run(&["--version"]).stdout), format!("fairq {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn what_cannot_be_used_ends_with_2_and_what_fails_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fairq.toml");
    std::fs::write(&file, "[device]\nkind = \"ram\"\nsise = \"4G\"\n").unwrap();
    let file = file.to_str().unwrap();
    let absent = folder.path().join("absent/socket");
    let listen = format!("unix:{}", absent.display());
    let uri = format!("nbd+unix:///?socket={}", absent.display());
    let disk = folder.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    let held = std::fs::File::open(&disk).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let disk = disk.to_str().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp:{}", taken.local_addr().unwrap());
    let out = absent.to_str().unwrap();
    let inside = folder.path().join("no/disk");
    let inside = format!("file,path={},size=1M,create", inside.display());
    let unreadable = format!(
        "cannot write {out}: No such file or directory (os error 2): name a place in a folder"
    );
    for (args, status, said) in [
        (vec![], 2, "Usage: fairq".to_owned()),
        (
            vec!["serve", "--config", "/nonexistent"],
            2,
            "check the path, and that this user may read it".into(),
        ),
        (vec!["serve", "--config", disk], 2, "is longer than 1M".into()),
        (vec!["serve", "--device", "disk"], 2, "a file of that name is ./disk".into()),
        (
            vec!["serve", "--device", "/dev", "--tenant", "a"],
            2,
            "/dev: neither a regular file nor a block device: name one".into(),
        ),
        (
            vec!["serve", "--device", empty, "--tenant", "a"],
            2,
            "is empty; give it a size, or extend it with truncate".into(),
        ),
        (
            vec!["serve", "--device", &inside, "--tenant", "a"],
            2,
            "its directory does not exist; create the directory".into(),
        ),
        (
            vec!["serve", "--device", disk, "--tenant", "a"],
            1,
            "has it locked for serving; stop that one".into(),
        ),
        // The demo's tenants would write into it.
        (vec!["serve", "--device", disk], 2, "no tenants: say who shares the device".into()),
        (
            vec!["serve", "--device", "ram,size=99999T"],
            1,
            "(os error 12); choose a smaller size\"".into(),
        ),
        (
            vec!["serve", "--policy", "d2fq"],
            2,
            "has none: use one that arbitrates between classes".into(),
        ),
        (vec!["serve", "--policy", "mqfq:D=0"], 2, "auto finds the least that fills it".into()),
        (
            vec!["serve", "--listen", &taken],
            1,
            "the port is in use: stop the program that uses it, or choose another".into(),
        ),
        (
            vec!["serve", "--listen", "tcp:192.0.2.1:10809"],
            1,
            "`ip address` lists those it has".into(),
        ),
        (
            vec!["serve", "--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"],
            2,
            "check the path".into(),
        ),
        (
            vec!["serve", "--tls-cert", disk, "--tls-key", disk],
            2,
            "has no certificate in it: it has to be".into(),
        ),
        (
            vec!["serve", "--tenant", "a,weight=cgroup:/no"],
            2,
            "the cgroup must exist and its parent have".into(),
        ),
        (
            vec!["serve", "--cpus", "4095"],
            2,
            "CPU 4095 is not there for this process: choose from".into(),
        ),
        (
            vec!["ctl", "--control", out, "status"],
            1,
            format!("no server answers at {out}: start it with --control"),
        ),
        (vec!["ctl", "call", "status", "[1"], 2, "write {\"tenant\": \"db\"}".into()),
        (vec!["ctl", "--control", out, "trace", "-o", out], 1, "no server answers".into()),
        (vec!["top", "--control", out], 1, "no server answers".into()),
        (vec!["bench", "--json", out], 2, unreadable.clone()),
        (vec!["bench", "--fio", "/nonexistent"], 2, "/nonexistent: cannot be read".into()),
        (
            vec!["bench", "--policy", "d2fq", "--device", "ram"],
            2,
            "has none: use one that arbitrates".into(),
        ),
        (vec!["calibrate", "--seconds", "0"], 2, "write --seconds 1, say".into()),
        (vec!["device", "probe", "--output", out, file], 2, unreadable.clone()),
        (vec!["device", "show", disk], 2, "is longer than 1M".into()),
        (vec!["lab", "run", "X-99"], 2, "no claim is called `X-99`: see `fairq lab list`".into()),
        (vec!["lab", "run", file], 2, format!("{file}:1:1: invalid type")),
        (
            vec!["lab", "merge", "/nonexistent"],
            2,
            "it has to be a folder that --output made".into(),
        ),
        (vec!["man", "/proc/x"], 1, "cannot write man pages to /proc/x".into()),
        (vec!["completions", "tcsh"], 2, "[possible values: bash, elvish, fish".into()),
        (vec!["serve", "--bogus"], 2, "unexpected argument '--bogus'".into()),
        (
            vec!["serve", "--config", file],
            2,
            format!("{file}:3:1: unknown key `sise`; did you mean `size`?"),
        ),
        (vec!["serve", "--tenant", "a=5G"], 2, "tenant a wants 5G, but the device has 4G".into()),
        (vec!["serve", "--log", "loud"], 2, "log: `loud` is not a level: write error, warn".into()),
        (vec!["serve", "--stdio"], 1, "standard input is not a socket".into()),
        (
            vec!["serve", "--device", "ram,size=1M", "--listen", &listen],
            1,
            "its directory does not exist".into(),
        ),
        (
            vec!["serve", "--device", "file,path=/nonexistent,size=1M", "--tenant", "a"],
            2,
            "add create to have it".into(),
        ),
        (vec!["bench", "--tenant", "a=bs:3"], 2, "bs 3 is not a multiple of 512".into()),
        (vec!["bench", "--tenant", "a", "--tenant", "a"], 2, "tenant a is given twice".into()),
        (
            vec!["bench", "--connect", &uri, "--policy", "mqfq"],
            2,
            "--policy is the server's matter".into(),
        ),
        (
            vec!["bench", "--connect", &uri],
            1,
            "No such file or directory (os error 2): no server listens there".into(),
        ),
        (
            vec!["bench", "--path", "direct", "--policy", "none,mqfq"],
            2,
            "and mqfq does: use --policy none,d2fq".into(),
        ),
        (
            vec![
                "bench",
                "--path",
                "direct",
                "--policy",
                "none",
                "--device",
                "file,path=/x,size=1M,create",
            ],
            2,
            "those of file /x come as events: use --device nvme-soft,backing=ram".into(),
        ),
        (
            vec!["bench", "--connect", &uri, "--path", "direct"],
            2,
            "--path is the server's matter".into(),
        ),
        (vec!["bench", "--connect", &uri, "--moves"], 2, "--moves is the server's matter".into()),
        (
            vec!["bench", "--moves", "--tenant", "a=rate:1M"],
            2,
            "tenant a: with --moves a job starts afresh".into(),
        ),
        (vec!["bench", "--moves", "1us"], 2, "moves: less than 1 ms".into()),
        (vec!["calibrate", "--device", "null"], 2, "has no parallelism to find".into()),
        (
            vec!["device", "show", "floppy"],
            2,
            "no profile is called `floppy`: there are z-ssd, p3700".into(),
        ),
        (vec!["device", "show", file], 2, format!("{file}: TOML parse error at line 1")),
        (vec!["device", "probe", "/nonexistent"], 2, "/nonexistent: No such file".into()),
        (
            vec!["device", "probe", "/dev/null"],
            2,
            "/dev/null: neither a regular file nor a block device".into(),
        ),
        (
            vec!["device", "probe", file, "--size", "4M"],
            2,
            "is for the scratch file in a directory".into(),
        ),
        (vec!["device", "probe", file], 2, "less than 1M says nothing".into()),
    ] {
        let output = run(&args);
        let heard = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {heard}");
        assert!(heard.contains(&said), "{args:?}: {heard}");
    }
}

#[test]
fn bench_goes_by_either_path() {
    for (path, says_so) in [("shards", false), ("direct", true)] {
        let device = [
            "--device",
            "nvme-soft,backing=ram,size=64M",
            "--policy",
            "none,d2fq",
            "--shards",
            "1",
        ];
        let load = [
            "--tenant",
            "a=depth:1,rw:randrw",
            "--seconds",
            "50ms",
            "--warmup",
            "10ms",
            "--path",
            path,
        ];
        let output = run(&[&["bench"], &device[..], &load[..]].concat());
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(said.contains("· 1 shard on the direct path · none, d2fq"), says_so, "{said}");
        assert_eq!(said.matches("100.0 %   100.0 %").count(), 2, "{said}");
    }
}

/// The tenant that cfq waits for is done before the time is over until which it was to be waited
/// for: its shard alone knows that time, and has to stay for the other's requests.
#[test]
fn a_shard_that_waits_for_a_tenant_serves_the_other_before_it_ends() {
    let device = [
        "--device",
        "paced,size=64M,iops=20000,latency=1ms",
        "--policy",
        "cfq:idle=50ms",
        "--shards",
        "2",
    ];
    let load = [
        "--tenant",
        "a=depth:32",
        "--tenant",
        "b=depth:32",
        "--seconds",
        "300ms",
        "--warmup",
        "10ms",
    ];
    let bench = fairq(&[&["bench"], &device[..], &load[..]].concat())
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut bench = Server(bench);
    let status = until("the bench has ended", || bench.0.try_wait().expect("it is a child"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_server_says_how_to_attach_and_ends_with_0_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listen = format!("unix:{}", socket.display());
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut server =
            Server::start(&["serve", "--device", "ram,size=64M", "--status", "--listen", &listen]);
        let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut said: Vec<String> =
            lines.by_ref().take_while(|line| !line.starts_with("Attach")).collect();
        said.extend(lines.by_ref().take_while(|line| !line.is_empty()));
        let said = said.join("\n");
        for wanted in [
            "ram 64M · mqfq D=auto T=auto · ",
            &format!(
                " gold        300     75.0 %    32M   nbd+unix:///gold?socket={}",
                socket.display()
            ),
            &format!(
                " silver      100     25.0 %    32M   nbd+unix:///silver?socket={}",
                socket.display()
            ),
            &format!("  nbd-client -unix {} /dev/nbd0 -N gold", socket.display()),
        ] {
            assert!(said.contains(wanted), "{said}");
        }
        UnixStream::connect(&socket).expect("it listens when it says so");
        let status: Vec<String> = lines.by_ref().take(2).collect();
        assert_eq!(
            status,
            ["status seconds=1 tenant=gold idle", "status seconds=1 tenant=silver idle"]
        );
        assert_eq!(server.end(signal), Some(0));
        assert!(!socket.exists(), "it takes its socket with it");
    }
}

#[test]
fn a_bench_compares_policies_in_one_object() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = folder.path().join("two.fio");
    std::fs::write(
        &jobs,
        "[global]\nbs=4k\n[a]\nrw=randread\niodepth=16\ncgroup_weight=300\n[b]\nrw=randrw\niodepth=16\n",
    )
    .unwrap();
    let jobs = jobs.to_str().unwrap();
    let output = run(&[
        "bench",
        "--device",
        "ram,size=16M",
        "--fio",
        jobs,
        "--seconds",
        "300ms",
        "--warmup",
        "50ms",
        "--alone",
        "--policy",
        "none,sfqd:slots=8,mqfq,mqfq-serial,kyber:read-target=1ms,kyber-fair:period=20ms",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("standard output is one object");
    let runs = report["runs"].as_array().unwrap();
    let policies: Vec<_> = runs.iter().map(|run| run["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["none", "sfqd", "mqfq", "mqfq-serial", "kyber", "kyber-fair"]);
    for run in runs {
        assert!(
            run["iops"].as_f64().unwrap() > 100.0 && run["cpu_ns_per_io"].as_f64().unwrap() > 0.0,
            "{run}"
        );
        let flows = run["flows"].as_array().unwrap();
        let sum = |key: &str| flows.iter().map(|flow| flow[key].as_f64().unwrap()).sum::<f64>();
        assert!((sum("share") - 1.0).abs() < 1e-9 && (sum("entitled") - 1.0).abs() < 1e-9, "{run}");
        assert!((sum("bytes_per_s") - run["bytes_per_s"].as_f64().unwrap()).abs() < 1.0, "{run}");
        assert_eq!(
            (flows[0]["entitled"].as_f64(), flows[0]["weight"].as_u64()),
            (Some(0.75), Some(300))
        );
        for flow in flows {
            let quantile = |key: &str| flow[key].as_u64().unwrap();
            assert!(0 < quantile("p50_ns") && quantile("p50_ns") <= quantile("p99_ns"), "{flow}");
            assert!(
                quantile("p99_ns") <= quantile("p999_ns")
                    && flow["slowdown"].as_f64().unwrap() > 0.0,
                "{flow}"
            );
        }
    }
}

#[test]
fn a_bench_drives_a_server_and_leaves_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listen = format!("unix:{}", socket.display());
    let mut server = Server::start(&["serve", "--device", "ram,size=64M", "--listen", &listen]);
    until("it listens", || UnixStream::connect(&socket).ok());
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let json = folder.path().join("report.json");
    let output = run(&[
        "bench",
        "--connect",
        &uri,
        "--tenant",
        "gold=weight:300,jobs:2",
        "--tenant",
        "silver=rw:randwrite,bs:16k",
        "--seconds",
        "300ms",
        "--warmup",
        "50ms",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains(" silver "), "{}", text(&output.stdout));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let run = &report["runs"][0];
    assert_eq!(run["policy"], "connect");
    let flows = run["flows"].as_array().unwrap();
    assert!(flows.iter().all(|flow| flow["iops"].as_f64().unwrap() > 10.0), "{run}");
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
}

#[test]
fn a_bench_does_not_overwrite_a_file_unless_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, vec![7u8; 1 << 20]).unwrap();
    let device = format!("file,path={}", path.display());
    let args = [
        "bench",
        "--device",
        &device,
        "--seconds",
        "50ms",
        "--warmup",
        "0",
        "--policy",
        "none",
        "--tenant",
    ];
    let refused = run(&[&args[..], &["a=rw:randwrite"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("add --overwrite if it may be"),
        "{}",
        text(&refused.stderr)
    );
    assert!(is_all(&path, 7));
    assert_eq!(run(&[&args[..], &["a=rw:randread"]].concat()).status.code(), Some(0));
    assert!(is_all(&path, 7));
    let allowed = run(&[&args[..], &["a=rw:randwrite", "--overwrite"]].concat());
    assert_eq!(allowed.status.code(), Some(0), "{}", text(&allowed.stderr));
    assert!(!is_all(&path, 7));
}

fn is_all(path: &Path, byte: u8) -> bool {
    std::fs::read(path).unwrap().iter().all(|&b| b == byte)
}

#[test]
fn calibrate_finds_what_a_paced_device_can_hold() {
    // Four at a time, 2 ms each: three give three quarters of what four give, and more give no
    // more.
    // Real time: what else the machine runs may slow a sweep down, so one of three has to see it.
    let device = "paced,size=16M,iops=0,bandwidth=0,latency=2ms,parallelism=4";
    let sweep = || {
        let output = run(&[
            "calibrate",
            "--device",
            device,
            "--bs",
            "4k",
            "--most",
            "16",
            "--seconds",
            "150ms",
            "--enough",
            "90",
            "--json",
            "--shards",
            "1",
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let sweeps: Vec<_> = (0..3).map(|_| sweep()).collect();
    let found = sweeps.iter().find(|found| found["slots"] == 4);
    let found = found.unwrap_or_else(|| panic!("{sweeps:?}"));
    let outstanding: Vec<u64> = found["sweeps"][0]["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["outstanding"].as_u64().unwrap())
        .collect();
    assert_eq!(outstanding, [1, 2, 3, 4, 8, 16]);
    let recommend = found["recommend"].as_str().unwrap();
    assert!(recommend.starts_with("mqfq:slots=4,threshold="), "{recommend}");
    let check = run(&[
        "bench",
        "--device",
        "null",
        "--policy",
        recommend,
        "--seconds",
        "20ms",
        "--warmup",
        "0",
    ]);
    assert_eq!(
        check.status.code(),
        Some(0),
        "what is recommended can be used: {}",
        text(&check.stderr)
    );
}

#[test]
fn profiles_are_listed_shown_and_read_again() {
    let json = |args: &[&str]| -> serde_json::Value {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    };
    let list = json(&["device", "list", "--json"]);
    let list = list.as_array().unwrap();
    let wrr = |name: &str| list.iter().find(|one| one["name"] == name).unwrap()["wrr"].clone();
    assert_eq!((list.len(), wrr("z-ssd"), wrr("p4800x")), (7, "yes".into(), "no".into()));
    assert!(text(&run(&["device", "list"]).stdout).contains("z-ssd"));
    assert!(
        text(&run(&["device", "show", "z-ssd"]).stdout).contains("128 dies; 2k pages, read in 3")
    );

    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine.toml");
    let toml = text(&run(&["device", "show", "z-ssd", "--toml"]).stdout);
    std::fs::write(&mine, toml.replace("window = 64 ", "window = 32 ")).unwrap();
    let shown = json(&["device", "show", mine.to_str().unwrap(), "--json"]);
    assert_eq!(shown["profile"]["host"]["window"], 32);
    assert_eq!(shown["model"].as_array().unwrap().len(), 7);
}

/// A directory is probed through a scratch file, of which nothing remains; a file is not written
/// to.
#[test]
fn a_probe_writes_a_profile_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    let before: Vec<u8> = (0..4 << 20).map(|index: u32| (index % 251) as u8).collect();
    std::fs::write(&file, &before).unwrap();
    let (profile, other) = (folder.path().join("profile.toml"), folder.path().join("other.toml"));
    let probe = |place: &Path, profile: &Path, more: &[&str]| {
        let common = [
            "--seconds",
            "20ms",
            "--most",
            "8",
            "--shards",
            "1",
            "--output",
            profile.to_str().unwrap(),
        ];
        let output =
            run(&[&["device", "probe", place.to_str().unwrap()], common.as_slice(), more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said = probe(folder.path(), &profile, &["--size", "4M", "--name", "mine"]);
    assert!(said.contains("random write") && said.contains("sequential read"), "{said}");
    assert!(said.contains("write-cost=") && said.contains("wrandiops="), "{said}");
    let said = probe(&file, &other, &[]);
    assert!(said.contains("Writes were not measured") && !said.contains("random write"), "{said}");
    assert!(said.contains("rrandiops=") && !said.contains("write-cost="), "{said}");
    assert!(std::fs::read(&file).unwrap() == before, "it was only read");
    let mut left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["disk", "other.toml", "profile.toml"]);
    let shown = text(&run(&["device", "show", profile.to_str().unwrap()]).stdout);
    assert!(shown.starts_with("mine: "), "{shown}");
}
