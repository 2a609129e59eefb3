//! The wire format of the transmission phase: numbers, requests, errors and what the handshake
//! agreed on.
//!
//! Nothing here does I/O, allocates or keeps state. A connection passes its bytes to
//! [`parse_request`] until that returns a request, and gets the bytes of payload that follow the
//! header from [`Request::payload`]. They have to be consumed even if the request is refused, or
//! the next header would be read from the middle of them. [`validate`] checks the request. An
//! invalid request is answered with an error; only if the next header cannot be found, the client
//! is [`Malformed`] and the connection ends.

use thiserror::Error;

/// Magic numbers, in host byte order.
pub mod magic {
    /// First word of the server's greeting, ASCII `NBDMAGIC`.
    pub const GREETING: u64 = 0x4e42_444d_4147_4943;
    /// Second word of the greeting and first of every option, ASCII `IHAVEOPT`.
    pub const OPTION: u64 = 0x4948_4156_454f_5054;
    /// First word of every reply to an option.
    pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    /// A request with the compact header (28 bytes).
    pub const REQUEST: u32 = 0x2560_9513;
    /// A request with the extended header (32 bytes).
    pub const EXTENDED_REQUEST: u32 = 0x21e4_1c71;
    /// A simple reply (16 bytes).
    pub const SIMPLE_REPLY: u32 = 0x6744_6698;
    /// A structured reply chunk (20 bytes and a payload).
    pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;
    /// An extended reply chunk (32 bytes and a payload).
    pub const EXTENDED_REPLY: u32 = 0x6e8a_278c;
}

/// Largest payload of a request or a reply in bytes: the value that the specification lets portable
/// clients assume.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// Length of a compact request header in bytes.
pub const COMPACT_REQUEST_LEN: usize = 28;
/// Length of an extended request header in bytes.
pub const EXTENDED_REQUEST_LEN: usize = 32;

/// Length of a request's header in bytes.
pub const fn request_len(extended: bool) -> usize {
    if extended { EXTENDED_REQUEST_LEN } else { COMPACT_REQUEST_LEN }
}

/// Longest string (export name, description, query, message) that the protocol allows, in bytes.
pub const MAX_STRING: usize = 4096;

/// Flag bits of a request (`NBD_CMD_FLAG_*`). Unknown bits are kept, so that [`validate`] can
/// refuse them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandFlags(pub u16);

impl CommandFlags {
    /// Reply only when the data is on stable storage. Valid with every command.
    pub const FUA: Self = Self(1 << 0);
    /// `WRITE_ZEROES`: leave the range allocated.
    pub const NO_HOLE: Self = Self(1 << 1);
    /// `READ`: the reply has at most one content chunk.
    pub const DF: Self = Self(1 << 2);
    /// `BLOCK_STATUS`: the reply has at most one extent for each context.
    pub const REQ_ONE: Self = Self(1 << 3);
    /// `WRITE_ZEROES`: fail with [`NbdError::NotSupported`] rather than be as slow as a write.
    pub const FAST_ZERO: Self = Self(1 << 4);
    /// Extended header: the length is the length of a payload that follows the header.
    pub const PAYLOAD_LEN: Self = Self(1 << 5);

    /// Whether every bit of `other` is set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits that are set in `self`, in `other` or in both.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether some bit outside `allowed` is set.
    #[inline]
    pub const fn exceeds(self, allowed: Self) -> bool {
        self.0 & !allowed.0 != 0
    }
}

/// The command of a request (`NBD_CMD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read `length` bytes at `offset`.
    Read,
    /// Write the payload at `offset`.
    Write,
    /// Complete the requests in flight and close; there is no reply.
    Disconnect,
    /// Make everything acknowledged so far durable.
    Flush,
    /// The content of the range is no longer needed and may be discarded.
    Trim,
    /// The range will be read soon.
    Cache,
    /// Write zeroes without a payload.
    WriteZeroes,
    /// Report which extents are allocated.
    BlockStatus,
    /// Any other value, `RESIZE` among them. The server answers it with [`NbdError::Invalid`].
    Unknown(u16),
}

