//! A disk that can be read and fails changes (EIO), at every step of what a client does: another disk has what was acknowledged, and no
//! two contents have one number.
//!
//! Needs root.

use super::copies::Bed;
use crate::common::ROOT;
use canopy_base::error::Error;
use canopy_base::ids::HandleId;
use canopy_pool::ops;
use canopy_pool::{SetAttr, WriteKind};
use canopy_testkit::{Fault, FaultyFs, LoopFs, Opcode, ScratchDir};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::path::PathBuf;

const WRITE: u32 = OFlags::WRONLY.bits();
const TRUNC: u32 = OFlags::TRUNC.bits();

/// What the disk fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refused {
    Data,
    Syncs,
    Writes,
    /// Numbers of copies are attributes.
    Attributes,
    Changes,
}

const ALL: [Refused; 5] =
    [Refused::Data, Refused::Syncs, Refused::Writes, Refused::Attributes, Refused::Changes];

/// What a client does with a file that it has open.
enum Step {
    Put(u64, &'static str),
    Sync,
    Close,
}

struct Faulty {
    bed: Bed,
    disk: FaultyFs,
    faulty: usize,
    _disks: Vec<LoopFs>,
    _scratch: ScratchDir,
}

impl Faulty {
    /// A pool over two disks, one of which can fail. A file has equal copies on both.
    fn new(faulty: usize, written: bool) -> Faulty {
        let scratch = ScratchDir::new("refusing-", &["faulty"]);
        let disk = FaultyFs::mount(&scratch.path("faulty"));
        let disks = vec![LoopFs::tmpfs(8 << 20)];
        let mut paths: Vec<PathBuf> = vec![disks[0].path().to_owned()];
        paths.insert(faulty, disk.path().to_owned());
        let bed = if written { Bed::written_at_once(2, paths) } else { Bed::when_closed(paths) };
        let made = Faulty { bed, disk, faulty, _disks: disks, _scratch: scratch };
        let bed = &made.bed;
        bed.create("d/f", "before");
        if !written {
            bed.copy("d/f", 0, 1).unwrap();
        }
        assert!(bed.are_same("d/f", 0, 1));
        made
    }

    fn refuse(&self, what: Refused) {
        match what {
            Refused::Data => self.disk.refuse_data(true),
            Refused::Syncs => self.disk.refuse_syncs(),
            Refused::Writes => self.disk.refuse_data(false),
            Refused::Attributes => self.disk.set(Fault::Fail(Errno::IO), &[Opcode::Setxattr]),
            Refused::Changes => self.disk.refuse_changes(),
        }
    }

    /// Opens as the kernel does, which looks the name up again.
    fn open(&self, path: &str, flags: u32) -> Result<HandleId, Errno> {
        for _ in 0..3 {
            match self.bed.open(path, flags) {
                Err(Errno::STALE) => {}
                other => return other,
            }
        }
        Err(Errno::STALE)
    }

    fn put(&self, handle: HandleId, at: u64, text: &str) -> Result<usize, Errno> {
        ops::data::io::write(self.bed.pool(), handle, at, text.as_bytes(), WriteKind::default())
            .map_err(Error::errno)
    }

    fn sync(&self, handle: HandleId) -> Result<(), Errno> {
        ops::data::io::fsync(self.bed.pool(), handle, false).map_err(Error::errno)
    }

    fn close(&self, handle: HandleId) -> Result<(), Errno> {
        let flushed = ops::data::open::flush(self.bed.pool(), handle).map_err(Error::errno);
        ops::data::open::release(self.bed.pool(), handle).unwrap();
        flushed
    }

    /// Writes, syncs and closes an open file, all of which succeeds. From `step` on, which counts these, the disk refuses.
    fn write_along(&self, handle: HandleId, (step, refused): (usize, Refused), steps: &[Step], what: &str) {
        for (at, todo) in steps.iter().enumerate() {
            if at == step {
                self.refuse(refused);
            }
            match *todo {
                Step::Put(offset, text) => {
                    assert_eq!(self.put(handle, offset, text), Ok(text.len()), "{what}");
                }
                Step::Sync => assert_eq!(self.sync(handle), Ok(()), "{what}"),
                Step::Close => assert_eq!(self.close(handle), Ok(()), "{what}"),
            }
        }
    }

