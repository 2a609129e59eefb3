//! Ports: an index, a set of them, and a set that ports share.
//!
//! **Bounds.** A policy has at most [`PortSet::MAX_PORTS`] ports, 256: a port for each CPU of a
//! server with two sockets. More would take a wider [`PortId`] and more words here; no other code
//! depends on the number.
//!
//! **Sharing.** A [`SharedPorts`] has one atomic word for each 64 ports, so that up to 64 ports
//! share exactly one. Each bit belongs to one port and lies in one word. The arguments of the
//! structures that use these sets (no wake-up is lost, only one claimer succeeds) speak of one
//! port's bit at a time, so they hold for any number of words: a walk over several words is not one
//! atomic access, but each of its steps is, for the ports of that word.

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// A port's index: dense from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u8);

const WORDS: usize = PortSet::MAX_PORTS / 64;

impl PortId {
    /// The index of the word that has the port's bit.
    #[inline]
    const fn word(self) -> usize {
        (self.0 >> 6) as usize
    }

    /// The port's bit in that word.
    #[inline]
    const fn bit(self) -> u64 {
        1 << (self.0 & 63)
    }
}

/// A set of ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PortSet([u64; WORDS]);

impl PortSet {
    /// The most ports that a policy may have.
    pub const MAX_PORTS: usize = 256;

    /// No port.
    pub const EMPTY: PortSet = PortSet([0; WORDS]);

    /// The ports `0..count`.
    pub const fn first(count: usize) -> PortSet {
        let (mut words, mut word) = ([0; WORDS], 0);
        while word < WORDS {
            words[word] = match count.saturating_sub(word * 64) {
                0 => 0,
                // A word of all 64 bits has an arm of its own, because a shift by 64 overflows.
                bits @ 1..64 => (1 << bits) - 1,
                _ => u64::MAX,
            };
            word += 1;
        }
        PortSet(words)
    }

    /// Just this port.
    #[inline]
    pub const fn only(port: PortId) -> PortSet {
        let mut words = [0; WORDS];
        words[port.word()] = port.bit();
        PortSet(words)
    }

    /// Adds a port.
    #[inline]
    pub fn insert(&mut self, port: PortId) {
        self.0[port.word()] |= port.bit();
    }

    /// Takes a port out.
    #[inline]
    pub fn remove(&mut self, port: PortId) {
        self.0[port.word()] &= !port.bit();
    }

    /// Adds the ports of `other`.
    #[inline]
    pub fn extend(&mut self, other: PortSet) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    /// The ports that are in both sets.
    #[inline]
    #[must_use]
    pub fn and(mut self, other: PortSet) -> PortSet {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word &= other;
        }
        self
    }

    /// Whether the port is in it.
    #[inline]
    pub const fn contains(self, port: PortId) -> bool {
        self.0[port.word()] & port.bit() != 0
    }

    /// Whether no port is in it.
    #[inline]
    pub const fn is_empty(self) -> bool {
        let [a, b, c, d] = self.0;
        a | b | c | d == 0
    }

    /// The number of ports in it.
    pub fn len(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The first port of the set after `port`, in cyclic order; `port` itself comes last.
    #[inline]
    pub fn after(self, port: PortId) -> Option<PortId> {
        let (at, first) = (port.word(), u32::from(port.0 & 63) + 1);
        // Nothing is above the highest bit of a word.
        let above = self.word(at) & u64::MAX.checked_shl(first).unwrap_or(0);
        if above != 0 {
            return Some(lowest(at, above));
        }
        // The last step reads the word of `port` again, for the ports up to `port`.
        (1..=WORDS)
            .map(|step| (at + step) % WORDS)
            .find(|&word| self.word(word) != 0)
            .map(|word| lowest(word, self.word(word)))
    }

    #[inline]
    fn word(&self, word: usize) -> u64 {
        self.0.get(word).copied().unwrap_or(0)
    }
}

/// The port of the lowest bit in a word that is not 0.
#[inline]
fn lowest(word: usize, bits: u64) -> PortId {
    PortId((word as u32 * 64 + bits.trailing_zeros()) as u8)
}

impl FromIterator<PortId> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortId>>(ports: I) -> PortSet {
        let mut set = PortSet::EMPTY;
        ports.into_iter().for_each(|port| set.insert(port));
        set
    }
}

impl Iterator for PortSet {
    type Item = PortId;

    /// Takes the lowest port out.
    #[inline]
    fn next(&mut self) -> Option<PortId> {
        let (word, bits) = self.0.iter_mut().enumerate().find(|(_, bits)| **bits != 0)?;
        let port = lowest(word, *bits);
        *bits &= bits.wrapping_sub(1);
        Some(port)
    }
}

impl core::fmt::Debug for PortSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.map(|port| port.0)).finish()
    }
}

/// The number of words of a shared set of `ports` ports.
pub(crate) const fn words(ports: usize) -> usize {
    ports.div_ceil(64)
}

/// A set of ports in shared words, one for each 64: a view, so that many sets can lie side by
/// side in one array.
pub struct SharedPorts<'a, A>(&'a [A]);

impl<'a, A: AtomicWord> SharedPorts<'a, A> {
    /// The set in these words.
    #[inline]
    pub fn of(words: &'a [A]) -> Self {
        SharedPorts(words)
    }

    /// Adds the port.
    #[inline]
    pub fn insert(&self, port: PortId, order: Ordering) {
        if let Some(word) = self.0.get(port.word()) {
            word.fetch_or(port.bit(), order);
        }
    }

