//! Runs every policy for a moment, without std, C library or operating system: two tenants of
//! weights 1:3 on two ports. Prints what it did and exits with 0 if it was right.
#![no_std]
#![no_main]

extern crate alloc;

#[path = "../freestanding.rs"]
mod freestanding;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};

use fairq_core::Topology;
use fairq_classic::bfq::{self, BfqConfig};
use fairq_core::d2fq::{D2fq, D2fqConfig};
use fairq_classic::fiops::{self, FiopsConfig, FiopsScheduler};
use fairq_classic::flashfq::{self, FlashFqConfig};
use fairq_classic::kyber::{Kyber, KyberConfig};
use fairq_core::kyber_fair::{KyberFair, KyberFairConfig, Totals};
use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_classic::nass::{self, NassConfig};
use fairq_core::none::NonePolicy;
use fairq_core::serial::SerialConfig;
use fairq_core::sfqd::Sfqd;
use fairq_core::{
    FlowId, Native, Next, Op, Outcome, Policy, Port, PortSet, Request, Submitted, Tag, Weight,
};

use freestanding::{exit, print};

const ARENA: usize = 1 << 20;

/// Hands out memory from one array and takes none back: policies allocate while they are built and
/// never again.
struct Bump {
    arena: UnsafeCell<[u8; ARENA]>,
    used: AtomicUsize,
}

// SAFETY: `used` gives each caller a part of the arena of its own.
unsafe impl Sync for Bump {}

// SAFETY: each part is inside the arena, aligned, and handed out once.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.arena.get() as usize;
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let start = (base + used).next_multiple_of(layout.align()) - base;
            let Some(end) = start.checked_add(layout.size()).filter(|&end| end <= ARENA) else {
                return core::ptr::null_mut();
            };
            match self.used.compare_exchange(used, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (base + start) as *mut u8,
                Err(now) => used = now,
            }
        }
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static MEMORY: Bump = Bump { arena: UnsafeCell::new([0; ARENA]), used: AtomicUsize::new(0) };

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    print("panic\n");
    exit(101)
}

const PORTS: usize = 2;
const FLOWS: usize = 2;
const DEPTH: usize = 16;
const SLOTS: usize = 4;

/// Serves 4000 requests in a closed loop; gives what each flow received. `None`: a contract was
/// broken.
fn closed_loop<P: Policy>((policy, mut ports): (P, Vec<P::Port>)) -> Option<[u64; FLOWS]> {
    let mut flows: Vec<FlowId> = Vec::with_capacity(FLOWS);
    for weight in [100, 300] {
        flows.push(policy.add_flow(Weight::new(weight)?).ok()?);
    }
    let mut device: VecDeque<(usize, Tag)> = VecDeque::with_capacity(PORTS * FLOWS * DEPTH);
    let mut served = [0; FLOWS];
    let used = MEMORY.used.load(Ordering::Relaxed);

    let flow_of = |tag: u32| tag as usize % FLOWS;
    let mut owed = PortSet::first(PORTS);
    let submit = |port: usize,
                  tag: u32,
                  ports: &mut [P::Port],
                  owed: &mut PortSet,
                  device: &mut VecDeque<_>| {
        let request = Request::new(Tag(tag), *flows.get(flow_of(tag))?, Op::Read, 0, 4096);
        if let Submitted::Issue { .. } = ports.get_mut(port)?.submit(0, &request, owed).ok()? {
            device.push_back((port, Tag(tag)));
        }
        owed.extend(PortSet::only(fairq_core::PortId(port as u8)));
        Some(())
    };
    for port in 0..PORTS {
        for tag in 0..(FLOWS * DEPTH) as u32 {
            submit(port, tag, &mut ports, &mut owed, &mut device)?;
        }
    }
    for _ in 0..4000 {
        while let Some(id) = owed.next() {
            let port = usize::from(id.0);
            while let Next::Issue { tag, .. } = ports.get_mut(port)?.next(0, &mut owed) {
                device.push_back((port, tag));
            }
        }
        let bound = policy.stats().slots.unwrap_or(u64::MAX);
        if device.len() as u64 > bound {
            return None;
        }
        let (port, tag) = device.pop_front()?;
        *served.get_mut(flow_of(tag.0))? += 1;
        ports.get_mut(port)?.complete(0, tag, Outcome::Done, &mut owed);
        submit(port, tag.0, &mut ports, &mut owed, &mut device)?;
    }
    (MEMORY.used.load(Ordering::Relaxed) == used).then_some(served)
}

