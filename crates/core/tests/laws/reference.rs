//! Start-time fair queueing by the paper's definition, in exact fractions and without any
//! optimisation.

use std::cmp::Ordering;

/// A non-negative fraction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    numerator: u128,
    denominator: u128,
}

impl Ratio {
    pub(crate) const ZERO: Ratio = Ratio { numerator: 0, denominator: 1 };

    pub(crate) fn new(numerator: u128, denominator: u128) -> Ratio {
        let (mut a, mut b) = (numerator, denominator);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Ratio { numerator: numerator / a, denominator: denominator / a }
    }

    pub(crate) fn plus(self, other: Ratio) -> Ratio {
        let numerator = self.numerator * other.denominator + other.numerator * self.denominator;
        Ratio::new(numerator, self.denominator * other.denominator)
    }
}

impl PartialEq for Ratio {
    fn eq(&self, other: &Ratio) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Ratio {}
impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Ratio) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ratio {
    fn cmp(&self, other: &Ratio) -> Ordering {
        (self.numerator * other.denominator).cmp(&(other.numerator * self.denominator))
    }
}

/// The rule of virtual time, while the server is busy and when it is idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VirtualTime {
    /// SFQ and SFQ(D): the start tag of the request dispatched last; when idle, the largest finish
    /// tag served.
    LastDispatched,
    /// MQFQ section 2.1: the least start tag of all staged requests; unchanged while none is
    /// staged.
    LeastStaged,
}

struct Queued {
    id: usize,
    start: Ratio,
    finish: Ratio,
}

pub(crate) struct Sfq {
    rule: VirtualTime,
    now: Ratio,
    max_finish: Ratio,
    ends: Vec<Ratio>,
    /// In order of arrival.
    queue: Vec<Queued>,
    in_service: usize,
}

impl Sfq {
    pub(crate) fn new(rule: VirtualTime) -> Sfq {
        Sfq {
            rule,
            now: Ratio::ZERO,
            max_finish: Ratio::ZERO,
            ends: Vec::new(),
            queue: Vec::new(),
            in_service: 0,
        }
    }

    pub(crate) fn arrive(&mut self, id: usize, flow: usize, cost: u64, weight: u16) {
        if self.ends.len() <= flow {
            self.ends.resize(flow + 1, Ratio::ZERO);
        }
        let start = self.now.max(self.ends[flow]);
        let finish = start.plus(Ratio::new(cost.into(), weight.into()));
        self.ends[flow] = finish;
        self.queue.push(Queued { id, start, finish });
        self.advance();
    }

    /// The request that is to be dispatched now.
    pub(crate) fn dispatch(&mut self) -> Option<usize> {
        let least = self.queue.iter().map(|queued| queued.start).min()?;
        let first = self.queue.iter().position(|queued| queued.start == least)?;
        let Queued { id, start, finish } = self.queue.remove(first);
        self.in_service += 1;
        self.max_finish = self.max_finish.max(finish);
        if self.rule == VirtualTime::LastDispatched {
            self.now = start;
        }
        self.advance();
        Some(id)
    }

    pub(crate) fn complete(&mut self) {
        self.in_service -= 1;
        if self.rule == VirtualTime::LastDispatched && self.in_service == 0 && self.queue.is_empty()
        {
            self.now = self.max_finish;
        }
    }

    fn advance(&mut self) {
        if let (VirtualTime::LeastStaged, Some(least)) =
            (self.rule, self.queue.iter().map(|q| q.start).min())
        {
            self.now = self.now.max(least);
        }
    }
}
