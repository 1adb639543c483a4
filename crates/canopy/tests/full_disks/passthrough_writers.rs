//! Writers whose writes bypass the daemon: a file does not move while they have it open, and moves once they are gone.

use super::rig::{MIB, no_unfinished_copies, pattern, pool_over};
use canopy_testkit::cmd::{spawn, wait_until, wait_within};
use canopy_testkit::{LoopFs, PATIENCE, PoolBed};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Opens a file and obeys orders: `pwrite` writes through the descriptor, `map` maps the file and closes the descriptor,
/// `store` writes through the mapping, `unmap` removes it. The script acknowledges each order.
const WRITER: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
fd = os.open(sys.argv[1], os.O_RDWR)
print("opened", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "map":
        at = libc.mmap(None, 4096, 3, 1, fd, 0)
        os.close(fd)
    elif word == "store":
        ctypes.memset(at, ord("s"), 4096)
        assert libc.msync(at, 4096, 4) == 0, ctypes.get_errno()
    elif word == "pwrite":
        os.pwrite(fd, b"s" * 4096, 0)
        os.fsync(fd)
    elif word == "unmap":
        assert libc.munmap(at, 4096) == 0
    print("did " + word, flush=True)
"#;

/// Another program that runs [`WRITER`].
struct Writer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Writer {
    #[track_caller]
    fn start(path: &Path, preload: Option<&Path>) -> Writer {
        let mut command = Command::new("python3");
        command.args(["-c".as_ref(), WRITER.as_ref(), path.as_os_str()]);
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("python3");
        let orders = child.stdin.take().expect("stdin");
        let answers = BufReader::new(child.stdout.take().expect("stdout"));
        let mut writer = Writer { child, orders, answers };
        writer.expect_answer("opened");
        writer
    }

    #[track_caller]
    fn expect_answer(&mut self, expected: &str) {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        assert_eq!(line.trim_end(), expected);
    }

    #[track_caller]
    fn obey(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("an order");
        self.expect_answer(&format!("did {order}"));
    }

    #[track_caller]
    fn finish(mut self) {
        drop(self.orders);
        let status = wait_within(&mut self.child, PATIENCE).expect("the writer exits");
        assert!(status.success(), "{status}");
    }
}

/// Mounts a pool over a disk with enough room for passthrough writers, until a test fills it, and a second disk.
fn bed(options: &str) -> PoolBed {
    let bed = pool_over(vec![LoopFs::xfs(40 << 30), LoopFs::tmpfs(64 << 20)], options);
    fs::write(bed.on(0, "f"), pattern(1, MIB)).unwrap();
    bed
}

/// Asserts that the file stays on its full branch while the other writer has it, without losing data, and moves after
/// `goes` has ended that writer.
#[track_caller]
fn assert_stays_until(bed: &PoolBed, name: &str, writes: impl FnOnce(), goes: impl FnOnce()) {
    bed.disks[0].fill(0);
    let other = OpenOptions::new().read(true).write(true).open(bed.at(name)).unwrap();
    let refused = other.write_all_at(&pattern(2, 8 * MIB), MIB as u64).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(28), "{refused}");
    assert_eq!(bed.branches_with(name), [0], "{}", bed.pool.log());
    writes();
    for path in [bed.at(name), bed.on(0, name)] {
        let mut seen = [0; 4096];
        File::open(&path).unwrap().read_exact_at(&mut seen, 0).unwrap();
        assert!(seen.iter().all(|byte| *byte == b's'), "{}", path.display());
    }
    // The writer that got ENOSPC can still write within the file.
    other.write_all_at(b"r", 8192).unwrap();
    goes();
    // The last close ends passthrough for the file.
    drop(other);
    bed.wait_until_closed(name);
    let other = OpenOptions::new().read(true).write(true).open(bed.at(name)).unwrap();
    other.write_all_at(&pattern(2, 8 * MIB), MIB as u64).unwrap();
    assert_eq!(bed.branches_with(name), [1], "{}", bed.pool.log());
    let whole = fs::read(bed.at(name)).unwrap();
    assert!(whole[..4096].iter().all(|byte| *byte == b's') && whole[8192] == b'r');
    assert!(whole[MIB..] == pattern(2, 8 * MIB));
    assert!(no_unfinished_copies(&bed.disks));
}

