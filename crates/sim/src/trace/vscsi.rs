//! CloudPhysics' records: little-endian, without a header. Each record contains its version, at a
//! different offset in each of the two versions; the first two records must agree.
//!
//! ```text
//!   1: sn u32, length u32, segments u32, command u16, version u16, block u64, time u64
//!   2: command u16, version u16, sn u32, length u32, segments u32, block u64, time u64, took u64
//!   (times in us)
//! ```

use std::io::{BufRead, ErrorKind};

use fairq_core::Op;

use super::{Raw, Reader, SECTOR, TraceError};

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

impl Version {
    fn size(self) -> usize {
        match self {
            Version::One => 32,
            Version::Two => 40,
        }
    }

    /// Offsets of command, version, length, block and time in a record.
    fn places(self) -> [usize; 5] {
        match self {
            Version::One => [12, 14, 4, 16, 24],
            Version::Two => [0, 2, 8, 16, 24],
        }
    }
}

fn word<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| record[at + index])
}

/// Whether a record claims to be of this version.
fn says(record: &[u8], version: Version) -> bool {
    let expected = match version {
        Version::One => 1,
        Version::Two => 2,
    };
    u16::from_le_bytes(word(record, version.places()[1])) >> 8 == expected
}

pub(super) fn read(mut from: impl BufRead, reader: &mut Reader) -> Result<(), TraceError> {
    let bad = |number, what: String| TraceError::Bad { unit: "record", number, what };
    let mut record = [0; 40];
    let mut version = None;
    for number in 1.. {
        // Until the first record shows its version, the length of version 1 is read, which is the
        // shorter one.
        let known = version.unwrap_or(Version::One).size();
        if !fill(&mut from, &mut record[..known], number)? {
            return Ok(());
        }
        let version = match version {
            Some(version) => version,
            None if says(&record, Version::One) => *version.insert(Version::One),
            None if says(&record, Version::Two) => {
                from.read_exact(&mut record[known..])
                    .map_err(|_| bad(number, "it ends in the middle".into()))?;
                *version.insert(Version::Two)
            }
            None => return Err(bad(number, "neither version 1 nor version 2 of vscsi".into())),
        };
        if !says(&record, version) {
            return Err(bad(number, "of another version than the records before".into()));
        }
        let [command, _, length, block, time] = version.places();
        // READ and WRITE of 6, 10, 12 and 16 bytes.
        let op = match u16::from_le_bytes(word(&record, command)) {
            0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
            0x0a | 0x2a | 0xaa | 0x8a => Op::Write,
            _ => continue,
        };
        let bytes = u64::from(u32::from_le_bytes(word(&record, length)));
        let offset = u64::from_le_bytes(word(&record, block)).checked_mul(SECTOR);
        let offset = offset.ok_or_else(|| bad(number, "a block beyond any device".into()))?;
        let at_ns = u128::from(u64::from_le_bytes(word(&record, time))) * 1000;
        reader
            .take(&Raw { at_ns, volume: "", op, offset, bytes })
            .map_err(|what| bad(number, what))?;
    }
    Ok(())
}

/// Reads a record; false at the end.
fn fill(from: &mut impl BufRead, record: &mut [u8], number: usize) -> Result<bool, TraceError> {
    // A trace ends between two records; an end within one is an error.
    if from.fill_buf()?.is_empty() {
        return Ok(false);
    }
    match from.read_exact(record) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(TraceError::Bad { unit: "record", number, what: "it ends in the middle".into() })
        }
        Err(error) => Err(error.into()),
    }
}
