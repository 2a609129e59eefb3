//! Commands that measure: `fairq bench`, `fairq calibrate` and `fairq device`.
//!
//! | module | contents |
//! |---|---|
//! | [`mod@bench`] | policies in turn under the same load; on shards, or on an NBD server |
//! | [`calibrate`] | the D and T that suit a device |
//! | [`device`] | profiles of devices: shown, or derived from a real one |
//! | [`job`], [`fiojob`] | a tenant's load, as flags or in a job file of fio |
//! | `plausible` | whether the figures of a measurement are possible |
//! | `load` | the jobs of a run: dealt over shards or connections, with a part of the device each |
//! | [`report`], [`series`] | the service of each tenant, in all and over time: tables and JSON |
//!
//! The load itself is `fairq_host::measure`, which owns memory that the kernel writes to.

pub mod args;
pub mod bench;
pub mod calibrate;
pub mod device;
mod fairness;
pub mod fiojob;
pub mod job;
mod load;
mod plausible;
pub mod report;
pub mod series;
