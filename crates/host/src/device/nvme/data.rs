//! A command's data: where the pieces are that its PRP entries or its SGL describe (NVMe Base 2.1,
//! 4.3).
//!
//! A [`Transfer`] walks the description once, piece by piece, and takes nothing on trust: each
//! entry is read once, its address resolved, and the number of entries bounded, since a list may
//! point to itself.

use crate::device::nvme::dma::{Dma, read_pair, read_word};
use crate::device::nvme::spec::{PAGE, Sqe, Status};
use crate::io::memory::Memory;

/// Entries of a list that are followed for one command: enough for 32 MiB in pages.
pub(crate) const ENTRIES_MAX: u32 = 8192 + 64;

/// The walk over one command's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// Bytes not yet given out.
    left: u32,
    /// Entries that may yet be read.
    budget: u32,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// One range, which is long enough.
    Range(u64),
    /// PRP entries 1 and 2.
    Prp(u64, u64),
    /// PRP entry 2, a page.
    Page(u64),
    /// The next entry of a PRP list.
    List(u64),
    /// SGL descriptors: the next one's address, how many there are in the segment, and whether it
    /// is the last one.
    Segment { at: u64, count: u32, is_last: bool },
}

/// The contents of an SGL descriptor.
enum Descriptor {
    Data { address: u64, length: u32 },
    Segment { address: u64, length: u32, is_last: bool },
}

impl Transfer {
    /// Of no data.
    pub(crate) const NONE: Transfer = Transfer { left: 0, budget: 0, source: Source::Range(0) };

    /// Of the first `length` bytes that the command describes, in at most `entries` entries of
    /// lists.
    #[inline]
    pub(crate) fn new(sqe: &Sqe, length: u32, entries: u32) -> Result<Transfer, Status> {
        let source = match sqe.flags >> 6 {
            // A dword boundary is wanted.
            0 if sqe.data[0] & 3 != 0 => return Err(Status::PRP_OFFSET),
            0 => Source::Prp(sqe.data[0], sqe.data[1]),
            1 | 2 => match descriptor(sqe.data)? {
                Descriptor::Data { length: has, .. } if has < length => {
                    return Err(Status::DATA_SGL_LENGTH);
                }
                Descriptor::Data { address, .. } => Source::Range(address),
                Descriptor::Segment { address, length, is_last } => {
                    segment(address, length, is_last)?
                }
            },
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Transfer { left: length, budget: entries, source })
    }

    /// Whether all has been given out.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.left == 0
    }

    /// The next piece, of at least one byte; `None` at the end.
    #[inline]
    pub(crate) fn next(&mut self, dma: &impl Dma) -> Option<Result<Memory, Status>> {
        let piece = self.next_address(dma)?;
        Some(piece.and_then(|(address, length)| {
            let memory = dma.resolve(address, length).ok_or(Status::DATA_TRANSFER)?;
            Ok(Memory { length, ..memory })
        }))
    }

    /// The bus address and length of the next piece, not resolved.
    #[inline]
    pub(crate) fn next_address(&mut self, dma: &impl Dma) -> Option<Result<(u64, u32), Status>> {
        if self.left == 0 {
            return None;
        }
        let found = match self.source {
            Source::Range(address) => Ok((address, self.left)),
            _ => self.find(dma),
        };
        Some(found.map(|(address, length)| {
            let length = length.min(self.left);
            self.left -= length;
            (address, length)
        }))
    }

    /// The next range, not empty; there is something left.
    fn find(&mut self, dma: &impl Dma) -> Result<(u64, u32), Status> {
        loop {
            match self.source {
                Source::Range(address) => return Ok((address, self.left)),
                Source::Prp(first, second) => {
                    let length = (PAGE - first % PAGE) as u32;
                    // Entry 2 is the page of the rest if one is enough, and else a list of pages.
                    self.source = match self.left.saturating_sub(length) {
                        rest if u64::from(rest) <= PAGE => Source::Page(second),
                        _ if !second.is_multiple_of(8) => return Err(Status::PRP_OFFSET),
                        _ => Source::List(second),
                    };
                    return Ok((first, length));
                }
                Source::Page(address) => return page(address),
                Source::List(at) => {
                    let entry = self.read(|| read_word(dma, at))?;
                    // The last entry of a page of the list names the list's next page, unless what
                    // is left fits into the page that it names.
                    let is_last_of_page = at % PAGE == PAGE - 8;
                    if !is_last_of_page || u64::from(self.left) <= PAGE {
                        self.source = Source::List(at.wrapping_add(8));
                        return page(entry);
                    }
                    if !entry.is_multiple_of(8) {
                        return Err(Status::PRP_OFFSET);
                    }
                    self.source = Source::List(entry);
                }
                Source::Segment { count: 0, .. } => return Err(Status::DATA_SGL_LENGTH),
                Source::Segment { at, count, is_last } => {
                    let words = self.read(|| read_pair(dma, at))?;
                    self.source =
                        Source::Segment { at: at.wrapping_add(16), count: count - 1, is_last };
                    match descriptor(words)? {
                        // A descriptor of no data is valid, and moves nothing.
                        Descriptor::Data { length: 0, .. } => {}
                        Descriptor::Data { address, length } => return Ok((address, length)),
                        // Only the last descriptor of a segment that is not the last names another.
                        Descriptor::Segment { .. } if count != 1 || is_last => {
                            return Err(Status::INVALID_SGL_SEGMENT);
                        }
                        Descriptor::Segment { address, length, is_last } => {
                            self.source = segment(address, length, is_last)?;
                        }
                    }
                }
            }
        }
    }

    fn read<T>(&mut self, read: impl FnOnce() -> Option<T>) -> Result<T, Status> {
        self.budget = self.budget.checked_sub(1).ok_or(Status::INVALID_SGL_COUNT)?;
        read().ok_or(Status::DATA_TRANSFER)
    }
}

