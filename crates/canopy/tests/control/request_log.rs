//! `debug` and `log.file`: a log with one line for each request.

use super::rig::Dirs;
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::wait_until;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Returns the log line of the lookup of a name.
fn lookup(log: &str, name: &str) -> Option<String> {
    let asked = format!(" name=\"{name}\": ");
    log.lines().find(|line| line.contains(" LOOKUP unique=") && line.contains(&asked)).map(str::to_owned)
}

#[test]
fn every_request_is_a_line_in_the_log() {
    let dirs = Dirs::new();
    for at_mount in [true, false] {
        let pool = dirs.pool(if at_mount { "debug=true" } else { "" });
        let miss = |name: &str| assert!(!pool.path().join(name).exists());
        if !at_mount {
            miss("before");
            assert_eq!(lookup(&pool.log(), "before"), None);
            pool.set("debug", "true");
        }
        miss("quiet \n night");
        assert!(wait_until(PATIENCE, || lookup(&pool.log(), "quiet \\n night").is_some()), "{}", pool.log());
        let line = lookup(&pool.log(), "quiet \\n night").expect("a line");
        for part in [" node=1 ", &format!(" pid={}", pid()), ": error=0 len=", " us="] {
            assert!(line.contains(part), "{part}: {line}");
        }
        pool.set("debug", "false");
        miss("after");
        assert_eq!(pool.get("debug"), "false");
        assert_eq!(lookup(&pool.log(), "after"), None);
        pool.umount();
    }
}

/// Returns the ID of the calling thread, which FUSE requests carry as their pid.
fn pid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[test]
fn requests_can_be_logged_to_a_file() {
    let dirs = Dirs::new();
    let (one, other) = (dirs.path("one.log"), dirs.path("other.log"));
    let text = |path: &std::path::Path| fs::read_to_string(path).expect("a log");
    let pool = dirs.pool(&format!("debug=true,log.file={}", one.display()));
    fs::write(pool.path().join("f"), "content").expect("a file");
    fs::rename(pool.path().join("f"), pool.path().join("g")).expect("a rename");
    fs::File::options().write(true).open(pool.path().join("g")).and_then(|g| g.set_len(3)).expect("a size");
    let log = text(&one);
    for (opcode, part) in [
        ("CREATE", " node=1 "),
        ("CREATE", " name=\"f\" mode="),
        ("RENAME2", " name=\"f\" newdir=1 newname=\"g\""),
        ("SETATTR", " size=3"),
        ("RELEASE", " fh="),
    ] {
        let there =
            || text(&one).lines().any(|line| line.contains(&format!(" {opcode} ")) && line.contains(part));
        // A rename without flags may arrive as RENAME or RENAME2. RELEASE is asynchronous.
        let there = || there() || opcode == "RENAME2" && text(&one).contains(" RENAME ");
        assert!(wait_until(PATIENCE, there), "{opcode}{part}:\n{log}");
    }
    assert!(log.lines().all(|line| line.contains(" unique=")), "{log}");
    assert!(!pool.log().contains(" unique="), "the requests are also in the main log: {}", pool.log());
    assert_eq!(fs::metadata(&one).expect("a log").mode() & 0o777, 0o600);
    // Switch to another file, and back to the first, to which the log appends.
    pool.set("log.file", &other.display().to_string());
    assert!(!pool.path().join("second").exists());
    assert!(lookup(&text(&other), "second").is_some() && lookup(&text(&one), "second").is_none());
    pool.set("log.file", &one.display().to_string());
    assert!(!pool.path().join("third").exists());
    assert!(text(&one).starts_with(&log) && lookup(&text(&one), "third").is_some());
    // Log rotation: rename the file, and set `log.file` again.
    fs::rename(&one, dirs.path("rotated.log")).expect("a rename");
    pool.set("log.file", &one.display().to_string());
    assert!(!pool.path().join("fourth").exists());
    assert!(lookup(&text(&one), "fourth").is_some());
    // An unusable path is refused with an errno, and changes nothing.
    let link = dirs.path("link");
    std::os::unix::fs::symlink(pool.path().join("deep"), &link).expect("a symlink");
    fs::create_dir(pool.path().join("deep")).expect("mkdir");
    for (path, errno) in [
        (dirs.path("none/log"), Errno::NOENT),
        (dirs.path("a"), Errno::ISDIR),
        (pool.path().join("log"), Errno::INVAL),
        (link.join("log"), Errno::INVAL),
    ] {
        assert_eq!(pool.try_set("log.file", &path.display().to_string()), Err(errno), "{}", path.display());
    }
    assert!(!pool.path().join("deep/log").exists());
    assert_eq!(pool.get("log.file"), one.display().to_string());
    assert!(!pool.path().join("fifth").exists());
    assert!(lookup(&text(&one), "fifth").is_some());
    // Without a file, requests go to the main log again.
    pool.set("log.file", "");
    assert!(!pool.path().join("sixth").exists());
    assert!(wait_until(PATIENCE, || lookup(&pool.log(), "sixth").is_some()));
    assert!(lookup(&text(&one), "sixth").is_none());
    pool.umount();
    let failed = dirs.builder(&format!("log.file={}", dirs.path("none/log").display())).try_mount();
    let log = failed.expect_err("no directory").log;
    assert!(log.contains("none/log cannot be written: No such file"), "{log}");
}
