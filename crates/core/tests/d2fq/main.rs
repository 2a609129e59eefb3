//! D2FQ on a device with weighted round robin, in virtual time: what the paper's figures say about
//! shares and ratios; and that each decision on what it leaves open has its tests.

mod convergence;
mod decisions;
mod lab;
mod laws;
