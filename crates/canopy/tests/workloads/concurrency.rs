//! Many processes and threads in the same directories: no file is lost or duplicated, no descriptor leaks, and the
//! daemon's memory stays bounded.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use canopy_testkit::cmd::{wait_until, wait_within};
use canopy_testkit::{Kind, PATIENCE, Pool, Rng, Tree};

use super::rig::Disks;

const THREADS: u64 = 8;
const PROCESSES: usize = 16;
const STEPS: usize = 1500;

/// Returns the resident memory of a process, in bytes.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// Returns whether concurrent work by others explains an error.
fn excused(error: &std::io::Error) -> bool {
    use ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | AlreadyExists | IsADirectory | NotADirectory | DirectoryNotEmpty)
        // A rename of a directory into itself.
        || error.kind() == ErrorKind::InvalidInput
}

/// Does random operations on a few shared names, and returns the faults it found.
fn random_operations(root: &Path, seed: u64) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let mut faults = Vec::new();
    let path = |rng: &mut Rng| {
        let (dir, name) = (rng.below(4), rng.below(12));
        match rng.below(4) {
            0 => root.join(format!("d{dir}")),
            1 => root.join(format!("d{dir}/e{}", name % 3)).join(format!("f{name}")),
            _ => root.join(format!("d{dir}/f{name}")),
        }
    };
    for step in 0..STEPS {
        let (one, two) = (path(&mut rng), path(&mut rng));
        let (what, result) = match rng.below(9) {
            0 => ("mkdir", fs::create_dir_all(root.join(format!("d{}/e{}", rng.below(4), rng.below(3))))),
            1 | 2 => ("write", fs::write(&one, seed.to_le_bytes().repeat(64))),
            3 => ("rename", fs::rename(&one, &two)),
            4 => ("unlink", fs::remove_file(&one)),
            5 => ("stat", fs::symlink_metadata(&one).map(drop)),
            6 => ("link", fs::hard_link(&one, &two)),
            7 => (
                "list",
                fs::read_dir(root.join(format!("d{}", rng.below(4))))
                    .map(|dir| assert!(dir.count() < 10_000)),
            ),
            _ => (
                "read",
                fs::read(&one).map(|bytes| {
                    if bytes.len() > 512 || bytes.chunks(8).any(|chunk| chunk != &bytes[..8]) {
                        faults.push(format!("{}: mixed content", one.display()));
                    }
                }),
            ),
        };
        // link(2) on a directory fails with EPERM.
        if let Err(error) = result.as_ref()
            && !excused(error)
            && !(what == "link" && error.kind() == ErrorKind::PermissionDenied)
        {
            faults.push(format!("step {step}: {what} {} {}: {error}", one.display(), two.display()));
        }
    }
    faults
}

/// Starts shells that do similar work, and also fork and execute programs.
fn processes(root: &Path) -> Vec<Child> {
    let script = "cd \"$1\"; i=0
        while [ $i -lt 25 ]; do
            i=$((i+1)); d=d$((i%4))
            mkdir -p $d/e$((i%3)) 2>/dev/null
            echo $2 > $d/p$((i%5)) 2>/dev/null
            mv $d/p$((i%5)) d$(((i+1)%4))/p$((i%7)) 2>/dev/null
            [ -e $d/p$((i%7)) ] && read line < $d/p$((i%7)) 2>/dev/null
            [ $((i%5)) = 0 ] && rm -f $d/p$((i%7)) 2>/dev/null
            echo $i > own-$2-$i
        done; exit 0";
    (0..PROCESSES)
        .map(|index| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(root).arg(index.to_string());
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect()
}

#[track_caller]
fn check_concurrent_work(kinds: &[Kind], options: &str) {
    let disks = Disks::new(kinds);
    let pool = disks.pool(options);
    let root = pool.path();
    let pid = pool.pid();
    random_operations(root, 99);
    let (descriptors, memory) = (pool.settled_fd_count(0), resident(pid));
    let (mut most, mut largest) = (0, 0);
    let children = processes(root);
    let faults: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|seed| scope.spawn(move || random_operations(root, seed))).collect();
        wait_until(2 * PATIENCE, || {
            most = most.max(pool.fd_count());
            largest = largest.max(resident(pid));
            threads.iter().all(std::thread::ScopedJoinHandle::is_finished)
        });
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for mut child in children {
        let status = wait_within(&mut child, 2 * PATIENCE);
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }
    assert!(pool.is_alive(), "the daemon died:\n{}", pool.log());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(40)].join("\n"));
    assert!(most < 2000, "{most} descriptors at once");
    assert!(largest < memory + (96 << 20), "{memory} bytes of memory became {largest}");
    for process in 0..PROCESSES {
        for step in 1..=25 {
            assert!(root.join(format!("own-{process}-{step}")).exists(), "own-{process}-{step} is lost");
        }
    }
    let left = pool.settled_fd_count(descriptors);
    assert!(left <= descriptors, "descriptors: {descriptors} before, {left} after");

    let shown = Tree::capture(root);
    end(pool);
    let without_times = |mut tree: Tree| {
        tree.entries.values_mut().for_each(|entry| entry.mtime = None);
        tree
    };
    without_times(disks.union()).assert_same(&without_times(shown));
}

