//! The slots of the device, and the ports that wait for one (Sections 3.2 and 3.3).
//!
//! **Problem.** At most D requests may be outstanding. One shared counter is written twice per
//! request by every core; and a port that frees a slot must find a port to use it, or the device
//! idles. **Model.** Free slots are tokens in a tree with a counter per port, core, socket and
//! machine. A port takes a token from its own leaf, else from the lowest ancestor that has any,
//! else from any other node above leaves. A port whose request completes keeps the token if it can
//! use it. Otherwise it gives the token to the nearest *ready* port (a port with a request that may
//! be issued, which found no token) through the lowest node above both, and wakes that port. A port
//! that stops for another reason (nothing waits, or throttled) gives its tokens to ready ports in
//! the same way, and puts the others into the node above its leaf ([`Slots::stop`]), so that they
//! stay on the core or in the socket. A leaf is written by its port alone and needs no atomic
//! read-modify-write: a port that keeps running costs no cache traffic at all.
//!
//! **The paper leaves open** to which node a token goes if no port waits. A token in the root would
//! cost each request of a port that runs empty two transfers of the root's line; a token in the
//! leaf could be taken by no other port (decision 6).
//!
//! **The ready set** is one word, a bit per port. To *claim* a port is to clear its bit; only one
//! claimer succeeds, and that claimer alone wakes the port, so two completions wake two ports.
//!
//! **Invariants** (argued above the verbs): tokens and requests add up to D, no token is stranded,
//! no wake-up is lost.
//!
//! **Changing D** ([`Slots::resize`]). Tokens lie in leaves that only their ports may write, and
//! outstanding requests cannot be recalled. So D is reduced by a *debt*: while there is a debt, a
//! port that takes tokens ([`Slots::acquire_owing`]) pays the debt with them, with all of a node at
//! once; it uses the first token that it finds when the debt is 0. Ports learn from a word that
//! they read anyway that there may be a debt, and stop checking once they have found it paid.
//! Tokens, less the debt, and the requests outstanding add up to the new D at once; a port that has
//! been notified of the change sends no request beyond the new D. D is increased by cancelling
//! debt, putting the rest of the tokens into the root and waking the ready ports.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use crate::contract::bounds::boxed;
use crate::contract::platform::{AtomicWord, Lock, Ordering, Platform};
use crate::contract::port_set::{PortBits, PortId, PortSet, SharedPorts};
use crate::structures::topology::Tree;

/// Slots and ready ports.
pub(super) struct Slots<P: Platform> {
    tree: Tree,
    ready: CachePadded<PortBits<P>>,
    /// The tokens in each node.
    words: Box<[CachePadded<P::U64>]>,
    /// The debt: tokens to be withdrawn.
    debt: CachePadded<P::U64>,
    /// D.
    total: P::Mutex<u32>,
}

// **Invariants.**
// 1. *Conservation.* The tokens in all nodes and the requests outstanding add up to D; tokens only
//    move.
// 2. *No token is stranded.* Tokens in a leaf imply that its port is running, i.e. the port will
//    call `next` (it was woken, or its owner is calling its verbs). `next` ends by taking a token,
//    or by finding none, or in `stop`, which empties the leaf. Any port can take tokens from all
//    other nodes.
// 3. *No wake-up is lost.* A port that finds no token sets its ready bit and *then* reads all nodes
//    above leaves again; a port that puts a token into such a node *then* reads the ready set. In
//    the total order of these accesses, one of the two ports sees the other's write. A port that
//    was claimed for a token may have nothing left to send, or another port may have taken the
//    token; so a port that stops and finds others ready counts the tokens in all these nodes, and
//    claims as many ports. It need not do so if it has just claimed a port: the claimed port runs,
//    and will count them when it stops.
//
// So if every port has been run after its last wake-up, a token and a ready port exclude each
// other: the device is idle only if no request may go.
impl<P: Platform> Slots<P> {
    /// `slots` free slots; no port is ready.
    pub(super) fn new(tree: Tree, slots: u32) -> Self {
        let at = |node| if node == Tree::ROOT { u64::from(slots) } else { 0 };
        let words = boxed(tree.nodes(), |node| CachePadded::new(P::U64::new(at(node))));
        let ready = CachePadded::new(PortBits::new(tree.ports()));
        let debt = CachePadded::new(P::U64::new(0));
        Slots { tree, ready, words, debt, total: P::Mutex::new(slots) }
    }

