//! D2FQ on a device with weighted round robin, in virtual time: the shares and ratios of the
//! paper's figures; and the tests of each decision where the paper leaves one open.

mod convergence;
mod decisions;
mod lab;
mod laws;
/// The policies of the papers' authors are part of the laboratory; the laws apply to them as to the
/// policies here.
#[allow(dead_code, unreachable_pub, reason = "the laboratory uses all of it")]
#[path = "../../../sim/src/policies/strict/mod.rs"]
mod strict;
