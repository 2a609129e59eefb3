//! What tenants have of a device in the laboratory: by weight, in groups, within a latency target,
//! and by what requests cost.

mod cost;
mod depth;
mod groups;
mod latency;
