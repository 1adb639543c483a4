//! What the fuzz targets (`fuzz/`) do with bytes from outside, and the tests with their seeds.

/// Records of another process, of another version perhaps.
pub fn records(bytes: &[u8]) {
    crate::survival::fuzz(bytes);
}

#[cfg(test)]
#[macro_use]
#[path = "../../../../fuzz/smoke.rs"]
mod smoke;

#[cfg(test)]
seeds_and_what_is_near_them!(records);
