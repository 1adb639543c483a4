//! The output of `canopy status`, as text and as JSON.

use super::rig::{BINARY, canopy, codes, shown};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, PATIENCE, Pool, ScratchDir, pool_status};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Returns the names of an object's members.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Checks what people read of a healthy pool.
fn is_told_in_words(pool: &Pool) {
    let text = shown(["status".as_ref(), pool.path().as_os_str()]);
    for words in [
        "fuse.canopy",
        " threads",
        " over ",
        "BRANCH",
        "ext4",
        "tmpfs",
        "32M",
        "ok",
        "pfrd",
        "minfreespace 2.0M",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    assert!(!text.contains("warning"), "{text}");
}

#[test]
fn a_healthy_pool_is_described_without_warnings() {
    let (one, two) = (LoopFs::ext4(64 * MIB), LoopFs::tmpfs(32 * MIB));
    let pool = Pool::builder(BINARY)
        .branch_spec(format!("{}=RW,1M", one.path().display()))
        .branch_spec(format!("{}=NC", two.path().display()))
        .option("minfreespace=2M,fsname=both")
        .mount();
    let status = pool.status();
    assert_eq!(codes(&status), [""; 0], "{status:#}");
    // Scripts rely on these keys: more may be added, none may be removed.
    let expected = [
        "branches",
        "catalogue",
        "disks",
        "error",
        "fstype",
        "jobs",
        "kernel",
        "low_priority_threads",
        "mountpoint",
        "options",
        "parked",
        "passthrough",
        "pid",
        "read_caches",
        "security",
        "sleep",
        "source",
        "state",
        "survival",
        "threads",
        "tiering",
        "transport",
        "trash_alarms",
        "version",
        "warnings",
    ];
    assert_eq!(keys(&status), expected);
    assert_eq!(keys(&status["kernel"]), ["features", "max_stack_depth", "missing", "protocol", "unproved"]);
    assert_eq!(keys(&status["security"]), ["capabilities", "landlock", "no_new_privs", "unheeded_acls"]);
    let expected = [
        "available",
        "dev",
        "device",
        "disks",
        "error",
        "errors",
        "filesystem",
        "fstype",
        "has_aside",
        "health",
        "illness",
        "ino",
        "inodes",
        "inodes_free",
        "marked",
        "min_free",
        "mode",
        "mounted_at",
        "passes_through",
        "path",
        "read_only",
        "remembered",
        "set_aside",
        "size",
        "source",
        "trash",
        "trash_unusable",
        "unfinished_moves",
        "unreadable_copies",
        "unwatched",
        "used",
        "waits",
    ];
    assert_eq!(keys(&status["branches"][0]), expected);
    let manual = include_str!("../../../../man/canopy.8").replace("\\-", "-");
    for key in
        [keys(&status), keys(&status["kernel"]), keys(&status["security"]), keys(&status["branches"][0])]
            .concat()
    {
        assert!(manual.contains(key), "{key} is not in the manual");
    }
    assert_eq!(status["mountpoint"], pool.path().to_str().unwrap());
    assert_eq!(
        (&status["state"], &status["fstype"], &status["source"]),
        (&"serving".into(), &"fuse.canopy".into(), &"both".into())
    );
    assert_eq!((&status["version"], &status["pid"]), (&env!("CARGO_PKG_VERSION").into(), &pool.pid().into()));
    assert_eq!(status["options"]["minfreespace"], "2097152");
    let branches = status["branches"].as_array().unwrap();
    for (branch, (fs, (mode, min_free))) in
        branches.iter().zip([(&one, ("RW", MIB)), (&two, ("NC", 2 * MIB))])
    {
        let space = rustix::fs::statvfs(fs.path()).unwrap();
        let meta = fs::metadata(fs.path()).unwrap();
        assert_eq!(branch["path"], fs.path().to_str().unwrap());
        assert_eq!((&branch["mode"], &branch["min_free"]), (&mode.into(), &min_free.into()));
        assert_eq!((&branch["health"], &branch["error"]), (&"ok".into(), &Value::Null));
        assert_eq!((&branch["dev"], &branch["ino"]), (&meta.dev().into(), &meta.ino().into()));
        assert_eq!(branch["size"], space.f_blocks * space.f_frsize);
        assert_eq!(branch["available"], space.f_bavail * space.f_frsize);
        assert_eq!(branch["mounted_at"], fs.path().to_str().unwrap());
    }
    assert_eq!((&branches[0]["fstype"], &branches[0]["errors"]), (&"ext4".into(), &0.into()));
    assert_eq!((&branches[1]["fstype"], &branches[1]["errors"]), (&"tmpfs".into(), &Value::Null));

    is_told_in_words(&pool);
    // The list of all pools on the machine contains it once.
    let done = canopy(["status", "--json"]);
    let all: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(keys(&all), ["linux", "pools", "unmounted"]);
    let own = |status: &&Value| status["mountpoint"] == pool.path().to_str().unwrap();
    assert_eq!(all["pools"].as_array().unwrap().iter().filter(own).count(), 1);
    pool.umount();
}

#[test]
fn features_that_the_kernel_lacks_are_named() {
    let fs = LoopFs::tmpfs(16 * MIB);
    let pool = Pool::builder(BINARY)
        .branch(fs.path())
        .option("minfreespace=0,passthrough.io=rw")
        .env("CANOPY_TEST_KERNEL", "mask:PASSTHROUGH")
        .mount();
    let status = pool.status();
    assert_eq!(
        (&status["passthrough"], &status["kernel"]["missing"]),
        (&"off".into(), &serde_json::json!(["passthrough"]))
    );
    assert_eq!(codes(&status), ["passthrough-missing"]);
    assert!(
        shown(["status".as_ref(), pool.path().as_os_str(), "--verbose".as_ref()])
            .contains("lacks passthrough")
    );
    pool.umount();
}

#[test]
fn only_a_terminal_gets_colours() {
    let scratch = ScratchDir::new("canopy-status-", &["a", "b"]);
    let pool = Pool::builder(BINARY)
        .branch(scratch.path("a"))
        .branch(scratch.path("b"))
        .option("minfreespace=0")
        .mount();
    // script(1) gives its command a terminal.
    let on_terminal = |env: &str| {
        let line = format!("{env} TERM=xterm {BINARY} status {}", pool.path().display());
        let done = run_within(
            Command::new("script").args(["-q", "-e", "-c", &line, "/dev/null"]).env_remove("NO_COLOR"),
            PATIENCE,
        );
        assert!(done.success() && done.stdout.contains("are on"), "{}", done.describe());
        done.stdout
    };
    assert!(on_terminal("").contains("\x1b[33mwarning: \x1b[0m"));
    assert!(!on_terminal("NO_COLOR=1").contains('\x1b'));
    assert!(on_terminal("NO_COLOR=").contains('\x1b'), "an empty NO_COLOR counts as unset");
    shown(["status".as_ref(), pool.path().as_os_str()]);
    pool.umount();
}

#[test]
fn a_path_that_is_no_pool_is_an_error() {
    let scratch = ScratchDir::new("canopy-status-", &["a"]);
    for path in [scratch.path("a"), "/proc".into(), "/nowhere".into()] {
        let done = canopy(["status".as_ref(), path.as_os_str()]);
        assert_eq!(done.code(), Some(1));
        assert!(
            done.stderr.contains("is not the mountpoint of a pool (canopy status"),
            "{}",
            done.describe()
        );
    }
}

#[test]
fn a_pool_mounted_as_mergerfs_with_a_branch_path_of_any_bytes() {
    let scratch = ScratchDir::new("canopy-status-", &["point", "bin"]);
    let strange = scratch.dir().join(OsStr::from_bytes(b"b\xff\n b"));
    fs::create_dir(&strange).unwrap();
    let btrfs = LoopFs::btrfs(128 * MIB);
    symlink(BINARY, scratch.path("bin/mergerfs")).unwrap();
    let list = [strange.as_os_str(), btrfs.path().as_os_str()].join(OsStr::new(":"));
    let mount = run_within(
        Command::new(scratch.path("bin/mergerfs"))
            .args(["-o", "minfreespace=0"])
            .arg(list)
            .arg(scratch.path("point")),
        PATIENCE,
    );
    assert!(mount.success(), "{}", mount.describe());
    let point = scratch.path("point");
    let status = pool_status(&canopy(["status".as_ref(), point.as_os_str(), "--json".as_ref()]));
    let text = shown(["status".as_ref(), point.as_os_str()]);
    let done = canopy(["umount".as_ref(), scratch.path("point").as_os_str()]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(status["fstype"], "fuse.mergerfs");
    let bytes: Vec<u8> =
        serde_json::from_value(status["branches"][0]["path"].clone()).expect("an array of bytes");
    assert_eq!(bytes, strange.as_os_str().as_bytes());
    assert_ne!(status["branches"][0]["size"], Value::Null);
    // btrfs also counts its errors; this one has none.
    assert_eq!(
        (&status["branches"][1]["fstype"], &status["branches"][1]["errors"]),
        (&"btrfs".into(), &0.into())
    );
    assert!(text.contains("\\n"), "{text}");
}
