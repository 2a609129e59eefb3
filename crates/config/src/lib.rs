//! Parses the text that users write: configuration files and flags, with their units and tables.
//! Builds the parts of a server from a configuration.
//!
//! ```text
//!   text ─▶ units, pairs ─▶ tables (device, policy, tenant, settings) ─▶ plan ─▶ engine ─▶ parts
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`settings`] | a server's configuration as a whole: file, flags, plan |
//! | [`device`], [`policy`], [`tenant`], [`group`], [`weight`] | its parts |
//! | [`listen`], [`access`], [`poll`], [`timeouts`] | its parts for clients |
//! | [`engine`] | opening devices, building policies for this machine |
//! | [`layout`] | the places of tenants' data on a shared device |
//! | [`flags`] | flags that several commands share |
//! | [`units`], [`pairs`] | numbers with units; `key=value` lists |
//! | [`files`], [`table`], [`refusal`] | input and output of text; refusals |
//!
//! The commands are in `fairq-bench`, `fairq-lab` and `fairq`; they share this crate.

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
pub mod poll;
pub mod refusal;
pub mod settings;
pub mod table;
pub mod tenant;
pub mod timeouts;
pub mod units;
pub mod weight;
