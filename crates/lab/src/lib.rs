//! `fairq lab`: the papers' claims tested in the simulator, and users' own scenarios.
//!
//! | module | what it holds |
//! |---|---|
//! | `claims` | a row a claim: the experiment that answers it, and what holds |
//! | `record` | what came out, as it is kept and compared |
//! | `text`, `page`, `plot` | the record as a table, as Markdown, as a page with figures |
//! | [`scenario`], `host` | scenario files, sweeps of them, and the machines in them |
//! | [`args`], `command` | the command line, and what it does |

pub mod args;
mod band;
pub mod claims;
mod command;
mod flips;
mod host;
mod page;
mod parallel;
mod plot;
mod progress;
mod record;
pub mod scenario;
mod text;

pub use command::run;
