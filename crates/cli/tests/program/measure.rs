//! `fairq bench` and `fairq calibrate` as their users run them.

use std::fs::DirEntry;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{fairq, until};
use crate::{Server, run, text};

/// The JSON object that a command printed.
fn object(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is one object")
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

/// cfq waits for a tenant that ends before cfq's wait does. Only the shard knows when this wait
/// ends, so it must not end before it has served the other tenant's requests.
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
    let report = object(&output);
    let runs = report["runs"].as_array().unwrap();
    let policies: Vec<_> = runs.iter().map(|run| run["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["none", "sfqd", "mqfq", "mqfq-serial", "kyber", "kyber-fair"]);
    for run in runs {
        assert!(
            run["iops"].as_f64().unwrap() > 0.0 && run["cpu_ns_per_io"].as_f64().unwrap() > 0.0,
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
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let run = &report["runs"][0];
    assert_eq!(run["policy"], "connect");
    let flows = run["flows"].as_array().unwrap();
    assert!(flows.iter().all(|flow| flow["iops"].as_f64().unwrap() > 0.0), "{run}");
    assert_eq!(server.end(Signal::TERM), Some(0));
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
        text(&refused.stderr).contains("add --overwrite to allow this"),
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

/// `calibrate.rs` tests the results without a device; this test measures one.
#[test]
fn calibrate_recommends_a_policy_that_can_be_used() {
    let found = object(&run(&[
        "calibrate",
        "--device",
        "paced,size=16M,iops=0,bandwidth=0,latency=2ms,parallelism=4",
        "--bs",
        "4k",
        "--most",
        "4",
        "--seconds",
        "30ms",
        "--json",
        "--shards",
        "1",
    ]));
    let points = found["sweeps"][0]["points"].as_array().unwrap();
    let outstanding = |point: &Value| point["outstanding"].as_u64().unwrap();
    assert!(points.iter().any(|point| outstanding(point) == 4), "{found}");
    for point in points {
        let most = outstanding(point) as f64 / 0.002;
        // Requests in flight at the start of a round may end in it.
        assert!(point["iops"].as_f64().unwrap() <= 1.05 * most + 400.0, "{found}");
    }
    let recommend = found["recommend"].as_str().unwrap();
    let slots = format!("mqfq:slots={},threshold=", found["slots"]);
    assert!(recommend.starts_with(&slots), "{recommend}");
    let check =
        ["bench", "--device", "null", "--policy", recommend, "--seconds", "20ms", "--warmup", "0"];
    let check = run(&check);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check.stderr));
}

/// Regression: a process that was stopped during the warm-up took the measurement for finished when
/// it continued, and reported the rate of a few microseconds.
#[test]
fn a_bench_that_was_stopped_measures_as_long_as_requested() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("report.json");
    let device = ["--device", "paced,size=16M,iops=2000", "--policy", "none", "--shards", "1"];
    let times = ["--warmup", "200ms", "--seconds", "200ms", "--json", json.to_str().unwrap()];
    let mut bench = Server::start(&[&["bench"], &device[..], &times[..]].concat());
    let threads = format!("/proc/{}/task", bench.0.id());
    // A shard's thread exists when the warm-up begins.
    until("the warm-up begins", || {
        let mut threads = std::fs::read_dir(&threads).unwrap().flatten();
        let name = |thread: DirEntry| std::fs::read_to_string(thread.path().join("comm"));
        threads.any(|thread| name(thread).is_ok_and(|name| name == "shard-0\n")).then_some(())
    });
    kill_process(Pid::from_child(&bench.0), Signal::STOP).expect("it runs");
    let stopped = Instant::now();
    until("warm-up and measurement would be over", || {
        (stopped.elapsed() > Duration::from_millis(600)).then_some(())
    });
    let status = bench.end(Signal::CONT);
    let mut said = String::new();
    bench.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status, Some(0), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let run = &report["runs"][0];
    assert!(run["seconds"].as_f64().unwrap() >= 0.2, "{run}");
    // The device's rate, and 256 requests in flight at the start of the measurement.
    assert!(run["iops"].as_f64().unwrap() <= 2_000.0 * 1.05 + 256.0 / 0.2, "{run}");
}

/// A server that opens its exports, answers this number of requests on each connection, and then
/// stops answering; without a number it never answers.
fn silent_server(path: &Path, answers: Option<usize>) {
    let serve = move |mut stream: UnixStream| -> std::io::Result<()> {
        let Some(answers) = answers else { return stream.read_to_end(&mut Vec::new()).map(drop) };
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        // Reads the flags and the option GO, without a name.
        stream.read_exact(&mut [0; 4 + 16 + 6])?;
        let head = [0x0003_e889_0455_65a9u64.to_be_bytes(), *b"\0\0\0\x07\0\0\0\x03"].concat();
        let export = [&12u32.to_be_bytes()[..], &[0; 2], &(1u64 << 20).to_be_bytes(), &[0, 1]];
        let ack = [&head[..8], b"\0\0\0\x07\0\0\0\x01\0\0\0\0"].concat();
        stream.write_all(&[head, export.concat(), ack].concat())?;
        for _ in 0..answers {
            let mut request = [0; 28];
            stream.read_exact(&mut request)?;
            stream.write_all(&[b"gDf\x98\0\0\0\0", &request[8..16], &[0; 4096]].concat())?;
        }
        stream.read_to_end(&mut Vec::new()).map(drop)
    };
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || serve(stream.unwrap()));
        }
    });
}

/// Regression: the bench waited for ever.
#[test]
fn a_bench_of_a_server_that_does_not_answer_ends_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let reasons = [
        (None, "cannot open export 'load' at ", "the handshake did not end within 500.00ms"),
        (
            Some(50),
            "cannot run the load",
            "the server has answered none of 4 requests for 500.00ms",
        ),
    ];
    for (answers, cannot, reason) in reasons {
        let path = folder.path().join(format!("{answers:?}"));
        silent_server(&path, answers);
        let uri =
            format!("nbd+unix:///{}?socket={}", answers.map_or("load", |_| ""), path.display());
        let load = ["--tenant", "load=depth:4", "--warmup", "0", "--seconds", "600"];
        let output =
            run(&[&["bench", "--connect", &uri, "--timeout", "500ms"], &load[..]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(cannot) && said.contains(reason), "{said}");
        assert!(said.contains("allow more with --timeout"), "{said}");
    }
}

/// JSON has no number for 0/0.
#[test]
fn shares_are_numbers_whenever_tenants_come_and_go() {
    let tenants: [&[&str]; 4] = [
        &["a", "b=start:20ms"],
        &["a=stop:10ms", "b=start:30ms"],
        &["a", "b=start:1h"],
        &["a=start:1h"],
    ];
    for tenants in tenants {
        let mut args = vec!["bench", "--device", "ram,size=16M", "--policy", "none", "--json"];
        args.extend(["--warmup", "0", "--seconds", "40ms"]);
        args.extend(tenants.iter().flat_map(|tenant| ["--tenant", tenant]));
        let report = object(&run(&args));
        let run = &report["runs"][0];
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{run}"));
        let index = number(&run["jain_weighted"]);
        assert!((0.0..=1.0 + 1e-9).contains(&index), "{run}");
        let entitled = |flows: &Value| -> f64 {
            flows.as_array().unwrap().iter().map(|flow| number(&flow["entitled"])).sum()
        };
        assert!((entitled(&run["flows"]) - 1.0).abs() < 1e-9, "{run}");
        for phase in run["series"]["phases"].as_array().unwrap() {
            entitled(&phase["flows"]);
        }
    }
}
