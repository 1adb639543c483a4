//! The daemon is killed while it moves files between branches.

use super::rig::{MIB, builder, no_unfinished_copies, pattern};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{Fields, LoopFs, PATIENCE, Rng, Tree};
use rustix::fs::XattrFlags;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::Duration;

/// The number of kills. `CANOPY_KILLS` overrides it.
const KILLS: u32 = 40;

/// Whenever the daemon is killed, the next mount shows exactly one complete copy under each name.
#[test]
fn a_killed_move_leaves_one_whole_file() {
    let kills = std::env::var("CANOPY_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let seed = std::env::var("CANOPY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_121);
    println!("{kills} kills, CANOPY_SEED={seed}");
    let mut rng = Rng::new(seed);
    let disks = vec![LoopFs::ext4(32 << 20), LoopFs::ext4(32 << 20)];
    for disk in &disks {
        fs::remove_dir(disk.path().join("lost+found")).unwrap();
    }
    let content = pattern(7, 4 * MIB);
    let (mut moved, mut stayed, mut cut) = (0, 0, 0);
    // The upper limit of the delay before the kill, in microseconds. It adapts to how long moves take here.
    let mut longest = 60_000;
    for round in 0..kills {
        // Two hard links on one branch. The other branch has room.
        let [from, to] = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        let (source, target) = (disks[from].path(), disks[to].path());
        fs::create_dir(source.join("d")).unwrap();
        fs::write(source.join("d/f"), &content).unwrap();
        fs::hard_link(source.join("d/f"), source.join("g")).unwrap();
        rustix::fs::setxattr(source.join("g"), "user.x", b"value", XattrFlags::empty()).unwrap();
        // A write that fails with ENOSPC may change mtime.
        let fields = Fields { mtime: false, dir_mtime: false, ..Fields::default() };
        let expected = Tree::capture_with(source, fields);
        disks[from].fill(0);
        let options = "passthrough.io=off,cache.files=off";
        let mut pool = builder(options).branches(disks.iter().map(LoopFs::path)).mount();
        let file = OpenOptions::new().write(true).open(pool.path().join("d/f")).unwrap();
        let delay = Duration::from_micros(rng.below(longest));
        let grown = std::thread::scope(|scope| {
            // The write is beyond the end, so the existing content must not change.
            let writer = scope.spawn(|| file.write_all_at(&[9; MIB], 4 * MIB as u64).is_ok());
            std::thread::sleep(delay);
            pool.kill();
            writer.join().unwrap()
        });
        drop(file);
        drop(pool);
        let names = |path: &str| disks.iter().filter(|disk| disk.path().join(path).exists()).count();
        cut += u32::from(!no_unfinished_copies(&disks));
        let what = format!("round {round}, killed after {delay:?}");
        assert!(names("d/f") >= 1 && names("g") >= 1, "{what}: a name is lost before the next mount");
        // The next mount.
        let pool = builder("").branches(disks.iter().map(LoopFs::path)).mount();
        assert_eq!((names("d/f"), names("g")), (1, 1), "{what}: names");
        assert!(no_unfinished_copies(&disks), "{what}");
        let mut fsck = Command::new(env!("CARGO_BIN_EXE_canopy"));
        let fsck = run_within(fsck.args(["fsck", "--check-size"]).arg(pool.path()), PATIENCE);
        assert_eq!(fsck.code(), Some(0), "{what}: {}", fsck.describe());
        let meta = fs::metadata(pool.path().join("d/f")).unwrap();
        assert_eq!(meta.nlink(), 2, "{what}");
        let seen = fs::read(pool.path().join("g")).unwrap();
        assert!(seen.len() >= 4 * MIB && seen[..4 * MIB] == content, "{what}: {} bytes", seen.len());
        assert!(seen[4 * MIB..].iter().all(|byte| *byte == 9), "{what}: {} bytes", seen.len());
        if grown {
            assert_eq!(seen.len(), 5 * MIB, "{what}: an acknowledged write is lost");
        }
        pool.umount();
        if target.join("g").exists() {
            moved += 1;
            longest = (longest * 9 / 10).max(5_000);
        } else {
            stayed += 1;
            longest = (longest * 11 / 10).min(2_000_000);
            fs::remove_file(source.join("filler")).unwrap();
            expected.assert_same(&Tree::capture_with(source, fields));
        }
        for disk in &disks {
            let _ = fs::remove_file(disk.path().join("filler"));
            let _ = fs::remove_file(disk.path().join("g"));
            let _ = fs::remove_dir_all(disk.path().join("d"));
            assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "{what}");
        }
    }
    println!("{moved} moved, {stayed} stayed, {cut} left something to clean up");
    assert!(kills < 20 || (moved > 0 && stayed > 0 && cut > 0), "no kill hit a move");
}
