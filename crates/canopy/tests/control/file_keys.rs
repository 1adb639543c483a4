//! The keys that every file of a pool has.

use super::rig::{Dirs, key};
use canopy_testkit::cmd::run;
use canopy_testkit::xattr;
use rustix::io::Errno;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;

/// Returns the values of the four keys, with `|` in place of the NUL between paths.
#[track_caller]
fn keys(path: &Path) -> [String; 4] {
    ["basepath", "relpath", "fullpath", "allpaths"]
        .map(|name| key(path, name).unwrap_or_else(|errno| panic!("{name}: {errno}")).replace('\0', "|"))
}

#[test]
fn keys_locate_files_and_directories_on_the_branches() {
    let dirs = Dirs::new();
    let (a, b) = (dirs.text("a"), dirs.text("b"));
    for branch in ["a", "b"] {
        fs::create_dir_all(dirs.path(branch).join("d/e")).expect("mkdir");
        fs::write(dirs.path(branch).join("d/f"), branch).expect("a file");
    }
    fs::write(dirs.path("b/d/only"), "b").expect("a file");
    fs::create_dir(dirs.path("b/only")).expect("mkdir");
    fs::hard_link(dirs.path("b/d/only"), dirs.path("b/only/link")).expect("a link");
    std::os::unix::fs::symlink("f", dirs.path("a/d/s")).expect("a symlink");
    let pool = dirs.pool("");
    let at = |path: &str| pool.path().join(path);
    for (path, base, full, all) in [
        ("d/f", &a, format!("{a}/d/f"), format!("{a}/d/f|{b}/d/f")),
        ("d/e", &a, format!("{a}/d/e"), format!("{a}/d/e|{b}/d/e")),
        ("d/only", &b, format!("{b}/d/only"), format!("{b}/d/only")),
        ("only", &b, format!("{b}/only"), format!("{b}/only")),
        ("", &a, format!("{a}/"), format!("{a}/|{b}/")),
    ] {
        assert_eq!(keys(&at(path)), [base.clone(), path.into(), full, all], "{path}");
    }
    // The keys report the name that was used for a hard link.
    assert_eq!(key(&at("only/link"), "relpath"), Ok("only/link".into()));
    assert_eq!(key(&at("d/only"), "basepath"), Ok(b.clone()));
    // A symlink is followed to its target.
    assert_eq!(key(&at("d/s"), "relpath"), Ok("d/f".into()));
    assert_eq!(key(&at("d/missing"), "fullpath"), Err(Errno::NOENT));
    // The preload library asks which file on a branch this is.
    let stat = rustix::fs::stat(dirs.path("a/d/f")).expect("stat");
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    assert_eq!(key(&at("d/f"), "place"), Ok(format!("{major}:{minor} {} {a}/d/f", stat.st_ino)));
    assert_eq!(key(&at("d"), "place"), Err(Errno::NODATA));
    for name in ["user.mergerfs.nonsense", "user.mergerfs.version", "user.mergerfs."] {
        assert_eq!(xattr::get(at("d/f"), name), Err(Errno::NODATA), "{name}");
    }
    // The keys are not listed.
    let mut buffer = [0; 1000];
    assert_eq!(rustix::fs::listxattr(at("d/f"), &mut buffer[..]), Ok(0));
    let sized =
        |size: usize| rustix::fs::getxattr(at("d/f"), "user.mergerfs.relpath", &mut vec![0; size][..]);
    assert_eq!((sized(2), sized(3)), (Err(Errno::RANGE), Ok(3)));
    // Tools ask for the size first.
    let tool = ["--only-values", "-n", "user.mergerfs.relpath"].map(std::ffi::OsStr::new);
    assert_eq!(run("getfattr", tool.into_iter().chain([at("d/f").as_os_str()])), "d/f");
    // A rename shows at once.
    fs::rename(at("d"), at("g")).expect("a rename");
    assert_eq!(key(&at("g/f"), "allpaths"), Ok(format!("{a}/g/f\0{b}/g/f")));
    // `xattr=noattr` concerns only the attributes on the branches.
    pool.set("xattr", "noattr");
    assert_eq!(key(&at("g/f"), "basepath"), Ok(a));
    pool.umount();
}

#[test]
fn an_open_file_stays_on_its_branch() {
    let dirs = Dirs::new();
    let (a, b) = (dirs.text("a"), dirs.text("b"));
    fs::write(dirs.path("b/f"), "from b").expect("a file");
    let pool = dirs.pool("cache.entry=0,cache.attr=0");
    let path = pool.path().join("f");
    let mut file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    assert_eq!(key(&path, "basepath"), Ok(b.clone()));
    // A copy is created directly on an earlier branch.
    fs::write(dirs.path("a/f"), "from a").expect("a file");
    let mut value = [0; 4096];
    let length = rustix::fs::fgetxattr(&file, "user.mergerfs.fullpath", &mut value[..]).expect("a key");
    assert_eq!(&value[..length], format!("{b}/f").as_bytes());
    let length = rustix::fs::fgetxattr(&file, "user.mergerfs.allpaths", &mut value[..]).expect("a key");
    assert_eq!(&value[..length], format!("{a}/f\0{b}/f").as_bytes());
    // Its branch is removed from the pool. The file stays usable until it is closed.
    pool.set("branches", &format!("-{b}"));
    assert_eq!(fs::read_to_string(&path).expect("the other copy"), "from a");
    file.write_all(b"FROM B, on").expect("a write");
    let mut other = String::new();
    fs::File::open(dirs.path("b/f")).expect("the branch").read_to_string(&mut other).expect("read");
    assert_eq!(other, "FROM B, on");
    assert_eq!(file.metadata().expect("fstat").len(), 10);
    file.sync_all().expect("fsync");
    file.set_len(3).expect("ftruncate");
    assert_eq!(fs::read(dirs.path("b/f")).expect("the branch"), b"FRO");
    drop(file);
    assert_eq!(key(&path, "fullpath"), Ok(format!("{a}/f")));
    pool.umount();
}
