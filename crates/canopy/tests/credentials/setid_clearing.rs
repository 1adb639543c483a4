//! Writes, truncation and chown clear set-id bits and file capabilities exactly when they do on ext4. (mergerfs never
//! cleared them.)

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;

use canopy_testkit::cmd::run_within;
use canopy_testkit::{PATIENCE, User};
use rustix::fs::{
    CWD, FallocateFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, Uid, XattrFlags, chownat,
    fallocate, fchown, ftruncate, futimens, getxattr, openat, setxattr,
};
use rustix::io::{Errno, pwrite, write};

use super::rig::{Actor, Actors, EVERYBODY, GROUP, OWNER, Places, outcome};

const BLOCK: usize = 4096;
const MODES: [u32; 6] = [0o6777, 0o4777, 0o2767, 0o6767, 0o2755, 0o777];

/// `CAP_NET_RAW`, permitted and effective, in version 2 of the kernel's encoding.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

type Act = fn(&Path, Actor) -> Result<(), Errno>;

fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// Returns a page-aligned block of the buffer, as O_DIRECT requires.
fn aligned(buffer: &[u8]) -> &[u8] {
    let start = buffer.as_ptr().align_offset(BLOCK);
    &buffer[start..start + BLOCK]
}

fn allocate(path: &Path, mode: FallocateFlags, offset: u64, length: u64) -> Result<(), Errno> {
    fallocate(open(path, OFlags::RDWR)?, mode, offset, length)
}

/// Collapsing and inserting ranges are missing because the kernel's FUSE client rejects them itself (EOPNOTSUPP).
const ACTS: [(&str, Act); 24] = [
    ("nothing", |path, _| open(path, OFlags::WRONLY).map(drop)),
    ("write", |path, _| pwrite(open(path, OFlags::WRONLY)?, b"x", 3).map(drop)),
    ("write of nothing", |path, _| pwrite(open(path, OFlags::WRONLY)?, b"", 3).map(drop)),
    ("append", |path, _| write(open(path, OFlags::WRONLY | OFlags::APPEND)?, b"x").map(drop)),
    ("write to a new page", |path, _| pwrite(open(path, OFlags::RDWR)?, &[1; 10_000], 8192).map(drop)),
    ("read, then write", |path, _| {
        let file = open(path, OFlags::RDWR)?;
        rustix::io::pread(&file, &mut [0; 100], 0)?;
        pwrite(&file, b"y", 0).map(drop)
    }),
    ("direct write", |path, _| {
        let buffer = [7; 2 * BLOCK];
        pwrite(open(path, OFlags::WRONLY | OFlags::DIRECT)?, aligned(&buffer), 0).map(drop)
    }),
    ("synchronous write", |path, _| pwrite(open(path, OFlags::WRONLY | OFlags::SYNC)?, b"x", 0).map(drop)),
    ("truncate", |path, _| ftruncate(open(path, OFlags::WRONLY)?, 100)),
    ("truncate to the same size", |path, _| ftruncate(open(path, OFlags::WRONLY)?, 8192)),
    ("ftruncate upwards", |path, _| ftruncate(open(path, OFlags::RDWR)?, 20_000)),
    ("open truncating", |path, _| open(path, OFlags::WRONLY | OFlags::TRUNC).map(drop)),
    ("open for reading, truncating", |path, _| open(path, OFlags::RDONLY | OFlags::TRUNC).map(drop)),
    ("create truncating", |path, _| open(path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC).map(drop)),
    ("fallocate", |path, _| allocate(path, FallocateFlags::empty(), 8192, 8192)),
    ("fallocate within", |path, _| allocate(path, FallocateFlags::KEEP_SIZE, 0, 30_000)),
    ("punch", |path, _| allocate(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)),
    ("zero", |path, _| allocate(path, FallocateFlags::ZERO_RANGE, 100, 6000)),
    ("copy_file_range", |path, _| {
        let source = open(&path.with_file_name("source"), OFlags::RDONLY)?;
        let target = open(path, OFlags::WRONLY)?;
        let (mut from, mut to) = (0, 10);
        rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), 1000).map(drop)
    }),
    ("chown of nothing", |path, _| chownat(CWD, path, None, None, rustix::fs::AtFlags::empty())),
    ("chown to the same", |path, _| {
        let (uid, gid) = (Uid::from_raw(OWNER), Gid::from_raw(GROUP));
        chownat(CWD, path, Some(uid), Some(gid), rustix::fs::AtFlags::empty())
    }),
    ("fchown to an own group", |path, actor| {
        let gid = Gid::from_raw(actor.groups.first().copied().unwrap_or(actor.gid));
        fchown(open(path, OFlags::RDONLY)?, None, Some(gid))
    }),
    ("chmod to the same", |path, _| {
        let mode =
            fs::metadata(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?.mode();
        rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777))
    }),
    ("utimes", |path, _| {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        futimens(open(path, OFlags::RDONLY)?, &times)
    }),
];

fn prepare(path: &Path, mode: u32, capability: bool) {
    let _ = fs::remove_file(path);
    fs::write(path, [b'a'; 8192]).unwrap();
    chown(path, Some(OWNER), Some(GROUP)).unwrap();
    if capability {
        setxattr(path, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
    }
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, mode);
}

fn state(meta: &fs::Metadata) -> String {
    format!("{:o} {}:{} {} bytes", meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.len())
}

fn capable(path: &Path) -> String {
    match getxattr(path, "security.capability", &mut [0_u8; 64][..]) {
        Ok(length) => format!("capability of {length}"),
        Err(Errno::NODATA) => "no capability".to_owned(),
        Err(errno) => format!("capability {errno}"),
    }
}

