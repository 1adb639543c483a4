//! The program under its other names: `mergerfs`, and the helpers that mount(8) runs. Tests that change /sbin or /dev
//! run in a new mount namespace.

use canopy_testkit::cmd::{Finished, in_mount_namespace, run_within, wait_until};
use canopy_testkit::files::copy_program;
use canopy_testkit::{CliBed, PATIENCE, proc};
use std::fs;
use std::os::unix::fs::{chown, symlink};

const NOBODY: u32 = 65534;
const NAMES: [&str; 6] =
    ["canopy", "mergerfs", "mount.mergerfs", "mount.fuse.mergerfs", "mount.canopy", "mount.fuse.canopy"];

/// Makes two branches, a mountpoint, and links to the program under all its names.
fn bed() -> CliBed {
    CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-names-", &["a", "b", "p", "sbin"]).with_names(&NAMES)
}

/// Mounts a pool. Returns the mount and the command's stderr.
#[track_caller]
fn mounted(bed: &CliBed, line: &str) -> (proc::Mount, String) {
    let done = bed.run_as(line);
    assert!(done.success() && done.stdout.is_empty(), "{line}: {}", done.describe());
    fs::read_dir(bed.path("p")).unwrap();
    let mounted = bed.mount_at("p").unwrap_or_else(|| panic!("{line}: not mounted"));
    (mounted, done.stderr)
}

/// Runs a script in a new mount namespace; `$1` is the directory.
fn in_namespace(bed: &CliBed, script: &str) -> Finished {
    let mut command = in_mount_namespace(&format!("{UNMOUNT_ON_EXIT}{script}"));
    run_within(command.arg(bed.dir()), 2 * PATIENCE)
}

/// Unmounts a script's pools when the script exits, even if it fails.
const UNMOUNT_ON_EXIT: &str =
    r#"trap 'umount -l "$1/p" "$1/q" "$1/r" "$1/s" "$1/t" 2> /dev/null || :' EXIT; "#;

fn has(mount: &proc::Mount, word: &str) -> bool {
    mount.options.split(',').any(|option| option == word)
}

#[test]
fn the_mergerfs_command_line_mounts_a_pool() {
    let bed = bed();
    let (mount, said) = mounted(&bed, "mergerfs -o minfreespace=0,use_ino,allow_other @a:@b @p");
    assert_eq!((mount.kind.as_str(), mount.source.as_str(), said.as_str()), ("fuse.mergerfs", "a:b", ""));
    assert!(has(&mount, "nosuid") && has(&mount, "nodev"), "{}", mount.options);
    assert_eq!(bed.daemons()[0].name, "mergerfs", "the process name that pidof and pkill look for");
    fs::write(bed.path("p/file"), "x").unwrap();
    assert!(bed.path("a/file").exists() || bed.path("b/file").exists());
    bed.umount("@p");

    let (mount, _) = mounted(&bed, "mergerfs -r -n -ofsname=mine,suid @a @b -- @p");
    assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("fuse.mergerfs", "mine"));
    assert!(has(&mount, "ro") && !has(&mount, "nosuid"), "{}", mount.options);
    bed.umount("@p");

    let (mount, _) = mounted(&bed, "mergerfs -o mountpoint=@p,branches=@a @b");
    assert_eq!(mount.source, "a:b");
    bed.umount("@p");
}

#[test]
fn unknown_options_of_mergerfs_are_warnings() {
    let bed = bed();
    let (_, said) = mounted(&bed, "mergerfs -o cache.file=off,attr_timeout=5 -s -z @a:@b @p");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines.iter().all(|line| line.starts_with("mergerfs: ")), "{said}");
    for needle in ["'cache.file' (did you mean 'cache.files'?): ignored", "attr_timeout", "'-s'", "'-z'"] {
        assert!(said.contains(needle), "no {needle} in {said}");
    }
    bed.umount("@p");
}

