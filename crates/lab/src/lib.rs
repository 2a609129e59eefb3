//! `fairq lab`: the papers' claims tested in the simulator, and users' own scenarios.
//!
//! | module | contents |
//! |---|---|
//! | `claims` | the experiments of `experiments/*.toml`, and a verdict for each claim |
//! | `record`, `figure` | the results, stored and compared |
//! | `text`, `page`, `plot` | the record as a table, as Markdown, as a page with figures |
//! | [`scenario`], `host` | scenario files, sweeps of them, and the machines in them |
//! | [`args`], `command` | the command line and its commands |

pub mod args;
mod band_table;
mod claims;
mod command;
mod figure;
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
