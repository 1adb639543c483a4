//! Copies that are written at the same time (`when = "written"`): whatever fails or ends in between, what was acknowledged is
//! on two disks, and no two contents have one number.
//!
//! Needs root.

use super::copies::Bed;
use crate::common::ROOT;
use canopy_base::error::Error;
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::{BranchList, BranchSpec, Mode};
use canopy_pool::ops;
use canopy_pool::{RenameKind, SetAttr, WriteKind};
use canopy_testkit::{Fault, FaultyFs, LoopFs, Opcode, ScratchDir};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const WRITE: u32 = OFlags::WRONLY.bits();
const BOTH: u32 = OFlags::RDWR.bits();
const APPEND: u32 = OFlags::APPEND.bits();

/// A pool over filesystems of these sizes in MiB. Its rule wants two copies in `d`.
struct Disks {
    bed: Bed,
    disks: Vec<LoopFs>,
}

impl Disks {
    fn new(sizes: &[u64]) -> Disks {
        Disks::wanting(2, sizes)
    }

    fn wanting(copies: u8, sizes: &[u64]) -> Disks {
        let disks: Vec<LoopFs> = sizes.iter().map(|size| LoopFs::tmpfs(size << 20)).collect();
        let bed = Bed::written_at_once(copies, disks.iter().map(|disk| disk.path().to_owned()).collect());
        Disks { bed, disks }
    }
}

impl Bed {
    /// Creates a file, and leaves it open.
    fn begin(&self, path: &str, flags: u32) -> (NodeId, HandleId) {
        let (dir, name) = self.place(path);
        let (entry, opened) = ops::data::create::create(self.pool(), &ROOT, dir, name, 0o644, flags).unwrap();
        (entry.node, opened.handle)
    }

    fn put(&self, handle: HandleId, at: u64, text: &str) -> Result<usize, Errno> {
        ops::data::io::write(self.pool(), handle, at, text.as_bytes(), WriteKind::default())
            .map_err(Error::errno)
    }

    fn close(&self, handle: HandleId) {
        ops::data::open::flush(self.pool(), handle).unwrap();
        self.end(handle);
    }

    fn end(&self, handle: HandleId) {
        ops::data::open::release(self.pool(), handle).unwrap();
    }

    fn sync(&self, handle: HandleId) -> Result<(), Errno> {
        ops::data::io::fsync(self.pool(), handle, false).map_err(Error::errno)
    }

    fn set(&self, path: &str, handle: Option<HandleId>, set: SetAttr) {
        ops::attrs::setattr::setattr(self.pool(), &ROOT, self.node(path), handle, &set).unwrap();
    }

    /// Leaves only these branches to the pool, which goes on.
    fn left(&self, branches: &[usize]) {
        let spec =
            |at: &usize| BranchSpec { path: self.made.branches[*at].clone(), mode: Mode::Rw, min_free: None };
        let list: BranchList = branches.iter().map(spec).collect();
        let left = ops::settings::branches(self.pool()).update(&list).unwrap();
        ops::settings::set_branches(self.pool(), left);
    }

    /// All copies hold this, and are known to be equal.
    fn both(&self, path: &str, text: &str) {
        assert_eq!([self.on(0, path).as_str(), self.on(1, path).as_str()], [text, text]);
        assert!(self.are_same(path, 0, 1), "{:?}", [0, 1].map(|at| self.generation(at, path)));
    }

