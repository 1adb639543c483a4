//! The configuration file: read at mount time, and read again by a mounted pool.

use canopy_testkit::cmd::run_within;
use canopy_testkit::{CliBed, PATIENCE, Pool};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

/// Makes branches, a mountpoint and files. `@name` in a text is a path of the bed.
fn bed(files: &[(&str, &str)]) -> CliBed {
    let dirs = ["a", "b", "p", "sbin"];
    let bed = CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-config-", &dirs);
    files.iter().for_each(|(name, text)| bed.write(name, text));
    bed
}

/// Mounts a pool with the configuration file `config`.
#[track_caller]
fn pool(bed: &CliBed) -> Pool {
    let config = format!("config={}", bed.path("config").display());
    let builder = Pool::builder(bed.program()).branch(bed.path("a")).at(bed.path("p"));
    builder.option("minfreespace=0").option(config).mount()
}

#[test]
fn a_file_can_hold_everything_a_mount_needs() {
    let bed = bed(&[(
        "config",
        "# my pool\nbranches=@a=RW:@b=NC,1K\n  mountpoint = @p\n\nfsname=from,file\ncache.attr=7\nconfig=@more\n",
    )]);
    bed.write("more", "func.create=ff\nminfreespace=0\nnoatime\n");
    bed.stdout("mount -o config=config");
    let mount = bed.mount_at("p").unwrap();
    assert_eq!(mount.source, "from,file");
    assert!(mount.options.contains("noatime"), "{}", mount.options);
    fs::write(bed.path("p/file"), "x").unwrap();
    assert!(bed.path("a/file").exists(), "ff creates it on the branch that is not NC");
    assert_eq!(bed.stdout("get @p config"), "@config");
    bed.umount("@p");
}

#[test]
fn each_bad_line_is_reported_and_nothing_is_mounted() {
    let bed = bed(&[
        ("config", "cache.file=off\nnullrw=true\nconfig=@more\nfunc.create=best\n"),
        ("more", "\nminfreespac=1\n"),
        ("self", "config=@self"),
    ]);
    let mount = |config: &str| {
        let error = bed.error(&format!("mount -o config=@{config} @a @p"));
        assert_eq!(bed.mount_at("p"), None);
        error
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
    // The same holds under the name mergerfs, where an unknown option on the command line is only a warning.
    let bed = bed.with_names(&["mergerfs"]);
    let done = run_within(&mut bed.command_as("mergerfs -o config=@more @a @p"), PATIENCE);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
}

#[test]
fn a_running_pool_reads_its_file_again() {
    let bed = bed(&[("config", "cache.attr=7\nfunc.create=ff\n")]);
    let pool = pool(&bed);
    let path = |name: &str| bed.path(name).to_str().unwrap().to_owned();
    assert_eq!((pool.get("cache.attr").as_str(), pool.get("func.create").as_str()), ("7", "ff"));
    assert_eq!(pool.get("config"), path("config"));

    // An empty value reads the same file again, including its branches.
    bed.write("config", "cache.attr=8\nbranches=@b\n");
    pool.set("config", "");
    assert_eq!(pool.get("cache.attr"), "8");
    fs::write(pool.path().join("file"), "x").unwrap();
    assert!(bed.path("b/file").exists());

    // Another file is remembered from then on.
    bed.write("other", "cache.entry=9\n");
    pool.set("config", &path("other"));
    assert_eq!((pool.get("cache.entry").as_str(), pool.get("cache.attr").as_str()), ("9", "8"));
    assert_eq!(pool.get("config"), path("other"));
    pool.umount();
}

#[test]
fn a_running_pool_applies_the_valid_lines() {
    let bed =
        bed(&[("config", "cache.attr=7\n"), ("bad", "cache.attr=1\nposix-acl=true\ncache.entry=3\nfrob\n")]);
    let pool = pool(&bed);
    let path = |name: &str| bed.path(name).to_str().unwrap().to_owned();
    assert_eq!(pool.try_set("config", &path("bad")), Err(Errno::INVAL));
    assert_eq!((pool.get("cache.attr").as_str(), pool.get("cache.entry").as_str()), ("1", "3"));
    assert_eq!(pool.get("posix-acl"), "auto");
    assert_eq!(pool.get("config"), path("config"), "a file with errors is not remembered");
    let log = pool.log();
    for needle in ["bad:2: option posix-acl can only be set at the mount", "bad:4: unknown option 'frob'"] {
        assert!(log.contains(needle), "no {needle} in {log}");
    }
    pool.set("config", "");
    assert_eq!(pool.get("cache.attr"), "7");
    assert_eq!(pool.try_set("config", &path("none")), Err(Errno::NOENT));
    assert_eq!(pool.try_set("config", &path("a")), Err(Errno::ISDIR));
    assert_eq!(pool.try_set("config", &path("p/config")), Err(Errno::INVAL), "it lies in the pool");
    pool.umount();
}

#[test]
fn a_pool_without_a_file_cannot_read_it_again() {
    let bed = bed(&[]);
    let pool = Pool::builder(bed.program()).branch(bed.path("a")).at(bed.path("p")).mount();
    assert_eq!(pool.get("config"), "");
    assert_eq!(pool.try_set("config", ""), Err(Errno::INVAL));
    pool.umount();
}

/// Anybody who can write the file decides what root mounts.
#[test]
fn a_file_that_others_can_write_is_warned_about() {
    let bed = bed(&[("config", "branches=@a\nmountpoint=@p\n")]);
    fs::create_dir(bed.path("etc")).unwrap();
    fs::copy(bed.path("config"), bed.path("etc/theirs")).unwrap();
    std::os::unix::fs::symlink(bed.path("config"), bed.path("etc/link")).unwrap();
    let mode =
        |name: &str, mode| fs::set_permissions(bed.path(name), fs::Permissions::from_mode(mode)).unwrap();
    let owner = |name: &str, uid, gid| chown(bed.path(name), Some(uid), Some(gid)).unwrap();
    let said = |file: &str| {
        let done = bed.ok(&format!("mount -o config=@{file}"));
        bed.umount("@p");
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
    // A sticky directory, then files and directories that only root and its group can write.
    mode("etc", 0o1777);
    assert_eq!(said("etc/theirs"), "");
    mode("etc", 0o775);
    assert_eq!(said("config") + &said("etc/theirs") + &said("etc/link"), "");
}
