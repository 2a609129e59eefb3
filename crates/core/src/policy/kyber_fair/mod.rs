//! `kyber-fair`: shares by tokens (Kyber-fairness; Son, Oh and Ahn, JSTS 2020).
//!
//! **Problem.** To be fair at each dispatch, a scheduler has to know the service of all other
//! flows, and on a fast device with many cores that knowledge is a cache line that every core
//! writes. But fairness is wanted over a tenth of a second, not over each request.
//!
//! **Model.** Time is divided into *periods*. At the beginning of each, every flow is handed
//! *tokens* in proportion to its weight, one token a byte of service; a request goes if its flow
//! has any left, and uses up its cost. A flow without tokens is *throttled* until the next period.
//! So a dispatch writes nothing that another flow reads, and reads words that others write once a
//! period: the period's number, and whether the device has too little to do. The remaining common
//! work is done once a period: to predict how many tokens the device will serve (`predict`, the
//! paper's Algorithm 1), and to start the next period (`period`).
//!
//! - *Queues*: a set per flow and port, with Kyber's domains and batches (Fig. 2c and 3).
//! - *A period ends* when its time is over (100 ms), or when every active flow has run out of
//!   tokens (Section 4.2).
//! - A flow is *active* if it sent, or waited to send, in the last period or a little before
//!   (`census`).
//! - *Writes* cost their bytes times the ratio of mean write to mean read latency, from 1 to 16.
//!
//! **Work conserving.** A period has a third end: a port that may send nothing ends it if no
//! request is on the device, or fewer than `busy` for a 64th of the period so far.
//!
//! **Fairness.** A flow that could use more tokens than it was handed uses its tokens in each
//! period, to within one request and one batch per port; service beyond them is paid from the next
//! periods' tokens. The policy does not bound the requests on the device: a request waits there for
//! all that were sent before it, so a flow with few requests may get less service than it wants.
//!
//! **Worked example.** Weights 100 and 300, 4 MiB a period: a gets 1 MiB, b 3 MiB. On a device that
//! serves both alike a is out of tokens after 2 MiB in all; b has the device to itself for its
//! remaining 2 MiB; then both are out, and the next period begins at once. If 40 MiB were predicted
//! for a device that serves 4 in 100 ms, no flow would run out: 2 MiB each. If 0.4 MiB were
//! predicted, shares would be right, with ten times as many periods. So predictions are rather low.
//!
//! **Bounds.** A verb reads one flow's words. A port that may send nothing, or that completes a
//! request while another port sleeps, reads a word of each port. A port that begins a period reads
//! 8 words of each port and the census; so does a `tick`, which also reads 3 words of each flow.
//!
//! **Knobs** ([`KyberFairConfig`]). Decision 10 argues the points that the paper leaves open.

mod census;
#[doc(hidden)]
pub mod domain;
#[cfg(all(test, loom))]
mod models;
mod period;
mod port;
mod predict;
#[cfg(all(test, not(loom)))]
mod tests;
#[doc(hidden)]
pub mod units;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

pub use port::KyberFairPort;
pub use predict::Totals;

use crate::contract::bounds::{ConfigError, MAX_SLOTS, boxed, changeable, check, granted, within};
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{Policy, Stats, TokenStats, TuneError, Tuning};
use crate::contract::port_set::{PortId, PortSet};
use crate::structures::flow_table::{FlowTable, SlotWalk};
use census::{Census, Ends};
use period::{Periods, Pot};
use predict::{Predictor, Ratio, Stay};

/// The knobs of Kyber-fairness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KyberFairConfig {
    /// Ports.
    pub ports: usize,
    /// The most flows there can be.
    pub flows: usize,
    /// The bound of tags per port.
    pub tags: usize,
    /// Whether a write's cost is multiplied by the measured ratio. Default: yes.
    pub measured_writes: bool,
    /// The longest period, in nanoseconds. Default 100 ms, the paper's. With a shorter period
    /// shares are exact over shorter times.
    pub period_ns: u64,
    /// The device is busy while at least this number of requests is outstanding; while it is not,
    /// no flow is throttled. Default 32.
    pub busy: u32,
    /// With fewer than `busy` requests outstanding, but at least one, flows stay throttled for the
    /// elapsed time of the period divided by this number, because even clients with many requests
    /// outstanding have few at some moments. 0: flows are not throttled then. Default 64.
    pub patience: u32,
    /// Bounds of a period's tokens.
    pub tokens: Totals,
    /// The most bytes of a flow's adjacent requests that a port
    /// [merges](crate::policy::serial::merge) to one command; default 0, which merges none. A
    /// command costs as much as one request of its length.
    pub merge_bytes: u32,
}

