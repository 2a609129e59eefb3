//! D2FQ on a device with weighted round robin, in virtual time: what the paper's figures say about shares and ratios.

mod convergence;
mod lab;
