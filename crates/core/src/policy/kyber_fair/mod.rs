//! `kyber-fair`: shares by tokens (Kyber-fairness; Son, Oh and Ahn, JSTS 2020).
//!
//! **Problem.** To be fair at each dispatch, a scheduler has to know what other flows have had, and
//! on a fast device with many cores that knowledge is a cache line that every core writes. But
//! fairness is wanted over a tenth of a second, not over each request.
//!
//! **Model.** Time is divided into *periods*. At the beginning of each, every flow is handed
//! *tokens* in proportion to its weight, one token a byte of service; a request goes if its flow
//! has any left, and uses up its cost. A flow without tokens is *throttled* until the next period.
//! So a dispatch writes nothing that another flow looks at, and reads what others write once a
//! period: which one it is, and whether the device has too little to do. What remains common is
//! done once a period: to predict how many tokens the device will serve (`predict`, the paper's
//! Algorithm 1), and to start the next period (`period`).
//!
//! - *Queues*: a set per flow and port, with Kyber's domains and batches (Fig. 2c and 3).
//! - *A period ends* when its time is over (100 ms), or when every active flow has run out of
//!   tokens (Section 4.2).
//! - *Active* is a flow that sent, or waited to, in the last period or a little before (`census`).
//! - *Writes* cost their bytes times the ratio of mean write to mean read latency, from 1 to 16.
//!
//! **Work conserving** by a third end of a period: a port that has nothing it may send ends it if
//! fewer than `busy` requests are on the device, and stay so for a 64th of the period so far.
//!
//! **How fair it is.** A flow that could use more than it was handed gets its tokens in each
//! period, to within one request and one batch per port; what it uses beyond is paid from the next
//! ones. It does not bound what is on the device: a request waits there for all that was sent
//! before it, so that a flow which asks for little, and seldom, may have less than it asks for.
//!
//! **Worked example.** Weights 100 and 300, 4 MiB a period: a gets 1 MiB, b 3 MiB. On a device that
//! serves both alike a is out of tokens after 2 MiB in all; b has the device to itself for its
//! remaining 2 MiB; then both are out, and the next period begins at once, however early. Had 40
//! MiB been predicted of a device that serves 4 in 100 ms, no flow would run out: 2 MiB each.
//! Had 0.4 MiB been predicted: fair, with ten times as many beginnings. Hence predictions err on
//! the low side.
//!
//! **Bounds.** A verb looks at one flow's words. A port that has nothing it may send, and one that
//! completes a request while another sleeps, read a word of each port; the one that begins a period
//! reads 8 words of each port and the census, as a `tick` does, which reads 3 words of each flow.
//!
//! **Knobs** ([`KyberFairConfig`]). What the paper leaves open, and the arguments: decision 10.

mod census;
mod entry;
#[cfg(all(test, loom))]
mod models;
mod period;
mod port;
mod predict;
#[cfg(all(test, not(loom)))]
mod tests;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

pub use entry::Entry;
pub use port::KyberFairPort;
pub use predict::Totals;

use crate::contract::bounds::{ConfigError, MAX_SLOTS, check};
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{Policy, Stats, TokenStats, TuneError, Tuning};
use crate::contract::port_set::{PortId, PortSet};
use crate::entry::knobs::changeable;
use crate::structures::allocation::{boxed, granted};
use crate::structures::flow_table::FlowTable;
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
    /// Whether writes cost the measured ratio on top of what they come with. Default: yes.
    pub measured_writes: bool,
    /// The longest period, in nanoseconds. Default 100 ms, the paper's. Shorter: shares are exact
    /// over shorter times.
    pub period_ns: u64,
    /// The device counts as busy while at least so many requests are outstanding; if it is not,
    /// no flow is throttled. Default 32.
    pub busy: u32,
    /// With fewer outstanding, though not none, flows are throttled for one part in so many of what
    /// has passed of the period all the same: clients that keep many have few for a moment. 0: not
    /// at all. Default 64.
    pub patience: u32,
    /// How many tokens a period may have.
    pub tokens: Totals,
    /// The most bytes of a flow's adjacent requests that a port
    /// [merges](crate::policy::serial::merge) to one command; default 0, which merges none. A
    /// command costs its flow what one request of its length does.
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
        if self.period_ns == 0 { Err(ConfigError::Period) } else { Ok(()) }
    }
}

/// The control side of Kyber-fairness.
pub struct KyberFair<P: Platform = Native> {
    shared: Arc<Shared<P>>,
}

/// What all ports share.
struct Shared<P: Platform> {
    flows: FlowTable<P>,
    pots: Box<[Pot<P>]>,
    census: CachePadded<Census<P>>,
    periods: Periods<P>,
    lines: Box<[CachePadded<Line<P>>]>,
    /// What writes cost, in 1/256 of their bytes.
    write_ratio: CachePadded<P::U64>,
    /// The tokens predicted for this period, for statistics.
    predicted: P::U64,
    /// Taken by the port that begins a period, and only one does at a time: no port ever waits for
    /// it.
    planner: P::Mutex<Planner>,
    measured_writes: bool,
    busy: P::U64,
}

/// What a port tells: each line is written by its port alone.
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

/// Time in the device, and how many requests' time that is.
struct Latency<P: Platform> {
    sum_ns: P::U64,
    count: P::U64,
}

/// What is remembered from one period to the next.
struct Planner {
    predictor: Predictor,
    ratio: Ratio,
    stay: Stay,
    ends: Ends,
    /// When latencies were last looked at.
    measured_ns: u64,
}

impl<P: Platform> KyberFair<P> {
    /// The policy and its ports.
    pub fn new(config: &KyberFairConfig) -> Result<(Self, Vec<KyberFairPort<P>>), ConfigError> {
        config.validate()?;
        granted(|| Ok(Self::of(config)))
    }

    /// The same, of a configuration that is legal.
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
        });
        let port = |port| KyberFairPort::new(PortId(port as u8), config, shared.clone());
        let ports = boxed(config.ports, port).into_vec();
        (KyberFair { shared }, ports)
    }
}

impl<P: Platform> Shared<P> {
    /// With fewer requests on the device it has too little to do.
    #[inline]
    fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Requests on the device, over all ports; where they are enough, some that are.
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

    /// [`Tuning::Slots`] is `busy`. A port that went to sleep beside a device that had enough to do
    /// is woken where it has too little by the new measure (`period`, *Sleepers*).
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

    /// Looks at the pots of all open flows.
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let shared = &*self.shared;
        let pots = shared.flows.open_slots().filter_map(|slot| shared.pots.get(slot));
        pots.for_each(|pot| pot.expire(&shared.periods));
        if shared.periods.is_over(now_ns)
            && let Some(sleepers) = shared.begin_period(shared.periods.now(), now_ns)
        {
            wake.extend(sleepers);
        }
        // If a port is just beginning the next period, the end that is read here is past.
        Some(shared.periods.end_ns().max(now_ns.saturating_add(1)))
    }

    fn stats(&self) -> Stats {
        let shared = &*self.shared;
        // The first is there from the beginning.
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
