//! fairq
#![allow(dead_code)]
mod config;
mod fiojob;
mod job;
mod pairs;
mod report;
mod units;
fn main() {}
