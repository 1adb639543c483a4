//! Writes past the page cache beside stores by a mapping, on the same pages.

use super::rig::{LISTED, builder};
use canopy_testkit::cmd::{run, run_within};
use canopy_testkit::{Kind, LoopFs};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A page lost something in each of some hundred pages at most, when it did.
const ROUNDS: usize = 3;

#[test]
fn writes_past_the_cache_and_stores_by_a_mapping_do_not_undo_each_other() {
    let home = tempfile::tempdir().expect("a directory");
    let program = home.path().join("beside_mapping");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/datapath/beside_mapping.c");
    let args = ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"].map(Path::new);
    run("cc", args.into_iter().chain([program.as_path(), source.as_path()]));
    let disk = LoopFs::new(Kind::Ext4, 64 << 20);
    for options in [
        "cache.files=off,io-uring=on",
        "cache.files=off,io-uring=off",
        "cache.files=off,parallel-direct-writes=false",
        "cache.files=per-process",
        "cache.files=auto-full",
    ] {
        let options = format!("passthrough.io=off,cache.files.process-names={LISTED},{options}");
        let pool = builder(&[disk.path()], &options).mount();
        for round in 0..ROUNDS {
            let mut command = Command::new(&program);
            command.arg(pool.path().join("f")).arg(disk.path().join("f")).arg(LISTED);
            let done = run_within(&mut command, Duration::from_secs(200));
            assert!(done.success(), "{options}, round {round}: {}", done.describe());
        }
        pool.umount();
    }
}
