//! `canopy set --persist`: the running pool and the file it was mounted by change both, or neither. Real mounts, so
//! root is needed.

use canopy_testkit::ScratchDir;
use canopy_testkit::cmd::{Finished, run_unless_busy, spawn, wait_within};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// Branches, a mountpoint, and config files in `etc`; `@` in a file stands for the scratch directory.
struct Bed(ScratchDir);

impl std::ops::Deref for Bed {
    type Target = ScratchDir;
    fn deref(&self) -> &ScratchDir {
        &self.0
    }
}

impl Bed {
    fn new(files: &[(&str, &str)]) -> Bed {
        let bed = Bed(ScratchDir::new("canopy-persist-", &["a", "b", "c", "p", "etc"]));
        for (name, text) in files {
            fs::write(bed.path("etc").join(name), text.replace('@', bed.path("").to_str().unwrap())).unwrap();
        }
        bed
    }

    /// A file of `etc`, with `@` for the scratch directory.
    fn read(&self, name: &str) -> String {
        let text = fs::read_to_string(self.path("etc").join(name)).unwrap();
        text.replace(self.path("").to_str().unwrap(), "@")
    }

    fn command(&self, args: &str) -> Command {
        let binary = canopy_testkit::program_under_test(env!("CARGO_BIN_EXE_canopy"));
        let mut command = Command::new(binary);
        command.args(self.words(args)).current_dir(self.dir()).env("CANOPY_CONFIG_DIR", self.path("etc"));
        command
    }

    fn canopy(&self, args: &str) -> Finished {
        run_unless_busy(&mut self.command(args), SOON)
    }

    #[track_caller]
    fn ok(&self, args: &str) -> String {
        let done = self.canopy(args);
        assert!(done.success() && done.stderr.is_empty(), "canopy {args}: {}", done.describe());
        done.stdout.trim_end().replace(self.path("").to_str().unwrap(), "@")
    }

    /// Runs what must fail and change nothing, neither here nor there.
    #[track_caller]
    fn refused(&self, args: &str, needle: &str) {
        let state = || (self.ok("get @p"), self.files());
        let before = state();
        let done = self.canopy(args);
        assert!(done.code() == Some(1) && done.stdout.is_empty(), "{args}: {}", done.describe());
        assert!(
            done.stderr.contains(needle) && done.stderr.lines().count() == 1,
            "{args}: {}",
            done.describe()
        );
        assert_eq!(state(), before, "{args}");
    }

    fn files(&self) -> Vec<(String, String)> {
        let names = fs::read_dir(self.path("etc")).unwrap().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        let mut files: Vec<_> = names.map(|name| (name.clone(), self.read(&name))).collect();
        files.sort();
        files
    }

    #[track_caller]
    fn remount(&self, args: &str) {
        self.ok("umount @p");
        self.ok(args);
    }
}

#[test]
fn a_change_is_written_where_it_stands() {
    let bed = Bed::new(&[("conf", "# mine\nbranches=@a\n  cache.attr = 7\nminfreespace=0\n# the end\n")]);
    // The file is named from where the mount is started.
    let mount = "mount -o config=etc/conf @p";
    bed.ok(mount);
    bed.ok("set --persist @p cache.attr=8");
    bed.ok("set @p -p func.create=lfs");
    let expected = "# mine\nbranches=@a\n  cache.attr = 8\nminfreespace=0\n# the end\nfunc.create=lfs\n";
    assert_eq!(bed.read("conf"), expected);
    assert_eq!((bed.ok("get @p cache.attr"), bed.ok("get @p func.create")), ("8".into(), "lfs".into()));
    // Without it the file stays as it is.
    bed.ok("set @p cache.attr=9");
    assert_eq!(bed.read("conf"), expected);
    bed.remount(mount);
    assert_eq!((bed.ok("get @p cache.attr"), bed.ok("get @p func.create")), ("8".into(), "lfs".into()));
    bed.ok("umount @p");
    assert_eq!(bed.files().len(), 1, "{:?}", bed.files());
}

#[test]
fn branches_are_written_as_the_list_they_become() {
    let text = "branches = [\n  \"@a\", # first\n]\nmountpoint = \"@p\"\nminfreespace = 0\n\n[cache]\nattr = 7 # s\n";
    let bed = Bed::new(&[("persisted.toml", text)]);
    bed.ok("mount persisted");
    bed.ok("set --persist persisted branches=+>@b=NC,1K");
    bed.ok("set --persist persisted branches=+<@c");
    bed.ok("set --persist persisted cache.attr=8");
    let expected = "@c=RW:@a=RW:@b=NC,1K";
    assert_eq!(bed.ok("get @p branches"), expected);
    let text = bed.read("persisted.toml");
    for line in ["\"@a\", # first", "\"@b=NC,1K\",", "\"@c\",", "mountpoint = \"@p\"", "attr = 8 # s"] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    bed.remount("mount persisted");
    assert_eq!((bed.ok("get @p branches"), bed.ok("get @p cache.attr")), (expected.into(), "8".into()));
    bed.ok("set --persist persisted branches=-@c");
    bed.ok("set --persist persisted branches=->");
    assert_eq!(
        bed.read("persisted.toml").lines().take(3).collect::<Vec<_>>(),
        ["branches = [", "  \"@a\", # first", "]"]
    );
    bed.refused("set --persist persisted branches=-<", "no branch would be left");
    bed.ok("umount @p");
}

