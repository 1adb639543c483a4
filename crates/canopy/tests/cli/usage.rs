//! Arguments: errors and their messages, warnings, and which arguments the mount table shows.

use super::rig::{PATIENCE, bed, mistake, refused, shell};
use canopy_testkit::cmd::{in_mount_namespace, run_within};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn each_error_is_one_line_with_its_cause_and_remedy() {
    let bed = bed();
    fs::write(bed.path("file"), "").unwrap();
    fs::create_dir(bed.path("a/inner")).unwrap();
    symlink(bed.path("p"), bed.path("link")).unwrap();
    let table: &[(&str, &[&str])] = &[
        ("frob", &["frob", "--help"]),
        ("unmount @p", &["did you mean 'umount'?"]),
        ("explain create", &["no path given", "canopy explain --help"]),
        ("mount --frob @a @p", &["--frob"]),
        ("umount", &["POOL"]),
        ("mount", &["no branch", "BRANCH"]),
        ("mount @p", &["no branch"]),
        ("mount -o branches=@a", &["no mountpoint"]),
        ("mount @none @p", &["/none does not exist", "mkdir -p"]),
        ("mount @a:@none @p", &["/none does not exist"]),
        ("mount @none* @p", &["branch", "/none* matches no directory"]),
        ("mount @file @p", &["/file is not a directory"]),
        ("mount @a:: @p", &["branches", "empty"]),
        ("mount @a=XX @p", &["XX", "RW, RO or NC"]),
        ("mount @a=RW,many @p", &["many", "size"]),
        ("mount @a @none", &["mountpoint", "/none does not exist", "mkdir -p"]),
        ("mount @a @file", &["mountpoint", "/file is not a directory"]),
        ("mount @a @a", &["is the mountpoint itself"]),
        ("mount @p @link", &["is the mountpoint itself"]),
        ("mount @a @a/inner", &["lies inside branch", "outside"]),
        ("mount @b:@a @a/inner", &["lies inside branch", "/a,"]),
        ("mount @a/inner @a", &["lies inside mountpoint", "another mountpoint"]),
        ("mount / @p", &["lies inside branch /"]),
        ("mount -o cache.file=off @a @p", &["unknown option 'cache.file'", "'cache.files'"]),
        ("mount -o auto_unmount @a @p", &["unknown option 'auto_unmount'"]),
        ("mount -o ro,cache.files=fulll @a @p", &["'fulll'", "per-process", "'full'"]),
        ("mount -o minfreespace=1P @a @p", &["minfreespace", "1P", "K, M, G or T"]),
        ("mount -o func.create=best @a @p", &["func.create", "best", "mfs"]),
        ("mount -o ro=1 @a @p", &["ro takes no value"]),
        ("mount -o max_read=a @a @p", &["max_read", "must be a number of bytes"]),
        ("mount -o context=x @a @p", &["Invalid argument", "SELinux", "fsname"]),
        ("mount -o survive=true,context=x @a @p", &["Invalid argument", "SELinux", "fsname"]),
        ("mount -o nullrw @a @p", &["nullrw", "true or false"]),
        ("umount @p", &["/p is not mounted"]),
        ("umount @none", &["/none is not mounted"]),
        ("umount /proc", &["/proc", "proc", "umount"]),
    ];
    for (args, needles) in table {
        let line = mistake(&bed, args);
        for needle in *needles {
            assert!(line.contains(needle), "canopy {args}: no {needle:?} in {line:?}");
        }
        // In the foreground the error is the same.
        if let Some(rest) = args.strip_prefix("mount ") {
            assert_eq!(mistake(&bed, &format!("mount -f {rest}")), line);
        }
    }
    for (variable, value) in [("CANOPY_LOG", "info,[["), ("CANOPY_TEST_KERNEL", "major:8")] {
        let line = refused(&bed, bed.command("mount @a @p").env(variable, value));
        assert!(line.contains(variable) && line.contains(value), "{line}");
    }
}

#[test]
fn a_bind_mount_of_the_mountpoint_cannot_be_a_branch() {
    let bed = bed();
    let script = r#"mount --bind "$1/p" "$1/a"; exec "$2" mount "$1/a" "$1/p""#;
    let line = refused(&bed, in_mount_namespace(script).arg(bed.dir()).arg(bed.program()));
    assert!(line.contains("is the mountpoint itself"), "{line}");
}

