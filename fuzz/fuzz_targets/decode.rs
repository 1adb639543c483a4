//! Arbitrary bytes, decoded in every dialect, in one piece and in three.
#![no_main]

#[path = "../../crates/fuse/tests/common/fake.rs"]
mod fake;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fake::check_decode(bytes);
    fake::check_decode(&fake::with_correct_length(bytes));
});
