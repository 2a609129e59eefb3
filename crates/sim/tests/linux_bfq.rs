//! The model of Linux's BFQ beside Linux: the loads of `bench/oracle`, and what came out there in
//! user-mode Linux 7.2 with `low_latency` off (`bench/oracle -n 1`, quiet, 27 November 2026).
//!
//! The drive takes 10 ms a request and 16 at a time. Held to: all bytes and each share within 15 %,
//! and the order of latencies that differ by more than 15 %. What is not is in [`Linux::apart`].

use fairq_device::Profile;
use fairq_sim::Run;
use fairq_sim::policies::{AnySubject, Kernel, LinuxBfqConfig, Scheduler, SerialSubject};
use fairq_sim::scenario::{Access, Job, SECOND, Scenario, Tenant};

const DRIVE: &str = r#"
name = "timed"
model = "10 ms a request, 16 at a time"
link = { read-mb-s = 100000, write-mb-s = 100000 }
buffer = { size-kib = 65536 }
garbage = { over-provisioning = 0.5, erase-us = 0.1, programs-per-erase = 256 }

[host]
interface = "nvme"
queues = 2
queue-entries = 1024
window = 16
wrr = "no"
capacity-gb = 4

[controller]
read-us = 0.1
write-us = 0.1
read-fixed-us = 10000
write-fixed-us = 10000
power-loss-protection = true

[media]
channels = 64
dies-per-channel = 64
page-kib = 64
read-us = 0.1
program-us = 0.1
program-kib = 64
channel-mb-s = 100000
"#;

/// The same difference counts as none.
const WITHIN: f64 = 0.15;

/// What Linux did with a load.
struct Linux {
    load: &'static str,
    tenants: Vec<(u16, Job)>,
    mb_s: f64,
    shares: &'static [f64],
    mean_ms: &'static [f64],
    /// What the model does otherwise, and why.
    apart: &'static [&'static str],
}

fn random(depth: u32) -> Job {
    // What fio takes from an answer to the next request: others' requests go in between.
    Job { think_ns: 20_000, ..Job::random_read(4096, depth) }
}

fn measured() -> Vec<Linux> {
    let sized = |bytes, job: Job| Job { sizes: vec![(bytes, 1)], ..job };
    let weights = |depth| [1000, 500, 250, 100].map(|weight| (weight, random(depth))).to_vec();
    let stream = Job { access: Access::Sequential, ..sized(64 << 10, random(8)) };
    let linux = |load, tenants, mb_s, shares, mean_ms| Linux {
        load,
        tenants,
        mb_s,
        shares,
        mean_ms,
        apart: &[],
    };
    vec![
        Linux {
            // The last has a turn every 2.6 s, and its process sleeps while it has no tag.
            apart: &["share 3"],
            ..linux(
                "weights",
                weights(32),
                6.09,
                &[54.9, 27.4, 14.4, 3.3],
                &[39.2, 78.4, 157.6, 618.7],
            )
        },
        linux(
            "equals",
            vec![(100, random(32)); 4],
            6.26,
            &[25.1, 25.7, 24.3, 24.9],
            &[85.0, 82.9, 85.6, 84.2],
        ),
        linux("shallow", weights(4), 1.59, &[53.9, 27.1, 13.5, 5.6], &[19.1, 38.2, 76.3, 196.9]),
        linux(
            "depths",
            vec![(100, random(1)), (100, random(32))],
            6.16,
            &[2.3, 97.7],
            &[29.3, 21.8],
        ),
        linux(
            "heavy shallow",
            vec![(300, random(1)), (100, random(32))],
            6.09,
            &[3.5, 96.5],
            &[19.1, 22.2],
        ),
        linux(
            "sizes",
            vec![(100, random(32)), (100, sized(64 << 10, random(32)))],
            44.61,
            &[8.3, 91.7],
            &[35.4, 51.5],
        ),
        linux(
            "writes",
            vec![(100, random(32)), (100, Job { read_percent: 0, ..random(32) })],
            6.23,
            &[50.1, 49.9],
            &[41.9, 42.2],
        ),
        linux("stream", vec![(100, stream), (100, random(32))], 31.68, &[91.8, 8.2], &[18.1, 50.5]),
    ]
}

fn is_near(ours: f64, linux: f64) -> bool {
    (ours / linux - 1.0).abs() <= WITHIN
}

#[test]
fn the_model_does_what_linux_does() {
    for linux in measured() {
        let tenant = |(at, (weight, job)): (usize, &(u16, Job))| {
            Tenant::new(&format!("t{at}"), *weight, vec![at], job.clone())
        };
        let tenants: Vec<Tenant> = linux.tenants.iter().enumerate().map(tenant).collect();
        let mut scenario = Scenario::new(Profile::parse(DRIVE).unwrap(), 4, tenants, 44 * SECOND);
        scenario.warmup_ns = 4 * SECOND;
        let bfq = LinuxBfqConfig { kernel: Kernel::V7_2, processes: 1, budget: 0 };
        let lock = SerialSubject::new(Scheduler::LinuxBfq(bfq), 16).merging();
        let run: Run = AnySubject::Serial(lock).run(&scenario).unwrap();
        assert!(run.violation.is_none(), "{}: {:?}", linux.load, run.violation);

        let mb_s = run.bandwidth() / 1e6;
        let shares: Vec<f64> = run.shares().iter().map(|share| 100.0 * share).collect();
        let means: Vec<f64> = run.tenants.iter().map(|got| got.mean_us() / 1000.0).collect();
        let told = |values: &[f64]| {
            values.iter().map(|value| format!("{value:.1}")).collect::<Vec<_>>().join(" ")
        };
        // `bench/oracle` reads these lines.
        println!("{} | {mb_s:.2} | {} | {}", linux.load, told(&shares), told(&means));

        let mut apart = Vec::new();
        if !is_near(mb_s, linux.mb_s) {
            apart.push("bytes".to_owned());
        }
        for (at, (&ours, &theirs)) in shares.iter().zip(linux.shares).enumerate() {
            if !is_near(ours, theirs) {
                apart.push(format!("share {at}"));
            }
        }
        for a in 0..means.len() {
            for b in 0..a {
                let (here, there) = (means[a] / means[b], linux.mean_ms[a] / linux.mean_ms[b]);
                if there.max(1.0 / there) > 1.0 + WITHIN && (here > 1.0) != (there > 1.0) {
                    apart.push(format!("order of {b} and {a}"));
                }
            }
        }
        assert_eq!(apart, linux.apart, "{}", linux.load);
    }
}
