//! fairq
#![allow(dead_code)]
mod config;
mod pairs;
mod units;
fn main() {}
