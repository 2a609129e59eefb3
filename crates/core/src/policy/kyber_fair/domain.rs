//! Request domains, and a set of staged queues, one for each.
//!
//! A set serves one domain for a *batch* before it goes on to the next that has requests, round
//! robin, so that the device sees runs of the same kind while no domain waits for ever. The queues
//! of all sets of a port are threaded through one array of links, by tag.

use bytemuck::Zeroable;

use crate::contract::port::Op;
use crate::structures::queues::{Fifo, Links};

/// The kind of a request; each kind has its own depth and queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Zeroable)]
#[repr(u8)]
pub enum Domain {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Discards.
    Discard,
    /// Everything else: flushes, writing zeroes.
    Other,
}

/// State of a port's tag.
#[derive(Clone, Copy, PartialEq, Eq, Zeroable)]
#[repr(u8)]
pub enum State {
    Free,
    Staged,
    Issued,
    /// It was issued, and is to be issued again.
    Again,
}

/// The requests that a port issues again before any other.
pub struct Again {
    tags: Fifo,
    links: Links,
}

impl Again {
    /// Empty, for the tags `0..tags`.
    pub fn new(tags: usize) -> Self {
        Again { tags: Fifo::default(), links: Links::new(tags) }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    pub fn push(&mut self, tag: u32) {
        self.links.push(&mut self.tags, tag);
    }

    pub fn pop(&mut self) -> Option<u32> {
        self.links.pop(&mut self.tags)
    }

    pub fn remove(&mut self, tag: u32) {
        self.links.remove(&mut self.tags, tag);
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(self.tags.first(), |&tag| self.links.after(tag))
    }
}

/// Number of domains.
pub const DOMAINS: usize = 4;

impl Domain {
    /// All of them, in the order of their indices.
    pub const ALL: [Domain; DOMAINS] =
        [Domain::Read, Domain::Write, Domain::Discard, Domain::Other];

    /// The domain of an operation.
    #[inline]
    pub const fn of(op: Op) -> Domain {
        match op {
            Op::Read => Domain::Read,
            Op::Write => Domain::Write,
            Op::Discard => Domain::Discard,
            Op::Flush | Op::WriteZeroes => Domain::Other,
        }
    }

    /// Requests served in a row, as in Linux.
    const fn batch(self) -> u8 {
        match self {
            Domain::Read => 16,
            Domain::Write => 8,
            Domain::Discard | Domain::Other => 1,
        }
    }

    #[inline]
    fn after(self) -> Domain {
        match self {
            Domain::Read => Domain::Write,
            Domain::Write => Domain::Discard,
            Domain::Discard => Domain::Other,
            Domain::Other => Domain::Read,
        }
    }
}

/// One queue for each domain.
#[derive(Clone, Copy)]
pub struct QueueSet {
    queues: [Fifo; DOMAINS],
    current: Domain,
    /// Requests left in the current domain's batch.
    left: u8,
}

impl Default for QueueSet {
    fn default() -> Self {
        QueueSet {
            queues: [Fifo::default(); DOMAINS],
            current: Domain::Read,
            left: Domain::Read.batch(),
        }
    }
}

impl QueueSet {
    /// Appends a tag to its domain's queue.
    #[inline]
    pub fn stage(&mut self, links: &mut Links, domain: Domain, tag: u32) {
        if let Some(queue) = self.queues.get_mut(domain as usize) {
            links.push(queue, tag);
        }
    }

    /// Takes a tag out, wherever it is in its domain's queue.
    pub fn remove(&mut self, links: &mut Links, domain: Domain, tag: u32) {
        if let Some(queue) = self.queues.get_mut(domain as usize) {
            links.remove(queue, tag);
        }
    }

    /// All tags, domain by domain.
    pub fn iter<'a>(&'a self, links: &'a Links) -> impl Iterator<Item = u32> + 'a {
        let of = |queue: &Fifo| core::iter::successors(queue.first(), |&tag| links.after(tag));
        self.queues.iter().flat_map(of)
    }

    /// Takes out the next tag of a domain that `may` be served. `may` is called at most once for
    /// each domain that has requests.
    #[inline]
    pub fn pick(&mut self, links: &mut Links, mut may: impl FnMut(Domain) -> bool) -> Option<u32> {
        if self.left > 0 && self.has(self.current) && may(self.current) {
            self.left -= 1;
            return self.take(links);
        }
        // The current domain was tried above, unless its batch is over: then it is tried after all
        // others.
        let asked = self.left > 0;
        let mut domain = self.current;
        for _ in 0..DOMAINS {
            domain = domain.after();
            if (domain == self.current && asked) || !self.has(domain) || !may(domain) {
                continue;
            }
            self.current = domain;
            self.left = domain.batch() - 1;
            return self.take(links);
        }
        None
    }

    #[inline]
    fn take(&mut self, links: &mut Links) -> Option<u32> {
        links.pop(self.queues.get_mut(self.current as usize)?)
    }

    /// Whether the domain has requests.
    #[inline]
    pub fn has(&self, domain: Domain) -> bool {
        self.queues.get(domain as usize).is_some_and(|queue| !queue.is_empty())
    }

    /// Whether no domain has requests.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(Fifo::is_empty)
    }

    /// Whether the batch has come to its end.
    #[inline]
    pub fn batch_is_over(&self) -> bool {
        self.left == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn serves_batches_in_turn_and_skips_what_may_not_go() {
        let mut links = Links::new(100);
        let mut set = QueueSet::default();
        for tag in 0..20 {
            set.stage(&mut links, Domain::Read, tag);
            set.stage(&mut links, Domain::Write, 20 + tag);
        }
        for tag in 40..43 {
            set.stage(&mut links, Domain::of(Op::Flush), tag);
        }
        let mut order = Vec::new();
        while let Some(tag) = set.pick(&mut links, |_| true) {
            order.push(tag);
        }
        let expected: Vec<u32> = [0..16, 20..28, 40..41, 16..20, 28..36, 41..42, 36..40, 42..43]
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(order, expected);
        assert!(set.is_empty());

        set.stage(&mut links, Domain::Read, 1);
        set.stage(&mut links, Domain::Write, 2);
        let mut asked = Vec::new();
        assert_eq!(
            set.pick(&mut links, |domain| {
                asked.push(domain);
                domain == Domain::Write
            }),
            Some(2)
        );
        let mut asked = Vec::new();
        assert_eq!(
            set.pick(&mut links, |domain| {
                asked.push(domain);
                false
            }),
            None
        );
        assert_eq!(asked, [Domain::Read]);
        assert!(set.has(Domain::Read) && !set.is_empty());
    }
}