fn is_one_to_three([a, b]: [u64; FLOWS]) -> bool {
    a + b == 4000 && a.abs_diff(1000) < 30
}

extern "C" fn main() -> ! {
    let none = NonePolicy::<Native>::new(PORTS, FLOWS, FLOWS * DEPTH).ok().and_then(closed_loop);
    if none.is_none_or(|[a, b]| a.abs_diff(b) > 4) {
        print("none: wrong\n");
        exit(1);
    }
    let config =
        SerialConfig::new(PORTS, FLOWS, FLOWS * DEPTH).with(|config| config.slots = SLOTS as u32);
    let sfqd = Sfqd::<Native>::new(&config).ok().and_then(closed_loop);
    if !sfqd.is_some_and(is_one_to_three) {
        print("sfqd: wrong\n");
        exit(2);
    }
    let bfq = BfqConfig::default().with(|config| {
        config.budget_bytes = 16_384;
        config.idle_ns = 0;
    });
    let flashfq = FlashFqConfig::default().with(|config| config.idle_ns = 0);
    let baselines = [
        bfq::new::<Native>(&config, &bfq).ok().and_then(closed_loop),
        flashfq::new::<Native>(&config, &flashfq).ok().and_then(closed_loop),
        fiops::new::<Native>(&config, &FiopsConfig::default()).ok().and_then(closed_loop),
    ];
    if !baselines.into_iter().all(|served| served.is_some_and(is_one_to_three)) {
        print("bfq, flashfq or fiops: wrong\n");
        exit(4);
    }
    let inner = FiopsScheduler::new(&config, &FiopsConfig::default());
    if nass::new::<_, Native>(inner, &config, &NassConfig::default())
        .ok()
        .and_then(closed_loop)
        .is_none()
    {
        print("nass: wrong\n");
        exit(5);
    }
    for serial in [false, true] {
        let mut config = MqfqConfig::new(Topology::flat(PORTS), FLOWS, FLOWS * DEPTH);
        config.slots = SLOTS as u32;
        config.serial = serial;
        let mqfq = Mqfq::<Native>::new(config).ok().and_then(closed_loop);
        if !mqfq.is_some_and(is_one_to_three) {
            print("mqfq: wrong\n");
            exit(3);
        }
    }
    // This device has no classes, so no flow is throttled. The scenario can only show that all
    // requests are served.
    let config = D2fqConfig::new(Topology::flat(PORTS), FLOWS, FLOWS * DEPTH);
    let d2fq = D2fq::<Native>::new(config).ok().and_then(closed_loop);
    if d2fq.is_none_or(|[a, b]| a.abs_diff(b) > 4) {
        print("d2fq: wrong\n");
        exit(6);
    }
    let kyber = Kyber::<Native>::new(&KyberConfig::new(PORTS, FLOWS, FLOWS * DEPTH))
        .ok()
        .and_then(closed_loop);
    if kyber.is_none_or(|[a, b]| a.abs_diff(b) > 4) {
        print("kyber: wrong\n");
        exit(7);
    }
    let fair = KyberFairConfig::new(PORTS, FLOWS, FLOWS * DEPTH).with(|config| {
        config.busy = SLOTS as u32;
        config.tokens = Totals::fixed(1 << 16);
    });
    let fair = KyberFair::<Native>::new(&fair).ok().and_then(closed_loop);
    if !fair.is_some_and(is_one_to_three) {
        print("kyber-fair: wrong\n");
        exit(8);
    }
    print(
        "none, kyber and d2fq without classes even; the others 1:3; nothing allocated once \
     built\n",
    );
    exit(0)
}
