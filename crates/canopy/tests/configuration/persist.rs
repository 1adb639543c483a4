//! `canopy set --persist`: the running pool and its configuration file both change, or neither does.

use canopy_testkit::cmd::{run_within, spawn, wait_within};
use canopy_testkit::{CliBed, PATIENCE, files};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::Stdio;

/// Makes branches, a mountpoint, and configuration files in `etc`. `@name` in a text is a path of the bed.
fn bed(files: &[(&str, &str)]) -> CliBed {
    let dirs = ["a", "b", "c", "p", "etc"];
    let bed = CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-persist-", &dirs).with_config_dir("etc");
    files.iter().for_each(|(name, text)| bed.write(&format!("etc/{name}"), text));
    bed
}

/// Reads a file of `etc`, with paths shortened to `@name`.
#[track_caller]
fn read(bed: &CliBed, name: &str) -> String {
    bed.shorten(&files::text(bed.path("etc").join(name)))
}

/// Returns the name and text of each file of `etc`.
fn config_files(bed: &CliBed) -> Vec<(String, String)> {
    let names = fs::read_dir(bed.path("etc")).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    let mut files: Vec<_> = names.map(|name| (name.clone(), read(bed, &name))).collect();
    files.sort();
    files
}

/// Runs a command that must fail with one line and change neither the pool nor a file.
#[track_caller]
fn refused(bed: &CliBed, args: &str, needle: &str) {
    let state = || (bed.stdout("get @p"), config_files(bed));
    let before = state();
    let error = bed.error(args);
    assert!(error.contains(needle) && error.lines().count() == 1, "{args}: {error}");
    assert_eq!(state(), before, "{args}");
}

#[track_caller]
fn remount(bed: &CliBed, args: &str) {
    bed.umount("@p");
    bed.ok(args);
}

#[test]
fn a_change_replaces_the_line_of_its_option() {
    let bed = bed(&[("conf", "# mine\nbranches=@a\n  cache.attr = 7\nminfreespace=0\n# the end\n")]);
    // The path of the file is relative to the working directory of the mount command.
    let mount = "mount -o config=etc/conf @p";
    bed.stdout(mount);
    bed.stdout("set --persist @p cache.attr=8");
    bed.stdout("set @p -p func.create=lfs");
    let expected = "# mine\nbranches=@a\n  cache.attr = 8\nminfreespace=0\n# the end\nfunc.create=lfs\n";
    assert_eq!(read(&bed, "conf"), expected);
    assert_eq!(
        (bed.stdout("get @p cache.attr"), bed.stdout("get @p func.create")),
        ("8".into(), "lfs".into())
    );
    // Without --persist the file does not change.
    bed.stdout("set @p cache.attr=9");
    assert_eq!(read(&bed, "conf"), expected);
    remount(&bed, mount);
    assert_eq!(
        (bed.stdout("get @p cache.attr"), bed.stdout("get @p func.create")),
        ("8".into(), "lfs".into())
    );
    bed.umount("@p");
    assert_eq!(config_files(&bed).len(), 1, "{:?}", config_files(&bed));
}

#[test]
fn branch_instructions_are_written_as_the_resulting_list() {
    let text = "branches = [\n  \"@a\", # first\n]\nmountpoint = \"@p\"\nminfreespace = 0\n\n[cache]\nattr = 7 # s\n";
    let bed = bed(&[("persisted.toml", text)]);
    bed.stdout("mount persisted");
    bed.stdout("set --persist persisted branches=+>@b=NC,1K");
    bed.stdout("set --persist persisted branches=+<@c");
    bed.stdout("set --persist persisted cache.attr=8");
    let expected = "@c=RW:@a=RW:@b=NC,1K";
    assert_eq!(bed.stdout("get @p branches"), expected);
    let text = read(&bed, "persisted.toml");
    for line in ["\"@a\", # first", "\"@b=NC,1K\",", "\"@c\",", "mountpoint = \"@p\"", "attr = 8 # s"] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    remount(&bed, "mount persisted");
    assert_eq!(
        (bed.stdout("get @p branches"), bed.stdout("get @p cache.attr")),
        (expected.into(), "8".into())
    );
    bed.stdout("set --persist persisted branches=-@c");
    bed.stdout("set --persist persisted branches=->");
    assert_eq!(
        read(&bed, "persisted.toml").lines().take(3).collect::<Vec<_>>(),
        ["branches = [", "  \"@a\", # first", "]"]
    );
    refused(&bed, "set --persist persisted branches=-<", "no branch would be left");
    bed.umount("@p");
}

