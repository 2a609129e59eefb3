//! Whole scenario files: reading, running and writing.

use std::path::PathBuf;

use fairq_config::flags::{Policies, parse_policies};
use fairq_sim::scenario::{Access, Arrivals};

use super::*;

const EXAMPLE: &str = include_str!("../../../../docs/fairq.scenario.toml");

fn policies(text: &str) -> Vec<PolicyConfig> {
    let Policies(policies) = parse_policies(text).unwrap();
    policies.into_iter().map(|table| table.complete_for_lab().unwrap()).collect()
}

fn points(text: &str) -> Vec<Point> {
    Document::new(text.into(), "my.toml".into(), PathBuf::new()).points().unwrap()
}

/// The report has the write amplification of a mapped device; media written in place has no
/// mapping.
#[test]
fn the_device_tells_what_its_parts_did() {
    let text = |device: &str, mapping: &str| {
        format!(
            "device = \"{device}\"\nstate = \"steady\"\nmapping = \"{mapping}\"\ncores = 1\n\
             duration = \"100ms\"\n[[tenant]]\nname = \"w\"\nbs = \"4k\"\ndepth = 64\nrw = \"randwrite\"\n"
        )
    };
    let none = &policies("none")[0];
    let device = |mapping| {
        let scenario = points(&text("p3700", mapping))[0].seeded(None).unwrap();
        let run = simulate::under(&scenario, none).unwrap().told(&scenario, None, false);
        run.device.expect("an SSD tells")
    };
    let (average, mapped) = (device("average"), device("pages"));
    assert_eq!(average.amplification, None);
    let times = mapped.amplification.expect("it is mapped");
    assert!((3.0..6.0).contains(&times), "{times}");
    for device in [average, mapped] {
        let busy = device.reads + device.programs + device.moves + device.erases;
        assert!((0.9..1.05).contains(&busy), "dies are the limit: {device:?}");
        assert!((0.9..=1.0).contains(&device.buffer) && device.link_out == 0.0, "{device:?}");
    }
    let document = Document::new(text("p4800x", "pages"), "my.toml".into(), PathBuf::new());
    let Err(refused) = document.points() else { panic!("nothing is mapped there") };
    assert!(refused.to_string().contains("p4800x writes in place"), "{refused}");
}

/// Caps, reservations and groups work as in a server. Requests that wait for a cap when all tenants
/// stop are still served.
#[test]
fn caps_reservations_and_groups_hold_in_a_simulation() {
    let text = "device = \"p3700\"\ncores = 1\nduration = \"1300ms\"\nwarmup = \"300ms\"\n[[group]]\nname = \
                \"acme\"\nmax-iops = 40000\n[[tenant]]\nname = \"capped\"\nmax-iops = 100\ndepth = \
                1000\n[[tenant]]\nname = \"kept\"\nweight = 1\nmin-iops = 100000\ndepth = 64\n\
                [[tenant]]\nname = \"a\"\nweight = 300\ngroup = \"acme\"\ndepth = 64\n[[tenant]]\nname \
                = \"b\"\ngroup = \"acme\"\ndepth = 64\n[[tenant]]\nname = \"flood\"\nweight = 10000\n\
                depth = 256\n";
    let scenario = points(text)[0].seeded(None).unwrap();
    let run = simulate::under(&scenario, &policies("mqfq")[0]).unwrap();
    let run = run.told(&scenario, None, false);
    let iops: Vec<f64> = run.flows.iter().map(|flow| flow.iops).collect();
    let [capped, kept, a, b, flood] = iops[..] else { panic!("{run:?}") };
    assert!((95.0..111.0).contains(&capped), "{iops:?}");
    assert!((97_000.0..106_000.0).contains(&kept), "{iops:?}");
    assert!(a + b < 40_500.0 && flood > 300_000.0, "{iops:?}");
    assert!((2.85..3.15).contains(&(a / b)), "{iops:?}");
}

