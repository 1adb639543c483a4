//! What is known is known to the next process, too, if nothing has changed meanwhile; and is never wrong, whatever has.

use super::{Attributes, NAMES, Storm, drop_caches, fill, reads, variable, walk, walked};
use crate::rig::builder;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, PATIENCE, PoolBed, Rng, require_root};
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// How often the keeper looks, in milliseconds.
const KEEPS: &str = "300";
/// What it says when it has learnt what was kept, and when it has not.
pub(super) const LEARNT: &str = "directories are known from before";
pub(super) const REFUSED: &str = "the disks are read again, because";
const DAMAGED: &str = "is damaged, so nothing in it is used";

/// A place for a pool, and where it keeps what it knows.
pub(super) struct Place {
    point: TempDir,
    store: TempDir,
    /// More of the environment of the next mount.
    pub(super) env: Vec<(&'static str, &'static str)>,
}

impl Place {
    pub(super) fn new() -> Place {
        let [point, store] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        Place { point, store, env: Vec::new() }
    }

    pub(super) fn mount(&self, options: &str, disks: Vec<LoopFs>) -> PoolBed {
        let pool = builder(options)
            .option(format!("catalogue={}", self.store.path().display()))
            .env("CANOPY_TEST_RESTED", "0")
            .env("CANOPY_TEST_KEEPS", KEEPS)
            .env("CANOPY_TEST_UPGRADE_SECONDS", "60")
            .env("CANOPY_TEST_KERNEL", "mask:NO_OPENDIR_SUPPORT");
        let pool = self.env.iter().fold(pool, |pool, (name, value)| pool.env(*name, *value));
        let pool = pool.at(self.point.path()).branches(disks.iter().map(LoopFs::path)).mount();
        PoolBed { pool, disks }
    }

    /// The file in which it is kept, where nobody else can get at it.
    fn file(&self) -> PathBuf {
        let dir = fs::read_dir(self.store.path()).expect("a listing").next().expect("a directory");
        let file = dir.expect("an entry").path().join("catalogue");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o7777;
        assert_eq!(mode(file.parent().expect("a directory")), 0o700);
        file
    }
}

pub(super) fn said(bed: &PoolBed, what: &str) -> usize {
    bed.pool.log().matches(what).count()
}

/// Waits until the process that serves has looked at what was kept, as the `times`th. Returns whether it knows it.
fn wait_for_keeper(bed: &PoolBed, (learnt, times): (usize, usize)) -> bool {
    let all = || [LEARNT, REFUSED, DAMAGED].map(|what| said(bed, what)).iter().sum::<usize>();
    // Where nothing was kept, nothing is said.
    wait_until(Duration::from_secs(10), || all() >= times) && said(bed, LEARNT) > learnt
}

/// Two disks with files that have come to rest: nothing is to be written of them any more.
pub(super) fn rested(kind: Kind) -> Vec<LoopFs> {
    let mut disks: Vec<LoopFs> = (0..2).map(|_| LoopFs::new(kind, 512 << 20)).collect();
    for (number, disk) in disks.iter_mut().enumerate() {
        fill(disk.path(), number);
        walk(disk.path(), Attributes::Any, &mut BTreeMap::new());
        disk.unmount();
        disk.mount_again();
    }
    disks
}

fn numbers(bed: &PoolBed) -> BTreeMap<PathBuf, u64> {
    let found = walked(bed, Attributes::Any);
    found
        .into_keys()
        .map(|path| (path.clone(), fs::symlink_metadata(&path).expect("it is there").ino()))
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Unmounted,
    Upgraded,
    Killed,
    /// Unmounted, and so were the disks.
    Away,
}

fn server(bed: &PoolBed) -> i32 {
    let asked = bed.pool.command(["get".as_ref(), bed.pool.path().as_os_str(), "pid".as_ref()]);
    asked.stdout.trim().parse().unwrap_or_default()
}

/// Ends the process that serves, and returns when another does.
pub(super) fn end(place: &Place, mut bed: PoolBed, how: End) -> PoolBed {
    let first = server(&bed);
    match how {
        End::Unmounted | End::Away => {
            let PoolBed { pool, mut disks } = bed;
            pool.umount();
            if how == End::Away {
                disks.iter_mut().for_each(LoopFs::unmount);
                disks.iter_mut().for_each(LoopFs::mount_again);
            }
            bed = place.mount("", disks);
        }
        End::Upgraded => {
            let done =
                bed.pool.command(["upgrade".as_ref(), "--force".as_ref(), bed.pool.path().as_os_str()]);
            assert!(done.success(), "{}", done.describe());
        }
        End::Killed => {
            // Until it was saved.
            std::thread::sleep(Duration::from_secs(2));
            let pid = rustix::process::Pid::from_raw(first).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("a signal");
        }
    }
    assert!(wait_until(PATIENCE, || ![0, first].contains(&server(&bed))), "{}", bed.pool.log());
    bed
}