#[test]
fn a_loop_through_shared_mounts_is_refused() {
    let bed = bed();
    let script = r#"mount -t tmpfs none "$1/a"; mount --make-shared "$1/a"; mkdir "$1/a/m"
        mount --bind "$1/a" "$1/b"; exec "$2" mount "$1/b" "$1/a/m""#;
    let line = refused(&bed, in_mount_namespace(script).arg(bed.dir()).arg(bed.program()));
    assert!(line.contains("lies inside branch"), "{line}");
}

#[test]
fn help_version_and_options_print_to_stdout() {
    let bed = bed();
    for (args, needle) in [
        ("--help", "mount"),
        ("mount --help", "BRANCH"),
        ("umount --help", "--lazy"),
        ("--version", env!("CARGO_PKG_VERSION")),
        ("options", "passthrough.io=auto"),
    ] {
        let done = bed.ok(args);
        assert!(done.stdout.contains(needle) && done.stderr.is_empty(), "{args}: {}", done.describe());
    }
}

#[test]
fn odd_arguments_are_warned_about_and_the_pool_is_mounted() {
    let bed = bed();
    fs::create_dir(bed.path("a/inner")).unwrap();
    let table = [
        ("@a:@a", "given twice"),
        ("@a:@a/inner", "lies inside branch"),
        ("-o minfreespace=1000T @a:@b=RO", "so nothing can be created"),
        ("-o passthrough.io=rw,cache.writeback=true @a", "excludes cache.writeback"),
        ("-o threads=100000,fsname= @a", "there are 1024"),
    ];
    for (args, needle) in table {
        let done = bed.ok(&format!("mount {args} @p"));
        assert!(done.stderr.contains(needle) && done.stderr.lines().count() == 1, "{}", done.describe());
        bed.umount("@p");
    }
}

#[test]
fn the_mount_table_shows_source_and_flags() {
    let bed = bed();
    let mount = |args: &str| {
        bed.ok(&format!("mount {args}"));
        let mount = bed.mount_at("p").unwrap();
        bed.umount("@p");
        mount
    };
    let plain = mount("@a:@b @p");
    assert_eq!((plain.kind.as_str(), plain.source.as_str()), ("fuse.canopy", "a:b"));
    for word in ["rw", "nosuid", "nodev"] {
        assert!(plain.options.split(',').any(|option| option == word), "{}", plain.options);
    }
    let told = mount("-o ro,suid,dev,noexec,noatime,fsname=mine,mountpoint=@p @a @b");
    assert_eq!(told.source, "mine");
    for word in ["ro", "noexec", "noatime"] {
        assert!(told.options.split(',').any(|option| option == word), "{}", told.options);
    }
    assert!(!told.options.contains("nosuid") && !told.options.contains("nodev"), "{}", told.options);
}

/// The branches' names together are longer than the kernel accepts as the source of a mount.
#[test]
fn a_long_list_of_branches_is_shortened_in_the_mount_source() {
    let bed = bed();
    for number in 1000..2500 {
        fs::create_dir_all(bed.path(&format!("many/disk{number}"))).unwrap();
    }
    fs::write(bed.path("many/disk2499/last"), "there").unwrap();
    bed.ok("mount @many/* @p");
    assert_eq!(fs::read_to_string(bed.path("p/last")).unwrap(), "there");
    let source = bed.mount_at("p").unwrap().source;
    assert!(source.starts_with("1000:1001:") && source.ends_with(":..."), "{source}");
    bed.umount("@p");
    let limited = r#"ulimit -n 64; exec "$1" mount "$2/many/*" "$2/p""#;
    let line = refused(&bed, &mut shell(limited, &[bed.program().as_os_str(), bed.dir().as_os_str()]));
    assert!(line.contains("Too many open files") && line.ends_with("(ulimit -n)"), "{line}");
}

#[test]
fn shell_quoting_reaches_the_options() {
    let bed = bed();
    fs::create_dir(bed.path("with space")).unwrap();
    let script = r#""$2" mount -o "branches=$1/a=RW\,1M,fsname=x\054y" "$1/with space" "$1/p"
        grep " $1/p " /proc/self/mountinfo | sed "s/.*fuse.canopy //"; "$2" umount "$1/p""#;
    let done = run_within(&mut shell(script, &[bed.dir().as_os_str(), bed.program().as_os_str()]), PATIENCE);
    assert!(done.success() && done.stdout.starts_with("x,y "), "{}", done.describe());
}