    /// What the pool shows when only these branches are left, to a process that knows nothing.
    fn shown(&self, branches: &[usize], path: &str) -> String {
        let paths = branches.iter().map(|&at| self.made.branches[at].clone()).collect();
        Bed::written_at_once(2, paths).read(path)
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn a_new_file_is_on_two_disks_before_its_close_returns() {
    let made = Disks::new(&[8, 8, 8]);
    let bed = &made.bed;
    let (_, handle) = bed.begin("d/f", WRITE);
    assert_eq!(bed.put(handle, 0, "first"), Ok(5));
    // Until then, one of them is right.
    let [own, other] = [0, 1].map(|at| bed.generation(at, "d/f").unwrap());
    assert!(own.number > other.number && !own.shared && other.shared, "{own:?} {other:?}");
    assert_eq!([bed.on(0, "d/f").as_str(), bed.on(1, "d/f").as_str()], ["first", "first"]);
    assert!(!bed.made.on(2, "d/f").exists());
    ops::data::open::flush(bed.pool(), handle).unwrap();
    bed.both("d/f", "first");
    // What comes after a flush parts them again.
    assert_eq!(bed.put(handle, 5, ", second"), Ok(8));
    assert!(!bed.are_same("d/f", 0, 1));
    bed.end(handle);
    bed.both("d/f", "first, second");
    assert_eq!(bed.copy("d/f", 0, 1), Err(Errno::EXIST), "there is nothing to copy");
    // Where no rule wants it, nothing is different.
    let (_, handle) = bed.begin("other/f", WRITE);
    bed.put(handle, 0, "alone").unwrap();
    bed.close(handle);
    assert!(!bed.made.on(1, "other/f").exists());
}

#[test]
fn every_change_of_an_open_file_reaches_both() {
    let made = Disks::new(&[8, 8]);
    let bed = &made.bed;
    let (node, handle) = bed.begin("d/f", BOTH);
    bed.put(handle, 0, "0123456789").unwrap();
    bed.close(handle);
    type Change = fn(&Bed, NodeId, HandleId);
    let table: [(&str, Change, &str); 9] = [
        (
            "write beyond the end",
            |bed, _, handle| assert_eq!(bed.put(handle, 12, "ab"), Ok(2)),
            "0123456789\0\0ab",
        ),
        ("truncate by handle", |bed, _, handle| bed.set("d/f", Some(handle), size(4)), "0123"),
        ("truncate by name", |bed, _, _| bed.set("d/f", None, size(3)), "012"),
        (
            "append",
            |bed, _, handle| {
                let appender = bed.open("d/f", WRITE | APPEND).unwrap();
                bed.put(appender, 0, "+").unwrap();
                bed.put(handle, 4, "x").unwrap();
                bed.put(appender, 0, "-").unwrap();
                bed.close(appender);
            },
            "012+x-",
        ),
        (
            "fallocate",
            |bed, _, handle| ops::data::io::fallocate(bed.pool(), handle, 0, 0, 8).unwrap(),
            "012+x-\0\0",
        ),
        (
            "O_TRUNC",
            |bed, _, handle| {
                let other = bed.open("d/f", WRITE | OFlags::TRUNC.bits()).unwrap();
                bed.put(other, 0, "new").unwrap();
                bed.put(handle, 3, "er").unwrap();
                bed.close(other);
            },
            "newer",
        ),
        (
            "copy_file_range",
            |bed, _, handle| {
                let copied = ops::data::io::copy_file_range(bed.pool(), (handle, 0), (handle, 5), 5);
                assert_eq!(copied.map_err(Error::errno), Err(Errno::XDEV), "the kernel reads and writes");
            },
            "newer",
        ),
        (
            "chmod, times, attributes",
            |bed, node, handle| {
                bed.put(handle, 0, "N").unwrap();
                let time =
                    canopy_pool::SetTime::At(canopy_branch::fs::stat::Time { sec: 1_000_000_000, nsec: 5 });
                bed.set("d/f", None, SetAttr { mode: Some(0o640), mtime: Some(time), ..SetAttr::default() });
                ops::attrs::xattr::setxattr(bed.pool(), &ROOT, node, b"user.x", b"y", 0, false).unwrap();
            },
            "Newer",
        ),
        (
            "cached pages",
            |bed, _, handle| {
                let kind = WriteKind { from_cache: true, ..WriteKind::default() };
                ops::data::io::write(bed.pool(), handle, 1, b"EW", kind).unwrap();
            },
            "NEWer",
        ),
    ];
    for (what, change, text) in table {
        let handle = bed.open("d/f", BOTH).unwrap();
        change(bed, node, handle);
        // Before it is closed, the other disk has all that was synced.
        bed.sync(handle).unwrap();
        assert_eq!([bed.on(0, "d/f").as_str(), bed.on(1, "d/f").as_str()], [text, text], "{what}");
        bed.close(handle);
        bed.both("d/f", text);
    }
    let mut value = [0; 9];
    assert_eq!(rustix::fs::getxattr(bed.made.on(1, "d/f"), "user.x", &mut value), Ok(1));
    assert_eq!(fs::metadata(bed.made.on(1, "d/f")).unwrap().mode() & 0o777, 0o640);
}

/// Whoever comes after a crash, with one of the disks or with both, finds what was acknowledged. The steps of the state table.
#[test]
fn whatever_ends_in_between_one_content_is_right() {
    let made = Disks::new(&[8, 8]);
    let bed = &made.bed;
    let all = |text: &str| {
        for left in [&[0, 1][..], &[1, 0], &[0], &[1]] {
            assert_eq!(bed.shown(left, "d/f"), text, "{left:?}");
        }
    };
    let (_, handle) = bed.begin("d/f", BOTH);
    all("");
    bed.put(handle, 0, "one").unwrap();
    all("one");
    // A write that has reached one disk only: it was not answered.
    let tear = |at: usize, text: &str| fs::write(bed.made.on(at, "d/f"), text).unwrap();
    for (torn, text) in [(0, "ONE"), (1, "Xne")] {
        tear(torn, text);
        let right = bed.on(0, "d/f");
        assert_eq!(bed.shown(&[0, 1], "d/f"), right);
        assert_eq!(bed.shown(&[1, 0], "d/f"), right);
        tear(torn, "one");
    }
    ops::data::open::flush(bed.pool(), handle).unwrap();
    all("one");
    // Between the numbers of two copies that are equal, and of two that are parted.
    let equal = [0, 1].map(|at| bed.generation(at, "d/f").unwrap());
    bed.put(handle, 0, "two").unwrap();
    let parted = [0, 1].map(|at| bed.generation(at, "d/f").unwrap());
    assert!(parted.iter().all(|it| it.number > equal[0].number), "whoever is away is older than both");
    assert!(parted[0].number > parted[1].number);
    let number = |at: usize, of: canopy_branch::fs::generation::Generation| {
        let fd = fs::File::open(bed.made.on(at, "d/f")).unwrap();
        canopy_branch::fs::generation::write(std::os::fd::AsFd::as_fd(&fd), of).unwrap();
    };
    number(1, equal[1]);
    all("two");
    number(1, parted[1]);
    bed.end(handle);
    bed.both("d/f", "two");
}

#[test]
fn a_disk_that_fills_up_costs_nothing() {
    for small in [0, 1] {
        let sizes = if small == 0 { [2, 32, 32] } else { [32, 2, 32] };
        let made = Disks::new(&sizes);
        let (bed, disks) = (&made.bed, &made.disks);
        let (node, handle) = bed.begin("d/f", BOTH);
        let appender = bed.open("d/f", WRITE | APPEND).unwrap();
        bed.put(handle, 0, "begin").unwrap();
        disks[small].fill(0);
        let block = "x".repeat(1 << 20);
        let mut expected = "begin".to_owned();
        for _ in 0..3 {
            assert_eq!(bed.put(appender, 0, &block), Ok(block.len()));
            expected += &block;
        }
        bed.put(handle, 1, "E").unwrap();
        expected.replace_range(1..2, "E");
        bed.sync(handle).unwrap();
        let left = 1 - small;
        assert!(bed.on(left, "d/f") == expected);
        let mut read = vec![0; expected.len() + 1];
        assert_eq!(ops::data::io::read(bed.pool(), handle, 0, &mut read), Ok(expected.len()));
        assert!(read.starts_with(expected.as_bytes()));
        assert_eq!(bed.node("d/f"), node);
        bed.close(handle);
        bed.close(appender);
        let [own, full] = [left, small].map(|at| bed.generation(at, "d/f").unwrap());
        assert!(own.number > full.number, "{own:?} {full:?}");
        for order in [[0, 1], [1, 0]] {
            assert!(bed.shown(&order, "d/f") == expected[..100.min(expected.len())]);
        }
        // The mover makes the second copy elsewhere.
        bed.copy("d/f", left, 2).unwrap();
        assert!(bed.are_same("d/f", left, 2));
    }
}

/// A pool over a disk with faults and two others: which is which says `faulty`.
fn with_faults(faulty: usize) -> (ScratchDir, Vec<LoopFs>, FaultyFs, Bed) {
    let scratch = ScratchDir::new("written-", &["faulty"]);
    let disk = FaultyFs::mount(&scratch.path("faulty"));
    let disks = vec![LoopFs::tmpfs(8 << 20), LoopFs::tmpfs(8 << 20)];
    let mut paths: Vec<PathBuf> = disks.iter().map(|disk| disk.path().to_owned()).collect();
    paths.insert(faulty, disk.path().to_owned());
    let bed = Bed::written_at_once(2, paths);
    (scratch, disks, disk, bed)
}

#[test]
fn a_disk_that_fails_costs_nothing() {
    for faulty in [0, 1] {
        for kind in [Opcode::Write, Opcode::Fsync, Opcode::Setattr] {
            let (_scratch, _disks, disk, bed) = with_faults(faulty);
            let (_, handle) = bed.begin("d/f", BOTH);
            bed.put(handle, 0, "before").unwrap();
            bed.sync(handle).unwrap();
            disk.set(Fault::Fail(Errno::IO), &[kind]);
            let text = match kind {
                Opcode::Setattr => {
                    bed.set("d/f", Some(handle), size(3));
                    "bef"
                }
                _ => {
                    assert_eq!(bed.put(handle, 0, "after!"), Ok(6), "{faulty} {kind:?}");
                    "after!"
                }
            };
            assert_eq!(bed.sync(handle), Ok(()), "{faulty} {kind:?}");
            let good = 1 - faulty;
            assert_eq!(bed.on(good, "d/f"), text);
            // Whoever has it open goes on there.
            let reader = bed.open("d/f", 0).unwrap();
            bed.put(handle, 0, "B").unwrap();
            let mut read = [0; 20];
            assert_eq!(ops::data::io::read(bed.pool(), reader, 0, &mut read), Ok(text.len()));
            assert_eq!(read[0], b'B');
            bed.close(handle);
            bed.end(reader);
            disk.heal();
            let [own, failed] = [good, faulty].map(|at| bed.generation(at, "d/f").unwrap());
            assert!(own.number > failed.number, "{faulty} {kind:?}: {own:?} {failed:?}");
            assert_eq!(bed.read("d/f"), format!("B{}", &text[1..]));
        }
    }
}

#[test]
fn what_one_disk_cannot_read_the_other_answers_while_it_is_written() {
    let (_scratch, _disks, disk, bed) = with_faults(0);
    let (_, handle) = bed.begin("d/f", BOTH);
    bed.put(handle, 0, "content").unwrap();
    bed.sync(handle).unwrap();
    disk.set(Fault::Fail(Errno::IO), &[Opcode::Read]);
    let file = fs::File::open(bed.made.on(0, "d/f")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut read = [0; 20];
    assert_eq!(ops::data::io::read(bed.pool(), handle, 0, &mut read), Ok(7));
    assert_eq!(&read[..7], b"content");
    bed.put(handle, 0, "C").unwrap();
    bed.close(handle);
    assert_eq!(bed.shown(&[1], "d/f"), "Content");
}

#[test]
fn when_both_fail_the_client_gets_the_error() {
    let (_scratch, disks, disk, bed) = with_faults(0);
    let (_, handle) = bed.begin("d/f", BOTH);
    bed.put(handle, 0, "before").unwrap();
    disk.set(Fault::Fail(Errno::IO), &[Opcode::Write]);
    disks[0].fill(0);
    let block = "x".repeat(1 << 20);
    assert_eq!(bed.put(handle, 0, &block), Err(Errno::IO));
    disk.heal();
    assert_eq!(bed.put(handle, 0, "BEFORE"), Ok(6));
    bed.close(handle);
    assert_eq!(bed.read("d/f"), "BEFORE");
}

#[test]
fn names_that_come_while_a_file_is_open_reach_both() {
    let made = Disks::new(&[8, 8]);
    let bed = &made.bed;
    bed.create("d/f", "old");
    let (_, handle) = bed.begin("d/new", WRITE);
    bed.put(handle, 0, "new").unwrap();
    bed.rename("d/new", "d/f", RenameKind::Replace).unwrap();
    bed.both("d/f", "new");
    bed.put(handle, 0, "NEW").unwrap();
    bed.link("d/f", "d/g");
    bed.put(handle, 3, "!").unwrap();
    bed.close(handle);
    bed.both("d/f", "NEW!");
    bed.both("d/g", "NEW!");
    for at in [0, 1] {
        assert_eq!(fs::metadata(bed.made.on(at, "d/f")).unwrap().nlink(), 2);
    }
    // Removed, it is gone from both.
    let handle = bed.open("d/f", WRITE).unwrap();
    bed.unlink("d/f").unwrap();
    bed.unlink("d/g").unwrap();
    bed.put(handle, 0, "late").unwrap();
    bed.close(handle);
    for at in [0, 1] {
        assert_eq!(fs::read_dir(bed.made.on(at, "d")).unwrap().count(), 0);
    }
}

#[test]
fn what_there_is_gets_the_file_and_the_rest_is_owed() {
    let made = Disks::new(&[8, 8, 2]);
    let bed = &made.bed;
    // The other disk is away, or full.
    bed.left(&[0]);
    let (_, handle) = bed.begin("d/away", WRITE);
    bed.put(handle, 0, "one").unwrap();
    bed.close(handle);
    bed.left(&[0, 1, 2]);
    bed.copy("d/away", 0, 1).unwrap();
    // Equal copies are written together again, whoever has made them.
    let handle = bed.open("d/away", WRITE).unwrap();
    bed.put(handle, 0, "ONE").unwrap();
    bed.close(handle);
    bed.both("d/away", "ONE");
    // A disk that goes while the file is open: the other one goes on.
    for gone in [0, 1] {
        let handle = bed.open("d/away", WRITE).unwrap();
        bed.put(handle, 0, "two").unwrap();
        bed.left(&[1 - gone]);
        assert_eq!(bed.put(handle, 0, "TWO"), Ok(3), "{gone}");
        bed.close(handle);
        bed.left(&[0, 1]);
        assert_eq!(bed.read("d/away"), "TWO");
        assert!(!bed.are_same("d/away", 0, 1));
        let numbers = [0, 1, 2].map(|at| bed.generation(at, "d/away"));
        assert_eq!(bed.copy("d/away", 1 - gone, gone), Ok(()), "{gone}: {numbers:?}");
        bed.both("d/away", "TWO");
    }
}

#[test]
fn three_copies_survive_two_losses_of_one_file() {
    let made = Disks::wanting(3, &[8, 2, 8]);
    let (bed, disks) = (&made.bed, &made.disks);
    let (_, handle) = bed.begin("d/f", BOTH);
    bed.put(handle, 0, "0").unwrap();
    disks[1].fill(0);
    let block = "x".repeat(1 << 20);
    bed.put(handle, 1, &block).unwrap();
    bed.put(handle, 0, "1").unwrap();
    bed.sync(handle).unwrap();
    // The one that was let go is older than the one that goes on.
    let numbers = [0, 2, 1].map(|at| bed.generation(at, "d/f").unwrap().number);
    assert!(numbers.is_sorted_by(|one, other| one > other), "{numbers:?}");
    assert!(bed.shown(&[1, 2], "d/f").starts_with('1'));
    bed.close(handle);
    assert!(bed.are_same("d/f", 0, 2));
}

/// Appends, writes, truncations, changes of attributes and names, opens and closes, all at once.
#[test]
fn what_happens_at_once_leaves_equal_copies_or_an_old_one() {
    const ROUNDS: usize = 150;
    let made = Disks::new(&[32, 32, 32]);
    let bed = &made.bed;
    bed.close(bed.begin("d/f", WRITE).1);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let flags = if thread == 0 { WRITE | APPEND } else { BOTH };
                    let handle = loop {
                        match bed.open("d/f", flags) {
                            Ok(handle) => break handle,
                            Err(Errno::STALE | Errno::NOENT) => {}
                            Err(errno) => panic!("{errno}"),
                        }
                    };
                    for at in 0..4 {
                        let text = format!("{thread}:{round}:{at};");
                        bed.put(handle, (round * 7 + at) as u64, &text).unwrap();
                    }
                    if thread == 1
                        && round % 10 == 0
                        && let Ok(entry) = bed.find("d/f")
                    {
                        let (pool, set) = (bed.pool(), size(50));
                        let _ = ops::attrs::setattr::setattr(pool, &ROOT, entry.node, Some(handle), &set);
                    }
                    bed.close(handle);
                }
            });
        }
        scope.spawn(move || {
            for round in 0..ROUNDS {
                let Ok(entry) = bed.find("d/f") else { continue };
                let set = SetAttr { mode: Some(0o600 + (round % 8) as u32), ..SetAttr::default() };
                let _ = ops::attrs::setattr::setattr(bed.pool(), &ROOT, entry.node, None, &set);
                if round % 5 == 0 {
                    let _ = bed.rename("d/f", "d/g", RenameKind::Replace);
                    let _ = bed.rename("d/g", "d/f", RenameKind::Replace);
                }
            }
        });
    });
    // Whatever it has come to, the next writer's copies are equal, or the mover makes one.
    if bed.generation(1, "d/f").is_none() || !bed.are_same("d/f", 0, 1) {
        bed.copy("d/f", 0, 1).unwrap();
    }
    bed.close(bed.open("d/f", WRITE).unwrap());
    assert!(bed.are_same("d/f", 0, 1));
}

