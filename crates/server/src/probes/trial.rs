//! A filesystem of this process that is attached nowhere, so that nobody else can use it. It consists of what the kernel is
//! to be tried with: a name for each demand, in two states. The kernel may cache everything for a day.
//!
//! It is not the pool's own mount: over io_uring the kernel sends no request before every queue is registered
//! (`fuse_block_alloc` in fs/fuse/dev.c), and then it sends those of clients, too.

use super::{Behaviour, Outcome, Set};
use canopy_fuse::abi::{Attr, AttrOut, EntryOut};
use canopy_fuse::backing::{Backing, BackingId};
use canopy_fuse::flags::{InitFlags, OpenFlags};
use canopy_fuse::mount::{MountSpec, mount_detached};
use canopy_fuse::notify::Notifier;
use canopy_fuse::request::{FileIo, Name, Op};
use canopy_fuse::session::Running;
use canopy_fuse::{Agreed, Handler, KernelLimits, NodeId, Replied, Reply, Request, Session, SessionOptions};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, MemfdFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the kernel may cache everything.
const DAY: Duration = Duration::from_secs(86_400);
/// How long the kernel may take to take notifications.
const PATIENCE: Duration = Duration::from_secs(2);

const ABSENT: &CStr = c"absent";
const ABSENT_TOO: &CStr = c"absent too";
const NAME: &CStr = c"name";
const FILE: &CStr = c"file";
const DIRECTORY: &CStr = c"directory";
const DATA: &CStr = c"data";

/// The sizes of a file in both states. Where the data passes the daemon by, a write makes it this long.
const SIZES: [u64; 2] = [1, 4096];

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const DT_REG: u32 = 8;

pub(super) struct Trial {
    /// The root of the mount, which is unmounted when it is closed.
    root: OwnedFd,
    running: Running,
    notifier: Notifier,
    backing: Backing,
    agreed: Agreed,
    tree: Arc<Tree>,
}

impl Trial {
    pub(super) fn start(
        options: &SessionOptions,
        limits: KernelLimits,
        untold: Set,
    ) -> Result<Trial, String> {
        // With the writeback cache, sizes are the kernel's own, and nothing passes the daemon by.
        let without = InitFlags::OVER_IO_URING
            | InitFlags::WRITEBACK_CACHE
            | InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO;
        let options = SessionOptions {
            flags: options.flags - without,
            max_write: 1 << 16,
            resident: false,
            ..*options
        };
        let mut spec = MountSpec::new("/", "canopy-probe", "canopy");
        spec.default_permissions = true;
        let (device, root) = mount_detached(&spec, S_IFDIR).map_err(|why| why.to_string())?;
        let session = Session::negotiate(device, &options, limits).map_err(|why| why.to_string())?;
        let (agreed, notifier, backing) = (*session.agreed(), session.notifier(), session.backing());
        let tree = Arc::new(Tree {
            opens_directories: agreed.offered.contains(InitFlags::NO_OPENDIR_SUPPORT),
            untold,
            changed: AtomicU8::new(0),
            passed: OnceLock::new(),
        });
        let running = session.serve(Arc::clone(&tree), 2).map_err(|why| why.to_string())?;
        Ok(Trial { root, running, notifier, backing, agreed, tree })
    }

    pub(super) fn end(self) {
        drop(self.root);
        if let Err(why) = self.running.join() {
            tracing::debug!("a session of probes has failed: {why}");
        }
    }

    pub(super) fn takes_back_an_absence(&self) -> Result<Outcome, Errno> {
        let before = self.is_there(ABSENT)?;
        self.change(Behaviour::Absence, || {
            let _ = self.notifier.expire_entry(NodeId::ROOT, ABSENT);
        });
        Ok((!before && self.is_there(ABSENT)?).into())
    }

    pub(super) fn takes_back_everything(&self) -> Result<Outcome, Errno> {
        if !self.notifier.can_increment_epoch() {
            return Ok(Outcome::NotOffered);
        }
        let before = self.is_there(ABSENT_TOO)?;
        self.change(Behaviour::All, || {
            let _ = self.notifier.increment_epoch();
        });
        Ok((!before && self.is_there(ABSENT_TOO)?).into())
    }

    pub(super) fn expires_a_name(&self) -> Result<Outcome, Errno> {
        let before = self.stat(NAME)?.st_ino;
        self.change(Behaviour::Names, || {
            let _ = self.notifier.expire_entry(NodeId::ROOT, NAME);
        });
        Ok((before != self.stat(NAME)?.st_ino).into())
    }

    pub(super) fn expires_attributes(&self) -> Result<Outcome, Errno> {
        let stat = self.stat(FILE)?;
        self.change(Behaviour::Attributes, || {
            let _ = self.notifier.inval_attributes_now(NodeId(stat.st_ino));
        });
        Ok((self.size(FILE)? == SIZES[1]).into())
    }

    pub(super) fn drops_a_listing(&self) -> Result<Outcome, Errno> {
        let dir = self.stat(DIRECTORY)?;
        let before = self.list(DIRECTORY)?;
        self.change(Behaviour::Listings, || {
            let _ = self.notifier.inval_data_now(NodeId(dir.st_ino));
        });
        Ok((self.list(DIRECTORY)? == before + 1).into())
    }

