//! Each profile against the points that its device is known by: a closed loop in virtual time.
//!
//! `cargo test -p fairq-device --test calibration -- --nocapture` prints the table.

use fairq_core::Op;
use fairq_device::profile::{BUILT_IN, Load, Point};
use fairq_device::{Profile, Setup, Ssd, State};

/// What a closed loop gave.
struct Measured {
    iops: f64,
    latency_us: f64,
    mb_s: f64,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Keeps `depth` requests outstanding for long enough to fill what fills up first, then measures.
fn run(profile: &Profile, point: &Point) -> Measured {
    let depth = point.depth.get();
    let capacity = profile.host.capacity();
    let setup = Setup { capacity, state: point.state, outstanding: depth, seed: 1 };
    let mut ssd = Ssd::new(profile, &setup);
    let bytes = point.kib.get() * 1024;
    let op = match point.load {
        Load::RandomRead | Load::SequentialRead => Op::Read,
        Load::RandomWrite | Load::SequentialWrite => Op::Write,
    };
    let mut random = Random(88_172_645_463_325_252);
    let mut position = 0;
    let mut began = vec![0; depth as usize];
    let mut start = |ssd: &mut Ssd, now_ns: u64, id: u32, began: &mut Vec<u64>| {
        let offset = match point.load {
            Load::RandomRead | Load::RandomWrite => random.below(capacity / u64::from(bytes)) * u64::from(bytes),
            Load::SequentialRead | Load::SequentialWrite => {
                position = (position + u64::from(bytes)) % (capacity - u64::from(bytes));
                position
            }
        };
        began[id as usize] = now_ns;
        ssd.start(now_ns, id, op, offset, bytes);
    };
    (0..depth).for_each(|id| start(&mut ssd, 0, id, &mut began));
    // One request at a time never fills the buffer; others do, and then the media sets the pace.
    let buffer = u64::from(profile.buffer.size_kib.get()) << 10;
    let warm_up = 2000 + if op == Op::Write && depth > 1 { 3 * buffer / u64::from(bytes) } else { 0 };
    let count = warm_up.max(60_000 / u64::from(point.kib.get().div_ceil(4)).min(16));
    let (mut first_ns, mut last_ns, mut latency_ns, mut done) = (0, 0, 0, 0);
    while done < warm_up + count {
        let now_ns = ssd.next_ns().expect("requests are outstanding");
        while let Some(completed) = ssd.pop(now_ns) {
            assert!(completed.at_ns >= last_ns, "completions are in order");
            last_ns = completed.at_ns;
            done += 1;
            if done == warm_up {
                first_ns = last_ns;
            } else if done > warm_up {
                latency_ns += last_ns - began[completed.id as usize];
            }
            start(&mut ssd, last_ns, completed.id, &mut began);
        }
    }
    let (done, seconds) = ((done - warm_up) as f64, (last_ns - first_ns) as f64 / 1e9);
    Measured {
        iops: done / seconds,
        latency_us: latency_ns as f64 / done / 1e3,
        mb_s: done * f64::from(bytes) / seconds / 1e6,
    }
}

fn row(profile: &Profile, point: &Point) -> (String, bool) {
    let measured = run(profile, point);
    let (unit, known, model) = match (point.iops, point.latency_us, point.mb_s) {
        (Some(iops), _, _) => ("iops", iops, measured.iops),
        (_, Some(latency_us), _) => ("us", latency_us, measured.latency_us),
        (_, _, mb_s) => ("MB/s", mb_s.unwrap_or(f64::NAN), measured.mb_s),
    };
    let off = (model / known - 1.0) * 100.0;
    let state = if point.state == State::Fresh { "" } else { "steady" };
    let load = format!("{:?} {}k x {}", point.load, point.kib.get(), point.depth.get());
    let row = format!(
        "{:<13} {load:<26} {state:<6} {known:>9.1} {model:>9.1} {unit:<5} {off:>+6.1} % (within {} %)  {}",
        profile.name, point.within, point.source
    );
    (row, off.abs() <= point.within)
}

#[test]
fn profiles_keep_to_their_points() {
    let mut wrong = Vec::new();
    for (name, _) in BUILT_IN {
        let profile = Profile::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(profile.name, name);
        for point in &profile.points {
            let (row, holds) = row(&profile, point);
            println!("{row}");
            if !holds {
                wrong.push(row);
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
