//! `noatime`, `relatime` and `strictatime` of the pool, over branches mounted with other options.

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{PATIENCE, Pool, ScratchDir};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// A tmpfs mount that is unmounted on drop.
struct Disk(PathBuf);

impl Disk {
    fn on(path: PathBuf, flags: MountFlags) -> Disk {
        mount("none", &path, "tmpfs", flags, None).expect("a tmpfs");
        Disk(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Returns whether reading the entry through the pool changes its access time, which starts out later than
/// its modification and change times.
fn reading_changes_atime(disk: &Path, pool: &Path, name: &str) -> bool {
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
fn the_pools_options_decide_about_access_times() {
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
                // A new pool for each entry, so that none is cached.
                let pool = Pool::builder(BINARY).branch(&disk).option(words).option(data).mount();
                assert_eq!(
                    reading_changes_atime(&disk, pool.path(), name),
                    expected,
                    "{flags:?} {words} {data}: {name}"
                );
                pool.umount();
            }
        }
    }
}

#[test]
fn a_remount_applies_to_later_opens() {
    let scratch = ScratchDir::new("canopy-times-", &["disk"]);
    let disk = scratch.path("disk");
    let _disk = Disk::on(disk.clone(), MountFlags::STRICTATIME);
    fill(&disk);
    let pool = Pool::builder(BINARY).branch(&disk).mount();
    assert!(reading_changes_atime(&disk, pool.path(), "file"), "the branch's own mount option applies");
    for (flags, expected) in
        [(MountFlags::NOATIME, false), (MountFlags::STRICTATIME, true), (MountFlags::RELATIME, false)]
    {
        mount_remount(pool.path(), flags, "").expect("a remount");
        let follows = || reading_changes_atime(&disk, pool.path(), "file") == expected;
        assert!(wait_until(PATIENCE, follows), "{flags:?}");
    }
    pool.umount();
}

/// The pool reads through a copy of the branch's mount. Mounts below the branch still show, and the disk is still busy.
#[test]
fn a_copy_of_the_branchs_mount_behaves_as_the_branch() {
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
    assert!(wait_until(PATIENCE, || {
        fs::read_to_string(pool.path().join("below/data")).is_ok_and(|text| text == "hidden")
    }));
    // One descriptor writes and reads the file after it was unlinked.
    let mut file = File::options().read(true).write(true).open(pool.path().join("file")).expect("an open");
    std::io::Write::write_all(&mut file, b"DATA").expect("a write");
    fs::remove_file(pool.path().join("file")).expect("unlink");
    std::io::Seek::rewind(&mut file).expect("seek");
    assert_eq!(std::io::read_to_string(&file).expect("a read"), "DATA");
    drop(file);
    assert_eq!(unmount(&disk, UnmountFlags::empty()), Err(Errno::BUSY));
    pool.umount();
    assert!(wait_until(PATIENCE, || unmount(&disk, UnmountFlags::empty()).is_ok()), "the disk is still busy");
    std::mem::forget(guard);
}

/// An unprivileged daemon cannot copy the mount, so it opens with `O_NOATIME`, which its user may do
/// with their own files.
#[test]
fn noatime_works_in_an_ordinary_users_pool() {
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
    fs::copy(BINARY, scratch.path("canopy")).expect("a copy that any user may run");
    let mut command = Command::new("unshare");
    let done = run_within(command.args(["-m", "sh", "-euc", SCRIPT, "sh"]).arg(scratch.dir()), PATIENCE);
    let _ = fs::remove_dir(scratch.path("dev"));
    assert_eq!(done.stdout, "minfreespace=0 changed\nnoatime kept\n", "{}", done.describe());
}
