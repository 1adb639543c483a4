//! Changes that cannot be watched, or not all of them, and limits on the cost of watching.

use super::rig::{BINARY, builder, look, two_disks};
use super::warm_walks::without_daemon;

pub(super) use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Kind, LoopFs, Paused, Submount, proc, require_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn changes_show_after_the_event_queue_overflows() {
    let bed = two_disks(Kind::Tmpfs, "");
    let queue = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").expect("a limit");
    let queue: u32 = queue.trim().parse().expect("a number");
    fs::write(bed.on(0, "goes"), "").expect("a file");
    fs::write(bed.on(0, "changes"), "").expect("a file");
    fs::create_dir(bed.on(1, "fill")).expect("mkdir");
    fs::create_dir_all(bed.on(1, "with/mount")).expect("mkdir");
    let nested = Submount::tmpfs(bed.at("with/mount"));
    let seen = || ["goes", "comes", "changes"].map(|name| look(&bed.at(name)));
    seen();
    std::thread::sleep(Duration::from_millis(200));
    let was = seen();
    {
        let _paused = Paused::new(bed.pool.pid());
        for number in 0..queue + 1000 {
            fs::create_dir(bed.on(1, &format!("fill/{number}"))).expect("mkdir");
        }
        // The queue is full, so these changes produce no events.
        fs::remove_file(bed.on(0, "goes")).expect("removal");
        fs::write(bed.on(0, "comes"), "").expect("a file");
        fs::set_permissions(bed.on(0, "changes"), fs::Permissions::from_mode(0o600)).expect("chmod");
    }
    let right = ["goes", "comes", "changes"].map(|name| look(&bed.on(0, name)));
    assert_ne!(was, right);
    assert!(wait_until(PATIENCE, || seen() == right), "{:?}", seen());
    // Until the last repeated notification.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(nested.file().exists(), "the filesystem mounted in the pool is gone");
    drop(nested);
    let log = bed.pool.umount();
    assert!(log.contains("the queue of changes on the branches has overflowed"), "{log}");
}

/// Asserts that changes at `on` show at `at`. Where changes are not watched, missing names are not cached and other
/// entries are cached only briefly.
pub(super) fn assert_changes_follow(at: &Path, on: &Path) {
    assert_eq!(look(at), "entity not found");
    fs::write(on, "").expect("a file");
    assert_soon_alike(at, on);
    fs::set_permissions(on, fs::Permissions::from_mode(0o600)).expect("chmod");
    assert_soon_alike(at, on);
    fs::remove_file(on).expect("removal");
    assert_soon_alike(at, on);
}

#[track_caller]
fn assert_soon_alike(at: &Path, on: &Path) {
    let same = wait_until(PATIENCE, || look(at) == look(on));
    assert!(same, "{} is {}, {} is {}", at.display(), look(at), on.display(), look(on));
}

#[test]
fn changes_on_a_branch_that_cannot_be_watched_show_soon() {
    require_root();
    for (value, level) in [("auto", "INFO"), ("watch", "WARN")] {
        let inner = two_disks(Kind::Tmpfs, "");
        let other = LoopFs::tmpfs(64 << 20);
        let outer = builder(&format!("cache.coherence={value}"))
            .branch(inner.pool.path())
            .branch(other.path())
            .mount();
        assert_changes_follow(&outer.path().join("f"), &inner.on(1, "f"));
        assert_changes_follow(&outer.path().join("g"), &other.path().join("g"));
        let log = outer.umount();
        let message = log.lines().find(|line| line.contains("are not watched"));
        let path = inner.pool.path().display().to_string();
        assert!(message.is_some_and(|line| line.contains(level) && line.contains(&path)), "{value}: {log}");
        inner.pool.umount();
    }
}

#[test]
fn changes_on_another_filesystem_below_a_branch_show_soon() {
    let bed = two_disks(Kind::Tmpfs, "");
    fs::create_dir_all(bed.on(0, "dir/sub/below")).expect("mkdir");
    let known = |path: &str| look(&bed.at(path));
    assert!(known("dir/sub/below").starts_with("40"));
    assert_eq!(known("dir/sub/f"), "entity not found");
    {
        let point = bed.on(0, "dir/sub");
        let nested = Submount::tmpfs(point);
        assert!(wait_until(PATIENCE, || known("dir/sub/below") == "entity not found"));
        assert_changes_follow(&bed.at("dir/sub/f"), &nested.path().join("f"));
        fs::create_dir(nested.path().join("d")).expect("mkdir");
        assert!(wait_until(PATIENCE, || known("dir/sub/d").starts_with("40")));
        assert_changes_follow(&bed.at("dir/sub/d/f"), &nested.path().join("d/f"));
        // The directory beside the mount point is still watched.
        assert_changes_follow(&bed.at("dir/f"), &bed.on(0, "dir/f"));
        // Cached dentries of the pool keep the mount busy; they must go before it can be unmounted.
        bed.pool.drop_dentries();
    }
    assert!(wait_until(PATIENCE, || known("dir/sub/below").starts_with("40")));
    assert_changes_follow(&bed.at("dir/sub/f"), &bed.on(0, "dir/sub/f"));
    bed.pool.umount();
}

