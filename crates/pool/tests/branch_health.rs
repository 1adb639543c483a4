//! An operation that meets an error of a branch has that branch checked, whichever operation it is.
//!
//! Needs root.

mod common;

use canopy_base::error::Result;
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::Mode;
use canopy_policy::{Category, Policy};
use canopy_pool::config::{Config, RenameExdev, StatfsMode};
use canopy_pool::ops;
use canopy_pool::{Entry, Pool, RenameKind, SetAttr, SetTime, Whence, WriteKind};
use canopy_testkit::{Fault, FaultyFs, Opcode, ScratchDir};
use common::ROOT;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::sync::Arc;

const NONE: WriteKind = WriteKind { from_cache: false, kill_suidgid: None };
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;

/// A pool over a branch that fails on demand and one that never does. The files are on the first.
struct FailingBranch {
    pool: Arc<Pool>,
    faulty: FaultyFs,
    /// A file with an extended attribute, opened for reading and writing.
    file: NodeId,
    handle: HandleId,
    /// Another open file.
    beside: HandleId,
    /// A directory on both branches, with a file `below` in it.
    dir: NodeId,
    link: NodeId,
    scratch: ScratchDir,
}

impl FailingBranch {
    fn new() -> FailingBranch {
        let scratch = ScratchDir::new("canopy-failing-", &["well", "well/dir"]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let on = |path: &str| faulty.backing_dir().join(path);
        for dir in ["dir", "empty"] {
            fs::create_dir(on(dir)).unwrap();
        }
        for file in ["file", "beside", "dir/below", "victim"] {
            fs::write(on(file), "what is read").unwrap();
        }
        rustix::fs::setxattr(on("file"), c"user.known", b"value", rustix::fs::XattrFlags::empty()).unwrap();
        std::os::unix::fs::symlink("file", on("link")).unwrap();
        fs::write(scratch.path("well/both"), "elsewhere").unwrap();
        let mut config = Config { statfs: StatfsMode::Base, ..Config::default() };
        config.policies.set_category(Category::Create, Policy::Ff);
        let branches = [faulty.path().to_owned(), scratch.path("well")];
        let pool = common::over(&branches, &[Mode::Rw, Mode::Rw], config);
        let node = |name: &str| {
            ops::names::lookup::lookup(&pool, NodeId::ROOT, name.as_bytes()).expect("a node").node
        };
        let open = |node| {
            ops::data::open::open(&pool, &ROOT, node, OFlags::RDWR.bits(), false).expect("open").handle
        };
        let (file, dir, link) = (node("file"), node("dir"), node("link"));
        let (handle, beside) = (open(file), open(node("beside")));
        FailingBranch { file, handle, beside, dir, link, pool, faulty, scratch }
    }

    /// Returns which branches need a check, and checks them.
    fn needs_check(&self) -> [bool; 2] {
        let branches = ops::settings::branches(&self.pool);
        [0, 1].map(|index| {
            let needs_check = branches[index].needs_check();
            assert_eq!(branches[index].check_health(), None, "one error does not make a branch unwell");
            needs_check
        })
    }

    fn set(&self, set: SetAttr) -> Result<()> {
        ops::attrs::setattr::setattr(&self.pool, &ROOT, self.file, None, &set).map(drop)
    }

    fn rename(&self, to: &str, kind: RenameKind) -> Result<()> {
        ops::names::rename::rename(
            &self.pool,
            &ROOT,
            NodeId::ROOT,
            b"victim",
            NodeId::ROOT,
            to.as_bytes(),
            kind,
        )
    }

    fn forget(&self, entry: Entry) {
        ops::names::lookup::forget(&self.pool, entry.node, 1);
    }
}

impl Drop for FailingBranch {
    fn drop(&mut self) {
        self.faulty.heal();
        for handle in [self.handle, self.beside] {
            let _ = ops::data::open::release(&self.pool, handle);
        }
        // The pool must not keep the faulty filesystem busy while that is unmounted.
        let empty = canopy_branch::branch::BranchList::default();
        ops::settings::set_branches(
            &self.pool,
            canopy_branch::branch::Branches::open(&empty).expect("no branches"),
        );
    }
}

/// An operation, the requests to the branch that fail, whether the operation then fails, and how to run it. It succeeds
/// where another branch or the pool's cache can answer instead.
type Case = (&'static str, &'static [Opcode], bool, fn(&FailingBranch) -> Result<()>);

/// Operations that change something. They also run on a filesystem that refuses changes.
const CHANGES: &[Case] = &[
    ("chmod", &[Opcode::Setattr], true, |s| s.set(SetAttr { mode: Some(0o600), ..SetAttr::default() })),
    ("chown", &[Opcode::Setattr], true, |s| s.set(SetAttr { uid: Some(7), ..SetAttr::default() })),
    ("utimens", &[Opcode::Setattr], true, |s| {
        s.set(SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() })
    }),
    ("truncate", &[Opcode::Setattr], true, |s| s.set(SetAttr { size: Some(3), ..SetAttr::default() })),
    ("ftruncate", &[Opcode::Setattr], true, |s| {
        let set = SetAttr { size: Some(3), ..SetAttr::default() };
        ops::attrs::setattr::setattr(&s.pool, &ROOT, s.file, Some(s.handle), &set).map(drop)
    }),
    ("chmod of a directory", &[Opcode::Setattr], false, |s| {
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let done = ops::attrs::setattr::setattr(&s.pool, &ROOT, s.dir, None, &set).map(drop);
        // The change fails on the branch whose attributes are shown, and succeeds on the other.
        assert!(done.is_err());
        Ok(())
    }),
    ("setxattr", &[Opcode::Setxattr], true, |s| {
        ops::attrs::xattr::setxattr(&s.pool, &ROOT, s.file, b"user.new", b"v", 0, false)
    }),
    ("removexattr", &[Opcode::Removexattr], true, |s| {
        ops::attrs::xattr::removexattr(&s.pool, &ROOT, s.file, b"user.known")
    }),
    ("chattr", &[Opcode::Ioctl], true, |s| {
        ops::attrs::ioctl::ioctl(&s.pool, &ROOT, s.file, FS_IOC_SETFLAGS, &0_u64.to_ne_bytes()).map(drop)
    }),
    ("unlink", &[Opcode::Unlink], true, |s| ops::names::remove::unlink(&s.pool, NodeId::ROOT, b"victim")),
    ("rmdir", &[Opcode::Rmdir], true, |s| ops::names::remove::rmdir(&s.pool, NodeId::ROOT, b"empty")),
    ("rename", &[Opcode::Rename, Opcode::Rename2], true, |s| s.rename("new", RenameKind::Replace)),
    ("rename over", &[Opcode::Rename, Opcode::Rename2], true, |s| s.rename("beside", RenameKind::Replace)),
    ("rename without replacing", &[Opcode::Rename2], true, |s| s.rename("new", RenameKind::NoReplace)),
    ("exchange", &[Opcode::Rename2], true, |s| s.rename("file", RenameKind::Exchange)),
    ("whiteout", &[Opcode::Rename2], true, |s| s.rename("new", RenameKind::Whiteout)),
    ("link", &[Opcode::Link], true, |s| {
        ops::names::link::link(&s.pool, &ROOT, s.file, NodeId::ROOT, b"new").map(|made| s.forget(made))
    }),
    ("write", &[Opcode::Write], true, |s| {
        ops::data::io::write(&s.pool, s.handle, 0, b"data", NONE).map(drop)
    }),
    ("fallocate", &[Opcode::Fallocate], true, |s| ops::data::io::fallocate(&s.pool, s.handle, 0, 0, 65536)),
    ("copy_file_range", &[Opcode::CopyFileRange, Opcode::CopyFileRange64], true, |s| {
        ops::data::io::copy_file_range(&s.pool, (s.handle, 0), (s.beside, 0), 4).map(drop)
    }),
    ("open to write", &[Opcode::Open], true, |s| {
        let victim = ops::names::lookup::lookup(&s.pool, NodeId::ROOT, b"victim")?;
        let opened = ops::data::open::open(&s.pool, &ROOT, victim.node, OFlags::WRONLY.bits(), false);
        s.forget(victim);
        ops::data::open::release(&s.pool, opened?.handle)
    }),
    ("open once more", &[Opcode::Open], true, |s| {
        let opened = ops::data::open::open(&s.pool, &ROOT, s.file, OFlags::WRONLY.bits(), false)?;
        ops::data::open::release(&s.pool, opened.handle)
    }),
    // Created on the other branch instead.
    ("create", &[Opcode::Create], false, |s| {
        let (made, opened) =
            ops::data::create::create(&s.pool, &ROOT, NodeId::ROOT, b"new", 0o644, OFlags::RDWR.bits())?;
        s.forget(made);
        ops::data::open::release(&s.pool, opened.handle)
    }),
    ("mkdir", &[Opcode::Mkdir], false, |s| {
        ops::names::create::mkdir(&s.pool, &ROOT, NodeId::ROOT, b"new", 0o755).map(|made| s.forget(made))
    }),
    ("symlink", &[Opcode::Symlink], false, |s| {
        ops::names::create::symlink(&s.pool, &ROOT, NodeId::ROOT, b"new", b"target")
            .map(|made| s.forget(made))
    }),
];

