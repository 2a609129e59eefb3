//! `kyber`: latency targets by depth control, as in Linux's scheduler of that name (Sandoval,
//! 2017).
//!
//! **Problem.** A deep queue of writes makes every read wait behind it inside the device, where no
//! scheduler reaches. So the requests sent there have to be limited, by kind, according to the
//! latencies.
//!
//! **Model.** Requests belong to a *domain*: read, write, discard, other. Each domain has a
//! *depth*, the tokens that its requests take while they are on the device (`depths`). A port
//! stages requests in a queue per domain and serves the domains in turn, in *batches* of 16 reads,
//! 8 writes, 1 discard, 1 other (`domain`). Every 100 ms `tick` reads the histograms of latencies
//! and changes the depths towards the targets (`latency`). A returned token goes to the ports that
//! wait for one, in turn, so that no port starves beside another, however small the depth.
//!
//! **Left out.** Kyber only counts the requests of flows: a flow that sends more gets more. Weights
//! have no effect here; [`kyber_fair`](fairq_core::kyber_fair) adds them. It is work-conserving
//! within the depths, and holds back requests beyond them on purpose.
//!
//! **Knobs** ([`KyberConfig`]). The targets, 2 ms for reads and 10 ms for writes (discards: 5 s);
//! the depths, 256, 128, 64 and 16, which are also the most that they grow back to. `merge_bytes`
//! makes one command, with one token, of adjacent requests.
//!
//! **Bounds.** A verb reads the words of one domain. A `tick` reads each port's histograms, 48
//! words a port, and wakes at most as many ports as tokens were added.
//!
//! **Not taken over.** Linux's Kyber lets asynchronous requests have at most 75 % of the *request
//! structures* that the scheduler allocates for a hardware queue, so that a flood of writes cannot
//! keep a read from being allocated one. Here nothing is allocated: a tag is the caller's, and a
//! connection is bounded on its own (`fairq-host`), so one tenant's writes cannot use up another's
//! tags. Of the rule only the depth of writes, half that of reads, is kept.
//!
//! **Measured** (two CPUs of a virtual machine; one run of 3 s on a paced device of 20 K IOPS, four
//! tenants of 4 x 32 random reads): all of `none`'s throughput, even shares, p99.9 of 32 ms at a
//! median of 25.7 ms; `none` has 30 ms at the same median. Without the hand-over of tokens p99.9 is
//! 2 to 3.5 s.
//!
//! **Memory ordering.** Histograms are counters of one writer each, read by `tick` with Relaxed: a
//! count that arrives a tick late is counted a tick late. Tokens and waiters are sequentially
//! consistent, argued in `depths`.

mod depths;
mod entry;
mod latency;
#[cfg(all(test, loom))]
mod models;
mod port;

use alloc::sync::Arc;
use alloc::vec::Vec;

pub use entry::Entry;
pub use fairq_core::kyber_fair::domain::Domain;
pub use port::KyberPort;

use depths::Depths;
use fairq_core::contract::bounds::{ConfigError, MAX_SLOTS, boxed, check, granted, within};
use fairq_core::contract::flow::{FlowError, FlowId, Weight};
use fairq_core::contract::platform::{Lock, Native, Platform};
use fairq_core::contract::port::{Policy, Stats};
use fairq_core::contract::port_set::{PortId, PortSet};
use fairq_core::kyber_fair::domain::DOMAINS;
use fairq_core::structures::flow_table::FlowTable;
use latency::{Adjuster, Latencies, TIMED};

/// Time between two adjustments of the depths.
const TICK_NS: u64 = 100_000_000;

