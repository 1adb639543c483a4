//! What the fuzz targets (`fuzz/`) do with bytes from outside, and the tests with their seeds.

use crate::ioctl::relocate::Relocation;
use crate::{fanotify, glob, mountinfo};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Texts of /proc: the mount table, and the call that a thread is in.
pub fn proc_texts(bytes: &[u8]) {
    for entry in mountinfo::parse(bytes) {
        std::hint::black_box(entry);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        crate::thread::blocked_call::fuzz(text);
    }
}

/// What other programs and the kernel pass: a request to move a file, and events of fanotify.
pub fn messages(bytes: &[u8]) {
    let sum = |part: &[u8]| part.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    for event in fanotify::events(bytes) {
        // Reads what is borrowed.
        std::hint::black_box(event.entry.map(|entry| sum(entry.dir) + sum(entry.name)));
        std::hint::black_box(event.target.map(|target| sum(target.handle)));
    }
    if let Some(relocation) = Relocation::from_bytes(bytes) {
        let again = relocation.to_bytes().expect("what was read can be written");
        assert_eq!(Relocation::from_bytes(&again), Some(relocation));
    }
}

/// A pattern, a NUL, and a text to match.
pub fn patterns(bytes: &[u8]) {
    // The C library takes time that is exponential in the number of stars.
    if bytes.len() > 64 || bytes.iter().filter(|&&byte| byte == b'*').count() > 4 {
        return;
    }
    let (pattern, text) = bytes.split_at(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    std::hint::black_box(glob::matches(OsStr::from_bytes(pattern), OsStr::from_bytes(text)));
    // What is shown ends no line and has no control character.
    let shown = crate::shown::Show::shown(bytes).to_string();
    assert!(!shown.chars().any(|c| c.is_control() || crate::shown::misleads('\u{e9}', c)));
}

#[cfg(test)]
#[macro_use]
#[path = "../../../../fuzz/smoke.rs"]
mod smoke;

#[cfg(test)]
seeds_and_what_is_near_them!(proc_texts, messages, patterns);