/// A PRP entry that is not the first has no offset.
fn page(address: u64) -> Result<(u64, u32), Status> {
    if address.is_multiple_of(PAGE) { Ok((address, PAGE as u32)) } else { Err(Status::PRP_OFFSET) }
}

fn segment(at: u64, length: u32, is_last: bool) -> Result<Source, Status> {
    if length == 0 || !length.is_multiple_of(16) {
        return Err(Status::INVALID_SGL_SEGMENT);
    }
    Ok(Source::Segment { at, count: length / 16, is_last })
}

#[inline]
fn descriptor([address, rest]: [u64; 2]) -> Result<Descriptor, Status> {
    let length = rest as u32;
    match rest >> 56 {
        0x00 => Ok(Descriptor::Data { address, length }),
        0x20 => Ok(Descriptor::Segment { address, length, is_last: false }),
        0x30 => Ok(Descriptor::Segment { address, length, is_last: true }),
        _ => Err(Status::SGL_TYPE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::nvme::dma::Flat;

    const BUS: u64 = 0x10_0000;

    fn flat() -> Flat {
        Flat::map(BUS, 1 << 20).unwrap()
    }

    fn write(flat: &Flat, address: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            let at = flat.at(address + 8 * index as u64, 8).unwrap();
            // SAFETY: inside the mapping, which nobody else uses.
            unsafe { at.as_ptr().cast::<u64>().write_unaligned(*word) };
        }
    }

    /// The pieces as offset and length, or what is wrong.
    fn pieces(
        flat: &Flat,
        flags: u8,
        data: [u64; 2],
        length: u32,
    ) -> Result<Vec<(u64, u32)>, Status> {
        let mut transfer =
            Transfer::new(&Sqe { flags, data, ..Sqe::default() }, length, ENTRIES_MAX)?;
        let base = flat.at(BUS, 0).unwrap().as_ptr() as u64;
        let piece = |memory: Memory| (memory.address as u64 - base, memory.length);
        std::iter::from_fn(|| transfer.next(flat)).map(|result| result.map(piece)).collect()
    }

    #[test]
    fn prp_entries_are_pages_after_the_first() {
        let flat = flat();
        let prp = |first, second, length| pieces(&flat, 0, [BUS + first, BUS + second], length);
        assert_eq!(prp(0, 1, 4096), Ok(vec![(0, 4096)]), "the second is not looked at");
        assert_eq!(prp(0x204, 0x5000, 4096), Ok(vec![(0x204, 0xdfc), (0x5000, 0x204)]));
        assert_eq!(prp(0x200, 0x5000, 0xe00 + 0x1000), Ok(vec![(0x200, 0xe00), (0x5000, 0x1000)]));
        assert_eq!(prp(2, 0, 512), Err(Status::PRP_OFFSET));
        assert_eq!(prp(0, 0x5010, 8192), Err(Status::PRP_OFFSET));
        assert_eq!(prp(0, 0x5004, 12288), Err(Status::PRP_OFFSET));
        assert_eq!(prp(0, 1 << 20, 8192), Err(Status::DATA_TRANSFER));
        assert_eq!(pieces(&flat, 0, [0, 0], 512), Err(Status::DATA_TRANSFER));
        assert_eq!(pieces(&flat, 0, [u64::MAX - 3, 0], 512), Err(Status::DATA_TRANSFER));
    }

    #[test]
    fn prp_lists_go_on_in_the_next_page() {
        let flat = flat();
        // The list begins two entries before the end of a page; the last entry there names where it
        // goes on.
        write(&flat, BUS + 0x8ff0, &[BUS + 0x1000, BUS + 0xa000]);
        write(&flat, BUS + 0xa000, &[BUS + 0x2000, BUS + 0x3000]);
        let whole = pieces(&flat, 0, [BUS, BUS + 0x8ff0], 4 * 4096);
        assert_eq!(whole, Ok(vec![(0, 4096), (0x1000, 4096), (0x2000, 4096), (0x3000, 4096)]));
        // With two pages in the list the last entry of the page is the second.
        write(&flat, BUS + 0x8ff0, &[BUS + 0x1000, BUS + 0x2000]);
        let whole = pieces(&flat, 0, [BUS, BUS + 0x8ff0], 2 * 4096 + 100);
        assert_eq!(whole, Ok(vec![(0, 4096), (0x1000, 4096), (0x2000, 100)]));
        write(&flat, BUS + 0x8ff8, &[BUS + 0x8ff8]);
        assert_eq!(
            pieces(&flat, 0, [BUS, BUS + 0x8ff8], 1 << 20),
            Err(Status::INVALID_SGL_COUNT),
            "a list of itself"
        );
    }

    #[test]
    fn sgl_segments_follow_one_another() {
        let flat = flat();
        let of_type = |kind: u64, length: u64| kind << 56 | length;
        let sgl = |address, word, length| pieces(&flat, 0x40, [address, word], length);
        assert_eq!(sgl(BUS + 5, of_type(0, 700), 600), Ok(vec![(5, 600)]));
        assert_eq!(sgl(BUS + 5, of_type(0, 500), 600), Err(Status::DATA_SGL_LENGTH));
        assert_eq!(sgl(BUS, of_type(0x40, 600), 600), Err(Status::SGL_TYPE));
        assert_eq!(sgl(BUS, of_type(0x20, 40), 600), Err(Status::INVALID_SGL_SEGMENT));
        let data = |offset, length| [BUS + offset, of_type(0, length)];
        write(
            &flat,
            BUS + 0x100,
            &[data(7, 10), data(0, 0), [BUS + 0x200, of_type(0x30, 32)]].concat(),
        );
        write(&flat, BUS + 0x200, &[data(0x1000, 20), data(0x2000, 30)].concat());
        assert_eq!(
            sgl(BUS + 0x100, of_type(0x20, 48), 45),
            Ok(vec![(7, 10), (0x1000, 20), (0x2000, 15)])
        );
        assert_eq!(sgl(BUS + 0x100, of_type(0x20, 48), 61), Err(Status::DATA_SGL_LENGTH));
        assert_eq!(
            sgl(BUS + 0x100, of_type(0x30, 48), 45),
            Err(Status::INVALID_SGL_SEGMENT),
            "the last names another"
        );
        write(&flat, BUS + 0x300, &[BUS + 0x300, of_type(0x20, 16)]);
        assert_eq!(
            sgl(BUS + 0x300, of_type(0x20, 16), 45),
            Err(Status::INVALID_SGL_COUNT),
            "a segment of itself"
        );
        assert_eq!(pieces(&flat, 0xc0, [BUS, 0], 512), Err(Status::INVALID_FIELD));
    }
}
