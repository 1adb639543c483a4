//! Changes of attributes through the pool, made right after a change on a branch: they reach the copies that there are by
//! then, and no other file.

use super::rig::two_disks;

use canopy_testkit::Kind;
use rustix::fs::XattrFlags;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::time::{Duration, UNIX_EPOCH};

const ROUNDS: u32 = 150;

#[test]
fn a_copy_made_on_a_branch_is_changed_at_once() {
    for (kind, options) in
        [(Kind::Tmpfs, ""), (Kind::Ext4, ""), (Kind::Tmpfs, "cache.coherence=timeout,cache.entry=5")]
    {
        let bed = two_disks(kind, options);
        for branch in 0..2 {
            fs::create_dir(bed.on(branch, "d")).expect("a directory");
        }
        fs::write(bed.on(0, "d/f"), "content").expect("a file");
        let second = bed.on(1, "d/f");
        for round in 0..ROUNDS {
            // The pool has used the directory, so that it remembers which branch has the name.
            assert_eq!(fs::metadata(bed.at("d/f")).expect("the file").size(), 7);
            assert!(!bed.at(&format!("d/none{round}")).exists());
            fs::write(&second, "content").expect("a copy");
            let path = bed.at("d/f");
            match round % 4 {
                0 => fs::set_permissions(&path, Permissions::from_mode(0o600 + round)).expect("chmod"),
                1 => lchown(&path, Some(round), Some(round)).expect("chown"),
                2 => {
                    let time = UNIX_EPOCH + Duration::from_secs(round.into());
                    let file = File::open(&path).expect("the file");
                    file.set_modified(time).expect("utimens");
                }
                _ => rustix::fs::setxattr(&path, "user.k", &round.to_ne_bytes(), XattrFlags::empty())
                    .expect("setxattr"),
            }
            let seen = [bed.on(0, "d/f"), second.clone()].map(|copy| {
                let meta = fs::metadata(&copy).expect("a copy");
                let mut value = [0; 4];
                let _ = rustix::fs::getxattr(&copy, "user.k", &mut value[..]);
                match round % 4 {
                    0 => u64::from(meta.mode() & 0o7777),
                    1 => u64::from(meta.uid()),
                    2 => meta.mtime().cast_unsigned(),
                    _ => u32::from_ne_bytes(value).into(),
                }
            });
            assert_eq!(seen[0], seen[1], "{kind:?} {options} round {round}");
            let expected = if round % 4 == 0 { 0o600 + round } else { round };
            assert_eq!(seen[0], u64::from(expected), "{kind:?} {options} round {round}");
            fs::remove_file(&second).expect("a removal");
        }
    }
}

#[test]
fn a_file_that_replaces_another_on_a_branch_is_the_one_that_changes() {
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let bed = two_disks(kind, "");
        fs::create_dir(bed.on(1, "d")).expect("a directory");
        fs::write(bed.on(1, "d/f"), "content").expect("a file");
        for round in 0..ROUNDS {
            assert_eq!(fs::metadata(bed.at("d/f")).expect("the file").size(), 7);
            assert!(!bed.at(&format!("d/none{round}")).exists());
            // The old file keeps a name.
            fs::rename(bed.on(1, "d/f"), bed.on(1, "old")).expect("a rename");
            fs::write(bed.on(1, "d/f"), "content").expect("a file");
            let mode = 0o600 + round % 0o100;
            fs::set_permissions(bed.at("d/f"), Permissions::from_mode(mode)).expect("chmod");
            let mode_of = |path| fs::metadata(bed.on(1, path)).expect("a file").mode() & 0o7777;
            assert_eq!(mode_of("d/f"), mode, "{kind:?} round {round}");
            if round > 0 {
                assert_eq!(mode_of("old"), 0o600 + (round - 1) % 0o100, "{kind:?} round {round}");
            }
            assert_eq!(fs::metadata(bed.at("d/f")).expect("the file").mode() & 0o7777, mode);
        }
    }
}
