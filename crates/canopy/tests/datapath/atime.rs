//! `noatime`, `relatime` and `strictatime` of the pool, over branches whose mounts say otherwise.

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Pool, ScratchDir};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

const SOON: Duration = Duration::from_secs(20);

/// A tmpfs on a place, for as long as this lives.
struct Disk(PathBuf);

impl Disk {
    fn on(place: PathBuf, flags: MountFlags) -> Disk {
        mount("none", &place, "tmpfs", flags, None).expect("a tmpfs");
        Disk(place)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Has reading it through the pool changed when it was last read? It was, later than it was written and changed.
fn changes(disk: &Path, pool: &Path, name: &str) -> bool {
    let on_disk = disk.join(name);
    let (written, read) = (SystemTime::now(), SystemTime::now() + Duration::from_secs(1000));
    let of = || fs::symlink_metadata(&on_disk).expect("a file").atime();
    let kind = fs::symlink_metadata(&on_disk).expect("a file").file_type();
    if kind.is_symlink() {
        let time = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            rustix::fs::Timespec { tv_sec: since.as_secs() as i64, tv_nsec: 0 }
        };
        let times = rustix::fs::Timestamps { last_access: time(read), last_modification: time(written) };
        rustix::fs::utimensat(rustix::fs::CWD, &on_disk, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .expect("utimensat");
    } else {
        let times = FileTimes::new().set_accessed(read).set_modified(written);
        File::open(&on_disk).and_then(|file| file.set_times(times)).expect("utimens");
    }
    let before = of();
    let through = pool.join(name);
    if kind.is_symlink() {
        fs::read_link(through).expect("a link");
    } else if kind.is_dir() {
        assert_eq!(fs::read_dir(through).expect("a directory").count(), 1);
    } else {
        assert_eq!(fs::read(through).expect("a file"), b"data");
    }
    of() != before
}

fn fill(disk: &Path) {
    fs::write(disk.join("file"), "data").expect("a file");
    fs::create_dir_all(disk.join("dir/inner")).expect("a directory");
    symlink("nowhere", disk.join("link")).expect("a link");
}

#[test]
fn access_times_are_kept_as_the_pool_says() {
    let scratch = ScratchDir::new("canopy-times-", &["disk"]);
    let disk = scratch.path("disk");
    for (flags, words, expected) in [
        (MountFlags::STRICTATIME, "", true),
        (MountFlags::STRICTATIME, "noatime", false),
        (MountFlags::STRICTATIME, "relatime", false),
        (MountFlags::RELATIME, "", false),
        (MountFlags::RELATIME, "strictatime", true),
        (MountFlags::NOATIME, "strictatime", true),
        (MountFlags::NOATIME, "", false),
    ] {
        let _disk = Disk::on(disk.clone(), flags);
        fill(&disk);
        for data in ["", "passthrough.io=off"] {
            for name in ["file", "dir", "link"] {
                // Nothing is remembered of another.
                let pool = Pool::builder(BINARY).branch(&disk).option(words).option(data).mount();
                assert_eq!(changes(&disk, pool.path(), name), expected, "{flags:?} {words} {data}: {name}");
                pool.umount();
            }
        }
    }
}

#[test]
fn a_remount_holds_for_what_is_opened_then() {
    let scratch = ScratchDir::new("canopy-times-", &["disk"]);
    let disk = scratch.path("disk");
    let _disk = Disk::on(disk.clone(), MountFlags::STRICTATIME);
    fill(&disk);
    let pool = Pool::builder(BINARY).branch(&disk).mount();
    assert!(changes(&disk, pool.path(), "file"), "the disk's own mount says so");
    for (flags, expected) in
        [(MountFlags::NOATIME, false), (MountFlags::STRICTATIME, true), (MountFlags::RELATIME, false)]
    {
        mount_remount(pool.path(), flags, "").expect("a remount");
        let follows = || changes(&disk, pool.path(), "file") == expected;
        assert!(wait_until(SOON, follows), "{flags:?}");
    }
    pool.umount();
}

/// What is read on a copy of the branch's mount shows what the branch does, and the disk is in use as ever.
#[test]
fn the_branch_is_what_it_was() {
    let scratch = ScratchDir::new("canopy-times-", &["disk"]);
    let disk = scratch.path("disk");
    let guard = Disk::on(disk.clone(), MountFlags::STRICTATIME);
    fill(&disk);
    fs::create_dir(disk.join("below")).expect("a directory");
    fs::write(disk.join("below/data"), "hidden").expect("a file");
    let pool = Pool::builder(BINARY).branch(&disk).option("noatime,minfreespace=0").mount();
    let below = Disk::on(disk.join("below"), MountFlags::empty());
    fs::write(disk.join("below/data"), "shown").expect("a file");
    assert_eq!(fs::read_to_string(pool.path().join("below/data")).expect("a file"), "shown");
    assert_eq!(fs::read_dir(pool.path().join("below")).expect("a directory").count(), 1);
    drop(below);
    assert!(wait_until(SOON, || {
        fs::read_to_string(pool.path().join("below/data")).is_ok_and(|text| text == "hidden")
    }));
    // Written and read by one descriptor, and after its name has gone.
    let mut file = File::options().read(true).write(true).open(pool.path().join("file")).expect("an open");
    std::io::Write::write_all(&mut file, b"DATA").expect("a write");
    fs::remove_file(pool.path().join("file")).expect("unlink");
    std::io::Seek::rewind(&mut file).expect("seek");
    assert_eq!(std::io::read_to_string(&file).expect("a read"), "DATA");
    drop(file);
    assert_eq!(unmount(&disk, UnmountFlags::empty()), Err(Errno::BUSY));
    pool.umount();
    assert!(wait_until(SOON, || unmount(&disk, UnmountFlags::empty()).is_ok()), "it is let go of");
    std::mem::forget(guard);
}

/// Who may not mount asks for it at each open, which is permitted for files of one's own.
#[test]
fn noatime_of_an_ordinary_users_pool() {
    const SCRIPT: &str = r#"
        mkdir "$1/dev"; mount -t tmpfs none "$1/dev"; mknod "$1/dev/fuse" c 10 229; chmod 666 "$1/dev/fuse"
        mount --bind "$1/dev/fuse" /dev/fuse
        mount -t tmpfs -o strictatime,uid=65534,gid=65534 none "$1/a"
        user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
        user sh -c 'echo x > "$1/a/f"' sh "$1"
        for option in minfreespace=0 noatime; do
            touch -a -d 2001-01-01 "$1/a/f"
            user "$1/canopy" mount -o $option "$1/a" "$1/b"
            user cat "$1/b/f" > /dev/null
            umount "$1/b"
            test "$(stat -c %X "$1/a/f")" = "$(date -d 2001-01-01 +%s)" && echo $option kept || echo $option changed
        done
        umount "$1/a""#;
    let scratch = ScratchDir::new("canopy-times-", &["a", "b"]);
    std::os::unix::fs::chown(scratch.path("b"), Some(65534), Some(65534)).expect("chown");
    fs::copy(BINARY, scratch.path("canopy")).expect("a copy that everybody may run");
    let mut command = Command::new("unshare");
    let done = run_within(command.args(["-m", "sh", "-euc", SCRIPT, "sh"]).arg(scratch.dir()), SOON);
    let _ = fs::remove_dir(scratch.path("dev"));
    assert_eq!(done.stdout, "minfreespace=0 changed\nnoatime kept\n", "{}", done.describe());
}