/// An attribute that is set beside opens for writing is on both copies afterwards, whichever of their steps it meets.
#[test]
fn an_attribute_set_beside_an_open_stays() {
    const FILES: usize = 400;
    let disks = Disks::new(&[64, 64]);
    let bed = &disks.bed;
    let names: Vec<String> = (0..FILES).map(|at| format!("d/f{at}")).collect();
    for name in &names {
        let (_, handle) = bed.begin(name, WRITE);
        bed.put(handle, 0, "old old").unwrap();
        bed.close(handle);
    }
    let together = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for name in &names {
                let node = bed.node(name);
                together.wait();
                let set = || ops::attrs::xattr::setxattr(bed.pool(), &ROOT, node, b"user.x", b"y", 0, false);
                // The kernel looks the name up again.
                while set() == Err(Error::Stale) {}
            }
        });
        for name in &names {
            let node = bed.node(name);
            together.wait();
            let nodes = [node].into_iter().chain(std::iter::once_with(|| bed.node(name)));
            let mut open = nodes.map(|node| ops::data::open::open(bed.pool(), &ROOT, node, BOTH, false));
            let opened = open.find_map(Result::ok).unwrap();
            bed.put(opened.handle, 0, "NEW NEW").unwrap();
            bed.close(opened.handle);
        }
    });
    for name in &names {
        let has = |branch: usize, attribute: &str| {
            let mut value = [0; 32];
            let length = rustix::fs::getxattr(bed.made.on(branch, name), attribute, &mut value[..]).ok()?;
            Some(String::from_utf8_lossy(&value[..length]).into_owned())
        };
        let number = |branch| {
            let text = has(branch, "user.canopy.generation").unwrap();
            text.trim_end_matches('+').parse::<u64>().unwrap()
        };
        // The mover makes an old copy anew.
        for branch in (0..2).filter(|branch| number(*branch) == number(0).max(number(1))) {
            assert!(has(branch, "user.x").is_some(), "{name}, on branch {branch}, which is current");
        }
    }
}

