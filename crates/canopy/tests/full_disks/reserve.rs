//! Blocks that ext4 keeps for root, a user and a group: through the pool, nobody gets more of them than on the branch.

use super::rig::builder;
use canopy_testkit::cmd::{run, run_within};
use canopy_testkit::{Kind, LoopFs, PATIENCE, PoolBed, as_user};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

/// Takes up 4 MiB in a directory in one way after the other, each in a process of its own, and prints for each whether
/// that worked: `1` or `0`.
const PROGRAM: &str = r#"
import mmap, os, shutil, sys
dir, size = sys.argv[1], 4 << 20
def zeros():
    data = mmap.mmap(-1, size)
    data[:] = b"D" * size
    return data
def file(flags=0):
    return os.open(path, os.O_CREAT | os.O_RDWR | flags, 0o644)
def write(fd):
    rest = memoryview(zeros())
    while rest:
        rest = rest[os.write(fd, rest):]
    os.fsync(fd)
def mapped():
    fd = file()
    os.ftruncate(fd, size)
    mapping = mmap.mmap(fd, size)
    mapping[:] = b"D" * size
    mapping.flush()
def copied(call):
    source, fd, done = os.open(dir + "/source", os.O_RDONLY), file(), 0
    while done < size:
        done += call(source, fd, done)
    os.fsync(fd)
def directories():
    os.mkdir(path)
    for number in range(1200):
        os.mkdir(f"{path}/{number}")
def attributes():
    os.mkdir(path)
    for number in range(1200):
        os.close(os.open(f"{path}/{number}", os.O_CREAT | os.O_WRONLY))
        os.setxattr(f"{path}/{number}", "user.x", os.urandom(3900))
ways = {
    "write": lambda: write(file()),
    "append": lambda: write(file(os.O_APPEND)),
    "direct": lambda: write(file(os.O_DIRECT)),
    "map": mapped,
    "fallocate": lambda: os.posix_fallocate(file(), 0, size),
    "copy_file_range": lambda: copied(lambda source, fd, done: os.copy_file_range(source, fd, size - done, done, done)),
    "sendfile": lambda: copied(lambda source, fd, done: os.sendfile(fd, source, done, size - done)),
    "mkdir": directories,
    "setxattr": attributes,
}
for way in sys.argv[2:]:
    path = f"{dir}/{way}-{os.getpid()}"
    child = os.fork()
    if child == 0:
        try:
            ways[way]()
            os._exit(0)
        except OSError as error:
            os._exit(1 if error.errno == 28 else 2)
    status = os.waitpid(child, 0)[1]
    # A store for which there is no block kills the process.
    assert status in (0, 1 << 8) or way == "map" and os.WIFSIGNALED(status), (way, status)
    print(int(status == 0))
    if os.path.lexists(path):
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
"#;

const WAYS: [&str; 9] =
    ["write", "append", "direct", "map", "fallocate", "copy_file_range", "sendfile", "mkdir", "setxattr"];

const USER: u32 = 1500;
const GROUP: u32 = 1600;

/// The ids of callers: user, group, supplementary groups.
const CALLERS: [(u32, u32, &[u32]); 5] =
    [(0, 0, &[]), (1001, 1001, &[]), (USER, 1001, &[]), (1001, GROUP, &[]), (1001, 1001, &[1002, GROUP])];

/// Returns for each way whether the caller gets more than what is left for everybody.
fn gets(dir: &Path, (uid, gid, groups): (u32, u32, &[u32])) -> Vec<bool> {
    let mut program = as_user(uid, gid, groups, "/usr/bin/python3");
    program.args(["-c", PROGRAM, dir.to_str().expect("a path of ours")]).args(WAYS);
    let done = run_within(&mut program, 4 * PATIENCE);
    assert!(done.success(), "{}", done.describe());
    done.stdout.lines().map(|line| line == "1").collect()
}

/// Returns a disk that keeps a quarter for these, with 1 MiB left for everybody.
fn disk(names: &str) -> LoopFs {
    let disk = LoopFs::with(Kind::Ext4, 64 << 20, &["-b", "4096", "-m", "25"], names);
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(disk.path().join("source"), vec![b'S'; 4 << 20]).unwrap();
    let space = rustix::fs::statvfs(disk.path()).unwrap();
    let filler = fs::File::create(disk.path().join("filler")).unwrap();
    let all_but = space.f_bavail * space.f_frsize - (1 << 20);
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, all_but).unwrap();
    run("sync", ["-f", disk.path().to_str().unwrap()]);
    disk
}

