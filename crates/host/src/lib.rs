//! fairq
#![allow(missing_docs)]