    /// D.
    pub(super) fn total(&self) -> u32 {
        self.total.with(|total| *total)
    }

    /// Changes D and returns the ports to wake. The caller notifies all ports, which take slots by
    /// [`Self::acquire_owing`] from then on.
    pub(super) fn resize(&self, slots: u32) -> PortSet {
        // D changes under the lock, so that the second of two concurrent changes starts from the D
        // of the first.
        self.total.with(|total| {
            let old = core::mem::replace(total, slots);
            if slots <= old {
                // Only a leaf's own port may take tokens from the leaf, so the surplus becomes
                // debt, which ports pay as they find tokens.
                self.debt.fetch_add(u64::from(old - slots), Ordering::SeqCst);
                return PortSet::EMPTY;
            }
            // The debt of a smaller D is cancelled first; only the rest are new tokens.
            let more = u64::from(slots - old);
            self.add(more.wrapping_sub(self.forgive(more)))
        })
    }

    /// Reduces the debt by up to `most`; returns the reduction.
    fn forgive(&self, most: u64) -> u64 {
        take_up_to(&*self.debt, most)
    }

    /// Puts new tokens where all ports can take them; claims all ready ports and returns them, to
    /// be woken.
    fn add(&self, tokens: u64) -> PortSet {
        let root = self.words.get(Tree::ROOT).filter(|_| tokens != 0);
        let Some(root) = root else { return PortSet::EMPTY };
        root.fetch_add(tokens, Ordering::SeqCst);
        // A port that becomes ready changes the same word, either before this access, and is then
        // woken, or after it, and then finds the tokens.
        self.ready().take(Ordering::SeqCst)
    }

    /// Takes a slot, after it has paid the debt with the tokens that it finds. Returns whether it
    /// took one, and whether any debt is left.
    #[cold]
    pub(super) fn acquire_owing(&self, port: PortId) -> (bool, bool) {
        // The loop takes one step for each node: more steps are needed only while other ports add
        // tokens.
        for _ in 0..=self.tree.nodes() {
            let owed = self.debt.load(Ordering::SeqCst);
            if owed == 0 {
                return (self.acquire(port), false);
            }
            let found = self.acquire_many(port, owed);
            if found == 0 {
                return (false, true);
            }
            // A token that pays is taken before the debt is reduced, so that no port uses the
            // token.
            let left = found.wrapping_sub(self.forgive(found));
            if left > 0 {
                // Others have paid meanwhile, or D is greater. This port uses one token and keeps
                // the rest, as if they lay in its leaf: it runs, so they are not stranded
                // (invariant 2).
                self.keep(port, left.wrapping_sub(1));
                return (true, false);
            }
        }
        (false, true)
    }

    /// Takes up to `most` tokens from the first node that has any, as [`Self::acquire`] finds one.
    fn acquire_many(&self, port: PortId, most: u64) -> u64 {
        let Slots { words, .. } = self;
        let mut node = self.tree.leaf(port);
        if let Some(leaf) = words.get(node) {
            let tokens = leaf.load(Ordering::Relaxed);
            if tokens != 0 {
                let taken = tokens.min(most);
                // No other port writes the leaf.
                leaf.store(tokens.wrapping_sub(taken), Ordering::Relaxed);
                return taken;
            }
        }
        let take = |word: &CachePadded<P::U64>| Some(take_up_to(&**word, most)).filter(|&n| n > 0);
        while node != Tree::ROOT {
            node = self.tree.parent(node);
            if let Some(taken) = words.get(node).and_then(take) {
                return taken;
            }
        }
        let elsewhere = words.get(1..self.tree.inner()).unwrap_or_default();
        elsewhere.iter().find_map(take).unwrap_or(0)
    }

