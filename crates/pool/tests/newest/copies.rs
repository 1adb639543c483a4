//! Rules about copies, on plain directories: which copy of a file is the newest, and that only this one is shown.

use crate::common::{Made, ROOT, TestKernel, administrator, home, over, pool};
use canopy_base::error::Error;
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::{BranchList, BranchSpec, Branches, Mode};
use canopy_branch::fs::generation::{ATTRIBUTE, Generation};
use canopy_policy::placement::{Pattern, Placement, Rule, Target};
use canopy_policy::{Category, Policy};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Pool, RenameKind, SetAttr, WriteKind};
use canopy_sys::ioctl::relocate::{RELOCATE, Relocation, What};
use canopy_sys::lease;
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const WRITE: u32 = OFlags::WRONLY.bits();

fn placement(copies: u8, written: bool) -> Placement {
    let rule = |path: &str| Rule {
        path: Pattern::new(path).unwrap(),
        target: Target::Anywhere,
        copies: Some(copies),
        written,
    };
    Placement { tiers: Vec::new(), rules: vec![rule("d/**")] }
}

/// A pool with a rule: files in `d` are to be on two branches.
pub(super) struct Bed {
    pub(super) made: Made,
}

impl Bed {
    pub(super) fn new(branches: usize) -> Bed {
        Bed::with(branches, true)
    }

    pub(super) fn with(branches: usize, watched: bool) -> Bed {
        Bed::wanting(2, branches, watched)
    }

    fn wanting(copies: u8, branches: usize, watched: bool) -> Bed {
        let mut config = Config { placement: placement(copies, false), ..Config::default() };
        config.policies.set_category(Category::Create, Policy::Ff);
        Bed::begun(pool(&vec![Mode::Rw; branches], config), watched)
    }

    /// A pool over these directories, whose rule wants so many copies that are written at the same time.
    pub(super) fn written_at_once(copies: u8, branches: Vec<PathBuf>) -> Bed {
        Bed::over(placement(copies, true), branches)
    }

    /// A pool over these directories, whose rule wants two copies when files are closed.
    pub(super) fn when_closed(branches: Vec<PathBuf>) -> Bed {
        Bed::over(placement(2, false), branches)
    }

    fn over(placement: Placement, branches: Vec<PathBuf>) -> Bed {
        let mut config = Config { placement, ..Config::default() };
        config.policies.set_category(Category::Create, Policy::Ff);
        let pool = over(&branches, &vec![Mode::Rw; branches.len()], config);
        Bed::begun(Made { pool, branches, home: home() }, true)
    }

    fn begun(made: Made, watched: bool) -> Bed {
        ops::settings::connect(
            &made.pool,
            Arc::new(TestKernel { unwatched: !watched, ..TestKernel::default() }),
            false,
        );
        ops::settings::recover(&made.pool);
        for branch in 0..made.branches.len() {
            fs::create_dir_all(made.on(branch, "d")).unwrap();
            fs::create_dir_all(made.on(branch, "other")).unwrap();
        }
        Bed { made }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.made.pool
    }

    /// Looks a path up, from the root.
    pub(super) fn find(&self, path: &str) -> Result<canopy_pool::Entry, Error> {
        let mut at = ops::names::lookup::lookup(
            self.pool(),
            NodeId::ROOT,
            path.split('/').next().unwrap().as_bytes(),
        )?;
        for name in path.split('/').skip(1) {
            at = ops::names::lookup::lookup(self.pool(), at.node, name.as_bytes())?;
        }
        Ok(at)
    }

    pub(super) fn node(&self, path: &str) -> NodeId {
        self.find(path).unwrap().node
    }

