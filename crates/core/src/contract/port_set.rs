//! Which ports: an index, and a set in one word.

/// A port's index: dense from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u8);

/// A set of ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PortSet(u64);

impl PortSet {
    /// The most ports a policy may have; a set is one word.
    pub const MAX_PORTS: usize = 64;

    /// No port.
    pub const EMPTY: PortSet = PortSet(0);

    /// The ports `0..count`.
    pub const fn first(count: usize) -> PortSet {
        if count >= Self::MAX_PORTS { PortSet(u64::MAX) } else { PortSet((1 << count) - 1) }
    }

    /// Just this port.
    #[inline]
    pub const fn only(port: PortId) -> PortSet {
        PortSet(1 << (port.0 & 63))
    }

    /// From one bit per port.
    #[inline]
    pub const fn from_bits(bits: u64) -> PortSet {
        PortSet(bits)
    }

    /// One bit per port.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Adds a port.
    #[inline]
    pub fn insert(&mut self, port: PortId) {
        self.0 |= Self::only(port).0;
    }

    /// Takes a port out.
    #[inline]
    pub fn remove(&mut self, port: PortId) {
        self.0 &= !Self::only(port).0;
    }

    /// Adds the ports of `other`.
    #[inline]
    pub fn extend(&mut self, other: PortSet) {
        self.0 |= other.0;
    }

    /// Whether the port is in it.
    #[inline]
    pub const fn contains(self, port: PortId) -> bool {
        self.0 & Self::only(port).0 != 0
    }

    /// Whether no port is in it.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many ports are in it.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl Iterator for PortSet {
    type Item = PortId;

    /// Takes the lowest port out.
    #[inline]
    fn next(&mut self) -> Option<PortId> {
        if self.0 == 0 {
            return None;
        }
        let port = PortId(self.0.trailing_zeros() as u8);
        self.0 &= self.0 - 1;
        Some(port)
    }
}

impl core::fmt::Debug for PortSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.map(|port| port.0)).finish()
    }
}
