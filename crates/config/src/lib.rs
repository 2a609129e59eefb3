//! fairq's text for users: configuration files, flags, and the units and tables of both; and the
//! way from a configuration to running parts.
//!
//! ```text
//!   text ─▶ units, pairs ─▶ tables (device, policy, tenant, settings) ─▶ plan ─▶ engine ─▶ parts
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | a server's configuration as a whole: file, flags, plan |
//! | [`device`], [`policy`], [`tenant`], [`group`], [`weight`] | its parts |
//! | [`listen`], [`access`], [`timeouts`] | its parts for clients |
//! | [`engine`] | devices opened, policies built for the machine at hand |
//! | [`layout`] | where tenants' data are on a device that they share |
//! | [`flags`] | flags that several commands have |
//! | [`units`], [`pairs`] | numbers with units; `key=value` lists |
//! | [`files`], [`table`], [`refusal`] | texts in and out; why something is refused |
//!
//! The commands are in `fairq-bench`, `fairq-lab` and `fairq`; this crate is what they share.

// The laws of the fuzz targets refer to this crate by its name.
#[cfg(test)]
extern crate self as fairq_config;

pub mod access;
pub mod caps;
pub mod device;
pub mod disks;
pub mod engine;
pub mod files;
pub mod flags;
pub mod group;
mod keys;
pub mod latency;
pub mod layout;
pub mod listen;
pub mod name;
pub mod pairs;
pub mod policy;
pub mod refusal;
pub mod settings;
pub mod table;
pub mod tenant;
pub mod timeouts;
pub mod units;
pub mod weight;
