//! The device side: all parts behind the submission queues.
//!
//! ```text
//!   submission queues ── post ──▶ Arbiter ── next ──▶ Window ── fetched ──▶ a store, real or a
//!   (urgent, high, medium, low)   chooses the next    at most W             model (Ssd); its
//!                                 command             fetched at a time     end frees a slot
//! ```
//!
//! Everything here is a pure state machine: time is an argument, there is no I/O, no clock and no
//! thread, nothing is allocated per command, and the same calls return the same results. The
//! software controller drives it in real time, the laboratory in virtual time. The one exception is
//! the [`gate`], which decides which of several threads drives it.
#![forbid(unsafe_code)]

pub mod arbiter;
pub mod closed;
pub mod derivation;
pub mod disk;
pub mod gate;
pub mod profile;
pub mod ssd;
pub mod window;

pub use arbiter::{Arbiter, Arbitration, Burst, Mechanism, QueueIndex};
pub use derivation::derive;
pub use disk::{Disk, DiskProfile};
pub use gate::Gate;
pub use profile::{Profile, ProfileError, State};
pub use ssd::{Busy, Completed, Parts, Setup, Ssd, Usage};
pub use window::Window;