#[test]
fn the_file_stays_what_it_is() {
    let bed = Bed::new(&[("real", "branches=@a\ncache.attr=7\n")]);
    let real = bed.path("etc/real");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("etc/real", bed.path("link")).unwrap();
    bed.ok("mount -o config=link @p");
    // Whose file others may change is told when it is mounted.
    chown(&real, Some(65534), Some(12)).unwrap();
    bed.ok("set --persist @p cache.attr=8");
    assert_eq!(bed.read("real"), "branches=@a\ncache.attr=8\n");
    let meta = fs::metadata(&real).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o640, 65534, 12));
    assert!(fs::symlink_metadata(bed.path("link")).unwrap().is_symlink());
    bed.ok("umount @p");
}

#[test]
fn what_would_not_hold_is_refused() {
    let bed = Bed::new(&[
        ("conf", "branches=@a\ncache.attr=7\nconfig=@etc/more\n"),
        ("more", "cache.entry=3\n"),
        ("other", "cache.attr=5\n"),
    ]);
    bed.ok("mount -o config=@etc/conf,func.create=ff,cache.negative-entry=2 @p");
    for (pair, needle) in [
        ("func.create=lfs", "func.create in"),
        ("category.create=lfs", "category.create in"),
        ("cache.negative-entry=3", "would not hold"),
        ("posix-acl=true", "cannot be changed while the pool runs"),
        ("cache.atr=1", "did you mean 'cache.attr'?"),
        ("cache.attr=x", "'x' is not valid"),
        ("version=1", "tells about the pool"),
        ("cmd.gc=", "no option that a file could keep"),
        ("config=@etc/other", "no option that a file could keep"),
        ("branches=@none", "/none does not exist"),
        ("branches=@p", "is the mountpoint itself"),
        ("branches=", "no branch would be left"),
    ] {
        bed.refused(&format!("set --persist @p {pair}"), needle);
    }
    // What another file says after it is outdone by a line behind it.
    bed.ok("set --persist @p cache.entry=4");
    assert_eq!(bed.read("conf"), "branches=@a\ncache.attr=7\nconfig=@etc/more\ncache.entry=4\n");
    // Once the pool has read another file, the next mount would not.
    bed.ok("set @p config=@etc/other");
    bed.refused("set --persist @p cache.attr=6", "names another or none");
    bed.ok("umount @p");
    bed.ok("mount @a @p");
    bed.refused("set --persist @p cache.attr=6", "was mounted by no config file");
    bed.ok("umount @p");
}

#[test]
fn a_pool_that_refuses_leaves_the_file_alone() {
    let bed = Bed::new(&[("conf", "branches=@a\ncache.writeback=true\npassthrough.io=off\n")]);
    bed.ok("mount -o config=@etc/conf @p");
    // Written and valid, but not in this pool.
    bed.refused("set --persist @p passthrough.io=rw", "passthrough.io");
    fs::write(bed.path("etc/conf"), "branches=@a\nfrob\n").unwrap();
    bed.refused("set --persist @p cache.attr=3", "etc/conf:2: unknown option 'frob'");
    bed.ok("umount @p");
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_pool_alone() {
    let bed = Bed::new(&[("conf", "branches=@a\ncategory.create=mfs\nfunc.mkdir=ff\n")]);
    bed.ok("mount -o config=@etc/conf @p");
    // Nowhere to write the new one.
    let etc = bed.path("etc");
    mount_bind(&etc, &etc).unwrap();
    mount_remount(&etc, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    bed.refused("set --persist @p cache.attr=3", "Read-only file system");
    unmount(&etc, UnmountFlags::DETACH).unwrap();
    // The new one is there, but cannot take the old one's place: a mountpoint cannot be renamed over. By then the pool
    // has changed; it is set back, every function that the category has.
    let conf = bed.path("etc/conf");
    mount_bind(&conf, &conf).unwrap();
    bed.refused("set --persist @p cache.attr=3", "cannot be written");
    bed.refused("set --persist @p branches=+@b", "cannot be written");
    unmount(&conf, UnmountFlags::DETACH).unwrap();
    fs::write(&conf, "branches=@a\nfunc.mkdir=ff\ncategory.create=mfs\n").unwrap();
    mount_bind(&conf, &conf).unwrap();
    bed.refused("set --persist @p category.create=lus", "cannot be written");
    unmount(&conf, UnmountFlags::DETACH).unwrap();
    bed.ok("set --persist @p category.create=lus");
    assert_eq!(bed.ok("get @p category.create"), "lus");
    bed.ok("umount @p");
}

#[test]
fn changes_at_the_same_time_are_all_kept() {
    let bed = Bed::new(&[("conf", "branches=@a\n")]);
    bed.ok("mount -o config=@etc/conf @p");
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
        assert!(wait_within(child, SOON).is_some_and(|status| status.success()), "{pair}");
    }
    let text = bed.read("conf");
    assert!(pairs.iter().all(|pair| text.contains(&format!("{pair}\n"))), "{text}");
    assert_eq!(bed.files().len(), 1);
    bed.ok("umount @p");
}
