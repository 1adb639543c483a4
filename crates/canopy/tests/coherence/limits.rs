//! Where changes cannot be watched, or not all of them; and what watching must not cost.

use super::rig::{BINARY, builder, look, two_disks};

use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Kind, LoopFs, Paused, Submount, proc, require_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Long enough for what is remembered briefly to be asked again, and much less than for what is watched.
pub(super) const SOON: Duration = Duration::from_secs(20);

#[test]
fn more_changes_than_can_be_told() {
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
        // Of these nothing can be told any more.
        fs::remove_file(bed.on(0, "goes")).expect("removal");
        fs::write(bed.on(0, "comes"), "").expect("a file");
        fs::set_permissions(bed.on(0, "changes"), fs::Permissions::from_mode(0o600)).expect("chmod");
    }
    let right = ["goes", "comes", "changes"].map(|name| look(&bed.on(0, name)));
    assert_ne!(was, right);
    assert!(wait_until(SOON, || seen() == right), "{:?}", seen());
    // The last repetition of what is told again.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(nested.file().exists(), "what was mounted in the pool is gone");
    drop(nested);
    let log = bed.pool.umount();
    assert!(log.contains("the queue of changes on the branches has overflowed"), "{log}");
}

/// Names that are missing are not remembered where they are not watched, and others briefly.
pub(super) fn follows_in_time(at: &Path, on: &Path) {
    assert_eq!(look(at), "entity not found");
    fs::write(on, "").expect("a file");
    wait_until_alike(at, on);
    fs::set_permissions(on, fs::Permissions::from_mode(0o600)).expect("chmod");
    wait_until_alike(at, on);
    fs::remove_file(on).expect("removal");
    wait_until_alike(at, on);
}

#[track_caller]
fn wait_until_alike(at: &Path, on: &Path) {
    let alike = wait_until(SOON, || look(at) == look(on));
    assert!(alike, "{} is {}, {} is {}", at.display(), look(at), on.display(), look(on));
}

#[test]
fn a_branch_that_cannot_be_watched() {
    require_root();
    for (value, level) in [("auto", "INFO"), ("watch", "WARN")] {
        let inner = two_disks(Kind::Tmpfs, "");
        let other = LoopFs::tmpfs(64 << 20);
        let outer = builder(&format!("cache.coherence={value}"))
            .branch(inner.pool.path())
            .branch(other.path())
            .mount();
        follows_in_time(&outer.path().join("f"), &inner.on(1, "f"));
        follows_in_time(&outer.path().join("g"), &other.path().join("g"));
        let log = outer.umount();
        let told = log.lines().find(|line| line.contains("are not watched"));
        let path = inner.pool.path().display().to_string();
        assert!(told.is_some_and(|line| line.contains(level) && line.contains(&path)), "{value}: {log}");
        inner.pool.umount();
    }
}

#[test]
fn another_filesystem_below_a_branch() {
    let bed = two_disks(Kind::Tmpfs, "");
    fs::create_dir_all(bed.on(0, "dir/sub/below")).expect("mkdir");
    let known = |path: &str| look(&bed.at(path));
    assert!(known("dir/sub/below").starts_with("40"));
    assert_eq!(known("dir/sub/f"), "entity not found");
    {
        let point = bed.on(0, "dir/sub");
        let nested = Submount::tmpfs(point);
        assert!(wait_until(SOON, || known("dir/sub/below") == "entity not found"));
        follows_in_time(&bed.at("dir/sub/f"), &nested.path().join("f"));
        fs::create_dir(nested.path().join("d")).expect("mkdir");
        assert!(wait_until(SOON, || known("dir/sub/d").starts_with("40")));
        follows_in_time(&bed.at("dir/sub/d/f"), &nested.path().join("d/f"));
        // What lies beside it is watched as before.
        follows_in_time(&bed.at("dir/f"), &bed.on(0, "dir/f"));
        // The pool's names lead there; it must be left before it can be unmounted.
        bed.pool.drop_dentries();
    }
    assert!(wait_until(SOON, || known("dir/sub/below").starts_with("40")));
    follows_in_time(&bed.at("dir/sub/f"), &bed.on(0, "dir/sub/f"));
    bed.pool.umount();
}

