//! Operations for which the daemon needs its privileges.

use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// Returns whether a thread of this name serves requests.
pub(super) fn serves(name: &str) -> bool {
    name.starts_with("canopy-q") || name.starts_with("canopy-fuse-")
}

/// Performs every operation for which the daemon needs a privilege, as root in a directory of a pool.
#[track_caller]
pub(super) fn exercise_privileges(pool: &Path) {
    let at = |name: &str| pool.join(name);
    fs::create_dir(at("d")).expect("mkdir");
    fs::write(at("f"), "text").expect("write");
    fs::hard_link(at("f"), at("d/link")).expect("link");
    symlink("f", at("s")).expect("symlink");
    fs::rename(at("d/link"), at("g")).expect("rename to another directory");
    rustix::fs::renameat_with(CWD, at("g"), CWD, at("f"), RenameFlags::EXCHANGE).expect("exchange");
    for (name, kind) in [
        ("pipe", FileType::Fifo),
        ("socket", FileType::Socket),
        ("char", FileType::CharacterDevice),
        ("block", FileType::BlockDevice),
    ] {
        rustix::fs::mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o600), 0x103).expect(name);
        fs::remove_file(at(name)).expect(name);
    }
    rustix::fs::chown(at("f"), Some(Uid::from_raw(4242)), Some(Gid::from_raw(4243))).expect("chown");
    fs::set_permissions(at("f"), fs::Permissions::from_mode(0o6750)).expect("chmod");
    assert_eq!(fs::metadata(at("f")).expect("stat").mode() & 0o7777, 0o6750, "chmod keeps the set-id bits");
    for name in ["user.x", "trusted.x"] {
        rustix::fs::setxattr(at("f"), name, b"value", XattrFlags::empty()).expect(name);
        rustix::fs::removexattr(at("f"), name).expect(name);
    }
    // struct vfs_cap_data, version 2: cap_chown.
    let capability = [1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(at("f"), "security.capability", &capability, XattrFlags::empty()).expect("setcap");
    // A file of another user, in a directory that is closed to the daemon's group.
    let script = "umask 077; mkdir own; echo text >own/f; cat own/f; chmod 2700 own; touch own/g; mv own/g own/h; rm own/h";
    fs::set_permissions(pool, fs::Permissions::from_mode(0o777)).expect("chmod");
    let user = canopy_testkit::User { uid: 4242, gid: 4243, groups: &[] };
    let done = run_within(&mut user.shell(&format!("cd \"$1\"; {script}"), [pool]), PATIENCE);
    assert!(done.success() && done.stdout == "text\n", "{}", done.describe());
    let own = fs::metadata(at("own/f")).expect("stat");
    assert_eq!((own.uid(), own.gid(), own.mode() & 0o7777), (4242, 4243, 0o600));
    for flag in ["+i", "-i"] {
        let done = run_within(Command::new("chattr").arg(flag).arg(at("own/f")), PATIENCE);
        assert!(done.success(), "{}", done.describe());
        assert_eq!(fs::write(at("own/f"), "").is_err(), flag == "+i");
    }
    // An unlinked file is reached through its open handle.
    let mut file = fs::File::options().read(true).write(true).open(at("f")).expect("open");
    for name in ["f", "g"] {
        fs::remove_file(at(name)).expect("unlink");
    }
    file.write_at(b"T", 0).expect("write");
    file.set_len(2).expect("truncate");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "Te");
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let nameless = rustix::fs::open(pool, flags, Mode::from_raw_mode(0o600)).expect("O_TMPFILE");
    fs::File::from(nameless.try_clone().expect("dup")).write_all(b"x").expect("write");
    let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&nameless));
    rustix::fs::linkat(CWD, path, CWD, at("named"), AtFlags::SYMLINK_FOLLOW).expect("linkat");
    let names = fs::read_dir(pool).expect("a listing").count();
    assert_eq!(names, 4, "d, s, own, named");
    fs::remove_dir_all(at("d")).expect("rmdir");
    fs::remove_dir_all(at("own")).expect("rmdir");
}
