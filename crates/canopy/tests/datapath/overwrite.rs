//! Files with copies on two branches: overwriting one copy leaves the other unchanged.

use super::rig::builder;
use canopy_testkit::{LoopFs, User};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

const OLD: &str = "old content";

/// One way to overwrite a file.
type Way = fn(&Path) -> std::io::Result<()>;

const WAYS: [(&str, Way); 6] = [
    ("O_TRUNC", |path| OpenOptions::new().write(true).truncate(true).open(path)?.write_all(b"new")),
    ("O_CREAT|O_TRUNC", |path| fs::write(path, "new")),
    ("O_RDWR|O_TRUNC", |path| {
        OpenOptions::new().read(true).write(true).truncate(true).open(path)?.write_all(b"new")
    }),
    ("O_RDONLY|O_TRUNC", |path| {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::TRUNC, Mode::empty())?;
        OpenOptions::new().write(true).open(path)?.write_all(b"new")
    }),
    ("ftruncate", |path| {
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.set_len(1000)?;
        file.set_len(0)?;
        file.write_all(b"new")
    }),
    ("a shell", |path| {
        let script = "printf new > \"$1\"";
        let done = Command::new("sh").args(["-c", script, "sh"]).arg(path).status()?;
        if done.success() { Ok(()) } else { Err(std::io::Error::other("the shell failed")) }
    }),
];

#[test]
fn overwriting_leaves_the_other_copy_unchanged() {
    for options in [
        "",
        "passthrough.io=rw",
        "passthrough.io=off,cache.files=off",
        "cache.writeback=true,cache.files=full",
        "link-cow=true",
        "category.search=newest",
        "handle-killpriv-v2=false,posix-acl=true",
        "io-uring=off",
        "io-uring=on",
    ] {
        let disks = [LoopFs::tmpfs(16 << 20), LoopFs::tmpfs(16 << 20)];
        let pool = builder(&[disks[0].path(), disks[1].path()], options).mount();
        for (way, overwrite) in WAYS {
            for opened_before in [false, true] {
                let what = format!("{options}: {way}, opened before: {opened_before}");
                let copies = [0, 1].map(|disk: usize| disks[disk].path().join("f"));
                copies.iter().for_each(|copy| fs::write(copy, OLD).expect("a copy"));
                let path = pool.path().join("f");
                let reader = opened_before.then(|| File::open(&path).expect("a reader"));
                overwrite(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
                let mut content = copies.each_ref().map(|copy| fs::read_to_string(copy).expect("a copy"));
                assert_eq!(fs::read_to_string(&path).expect("a file"), "new", "{what}");
                content.sort();
                assert_eq!(content, ["new", OLD], "{what}");
                drop(reader);
                fs::remove_file(&path).expect("unlink");
            }
        }
        pool.umount();
    }
}

/// A write by another user clears the set-id bits of the overwritten copy; the other copy keeps them.
#[test]
fn another_user_who_overwrites_a_file_changes_one_copy() {
    let disks = [LoopFs::tmpfs(16 << 20), LoopFs::tmpfs(16 << 20)];
    let pool = builder(&[disks[0].path(), disks[1].path()], "allow_other").mount();
    let copies = [0, 1].map(|disk: usize| disks[disk].path().join("f"));
    for copy in &copies {
        fs::write(copy, OLD).expect("a copy");
        rustix::fs::chmod(copy, Mode::from_raw_mode(0o6777)).expect("chmod");
    }
    let stranger = User { uid: 1000, gid: 1000, groups: &[] };
    let done = stranger.shell("printf new > \"$1\"", [pool.path().join("f")]).status().expect("a shell");
    assert!(done.success());
    let mode = |path: &Path| rustix::fs::stat(path).expect("stat").st_mode & 0o7777;
    assert_eq!(copies.each_ref().map(|copy| mode(copy)), [0o777, 0o6777]);
    assert_eq!(copies.map(|copy| fs::read_to_string(copy).expect("a copy")), ["new", OLD]);
    pool.umount();
}

/// Concurrent open(2) calls with `O_TRUNC` truncate only the copy that they open.
#[test]
fn concurrent_overwrites_leave_the_other_copies_unchanged() {
    let disks = [LoopFs::tmpfs(16 << 20), LoopFs::tmpfs(16 << 20)];
    let pool = builder(&[disks[0].path(), disks[1].path()], "").mount();
    for file in ["f", "g"] {
        disks.iter().for_each(|disk| fs::write(disk.path().join(file), OLD).expect("a copy"));
    }
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..200 {
                    let path = pool.path().join(if round % 3 == 0 { "f" } else { "g" });
                    fs::write(path, "new").expect("overwriting");
                }
            });
        }
    });
    for file in ["f", "g"] {
        assert_eq!(fs::read_to_string(disks[1].path().join(file)).expect("a copy"), OLD, "{file}");
    }
    pool.umount();
}
