//! NVMe: a software controller, which stands before any storage, and what a driver of one needs.
//!
//! ```text
//!   driver ── SQE ──▶ submission queue ─ doorbell ─▶ Gate ─▶ Controller: Arbiter ─▶ Window ─▶ Storage
//!          ◀── CQE ── completion queue ◀──────────────────── posts ◀──────────────────────── done
//! ```
//!
//! - [`spec`]: layouts, opcodes, status codes. `queue`: both ends of the rings in shared memory.
//! - [`dma`] and `data`: addresses of a bus, PRP entries and SGLs, resolved and checked.
//! - [`controller`]: registers, admin and I/O commands, arbitration, completion. It knows neither a
//!   transport nor a thread: registers are two functions, memory is a trait, interrupts are a set
//!   of ports to wake, time is an argument.
//! - `identify`: the data of Identify, and log pages.
//! - [`namespaces`]: their sizes. [`storage`]: what carries commands out.
//!
//! The device that the host's shards use, which is a driver in front of such a controller, is
//! [`crate::device::nvme_soft`].

pub mod controller;
pub(crate) mod data;
pub mod dma;
pub(crate) mod identify;
pub mod namespaces;
pub(crate) mod queue;
pub mod spec;
pub mod storage;
