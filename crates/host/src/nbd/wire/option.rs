//! Options: the numbers of the handshake, the parsing of what clients send and the encoding of the
//! answers.
//!
//! Like [`super::proto`] this does no I/O. A client's option is a header and data whose length the
//! client chooses; the parsers here trust no length inside the data.

use super::proto::{MAX_STRING, magic};

/// Options (`NBD_OPT_*`).
pub mod opt {
    /// Open an export with the old option, which has no error reply: a refusal closes the
    /// connection.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Request information about an export.
    pub const INFO: u32 = 6;
    /// Request information about an export and open it.
    pub const GO: u32 = 7;
    /// Reply to reads in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to an option (`NBD_REP_*`).
pub mod rep {
    /// Success, and the end of the answer.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit that is set in error types.
    pub const ERROR: u32 = 1 << 31;
    /// The option is unknown to the server.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The option is known, and not allowed.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// The option makes no sense, or its data do not.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// TLS is required first.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The option or its data are too long.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
    /// Extended headers were negotiated, so this is no longer possible.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR + 10;
}

/// Types of information about an export (`NBD_INFO_*`).
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The name that it has in the list.
    pub const NAME: u16 = 1;
    /// The description for human readers.
    pub const DESCRIPTION: u16 = 2;
    /// The block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of the server's greeting.
pub mod greeting {
    /// Options have replies.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zeroes after the answer to `EXPORT_NAME` may be omitted.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// The only metadata context of the server: the allocated ranges and the ranges of zeroes.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// Its identity on every connection that selects it; the number is opaque to clients.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The data of an option violate the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid(pub &'static str);

/// Data of `INFO` and `GO`.
#[derive(Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Name of the export, as received: it may not be UTF-8, and then names no export.
    pub name: &'a [u8],
    /// Two bytes for each requested kind of information.
    wanted: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Parses the data.
    pub fn parse(data: &'a [u8]) -> Result<Self, Invalid> {
        let mut rest = data;
        let name = string(&mut rest).ok_or(Invalid("the name does not fit the option"))?;
        let count =
            take(&mut rest, 2).ok_or(Invalid("the number of information requests is missing"))?;
        let count = usize::from(u16::from_be_bytes([count[0], count[1]]));
        if rest.len() != 2 * count {
            return Err(Invalid("the information requests do not fill the option"));
        }
        Ok(Self { name, wanted: rest })
    }

    /// Whether `kind` is requested.
    pub fn wants(&self, kind: u16) -> bool {
        // The specification requires that unknown kinds are ignored.
        self.wanted.chunks_exact(2).any(|wanted| wanted == kind.to_be_bytes())
    }
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, PartialEq, Eq)]
pub struct ContextRequest<'a> {
    /// Name of the export.
    pub name: &'a [u8],
    /// The number of queries.
    pub queries: u32,
    /// Whether one of them is exactly [`BASE_ALLOCATION`].
    pub base_allocation: bool,
    /// Whether one of them is `base:`, the wildcard of a listing.
    pub base_wildcard: bool,
}

impl<'a> ContextRequest<'a> {
    /// Parses the data. Queries for unknown contexts are not an error: they select nothing.
    pub fn parse(data: &'a [u8]) -> Result<Self, Invalid> {
        let mut rest = data;
        let name = string(&mut rest).ok_or(Invalid("the name does not fit the option"))?;
        let queries = take(&mut rest, 4).ok_or(Invalid("the number of queries is missing"))?;
        let queries = u32::from_be_bytes([queries[0], queries[1], queries[2], queries[3]]);
        let mut request = Self { name, queries, base_allocation: false, base_wildcard: false };
        // Each round takes at least four bytes, so the length of the data and not `queries` bounds
        // the loop.
        for _ in 0..queries {
            let query = string(&mut rest).ok_or(Invalid("a query does not fit the option"))?;
            request.base_allocation |= query == BASE_ALLOCATION;
            request.base_wildcard |= query == b"base:";
        }
        if rest.is_empty() {
            Ok(request)
        } else {
            Err(Invalid("the queries do not fill the option"))
        }
    }
}

/// Reads a string and the length before it; `None` if it is longer than the rest, or than
/// [`MAX_STRING`].
fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take(rest, 4)?;
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
    let length = usize::try_from(length).ok().filter(|&length| length <= MAX_STRING)?;
    take(rest, length)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

/// Adds a reply to `option` to `out`: its header, and data in parts. The data are always shorter
/// than 4 GiB.
pub fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&magic::OPTION_REPLY.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(length as u32).to_be_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sized(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes(), text].concat()
    }

    #[test]
    fn info_requests() {
        let data = [sized(b"db"), vec![0, 2, 0, 3, 0, 1]].concat();
        let request = InfoRequest::parse(&data).unwrap();
        assert_eq!(request.name, b"db");
        assert!(
            request.wants(info::BLOCK_SIZE)
                && request.wants(info::NAME)
                && !request.wants(info::DESCRIPTION)
        );
        for cut in 0..data.len() {
            assert!(InfoRequest::parse(&data[..cut]).is_err(), "cut at {cut}");
        }
        assert!(InfoRequest::parse(&[data, vec![0]].concat()).is_err(), "a byte too many");
    }

    #[test]
    fn context_requests() {
        let data = [
            sized(b""),
            vec![0, 0, 0, 2],
            sized(b"qemu:dirty-bitmap:x"),
            sized(b"base:allocation"),
        ]
        .concat();
        let request = ContextRequest::parse(&data).unwrap();
        assert!(request.base_allocation && !request.base_wildcard && request.queries == 2);
        for cut in 0..data.len() {
            assert!(ContextRequest::parse(&data[..cut]).is_err(), "cut at {cut}");
        }
        assert!(ContextRequest::parse(&[data, vec![0]].concat()).is_err(), "a byte too many");
        let endless = [sized(b""), vec![0xff; 4]].concat();
        assert!(ContextRequest::parse(&endless).is_err(), "more queries than data");
        let long = [sized(&[b'x'; MAX_STRING + 1]), vec![0; 4]].concat();
        assert!(ContextRequest::parse(&long).is_err(), "a name longer than any string may be");
    }

    proptest! {
        #[test]
        fn garbage_is_survived(data in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..80)) {
            if let Ok(request) = InfoRequest::parse(&data) {
                prop_assert!(request.name.len() <= data.len());
            }
            if let Ok(request) = ContextRequest::parse(&data) {
                prop_assert!(request.name.len() + 4 * request.queries as usize <= data.len());
            }
        }
    }
}
