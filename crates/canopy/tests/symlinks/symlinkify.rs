//! `symlinkify` and `symlinkify-timeout`.

use super::rig::{pool, set, target};
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::files::text;
use std::fs::{self, File, Permissions};
use std::io::{Read, Seek};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

fn put(path: &Path, mode: u32) {
    fs::write(path, "content").unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).unwrap().is_symlink()
}

#[test]
fn an_unwritable_file_shows_as_a_symlink_to_its_branch() {
    let bed = pool("cache.entry=60,cache.attr=60", |_, b| {
        fs::create_dir(b.join("d")).unwrap();
        put(&b.join("d/f"), 0o444);
        put(&b.join("d/setuid"), 0o4555);
        put(&b.join("d/writable"), 0o464);
        fs::create_dir(b.join("dir")).unwrap();
        fs::set_permissions(b.join("dir"), Permissions::from_mode(0o555)).unwrap();
        assert!(
            std::process::Command::new("mkfifo")
                .args(["-m", "400"])
                .arg(b.join("d/fifo"))
                .status()
                .unwrap()
                .success()
        );
    });
    let before = fs::symlink_metadata(bed.at("d/f")).unwrap();
    assert!(before.is_file());
    let mut held = File::open(bed.at("d/f")).unwrap();
    // The option is off at mount time, and takes effect as soon as it is set.
    set(&bed, "symlinkify", "true");
    let meta = fs::symlink_metadata(bed.at("d/f")).unwrap();
    let path = bed.on(1, "d/f");
    assert!(meta.is_symlink());
    assert_eq!((meta.mode() & 0o7777, meta.nlink(), meta.blocks()), (0o777, 1, 0));
    assert_eq!(meta.len(), path.as_os_str().len() as u64);
    assert_eq!((meta.ino(), meta.uid(), meta.mtime()), (before.ino(), before.uid(), before.mtime()));
    assert_eq!(fs::read_link(bed.at("d/f")).unwrap(), path);
    assert_eq!(fs::canonicalize(bed.at("d/f")).unwrap(), path.canonicalize().unwrap());
    assert_eq!(text(bed.at("d/f")), "content");
    assert!(is_link(&bed.at("d/setuid")) && is_link(&bed.at("d/fifo")));
    assert!(!is_link(&bed.at("d/writable")) && !is_link(&bed.at("dir")) && !is_link(&bed.at("d")));
    // An open file stays a regular file.
    let mut content = String::new();
    held.read_to_string(&mut content).unwrap();
    assert_eq!((content.as_str(), held.metadata().unwrap().is_file()), ("content", true));
    // Programs may rely on the file types in a listing.
    let found = run("find", [bed.at("d").as_os_str(), "-type".as_ref(), "l".as_ref()]);
    assert_eq!(found.lines().count(), 3, "{found}");
    // The type can change repeatedly while the file is open; its name and inode number stay the same.
    for on in ["false", "true", "false", "true"] {
        set(&bed, "symlinkify", on);
        let meta = fs::symlink_metadata(bed.at("d/f")).unwrap();
        assert_eq!((meta.is_symlink(), meta.ino()), (on == "true", before.ino()));
        assert_eq!(text(bed.at("d/f")), "content");
        held.rewind().unwrap();
        let mut again = String::new();
        held.read_to_string(&mut again).unwrap();
        assert_eq!(again, "content");
        assert_eq!(held.metadata().unwrap().len(), 7);
    }
    drop(held);
    bed.pool.umount();
}

/// rename, link, unlink and chmod on a name that shows as a symlink affect the file.
#[test]
fn operations_on_a_symlinkified_name_affect_the_file() {
    let bed = pool("symlinkify=true,symlinkify-timeout=-1,category.create=ff,cache.entry=60", |a, _| {
        for name in ["f", "g", "h"] {
            put(&a.join(name), 0o444);
        }
    });
    fs::rename(bed.at("f"), bed.at("moved")).unwrap();
    assert_eq!(target(&bed.at("moved")), bed.on(0, "moved"));
    fs::hard_link(bed.at("moved"), bed.at("linked")).unwrap();
    assert!(is_link(&bed.at("linked")));
    assert_eq!(fs::symlink_metadata(bed.at("linked")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(bed.on(0, "linked")).unwrap().ino(),
        fs::metadata(bed.on(0, "moved")).unwrap().ino()
    );
    fs::remove_file(bed.at("g")).unwrap();
    assert!(!bed.at("g").exists() && !bed.on(0, "g").exists());
    // chmod(2) follows the link to the branch; the writable file then shows as a file again.
    fs::set_permissions(bed.at("h"), Permissions::from_mode(0o644)).unwrap();
    bed.pool.try_set("cmd.invalidate-all-nodes", "").unwrap();
    assert!(!is_link(&bed.at("h")));
    // A new file without write permission shows as what it was created as until its entry is invalidated.
    for attempt in 0..3 {
        let name = bed.at(&format!("new{attempt}"));
        let made = rustix::fs::open(
            &name,
            rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
            rustix::fs::Mode::RUSR,
        )
        .unwrap();
        assert_eq!(rustix::io::write(&made, b"new").unwrap(), 3);
        drop(made);
        let pipe = bed.at(&format!("pipe{attempt}"));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        bed.pool.try_set("cmd.invalidate-all-nodes", "").unwrap();
        assert_eq!(target(&name), bed.on(0, &format!("new{attempt}")));
        assert_eq!(text(&name), "new");
    }
    bed.pool.umount();
}

#[test]
fn files_become_symlinks_after_the_timeout() {
    let bed = pool("symlinkify=true,cache.entry=0,cache.attr=0", |a, _| {
        put(&a.join("f"), 0o444);
        put(&a.join("later"), 0o444);
        let later = File::open(a.join("later")).unwrap();
        later.set_modified(SystemTime::now() + Duration::from_secs(10_000)).unwrap();
    });
    // The default timeout is an hour.
    assert!(!is_link(&bed.at("f")));
    // Both mtime and ctime must be older than the timeout.
    set(&bed, "symlinkify-timeout", "0");
    assert!(wait_until(PATIENCE, || is_link(&bed.at("f"))));
    assert!(!is_link(&bed.at("later")));
    let file = File::open(bed.on(0, "later")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(10_000)).unwrap();
    set(&bed, "symlinkify-timeout", "5000");
    assert!(!is_link(&bed.at("later")), "its ctime is too recent");
    set(&bed, "symlinkify-timeout", "0");
    assert!(wait_until(PATIENCE, || is_link(&bed.at("later"))));
    bed.pool.umount();
}