#[test]
fn nobody_gets_more_of_what_a_disk_keeps_than_on_the_branch() {
    for (names, few) in [
        (String::new(), [true, false, false, false, false]),
        (format!("resuid={USER},resgid={GROUP}"), [false, false, true, true, true]),
    ] {
        let branch = disk(&names);
        let expected = CALLERS.map(|caller| gets(branch.path(), caller));
        // Root gets what is kept for others if it has CAP_SYS_RESOURCE here.
        for (row, few) in expected.iter().zip(few).skip(usize::from(!names.is_empty())) {
            assert!(row.iter().all(|gets| *gets == few), "the branch: {expected:?}");
        }
        for option in ["", "passthrough.io=off,cache.files=full", "cache.writeback=true", "passthrough.io=rw"]
        {
            let bed = PoolBed::mount(builder(option), vec![disk(&names)]);
            for (caller, expected) in CALLERS.iter().zip(&expected) {
                let seen = gets(bed.pool.path(), *caller);
                for ((way, &expected), seen) in WAYS.iter().zip(expected).zip(seen) {
                    let case = format!("{names} {option}: {way} by {caller:?}");
                    assert!(
                        seen == expected || !seen && gets_less(&names, option, way, *caller),
                        "{case}: {seen}"
                    );
                }
            }
            bed.pool.umount();
        }
    }
}

/// Gives a file names of 250 bytes in a directory, or moves files there, and prints how many.
const NAMES: &str = r#"
import os, sys
way, source, dir, most = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
for number in range(most):
    name = f"{dir}/{number:0250}"
    try:
        if way == "link": os.link(f"{source}/0", name)
        else: os.rename(f"{source}/{number}", name)
    except OSError as error:
        assert error.errno == 28, error
        most = number
        break
print(most)
"#;

/// A directory that has to grow for a name takes up space, too.
#[test]
fn names_take_nothing_of_what_a_disk_keeps_but_for_those_who_may() {
    const MOST: usize = 300;
    let names = |dir: &Path, way: &str, uid: u32| -> usize {
        let source = dir.join(format!("source-{way}-{uid}"));
        let mut program = as_user(uid, uid, &[], "/usr/bin/python3");
        program.args(["-c", NAMES, way]).arg(source).arg(dir.join(format!("{way}-{uid}")));
        let done = run_within(program.arg(MOST.to_string()), 4 * PATIENCE);
        assert!(done.success(), "{}", done.describe());
        done.stdout.trim().parse().expect("a number")
    };
    // What is left for everybody: less than the directories need.
    let make = || {
        let disk = disk("");
        for (way, uid) in [("link", 1001), ("rename", 1001), ("link", 0), ("rename", 0)] {
            let [source, target] = ["source-", ""].map(|of| disk.path().join(format!("{of}{way}-{uid}")));
            let files = (0..MOST).map(|number| source.join(number.to_string()));
            let dirs = [source.clone(), target];
            dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
            for file in files.clone() {
                fs::write(file, "").unwrap();
            }
            dirs.into_iter().chain(files).for_each(|path| chown(path, Some(uid), Some(uid)).unwrap());
        }
        run("sync", ["-f", disk.path().to_str().unwrap()]);
        let space = rustix::fs::statvfs(disk.path()).unwrap();
        let filler = fs::File::create(disk.path().join("more")).unwrap();
        let all_but = (space.f_bavail * space.f_frsize).saturating_sub(24 << 10);
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, all_but).unwrap();
        disk
    };
    let (branch, bed) = (make(), PoolBed::mount(builder(""), vec![make()]));
    for dir in [branch.path(), bed.pool.path()] {
        for way in ["link", "rename"] {
            let user = names(dir, way, 1001);
            assert!(user < MOST, "{way} in {}: the user has {user}", dir.display());
            assert_eq!(names(dir, way, 0), MOST, "{way} in {}", dir.display());
        }
    }
    bed.pool.umount();
}

/// Returns whether the pool may give the caller less than the branch does.
fn gets_less(names: &str, option: &str, way: &str, (uid, _, groups): (u32, u32, &[u32])) -> bool {
    let by_write = ["write", "append", "sendfile"].contains(&way);
    // The kernel writes pages back for nobody. The pool knows the owner of the file, but not his groups and capabilities.
    let by_owner = uid == 1001 || uid == 0 && !names.is_empty();
    match option {
        // What is created takes the caller's ids, but not its supplementary groups.
        _ if ["mkdir", "setxattr"].contains(&way) && !groups.is_empty() => true,
        "cache.writeback=true" => (by_write || way == "map") && by_owner,
        // One registered file serves everybody.
        "passthrough.io=rw" => by_write || way == "direct",
        _ => way == "map" && by_owner,
    }
}

/// A descriptor says nothing about who writes.
#[test]
fn a_descriptor_of_roots_gives_no_right_to_what_a_disk_keeps() {
    for option in ["", "passthrough.io=rw", "passthrough.io=off,cache.files=full"] {
        let bed = PoolBed::mount(builder(option), vec![disk("")]);
        let file = fs::File::create(bed.at("roots")).unwrap();
        let mut program = as_user(1001, 1001, &[], "dd");
        program.args(["if=/dev/zero", "bs=1M", "count=4", "status=none"]).stdout(file);
        assert!(!program.status().unwrap().success(), "{option}");
        drop(program);
        bed.pool.umount();
    }
}
