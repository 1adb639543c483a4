//! The flags of a single write (pwritev2(2)) mean in a pool what they mean on the branch.

use canopy_testkit::cmd::run;
use canopy_testkit::{LoopFs, Pool, PoolBed};
use std::path::Path;

/// Writes a byte at offset 0 of a file of ten with each flag, and prints the file or the errno.
const PROGRAM: &str = r#"
import os, sys
path = sys.argv[1] + "/f"
flags = ("HIPRI", 0x01), ("DSYNC", 0x02), ("SYNC", 0x04), ("NOWAIT", 0x08), ("APPEND", 0x10), ("NOAPPEND", 0x20), ("ATOMIC", 0x40)
for name, flag in flags:
    with open(path, "wb") as file:
        file.write(b"0123456789")
    fd = os.open(path, os.O_WRONLY | (os.O_APPEND if name == "NOAPPEND" else 0))
    try:
        os.pwritev(fd, [b"Z"], 0, flag)
        told = open(path).read()
    except OSError as error:
        told = error.errno
    os.close(fd)
    print(name, told)
"#;

fn writes(dir: &Path) -> Vec<String> {
    let said = run("python3", ["-c", PROGRAM, dir.to_str().expect("a path of ours")]);
    said.lines().map(str::to_owned).collect()
}

#[test]
fn flags_of_one_write_are_obeyed() {
    let expected = writes(LoopFs::ext4(32 << 20).path());
    for option in [
        "passthrough.io=off,cache.files=off",
        "passthrough.io=off,cache.files=full",
        "cache.writeback=true",
        "passthrough.io=rw",
    ] {
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy")).option("minfreespace=0").option(option);
        let bed = PoolBed::mount(pool, vec![LoopFs::ext4(32 << 20)]);
        for (seen, expected) in writes(bed.pool.path()).iter().zip(&expected) {
            // A WRITE says nothing of RWF_NOAPPEND, and passthrough drops it. With the writeback cache, the kernel appends.
            let lost = expected.starts_with("NOAPPEND Z") && option != "cache.writeback=true";
            let expected = if lost { "NOAPPEND 0123456789Z" } else { expected };
            assert_eq!(seen, expected, "{option}");
        }
        bed.pool.umount();
    }
}
