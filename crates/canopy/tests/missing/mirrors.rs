//! Whoever mirrors the pool deletes nothing, at no moment.

use super::rig::{bed, bring_back, paths, rsync, take_away, tree, wait_until_back};
use canopy_testkit::require_root;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

fn lacks(all: &[std::path::PathBuf], target: &Path) -> Vec<std::path::PathBuf> {
    all.iter().filter(|path| fs::symlink_metadata(target.join(path)).is_err()).cloned().collect()
}

#[test]
fn a_mirror_of_a_pool_without_a_disk_loses_nothing() {
    require_root();
    let (state, target) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut bed = bed(&state);
    assert_eq!(rsync(bed.pool.path(), target.path()), 0);
    let (before, all) = (tree(bed.pool.path()), paths(target.path()));
    take_away(&mut bed, 0);
    assert_eq!(tree(bed.pool.path()), before);
    // Nothing has changed, so nothing has to be read.
    assert_eq!(rsync(bed.pool.path(), target.path()), 0);
    assert_eq!(lacks(&all, target.path()), Vec::<std::path::PathBuf>::new());
    // What is not in the mirror cannot be read, and that is no reason to delete.
    fs::remove_file(target.path().join("films/7.mkv")).unwrap();
    assert_eq!(rsync(bed.pool.path(), target.path()), 23);
    assert_eq!(lacks(&all, target.path()), [Path::new("films/7.mkv")]);
    // Other disks go on: what is removed there is removed from the mirror, when it can be known.
    fs::remove_file(bed.at("music/3.flac")).unwrap();
    bring_back(&mut bed, 0);
    assert_eq!(rsync(bed.pool.path(), target.path()), 0);
    assert_eq!(lacks(&all, target.path()), [Path::new("music/3.flac")]);
    bed.pool.umount();
}

#[test]
fn a_mirror_loses_nothing_while_a_disk_goes_and_comes() {
    require_root();
    let (state, target) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut bed = bed(&state);
    for number in 0..600 {
        fs::create_dir(bed.disks[0].path().join(format!("d{number}"))).unwrap();
        fs::write(bed.disks[0].path().join(format!("d{number}/x")), "").unwrap();
    }
    rsync(bed.pool.path(), target.path());
    let all = paths(target.path());
    let stop = AtomicBool::new(false);
    let (runs, whole) = std::thread::scope(|scope| {
        let (pool, stop, all, target) = (bed.pool.path().to_owned(), &stop, &all, target.path());
        let mirror = scope.spawn(move || {
            let (mut runs, mut whole) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                whole += u32::from(rsync(&pool, target) == 0);
                runs += 1;
                let lost = lacks(all, target);
                assert!(lost.is_empty(), "after {runs} runs, {} are lost, such as {:?}", lost.len(), lost[0]);
            }
            (runs, whole)
        });
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(700 + 300 * round));
            bed.disks[0].unmount_lazily();
            std::thread::sleep(Duration::from_millis(1800 - 250 * round));
            bed.disks[0].mount_again();
        }
        wait_until_back(&bed, 0);
        // At the very moment when it has come, it goes.
        for _ in 0..2 {
            take_away(&mut bed, 0);
            bring_back(&mut bed, 0);
        }
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
        mirror.join().unwrap_or_else(|_| panic!("the mirror lacks something\n{}", bed.pool.log()))
    });
    assert!(whole > 0, "none of {runs} runs was whole");
    bed.pool.umount();
}