    pub(super) fn place<'p>(&self, path: &'p str) -> (NodeId, &'p [u8]) {
        match path.rsplit_once('/') {
            Some((dir, name)) => (self.node(dir), name.as_bytes()),
            None => (NodeId::ROOT, path.as_bytes()),
        }
    }

    pub(super) fn open(&self, path: &str, flags: u32) -> Result<HandleId, Errno> {
        let node = self.find(path).map_err(Error::errno)?.node;
        ops::data::open::open(self.pool(), &ROOT, node, flags, false)
            .map(|opened| opened.handle)
            .map_err(Error::errno)
    }

    pub(super) fn write_in(&self, handle: HandleId, text: &str) {
        assert_eq!(
            ops::data::io::write(self.pool(), handle, 0, text.as_bytes(), WriteKind::default()),
            Ok(text.len())
        );
    }

    /// Creates a file through the pool.
    pub(super) fn create(&self, path: &str, text: &str) {
        let (dir, name) = self.place(path);
        let (_, opened) = ops::data::create::create(self.pool(), &ROOT, dir, name, 0o644, WRITE).unwrap();
        self.write_in(opened.handle, text);
        ops::data::open::release(self.pool(), opened.handle).unwrap();
    }

    /// Writes the beginning of a file through the pool.
    pub(super) fn write(&self, path: &str, text: &str) {
        let handle = self.open(path, WRITE).unwrap();
        self.write_in(handle, text);
        ops::data::open::release(self.pool(), handle).unwrap();
    }

    pub(super) fn read(&self, path: &str) -> String {
        let handle = self.open(path, 0).unwrap();
        let mut bytes = vec![0; 100];
        let length = ops::data::io::read(self.pool(), handle, 0, &mut bytes).unwrap();
        ops::data::open::release(self.pool(), handle).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// Has the pool copy a file.
    pub(super) fn copy(&self, path: &str, from: usize, to: usize) -> Result<(), Errno> {
        let (dir, name) = self.place(path);
        let [from, to] = [from, to].map(|branch| self.made.branches[branch].as_os_str().as_bytes());
        let wish = Relocation { name, from, to, rate: 0, idle: false, lossy: false, what: What::Copy };
        ops::attrs::ioctl::ioctl(self.pool(), &administrator(), dir, RELOCATE, &wish.to_bytes().unwrap())
            .map(drop)
            .map_err(Error::errno)
    }

    /// Has the pool take a copy off a branch.
    fn take_off(&self, path: &str, from: usize, to: usize) -> Result<(), Errno> {
        self.relocate(path, from, to, What::Drop)
    }

    fn relocate(&self, path: &str, from: usize, to: usize, what: What) -> Result<(), Errno> {
        let (dir, name) = self.place(path);
        let [from, to] = [from, to].map(|branch| self.made.branches[branch].as_os_str().as_bytes());
        let wish = Relocation { name, from, to, rate: 0, idle: false, lossy: false, what };
        ops::attrs::ioctl::ioctl(self.pool(), &administrator(), dir, RELOCATE, &wish.to_bytes().unwrap())
            .map(drop)
            .map_err(Error::errno)
    }

    pub(super) fn link(&self, from: &str, to: &str) {
        let (dir, name) = self.place(to);
        ops::names::link::link(self.pool(), &ROOT, self.node(from), dir, name).unwrap();
    }

    pub(super) fn rename(&self, from: &str, to: &str, kind: RenameKind) -> Result<(), Errno> {
        let ((dir, name), (new_dir, new_name)) = (self.place(from), self.place(to));
        ops::names::rename::rename(self.pool(), &ROOT, dir, name, new_dir, new_name, kind)
            .map_err(Error::errno)
    }

    pub(super) fn unlink(&self, path: &str) -> Result<(), Errno> {
        let (dir, name) = self.place(path);
        ops::names::remove::unlink(self.pool(), dir, name).map_err(Error::errno)
    }

    /// Leaves only these branches to the pool, as if the disks of the others had been pulled.
    pub(super) fn only(&self, branches: &[usize]) {
        self.modes(&branches.iter().map(|branch| (*branch, Mode::Rw)).collect::<Vec<_>>());
    }

    pub(super) fn modes(&self, branches: &[(usize, Mode)]) {
        let spec = |(index, mode): &(usize, Mode)| BranchSpec {
            path: self.made.branches[*index].clone(),
            mode: *mode,
            min_free: None,
        };
        let list: BranchList = branches.iter().map(spec).collect();
        ops::settings::set_branches(self.pool(), Branches::open(&list).unwrap());
    }

    pub(super) fn on(&self, branch: usize, path: &str) -> String {
        fs::read_to_string(self.made.on(branch, path)).unwrap_or_else(|error| error.kind().to_string())
    }

    pub(super) fn generation(&self, branch: usize, path: &str) -> Option<Generation> {
        generation(&self.made.on(branch, path))
    }

    /// Returns whether two branches hold copies that the pool takes to be the same. They must be.
    pub(super) fn are_same(&self, path: &str, one: usize, other: usize) -> bool {
        let [a, b] = [one, other].map(|branch| self.generation(branch, path).unwrap());
        if a.number != b.number {
            return false;
        }
        assert!(a.shared && b.shared, "{path}: {a:?} {b:?}");
        let of = |branch| {
            let meta = fs::metadata(self.made.on(branch, path)).unwrap();
            (self.on(branch, path), meta.mode(), meta.uid(), meta.mtime(), meta.mtime_nsec())
        };
        assert_eq!(of(one), of(other));
        true
    }
}

fn generation(path: &Path) -> Option<Generation> {
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(path, ATTRIBUTE, &mut value).ok()?;
    Generation::parse(&value[..length])
}

/// A file that two of three branches hold.
pub(super) fn copied(bed: &Bed) {
    bed.create("d/f", "first");
    bed.copy("d/f", 0, 1).unwrap();
    assert!(bed.are_same("d/f", 0, 1));
}