    pub(super) fn sees_passed_sizes(&self) -> Result<Outcome, Errno> {
        if !self.agreed.has(InitFlags::PASSTHROUGH) {
            return Ok(Outcome::NotOffered);
        }
        let data = rustix::fs::memfd_create(c"canopy-probe", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)?;
        rustix::fs::ftruncate(&data, SIZES[0])?;
        match self.backing.open(data.as_fd()) {
            Ok(id) => _ = self.tree.passed.set((data, id)),
            Err(why) => {
                tracing::debug!("no data passes the daemon by: {why}");
                return Ok(Outcome::NotOffered);
            }
        }
        let before = self.size(DATA)?;
        let file = rustix::fs::openat(&self.root, DATA, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let written = rustix::io::pwrite(&file, b"x", SIZES[1] - 1)?;
        Ok((before == SIZES[0] && written == 1 && self.size(DATA)? == SIZES[1]).into())
    }

    /// Changes what belongs to a behaviour, and tells the kernel.
    fn change(&self, behaviour: Behaviour, tell: impl FnOnce()) {
        self.tree.changed.fetch_or(Set::of(behaviour).0, Ordering::SeqCst);
        if !self.tree.untold.has(behaviour) {
            tell();
            self.notifier.flush_within(PATIENCE);
        }
    }

    fn stat(&self, name: &CStr) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn size(&self, name: &CStr) -> Result<u64, Errno> {
        Ok(self.stat(name)?.st_size.cast_unsigned())
    }

    fn is_there(&self, name: &CStr) -> Result<bool, Errno> {
        match self.stat(name) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the number of names in a directory.
    fn list(&self, name: &CStr) -> Result<usize, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.root, name, flags, Mode::empty())?;
        let names: Result<Vec<_>, Errno> = Dir::new(dir)?.collect();
        Ok(names?.len())
    }
}

/// What is in the trial. A node's number says what it is.
struct Tree {
    /// The kernel opens directories by itself.
    opens_directories: bool,
    /// What the kernel is not told of.
    untold: Set,
    /// What has changed.
    changed: AtomicU8,
    /// The file whose data passes the daemon by, and its registration.
    passed: OnceLock<(OwnedFd, BackingId)>,
}

const ABSENT_NODE: u64 = 2;
const ABSENT_TOO_NODE: u64 = 3;
/// In each state.
const NAME_NODES: [u64; 2] = [4, 5];
const FILE_NODE: u64 = 6;
const DIRECTORY_NODE: u64 = 7;
const DATA_NODE: u64 = 8;

impl Tree {
    /// Returns 0, or 1 if what belongs to the behaviour has changed.
    fn state(&self, behaviour: Behaviour) -> usize {
        Set(self.changed.load(Ordering::SeqCst)).has(behaviour).into()
    }

    /// Returns the node of a name, if there is one.
    fn node(&self, name: Name<'_>) -> Option<u64> {
        let once_changed = |node, behaviour| (self.state(behaviour) == 1).then_some(node);
        let name = name.as_cstr();
        match name {
            _ if name == ABSENT => once_changed(ABSENT_NODE, Behaviour::Absence),
            _ if name == ABSENT_TOO => once_changed(ABSENT_TOO_NODE, Behaviour::All),
            _ if name == NAME => Some(NAME_NODES[self.state(Behaviour::Names)]),
            _ if name == FILE => Some(FILE_NODE),
            _ if name == DIRECTORY => Some(DIRECTORY_NODE),
            _ if name == DATA => Some(DATA_NODE),
            _ => None,
        }
    }

    fn attr(&self, node: u64) -> Attr {
        let is_dir = node == DIRECTORY_NODE || node == NodeId::ROOT.0;
        let mode = if is_dir { S_IFDIR | 0o755 } else { S_IFREG | 0o644 };
        let size = match node {
            FILE_NODE => SIZES[self.state(Behaviour::Attributes)],
            DATA_NODE => self.passed_size(),
            _ => SIZES[0],
        };
        Attr { ino: node, size, mode, nlink: 1, blksize: 4096, ..Attr::default() }
    }

    fn passed_size(&self) -> u64 {
        let now = self.passed.get().and_then(|(data, _)| rustix::fs::fstat(data).ok());
        match now {
            Some(now) if !self.untold.has(Behaviour::PassedSizes) => now.st_size.cast_unsigned(),
            _ => SIZES[0],
        }
    }

    fn list(&self, io: FileIo, reply: Reply<'_>) -> Replied {
        let names = &[&b"one"[..], b"two"][..=self.state(Behaviour::Listings)];
        let mut out = reply.dir(io.size as usize);
        for (index, name) in names.iter().enumerate().skip(io.offset as usize) {
            if out.push(100 + index as u64, index as u64 + 1, DT_REG, name) {
                break;
            }
        }
        out.finish()
    }
}

impl Handler for Tree {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let node = request.header.node.0;
        match request.op {
            Op::Lookup { name } => match self.node(name) {
                Some(node) => reply.entry(&EntryOut::new(node, 0, self.attr(node), DAY, DAY)),
                None => reply.entry(&EntryOut::negative(DAY)),
            },
            Op::Getattr { .. } => reply.attr(&AttrOut::new(self.attr(node), DAY)),
            Op::Open { .. } => match self.passed.get() {
                Some((_, id)) => reply.opened(0, OpenFlags::default(), Some(id.raw())),
                None => reply.error(Errno::IO.raw_os_error()),
            },
            Op::Opendir { .. } if !self.opens_directories => {
                reply.opened(0, OpenFlags::KEEP_CACHE | OpenFlags::CACHE_DIR, None)
            }
            Op::Readdir(io) => self.list(io, reply),
            Op::Getxattr { .. } => reply.error(Errno::NODATA.raw_os_error()),
            Op::Release { .. } | Op::Releasedir { .. } | Op::Flush { .. } => reply.ok(),
            Op::Forget { .. } | Op::BatchForget(_) => reply.none(),
            _ => reply.error(Errno::NOSYS.raw_os_error()),
        }
    }
}
