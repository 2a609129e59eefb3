//! Virtual time: the least start tag of any request that waits on any port, never decreasing (MQFQ,
//! Section 3.1).
//!
//! **Problem.** Every dispatch may change the minimum over all ports; finding it by a scan costs a
//! cache miss per port and dispatch. **Model.** A mindicator (Liu et al.): a tree whose leaves hold
//! each port's lead start tag and whose inner nodes hold the least of their children. A port
//! changes its leaf and then its ancestors up to the first whose minimum does not change. The root
//! is special: it is virtual time itself and never goes down. The array scan that the paper
//! compares with is the same tree without inner nodes (Section 4.3.1 calls it "a one-level
//! mindicator").
//!
//! **Words.** A tag's lower 8 bits are free ([`crate::contract::vtime`]): bit 7 says that nothing
//! waits below a node, bits 0 to 6 are its *stamp*, which counts its changes modulo 128. (The root
//! is never empty; its stamp has the same place.)
//!
//! **Two operations.**
//! - [`pin`](VirtualTime::pin) *lowers* a leaf, when a request comes to an empty port or before its
//!   lead. It writes the leaf and then changes **every** ancestor by compare-and-swap: to the new
//!   tag if that is less, and only its stamp otherwise, up to and including the root.
//! - [`raise`](VirtualTime::raise) moves a leaf up, when a port's lead has gone. It writes the leaf
//!   and then, from the parent upwards, reads a node, reads its children, and replaces the node by
//!   their minimum; it stops at the first node whose minimum does not change. The root is replaced
//!   only by a later value.
//!
//! The comment above the verbs argues **why it is right**; all accesses are sequentially
//! consistent.
//!
//! **Worked example.** Two cores with two ports each; leaves 10 and 12 on core A, 11 and none on
//! core B: A = 10, B = 11, time 10. Port 0 dispatches and its lead is now 14: leaf 14; A is
//! min(14, 12) = 12; the root becomes min(12, 11) = 11. Port 1 dispatches, lead 16: A = 14; at the
//! root the minimum is still 11: stop.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use crate::contract::bounds::boxed;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port_set::PortId;
use crate::contract::vtime::{STAMP_BITS, VTime};
use crate::structures::topology::Tree;

const EMPTY: u64 = 1 << (STAMP_BITS - 1);
const STAMP: u64 = EMPTY - 1;

/// The tree of minima. Each leaf is written by its own port alone.
pub struct VirtualTime<P: Platform> {
    tree: Tree,
    words: Box<[CachePadded<P::U64>]>,
}

/// The tag in a word, if it has one.
#[inline]
fn tag(word: u64) -> Option<VTime> {
    if word & EMPTY == 0 { Some(VTime::from_word(word)) } else { None }
}

/// The word for a tag, with the stamp that follows that of `old`.
#[inline]
fn restamp(value: Option<VTime>, old: u64) -> u64 {
    value.map_or(EMPTY, VTime::to_word) | (old.wrapping_add(1) & STAMP)
}

/// Whether `a` is before `b`, where "none" is after all tags.
#[inline]
fn is_before(a: Option<VTime>, b: Option<VTime>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.is_before(b),
        (a, _) => a.is_some() && b.is_none(),
    }
}

