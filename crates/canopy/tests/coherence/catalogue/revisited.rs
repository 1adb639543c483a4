//! What was known before a restart is looked at again in the background, where nothing proves that it still holds.

use super::kept::{End, LEARNT, Place, REFUSED, end, rested, said};
use super::{Attributes, Storm, drop_caches, reads, walk, walked};
use canopy_testkit::cmd::{json, wait_until};
use canopy_testkit::{Kind, LoopFs, PATIENCE, PoolBed, Rng, require_root};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DONE: &str = "were looked at again";
/// The root, lost+found, and what `fill` makes.
const DIRECTORIES: u64 = 62;

/// Returns how far it is: of so many directories so many, and whether it waits for a disk. `None` once nothing is left to do.
fn progress(bed: &PoolBed) -> Option<(u64, u64, bool)> {
    let path = bed.pool.path().to_str().expect("a name").to_owned();
    let status: Value = json(&bed.pool.command(["status", &path, "--json"]))["pools"][0].clone();
    let it = &status["catalogue"]["verifying"];
    Some((it["done"].as_u64()?, it["total"].as_u64()?, it["waits_for_disk"].as_bool()?))
}

fn done(bed: &PoolBed) -> u64 {
    progress(bed).map_or(u64::MAX, |(done, ..)| done)
}

#[track_caller]
fn wait_for_the_end(bed: &PoolBed) {
    assert!(wait_until(PATIENCE, || said(bed, DONE) > 0), "{}", bed.pool.log());
    assert_eq!(progress(bed), None);
}

/// A pool whose disks were walked through it, unmounted and mounted again.
fn returned(place: &mut Place, env: &[(&'static str, &'static str)]) -> (PoolBed, BTreeMap<PathBuf, String>) {
    let bed = place.mount("", rested(Kind::Ext4));
    let first = walked(&bed, Attributes::Listed);
    place.env = env.to_vec();
    (end(place, bed, End::Away), first)
}

/// On a busy machine some answers are not sure in time, so that a disk is asked, and it is tried again.
#[test]
fn a_walk_after_the_disks_were_mounted_again_reads_none_once_they_were_looked_at() {
    require_root();
    let mut place = Place::new();
    let (mut bed, first) = returned(&mut place, &[]);
    let mut tried = Vec::new();
    for _ in 0..8 {
        wait_for_the_end(&bed);
        assert_eq!((said(&bed, LEARNT), said(&bed, REFUSED)), (0, 1), "{}", bed.pool.log());
        drop_caches(&bed);
        let before = reads(&bed);
        let again = walked(&bed, Attributes::Listed);
        let after = reads(&bed);
        assert_eq!(first, again);
        if before == after {
            bed.pool.umount();
            return;
        }
        tried.push((before, after));
        bed = end(&place, bed, End::Away);
    }
    panic!("each walk reads a disk: {tried:?}\n{}", bed.pool.log());
}

#[test]
fn what_was_not_looked_at_is_kept_for_later() {
    require_root();
    for how in [End::Unmounted, End::Killed, End::Upgraded, End::Away] {
        let mut place = Place::new();
        let bed = place.mount("survive=true", rested(Kind::Ext4));
        let first = walked(&bed, Attributes::Any);
        place.env = vec![("CANOPY_TEST_REVISITS", "150")];
        let PoolBed { pool, mut disks } = bed;
        pool.umount();
        disks.iter_mut().for_each(LoopFs::unmount);
        disks.iter_mut().for_each(LoopFs::mount_again);
        let bed = place.mount("survive=true", disks);
        assert!(wait_until(PATIENCE, || (3..DIRECTORIES).contains(&done(&bed))), "{}", bed.pool.log());
        let (_, total, _) = progress(&bed).expect("it goes on");
        assert_eq!(total, DIRECTORIES);
        let before = said(&bed, REFUSED) + said(&bed, LEARNT);
        let bed = end(&place, bed, how);
        let looked = || {
            let now = said(&bed, REFUSED) + said(&bed, LEARNT);
            now > if matches!(how, End::Unmounted | End::Away) { 0 } else { before }
        };
        assert!(wait_until(PATIENCE, looked), "{how:?}: {}", bed.pool.log());
        // All that was known before is known or to be looked at, whether there is a proof of the former or not.
        let (_, left, _) = progress(&bed).expect("it goes on");
        let knows = said(&bed, LEARNT) > 0;
        assert!(if knows { left < total } else { left == total }, "{how:?}: {left}\n{}", bed.pool.log());
        assert_eq!(walked(&bed, Attributes::Any), first, "{how:?}");
        bed.pool.umount();
    }
}

