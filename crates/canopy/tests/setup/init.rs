//! `canopy init`.

use super::{assert_plain, at_terminal, bed};
use canopy_testkit::LoopFs;
use canopy_testkit::cmd::run_within;
use std::fs;
use std::process::Stdio;

#[test]
fn a_script_describes_a_pool_and_mounts_it() {
    let bed = bed(&["a", "b"]);
    let text = bed.stdout("init media -b @a -b @b -m @pool --way most-free --yes");
    assert_plain(&text);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for needle in [
        "To be written",
        "media.toml:",
        "the directory",
        "canopy mount media",
        "on the system disk",
        "free space counts twice",
    ] {
        // Where the names of directories are long, a line ends within a phrase.
        assert!(words.contains(needle), "no {needle} in {text}");
    }
    let file = fs::read_to_string(bed.path("etc/media.toml")).unwrap();
    assert!(file.contains("\"category.create\" = \"mfs\""), "{file}");
    // Every line was shown.
    assert!(file.lines().all(|line| text.contains(&bed.shorten(line))), "{text}\n{file}");
    bed.ok("mount media -o minfreespace=0");
    fs::write(bed.path("pool/film"), "data").unwrap();
    assert!(bed.path("a/film").exists() || bed.path("b/film").exists());
    bed.umount("media");
    // A disk that is dead keeps the others from nothing.
    fs::rename(bed.path("b"), bed.path("away")).unwrap();
    bed.ok("mount media");
    bed.umount("media");
    // A second time would replace it.
    let error = bed.error("init media -b @a -m @pool --yes");
    assert!(error.contains("exists already") && error.lines().count() == 1, "{error}");
    assert_eq!(fs::read_to_string(bed.path("etc/media.toml")).unwrap(), file);
}

#[test]
fn a_line_of_fstab_is_appended_and_the_rest_kept() {
    let bed = bed(&[]);
    let disks = [LoopFs::ext4(32 << 20), LoopFs::ext4(32 << 20)];
    let [a, b] = [disks[0].path().display(), disks[1].path().display()];
    let text =
        bed.stdout(&format!("init media -b {a} -b {b} -m @pool --boot fstab --fstab-file @fstab --yes"));
    let fstab = fs::read_to_string(bed.path("fstab")).unwrap();
    let (before, line) = fstab.trim_end().rsplit_once('\n').unwrap();
    let (before, comment) = before.rsplit_once('\n').unwrap();
    assert_eq!(before, "# mine\n/dev/sda1 / ext4 defaults 0 1");
    assert!(comment.starts_with("# Canopy pool media"), "{comment}");
    let (file, pool) = (bed.path("etc/media.toml"), bed.path("pool"));
    let waits = "x-systemd.after=";
    let mut paths = [a.to_string(), b.to_string()];
    paths.sort();
    let expected = format!(
        "{} {} canopy nofail,{waits}{},{waits}{} 0 0",
        file.display(),
        pool.display(),
        paths[0],
        paths[1]
    );
    assert_eq!(line, expected);
    assert!(text.contains(&bed.shorten(line)), "{text}");
    let [copy] = &kept(&bed)[..] else { panic!("{:?}", kept(&bed)) };
    assert_eq!(fs::read_to_string(copy).unwrap(), before);
    // The file of the second pool is not written either, since its place is taken.
    let error = bed.error(&format!("init other -b {a} -m @pool --boot fstab --fstab-file @fstab --yes"));
    assert!(error.contains("at @pool (--mountpoint"), "{error}");
    assert!(!bed.path("etc/other.toml").exists());
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), fstab);
    // Its lines go, and what was edited later stays.
    let later = "/dev/sdz1 /mnt/new ext4 nofail 0 2\n";
    bed.write("fstab", &format!("{fstab}{later}"));
    bed.stdout("init media --undo --fstab-file @fstab --yes");
    assert_eq!(fs::read_to_string(bed.path("fstab")).unwrap(), format!("{before}\n{later}"));
    assert!(!bed.path("etc/media.toml").exists() && !bed.path("pool").exists());
    assert_eq!(kept(&bed).len(), 2, "every version is kept");
    let error = bed.error("init media --undo --fstab-file @fstab --yes");
    assert!(error.contains("nothing to take back"), "{error}");
}

