//! `canopy migrate`.

use super::{assert_plain, bed};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn fstab_is_written_beside_and_can_be_taken_back() {
    let bed = bed(&["a", "b", "pool"]);
    bed.write("pool.ini", "# options\ncategory.create = mfs\nminfreespace=0\nuse_ino\n");
    let [a, b, pool, ini] = ["a", "b", "pool", "pool.ini"].map(|name| bed.path(name).display().to_string());
    let old = format!(
        "# mine\n/dev/sda1 / ext4 defaults 0 1\n{a}:{b} {pool} fuse.mergerfs config={ini},nofail,frob 0 0\n"
    );
    bed.write("fstab", &old);
    fs::set_permissions(bed.path("fstab"), fs::Permissions::from_mode(0o640)).unwrap();
    let shown = bed.stdout("migrate @fstab");
    assert_plain(&shown);
    for needle in [
        "frob is left out",
        "use_ino is left out",
        "allow-missing-branches=true is added",
        "better:",
        "Nothing was written",
    ] {
        assert!(shown.contains(needle), "no {needle} in {shown}");
    }
    assert!(!bed.path("fstab.canopy").exists() && !bed.path("pool.toml").exists());
    bed.stdout("migrate @fstab --write");
    let new = fs::read_to_string(bed.path("fstab.canopy")).unwrap();
    assert!(new.starts_with("# mine\n/dev/sda1 / ext4 defaults 0 1\n"), "{new}");
    assert_eq!(fs::metadata(bed.path("fstab.canopy")).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), old, "the old file was changed");
    // What was written mounts.
    let line = new.lines().last().unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    bed.ok(&format!("mount -o {} {} {}", fields[3].replace("nofail,", ""), fields[0], fields[1]));
    assert_eq!(bed.stdout("get @pool category.create"), "mfs");
    bed.umount("@pool");

    bed.stdout("migrate @fstab --switch");
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), new);
    assert_eq!(fs::read_to_string(bed.path("fstab.before-canopy")).unwrap(), old);
    assert_eq!(bed.stdout("migrate @fstab"), "nothing here mounts with mergerfs");
    bed.stdout("migrate @fstab --undo");
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), old);
    assert!(!bed.path("fstab.before-canopy").exists());
    // And there again, without losing anything.
    bed.stdout("migrate @fstab --switch");
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), new);
}

#[test]
fn units_are_written_beside() {
    let bed = bed(&[]);
    let service =
        "[Service]\nType=forking\nExecStart=/usr/bin/mergerfs -o category.create=ff /mnt/a:/mnt/b /mnt/p\n";
    bed.write("pool.service", service);
    bed.write("other.service", "[Service]\nExecStart=/bin/true\n");
    bed.stdout("migrate @pool.service @other.service --write");
    let new = fs::read_to_string(bed.path("pool.service.canopy")).unwrap();
    assert!(new.contains("ExecStart=/usr/bin/canopy mount -o category.create=ff,allow-missing-branches=true /mnt/a:/mnt/b /mnt/p\n"), "{new}");
    assert!(!bed.path("other.service.canopy").exists());
}

#[test]
fn what_cannot_be_done_is_said_in_a_line() {
    let bed = bed(&[]);
    bed.write("pool.ini", "fsname=a\n");
    bed.write("pool.toml", "fsname = \"mine\"\n");
    for (line, needle) in [
        ("migrate @none", "cannot be read"),
        ("migrate @fstab --switch", "--write writes new files first"),
        ("migrate @fstab --undo", "nothing was switched"),
        ("migrate --switch --undo", "--undo"),
    ] {
        let error = bed.error(line);
        assert!(error.contains(needle) && error.lines().count() == 1, "{line}: {error}");
    }
    // A file that somebody else wrote is kept.
    let done = bed.run("migrate @pool.ini --write");
    assert!(done.code() == Some(1) && done.stderr.contains("exists already"), "{}", done.describe());
    assert_eq!(fs::read_to_string(bed.path("pool.toml")).unwrap(), "fsname = \"mine\"\n");
}
