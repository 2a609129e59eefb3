//! Hosts whose CPUs take time: sockets, cores, hardware threads, and the block layer around the
//! scheduler.
//!
//! **Problem.** Claims about CPU use, scaling and latency at small depths depend on the CPU time of
//! a request. **Model.** Each port is a hardware thread with a queue of tasks: submissions and
//! answers for its threads, and with precedence interrupts, wake-ups from other cores and timers. A
//! task takes the cycles of its constant, then the time of the policy's verbs on the traced
//! platform ([`crate::traced`]); then it takes effect. No task is interrupted. Hardware threads of
//! a core share its caches, and slow each other down while both work.
//!
//! ```text
//!   submission:  submit ─▶ verb ─▶ [stage] or [issue] ─▶ submission queue
//!   completion:  interrupt ─▶ complete ─▶ verb ─▶ next: [stage, issue]* ─▶ wake-ups to other cores
//!   wake-up:     receive ─▶ next: [stage, issue]*
//!   answer:      reap, in the thread
//! ```
//!
//! **Constants** belong to the machine and its kernel, never to a policy; cycles are scaled by the
//! clock. `[P]`: from a paper, `[S]`: measured or stated elsewhere, `[D]`: derived from such values
//! here, `[G]`: guessed.
//!
//! | constant | cycles | where from |
//! |---|---|---|
//! | a request without a scheduler, Linux 5.2 and 5.3 | 14180 | `[D]` D2FQ 4.3: on another path one thread reads 54 % more than on this one, and it cannot read more than the link's 3.2 GB/s; so on this path a core of 3.6 GHz does 254 K reads of 8 KB at most |
//! | the same on the low-latency path | 9200 | `[D]` likewise: it saturates the core (Fig. 16b) at the link's rate |
//! | Linux 4.15 without KPTI | 9600 | `[D]` MQFQ 4.2: two times eight cores of 2.4 GHz reach the device's 4 M a second |
//! | the division of these into the parts of [`BlockLayer`] | | `[G]`, in the same proportions for each |
//! | additional cycles for a staged request | 1680 | `[S]` Linux, bfq-iosched.rst: insertion, dispatch and completion hooks of the lightest scheduler there take 0.7 us at 2.4 GHz, under its lock |
//! | additional cycles under Linux's BFQ | 4560 | `[S]` the same document: 1.9 us |
//! | sending a wake-up; receiving it | 500; an interrupt | `[G]` |
//! | setting a timer; handling its expiry | none; an interrupt | `[G]` |
//! | a verb, beside its shared words | 40 | `[S]` `cargo bench -p fairq-core`, one thread: 3 to 13 ns |
//! | load, store, atomic operation in the own cache | 4, 1, 18 | `[S]` processor manuals |
//! | | ns | |
//! | a line from another core: Haswell and Broadwell | 39, other socket 118 | `[S]` nviennot/core-to-core-latency, two E5-2630 v4; the first eight cores of an E5-2697 v3 are as near |
//! | Skylake and Cascade Lake | 48, other socket 136 | `[S]` the same, Gold 6242 |
//! | a wake-up under way | 600, other socket 1000 | `[P]` MQFQ 4.3.2: across sockets about the time of a timer of 1 us; within one `[G]` |
//! | work beside a working sibling (hardware thread of the same core) | 1.6 times | `[G]` two threads do a quarter more than one |

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use fairq_core::Topology;

use crate::coherence::{Caches, Latencies};

/// The place of a hardware thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Its socket.
    pub socket: u16,
    /// Its core, counted over the machine.
    pub core: u16,
}

