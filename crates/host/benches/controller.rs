//! The cost of a command through the software NVMe controller, driver included: `cargo bench -p
//! fairq-host`.
//!
//! Each line is the median of several rounds. `bench/schedulers` has the bars.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairq_core::{Class, Op, PortId, PortSet, Tag};
use fairq_device::{Profile, State};
use fairq_host::device::null::NullDevice;
use fairq_host::device::nvme_soft::{BackingSpec, NvmeSoft, NvmeSoftSpec, Poller, Timing};
use fairq_host::device::{Command, Completion, Device, Place, Queue};
use fairq_host::io::clock::Clock;
use fairq_host::io::memory::{Buffer, Region};
use fairq_host::io::ring::Ring;
use fairq_host::io::wakers::Wakers;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(150);
const SIZE: u64 = 1 << 30;

fn main() {
    // Under `cargo test --benches` nothing is measured.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let null = one_core(&NullDevice::new(SIZE), 8);
    println!("one core, 4 KiB reads, ns a command");
    println!("  null device, batches of 8          {null:7.1}");
    for batch in [1, 8, 32] {
        let ns = one_core(&soft(BackingSpec::Null { size: SIZE }, Poller::Inline), batch);
        println!(
            "  controller inline, batches of {batch:<2}   {ns:7.1}   {:4.1} x null",
            ns / null
        );
    }
    let ns = one_core(&soft(BackingSpec::Ram { size: SIZE }, Poller::Inline), 8);
    println!("  over RAM, batches of 8             {ns:7.1}   {:4.1} x null", ns / null);
    println!("two pinned threads, batches of 8, depth 64 each, million commands a second");
    for (name, submitters, poller) in
        [("inline, both submit", 2, Poller::Inline), ("one submits, one polls", 1, Poller::Core)]
    {
        let rate =
            threads(Arc::new(soft(BackingSpec::Null { size: SIZE }, poller)), submitters, 64, 8);
        println!("  {name:<25} {:7.2}", rate / 1e6);
    }
    let profile = Profile::named("z-ssd").expect("it is built in");
    let timing = Some(Timing { profile, state: State::Fresh, slowdown: 1 });
    for submitters in [1, 2] {
        let spec = NvmeSoftSpec {
            timing: timing.clone(),
            ..spec(BackingSpec::Ram { size: SIZE }, Poller::Inline)
        };
        let device = Arc::new(NvmeSoft::open(&spec).expect("memory is there"));
        let rate = threads(device, submitters, 256, 8);
        println!("  like a Z-SSD, {submitters} submitting        {:7.3}   of 0.750", rate / 1e6);
    }
}

fn spec(backing: BackingSpec, poller: Poller) -> NvmeSoftSpec {
    NvmeSoftSpec { backing, timing: None, window: 64, queues: 32, wrr: true, poller }
}

fn soft(backing: BackingSpec, poller: Poller) -> NvmeSoft {
    NvmeSoft::open(&spec(backing, poller)).expect("memory is there")
}

/// One shard's queue on a device, with its ring and memory.
struct Submitter<Q> {
    queue: Q,
    ring: Ring,
    command: Command,
    region: Region,
    buffer: Option<Buffer>,
    random: u64,
    done: Vec<Completion>,
}

impl<Q: Queue> Submitter<Q> {
    fn open<D: Device<Queue = Q>>(device: &D, place: &Place) -> Submitter<Q> {
        let mut ring = Ring::new(0).expect("io_uring is there");
        let queue = device.open_queue(place, &mut ring).expect("there are queues enough");
        let mut region = Region::map(4096).expect("memory is there");
        let mut buffer = region.allocate(4096).expect("it has room for one");
        buffer.bytes_mut().fill(1);
        let command = Command {
            tag: Tag(0),
            op: Op::Read,
            class: Class::Medium,
            file: 0,
            offset: 0,
            length: 4096,
            span: 0,
            fua: false,
            no_hole: false,
            fast_only: false,
            memory: buffer.memory(),
        };
        Submitter {
            queue,
            ring,
            command,
            region,
            buffer: Some(buffer),
            random: 1,
            done: Vec::new(),
        }
    }

    /// Issues `count` commands and rings once.
    fn submit(&mut self, now_ns: u64, count: usize, wake: &mut PortSet) {
        for tag in 0..count as u32 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (self.random >> 20) % (SIZE / 4096) * 4096;
            let class = [Class::High, Class::Medium, Class::Low][(self.random >> 60) as usize % 3];
            let command = Command { tag: Tag(tag), offset, class, ..self.command };
            // SAFETY: all commands read to the same page, which is never used and outlives the
            // queue.
            unsafe { self.queue.issue(now_ns, &mut self.ring, black_box(&command), &[]) };
        }
        self.queue.ring(now_ns, &mut self.ring, wake);
    }

    /// Returns the number of completed commands.
    fn reap(&mut self, now_ns: u64, wake: &mut PortSet) -> usize {
        self.done.clear();
        self.queue.reap(now_ns, &mut self.ring, &mut self.done, wake);
        self.done.len()
    }
}

impl<Q> Drop for Submitter<Q> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.region.free(buffer);
        }
    }
}

fn place(port: u8, ports: usize) -> Place {
    Place {
        port: PortId(port),
        ports,
        wakers: Arc::new(Wakers::new(ports).expect("eventfds are there")),
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Nanoseconds a command with one thread for all work.
fn one_core<D: Device>(device: &D, batch: usize) -> f64 {
    pin(0);
    let mut submitter = Submitter::open(device, &place(0, 1));
    let round = |_| {
        let (start, mut count, mut wake) = (Instant::now(), 0, PortSet::EMPTY);
        while start.elapsed() < ROUND {
            for _ in 0..64 {
                submitter.submit(0, batch, &mut wake);
                let mut reaped = 0;
                while reaped < batch {
                    reaped += submitter.reap(0, &mut wake);
                }
                count += reaped;
            }
        }
        start.elapsed().as_nanos() as f64 / count as f64
    };
    median((0..ROUNDS).map(round).collect())
}

/// Commands a second of pinned threads, each of which keeps `depth` commands under way and submits
/// at least `batch` at a time.
fn threads(device: Arc<NvmeSoft>, submitters: usize, depth: usize, batch: usize) -> f64 {
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let clock = Clock::default();
    std::thread::scope(|scope| {
        for port in 0..submitters {
            let (device, stop, total) = (&device, &stop, &total);
            scope.spawn(move || {
                // The poller, if it is a thread, has the first CPU to itself.
                pin(1 - port);
                let mut submitter = Submitter::open(&**device, &place(port as u8, submitters));
                let (mut free, mut wake) = (depth, PortSet::EMPTY);
                while !stop.load(Ordering::Relaxed) || free < depth {
                    let now_ns = clock.now_ns();
                    if free >= batch && !stop.load(Ordering::Relaxed) {
                        let count = free / batch * batch;
                        submitter.submit(now_ns, count, &mut wake);
                        free -= count;
                    }
                    let reaped = submitter.reap(now_ns, &mut wake);
                    total.fetch_add(reaped as u64, Ordering::Relaxed);
                    free += reaped;
                }
            });
        }
        std::thread::sleep(ROUND);
        let round = |_| {
            let (start, before) = (Instant::now(), total.load(Ordering::Relaxed));
            std::thread::sleep(ROUND);
            (total.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64()
        };
        let rate = median((0..ROUNDS).map(round).collect());
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Pins the calling thread, if there is such a CPU.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