#[test]
fn errors_under_the_other_names_are_one_line_with_status_one() {
    let bed = bed();
    for (line, needle) in [
        ("mergerfs", "no branch given: mergerfs [options] <branches> <mountpoint>"),
        ("mergerfs -o branches=@a", "no mountpoint given: mergerfs"),
        ("mergerfs -o cache.files=x @a @p", "cache.files: 'x' is not valid"),
        ("mount.canopy @a:@none @p", "/none does not exist (create it"),
        ("mergerfs -o allow-missing-branches=false @none @p", "allow-missing-branches=true"),
        ("mergerfs @a:@p/none @p", "lies inside mountpoint"),
        ("mergerfs @a @p -o", "-o needs a list of options"),
        ("mount.mergerfs @a", "usage:"),
        ("mount.canopy @a @p -o cache.file=off", "unknown option 'cache.file'"),
        ("mount.canopy @a @p -o remount,ro", "/p is not the mountpoint of a pool"),
        ("mount.canopy @a @p -o setuid=no-such-user", "setuid=no-such-user: no such user"),
        ("mount.canopy @a @p -t ext4", "type ext4"),
    ] {
        let done = bed.run_as(line);
        assert_eq!((done.code(), done.stdout.as_str()), (Some(1), ""), "{line}: {}", done.describe());
        assert!(done.stderr.contains(needle) && done.stderr.lines().count() == 1, "{}", done.describe());
        let name = if line.contains("canopy") { "canopy: " } else { "mergerfs: " };
        assert!(done.stderr.starts_with(name), "{}", done.stderr);
        assert!(bed.mount_at("p").is_none());
    }
}

#[test]
fn help_and_version_of_mergerfs() {
    let bed = bed();
    for (switch, first) in [
        ("-h", "Usage: mergerfs [options] <branches> <mountpoint>"),
        ("--help", "Usage: mergerfs [options] <branches> <mountpoint>"),
        ("-v", concat!("mergerfs v", env!("CARGO_PKG_VERSION"))),
        ("-V", concat!("mergerfs v", env!("CARGO_PKG_VERSION"))),
        ("--version", concat!("mergerfs v", env!("CARGO_PKG_VERSION"))),
    ] {
        let done = bed.run_as(&format!("mergerfs {switch}"));
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        assert_eq!(done.stdout.lines().next(), Some(first));
    }
}

#[test]
fn the_mount_helpers_accept_fstab_options() {
    let bed = bed();
    let words = "rw,nofail,noauto,_netdev,user,x-systemd.requires=/a,comment=x,cache.attr=5";
    for (line, kind) in [
        (format!("mount.canopy @a:@b @p -o {words}"), "fuse.canopy"),
        (format!("mount.fuse.canopy @a:@b @p -v -n -o {words}"), "fuse.canopy"),
        (format!("mount.mergerfs @a:@b @p -o {words}"), "fuse.mergerfs"),
        (format!("mount.fuse.mergerfs -o {words} @a:@b @p"), "fuse.mergerfs"),
        (format!("mount.canopy @a:@b @p -t fuse.mergerfs -o {words}"), "fuse.mergerfs"),
    ] {
        let (mount, said) = mounted(&bed, &line);
        assert_eq!((mount.kind.as_str(), mount.source.as_str(), said.as_str()), (kind, "a:b", ""), "{line}");
        bed.umount("@p");
    }
    let (_, said) = mounted(&bed, "mount.canopy @a @p -s -o frob");
    assert!(said.contains("'frob'") && said.lines().count() == 1, "{said}");
    bed.umount("@p");
    let done = bed.run_as("mount.canopy @a @p -f -o rw");
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    assert!(bed.mount_at("p").is_none(), "-f (fake) mounts nothing");
}

/// Under mergerfs' names the defaults are those of mergerfs 2.33: nosuid and nodev when the program is run directly, and
/// neither when mount(8) runs it. Under canopy's own names both are always the default.
#[test]
fn nosuid_and_nodev_defaults_depend_on_the_name() {
    let bed = bed();
    for (line, nosuid, nodev) in [
        ("canopy mount", true, true),
        ("canopy mount -o suid,dev", false, false),
        ("mount.canopy", true, true),
        ("mount.fuse.canopy -o defaults,rw", true, true),
        ("mount.canopy -o suid", false, true),
        ("mount.fuse.canopy -o suid,dev", false, false),
        ("mount.canopy -o rw,allow_suid,allow_dev", false, false),
        ("mergerfs", true, true),
        ("mergerfs -o suid,dev", false, false),
        ("mount.mergerfs", false, false),
        ("mount.mergerfs -o defaults,suid", false, false),
        ("mount.mergerfs -o nosuid", true, false),
        ("mount.fuse.mergerfs -o nosuid,nodev", true, true),
        ("mount.fuse.mergerfs", false, false),
    ] {
        let (mount, _) = mounted(&bed, &format!("{line} @a @p"));
        assert_eq!(
            (has(&mount, "nosuid"), has(&mount, "nodev")),
            (nosuid, nodev),
            "{line}: {}",
            mount.options
        );
        bed.umount("@p");
    }
}

