//! Changes of the policy of each function on a running pool.

use super::rig::Dirs;
use canopy_testkit::PoolBed;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(super) const NAMES: &[&str] = &[
    "category.action",
    "category.create",
    "category.search",
    "func.access",
    "func.chmod",
    "func.chown",
    "func.create",
    "func.getattr",
    "func.getxattr",
    "func.link",
    "func.listxattr",
    "func.mkdir",
    "func.mknod",
    "func.open",
    "func.readlink",
    "func.removexattr",
    "func.rename",
    "func.rmdir",
    "func.setxattr",
    "func.symlink",
    "func.truncate",
    "func.unlink",
    "func.utimens",
];

pub(super) const OBSERVED: &str = "the branch that each function uses";

pub(super) fn all(live: &PoolBed) {
    create(live);
    action(live);
    search(live);
}

type Act = fn(&Path) -> Result<(), Errno>;

fn create(live: &PoolBed) {
    let functions: [(&str, Act); 4] = [
        ("create", |path| rustix::fs::open(path, rustix::fs::OFlags::CREATE, Mode::RUSR).map(drop)),
        ("mkdir", |path| rustix::fs::mkdir(path, Mode::RWXU)),
        ("mknod", |path| rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0)),
        ("symlink", |path| rustix::fs::symlink("target", path)),
    ];
    // The first branch has less room than the second.
    for (policy, first) in [("mfs", false), ("lfs", true), ("ff", true)] {
        for option in ["category.create", "func."] {
            for (func, make) in functions {
                let key = if option == "func." { format!("func.{func}") } else { option.to_owned() };
                live.pool.set("category.create", "erofs");
                let name = format!("{policy}-{key}-{func}");
                assert_eq!(make(&live.at(&name)), Err(Errno::ROFS), "{name}");
                live.pool.set(&key, policy);
                assert_eq!(make(&live.at(&name)), Ok(()), "{name}");
                let on = |path: std::path::PathBuf| path.symlink_metadata().is_ok();
                assert_eq!((on(live.on(0, &name)), on(live.on(1, &name))), (first, !first), "{name}");
            }
        }
    }
    live.pool.set("category.create", "ff");
}

fn action(live: &PoolBed) {
    let attribute = "user.x";
    let functions: [(&str, Act); 10] = [
        ("chmod", |path| rustix::fs::chmod(path, Mode::RWXU)),
        ("chown", |path| rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(1)), None)),
        ("link", |path| rustix::fs::link(path, beside(path))),
        ("rename", |path| rustix::fs::rename(path, beside(path))),
        ("rmdir", |path| rustix::fs::rmdir(path)),
        ("setxattr", |path| rustix::fs::setxattr(path, "user.x", b"2", XattrFlags::empty())),
        ("removexattr", |path| rustix::fs::removexattr(path, "user.x")),
        ("truncate", truncate),
        ("unlink", |path| rustix::fs::unlink(path)),
        ("utimens", |path| {
            let at = Timespec { tv_sec: 5, tv_nsec: 0 };
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: at,
            };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
        }),
    ];
    for key in ["category.action", "func."] {
        for (func, act) in functions {
            let key = if key == "func." { format!("func.{func}") } else { key.to_owned() };
            let path = live.at(&format!("{func}-{key}"));
            match func {
                "rmdir" => fs::create_dir(&path).expect("mkdir"),
                _ => fs::write(&path, "content").expect("a file"),
            }
            rustix::fs::setxattr(&path, attribute, b"1", XattrFlags::empty()).expect("an attribute");
            live.pool.set(&key, "erofs");
            assert_eq!(act(&path), Err(Errno::ROFS), "{key} {func}");
            live.pool.set(&key, "epall");
            assert_eq!(act(&path), Ok(()), "{key} {func}");
        }
    }
}

fn beside(path: &Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-beside");
    name.into()
}

