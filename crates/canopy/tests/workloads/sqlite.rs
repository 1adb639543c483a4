//! sqlite with several processes on one database: locks, shared memory, and journal recovery.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use canopy_testkit::cmd::{run_within, wait_within};
use canopy_testkit::{Kind, PATIENCE};

use super::rig::{DATA_PATHS, Disks, plain};

const WRITERS: usize = 4;
const INSERTS: usize = 30;

#[track_caller]
fn sqlite(dir: &Path, script: &str) -> String {
    let mut command = Command::new("sqlite3");
    command.current_dir(dir).args(["-bail", "-batch", "-init", "/dev/null", "db", script]);
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success() && done.stderr.trim().is_empty(), "sqlite3 {script}: {}", done.describe());
    done.stdout
}

/// Returns the script of one writer, which inserts, reads back and checkpoints in turn.
fn work(settings: &str, writer: usize) -> String {
    let mut script = format!(".bail on\n.timeout 60000\n{settings}\n");
    for index in 0..INSERTS {
        let _ = writeln!(
            script,
            "begin immediate; insert into t(writer, number, body) values({writer}, {index}, randomblob(3000)); \
             update sums set total = total + {index} where id = 1; commit;"
        );
        match index % 10 {
            3 => script
                .push_str("select 'lost' where (select sum(number) from t) != (select total from sums);\n"),
            7 => script.push_str("pragma wal_checkpoint(passive);\n"),
            _ => {}
        }
    }
    script
}

/// Runs all writers in one directory, and returns the resulting totals.
#[track_caller]
fn workload(dir: &Path, mode: &str, settings: &str) -> String {
    sqlite(
        dir,
        &format!(
            "pragma journal_mode={mode}; create table t(id integer primary key, writer, number, body); \
             create index by_writer on t(writer, number); \
             create table sums(id integer primary key, total); insert into sums values(1, 0);"
        ),
    );
    let children: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let script = dir.join(format!("script{writer}"));
            fs::write(&script, work(settings, writer)).unwrap();
            let output = fs::File::create(dir.join(format!("output{writer}"))).unwrap();
            let mut command = Command::new("sqlite3");
            command.current_dir(dir).args(["-batch", "-init", "/dev/null", "db"]);
            command.stdin(fs::File::open(&script).unwrap()).stdout(Stdio::null());
            command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap()
        })
        .collect();
    for (writer, mut child) in children.into_iter().enumerate() {
        let status = wait_within(&mut child, 2 * PATIENCE);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let output = fs::read_to_string(dir.join(format!("output{writer}"))).unwrap();
        assert!(status.is_some_and(|status| status.success()), "[{mode} {settings}] {status:?} {output}");
        assert!(!output.contains("lost") && !output.contains("rror"), "[{mode} {settings}] {output}");
    }
    let ask = "select count(*), sum(number), sum(length(body)) from t; select total from sums; \
               select writer, count(*) from t group by writer; pragma integrity_check;";
    let first = sqlite(dir, ask);
    // The last connection to close checkpoints the log into the database and removes it.
    assert!(!dir.join("db-wal").exists() && !dir.join("db-journal").exists() || mode == "truncate");
    first
}

#[test]
fn databases_with_many_writers_stay_intact() {
    let reference = plain();
    let expected = workload(reference.path(), "wal", "");
    assert!(expected.ends_with("ok\n"), "{expected}");
    let disks = Disks::new(&[Kind::Ext4, Kind::Ext4]);
    for data_path in DATA_PATHS {
        let pool = disks.pool(&format!("category.create=rand,{data_path}"));
        for (mode, settings) in [
            ("wal", ""),
            ("wal", "pragma mmap_size=67108864;"),
            ("delete", ""),
            ("truncate", "pragma mmap_size=67108864;"),
        ] {
            let dir = pool.path().join("data");
            fs::create_dir(&dir).unwrap();
            assert_eq!(workload(&dir, mode, settings), expected, "[{data_path}] {mode} {settings}");
            fs::remove_dir_all(&dir).unwrap();
        }
        pool.umount();
    }
}

/// A writer that is killed leaves a log; the next one recovers what was committed.
#[test]
fn a_log_left_by_a_killed_writer_is_recovered() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Xfs]);
    for data_path in DATA_PATHS {
        let pool = disks.pool(&format!("category.create=rand,{data_path}"));
        let dir = pool.path().join("data");
        fs::create_dir(&dir).unwrap();
        sqlite(&dir, "pragma journal_mode=wal; create table t(id integer primary key, body);");
        let script: String = (0..200).map(|_| "insert into t(body) values(randomblob(2000));\n").collect();
        fs::write(dir.join("script"), format!("{script}.shell kill -9 $PPID\n.shell sleep 5\n")).unwrap();
        let mut command = Command::new("sqlite3");
        command.current_dir(&dir).args(["-batch", "-init", "/dev/null", "db"]);
        command.stdin(fs::File::open(dir.join("script")).unwrap());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        drop(command); // closes the script
        let status = wait_within(&mut child, PATIENCE);
        assert!(status.is_some_and(|status| !status.success()), "{status:?}");
        assert!(fs::metadata(dir.join("db-wal")).is_ok_and(|meta| meta.len() > 100_000));
        assert_eq!(
            sqlite(&dir, "select count(*) from t; pragma integrity_check;"),
            "200\nok\n",
            "[{data_path}]"
        );
        fs::remove_dir_all(&dir).unwrap();
        pool.umount();
    }
}