/// On a busy machine, or while a filesystem still writes on its own account, it may take several attempts.
fn outlives(kind: Kind, how: End) {
    let place = Place::new();
    let options = if matches!(how, End::Unmounted | End::Away) { "" } else { "survive=true" };
    let mut bed = place.mount(options, rested(kind));
    let (first, ids) = (walked(&bed, Attributes::Listed), numbers(&bed));
    let mut tried = Vec::new();
    for _ in 0..10 {
        let is_new = matches!(how, End::Unmounted | End::Away);
        let before = if is_new {
            (0, 1)
        } else {
            (said(&bed, LEARNT), 1 + [LEARNT, REFUSED].map(|what| said(&bed, what)).iter().sum::<usize>())
        };
        bed = end(&place, bed, how);
        let knows = wait_for_keeper(&bed, before);
        drop_caches(&bed);
        let before = reads(&bed);
        let again = walked(&bed, Attributes::Listed);
        let after = reads(&bed);
        assert_eq!(first, again, "{kind:?} {how:?}");
        assert_eq!(ids, numbers(&bed), "{kind:?} {how:?}");
        if knows && before == after {
            bed.pool.umount();
            return;
        }
        tried.push((knows, before, after));
    }
    panic!("{kind:?} {how:?}: each walk reads a disk: {tried:?}\n{}", bed.pool.log());
}

#[test]
fn a_walk_after_the_pool_was_mounted_again_reads_no_disk() {
    require_root();
    [Kind::Ext4, Kind::Xfs, Kind::Btrfs].into_iter().for_each(|kind| outlives(kind, End::Unmounted));
}

#[test]
fn a_walk_after_an_upgrade_or_a_kill_reads_no_disk() {
    require_root();
    for how in [End::Upgraded, End::Killed] {
        [Kind::Ext4, Kind::Xfs, Kind::Btrfs].into_iter().for_each(|kind| outlives(kind, how));
    }
}

#[test]
fn a_walk_after_a_btrfs_was_mounted_again_reads_no_disk() {
    require_root();
    outlives(Kind::Btrfs, End::Away);
}

#[test]
fn a_file_that_is_torn_or_of_another_pool_is_not_used() {
    require_root();
    let place = Place::new();
    let bed = place.mount("", rested(Kind::Ext4));
    let first = walked(&bed, Attributes::Any);
    let PoolBed { pool, mut disks } = bed;
    pool.umount();
    let whole = fs::read(place.file()).expect("what was kept");
    let mut torn = whole.clone();
    torn[whole.len() / 2] ^= 1;
    let cut = whole[..whole.len() - 1].to_vec();
    for bytes in [torn, cut, Vec::new(), b"something else".to_vec()] {
        fs::write(place.file(), bytes).expect("a file");
        let bed = place.mount("", disks);
        assert!(!wait_for_keeper(&bed, (0, 1)) && said(&bed, DAMAGED) == 1, "{}", bed.pool.log());
        assert_eq!(walked(&bed, Attributes::Any), first);
        disks = bed.disks;
        bed.pool.umount();
    }
    // That of a pool with the same branches in another order.
    fs::write(place.file(), whole).expect("a file");
    disks.reverse();
    let bed = place.mount("", disks);
    assert!(!wait_for_keeper(&bed, (0, 1)) && said(&bed, REFUSED) == 1, "{}", bed.pool.log());
    bed.pool.umount();
}

/// The same branches with an older image of a disk in its place, on which as much has happened since as on the one before.
#[test]
fn another_image_of_a_disk_is_not_taken_for_it() {
    require_root();
    for kind in [Kind::Btrfs, Kind::Ext4] {
        let place = Place::new();
        let mut disks = vec![LoopFs::new(kind, 160 << 20)];
        let image = disks[0].image().expect("an image");
        let grow = |disks: &[LoopFs], to: usize| {
            fs::write(disks[0].path().join("file"), vec![b'x'; to]).expect("a file");
            rustix::fs::syncfs(File::open(disks[0].path()).expect("the root")).expect("sync");
        };
        grow(&disks, 1);
        disks[0].unmount();
        let older = fs::read(&image).expect("the image");
        disks[0].mount_again();
        grow(&disks, 2);
        let bed = place.mount("", disks);
        assert_eq!(fs::metadata(bed.at("file")).expect("it is there").len(), 2);
        walked(&bed, Attributes::Any);
        let PoolBed { pool, mut disks } = bed;
        pool.umount();
        disks[0].unmount();
        fs::write(&image, older).expect("the image");
        disks[0].mount_again();
        grow(&disks, 3);
        let bed = place.mount("", disks);
        assert!(!wait_for_keeper(&bed, (0, 1)), "{kind:?}: {}", bed.pool.log());
        assert_eq!(fs::metadata(bed.at("file")).expect("it is there").len(), 3, "{kind:?}");
        bed.pool.umount();
    }
}

