//! The refusal of a command line or configuration.

use std::fmt;

/// A configuration that cannot be used: the fault, its place, and the remedy. The program ends with
/// status 2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    text: String,
    /// Whether a retry may succeed.
    is_temporary: bool,
}

impl Refusal {
    /// A permanent refusal.
    pub fn new(text: impl Into<String>) -> Refusal {
        Refusal { text: text.into(), is_temporary: false }
    }

    /// A refusal while work is not finished: a repeated call gets the result.
    pub fn temporary(text: impl Into<String>) -> Refusal {
        Refusal { text: text.into(), is_temporary: true }
    }

    /// Whether a retry may succeed.
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
