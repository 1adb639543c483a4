//! What the tests on stable Rust do with a fuzz target: its seeds, each cut off everywhere and with each byte changed.

use std::fs;
use std::path::Path;

pub(crate) fn smoke(target: &str, check: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut seeds = 0;
    for entry in fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let seed = fs::read(entry.unwrap().path()).unwrap();
        seeds += 1;
        check(&seed);
        for at in 0..seed.len().min(100) {
            check(&seed[..at]);
            for byte in [0, b'\n', b'9', 0xff, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = byte;
                check(&changed);
            }
        }
    }
    assert!(seeds > 0, "{} has seeds", dir.display());
}

/// A test for each of the crate's targets, named as it is.
macro_rules! seeds_and_what_is_near_them {
    ($($target:ident),+) => {
        mod seeds {
            $(
                #[test]
                fn $target() {
                    super::smoke::smoke(stringify!($target), super::$target);
                }
            )+
        }
    };
}
