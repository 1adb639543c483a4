//! Pools that have a TOML file, and are called by its name. Real mounts, so root is needed.
//!
//! Names are looked for among all mounts: where a test mounts a pool elsewhere, no other has its name.

use canopy_testkit::cmd::{Finished, run_unless_busy, wait_until};
use canopy_testkit::{ScratchDir, proc};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::fs;
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// Branches, mountpoints, and a directory of named pools; `@` in a file stands for the scratch directory.
struct Bed(ScratchDir);

impl std::ops::Deref for Bed {
    type Target = ScratchDir;
    fn deref(&self) -> &ScratchDir {
        &self.0
    }
}

impl Bed {
    fn new(pools: &[(&str, &str)]) -> Bed {
        let bed = Bed(ScratchDir::new("canopy-named-", &["a", "b", "p", "q", "etc"]));
        pools.iter().for_each(|(name, text)| bed.write(&format!("etc/{name}.toml"), text));
        bed
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text.replace('@', self.path("").to_str().unwrap())).unwrap();
    }

    fn command(&self, args: &str) -> Command {
        let binary = canopy_testkit::program_under_test(env!("CARGO_BIN_EXE_canopy"));
        let mut command = Command::new(binary);
        command.args(self.words(args)).current_dir(self.dir()).env("CANOPY_CONFIG_DIR", self.path("etc"));
        command.env_remove("CANOPY_LOG").env_remove("RUST_LOG");
        command
    }

    fn canopy(&self, args: &str) -> Finished {
        run_unless_busy(&mut self.command(args), SOON)
    }

    #[track_caller]
    fn ok(&self, args: &str) -> String {
        let done = self.canopy(args);
        assert!(done.success() && done.stderr.is_empty(), "canopy {args}: {}", done.describe());
        done.stdout.trim_end().to_owned()
    }

    /// Runs what must fail, and returns what it says with `@` for the scratch directory.
    #[track_caller]
    fn mistake(&self, args: &str) -> String {
        let done = self.canopy(args);
        assert!(matches!(done.code(), Some(1 | 2)) && done.stdout.is_empty(), "{args}: {}", done.describe());
        done.stderr.trim_end().replace(self.path("").to_str().unwrap(), "@")
    }

    #[track_caller]
    fn mounted(&self, name: &str) -> Option<proc::Mount> {
        proc::mount_at(&self.path(name))
    }

    #[track_caller]
    fn umount(&self, place: &str) {
        self.ok(&format!("umount {place}"));
        // Every daemon of the scratch directory: all its paths are below it, or it was started within.
        let serves = |process: &proc::Process| {
            process.name == "canopy"
                && fs::read(format!("/proc/{}/environ", process.pid)).is_ok_and(|environ| {
                    let dir = self.path("etc");
                    let dir = dir.as_os_str().as_encoded_bytes();
                    environ.windows(dir.len()).any(|part| part == dir)
                })
        };
        let gone = || !proc::processes().iter().any(serves);
        assert!(wait_until(SOON, gone), "the daemon has not ended");
    }
}

const MEDIA: &str = "\
# Where everything is.
branches = [\"@a\", { path = \"@b\", mode = \"NC\", minfreespace = \"1K\" }]
mountpoint = \"@p\"
minfreespace = 0
noatime = true

[cache]
attr = 7

[func]
create = \"ff\"
";

#[test]
fn a_pool_is_called_by_its_name() {
    let bed = Bed::new(&[("media", MEDIA)]);
    bed.ok("mount media");
    let mount = bed.mounted("p").unwrap();
    assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("fuse.canopy", "media"));
    assert!(mount.options.contains("noatime"), "{}", mount.options);
    fs::write(bed.path("p/file"), "x").unwrap();
    assert!(bed.path("a/file").exists());
    // Every command knows it by that name.
    assert_eq!(bed.ok("get media cache.attr"), "7");
    assert_eq!(bed.ok("get media config"), bed.path("etc/media.toml").to_str().unwrap());
    assert!(bed.ok("get media branches").ends_with("/b=NC,1K"));
    bed.ok("set media cache.attr=8");
    assert!(bed.ok("list media").contains("cache.attr"));
    // What its file says is read again, also what was said at the mount.
    bed.ok("set media config=");
    assert_eq!(bed.ok("get media cache.attr"), "7");
    bed.umount("media");
    assert!(bed.mounted("p").is_none());
}

#[test]
fn what_is_typed_wins_over_the_file() {
    let bed = Bed::new(&[("typed", MEDIA)]);
    // Elsewhere, and with the options before and behind the name.
    bed.ok("mount -o cache.attr=3 typed @q -o func.create=lfs");
    assert_eq!(bed.mounted("q").unwrap().source, "typed");
    assert!(bed.mounted("p").is_none());
    assert_eq!(bed.ok("get typed cache.attr"), "3");
    assert_eq!(bed.ok("get typed func.create"), "lfs");
    assert_eq!(bed.ok("get typed func.mkdir"), bed.ok("get @q func.mkdir"));
    bed.umount("typed");
    // Another source may be told; then the file tells where the pool is.
    bed.ok("mount -o fsname=other typed");
    assert_eq!(bed.mounted("p").unwrap().source, "other");
    assert_eq!(bed.ok("get typed cache.attr"), "7");
    bed.umount("typed");
}