#[test]
fn a_write_makes_the_other_copy_out_of_date_before_it_happens() {
    for watched in [true, false] {
        let bed = Bed::with(3, watched);
        bed.create("d/f", "first");
        let new = bed.generation(0, "d/f").unwrap();
        assert!(new.number > 0 && !new.shared);
        bed.copy("d/f", 0, 1).unwrap();
        let same = bed.generation(1, "d/f").unwrap();
        assert_eq!((same.number, same.shared), (new.number, true));
        let handle = bed.open("d/f", WRITE).unwrap();
        let written = bed.generation(0, "d/f").unwrap();
        assert!(written.number > same.number && !written.shared, "nothing is written yet");
        bed.write_in(handle, "FIRST");
        // A second writer changes no number: no other copy can have it.
        bed.write("d/f", "F");
        assert_eq!(bed.generation(0, "d/f"), Some(written));
        ops::data::open::release(bed.pool(), handle).unwrap();
        assert_eq!((bed.on(0, "d/f").as_str(), bed.on(1, "d/f").as_str()), ("FIRST", "first"));
        // The copy takes the place of the old one.
        let old = fs::metadata(bed.made.on(1, "d/f")).unwrap().ino();
        bed.copy("d/f", 0, 1).unwrap();
        assert!(bed.are_same("d/f", 0, 1));
        assert_ne!(fs::metadata(bed.made.on(1, "d/f")).unwrap().ino(), old);
        // Nothing else is touched, and there is nothing to do twice.
        assert_eq!(bed.copy("d/f", 0, 1), Err(Errno::EXIST));
        assert_eq!(fs::read_dir(&bed.made.branches[1]).unwrap().count(), 3, "no note of a move is left");
    }
}

#[test]
fn opens_that_truncate_and_truncations_count_as_writes() {
    let bed = Bed::new(2);
    copied(&bed);
    let handle = bed.open("d/f", WRITE | OFlags::TRUNC.bits()).unwrap();
    ops::data::open::release(bed.pool(), handle).unwrap();
    assert_eq!((bed.on(0, "d/f").as_str(), bed.on(1, "d/f").as_str()), ("", "first"));
    assert!(!bed.are_same("d/f", 0, 1));
    bed.copy("d/f", 0, 1).unwrap();
    bed.write("d/f", "second");
    bed.copy("d/f", 0, 1).unwrap();
    // By its name, a file is truncated on both branches.
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    assert_eq!(
        ops::attrs::setattr::setattr(bed.pool(), &ROOT, bed.node("d/f"), None, &size).unwrap().size,
        3
    );
    assert!(bed.are_same("d/f", 0, 1));
    assert_eq!(bed.on(1, "d/f"), "sec");
    // Reading changes nothing.
    assert_eq!(bed.read("d/f"), "sec");
    assert!(bed.are_same("d/f", 0, 1));
    // But for O_RDONLY | O_TRUNC, which the kernel sends as these two.
    let handle = bed.open("d/f", 0).unwrap();
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(
        ops::attrs::setattr::setattr(bed.pool(), &ROOT, bed.node("d/f"), None, &size).unwrap().size,
        0
    );
    ops::data::open::release(bed.pool(), handle).unwrap();
    assert!(!bed.are_same("d/f", 0, 1));
    assert_eq!((bed.read("d/f").as_str(), bed.on(1, "d/f").as_str()), ("", "sec"));
}

/// What has to wait for a lease has changed nothing: no copy, and not which ones are the newest.
#[test]
fn who_waits_for_a_lease_has_changed_no_copy() {
    const SET_FLAGS: u32 = 0x4008_6602;
    const NODUMP: u32 = 0x40;
    let size = Some(2);
    for (leased, way) in [(0, "open"), (0, "truncate"), (1, "truncate"), (1, "chmod, truncate"), (1, "flags")]
    {
        let bed = Bed::new(2);
        copied(&bed);
        let files = [0, 1].map(|branch| fs::File::open(bed.made.on(branch, "d/f")).unwrap());
        let flags = || files.each_ref().map(|file| rustix::fs::ioctl_getflags(file).unwrap().bits());
        let state = || {
            let of = |branch: usize| {
                let meta = fs::metadata(bed.made.on(branch, "d/f")).unwrap();
                (bed.generation(branch, "d/f"), meta.len(), meta.mode(), meta.ctime_nsec())
            };
            ([of(0), of(1)], flags())
        };
        let node = bed.node("d/f");
        let work = || match way {
            "open" => ops::data::open::open(bed.pool(), &ROOT, node, WRITE, false).map(|opened| {
                ops::data::open::release(bed.pool(), opened.handle).unwrap();
            }),
            "truncate" => ops::attrs::setattr::setattr(
                bed.pool(),
                &ROOT,
                node,
                None,
                &SetAttr { size, ..SetAttr::default() },
            )
            .map(drop),
            "chmod, truncate" => {
                let set = SetAttr { size, mode: Some(0o600), ..SetAttr::default() };
                ops::attrs::setattr::setattr(bed.pool(), &ROOT, node, None, &set).map(drop)
            }
            _ => {
                ops::attrs::ioctl::ioctl(bed.pool(), &ROOT, node, SET_FLAGS, &NODUMP.to_ne_bytes()).map(drop)
            }
        };
        lease::take_alone(files[leased].as_fd()).unwrap();
        let before = state();
        for _ in 0..3 {
            let waits = work();
            assert!(matches!(waits, Err(Error::Wait(_))), "{way} of {leased}: {waits:?}");
            assert_eq!(state(), before, "{way} of {leased}");
        }
        lease::release(files[leased].as_fd());
        work().unwrap();
        assert_ne!(state(), before, "{way} of {leased}");
        assert_eq!(bed.are_same("d/f", 0, 1), way != "open", "{way} of {leased}");
    }
}

