#![no_main]

#[path = "../src/sim.rs"]
#[allow(dead_code, reason = "the other target's driver")]
mod sim;

libfuzzer_sys::fuzz_target!(|data: &[u8]| sim::scenario(data));
