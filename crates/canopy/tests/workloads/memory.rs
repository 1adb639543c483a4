//! More files than the daemon's memory holds.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, PATIENCE, Pool, require_root};

use super::rig::shell_ok;

const BRANCHES: usize = 8;
const FILES_OF_A_DIR: usize = 1000;

/// Makes empty files on eight branches, and returns these.
fn branches(disk: &LoopFs, files: usize) -> Vec<PathBuf> {
    let branches: Vec<PathBuf> = (0..BRANCHES).map(|n| disk.path().join(format!("branch{n}"))).collect();
    for dir in 0..files / FILES_OF_A_DIR {
        let dir = format!("dir{:02}/sub{dir:04}", dir % 100);
        branches.iter().for_each(|branch| fs::create_dir_all(branch.join(&dir)).expect("a directory"));
        for file in 0..FILES_OF_A_DIR {
            let path = branches[file % BRANCHES].join(&dir).join(format!("file-{file:06}.dat"));
            File::create(path).expect("a file");
        }
    }
    branches
}

/// Looks at each file, and returns how many there are.
fn walk(root: &Path) -> usize {
    shell_ok(root, "find . -type f -size -1 | wc -l", &[]).trim().parse().expect("a number")
}

/// A control group that is removed when this is dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn with_memory(bytes: u64) -> ControlGroup {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("canopy-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let version_1 = Path::new("/sys/fs/cgroup/memory");
        let (top, limit) = if version_1.join("memory.limit_in_bytes").exists() {
            (version_1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let group = ControlGroup(top.join(name));
        fs::create_dir(&group.0).expect("a control group");
        fs::write(group.0.join(limit), bytes.to_string()).expect("a limit of memory");
        group
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A process leaves its group some time after it ended.
        wait_until(PATIENCE, || fs::remove_dir(&self.0).is_ok());
    }
}

/// Walks more files than a daemon with 64 MB could know at once, on a kernel that looks like this.
fn walk_with_little_memory(kernel: &str) {
    require_root();
    const FILES: usize = 400_000;
    let group = ControlGroup::with_memory(64 << 20);
    let disk = LoopFs::new(Kind::Tmpfs, 1 << 30);
    let branches = branches(&disk, FILES);
    let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy")).branches(branches);
    let pool = builder.env("CANOPY_TEST_KERNEL", kernel).in_control_group(&group.0).mount();
    let path = pool.path().join("dir00/sub0000/file-000000.dat");
    let open = File::options().append(true).open(&path).expect("a file");
    assert_eq!(walk(pool.path()), FILES);
    assert!(pool.is_alive());
    // A file that was in use meanwhile is still the same one.
    fs::write(&path, b"text").expect("a write");
    assert_eq!(open.metadata().expect("attributes").len(), 4);
}

#[test]
fn a_daemon_with_little_memory_lets_the_kernel_forget() {
    walk_with_little_memory("");
}

/// Before 7.45 the kernel cannot be asked to prune; it is told of names one by one.
#[test]
fn a_daemon_with_little_memory_lets_an_older_kernel_forget() {
    walk_with_little_memory("minor:44");
}