/// Calls truncate(2) by name. rustix has only ftruncate, which involves no policy.
fn truncate(path: &Path) -> Result<(), Errno> {
    let done = std::process::Command::new("python3")
        .args([
            "-c",
            "import os, sys\ntry: os.truncate(sys.argv[1], 1)\nexcept OSError as e: sys.exit(e.errno)",
        ])
        .arg(path)
        .status()
        .expect("python3");
    match done.code() {
        Some(0) => Ok(()),
        code => Err(Errno::from_raw_os_error(code.unwrap_or(1))),
    }
}

fn stamp(path: &Path, sec: i64) {
    let at = Timespec { tv_sec: sec, tv_nsec: 0 };
    let times = Timestamps { last_access: at, last_modification: at };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}

fn search(live: &PoolBed) {
    // The later branch has the newer copy of everything.
    for (base, content, sec) in [(live.on(0, ""), "a", 1000), (live.on(1, ""), "bb", 2000)] {
        fs::write(base.join("copy"), content).expect("a file");
        std::os::unix::fs::symlink(content, base.join("sym")).expect("a symlink");
        fs::create_dir(base.join("both")).expect("mkdir");
        rustix::fs::setxattr(base.join("both"), "user.x", content.as_bytes(), XattrFlags::empty())
            .expect("set");
        rustix::fs::setxattr(base.join("both"), format!("user.{content}"), b"", XattrFlags::empty())
            .expect("set");
        for name in ["copy", "sym", "both"] {
            stamp(&base.join(name), sec);
        }
    }
    let mut buffer = [0; 256];
    let size = || fs::metadata(live.at("copy")).expect("stat").len();
    let content = || fs::read_to_string(live.at("copy")).expect("a read").len() as u64;
    let target = || fs::read_link(live.at("sym")).expect("readlink").as_os_str().len() as u64;
    let value = || rustix::fs::getxattr(live.at("both"), "user.x", &mut [0; 16][..]).expect("get") as u64;
    let mut listed = || {
        let length = rustix::fs::listxattr(live.at("both"), &mut buffer[..]).expect("list");
        1 + u64::from(buffer[..length].windows(8).any(|part| part == b"user.bb\0"))
    };
    for (key, newest) in [
        ("category.search", [2, 2, 2, 2, 2]),
        // An open uses the copy that stat shows, unless func.open differs.
        ("func.getattr", [2, 1, 1, 1, 1]),
        ("func.open", [1, 2, 1, 1, 1]),
        ("func.getxattr", [1, 1, 1, 2, 1]),
        ("func.listxattr", [1, 1, 1, 1, 2]),
        ("func.readlink", [1, 1, 2, 1, 1]),
        // The kernel sends ACCESS only if it does not check permissions itself: see the test below.
        ("func.access", [1, 1, 1, 1, 1]),
    ] {
        live.pool.set("category.search", "ff");
        assert_eq!([size(), content(), target(), value(), listed()], [1; 5], "{key} before");
        live.pool.set(key, "newest");
        assert_eq!([size(), content(), target(), value(), listed()], newest, "{key}=newest");
    }
    live.pool.set("category.search", "ff");
}

/// access(2) checks the copy that the policy chooses, if the kernel leaves permission checks to the pool.
#[test]
fn access_checks_the_copy_that_its_policy_chooses() {
    let dirs = Dirs::new();
    for (branch, mode, sec) in [("a", 0o644, 1000), ("b", 0o755, 2000)] {
        let path = dirs.path(branch).join("program");
        fs::write(&path, "").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        stamp(&path, sec);
    }
    let pool = dirs.pool("insecure-no-permission-checks=true,cache.attr=0");
    let ask = |access| rustix::fs::access(pool.path().join("program"), access);
    for (key, policy, runs) in [
        ("func.access", "ff", Err(Errno::ACCESS)),
        ("func.access", "newest", Ok(())),
        ("category.search", "ff", Err(Errno::ACCESS)),
        ("category.search", "newest", Ok(())),
    ] {
        pool.set(key, policy);
        assert_eq!(ask(Access::EXEC_OK), runs, "{key}={policy}");
        assert_eq!(ask(Access::READ_OK | Access::WRITE_OK), Ok(()), "{key}={policy}");
    }
    assert_eq!(rustix::fs::access(pool.path(), Access::EXEC_OK), Ok(()));
    pool.umount();
}
