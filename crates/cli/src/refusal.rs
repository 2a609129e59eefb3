//! Why a command line or configuration is refused.

use std::fmt;

/// A configuration that cannot be used: what is wrong, where, and the cure. The program ends with
/// status 2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal(String);

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Refusal {
        Refusal(text.into())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}