#[test]
fn changes_of_attributes_reach_all_copies_that_are_there() {
    let bed = Bed::new(2);
    copied(&bed);
    let before = bed.generation(0, "d/f").unwrap();
    let mode = |mode| SetAttr { mode: Some(mode), uid: Some(12), ..SetAttr::default() };
    ops::attrs::setattr::setattr(bed.pool(), &ROOT, bed.node("d/f"), None, &mode(0o600)).unwrap();
    ops::attrs::xattr::setxattr(bed.pool(), &ROOT, bed.node("d/f"), b"user.x", b"y", 0, false).unwrap();
    assert!(bed.are_same("d/f", 0, 1));
    assert!(bed.generation(0, "d/f").unwrap().number > before.number);
    assert_eq!(rustix::fs::getxattr(bed.made.on(1, "d/f"), "user.x", &mut [0; 9]), Ok(1));
    // A copy that is away is out of date afterwards, whether it comes back as the first or the second.
    for away in [0, 1] {
        let here = 1 - away;
        bed.only(&[here]);
        ops::attrs::setattr::setattr(bed.pool(), &ROOT, bed.node("d/f"), None, &mode(0o640)).unwrap();
        bed.only(&[0, 1]);
        assert!(!bed.are_same("d/f", 0, 1));
        assert_eq!(bed.find("d/f").unwrap().attr.mode & 0o777, 0o640, "{away}");
        bed.copy("d/f", here, away).unwrap();
        assert!(bed.are_same("d/f", 0, 1));
        ops::attrs::setattr::setattr(bed.pool(), &ROOT, bed.node("d/f"), None, &mode(0o600)).unwrap();
        assert!(bed.are_same("d/f", 0, 1));
    }
    // A change that fails leaves both.
    let failed = ops::attrs::xattr::setxattr(
        bed.pool(),
        &ROOT,
        bed.node("d/f"),
        b"user.x",
        b"y",
        XattrFlags::CREATE.bits(),
        false,
    );
    assert_eq!(failed.map_err(Error::errno), Err(Errno::EXIST));
    assert!(bed.are_same("d/f", 0, 1));
}

#[test]
fn clients_do_not_see_the_generation() {
    let bed = Bed::new(2);
    copied(&bed);
    let (node, before) = (bed.node("d/f"), bed.generation(0, "d/f"));
    let mut buffer = [0; 200];
    assert_eq!(
        ops::attrs::xattr::getxattr(bed.pool(), node, ATTRIBUTE, &mut buffer),
        Err(Error::NoAttribute)
    );
    assert_eq!(ops::attrs::xattr::listxattr(bed.pool(), &ROOT, node, &mut buffer), Ok(0));
    // As cp -a of a file that was copied from a branch does.
    ops::attrs::xattr::setxattr(bed.pool(), &ROOT, node, ATTRIBUTE, b"1", 0, false).unwrap();
    assert_eq!(ops::attrs::xattr::removexattr(bed.pool(), &ROOT, node, ATTRIBUTE), Err(Error::NoAttribute));
    assert_eq!(bed.generation(0, "d/f"), before);
}

