//! The schedulers, one module each. The schedulers behind one lock are in [`serial`].

pub(crate) mod bucket;
pub mod caps;
pub mod d2fq;
pub mod depth;
pub mod groups;
pub mod kyber_fair;
pub mod mqfq;
pub mod none;
pub mod serial;