#[test]
fn a_pool_mounts_without_a_missing_branch_and_adds_it_later() {
    let bed = bed();
    for line in [
        "mergerfs",
        "mount.mergerfs -o nofail",
        "mount.fuse.mergerfs",
        "canopy mount -o allow-missing-branches=true",
        "mount.canopy -o allow-missing-branches=true",
    ] {
        let (_, said) = mounted(&bed, &format!("{line} -o minfreespace=0 @late/x:@a @p"));
        let told =
            format!("branch {} is not there: the pool is mounted without it", bed.path("late/x").display());
        assert!(said.contains(&told) && said.lines().count() == 1, "{line}: {said}");
        fs::write(bed.path("p/file"), line).unwrap();
        assert_eq!(fs::read_to_string(bed.path("a/file")).unwrap(), line);
        let status = bed.run_as("canopy status @p").stdout;
        let words = status.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("awaited") && words.contains("is not there yet"), "{status}");
        let listed = bed.run_as("canopy get @p srcmounts").stdout;
        assert!(listed.contains("late/x"), "the branch stays listed: {listed}");

        fs::create_dir_all(bed.path("late/x")).unwrap();
        fs::write(bed.path("late/x/from-late"), "here").unwrap();
        assert!(wait_until(PATIENCE, || bed.path("p/from-late").exists()), "{line}: branch not added");
        assert!(!bed.run_as("canopy status @p").stdout.contains("awaited"));
        fs::create_dir(bed.path("late/x/only-here")).unwrap();
        assert!(bed.path("p/only-here").is_dir());
        bed.umount("@p");
        fs::remove_dir_all(bed.path("late")).unwrap();
    }
}

/// The pool is empty until one of its branches exists.
#[test]
fn a_pool_mounts_with_all_branches_missing() {
    let bed = bed();
    let (_, said) = mounted(&bed, "mergerfs -o minfreespace=0 @one:@two:@disk* @p");
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(
        said.contains("/disk* matches no directory") && said.contains("as soon as there are any"),
        "{said}"
    );
    assert_eq!(fs::read_dir(bed.path("p")).unwrap().count(), 0);
    assert!(fs::write(bed.path("p/file"), "x").is_err());
    fs::create_dir(bed.path("two")).unwrap();
    assert!(wait_until(PATIENCE, || fs::write(bed.path("p/file"), "x").is_ok()));
    assert!(bed.path("two/file").exists());
    // What the pattern matches takes its place.
    for disk in ["disk1", "disk2"] {
        fs::create_dir(bed.path(disk)).unwrap();
        fs::write(bed.path(disk).join(disk), "").unwrap();
    }
    assert!(wait_until(PATIENCE, || bed.path("p/disk1").exists() && bed.path("p/disk2").exists()));
    let branches = bed.stdout("get @p branches");
    let names: Vec<&str> =
        branches.trim().split(':').filter_map(|branch| branch.rsplit('/').next()).collect();
    assert_eq!(names, ["@one=RW", "@two=RW", "@disk1=RW", "@disk2=RW"]);
    bed.umount("@p");
    ["two", "disk1", "disk2"].into_iter().for_each(|dir| fs::remove_dir_all(bed.path(dir)).unwrap());
}

/// Mounts the links over /sbin, where mount(8) looks for its helpers.
const SBIN: &str = r#"mount --bind "$1/sbin" "$(realpath /sbin)"; "#;

#[test]
fn mount_runs_the_helper_of_each_type() {
    let bed = bed();
    let script = format!(
        r#"{SBIN}
        for type in canopy fuse.canopy mergerfs fuse.mergerfs; do
            mount -t $type -o minfreespace=0,nofail "$1/a:$1/b" "$1/p"
            echo $type > "$1/p/file"
            echo "$(cat "$1/p/file") $(findmnt -no FSTYPE,SOURCE "$1/p" | tr -s ' ')"
            umount "$1/p"
        done"#
    );
    let done = in_namespace(&bed, &script);
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    let expected = "canopy fuse.canopy a:b\nfuse.canopy fuse.canopy a:b\n\
                    mergerfs fuse.mergerfs a:b\nfuse.mergerfs fuse.mergerfs a:b\n";
    assert_eq!(done.stdout, expected);
    bed.wait_for_daemons(0);
}

