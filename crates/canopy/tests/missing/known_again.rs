//! What is remembered of a disk is not read from it again if it has not changed since, and is if it has.

use super::rig::{PATIENCE, builder, take_away, tree, wait_until_back, wait_until_known};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, PoolBed, Rng, require_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// What the log says of a disk that is not read, and of one that is.
const KNOWN: &str = "are known from before";
const READ: &str = "are read, because";
/// How many directories a disk has: reading them takes some hundred requests, on a btrfs some fifty.
const DIRECTORIES: usize = 300;
/// On a busy machine, or while a filesystem still writes on its own account, a state does not last.
const ATTEMPTS: usize = 10;

/// A place for a pool, and where it remembers.
struct Place {
    point: TempDir,
    state: TempDir,
    options: &'static str,
    /// How long nothing must have happened before a state is noted, in milliseconds.
    quiet: &'static str,
}

impl Place {
    fn new(options: &'static str, quiet: &'static str) -> Place {
        let [point, state] = [(); 2].map(|()| TempDir::new().expect("a directory"));
        Place { point, state, options, quiet }
    }

    /// Mounts the pool, and waits until it knows all.
    #[track_caller]
    fn mount(&self, disks: Vec<LoopFs>) -> PoolBed {
        let pool = builder(self.state.path())
            .env("CANOPY_TEST_KEEPS", self.quiet)
            .env("CANOPY_TEST_UPGRADE_SECONDS", "60")
            .option(self.options);
        let pool = pool.at(self.point.path()).branches(disks.iter().map(LoopFs::path)).mount();
        wait_until_known(&pool);
        PoolBed { pool, disks }
    }
}

/// A disk with many directories that has come to rest.
fn rested(kind: Kind) -> LoopFs {
    let mut disk = LoopFs::new(kind, 512 << 20);
    let _ = fs::remove_dir(disk.path().join("lost+found"));
    for number in 0..DIRECTORIES {
        // The listing of a directory with many names fails if it takes several requests and is left alone in between.
        let dir = disk.path().join(format!("dir{}/below{number}", number % 15));
        fs::create_dir_all(&dir).expect("a directory");
        for name in 0..5 {
            fs::write(dir.join(format!("a file with quite a long name {name}")), "x").expect("a file");
        }
    }
    disk.unmount();
    disk.mount_again();
    disk
}

/// Returns how many reads a disk has completed.
fn reads(disk: &LoopFs) -> u64 {
    let name = disk.device().and_then(Path::file_name).expect("a device").to_os_string();
    let stat = fs::read_to_string(Path::new("/sys/block").join(name).join("stat")).expect("counters");
    stat.split_whitespace().next().and_then(|reads| reads.parse().ok()).expect("a number")
}

fn said(bed: &PoolBed, what: &str) -> usize {
    bed.pool.log().matches(what).count()
}

fn server(bed: &PoolBed) -> i32 {
    let asked = bed.pool.command(["get".as_ref(), bed.pool.path().as_os_str(), "pid".as_ref()]);
    asked.stdout.trim().parse().unwrap_or_default()
}

/// Waits until what has happened is known, too.
#[track_caller]
fn settle(bed: &PoolBed) {
    std::thread::sleep(Duration::from_millis(1500));
    wait_until_known(&bed.pool);
}

/// Takes the disk away, and makes sure that all is shown as it was.
#[track_caller]
fn lose(bed: &mut PoolBed, what: &str) {
    let before = tree(bed.pool.path());
    take_away(bed, 0);
    assert_eq!(tree(bed.pool.path()), before, "{what}\n{}", bed.pool.log());
}