impl Command {
    /// The command of a wire value.
    #[inline]
    pub const fn from_wire(value: u16) -> Self {
        match value {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }

    /// The wire value of the command.
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Unknown(other) => other,
        }
    }

    /// The flags that may come with the command, before the restrictions of the handshake.
    const fn allowed_flags(self) -> CommandFlags {
        // If FUA is offered, the specification requires that every command is accepted with it:
        // clients are known to set it on commands that write nothing.
        let fua = CommandFlags::FUA;
        match self {
            Self::Read => fua.union(CommandFlags::DF),
            Self::Write => fua.union(CommandFlags::PAYLOAD_LEN),
            Self::WriteZeroes => fua.union(CommandFlags::NO_HOLE).union(CommandFlags::FAST_ZERO),
            Self::BlockStatus => fua.union(CommandFlags::REQ_ONE),
            _ => fua,
        }
    }

    /// Whether the command changes the content of the export.
    pub const fn modifies(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

/// One request, unchecked; [`validate`] checks whether it may be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags, unknown ones included.
    pub flags: CommandFlags,
    /// The command.
    pub command: Command,
    /// The client's identifier, opaque to the server; every reply repeats it.
    pub cookie: u64,
    /// Start of the range in bytes from the start of the export.
    pub offset: u64,
    /// Length of the range in bytes (of the payload, for a write).
    pub length: u64,
}

impl Request {
    /// Bytes of payload between this header and the next one; at most [`MAX_PAYLOAD`] for a request
    /// that [`parse_request`] has returned. A client sends the payload even if the request is
    /// refused.
    ///
    /// With compact headers only a write has a payload; with extended ones the flag decides for any
    /// command.
    #[inline]
    pub const fn payload(&self, extended: bool) -> u64 {
        let has_payload = if extended {
            self.flags.contains(CommandFlags::PAYLOAD_LEN)
        } else {
            matches!(self.command, Command::Write)
        };
        if has_payload { self.length } else { 0 }
    }

    /// Whether the reply has to wait for stable storage.
    #[inline]
    pub const fn fua(&self) -> bool {
        self.flags.contains(CommandFlags::FUA)
    }

    /// Writes the header as a client sends it into `out` and returns its length.
    ///
    /// For clients and tests; a length beyond 32 bits does not fit a compact header and is
    /// truncated.
    pub fn encode(&self, extended: bool, out: &mut [u8; EXTENDED_REQUEST_LEN]) -> usize {
        let magic = if extended { magic::EXTENDED_REQUEST } else { magic::REQUEST };
        out[0..4].copy_from_slice(&magic.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_wire().to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        if extended {
            out[24..32].copy_from_slice(&self.length.to_be_bytes());
            EXTENDED_REQUEST_LEN
        } else {
            out[24..28].copy_from_slice(&(self.length as u32).to_be_bytes());
            COMPACT_REQUEST_LEN
        }
    }
}

/// The client's next header cannot be found, or finding it would cost too much: the connection has
/// to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The bytes received are not the beginning of a request.
    #[error("request begins with {found:#010x} instead of {expected:#010x}")]
    Magic {
        /// The number that was received.
        found: u32,
        /// The number at the beginning of the negotiated kind of header.
        expected: u32,
    },
    /// The payload is longer than [`MAX_PAYLOAD`].
    #[error("payload of {0} bytes is beyond the protocol's {MAX_PAYLOAD}")]
    PayloadTooLong(u64),
    /// An extended write without `PAYLOAD_LEN`. The specification says that no data follow, but
    /// clients that forget the flag send data anyway, and data must never be parsed as requests.
    #[error("extended write request without the payload flag")]
    WriteWithoutPayload,
}