    /// The file is this, now and when the disk is well; for a process that knows nothing as well.
    #[track_caller]
    fn is(&self, path: &str, text: &str, what: &str) {
        let numbers = || [0, 1].map(|at| self.bed.generation(at, path));
        let holds = || [0, 1].map(|at| self.bed.on(at, path));
        assert_eq!(self.bed.read(path), text, "{what}: {:?} {:?}", numbers(), holds());
        self.disk.heal();
        assert_eq!(self.bed.read(path), text, "{what}: {:?} {:?}", numbers(), holds());
        let fresh = Bed::written_at_once(2, self.bed.made.branches.clone());
        assert_eq!(fresh.read(path), text, "{what}: {:?} {:?}", numbers(), holds());
        if numbers().iter().all(Option::is_some) && self.bed.are_same(path, 0, 1) {
            assert_eq!(self.bed.on(0, path), self.bed.on(1, path), "{what}: {:?}", numbers());
        }
    }
}

/// Plays with each way to fail, on each disk, with both kinds of copies.
fn everywhere(written: &[bool], test: impl Fn(&Faulty, Refused, &str)) {
    for &written in written {
        for faulty in [0, 1] {
            for what in ALL {
                let made = Faulty::new(faulty, written);
                test(&made, what, &format!("written {written}, disk {faulty} refuses {what:?}"));
            }
        }
    }
}

#[test]
fn a_file_can_be_opened_for_writing_where_its_other_copy_is() {
    everywhere(&[true, false], |made, refused, what| {
        made.refuse(refused);
        let handle = made.open("d/f", WRITE).unwrap_or_else(|errno| panic!("{what}: {errno}"));
        let put = made.put(handle, 0, "AFTER.");
        if refused == Refused::Data && what.starts_with("written false") && put == Err(Errno::IO) {
            // There is nothing yet that could have been met.
            made.close(handle).unwrap();
            made.is("d/f", "before", what);
            return;
        }
        assert_eq!(put, Ok(6), "{what}");
        assert_eq!(made.sync(handle), Ok(()), "{what}");
        assert_eq!(made.bed.on(1 - made.faulty, "d/f"), "AFTER.", "{what}");
        assert_eq!(made.close(handle), Ok(()), "{what}");
        made.is("d/f", "AFTER.", what);
    });
}

#[test]
fn a_file_can_be_emptied_by_an_open_where_its_other_copy_is() {
    everywhere(&[true, false], |made, refused, what| {
        made.refuse(refused);
        let handle = made.open("d/f", WRITE | TRUNC).unwrap_or_else(|errno| panic!("{what}: {errno}"));
        assert_eq!(made.put(handle, 0, "new"), Ok(3), "{what}");
        assert_eq!(made.sync(handle), Ok(()), "{what}");
        assert_eq!(made.bed.on(1 - made.faulty, "d/f"), "new", "{what}");
        assert_eq!(made.close(handle), Ok(()), "{what}");
        made.is("d/f", "new", what);
    });
}

#[test]
fn a_file_that_is_open_goes_on_elsewhere() {
    for step in 0..5 {
        everywhere(&[true], |made, refused, what| {
            let what = &format!("step {step}, {what}");
            let handle = made.open("d/f", WRITE).unwrap();
            let steps = [Step::Put(0, "A"), Step::Put(5, "BB"), Step::Sync, Step::Put(7, "C"), Step::Close];
            made.write_along(handle, (step, refused), &steps, what);
            assert_eq!(made.bed.on(1 - made.faulty, "d/f"), "AeforBBC", "{what}");
            made.is("d/f", "AeforBBC", what);
        });
    }
}

#[test]
fn a_file_is_cut_where_its_other_copy_is() {
    for by_handle in [true, false] {
        everywhere(&[true], |made, refused, what| {
            let what = &format!("by handle {by_handle}, {what}");
            let handle = by_handle.then(|| made.open("d/f", WRITE).unwrap());
            made.refuse(refused);
            let set = SetAttr { size: Some(3), ..SetAttr::default() };
            let node = made.bed.node("d/f");
            let cut = ops::attrs::setattr::setattr(made.bed.pool(), &ROOT, node, handle, &set);
            assert!(cut.is_ok() || !by_handle, "{what}: {:?}", cut.map_err(Error::errno).err());
            let text = if cut.is_ok() { "bef" } else { "before" };
            if let Some(handle) = handle {
                assert_eq!(made.close(handle), Ok(()), "{what}");
            }
            made.is("d/f", text, what);
        });
    }
}

#[test]
fn a_new_file_is_made_where_that_is_possible() {
    everywhere(&[true, false], |made, refused, what| {
        made.refuse(refused);
        let (dir, name) = made.bed.place("d/new");
        let (_, opened) = ops::data::create::create(made.bed.pool(), &ROOT, dir, name, 0o644, WRITE)
            .unwrap_or_else(|error| panic!("{what}: {}", error.errno()));
        let put = made.put(opened.handle, 0, "new");
        let synced = made.sync(opened.handle);
        let closed = made.close(opened.handle);
        if what.starts_with("written true") {
            assert_eq!((put, synced, closed), (Ok(3), Ok(()), Ok(())), "{what}");
            assert_eq!(made.bed.on(1 - made.faulty, "d/new"), "new", "{what}");
        }
        assert!(put.is_ok() || made.faulty == 0, "{what}");
        if put.is_ok() {
            made.is("d/new", "new", what);
        }
    });
}

#[test]
fn of_three_copies_two_stay_equal() {
    for (faulty, step, refused) in (0..3).flat_map(|f| (0..4).flat_map(move |s| ALL.map(|r| (f, s, r)))) {
        let what = &format!("disk {faulty} refuses {refused:?} from step {step}");
        let scratch = ScratchDir::new("refusing-", &["faulty"]);
        let disk = FaultyFs::mount(&scratch.path("faulty"));
        let disks = [LoopFs::tmpfs(8 << 20), LoopFs::tmpfs(8 << 20)];
        let mut paths: Vec<PathBuf> = disks.iter().map(|disk| disk.path().to_owned()).collect();
        paths.insert(faulty, disk.path().to_owned());
        let bed = Bed::written_at_once(3, paths);
        let made = Faulty { bed, disk, faulty, _disks: Vec::new(), _scratch: scratch };
        made.bed.create("d/f", "before");
        let handle = made.open("d/f", WRITE).unwrap();
        let steps = [Step::Put(0, "A"), Step::Sync, Step::Put(5, "BB"), Step::Close];
        made.write_along(handle, (step, refused), &steps, what);
        let rest: Vec<usize> = (0..3).filter(|at| *at != faulty).collect();
        let holds = [0, 1, 2].map(|at| (made.bed.generation(at, "d/f"), made.bed.on(at, "d/f")));
        for at in &rest {
            assert_eq!(holds[*at].1, "AeforBB", "{what}: {holds:?}");
        }
        made.disk.heal();
        let holds = [0, 1, 2].map(|at| (made.bed.generation(at, "d/f"), made.bed.on(at, "d/f")));
        assert!(made.bed.are_same("d/f", rest[0], rest[1]), "{what}: {holds:?}");
        let fresh = |which: &[usize]| {
            let paths = which.iter().map(|at| made.bed.made.branches[*at].clone()).collect();
            Bed::written_at_once(3, paths).read("d/f")
        };
        // Whichever disk is lost afterwards.
        for lost in 0..3 {
            let left: Vec<usize> = (0..3).filter(|at| *at != lost).collect();
            assert_eq!(fresh(&left), "AeforBB", "{what}, disk {lost} is lost: {holds:?}");
        }
        if holds[faulty].0 == holds[rest[0]].0 {
            assert_eq!(holds[faulty].1, "AeforBB", "{what}: {holds:?}");
        }
    }
}