#[test]
fn a_branch_that_is_lost_leaves_the_other_copy_and_loses_when_it_comes_back() {
    let bed = Bed::new(3);
    copied(&bed);
    let shown = bed.find("d/f").unwrap().attr;
    let lost = bed.open("d/f", 0).unwrap();
    bed.only(&[1, 2]);
    // Readable and writable at once, and the same file to clients.
    assert_eq!(bed.read("d/f"), "first");
    assert_eq!(bed.find("d/f").unwrap().attr.ino, shown.ino);
    bed.write("d/f", "after");
    assert_eq!(bed.find("d/f").unwrap().attr.ino, shown.ino);
    bed.only(&[0, 1, 2]);
    assert_eq!(bed.read("d/f"), "after", "the old copy is on the first branch");
    let listed = bed.made.client().entries(bed.node("d"), Some("d")).unwrap();
    assert_eq!(listed.iter().filter(|entry| entry.name == b"f").count(), 1);
    assert_eq!(bed.find("d/f").unwrap().attr.size, 5);
    ops::data::open::release(bed.pool(), lost).unwrap();
    // Both ways to heal: on a third branch, and where the old copy is.
    bed.copy("d/f", 1, 2).unwrap();
    assert!(bed.are_same("d/f", 1, 2) && !bed.are_same("d/f", 0, 1));
    bed.copy("d/f", 1, 0).unwrap();
    assert!(bed.are_same("d/f", 0, 1));
    assert_eq!(bed.find("d/f").unwrap().attr.ino, shown.ino);
    assert_eq!(bed.read("d/f"), "after");
}

/// The kernel may know the node of an old copy: by a file handle of NFS, or for as long as it caches a name.
#[test]
fn a_node_of_an_old_copy_opens_nothing() {
    let bed = Bed::new(2);
    copied(&bed);
    let old = bed.node("d/f");
    bed.only(&[1]);
    bed.write("d/f", "after");
    bed.only(&[0, 1]);
    // The name leads to the newer copy, but nobody has looked it up yet.
    for flags in [0, WRITE, WRITE | OFlags::TRUNC.bits()] {
        let opened = ops::data::open::open(bed.pool(), &ROOT, old, flags, false).map(|opened| opened.handle);
        assert_eq!(opened, Err(Error::Stale), "{flags:#o}");
    }
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(ops::attrs::setattr::setattr(bed.pool(), &ROOT, old, None, &size).err(), Some(Error::Stale));
    assert_eq!((bed.on(0, "d/f").as_str(), bed.read("d/f").as_str()), ("first", "after"));
    assert!(bed.generation(1, "d/f").unwrap().number > bed.generation(0, "d/f").unwrap().number);
}

#[test]
fn a_new_file_is_newer_than_an_old_one_that_comes_back() {
    let bed = Bed::new(2);
    copied(&bed);
    bed.create("d/target", "old");
    bed.copy("d/target", 0, 1).unwrap();
    bed.only(&[0]);
    bed.unlink("d/f").unwrap();
    bed.create("d/f", "new");
    // Written elsewhere and renamed, as most programs do.
    bed.create("other/t", "other");
    bed.rename("other/t", "d/target", RenameKind::Replace).unwrap();
    assert!(bed.generation(0, "d/target").is_some());
    bed.only(&[1, 0]);
    assert_eq!((bed.read("d/f").as_str(), bed.read("d/target").as_str()), ("new", "other"));
    // What was removed does not come back with a branch.
    bed.only(&[0]);
    bed.unlink("d/f").unwrap();
    bed.only(&[1, 0]);
    assert_eq!(bed.find("d/f").err(), Some(Error::Absent));
}

#[test]
fn a_removal_takes_all_copies() {
    let bed = Bed::new(3);
    copied(&bed);
    bed.copy("d/f", 0, 2).unwrap();
    bed.only(&[1, 2]);
    bed.write("d/f", "newer");
    bed.only(&[0, 1, 2]);
    bed.unlink("d/f").unwrap();
    for branch in 0..3 {
        assert_eq!(bed.on(branch, "d/f"), "entity not found");
    }
    assert_eq!(bed.find("d/f").err(), Some(Error::Absent));
}

#[test]
fn a_rename_takes_the_current_copies_and_drops_the_old_ones() {
    let bed = Bed::new(3);
    copied(&bed);
    bed.create("d/g", "target");
    bed.copy("d/g", 0, 2).unwrap();
    bed.rename("d/f", "d/g", RenameKind::Replace).unwrap();
    assert!(bed.are_same("d/g", 0, 1));
    assert_eq!((bed.read("d/g").as_str(), bed.on(2, "d/g").as_str()), ("first", "entity not found"));
    bed.write("d/g", "newer");
    // Out of the rule: nothing old follows there, or stays.
    bed.rename("d/g", "other/g", RenameKind::NoReplace).unwrap();
    assert_eq!(bed.read("other/g"), "newer");
    assert_eq!([bed.on(1, "d/g"), bed.on(1, "other/g")], ["entity not found", "entity not found"]);
    // With a directory, old copies follow. They stay hidden.
    bed.rename("other/g", "d/g", RenameKind::Replace).unwrap();
    bed.copy("d/g", 0, 1).unwrap();
    bed.only(&[1, 2]);
    bed.write("d/g", "after");
    bed.only(&[0, 1, 2]);
    bed.rename("d", "e", RenameKind::Replace).unwrap();
    assert_eq!((bed.on(0, "e/g").as_str(), bed.read("e/g").as_str()), ("newer", "after"));
    // So they do under a hard link elsewhere.
    let (dir, name) = bed.place("other/link");
    ops::names::link::link(bed.pool(), &ROOT, bed.node("e/g"), dir, name).unwrap();
    assert_eq!(bed.read("other/link"), "after");
}

