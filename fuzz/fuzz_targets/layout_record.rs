#![no_main]

#[path = "../src/layout.rs"]
mod layout;

libfuzzer_sys::fuzz_target!(|data: &[u8]| layout::record(data));
