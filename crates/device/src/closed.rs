//! A closed loop in virtual time: the figures of a profile under a load that keeps a number of
//! requests outstanding.

use fairq_core::Op;

use crate::profile::{Count, Load, Point, Profile, State};
use crate::ssd::{Setup, Ssd};

/// The result.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Requests a second.
    pub iops: f64,
    /// Mean latency, in microseconds.
    pub latency_us: f64,
    /// Bandwidth, in 10^6 bytes a second.
    pub mb_s: f64,
}

impl Figures {
    /// The model's value of the point's figure, and its deviation as a fraction.
    pub fn against(&self, point: &Point) -> (f64, f64) {
        let (model, known) = match (point.iops, point.latency_us, point.mb_s) {
            (Some(iops), _, _) => (self.iops, iops),
            (_, Some(latency_us), _) => (self.latency_us, latency_us),
            (_, _, mb_s) => (self.mb_s, mb_s.unwrap_or(f64::NAN)),
        };
        (model, model / known - 1.0)
    }
}

/// Requests at the start that are not counted, in addition to writes that fill the buffer.
const WARM_UP: u64 = 2000;
/// Number of counted requests, unless they are large or fill the buffer.
const COUNTED: u64 = 15_000;
/// Bytes after which a run with large requests ends.
const ENOUGH: u64 = 1 << 30;

/// Runs the load of a point.
pub fn predict(profile: &Profile, point: &Point) -> Figures {
    let mut run = Run::new(profile, point);
    let buffer = u64::from(profile.buffer.size_kib.get()) << 10;
    // One request at a time never fills the buffer; deeper loads do, and then the media sets the
    // pace.
    let filling = if run.op == Op::Write && run.depth > 1 { 3 * buffer / run.bytes } else { 0 };
    let warm_up = WARM_UP.min(ENOUGH / run.bytes) + filling;
    let counted = COUNTED.min(ENOUGH / run.bytes).max(filling).max(64);
    run.turn_over(warm_up);
    let (began_ns, latency_ns) = (run.now_ns, run.latency_ns);
    run.turn_over(counted);
    let (requests, ns) = (counted as f64, (run.now_ns - began_ns) as f64);
    Figures {
        iops: requests * 1e9 / ns,
        latency_us: (run.latency_ns - latency_ns) as f64 / requests / 1e3,
        mb_s: requests * run.bytes as f64 * 1e3 / ns,
    }
}

/// The fixed cost of a random read, in bytes: FlashFQ's `request_bytes` for the device. A line
/// through the times of reads of 4 and of 128 KiB, one at a time, reaches time zero at a length of
/// minus that many bytes.
pub fn read_cost_bytes(profile: &Profile) -> u32 {
    let takes_us = |kib| {
        let (load, depth, state) = (Load::RandomRead, Count::new(1), State::Fresh);
        let unknown = Point {
            load,
            kib,
            depth,
            state,
            iops: None,
            latency_us: None,
            mb_s: None,
            within: 0.0,
            source: String::new(),
        };
        predict(profile, &unknown).latency_us
    };
    let (small_us, large_us) = (takes_us(Count::new(4)), takes_us(Count::new(128)));
    let us_a_byte = (large_us - small_us) / f64::from((128 - 4) << 10);
    (small_us / us_a_byte - 4096.0).max(0.0) as u32
}

struct Run {
    ssd: Ssd,
    op: Op,
    random: bool,
    bytes: u64,
    depth: u32,
    /// Requests of this size that fit on the device.
    places: u64,
    place: u64,
    now_ns: u64,
    /// Start of each request.
    began_ns: Box<[u64]>,
    latency_ns: u64,
}

impl Run {
    fn new(profile: &Profile, point: &Point) -> Self {
        let (depth, bytes) = (point.depth.get(), u64::from(point.kib.get()) << 10);
        let capacity = profile.host.capacity();
        let setup = Setup { capacity, state: point.state, outstanding: depth, seed: 1 };
        let mut run = Run {
            ssd: Ssd::new(profile, &setup),
            op: if matches!(point.load, Load::RandomRead | Load::SequentialRead) {
                Op::Read
            } else {
                Op::Write
            },
            random: matches!(point.load, Load::RandomRead | Load::RandomWrite),
            bytes,
            depth,
            places: capacity / bytes,
            place: 0,
            now_ns: 0,
            began_ns: vec![0; depth as usize].into(),
            latency_ns: 0,
        };
        (0..depth).for_each(|id| run.start(id));
        run
    }

    fn start(&mut self, id: u32) {
        self.place = if self.random {
            // Knuth's linear congruential generator (MMIX).
            self.place
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407)
        } else {
            self.place + 1
        };
        // The lower bits of such numbers have short periods.
        let place = if self.random { self.place >> 16 } else { self.place } % self.places;
        self.began_ns[id as usize] = self.now_ns;
        self.ssd.start(self.now_ns, id, self.op, place * self.bytes, self.bytes as u32);
    }

    /// Completes this number of requests, and starts a new request for each.
    fn turn_over(&mut self, requests: u64) {
        for _ in 0..requests {
            let completed = loop {
                let next_ns = self.ssd.next_ns().expect("requests are outstanding");
                if let Some(completed) = self.ssd.pop(next_ns) {
                    break completed;
                }
            };
            self.now_ns = completed.at_ns;
            self.latency_ns += completed.at_ns - self.began_ns[completed.id as usize];
            self.start(completed.id);
        }
    }
}
