//! Where a file is, as the preload library reads it.
#![no_main]

#[path = "../../crates/preload/src/location.rs"]
mod location;

use std::ffi::CString;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = CString::new(bytes) else { return };
    if let Some(found) = location::location(&text) {
        assert!(found.path.to_bytes().starts_with(b"/"));
        let again = format!("{}:{} {} ", found.dev.0, found.dev.1, found.ino);
        let again = CString::new([again.as_bytes(), found.path.to_bytes()].concat()).unwrap();
        let again = location::location(&again).unwrap();
        assert_eq!((again.dev, again.ino, again.path), (found.dev, found.ino, found.path));
    }
});
