//! The control file: its attributes, its keys, and its errors.

use super::rig::Dirs;
use canopy_config::options;
use canopy_testkit::cmd::{run, run_within};
use canopy_testkit::xattr;
use canopy_testkit::{PATIENCE, Pool, as_user};
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The keys that the control file may list. It must not list any other.
const SHOWN: &str = "allow-idmap async-read branches branches-mount-timeout branches-mount-timeout-fail \
    cache.attr cache.entry cache.files cache.files.process-names cache.memory cache.negative-entry cache.readdir \
    cache.statfs cache.symlinks cache.writeback category.action category.create category.search config debug \
    direct-io-allow-mmap dropcacheonclose export-support flush-on-close follow-symlinks fsname func.access \
    func.chmod func.chown func.create func.getattr func.getxattr func.link func.listxattr func.mkdir \
    func.mknod func.open func.readdir func.readlink func.removexattr func.rename func.rmdir func.setxattr \
    func.symlink func.truncate func.unlink func.utimens fuse-msg-size handle-killpriv handle-killpriv-v2 \
    ignorepponrename inodecalc kernel-permissions-check lazy-umount-mountpoint link-cow link-exdev log.file \
    minfreespace mountpoint moveonenospc never-forget-nodes nfsopenhack nullrw parallel-direct-writes \
    passthrough.io passthrough.max-stack-depth pid pin-threads posix-acl process-thread-count \
    process-thread-queue-depth proxy-ioprio read-thread-count readahead rename-exdev rules scheduling-priority \
    security-capability statfs statfs-ignore symlinkify symlinkify-timeout tiers version xattr";