/// Finds the request header at the start of `bytes`.
///
/// `Ok(None)` means that more bytes are needed; `Ok(Some((request, consumed)))` means that a header
/// of `consumed` bytes was read, after which [`Request::payload`] bytes of payload follow. A wrong
/// magic number is reported as soon as its four bytes have arrived.
#[inline]
pub fn parse_request(bytes: &[u8], extended: bool) -> Result<Option<(Request, usize)>, Malformed> {
    // The magic number is checked before the header is complete. A client that sends the shorter
    // kind of header may wait for a reply before the server has the bytes of the longer kind.
    let Some(found) = be32(bytes, 0) else { return Ok(None) };
    let expected = if extended { magic::EXTENDED_REQUEST } else { magic::REQUEST };
    if found != expected {
        return Err(Malformed::Magic { found, expected });
    }
    let header_len = request_len(extended);
    let length = if extended { be64(bytes, 24) } else { be32(bytes, 24).map(u64::from) };
    let (Some(flags), Some(command), Some(cookie), Some(offset), Some(length)) =
        (be16(bytes, 4), be16(bytes, 6), be64(bytes, 8), be64(bytes, 16), length)
    else {
        return Ok(None);
    };
    let request = Request {
        flags: CommandFlags(flags),
        command: Command::from_wire(command),
        cookie,
        offset,
        length,
    };
    let payload = request.payload(extended);
    // The payload of a refused request is received and discarded, so its length has a bound. The
    // specification lets a server disconnect for a longer one.
    if payload > u64::from(MAX_PAYLOAD) {
        return Err(Malformed::PayloadTooLong(payload));
    }
    if extended
        && request.command == Command::Write
        && !request.flags.contains(CommandFlags::PAYLOAD_LEN)
    {
        return Err(Malformed::WriteWithoutPayload);
    }
    Ok(Some((request, header_len)))
}

/// The error values of a reply (`NBD_E*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[repr(u32)]
pub enum NbdError {
    /// `EPERM`: a write to a read-only export.
    #[error("operation not permitted")]
    NotPermitted = 1,
    /// `EIO`: the device failed.
    #[error("input/output error")]
    Io = 5,
    /// `ENOMEM`. The server avoids it: buffers are bounded by back pressure, not by errors.
    #[error("cannot allocate memory")]
    NoMemory = 12,
    /// `EINVAL`: the request is invalid.
    #[error("invalid argument")]
    Invalid = 22,
    /// `ENOSPC`: a write beyond the end of the export, or the device is full.
    #[error("no space left on device")]
    NoSpace = 28,
    /// `EOVERFLOW`: too long for one reply.
    #[error("value too large")]
    Overflow = 75,
    /// `ENOTSUP`: a fast zero that would not be fast.
    #[error("operation not supported")]
    NotSupported = 95,
    /// `ESHUTDOWN`: the server is stopping.
    #[error("server is shutting down")]
    Shutdown = 108,
}

impl NbdError {
    /// The value in the reply.
    #[inline]
    pub const fn to_wire(self) -> u32 {
        self as u32
    }

    /// The error of a wire value; `EINVAL` for an unknown one, as the specification requires of
    /// clients.
    pub const fn from_wire(value: u32) -> Self {
        match value {
            1 => Self::NotPermitted,
            5 => Self::Io,
            12 => Self::NoMemory,
            28 => Self::NoSpace,
            75 => Self::Overflow,
            95 => Self::NotSupported,
            108 => Self::Shutdown,
            _ => Self::Invalid,
        }
    }

