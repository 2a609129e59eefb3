//! The threads of tenants: the next request of each thread, and the time of its submission.
//!
//! A thread has `depth` *places*, each for one outstanding request. A place submits a request,
//! waits for its completion, pauses for the think time, and submits again; pacing and bursts delay
//! the submission. So the load follows the device, like that of fio with libaio. In an open loop
//! requests arrive by the clock instead, and each uses the next free place.

use std::collections::VecDeque;

use fairq_core::Op;

use crate::random::Random;
use crate::scenario::{Access, Arrivals, Job};
use crate::trace::Asked;
use crate::zipf::{self, Zipf};

/// A thread of a tenant.
pub(crate) struct Thread {
    pub(crate) tenant: usize,
    pub(crate) port: usize,
    /// Number of places that are unused because the tenant is not present.
    pub(crate) resting: u32,
    job: Job,
    /// Sum of the sizes' relative frequencies.
    choices: u64,
    random: Random,
    capacity: u64,
    /// A sampler for each size, if addresses follow Zipf's law.
    zipf: Vec<Zipf>,
    /// In an open loop: the last arrival, and the arrivals that are not submitted yet.
    arrived_ns: u64,
    arrivals: VecDeque<u64>,
    /// The next address of a sequential thread.
    position: u64,
    /// Earliest time of its next submission, if it is paced.
    paced_ns: u64,
    turns: Turns,
}

/// The requests of a trace that belong to a thread, and its progress: each free place waits for the
/// time of the thread's next request, and requests are submitted in this order.
#[derive(Clone, Copy)]
pub(crate) struct Turns {
    /// Index of the next request for which a place will wait.
    awaited: usize,
    /// Index of the next request to submit.
    asked: usize,
    /// Distance between two requests of the thread.
    step: usize,
    /// Start of the trace.
    begins_ns: u64,
}

impl Turns {
    /// The requests of the trace that thread number `thread` of `of` threads submits; the trace
    /// begins at `begins_ns`.
    pub(crate) fn new(thread: usize, of: usize, begins_ns: u64) -> Turns {
        Turns { awaited: thread, asked: thread, step: of, begins_ns }
    }
}

/// The time of a place that has no more requests.
pub(crate) const NEVER: u64 = u64::MAX;

/// A request of a thread.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Time of its arrival, if it arrived earlier.
    pub(crate) arrived_ns: Option<u64>,
}

/// Sequential threads begin and stay at multiples of this.
const BLOCK: u64 = 4096;
/// Requests of traces begin at multiples of this.
const SECTOR: u64 = 512;

impl Thread {
    /// A sequential thread begins at `place` / 2^16 of the capacity.
    pub(crate) fn new(
        tenant: usize,
        port: usize,
        job: &Job,
        capacity: u64,
        random: Random,
        place: u64,
        turns: Turns,
    ) -> Self {
        Thread {
            tenant,
            port,
            resting: job.depth,
            job: job.clone(),
            choices: job.sizes.iter().map(|size| u64::from(size.1)).sum(),
            random,
            capacity,
            zipf: match job.access {
                Access::Zipf { thousandths } => job
                    .sizes
                    .iter()
                    .map(|&(bytes, _)| Zipf::new(capacity / u64::from(bytes), thousandths))
                    .collect(),
                Access::Random | Access::Sequential => Vec::new(),
            },
            arrived_ns: 0,
            arrivals: VecDeque::new(),
            // Shifted first: the product of a large capacity and 2^16 might not fit.
            position: (capacity >> 16) * (place & 0xffff) / BLOCK * BLOCK,
            paced_ns: 0,
            turns,
        }
    }

