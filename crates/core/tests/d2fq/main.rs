//! D2FQ on a device with weighted round robin, in virtual time: the shares and ratios of the
//! paper's figures; and the tests of each decision where the paper leaves one open.

mod convergence;
mod decisions;
mod lab;
mod laws;
