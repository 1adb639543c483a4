//! What the fuzz targets (`fuzz/`) do with bytes from outside, and the tests with their seeds.

use crate::migrate;
use canopy_config::fstab;

/// /etc/fstab, units and files of options of another program.
pub fn tables(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for line in fstab::parse(text) {
        std::hint::black_box((line.render(), line.is_pool(), fstab::unescape(&line.mountpoint)));
    }
    std::hint::black_box((
        migrate::fstab(text),
        migrate::unit(text, "/usr/bin/canopy"),
        migrate::options_file(text),
    ));
    assert_eq!(fstab::unescape(&fstab::escape(text)), text);
}

#[cfg(test)]
#[macro_use]
#[path = "../../../fuzz/smoke.rs"]
mod smoke;

#[cfg(test)]
seeds_and_what_is_near_them!(tables);