#[test]
fn the_example_has_every_key_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let volume = "419,R,8192,4096,100\n419,W,0,512,200\n";
    std::fs::write(folder.path().join("volume.csv"), volume).unwrap();
    let jobs = "[batch]\nrw=randwrite\nbs=64k\niodepth=8\n";
    std::fs::write(folder.path().join("jobs.fio"), jobs).unwrap();
    // The example with its commented-out keys.
    let uncommented = |line: &'static str| line.strip_prefix("#: ").unwrap_or(line);
    let text = EXAMPLE.lines().map(uncommented).collect::<Vec<_>>().join("\n");
    let document = Document::new(text, "my.toml".into(), folder.path().to_owned());
    let points = document.points().unwrap();
    assert_eq!(points.len(), 4, "what it sweeps");
    let mut scenario = points[0].seeded(Some(7)).unwrap();
    assert_eq!(scenario.seed, 7, "what is said beside the file wins");
    let names: Vec<_> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names, ["db", "backup", "kv", "web", "replayed", "batch"]);
    assert_eq!(scenario.tenants[0].lives.len(), 2);
    let web = &scenario.tenants[3].job;
    assert_eq!((web.arrivals, web.access), (Arrivals::Poisson, Access::Zipf { thousandths: 1100 }));
    assert!(scenario.tenants[4].job.replay.as_ref().is_some_and(|replay| replay.keeps_time));
    (scenario.duration_ns, scenario.warmup_ns) = (20_000_000, 1_000_000);
    for tenant in &mut scenario.tenants {
        (tenant.lives, tenant.reweights) = (vec![(0, u64::MAX)], Vec::new());
    }
    for policy in policies("none,mqfq") {
        let run = simulate::under(&scenario, &policy).unwrap().told(&scenario, None, false);
        assert!(run.iops > 1000.0 && run.flows.len() == 6, "{run:?}");
    }
}

const TWO: &str = "device = \"z-ssd\"\nduration = \"40ms\"\ncores = 2\n\
                   [[tenant]]\nname = \"a\"\ndepth = 32\nrw = \"randrw\"\n\
                   [[tenant]]\nname = \"b\"\niops = 20k\narrivals = \"poisson\"\n";

fn two() -> String {
    TWO.replace("20k", "\"20k\"")
}

#[test]
fn on_a_host_requests_take_cpu_time_and_one_core_is_the_limit() {
    let run = |host: &str| {
        let text = format!(
            "device = \"z-ssd\"\nduration = \"20ms\"\ncores = 1\n{host}\n[[tenant]]\nname = \
             \"a\"\ndepth = 64\n"
        );
        points(&text)[0].run(&policies("none"), None, Details::default()).unwrap().runs.remove(0)
    };
    let (free, slow) = (run(""), run("[host]\nkernel = \"linux-5\"\nmhz = 1000\n"));
    assert_eq!(free.cpu_ns_per_io, 0.0);
    // 14180 cycles a request, most of which cannot be shared with other requests.
    assert!((12_000.0..16_000.0).contains(&slow.cpu_ns_per_io), "{}", slow.cpu_ns_per_io);
    assert!(slow.iops < 85_000.0 && free.iops > 700_000.0, "{} {}", slow.iops, free.iops);
}

/// An open loop keeps its rate, and the latency of a request that waits for a free place counts
/// from its arrival.
#[test]
fn in_an_open_loop_the_rate_is_kept_and_waiting_counts() {
    let run = |arrivals: &str, iops: &str| {
        let text = format!(
            "device = \"p4500\"\nduration = \"400ms\"\ncores = 1\n[[tenant]]\nname = \"a\"\n\
             depth = 1\niops = \"{iops}\"\narrivals = \"{arrivals}\"\n"
        );
        let cell = points(&text)[0].run(&policies("none"), None, Details::default()).unwrap();
        cell.runs[0].flows[0].clone()
    };
    let (closed, even, poisson) = (run("closed", "5k"), run("even", "5k"), run("poisson", "5k"));
    for flow in [&closed, &even, &poisson] {
        assert!((4_700.0..5_300.0).contains(&flow.iops), "{}", flow.iops);
    }
    // The one place is busy half of the time, and two Poisson arrivals sometimes come close
    // together.
    assert!(poisson.mean_ns > 1.2 * even.mean_ns, "{} {}", poisson.mean_ns, even.mean_ns);
    // At a rate above the device's, a closed loop slows down, and requests of an open loop queue
    // up.
    let (closed, even) = (run("closed", "30k"), run("even", "30k"));
    assert!((closed.iops - even.iops).abs() < 0.02 * closed.iops);
    assert!(even.mean_ns > 100.0 * closed.mean_ns, "{} {}", even.mean_ns, closed.mean_ns);
}

#[test]
fn details_are_told_where_they_are_asked_for() {
    let point = &points(&two())[0];
    let plain = point.run(&policies("mqfq"), Some(3), Details::default()).unwrap();
    assert_eq!((plain.seed, plain.point.len(), plain.file.as_str()), (3, 0, "my.toml"));
    let flow = &plain.runs[0].flows[0];
    assert!(flow.mean_ns > 0.0 && flow.slowdown.is_none() && flow.histogram.is_none());
    let details = Details { alone: true, histograms: true };
    let all = point.run(&policies("mqfq"), Some(3), details).unwrap();
    let flow = &all.runs[0].flows[0];
    assert!(flow.slowdown.is_some_and(|times| (0.9..3.0).contains(&times)), "{flow:?}");
    let histogram = flow.histogram.as_ref().unwrap();
    let count: u64 = histogram.iter().map(|bucket| bucket.1).sum();
    assert_eq!(count as f64, (flow.iops * all.runs[0].seconds).round());
    let sum: f64 = histogram.iter().map(|&(ns, count)| ns as f64 * count as f64).sum();
    assert!((sum / count as f64 - flow.mean_ns).abs() < 0.01 * flow.mean_ns);
}

