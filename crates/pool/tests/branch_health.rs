//! Whatever an operation is, the error of a sick branch that it meets is a reason to look after that branch.
//!
//! Root is needed.

mod common;

use canopy_pool::branch::Mode;
use canopy_pool::config::{Config, StatfsMode};
use canopy_pool::policy::{Category, Policy};
use canopy_pool::{Entry, HandleId, NodeId, Pool, RenameKind, Result, SetAttr, SetTime, Whence, WriteKind};
use canopy_testkit::{Fault, FaultyFs, Opcode, ScratchDir};
use common::ROOT;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::sync::Arc;

const NONE: WriteKind = WriteKind { from_cache: false, kill_suidgid: None };
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;

/// A pool over a branch that can be made to fail and one that cannot. What there is lies on the first.
struct Sick {
    pool: Arc<Pool>,
    faulty: FaultyFs,
    /// A file with an extended attribute, opened for both, and one beside it.
    file: NodeId,
    handle: HandleId,
    beside: HandleId,
    /// A directory, on both branches, with a file `below`.
    dir: NodeId,
    link: NodeId,
    scratch: ScratchDir,
}

impl Sick {
    fn new() -> Sick {
        let scratch = ScratchDir::new("canopy-sick-", &["well", "well/dir"]);
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
        let node = |name: &str| pool.lookup(NodeId::ROOT, name.as_bytes()).expect("a node").node;
        let open = |node| pool.open(&ROOT, node, OFlags::RDWR.bits(), false).expect("open").handle;
        let (file, dir, link) = (node("file"), node("dir"), node("link"));
        let (handle, beside) = (open(file), open(node("beside")));
        Sick { file, handle, beside, dir, link, pool, faulty, scratch }
    }

    /// Which branches there is a reason to look after; there is none afterwards.
    fn usable_space(&self) -> [bool; 2] {
        let branches = self.pool.branches();
        [0, 1].map(|index| {
            let noticed = branches[index].needs_check();
            assert_eq!(branches[index].check_health(), None, "one error is not an illness");
            noticed
        })
    }

    fn set(&self, set: SetAttr) -> Result<()> {
        self.pool.setattr(&ROOT, self.file, None, &set).map(drop)
    }

    fn rename(&self, to: &str, kind: RenameKind) -> Result<()> {
        self.pool.rename(&ROOT, NodeId::ROOT, b"victim", NodeId::ROOT, to.as_bytes(), kind)
    }

    fn takes(&self, entry: Entry) {
        self.pool.forget(entry.node, 1);
    }
}

impl Drop for Sick {
    fn drop(&mut self) {
        self.faulty.heal();
        for handle in [self.handle, self.beside] {
            let _ = self.pool.release(handle);
        }
        // Nothing of the pool may keep the faulty filesystem busy when that is unmounted.
        let nobody = canopy_pool::branch::BranchList::default();
        self.pool.set_branches(canopy_pool::branch::Branches::open(&nobody).expect("no branches"));
    }
}

/// What is tried, which requests to the branch fail, and what becomes of it: false where another branch, or what
/// is known already, makes up for it.
type Case = (&'static str, &'static [Opcode], bool, fn(&Sick) -> Result<()>);

