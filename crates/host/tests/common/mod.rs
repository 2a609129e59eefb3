//! Helpers of several tests.

use fairq_host::nbd::wire::proto::{BlockSizes, Negotiated};

/// The agreement of a client that negotiates no options, for an export of this size in bytes.
pub(crate) fn plain(size: u64) -> Negotiated {
    Negotiated {
        export: 0,
        size,
        read_only: false,
        structured: false,
        extended: false,
        base_allocation: None,
        no_zeroes: true,
        blocks: BlockSizes::default(),
        blocks_agreed: false,
        identity: None,
    }
}
