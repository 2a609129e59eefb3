//! The schedulers, one module each. The schedulers behind one lock are in [`serial`].

pub mod d2fq;
pub mod depth;
pub mod kyber_fair;
pub mod limits;
pub mod managed;
pub mod mqfq;
pub mod none;
pub mod serial;
