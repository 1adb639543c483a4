//! Shared mappings: coherence with other descriptors, and programs that depend on them.

use super::files::{BLOCK, TwoPaths, xfs_io};
use super::rig::{LISTED, builder};
use canopy_testkit::cmd::{run, run_within, wait_within};
use canopy_testkit::{Kind, LoopFs, PATIENCE};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

fn words(lines: &[&str], path: &Path) -> Vec<String> {
    lines.iter().map(|line| line.replace('@', &path.display().to_string())).collect()
}

/// Formats sixteen bytes of one value as `pread -v` and `mread -v` do.
fn row(byte: u8) -> String {
    vec![format!("{byte:02x}"); 16].join(" ")
}

/// Stores through a mapping and reads and writes through other descriptors see each other at once.
#[track_caller]
pub(super) fn coherent(dir: &TwoPaths) {
    for first in ["open -r @", "open @"] {
        let file = dir.file("f", &vec![0x11; 4 * BLOCK]);
        let shown = xfs_io(&words(
            &[
                first,
                "pread -v 0 16",
                "open @",
                "mmap -rw 0 16384",
                "mread -v 0 16",
                "mwrite -S 0x22 4096 4096",
                "file 0",
                "pread -v 4096 16",
                "open @",
                "pread -v 8176 16",
                "pwrite -q -S 0x33 8192 4096",
                "mread -v 8192 16",
                "file 0",
                "pread -v 8192 16",
                "msync -s",
                "munmap",
            ],
            &file.pool,
        ));
        let rows: Vec<&str> =
            shown.lines().filter_map(|line| line.split_once(":  ")).map(|(_, r)| r).collect();
        let expected = [0x11, 0x11, 0x22, 0x22, 0x33, 0x33];
        assert_eq!(rows.len(), expected.len(), "{shown}");
        for (index, (seen, byte)) in rows.iter().zip(expected).enumerate() {
            assert!(seen.starts_with(&row(byte)), "{first}: {index}: {seen}, not {byte:#x}\n{shown}");
        }
        let content = fs::read(&file.branch).expect("the branch");
        let expected = [0x11, 0x22, 0x33, 0x11].map(|byte| [byte; BLOCK]).concat();
        assert!(content == expected, "{first}: the branch has other data");
    }
}

/// Pages mapped through an `O_APPEND` descriptor are written back at their own offsets.
#[track_caller]
pub(super) fn append_only_descriptor(dir: &TwoPaths) {
    let file = dir.file("f", &vec![0x11; 2 * BLOCK]);
    xfs_io(&words(
        &[
            "open -a @",
            "mmap -rw 0 8192",
            "mwrite -S 0x22 0 4096",
            "msync -s",
            "pwrite -q -S 0x33 0 100",
            "munmap",
        ],
        &file.pool,
    ));
    let expected = [vec![0x22; BLOCK], vec![0x11; BLOCK], vec![0x33; 100]].concat();
    let content = fs::read(&file.branch).expect("the branch");
    assert!(content == expected, "{} bytes on the branch, not {}", content.len(), expected.len());
}

/// fio writes through a mapping and verifies the data through a mapping and through reads.
#[track_caller]
pub(super) fn fio(dir: &TwoPaths) {
    let file = dir.pool.join("f");
    for (engine, action) in [("mmap", "randwrite"), ("psync", "verify")] {
        let mut command = Command::new("fio");
        command.current_dir(&dir.branch).args([
            "--name=f",
            "--size=512k",
            "--bs=4k",
            "--thread",
            "--minimal",
        ]);
        command.args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--randseed=7"]);
        command.arg(format!("--filename={}", file.display())).arg(format!("--ioengine={engine}"));
        match action {
            "verify" => command.args(["--rw=randwrite", "--verify_only=1"]),
            other => command.arg(format!("--rw={other}")).arg("--do_verify=1"),
        };
        let done = run_within(&mut command, PATIENCE);
        assert!(done.success(), "{command:?}: {}", done.describe());
    }
    assert_eq!(fs::metadata(dir.branch.join("f")).expect("the branch").len(), 512 << 10);
}

/// sqlite with a write-ahead log, whose index is a shared mapping: two writer processes and a concurrent reader.
#[track_caller]
pub(super) fn sqlite(dir: &TwoPaths) {
    let base = dir.pool.join("base");
    let sql = |script: &str| {
        let mut command = Command::new("sqlite3");
        command.args(["-batch", "-bail"]).arg(&base).arg(".timeout 20000").arg(script);
        command
    };
    let run = |script: &str| {
        let done = run_within(&mut sql(script), PATIENCE);
        assert!(done.success(), "{script}: {}", done.describe());
        done.stdout
    };
    assert_eq!(run("PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b);").trim(), "wal");
    let insert = "INSERT INTO t(b) VALUES(randomblob(2000));".repeat(30);
    let insert = format!("PRAGMA synchronous=NORMAL; {insert}");
    let mut writers: Vec<_> = (0..2)
        .map(|_| sql(&insert).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("sqlite3"))
        .collect();
    let mut last = 0;
    for _ in 0..3 {
        let now: u32 = run("SELECT count(*) FROM t;").trim().parse().expect("a number");
        assert!(now >= last, "{now} rows after {last}");
        last = now;
    }
    for writer in &mut writers {
        let status = wait_within(writer, PATIENCE);
        if status.is_none() {
            let _ = writer.kill();
            let _ = writer.wait();
        }
        assert!(status.is_some_and(|status| status.success()), "a writer: {status:?}");
    }
    let verdict = run("PRAGMA integrity_check; SELECT count(*), sum(length(b)) FROM t;");
    assert_eq!(verdict.split_whitespace().collect::<Vec<_>>(), ["ok", "60|120000"]);
}

/// If writes and stores undo each other, at least one page in a few hundred loses data; each round has 1024 pages.
const ROUNDS: usize = 3;

#[test]
fn uncached_writes_and_stores_through_a_mapping_do_not_undo_each_other() {
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
            let done = run_within(&mut command, 4 * PATIENCE);
            assert!(done.success(), "{options}, round {round}: {}", done.describe());
        }
        pool.umount();
    }
}
