//! vhost-user-blk: disks of virtual machines, whose memory the server maps.
//!
//! ```text
//!   socket ─ session (a thread for each guest) ─ messages ─▶ front ─▶ vring ─▶ orders ─▶ data path
//!   kick eventfd ─ ring of the shard ───────────────────────▶ front      │
//!   call eventfd ◀─ ring of the shard ◀─ used ring ◀─ finished ◀─────────┴────────────────────┘
//! ```
//!
//! | module | its content |
//! |---|---|
//! | `queue` | virtqueues, split and packed: chains of descriptors in, used buffers out |
//! | `blk` | requests of virtio-blk, and the device's configuration |
//! | `inflight` | the area that records requests in flight for the next server |
//! | `message` | the vhost-user protocol's messages on a socket |
//! | `sessions`, `link` | the guests that are attached, and their disks |
//! | `conversation` | one guest: negotiation, memory, starting and stopping of its vrings |
//! | `left` | the state of a session between two programs |
//! | `vring` | one queue of a guest on a shard: its requests, from the ring to orders and back |
//! | `vrings` | the front end of a shard |
//!
//! The guest and its virtual machine monitor are not trusted. Their memory may change at any time,
//! so each field is read once and checked before it is used, and no Rust reference points into it.
//! A violation of the protocol fails the device of this guest, and of no other.

pub mod blk;
mod conversation;
pub mod inflight;
pub mod left;
pub mod link;
pub mod message;
pub mod queue;
pub mod sessions;
#[cfg(test)]
mod tests;
pub mod vring;
pub mod vrings;
