//! `canopy migrate`.

use super::{assert_plain, at_terminal, bed};
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
    let done = bed.run("migrate @fstab");
    assert_eq!(done.code(), Some(3), "{}", done.describe());
    let shown = bed.stdout("migrate @fstab --dry-run");
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
    assert_eq!(fs::metadata(bed.path("fstab")).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(bed.stdout("migrate @fstab"), "no mergerfs mount found");
    // A line that is added later stays, there and back.
    let later = "/dev/sdz1 /mnt/new ext4 nofail 0 2\n";
    bed.write("fstab", &format!("{new}{later}"));
    bed.stdout("migrate @fstab --undo");
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), format!("{old}{later}"));
    bed.stdout("migrate @fstab --switch");
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), format!("{new}{later}"));
    bed.stdout("migrate @fstab --undo");
    // The last line may lack its end.
    bed.write("bare-fstab", old.trim_end());
    bed.stdout("migrate @bare-fstab --write");
    bed.stdout("migrate @bare-fstab --switch");
    bed.stdout("migrate @bare-fstab --undo");
    assert_eq!(fs::read_to_string(bed.path("bare-fstab")).unwrap(), old);
    // A new form that does not know of a line is not put in place.
    bed.stdout("migrate @fstab --write");
    bed.write("fstab", &format!("{old}{later}{later}"));
    let error = bed.error("migrate @fstab --switch");
    assert!(error.contains("was changed later"), "{error}");
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), format!("{old}{later}{later}"));
    // Each change has kept what was there.
    let names = fs::read_dir(bed.dir()).unwrap().map(|entry| entry.unwrap().file_name());
    let kept = names.filter(|name| name.to_string_lossy().starts_with("fstab.canopy-")).count();
    assert_eq!(kept, 4);
}

/// In one step: with `--yes`, or at a terminal after a question.
#[test]
fn a_yes_changes_the_files_themselves() {
    let bed = bed(&["a", "pool"]);
    bed.write("pool.ini", "minfreespace=0\n");
    let [a, pool, ini] = ["a", "pool", "pool.ini"].map(|name| bed.path(name).display().to_string());
    let old = format!("# mine\n{a} {pool} fuse.mergerfs config={ini} 0 0\n");
    bed.write("fstab", &old);
    let report = bed.run("migrate @fstab --json");
    let json: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(json["files"].as_array().unwrap().len(), 2, "{}", report.describe());
    let text = || fs::read_to_string(bed.path("fstab")).unwrap();
    let (status, shown) = at_terminal(&bed, "migrate @fstab", &[("[y/N]", "n\n")], &[]);
    assert!(status == Some(3) && text() == old, "{status:?} {shown}");
    let (status, shown) = at_terminal(&bed, "migrate @fstab", &[("[y/N]", "y\n")], &[]);
    assert!(status == Some(0) && text().contains(" canopy config="), "{status:?} {shown}");
    assert!(!bed.path("fstab.canopy").exists() && bed.path("pool.toml").exists());
    bed.stdout("migrate @fstab --undo");
    assert_eq!(text(), old);
    bed.stdout("migrate @fstab --yes");
    assert!(text().contains(" canopy config="));
    bed.stdout("migrate @fstab --undo");
    assert_eq!(text(), old);
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
    let line = "mount -o category.create=ff,allow-missing-branches=true /mnt/a:/mnt/b /mnt/p";
    assert!(new.contains(&format!("\nExecStart={} {line}\n", bed.program().display())), "{new}");
    // A script is told of and left.
    bed.write("shell.service", "[Service]\nExecStart=/bin/sh -c \"mergerfs /mnt/a /mnt/p\"\n");
    let done = bed.run("migrate @shell.service --write");
    assert!(done.code() == Some(1) && done.stdout.contains("inside a script"), "{}", done.describe());
    assert!(!bed.path("shell.service.canopy").exists());
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
