//! The memory of a command with several stretches, and the selection of the part that one system
//! call uses.
//!
//! The stretches may be memory of a guest, which changes it at any time. So they are only
//! addresses, and bytes are copied from and to them without a reference.

use crate::io::memory::Memory;

/// The stretches of one command, in order; empty if its memory is a single stretch.
#[derive(Default)]
pub(in crate::device) struct Vectors {
    /// The stretches, followed by the part that was selected last.
    list: Vec<libc::iovec>,
    /// The number of stretches.
    count: usize,
}

// SAFETY: these are addresses and lengths; the unsafe code that uses them has to justify each
// access.
unsafe impl Send for Vectors {}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Way {
    In,
    Out,
}

impl Vectors {
    pub(in crate::device) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(in crate::device) fn set(&mut self, stretches: impl Iterator<Item = Memory>) {
        let vector = |memory: Memory| libc::iovec {
            iov_base: memory.address.cast(),
            iov_len: memory.length as usize,
        };
        self.list.clear();
        self.list.extend(stretches.map(vector));
        self.count = self.list.len();
    }

    pub(in crate::device) fn clear(&mut self) {
        self.list.clear();
        self.count = 0;
    }

    /// The parts of the stretches that hold the bytes from `at` on, `length` bytes in all.
    fn parts(&self, at: u32, length: usize) -> impl Iterator<Item = libc::iovec> {
        self.list[..self.count].iter().filter_map(cut(at, length))
    }

    /// Selects the bytes from `at` on, `length` bytes in all, for the next system call. The last
    /// system call that uses the previous selection must have returned.
    pub(in crate::device) fn select(&mut self, at: u32, length: u32) {
        self.list.truncate(self.count);
        let mut cut = cut(at, length as usize);
        for index in 0..self.count {
            let part = cut(&self.list[index]);
            self.list.extend(part);
        }
    }

    /// The part that was selected last.
    pub(in crate::device) fn selected(&self) -> &[libc::iovec] {
        &self.list[self.count..]
    }

    /// The address of the byte at `at`, and the number of bytes of its stretch from there on.
    pub(in crate::device) fn run(&self, at: u32) -> (*mut u8, u32) {
        let part = self.parts(at, usize::MAX).next();
        part.map_or((std::ptr::null_mut(), 0), |part| (part.iov_base.cast(), part.iov_len as u32))
    }

    /// Whether a system call that needs addresses at multiples of `align` and lengths at multiples
    /// of `block` may use the bytes from `at` on, `length` bytes in all.
    pub(in crate::device) fn are_aligned(
        &self,
        at: u32,
        length: u32,
        align: u32,
        block: u32,
    ) -> bool {
        self.parts(at, length as usize).all(|part| {
            (part.iov_base as usize).is_multiple_of(align as usize)
                && part.iov_len.is_multiple_of(block as usize)
        })
    }

    /// Copies `length` bytes between the command's memory, starting at `at`, and `bytes`.
    ///
    /// # Safety
    /// The stretches belong to the device, and `bytes` has `length` bytes that do not overlap them.
    pub(in crate::device) unsafe fn copy(&self, at: u32, bytes: *mut u8, length: usize, way: Way) {
        let mut done = 0;
        for part in self.parts(at, length) {
            // SAFETY: the caller vouches for both; `parts` yields at most `length` bytes.
            unsafe { copy(part.iov_base.cast(), bytes.add(done), part.iov_len, way) };
            done += part.iov_len;
        }
    }
}

/// Restricts consecutive stretches to the bytes from `at` on, `length` bytes in all.
fn cut(at: u32, length: usize) -> impl FnMut(&libc::iovec) -> Option<libc::iovec> {
    let (mut skip, mut left) = (at as usize, length);
    move |stretch| {
        let skipped = skip.min(stretch.iov_len);
        skip -= skipped;
        let iov_len = left.min(stretch.iov_len - skipped);
        left -= iov_len;
        let iov_base = stretch.iov_base.wrapping_byte_add(skipped);
        (iov_len > 0).then_some(libc::iovec { iov_base, iov_len })
    }
}

/// Copies bytes between the memory of a command and another buffer.
///
/// # Safety
/// Both are valid for `length` bytes.
pub(in crate::device) unsafe fn copy(memory: *mut u8, bytes: *mut u8, length: usize, way: Way) {
    // SAFETY: the caller vouches for both ranges, which do not overlap.
    unsafe {
        match way {
            Way::In => std::ptr::copy_nonoverlapping(memory, bytes, length),
            Way::Out => std::ptr::copy_nonoverlapping(bytes, memory, length),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The selected parts are the bytes of the flat memory, whatever the stretches are.
        #[test]
        fn a_part_of_the_stretches_is_that_part_of_their_bytes(
            lengths in prop::collection::vec(0..9_u32, 1..6), cut in any::<[prop::sample::Index; 2]>(),
        ) {
            let mut buffers: Vec<Vec<u8>> = Vec::new();
            for (index, &length) in lengths.iter().enumerate() {
                buffers.push((0..length).map(|at| (index as u8) << 4 | at as u8).collect());
            }
            let flat = buffers.concat();
            let cuts = cut.map(|cut| cut.index(flat.len() + 1));
            let (from, to) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
            let memory = |buffer: &mut Vec<u8>| Memory {
                address: buffer.as_mut_ptr(), length: buffer.len() as u32, fixed: None,
            };
            let stretches: Vec<Memory> = buffers.iter_mut().map(memory).collect();
            let mut vectors = Vectors::default();
            vectors.set(stretches.into_iter());
            // The last selection leaves nothing.
            vectors.select(0, flat.len() as u32);
            vectors.select(from as u32, (to - from) as u32);
            let mut bytes = Vec::new();
            for part in vectors.selected() {
                prop_assert!(part.iov_len > 0);
                let address = part.iov_base.cast::<u8>().cast_const();
                // SAFETY: this is a part of one of the buffers, which no other code uses.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(address, part.iov_len) });
            }
            prop_assert_eq!(&bytes[..], &flat[from..to]);
            let mut copied = vec![0; to - from];
            // SAFETY: both have `to - from` bytes.
            unsafe { vectors.copy(from as u32, copied.as_mut_ptr(), to - from, Way::In) };
            prop_assert_eq!(&copied[..], &flat[from..to]);
            copied.iter_mut().for_each(|byte| *byte = !*byte);
            // SAFETY: as above.
            unsafe { vectors.copy(from as u32, copied.as_mut_ptr(), to - from, Way::Out) };
            let now = buffers.concat();
            prop_assert_eq!(&now[from..to], &copied[..]);
            prop_assert!(now[..from] == flat[..from] && now[to..] == flat[to..]);
        }
    }
}
