//! The possible contents of an export, byte for byte, while several connections change it at once.
//!
//! Each event has a moment, a number that grows with each event. A change begins when its header is
//! sent and is done when its reply has been read. The data of a read must have been on the disk at
//! some moment between its request and its reply: each byte belongs to a change that had begun
//! before the reply, and that no later change had certainly replaced before the request. A change
//! is certain if it was acknowledged; a change that failed, was cut off, or is a trim may have
//! happened, in part or not at all.

use std::ops::Range;

/// One change.
struct Put {
    at: u64,
    content: Content,
    begun: u64,
    done: Option<u64>,
    is_certain: bool,
}

enum Content {
    /// The part of a write's payload that was sent.
    Data(Vec<u8>),
    Zeroes(u64),
}

impl Put {
    fn range(&self) -> Range<u64> {
        let length = match &self.content {
            Content::Data(bytes) => bytes.len() as u64,
            Content::Zeroes(length) => *length,
        };
        self.at..self.at + length
    }

    fn byte(&self, at: u64) -> u8 {
        match &self.content {
            Content::Data(bytes) => bytes[(at - self.at) as usize],
            Content::Zeroes(_) => 0,
        }
    }

    /// Whether a read that was sent at `asked` cannot see this change, because a later one has
    /// replaced it.
    fn is_replaced_by(&self, later: &Put, asked: u64) -> bool {
        let is_there = later.is_certain && later.done.is_some_and(|done| done < asked);
        is_there && self.done.is_some_and(|done| done < later.begun)
    }
}

/// The possible contents of an export.
pub(crate) struct Disk {
    /// The contents when no change was under way.
    base: Vec<u8>,
    puts: Vec<Put>,
}

impl Disk {
    pub(crate) fn new(size: u64) -> Disk {
        Disk { base: vec![0; size as usize], puts: Vec::new() }
    }

    pub(crate) fn size(&self) -> u64 {
        self.base.len() as u64
    }

    /// Notes a write that has begun; its payload follows.
    pub(crate) fn begin_write(&mut self, at: u64, now: u64) -> usize {
        self.begin(at, Content::Data(Vec::new()), now)
    }

    pub(crate) fn begin_zeroes(&mut self, at: u64, length: u64, now: u64) -> usize {
        self.begin(at, Content::Zeroes(length), now)
    }

    fn begin(&mut self, at: u64, content: Content, now: u64) -> usize {
        self.puts.push(Put { at, content, begun: now, done: None, is_certain: false });
        self.puts.len() - 1
    }

    /// Notes more of a write's payload.
    pub(crate) fn extend(&mut self, put: usize, bytes: &[u8]) {
        match &mut self.puts[put].content {
            Content::Data(data) => data.extend_from_slice(bytes),
            Content::Zeroes(_) => unreachable!("only writes have a payload"),
        }
    }

    /// Notes the reply to a change.
    pub(crate) fn end(&mut self, put: usize, now: u64, is_certain: bool) {
        self.puts[put].done = Some(now);
        self.puts[put].is_certain = is_certain;
    }

    /// Sets the contents that were read while no change was under way.
    pub(crate) fn settle(&mut self, content: Vec<u8>) {
        assert_eq!(self.base.len(), content.len());
        self.base = content;
        self.puts.clear();
    }

    /// Whether a read at offset `at`, sent and answered at these moments, may return `shown`.
    pub(crate) fn explains(
        &self,
        at: u64,
        shown: &[u8],
        asked: u64,
        answered: u64,
    ) -> Result<(), String> {
        let end = at + shown.len() as u64;
        let overlaps = |put: &&Put| put.range().start < end && put.range().end > at;
        let puts: Vec<&Put> =
            self.puts.iter().filter(overlaps).filter(|put| put.begun < answered).collect();
        let mut edges: Vec<u64> = puts
            .iter()
            .flat_map(|put| [put.range().start, put.range().end])
            .filter(|edge| (at..end).contains(edge))
            .chain([at, end])
            .collect();
        edges.sort_unstable();
        edges.dedup();
        for pair in edges.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            self.explains_part(
                &puts,
                from,
                &shown[(from - at) as usize..(to - at) as usize],
                asked,
            )
            .map_err(|byte| {
                format!("byte {byte} of {at}+{} is of no write: {:#x}", shown.len(), {
                    shown[(byte - at) as usize]
                })
            })?;
        }
        Ok(())
    }

    /// Checks a part of a read that each of `puts` covers completely or not at all; the error is
    /// the first impossible byte.
    fn explains_part(&self, puts: &[&Put], from: u64, shown: &[u8], asked: u64) -> Result<(), u64> {
        let covering: Vec<&&Put> = puts.iter().filter(|put| put.range().contains(&from)).collect();
        let may_be_seen =
            |put: &&&&Put| covering.iter().all(|later| !put.is_replaced_by(later, asked));
        let seen: Vec<&&&Put> = covering.iter().filter(may_be_seen).collect();
        let base_is_replaced =
            covering.iter().any(|put| put.is_certain && put.done.is_some_and(|done| done < asked));
        let base = &self.base[from as usize..from as usize + shown.len()];
        if !base_is_replaced && base == shown {
            return Ok(());
        }
        for (index, byte) in shown.iter().enumerate() {
            let at = from + index as u64;
            let is_explained = seen.iter().any(|put| put.byte(at) == *byte)
                || !base_is_replaced && base[index] == *byte;
            if !is_explained {
                return Err(at);
            }
        }
        Ok(())
    }
}

/// Tests the model itself: it accepts all possible contents, and no others.
#[test]
fn a_read_shows_what_may_be_there() {
    let mut disk = Disk::new(100);
    let old = disk.begin_write(10, 1);
    disk.extend(old, &[1; 20]);
    assert!(disk.explains(5, &[0; 30], 2, 3).is_ok(), "it may not have happened");
    assert!(disk.explains(10, &[1, 1, 0, 1], 2, 3).is_ok(), "or in part");
    assert!(disk.explains(10, &[1], 0, 1).is_err(), "but not before it began");
    assert!(disk.explains(9, &[1, 1], 2, 3).is_err(), "nor elsewhere");
    disk.end(old, 4, true);
    assert!(disk.explains(10, &[0], 3, 6).is_ok(), "the read is older than the end of the write");
    assert!(disk.explains(10, &[0], 5, 6).is_err(), "an acknowledged write is visible");
    let new = disk.begin_zeroes(15, 10, 7);
    disk.end(new, 8, true);
    assert!(disk.explains(15, &[1], 9, 10).is_err(), "and replaced bytes do not return");
    assert!(disk.explains(10, &[1, 1, 1, 1, 1, 0, 0], 9, 10).is_ok());
    disk.settle(vec![7; 100]);
    assert!(disk.explains(0, &[7; 100], 11, 12).is_ok());
    assert!(disk.explains(0, &[0; 1], 11, 12).is_err());
}