/// The process that has written a file on two disks is killed, and then the disk goes away that has the larger number. What happens
/// to the other copy is newer, whatever comes back.
#[test]
fn what_is_changed_while_the_newest_copy_is_away_stays() {
    type Change = fn(&Bed);
    let table: [(&str, Change, &str, u32); 5] = [
        (
            "write",
            |bed| {
                let opened = ops::data::open::open(bed.pool(), &ROOT, bed.node("d/f"), WRITE, false).unwrap();
                bed.put(opened.handle, 0, "later").unwrap();
                bed.close(opened.handle);
            },
            "later",
            0o644,
        ),
        ("truncate", |bed| bed.set("d/f", None, size(2)), "fi", 0o644),
        (
            "mode",
            |bed| bed.set("d/f", None, SetAttr { mode: Some(0o600), ..SetAttr::default() }),
            "first",
            0o600,
        ),
        (
            "rename",
            |bed| {
                bed.rename("d/f", "d/g", RenameKind::Replace).unwrap();
                bed.rename("d/g", "d/f", RenameKind::Replace).unwrap();
            },
            "first",
            0o644,
        ),
        ("nothing", |_| (), "first", 0o644),
    ];
    for (what, change, content, mode) in table {
        let disks = Disks::new(&[8, 8]);
        let (_, handle) = disks.bed.begin("d/f", WRITE);
        disks.bed.put(handle, 0, "first").unwrap();
        disks.bed.sync(handle).unwrap();
        // As it is killed: its records stay as they are.
        let next = Bed::written_at_once(2, disks.bed.made.branches.clone());
        let [own, other] = [0, 1].map(|at| next.generation(at, "d/f").unwrap());
        assert!(own.number > other.number && !own.shared, "{own:?} {other:?}");
        next.left(&[1]);
        change(&next);
        next.left(&[0, 1]);
        assert_eq!(next.read("d/f"), content, "{what}");
        let shown = next.find("d/f").unwrap().attr;
        assert_eq!(shown.mode & 0o7777, mode, "{what}");
        disks.bed.end(handle);
    }
}

