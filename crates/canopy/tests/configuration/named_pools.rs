//! Pools that are defined in a TOML file and mounted by the file's name.
//!
//! A command looks for a name among all mounts of the machine, so pools of tests that run in parallel have different names.

use canopy_testkit::CliBed;
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use std::fs;

/// Makes branches, mountpoints, and a directory of pool definitions. `@name` in a text is a path of the bed.
fn bed(pools: &[(&str, &str)]) -> CliBed {
    let dirs = ["a", "b", "p", "q", "etc"];
    let bed = CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-named-", &dirs).with_config_dir("etc");
    pools.iter().for_each(|(name, text)| bed.write(&format!("etc/{name}.toml"), text));
    bed
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
fn commands_accept_the_name_of_a_pool() {
    let bed = bed(&[("media", MEDIA)]);
    bed.stdout("mount media");
    let mount = bed.mount_at("p").unwrap();
    assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("fuse.canopy", "media"));
    assert!(mount.options.contains("noatime"), "{}", mount.options);
    fs::write(bed.path("p/file"), "x").unwrap();
    assert!(bed.path("a/file").exists());
    // Every command accepts the name.
    assert_eq!(bed.stdout("get media cache.attr"), "7");
    assert_eq!(bed.stdout("get media config"), "@etc/media.toml");
    assert!(bed.stdout("get media branches").ends_with("@b=NC,1K"));
    bed.stdout("set media cache.attr=8");
    assert!(bed.stdout("list media").contains("cache.attr"));
    let status = bed.stdout("status media");
    assert!(status.starts_with("@p  fuse.canopy"), "{status}");
    // An empty `config` reads the definition again and restores its values.
    bed.stdout("set media config=");
    assert_eq!(bed.stdout("get media cache.attr"), "7");
    bed.umount("media");
    assert!(bed.mount_at("p").is_none());
}

#[test]
fn the_command_line_overrides_the_file() {
    let bed = bed(&[("typed", MEDIA)]);
    // Another mountpoint, with options before and after the name.
    bed.stdout("mount -o cache.attr=3 typed @q -o func.create=lfs");
    assert_eq!(bed.mount_at("q").unwrap().source, "typed");
    assert!(bed.mount_at("p").is_none());
    assert_eq!(bed.stdout("get typed cache.attr"), "3");
    assert_eq!(bed.stdout("get typed func.create"), "lfs");
    assert_eq!(bed.stdout("get typed func.mkdir"), bed.stdout("get @q func.mkdir"));
    bed.umount("typed");
    // With another fsname, commands find the mountpoint through the file.
    bed.stdout("mount -o fsname=other typed");
    assert_eq!(bed.mount_at("p").unwrap().source, "other");
    assert_eq!(bed.stdout("get typed cache.attr"), "7");
    bed.umount("typed");
}

#[test]
fn a_pool_name_takes_precedence_over_a_directory() {
    let bed = bed(&[("a", MEDIA)]);
    bed.stdout("mount a");
    assert_eq!(bed.mount_at("p").unwrap().source, "a");
    bed.umount("a");
    // With a slash it is the directory.
    bed.stdout("mount -o minfreespace=0 ./a q");
    assert_eq!(bed.mount_at("q").unwrap().source, bed.path("a").to_str().unwrap());
    bed.umount("q");
}

#[test]
fn a_definition_can_be_in_any_directory() {
    let bed = bed(&[]);
    bed.write("pool.toml", MEDIA);
    bed.stdout("mount @pool.toml");
    assert_eq!(bed.mount_at("p").unwrap().source, "pool");
    bed.umount("@p");
    bed.stdout("mount pool.toml @q");
    assert_eq!(bed.mount_at("q").unwrap().source, "pool");
    bed.umount("@q");
    // Named by the config option, the file gives the same options but no pool name.
    bed.stdout("mount -o config=@pool.toml,cache.attr=9");
    assert_eq!(bed.mount_at("p").unwrap().source, "a:b");
    assert_eq!(bed.stdout("get @p cache.attr"), "9");
    // A running pool also reads a TOML file that another config file includes.
    bed.write("lines", "cache.entry=5\nconfig=@more.toml\n");
    bed.write("more.toml", "cache.negative-entry = 4\n");
    bed.stdout("set @p config=@lines");
    assert_eq!(
        (bed.stdout("get @p cache.entry"), bed.stdout("get @p cache.negative-entry")),
        ("5".into(), "4".into())
    );
    bed.umount("@p");
}

#[test]
fn errors_name_the_file_the_line_and_the_nearest_key() {
    let bed = bed(&[
        ("media", "branches = ['@a']\n\n[cache]\nfile = 'off'\nattr = 'x'\n"),
        ("broken", "branches = ['@a'\nmountpoint = '@p'\n"),
        ("nowhere", "branches = ['@a']\n"),
        ("empty", "mountpoint = '@p'\n"),
    ]);
    let said = bed.error("mount media");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert_eq!(
        lines[0],
        "canopy: @etc/media.toml:4: unknown option 'cache.file' (did you mean 'cache.files'?)"
    );
    assert!(lines[1].starts_with("canopy: @etc/media.toml:5: option cache.attr: 'x' is not valid"), "{said}");
    for (args, needle) in [
        ("mount broken", "@etc/broken.toml:2: not valid TOML"),
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
        let said = bed.error(args);
        assert!(said.contains(needle) && said.lines().count() == 1, "{args}: {said}");
    }
    assert!(bed.mount_at("p").is_none() && bed.mount_at("q").is_none());
}

#[test]
fn a_running_pool_does_not_read_a_config_file_inside_itself() {
    let bed = bed(&[("media", MEDIA)]);
    bed.stdout("mount media");
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
    // Through a bind mount this is not detected. The read succeeds, because another worker serves it.
    rustix::mount::mount_bind(bed.path("p"), bed.path("q")).unwrap();
    let read = set("q/c");
    rustix::mount::unmount(bed.path("q"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(read, Ok(()));
    assert_eq!(bed.stdout("get media cache.attr"), "5");
    bed.umount("media");
}