#[test]
fn branches_that_come_and_go() {
    let bed = two_disks(Kind::Tmpfs, "");
    let mut third = LoopFs::ext4(64 << 20);
    for _ in 0..3 {
        bed.pool.set("branches", &format!("+>{}", third.path().display()));
        for round in 0..5 {
            let name = format!("f{round}");
            follows_in_time(&bed.at(&name), &third.path().join(&name));
        }
        bed.pool.set("branches", &format!("-{}", third.path().display()));
    }
    fs::write(third.path().join("f"), "").expect("a file");
    assert_eq!(look(&bed.at("f")), "entity not found");
    // Nothing holds it any more.
    third.unmount();
    bed.pool.umount();
}

/// Root in a user namespace of its own may mount, but not watch what belongs to others.
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
fn without_the_privilege() {
    require_root();
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().canonicalize().expect("a path");
    for name in ["a", "p"] {
        fs::create_dir(path.join(name)).expect("mkdir");
    }
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-euc", WITHOUT, "sh"]).arg(&path).arg(BINARY);
    let done = run_within(&mut command, Duration::from_secs(60));
    assert!(done.success(), "{}", done.describe());
    assert!(done.stdout.contains("are not watched"), "{}", done.describe());
}

/// What the pool does itself comes back as events, and ends there: nothing is told to the kernel that it knows. But for
/// one thing: a file that its program wrote past the daemon is closed by that program.
#[test]
fn what_the_pool_does_is_not_told_back() {
    const FILES: u64 = 500;
    let written = |coherence: &str| {
        let bed =
            two_disks(Kind::Tmpfs, &format!("cache.coherence={coherence},cache.entry=60,cache.attr=60"));
        let count = || proc::io_counter(bed.pool.pid(), "syscw");
        let before = count();
        for number in 0..FILES {
            let path = bed.at(&format!("f{number}"));
            fs::write(&path, "x").expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
            fs::remove_file(&path).expect("removal");
        }
        std::thread::sleep(Duration::from_millis(200));
        let calls = count() - before;
        bed.pool.umount();
        calls
    };
    let (timeout, watch) = (written("timeout"), written("watch"));
    assert!(watch < timeout + FILES + 100, "{watch} writes of the daemon, {timeout} without watching");
}

/// What files were like a moment ago, and that a name was missing then, is known without the daemon; yet what somebody
/// writes on the branch without a word of it shows soon.
#[test]
fn young_files_and_missing_names_are_remembered() {
    let bed = two_disks(Kind::Tmpfs, "");
    let known = (0..10).any(|round| {
        let dir = format!("d{round}");
        fs::create_dir(bed.on(0, &dir)).expect("mkdir");
        let paths = ["f", "missing"].map(|name| bed.at(&format!("{dir}/{name}")));
        fs::write(&paths[0], "x").expect("a file through the pool");
        // Until what was told of these has been told for the last time.
        std::thread::sleep(Duration::from_millis(2300));
        let ask = || paths.each_ref().map(|path| look(path));
        let before = ask();
        assert_eq!(before[1], "entity not found");
        std::thread::sleep(Duration::from_millis(3200));
        let paused = Paused::new(bed.pool.pid());
        let (told, answer) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| told.send(ask()));
            let after = answer.recv_timeout(Duration::from_secs(2));
            drop(paused);
            after.is_ok_and(|after| after == before)
        })
    });
    assert!(known, "the daemon had to be asked");
    for size in [5, 5000, 3] {
        let file = fs::File::options().write(true).open(bed.on(0, "d0/f")).expect("a file");
        // Open all the while.
        file.set_len(size).expect("truncate");
        assert!(wait_until(SOON, || look(&bed.at("d0/f")) == look(&bed.on(0, "d0/f"))));
    }
    bed.pool.umount();
}