/// Operations that change nothing.
const READS: &[Case] = &[
    ("lookup", &[Opcode::Lookup], true, |s| {
        ops::names::lookup::lookup(&s.pool, NodeId::ROOT, b"victim").map(|found| s.forget(found))
    }),
    ("lookup of a name on both branches", &[Opcode::Lookup], false, |s| {
        ops::names::lookup::lookup(&s.pool, NodeId::ROOT, b"both").map(|found| s.forget(found))
    }),
    ("getattr", &[Opcode::Lookup], true, |s| ops::names::lookup::getattr(&s.pool, s.link, None).map(drop)),
    ("getattr by handle", &[Opcode::Getattr, Opcode::Statx], true, |s| {
        ops::names::lookup::getattr(&s.pool, s.file, Some(s.handle)).map(drop)
    }),
    ("getattr of a directory", &[Opcode::Lookup], false, |s| {
        ops::names::lookup::getattr(&s.pool, s.dir, None).map(drop)
    }),
    ("access", &[Opcode::Lookup], true, |s| ops::names::lookup::access(&s.pool, s.link, 4)),
    ("readlink", &[Opcode::Readlink], true, |s| ops::names::lookup::readlink(&s.pool, s.link).map(drop)),
    ("listing", &[Opcode::Opendir], false, |s| ops::readdir::readdir(&s.pool, s.dir, 0, |_| true).map(drop)),
    ("reading a listing", &[Opcode::Readdir, Opcode::Readdirplus], false, |s| {
        ops::readdir::readdir(&s.pool, s.dir, 0, |_| true).map(drop)
    }),
    ("fsyncdir", &[Opcode::Fsyncdir], true, |s| ops::readdir::fsyncdir(&s.pool, s.dir, false)),
    ("syncfs", &[Opcode::Opendir], true, |s| ops::data::io::syncfs(&s.pool)),
    ("statfs", &[Opcode::Statfs], false, |s| ops::attrs::statfs::statfs(&s.pool, NodeId::ROOT).map(drop)),
    ("getxattr", &[Opcode::Getxattr], true, |s| {
        ops::attrs::xattr::getxattr(&s.pool, s.file, b"user.known", &mut [0; 64]).map(drop)
    }),
    ("size of an xattr", &[Opcode::Getxattr], true, |s| {
        ops::attrs::xattr::getxattr(&s.pool, s.file, b"user.known", &mut []).map(drop)
    }),
    ("listxattr", &[Opcode::Listxattr], true, |s| {
        ops::attrs::xattr::listxattr(&s.pool, &ROOT, s.file, &mut [0; 64]).map(drop)
    }),
    ("lsattr", &[Opcode::Ioctl], true, |s| {
        ops::attrs::ioctl::ioctl(&s.pool, &ROOT, s.file, FS_IOC_GETFLAGS, &[]).map(drop)
    }),
    ("open to read", &[Opcode::Open], true, |s| {
        let victim = ops::names::lookup::lookup(&s.pool, NodeId::ROOT, b"victim")?;
        let opened = ops::data::open::open(&s.pool, &ROOT, victim.node, 0, false);
        s.forget(victim);
        ops::data::open::release(&s.pool, opened?.handle)
    }),
    ("read", &[Opcode::Read], true, |s| ops::data::io::read(&s.pool, s.handle, 0, &mut [0; 4]).map(drop)),
    ("lseek", &[Opcode::Lseek], true, |s| ops::data::io::lseek(&s.pool, s.handle, 0, Whence::Hole).map(drop)),
    ("fsync", &[Opcode::Fsync], true, |s| ops::data::io::fsync(&s.pool, s.handle, false)),
    ("close", &[Opcode::Flush], true, |s| ops::data::open::flush(&s.pool, s.handle)),
];