    /// The protocol's error for a failed system call with Linux' `errno` (positive).
    ///
    /// An errno without a counterpart becomes `EIO`: the request was valid, but the device could
    /// not carry it out.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EPERM | libc::EACCES | libc::EROFS => Self::NotPermitted,
            libc::ENOMEM | libc::ENOBUFS => Self::NoMemory,
            libc::EINVAL => Self::Invalid,
            // The specification requires that an exhausted quota and a file size limit are reported
            // as a full device.
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::EOVERFLOW => Self::Overflow,
            libc::EOPNOTSUPP | libc::ENOSYS => Self::NotSupported,
            libc::ESHUTDOWN => Self::Shutdown,
            _ => Self::Io,
        }
    }

    /// [`NbdError::from_errno`] for the reply to `request`. The specification allows `ENOTSUP` for
    /// fast zeroes only, and `EOVERFLOW` only for reads that must not be fragmented; elsewhere both
    /// become `EINVAL`.
    pub const fn from_errno_for(errno: i32, request: &Request) -> Self {
        match Self::from_errno(errno) {
            Self::NotSupported if !request.flags.contains(CommandFlags::FAST_ZERO) => Self::Invalid,
            Self::Overflow if !request.flags.contains(CommandFlags::DF) => Self::Invalid,
            error => error,
        }
    }
}

/// The block sizes of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BlockSizes {
    /// The unit of offsets and lengths; a power of two, at most 64 KiB.
    pub min: u32,
    /// The size and alignment of requests that need no read-modify-write; a power of two, at least
    /// 512 and `min`.
    pub preferred: u32,
    /// Longest payload of one request or reply; at least `preferred`, at most [`MAX_PAYLOAD`].
    pub max_payload: u32,
}

impl Default for BlockSizes {
    /// The assumptions of the specification when nothing was negotiated.
    fn default() -> Self {
        Self { min: 1, preferred: 4096, max_payload: MAX_PAYLOAD }
    }
}

/// The result of a handshake: all parameters of the transmission phase.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Negotiated {
    /// Index of the export in the handshake's list.
    pub export: usize,
    /// Size of the export in bytes, as sent to the client.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether reads are answered by structured chunks; set with `extended` as well.
    pub structured: bool,
    /// Whether requests and replies have extended headers.
    pub extended: bool,
    /// Identity of the metadata context `base:allocation`, if the client selected it.
    pub base_allocation: Option<u32>,
    /// Whether the client requested that no zeroes follow the answer to `EXPORT_NAME` (for logs
    /// only).
    pub no_zeroes: bool,
    /// The sizes that are enforced.
    pub blocks: BlockSizes,
    /// Whether the client requested the block sizes, and so must obey them.
    pub blocks_agreed: bool,
    /// The name in the client's certificate, if it has one.
    pub identity: Option<String>,
}

/// Checks whether `request` may be carried out; returns the error for its reply if not.
///
/// The checks are, in this order: the client negotiated the command and its flags, the export
/// permits the command (it is not read-only), the range lies within the export, and the range is
/// small enough. [`Command::Disconnect`] is never refused, because it has no reply. A length of
/// zero, which the specification leaves open, is `EINVAL`.
pub fn validate(request: &Request, negotiated: &Negotiated) -> Result<(), NbdError> {
    let command = request.command;
    if command == Command::Disconnect {
        return Ok(());
    }
    let mut allowed = command.allowed_flags();
    // Flags that were not negotiated are not allowed; the specification requires `EINVAL` for them.
    if !negotiated.structured {
        allowed.0 &= !CommandFlags::DF.0;
    }
    if !negotiated.extended {
        allowed.0 &= !CommandFlags::PAYLOAD_LEN.0;
    }
    let known = match command {
        Command::Unknown(_) => false,
        // The specification requires `EINVAL` for a client that has selected no metadata context.
        Command::BlockStatus => negotiated.base_allocation.is_some(),
        _ => true,
    };
    if !known || request.flags.exceeds(allowed) {
        return Err(NbdError::Invalid);
    }
    if negotiated.read_only && command.modifies() {
        return Err(NbdError::NotPermitted);
    }
    if command == Command::Flush {
        // Both fields are reserved, so other values are refused.
        let empty = request.offset == 0 && request.length == 0;
        return if empty { Ok(()) } else { Err(NbdError::Invalid) };
    }
    validate_range(request, negotiated)
}