#[test]
fn a_name_wins_over_a_directory_of_that_name() {
    let bed = Bed::new(&[("a", MEDIA)]);
    bed.ok("mount a");
    assert_eq!(bed.mounted("p").unwrap().source, "a");
    bed.umount("a");
    // With a slash it is the directory.
    bed.ok("mount -o minfreespace=0 ./a q");
    assert_eq!(bed.mounted("q").unwrap().source, bed.path("a").to_str().unwrap());
    bed.umount("q");
}

#[test]
fn a_file_may_be_anywhere() {
    let bed = Bed::new(&[]);
    bed.write("pool.toml", MEDIA);
    bed.ok("mount @pool.toml");
    assert_eq!(bed.mounted("p").unwrap().source, "pool");
    bed.umount("@p");
    bed.ok("mount pool.toml @q");
    assert_eq!(bed.mounted("q").unwrap().source, "pool");
    bed.umount("@q");
    // As a config option it is no name, but its lines are the same.
    bed.ok("mount -o config=@pool.toml,cache.attr=9");
    assert_eq!(bed.mounted("p").unwrap().source, "a:b");
    assert_eq!(bed.ok("get @p cache.attr"), "9");
    // Into a running pool as well, from lines that name it.
    bed.write("lines", "cache.entry=5\nconfig=@more.toml\n");
    bed.write("more.toml", "cache.negative-entry = 4\n");
    bed.ok("set @p config=@lines");
    assert_eq!(
        (bed.ok("get @p cache.entry"), bed.ok("get @p cache.negative-entry")),
        ("5".into(), "4".into())
    );
    bed.umount("@p");
}

#[test]
fn mistakes_name_file_line_and_the_nearest_key() {
    let bed = Bed::new(&[
        ("media", "branches = ['@a']\n\n[cache]\nfile = 'off'\nattr = 'x'\n"),
        ("broken", "branches = ['@a'\nmountpoint = '@p'\n"),
        ("nowhere", "branches = ['@a']\n"),
        ("empty", "mountpoint = '@p'\n"),
    ]);
    let said = bed.mistake("mount media");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert_eq!(
        lines[0],
        "canopy: @etc/media.toml:4: unknown option 'cache.file' (did you mean 'cache.files'?)"
    );
    assert!(lines[1].starts_with("canopy: @etc/media.toml:5: option cache.attr: 'x' is not valid"), "{said}");
    for (args, needle) in [
        ("mount broken", "@etc/broken.toml:2: no valid TOML"),
        ("mount nowhere", "no mountpoint given"),
        ("mount empty", "no branch given"),
        ("mount @none.toml", "config file @none.toml cannot be read: No such file"),
        ("mount medai", "no pool is called 'medai': @etc/medai.toml does not exist (did you mean 'media'?)"),
        ("mount -o ro frob @p", "no pool is called 'frob'"),
        ("mount media @a @p", "the branches of pool media are in @etc/media.toml"),
        ("mount -o branches=@a frob", "mountpoint @frob does not exist"),
        ("umount medai", "no pool is called 'medai': @etc/medai.toml does not exist (did you mean 'media'?)"),
        ("umount empty", "@p is not mounted"),
        ("get frob", "no pool is called 'frob'"),
        ("get empty", "@p is not the mountpoint of a pool"),
    ] {
        let said = bed.mistake(args);
        assert!(said.contains(needle) && said.lines().count() == 1, "{args}: {said}");
    }
    assert!(bed.mounted("p").is_none() && bed.mounted("q").is_none());
}

#[test]
fn a_running_pool_does_not_read_what_lies_in_it() {
    let bed = Bed::new(&[("media", MEDIA)]);
    bed.ok("mount media");
    fs::write(bed.path("a/c"), "cache.attr=5\n").unwrap();
    std::os::unix::fs::symlink(bed.path("p/c"), bed.path("link")).unwrap();
    let set = |file: &str| {
        let file = bed.path(file);
        let file = file.as_os_str().as_encoded_bytes();
        setxattr(bed.path("p/.mergerfs"), "user.mergerfs.config", file, XattrFlags::empty())
    };
    for way in ["p/c", "link"] {
        assert_eq!(set(way), Err(Errno::INVAL), "{way}");
    }
    // By a bind mount nobody sees that it does; it reads like any other file, for another worker serves.
    rustix::mount::mount_bind(bed.path("p"), bed.path("q")).unwrap();
    let read = set("q/c");
    rustix::mount::unmount(bed.path("q"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(read, Ok(()));
    let mut value = [0; 16];
    let len = getxattr(bed.path("p/.mergerfs"), "user.mergerfs.cache.attr", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"5");
    bed.umount("media");
}