// **Why it is right.** All accesses are sequentially consistent.
// 1. *A raise never passes over an arrival.* It reads node, then children, then swaps the node only
//    if its stamp is still the same. An arrival below wrote its leaf first and then changed the
//    node's stamp. So either the raise read the new leaf, or the stamp was changed after the raise
//    read the node and the swap fails; or the arrival had not yet reached the node, and then lowers
//    it later. Stamping nodes whose minimum does *not* change is essential: with children (5, 9), a
//    raise of the first to "none" reads 9; the second becomes 5 and leaves the node at 5; the stale
//    swap 5 → 9 must fail.
// 2. *Once `pin` has returned, virtual time cannot pass the pinned tag*, for the same reason at the
//    root; so the time that it returns, read by its swap of the root, stays current until the port
//    raises its leaf. A request that is tagged with that time is never behind virtual time: an idle
//    flow gains no credit and a waiting one loses none.
// 3. *A raise is never forgotten.* Two raises below one node each write their child and then read
//    the other's: in the total order of these accesses the later write comes before that port's
//    read of both, so at least the later of two sees both. Its swap either succeeds, or fails
//    because the node changed, and is tried again. A minimum that came out *less* than the node
//    belongs to an arrival that has not reached the node yet, and which raises its leaf to its real
//    lead afterwards; stopping there is right.
// 4. *The root never decreases*, since it is only swapped for later values or for itself.
//
// *Bounds of loops.* Both operations visit each node of the path to the root once. A swap fails
// only when another port has changed the node meanwhile, so each retry is another verb's progress;
// a raise that finds the new minimum in place stops.
//
// *The stamp's limit.* Suppose that a raise is suspended between its read and its swap of a node,
// and that a multiple of 128 changes meanwhile leaves the node with the very same tag. Then the
// swap puts a stale minimum into the node. Virtual time may then be later than some lead, by no
// more than the distance to the other leads that were read. Nothing
// is lost or stuck: the passed-over requests are dispatched first, and flows that come in the
// meantime start that much later.
impl<P: Platform> VirtualTime<P> {
    /// Virtual time 0; no port has requests.
    pub fn new(tree: Tree) -> Self {
        let word = |node| CachePadded::new(P::U64::new(if node == Tree::ROOT { 0 } else { EMPTY }));
        VirtualTime { words: boxed(tree.nodes(), word), tree }
    }

    /// Virtual time.
    #[inline]
    pub fn now(&self) -> VTime {
        VTime::from_word(self.load(Tree::ROOT))
    }

    /// Units by which the foremost of the ports' first requests is ahead of virtual time; as exact
    /// as the leads that ports publish.
    pub fn spread(&self) -> u64 {
        let now = self.now();
        let leads = (0..self.tree.ports())
            .filter_map(|port| tag(self.load(self.tree.leaf(PortId(port as u8)))));
        leads.filter_map(|lead| u64::try_from(lead.since(now)).ok()).max().unwrap_or(0)
    }

    /// Lowers the port's leaf to `at`, which is not after virtual time, and gives virtual time,
    /// which then does not change at least until the port raises its leaf.
    pub fn pin(&self, port: PortId, at: VTime) -> VTime {
        let mut node = self.tree.leaf(port);
        self.store(node, Some(at));
        P::fence();
        loop {
            node = self.tree.parent(node);
            let before = self.update(node, |old| {
                // The root is virtual time, which never goes back: a pin only changes its stamp.
                let least = if node != Tree::ROOT && is_before(Some(at), tag(old)) {
                    Some(at)
                } else {
                    tag(old)
                };
                Some(restamp(least, old))
            });
            if node == Tree::ROOT {
                return VTime::from_word(before);
            }
        }
    }

    /// Lowers the port's leaf to `lead`, or sets it if it was empty, and then lowers its ancestors
    /// up to the first whose least does not change. Returns virtual time if the arrival moved it
    /// on. Unlike [`Self::pin`] it does not keep virtual time from moving: `lead` is before virtual
    /// time if virtual time has moved past `lead` since the caller read virtual time.
    pub fn arrive(&self, port: PortId, lead: VTime) -> Option<VTime> {
        let mut node = self.tree.leaf(port);
        self.store(node, Some(lead));
        P::fence();
        loop {
            let child = node;
            node = self.tree.parent(node);
            if node == Tree::ROOT {
                // If no request waited on any port, the arrival moves virtual time on.
                return self.ascend(child);
            }
            let mut is_least = false;
            // A node whose least does not change is stamped, too, so that no raise under way passes
            // over the arrival.
            self.update(node, |old| {
                is_least = is_before(Some(lead), tag(old));
                Some(restamp(if is_least { Some(lead) } else { tag(old) }, old))
            });
            P::fence();
            // The lead does not change this node's least, so it changes no ancestor's either.
            if !is_least {
                return None;
            }
        }
    }

