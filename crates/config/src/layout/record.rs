//! The layout record: the owner of each range of a shared file, and its bytes on storage.
//!
//! **Problem.** A range that is computed from the configuration moves when the configuration
//! changes: one tenant then reads another's data. So the ranges are recorded once, beside the data,
//! and a start only reads them.
//!
//! **Model.** A pool has `size` bytes. Each name has one range; the rest is free. A range is
//! `zeroed` if no data of another tenant can be read in it; any other range is zeroed before its
//! tenant can be opened. No tenant has ever had a byte at or behind `fresh`, and these bytes are
//! zero: a range there needs no zeroing.
//!
//! A renamed range keeps its *former* name until a start has the new one in its configuration: a
//! configuration with the former name must not count as one with a new tenant.
//!
//! **Bytes.** A record is written twice, in two adjacent places of [`COPY`] bytes, each put on
//! stable storage before the next begins. Each copy has a sequence number and a checksum. A torn
//! write leaves one whole copy: the old record, or the new one. Of two whole copies the one with
//! the higher number is valid.
//!
//! ```text
//!   magic (8) version (4) length (4) sequence (8) SHA-256 (32) reserved (8) | JSON, length bytes
//! ```
//!
//! **Bounds.** A copy has space for some 10,000 tenants; [`encode`] refuses a larger record. A
//! record that is read is checked here, once: names, order, overlaps and ends.

use std::collections::BTreeMap;
use std::fmt;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::device::SECTOR;
use crate::name::check_name;
use crate::units::exact_size;

/// Bytes of one copy of a record.
pub const COPY: usize = 512 << 10;
/// Bytes of a record, also at the end of a block device.
pub const SPACE: u64 = 2 * COPY as u64;

pub(super) const MAGIC: [u8; 8] = *b"fairqlay";
const VERSION: u32 = 1;
const HEADER: usize = 64;
/// Place of the checksum in the header, in bytes.
const CHECKSUM: std::ops::Range<usize> = 24..56;

/// A name's range.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "(String, u64, u64, bool)", into = "(String, u64, u64, bool)")]
pub struct Held {
    /// Name of the tenant.
    pub name: String,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// Whether the tenant may be opened without zeroing the range.
    pub zeroed: bool,
}

impl From<(String, u64, u64, bool)> for Held {
    fn from((name, offset, size, zeroed): (String, u64, u64, bool)) -> Held {
        Held { name, offset, size, zeroed }
    }
}

impl From<Held> for (String, u64, u64, bool) {
    fn from(Held { name, offset, size, zeroed }: Held) -> Self {
        (name, offset, size, zeroed)
    }
}

impl Held {
    /// Offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.size
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { name, offset, size, .. } = self;
        write!(f, "{name} ({} at {})", exact_size(*size), exact_size(*offset))
    }
}

/// The owner of each range of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Identifier of the pool, independent of its path.
    pub id: String,
    /// Bytes for tenants.
    pub size: u64,
    /// Offset from which on no tenant has ever had a byte, and all bytes are zero.
    pub fresh: u64,
    /// Ranges in the order of their offsets, without overlaps.
    ranges: Vec<Held>,
    /// Former names, which configurations may still have, by present names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    former: BTreeMap<String, String>,
}

/// The reason against a change of the record.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// No range has this name.
    #[error("the layout has no tenant {0}")]
    Unknown(String),
    /// A range of this name already exists.
    #[error("the layout has a tenant {0} already")]
    Exists(String),
    /// The range overlaps another one.
    #[error("{wanted} overlaps {held}")]
    Overlap {
        /// The new range.
        wanted: String,
        /// The existing range.
        held: String,
    },
    /// Too little space.
    #[error("{name} can have at most {}: {}", exact_size(*most), why)]
    NoRoom {
        /// Name of the tenant.
        name: String,
        /// The largest possible size, in bytes.
        most: u64,
        /// The obstacle.
        why: String,
    },
    /// The pool has become shorter.
    #[error(
        "the pool ends at {}, and {held} needs more: its data are lost; restore the pool",
        exact_size(*size)
    )]
    Shorter {
        /// The pool's size, in bytes.
        size: u64,
        /// The range that no longer fits.
        held: String,
    },
    /// The parts of a record contradict each other.
    #[error("{0}")]
    Invalid(String),
}

impl Record {
    /// A pool without ranges. Bytes from `fresh` on are zero.
    pub fn new(id: String, size: u64, fresh: u64) -> Record {
        let (ranges, former) = (Vec::new(), BTreeMap::new());
        Record { id, size, fresh: fresh.min(size), ranges, former }
    }

    /// The ranges, in the order of their offsets.
    pub fn ranges(&self) -> &[Held] {
        &self.ranges
    }

    /// The range of a name.
    pub fn find(&self, name: &str) -> Option<&Held> {
        self.ranges.iter().find(|held| held.name == name)
    }

