//! A pool that prefers its first branch, and what it reports about the health of its branches.

pub(super) use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{LoopFs, Pool, PoolBed};
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Mounts a pool that creates entries on the first branch that accepts them.
#[track_caller]
pub(super) fn pool_over(disks: Vec<LoopFs>, options: &str) -> PoolBed {
    let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .option("minfreespace=0,category.create=ff")
        .option(options);
    PoolBed::mount(builder, disks)
}

/// Returns the state that the pool reports for an unhealthy branch, or `None` for a healthy one.
#[track_caller]
pub(super) fn illness(bed: &PoolBed, branch: usize) -> Option<String> {
    let status = bed.pool.status();
    let path = bed.disks[branch].path();
    let branches = status["branches"].as_array().expect("branches");
    let found = branches.iter().find(|found| found["path"] == path.to_str().expect("text"));
    let found = found.unwrap_or_else(|| panic!("{} is missing: {status:#}", path.display()));
    found["illness"]["health"].as_str().map(str::to_owned)
}

/// Waits until the pool reports this state for a branch.
#[track_caller]
pub(super) fn wait_for_illness(bed: &PoolBed, branch: usize, expected: Option<&str>) {
    let mut last = None;
    let reached = wait_until(PATIENCE, || {
        last = illness(bed, branch);
        last.as_deref() == expected
    });
    assert!(reached, "branch {branch} is {last:?} instead of {expected:?}\n{}", bed.pool.log());
}

/// Creates a file, a directory, a symlink, a fifo and an unnamed file. Returns the names.
#[track_caller]
pub(super) fn make_all_kinds(bed: &PoolBed, prefix: &str) -> Vec<String> {
    let name = |kind: &str| format!("{prefix}{kind}");
    let cannot =
        |what: &str, why: &dyn std::fmt::Display| -> ! { panic!("{what}: {why}\n{}", bed.pool.log()) };
    fs::write(bed.at(&name("file")), prefix).unwrap_or_else(|why| cannot("create", &why));
    fs::create_dir(bed.at(&name("dir"))).unwrap_or_else(|why| cannot("mkdir", &why));
    std::os::unix::fs::symlink("x", bed.at(&name("link"))).unwrap_or_else(|why| cannot("symlink", &why));
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, bed.at(&name("fifo")), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap_or_else(|why| cannot("mknod", &why));
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    rustix::fs::open(bed.pool.path(), flags, mode).unwrap_or_else(|why| cannot("O_TMPFILE", &why));
    ["file", "dir", "link", "fifo"].map(name).to_vec()
}

/// Asserts that these names are on this branch only.
#[track_caller]
pub(super) fn assert_only_on(bed: &PoolBed, branch: usize, names: &[String]) {
    for name in names {
        assert_eq!(bed.branches_with(name), [branch], "{name}");
    }
}

pub(super) fn is_fifo(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.file_type().is_fifo() && meta.permissions().mode() & 0o777 != 0)
}

/// Makes ext4 report an error.
#[track_caller]
pub(super) fn trigger_error(disk: &LoopFs) {
    let device = disk.device().and_then(Path::file_name).expect("a loop device");
    let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
    fs::write(trigger, "for a test").expect("an error of ext4");
}
