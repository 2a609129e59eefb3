//! Reply headers: everything of a reply except the data of a read.
//!
//! A reply is a small header, built on the stack, and possibly data in an I/O buffer; one gathering
//! write sends both. The handshake chooses one of three header formats, a [`ReplyStyle`]:
//!
//! | style | header, in bytes | used for |
//! |---|---|---|
//! | simple | 16: magic, error, cookie | clients that negotiate no other (Linux driver) |
//! | structured | 20: magic, flags, type, cookie, length | reads; others may have simple replies |
//! | extended | 32: magic, flags, type, cookie, offset of the request, length | every reply |
//!
//! With structured replies a success without data is answered by a simple reply, as the
//! specification allows (four bytes less); errors are chunks. The payloads of structured and
//! extended chunks are equal except for block status, where extended extents have 64 bits.

use super::proto::{CommandFlags, NbdError, Negotiated, Request, magic};

/// The longest header, in bytes. An extended header with a block status of one extent has 56.
pub const HEADER_MAX: usize = 64;
/// `NBD_REPLY_FLAG_DONE`: the last chunk of a reply.
pub const FLAG_DONE: u16 = 1;
/// Flag of an extent: not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// Flag of an extent: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;
/// The most extents in one reply, by the specification's recommendation.
pub const MAX_EXTENTS: u32 = 1 << 20;

/// Chunk types (`NBD_REPLY_TYPE_*`).
pub mod chunk {
    /// The end of a reply, without data.
    pub const NONE: u16 = 0;
    /// Data of a read.
    pub const OFFSET_DATA: u16 = 1;
    /// A range that reads as zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents with lengths and flags of 32 bits.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents with lengths and flags of 64 bits.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// A reply header on the stack.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBuf {
    bytes: [u8; HEADER_MAX],
    len: u8,
}

impl HeaderBuf {
    const fn new() -> Self {
        Self { bytes: [0; HEADER_MAX], len: 0 }
    }

    /// The bytes to send.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The number of bytes to send.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a header is never empty
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    fn put<const N: usize>(&mut self, field: [u8; N]) -> &mut Self {
        let at = usize::from(self.len);
        // All callers are in this file, and no sequence of fields exceeds HEADER_MAX.
        self.bytes[at..at + N].copy_from_slice(&field);
        self.len += N as u8;
        self
    }

    #[inline]
    fn u16(&mut self, value: u16) -> &mut Self {
        self.put(value.to_be_bytes())
    }

    #[inline]
    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(value.to_be_bytes())
    }

    #[inline]
    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(value.to_be_bytes())
    }
}

/// The header format of a connection's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStyle {
    /// Neither structured replies nor extended headers.
    Simple,
    /// Structured replies with compact headers.
    Structured,
    /// Extended headers.
    Extended,
}

impl ReplyStyle {
    /// The negotiated style.
    pub const fn of(negotiated: &Negotiated) -> Self {
        if negotiated.extended {
            Self::Extended
        } else if negotiated.structured {
            Self::Structured
        } else {
            Self::Simple
        }
    }

    /// A success without data: the reply to any command except a read or a block status.
    #[inline]
    pub fn done(self, request: &Request) -> HeaderBuf {
        match self {
            Self::Extended => self.chunk(request, chunk::NONE, true, 0),
            _ => simple(request, 0),
        }
    }

    /// The end of a read whose chunks (`data` or `hole`) were sent with `last == false`.
    #[inline]
    pub fn end(self, request: &Request) -> HeaderBuf {
        debug_assert!(self != Self::Simple, "a simple reply has no chunks");
        self.chunk(request, chunk::NONE, true, 0)
    }

    /// The reply to a failed request. No data follow.
    #[inline]
    pub fn error(self, request: &Request, error: NbdError) -> HeaderBuf {
        if self == Self::Simple {
            return simple(request, error.to_wire());
        }
        let mut header = self.chunk(request, chunk::ERROR, true, 6);
        header.u32(error.to_wire()).u16(0);
        header
    }

