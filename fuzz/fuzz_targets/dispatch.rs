//! Arbitrary bytes, served by a handler that answers everything; the answer has to be well formed.
#![no_main]

#[path = "../../crates/fuse/tests/common/fake.rs"]
mod fake;

use canopy_fuse::request::Dialect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let fake = fake::Fake::default();
    let mut out = vec![0; 16 + 8192];
    let minor = 31 + u32::from(bytes.first().copied().unwrap_or(0)) % 15;
    for setxattr_ext in [false, true] {
        fake::check_serve(bytes, &mut out, &fake, Dialect { minor, setxattr_ext });
        fake::check_serve(
            &fake::with_correct_length(bytes),
            &mut out,
            &fake,
            Dialect { minor, setxattr_ext },
        );
    }
});