changeable!(KyberFairConfig);

impl KyberFairConfig {
    /// The default knobs for these bounds.
    pub fn new(ports: usize, flows: usize, tags: usize) -> Self {
        KyberFairConfig {
            ports,
            flows,
            tags,
            measured_writes: true,
            period_ns: 100_000_000,
            busy: 32,
            patience: 64,
            tokens: Totals::default(),
            merge_bytes: 0,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        check(self.ports, self.flows, self.tags, self.busy)?;
        self.tokens.check()?;
        within("period", self.period_ns, 1, u64::MAX)
    }
}

/// The control side of Kyber-fairness.
pub struct KyberFair<P: Platform = Native> {
    shared: Arc<Shared<P>>,
}

/// State that all ports share.
struct Shared<P: Platform> {
    flows: FlowTable<P>,
    pots: Box<[Pot<P>]>,
    census: CachePadded<Census<P>>,
    periods: Periods<P>,
    lines: Box<[CachePadded<Line<P>>]>,
    /// Cost of writes, in 1/256 of their bytes.
    write_ratio: CachePadded<P::U64>,
    /// The tokens predicted for this period, for statistics.
    predicted: P::U64,
    /// Locked by the port that begins a period. Only one port does so at a time, so no port ever
    /// waits for it.
    planner: P::Mutex<Planner>,
    measured_writes: bool,
    busy: P::U64,
    /// The walk that empties outdated pots.
    walk: SlotWalk<P>,
}

/// Counters of a port; only that port writes them.
struct Line<P: Platform> {
    /// Requests on the device.
    outstanding: P::U64,
    /// Tokens used since the start.
    used: P::U64,
    reads: Latency<P>,
    writes: Latency<P>,
    others: Latency<P>,
    throttles: P::U64,
    blocks: P::U64,
    wakes: P::U64,
}

/// Sum of requests' times in the device, and their number.
struct Latency<P: Platform> {
    sum_ns: P::U64,
    count: P::U64,
}

/// State that is kept from one period to the next.
struct Planner {
    predictor: Predictor,
    ratio: Ratio,
    stay: Stay,
    ends: Ends,
    /// Time of the last measurement of latencies.
    measured_ns: u64,
}

impl<P: Platform> KyberFair<P> {
    /// The policy and its ports.
    pub fn new(config: &KyberFairConfig) -> Result<(Self, Vec<KyberFairPort<P>>), ConfigError> {
        config.validate()?;
        granted(|| Ok(Self::of(config)))
    }