/// Returns the copies of fstab.
fn kept(bed: &canopy_testkit::CliBed) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(bed.dir()).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("fstab.canopy-")).collect()
}

#[test]
fn a_disk_that_is_not_mounted_is_waited_for() {
    let bed = bed(&["a", "b c"]);
    let disk = bed.path("b c").display().to_string();
    bed.write("fstab", &format!("LABEL=two {} ext4 nofail 0 2\n", disk.replace(' ', "\\040")));
    let mut command = bed.command("init media --fstab-file @fstab --unit-dir @units -b @a -m @pool --yes");
    let done = run_within(command.arg("-b").arg(&disk), super::PATIENCE);
    let words: Vec<_> = done.stdout.split_whitespace().collect();
    let warned = words.join(" ").contains("is in fstab but not mounted");
    assert!(done.success() && warned, "{}", done.describe());
    // By a line of fstab, as Enter would choose.
    let fstab = fs::read_to_string(bed.path("fstab")).unwrap();
    let line = fstab.lines().last().unwrap();
    assert!(line.ends_with(&format!(",x-systemd.after={} 0 0", disk.replace(' ', "\\040"))), "{line}");
    assert!(!line.contains("requires"), "{line}");
    // By a unit, too.
    let mut command =
        bed.command("init other --fstab-file @fstab --unit-dir @units --boot unit -m @other --yes");
    let done = run_within(command.arg("-b").arg(&disk), super::PATIENCE);
    assert!(done.success() && done.stdout.contains("enable --now canopy@other"), "{}", done.describe());
    let drop_in = fs::read_to_string(bed.path("units/canopy@other.service.d/disks.conf")).unwrap();
    let after = drop_in.lines().find_map(|line| line.strip_prefix("After=")).unwrap();
    assert!(after.ends_with("-b\\x20c.mount"), "{drop_in}");
    bed.stdout("init other --undo --fstab-file @fstab --unit-dir @units --yes");
    assert!(!bed.path("units/canopy@other.service.d/disks.conf").exists());
}

#[test]
fn small_disks_take_files_and_files_of_all_disks_can_be_renamed() {
    let bed = bed(&[]);
    let disks = [LoopFs::ext4(32 << 20), LoopFs::ext4(48 << 20)];
    let [a, b] = [disks[0].path(), disks[1].path()];
    for (disk, dir) in [(a, "films"), (b, "other")] {
        fs::create_dir(disk.join(dir)).unwrap();
        fs::write(disk.join(dir).join("file"), "data").unwrap();
    }
    let line = format!("init media -b {} -b {} -m @pool --way together --yes", a.display(), b.display());
    let text = bed.stdout(&line);
    assert!(!text.contains("minfreespace)"), "{text}");
    bed.ok("mount media");
    fs::create_dir_all(bed.path("pool/.Trash-1000/files")).unwrap();
    for dir in ["films", "other"] {
        fs::rename(bed.path("pool").join(dir).join("file"), bed.path("pool/.Trash-1000/files").join(dir))
            .unwrap();
    }
    bed.umount("media");
}

