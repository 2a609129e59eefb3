//! What an export may hold, byte for byte, while several connections change it at once.
//!
//! Events have moments, which only grow: a change begins when its header is sent and is done when
//! its reply has been read. What a read shows must have been there between its request and its
//! reply: each byte is of a change that had begun by then, and that no later one has surely
//! replaced. A change is certain if it was acknowledged; one that failed, was cut off, or is a trim
//! may have happened, in part or not at all.

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
    /// A write's payload, as far as it was sent.
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

    /// Whether it has nothing of it left when a read that was asked at `asked` looks.
    fn is_replaced_by(&self, later: &Put, asked: u64) -> bool {
        let is_there = later.is_certain && later.done.is_some_and(|done| done < asked);
        is_there && self.done.is_some_and(|done| done < later.begun)
    }
}

/// An export's content.
pub(crate) struct Disk {
    /// What was there when nothing was under way.
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

    /// A write has begun, whose payload follows.
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

    /// More of a write's payload was sent.
    pub(crate) fn extend(&mut self, put: usize, bytes: &[u8]) {
        match &mut self.puts[put].content {
            Content::Data(data) => data.extend_from_slice(bytes),
            Content::Zeroes(_) => unreachable!("only writes have a payload"),
        }
    }

    /// A change was answered.
    pub(crate) fn end(&mut self, put: usize, now: u64, is_certain: bool) {
        self.puts[put].done = Some(now);
        self.puts[put].is_certain = is_certain;
    }

    /// Nothing is under way, and this is what was read.
    pub(crate) fn settle(&mut self, content: Vec<u8>) {
        assert_eq!(self.base.len(), content.len());
        self.base = content;
        self.puts.clear();
    }

    /// Whether a read at `at`, asked and answered at these moments, may show `shown`.
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

    /// The same for a part that each of `puts` covers whole or not at all; gives the first byte
    /// that cannot be.
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

/// The model itself: it takes what may be, and nothing else.
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
    assert!(disk.explains(10, &[0], 5, 6).is_err(), "acknowledged is there");
    let new = disk.begin_zeroes(15, 10, 7);
    disk.end(new, 8, true);
    assert!(disk.explains(15, &[1], 9, 10).is_err(), "and stays away once replaced");
    assert!(disk.explains(10, &[1, 1, 1, 1, 1, 0, 0], 9, 10).is_ok());
    disk.settle(vec![7; 100]);
    assert!(disk.explains(0, &[7; 100], 11, 12).is_ok());
    assert!(disk.explains(0, &[0; 1], 11, 12).is_err());
}