    /// [`Self::error`] with the reason as text, if the style has space for it.
    pub fn error_because(self, request: &Request, error: NbdError, why: &str) -> Box<[u8]> {
        if self == Self::Simple {
            return simple(request, error.to_wire()).as_bytes().into();
        }
        let mut header = self.chunk(request, chunk::ERROR, true, 6 + why.len() as u64);
        header.u32(error.to_wire()).u16(why.len() as u16);
        [header.as_bytes(), why.as_bytes()].concat().into()
    }

    /// The reply to a read that failed at `at`. Chunks for other parts may already have been sent
    /// with `last == false`, except with [`ReplyStyle::Simple`]: there this is
    /// [`ReplyStyle::error`].
    #[inline]
    pub fn error_at(self, request: &Request, error: NbdError, at: u64) -> HeaderBuf {
        if self == Self::Simple {
            return simple(request, error.to_wire());
        }
        let mut header = self.chunk(request, chunk::ERROR_OFFSET, true, 14);
        header.u32(error.to_wire()).u16(0).u64(at);
        header
    }

    /// The header before `length` bytes of data read at `offset`. A simple reply has a single
    /// header, for the whole range of the request.
    #[inline]
    pub fn data(self, request: &Request, offset: u64, length: u32, last: bool) -> HeaderBuf {
        if self == Self::Simple {
            debug_assert!(last && offset == request.offset && u64::from(length) == request.length);
            return simple(request, 0);
        }
        let mut header = self.chunk(request, chunk::OFFSET_DATA, last, 8 + u64::from(length));
        header.u64(offset);
        header
    }

    /// A part of a read that is all zeroes. [`ReplyStyle::Simple`] has no such chunk.
    #[inline]
    pub fn hole(self, request: &Request, offset: u64, length: u32, last: bool) -> HeaderBuf {
        debug_assert!(self != Self::Simple, "a simple reply has no holes");
        let mut header = self.chunk(request, chunk::OFFSET_HOLE, last, 12);
        header.u64(offset).u32(length);
        header
    }

    /// The header before `extents` extents of the metadata context `context`; see [`BlockStatus`].
    fn block_status(self, request: &Request, context: u32, extents: u32) -> HeaderBuf {
        let count = u64::from(extents);
        if self == Self::Extended {
            let mut header = self.chunk(request, chunk::BLOCK_STATUS_EXT, true, 8 + 16 * count);
            header.u32(context).u32(extents);
            header
        } else {
            let mut header = self.chunk(request, chunk::BLOCK_STATUS, true, 4 + 8 * count);
            header.u32(context);
            header
        }
    }

    #[inline]
    fn chunk(self, request: &Request, kind: u16, last: bool, length: u64) -> HeaderBuf {
        let extended = self == Self::Extended;
        let mut header = HeaderBuf::new();
        header.u32(if extended { magic::EXTENDED_REPLY } else { magic::STRUCTURED_REPLY });
        header.u16(if last { FLAG_DONE } else { 0 }).u16(kind).u64(request.cookie);
        if extended {
            header.u64(request.offset).u64(length);
        } else {
            // Payloads are far below 4 GiB: at most MAX_PAYLOAD and eight bytes, or MAX_EXTENTS
            // extents.
            header.u32(length as u32);
        }
        header
    }
}

#[inline]
fn simple(request: &Request, error: u32) -> HeaderBuf {
    let mut header = HeaderBuf::new();
    header.u32(magic::SIMPLE_REPLY).u32(error).u64(request.cookie);
    header
}

