//! A file in memory that one program fills and the next one, executed in the same process, reads.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

/// A range of bytes in an [`Area`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Span {
    /// Start of the span in the area, in bytes.
    pub at: u64,
    /// The number of bytes.
    pub length: u64,
}

/// A piece to add to an area.
pub enum Piece<'a> {
    /// Bytes to write.
    Bytes(Cow<'a, [u8]>),
    /// A number of zeroes. They are not written, since a hole reads as zeroes.
    Zeroes(u64),
}

impl Piece<'_> {
    fn length(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Zeroes(length) => *length,
        }
    }
}

/// A file in memory. Several threads may add to it at a time.
pub struct Area {
    file: File,
    end: AtomicU64,
}

impl Area {
    /// An empty area, with `head` bytes at its start for [`Area::set_head`].
    pub fn new(head: u64) -> io::Result<Area> {
        let file: OwnedFd = rustix::fs::memfd_create("fairq", MemfdFlags::CLOEXEC)?;
        Ok(Area { file: file.into(), end: AtomicU64::new(head) })
    }

    /// Writes the head.
    pub fn set_head(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)
    }

    /// Adds bytes at the end; returns their span.
    pub fn add(&self, pieces: &[Piece<'_>]) -> io::Result<Span> {
        let length = pieces.iter().map(Piece::length).sum();
        let span = Span { at: self.end.fetch_add(length, Ordering::Relaxed), length };
        let mut at = span.at;
        for piece in pieces {
            if let Piece::Bytes(bytes) = piece {
                self.file.write_all_at(bytes, at)?;
            }
            at += piece.length();
        }
        Ok(span)
    }

    /// The file, with all added bytes.
    pub fn file(&self) -> io::Result<&File> {
        // This adds the zeroes at the end, which `add` does not write.
        self.file.set_len(self.end.load(Ordering::Relaxed))?;
        Ok(&self.file)
    }
}

/// Reads a range of an area from its start to its end.
pub struct SpanReader {
    file: Arc<File>,
    span: Span,
}

impl SpanReader {
    /// A reader of these bytes.
    pub fn new(file: Arc<File>, span: Span) -> SpanReader {
        SpanReader { file, span }
    }

    /// Whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.span.length == 0
    }

    /// Reads as many bytes as fit; returns their number.
    pub fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.span.length.min(out.len() as u64) as usize;
        self.file.read_exact_at(&mut out[..count], self.span.at)?;
        self.span =
            Span { at: self.span.at + count as u64, length: self.span.length - count as u64 };
        Ok(count)
    }

    /// Copies all unread bytes, and leaves them unread.
    pub fn rest(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.span.length as usize];
        self.file.read_exact_at(&mut bytes, self.span.at)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_read_in_parts() {
        let area = Area::new(4).unwrap();
        let first = area.add(&[Piece::Bytes(b"abc".into()), Piece::Zeroes(2)]).unwrap();
        let second = area.add(&[Piece::Bytes(b"de".into()), Piece::Zeroes(3)]).unwrap();
        area.set_head(b"head").unwrap();
        let file = Arc::new(area.file().unwrap().try_clone().unwrap());
        let mut reader = SpanReader::new(file.clone(), first);
        let mut two = [9; 2];
        assert_eq!((reader.read(&mut two).unwrap(), &two), (2, b"ab"));
        assert_eq!(reader.rest().unwrap(), b"c\0\0");
        let mut more = [9; 8];
        assert_eq!(reader.read(&mut more).unwrap(), 3);
        assert!(reader.is_empty() && reader.read(&mut more).unwrap() == 0);
        assert_eq!(SpanReader::new(file, second).rest().unwrap(), b"de\0\0\0");
    }
}
