//! Cached listings of directories that change on the branches, directory positions, and the memory used by open
//! directories.

use super::rig::{Opens, open_by, two_disks};

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, PATIENCE};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn cached_listings_follow_the_branches() {
    let bed = two_disks(Kind::Ext4, "cache.readdir=true");
    for branch in 0..2 {
        fs::create_dir(bed.on(branch, "d")).expect("mkdir");
    }
    let listed = || -> BTreeSet<String> {
        let list = fs::read_dir(bed.at("d")).expect("a listing");
        list.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    };
    let mut there = BTreeSet::new();
    for round in 0..60 {
        // The second listing is answered from the cache.
        listed();
        assert_eq!(listed(), there, "round {round}");
        let (branch, name) = (round % 2, format!("n{}", round / 3));
        if there.insert(name.clone()) {
            fs::write(bed.on(branch, &format!("d/{name}")), "").expect("a file");
        } else {
            there.remove(&name);
            for branch in 0..2 {
                let _ = fs::remove_file(bed.on(branch, &format!("d/{name}")));
            }
        }
        assert!(wait_until(PATIENCE, || listed() == there), "round {round}: {:?}", listed());
    }
    bed.pool.umount();
}

/// Where the daemon opens directories, a listing that starts after a change always includes it. This holds even while the
/// pool is so busy that events from the branches are left to accumulate.
#[test]
fn a_listing_includes_every_earlier_change() {
    let bed = open_by(Opens::Daemon, Kind::Tmpfs, "");
    fs::create_dir(bed.on(0, "d")).expect("mkdir");
    fs::create_dir(bed.on(0, "busy")).expect("mkdir");
    let listed = || fs::read_dir(bed.at("d")).expect("a listing").count();
    let stop = AtomicBool::new(false);
    let wrong = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::write(bed.at("busy/file"), "own").expect("a file");
                fs::remove_file(bed.at("busy/file")).expect("removed");
            }
        });
        let wrong = (0..500).find_map(|round| {
            let before = (listed(), listed());
            fs::write(bed.on(0, &format!("d/n{round}")), "").expect("a file");
            let after = listed();
            (before != (round, round) || after != round + 1).then_some((round, before, after))
        });
        stop.store(true, Ordering::Relaxed);
        wrong
    });
    assert_eq!(wrong, None, "round, entries listed twice before it, and after it");
    bed.pool.umount();
}

pub(super) fn open(dir: &Path) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).expect("a directory")
}

/// Reads one buffer of entries: each name with the position after it.
pub(super) fn part(dir: &OwnedFd, bytes: usize) -> Vec<(String, u64)> {
    let mut buffer = vec![MaybeUninit::uninit(); bytes];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.expect("an entry");
        names.push((entry.file_name().to_str().expect("text").to_owned(), entry.next_entry_cookie()));
        if entries.is_buffer_empty() {
            break;
        }
    }
    names
}

/// An NFS server does this for rm(1): it reopens the directory at the last position for each part.
#[test]
fn positions_remain_valid_after_the_directory_is_closed() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs] {
        let bed = two_disks(kind, "");
        let dir = bed.at("d");
        for branch in 0..2 {
            fs::create_dir(bed.on(branch, "d")).expect("mkdir");
            (0..500).for_each(|n| {
                drop(File::create(bed.on(branch, &format!("d/{branch}.{n}"))).expect("a file"))
            });
        }
        let (mut position, mut returned) = (0, BTreeMap::<String, u32>::new());
        for round in 0.. {
            if round == 3 {
                // Long enough for the daemon to drop all state it kept for the listing.
                std::thread::sleep(Duration::from_secs(5));
            }
            let listing = open(&dir);
            rustix::fs::seek(&listing, SeekFrom::Start(position)).expect("a seek");
            let names = part(&listing, 2048);
            drop(listing);
            let Some((_, last)) = names.last() else { break };
            position = *last;
            for (name, _) in names.iter().filter(|(name, _)| name != "." && name != "..") {
                *returned.entry(name.clone()).or_default() += 1;
                if !name.ends_with('3') {
                    fs::remove_file(dir.join(name)).expect("removed");
                }
            }
        }
        assert_eq!(returned.len(), 1000, "{kind:?}: distinct names returned");
        assert!(returned.values().all(|&times| times == 1), "{kind:?}");
        assert_eq!(fs::read_dir(&dir).expect("a listing").count(), 100, "{kind:?}: names left");
        bed.pool.umount();
    }
}

/// telldir(3) and seekdir(3) to arbitrary positions while entries are removed.
#[test]
fn positions_are_exact() {
    let bed = two_disks(Kind::Ext4, "");
    for branch in 0..2 {
        fs::create_dir(bed.on(branch, "d")).expect("mkdir");
        (0..2000)
            .for_each(|n| drop(File::create(bed.on(branch, &format!("d/{branch}.{n}"))).expect("a file")));
    }
    let dir = bed.at("d");
    let listing = open(&dir);
    let mut all = Vec::new();
    loop {
        let names = part(&listing, 1000);
        if names.is_empty() {
            break;
        }
        all.extend(names);
    }
    assert_eq!(all.len(), 4002);
    let positions: BTreeSet<u64> = all.iter().map(|(_, position)| *position).collect();
    assert_eq!(positions.len(), all.len(), "two entries have the same position");
    for at in (5..all.len() - 10).step_by(97).rev() {
        fs::remove_file(dir.join(&all[at].0)).expect("removed");
        rustix::fs::seek(&listing, SeekFrom::Start(all[at].1)).expect("a seek");
        let names: Vec<String> = part(&listing, 200).into_iter().map(|(name, _)| name).collect();
        assert!(
            !names.is_empty() && all[at + 1..].iter().map(|(name, _)| name).zip(&names).all(|(a, b)| a == b)
        );
    }
    drop(listing);
    bed.pool.umount();
}

/// The daemon does not keep a copy of the names for each open directory.
#[test]
fn open_directories_use_little_memory() {
    let bed = two_disks(Kind::Tmpfs, "");
    for branch in 0..2 {
        fs::create_dir(bed.on(branch, "d")).expect("mkdir");
        let name = |n| bed.on(branch, &format!("d/a-name-of-some-length-{branch}-{n:06}"));
        (0..20_000).for_each(|n| drop(File::create(name(n)).expect("a file")));
    }
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", bed.pool.pid())).expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let list =
        |listing: &OwnedFd, parts: usize| (0..parts).map(|_| part(listing, 32 << 10).len()).sum::<usize>();
    // Afterwards the pool has all the nodes, and the kernel may have cached the listing.
    assert_eq!(list(&open(&bed.at("d")), 1000), 40_002);
    let before = resident();
    let listings: Vec<OwnedFd> = (0..100)
        .map(|_| {
            // Invalidates the listing that the kernel has cached.
            File::create(bed.at("d/marker")).expect("a file");
            let listing = open(&bed.at("d"));
            list(&listing, 3);
            listing
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB for {} open directories", listings.len());
    drop(listings);
    bed.pool.umount();
}