    /// Raises the port's leaf to `lead`, `None` if no request waits; returns virtual time if this
    /// moved it on.
    pub fn raise(&self, port: PortId, lead: Option<VTime>) -> Option<VTime> {
        let leaf = self.tree.leaf(port);
        self.store(leaf, lead);
        P::fence();
        self.ascend(leaf)
    }

    /// Raises the ancestors of a node that has been written, up to the first whose least does not
    /// change.
    fn ascend(&self, mut node: usize) -> Option<VTime> {
        loop {
            node = self.tree.parent(node);
            let mut least = None;
            let mut moved = false;
            self.update(node, |old| {
                least = self.least_child(node);
                moved = if node == Tree::ROOT {
                    // Without requests virtual time stays where it is.
                    least.is_some() && is_before(tag(old), least)
                } else {
                    is_before(tag(old), least)
                };
                moved.then(|| restamp(least, old))
            });
            // The next step's reads come after this swap, as the first step's came after the leaf's
            // store.
            P::fence();
            match (moved, node) {
                // A node that stays as it is changes no ancestor.
                (false, _) => return None,
                (true, Tree::ROOT) => return least,
                (true, _) => {}
            }
        }
    }

    /// The least tag below an inner node.
    #[inline]
    fn least_child(&self, node: usize) -> Option<VTime> {
        self.tree.children(node).fold(None, |least, child| {
            let other = tag(self.load(child));
            if is_before(other, least) { other } else { least }
        })
    }