#[test]
fn copies_that_were_equal_part_though_one_of_them_has_gone() {
    let check = |what: &str, lose: &dyn Fn(&Bed, &FaultyFs), regain: &dyn Fn(&Bed, &FaultyFs)| {
        for faulty in [0, 1] {
            let (_scratch, _disks, disk, bed) = with_faults(faulty);
            bed.create("d/f", "before");
            let handle = bed.open("d/f", WRITE).unwrap();
            bed.put(handle, 0, "B").unwrap();
            // As at the close of a duplicate: both have one number.
            ops::data::open::flush(bed.pool(), handle).unwrap();
            bed.both("d/f", "Before");
            lose(&bed, &disk);
            assert_eq!(bed.put(handle, 0, "AFTER!"), Ok(6), "{what}, {faulty}");
            regain(&bed, &disk);
            let numbers = [0, 1].map(|at| bed.generation(at, "d/f").unwrap());
            let contents = [0, 1].map(|at| bed.on(at, "d/f"));
            assert!(
                numbers[0].number != numbers[1].number || contents[0] == contents[1],
                "{what}, {faulty}: {numbers:?} {contents:?}"
            );
            bed.close(handle);
            assert_eq!(bed.read("d/f"), "AFTER!", "{what}, {faulty}");
        }
    };
    check(
        "a branch has left",
        &|bed, disk| bed.left(&[usize::from(bed.made.branches[0] == disk.path()), 2]),
        &|bed, _| bed.left(&[0, 1, 2]),
    );
    for kind in [Opcode::Getxattr, Opcode::Getattr, Opcode::Setxattr] {
        check(
            &format!("{kind:?} fails"),
            &|_, disk| disk.set(Fault::Fail(Errno::IO), &[kind]),
            &|_, disk| disk.heal(),
        );
    }
}

