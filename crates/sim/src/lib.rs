//! The simulator: fairq's schedulers and devices in virtual time. The papers' claims, which are
//! experiments with it, are in `fairq-lab`.
//!
//! The papers measured machines and drives that few people have. Here the *real* policies of
//! `fairq-core` and the *real* arbiter, window and timing model of `fairq-device` run on simulated
//! cores in virtual time:
//!
//! ```text
//!   Scenario ─▶ world: threads ─▶ ports ─▶ policy ─▶ queues ─▶ arbiter ─▶ window ─▶ Ssd ─▶ Run
//!   Subject  ─▶                                   └▶ checks (facts, as they happen)
//! ```
//!
//! - [`scenario`]: host, device, tenants and their requests; faults.
//! - [`subject`]: a policy, and its promise; [`policies`]: the available subjects.
//! - [`run`]: from event to event; returns the service of each tenant ([`Run`]).
//! - [`check`]: laws, checked in every run; each in a file of its own.
//! - [`proxy`]: applications, as loads.
//! - [`trace`]: recorded requests, to be replayed.
//! - [`swarm`]: random scenarios under all checks, from a seed.
//!
//! **Deterministic.** The same scenario, subject and seed give the same bytes, on any machine: time
//! is integer, the order of events is total ([`agenda`](self)), nothing hashes, random numbers are
//! a published function ([`random`]). Floating point is used for results, never for decisions (the
//! device's times are integers, too).
//!
//! - [`host`]: machines on which submission, verbs, interrupts and wake-ups take CPU time, if a
//!   scenario names one; the time of verbs comes from running them on a simulated cache-coherence
//!   protocol ([`traced`]).
#![forbid(unsafe_code)]

mod agenda;
pub mod check;
mod coherence;
pub mod contention;
mod cpu;
mod device;
pub mod fact;
pub mod host;
mod meter;
pub mod policies;
pub mod proxy;
mod races;
pub mod random;
pub mod scenario;
pub mod subject;
pub mod swarm;
pub mod trace;
pub mod traced;
mod verb;
mod workload;
mod world;
mod zipf;

pub use check::Check;
pub use cpu::CpuUse;
pub use host::{Host, Machine};
pub use meter::{Got, Run, Violation};
pub use scenario::{Job, Scenario, ScenarioError, Tenant};
pub use subject::{Promise, Subject};
pub use world::{CALM_NS, on_host, run, run_traced, simulate};
