//! A policy that consists of a module and a line of the registry is available in the program: the
//! toy, which tests add that way (`crates/core/src/policy/serial/toy.rs`).

use serde_json::Value;

use super::common::{fairq, until};
use super::{CONFIG, Server};

/// The program's JSON output.
fn json(args: &[&str]) -> Value {
    let output = fairq(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn it_serves_clients_and_takes_another_policys_place() {
    let server = Server::start(CONFIG, &["--policy", "toy:newest-first"]);
    let mut client = server.load("db", "300ms");
    assert!(until("the client ends", || client.try_wait().unwrap()).success());
    let told = server.said(&["params"]);
    assert!(told.contains("newest-first") && told.contains("true or false"), "{told}");
    assert!(server.said(&["policy"]).contains("toy D=auto"));
    server.said(&["params", "D=8"]);
    server.said(&["policy", "mqfq"]);
    server.said(&["policy", "toy", "slots=4"]);
    let mut client = server.load("web", "300ms");
    assert!(until("the client ends", || client.try_wait().unwrap()).success());
    assert!(server.said(&["config", "dump"]).contains("name = \"toy\""));
    let (code, text) = server.refused(&["params", "threshold=4k"]);
    assert!(code == 2 && text.contains("toy takes no `threshold`"), "{code} {text}");
}

#[test]
fn bench_and_the_lab_compare_it_with_others() {
    let bench = json(&[
        "bench",
        "--policy",
        "toy,toy:D=2",
        "--seconds",
        "100ms",
        "--warmup",
        "0s",
        "--json",
    ]);
    let names: Vec<_> =
        bench["runs"].as_array().unwrap().iter().map(|run| &run["policy"]).collect();
    assert_eq!(names, ["toy D=auto", "toy D=2"]);
    assert!(bench["runs"][0]["flows"][0]["iops"].as_f64().unwrap() > 0.0, "{bench}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.toml").display().to_string();
    let scenario = "device = \"z-ssd\"\ncores = 2\nduration = \"20ms\"\n\
                    [[tenant]]\nname = \"heavy\"\nweight = 300\ndepth = 64\n\
                    [[tenant]]\nname = \"light\"\nweight = 100\ndepth = 64\n";
    std::fs::write(&file, scenario).unwrap();
    let lab = json(&["lab", "run", &file, "--policy", "toy,sfqd", "--json"]);
    let share = |run: usize| lab[0]["runs"][run]["flows"][0]["share"].as_f64().unwrap();
    // Two backlogged tenants have half each under a scheduler without weights.
    assert!((share(0) - 0.5).abs() < 0.05, "{lab}");
    assert!((share(1) - 0.75).abs() < 0.05, "{lab}");
}
