//! The PCI configuration space of a controller: a class, one memory BAR, power management and
//! MSI-X.
//!
//! A monitor shows its guest a copy of most of it, and forwards writes; both see what a guest may
//! write by a mask of bits.

/// Bytes of the configuration space.
pub const BYTES: usize = 256;
/// Bytes of BAR 0: registers, doorbells, and the MSI-X table and pending bits, a page each.
pub const BAR: u64 = 4 * 4096;
/// Where the MSI-X table begins in BAR 0.
pub const MSIX_TABLE: u32 = 0x2000;
/// Where the pending bits begin in BAR 0.
pub const MSIX_PENDING: u32 = 0x3000;

/// The vendor: a number that the PCI-SIG has not assigned.
pub const VENDOR: u16 = 0xfa12;
const DEVICE: u16 = 0x0001;
/// Mass storage, non-volatile memory, NVM Express I/O controller.
const CLASS: [u8; 3] = [0x02, 0x08, 0x01];
const POWER: u8 = 0x40;
const MSIX: u8 = 0x50;

/// The configuration space.
pub struct PciConfig {
    bytes: [u8; BYTES],
    /// The bits that the guest may change.
    writable: [u8; BYTES],
}

impl PciConfig {
    /// The space of a controller with this number of interrupt vectors, as after a reset.
    pub fn new(vectors: u16) -> PciConfig {
        let mut config = PciConfig { bytes: [0; BYTES], writable: [0; BYTES] };
        let (has_capabilities, is_64_bit) = (0x10, 0x4);
        config.set(0x00, &VENDOR.to_le_bytes());
        config.set(0x02, &DEVICE.to_le_bytes());
        config.set(0x06, &[has_capabilities]);
        config.set(0x08, &[1]);
        config.set(0x09, &CLASS);
        config.set(0x10, &[is_64_bit]);
        config.set(0x2c, &VENDOR.to_le_bytes());
        config.set(0x2e, &DEVICE.to_le_bytes());
        config.set(0x34, &[POWER]);
        // Version 3; no reset on the way from D3 to D0.
        config.set(POWER.into(), &[0x01, MSIX, 0x03, 0x00, 0x08]);
        config.set(MSIX.into(), &[0x11, 0]);
        config.set(usize::from(MSIX) + 2, &(vectors - 1).to_le_bytes());
        config.set(usize::from(MSIX) + 4, &MSIX_TABLE.to_le_bytes());
        config.set(usize::from(MSIX) + 8, &MSIX_PENDING.to_le_bytes());
        // Memory space, bus master, interrupt disable; line and cache line size.
        config.allow(0x04, &[0x06, 0x04]);
        config.allow(0x0c, &[0xff]);
        config.allow(0x3c, &[0xff]);
        config.allow(0x10, &(!(BAR - 1)).to_le_bytes());
        config.allow(usize::from(POWER) + 4, &[0x03]);
        config.allow(usize::from(MSIX) + 3, &[0xc0]);
        config
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes from `at` on.
    pub fn read(&self, at: usize, length: usize) -> Option<&[u8]> {
        self.bytes.get(at..at.checked_add(length)?)
    }

    /// Writes those bits that are writable. False if the range leaves the space.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        let Some(end) = at.checked_add(bytes.len()).filter(|&end| end <= BYTES) else {
            return false;
        };
        let places = self.bytes[at..end].iter_mut().zip(&self.writable[at..end]);
        for ((place, mask), byte) in places.zip(bytes) {
            *place = *place & !mask | byte & mask;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_finds_the_class_the_size_of_the_bar_and_the_capabilities() {
        let mut config = PciConfig::new(65);
        assert_eq!(config.read(0x09, 3).unwrap(), [0x02, 0x08, 0x01]);
        assert!(config.write(0x10, &[0xff; 8]));
        let bar = u64::from_le_bytes(config.read(0x10, 8).unwrap().try_into().unwrap());
        assert_eq!(!(bar & !0xf) + 1, BAR);
        let (mut at, mut found) = (config.read(0x34, 1).unwrap()[0], Vec::new());
        while at != 0 {
            let capability = config.read(at.into(), 2).unwrap();
            (at, _) = (capability[1], found.push(capability[0]));
        }
        assert_eq!(found, [0x01, 0x11]);
        assert_eq!(config.read(0x52, 2).unwrap(), [64, 0]);
    }

    #[test]
    fn only_writable_bits_change() {
        let mut config = PciConfig::new(2);
        let before = config.bytes;
        assert!(config.write(0, &[0xff; BYTES]));
        let expected: Vec<u8> =
            before.iter().zip(&config.writable).map(|(byte, mask)| byte | mask).collect();
        assert_eq!(config.bytes.to_vec(), expected);
        assert!(!config.write(BYTES - 1, &[0, 0]) && !config.write(usize::MAX, &[0]));
        assert!(config.read(BYTES, 1).is_none() && config.read(usize::MAX, 2).is_none());
    }
}
