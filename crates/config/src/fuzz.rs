//! What the fuzz targets (`fuzz/`) do with bytes from outside, and the tests with their seeds.

use crate::model::Config;
use crate::source::{command_line, set_pair};
use crate::{placement, read_cache, source, trash};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// What reads files or looks for directories is left out.
fn reads_files(pair: &[u8]) -> bool {
    let key = pair.split(|&byte| byte == b'=').next().unwrap_or_default().to_ascii_lowercase();
    [&b"config"[..], b"branches", b"srcmounts"].iter().any(|name| key.trim_ascii().starts_with(name))
}

/// Texts of options: groups as `-o` has them, and so the values of the control file.
pub fn options(bytes: &[u8]) {
    let items = command_line::split_group(OsStr::from_bytes(bytes));
    assert_eq!(command_line::split_group(&command_line::join_group(&items)), items);
    let mut config = Config::default();
    for pair in items.iter().filter(|pair| !reads_files(pair.as_bytes())) {
        if let Err(error) = set_pair(&mut config, pair) {
            assert!(error.lines().iter().all(|line| !line.is_empty()));
        }
    }
    for spec in crate::options::table() {
        std::hint::black_box(spec.render(&config));
    }
}

/// Tiers and rules, and what the trash keeps.
pub fn placements(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(rules) = trash::parse(text) {
        assert!(trash::parse(&trash::format(&rules)).is_ok(), "{text}");
    }
    if let Ok(caches) = read_cache::parse(text) {
        assert_eq!(read_cache::parse(&read_cache::format(&caches)), Ok(caches), "{text}");
    }
    std::hint::black_box((placement::parse_tiers(text).is_ok(), placement::parse_rules(text).is_ok()));
}

/// Files of options, in lines and in TOML.
pub fn files(bytes: &[u8]) {
    source::fuzz(bytes);
}

#[cfg(test)]
#[macro_use]
#[path = "../../../fuzz/smoke.rs"]
mod smoke;

#[cfg(test)]
seeds_and_what_is_near_them!(options, placements, files);