/// A kind of machine. [`Machine::ALL`] has the papers'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Number of sockets.
    pub sockets: u16,
    /// Number of cores of each socket.
    pub cores: u16,
    /// Number of hardware threads of each core.
    pub threads: u16,
    /// The clock, in MHz.
    pub mhz: u64,
    /// Time of a cache line's transfer from another core.
    pub lines: Ways,
    /// Time of a wake-up's way to another core.
    pub wakes: Ways,
    /// The kernel's work for each request.
    pub layer: BlockLayer,
    /// A core's other work.
    pub cycles: Cycles,
    /// Time of work while the core's other hardware thread works, in percent of its time alone.
    pub shared_percent: u64,
    /// Number of lines that a core fetches at the same time, where cores race: its line fill
    /// buffers.
    pub lines_at_once: u64,
}

/// Times within a socket and to another one, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ways {
    /// Within a socket, in nanoseconds.
    pub near_ns: u64,
    /// To another socket, in nanoseconds.
    pub far_ns: u64,
}

/// A core's work beside the kernel's, in cycles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycles {
    /// A load from the own cache.
    pub load: u64,
    /// A store there.
    pub store: u64,
    /// An atomic operation there.
    pub atomic: u64,
    /// A verb of the policy, beside its shared words.
    pub verb: u64,
    /// Sending a wake-up.
    pub send: u64,
    /// Setting a timer and handling its expiry, without the interrupt.
    pub timer: u64,
}

/// A machine whose CPUs take time, and its hardware threads in use.
#[derive(Clone, Debug)]
pub struct Host {
    /// The place of each port's hardware thread.
    pub places: Vec<Place>,
    /// The machine, with its times.
    pub machine: Machine,
    /// Whether cores race: accesses of one core come between those of another core's verb, which
    /// takes longer to simulate. Otherwise each verb runs as a whole.
    pub races: bool,
}

/// The kernel's work around the scheduler, in cycles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLayer {
    /// The path from the thread's system call to the scheduler.
    pub submit: u64,
    /// Additional work for a request that the scheduler keeps: a third each at insertion, dispatch
    /// and completion; under the scheduler's lock, if it has one.
    pub stage: u64,
    /// Building the command and writing the doorbell.
    pub issue: u64,
    /// Entering and leaving an interrupt; once for interrupts that follow each other.
    pub interrupt: u64,
    /// A completion, in the interrupt.
    pub complete: u64,
    /// Taking the completed request, in the thread.
    pub reap: u64,
}

impl BlockLayer {
    /// All of these, by name.
    pub const ALL: [(&'static str, BlockLayer); 3] = [
        ("linux-5", Self::LINUX_5),
        ("linux-4.15", Self::LINUX_4_15),
        ("low-latency", Self::LOW_LATENCY),
    ];

    /// The multi-queue block layer of Linux 5.2 and 5.3 under libaio.
    pub const LINUX_5: BlockLayer = BlockLayer {
        submit: 4950,
        stage: STAGE_CYCLES,
        issue: 1320,
        interrupt: 1980,
        complete: 2970,
        reap: 2960,
    };

    /// The block layer of Linux 4.15 with KPTI switched off.
    pub const LINUX_4_15: BlockLayer = BlockLayer {
        submit: 3350,
        stage: STAGE_CYCLES,
        issue: 890,
        interrupt: 1340,
        complete: 2010,
        reap: 2010,
    };

    /// The low-latency path around the block layer (Lee et al., USENIX ATC 2019). It bypasses the
    /// block layer; the command and the interrupt take the same time.
    pub const LOW_LATENCY: BlockLayer = BlockLayer {
        submit: 2200,
        stage: STAGE_CYCLES,
        issue: 1320,
        interrupt: 1980,
        complete: 1300,
        reap: 2400,
    };
}

/// The line fill buffers of Intel's cores from Nehalem to Cascade Lake (Optimization Reference
/// Manual).
const LINES_AT_ONCE: u64 = 10;
/// Insertion, dispatch and completion of a request that the scheduler keeps.
const STAGE_CYCLES: u64 = 1680;
/// Times of work alone on its core, in picoseconds: a host's cycles at its clock, computed once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) submit_ps: u64,
    /// Each of the three steps (insertion, dispatch, completion) for a request that the scheduler
    /// keeps.
    pub(crate) stage_ps: u64,
    pub(crate) issue_ps: u64,
    pub(crate) interrupt_ps: u64,
    pub(crate) interrupt_complete_ps: u64,
    pub(crate) complete_ps: u64,
    pub(crate) reap_ps: u64,
    pub(crate) verb_ps: u64,
    pub(crate) send_ps: u64,
    pub(crate) timer_ps: u64,
    pub(crate) shared_percent: u64,
}