    /// The policy and its ports, of a valid configuration.
    #[inline(never)]
    fn of(config: &KyberFairConfig) -> (Self, Vec<KyberFairPort<P>>) {
        let zero = || P::U64::new(0);
        let line = || Line {
            outstanding: zero(),
            used: zero(),
            reads: Latency { sum_ns: zero(), count: zero() },
            writes: Latency { sum_ns: zero(), count: zero() },
            others: Latency { sum_ns: zero(), count: zero() },
            throttles: zero(),
            blocks: zero(),
            wakes: zero(),
        };
        let predictor = Predictor::new(config.tokens, config.period_ns);
        let (ratio, stay) = (Ratio::default(), Stay::default());
        let planner = Planner { predictor, ratio, stay, ends: Ends::default(), measured_ns: 0 };
        let shared = Arc::new(Shared {
            flows: FlowTable::new(config.flows, config.ports),
            pots: boxed(config.flows, |_| Pot::new()),
            census: CachePadded::new(Census::new()),
            periods: Periods::new(
                config.ports,
                config.period_ns,
                config.tokens.first,
                config.patience,
            ),
            lines: boxed(config.ports, |_| CachePadded::new(line())),
            write_ratio: CachePadded::new(P::U64::new(Ratio::ONE)),
            predicted: P::U64::new(planner.predictor.tokens()),
            planner: P::Mutex::new(planner),
            measured_writes: config.measured_writes,
            busy: P::U64::new(config.busy.into()),
            walk: SlotWalk::new(),
        });
        let port = |port| KyberFairPort::new(PortId(port as u8), config, shared.clone());
        let ports = boxed(config.ports, port).into_vec();
        (KyberFair { shared }, ports)
    }
}

impl<P: Platform> Shared<P> {
    /// The fewest outstanding requests with which the device has enough to do.
    #[inline]
    fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Requests on the device, added up over ports until there are `busy`.
    fn outstanding(&self) -> u64 {
        let (mut sum, busy) = (0u64, self.busy.load(Ordering::SeqCst));
        for line in &self.lines {
            sum = sum.wrapping_add(line.outstanding.load(Ordering::SeqCst));
            if sum >= busy {
                break;
            }
        }
        sum
    }

    /// The sum of a counter over all ports.
    fn sum(&self, counter: impl Fn(&Line<P>) -> &P::U64) -> u64 {
        self.lines
            .iter()
            .fold(0u64, |sum, line| sum.wrapping_add(counter(line).load(Ordering::Relaxed)))
    }
}

impl<P: Platform> Policy for KyberFair<P> {
    type Port = KyberFairPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let Shared { flows, pots, census, .. } = &*self.shared;
        flows.add(known, weight, |slot| {
            if let Some(pot) = pots.get(slot) {
                // No port uses the slot yet; the table makes it visible.
                pot.reset(census);
            }
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.set_weight(flow, weight)
    }

    /// [`Tuning::Slots`] sets `busy`. A larger value wakes all sleeping ports, because by that
    /// value the device may have too little to do (`period`, *Sleepers*).
    fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        let Tuning::Slots(busy) = tuning else { return Err(TuneError::Fixed) };
        if !(1..=MAX_SLOTS).contains(&busy) {
            return Err(ConfigError::Slots(busy).into());
        }
        if self.shared.busy.swap(busy.into(), Ordering::SeqCst) < u64::from(busy) {
            wake.extend(self.shared.periods.sleepers());
        }
        Ok(())
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        let Shared { flows, pots, census, .. } = &*self.shared;
        let ports = flows.close(flow)?;
        if let Some(pot) = pots.get(flow.slot()) {
            pot.forget(census);
        }
        Ok(ports)
    }

    /// Empties outdated pots, some at a time, and begins the next period when it is time.
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let shared = &*self.shared;
        let slots = shared.walk.step(now_ns, shared.flows.capacity(), 0);
        let pots = shared.flows.open_among(slots).filter_map(|slot| shared.pots.get(slot));
        pots.for_each(|pot| pot.expire(&shared.periods));
        if shared.periods.is_over(now_ns)
            && let Some(sleepers) = shared.begin_period(shared.periods.now(), now_ns)
        {
            wake.extend(sleepers);
        }
        // If a port is just beginning the next period, the end that is read here is past.
        let end_ns = shared.periods.end_ns().max(now_ns.saturating_add(1));
        let walk = Some(&shared.walk).filter(|walk| walk.is_under_way());
        Some(walk.map_or(end_ns, |walk| walk.next_ns().min(end_ns)))
    }

    fn stats(&self) -> Stats {
        let shared = &*self.shared;
        // The first period was not begun by a port and does not count.
        let periods = shared.periods.number().saturating_sub(1);
        let tokens = shared.predicted.load(Ordering::Relaxed);
        let ratio = shared.write_ratio.load(Ordering::Relaxed);
        Stats {
            tokens: Some(TokenStats { periods, tokens, write_percent: ratio * 100 / Ratio::ONE }),
            throttles: shared.sum(|line| &line.throttles),
            blocks: shared.sum(|line| &line.blocks),
            wakes: shared.sum(|line| &line.wakes),
            ..Stats::default()
        }
    }
}