/// A report consists of all its files, and they contain the swept values.
#[test]
fn a_report_has_tables_figures_and_data() {
    let text =
        two() + "[sweep]\n\"tenant.b.weight\" = [100, 300]\ndevice = [\"z-ssd\", \"p4500\"]\n";
    let points = points(&text);
    let details = Details { alone: true, ..Details::default() };
    let cell =
        |point: &Point, seed| point.run(&policies("none,mqfq"), Some(seed), details).unwrap();
    let cells: Vec<Cell> =
        points.iter().flat_map(|point| [cell(point, 1), cell(point, 2)]).collect();
    assert_eq!(cells.len(), 8);
    let folder = tempfile::tempdir().unwrap();
    report::write(&cells, folder.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let csv = read("results.csv");
    assert!(csv.starts_with("file,tenant.b.weight,device,seed,policy,tenant,weight,"), "{csv}");
    assert!(csv.lines().next().unwrap().ends_with(",device_buffer,device_amplification"));
    assert_eq!(csv.lines().count(), 1 + 8 * 2 * 2);
    let columns = |line: &str| line.matches(',').count();
    assert!(csv.lines().all(|line| columns(line) == columns(csv.lines().next().unwrap())), "{csv}");
    let json: Value = serde_json::from_str(&read("results.json")).unwrap();
    assert_eq!(json[7]["point"]["tenant.b.weight"], 300);
    assert_eq!(json[7]["runs"][1]["flows"][1]["name"], "b");
    let report = read("report.md");
    assert!(report.contains("## my.toml with tenant.b.weight = 300, device = \"p4500\""));
    assert!(report.contains(" ± ") && report.contains("![my.toml with device = \"z-ssd\": "));
    assert!(report.contains("| share | IOPS | bandwidth | mean | p50 | p99 | slowdown |"));
    assert!(report.contains("| policy | controller | reads |"), "{report}");
    let device = report.lines().find(|line| line.starts_with("| none ") && line.ends_with("| – |"));
    assert!(device.is_some_and(|line| line.contains(" % ± ")), "over both seeds: {report}");
    // One figure for each device and measure.
    assert_eq!(report.matches("![").count(), 6);
    assert!(read("1-share.svg").contains("tenant.b.weight") && read("2-p99.svg").contains("mqfq"));
    let text = report::text(&cells);
    assert!(text.contains("seeds 1 to 2: means") && text.contains(" ± "), "{text}");
    let device = text.lines().find(|line| line.starts_with("device: ")).unwrap();
    assert!(device.contains("reads ") && device.contains(" % ± "), "{device}");
    let one = report::text(&cells[..1]);
    assert!(one.contains("keeps") && !one.contains('±'), "{one}");
}

/// The keys that earlier servers had select the papers' policies, which servers do not have.
#[test]
fn the_papers_policies_run_in_scenarios() {
    let text = "device = \"z-ssd\"\ncores = 2\nduration = \"30ms\"\n[[tenant]]\nname = \"a\"\n\
                weight = 300\ndepth = 64\n[[tenant]]\nname = \"b\"\ndepth = 64\n";
    let scenario = points(text)[0].seeded(None).unwrap();
    for (text, name) in [
        ("mqfq:virtual-time=scan", "mqfq of the paper virtual-time=scan"),
        ("mqfq:D=32,slot-kind=bitmap", "mqfq of the paper slots=32 slot-kind=bitmap"),
        ("mqfq:unthrottle=poll:2us", "mqfq of the paper unthrottle=poll:2us"),
        ("d2fq:strict-paper", "d2fq of the paper strict-paper=true"),
        ("d2fq:hl=static-3,tracker=scan", "d2fq of the paper hl=static-3 tracker=scan"),
    ] {
        let run = simulate::under(&scenario, &policies(text)[0]).unwrap();
        assert_eq!(run.policy, name);
        let run = run.told(&scenario, None, false);
        assert!(run.flows.iter().all(|flow| flow.iops > 1000.0), "{name}: {run:?}");
    }
    let refused = simulate::under(&scenario, &policies("mqfq:slot-kind=bitmap,cost=bytes")[0]);
    let Err(refused) = refused else { panic!("it has no costs") };
    assert!(refused.to_string().contains("the paper's mqfq takes no `cost`"), "{refused}");
}