fn names(pool: &Pool) -> Vec<String> {
    let mut buffer = vec![0; 65_536];
    let length = rustix::fs::listxattr(pool.control_file(), buffer.as_mut_slice()).expect("a list");
    let text = std::str::from_utf8(&buffer[..length]).expect("UTF-8");
    assert!(text.ends_with('\0'));
    text.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

#[test]
fn the_control_file_is_empty_and_not_listed() {
    let dirs = Dirs::new();
    // The control file hides a file of that name on a branch.
    fs::write(dirs.path("a/.mergerfs"), "real").expect("a file");
    fs::write(dirs.path("b/.mergerfs"), "real").expect("a file");
    fs::create_dir(dirs.path("a/dir")).expect("mkdir");
    fs::write(dirs.path("a/dir/.mergerfs"), "below").expect("a file");
    let pool = dirs.pool("cache.readdir=true");
    for _ in 0..3 {
        let listed: Vec<_> =
            fs::read_dir(pool.path()).expect("a listing").map(|e| e.expect("an entry").file_name()).collect();
        assert_eq!(listed, ["dir"]);
        // `ls -la` uses readdirplus and looks up each name.
        assert!(!run("ls", ["-laR".as_ref(), pool.path().as_os_str()]).contains("5 Nov .mergerfs"));
        let meta = fs::symlink_metadata(pool.control_file()).expect("stat");
        assert_eq!((meta.mode(), meta.len(), meta.nlink()), (0o100_644, 0, 1));
        assert_eq!((meta.uid(), meta.gid(), meta.blocks(), meta.blksize()), (0, 0, 0, 512));
        assert!(meta.mtime() > 0 && meta.mtime() == meta.atime() && meta.mtime() == meta.ctime());
        assert_eq!(pool.get("version"), env!("CARGO_PKG_VERSION"));
    }
    // The name is special only in the root.
    assert_eq!(fs::read_to_string(pool.path().join("dir/.mergerfs")).expect("a file"), "below");
    assert!(fs::read_dir(pool.path().join("dir")).expect("a listing").count() == 1);
    for refused in [
        fs::File::open(pool.control_file()).map(drop),
        fs::write(pool.control_file(), "x"),
        fs::set_permissions(pool.control_file(), std::os::unix::fs::PermissionsExt::from_mode(0o777)),
    ] {
        assert_eq!(refused.expect_err("nothing to open").kind(), std::io::ErrorKind::NotFound);
    }
    pool.umount();
}

/// A file moved to that name would be hidden. A file that a branch has there stays.
#[test]
fn no_file_can_take_the_name_of_the_control_file() {
    let dirs = Dirs::new();
    fs::write(dirs.path("a/.mergerfs"), "real").expect("a file");
    // Without cached dentries, so that the daemon decides, and with them, so that the kernel does.
    for options in ["cache.entry=0,cache.attr=0", "cache.entry=60"] {
        let pool = dirs.pool(options);
        let at = |name: &str| pool.path().join(name);
        fs::write(at("f"), "f").expect("a file");
        fs::create_dir_all(at("dir/sub")).expect("mkdir");
        let name = pool.control_file();
        let rename = |from: &Path, to: &Path, flags| rustix::fs::renameat_with(CWD, from, CWD, to, flags);
        let none = RenameFlags::empty();
        for (what, result, errno) in [
            ("rename onto it", rename(&at("f"), &name, none), Errno::PERM),
            ("exchange with it", rename(&at("f"), &name, RenameFlags::EXCHANGE), Errno::PERM),
            (
                "rename onto it with RENAME_NOREPLACE",
                rename(&at("f"), &name, RenameFlags::NOREPLACE),
                Errno::EXIST,
            ),
            ("rename it", rename(&name, &at("other"), none), Errno::NOENT),
            ("exchange it", rename(&name, &at("f"), RenameFlags::EXCHANGE), Errno::NOENT),
            ("link", rustix::fs::link(at("f"), &name), Errno::EXIST),
            ("mkdir", rustix::fs::mkdir(&name, Mode::RWXU), Errno::EXIST),
            ("mkfifo", rustix::fs::mknodat(CWD, &name, FileType::Fifo, Mode::RUSR, 0), Errno::EXIST),
            ("symlink", rustix::fs::symlink("x", &name), Errno::EXIST),
            ("unlink", rustix::fs::unlink(&name), Errno::NOENT),
            (
                "create",
                rustix::fs::open(&name, OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).map(drop),
                Errno::NOENT,
            ),
        ] {
            assert_eq!(result, Err(errno), "{what}");
        }
        assert!(rustix::fs::rmdir(&name).is_err());
        assert_eq!(fs::read_to_string(at("f")).expect("a file"), "f");
        assert!(at("f").exists() && !at("other").exists());
        assert_eq!(fs::read_to_string(dirs.path("a/.mergerfs")).expect("a file"), "real");
        // In any other directory the name is an ordinary one.
        fs::write(at("dir/.mergerfs"), "below").expect("a file");
        fs::rename(at("dir/.mergerfs"), at("dir/sub/.mergerfs")).expect("a rename");
        fs::remove_file(at("dir/sub/.mergerfs")).expect("removal");
        pool.umount();
    }
}

#[test]
fn every_shown_key_is_listed_in_order() {
    let dirs = Dirs::new();
    let pool = dirs.pool("");
    let listed = names(&pool);
    let mut expected: Vec<String> = options::table()
        .iter()
        .filter(|spec| spec.key && !spec.hidden && !spec.unlisted)
        .map(|spec| spec.name.as_ref())
        .chain(["version", "pid"])
        .map(|key| format!("user.mergerfs.{key}"))
        .collect();
    expected.sort();
    assert_eq!(listed, expected);
    for name in &listed {
        let key = name.strip_prefix("user.mergerfs.").expect("the prefix");
        assert!(SHOWN.split_whitespace().any(|known| known == key), "{key} must not be listed");
        let value = xattr::get(pool.control_file(), name).unwrap_or_else(|errno| panic!("{key}: {errno}"));
        assert!(!value.ends_with(b"\0") && !value.ends_with(b"\n"), "{key}");
    }
    // A buffer that is one byte too small, and one of the exact size.
    let total: usize = listed.iter().map(|name| name.len() + 1).sum();
    assert_eq!(rustix::fs::listxattr(pool.control_file(), &mut vec![0; total - 1][..]), Err(Errno::RANGE));
    assert_eq!(rustix::fs::listxattr(pool.control_file(), &mut vec![0; total][..]), Ok(total));
    // getfattr asks for the sizes first, which rustix does not expose.
    let dump = run("getfattr", ["-d".as_ref(), "-m-".as_ref(), pool.control_file().as_os_str()]);
    assert_eq!(dump.matches("user.mergerfs.").count(), listed.len(), "{dump}");
    pool.umount();
}

#[test]
fn values_are_read_under_each_name() {
    let dirs = Dirs::new();
    let pool = dirs.builder("cache.files=partial,func.create=mfs,fsname=mine").mount();
    let (a, b) = (dirs.text("a"), dirs.text("b"));
    for (name, value) in [
        ("branches", format!("{a}=RW:{b}=RW")),
        ("srcmounts", format!("{a}:{b}")),
        ("mountpoint", pool.path().display().to_string()),
        ("mount", pool.path().display().to_string()),
        ("pid", pool.pid().to_string()),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("fsname", "mine".into()),
        ("cache.files", "partial".into()),
        ("cache.negative-entry", "0".into()),
        ("cache.negative_entry", "0".into()),
        ("cache_files", String::new()),
        ("category.create", "mfs,pfrd".into()),
        ("func.create", "mfs".into()),
        ("minfreespace", "0".into()),
        ("async_read", "true".into()),
        ("threads", "0".into()),
        ("use_ino", String::new()),
        ("remember", "false".into()),
        ("remember-nodes", "false".into()),
        ("noforget", "false".into()),
        ("process-thread-queue-depth", "2".into()),
        ("uid", "-1".into()),
        ("gid", "-1".into()),
        ("umask", "-1".into()),
        ("log.file", String::new()),
        ("direct-io", String::new()),
    ] {
        let got = xattr::get(pool.control_file(), &format!("user.mergerfs.{name}"));
        if name == "cache_files" {
            // An underscore does not stand for the dot.
            assert_eq!(got, Err(Errno::NODATA));
            continue;
        }
        assert_eq!(got, Ok(value.into_bytes()), "{name}");
    }
    for name in [
        "user.mergerfs.nonsense",
        "user.mergerfs.",
        "user.mergerfs",
        "user.cache.files",
        "user.mergerfs.cmd.gc",
        "user.mergerfs.ro",
        "user.mergerfs.basepath",
        "user.mergerfs.VERSION",
        "security.capability",
        "trusted.mergerfs.version",
    ] {
        assert_eq!(xattr::get(pool.control_file(), name), Err(Errno::NODATA), "{name}");
    }
    let version = env!("CARGO_PKG_VERSION").len();
    let sized = |size: usize| {
        rustix::fs::getxattr(pool.control_file(), "user.mergerfs.version", &mut vec![0; size][..])
    };
    assert_eq!((sized(version - 1), sized(version)), (Err(Errno::RANGE), Ok(version)));
    let tool = ["--only-values", "-n", "user.mergerfs.srcmounts"].map(std::ffi::OsStr::new);
    assert_eq!(
        run("getfattr", tool.into_iter().chain([pool.control_file().as_os_str()])),
        format!("{a}:{b}")
    );
    pool.umount();
}

/// A branch path that is not UTF-8 is returned byte for byte.
#[test]
fn branch_paths_need_not_be_utf8() {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let dirs = Dirs::new();
    let odd = dirs.path("odd").into_os_string().into_vec();
    let odd = std::ffi::OsString::from_vec([odd.as_slice(), b"\xff"].concat());
    fs::create_dir(&odd).expect("mkdir");
    let pool = dirs.pool("");
    let value = [b"=", odd.as_bytes(), b"=NC"].concat();
    rustix::fs::setxattr(pool.control_file(), "user.mergerfs.branches", &value, XattrFlags::empty())
        .expect("set");
    let got = xattr::get(pool.control_file(), "user.mergerfs.branches").expect("get");
    assert_eq!(got, &value[1..]);
    pool.umount();
}

#[test]
fn setting_keys_fails_with_the_expected_errno() {
    let dirs = Dirs::new();
    let pool = dirs.pool("func.readdir=cor");
    let before: Vec<_> = names(&pool).iter().map(|name| xattr::get(pool.control_file(), name)).collect();
    let none = XattrFlags::empty();
    for (name, value, flags, errno) in [
        ("user.other", "x", none, Errno::NODATA),
        ("user.mergerfs", "x", none, Errno::NODATA),
        ("trusted.mergerfs.cache.files", "off", none, Errno::NODATA),
        ("user.mergerfs.nonsense", "x", none, Errno::NODATA),
        ("user.mergerfs.nonsense", "x", XattrFlags::CREATE, Errno::NODATA),
        ("user.mergerfs.cmd.nonsense", "", none, Errno::NODATA),
        ("user.mergerfs.cmd.", "", none, Errno::NODATA),
        // The names of keys must be spelled as listed.
        ("user.mergerfs.cache.negative_entry", "1", none, Errno::NODATA),
        ("user.mergerfs.CACHE.FILES", "off", none, Errno::NODATA),
        ("user.mergerfs.ro", "", none, Errno::NODATA),
        ("user.mergerfs.cache.files", "off", XattrFlags::CREATE, Errno::EXIST),
        ("user.mergerfs.version", "1", XattrFlags::CREATE, Errno::EXIST),
        ("user.mergerfs.version", "1", none, Errno::ROFS),
        ("user.mergerfs.pid", "1", none, Errno::ROFS),
        ("user.mergerfs.srcmounts", "/x", none, Errno::ROFS),
        ("user.mergerfs.mount", "/x", none, Errno::ROFS),
        ("user.mergerfs.never-forget-nodes", "true", none, Errno::ROFS),
        ("user.mergerfs.remember", "-1", none, Errno::ROFS),
        ("user.mergerfs.remember-nodes", "", none, Errno::ROFS),
        ("user.mergerfs.noforget", "", none, Errno::ROFS),
        ("user.mergerfs.remember_nodes", "", none, Errno::NODATA),
        ("user.mergerfs.process-thread-queue-depth", "3", none, Errno::ROFS),
        ("user.mergerfs.uid", "root", none, Errno::INVAL),
        ("user.mergerfs.umask", "99999999999", none, Errno::OVERFLOW),
        ("user.mergerfs.log.file", "/nowhere/at/all", none, Errno::NOENT),
        ("user.mergerfs.fsname", "x", none, Errno::ROFS),
        ("user.mergerfs.mountpoint", "/x", none, Errno::ROFS),
        ("user.mergerfs.async-read", "false", none, Errno::ROFS),
        ("user.mergerfs.cache.writeback", "true", none, Errno::ROFS),
        ("user.mergerfs.cache.files", "sometimes", none, Errno::INVAL),
        ("user.mergerfs.cache.files", "", none, Errno::INVAL),
        ("user.mergerfs.cache.files", "off\n", none, Errno::INVAL),
        ("user.mergerfs.cache.files", " off", none, Errno::INVAL),
        ("user.mergerfs.cache.files", "off\0", none, Errno::INVAL),
        ("user.mergerfs.category.create", "nonsense", none, Errno::INVAL),
        ("user.mergerfs.func.readdir", "seq:x", none, Errno::INVAL),
        ("user.mergerfs.cache.attr", "-1", none, Errno::INVAL),
        ("user.mergerfs.dropcacheonclose", "maybe", none, Errno::INVAL),
        ("user.mergerfs.minfreespace", "lots", none, Errno::INVAL),
        ("user.mergerfs.minfreespace", "1P", none, Errno::INVAL),
        ("user.mergerfs.minfreespace", "16777216T", none, Errno::OVERFLOW),
        ("user.mergerfs.branches", "<", none, Errno::INVAL),
        ("user.mergerfs.branches", "+/etc/passwd/x", none, Errno::NOTDIR),
    ] {
        let got = rustix::fs::setxattr(pool.control_file(), name, value.as_bytes(), flags);
        assert_eq!(got, Err(errno), "{name}={value:?} {flags:?}");
    }
    // A pool cannot be its own branch, by its mountpoint, a path in it, or a directory that contains it.
    fs::create_dir(pool.path().join("inner")).expect("mkdir");
    let point = pool.path().display().to_string();
    let above = pool.path().parent().expect("a parent").display().to_string();
    for place in
        [point.clone(), format!("{point}/inner"), format!("{point}/in*"), format!("{point}/no"), above]
    {
        for instruction in ["+", "+<", "="] {
            let value = format!("{instruction}{place}=NC");
            assert_eq!(pool.try_set("branches", &value), Err(Errno::INVAL), "{value}");
        }
    }
    for name in ["user.mergerfs.cache.files", "user.mergerfs.nonsense", "user.other"] {
        assert_eq!(rustix::fs::removexattr(pool.control_file(), name), Err(Errno::NODATA), "{name}");
    }
    let after: Vec<_> = names(&pool).iter().map(|name| xattr::get(pool.control_file(), name)).collect();
    assert_eq!(before, after);
    // XATTR_REPLACE works, since the key exists.
    let replace = XattrFlags::REPLACE;
    rustix::fs::setxattr(pool.control_file(), "user.mergerfs.cache.files", b"off", replace)
        .expect("a replacement");
    assert_eq!(pool.get("cache.files"), "off");
    // Keys without effect accept any value, as at the mount.
    for key in ["use-ino", "direct-io", "kernel-cache"] {
        pool.set(key, "whatever");
        assert_eq!(pool.get(key), "");
    }
    pool.umount();
}

/// Every user may read keys. Only the owner may set them, even if the kernel checks no permissions.
#[test]
fn only_the_owner_can_set_keys() {
    let dirs = Dirs::new();
    for options in ["", "insecure-no-permission-checks=true"] {
        let pool = dirs.pool(options);
        let read = run_within(
            as_user(4242, 4242, &[], "getfattr")
                .args(["--only-values", "-n", "user.mergerfs.cache.files"])
                .arg(pool.control_file()),
            PATIENCE,
        );
        assert_eq!(read.stdout, "auto-full", "{}", read.describe());
        for (name, value) in [("cache.files", "off"), ("branches", "->"), ("cmd.gc", "")] {
            let name = format!("user.mergerfs.{name}");
            let set = run_within(
                as_user(4242, 4242, &[], "setfattr")
                    .args(["-n", &name, "-v", value])
                    .arg(pool.control_file()),
                PATIENCE,
            );
            assert!(
                !set.success() && set.stderr.contains("Permission denied"),
                "{options}: {}",
                set.describe()
            );
        }
        assert_eq!(pool.get("cache.files"), "auto-full");
        pool.set("cache.files", "off");
        pool.umount();
    }
}

#[test]
fn commands() {
    let dirs = Dirs::new();
    let pool = dirs.pool("cache.entry=3600,cache.attr=3600,cache.negative-entry=3600");
    for name in ["gc", "gc1", "invalidate-all-nodes"] {
        pool.set(&format!("cmd.{name}"), "whatever");
        assert!(pool.log().contains(&format!("command {name}")), "{}", pool.log());
    }
    // Changes on the branch become visible. The kernel may also drop its caches on its own, so the test does not assert
    // that it still has them.
    let file = pool.path().join("f");
    for _ in 0..20 {
        assert!(!file.exists());
        fs::write(dirs.path("a/f"), "x").expect("a file");
        pool.set("cmd.invalidate-all-nodes", "");
        assert!(file.exists());
        fs::remove_file(dirs.path("a/f")).expect("removal");
        pool.set("cmd.invalidate-all-nodes", "");
    }
    pool.umount();
}