#[track_caller]
fn end(pool: Pool) {
    let log = pool.umount();
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
}

#[test]
fn sixteen_processes_and_eight_threads_on_two_branches() {
    check_concurrent_work(&[Kind::Ext4, Kind::Ext4], "");
}

#[test]
fn sixteen_processes_and_eight_threads_on_four_filesystem_types_without_passthrough() {
    let kinds = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs];
    check_concurrent_work(&kinds, "category.create=rand,passthrough.io=off,cache.files=auto-full");
}

/// Creating, listing and removing files over and over leaks neither memory nor descriptors.
#[test]
fn memory_and_descriptors_do_not_grow_with_work() {
    let disks = Disks::new(&[Kind::Tmpfs, Kind::Tmpfs]);
    let pool = disks.pool("category.create=rand");
    let round = |round: usize| {
        let dir = pool.path().join(format!("dir{round}"));
        fs::create_dir(&dir).unwrap();
        for index in 0..400 {
            fs::write(dir.join(format!("file{index}")), b"content").unwrap();
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 400);
        fs::remove_dir_all(&dir).unwrap();
    };
    (0..3).for_each(round);
    let descriptors = pool.settled_fd_count(0);
    let memory = resident(pool.pid());
    (3..15).for_each(round);
    let left = pool.settled_fd_count(descriptors);
    assert!(left <= descriptors, "descriptors: {descriptors} before, {left} after");
    let now = resident(pool.pid());
    assert!(now < memory + (16 << 20), "{memory} bytes of memory became {now}");
    end(pool);
}

/// Creating files deep in a tree clones the parent directory onto other branches while its attributes change. All
/// copies must have the same attributes afterwards.
#[test]
fn an_attribute_change_reaches_a_directory_copy_that_is_being_cloned() {
    let disks = Disks::new(&[Kind::Tmpfs, Kind::Tmpfs, Kind::Tmpfs, Kind::Tmpfs]);
    let pool = disks.pool("category.create=rand");
    let root = pool.path();
    for round in 0..150 {
        let top = root.join(format!("top{round}"));
        let below = top.join("middle/low");
        fs::create_dir_all(&below).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..6).for_each(|index| fs::write(below.join(format!("f{index}")), b"").unwrap()));
            for mode in [0o700, 0o2750, 0o1777, 0o711] {
                fs::set_permissions(&top, PermissionsExt::from_mode(mode)).unwrap();
                let value = mode.to_string();
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(&top, format!("user.mode{mode:o}"), value.as_bytes(), flags).unwrap();
                std::os::unix::fs::chown(&top, Some(mode), None).unwrap();
            }
        });
    }
    end(pool);
    let held = disks.union();
    assert_eq!(
        held.get("top7").map(|entry| (entry.mode, entry.uid, entry.xattrs.len())),
        Some((0o711, 0o711, 4))
    );
}
