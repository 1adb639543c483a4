//! The config file of real mounts: at the mount, and read again by a running pool.

use canopy_testkit::cmd::run_within;
use canopy_testkit::{Pool, ScratchDir};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn binary() -> PathBuf {
    canopy_testkit::program_under_test(env!("CARGO_BIN_EXE_canopy"))
}

/// Two branches, a mountpoint and files; `@` in a file stands for this directory.
struct Bed(ScratchDir);

impl std::ops::Deref for Bed {
    type Target = ScratchDir;
    fn deref(&self) -> &ScratchDir {
        &self.0
    }
}

impl Bed {
    fn new(files: &[(&str, &str)]) -> Bed {
        let bed = Bed(ScratchDir::new("canopy-config-", &["a", "b", "p"]));
        files.iter().for_each(|(name, text)| bed.write(name, text));
        bed
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text.replace('@', self.path("").to_str().unwrap())).unwrap();
    }

    fn pool(&self) -> Pool {
        let config = format!("config={}", self.path("config").display());
        Pool::builder(binary())
            .branch(self.path("a"))
            .option("minfreespace=0")
            .option(config)
            .at(self.path("p"))
            .mount()
    }
}

fn get(pool: &Pool, key: &str) -> String {
    let mut value = [0; 4096];
    let len =
        getxattr(pool.path().join(".mergerfs"), format!("user.mergerfs.{key}"), &mut value[..]).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}

fn set(pool: &Pool, key: &str, value: impl AsRef<Path>) -> Result<(), Errno> {
    let value = value.as_ref().as_os_str().as_encoded_bytes();
    let name = format!("user.mergerfs.{key}");
    setxattr(pool.path().join(".mergerfs"), name, value, XattrFlags::empty())
}

#[test]
fn a_file_says_everything_a_mount_needs() {
    let bed = Bed::new(&[(
        "config",
        "# my pool\nbranches=@a=RW:@b=NC,1K\n  mountpoint = @p\n\nfsname=from,file\ncache.attr=7\nconfig=@more\n",
    )]);
    bed.write("more", "func.create=ff\nminfreespace=0\nnoatime\n");
    let done = run_within(
        Command::new(binary()).args(["mount", "-o", "config=config"]).current_dir(bed.path("")),
        Duration::from_secs(20),
    );
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    let mount = canopy_testkit::proc::mount_at(&bed.path("p")).unwrap();
    assert_eq!(mount.source, "from,file");
    assert!(mount.options.contains("noatime"), "{}", mount.options);
    fs::write(bed.path("p/file"), "x").unwrap();
    assert!(bed.path("a/file").exists(), "created by ff, and not on the branch that takes no new files");
    let mut shown = [0; 4096];
    let len = getxattr(bed.path("p/.mergerfs"), "user.mergerfs.config", &mut shown[..]).unwrap();
    assert_eq!(&shown[..len], bed.path("config").as_os_str().as_encoded_bytes());
    let done = run_within(Command::new(binary()).arg("umount").arg(bed.path("p")), Duration::from_secs(20));
    assert!(done.success(), "{}", done.describe());
}

#[test]
fn each_bad_line_is_a_line_of_its_own_and_nothing_is_mounted() {
    let bed = Bed::new(&[
        ("config", "cache.file=off\nnullrw=true\nconfig=@more\nfunc.create=best\n"),
        ("more", "\nminfreespac=1\n"),
        ("self", "config=@self"),
    ]);
    let mount = |config: &str| {
        let config = format!("config={}", bed.path(config).display());
        let mut command = Command::new(binary());
        command.args(["mount", "-o", &config]).arg(bed.path("a")).arg(bed.path("p"));
        let done = run_within(&mut command, Duration::from_secs(20));
        assert_eq!((done.code(), done.stdout.as_str()), (Some(1), ""), "{}", done.describe());
        assert!(canopy_testkit::proc::mount_at(&bed.path("p")).is_none());
        done.stderr.replace(bed.path("").to_str().unwrap(), "@")
    };
    let said = mount("config");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert_eq!(lines[0], "canopy: @config:1: unknown option 'cache.file' (did you mean 'cache.files'?)");
    assert_eq!(lines[1], "canopy: @more:2: unknown option 'minfreespac' (did you mean 'minfreespace'?)");
    assert!(lines[2].starts_with("canopy: @config:4: option func.create: 'best' is not valid: must be all,"));
    let said = mount("self");
    assert!(said.contains("too many levels of config") && said.lines().count() == 1, "{said}");
    let said = mount("none");
    assert!(said.starts_with("canopy: config file @none cannot be read: No such file"), "{said}");
    // Under the name mergerfs, too, where the same on the command line is a warning.
    std::os::unix::fs::symlink(binary(), bed.path("mergerfs")).unwrap();
    let config = format!("config={}", bed.path("more").display());
    let mut command = Command::new(bed.path("mergerfs"));
    let done = run_within(
        command.args(["-o", &config]).arg(bed.path("a")).arg(bed.path("p")),
        Duration::from_secs(20),
    );
    assert_eq!(done.code(), Some(1), "{}", done.describe());
}

