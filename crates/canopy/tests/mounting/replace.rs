//! Mounting over a pool replaces it, whether by the program, mount(8) or fstab.

use canopy_testkit::cmd::{Finished, run_within, wait_until};
use canopy_testkit::{CliBed, PATIENCE, proc};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Creates two branches, a mountpoint, and links to the program under its names.
fn bed() -> CliBed {
    let bed = CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-replace-", &["a", "b", "p", "sbin"])
        .with_config_dir("a")
        .with_names(&["canopy", "mergerfs", "mount.mergerfs", "mount.canopy"]);
    for branch in ["a", "b"] {
        fs::write(bed.path(branch).join("both"), branch).unwrap();
        fs::write(bed.path(branch).join(format!("only-{branch}")), branch).unwrap();
    }
    bed
}

/// Runs a command that must succeed, and returns its stderr.
#[track_caller]
fn stderr_of(bed: &CliBed, line: &str) -> String {
    let done = bed.run_as(line);
    assert!(done.success() && done.stdout.is_empty(), "{line}: {}", done.describe());
    done.stderr
}

/// Returns the mounts on `p`, lowest first.
fn stack(bed: &CliBed) -> Vec<proc::Mount> {
    proc::mounts().into_iter().filter(|mount| mount.point == bed.path("p")).collect()
}

fn kinds(bed: &CliBed) -> Vec<String> {
    stack(bed).into_iter().map(|mount| mount.kind).collect()
}

/// Runs a script in a new mount namespace, with the links where mount(8) looks for helpers; `$1` is the directory.
fn private(bed: &CliBed, propagation: &str, script: &str) -> Finished {
    let script = format!(
        r#"trap 'umount -l "$1/p" 2> /dev/null || :' EXIT; mount --bind "$1/sbin" "$(realpath /sbin)"; {script}"#
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", propagation, "sh", "-ec", &script, "sh"]).arg(bed.dir());
    run_within(command.env("CANOPY_CONFIG_DIR", bed.path("a")), 2 * PATIENCE)
}

#[test]
fn the_newer_pool_replaces_the_older_one_which_ends() {
    let bed = bed();
    assert_eq!(stderr_of(&bed, "canopy mount @a @p"), "");
    let stderr = stderr_of(&bed, "canopy mount @b @p");
    let (source, place) = (bed.path("a"), bed.path("p"));
    assert_eq!(
        stderr,
        format!(
            "canopy: replaced pool {} on {}; it ends when the files that are open in it are closed\n",
            source.display(),
            place.display()
        )
    );
    assert_eq!(kinds(&bed), ["fuse.canopy"], "the mounts are stacked");
    assert!(bed.path("p/only-b").exists() && !bed.path("p/only-a").exists());
    bed.wait_for_daemons(1);
    // Replacement works whatever program name mounted each pool.
    for (line, kind) in [
        ("mergerfs @a @p", "fuse.mergerfs"),
        ("mount.mergerfs @b @p", "fuse.mergerfs"),
        ("canopy mount @a @p", "fuse.canopy"),
    ] {
        assert_eq!(stderr_of(&bed, line).lines().count(), 1, "{line}");
        assert_eq!(kinds(&bed), [kind]);
        bed.wait_for_daemons(1);
    }
    bed.umount("@p");
    assert_eq!(kinds(&bed), [""; 0]);
}

#[test]
fn open_files_stay_with_the_older_pool_until_they_are_closed() {
    let bed = bed();
    stderr_of(&bed, "canopy mount @a @p");
    let mut held = fs::File::options().read(true).append(true).open(bed.path("p/both")).unwrap();
    stderr_of(&bed, "canopy mount @b @p");
    bed.wait_for_daemons(2);
    held.write_all(b" and more").unwrap();
    held.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "a and more");
    assert_eq!(fs::read_to_string(bed.path("a/both")).unwrap(), "a and more");
    assert_eq!(fs::read_to_string(bed.path("p/both")).unwrap(), "b");
    // Ending the older pool does not affect the newer one.
    drop(held);
    bed.wait_for_daemons(1);
    assert_eq!(fs::read_to_string(bed.path("p/both")).unwrap(), "b");
    bed.umount("@p");
}

