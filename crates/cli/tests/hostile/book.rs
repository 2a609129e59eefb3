//! A model of the NBD protocol: it parses the bytes of one connection into requests, and checks the
//! replies against them. It was written from the specification, independently of the server's code,
//! and knows the correct replies to any stream of the fuzzer.

use std::collections::HashMap;

use crate::disk::Disk;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const ZEROES: u16 = 6;
pub(crate) const STATUS: u16 = 7;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 1 << 1;
pub(crate) const DF: u16 = 1 << 2;
pub(crate) const REQ_ONE: u16 = 1 << 3;
pub(crate) const FAST_ZERO: u16 = 1 << 4;
pub(crate) const PAYLOAD_LEN: u16 = 1 << 5;

const REQUEST: u32 = 0x2560_9513;
const EXTENDED_REQUEST: u32 = 0x21e4_1c71;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;
const EXTENDED_REPLY: u32 = 0x6e8a_278c;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ENOTSUP: u32 = 95;

const MAX_PAYLOAD: u64 = 32 << 20;

/// The options that a handshake has agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) structured: bool,
    pub(crate) extended: bool,
    /// The number of the context `base:allocation`.
    pub(crate) context: Option<u32>,
    pub(crate) size: u64,
    pub(crate) read_only: bool,
}

/// The way in which the stream of requests has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// A disconnect request: all earlier requests are answered.
    GoodBye,
    /// Bytes that are not a request: the server closes the connection.
    Malformed,
}

/// A request's header.
#[derive(Clone, Copy, Debug)]
struct Asked {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u64,
}

/// A request that has no reply yet.
struct Pending {
    asked: Asked,
    /// The expected result: success, or an error number.
    verdict: Result<(), u32>,
    /// The moment at which its header was sent; see [`super::disk`] for moments.
    at: u64,
    /// Index of its change of the disk.
    put: Option<usize>,
    /// Whether its payload was sent completely.
    is_complete: bool,
    /// The offset and bytes of each chunk of a read.
    parts: Vec<(u64, Vec<u8>)>,
    error: u32,
    /// Whether a block status was received.
    has_status: bool,
}

enum Place {
    Header,
    Payload { cookie: u64, put: Option<usize>, left: u64 },
}

/// One connection's side of the protocol.
pub(crate) struct Book {
    agreed: Agreed,
    header: Vec<u8>,
    place: Place,
    pub(crate) over: Option<Over>,
    pending: HashMap<u64, Pending>,
    inbox: Vec<u8>,
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Book {
    pub(crate) fn new(agreed: Agreed) -> Book {
        let (pending, inbox) = (HashMap::new(), Vec::new());
        Book { agreed, header: Vec::new(), place: Place::Header, over: None, pending, inbox }
    }

    pub(crate) fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// A request's header as a client sends it.
    pub(crate) fn header(
        &self,
        flags: u16,
        command: u16,
        cookie: u64,
        offset: u64,
        length: u64,
    ) -> Vec<u8> {
        let magic = if self.agreed.extended { EXTENDED_REQUEST } else { REQUEST };
        let mut bytes = [
            &magic.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &cookie.to_be_bytes(),
            &offset.to_be_bytes(),
        ]
        .concat();
        let length = length.to_be_bytes();
        bytes.extend_from_slice(if self.agreed.extended { &length } else { &length[4..] });
        bytes
    }

    /// Bytes of payload after this header, by the protocol.
    pub(crate) fn payload_after(&self, header: &[u8]) -> u64 {
        let asked = parse(header);
        let has_payload = if self.agreed.extended {
            asked.flags & PAYLOAD_LEN != 0
        } else {
            asked.command == WRITE
        };
        if has_payload { asked.length } else { 0 }
    }

    /// Whether the next byte of the stream begins a request.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.place, Place::Header) && self.header.is_empty()
    }

    /// Requests that were sent completely and have no reply yet.
    pub(crate) fn unanswered(&self) -> usize {
        self.pending.values().filter(|pending| pending.is_complete).count()
    }