#[test]
fn names_are_exchanged_on_one_branch_only() {
    let bed = Bed::new(2);
    bed.create("d/f", "f");
    bed.create("d/g", "g");
    bed.rename("d/f", "d/g", RenameKind::Exchange).unwrap();
    assert_eq!((bed.read("d/f").as_str(), bed.read("d/g").as_str()), ("g", "f"));
    bed.copy("d/f", 0, 1).unwrap();
    assert_eq!(bed.rename("d/f", "d/g", RenameKind::Exchange), Err(Errno::INVAL));
    assert_eq!((bed.read("d/f").as_str(), bed.read("d/g").as_str()), ("g", "f"));
}

#[test]
fn a_copy_on_a_branch_that_may_not_change_gives_way() {
    let bed = Bed::new(2);
    copied(&bed);
    bed.modes(&[(0, Mode::Ro), (1, Mode::Rw)]);
    bed.write("d/f", "after");
    assert_eq!((bed.on(0, "d/f").as_str(), bed.read("d/f").as_str()), ("first", "after"));
    // All copies go, or none.
    assert_eq!(bed.unlink("d/f"), Err(Errno::ROFS));
    assert_eq!(bed.rename("d/f", "d/g", RenameKind::Replace), Err(Errno::ROFS));
    assert_eq!(bed.read("d/f"), "after");
}

#[test]
fn what_is_no_old_copy_is_never_replaced() {
    let bed = Bed::new(2);
    bed.create("d/f", "mine");
    fs::write(bed.made.on(1, "d/f"), "somebody else's").unwrap();
    assert_eq!(bed.copy("d/f", 0, 1), Err(Errno::EXIST));
    // A file with several names is copied if none of these is somebody else's.
    bed.create("d/g", "first");
    bed.link("d/g", "d/link");
    fs::write(bed.made.on(1, "d/link"), "somebody else's").unwrap();
    assert_eq!(bed.copy("d/g", 0, 1), Err(Errno::EXIST));
    assert_eq!(
        (bed.on(1, "d/g").as_str(), bed.on(1, "d/link").as_str()),
        ("entity not found", "somebody else's")
    );
}