/// The checks of [`validate`] for offset and length.
fn validate_range(request: &Request, negotiated: &Negotiated) -> Result<(), NbdError> {
    // `min` is a power of two, which `Exports::new` has checked. If it were 0, only the empty range
    // would be aligned.
    let misaligned =
        (request.offset | request.length) & u64::from(negotiated.blocks.min).wrapping_sub(1) != 0;
    if request.length == 0 || misaligned {
        return Err(NbdError::Invalid);
    }
    let inside =
        request.offset.checked_add(request.length).is_some_and(|end| end <= negotiated.size);
    let max_payload = u64::from(negotiated.blocks.max_payload);
    match request.command {
        // The specification requires `ENOSPC` for writes and zeroes beyond the end, and `EINVAL`
        // for all other commands.
        Command::Write | Command::WriteZeroes if !inside => Err(NbdError::NoSpace),
        _ if !inside => Err(NbdError::Invalid),
        // Structured chunks could split the reply, but buffers are bounded, so the client has to
        // send a shorter read.
        Command::Read if request.length > max_payload && negotiated.structured => {
            Err(NbdError::Overflow)
        }
        Command::Read | Command::Write if request.length > max_payload => Err(NbdError::Invalid),
        // The specification bounds payloads only, so the range of a command without a payload may
        // be longer than the largest payload.
        _ => Ok(()),
    }
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[inline]
fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[inline]
fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn negotiated() -> Negotiated {
        Negotiated {
            export: 0,
            size: 1 << 20,
            read_only: false,
            structured: true,
            extended: true,
            base_allocation: Some(1),
            no_zeroes: true,
            blocks: BlockSizes::default(),
            blocks_agreed: true,
            identity: None,
        }
    }

    fn request(command: Command, offset: u64, length: u64) -> Request {
        Request { flags: CommandFlags::default(), command, cookie: 7, offset, length }
    }

    fn with(flags: CommandFlags, request: Request) -> Request {
        Request { flags, ..request }
    }

    /// The specification's table of errors, each with the smallest change from a valid request.
    #[test]
    fn errors_as_specified() {
        use Command::*;
        use NbdError::*;
        let size = negotiated().size;
        let plain = negotiated();
        let read_only = Negotiated { read_only: true, ..negotiated() };
        let simple = Negotiated {
            structured: false,
            extended: false,
            base_allocation: None,
            ..negotiated()
        };
        let coarse =
            Negotiated { blocks: BlockSizes { min: 512, ..BlockSizes::default() }, ..negotiated() };
        let large = Negotiated { size: 1 << 40, ..negotiated() };
        let large_simple = Negotiated { size: 1 << 40, ..simple.clone() };
        let too_long = u64::from(MAX_PAYLOAD) + 1;
        let cases = [
            (&plain, request(Read, 0, size), Ok(())),
            (&plain, request(Read, 1, size), Err(Invalid)),
            (&plain, request(Write, size - 1, 1), Ok(())),
            (&plain, request(Write, size, 1), Err(NoSpace)),
            (&plain, request(WriteZeroes, size, 1), Err(NoSpace)),
            (&plain, request(Trim, size, 1), Err(Invalid)),
            (&plain, request(Cache, size, 1), Err(Invalid)),
            (&plain, request(BlockStatus, size, 1), Err(Invalid)),
            (&plain, request(Write, u64::MAX, 2), Err(NoSpace)),
            (&plain, request(Read, u64::MAX, u64::MAX), Err(Invalid)),
            (&plain, request(Read, 0, 0), Err(Invalid)),
            (&read_only, request(Read, 0, 1), Ok(())),
            (&read_only, request(Flush, 0, 0), Ok(())),
            (&read_only, request(Write, 0, 1), Err(NotPermitted)),
            (&read_only, request(Write, size, 1), Err(NotPermitted)),
            (&read_only, request(Trim, 0, 1), Err(NotPermitted)),
            (&read_only, request(WriteZeroes, 0, 1), Err(NotPermitted)),
            (&plain, request(Flush, 0, 1), Err(Invalid)),
            (&plain, request(Unknown(8), 0, 1), Err(Invalid)),
            (&plain, request(Disconnect, 5, 5), Ok(())),
            (&simple, request(BlockStatus, 0, 1), Err(Invalid)),
            (&plain, request(BlockStatus, 0, 1), Ok(())),
            (&coarse, request(Read, 512, 512), Ok(())),
            (&coarse, request(Read, 1, 512), Err(Invalid)),
            (&coarse, request(Write, 512, 511), Err(Invalid)),
            (&large, request(Read, 0, too_long - 1), Ok(())),
            (&large, request(Read, 0, too_long), Err(Overflow)),
            (&large_simple, request(Read, 0, too_long), Err(Invalid)),
            (&large, request(Write, 0, too_long), Err(Invalid)),
            (&large, request(WriteZeroes, 0, 1 << 40), Ok(())),
            (&large, request(Trim, 0, 1 << 40), Ok(())),
            (&plain, with(CommandFlags::DF, request(Read, 0, 1)), Ok(())),
            (&simple, with(CommandFlags::DF, request(Read, 0, 1)), Err(Invalid)),
            (&plain, with(CommandFlags::DF, request(Write, 0, 1)), Err(Invalid)),
            (&plain, with(CommandFlags::FUA, request(Read, 0, 1)), Ok(())),
            (&plain, with(CommandFlags::FUA, request(Flush, 0, 0)), Ok(())),
            (&plain, with(CommandFlags::NO_HOLE, request(WriteZeroes, 0, 1)), Ok(())),
            (&plain, with(CommandFlags::FAST_ZERO, request(WriteZeroes, 0, 1)), Ok(())),
            (&plain, with(CommandFlags::FAST_ZERO, request(Trim, 0, 1)), Err(Invalid)),
            (&plain, with(CommandFlags::REQ_ONE, request(BlockStatus, 0, 1)), Ok(())),
            (&plain, with(CommandFlags::PAYLOAD_LEN, request(BlockStatus, 0, 1)), Err(Invalid)),
            (&plain, with(CommandFlags::PAYLOAD_LEN, request(Write, 0, 1)), Ok(())),
            (&simple, with(CommandFlags::PAYLOAD_LEN, request(Write, 0, 1)), Err(Invalid)),
            (&plain, with(CommandFlags(1 << 15), request(Read, 0, 1)), Err(Invalid)),
        ];
        for (negotiated, request, expected) in cases {
            assert_eq!(validate(&request, negotiated), expected, "{request:?} with {negotiated:?}");
        }
    }

    #[test]
    fn payload_follows_refused_requests_too() {
        let write = request(Command::Write, u64::MAX, 4096);
        assert_eq!(write.payload(false), 4096);
        assert_eq!(with(CommandFlags::PAYLOAD_LEN, write).payload(true), 4096);
        // The flag means nothing in a compact header: such a request is refused and has no payload.
        assert_eq!(with(CommandFlags::PAYLOAD_LEN, request(Command::Read, 0, 9)).payload(false), 0);
        assert_eq!(
            with(CommandFlags::PAYLOAD_LEN, request(Command::Unknown(77), 0, 9)).payload(true),
            9
        );
        assert_eq!(request(Command::WriteZeroes, 0, 9).payload(true), 0);
    }

    #[test]
    fn framing_errors_are_fatal() {
        let mut header = [0; EXTENDED_REQUEST_LEN];
        let write = request(Command::Write, 0, 1);
        assert_eq!(write.encode(true, &mut header), EXTENDED_REQUEST_LEN);
        assert_eq!(parse_request(&header, true), Err(Malformed::WriteWithoutPayload));
        let long = request(Command::Write, 0, u64::from(MAX_PAYLOAD) + 1);
        long.encode(false, &mut header);
        assert_eq!(parse_request(&header, false), Err(Malformed::PayloadTooLong(long.length)));
        let (found, expected) = (magic::REQUEST, magic::EXTENDED_REQUEST);
        assert_eq!(parse_request(&header[..4], true), Err(Malformed::Magic { found, expected }));
    }

    #[test]
    fn errno_mapping() {
        assert_eq!(NbdError::from_errno(libc::EDQUOT), NbdError::NoSpace);
        assert_eq!(NbdError::from_errno(libc::EROFS), NbdError::NotPermitted);
        assert_eq!(NbdError::from_errno(libc::EREMOTEIO), NbdError::Io);
        let zero = request(Command::WriteZeroes, 0, 1);
        assert_eq!(NbdError::from_errno_for(libc::EOPNOTSUPP, &zero), NbdError::Invalid);
        let fast = with(CommandFlags::FAST_ZERO, zero);
        assert_eq!(NbdError::from_errno_for(libc::EOPNOTSUPP, &fast), NbdError::NotSupported);
        for error in [1, 5, 12, 22, 28, 75, 95, 108] {
            assert_eq!(NbdError::from_wire(error).to_wire(), error);
        }
    }

    proptest! {
        #[test]
        fn request_round_trip(
            flags in any::<u16>(), command in any::<u16>(), cookie in any::<u64>(), offset in any::<u64>(),
            length in prop_oneof![0..=u64::from(MAX_PAYLOAD), any::<u64>()], extended in any::<bool>(),
        ) {
            let length = if extended { length } else { length & u64::from(u32::MAX) };
            let sent = Request {
                flags: CommandFlags(flags), command: Command::from_wire(command), cookie, offset, length,
            };
            let mut header = [0; EXTENDED_REQUEST_LEN];
            let len = sent.encode(extended, &mut header);
            for cut in 0..len {
                prop_assert_eq!(parse_request(&header[..cut], extended), Ok(None));
            }
            match parse_request(&header[..len], extended) {
                Ok(Some((received, consumed))) => {
                    prop_assert_eq!(received, sent);
                    prop_assert_eq!(consumed, len);
                    prop_assert!(received.payload(extended) <= u64::from(MAX_PAYLOAD));
                }
                Ok(None) => prop_assert!(false, "a whole header was not recognised"),
                Err(Malformed::PayloadTooLong(n)) => prop_assert!(n == length && n > u64::from(MAX_PAYLOAD)),
                Err(Malformed::WriteWithoutPayload) => {
                    prop_assert!(extended && !sent.flags.contains(CommandFlags::PAYLOAD_LEN));
                }
                Err(Malformed::Magic { .. }) => prop_assert!(false, "the magic number is right"),
            }
        }

        /// A valid request lies inside the export, so no later code has to check it again.
        #[test]
        fn granted_requests_stay_inside(
            flags in any::<u16>(), command in 0..9_u16, offset in any::<u64>(), length in any::<u64>(),
            size in any::<u64>(), shift in 0..17_u32, bits in 0..16_u8,
        ) {
            let negotiated = Negotiated {
                size, read_only: bits & 1 != 0, structured: bits & 2 != 0, extended: bits & 4 != 0,
                base_allocation: (bits & 8 != 0).then_some(1),
                blocks: BlockSizes { min: 1 << shift, ..BlockSizes::default() }, ..negotiated()
            };
            // Half of the bits are cleared so that many of the requests are valid.
            let request = Request {
                flags: CommandFlags(flags & (flags >> 8)), command: Command::from_wire(command), cookie: 0,
                offset: offset >> (length & 63), length: length >> (offset & 63),
            };
            if validate(&request, &negotiated).is_ok()
                && !matches!(request.command, Command::Flush | Command::Disconnect)
            {
                let end = request.offset.checked_add(request.length);
                prop_assert!(end.is_some_and(|end| end <= size));
                prop_assert!(request.length > 0);
                prop_assert!(!(negotiated.read_only && request.command.modifies()));
                prop_assert!((request.offset | request.length).is_multiple_of(1 << shift));
            }
        }

        #[test]
        fn garbage_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64), extended in any::<bool>()) {
            if let Ok(Some((request, consumed))) = parse_request(&bytes, extended) {
                prop_assert!(consumed <= bytes.len());
                let _ = validate(&request, &negotiated());
            }
        }
    }
}