    /// Notes bytes that were sent at the moment `now`.
    pub(crate) fn sent(&mut self, mut bytes: &[u8], now: u64, disk: &mut Disk) {
        while !bytes.is_empty() && self.over.is_none() {
            match self.place {
                Place::Payload { cookie, put, left } => {
                    let (part, rest) = bytes.split_at(bytes.len().min(left as usize));
                    if let Some(put) = put {
                        disk.extend(put, part);
                    }
                    self.payload(cookie, put, left - part.len() as u64);
                    bytes = rest;
                }
                Place::Header => {
                    let whole = if self.agreed.extended { 32 } else { 28 };
                    // The magic number is checked as soon as it is complete.
                    let wanted = if self.header.len() < 4 { 4 } else { whole };
                    let take = bytes.len().min(wanted - self.header.len());
                    self.header.extend_from_slice(&bytes[..take]);
                    bytes = &bytes[take..];
                    if self.header.len() == 4 && !self.has_magic() {
                        self.over = Some(Over::Malformed);
                    } else if self.header.len() == whole {
                        let header = std::mem::take(&mut self.header);
                        self.begin(&header, now, disk);
                    }
                }
            }
        }
    }

    fn has_magic(&self) -> bool {
        let magic = if self.agreed.extended { EXTENDED_REQUEST } else { REQUEST };
        self.header[..4] == magic.to_be_bytes()
    }

    fn payload(&mut self, cookie: u64, put: Option<usize>, left: u64) {
        if left > 0 {
            self.place = Place::Payload { cookie, put, left };
        } else {
            self.place = Place::Header;
            self.pending.get_mut(&cookie).expect("it was noted").is_complete = true;
        }
    }

    fn begin(&mut self, header: &[u8], now: u64, disk: &mut Disk) {
        let asked = parse(header);
        let payload = self.payload_after(header);
        let forgets_payload =
            self.agreed.extended && asked.command == WRITE && asked.flags & PAYLOAD_LEN == 0;
        if payload > MAX_PAYLOAD || forgets_payload {
            self.over = Some(Over::Malformed);
            return;
        }
        if asked.command == DISCONNECT {
            self.over = Some(Over::GoodBye);
            return;
        }
        let verdict = self.verdict(&asked);
        let put = match asked.command {
            WRITE if verdict.is_ok() => Some(disk.begin_write(asked.offset, now)),
            TRIM | ZEROES if verdict.is_ok() => {
                Some(disk.begin_zeroes(asked.offset, asked.length, now))
            }
            _ => None,
        };
        let (is_complete, parts) = (payload == 0, Vec::new());
        let pending = Pending {
            asked,
            verdict,
            at: now,
            put,
            is_complete,
            parts,
            error: 0,
            has_status: false,
        };
        let twice = self.pending.insert(asked.cookie, pending);
        assert!(twice.is_none(), "the fuzzer's cookies are all different");
        if payload > 0 {
            self.place = Place::Payload { cookie: asked.cookie, put, left: payload };
        }
    }

    /// The right result of a request.
    fn verdict(&self, asked: &Asked) -> Result<(), u32> {
        let Agreed { structured, extended, context, size, read_only } = self.agreed;
        let own = match asked.command {
            READ if structured => DF,
            WRITE if extended => PAYLOAD_LEN,
            ZEROES => NO_HOLE | FAST_ZERO,
            STATUS => REQ_ONE,
            _ => 0,
        };
        let is_known = asked.command <= STATUS && (asked.command != STATUS || context.is_some());
        if !is_known || asked.flags & !(own | FUA) != 0 {
            return Err(EINVAL);
        }
        if read_only && [WRITE, TRIM, ZEROES].contains(&asked.command) {
            return Err(EPERM);
        }
        if asked.command == FLUSH {
            return if asked.offset == 0 && asked.length == 0 { Ok(()) } else { Err(EINVAL) };
        }
        if asked.length == 0 {
            return Err(EINVAL);
        }
        let is_inside = asked.offset.checked_add(asked.length).is_some_and(|end| end <= size);
        match asked.command {
            _ if is_inside && asked.command == READ && asked.length > MAX_PAYLOAD => {
                Err(if structured { EOVERFLOW } else { EINVAL })
            }
            _ if is_inside => Ok(()),
            WRITE | ZEROES => Err(ENOSPC),
            _ => Err(EINVAL),
        }
    }