    /// The range whose former name this is.
    pub fn formerly(&self, name: &str) -> Option<&Held> {
        let (now, _) = self.former.iter().find(|(_, former)| *former == name)?;
        self.find(now)
    }

    /// Drops the former name of a range, because a configuration has its present name.
    pub fn confirm(&mut self, name: &str) {
        self.former.remove(name);
    }

    fn place(&self, name: &str) -> Result<usize, LayoutError> {
        let place = self.ranges.iter().position(|held| held.name == name);
        place.ok_or_else(|| LayoutError::Unknown(name.into()))
    }

    /// Gives a free range to a new name. With `keep` the range is not zeroed: its contents belong
    /// to the tenant.
    pub fn claim(
        &mut self,
        name: &str,
        offset: u64,
        size: u64,
        keep: bool,
    ) -> Result<(), LayoutError> {
        self.claim_all([Held { name: name.into(), offset, size, zeroed: keep }])
    }

    /// Claims several ranges, all or none; ranges that are `zeroed` keep their contents.
    pub fn claim_all(&mut self, new: impl IntoIterator<Item = Held>) -> Result<(), LayoutError> {
        let mut next = self.clone();
        for held in new {
            let end = held.offset.saturating_add(held.size).min(self.size);
            next.fresh = next.fresh.max(end);
            // A former name of another range now belongs to this one.
            next.former.retain(|_, former| *former != held.name);
            next.ranges.push(Held { zeroed: held.zeroed || held.offset >= self.fresh, ..held });
        }
        next.ranges.sort_by_key(|held| held.offset);
        next.check()?;
        *self = next;
        Ok(())
    }

    /// Notes that a name's range has no data of others.
    pub fn set_zeroed(&mut self, name: &str) -> Result<(), LayoutError> {
        let place = self.place(name)?;
        self.ranges[place].zeroed = true;
        Ok(())
    }

    /// Frees the range of a name; its next owner gets it zeroed.
    pub fn free(&mut self, name: &str) -> Result<Held, LayoutError> {
        let place = self.place(name)?;
        self.former.remove(name);
        Ok(self.ranges.remove(place))
    }

    /// Renames a range.
    pub fn rename(&mut self, old: &str, new: &str) -> Result<(), LayoutError> {
        let place = self.place(old)?;
        check_name(new).map_err(LayoutError::Invalid)?;
        if old != new && self.find(new).is_some() {
            return Err(LayoutError::Exists(new.into()));
        }
        self.ranges[place].name = new.into();
        let former = self.former.remove(old).unwrap_or_else(|| old.into());
        self.former.retain(|_, former| former != new);
        if former != new {
            self.former.insert(new.into(), former);
        }
        Ok(())
    }

    /// The largest size that a range can have without moving, in bytes.
    pub fn most(&self, name: &str) -> Result<u64, LayoutError> {
        let place = self.place(name)?;
        let end = self.ranges.get(place + 1).map_or(self.size, |next| next.offset);
        Ok((end - self.ranges[place].offset) / SECTOR * SECTOR)
    }

    /// Moves the end of a range.
    pub fn resize(&mut self, name: &str, size: u64) -> Result<(), LayoutError> {
        let (place, most) = (self.place(name)?, self.most(name)?);
        if size > most {
            let why = match self.ranges.get(place + 1) {
                Some(next) => format!("{next} is behind it"),
                None => format!("the pool has {}", exact_size(self.size)),
            };
            return Err(LayoutError::NoRoom { name: name.into(), most, why });
        }
        let mut next = self.clone();
        next.ranges[place].size = size;
        next.fresh = next.fresh.max(next.ranges[place].end());
        next.check()?;
        *self = next;
        Ok(())
    }

    /// Sets the pool's size. `is_zero` means that new bytes are zero.
    pub fn set_size(&mut self, size: u64, is_zero: bool) -> Result<(), LayoutError> {
        if let Some(held) = self.ranges.last().filter(|held| held.end() > size) {
            return Err(LayoutError::Shorter { size, held: held.to_string() });
        }
        if size > self.size && !is_zero {
            self.fresh = size;
        }
        // Bytes that are cut off and added again later may have any contents.
        self.fresh = self.fresh.min(size);
        self.size = size;
        Ok(())
    }

    /// The free ranges as offset and length, in order.
    pub fn gaps(&self) -> Vec<(u64, u64)> {
        let (mut gaps, mut end) = (Vec::new(), 0);
        let behind = self.ranges.iter().map(|held| (held.offset, held.end()));
        for (from, to) in behind.chain([(self.size, self.size)]) {
            if from > end {
                gaps.push((end, from - end));
            }
            end = to;
        }
        gaps
    }