/// Those that change something meet a filesystem that takes no changes as well.
const CHANGES: &[Case] = &[
    ("chmod", &[Opcode::Setattr], true, |s| s.set(SetAttr { mode: Some(0o600), ..SetAttr::default() })),
    ("chown", &[Opcode::Setattr], true, |s| s.set(SetAttr { uid: Some(7), ..SetAttr::default() })),
    ("utimens", &[Opcode::Setattr], true, |s| {
        s.set(SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() })
    }),
    ("truncate", &[Opcode::Setattr], true, |s| s.set(SetAttr { size: Some(3), ..SetAttr::default() })),
    ("ftruncate", &[Opcode::Setattr], true, |s| {
        let set = SetAttr { size: Some(3), ..SetAttr::default() };
        s.pool.setattr(&ROOT, s.file, Some(s.handle), &set).map(drop)
    }),
    ("chmod of a directory", &[Opcode::Setattr], false, |s| {
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let done = s.pool.setattr(&ROOT, s.dir, None, &set).map(drop);
        // Done on one branch and not on the one that is shown.
        assert!(done.is_err());
        Ok(())
    }),
    ("setxattr", &[Opcode::Setxattr], true, |s| s.pool.setxattr(&ROOT, s.file, b"user.new", b"v", 0, false)),
    ("removexattr", &[Opcode::Removexattr], true, |s| s.pool.removexattr(&ROOT, s.file, b"user.known")),
    ("chattr", &[Opcode::Ioctl], true, |s| {
        s.pool.ioctl(&ROOT, s.file, FS_IOC_SETFLAGS, &0_u64.to_ne_bytes()).map(drop)
    }),
    ("unlink", &[Opcode::Unlink], true, |s| s.pool.unlink(NodeId::ROOT, b"victim")),
    ("rmdir", &[Opcode::Rmdir], true, |s| s.pool.rmdir(NodeId::ROOT, b"empty")),
    ("rename", &[Opcode::Rename, Opcode::Rename2], true, |s| s.rename("new", RenameKind::Replace)),
    ("rename over", &[Opcode::Rename, Opcode::Rename2], true, |s| s.rename("beside", RenameKind::Replace)),
    ("rename without replacing", &[Opcode::Rename2], true, |s| s.rename("new", RenameKind::NoReplace)),
    ("exchange", &[Opcode::Rename2], true, |s| s.rename("file", RenameKind::Exchange)),
    ("whiteout", &[Opcode::Rename2], true, |s| s.rename("new", RenameKind::Whiteout)),
    ("link", &[Opcode::Link], true, |s| {
        s.pool.link(&ROOT, s.file, NodeId::ROOT, b"new").map(|made| s.takes(made))
    }),
    ("write", &[Opcode::Write], true, |s| s.pool.write(s.handle, 0, b"data", NONE).map(drop)),
    ("fallocate", &[Opcode::Fallocate], true, |s| s.pool.fallocate(s.handle, 0, 0, 65536)),
    ("copy_file_range", &[Opcode::CopyFileRange, Opcode::CopyFileRange64], true, |s| {
        s.pool.copy_file_range((s.handle, 0), (s.beside, 0), 4).map(drop)
    }),
    ("open to write", &[Opcode::Open], true, |s| {
        let victim = s.pool.lookup(NodeId::ROOT, b"victim")?;
        let opened = s.pool.open(&ROOT, victim.node, OFlags::WRONLY.bits(), false);
        s.takes(victim);
        s.pool.release(opened?.handle)
    }),
    ("open once more", &[Opcode::Open], true, |s| {
        let opened = s.pool.open(&ROOT, s.file, OFlags::WRONLY.bits(), false)?;
        s.pool.release(opened.handle)
    }),
    // Made on the other branch instead.
    ("create", &[Opcode::Create], false, |s| {
        let (made, opened) = s.pool.create(&ROOT, NodeId::ROOT, b"new", 0o644, OFlags::RDWR.bits(), false)?;
        s.takes(made);
        s.pool.release(opened.handle)
    }),
    ("mkdir", &[Opcode::Mkdir], false, |s| {
        s.pool.mkdir(&ROOT, NodeId::ROOT, b"new", 0o755).map(|made| s.takes(made))
    }),
    ("symlink", &[Opcode::Symlink], false, |s| {
        s.pool.symlink(&ROOT, NodeId::ROOT, b"new", b"target").map(|made| s.takes(made))
    }),
];

const LOOKS: &[Case] = &[
    ("lookup", &[Opcode::Lookup], true, |s| {
        s.pool.lookup(NodeId::ROOT, b"victim").map(|found| s.takes(found))
    }),
    ("lookup of what another branch holds", &[Opcode::Lookup], false, |s| {
        s.pool.lookup(NodeId::ROOT, b"both").map(|found| s.takes(found))
    }),
    ("getattr", &[Opcode::Lookup], true, |s| s.pool.getattr(s.link, None).map(drop)),
    ("getattr by handle", &[Opcode::Getattr, Opcode::Statx], true, |s| {
        s.pool.getattr(s.file, Some(s.handle)).map(drop)
    }),
    ("getattr of a directory", &[Opcode::Lookup], false, |s| s.pool.getattr(s.dir, None).map(drop)),
    ("access", &[Opcode::Lookup], true, |s| s.pool.access(s.link, 4)),
    ("readlink", &[Opcode::Readlink], true, |s| s.pool.readlink(s.link).map(drop)),
    ("listing", &[Opcode::Opendir], false, |s| s.pool.readdir(s.dir, 0, |_| true)),
    ("reading a listing", &[Opcode::Readdir, Opcode::Readdirplus], false, |s| {
        s.pool.readdir(s.dir, 0, |_| true)
    }),
    ("fsyncdir", &[Opcode::Fsyncdir], true, |s| s.pool.fsyncdir(s.dir, false)),
    ("syncfs", &[Opcode::Opendir], true, |s| s.pool.syncfs()),
    ("statfs", &[Opcode::Statfs], false, |s| s.pool.statfs(NodeId::ROOT).map(drop)),
    ("getxattr", &[Opcode::Getxattr], true, |s| {
        s.pool.getxattr(s.file, b"user.known", &mut [0; 64]).map(drop)
    }),
    ("size of an xattr", &[Opcode::Getxattr], true, |s| {
        s.pool.getxattr(s.file, b"user.known", &mut []).map(drop)
    }),
    ("listxattr", &[Opcode::Listxattr], true, |s| s.pool.listxattr(&ROOT, s.file, &mut [0; 64]).map(drop)),
    ("lsattr", &[Opcode::Ioctl], true, |s| s.pool.ioctl(&ROOT, s.file, FS_IOC_GETFLAGS, &[]).map(drop)),
    ("open to read", &[Opcode::Open], true, |s| {
        let victim = s.pool.lookup(NodeId::ROOT, b"victim")?;
        let opened = s.pool.open(&ROOT, victim.node, 0, false);
        s.takes(victim);
        s.pool.release(opened?.handle)
    }),
    ("read", &[Opcode::Read], true, |s| s.pool.read(s.handle, 0, &mut [0; 4]).map(drop)),
    ("lseek", &[Opcode::Lseek], true, |s| s.pool.lseek(s.handle, 0, Whence::Hole).map(drop)),
    ("fsync", &[Opcode::Fsync], true, |s| s.pool.fsync(s.handle, false)),
    ("close", &[Opcode::Flush], true, |s| s.pool.flush(s.handle)),
];

