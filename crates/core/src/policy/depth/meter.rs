//! Each port's counts of requests sent and completed, for the search for D and for latency targets.
//!
//! A port has one record for each request. It counts in words that it alone writes; the search
//! reads them some hundred times a second. *Memory ordering.* The words are counts that guard no
//! data, so they are accessed with Relaxed; a sum over ports may lack the counts of the last
//! microseconds, which the next sum has.

use alloc::boxed::Box;

use bytemuck::Zeroable;

use super::watch::Watch;
use crate::contract::bounds::zeroes;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::{Growth, Request};

/// The counts of all ports since the start, wrapping.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Requests completed.
    pub(super) requests: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Their cost as the policy charged it, in equivalent bytes.
    pub(super) charged: u64,
    /// The time that they were on the device, in nanoseconds.
    pub(super) spent_ns: u64,
    /// The time since they came, in nanoseconds.
    pub(super) took_ns: u64,
    /// Requests that came, and the sums of their flows' numbers and of the squares of those.
    pub(super) sent: u64,
    pub(super) flows: u64,
    pub(super) squares: u64,
    /// Sum over ports of the most requests that each had recently, no counter: a port that does
    /// requests at once has few when one completes, but had all of its clients' requests before.
    pub(super) most: u64,
}

/// The most requests that a port had recently is the most within this number of its last
/// completions, or within twice as many.
const RECENT: u32 = 256;

/// A port's words: those of [`Sum`].
pub(super) struct Words<P: Platform>([P::U64; 9]);

impl<P: Platform> Words<P> {
    pub(super) fn new() -> Self {
        Words(core::array::from_fn(|_| P::U64::new(0)))
    }

    /// Adds the port's counts.
    pub(super) fn add_to(&self, sum: &mut Sum) {
        let sums = [
            &mut sum.requests,
            &mut sum.bytes,
            &mut sum.charged,
            &mut sum.spent_ns,
            &mut sum.took_ns,
            &mut sum.sent,
            &mut sum.flows,
            &mut sum.squares,
            &mut sum.most,
        ];
        for (sum, word) in sums.into_iter().zip(&self.0) {
            *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        }
    }

    /// Adds to words from `first` on. The port alone writes them.
    #[inline]
    fn add<const N: usize>(&self, first: usize, more: [u64; N]) {
        for (word, more) in self.0.iter().skip(first).zip(more) {
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }
}

/// A request that the port has.
#[derive(Clone, Copy, Zeroable)]
struct Live {
    arrived_ns: u64,
    issued_ns: u64,
    /// The word of its flow's target (`watch`).
    word: u64,
    cost: u64,
    length: u32,
    /// 0: not counted.
    is_live: u32,
}

/// A port's state of its requests; its counts are in its [`Words`].
pub(super) struct Meter {
    requests: Box<[Live]>,
    /// Requests staged or on the device.
    live: u64,
    /// The most live since `recent` completions, and in the [`RECENT`] before them.
    most: u64,
    most_before: u64,
    recent: u32,
}

impl Meter {
    pub(super) fn new(tags: usize) -> Self {
        Meter { requests: zeroes(tags), live: 0, most: 0, most_before: 0, recent: 0 }
    }

    #[inline]
    pub(super) fn submitted<P: Platform>(
        &mut self,
        now_ns: u64,
        request: &Request,
        word: u64,
        words: &Words<P>,
    ) {
        if let Some(live) = self.requests.get_mut(request.tag.0 as usize) {
            self.live = self.live.wrapping_add(1);
            self.most = self.most.max(self.live);
            let (length, cost) = (request.length, request.cost.alone);
            // A part of a command is not issued by itself, and its time on the device not counted.
            let issued_ns = u64::MAX;
            *live = Live { arrived_ns: now_ns, issued_ns, word, cost, length, is_live: 1 };
            let flow = request.flow.slot() as u64;
            words.add(5, [1, flow, flow.wrapping_mul(flow)]);
        }
    }

    #[inline]
    pub(super) fn issued(&mut self, tag: u32, now_ns: u64) {
        if let Some(live) = self.requests.get_mut(tag as usize) {
            live.issued_ns = now_ns;
        }
    }

    /// Notes that a staged request has grown.
    pub(super) fn grown(&mut self, tag: u32, growth: &Growth) {
        if let Some(live) = self.requests.get_mut(tag as usize) {
            live.length = live.length.saturating_add(growth.length);
            live.cost = live.cost.saturating_add(growth.cost);
        }
    }

    /// Whether requests that were counted when they came are live.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.live > 0
    }

    /// Takes a request off the live ones that was taken back, or completes while nothing is
    /// counted.
    pub(super) fn forget(&mut self, tag: u32) {
        if let Some(live) = self.requests.get_mut(tag as usize).filter(|live| live.is_live != 0) {
            live.is_live = 0;
            self.live = self.live.wrapping_sub(1);
        }
    }

    #[inline]
    pub(super) fn completed<P: Platform>(
        &mut self,
        tag: u32,
        now_ns: u64,
        words: &Words<P>,
        (port, watch): (usize, &Watch<P>),
    ) {
        let Some(live) = self.requests.get_mut(tag as usize).filter(|at| at.is_live != 0) else {
            return;
        };
        let spent_ns = now_ns.saturating_sub(live.issued_ns);
        let took_ns = now_ns.saturating_sub(live.arrived_ns).max(spent_ns);
        words.add(0, [1, live.length.into(), live.cost, spent_ns, took_ns]);
        if live.word != 0 {
            let spent_ns = if live.issued_ns == u64::MAX { took_ns } else { spent_ns };
            watch.completed(port, live.word, took_ns, spent_ns, live.length);
        }
        live.is_live = 0;
        self.live = self.live.wrapping_sub(1);
        let most = self.most.max(self.most_before);
        self.recent += 1;
        if self.recent == RECENT {
            (self.most_before, self.most, self.recent) = (self.most, self.live, 0);
        }
        words.0[8].store(most, Ordering::Relaxed);
    }
}
