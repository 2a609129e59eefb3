//! The classic disk schedulers behind the contract of `fairq-core`, and the registry of all
//! policies. They are there for comparison: fairq recommends none of them, except NASS to those who
//! study its paper.
//!
//! | policy | what | source |
//! |---|---|---|
//! | [`kyber::Kyber`] | reads and writes within latency targets, no shares | Linux's scheduler of that name |
//! | [`cfq::Cfq`] | slices of time, one flow at a time, one lock | Linux 3.10 |
//! | [`bfq::Bfq`] | budgets of bytes by B-WF2Q+, one flow at a time, one lock | Valente, Checconi 2010 |
//! | [`flashfq::FlashFq`] | device time, with throttled dispatch and anticipation, one lock | Shen, Park, USENIX ATC 2013 |
//! | [`fiops::Fiops`] | requests, one a turn, one lock | Li 2012 |
//! | [`nass::NassOver`] | limits on the outstanding requests of each flow, around the four before and SFQ(D) | MSST 2020 |
//!
//! The policies are made of the parts of `fairq-core`, under the same rules: `no_std` (with
//! `alloc`), no clock, no I/O, no `unsafe`, no floating point, and memory only while a policy is
//! being built.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

pub mod anticipation;
pub mod bfq;
pub mod cfq;
pub mod fiops;
pub mod flashfq;
pub mod kyber;
pub mod nass;
pub mod registry;
mod staged;
#[cfg(all(test, not(loom)))]
mod testing;
#[cfg(feature = "toy")]
pub mod toy;

pub use registry::{AnyPolicy, AnyPort};