/// The mapping is of the file on the branch, and outlives every handle of the pool.
#[test]
fn a_writable_mapping_keeps_the_file_on_its_branch() {
    let bed = bed("passthrough.io=auto");
    let mut writer = Writer::start(&bed.at("f"), None);
    writer.obey("map");
    bed.wait_until_closed("f");
    let writer = std::cell::RefCell::new(writer);
    assert_stays_until(&bed, "f", || writer.borrow_mut().obey("store"), || writer.borrow_mut().obey("unmap"));
    writer.into_inner().finish();
    bed.pool.umount();
}

/// Nobody tells the pool of the store. The kernel had attributes of the file before it was opened, and goes on having
/// them when nothing can change the file unseen any more.
#[test]
fn a_store_through_a_mapping_shows_in_the_next_stat() {
    let bed = bed("passthrough.io=rw");
    let mtime = || fs::metadata(bed.at("f")).unwrap().modified().unwrap();
    mtime();
    let mut writer = Writer::start(&bed.at("f"), None);
    writer.obey("map");
    // With handles of its own, then with the mapping alone.
    let other = OpenOptions::new().read(true).write(true).open(bed.at("f")).unwrap();
    let mut other = Some(other);
    for round in 0..6 {
        let before = mtime();
        std::thread::sleep(std::time::Duration::from_millis(30));
        writer.obey("store");
        assert!(mtime() > before, "round {round}");
        if round == 2 {
            drop(other.take());
            bed.wait_until_closed("f");
        }
    }
    writer.obey("unmap");
    writer.finish();
    bed.pool.umount();
}

#[test]
fn a_writer_on_the_branch_keeps_the_file_there() {
    for name in ["f", "another name of it"] {
        let bed = bed("passthrough.io=off");
        if name != "f" {
            fs::hard_link(bed.on(0, "f"), bed.on(0, name)).unwrap();
        }
        let mut writer = Some(Writer::start(&bed.on(0, name), None));
        let mut writes = writer.take().unwrap();
        let last = std::cell::Cell::new(None);
        assert_stays_until(
            &bed,
            "f",
            || {
                writes.obey("pwrite");
                last.set(Some(writes));
            },
            || last.take().unwrap().finish(),
        );
        assert_eq!(bed.branches_with(name), [1]);
        bed.pool.umount();
    }
}

/// The preload library opens the file on the branch.
#[test]
fn a_preload_writer_keeps_the_file_on_its_branch() {
    let bed = bed("passthrough.io=off");
    let library = std::env::current_exe().expect("this test").with_file_name("libcanopy_preload.so");
    let mut writer = Writer::start(&bed.at("f"), Some(&library));
    let last = std::cell::Cell::new(None);
    assert_stays_until(
        &bed,
        "f",
        || {
            writer.obey("pwrite");
            last.set(Some(writer));
        },
        || last.take().unwrap().finish(),
    );
    bed.pool.umount();
}

/// The open on the branch blocks until the daemon has noticed it and abandoned the copy.
#[test]
fn a_writer_that_opens_the_file_during_the_copy_cancels_the_move() {
    let disks = vec![LoopFs::tmpfs(300 << 20), LoopFs::tmpfs(640 << 20)];
    fs::write(disks[0].path().join("f"), pattern(1, 256 * MIB)).unwrap();
    let bed = pool_over(disks, "passthrough.io=off");
    bed.disks[0].fill(0);
    let other = OpenOptions::new().write(true).open(bed.at("f")).unwrap();
    let branch_writer = std::thread::scope(|threads| {
        let branch_writer = threads.spawn(|| {
            let copied = || !no_unfinished_copies(&bed.disks[1..]);
            assert!(wait_until(PATIENCE, || bed.branches_with("f") == [0] && copied()), "no copy is made");
            OpenOptions::new().write(true).open(bed.on(0, "f")).unwrap()
        });
        let refused = other.write_all_at(&[1; 8 * MIB], 256 * MIB as u64).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(28), "{refused}");
        branch_writer.join().unwrap()
    });
    branch_writer.write_all_at(b"stranger", 5).unwrap();
    let mut seen = [0; 8];
    File::open(bed.at("f")).unwrap().read_exact_at(&mut seen, 5).unwrap();
    assert_eq!(&seen, b"stranger");
    assert_eq!(bed.branches_with("f"), [0]);
    assert!(no_unfinished_copies(&bed.disks));
    drop(branch_writer);
    other.write_all_at(&[1; 8 * MIB], 256 * MIB as u64).unwrap();
    assert_eq!(bed.branches_with("f"), [1]);
    File::open(bed.at("f")).unwrap().read_exact_at(&mut seen, 5).unwrap();
    assert_eq!(&seen, b"stranger");
    drop(other);
    bed.pool.umount();
}