    /// Replaces a node's word by the result of `change`, and tries again if another port has
    /// changed the word meanwhile. If `change` gives `None`, the word stays. Returns the word
    /// before the change.
    #[inline]
    fn update(&self, node: usize, mut change: impl FnMut(u64) -> Option<u64>) -> u64 {
        let Some(word) = self.words.get(node) else { return 0 };
        let mut old = word.load(Ordering::SeqCst);
        while let Some(new) = change(old) {
            match word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        old
    }

    #[inline]
    fn load(&self, node: usize) -> u64 {
        self.words.get(node).map_or(EMPTY, |word| word.load(Ordering::SeqCst))
    }

    #[inline]
    fn store(&self, leaf: usize, value: Option<VTime>) {
        if let Some(word) = self.words.get(leaf) {
            // A leaf needs no stamp, because only its own port writes it, and never by
            // compare-and-swap.
            word.store(value.map_or(EMPTY, VTime::to_word), Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use crate::structures::topology::Topology;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn trees() -> [Tree; 3] {
        let two_sockets = Topology::new((0..8).map(|port| (port / 4, port / 2)).collect());
        [Topology::flat(8).tree(), two_sockets.tree(), Topology::flat(1).tree()]
    }

    proptest! {
        /// The tree agrees with a plain list of leads, while one port after the other submits (pin,
        /// tag, raise), dispatches or runs empty. Virtual time is the least lead, or stays the same
        /// if it is later than all leads or there is none. A pin returns it, and `raise` returns it
        /// whenever it moves, also across the wrap.
        #[test]
        fn is_the_least_lead_and_never_decreases(
            shape in 0usize..3,
            origin in prop_oneof![Just(0u64), Just((1 << 56) - 100)],
            steps in prop::collection::vec((0usize..8, 0u64..40, any::<bool>()), 1..300),
        ) {
            let tree = trees()[shape].clone();
            let ports = tree.ports();
            let time = VirtualTime::<Native>::new(tree);
            let origin = VTime::from_units(origin);
            time.pin(PortId(0), VTime::ZERO);
            // One step can move virtual time by at most half of the wrapping range.
            for step in [origin.minus(0).units() / 2, origin.units()] {
                time.raise(PortId(0), Some(VTime::from_units(step)));
            }
            time.raise(PortId(0), None);
            prop_assert_eq!(time.now(), origin);
            let mut leads: Vec<Option<VTime>> = (0..ports).map(|_| None).collect();
            let mut expected = origin;
            for (port, units, empties) in steps {
                let port = port % ports;
                let id = PortId(port as u8);
                let moved = match leads[port] {
                    Some(_) if empties => {
                        leads[port] = None;
                        time.raise(id, None)
                    }
                    Some(lead) => {
                        leads[port] = Some(lead.plus(units));
                        time.raise(id, leads[port])
                    }
                    None => {
                        prop_assert_eq!(time.pin(id, time.now()), expected);
                        leads[port] = Some(expected.plus(units));
                        time.raise(id, leads[port])
                    }
                };
                let least = leads.iter().flatten().copied().reduce(VTime::min);
                let before = expected;
                expected = least.map_or(before, |least| before.max(least));
                prop_assert_eq!(time.now(), expected);
                prop_assert_eq!(moved, (expected != before).then_some(expected));
            }
        }
    }

    proptest! {
        /// The paper's own arrivals agree with the same list: a leaf that arrives is at virtual
        /// time or later, and keeps its tag whatever other leaves do.
        #[test]
        fn arrivals_go_up_as_far_as_the_least_changes(
            shape in 0usize..3,
            steps in prop::collection::vec((0usize..8, 0u64..40, any::<bool>()), 1..300),
        ) {
            let tree = trees()[shape].clone();
            let ports = tree.ports();
            let time = VirtualTime::<Native>::new(tree);
            let mut leads: Vec<Option<VTime>> = (0..ports).map(|_| None).collect();
            let mut expected = VTime::ZERO;
            for (port, units, leaves) in steps {
                let port = port % ports;
                let id = PortId(port as u8);
                let moved = match leads[port] {
                    Some(lead) if leaves => {
                        leads[port] = (units > 20).then(|| lead.plus(units));
                        time.raise(id, leads[port])
                    }
                    // Another flow's request may come before the lead.
                    Some(lead) => {
                        let earlier = expected.max(lead.minus(units));
                        leads[port] = Some(earlier);
                        time.arrive(id, earlier)
                    }
                    None => {
                        leads[port] = Some(expected.plus(units));
                        time.arrive(id, expected.plus(units))
                    }
                };
                let least = leads.iter().flatten().copied().reduce(VTime::min);
                let before = expected;
                expected = least.map_or(before, |least| before.max(least));
                prop_assert_eq!(time.now(), expected);
                prop_assert_eq!(moved, (expected != before).then_some(expected));
            }
        }
    }

    #[test]
    fn the_spread_is_the_foremost_lead_s() {
        for tree in trees() {
            let time = VirtualTime::<Native>::new(tree);
            assert_eq!(time.spread(), 0);
            let first = time.pin(PortId(0), time.now());
            time.raise(PortId(0), Some(first.plus(100)));
            assert_eq!(time.spread(), 0, "alone it is virtual time");
            if time.tree.ports() > 1 {
                time.pin(PortId(1), time.now());
                time.raise(PortId(1), Some(first.plus(350)));
                assert_eq!(time.spread(), 250);
            }
            time.raise(PortId(0), None);
            assert_eq!(time.spread(), 0);
        }
    }

    #[test]
    fn a_pin_lowers_a_lead_that_is_there() {
        let time = VirtualTime::<Native>::new(Topology::flat(2).tree());
        let [a, b] = [PortId(0), PortId(1)];
        time.raise(a, Some(VTime::from_units(10)));
        assert_eq!(time.now().units(), 10);
        assert_eq!(time.pin(b, time.now()).units(), 10);
        assert_eq!(time.raise(b, Some(VTime::from_units(30))), None);
        assert_eq!(time.raise(a, Some(VTime::from_units(20))).map(VTime::units), Some(20));
        // A request of an idle flow comes before b's lead: its tag is 20, and virtual time stays
        // until the request is gone.
        assert_eq!(time.pin(b, time.now()).units(), 20);
        assert_eq!(time.raise(a, Some(VTime::from_units(50))), None);
        assert_eq!(time.raise(b, Some(VTime::from_units(30))).map(VTime::units), Some(30));
        assert_eq!(time.raise(b, None).map(VTime::units), Some(50));
        assert_eq!(time.raise(a, None), None);
        assert_eq!(time.now().units(), 50);
    }
}