#[test]
fn every_operation_records_an_error_of_its_branch() {
    let both = [Errno::IO, Errno::ROFS];
    let changes = CHANGES.iter().map(|case| (case, &both[..]));
    let reads = READS.iter().map(|case| (case, &both[..1]));
    let mut unrecorded = Vec::new();
    for ((what, requests, fails, operation), errnos) in changes.chain(reads) {
        for &errno in errnos {
            let bed = FailingBranch::new();
            assert_eq!(bed.needs_check(), [false; 2]);
            bed.faulty.set(Fault::Fail(errno), requests);
            let result = operation(&bed);
            bed.faulty.heal();
            if *fails {
                assert_eq!(result.map_err(|error| error.errno()), Err(errno), "{what}")
            } else {
                assert_eq!(result.map_err(|error| error.errno()), Ok(()), "{what}")
            }
            match bed.needs_check() {
                [true, false] => {}
                checked => unrecorded.push(format!("{what} with {errno:?}: {checked:?}")),
            }
        }
    }
    assert!(unrecorded.is_empty(), "not recorded: {unrecorded:#?}");
}

/// Wrong requests, full disks and branches that the pool does not change are no faults of a branch.
#[test]
fn errors_that_are_not_the_branchs_are_not_recorded() {
    let bed = FailingBranch::new();
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ACCESS, Errno::NODATA, Errno::OPNOTSUPP] {
        bed.faulty.set(Fault::Fail(errno), &[Opcode::Setxattr, Opcode::Unlink, Opcode::Getxattr]);
        assert!(
            ops::attrs::xattr::setxattr(&bed.pool, &ROOT, bed.file, b"user.new", b"v", 0, false).is_err()
        );
        assert!(ops::names::remove::unlink(&bed.pool, NodeId::ROOT, b"victim").is_err());
        assert!(ops::attrs::xattr::getxattr(&bed.pool, bed.file, b"user.known", &mut []).is_err());
        assert_eq!(bed.needs_check(), [false; 2], "{errno}");
    }
    bed.faulty.heal();
    // lseek(2): there is no data beyond the end.
    let beyond = ops::data::io::lseek(&bed.pool, bed.handle, 1 << 20, Whence::Data);
    assert_eq!(beyond.map_err(|error| error.errno()), Err(Errno::NXIO));
    assert_eq!(bed.needs_check(), [false; 2]);
    let modes = [Mode::Ro, Mode::Rw];
    let branches = [bed.faulty.path().to_owned(), bed.scratch.path("well")];
    let pool = common::over(&branches, &modes, Config::default());
    bed.faulty.set(Fault::Fail(Errno::ROFS), &[Opcode::Open, Opcode::Setattr]);
    let file = ops::names::lookup::lookup(&pool, NodeId::ROOT, b"file").expect("a file").node;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(
        ops::attrs::setattr::setattr(&pool, &ROOT, file, None, &set).map_err(|error| error.errno()),
        Err(Errno::ROFS)
    );
    let opened = ops::data::open::open(&pool, &ROOT, file, OFlags::WRONLY.bits(), false);
    assert_eq!(opened.map_err(|error| error.errno()).map(drop), Err(Errno::ROFS));
    assert!(
        !ops::settings::branches(&pool)[0].needs_check(),
        "the pool does not write to a read-only branch"
    );
    ops::names::lookup::forget(&pool, file, 1);
}