fn table(dir: &Path, rows: &[(u32, bool)]) -> Vec<String> {
    let mut cells = Vec::new();
    fs::write(dir.join("source"), [b's'; 5000]).unwrap();
    thread::scope(|scope| {
        let actors = Actors::start(scope);
        for &(mode, capability) in rows {
            for (name, act) in ACTS {
                for actor in EVERYBODY {
                    // Both filesystems refuse this, but by then the kernel's FUSE client has removed the capability:
                    // it does that first (fs/attr.c setattr_prepare), and anybody may if the mode does not change.
                    if capability
                        && mode > 0o777
                        && name == "chown of nothing"
                        && ![0, OWNER].contains(&actor.uid)
                    {
                        continue;
                    }
                    // A new name for each, so that cached attributes of another file do not interfere.
                    let path = dir.join(format!("f{}", cells.len()));
                    prepare(&path, mode, capability);
                    let held = File::open(&path).unwrap();
                    let own = path.clone();
                    let result = actors.act(actor, move || outcome(act(&own, actor)));
                    let (by_name, by_handle) = (fs::metadata(&path).unwrap(), held.metadata().unwrap());
                    assert_eq!(state(&by_name), state(&by_handle), "{mode:o} {name} by {}", actor.name);
                    cells.push(format!(
                        "{mode:o}{} {name} by {}: {result}, {}, {}",
                        if capability { " capable" } else { "" },
                        actor.name,
                        state(&by_name),
                        capable(&path)
                    ));
                    drop(held);
                    fs::remove_file(&path).unwrap();
                }
            }
        }
    });
    cells
}

fn rows() -> Vec<(u32, bool)> {
    MODES.iter().map(|&mode| (mode, false)).chain([(0o777, true), (0o6777, true)]).collect()
}

#[test]
fn as_on_ext4_with_passthrough() {
    Places::new().compare(&["", "passthrough.io=ro", "passthrough.io=wo"], |dir| table(dir, &rows()));
}

#[test]
fn as_on_ext4_through_the_daemon() {
    let options = ["passthrough.io=off,cache.files=off", "passthrough.io=off,cache.files=full"];
    Places::new().compare(&options, |dir| table(dir, &rows()));
}

#[test]
fn as_on_ext4_when_the_kernel_clears_them() {
    // Not 2767: the kernel's FUSE client itself clears setgid only if the group may execute.
    Places::new().compare(
        &["handle-killpriv=false", "cache.files=off,passthrough.io=off,handle-killpriv=false"],
        |dir| table(dir, &[(0o6777, false), (0o2777, false), (0o777, true)]),
    );
}

/// The kernel caches writes, so the table checks only the immediate effect of a write on the mode.
#[test]
fn as_on_ext4_with_the_writeback_cache() {
    let options = ["passthrough.io=off,cache.files=full,cache.writeback=true"];
    Places::new().compare(&options, |dir| table(dir, &rows()));
}

/// Programs write, truncate, and store through a shared mapping.
#[test]
fn as_on_ext4_by_programs() {
    let places = Places::new();
    let options = ["", "passthrough.io=off,cache.files=off", "passthrough.io=off,cache.files=full"];
    places.compare(&options, |dir| {
        let mut cells = Vec::new();
        for mode in [0o6777, 0o2767] {
            for actor in EVERYBODY {
                for command in
                    ["truncate 100", "mmap -w 0 4096\0mwrite 0 100\0msync -s\0munmap", "pwrite 0 10\0fsync"]
                {
                    let path = dir.join(format!("f{}", cells.len()));
                    // The daemon's write of a mapped page clears a capability; a mapping of the branch's file does not.
                    prepare(&path, mode, !command.starts_with("mmap"));
                    let user = User { uid: actor.uid, gid: actor.gid, groups: actor.groups };
                    let mut program = user.command("xfs_io");
                    for part in command.split('\0') {
                        program.arg("-c").arg(part);
                    }
                    let done = run_within(program.arg(&path), PATIENCE);
                    let meta = fs::metadata(&path).unwrap();
                    let (code, now) = (done.code(), state(&meta));
                    let command = command.replace('\0', ", ");
                    cells.push(format!(
                        "{mode:o} {command} by {}: {code:?} {now} {}",
                        actor.name,
                        capable(&path)
                    ));
                }
            }
        }
        cells
    });
}

/// After a write no cache may return the old mode: the next execve(2) of the file sees the new one.
#[test]
fn no_cache_keeps_a_cleared_set_id_bit() {
    let places = Places::new();
    for options in
        ["cache.attr=60,cache.entry=60", "passthrough.io=off,cache.files=off,cache.attr=60,cache.entry=60"]
    {
        let pool = places.pool(options);
        let path = pool.path().join("file");
        prepare(&path, 0o6777, true);
        let held = File::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
        let user = User { uid: 6004, gid: 7004, groups: &[] };
        let mut write =
            user.shell("printf x | dd of=\"$1\" conv=notrunc bs=1 2>/dev/null", [path.as_os_str()]);
        assert!(run_within(&mut write, PATIENCE).success());
        let after = [fs::metadata(&path).unwrap(), held.metadata().unwrap()].map(|meta| meta.mode() & 0o7777);
        assert_eq!(after, [0o777; 2], "[{options}]");
        assert_eq!(capable(&path), "no capability", "[{options}]");
        drop(held);
        fs::remove_file(&path).unwrap();
        pool.umount();
    }
}