    /// Refuses a record that no sequence of changes can have made.
    fn check(&self) -> Result<(), LayoutError> {
        let invalid = |text: String| Err(LayoutError::Invalid(text));
        let is_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.id.is_empty() || self.id.len() > 64 || !self.id.bytes().all(is_id) {
            return invalid("its identifier is not valid".into());
        }
        if self.fresh > self.size {
            return invalid("its unused part begins behind its end".into());
        }
        let mut names = std::collections::HashSet::with_capacity(self.ranges.len());
        for held in &self.ranges {
            check_name(&held.name).map_err(LayoutError::Invalid)?;
            if !names.insert(&*held.name) {
                return Err(LayoutError::Exists(held.name.clone()));
            }
            let is_whole = held.offset % SECTOR == 0 && held.size % SECTOR == 0 && held.size > 0;
            let end = held.offset.checked_add(held.size);
            if !is_whole || end.is_none_or(|end| end > self.size) {
                let name = &held.name;
                return invalid(format!("the range of {name} is not within the pool"));
            }
        }
        for two in self.ranges.windows(2) {
            if two[0].end() > two[1].offset {
                let (wanted, held) = (two[1].to_string(), two[0].to_string());
                return Err(LayoutError::Overlap { wanted, held });
            }
        }
        for (now, former) in &self.former {
            check_name(former).map_err(LayoutError::Invalid)?;
            if !names.contains(&**now) || names.contains(&**former) {
                return invalid(format!("{former} is no former name of {now}"));
            }
        }
        let last = self.ranges.last().map_or(0, Held::end);
        if self.fresh < last {
            return invalid("a range lies in its unused part".into());
        }
        Ok(())
    }
}

/// The bytes of a copy; an error if they do not fit.
pub fn encode(record: &Record, sequence: u64) -> Result<Vec<u8>, LayoutError> {
    record.check()?;
    let body = serde_json::to_vec(record)
        .map_err(|error| LayoutError::Invalid(format!("it cannot be written: {error}")))?;
    if HEADER + body.len() > COPY {
        return Err(LayoutError::Invalid(format!(
            "a layout record has room for {} bytes, and this one takes {}: use fewer tenants, or \
             shorter names",
            COPY - HEADER,
            body.len()
        )));
    }
    Ok(seal(&body, sequence))
}

/// A copy with any body.
pub fn seal(body: &[u8], sequence: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&sequence.to_le_bytes());
    let checksum = checksum(&bytes, body);
    bytes.extend_from_slice(checksum.as_ref());
    bytes.resize(HEADER, 0);
    bytes.extend_from_slice(body);
    bytes
}

fn checksum(head: &[u8], body: &[u8]) -> ring::digest::Digest {
    let mut context = Context::new(&SHA256);
    context.update(head);
    context.update(body);
    context.finish()
}

/// The contents of a copy's place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Copied {
    /// No record was ever written here, or the record has been overwritten.
    Nothing,
    /// A record, and its sequence number.
    Whole(Box<Record>, u64),
    /// A record that cannot be used, and the reason.
    Damaged(String),
}

/// Reads a copy.
pub fn decode(bytes: &[u8]) -> Copied {
    let damaged = |text: &str| Copied::Damaged(text.to_owned());
    if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
        return Copied::Nothing;
    }
    let (Some(version), Some(length), Some(sequence), Some(sum)) = (
        word(bytes, 8).map(u32::from_le_bytes),
        word(bytes, 12).map(u32::from_le_bytes),
        word(bytes, 16).map(u64::from_le_bytes),
        bytes.get(CHECKSUM),
    ) else {
        return damaged("it is cut off");
    };
    if version != VERSION {
        return Copied::Damaged(format!(
            "it has version {version}, and this program knows {VERSION}: use the fairq that wrote \
             it"
        ));
    }
    let Some(body) = bytes.get(HEADER..HEADER.saturating_add(length as usize)) else {
        return damaged("it is cut off");
    };
    if checksum(&bytes[..CHECKSUM.start], body).as_ref() != sum {
        return damaged("its checksum is wrong");
    }
    match serde_json::from_slice::<Record>(body) {
        Err(error) => Copied::Damaged(format!("it cannot be read: {error}")),
        Ok(record) => match record.check() {
            Err(error) => Copied::Damaged(error.to_string()),
            Ok(()) => Copied::Whole(Box::new(record), sequence),
        },
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The record of two copies: the whole one with the higher number.
pub fn newest(copies: [Copied; 2]) -> Copied {
    match copies {
        [Copied::Whole(a, first), Copied::Whole(_, second)] if first >= second => {
            Copied::Whole(a, first)
        }
        [_, whole @ Copied::Whole(..)] | [whole @ Copied::Whole(..), _] => whole,
        [damaged @ Copied::Damaged(_), _] | [_, damaged @ Copied::Damaged(_)] => damaged,
        [Copied::Nothing, Copied::Nothing] => Copied::Nothing,
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