#[test]
fn the_file_keeps_its_mode_owner_and_symlink() {
    let bed = bed(&[("real", "branches=@a\ncache.attr=7\n")]);
    let real = bed.path("etc/real");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("etc/real", bed.path("link")).unwrap();
    bed.stdout("mount -o config=link @p");
    // The owner changes after the mount, which would warn about a file that others can change.
    chown(&real, Some(65534), Some(12)).unwrap();
    bed.stdout("set --persist @p cache.attr=8");
    assert_eq!(read(&bed, "real"), "branches=@a\ncache.attr=8\n");
    let meta = fs::metadata(&real).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o640, 65534, 12));
    assert!(fs::symlink_metadata(bed.path("link")).unwrap().is_symlink());
    bed.umount("@p");
}

#[test]
fn a_change_that_the_next_mount_would_not_keep_is_refused() {
    let bed = bed(&[
        ("conf", "branches=@a\ncache.attr=7\nconfig=@etc/more\n"),
        ("more", "cache.entry=3\n"),
        ("other", "cache.attr=5\n"),
    ]);
    bed.stdout("mount -o config=@etc/conf,func.create=ff,cache.negative-entry=2 @p");
    for (pair, needle) in [
        ("func.create=lfs", "func.create in"),
        ("category.create=lfs", "category.create in"),
        ("cache.negative-entry=3", "would have no effect"),
        ("posix-acl=true", "cannot be changed while the pool runs"),
        ("cache.atr=1", "did you mean 'cache.attr'?"),
        ("cache.attr=x", "'x' is not valid"),
        ("version=1", "describes the pool"),
        ("cmd.gc=", "cannot be kept in a config file"),
        ("config=@etc/other", "cannot be kept in a config file"),
        ("branches=@none", "@none does not exist"),
        ("branches=@p", "is the mountpoint itself"),
        ("branches=", "no branch would be left"),
    ] {
        refused(&bed, &format!("set --yes --persist @p {pair}"), needle);
    }
    // `more` sets cache.entry, so the new line goes after the line that includes it.
    bed.stdout("set --persist @p cache.entry=4");
    assert_eq!(read(&bed, "conf"), "branches=@a\ncache.attr=7\nconfig=@etc/more\ncache.entry=4\n");
    // The pool has read another file since, which the next mount would not read.
    bed.stdout("set @p config=@etc/other");
    refused(&bed, "set --persist @p cache.attr=6", "names another file or none");
    bed.umount("@p");
    bed.stdout("mount @a @p");
    refused(&bed, "set --persist @p cache.attr=6", "was not mounted from a config file");
    bed.umount("@p");
}

#[test]
fn a_change_that_the_pool_refuses_is_not_written() {
    let bed = bed(&[("conf", "branches=@a\ncache.writeback=true\npassthrough.io=off\n")]);
    bed.stdout("mount -o config=@etc/conf @p");
    // The value is valid, but not together with this pool's other options.
    refused(&bed, "set --persist @p passthrough.io=rw", "passthrough.io");
    fs::write(bed.path("etc/conf"), "branches=@a\nfrob\n").unwrap();
    refused(&bed, "set --persist @p cache.attr=3", "etc/conf:2: unknown option 'frob'");
    bed.umount("@p");
}

