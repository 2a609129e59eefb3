//! `--poll`: whether shards poll the rings of guests.

use serde::{Deserialize, Serialize};

/// When the shards poll the rings of guests that have nothing to do instead of sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Poll {
    /// As long as that pays.
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
