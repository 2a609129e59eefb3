//! The interface to the kernel: the ring, memory, wake-ups, and time.

pub mod area;
pub mod budget;
pub mod clock;
pub mod fault;
pub mod memory;
pub mod ring;
pub mod wakers;
