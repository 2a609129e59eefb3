//! The three ways of counting free slots that MQFQ's paper compares (Sections 3.2 and 4.3.3). All
//! of them share one set of the ports that wait for a slot.
//!
//! **Tree.** Free slots are tokens in counters of ports, cores, sockets and the machine. A port
//! takes a token from its leaf, else from the lowest node above it that has one, else, unless ports
//! may only search their own *path*, from any other inner node. A completed request's token goes to
//! the nearest waiting port, through the lowest node above both, or stays in the leaf. A port
//! without requests gives its tokens to waiting ports and puts the rest into the node above its
//! leaf.
//!
//! **Counter and bitmap.** One shared counter, or bits spread over words as Linux's sbitmap spreads
//! them (a set bit is free), which a port searches from the word where it last found one. No slot
//! belongs to a port, so a port without requests checks whether slots are free while other ports
//! wait.

use fairq_core::platform::{AtomicWord, Ordering, Platform};
use fairq_core::structures::topology::{Topology, Tree};
use fairq_core::{PortBits, PortId, PortSet};

/// The structure that counts free slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotKind {
    /// A tree of counters that keeps slots near the ports that use them (Section 3.2).
    TokenTree,
    /// The same tree, in which a port finds only the tokens on its own path to the root.
    TokenPath,
    /// One shared counter (Section 4.3.3).
    AtomicCounter,
    /// Bits spread over cache lines, like Linux's sbitmap (Section 4.3.3).
    ScalableBitmap,
}

use Ordering::{Relaxed, SeqCst};

/// A word in cache lines of its own: processors fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Line<P: Platform>(pub(super) P::U64);

impl<P: Platform> Line<P> {
    pub(super) fn new(value: u64) -> Self {
        Line(P::U64::new(value))
    }
}

/// The free slots, and the ports that wait for one.
pub(super) struct Slots<P: Platform> {
    kind: SlotKind,
    tree: Tree,
    /// The free slots: their number in each node of the tree, their total number, or a set bit for
    /// each.
    words: Box<[Line<P>]>,
    ready: PortBits<P>,
}

impl<P: Platform> Slots<P> {
    pub(super) fn new(kind: SlotKind, ports: &Topology, total: u32) -> Self {
        let tree = ports.tree();
        // Four slots and more take at least four words (`sbitmap_init_node`).
        let per_word = 1 << if total < 4 { 64 } else { (total / 4).min(64) }.ilog2();
        let words = match kind {
            SlotKind::AtomicCounter => vec![u64::from(total)],
            SlotKind::ScalableBitmap => (0..total)
                .step_by(per_word)
                .map(|first| u64::MAX >> (64 - (total - first).min(per_word as u32)))
                .collect(),
            _ => (0..tree.nodes())
                .map(|at| if at == Tree::ROOT { total.into() } else { 0 })
                .collect(),
        };
        let words = words.into_iter().map(Line::new).collect();
        Slots { kind, words, ready: PortBits::new(ports.ports()), tree }
    }

    fn is_tree(&self) -> bool {
        matches!(self.kind, SlotKind::TokenTree | SlotKind::TokenPath)
    }

    /// The number of free slots; exact while no slot is taken or released.
    pub(super) fn free(&self) -> u64 {
        self.count(&self.words)
    }

    fn count(&self, words: &[Line<P>]) -> u64 {
        let words = words.iter().map(|word| word.0.load(SeqCst));
        match self.kind {
            SlotKind::ScalableBitmap => words.map(|word| u64::from(word.count_ones())).sum(),
            _ => words.sum(),
        }
    }

    /// Takes a slot. `hint` is the word of the bitmap in which the port last found one.
    pub(super) fn acquire(&self, port: PortId, hint: &mut usize) -> Option<u32> {
        let mut node = self.tree.leaf(port);
        match self.kind {
            SlotKind::AtomicCounter => return self.take(0),
            SlotKind::ScalableBitmap => {
                let count = self.words.len();
                // The first hint is the port's number, which may be beyond the last word.
                let mut words = (0..count).map(|at| (*hint + at) % count);
                let (at, slot) = words.find_map(|at| Some((at, self.take(at)?)))?;
                *hint = at;
                return Some(slot);
            }
            _ => {}
        }
        // No other port writes the leaf, so a load and a store are enough.
        let leaf = &self.words[node].0;
        let tokens = leaf.load(Relaxed);
        if tokens != 0 {
            leaf.store(tokens - 1, Relaxed);
            return Some(0);
        }
        while node != Tree::ROOT {
            node = self.tree.parent(node);
            if let Some(slot) = self.take(node) {
                return Some(slot);
            }
        }
        let elsewhere = if self.kind == SlotKind::TokenTree { self.tree.inner() } else { 0 };
        (1..elsewhere).find_map(|node| self.take(node))
    }

    /// Takes a slot from a word that several ports use.
    fn take(&self, at: usize) -> Option<u32> {
        let word = &self.words[at].0;
        let mut free = word.load(SeqCst);
        while free != 0 {
            if self.kind == SlotKind::ScalableBitmap {
                let bit = free & free.wrapping_neg();
                free = word.fetch_and(!bit, SeqCst);
                if free & bit != 0 {
                    return Some((at as u32) << 6 | bit.trailing_zeros());
                }
            } else {
                match word.compare_exchange(free, free - 1, SeqCst, SeqCst) {
                    Ok(_) => return Some(0),
                    Err(now) => free = now,
                }
            }
        }
        None
    }

    /// Marks the port as waiting. The caller then tries again to take a slot.
    pub(super) fn enlist(&self, port: PortId) {
        self.ready.set().insert(port, SeqCst);
        P::fence();
    }