    /// Removes the port; true if it was in the set. Of several threads that remove it at the same
    /// time only one gets true.
    #[inline]
    pub fn remove(&self, port: PortId, order: Ordering) -> bool {
        let took = |word: &A| word.fetch_and(!port.bit(), order) & port.bit() != 0;
        self.0.get(port.word()).is_some_and(took)
    }

    /// Whether the port is in it.
    #[inline]
    pub fn contains(&self, port: PortId, order: Ordering) -> bool {
        self.0.get(port.word()).is_some_and(|word| word.load(order) & port.bit() != 0)
    }

    /// Whether no port was in the set. The words are read one after the other.
    #[inline]
    pub fn is_empty(&self, order: Ordering) -> bool {
        self.0.iter().all(|word| word.load(order) == 0)
    }

    /// The ports that were in the set. The words are read one after the other.
    #[inline]
    pub fn load(&self, order: Ordering) -> PortSet {
        let mut set = PortSet::EMPTY;
        for (bits, word) in set.0.iter_mut().zip(self.0) {
            *bits = word.load(order);
        }
        set
    }

    /// Replaces the contents by `ports`; no other thread may write meanwhile.
    pub fn store(&self, ports: PortSet, order: Ordering) {
        for (word, bits) in self.0.iter().zip(ports.0) {
            word.store(bits, order);
        }
    }

    /// Removes all ports, one word after the other, and returns them.
    #[inline]
    pub fn take(&self, order: Ordering) -> PortSet {
        let mut set = PortSet::EMPTY;
        for (bits, word) in set.0.iter_mut().zip(self.0) {
            *bits = word.swap(0, order);
        }
        set
    }
}

/// A set of ports that all ports share, with its words inside the structure.
pub struct PortBits<P: Platform> {
    words: [P::U64; WORDS],
    /// Number of words that the ports need; the others are never accessed.
    used: usize,
}

impl<P: Platform> PortBits<P> {
    /// An empty set of the ports `0..ports`.
    pub fn new(ports: usize) -> Self {
        let words = core::array::from_fn(|_| P::U64::new(0));
        PortBits { words, used: ports.div_ceil(64).min(WORDS) }
    }

    /// The set.
    #[inline]
    pub fn set(&self) -> SharedPorts<'_, P::U64> {
        SharedPorts::of(self.words.get(..self.used).unwrap_or(&[]))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    proptest! {
        /// A set behaves like a set of numbers, at the words' edges too.
        #[test]
        fn a_set_of_ports_is_a_set(
            ports in prop::collection::btree_set(any::<u8>(), 0..40),
            others in prop::collection::btree_set(any::<u8>(), 0..40),
            probe in prop_oneof![Just(0), Just(63), Just(64), Just(255), any::<u8>()],
        ) {
            let of = |numbers: &BTreeSet<u8>| numbers.iter().copied().map(PortId).collect::<PortSet>();
            let set = of(&ports);
            prop_assert_eq!(set.map(|port| port.0).collect::<BTreeSet<u8>>(), ports.clone());
            prop_assert_eq!((set.len(), set.is_empty()), (ports.len(), ports.is_empty()));
            prop_assert_eq!(set.contains(PortId(probe)), ports.contains(&probe));
            prop_assert_eq!(set.and(of(&others)), of(&(&ports & &others)));
            let mut both = set;
            both.extend(of(&others));
            prop_assert_eq!(both, of(&(&ports | &others)));
            both.remove(PortId(probe));
            prop_assert!(!both.contains(PortId(probe)));
            let after = ports.range(probe..).find(|&&port| port != probe).or(ports.first());
            prop_assert_eq!(set.after(PortId(probe)), after.map(|&port| PortId(port)));
        }

        #[test]
        fn the_first_ports_are_those_below(count in 0usize..=300) {
            let numbers: Vec<usize> = PortSet::first(count).map(|port| port.0.into()).collect();
            prop_assert_eq!(numbers, (0..count.min(256)).collect::<Vec<usize>>());
        }

        /// A shared set of 1, 2, 3 or 4 words behaves like a private set.
        #[test]
        fn a_shared_set_is_one_word_for_64_ports(
            ports in 1usize..=256,
            numbers in prop::collection::vec(any::<u8>(), 1..40),
        ) {
            let word = |_| core::sync::atomic::AtomicU64::new(0);
            let lines: Vec<_> = (0..words(ports)).map(word).collect();
            let (shared, mut own) = (SharedPorts::of(&lines), PortSet::EMPTY);
            for port in numbers.iter().map(|&number| PortId((usize::from(number) % ports) as u8)) {
                if shared.contains(port, Ordering::SeqCst) {
                    prop_assert!(shared.remove(port, Ordering::SeqCst));
                    prop_assert!(!shared.remove(port, Ordering::SeqCst));
                    own.remove(port);
                } else {
                    shared.insert(port, Ordering::SeqCst);
                    own.insert(port);
                }
                prop_assert_eq!(shared.load(Ordering::SeqCst), own);
                prop_assert_eq!(shared.is_empty(Ordering::SeqCst), own.is_empty());
            }
            prop_assert_eq!(shared.take(Ordering::SeqCst), own);
            prop_assert!(shared.is_empty(Ordering::SeqCst));
            shared.store(own, Ordering::SeqCst);
            prop_assert_eq!(shared.load(Ordering::SeqCst), own);
        }
    }
}