/// Files that were on two branches before the rule become copies if they hold the same.
#[test]
fn copies_from_before_the_rule_are_compared_and_known_from_then_on() {
    let bed = Bed::new(2);
    let put = |path: &str, branch: usize, text: &str| {
        fs::write(bed.made.on(branch, path), text).unwrap();
        let file = fs::File::options().write(true).open(bed.made.on(branch, path)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    for (path, other) in [("d/same", "content"), ("d/other", "CONTENT")] {
        put(path, 0, "content");
        put(path, 1, other);
    }
    assert_eq!(bed.copy("d/other", 0, 1), Err(Errno::BADMSG));
    assert_eq!((bed.generation(0, "d/other"), bed.generation(1, "d/other")), (None, None));
    assert_eq!(bed.copy("d/same", 0, 1), Ok(()));
    assert!(bed.are_same("d/same", 0, 1));
    bed.write("d/same", "newer");
    assert!(!bed.are_same("d/same", 0, 1));
    assert_eq!(bed.copy("d/same", 0, 1), Ok(()));
    assert!(bed.are_same("d/same", 0, 1));
    // If it ended after the first mark.
    rustix::fs::removexattr(bed.made.on(1, "d/same"), ATTRIBUTE).unwrap();
    assert_eq!(bed.copy("d/same", 0, 1), Ok(()));
    assert!(bed.are_same("d/same", 0, 1));
    // With all names, or not at all.
    put("d/linked", 0, "content");
    put("d/linked", 1, "content");
    fs::hard_link(bed.made.on(0, "d/linked"), bed.made.on(0, "d/link")).unwrap();
    assert_eq!(bed.copy("d/linked", 0, 1), Err(Errno::EXIST));
    fs::hard_link(bed.made.on(1, "d/linked"), bed.made.on(1, "d/link")).unwrap();
    assert_eq!(bed.copy("d/linked", 0, 1), Ok(()));
    assert!(bed.are_same("d/link", 0, 1));
}

/// Of several copies, any one goes, with all its names, and a reader goes on.
#[test]
fn one_of_several_equal_copies_is_taken_off() {
    for from in [0, 1] {
        // All branches are on one disk, so one copy is all that there can be.
        let bed = Bed::wanting(1, 3, true);
        copied(&bed);
        bed.link("d/f", "other/link");
        let number = bed.find("d/f").unwrap().attr.ino;
        let reader = bed.open("d/f", 0).unwrap();
        bed.take_off("d/f", from, 2).unwrap();
        let stays = 1 - from;
        for name in ["d/f", "other/link"] {
            assert_eq!([from, 2].map(|branch| bed.on(branch, name)), ["entity not found"; 2], "{name}");
            assert_eq!((bed.on(stays, name).as_str(), bed.read(name).as_str()), ("first", "first"));
            assert_eq!(bed.find(name).unwrap().attr.ino, number, "{name}");
        }
        let mut bytes = [0; 9];
        assert_eq!(ops::data::io::read(bed.pool(), reader, 0, &mut bytes), Ok(5));
        ops::data::open::release(bed.pool(), reader).unwrap();
        bed.write("other/link", "AFTER");
        assert_eq!(bed.read("d/f"), "AFTER");
        for branch in 0..3 {
            // No note of the move, and nothing under construction.
            assert!(fs::read_dir(bed.made.on(branch, "")).unwrap().count() <= 3, "{branch}");
        }
    }
}

#[test]
fn a_copy_that_may_be_the_only_one_of_its_kind_stays() {
    let bed = Bed::new(2);
    copied(&bed);
    assert_eq!(bed.take_off("d/f", 0, 1), Err(Errno::NOTUNIQ), "the rule wants two");
    let bed = Bed::wanting(1, 3, true);
    copied(&bed);
    // A writer.
    let writer = bed.open("d/f", WRITE).unwrap();
    assert_eq!(bed.take_off("d/f", 0, 1), Err(Errno::BUSY));
    ops::data::open::release(bed.pool(), writer).unwrap();
    // The other copy is out of date now, so this one moves; the old one is nobody's to remove.
    bed.write("d/f", "after");
    assert_eq!(bed.take_off("d/f", 0, 1), Err(Errno::STALE));
    bed.relocate("d/f", 0, 2, What::Move).unwrap();
    assert_eq!([0, 1, 2].map(|branch| bed.on(branch, "d/f")), ["entity not found", "first", "after"]);
    // Somebody has changed one, past the pool.
    bed.copy("d/f", 2, 0).unwrap();
    assert!(bed.are_same("d/f", 0, 2));
    fs::write(bed.made.on(0, "d/f"), "longer than before").unwrap();
    for from in [0, 2] {
        assert_eq!(bed.take_off("d/f", from, 1), Err(Errno::EXIST), "{from}");
    }
    // Or given one another name.
    bed.create("d/g", "text");
    bed.copy("d/g", 0, 1).unwrap();
    fs::hard_link(bed.made.on(0, "d/g"), bed.made.on(0, "d/more")).unwrap();
    assert_eq!(bed.take_off("d/g", 0, 1), Err(Errno::EXIST));
    assert_eq!([0, 1].map(|branch| bed.on(branch, "d/g")), ["text"; 2]);
}

/// A change of all copies has ended in between, and the disk with the newest is lost: what is written then is newer than that.
#[test]
fn what_is_written_to_a_copy_that_was_being_changed_is_the_newest() {
    let bed = Bed::new(2);
    copied(&bed);
    fs::write(bed.made.on(0, "d/f"), "lost").unwrap();
    rustix::fs::setxattr(bed.made.on(1, "d/f"), ATTRIBUTE, b"0", XattrFlags::empty()).unwrap();
    assert_eq!(bed.read("d/f"), "lost");
    bed.only(&[1]);
    bed.write("d/f", "AFTER");
    bed.only(&[0, 1]);
    assert_eq!(bed.read("d/f"), "AFTER");
}

/// All names lead to one file on each branch, and all of them to the newest.
#[test]
fn hard_links_are_copied_and_renewed_together() {
    let bed = Bed::new(2);
    let is_one_file = |branch: usize, paths: &[&str]| {
        let numbers: Vec<u64> =
            paths.iter().map(|path| fs::metadata(bed.made.on(branch, path)).unwrap().ino()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]), "{paths:?} on {branch}: {numbers:?}");
        assert_eq!(fs::metadata(bed.made.on(branch, paths[0])).unwrap().nlink(), paths.len() as u64);
    };
    bed.create("d/f", "first");
    bed.link("d/f", "other/link");
    bed.copy("d/f", 0, 1).unwrap();
    is_one_file(1, &["d/f", "other/link"]);
    // A further name reaches both copies, and a write under any name makes the other copy out of date under all.
    bed.link("other/link", "d/third");
    is_one_file(1, &["d/f", "other/link", "d/third"]);
    bed.write("d/third", "after");
    for name in ["d/f", "other/link", "d/third"] {
        assert_eq!((bed.read(name).as_str(), bed.on(1, name).as_str()), ("after", "first"), "{name}");
    }
    // One name is removed, and one is made, while the branch is away.
    bed.only(&[0]);
    bed.unlink("other/link").unwrap();
    bed.link("d/f", "d/fourth");
    bed.only(&[0, 1]);
    bed.copy("d/fourth", 0, 1).unwrap();
    for branch in [0, 1] {
        is_one_file(branch, &["d/f", "d/fourth", "d/third"]);
    }
    assert!(["d/f", "d/fourth", "d/third"].iter().all(|name| bed.are_same(name, 0, 1)));
    assert_eq!(bed.on(1, "d/f"), "after");
    // What was removed meanwhile does not come back with the branch.
    assert_eq!(bed.find("other/link").err(), Some(Error::Absent));
    bed.write("d/f", "AFTER");
    assert_eq!(bed.read("d/third"), "AFTER");
    bed.only(&[1]);
    assert_eq!((bed.read("d/third").as_str(), bed.read("d/fourth").as_str()), ("after", "after"));
}

