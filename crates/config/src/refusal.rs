//! Why a command line or configuration is refused.

use std::fmt;

/// A configuration that cannot be used: what is wrong, where, and the cure. The program ends with
/// status 2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    text: String,
    /// The same may be taken in a moment.
    is_temporary: bool,
}

impl Refusal {
    /// A refusal for good.
    pub fn new(text: impl Into<String>) -> Refusal {
        Refusal { text: text.into(), is_temporary: false }
    }

    /// Something that takes its time and goes on: a client that asks again hears what has come of
    /// it.
    pub fn temporary(text: impl Into<String>) -> Refusal {
        Refusal { text: text.into(), is_temporary: true }
    }

    /// Whether the same may be taken in a moment.
    pub fn is_temporary(&self) -> bool {
        self.is_temporary
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}
