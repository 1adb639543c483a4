//! `link-exdev` and `rename-exdev`.

use super::rig::{pool, set, target};
use canopy_testkit::PoolBed;
use canopy_testkit::files::text;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};

const HELD: &str = ".mergerfs_rename_exdev";

/// Mounts a pool with the directory `x` on the first branch only and `y` on the second only.
fn separate_directories(options: &str) -> PoolBed {
    pool(&format!("category.create=epff,{options}"), |a, b| {
        fs::create_dir(a.join("x")).unwrap();
        fs::create_dir(b.join("y")).unwrap();
        for name in ["x/f", "x/g", "x/h", "top"] {
            fs::write(a.join(name), name).unwrap();
        }
    })
}

fn exdev(result: std::io::Result<()>) -> bool {
    result.is_err_and(|error| error.kind() == std::io::ErrorKind::CrossesDevices)
}

#[test]
fn link_exdev_modes_apply_at_runtime() {
    let bed = separate_directories("");
    let link = |name: &str| fs::hard_link(bed.at("x/f"), bed.at(&format!("y/{name}")));
    assert!(exdev(link("none")));
    for (how, name, expected) in [
        ("rel-symlink", "rel", PathBuf::from("../x/f")),
        ("abs-base-symlink", "base", bed.on(0, "x/f")),
        ("abs-pool-symlink", "pool", bed.at("x/f")),
    ] {
        set(&bed, "link-exdev", how);
        link(name).unwrap();
        let new = bed.at(&format!("y/{name}"));
        // The symlink shows at once because the pool invalidates the kernel's entry.
        assert_eq!(fs::read_link(&new).unwrap(), expected, "{how}");
        assert_eq!(text(&new), "x/f", "{how}");
        assert_eq!(fs::metadata(bed.at("x/f")).unwrap().nlink(), 1);
        assert_eq!(link(name).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    }
    set(&bed, "link-exdev", "passthrough");
    assert!(exdev(link("again")));
    bed.pool.umount();
}

#[test]
fn rename_exdev_modes_apply_at_runtime() {
    let bed = separate_directories("");
    let rename = |old: &str, new: &str| fs::rename(bed.at(old), bed.at(new));
    assert!(exdev(rename("x/f", "y/f")));
    for (how, old, new, prefix) in [
        ("rel-symlink", "x/f", "y/f", PathBuf::from("..")),
        ("rel-symlink", "top", "y/top", PathBuf::from("..")),
        ("abs-symlink", "x/g", "y/g", bed.pool.path().to_owned()),
    ] {
        set(&bed, "rename-exdev", how);
        let mut open = File::options().read(true).write(true).open(bed.at(old)).unwrap();
        rename(old, new).unwrap();
        assert!(!bed.at(old).exists(), "{old}");
        assert_eq!(target(&bed.at(new)), prefix.join(HELD).join(old));
        assert_eq!(text(bed.at(new)), old);
        assert_eq!(text(bed.on(0, HELD).join(old)), old);
        // A descriptor that was open before the rename still leads to the file.
        let mut content = String::new();
        open.read_to_string(&mut content).unwrap();
        assert_eq!(content, old);
        open.rewind().unwrap();
        open.write_all(b"NEW").unwrap();
        assert_eq!(open.metadata().unwrap().ino(), fs::metadata(bed.at(new)).unwrap().ino());
        drop(open);
        assert!(text(bed.at(new)).starts_with("NEW"));
    }
    assert_eq!(fs::metadata(bed.at(HELD)).unwrap().permissions().mode() & 0o7777, 0o1777);
    set(&bed, "rename-exdev", "passthrough");
    assert!(exdev(rename("x/h", "y/h")));
    bed.pool.umount();
}

/// mv(1) works over an existing file and for a whole directory.
#[test]
fn mv_replaces_files_and_moves_directories() {
    let bed = separate_directories("rename-exdev=rel-symlink,cache.entry=60,cache.attr=60");
    fs::write(bed.at("y/f"), "replaced").unwrap();
    let mv = |old: &str, new: &str| {
        let status = std::process::Command::new("mv").arg(bed.at(old)).arg(bed.at(new)).status().unwrap();
        assert!(status.success(), "{old} {new}");
    };
    let mut victim = File::open(bed.at("y/f")).unwrap();
    mv("x/f", "y/f");
    assert_eq!(target(&bed.at("y/f")), Path::new("..").join(HELD).join("x/f"));
    assert_eq!(text(bed.at("y/f")), "x/f");
    let mut content = String::new();
    victim.read_to_string(&mut content).unwrap();
    assert_eq!(content, "replaced");
    drop(victim);
    mv("x", "y/dir");
    assert_eq!(target(&bed.at("y/dir")), Path::new("..").join(HELD).join("x~1"));
    assert_eq!(text(bed.at("y/dir/g")), "x/g");
    assert!(!bed.at("x").exists());
    bed.pool.umount();
}

/// RENAME and LINK requests carry no user and group ids when the mount allows id mapping. The symlink still belongs to
/// the caller.
#[test]
fn the_symlink_belongs_to_the_caller() {
    for idmap in ["true", "false"] {
        let bed = separate_directories(&format!(
            "rename-exdev=rel-symlink,link-exdev=rel-symlink,allow-idmap={idmap}"
        ));
        for dir in [bed.on(0, "x"), bed.on(1, "y")] {
            chown(&dir, Some(6001), Some(7001)).unwrap();
        }
        for name in ["x/f", "x/g"] {
            lchown(bed.on(0, name), Some(6001), Some(7001)).unwrap();
        }
        let as_user = |program: &str, args: &[&str]| {
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid=6001", "--regid=7001", "--clear-groups", program]);
            let status = command.args(args).current_dir(bed.pool.path()).status().unwrap();
            assert!(status.success(), "{program}");
        };
        as_user("mv", &["x/f", "y/f"]);
        as_user("ln", &["x/g", "y/g"]);
        for name in ["y/f", "y/g"] {
            let made = fs::symlink_metadata(bed.on(1, name)).unwrap();
            assert!(made.is_symlink(), "{name}");
            assert_eq!((made.uid(), made.gid()), (6001, 7001), "{name} {idmap}");
        }
        bed.pool.umount();
    }
}