#[track_caller]
fn mounted_again_is_not_read(kind: Kind, away: bool) {
    let place = Place::new("", "60000");
    let mut disks = vec![rested(kind)];
    disks[0].drop_caches();
    let before = reads(&disks[0]);
    let bed = place.mount(disks);
    let (first, all) = (reads(&bed.disks[0]) - before, tree(bed.pool.path()));
    assert!(first > 30, "{kind:?}: all names took {first} reads");
    disks = bed.disks;
    bed.pool.umount();
    let mut tried = Vec::new();
    let known = (0..ATTEMPTS).any(|_| {
        if away {
            disks[0].unmount();
            disks[0].mount_again();
        }
        disks[0].drop_caches();
        let before = reads(&disks[0]);
        let bed = place.mount(std::mem::take(&mut disks));
        let (read, known) = (reads(&bed.disks[0]) - before, said(&bed, KNOWN) == 1);
        assert_eq!(known, said(&bed, READ) == 0, "{}", bed.pool.log());
        // To open the branch and to watch it takes a few.
        assert!(!known || read < first / 4, "{kind:?}: {read} reads");
        tried.push((read, known));
        disks = bed.disks;
        bed.pool.umount();
        known
    });
    assert!(known, "{kind:?}: {tried:?}");
    println!("{kind:?}: {first} reads at first, then {tried:?}");
    // A name that is made by hand meanwhile is remembered.
    fs::write(disks[0].path().join("dir7/below7/by hand"), "").expect("a file");
    let mut bed = place.mount(disks);
    assert_eq!(said(&bed, READ), 1, "{}", bed.pool.log());
    let now = tree(bed.pool.path());
    assert_eq!(now.len(), all.len() + 1);
    lose(&mut bed, "a name by hand");
    assert!(bed.at("dir7/below7/by hand").exists());
    bed.pool.umount();
    bed.disks[0].mount_again();
}

#[test]
fn a_disk_that_has_not_changed_is_not_read_by_the_next_mount() {
    require_root();
    [Kind::Ext4, Kind::Xfs, Kind::Btrfs].into_iter().for_each(|kind| mounted_again_is_not_read(kind, false));
}

#[test]
fn a_btrfs_that_was_away_is_not_read_by_the_next_mount() {
    require_root();
    mounted_again_is_not_read(Kind::Btrfs, true);
}

#[test]
fn a_disk_that_has_not_changed_is_not_read_after_an_upgrade_or_a_kill() {
    require_root();
    for kill in [false, true] {
        let place = Place::new("survive=true", if kill { "300" } else { "60000" });
        let mut bed = place.mount(vec![rested(Kind::Ext4)]);
        fs::write(bed.at("dir7/below7/new"), "").expect("a file");
        settle(&bed);
        let taken_up = (0..ATTEMPTS).any(|_| {
            let (known, read, first) = (said(&bed, KNOWN), said(&bed, READ), server(&bed));
            if kill {
                // Until the state was noted.
                std::thread::sleep(Duration::from_secs(2));
                let pid = rustix::process::Pid::from_raw(first).expect("a process");
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("a signal");
            } else {
                let done =
                    bed.pool.command(["upgrade".as_ref(), "--force".as_ref(), bed.pool.path().as_os_str()]);
                assert!(done.success(), "{}", done.describe());
            }
            assert!(wait_until(PATIENCE, || ![0, first].contains(&server(&bed))), "{}", bed.pool.log());
            wait_until_known(&bed.pool);
            assert_eq!(said(&bed, KNOWN) + said(&bed, READ), known + read + 1, "{}", bed.pool.log());
            said(&bed, KNOWN) > known
        });
        assert!(taken_up, "killed: {kill}\n{}", bed.pool.log());
        fs::write(bed.at("dir8/below8/new"), "").expect("a file");
        settle(&bed);
        lose(&mut bed, "after another process has taken over");
        bed.pool.umount();
        bed.disks[0].mount_again();
    }
}

#[test]
fn a_btrfs_that_comes_back_is_not_read() {
    require_root();
    let place = Place::new("", "300");
    let mut bed = place.mount(vec![rested(Kind::Btrfs)]);
    let taken_up = (0..ATTEMPTS).any(|_| {
        std::thread::sleep(Duration::from_secs(1));
        let known = said(&bed, KNOWN);
        lose(&mut bed, "again and again");
        bed.disks[0].mount_again();
        wait_until_back(&bed, 0);
        wait_until_known(&bed.pool);
        said(&bed, KNOWN) > known
    });
    assert!(taken_up, "{}", bed.pool.log());
    fs::write(bed.disks[0].path().join("dir7/below7/new"), "").expect("a file");
    settle(&bed);
    lose(&mut bed, "after it was taken up");
    bed.disks[0].mount_again();
    wait_until_back(&bed, 0);
    bed.pool.umount();
}