#[test]
fn files_without_a_rule_have_no_generation() {
    let bed = Bed::new(2);
    bed.create("other/f", "text");
    bed.write("other/f", "TEXT");
    bed.rename("other/f", "other/g", RenameKind::Replace).unwrap();
    assert_eq!(bed.generation(0, "other/g"), None);
    let (dir, name) = bed.place("d/made");
    ops::names::create::mknod(bed.pool(), &ROOT, dir, name, 0o100_644, (0, 0)).unwrap();
    assert!(bed.generation(0, "d/made").is_some(), "mknod(2) makes files, too");
    let (nameless, opened) =
        ops::data::create::tmpfile(bed.pool(), &ROOT, bed.node("d"), 0o600, OFlags::RDWR.bits()).unwrap();
    let (dir, name) = bed.place("d/linked");
    ops::names::link::link(bed.pool(), &ROOT, nameless.node, dir, name).unwrap();
    assert!(bed.generation(0, "d/linked").is_some());
    ops::data::open::release(bed.pool(), opened.handle).unwrap();
}

/// After a crash, any step of a change may be on disk on one branch and not on the other. Copies with the same number are the
/// same, and one of those with the largest number is what was last.
#[test]
fn the_steps_of_a_change_may_be_lost_in_any_combination() {
    // What each copy goes through: its number and what it holds. `+` marks a number that others may have.
    let first = [("5+", "old"), ("7", "old"), ("7", "new"), ("8+", "new")];
    let second = [("5+", "old"), ("0", "old"), ("0", "new"), ("8+", "new")];
    for (one, held) in first {
        for (other, other_held) in second {
            let copies = [one, other].map(|text| Generation::parse(text.as_bytes()));
            let current: Vec<usize> = canopy_branch::fs::generation::current(&copies).collect();
            if current.len() == 2 {
                assert_eq!(held, other_held, "{one} {other}");
            }
            assert!(!current.is_empty());
        }
    }
}

/// Numbers that are left of a former rule mean nothing, and stay as they are.
#[test]
fn a_pool_without_such_a_rule_neither_reads_nor_writes_generations() {
    let bed = Bed::new(2);
    copied(&bed);
    bed.only(&[1]);
    bed.write("d/f", "after");
    bed.only(&[0, 1]);
    let before = [bed.generation(0, "d/f"), bed.generation(1, "d/f")];
    let mut config = Config { min_free: 0, ..Config::default() };
    config.policies.set_category(Category::Create, Policy::Ff);
    ops::settings::reconfigure(bed.pool(), config);
    assert_eq!(bed.read("d/f"), "first", "the first branch counts");
    bed.write("d/f", "FIRST");
    bed.create("d/new", "text");
    bed.rename("d/f", "d/g", RenameKind::NoReplace).unwrap();
    assert_eq!([bed.generation(0, "d/g"), bed.generation(1, "d/g")], before);
    assert_eq!(bed.generation(0, "d/new"), None);
    // With `copies = 1`, numbers count, and no copies are wanted.
    let mut placement = placement(2, false);
    placement.rules[0].copies = Some(1);
    let mut config = Config { min_free: 0, placement, ..Config::default() };
    config.policies.set_category(Category::Create, Policy::Ff);
    ops::settings::reconfigure(bed.pool(), config);
    assert_eq!(bed.read("d/g"), "after");
    assert!(ops::resolve::generations::closed_since(bed.pool(), 0).paths.is_empty());
}