impl Times {
    /// Time of work that takes `alone_ps` alone, while another hardware thread of the core works.
    #[inline]
    pub(crate) fn shared_ps(&self, alone_ps: u64) -> u64 {
        alone_ps * self.shared_percent / 100
    }
}

const HASWELL: Ways = Ways { near_ns: 39, far_ns: 118 };
const SKYLAKE: Ways = Ways { near_ns: 48, far_ns: 136 };

impl Machine {
    /// The common values: two sockets of Skylake, eight cores each, under Linux 5.3.
    const COMMON: Machine = Machine {
        sockets: 2,
        cores: 8,
        threads: 1,
        mhz: 2400,
        lines: SKYLAKE,
        wakes: Ways { near_ns: 600, far_ns: 1000 },
        layer: BlockLayer::LINUX_5,
        cycles: Cycles { load: 4, store: 1, atomic: 18, verb: 40, send: 500, timer: 0 },
        shared_percent: 160,
        lines_at_once: LINES_AT_ONCE,
    };

    /// D2FQ's machine A (Table 1): Xeon Gold 5112, 3.6 GHz, eight cores; this CPU has four cores a
    /// socket, so two sockets.
    pub const GOLD_5112: Machine = Machine { cores: 4, mhz: 3600, ..Self::COMMON };

    /// D2FQ's machine B: Xeon Gold 6226, 2.7 GHz, 24 cores on two sockets.
    pub const GOLD_6226: Machine = Machine { cores: 12, mhz: 2700, ..Self::COMMON };

    /// MQFQ's NVMf machine (Table 1): two Xeon E5-2630 v3, 2.4 GHz, eight cores and 16 hardware
    /// threads each.
    pub const E5_2630_V3: Machine =
        Machine { threads: 2, lines: HASWELL, layer: BlockLayer::LINUX_4_15, ..Self::COMMON };

    /// MQFQ's SSD machine: two E5-2620 v3, 2.4 GHz, six cores and twelve hardware threads each.
    pub const E5_2620_V3: Machine = Machine { cores: 6, ..Self::E5_2630_V3 };

    /// Kyber-fairness' machine (Table 1): two E5-2620 of eight cores, so v4, 2.1 GHz.
    pub const E5_2620_V4: Machine =
        Machine { threads: 2, mhz: 2100, lines: HASWELL, ..Self::COMMON };

    /// NASS' machine (Section II-C): four Xeon of four cores, 2.4 GHz; its kernel, Linux 3.10, is
    /// assumed to take the times of 4.15 `[G]`.
    pub const FOUR_QUAD_CORES: Machine = Machine {
        sockets: 4,
        cores: 4,
        lines: HASWELL,
        layer: BlockLayer::LINUX_4_15,
        ..Self::COMMON
    };

    /// Larger than any of the papers': four sockets of sixteen cores.
    pub const FOUR_SOCKETS: Machine = Machine { sockets: 4, cores: 16, mhz: 2700, ..Self::COMMON };