/// The reply to a block status request, built extent by extent in the caller's buffer.
///
/// Extents are pushed in order from the start of the request. The builder joins neighbours with the
/// same flags. It writes one extent if the client requests one. It stops at the end of the request
/// or when the buffer is full; a shorter answer is always allowed, and the client sends another
/// request. With compact headers it shortens extents that exceed 32 bits.
#[derive(Debug)]
pub struct BlockStatus<'a> {
    out: &'a mut [u8],
    style: ReplyStyle,
    request: Request,
    context: u32,
    /// Extents already written to `out`.
    count: u32,
    /// Bytes of the export that these extents cover.
    covered: u64,
    /// The extent that may still grow: length and flags.
    open: Option<(u64, u32)>,
    full: bool,
}

/// The longest extent of a compact header: the largest multiple of 64 KiB, so that the next extent
/// is aligned.
const COMPACT_EXTENT_MAX: u64 = (u32::MAX - 0xffff) as u64;

impl<'a> BlockStatus<'a> {
    /// The most bytes of a reply with `extents` extents.
    pub const fn buffer_len(extents: usize) -> usize {
        HEADER_MAX + 16 * extents
    }

    /// Starts the reply to `request` in `out`, which has room for one extent at least
    /// ([`BlockStatus::buffer_len`]).
    pub fn new(style: ReplyStyle, request: &Request, context: u32, out: &'a mut [u8]) -> Self {
        debug_assert!(style != ReplyStyle::Simple, "block status needs chunks");
        debug_assert!(out.len() >= Self::buffer_len(1));
        Self {
            out,
            style,
            request: *request,
            context,
            count: 0,
            covered: 0,
            open: None,
            full: false,
        }
    }

    /// Adds the next `length` bytes with `flags`; returns whether more extents are needed.
    pub fn push(&mut self, length: u64, flags: u32) -> bool {
        if length == 0 || self.full {
            return !self.full;
        }
        match self.open {
            Some((open, same)) if same == flags => {
                // If the sum exceeds 64 bits, the saturated value still covers the rest of any
                // request.
                self.open = Some((open.saturating_add(length), flags))
            }
            Some(_) => {
                self.close();
                if !self.full {
                    self.open = Some((length, flags));
                }
            }
            None => self.open = Some((length, flags)),
        }
        let open = self.open.map_or(0, |(length, _)| length);
        // The open extent completes the answer if the request ends inside it.
        if self.covered.saturating_add(open) >= self.request.length {
            self.close();
            self.full = true;
        }
        !self.full
    }

    /// Finishes the reply and returns its length, from the start of the buffer; `None` if it has no
    /// extent, which the protocol does not allow (answer with an error instead).
    pub fn finish(mut self) -> Option<usize> {
        self.close();
        if self.count == 0 {
            return None;
        }
        // The header has the number of extents, so it is written last; `close` has left room for
        // it.
        let header = self.style.block_status(&self.request, self.context, self.count);
        self.out.get_mut(..header.len())?.copy_from_slice(header.as_bytes());
        Some(header.len() + self.count as usize * self.extent_len())
    }

    /// Writes the open extent, and sets `full` if no further extent fits or is needed.
    fn close(&mut self) {
        let Some((mut length, flags)) = self.open.take() else { return };
        // The specification says that a single extent must not be longer than the request; the last
        // one of several may be.
        let one = self.request.flags.contains(CommandFlags::REQ_ONE);
        if one {
            length = length.min(self.request.length);
        }
        let compact = self.style != ReplyStyle::Extended;
        if compact && length > u64::from(u32::MAX) {
            length = COMPACT_EXTENT_MAX;
            self.full = true; // the next extent would not begin where this one now ends
        }
        let at = self.header_len() + self.count as usize * self.extent_len();
        let Some(slot) =
            self.out.get_mut(at..).and_then(|rest| rest.get_mut(..if compact { 8 } else { 16 }))
        else {
            self.full = true;
            return;
        };
        if compact {
            slot[..4].copy_from_slice(&(length as u32).to_be_bytes());
            slot[4..].copy_from_slice(&flags.to_be_bytes());
        } else {
            slot[..8].copy_from_slice(&length.to_be_bytes());
            slot[8..].copy_from_slice(&u64::from(flags).to_be_bytes());
        }
        self.count += 1;
        self.covered = self.covered.saturating_add(length);
        self.full |= one || self.count == MAX_EXTENTS;
    }