#[test]
fn nothing_is_written_without_a_yes() {
    let bed = bed(&["a", "b", "taken"]);
    let mut command = bed.command("init media -b @a -b @b -m @pool --boot fstab --fstab-file @fstab");
    let done = run_within(command.stdin(Stdio::null()), super::PATIENCE);
    assert!(done.code() == Some(3) && done.stdout.contains("To be written"), "{}", done.describe());
    assert!(
        done.stderr.contains("nothing was written, because nobody said yes (--yes writes it without asking)"),
        "{}",
        done.describe()
    );
    let line = "init media -b @a -m @pool --way fill --boot fstab --fstab-file @fstab";
    let typed: [&[(&str, &str)]; 3] = [&[("[y/N]", "n\n")], &[("[y/N]", "\n")], &[]];
    for answers in typed {
        let (status, shown) = at_terminal(&bed, line, answers, &[]);
        // Without an answer, the input has ended.
        let expected = if answers.is_empty() { 1 } else { 3 };
        assert!(status == Some(expected) && shown.contains("nothing was written"), "{answers:?}: {shown}");
    }
    assert_eq!(fs::read_dir(bed.path("etc")).unwrap().count(), 0);
    assert!(!bed.path("pool").exists() && kept(&bed).is_empty());
    bed.write("taken/file", "data");
    for (line, needle) in [
        ("init a/b -b @a --yes", "name of a pool"),
        ("init a%b -b @a --yes", "name of a pool"),
        ("init media -b @a -b @b/../a -m @pool --yes", "@a is given twice"),
        ("init media -b @a -b @ -m @pool --yes", "@a is inside the branch"),
        ("init media -b @a -m @taken --yes", "@taken has files"),
        ("init media -b @a -m @taken/file --yes", "is not a directory"),
        ("init media -b @a -m /proc --yes", "a filesystem is mounted at /proc"),
        ("init media -b @none --yes", "@none cannot be used"),
        ("init media -b @a -m @a/pool --yes", "lies in the branch"),
        ("init media -b @a -m pool --yes", "absolute"),
        ("init media -b @a --way up --yes", "spread"),
        ("init media -b @a -m @pool --boot fstab --fstab-file @none --yes", "cannot be read"),
    ] {
        // Warnings may have been printed before.
        let done = bed.run(line);
        let error = bed.shorten(done.stderr.trim_end());
        assert!(matches!(done.code(), Some(1 | 2)) && error.contains(needle), "{line}: {}", done.describe());
        assert_eq!(error.lines().count(), 1, "{line}: {error}");
    }
    assert_eq!(fs::read_dir(bed.path("etc")).unwrap().count(), 0);
}

#[test]
fn somebody_at_a_terminal_is_asked() {
    let bed = bed(&["a", "b"]);
    let [a, b, pool] = ["a", "b", "pool"].map(|name| bed.path(name).display().to_string());
    let both = format!("{a} {b}\n");
    let (wrong, place) = (format!("{a} /no/such\n"), format!("{pool}\n"));
    // A branch that does not exist and a number that is none are asked for again.
    let answers = [
        ("Branches, separated by blanks", wrong.as_str()),
        ("Branches, separated by blanks", &both),
        ("Where should the pool appear?", &place),
        ("Number [1]:", "7\n"),
        ("Number [1]:", "fill\n"),
        ("Number [1]:", "3\n"),
        ("[y/N]", "y\n"),
    ];
    let (status, shown) = at_terminal(&bed, "init media --fstab-file @fstab", &answers, &[]);
    assert_eq!(status, Some(0), "{shown}");
    for needle in ["/no/such cannot be used", "1 to 4, please", "Where should a new file go?", "\x1b[1m"] {
        assert!(shown.contains(needle), "no {needle} in {shown}");
    }
    let file = fs::read_to_string(bed.path("etc/media.toml")).unwrap();
    assert!(
        file.contains("\"category.create\" = \"ff\"") && file.contains(&format!("mountpoint = \"{pool}\"")),
        "{file}"
    );
    assert!(bed.path("pool").is_dir());
}

#[test]
fn a_terminal_without_colours_gets_none() {
    let bed = bed(&["a"]);
    let line = "init media -b @a -m @pool --way fill --boot nothing";
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let (_, shown) = at_terminal(&bed, line, &[("[y/N]", "n\n")], &[variable]);
        assert!(shown.contains("To be written") && !shown.contains('\x1b'), "{variable:?}: {shown}");
    }
}