#[test]
fn a_copy_that_is_the_newest_by_loss_stays_so_when_the_others_return() {
    type Change = fn(&Bed) -> &'static str;
    let changes: [Change; 4] = [
        |bed| {
            bed.write("d/f", "AFTER!");
            "AFTER!"
        },
        |bed| {
            let handle = bed.open("d/f", WRITE | OFlags::TRUNC.bits()).unwrap();
            bed.put(handle, 0, "new").unwrap();
            bed.close(handle);
            "new"
        },
        |bed| {
            bed.set("d/f", None, size(3));
            "bef"
        },
        |bed| {
            bed.set("d/f", None, SetAttr { mode: Some(0o600), ..SetAttr::default() });
            "before"
        },
    ];
    for old in [false, true] {
        for change in changes {
            let made = Disks::new(&[8, 8]);
            // The process that serves ends while the file is written: nobody says that its copies are equal.
            if old {
                made.bed.create("d/f", "BEFORE");
            }
            let handle =
                if old { made.bed.open("d/f", WRITE).unwrap() } else { made.bed.begin("d/f", WRITE).1 };
            made.bed.put(handle, 0, "before").unwrap();
            made.bed.sync(handle).unwrap();
            let fresh = |branches: &[usize]| {
                let paths = branches.iter().map(|&at| made.bed.made.branches[at].clone()).collect();
                Bed::written_at_once(2, paths)
            };
            assert_eq!(fresh(&[1]).read("d/f"), "before");
            let text = change(&fresh(&[1]));
            let both = fresh(&[0, 1]);
            assert_eq!(both.read("d/f"), text, "{:?}", [0, 1].map(|at| both.generation(at, "d/f")));
            let shown = both.find("d/f").unwrap().attr.mode & 0o777;
            assert_eq!(shown == 0o600, text == "before", "{shown:o}");
        }
    }
}