/// Flags that the remount does not name stay, whether mount(8) takes the other options from the mount table or fstab.
#[test]
fn a_remount_changes_only_the_flags_it_names() {
    let bed = bed();
    let script = format!(
        r#"{SBIN}
        flags() {{ findmnt -no OPTIONS "$1/p" | tr , '\n' | grep -vx '.*_id=.*\|allow_other\|default_permissions' | paste -sd,; }}
        for type in canopy fuse.mergerfs; do
            mount -t $type -o minfreespace=0,nosuid,nodev,noexec "$1/a" "$1/p"
            for words in ro rw noatime relatime,ro rw,strictatime nodiratime exec; do
                mount -o remount,$words "$1/p"; echo "$words: $(flags "$1")"
            done
            umount "$1/p"
        done
        # A pool that is mounted read-only, from an fstab line with pool options.
        echo "$1/a $1/p canopy noatime,allow_dev,nofail,cache.attr=5,category.create=mfs,func.mkdir=ff,io-uring=off,minfreespace=0 0 0" > "$1/fstab"
        mount -T "$1/fstab" -o ro "$1/p"
        ! touch "$1/p/x" 2> /dev/null
        mount -T "$1/fstab" -o remount,rw "$1/p"; echo "fstab: $(flags "$1")"; touch "$1/p/x"
        exec 3> "$1/p/open"; echo busy: $(mount -T "$1/fstab" -o remount,ro "$1/p" 2>&1); exec 3>&-
        mount -T "$1/fstab" -o remount,ro "$1/p"; echo "fstab: $(flags "$1")"
        umount "$1/p""#
    );
    let done = in_namespace(&bed, &script);
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    let each = "ro: ro,nosuid,nodev,noexec,relatime\n\
                rw: rw,nosuid,nodev,noexec,relatime\n\
                noatime: rw,nosuid,nodev,noexec,noatime\n\
                relatime,ro: ro,nosuid,nodev,noexec,relatime\n\
                rw,strictatime: rw,nosuid,nodev,noexec\n\
                nodiratime: rw,nosuid,nodev,noexec,nodiratime\n\
                exec: rw,nosuid,nodev,nodiratime\n";
    let path = bed.path("p");
    let rest = format!(
        "fstab: rw,nosuid,noatime\n\
         busy: canopy: {0} cannot be remounted: files on it are open for writing (fuser -vm {0} shows the processes)\n\
         fstab: ro,nosuid,noatime\n",
        path.display()
    );
    assert_eq!(done.stdout, format!("{each}{each}{rest}"), "{}", done.describe());
    bed.wait_for_daemons(0);
}

#[test]
fn a_remount_lists_the_options_it_does_not_change() {
    let bed = bed();
    mounted(&bed, "mount.canopy @a @p -o cache.attr=5,noatime");
    let flags = || bed.mount_at("p").unwrap().options;
    let point = bed.path("p").display().to_string();
    // The flags change; a message lists the options that do not.
    let done = bed.run_as("mount.canopy @a @p -o remount,ro,cache.attr=7,io-uring=off,cache.entry=1");
    assert!(done.success() && flags().starts_with("ro,"), "{}", done.describe());
    let line = format!(
        "canopy: a remount only changes mount flags, so {point} keeps its other options: \
         canopy set {point} cache.attr=7, io-uring=off at the next mount\n"
    );
    assert_eq!(done.stderr, line);
    // A remount that would change nothing fails.
    let done = bed.run_as("mount.canopy @a @p -o remount,cache.attr=7");
    assert_eq!((done.code(), done.stderr.lines().count()), (Some(1), 1), "{}", done.describe());
    for (line, needle) in [
        ("mount.canopy @a @p -o remount,frob", "unknown option 'frob'"),
        ("mount.canopy @a @b -o remount,ro", "/b is not the mountpoint of a pool"),
        ("canopy set @p noatime=", "mount -o remount,noatime"),
        ("canopy set @p cache.attr=7", "mount -o remount,rw"),
    ] {
        let done = bed.run_as(line);
        assert!(!done.success() && done.stderr.lines().count() == 1, "{line}: {}", done.describe());
        assert!(done.stderr.contains(needle), "{line}: {}", done.stderr);
    }
    // What the messages suggest works.
    let done = bed.run_as(
        "mount.canopy a:b @p -o rw,noatime,remount,user_id=0,group_id=0,default_permissions,allow_other",
    );
    assert!(done.success() && done.stderr.is_empty() && flags().starts_with("rw,"), "{}", done.describe());
    assert!(bed.run_as("canopy set @p cache.attr=7").success());
    bed.umount("@p");
}

