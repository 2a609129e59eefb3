//! Simulated requests a second of one core, in real time: closed loops of 4 KiB reads on the Z-SSD.
//!
//! `bench/schedulers` has the bars. No timing makes the benchmark fail, because timings depend on
//! the machine and its other load.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use fairq_device::Profile;
use fairq_sim::policies::{MqfqSubject, NoneSubject, SfqdSubject};
use fairq_sim::scenario::MS;
use fairq_sim::{Job, Machine, Scenario, Subject, Tenant, check, run, run_traced};

/// Four tenants on eight ports, 128 requests each thread.
fn scenario() -> Scenario {
    let profile = Profile::named("z-ssd").expect("it is built in");
    let tenant = |number: usize| {
        let threads = vec![number, number + 4];
        Tenant::new(
            &format!("t{number}"),
            100 + 100 * number as u16,
            threads,
            Job::random_read(4096, 128),
        )
    };
    Scenario::new(profile, 8, (0..4).map(tenant).collect(), 100 * MS)
}

fn measure<S: Subject>(criterion: &mut Criterion, name: &str, subject: &S) {
    let scenario = scenario();
    let mut group = criterion.benchmark_group("simulated requests");
    for checked in [false, true] {
        let go = || {
            let checks =
                if checked { check::all(&scenario, &subject.promise()) } else { Vec::new() };
            run(&scenario, subject, checks).expect("the scenario is legal")
        };
        group.throughput(Throughput::Elements(go().requests));
        let checks = if checked { "all checks" } else { "no checks" };
        group.bench_function(BenchmarkId::new(name, checks), |bencher| {
            bencher.iter(|| black_box(go()))
        });
    }
}

/// Measures MQFQ if CPUs take time and each access to a shared word is traced: with the load above
/// on eight cores, with and without races, and with 64 flows on 64 cores.
fn measure_costs(criterion: &mut Criterion) {
    let ramdisk = Profile::named("nvmf-ramdisk").expect("it is built in");
    let tenant =
        |core| Tenant::new(&format!("t{core}"), 100, vec![core], Job::random_read(1024, 128));
    let many = Scenario::new(ramdisk, 64, (0..64).map(tenant).collect(), 10 * MS)
        .on(Machine::FOUR_SOCKETS.host(64));
    let mut group = criterion.benchmark_group("simulated requests, CPUs take time");
    let few = Machine::GOLD_5112.host(8);
    for (name, scenario) in [
        ("8 cores", scenario().on(few.clone())),
        ("8 cores, races", scenario().on(few.racing())),
        ("64 cores", many),
    ] {
        let subject = MqfqSubject { slots: 64, threshold: 45 << 10 };
        let go = || run_traced(&scenario, &subject, Vec::new()).expect("the scenario is legal");
        group.throughput(Throughput::Elements(go().requests));
        group.bench_function(BenchmarkId::new("mqfq", name), |bencher| {
            bencher.iter(|| black_box(go()))
        });
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    measure(&mut criterion, "none", &NoneSubject);
    measure(&mut criterion, "sfqd", &SfqdSubject { slots: 64 });
    measure(&mut criterion, "mqfq", &MqfqSubject { slots: 64, threshold: 45 << 10 });
    measure_costs(&mut criterion);
    criterion.final_summary();
}
