//! A pool as the lower and the upper layer of overlayfs, as container engines use it.

use canopy_testkit::cmd::run;
use canopy_testkit::{LeakCheck, LoopFs, Pool, require_root};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// An overlay mount, unmounted on drop.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(pool: &Path, at: PathBuf) -> Overlay {
        let layer = |name: &str| pool.join(name).display().to_string();
        let options =
            format!("lowerdir={},upperdir={},workdir={}", layer("lower"), layer("upper"), layer("work"));
        run("mount", ["-t", "overlay", "overlay", "-o", &options, &at.display().to_string()]);
        Overlay(at)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        run("umount", [&self.0]);
    }
}

#[test]
fn a_pool_can_hold_all_layers_of_an_overlay() {
    require_root();
    let scratch = tempfile::tempdir().expect("a directory");
    let guard = LeakCheck::under(scratch.path());
    let disks = [LoopFs::ext4(256 << 20), LoopFs::ext4(256 << 20)];
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(disks[0].path())
        .branch(disks[1].path())
        .option("minfreespace=0,category.create=rand")
        .mount();
    for name in ["lower/dir", "upper", "work"] {
        fs::create_dir_all(pool.path().join(name)).expect("a layer");
    }
    fs::write(pool.path().join("lower/file"), "old").expect("a file below");
    fs::write(pool.path().join("lower/dir/inner"), "inner").expect("a file below");
    let at = scratch.path().join("merged");
    fs::create_dir(&at).expect("a mountpoint");
    {
        let overlay = Overlay::mount(pool.path(), at);
        let path = |name: &str| overlay.0.join(name);
        fs::write(path("file"), "new").expect("a copy up");
        // Renaming a file of the lower layer leaves a whiteout (RENAME_WHITEOUT).
        fs::rename(path("file"), path("moved")).expect("a rename");
        fs::remove_file(path("dir/inner")).expect("a whiteout");
        fs::remove_dir(path("dir")).expect("an opaque directory");
        fs::create_dir(path("dir")).expect("another");
        fs::write(path("dir/other"), "other").expect("a file in it");
        assert!(!path("file").exists());
        assert_eq!(fs::read_to_string(path("moved")).expect("read"), "new");
        let names = fs::read_dir(path("dir")).expect("a listing").map(|e| e.expect("an entry").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["other"]);
    }
    let whiteout = fs::symlink_metadata(pool.path().join("upper/file")).expect("a whiteout in the pool");
    assert!(whiteout.file_type().is_char_device());
    assert_eq!(fs::read_to_string(pool.path().join("lower/file")).expect("read"), "old");
    pool.umount();
    drop(disks);
    assert_eq!(guard.leaked(), Vec::<String>::new());
}
