//! Copies that are written at the same time, as programs use files: two disks have the same when a program has ended, before any
//! command has copied anything.

use canopy_testkit::cmd::{run_within, wait_within};
use canopy_testkit::{LoopFs, PATIENCE, Pool};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Child, Command};

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
const O_SYNC: i32 = rustix::fs::OFlags::SYNC.bits() as i32;

struct Bed {
    // Dropped in this order.
    pool: Pool,
    disks: [LoopFs; 2],
}

impl Bed {
    fn new(options: &str) -> Bed {
        let disks = [LoopFs::tmpfs(64 << 20), LoopFs::ext4(64 << 20)];
        let pool = Pool::builder(BINARY)
            .branches(disks.iter().map(LoopFs::path))
            .option("minfreespace=0,category.create=ff,rules=d/**=copies 2 when written")
            .option(options)
            .mount();
        fs::create_dir(pool.path().join("d")).unwrap();
        Bed { pool, disks }
    }

    fn dir(&self) -> PathBuf {
        self.pool.path().join("d")
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.current_dir(self.dir()).args(["-ec", script]);
        command
    }

    fn run(&self, script: &str) {
        let done = run_within(&mut self.shell(script), PATIENCE);
        assert!(done.success(), "{script}: {}", done.describe());
    }

    /// Both disks hold what the pool shows. The time of the last change is the same on both; with `cache.writeback`, the pool shows
    /// that of the kernel, which may have told the daemon before it wrote the last page.
    fn is_on_both(&self, name: &str) {
        let pool = self.dir().join(name);
        let copies = self.disks.each_ref().map(|disk| disk.path().join("d").join(name));
        let shown = fs::read(&pool).unwrap();
        let of = |path: &PathBuf| {
            let meta = fs::metadata(path).unwrap();
            ((meta.mode(), meta.uid(), meta.nlink()), (meta.mtime(), meta.mtime_nsec()))
        };
        for copy in &copies {
            assert!(fs::read(copy).unwrap() == shown, "{}", copy.display());
            assert_eq!(of(copy).0, of(&pool).0, "{name}");
        }
        let [one, other] = copies.each_ref().map(of);
        assert_eq!(one.1, other.1, "{name}");
    }
}

#[test]
fn names_of_a_file_are_one_file_whichever_disk_has_made_it() {
    for create in ["ff", "lfs"] {
        let bed = Bed::new(&format!("category.create={create}"));
        let file = |name: &str| fs::metadata(bed.dir().join(name)).unwrap();
        fs::write(bed.dir().join("f"), "text").unwrap();
        bed.run("ln f g");
        for name in ["f", "g"] {
            assert_eq!((file(name).nlink(), file(name).ino()), (2, file("f").ino()), "{create}: {name}");
            bed.is_on_both(name);
        }
        fs::remove_file(bed.dir().join("f")).unwrap();
        assert_eq!(file("g").nlink(), 1, "{create}");
    }
}

#[test]
fn programs_leave_two_equal_copies() {
    for options in ["cache.files=auto-full", "cache.files=off", "cache.files=full,cache.writeback=true"] {
        let bed = Bed::new(options);
        bed.run(
            "seq 100000 > big; cp big copied; mv copied moved; echo old > f; echo new > f.tmp; mv f.tmp f",
        );
        bed.run("ln f g; chmod 600 f; touch -d 2001-02-03 f; sync f");
        bed.run("xfs_io -c 'mmap -rw 0 16384' -c 'mwrite -S 0x22 4096 4096' -c munmap big");
        bed.run("xfs_io -d -c 'pwrite -q -S 0x33 8192 8192' big; xfs_io -s -c 'pwrite -q -S 0x34 100 1' big");
        bed.run("xfs_io -f -c 'falloc 0 65536' -c 'pwrite -q 5000 5000' -c 'truncate 60000' holes; setfattr -n user.x -v y holes");
        for mode in ["wal", "delete"] {
            bed.run(&format!(
                "sqlite3 -batch {mode}.db 'pragma journal_mode={mode}; create table t(a, b); \
                 with recursive n(i) as (select 1 union all select i + 1 from n where i < 500) \
                 insert into t select i, randomblob(200) from n; delete from t where a % 3 = 0;' && \
                 sqlite3 -batch {mode}.db 'pragma integrity_check' | grep -qx ok"
            ));
        }
        let appenders: Vec<Child> = (0..3)
            .map(|writer| {
                bed.shell(&format!("for i in $(seq 50); do echo {writer}:$i >> log; done")).spawn().unwrap()
            })
            .collect();
        for mut appender in appenders {
            assert!(wait_within(&mut appender, PATIENCE).is_some_and(|status| status.success()));
        }
        assert_eq!(fs::read_to_string(bed.dir().join("log")).unwrap().lines().count(), 150, "{options}");
        for name in ["big", "moved", "f", "g", "holes", "wal.db", "delete.db", "log"] {
            bed.is_on_both(name);
        }
        // A file that had no name when it was written is the mover's.
        bed.run("xfs_io -T -c 'pwrite -q 0 100' -c 'flink nameless' .");
        assert_eq!(fs::metadata(bed.dir().join("nameless")).unwrap().len(), 100);
    }
}

#[test]
fn what_was_synced_is_on_both_while_the_file_is_open() {
    let bed = Bed::new("");
    let path = bed.dir().join("f");
    let mut file = OpenOptions::new().create_new(true).append(true).open(&path).unwrap();
    let direct = OpenOptions::new().write(true).custom_flags(O_SYNC).open(&path).unwrap();
    for round in 0..5_u8 {
        file.write_all(&vec![round; 300 << 10]).unwrap();
        file.sync_data().unwrap();
        direct.write_all_at(&[b'!', round], 7).unwrap();
        let shown = fs::read(&path).unwrap();
        for disk in &bed.disks {
            assert!(fs::read(disk.path().join("d/f")).unwrap() == shown);
        }
    }
    drop((file, direct));
}

/// A disk that goes while a program writes: it is out of the pool, and what the program does goes on.
#[test]
fn a_disk_that_is_taken_out_costs_a_writer_nothing() {
    for goes in [0, 1] {
        let bed = Bed::new("");
        let file = OpenOptions::new().create_new(true).write(true).open(bed.dir().join("f")).unwrap();
        file.write_all_at(b"before", 0).unwrap();
        let left = bed.disks[1 - goes].path().display().to_string();
        let done = bed.pool.command([
            "set".as_ref(),
            bed.pool.path().as_os_str(),
            format!("branches={left}").as_ref(),
            "--yes".as_ref(),
        ]);
        assert!(done.success(), "{}", done.describe());
        file.write_all_at(b"after, and more", 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(bed.dir().join("f")).unwrap(), "after, and more");
        assert_eq!(fs::read_to_string(bed.disks[1 - goes].path().join("d/f")).unwrap(), "after, and more");
    }
}