#[test]
fn a_failed_write_leaves_the_pool_unchanged() {
    let bed = bed(&[("conf", "branches=@a\ncategory.create=mfs\nfunc.mkdir=ff\n")]);
    bed.stdout("mount -o config=@etc/conf @p");
    // The new file cannot be created.
    let etc = bed.path("etc");
    mount_bind(&etc, &etc).unwrap();
    mount_remount(&etc, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    refused(&bed, "set --persist @p cache.attr=3", "Read-only file system");
    unmount(&etc, UnmountFlags::DETACH).unwrap();
    // The new file is written but cannot replace the old one: rename(2) onto a mountpoint fails. By then the pool has
    // changed. The change is undone, for a category in each of its functions.
    let conf = bed.path("etc/conf");
    mount_bind(&conf, &conf).unwrap();
    refused(&bed, "set --persist @p cache.attr=3", "cannot be written");
    refused(&bed, "set --persist @p branches=+@b", "cannot be written");
    unmount(&conf, UnmountFlags::DETACH).unwrap();
    fs::write(&conf, "branches=@a\nfunc.mkdir=ff\ncategory.create=mfs\n").unwrap();
    mount_bind(&conf, &conf).unwrap();
    refused(&bed, "set --persist @p category.create=lus", "cannot be written");
    unmount(&conf, UnmountFlags::DETACH).unwrap();
    bed.stdout("set --persist @p category.create=lus");
    assert_eq!(bed.stdout("get @p category.create"), "lus");
    bed.umount("@p");
}

#[test]
fn concurrent_changes_are_all_written() {
    let bed = bed(&[("conf", "branches=@a\n")]);
    bed.stdout("mount -o config=@etc/conf @p");
    let pairs = [
        "cache.attr=3",
        "cache.entry=4",
        "func.create=lfs",
        "func.open=newest",
        "minfreespace=1K",
        "statfs=full",
    ];
    let mut children: Vec<_> = pairs
        .iter()
        .map(|pair| {
            let mut command = bed.command(&format!("set --persist @p {pair}"));
            spawn(command.stdout(Stdio::null()).stderr(Stdio::null())).unwrap()
        })
        .collect();
    for (child, pair) in children.iter_mut().zip(pairs) {
        assert!(wait_within(child, PATIENCE).is_some_and(|status| status.success()), "{pair}");
    }
    let text = read(&bed, "conf");
    assert!(pairs.iter().all(|pair| text.contains(&format!("{pair}\n"))), "{text}");
    assert_eq!(config_files(&bed).len(), 1);
    bed.umount("@p");
}

/// `canopy add`, `remove`, `replace` and `mode` change pool and file, show what changes, and ask before files vanish.
#[test]
fn branches_are_changed_by_commands_of_their_own() {
    let bed = bed(&[("media.toml", "branches = ['@a', '@b']\nmountpoint = '@p'\nminfreespace = '0'\n")]);
    fs::write(bed.path("a/film"), "x").unwrap();
    let run = |args: &str| run_within(&mut bed.command(args), PATIENCE);
    let file = || read(&bed, "media.toml").lines().next().unwrap_or_default().to_owned();
    let branches = || bed.shorten(run("get media branches").stdout.trim()).replace('@', "");
    assert!(run("mount media").success());

    let refused = run("set media branches=@c");
    assert!(!refused.success() && refused.stderr.contains("canopy add"), "{}", refused.describe());
    assert_eq!(branches(), "a=RW:b=RW");
    assert!(run("set media branches=@a:@b:@c --yes").success());
    assert!(run("remove media @c").success(), "Nothing is lost, so it does not ask");
    assert_eq!(branches(), "a=RW:b=RW");

    let added = run("add media @c --mode ro --first");
    assert!(added.success() && added.stdout.contains("/c=RO (first)\n"), "{}", added.describe());
    assert_eq!(branches(), "c=RO:a=RW:b=RW");
    assert!(file().contains("c=RO"), "{}", file());
    assert!(run("mode media @c NC --no-persist").success());
    assert_eq!(branches(), "c=NC:a=RW:b=RW");
    assert!(file().contains("c=RO"), "{}", file());
    assert!(run("remove media @c").success());

    for args in ["remove media @a", "replace media @a @c"] {
        let asked = run(args);
        assert!(!asked.success() && asked.stderr.contains("--yes"), "{}", asked.describe());
        assert!(
            asked.stdout.contains("1 file") && asked.stdout.contains("canopy drain"),
            "{}",
            asked.describe()
        );
        assert!(run(&format!("{args} --dry-run")).success());
        assert_eq!(branches(), "a=RW:b=RW");
    }
    assert!(run("replace media @a @c --yes").success());
    assert_eq!(branches(), "c=RW:b=RW");
    for (args, needle) in [
        ("remove media @a", "is not a branch of"),
        ("remove media @b @c", "no branch"),
        ("add media @none", "does not exist"),
        ("add media @none --dry-run", "does not exist"),
        ("add media @etc/media.toml", "is not a directory"),
        ("add media @p/in", "lies inside"),
        ("replace media @b @none", "does not exist"),
        ("add media @b", "canopy mode"),
        ("mode media @b XX", "canopy mode --help"),
    ] {
        let done = run(args);
        assert!(!done.success() && done.stderr.contains(needle), "{}", done.describe());
        assert_eq!(done.stdout, "", "No change is shown that cannot be made");
    }
    assert_eq!(branches(), "c=RW:b=RW");
    bed.umount("@p");
}
