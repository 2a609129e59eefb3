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
//! **Open in the paper:** the node for a token if no port waits. In the root it would cost each
//! request of a port that runs empty two transfers of the root's line; in the leaf no other port
//! could take it (decision 6).
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
//!
//! **Alternatives** (Section 4.3.3), with the same ready set: one shared counter; and a scalable
//! bitmap: each slot is a bit, the bits are spread over cache lines as Linux spreads them, and a
//! port begins its search in the line where it last found a free bit. With a counter or a bitmap no
//! token belongs to a port, so a port that stops also checks whether slots are free while others
//! are ready. The bitmap's D is fixed.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use super::config::SlotKind;
use crate::contract::platform::{AtomicWord, Lock, Ordering, Platform};
use crate::contract::port_set::{PortBits, PortId, PortSet, SharedPorts};
use crate::structures::allocation::boxed;
use crate::structures::topology::Tree;

/// Slots and ready ports.
pub(super) struct Slots<P: Platform> {
    tree: Tree,
    ready: CachePadded<PortBits<P>>,
    kind: Kind<P>,
    /// Whether a port takes tokens that do not lie on its path; else invariant 2 does not hold.
    looks_elsewhere: bool,
    /// The debt: tokens to be withdrawn.
    debt: CachePadded<P::U64>,
    /// D.
    total: P::Mutex<u32>,
}

enum Kind<P: Platform> {
    Tree(Box<[CachePadded<P::U64>]>),
    Counter(CachePadded<P::U64>),
    Bitmap(Bitmap<P>),
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
    pub(super) fn new(kind: SlotKind, tree: Tree, slots: u32, looks_elsewhere: bool) -> Self {
        let kind = match kind {
            SlotKind::TokenTree => {
                let at = |node| if node == Tree::ROOT { u64::from(slots) } else { 0 };
                Kind::Tree(boxed(tree.nodes(), |node| CachePadded::new(P::U64::new(at(node)))))
            }
            SlotKind::AtomicCounter => {
                Kind::Counter(CachePadded::new(P::U64::new(u64::from(slots))))
            }
            SlotKind::ScalableBitmap => Kind::Bitmap(Bitmap::new(slots)),
        };
        let zero = || CachePadded::new(P::U64::new(0));
        let ready = CachePadded::new(PortBits::new(tree.ports()));
        Slots { tree, ready, kind, looks_elsewhere, debt: zero(), total: P::Mutex::new(slots) }
    }

    /// D.
    pub(super) fn total(&self) -> u32 {
        self.total.with(|total| *total)
    }

    /// Changes D and returns the ports to wake; `None` if D is fixed. The caller notifies all
    /// ports, which take slots by [`Self::acquire_owing`] from then on.
    pub(super) fn resize(&self, slots: u32) -> Option<PortSet> {
        if matches!(self.kind, Kind::Bitmap(_)) {
            return None;
        }
        // Under the lock, so that the second of two concurrent changes starts from the D of the
        // first.
        self.total.with(|total| {
            let old = core::mem::replace(total, slots);
            if slots <= old {
                // Only its port may take tokens from a leaf, so the surplus becomes debt, which
                // ports pay as they find tokens.
                self.debt.fetch_add(u64::from(old - slots), Ordering::SeqCst);
                return Some(PortSet::EMPTY);
            }
            // The debt of a smaller D is cancelled first; only the rest are new tokens.
            let more = u64::from(slots - old);
            Some(self.add(more.wrapping_sub(self.forgive(more))))
        })
    }

    /// Reduces the debt by up to `most`; returns the reduction.
    fn forgive(&self, most: u64) -> u64 {
        take_up_to(&*self.debt, most)
    }

    /// Puts new tokens where all ports can take them; claims all ready ports and returns them, to
    /// be woken.
    fn add(&self, tokens: u64) -> PortSet {
        let root = match &self.kind {
            Kind::Tree(words) => words.get(Tree::ROOT),
            Kind::Counter(word) => Some(word),
            Kind::Bitmap(_) => None,
        };
        let Some(root) = root.filter(|_| tokens != 0) else { return PortSet::EMPTY };
        root.fetch_add(tokens, Ordering::SeqCst);
        // A port that becomes ready changes the same word: before this access, and is woken, or
        // after it, and finds the tokens.
        self.ready().take(Ordering::SeqCst)
    }

