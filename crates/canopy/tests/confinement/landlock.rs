//! `landlock=true`: workers can reach only the branches of the pool.

use super::rig::{BINARY, exercise_privileges};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{LoopFs, PATIENCE, Pool};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

#[test]
fn landlock_confines_workers_to_the_branches() {
    let (one, two) = (LoopFs::ext4(64 << 20), LoopFs::tmpfs(64 << 20));
    let outside = tempfile::tempdir().expect("a directory");
    fs::write(outside.path().join("secret"), "secret").expect("write");
    for (passthrough, transport) in [("auto", "auto"), ("off", "off")] {
        let _ = fs::remove_file(one.path().join("out"));
        symlink(outside.path().join("secret"), one.path().join("out")).expect("symlink");
        let pool = |landlock: bool| {
            Pool::builder(BINARY)
                .branch(one.path())
                .branch(two.path())
                .option("minfreespace=0,follow-symlinks=regular,category.create=ff")
                .option(format!("landlock={landlock},passthrough.io={passthrough},io-uring={transport}"))
                .option(format!("log.file={}", outside.path().join("log").display()))
                .mount()
        };
        let free = pool(false);
        assert_eq!(fs::read(free.path().join("out")).expect("the symlink is followed"), b"secret");
        free.umount();

        let pool = pool(true);
        let dir = pool.path().join("dir");
        fs::create_dir(&dir).expect("mkdir");
        exercise_privileges(&dir);
        fs::remove_dir_all(&dir).expect("rmdir");
        let denied = fs::read(pool.path().join("out")).expect_err("the symlink leads outside");
        assert_eq!(Errno::from_io_error(&denied), Some(Errno::ACCESS));

        let control = pool.path().join(".mergerfs");
        let set = |key: &str, value: &str| {
            rustix::fs::setxattr(
                &control,
                format!("user.mergerfs.{key}"),
                value.as_bytes(),
                XattrFlags::empty(),
            )
        };
        // Only a directory within a branch can be added. Any other is refused with the reason.
        fs::create_dir_all(two.path().join("more")).expect("mkdir");
        set("branches", &format!("+>{}", two.path().join("more").display())).expect("a branch inside");
        let value = format!("+>{}", outside.path().display());
        assert_eq!(set("branches", &value), Err(Errno::XDEV));
        let before = pool.log();
        assert!(before.contains("lies outside the branches that landlock=true"), "{before}");
        let done = run_within(
            Command::new(BINARY).arg("set").arg(pool.path()).arg(format!("branches={value}")),
            PATIENCE,
        );
        assert_eq!(done.code(), Some(1));
        assert!(done.stderr.contains("landlock=true confines pool"), "{}", done.describe());
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());

        // Log rotation: the file is renamed, and `log.file` set again.
        let log = outside.path().join("log");
        set("debug", "true").expect("debug");
        fs::metadata(pool.path().join("none")).expect_err("no such file");
        fs::rename(&log, outside.path().join("log.1")).expect("rotate");
        set("log.file", log.to_str().expect("UTF-8")).expect("reopen");
        fs::metadata(pool.path().join("none2")).expect_err("no such file");
        assert!(wait_until(PATIENCE, || fs::read(&log).is_ok_and(|text| !text.is_empty())));
        set("log.file", "/var/tmp/canopy-elsewhere").expect_err("elsewhere");
        set("debug", "false").expect("debug");
        set("readahead", "256").expect("/sys");

        // The thread that unmounts is not confined.
        kill_process(Pid::from_raw(pool.pid()).expect("a pid"), Signal::TERM).expect("a signal");
        assert!(wait_until(PATIENCE, || !pool.mounted()), "{}", pool.log());
        pool.umount();
        assert_eq!(fs::read(outside.path().join("secret")).expect("read"), b"secret");
    }
}