/// The knobs of Kyber.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KyberConfig {
    /// Ports.
    pub ports: usize,
    /// The most flows there can be.
    pub flows: usize,
    /// The bound of tags per port.
    pub tags: usize,
    /// The most requests of each [`Domain`] on the device; default 256 reads, 128 writes, 64
    /// discards and 16 others.
    pub depths: [u32; DOMAINS],
    /// The latency that reads should have, in nanoseconds; default 2 ms.
    pub read_target_ns: u64,
    /// The latency that writes should have, in nanoseconds; default 10 ms.
    pub write_target_ns: u64,
    /// The latency that discards should have, in nanoseconds; default 5 s.
    pub discard_target_ns: u64,
    /// The most bytes of a flow's adjacent requests that a port
    /// [merges](fairq_core::serial::merge) to one command, which then takes one token; default
    /// 0, which merges none.
    pub merge_bytes: u32,
}

fairq_core::changeable!(KyberConfig);

impl KyberConfig {
    /// The default knobs for these bounds.
    pub fn new(ports: usize, flows: usize, tags: usize) -> Self {
        KyberConfig {
            ports,
            flows,
            tags,
            depths: [256, 128, 64, 16],
            read_target_ns: 2_000_000,
            write_target_ns: 10_000_000,
            discard_target_ns: 5_000_000_000,
            merge_bytes: 0,
        }
    }

    fn targets(&self) -> [u64; TIMED] {
        [self.read_target_ns, self.write_target_ns, self.discard_target_ns]
    }

    fn validate(&self) -> Result<(), ConfigError> {
        const HOUR_NS: u64 = 3_600_000_000_000;
        check(self.ports, self.flows, self.tags, 1)?;
        for depth in self.depths {
            within("depth", depth.into(), 1, MAX_SLOTS.into())?;
        }
        self.targets().into_iter().try_for_each(|target| within("target", target, 1, HOUR_NS))
    }
}

/// The control side of Kyber.
pub struct Kyber<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    most: [u32; DOMAINS],
    /// Only `tick` locks it, so no port ever waits for it.
    adjuster: P::Mutex<Adjuster>,
}

/// State that all ports share.
struct Shared<P: Platform> {
    flows: FlowTable<P>,
    depths: Depths<P>,
    latencies: Latencies<P>,
}

impl<P: Platform> Kyber<P> {
    /// The policy and its ports.
    pub fn new(config: &KyberConfig) -> Result<(Self, Vec<KyberPort<P>>), ConfigError> {
        config.validate()?;
        granted(|| Ok(Self::of(config)))
    }

    /// The policy and its ports, of a valid configuration.
    fn of(config: &KyberConfig) -> (Self, Vec<KyberPort<P>>) {
        let shared = Arc::new(Shared {
            flows: FlowTable::new(config.flows, config.ports),
            depths: Depths::new(config.ports, config.depths),
            latencies: Latencies::new(config.ports, config.targets()),
        });
        let port = |port| KyberPort::new(PortId(port as u8), config, shared.clone());
        let ports = boxed(config.ports, port).into_vec();
        let adjuster = P::Mutex::new(Adjuster::default());
        (Kyber { shared, most: config.depths, adjuster }, ports)
    }

    /// The depths as they are now, by [`Domain`].
    pub fn depths(&self) -> [u32; DOMAINS] {
        Domain::ALL.map(|domain| self.shared.depths.state(domain).0 as u32)
    }
}

impl<P: Platform> Policy for Kyber<P> {
    type Port = KyberPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.shared.flows.add(known, weight, |_| ())
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.set_weight(flow, weight)
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.shared.flows.close(flow)
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let Shared { depths, latencies, .. } = &*self.shared;
        self.adjuster.with(|adjuster| {
            let new = adjuster.adjust(now_ns, latencies, self.depths(), self.most);
            Domain::ALL
                .into_iter()
                .zip(new)
                .for_each(|(domain, depth)| wake.extend(depths.resize(domain, depth)));
        });
        Some(now_ns.saturating_add(TICK_NS))
    }

    fn stats(&self) -> Stats {
        let states = Domain::ALL.map(|domain| self.shared.depths.state(domain));
        let free = |&(depth, used): &(u64, u64)| depth.saturating_sub(used);
        Stats {
            slots: Some(states.iter().map(|state| state.0).sum()),
            free_slots: Some(states.iter().map(free).sum()),
            ..Stats::default()
        }
    }
}
