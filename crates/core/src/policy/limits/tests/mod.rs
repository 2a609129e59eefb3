//! The most service of flows and groups, and the least, before a device in virtual time.

mod caps;
mod groups;