    /// All of these, by name.
    pub const ALL: [(&'static str, Machine); 7] = [
        ("gold-5112", Self::GOLD_5112),
        ("gold-6226", Self::GOLD_6226),
        ("e5-2630-v3", Self::E5_2630_V3),
        ("e5-2620-v3", Self::E5_2620_V3),
        ("e5-2620-v4", Self::E5_2620_V4),
        ("four-quad-cores", Self::FOUR_QUAD_CORES),
        ("four-sockets", Self::FOUR_SOCKETS),
    ];

    /// Number of hardware threads.
    pub fn all_threads(&self) -> usize {
        [self.sockets, self.cores, self.threads].into_iter().map(usize::from).product()
    }

    /// A host of the first `threads` hardware threads, in the order of MQFQ's authors (Section 4):
    /// one on each core of the first socket, then of the second, then the second threads of the
    /// cores.
    pub fn host(self, threads: usize) -> Host {
        let (cores, all) =
            (usize::from(self.cores), usize::from(self.sockets) * usize::from(self.cores));
        let place = |thread: usize| {
            let core = thread % all;
            Place { socket: (core / cores) as u16, core: core as u16 }
        };
        Host { places: (0..threads).map(place).collect(), machine: self, races: false }
    }

    /// Returns an error that names the fault if no such machine can exist.
    pub fn check(&self) -> Result<(), String> {
        let Machine { sockets, cores, threads, mhz, lines, wakes, layer, cycles, .. } = *self;
        let Machine { shared_percent, lines_at_once, .. } = *self;
        if sockets == 0 || cores == 0 || threads == 0 {
            return Err("sockets, cores and threads must be above 0".into());
        }
        if !(MHZ.contains(&mhz)) {
            return Err(format!(
                "a clock of {mhz} MHz: there must be {} to {}",
                MHZ.start(),
                MHZ.end()
            ));
        }
        for (what, Ways { near_ns, far_ns }) in [("line", lines), ("wake-up", wakes)] {
            if near_ns == 0 || near_ns > far_ns || far_ns > MOST_NS {
                return Err(format!(
                    "a {what} takes {near_ns} ns within a socket and {far_ns} ns to another: the \
                     first must be above 0, and the \
                     second no less than that and at most a second"
                ));
            }
        }
        let BlockLayer { submit, stage, issue, interrupt, complete, reap } = layer;
        let Cycles { load, store, atomic, verb, send, timer } = cycles;
        let all = [
            submit, stage, issue, interrupt, complete, reap, load, store, atomic, verb, send, timer,
        ];
        if all.iter().any(|&cycles| cycles > MOST_CYCLES) {
            return Err(format!(
                "a number of cycles above {MOST_CYCLES}: there must be at most that many"
            ));
        }
        if submit + issue + complete + reap == 0 {
            return Err(
                "requests take no cycles: leave the host out, and only the device takes time"
                    .into(),
            );
        }
        if !SHARED_PERCENT.contains(&shared_percent) {
            return Err(format!(
                "work takes {shared_percent} % of its time beside another hardware thread of its \
                 core: there must be {} to {}",
                SHARED_PERCENT.start(),
                SHARED_PERCENT.end()
            ));
        }
        if lines_at_once == 0 {
            return Err("a core fetches at least one line at a time".into());
        }
        Ok(())
    }
}

/// Limits of a machine's values: wide enough for any machine, and such that no product overflows.
const MHZ: RangeInclusive<u64> = 1..=100_000;
const MOST_NS: u64 = 1_000_000_000;
const MOST_CYCLES: u64 = 1_000_000_000;
const SHARED_PERCENT: RangeInclusive<u64> = 100..=1000;

impl Host {
    /// The same host with racing cores.
    #[must_use]
    pub fn racing(self) -> Host {
        Host { races: true, ..self }
    }

    /// The places of the ports, for policies.
    pub fn topology(&self) -> Topology {
        Topology::new(self.places.iter().map(|place| (place.socket, place.core)).collect())
    }

    /// Returns an error that names the fault if the host does not fit this many ports.
    pub(crate) fn check(&self, ports: usize) -> Result<(), String> {
        if self.places.len() != ports {
            return Err(format!(
                "the host has {} hardware threads for {ports} ports",
                self.places.len()
            ));
        }
        self.machine.check().map_err(|what| format!("host: {what}"))
    }