/// Puts the times of a directory back to what they were.
fn with_times_put_back(dir: &Path, change: impl FnOnce()) {
    let before = fs::metadata(dir).ok();
    change();
    if let Some((before, dir)) = before.zip(File::open(dir).ok()) {
        let times = before.modified().map(|time| FileTimes::new().set_modified(time));
        let _ = times.map(|times| dir.set_times(times));
    }
}

/// Changes something on a branch that nobody watches, and returns what.
fn change_directly(disk: &Path, random: &mut Rng) -> String {
    let mut dir = disk.to_owned();
    let below = walked_directories(disk);
    if !below.is_empty() && random.below(3) > 0 {
        dir.clone_from(random.pick(&below));
    }
    let name = dir.join(random.pick(&NAMES));
    let what = random.index(5);
    with_times_put_back(&dir, || {
        let _ = match what {
            0 => fs::write(&name, vec![b'y'; random.index(3000)]),
            1 => fs::remove_file(&name).or_else(|_| fs::remove_dir_all(&name)),
            2 => fs::rename(&name, dir.join(random.pick(&NAMES))),
            3 => fs::create_dir_all(name.join("a/b")),
            _ => fs::set_permissions(&name, fs::Permissions::from_mode(0o711)),
        };
    });
    format!("directly: {what} {}", name.display())
}

fn walked_directories(disk: &Path) -> Vec<PathBuf> {
    let mut found = BTreeMap::new();
    walk(disk, Attributes::Any, &mut found);
    found.into_keys().filter(|path| path.symlink_metadata().is_ok_and(|meta| meta.is_dir())).collect()
}

/// `CANOPY_CATALOGUE_CHANGES` sets the number of absences, `CANOPY_CATALOGUE_SEED` the seed.
#[test]
fn what_changes_while_the_pool_is_away_is_shown() {
    require_root();
    let (absences, seed) = (variable("CANOPY_CATALOGUE_CHANGES", 8), variable("CANOPY_CATALOGUE_SEED", 1));
    for (at, kind) in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs].into_iter().enumerate() {
        let place = Place::new();
        let mut random = Rng::new(seed + 100 + at as u64);
        let mut bed = place.mount("", (0..2).map(|_| LoopFs::new(kind, 512 << 20)).collect());
        for absence in 0..absences {
            let mut storm = Storm { bed: &bed, random: Rng::new(random.below(1 << 40)), done: Vec::new() };
            (0..15).for_each(|_| storm.change());
            let mut done = storm.done;
            walked(&bed, Attributes::Any);
            let PoolBed { mut pool, mut disks } = bed;
            if random.below(3) == 0 {
                // Perhaps while it saves.
                std::thread::sleep(Duration::from_millis(random.below(1500)));
                pool.kill();
                drop(pool);
                done.push("it was killed".into());
            } else {
                pool.umount();
            }
            let changes = random.below(3);
            for _ in 0..changes {
                let disk = disks[random.index(2)].path().to_owned();
                done.push(change_directly(&disk, &mut random));
            }
            if kind != Kind::Tmpfs && random.below(2) == 0 {
                disks[0].unmount();
                disks[0].mount_again();
                done.push("the first disk was mounted again".into());
            }
            bed = place.mount("", disks);
            if random.below(2) == 0 {
                let all = [LEARNT, REFUSED, DAMAGED];
                wait_until(Duration::from_secs(1), || all.iter().any(|what| said(&bed, what) > 0));
            }
            let storm = Storm { bed: &bed, random: Rng::new(0), done: Vec::new() };
            let mut left = Vec::new();
            let same = wait_until(Duration::from_secs(2), || {
                left = storm.differences();
                left.is_empty()
            });
            assert!(
                same,
                "{kind:?}, seed {seed}, absence {absence}: {left:#?}\nafter {done:#?}\n{}",
                bed.pool.log()
            );
        }
        bed.pool.umount();
    }
}