#[test]
fn terminating_the_older_pool_does_not_affect_the_newer_one() {
    let bed = bed();
    stderr_of(&bed, "canopy mount @a @p");
    let older = bed.daemons().remove(0);
    let held = fs::File::open(bed.path("p/both")).unwrap();
    stderr_of(&bed, "canopy mount @b @p");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(older.pid).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert!(wait_until(PATIENCE, || !bed.daemons().contains(&older)));
    assert_eq!(kinds(&bed), ["fuse.canopy"]);
    assert_eq!(fs::read_to_string(bed.path("p/both")).unwrap(), "b");
    drop(held);
    bed.umount("@p");
}

#[test]
fn replacement_leaves_no_moment_without_a_pool() {
    let bed = bed();
    // A write to the bare mountpoint would be hidden below the pool.
    assert_eq!(fs::read_dir(bed.path("p")).unwrap().count(), 0);
    stderr_of(&bed, "canopy mount -o minfreespace=0 @a @p");
    let (stop, tries) = (AtomicBool::new(false), AtomicU32::new(0));
    let path = |name: &str| bed.path("p").join(name);
    let failures = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut failed = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let number = tries.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = fs::read(path("both")) {
                    failed.push(format!("read {number}: {error}"));
                }
                if let Err(error) = fs::write(path(&format!("made-{number}")), "x") {
                    failed.push(format!("write {number}: {error}"));
                }
            }
            failed
        });
        for branch in ["b", "a", "b", "a", "b", "a"] {
            let before = tries.load(Ordering::Relaxed);
            stderr_of(&bed, &format!("canopy mount -o minfreespace=0 @{branch} @p"));
            assert!(wait_until(PATIENCE, || tries.load(Ordering::Relaxed) > before + 20));
        }
        stop.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    assert_eq!(failures, [""; 0]);
    bed.umount("@p");
    assert_eq!(fs::read_dir(bed.path("p")).unwrap().count(), 0, "a write reached the bare mountpoint");
    for number in 0..tries.load(Ordering::Relaxed) {
        let name = format!("made-{number}");
        let made = ["a", "b"].iter().filter(|branch| bed.path(branch).join(&name).exists()).count();
        assert_eq!(made, 1, "{name}");
    }
}

#[test]
fn writeback_data_of_the_older_pool_is_not_lost() {
    let bed = bed();
    let options = "-o cache.writeback=true,cache.files=full,minfreespace=0";
    stderr_of(&bed, &format!("canopy mount {options} @a @p"));
    let mut held = fs::File::options().append(true).open(bed.path("p/both")).unwrap();
    held.write_all(&vec![b'x'; 1 << 20]).unwrap();
    stderr_of(&bed, &format!("canopy mount {options} @a @p"));
    // The newer pool shows the data at once, although the file is still open in the older one.
    assert_eq!(fs::read(bed.path("p/both")).unwrap().len(), 1 + (1 << 20));
    drop(held);
    bed.wait_for_daemons(1);
    bed.umount("@p");
}