    /// Takes a slot, after it has paid the debt with the tokens that it finds. The second value is
    /// false once no debt is left.
    #[cold]
    pub(super) fn acquire_owing(&self, port: PortId, hint: &mut u32) -> (Option<u32>, bool) {
        // One step for each node: more steps are needed only while other ports put tokens down.
        for _ in 0..=self.tree.nodes() {
            let owed = self.debt.load(Ordering::SeqCst);
            if owed == 0 {
                return (self.acquire(port, hint), false);
            }
            let found = self.acquire_many(port, owed);
            if found == 0 {
                return (None, true);
            }
            // Tokens first: a token that pays is taken before the debt is reduced, so that no port
            // uses it.
            let left = found.wrapping_sub(self.forgive(found));
            if left > 0 {
                // Others have paid meanwhile, or D is greater. This port uses one token and keeps
                // the rest, as if they lay in its leaf: it runs, so they are not stranded
                // (invariant 2).
                self.keep(port, left.wrapping_sub(1));
                return (Some(0), false);
            }
        }
        (None, true)
    }

    /// Takes up to `most` tokens from the first node that has any, as [`Self::acquire`] finds one.
    fn acquire_many(&self, port: PortId, most: u64) -> u64 {
        let words = match &self.kind {
            Kind::Tree(words) => words,
            Kind::Counter(word) => return take_up_to(&**word, most),
            // The bitmap's D is fixed, so it has no debt.
            Kind::Bitmap(_) => return 0,
        };
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
        let elsewhere = elsewhere.iter().filter(|_| self.looks_elsewhere).find_map(take);
        elsewhere.unwrap_or(0)
    }

    /// Adds these tokens to the port's leaf, or to the shared counter.
    fn keep(&self, port: PortId, tokens: u64) {
        match &self.kind {
            Kind::Tree(words) => {
                if let Some(leaf) = words.get(self.tree.leaf(port)) {
                    let before = leaf.load(Ordering::Relaxed);
                    leaf.store(before.wrapping_add(tokens), Ordering::Relaxed);
                }
            }
            Kind::Counter(word) => _ = word.fetch_add(tokens, Ordering::SeqCst),
            Kind::Bitmap(_) => {}
        }
    }

    /// Takes a slot. `hint` is the word of the bitmap in which the port last found one.
    #[inline]
    pub(super) fn acquire(&self, port: PortId, hint: &mut u32) -> Option<u32> {
        match &self.kind {
            Kind::Tree(words) => self.acquire_token(words, port).then_some(0),
            Kind::Counter(word) => take_one(&**word).then_some(0),
            Kind::Bitmap(bitmap) => bitmap.acquire(hint),
        }
    }

    #[inline]
    fn acquire_token(&self, words: &[CachePadded<P::U64>], port: PortId) -> bool {
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
        self.looks_elsewhere && elsewhere.iter().any(|word| take_one(&**word))
    }

    /// Whether the port might find a slot now; takes none.
    pub(super) fn has_any(&self, port: PortId) -> bool {
        match &self.kind {
            Kind::Tree(words) => {
                let leaf = words.get(self.tree.leaf(port));
                leaf.is_some_and(|leaf| leaf.load(Ordering::Relaxed) != 0) || self.lying(words) != 0
            }
            Kind::Counter(_) | Kind::Bitmap(_) => self.free() > 0,
        }
    }