    /// Adds these tokens to the port's leaf.
    fn keep(&self, port: PortId, tokens: u64) {
        if let Some(leaf) = self.words.get(self.tree.leaf(port)) {
            leaf.store(leaf.load(Ordering::Relaxed).wrapping_add(tokens), Ordering::Relaxed);
        }
    }

    /// Takes a slot, if it finds one.
    #[inline]
    pub(super) fn acquire(&self, port: PortId) -> bool {
        let Slots { words, .. } = self;
        let mut node = self.tree.leaf(port);
        if let Some(leaf) = words.get(node) {
            let tokens = leaf.load(Ordering::Relaxed);
            if tokens != 0 {
                // No other port writes the leaf, so a load and a store are enough.
                leaf.store(tokens.wrapping_sub(1), Ordering::Relaxed);
                return true;
            }
        }
        while node != Tree::ROOT {
            node = self.tree.parent(node);
            if words.get(node).is_some_and(|word| take_one(&**word)) {
                return true;
            }
        }
        // The other nodes above leaves; the root, the first of all nodes, has been checked.
        let elsewhere = words.get(1..self.tree.inner()).unwrap_or_default();
        elsewhere.iter().any(|word| take_one(&**word))
    }

    /// Whether the port might find a slot now; takes none.
    pub(super) fn has_any(&self, port: PortId) -> bool {
        let leaf = self.words.get(self.tree.leaf(port));
        leaf.is_some_and(|leaf| leaf.load(Ordering::Relaxed) != 0) || self.lying() != 0
    }

    /// The tokens above leaves, which any port may take. Exact while no token moves.
    fn lying(&self) -> u64 {
        let inner = self.words.get(..self.tree.inner()).unwrap_or_default();
        inner.iter().fold(0u64, |sum, word| sum.wrapping_add(word.load(Ordering::SeqCst)))
    }

    /// Marks the port as ready. The caller then tries again to take a slot.
    pub(super) fn enlist(&self, port: PortId) {
        self.ready().insert(port, Ordering::SeqCst);
        P::fence();
    }

    /// Whether the port is marked as ready and not claimed.
    #[inline]
    pub(super) fn is_enlisted(&self, port: PortId) -> bool {
        self.ready().contains(port, Ordering::SeqCst)
    }

    /// Clears the port's mark. If a claimer was faster, a wake-up is on its way.
    pub(super) fn delist(&self, port: PortId) {
        self.ready().remove(port, Ordering::SeqCst);
    }

    /// Frees the slot of a completed request of `port`, which is about to call `next`: the port
    /// keeps the slot if it `can_use` it or no other port is ready. Returns the ports to wake.
    #[inline]
    pub(super) fn release(&self, port: PortId, can_use: bool) -> PortSet {
        let claimed = if can_use { None } else { self.claim(port) };
        // No port is claimed: the token stays in the leaf of this port, which runs (invariant 2).
        let Some((target, node)) = claimed else {
            self.keep(port, 1);
            return PortSet::EMPTY;
        };
        if let Some(word) = self.words.get(node) {
            word.fetch_add(1, Ordering::SeqCst);
        }
        PortSet::only(target)
    }