#[test]
fn changes_on_an_added_branch_show_until_it_is_removed() {
    let bed = two_disks(Kind::Tmpfs, "");
    let mut third = LoopFs::ext4(64 << 20);
    for _ in 0..3 {
        bed.pool.set("branches", &format!("+>{}", third.path().display()));
        for round in 0..5 {
            let name = format!("f{round}");
            assert_changes_follow(&bed.at(&name), &third.path().join(&name));
        }
        bed.pool.set("branches", &format!("-{}", third.path().display()));
    }
    fs::write(third.path().join("f"), "").expect("a file");
    assert_eq!(look(&bed.at("f")), "entity not found");
    // The pool no longer keeps the branch busy.
    third.unmount();
    bed.pool.umount();
}

/// Root in a user namespace may mount, but may not watch filesystems that belong to other namespaces.
const WITHOUT: &str = r#"
    cd "$1"
    "$2" mount -f -o minfreespace=0 a p 2> log > log & server=$!
    until grep -q " $1/p .* fuse" /proc/self/mountinfo; do sleep 0.02; done
    until stat p > /dev/null 2>&1; do sleep 0.02; done
    ! stat p/f 2> /dev/null
    echo x > a/f
    until stat p/f > /dev/null 2>&1; do sleep 0.02; done
    chmod 600 a/f
    until [ "$(stat -c %a p/f)" = 600 ]; do sleep 0.02; done
    rm a/f
    until ! stat p/f > /dev/null 2>&1; do sleep 0.02; done
    umount p; wait $server; cat log
"#;

#[test]
fn changes_show_soon_without_the_privilege_to_watch() {
    require_root();
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().canonicalize().expect("a path");
    for name in ["a", "p"] {
        fs::create_dir(path.join(name)).expect("mkdir");
    }
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-euc", WITHOUT, "sh"]).arg(&path).arg(BINARY);
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success(), "{}", done.describe());
    assert!(done.stdout.contains("are not watched"), "{}", done.describe());
}

/// The pool's own changes come back as events, but the daemon does not notify the kernel of them, because the kernel
/// knows them already. What a program writes with passthrough is another's change: it is told when it is seen, and at the close.
#[test]
fn the_pool_does_not_notify_the_kernel_of_its_own_changes() {
    const FILES: u64 = 500;
    let calls = |coherence: &str, passthrough: &str| {
        let options =
            format!("cache.coherence={coherence},passthrough.io={passthrough},cache.entry=60,cache.attr=60");
        let bed = two_disks(Kind::Tmpfs, &options);
        // Other programs look at the root of every filesystem, and what they may be given a moment later is told.
        fs::create_dir(bed.at("dir")).expect("mkdir");
        let count = || proc::io_counter(bed.pool.pid(), "syscw");
        let before = count();
        for number in 0..FILES {
            let path = bed.at(&format!("dir/f{number}"));
            fs::write(&path, "x").expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
            fs::remove_file(&path).expect("removal");
        }
        std::thread::sleep(Duration::from_millis(200));
        let calls = count() - before;
        bed.pool.umount();
        calls
    };
    for (passthrough, told) in [("off", 0), ("rw", 2 * FILES)] {
        let (timeout, watch) = (calls("timeout", passthrough), calls("watch", passthrough));
        assert!(
            watch < timeout + told + 100,
            "passthrough.io={passthrough}: the daemon made {watch} write calls, {timeout} without watching"
        );
    }
}

/// The kernel caches missing names and attributes of recently changed files, and answers without the daemon. Changes of
/// a file that stays open on the branch still show.
#[test]
fn recent_files_and_missing_names_are_cached() {
    let bed = two_disks(Kind::Tmpfs, "");
    let known = (0..10).any(|round| {
        let dir = format!("d{round}");
        fs::create_dir(bed.on(0, &dir)).expect("mkdir");
        let paths = ["f", "missing"].map(|name| bed.at(&format!("{dir}/{name}")));
        fs::write(&paths[0], "x").expect("a file through the pool");
        // Until the last repeated notification about these names.
        std::thread::sleep(Duration::from_millis(2300));
        let ask = || paths.each_ref().map(|path| look(path));
        let before = ask();
        assert_eq!(before[1], "entity not found");
        std::thread::sleep(Duration::from_millis(3200));
        without_daemon(&bed, ask).is_some_and(|after| after == before)
    });
    assert!(known, "the kernel had to ask the daemon");
    for size in [5, 5000, 3] {
        let file = fs::File::options().write(true).open(bed.on(0, "d0/f")).expect("a file");
        // The file stays open.
        file.set_len(size).expect("truncate");
        assert!(wait_until(PATIENCE, || look(&bed.at("d0/f")) == look(&bed.on(0, "d0/f"))));
    }
    bed.pool.umount();
}