    /// Time of a number of cycles, in picoseconds, on a core that does nothing else.
    pub(crate) fn ps(&self, cycles: u64) -> u64 {
        cycles * 1_000_000 / self.machine.mhz
    }

    /// The times of this host.
    pub(crate) fn times(&self) -> Times {
        let BlockLayer { submit, stage, issue, interrupt, complete, reap } = self.machine.layer;
        Times {
            submit_ps: self.ps(submit),
            stage_ps: self.ps(stage / 3),
            issue_ps: self.ps(issue),
            interrupt_ps: self.ps(interrupt),
            interrupt_complete_ps: self.ps(interrupt + complete),
            complete_ps: self.ps(complete),
            reap_ps: self.ps(reap),
            verb_ps: self.ps(self.machine.cycles.verb),
            send_ps: self.ps(self.machine.cycles.send),
            timer_ps: self.ps(self.machine.cycles.timer),
            shared_percent: self.machine.shared_percent,
        }
    }

    /// Time of a wake-up's way to another core.
    pub(crate) fn wake_ns(&self, from: usize, to: usize) -> u64 {
        let Ways { near_ns, far_ns } = self.machine.wakes;
        if self.places[from].socket == self.places[to].socket { near_ns } else { far_ns }
    }

    /// The other ports of each port's core.
    pub(crate) fn siblings(&self) -> Vec<Vec<usize>> {
        let of = |(me, place): (usize, &Place)| {
            let same =
                (0..).zip(&self.places).filter(|&(port, other)| port != me && other == place);
            same.map(|(port, _)| port).collect()
        };
        (0..).zip(&self.places).map(of).collect()
    }

    /// The number of each port's core among the cores in use.
    pub(crate) fn cores(&self) -> Vec<usize> {
        // Only cores in use have numbers: the caches keep a bit for each of at most 64.
        let used: Vec<Place> = self.used().into_iter().collect();
        let number = |place: &Place| used.binary_search(place).expect("it is one of them");
        self.places.iter().map(number).collect()
    }

    /// Empty caches for the cores in use.
    pub(crate) fn caches(&self) -> Caches {
        let Machine { lines, cycles, lines_at_once, .. } = self.machine;
        let latencies = Latencies {
            load_ps: self.ps(cycles.load),
            store_ps: self.ps(cycles.store),
            atomic_ps: self.ps(cycles.atomic),
            near_ps: lines.near_ns * 1000,
            far_ps: lines.far_ns * 1000,
            lines_at_once,
        };
        Caches::new(latencies, self.used().into_iter().map(|place| place.socket).collect())
    }

    fn used(&self) -> BTreeSet<Place> {
        self.places.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_filled_before_their_second_threads() {
        let host = Machine::E5_2630_V3.host(18);
        let place = |socket, core| Place { socket, core };
        assert_eq!(
            [7, 8, 16, 17].map(|thread| host.places[thread]),
            [place(0, 7), place(1, 8), place(0, 0), place(0, 1)]
        );
        assert_eq!((host.cores()[16], host.siblings()[16].clone()), (0, vec![0]));
        assert_eq!((host.wake_ns(0, 17), host.wake_ns(0, 8)), (600, 1000));
    }

    #[test]
    fn the_parts_are_what_the_papers_say_together() {
        let sum = |layer: BlockLayer| {
            layer.submit + layer.issue + layer.interrupt + layer.complete + layer.reap
        };
        let layers = [BlockLayer::LINUX_5, BlockLayer::LOW_LATENCY, BlockLayer::LINUX_4_15];
        assert_eq!(layers.map(sum), [14_180, 9200, 9600]);
        assert_eq!(Machine::GOLD_5112.host(8).ps(3600), 1_000_000);
    }
}
