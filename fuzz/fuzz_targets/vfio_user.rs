#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairq_fuzz::vfio_user::controller(data));
