//! Tests of the program as its users see it: its output, the stream or file of the output, and the
//! exit status.

mod common;
#[path = "program/measure.rs"]
mod measure;

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
            "has it locked for serving; stop that server".into(),
        ),
        // The demo's tenants would write to the disk.
        (vec!["serve", "--device", disk], 2, "no tenants: name the tenants that".into()),
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
            vec!["lab", "run", "D-3.1", "--against", "/nonexistent"],
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
            "add create to create it".into(),
        ),
        (vec!["bench", "--tenant", "a=bs:3"], 2, "bs 3 is not a multiple of 512".into()),
        (vec!["bench", "--tenant", "a", "--tenant", "a"], 2, "tenant a is given twice".into()),
        (
            vec!["bench", "--connect", &uri, "--policy", "mqfq"],
            2,
            "--policy applies to a device in this process".into(),
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
            "--path applies to a device in this process".into(),
        ),
        (vec!["bench", "--connect", &uri, "--moves"], 2, "--moves applies to".into()),
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
        (vec!["device", "probe", file], 2, "less than 1M is too small to measure".into()),
    ] {
        let output = run(&args);
        let heard = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {heard}");
        assert!(heard.contains(&said), "{args:?}: {heard}");
    }
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

/// With `--run` the server and its command end together, with the command's status.
#[test]
fn a_server_ends_with_its_command_and_the_command_with_the_server() {
    const DISK: [&str; 5] = ["serve", "--device", "ram,size=16M", "--tenant", "a"];
    let script = "echo \"$uri\"; test -S \"$unixsocket\" && test -S \"$control\" || exit 9; exit 7";
    let done = run(&[&DISK[..], &["--run", script]].concat());
    let printed = text(&done.stdout);
    assert_eq!(done.status.code(), Some(7), "{}", text(&done.stderr));
    let socket = printed.trim_end().strip_prefix("nbd+unix:///a?socket=").expect("only the URI");
    assert!(!Path::new(socket).parent().unwrap().exists(), "{socket} is left");

    let script = "trap 'echo ended; exit 0' TERM; echo begun; while :; do sleep 0.1; done";
    let mut server = Server::start(&[&DISK[..], &["--run", script]].concat());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    assert_eq!(lines.next().unwrap().unwrap(), "ended", "the command ends with the server");

    let script = "trap '' TERM; echo begun; while :; do sleep 0.1; done";
    let mut server = Server::start(&[&DISK[..], &["--run", script]].concat());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(137), "it is killed in the end");

    let upgrade = format!("{} ctl --control \"$control\" upgrade", env!("CARGO_BIN_EXE_fairq"));
    let done = run(&[&DISK[..], &["--run", &upgrade]].concat());
    assert_eq!(done.status.code(), Some(1));
    assert!(
        text(&done.stderr).contains("ends with the command of --run"),
        "{}",
        text(&done.stderr)
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

/// A directory is probed by a scratch file, which is removed; a file is not written.
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
