#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| canopy_schedule::fuzz::schedules(bytes));