/// Changes something in a tree.
fn change(root: &Path, random: &mut Rng) -> String {
    let dir = root.join(format!("dir{}", random.below(4)));
    let (one, other) = (dir.join(format!("n{}", random.below(4))), dir.join(format!("n{}", random.below(4))));
    let what = random.index(6);
    let _ = match what {
        0 => fs::create_dir_all(&one).and_then(|()| fs::write(one.join("file"), "x")),
        1 => fs::remove_file(&one).or_else(|_| fs::remove_dir_all(&one)),
        2 => fs::rename(&one, &other),
        3 => fs::set_permissions(&one, fs::Permissions::from_mode(0o700 + random.index(8) as u32)),
        4 => fs::rename(&one, root.join(format!("dir{}", random.below(4))).join("moved")),
        _ => fs::create_dir_all(&dir).and_then(|()| fs::write(&one, vec![b'x'; random.index(9000)])),
    };
    format!("{what} {}", one.display())
}

/// `CANOPY_MISSING_CHANGES` sets the number of mounts, `CANOPY_MISSING_SEED` the seed.
#[test]
fn what_changes_between_mounts_is_remembered() {
    require_root();
    let variable = |name, or| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or);
    let (mounts, seed) = (variable("CANOPY_MISSING_CHANGES", 2), variable("CANOPY_MISSING_SEED", 1));
    let mut taken_up = 0;
    for (at, kind) in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs].into_iter().enumerate() {
        let place = Place::new("", "300");
        let mut random = Rng::new(seed + at as u64);
        let mut disks = vec![LoopFs::new(kind, 512 << 20)];
        for mount in 0..mounts {
            let mut done: Vec<String> = Vec::new();
            let mut bed = place.mount(disks);
            taken_up += said(&bed, KNOWN);
            settle(&bed);
            if kind != Kind::Tmpfs && random.below(3) == 0 {
                lose(&mut bed, &format!("{kind:?}, mount {mount}"));
                bed.disks[0].mount_again();
                wait_until_back(&bed, 0);
                wait_until_known(&bed.pool);
            }
            let roots: [PathBuf; 2] = [bed.pool.path().into(), bed.disks[0].path().into()];
            (0..random.below(8))
                .for_each(|_| done.push(change(&roots[random.index(2)].clone(), &mut random)));
            std::thread::sleep(Duration::from_millis(random.below(1500)));
            let PoolBed { mut pool, disks: left } = bed;
            disks = left;
            if random.below(3) == 0 {
                pool.kill();
                drop(pool);
                done.push("it was killed".into());
            } else {
                pool.umount();
            }
            for _ in 0..random.below(3) {
                done.push(change(disks[0].path(), &mut random));
            }
            if kind != Kind::Tmpfs && random.below(2) == 0 {
                disks[0].unmount();
                disks[0].mount_again();
                done.push("its disk was mounted again".into());
            }
            let mut bed = place.mount(disks);
            taken_up += said(&bed, KNOWN);
            // At once: what was known has to be all.
            let names = tree(disk_of(&bed)).into_keys().collect::<Vec<_>>();
            if kind == Kind::Tmpfs {
                assert_eq!(said(&bed, KNOWN), 0, "nothing proves it");
            } else {
                take_away(&mut bed, 0);
                let shown = tree(bed.pool.path()).into_keys().collect::<Vec<_>>();
                assert_eq!(
                    shown,
                    names,
                    "{kind:?}, seed {seed}, mount {mount}, {done:#?}\n{}",
                    bed.pool.log()
                );
                bed.disks[0].mount_again();
                wait_until_back(&bed, 0);
            }
            disks = bed.disks;
            bed.pool.umount();
        }
    }
    println!("{taken_up} times nothing was read");
}

fn disk_of(bed: &PoolBed) -> &Path {
    bed.disks[0].path()
}