    const fn header_len(&self) -> usize {
        // The header of the chunk, then the context, and with extended headers the number of
        // extents.
        if matches!(self.style, ReplyStyle::Extended) { 32 + 8 } else { 20 + 4 }
    }

    const fn extent_len(&self) -> usize {
        if matches!(self.style, ReplyStyle::Extended) { 16 } else { 8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::wire::proto::Command;
    use proptest::prelude::*;

    const READ: Request = Request {
        flags: CommandFlags(0),
        command: Command::Read,
        cookie: 0x0102_0304_0506_0708,
        offset: 0x1000,
        length: 0x2000,
    };

    /// Each byte is as in the tables of the specification.
    #[test]
    fn headers_on_the_wire() {
        use ReplyStyle::*;
        let cookie = [1, 2, 3, 4, 5, 6, 7, 8];
        let cat = |parts: &[&[u8]]| parts.concat();
        let at = 0x1000_u64.to_be_bytes();
        let cases = [
            (Simple.done(&READ), cat(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &cookie])),
            (
                Simple.error(&READ, NbdError::Io),
                cat(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5], &cookie]),
            ),
            (
                Simple.data(&READ, 0x1000, 0x2000, true),
                cat(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &cookie]),
            ),
            (Structured.done(&READ), cat(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &cookie])),
            (
                Structured.data(&READ, 0x1000, 0x2000, true),
                cat(&[&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1], &cookie, &[0, 0, 0x20, 8], &at]),
            ),
            (
                Structured.hole(&READ, 0x1000, 0x2000, false),
                cat(&[
                    &[0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 2],
                    &cookie,
                    &[0, 0, 0, 12],
                    &at,
                    &[0, 0, 0x20, 0],
                ]),
            ),
            (
                Structured.end(&READ),
                cat(&[&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0], &cookie, &[0; 4]]),
            ),
            (
                Structured.error(&READ, NbdError::Invalid),
                cat(&[
                    &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1],
                    &cookie,
                    &[0, 0, 0, 6],
                    &[0, 0, 0, 22, 0, 0],
                ]),
            ),
            (
                Extended.error_at(&READ, NbdError::Io, 0x1000),
                cat(&[
                    &[0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0x80, 2],
                    &cookie,
                    &at,
                    &[0, 0, 0, 0, 0, 0, 0, 14],
                    &[0, 0, 0, 5, 0, 0],
                    &at,
                ]),
            ),
            (
                Extended.done(&READ),
                cat(&[&[0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 0], &cookie, &at, &[0; 8]]),
            ),
            (
                Extended.data(&READ, 0x1000, 0x2000, true),
                cat(&[
                    &[0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 1],
                    &cookie,
                    &at,
                    &[0, 0, 0, 0, 0, 0, 0x20, 8],
                    &at,
                ]),
            ),
        ];
        for (index, (header, expected)) in cases.into_iter().enumerate() {
            assert_eq!(header.as_bytes(), expected, "case {index}");
            assert!(header.len() <= HEADER_MAX);
        }
    }

    fn status(length: u64, one: bool) -> Request {
        let flags = if one { CommandFlags::REQ_ONE } else { CommandFlags::default() };
        Request { flags, command: Command::BlockStatus, cookie: 9, offset: 0x1000, length }
    }

    /// Parses a block status reply: context and extents.
    fn decode(style: ReplyStyle, bytes: &[u8]) -> (u32, Vec<(u64, u64)>) {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        if style == ReplyStyle::Extended {
            assert_eq!(word(4), u32::from(FLAG_DONE) << 16 | u32::from(chunk::BLOCK_STATUS_EXT));
            assert_eq!(long(24), bytes.len() as u64 - 32);
            assert_eq!(word(36) as usize * 16 + 40, bytes.len());
            (word(32), (40..bytes.len()).step_by(16).map(|at| (long(at), long(at + 8))).collect())
        } else {
            assert_eq!(word(4), u32::from(FLAG_DONE) << 16 | u32::from(chunk::BLOCK_STATUS));
            assert_eq!(word(16) as usize, bytes.len() - 20);
            let extents = (24..bytes.len()).step_by(8);
            (word(20), extents.map(|at| (u64::from(word(at)), u64::from(word(at + 4)))).collect())
        }
    }

    fn extents(style: ReplyStyle, request: &Request, pushed: &[(u64, u32)]) -> Vec<(u64, u64)> {
        let mut out = vec![0; BlockStatus::buffer_len(16)];
        let mut builder = BlockStatus::new(style, request, 3, &mut out);
        for &(length, flags) in pushed {
            if !builder.push(length, flags) {
                break;
            }
        }
        let len = builder.finish().expect("there is an extent");
        let (context, extents) = decode(style, &out[..len]);
        assert_eq!(context, 3);
        extents
    }

    #[test]
    fn block_status_joins_cuts_and_stops() {
        use ReplyStyle::*;
        for style in [Structured, Extended] {
            let joined =
                extents(style, &status(100, false), &[(10, 0), (10, 0), (30, 3), (80, 0), (10, 3)]);
            assert_eq!(
                joined,
                [(20, 0), (30, 3), (80, 0)],
                "neighbours join, the last may go beyond, no more follow"
            );
            let one = extents(style, &status(100, true), &[(10, 0), (20, 0), (30, 3)]);
            assert_eq!(one, [(30, 0)]);
            let cut = extents(style, &status(100, true), &[(500, 3)]);
            assert_eq!(cut, [(100, 3)], "one extent must not go beyond the request");
        }
        let huge = [(1 << 33, 3), (1 << 20, 0)];
        assert_eq!(extents(Extended, &status(1 << 34, false), &huge), [(1 << 33, 3), (1 << 20, 0)]);
        let compact = extents(Structured, &status(u64::from(u32::MAX), false), &huge);
        assert_eq!(compact, [(COMPACT_EXTENT_MAX, 3)]);
    }

    #[test]
    fn block_status_without_extents_is_none() {
        let mut out = [0; BlockStatus::buffer_len(1)];
        assert_eq!(
            BlockStatus::new(ReplyStyle::Extended, &status(1, false), 1, &mut out).finish(),
            None
        );
    }

    proptest! {
        /// Extents are consecutive from the start, only the last passes the end of the request, and
        /// each byte has the flags that were pushed for it.
        #[test]
        fn block_status_tells_the_truth(
            pushed in proptest::collection::vec((1..5000_u64, 0..4_u32), 1..40),
            length in 1..60_000_u64, one in any::<bool>(), extended in any::<bool>(), room in 1..40_usize,
        ) {
            let style = if extended { ReplyStyle::Extended } else { ReplyStyle::Structured };
            let request = status(length, one);
            let mut out = vec![0; BlockStatus::buffer_len(room)];
            let mut builder = BlockStatus::new(style, &request, 3, &mut out);
            for &(length, flags) in &pushed {
                if !builder.push(length, flags) {
                    break;
                }
            }
            let len = builder.finish().expect("there is an extent");
            prop_assert!(len <= out.len());
            let (_, extents) = decode(style, &out[..len]);
            prop_assert!(!one || (extents.len() == 1 && extents[0].0 <= length));
            let before_last: u64 = extents[..extents.len() - 1].iter().map(|extent| extent.0).sum();
            prop_assert!(before_last < length);
            let truth: Vec<u32> = pushed.iter().flat_map(|&(length, flags)| vec![flags; length as usize]).collect();
            let told: Vec<u32> =
                extents.iter().flat_map(|&(length, flags)| vec![flags as u32; length as usize]).collect();
            prop_assert_eq!(&told[..], &truth[..told.len()]);
        }
    }
}