    /// The tokens above leaves, which any port may take. Exact while no token moves.
    fn lying(&self, words: &[CachePadded<P::U64>]) -> u64 {
        let inner = words.get(..self.tree.inner()).unwrap_or_default();
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
    pub(super) fn release(&self, port: PortId, slot: u32, can_use: bool) -> PortSet {
        match &self.kind {
            Kind::Tree(words) => {
                let claimed =
                    if can_use { None } else { self.claim(port, self.tree.members(Tree::ROOT)) };
                // No port is claimed: the token stays in the leaf of this port, which runs
                // (invariant 2).
                let Some((target, node)) = claimed else {
                    if let Some(leaf) = words.get(self.tree.leaf(port)) {
                        leaf.store(leaf.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
                    }
                    return PortSet::EMPTY;
                };
                if let Some(word) = words.get(node) {
                    word.fetch_add(1, Ordering::SeqCst);
                }
                PortSet::only(target)
            }
            Kind::Counter(word) => {
                word.fetch_add(1, Ordering::SeqCst);
                self.wake_unless(can_use, port)
            }
            Kind::Bitmap(bitmap) => {
                bitmap.release(slot);
                self.wake_unless(can_use, port)
            }
        }
    }

    /// The port stops with no request that may be issued: the tokens of its leaf go to ready ports,
    /// or into the node above the leaf. Returns the ports to wake.
    #[inline]
    pub(super) fn stop(&self, port: PortId) -> PortSet {
        match &self.kind {
            Kind::Tree(words) => self.lay_down(words, port),
            Kind::Counter(_) | Kind::Bitmap(_) => {
                // Only if a port is ready, because counting the bitmap's free slots reads all of
                // its words.
                if self.ready().is_empty(Ordering::SeqCst) {
                    return PortSet::EMPTY;
                }
                self.claim_up_to(self.free(), port, self.tree.members(Tree::ROOT))
            }
        }
    }

    /// Gives the tokens of the port's leaf to the nearest ready ports, and puts the rest into the
    /// node above the leaf, where a port finds it if it finds none on its own path.
    #[inline]
    fn lay_down(&self, words: &[CachePadded<P::U64>], port: PortId) -> PortSet {
        let leaf = self.tree.leaf(port);
        let mut carried = words.get(leaf).map_or(0, |leaf| leaf.load(Ordering::Relaxed));
        if let Some(leaf) = words.get(leaf).filter(|_| carried != 0) {
            leaf.store(0, Ordering::Relaxed);
        }
        let mut woken = PortSet::EMPTY;
        while carried != 0
            && let Some((target, node)) = self.claim(port, self.tree.members(Tree::ROOT))
        {
            if let Some(word) = words.get(node) {
                word.fetch_add(1, Ordering::SeqCst);
            }
            carried = carried.wrapping_sub(1);
            woken.insert(target);
        }
        if carried != 0
            && let Some(word) = words.get(self.tree.parent(leaf))
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
        woken.extend(self.claim_up_to(self.lying(words), port, self.tree.members(Tree::ROOT)));
        woken
    }

    /// The ports that wait for a slot.
    #[inline]
    fn ready(&self) -> SharedPorts<'_, P::U64> {
        self.ready.set()
    }

    /// Free slots less the debt. Exact while no token moves.
    pub(super) fn free(&self) -> u64 {
        let free: u64 = match &self.kind {
            Kind::Tree(words) => {
                words.iter().fold(0u64, |sum, word| sum.wrapping_add(word.load(Ordering::SeqCst)))
            }
            Kind::Counter(word) => word.load(Ordering::SeqCst),
            Kind::Bitmap(bitmap) => bitmap.free(),
        };
        // The debt may exceed the free slots while requests beyond the new D are on the device.
        free.saturating_sub(self.debt.load(Ordering::SeqCst))
    }

    /// Claims a ready port after a slot that belongs to no port was freed, if the freeing port
    /// cannot use it. Returns it, to be woken.
    #[inline]
    fn wake_unless(&self, can_use: bool, port: PortId) -> PortSet {
        P::fence();
        let claimed = if can_use { None } else { self.claim(port, self.tree.members(Tree::ROOT)) };
        claimed.map_or(PortSet::EMPTY, |(target, _)| PortSet::only(target))
    }

    /// Claims the nearest ready port of `among`; returns that port and the lowest node above both
    /// ports. Each round after the first has lost a port to another claimer, so there are at most
    /// as many rounds as ports.
    #[inline]
    fn claim(&self, port: PortId, among: PortSet) -> Option<(PortId, usize)> {
        let mut ready = self.ready().load(Ordering::SeqCst);
        while let Some((target, node)) = self.tree.nearest(port, ready.and(among)) {
            if self.ready().remove(target, Ordering::SeqCst) {
                return Some((target, node));
            }
            ready = self.ready().load(Ordering::SeqCst);
        }
        None
    }

    fn claim_up_to(&self, count: u64, port: PortId, among: PortSet) -> PortSet {
        let mut claimed = PortSet::EMPTY;
        while (claimed.len() as u64) < count {
            let Some((target, _)) = self.claim(port, among) else { break };
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

/// A set bit is a slot in use.
struct Bitmap<P: Platform> {
    words: Box<[CachePadded<P::U64>]>,
    slots: u32,
    /// The number of slots in each word; the last word may have fewer.
    per_word: u32,
}

impl<P: Platform> Bitmap<P> {
    /// Spreads the slots as Linux does (`sbitmap_init_node`): four slots and more take at least
    /// four words, and a word has at most 64 slots.
    fn new(slots: u32) -> Self {
        let per_word = match slots {
            0..4 => 64,
            _ => (slots / 4).min(64),
        };
        let per_word = 1 << per_word.ilog2();
        let words = slots.div_ceil(per_word);
        Bitmap {
            words: boxed(words as usize, |_| CachePadded::new(P::U64::new(0))),
            slots,
            per_word,
        }
    }

    /// The bits of a word that are slots.
    #[inline]
    fn mask(&self, word: u32) -> u64 {
        let bits = self.slots.saturating_sub(word.wrapping_mul(self.per_word)).min(self.per_word);
        if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
    }

    #[inline]
    fn acquire(&self, hint: &mut u32) -> Option<u32> {
        let count = self.words.len() as u32;
        // The first hint is the port's number, which may be beyond the last word.
        let mut index = hint.checked_rem(count).unwrap_or(0);
        for _ in 0..count {
            if let Some(bit) = self.take_in(index) {
                *hint = index;
                return Some(index << 6 | bit);
            }
            index = index.wrapping_add(1);
            if index == count {
                index = 0;
            }
        }
        None
    }

    #[inline]
    fn take_in(&self, index: u32) -> Option<u32> {
        let word = self.words.get(index as usize)?;
        let mask = self.mask(index);
        let mut used = word.load(Ordering::SeqCst);
        loop {
            let bit = (!used & mask).trailing_zeros();
            if bit == 64 {
                return None;
            }
            let taken = 1u64.wrapping_shl(bit);
            // If another port has set the bit first, the returned word shows the free bits.
            used = word.fetch_or(taken, Ordering::SeqCst);
            if used & taken == 0 {
                return Some(bit);
            }
        }
    }

    #[inline]
    fn release(&self, slot: u32) {
        if let Some(word) = self.words.get((slot >> 6) as usize) {
            word.fetch_and(!1u64.wrapping_shl(slot & 63), Ordering::SeqCst);
        }
    }

    fn free(&self) -> u64 {
        let used: u32 =
            self.words.iter().map(|word| word.load(Ordering::SeqCst).count_ones()).sum();
        u64::from(self.slots).saturating_sub(u64::from(used))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use crate::structures::topology::Topology;
    use proptest::prelude::*;
    use std::vec::Vec;

    const KINDS: [SlotKind; 3] =
        [SlotKind::TokenTree, SlotKind::AtomicCounter, SlotKind::ScalableBitmap];

    /// Ports that each want to send some requests, and use the slots as `Local` does.
    struct Bench {
        slots: Slots<Native>,
        wanted: Vec<u32>,
        held: Vec<Vec<u32>>,
        hints: Vec<u32>,
        enlisted: Vec<bool>,
        wake: PortSet,
    }

    impl Bench {
        fn new(kind: SlotKind, slots: u32) -> Self {
            let tree = Topology::new((0..8).map(|port| (port / 4, port / 2)).collect()).tree();
            Bench {
                slots: Slots::new(kind, tree, slots, true),
                wanted: std::vec![0; 8],
                held: (0..8).map(|_| Vec::new()).collect(),
                hints: (0..8).collect(),
                enlisted: std::vec![false; 8],
                wake: PortSet::EMPTY,
            }
        }

        fn run(&mut self, port: usize) {
            let id = PortId(port as u8);
            while self.wanted[port] > 0 {
                let mut slot = self.slots.acquire(id, &mut self.hints[port]);
                if slot.is_none() {
                    self.slots.enlist(id);
                    self.enlisted[port] = true;
                    slot = self.slots.acquire(id, &mut self.hints[port]);
                }
                let Some(slot) = slot else { return };
                self.delist(port);
                self.held[port].push(slot);
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
            if let Some(slot) = self.held[port].pop() {
                let can_use = self.wanted[port] > 0;
                self.wake.extend(self.slots.release(PortId(port as u8), slot, can_use));
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
            self.held.iter().map(|held| held.len() as u64).sum()
        }
    }

    proptest! {
        /// Slots are conserved at every step; and once every wake-up has been delivered, a free
        /// slot and a request that could use it exclude each other.
        #[test]
        fn conserved_and_never_idle(
            kind in 0usize..3,
            slots in 1u32..20,
            steps in prop::collection::vec((0usize..8, 0u32..6, 0u8..4), 1..200),
        ) {
            let mut bench = Bench::new(KINDS[kind], slots);
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
        for kind in KINDS {
            let mut bench = Bench::new(kind, 2);
            bench.wanted[0] = 2;
            bench.run(0);
            for port in [7, 3, 1] {
                bench.wanted[port] = 1;
                bench.run(port);
            }
            for expected in [1, 3] {
                let slot = bench.held[0].pop().unwrap();
                assert_eq!(
                    bench.slots.release(PortId(0), slot, false),
                    PortSet::only(PortId(expected)),
                    "{kind:?}"
                );
            }
            bench.wake = [PortId(1), PortId(3)].into_iter().collect();
            bench.deliver();
            assert_eq!((bench.wanted[1], bench.wanted[3], bench.wanted[7]), (0, 0, 1));
        }
    }

    #[test]
    fn who_stops_gives_a_token_to_each_that_waits_and_lays_the_rest_down() {
        let mut bench = Bench::new(SlotKind::TokenTree, 3);
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
        assert_eq!((bench.held[2].len(), bench.held[6].len(), bench.slots.free()), (1, 1, 1));
        // The third token lies above port 0, where a port on the other socket finds it, too.
        bench.wanted[7] = 1;
        bench.run(7);
        assert_eq!((bench.held[7].len(), bench.slots.free()), (1, 0));
    }

    #[test]
    fn a_port_can_be_kept_to_its_path() {
        let mut bench = Bench::new(SlotKind::TokenTree, 1);
        bench.slots.looks_elsewhere = false;
        bench.wanted[0] = 1;
        bench.run(0);
        bench.complete(0);
        bench.deliver();
        // The token lies above ports 0 and 1.
        for (port, finds) in [(7, false), (2, false), (1, true)] {
            assert_eq!(bench.slots.acquire(PortId(port), &mut 0).is_some(), finds);
        }
    }

    #[test]
    fn every_bit_of_the_bitmap_is_a_slot() {
        for (slots, words) in [(1, 1), (3, 1), (4, 4), (64, 4), (65, 5), (128, 4), (1000, 16)] {
            let bitmap = Bitmap::<Native>::new(slots);
            assert_eq!(bitmap.words.len(), words);
            let mut hint = 1_000_000;
            let taken: std::collections::BTreeSet<u32> =
                (0..slots).map(|_| bitmap.acquire(&mut hint).unwrap()).collect();
            assert_eq!(taken.len(), slots as usize);
            assert_eq!(bitmap.acquire(&mut hint), None);
            assert_eq!(bitmap.free(), 0);
            taken.iter().step_by(2).for_each(|&slot| bitmap.release(slot));
            assert_eq!(bitmap.free(), u64::from(slots.div_ceil(2)));
        }
    }
}