#[test]
fn other_filesystems_are_never_detached() {
    let bed = bed();
    mount("none", bed.path("p"), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(bed.path("p/theirs"), "x").unwrap();
    stderr_of(&bed, "canopy mount --over @a @p");
    stderr_of(&bed, "canopy mount @b @p");
    assert_eq!(kinds(&bed), ["tmpfs", "fuse.canopy"]);
    // The same holds for a filesystem mounted over a pool.
    mount("none", bed.path("p"), "tmpfs", MountFlags::empty(), None).unwrap();
    stderr_of(&bed, "canopy mount @a @p");
    assert_eq!(kinds(&bed), ["tmpfs", "fuse.canopy", "tmpfs", "fuse.canopy"]);
    stderr_of(&bed, "canopy umount @p");
    unmount(bed.path("p"), UnmountFlags::empty()).unwrap();
    bed.umount("@p");
    assert_eq!(fs::read_to_string(bed.path("p/theirs")).unwrap(), "x");
    unmount(bed.path("p"), UnmountFlags::empty()).unwrap();
}

#[test]
fn a_pool_with_a_mount_inside_is_not_replaced() {
    let bed = bed();
    stderr_of(&bed, "canopy mount @a @p");
    fs::create_dir(bed.path("p/inner")).unwrap();
    mount("none", bed.path("p/inner"), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(bed.path("p/inner/theirs"), "x").unwrap();
    let done = bed.run_as("canopy mount @b @p");
    assert!(!done.success() && done.stderr.lines().count() == 1, "{}", done.describe());
    let expected = format!("cannot be replaced: {} is mounted in it", bed.path("p/inner").display());
    assert!(done.stderr.contains(&expected), "{}", done.describe());
    assert_eq!(fs::read_to_string(bed.path("p/inner/theirs")).unwrap(), "x");
    assert_eq!(fs::read_to_string(bed.path("p/both")).unwrap(), "a");
    // lazy-umount-mountpoint replaces it anyway.
    assert_eq!(stderr_of(&bed, "canopy mount -o lazy-umount-mountpoint=true @b @p"), "");
    assert_eq!((fs::read_to_string(bed.path("p/both")).unwrap().as_str(), kinds(&bed).len()), ("b", 1));
    bed.wait_for_daemons(1);
    bed.umount("@p");
}

#[test]
fn a_failed_mount_replaces_nothing() {
    let bed = bed();
    stderr_of(&bed, "canopy mount @a @p");
    let before = stack(&bed);
    for line in [
        "canopy mount @none @p",
        "canopy mount @p @p",
        "canopy mount @p/sub @p",
        "canopy mount -o cache.file=off @b @p",
        // Only the kernel detects this mistake.
        "canopy mount -o rootcontext=no-such-context @b @p",
    ] {
        let done = bed.run_as(line);
        assert!(!done.success() && done.stderr.lines().count() == 1, "{line}: {}", done.describe());
        assert_eq!(stack(&bed), before, "{line}");
    }
    bed.wait_for_daemons(1);
    bed.umount("@p");
}

#[test]
fn a_replacing_mount_has_the_same_options_as_a_first_one() {
    let bed = bed();
    for options in [
        "ro,noatime,nodiratime,noexec,suid,dev",
        "sync,dirsync,strictatime,lazytime,fsname=a\\,b\\040c",
        "relatime,max_read=65536,kernel-permissions-check=false",
        "nosuid,nodev,noatime",
    ] {
        let show = || -> Vec<String> {
            let line = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let place = bed.path("p").to_str().unwrap().to_owned();
            let line = line.lines().find(|line| line.split(' ').nth(4) == Some(&place)).unwrap().to_owned();
            line.split(' ').skip(5).map(str::to_owned).collect()
        };
        stderr_of(&bed, &format!("canopy mount -o {options} @a @p"));
        let plain = show();
        stderr_of(&bed, &format!("canopy mount -o {options} @a @p"));
        assert_eq!(show(), plain, "{options}");
        bed.umount("@p");
    }
}

#[test]
fn replacement_propagates_like_the_mount() {
    let bed = bed();
    for name in ["tree", "tree/p", "peer", "slave"] {
        fs::create_dir(bed.path(name)).unwrap();
    }
    let script = r#"
        cd "$1"
        mount --bind tree tree; mount --make-shared tree
        mount --bind tree peer; mount --bind tree slave; mount --make-slave slave
        trap 'umount -l tree/p tree peer slave 2> /dev/null || :' EXIT
        count() { for at in tree peer slave; do grep -c " $1/$at/p .* fuse.canopy" /proc/self/mountinfo || :; done; }
        sbin/canopy mount a tree/p
        sbin/canopy mount b tree/p 2> /dev/null
        count "$1"; cat tree/p/both peer/p/both slave/p/both; echo
        sbin/canopy umount tree/p
        count "$1""#;
    let done = private(&bed, "private", script);
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    assert_eq!(done.stdout, "1\n1\n1\nbbb\n0\n0\n0\n", "{}", done.describe());
    // The same with all mounts shared, the default of systemd.
    let script = r#"
        "$1/sbin/canopy" mount "$1/a" "$1/p"
        "$1/sbin/canopy" mount "$1/b" "$1/p" 2> /dev/null
        grep -c " $1/p .* fuse.canopy" /proc/self/mountinfo; cat "$1/p/both"; echo
        "$1/sbin/canopy" umount "$1/p""#;
    let done = private(&bed, "shared", script);
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    assert_eq!(done.stdout, "1\nb\n", "{}", done.describe());
    bed.wait_for_daemons(0);
}

#[test]
fn a_pool_that_cannot_be_replaced_is_hidden_with_a_warning() {
    let bed = bed();
    stderr_of(&bed, "canopy mount @a @p");
    // Root in a user namespace may not detach mounts made outside.
    let script = r#"
        "$1/sbin/canopy" mount "$1/b" "$1/p"; cat "$1/p/both"; echo
        "$1/sbin/canopy" umount "$1/p"; cat "$1/p/both"; echo"#;
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-ec", script, "sh"]).arg(bed.dir());
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(done.stdout, "b\na\n", "{}", done.describe());
    assert!(
        done.stderr.contains("already has a pool") && done.stderr.lines().count() == 1,
        "{}",
        done.describe()
    );
    bed.wait_for_daemons(1);
    bed.umount("@p");
}

#[test]
fn a_second_mount_all_does_nothing() {
    let bed = bed();
    let dir = bed.dir();
    let dir = dir.display();
    fs::write(bed.path("a/twice.toml"), format!("branches = [\"{dir}/b\"]\ncache.attr = 5\n")).unwrap();
    for (source, options, shown) in [
        (format!("{dir}/a:{dir}/b"), "nofail,x-systemd.requires=/a,cache.attr=5", "a:b"),
        ("twice".into(), "defaults,_netdev", "twice"),
        (format!("{dir}/a/twice.toml"), "defaults,nofail", "twice"),
    ] {
        fs::write(bed.path("fstab"), format!("{source} {dir}/p canopy {options} 0 0\n")).unwrap();
        let script = r#"
            key() { getfattr --only-values -n "user.mergerfs.$1" "$2/p/.mergerfs" 2> /dev/null; }
            mount -T "$1/fstab" -a; first=$(key pid "$1")
            setfattr -n user.mergerfs.cache.attr -v 6 "$1/p/.mergerfs"
            mount -T "$1/fstab" -a; mount -T "$1/fstab" "$1/p" 2> /dev/null || :
            test "$(key pid "$1")" = "$first"
            grep -c " $1/p " /proc/self/mountinfo; key cache.attr "$1"; echo
            mount -t canopy -o cache.entry=9 "@WHAT@" "$1/p" 2> /dev/null
            test "$(key pid "$1")" != "$first"
            grep -c " $1/p " /proc/self/mountinfo; key cache.entry "$1"; echo
            umount "$1/p"
            # A pool name stays a name even if the working directory has an entry of that name.
            mkdir -p "$1/work/twice"; cd "$1/work"
            mount -T "$1/fstab" -a; first=$(key pid "$1"); mount -T "$1/fstab" -a
            test "$(key pid "$1")" = "$first"; findmnt -no SOURCE "$1/p"
            cd /; umount "$1/p""#
            .replace("@WHAT@", &source);
        let done = private(&bed, "private", &script);
        assert!(done.success(), "{source}: {}", done.describe());
        assert_eq!(done.stdout, format!("1\n6\n1\n9\n{shown}\n"), "{source}: {}", done.describe());
        bed.wait_for_daemons(0);
    }
}