    /// Records that the port stops with no request that may be issued: gives the tokens of its leaf
    /// to the nearest ready ports, and puts the rest into the node above the leaf, where a port
    /// that finds no token on its own path takes them. Returns the ports to wake.
    #[inline]
    pub(super) fn stop(&self, port: PortId) -> PortSet {
        let leaf = self.tree.leaf(port);
        let mut carried = self.words.get(leaf).map_or(0, |leaf| leaf.load(Ordering::Relaxed));
        if let Some(leaf) = self.words.get(leaf).filter(|_| carried != 0) {
            leaf.store(0, Ordering::Relaxed);
        }
        let mut woken = PortSet::EMPTY;
        while carried != 0
            && let Some((target, node)) = self.claim(port)
        {
            if let Some(word) = self.words.get(node) {
                word.fetch_add(1, Ordering::SeqCst);
            }
            carried = carried.wrapping_sub(1);
            woken.insert(target);
        }
        if carried != 0
            && let Some(word) = self.words.get(self.tree.parent(leaf))
        {
            word.fetch_add(carried, Ordering::SeqCst);
            // The tokens are in the node before the ready set is read.
            P::fence();
        } else if !woken.is_empty() {
            // The woken ports count the remaining tokens when they stop (invariant 3).
            return woken;
        }
        if self.ready().is_empty(Ordering::SeqCst) {
            return woken;
        }
        woken.extend(self.claim_up_to(self.lying(), port));
        woken
    }

    /// The ports that wait for a slot.
    #[inline]
    fn ready(&self) -> SharedPorts<'_, P::U64> {
        self.ready.set()
    }

    /// Free slots less the debt. Exact while no token moves.
    pub(super) fn free(&self) -> u64 {
        let tokens = self.words.iter().map(|word| word.load(Ordering::SeqCst));
        let free = tokens.fold(0, u64::wrapping_add);
        // The debt may exceed the free slots while requests beyond the new D are on the device.
        free.saturating_sub(self.debt.load(Ordering::SeqCst))
    }

    /// Claims the nearest ready port; returns that port and the lowest node above both ports. Each
    /// round after the first has lost a port to another claimer, so there are at most as many
    /// rounds as ports.
    #[inline]
    fn claim(&self, port: PortId) -> Option<(PortId, usize)> {
        let mut ready = self.ready().load(Ordering::SeqCst);
        while let Some((target, node)) = self.tree.nearest(port, ready) {
            if self.ready().remove(target, Ordering::SeqCst) {
                return Some((target, node));
            }
            ready = self.ready().load(Ordering::SeqCst);
        }
        None
    }

    fn claim_up_to(&self, count: u64, port: PortId) -> PortSet {
        let mut claimed = PortSet::EMPTY;
        while (claimed.len() as u64) < count {
            let Some((target, _)) = self.claim(port) else { break };
            claimed.insert(target);
        }
        claimed
    }
}

/// Subtracts up to `most` from a counter; returns the amount.
fn take_up_to<A: AtomicWord>(word: &A, most: u64) -> u64 {
    let mut tokens = word.load(Ordering::SeqCst);
    loop {
        let taken = tokens.min(most);
        if taken == 0 {
            return 0;
        }
        let rest = tokens.wrapping_sub(taken);
        match word.compare_exchange(tokens, rest, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return taken,
            Err(now) => tokens = now,
        }
    }
}