#[test]
fn mount_all_mounts_the_pools_of_fstab() {
    let bed = bed();
    for name in ["q", "r", "s", "t", "with space"] {
        fs::create_dir(bed.path(name)).unwrap();
    }
    let dir = bed.dir();
    let dir = dir.display();
    let fstab = format!(
        "{dir}/a:{dir}/b {dir}/p fuse.canopy rw,nofail,x-systemd.requires=/a,x-systemd.automount,_netdev,cache.attr=5 0 0\n\
         {dir}/[ab] {dir}/q mergerfs defaults,allow_other,use_ino,category.create=mfs,fsname=old 0 0\n\
         {dir}/with\\040space {dir}/r canopy nofail,noatime 0 0\n\
         none {dir}/s canopy branches={dir}/a:{dir}/b,minfreespace=0 0 0\n\
         none {dir}/t mergerfs branches={dir}/b 0 0\n"
    );
    fs::write(bed.path("fstab"), fstab).unwrap();
    let script = format!(
        r#"{SBIN}
        mount -T "$1/fstab" -a
        for at in p q r s t; do findmnt -no FSTYPE,SOURCE "$1/$at" | tr -s ' '; stat "$1/$at" > /dev/null; done
        getfattr --only-values -n user.mergerfs.cache.attr "$1/p/.mergerfs"; echo
        getfattr --only-values -n user.mergerfs.func.create "$1/q/.mergerfs"; echo
        umount "$1/p" "$1/q" "$1/r" "$1/s" "$1/t""#
    );
    let done = in_namespace(&bed, &script);
    assert!(done.success(), "{}", done.describe());
    let expected = format!(
        "fuse.canopy a:b\nfuse.mergerfs old\nfuse.canopy {dir}/with space\nfuse.canopy a:b\nfuse.mergerfs {dir}/b\n\
         5\nmfs\n"
    );
    assert_eq!(done.stdout, expected, "{}", done.describe());
    assert_eq!(done.stderr.lines().filter(|line| line.starts_with("canopy:")).count(), 0, "{}", done.stderr);
}

#[test]
fn setuid_runs_the_daemon_as_that_user() {
    let bed = bed();
    for name in ["a", "b", "p"] {
        chown(bed.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // A copy that the user can execute.
    let copy = bed.path("program");
    copy_program(fs::canonicalize(bed.path("sbin/canopy")).unwrap(), &copy);
    fs::remove_file(bed.path("sbin/mount.canopy")).unwrap();
    symlink(&copy, bed.path("sbin/mount.canopy")).unwrap();
    let script = r#"
        mkdir "$1/dev"; mount -t tmpfs none "$1/dev"
        mknod "$1/dev/fuse" c 10 229; chmod 666 "$1/dev/fuse"; mount --bind "$1/dev/fuse" /dev/fuse
        "$1/sbin/mount.canopy" "$1/a:$1/b" "$1/p" -o minfreespace=0,setuid=nobody,rw
        grep " $1/p " /proc/self/mountinfo | grep -o 'fuse.canopy\|user_id=[0-9]*'
        setpriv --reuid nobody --regid 65534 --clear-groups sh -c 'echo x > "$1/p/file"' sh "$1"
        cat "$1"/[ab]/file; stat -c %u "$1"/[ab]/file
        umount "$1/p"
        # The same from fstab, twice; the second `mount -a` has nothing to do.
        mount --bind "$1/sbin" "$(realpath /sbin)"
        echo "$1/a:$1/b $1/p canopy nofail,_netdev,x-systemd.requires=/a,setuid=nobody,minfreespace=0 0 0" > "$1/fstab"
        mount -T "$1/fstab" -a; mount -T "$1/fstab" -a
        grep " $1/p " /proc/self/mountinfo | grep -o 'fuse.canopy\|user_id=[0-9]*'
        umount "$1/p""#;
    let done = in_namespace(&bed, script);
    let _ = fs::remove_dir(bed.path("dev"));
    assert!(done.success(), "{}", done.describe());
    assert_eq!(
        done.stdout,
        "fuse.canopy\nuser_id=65534\nx\n65534\nfuse.canopy\nuser_id=65534\n",
        "{}",
        done.describe()
    );
    assert_eq!(done.stderr, "");
    bed.wait_for_daemons(0);
}
