//! What several tests need.

use fairq_host::nbd::wire::proto::{BlockSizes, Negotiated};

/// What a client gets of an export of this size that asks for nothing.
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