    /// Records that the tenant is present from now on, so no request arrives earlier.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.arrived_ns = self.arrived_ns.max(now_ns);
    }

    /// Records that a place is unused because its tenant is not present; its arrival is dropped.
    pub(crate) fn rest(&mut self) {
        self.resting += 1;
        self.arrivals.pop_front();
    }

    /// Time at which a place whose request completes now submits again; [`NEVER`] at a trace's end.
    #[inline]
    pub(crate) fn due_ns(&mut self, now_ns: u64) -> u64 {
        if self.job.arrivals != Arrivals::Closed {
            let interval_ns = match self.job.arrivals {
                Arrivals::Poisson => zipf::interval_ns(self.job.interval_ns, &mut self.random),
                Arrivals::Closed | Arrivals::Even => self.job.interval_ns,
            };
            self.arrived_ns = self.in_burst_ns(self.arrived_ns.saturating_add(interval_ns));
            self.arrivals.push_back(self.arrived_ns);
            // A request that arrived while all places were taken is submitted at once.
            return self.arrived_ns.max(now_ns);
        }
        let mut due_ns = now_ns + self.job.think_ns;
        if let Some(replay) = &self.job.replay {
            let Some(asked) = replay.trace.asked().get(self.turns.awaited) else { return NEVER };
            self.turns.awaited += self.turns.step;
            if replay.keeps_time {
                due_ns = due_ns.max(self.turns.begins_ns.saturating_add(asked.at_ns));
            }
        }
        if self.job.interval_ns > 0 {
            due_ns = due_ns.max(self.paced_ns);
            // Counted from this submission, so that a late request is not followed by a burst.
            self.paced_ns = due_ns.saturating_add(self.job.interval_ns);
        }
        self.in_burst_ns(due_ns)
    }

    /// `due_ns`, or the start of the next burst.
    fn in_burst_ns(&self, due_ns: u64) -> u64 {
        let Some(burst) = self.job.burst else { return due_ns };
        let cycle_ns = burst.on_ns + burst.off_ns;
        if due_ns % cycle_ns < burst.on_ns {
            due_ns
        } else {
            (due_ns / cycle_ns + 1).saturating_mul(cycle_ns)
        }
    }

    #[inline]
    pub(crate) fn ask(&mut self) -> Ask {
        if let Some(replay) = &self.job.replay {
            let asked = replay.trace.asked()[self.turns.asked];
            self.turns.asked += self.turns.step;
            return self.replayed(asked);
        }
        let size = self.size();
        let length = self.job.sizes[size].0;
        let bytes = u64::from(length);
        let offset = match self.job.access {
            Access::Random => self.random.below(self.capacity / bytes) * bytes,
            Access::Zipf { .. } => self.zipf[size].place(&mut self.random) * bytes,
            Access::Sequential => {
                let at = if self.position + bytes > self.capacity { 0 } else { self.position };
                self.position = at + bytes;
                at
            }
        };
        let reads = match self.job.read_percent {
            0 => false,
            100.. => true,
            percent => self.random.below(100) < u64::from(percent),
        };
        let op = if reads { Op::Read } else { Op::Write };
        Ask { op, offset, length, arrived_ns: self.arrivals.pop_front() }
    }

    /// A request of a trace, with its address and length adjusted to this device.
    fn replayed(&self, Asked { op, offset, length, .. }: Asked) -> Ask {
        let last = (self.capacity - u64::from(length)) / SECTOR * SECTOR;
        let offset = (offset % self.capacity / SECTOR * SECTOR).min(last);
        Ask { op, offset, length, arrived_ns: None }
    }

    /// Index of the next size.
    #[inline]
    fn size(&mut self) -> usize {
        if self.job.sizes.len() == 1 {
            return 0;
        }
        let mut pick = self.random.below(self.choices);
        for (index, &(_, often)) in self.job.sizes.iter().enumerate() {
            match pick.checked_sub(u64::from(often)) {
                Some(rest) => pick = rest,
                None => return index,
            }
        }
        unreachable!("the pick is below the sum")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Burst, MS, Replay};
    use crate::trace::{Format, Trace};

    fn thread(job: Job) -> Thread {
        Thread::new(0, 0, &job, 1 << 30, Random::new(1, 1), 1, Turns::new(0, 1, 0))
    }

    #[test]
    fn threads_take_turns_at_a_trace_and_end_with_it() {
        let text = "0 0 16 8 1\n1000 0 4194304 8 0\n5000 0 32 8 1\n";
        let trace = Trace::read(Format::Mqsim, text.as_bytes(), None).expect("it is well formed");
        let thread = |number, keeps_time| {
            let job = Job {
                replay: Some(Replay { trace: trace.clone(), keeps_time }),
                ..Job::random_read(4096, 2)
            };
            Thread::new(0, 0, &job, 1 << 30, Random::new(1, 1), 1, Turns::new(number, 2, 100))
        };
        let mut first = thread(0, true);
        assert_eq!([first.due_ns(0), first.due_ns(0), first.due_ns(7)], [100, 5100, NEVER]);
        assert_eq!([first.ask().offset, first.ask().offset], [8192, 16_384]);
        let mut second = thread(1, false);
        assert_eq!((second.due_ns(3), second.due_ns(3)), (3, NEVER));
        let ask = second.ask();
        assert_eq!((ask.op, ask.offset, ask.length), (Op::Write, 0, 4096));
    }

    #[test]
    fn sizes_and_reads_are_mixed_as_asked() {
        let job = Job {
            sizes: vec![(4096, 3), (65_536, 1)],
            read_percent: 70,
            ..Job::random_read(4096, 1)
        };
        let mut thread = thread(job);
        let asks: Vec<Ask> = (0..10_000).map(|_| thread.ask()).collect();
        let share = |of: &dyn Fn(&Ask) -> bool| asks.iter().filter(|ask| of(ask)).count();
        assert!((7300..7700).contains(&share(&|ask| ask.length == 4096)));
        assert!((6800..7200).contains(&share(&|ask| ask.op == Op::Read)));
        assert!(asks.iter().all(|ask| ask.offset + u64::from(ask.length) <= 1 << 30));
        assert!(asks.iter().all(|ask| ask.offset % u64::from(ask.length) == 0));
    }

    /// A request that arrives while all places are taken waits, and keeps its arrival time.
    #[test]
    fn in_an_open_loop_the_clock_asks() {
        let even = Job { arrivals: Arrivals::Even, interval_ns: 100, ..Job::random_read(4096, 2) };
        let mut thread = thread(even.clone());
        thread.begin(1_000);
        assert_eq!([thread.due_ns(1_000), thread.due_ns(1_000)], [1_100, 1_200]);
        assert_eq!(thread.ask().arrived_ns, Some(1_100));
        // Both places are taken until 1,450: the request that arrived at 1,300 has waited.
        assert_eq!(thread.ask().arrived_ns, Some(1_200));
        assert_eq!((thread.due_ns(1_450), thread.ask().arrived_ns), (1_450, Some(1_300)));
        thread.rest();
        thread.begin(9_000);
        assert_eq!((thread.due_ns(9_000), thread.ask().arrived_ns), (9_100, Some(9_100)));
        let burst = Some(Burst { on_ns: MS, off_ns: 3 * MS });
        let mut bursting = self::thread(Job { burst, interval_ns: MS / 2 + 1, ..even });
        assert_eq!([bursting.due_ns(0), bursting.due_ns(0)], [MS / 2 + 1, 4 * MS]);
    }

    #[test]
    fn some_places_are_asked_for_more_often() {
        let access = Access::Zipf { thousandths: 1_200 };
        let mut thread = thread(Job { access, ..Job::random_read(4096, 1) });
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..10_000 {
            let Ask { offset, .. } = thread.ask();
            assert!(offset % 4096 == 0 && offset < 1 << 30);
            *seen.entry(offset).or_insert(0) += 1;
        }
        // The first of 262,144 places gets 1 / zeta of all requests: a fifth.
        let most = *seen.values().max().unwrap();
        assert!((1_700..2_300).contains(&most) && seen.len() > 1_000, "{most} {}", seen.len());
    }

    #[test]
    fn one_after_the_other_and_round_the_end() {
        let job = Job { access: Access::Sequential, ..Job::random_read(1 << 20, 1) };
        let mut thread = thread(job);
        let first = thread.ask().offset;
        assert_eq!((first, thread.ask().offset), (16_384, 16_384 + (1 << 20)));
        let offsets: Vec<u64> = (0..1024).map(|_| thread.ask().offset).collect();
        assert!(offsets.contains(&0), "it begins again");
    }

    #[test]
    fn pauses_paces_and_bursts_put_off() {
        let mut pausing = thread(Job { think_ns: 10, ..Job::random_read(4096, 1) });
        assert_eq!((pausing.due_ns(5), pausing.due_ns(6)), (15, 16));
        let mut paced = thread(Job { interval_ns: 100, ..Job::random_read(4096, 1) });
        assert_eq!([paced.due_ns(0), paced.due_ns(10), paced.due_ns(500)], [0, 100, 500]);
        let burst = Some(Burst { on_ns: MS, off_ns: 3 * MS });
        let mut bursting = thread(Job { burst, ..Job::random_read(4096, 1) });
        assert_eq!(
            [bursting.due_ns(MS / 2), bursting.due_ns(2 * MS), bursting.due_ns(4 * MS)],
            [MS / 2, 4 * MS, 4 * MS]
        );
    }
}