    pub(super) fn is_enlisted(&self, port: PortId) -> bool {
        self.ready.set().contains(port, SeqCst)
    }

    pub(super) fn delist(&self, port: PortId) {
        self.ready.set().remove(port, SeqCst);
    }

    /// Frees the slot of a completed request of `port`, which is about to call `next` and may use
    /// the slot itself if it `can_use` one. Returns the ports to wake.
    pub(super) fn release(&self, port: PortId, slot: u32, can_use: bool) -> PortSet {
        let claim = || if can_use { None } else { self.claim(port) };
        let claimed = if self.is_tree() {
            let claimed = claim();
            match claimed {
                Some((_, node)) => _ = self.words[node].0.fetch_add(1, SeqCst),
                None => {
                    let leaf = &self.words[self.tree.leaf(port)].0;
                    leaf.store(leaf.load(Relaxed) + 1, Relaxed);
                }
            }
            claimed
        } else {
            match self.kind {
                SlotKind::AtomicCounter => self.words[0].0.fetch_add(1, SeqCst),
                _ => self.words[slot as usize >> 6].0.fetch_or(1 << (slot & 63), SeqCst),
            };
            P::fence();
            claim()
        };
        claimed.map_or(PortSet::EMPTY, |(port, _)| PortSet::only(port))
    }

    /// Gives the slots of a port without requests to waiting ports, which are returned so that the
    /// caller wakes them, or to the node above, where other ports find them.
    pub(super) fn stop(&self, port: PortId) -> PortSet {
        let (mut woken, mut shared) = (PortSet::EMPTY, &self.words[..]);
        if self.is_tree() {
            let at = self.tree.leaf(port);
            let leaf = &self.words[at].0;
            let mut carried = leaf.load(Relaxed);
            if carried != 0 {
                leaf.store(0, Relaxed);
            }
            while carried != 0
                && let Some((target, node)) = self.claim(port)
            {
                self.words[node].0.fetch_add(1, SeqCst);
                carried -= 1;
                woken.insert(target);
            }
            if carried != 0 {
                self.words[self.tree.parent(at)].0.fetch_add(carried, SeqCst);
                // The tokens have to be in the node before the waiting ports are read.
                P::fence();
            } else if !woken.is_empty() {
                // The woken ports deal with the remaining tokens when they have no more requests.
                return woken;
            }
            shared = &self.words[..self.tree.inner()];
        }
        if !self.ready.set().is_empty(SeqCst) {
            let claims = (0..self.count(shared)).map_while(|_| self.claim(port));
            woken.extend(claims.map(|(target, _)| target).collect());
        }
        woken
    }

    /// Claims the nearest waiting port; returns it and the lowest node above both ports.
    fn claim(&self, port: PortId) -> Option<(PortId, usize)> {
        loop {
            let waiting = self.ready.set().load(SeqCst).and(self.tree.members(Tree::ROOT));
            let (target, node) = self.tree.nearest(port, waiting)?;
            if self.ready.set().remove(target, SeqCst) {
                return Some((target, node));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairq_core::Native;
    use std::collections::BTreeSet;

    fn eight() -> Topology {
        Topology::new((0..8).map(|port| (port / 4, port / 2)).collect())
    }

    #[test]
    fn every_bit_of_the_bitmap_is_a_slot() {
        for (total, words) in [(1, 1), (3, 1), (4, 4), (64, 4), (65, 5), (128, 4), (1000, 16)] {
            let slots = Slots::<Native>::new(SlotKind::ScalableBitmap, &eight(), total);
            assert_eq!(slots.words.len(), words);
            let mut hint = 1_000_000;
            let mut take = || slots.acquire(PortId(0), &mut hint);
            let taken: BTreeSet<u32> = (0..total).map(|_| take().unwrap()).collect();
            assert_eq!((taken.len(), take(), slots.free()), (total as usize, None, 0));
            taken.iter().step_by(2).for_each(|&slot| _ = slots.release(PortId(0), slot, false));
            assert_eq!(slots.free(), u64::from(total.div_ceil(2)));
        }
    }

    /// Two completions wake two ports, the nearest first.
    #[test]
    fn each_slot_wakes_one_port() {
        for kind in [SlotKind::TokenTree, SlotKind::AtomicCounter, SlotKind::ScalableBitmap] {
            let slots = Slots::<Native>::new(kind, &eight(), 2);
            let held = [(); 2].map(|()| slots.acquire(PortId(0), &mut 0).unwrap());
            [7, 3, 1].into_iter().for_each(|port| slots.enlist(PortId(port)));
            for (slot, expected) in held.into_iter().zip([1, 3]) {
                let woken = slots.release(PortId(0), slot, false);
                assert_eq!(woken, PortSet::only(PortId(expected)), "{kind:?}");
            }
            assert!(slots.is_enlisted(PortId(7)) && slots.free() == 2);
        }
    }

    #[test]
    fn a_port_can_be_kept_to_its_path() {
        for (kind, port, finds) in [
            (SlotKind::TokenPath, 7, false),
            (SlotKind::TokenPath, 2, false),
            (SlotKind::TokenPath, 1, true),
            (SlotKind::TokenTree, 7, true),
        ] {
            let slots = Slots::<Native>::new(kind, &eight(), 1);
            let slot = slots.acquire(PortId(0), &mut 0).unwrap();
            assert_eq!(slots.release(PortId(0), slot, true), PortSet::EMPTY);
            // The token is in the node above ports 0 and 1 from now on.
            assert_eq!(slots.stop(PortId(0)), PortSet::EMPTY);
            assert_eq!(slots.acquire(PortId(port), &mut 0).is_some(), finds, "{kind:?} {port}");
        }
    }
}