    /// Checks bytes that were received by the moment `now`: every complete reply has to be right.
    pub(crate) fn came(&mut self, bytes: &[u8], now: u64, disk: &mut Disk) -> Result<(), String> {
        self.inbox.extend_from_slice(bytes);
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = &inbox[..];
        while let Some(length) = self.reply(rest, now, disk)? {
            rest = &rest[length..];
        }
        self.inbox = rest.to_vec();
        Ok(())
    }

    /// Whether the next byte from the server begins a reply.
    pub(crate) fn is_at_a_reply(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Reads one reply or chunk; returns its length, if it is complete.
    fn reply(&mut self, bytes: &[u8], now: u64, disk: &mut Disk) -> Result<Option<usize>, String> {
        if bytes.len() < 16 {
            return Ok(None);
        }
        match be(&bytes[..4]) as u32 {
            SIMPLE_REPLY if !self.agreed.extended => self.simple(bytes, now, disk),
            STRUCTURED_REPLY if self.agreed.structured && !self.agreed.extended => {
                if bytes.len() < 20 {
                    return Ok(None);
                }
                self.chunk(bytes, 20, be(&bytes[16..20]), now, disk)
            }
            EXTENDED_REPLY if self.agreed.extended => {
                if bytes.len() < 32 {
                    return Ok(None);
                }
                let (cookie, offset) = (be(&bytes[8..16]), be(&bytes[16..24]));
                let asked = self.pending.get(&cookie).map(|pending| pending.asked.offset);
                if asked.is_some_and(|asked| asked != offset) {
                    return Err(format!("a reply at {offset} to a request at {asked:?}"));
                }
                self.chunk(bytes, 32, be(&bytes[24..32]), now, disk)
            }
            magic => Err(format!("a reply begins with {magic:#x}: {:?}", self.agreed)),
        }
    }

    fn simple(&mut self, bytes: &[u8], now: u64, disk: &mut Disk) -> Result<Option<usize>, String> {
        let (error, cookie) = (be(&bytes[4..8]) as u32, be(&bytes[8..16]));
        let pending = self.pending.get_mut(&cookie).ok_or(format!("a reply to {cookie:#x}"))?;
        let mut length = 16;
        let is_read = pending.asked.command == READ;
        if is_read && self.agreed.structured {
            return Err("a simple reply to a read, where chunks were agreed on".into());
        }
        if is_read && error == 0 {
            length += pending.asked.length as usize;
            if bytes.len() < length {
                return Ok(None);
            }
            pending.parts.push((pending.asked.offset, bytes[16..length].to_vec()));
        }
        pending.error = error;
        self.done(cookie, now, disk)?;
        Ok(Some(length))
    }

    /// Reads a chunk whose header has `head` bytes and whose payload has `length`.
    fn chunk(
        &mut self,
        bytes: &[u8],
        head: usize,
        length: u64,
        now: u64,
        disk: &mut Disk,
    ) -> Result<Option<usize>, String> {
        if length > MAX_PAYLOAD + 8 {
            return Err(format!("a chunk of {length} bytes"));
        }
        let end = head + length as usize;
        if bytes.len() < end {
            return Ok(None);
        }
        let (flags, kind, cookie) = (be(&bytes[4..6]), be(&bytes[6..8]), be(&bytes[8..16]));
        let body = &bytes[head..end];
        let context = self.agreed.context;
        let extended = self.agreed.extended;
        let pending = self.pending.get_mut(&cookie).ok_or(format!("a chunk for {cookie:#x}"))?;
        let is_read = pending.asked.command == READ;
        match kind {
            0 if body.is_empty() => {}
            1 if is_read && body.len() > 8 => {
                pending.parts.push((be(&body[..8]), body[8..].to_vec()));
            }
            2 if is_read && body.len() == 12 => {
                let length = be(&body[8..]);
                if length > pending.asked.length {
                    return Err(format!("a hole of {length} bytes"));
                }
                pending.parts.push((be(&body[..8]), vec![0; length as usize]));
            }
            5 | 6 if pending.asked.command == STATUS && (kind == 6) == extended => {
                pending.status(body, context, extended, now, disk)?;
            }
            0x8001 | 0x8002 => {
                let tail = if kind == 0x8001 { 0 } else { 8 };
                let message = body.get(4..6).map(be);
                if message.is_none_or(|message| message as usize + 6 + tail != body.len()) {
                    return Err(format!("an error chunk of {} bytes", body.len()));
                }
                pending.error = be(&body[..4]) as u32;
                if pending.error == 0 {
                    return Err("an error chunk with no error".into());
                }
            }
            _ => {
                return Err(format!(
                    "a chunk of kind {kind:#x}, {} bytes, for {:?}",
                    body.len(),
                    pending.asked
                ));
            }
        }
        if flags & !1 != 0 {
            return Err(format!("a chunk with flags {flags:#x}"));
        }
        if flags & 1 != 0 {
            self.done(cookie, now, disk)?;
        }
        Ok(Some(end))
    }

    /// Checks a request when its last reply or chunk has come.
    fn done(&mut self, cookie: u64, now: u64, disk: &mut Disk) -> Result<(), String> {
        let pending = self.pending.remove(&cookie).expect("it was looked up");
        let Pending { asked, verdict, at, put, is_complete, parts, error, has_status } = pending;
        if !is_complete {
            return Err(format!("{asked:?} is answered before it was sent"));
        }
        let may_be_slow = asked.command == ZEROES && asked.flags & FAST_ZERO != 0;
        let is_right = match verdict {
            Ok(()) => error == 0 || may_be_slow && error == ENOTSUP,
            Err(expected) => error == expected,
        };
        if !is_right {
            return Err(format!("{asked:?} is answered with {error}, due: {verdict:?}"));
        }
        if asked.command == STATUS && error == 0 && !has_status {
            return Err(format!("{asked:?} has no status"));
        }
        if let Some(put) = put {
            disk.end(put, now, error == 0 && asked.command != TRIM);
        }
        if asked.command == READ && error == 0 {
            let covered: u64 = parts.iter().map(|(_, part)| part.len() as u64).sum();
            let mut order: Vec<(u64, u64)> =
                parts.iter().map(|(from, part)| (*from, from + part.len() as u64)).collect();
            order.sort_unstable();
            let is_whole = covered == asked.length
                && order.first().is_some_and(|first| first.0 == asked.offset)
                && order.windows(2).all(|pair| pair[0].1 == pair[1].0);
            if !is_whole {
                return Err(format!("{asked:?} is answered in parts {order:?}"));
            }
            for (from, part) in &parts {
                disk.explains(*from, part, at, now)?;
            }
        }
        Ok(())
    }
}

impl Pending {
    /// Checks extents against the disk: a hole reads as zeroes.
    fn status(
        &mut self,
        body: &[u8],
        context: Option<u32>,
        extended: bool,
        now: u64,
        disk: &Disk,
    ) -> Result<(), String> {
        let (head, each) = if extended { (8, 16) } else { (4, 8) };
        let count = body.len().saturating_sub(head) / each;
        if self.has_status
            || count == 0
            || body.len() != head + count * each
            || Some(be(&body[..4]) as u32) != context
            || extended && be(&body[4..8]) != count as u64
            || count > 1 && self.asked.flags & REQ_ONE != 0
        {
            return Err(format!("a status of {} bytes for {:?}", body.len(), self.asked));
        }
        self.has_status = true;
        let mut at = self.asked.offset;
        for extent in body[head..].chunks(each) {
            let (length, flags) = (be(&extent[..each / 2]), be(&extent[each / 2..]));
            if length == 0 || flags > 3 || at >= self.asked.offset + self.asked.length {
                return Err(format!("an extent of {length}, {flags:#x} at {at}: {:?}", self.asked));
            }
            let end = at.saturating_add(length).min(disk.size());
            if flags & 2 != 0 {
                let zeroes = vec![0; (end - at) as usize];
                disk.explains(at, &zeroes, self.at, now)
                    .map_err(|error| format!("a hole that is none: {error}"))?;
            }
            at = end;
        }
        if self.asked.flags & REQ_ONE != 0 && at > self.asked.offset + self.asked.length {
            return Err(format!("one extent, beyond {:?}", self.asked));
        }
        Ok(())
    }
}

/// Parses a complete header.
fn parse(header: &[u8]) -> Asked {
    Asked {
        flags: be(&header[4..6]) as u16,
        command: be(&header[6..8]) as u16,
        cookie: be(&header[8..16]),
        offset: be(&header[16..24]),
        length: be(&header[24..]),
    }
}