/// Subtracts 1 from a counter that is not 0; returns false if it is 0.
#[inline]
fn take_one<A: AtomicWord>(word: &A) -> bool {
    let mut tokens = word.load(Ordering::SeqCst);
    while tokens != 0 {
        match word.compare_exchange(
            tokens,
            tokens.wrapping_sub(1),
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            Ok(_) => return true,
            Err(now) => tokens = now,
        }
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use crate::structures::topology::Topology;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Ports that each want to send some requests, and use the slots as `Local` does.
    struct Bench {
        slots: Slots<Native>,
        wanted: Vec<u32>,
        held: Vec<u32>,
        enlisted: Vec<bool>,
        wake: PortSet,
    }

    impl Bench {
        fn new(slots: u32) -> Self {
            let tree = Topology::new((0..8).map(|port| (port / 4, port / 2)).collect()).tree();
            Bench {
                slots: Slots::new(tree, slots),
                wanted: std::vec![0; 8],
                held: std::vec![0; 8],
                enlisted: std::vec![false; 8],
                wake: PortSet::EMPTY,
            }
        }

        fn run(&mut self, port: usize) {
            let id = PortId(port as u8);
            while self.wanted[port] > 0 {
                let mut taken = self.slots.acquire(id);
                if !taken {
                    self.slots.enlist(id);
                    self.enlisted[port] = true;
                    taken = self.slots.acquire(id);
                }
                if !taken {
                    return;
                }
                self.delist(port);
                self.held[port] += 1;
                self.wanted[port] -= 1;
            }
            self.delist(port);
            self.wake.extend(self.slots.stop(id));
        }

        fn delist(&mut self, port: usize) {
            if core::mem::take(&mut self.enlisted[port]) {
                self.slots.delist(PortId(port as u8));
            }
        }

        fn complete(&mut self, port: usize) {
            if self.held[port] > 0 {
                self.held[port] -= 1;
                let can_use = self.wanted[port] > 0;
                self.wake.extend(self.slots.release(PortId(port as u8), can_use));
                // By the contract the port calls `next` some time after.
                self.wake.insert(PortId(port as u8));
            }
        }

        fn deliver(&mut self) {
            while let Some(port) = self.wake.next() {
                self.run(usize::from(port.0));
            }
        }

        fn outstanding(&self) -> u64 {
            self.held.iter().map(|&held| u64::from(held)).sum()
        }
    }

    proptest! {
        /// Slots are conserved at every step; and once every wake-up has been delivered, a free
        /// slot and a request that could use it exclude each other.
        #[test]
        fn conserved_and_never_idle(
            slots in 1u32..20,
            steps in prop::collection::vec((0usize..8, 0u32..6, 0u8..4), 1..200),
        ) {
            let mut bench = Bench::new(slots);
            for (port, requests, action) in steps {
                match action {
                    0 => {
                        bench.wanted[port] += requests;
                        bench.run(port);
                    }
                    1 => bench.complete(port),
                    2 => (0..requests).for_each(|_| bench.complete(port)),
                    _ => bench.deliver(),
                }
                prop_assert_eq!(bench.slots.free() + bench.outstanding(), u64::from(slots));
                if bench.wake.is_empty() {
                    let wanted: u32 = bench.wanted.iter().sum();
                    prop_assert!(wanted == 0 || bench.slots.free() == 0, "{} wanted, {} \
                     free", wanted, bench.slots.free());
                }
            }
        }
    }

    #[test]
    fn two_completions_wake_two_ports_nearest_first() {
        let mut bench = Bench::new(2);
        bench.wanted[0] = 2;
        bench.run(0);
        for port in [7, 3, 1] {
            bench.wanted[port] = 1;
            bench.run(port);
        }
        for expected in [1, 3] {
            let woken = bench.slots.release(PortId(0), false);
            assert_eq!(woken, PortSet::only(PortId(expected)));
        }
        bench.wake = [PortId(1), PortId(3)].into_iter().collect();
        bench.deliver();
        assert_eq!((bench.wanted[1], bench.wanted[3], bench.wanted[7]), (0, 0, 1));
    }

    #[test]
    fn who_stops_gives_a_token_to_each_that_waits_and_lays_the_rest_down() {
        let mut bench = Bench::new(3);
        bench.wanted[0] = 3;
        bench.run(0);
        for port in [2, 6] {
            bench.wanted[port] = 1;
            bench.run(port);
        }
        // Port 0 keeps three tokens that it could use, and then has no request for them.
        bench.wanted[0] = 1;
        (0..3).for_each(|_| bench.complete(0));
        assert_eq!(bench.wake, PortSet::only(PortId(0)));
        bench.wanted[0] = 0;
        bench.wake = PortSet::EMPTY;
        bench.run(0);
        assert_eq!(bench.wake, [PortId(2), PortId(6)].into_iter().collect());
        bench.deliver();
        assert_eq!((bench.held[2], bench.held[6], bench.slots.free()), (1, 1, 1));
        // The third token lies above port 0, where a port on the other socket finds it, too.
        bench.wanted[7] = 1;
        bench.run(7);
        assert_eq!((bench.held[7], bench.slots.free()), (1, 0));
    }
}
