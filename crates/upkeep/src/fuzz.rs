//! What the fuzz targets (`fuzz/`) do with bytes from outside, and the tests with their seeds.

use crate::held::checksum::Checksum;

/// What lies on branches: checksums, and journals of repairs.
pub fn checksums(bytes: &[u8]) {
    if let Some(checksum) = Checksum::parse(bytes) {
        assert_eq!(checksum.to_string().as_bytes(), bytes, "one spelling");
    }
    crate::copies::fuzz(bytes);
}

#[cfg(test)]
#[macro_use]
#[path = "../../../fuzz/smoke.rs"]
mod smoke;

#[cfg(test)]
seeds_and_what_is_near_them!(checksums);