/// The symlink that takes the new name may be on another branch than the file.
#[test]
fn a_symlink_in_the_place_of_a_renamed_file_records_an_error_of_its_branch() {
    let bed = FailingBranch::new();
    let mut config = Config { rename_exdev: RenameExdev::RelSymlink, ..Config::default() };
    config.policies.set_category(Category::Create, Policy::EpFf);
    let branches = [bed.faulty.path().to_owned(), bed.scratch.path("well")];
    let pool = common::over(&branches, &[Mode::Rw, Mode::Rw], config);
    let dir = ops::names::lookup::lookup(&pool, NodeId::ROOT, b"empty").expect("a directory").node;
    bed.faulty.set(Fault::Fail(Errno::IO), &[Opcode::Symlink]);
    let renamed =
        ops::names::rename::rename(&pool, &ROOT, NodeId::ROOT, b"both", dir, b"new", RenameKind::Replace);
    bed.faulty.heal();
    assert_eq!(renamed.map_err(|error| error.errno()), Err(Errno::IO));
    assert!(bed.scratch.path("well/both").exists(), "it is back");
    let needs_check = |index: usize| ops::settings::branches(&pool)[index].needs_check();
    assert_eq!([0, 1].map(needs_check), [true, false]);
    ops::names::lookup::forget(&pool, dir, 1);
    let empty = canopy_branch::branch::BranchList::default();
    ops::settings::set_branches(&pool, canopy_branch::branch::Branches::open(&empty).expect("no branches"));
}
