//! `--poll`: whether shards poll the rings of guests.

use serde::{Deserialize, Serialize};

/// The times at which shards without work poll the rings of guests instead of sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Poll {
    /// For a short time, if requests usually arrive within it.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<Poll> for fairq_host::front::vhost::vrings::Poll {
    fn from(poll: Poll) -> Self {
        match poll {
            Poll::Auto => Self::Auto,
            Poll::Always => Self::Always,
            Poll::Never => Self::Never,
        }
    }
}