#[test]
fn every_operation_records_an_error_of_its_branch() {
    let both = [Errno::IO, Errno::ROFS];
    let changes = CHANGES.iter().map(|case| (case, &both[..]));
    let looks = LOOKS.iter().map(|case| (case, &both[..1]));
    let mut silent = Vec::new();
    for ((what, requests, fails, act), errnos) in changes.chain(looks) {
        for &errno in errnos {
            let sick = Sick::new();
            assert_eq!(sick.usable_space(), [false; 2]);
            sick.faulty.set(Fault::Fail(errno), requests);
            let result = act(&sick);
            sick.faulty.heal();
            match fails {
                true => assert_eq!(result.map_err(|error| error.errno()), Err(errno), "{what}"),
                false => assert_eq!(result.map_err(|error| error.errno()), Ok(()), "{what}"),
            }
            match sick.usable_space() {
                [true, false] => {}
                noticed => silent.push(format!("{what} with {errno:?}: {noticed:?}")),
            }
        }
    }
    assert!(silent.is_empty(), "not told of: {silent:#?}");
}

/// Not errors of the branch: what a caller asked for wrongly, what a full disk says, and a branch that is not to be
/// changed.
#[test]
fn errors_that_are_not_the_branchs_are_not_recorded() {
    let sick = Sick::new();
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ACCESS, Errno::NODATA, Errno::OPNOTSUPP] {
        sick.faulty.set(Fault::Fail(errno), &[Opcode::Setxattr, Opcode::Unlink, Opcode::Getxattr]);
        assert!(sick.pool.setxattr(&ROOT, sick.file, b"user.new", b"v", 0, false).is_err());
        assert!(sick.pool.unlink(NodeId::ROOT, b"victim").is_err());
        assert!(sick.pool.getxattr(sick.file, b"user.known", &mut []).is_err());
        assert_eq!(sick.usable_space(), [false; 2], "{errno}");
    }
    sick.faulty.heal();
    // lseek(2): there is nothing behind the end.
    let beyond = sick.pool.lseek(sick.handle, 1 << 20, Whence::Data);
    assert_eq!(beyond.map_err(|error| error.errno()), Err(Errno::NXIO));
    assert_eq!(sick.usable_space(), [false; 2]);
    let modes = [Mode::Ro, Mode::Rw];
    let branches = [sick.faulty.path().to_owned(), sick.scratch.path("well")];
    let pool = common::over(&branches, &modes, Config::default());
    sick.faulty.set(Fault::Fail(Errno::ROFS), &[Opcode::Open, Opcode::Setattr]);
    let file = pool.lookup(NodeId::ROOT, b"file").expect("a file").node;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(pool.setattr(&ROOT, file, None, &set).map_err(|error| error.errno()), Err(Errno::ROFS));
    let opened = pool.open(&ROOT, file, OFlags::WRONLY.bits(), false);
    assert_eq!(opened.map_err(|error| error.errno()).map(drop), Err(Errno::ROFS));
    assert!(!pool.branches()[0].needs_check(), "it is not to be written to anyway");
    pool.forget(file, 1);
}