#[test]
fn a_running_pool_reads_its_file_again() {
    let bed = Bed::new(&[("config", "cache.attr=7\nfunc.create=ff\n")]);
    let pool = bed.pool();
    assert_eq!((get(&pool, "cache.attr").as_str(), get(&pool, "func.create").as_str()), ("7", "ff"));
    assert_eq!(Path::new(&get(&pool, "config")), bed.path("config"));

    // The same file, changed meanwhile: its branches have their effect.
    bed.write("config", "cache.attr=8\nbranches=@b\n");
    set(&pool, "config", "").unwrap();
    assert_eq!(get(&pool, "cache.attr"), "8");
    fs::write(pool.path().join("file"), "x").unwrap();
    assert!(bed.path("b/file").exists());

    // Another file is remembered from then on.
    bed.write("other", "cache.entry=9\n");
    set(&pool, "config", bed.path("other")).unwrap();
    assert_eq!((get(&pool, "cache.entry").as_str(), get(&pool, "cache.attr").as_str()), ("9", "8"));
    assert_eq!(Path::new(&get(&pool, "config")), bed.path("other"));
    pool.umount();
}

#[test]
fn a_running_pool_keeps_the_good_lines() {
    let bed = Bed::new(&[
        ("config", "cache.attr=7\n"),
        ("bad", "cache.attr=1\nposix-acl=true\ncache.entry=3\nfrob\n"),
    ]);
    let pool = bed.pool();
    assert_eq!(set(&pool, "config", bed.path("bad")), Err(Errno::INVAL));
    assert_eq!((get(&pool, "cache.attr").as_str(), get(&pool, "cache.entry").as_str()), ("1", "3"));
    assert_eq!(get(&pool, "posix-acl"), "auto");
    assert_eq!(Path::new(&get(&pool, "config")), bed.path("config"), "what failed is not remembered");
    let log = pool.log();
    for needle in ["bad:2: option posix-acl can only be set at the mount", "bad:4: unknown option 'frob'"] {
        assert!(log.contains(needle), "no {needle} in {log}");
    }
    set(&pool, "config", "").unwrap();
    assert_eq!(get(&pool, "cache.attr"), "7");
    assert_eq!(set(&pool, "config", bed.path("none")), Err(Errno::NOENT));
    assert_eq!(set(&pool, "config", bed.path("a")), Err(Errno::ISDIR));
    assert_eq!(set(&pool, "config", bed.path("p/config")), Err(Errno::INVAL), "it lies in the pool");
    pool.umount();
}

#[test]
fn without_a_file_there_is_none_to_read_again() {
    let bed = Bed::new(&[]);
    let pool = Pool::builder(binary()).branch(bed.path("a")).at(bed.path("p")).mount();
    assert_eq!(get(&pool, "config"), "");
    assert_eq!(set(&pool, "config", ""), Err(Errno::INVAL));
    pool.umount();
}

/// Whoever writes the file decides what root mounts.
#[test]
fn a_file_that_others_may_write_is_told() {
    let bed = Bed::new(&[("config", "branches=@a\nmountpoint=@p\n")]);
    fs::create_dir(bed.path("etc")).unwrap();
    fs::copy(bed.path("config"), bed.path("etc/theirs")).unwrap();
    std::os::unix::fs::symlink(bed.path("config"), bed.path("etc/link")).unwrap();
    let mode =
        |name: &str, mode| fs::set_permissions(bed.path(name), fs::Permissions::from_mode(mode)).unwrap();
    let owner = |name: &str, uid, gid| chown(bed.path(name), Some(uid), Some(gid)).unwrap();
    let said = |file: &str| {
        let option = format!("config={}", bed.path(file).display());
        let done = run_within(Command::new(binary()).args(["mount", "-o", &option]), Duration::from_secs(20));
        assert!(done.success(), "{}", done.describe());
        let done_too =
            run_within(Command::new(binary()).arg("umount").arg(bed.path("p")), Duration::from_secs(20));
        assert!(done_too.success(), "{}", done_too.describe());
        done.stderr
    };
    let told = |file: &str, culprit: &str, needle: &str| {
        let (line, path) = (said(file), bed.path(culprit));
        assert_eq!(line.lines().count(), 1, "{file}: {line}");
        assert!(line.contains(needle) && line.contains(&format!("chmod go-w {})", path.display())), "{line}");
    };
    mode("config", 0o646);
    told("config", "config", "others may change it (uid 0, gid 0, mode 0646)");
    mode("config", 0o664);
    owner("config", 0, 100);
    told("config", "config", "mode 0664");
    owner("config", 0, 0);
    owner("etc/theirs", 1000, 1000);
    told("etc/theirs", "etc/theirs", "others may change it (uid 1000");
    owner("etc/theirs", 0, 0);
    mode("etc", 0o777);
    told("etc/theirs", "etc", "the directory it is reached through");
    told("etc/link", "etc", "mode 0777");
    // Nobody else writes these.
    mode("etc", 0o1777);
    assert_eq!(said("etc/theirs"), "");
    mode("etc", 0o775);
    assert_eq!(said("config") + &said("etc/theirs") + &said("etc/link"), "");
}