#[test]
fn a_disk_that_rests_is_not_read() {
    require_root();
    let mut place = Place::new();
    let (bed, first) =
        returned(&mut place, &[("CANOPY_TEST_REVISITS", "400"), ("CANOPY_TEST_RESTS", "1000")]);
    // What is read is in memory, so that the disks come to rest while it goes on.
    bed.disks.iter().for_each(|disk| walk(disk.path(), Attributes::Any, &mut BTreeMap::new()));
    // The filesystems may have something to write at first, which wakes them.
    let now = || (reads(&bed), progress(&bed).map(|(done, _, waits)| (done, waits)));
    let (mut before, mut since) = (now(), Instant::now());
    let rests = wait_until(PATIENCE, || {
        let now = now();
        if now != before {
            (before, since) = (now, Instant::now());
        }
        before.1.is_some_and(|(_, waits)| waits) && since.elapsed() > Duration::from_secs(6)
    });
    assert!(rests, "it never waits, or does not do so for long: {before:?}");
    let text = bed.pool.command(["status".as_ref(), bed.pool.path().as_os_str()]).stdout;
    // Lines are broken somewhere.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("of 62 directories; waits for a disk that may sleep"), "{text}");
    // It goes on once somebody else has woken them.
    let woken = wait_until(PATIENCE, || {
        bed.disks.iter().for_each(|disk| {
            disk.drop_caches();
            walk(disk.path(), Attributes::Any, &mut BTreeMap::new());
        });
        Some(done(&bed)) > before.1.map(|(done, _)| done)
    });
    assert!(woken, "{:?}", progress(&bed));
    assert_eq!(walked(&bed, Attributes::Listed), first);
    bed.pool.umount();
}

/// As it goes on, files change, through the pool and on the branches, and before.
#[test]
fn what_changes_before_and_meanwhile_is_shown() {
    require_root();
    for seed in 0..6 {
        let mut place = Place::new();
        place.env = vec![("CANOPY_TEST_REVISITS", if seed % 2 == 0 { "0" } else { "7" })];
        let mut bed = place.mount("", (0..2).map(|_| LoopFs::ext4(64 << 20)).collect());
        let mut random = Rng::new(1000 + seed);
        for round in 0..3 {
            let mut storm = Storm { bed: &bed, random: Rng::new(random.below(1 << 40)), done: Vec::new() };
            (0..60).for_each(|_| storm.change());
            let mut left = Vec::new();
            let same = wait_until(Duration::from_secs(4), || {
                left = storm.differences();
                left.is_empty()
            });
            assert!(
                same,
                "seed {seed}, round {round}: {left:#?}\nafter {:#?}\n{}",
                storm.done,
                bed.pool.log()
            );
            bed = end(&place, bed, End::Away);
        }
        wait_for_the_end(&bed);
        let storm = Storm { bed: &bed, random: Rng::new(0), done: Vec::new() };
        assert_eq!(storm.differences(), Vec::<String>::new(), "seed {seed}\n{}", bed.pool.log());
        bed.pool.umount();
    }
}

#[test]
fn a_branch_that_goes_meanwhile_stops_nobody() {
    require_root();
    let mut place = Place::new();
    let (bed, first) = returned(&mut place, &[("CANOPY_TEST_REVISITS", "40")]);
    assert!(wait_until(PATIENCE, || (2..DIRECTORIES).contains(&done(&bed))), "{:?}", progress(&bed));
    let set = |to: &str| {
        let path = bed.pool.path().to_str().expect("a name");
        let asked = bed.pool.command(["set", path, &format!("branches={to}")]);
        assert!(asked.success(), "{}", asked.describe());
    };
    set("->");
    let others: BTreeMap<_, _> = {
        let mut found = BTreeMap::new();
        walk(bed.disks[0].path(), Attributes::Any, &mut found);
        let at = |path: PathBuf| {
            bed.at(path.strip_prefix(bed.disks[0].path()).expect("on it").to_str().expect("a name"))
        };
        found.into_iter().map(|(path, what)| (at(path), what)).collect()
    };
    assert_eq!(walked(&bed, Attributes::Any), others);
    set(&format!("+>{}", bed.disks[1].path().display()));
    assert_eq!(walked(&bed, Attributes::Any), first);
    wait_for_the_end(&bed);
    assert_eq!(walked(&bed, Attributes::Any), first);
    bed.pool.umount();
}
