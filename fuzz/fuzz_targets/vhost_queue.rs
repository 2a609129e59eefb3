#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairq_fuzz::vhost::queue(data));
