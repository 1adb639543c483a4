//! A faulty disk for a pool: a FUSE filesystem that mirrors a directory, and that can delay, fail or hang each kind of
//! request at any time.
//!
//! It serves real files, to test how a pool treats a disk that fails. The floor server of `canopy-bench` and the example
//! `memfs` of `canopy-fuse` serve files in memory: the first to measure what FUSE costs, the second as a small complete
//! filesystem for the tests of that crate.
//!
//! Threads of the test's own process serve it. A test therefore accesses the files through [`FaultyFs::backing_dir`], and
//! leaves the mount to other processes: a thread that waits for a hung mount served by its own process cannot be killed.

mod mirror;

use std::collections::HashMap;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::panicking;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use canopy_fuse::flags::InitFlags;
use canopy_fuse::mount::{MountSpec, Mounted, mount};
use canopy_fuse::request::Setattr;
use canopy_fuse::session::Running;
use canopy_fuse::transport::WorkerGrowth;
use canopy_fuse::{
    Handler, KernelLimits, Op, Opcode, Replied, Reply, Request, Session, SessionOptions, Undelivered,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::cmd::{PATIENCE, wait_until};
use crate::{Rng, proc};
use mirror::Mirror;

/// How many threads serve requests at first.
const THREADS: usize = 48;
/// How many more there may be. When so many requests hang, all others hang too: each occupies a thread.
const MORE_THREADS: usize = 1000;
/// How often a request that waits looks again, though nobody has told it of a change.
const LOOK: Duration = Duration::from_secs(5);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this errno, and has no effect.
    Fail(Errno),
    /// A read or write that goes beyond this offset fails with this errno, and has no effect.
    FailBeyond(u64, Errno),
    /// A change of the size fails with this errno, be it by truncate(2) or an open with `O_TRUNC` of a file that has one. It has no effect.
    FailResize(Errno),
    /// It is carried out after this time.
    Delay(Duration),
    /// It is carried out after a time up to this, drawn at random for each request.
    DelayUpTo(Duration),
    /// It is carried out once [`FaultyFs::heal`] is called.
    Hang,
    /// A change of attributes leaves owner and mode as they are, and succeeds, as on NTFS.
    KeepOwner,
}

/// What statfs(2) reports, in bytes and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceReport {
    pub size: u64,
    pub free: u64,
    pub files: u64,
    pub files_free: u64,
}

// Its locks outlive a panic.
impl UnwindSafe for FaultyFs {}
impl RefUnwindSafe for FaultyFs {}

impl fmt::Debug for FaultyFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyFs").field("point", &self.point).finish_non_exhaustive()
    }
}

/// A mounted filesystem with faults. Dropping it lets hanging requests continue, then unmounts it.
pub struct FaultyFs {
    point: PathBuf,
    backing: PathBuf,
    faults: Arc<Faults>,
    running: Option<Running>,
    mounted: Option<Mounted>,
}

#[derive(Default)]
struct Faults {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    by_kind: HashMap<Opcode, Fault>,
    space: Option<SpaceReport>,
    hanging: usize,
    /// How many delays were drawn.
    drawn: u64,
}

impl State {
    fn draw(&mut self, most: Duration) -> Duration {
        self.drawn += 1;
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(Rng::new(self.drawn).below(most + 1))
    }
}

impl FaultyFs {
    /// Makes `dir/faulty` and `dir/backing`, and mounts a mirror of the second on the first.
    ///
    /// # Panics
    /// Without root, or without FUSE.
    #[track_caller]
    pub fn mount(dir: &Path) -> FaultyFs {
        FaultyFs::mount_as("faulty", dir)
    }

    /// As `mount`, with the type `fuse.SUBTYPE`, as of a filesystem that cannot store everything.
    ///
    /// # Panics
    /// Without root, or without FUSE.
    #[track_caller]
    pub fn mount_as(subtype: &str, dir: &Path) -> FaultyFs {
        crate::require_root();
        let (point, backing) = (dir.join("faulty"), dir.join("backing"));
        for made in [&point, &backing] {
            fs::create_dir_all(made).unwrap_or_else(|error| panic!("mkdir {}: {error}", made.display()));
        }
        let mut spec = MountSpec::new(&point, "faulty", subtype);
        spec.allow_other = true;
        spec.default_permissions = true;
        let (device, mounted) = mount(&spec).expect("a mount");
        let flags = InitFlags::ASYNC_READ
            | InitFlags::ATOMIC_O_TRUNC
            | InitFlags::BIG_WRITES
            | InitFlags::DONT_MASK
            | InitFlags::MAX_PAGES
            | InitFlags::PARALLEL_DIROPS;
        let options = SessionOptions {
            flags,
            max_write: 128 << 10,
            max_background: THREADS as u16,
            growth: WorkerGrowth { max_extra: MORE_THREADS, ..WorkerGrowth::default() },
            ..SessionOptions::default()
        };
        let session = Session::negotiate(device, &options, KernelLimits::NONE).expect("a session");
        let faults = Arc::new(Faults::default());
        let served =
            Served { mirror: Mirror::of(&backing).expect("a directory"), faults: Arc::clone(&faults) };
        let running = session.serve(Arc::new(served), THREADS).expect("threads");
        FaultyFs { point, backing, faults, running: Some(running), mounted: Some(mounted) }
    }

    /// The mount point, to be used as a branch of a pool.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// The mirrored directory. It has no faults.
    pub fn backing_dir(&self) -> &Path {
        &self.backing
    }

    /// Sets the fault of these kinds of request. Other kinds keep theirs.
    pub fn set(&self, fault: Fault, kinds: &[Opcode]) {
        self.faults.lock().by_kind.extend(kinds.iter().map(|&kind| (kind, fault)));
        self.faults.changed.notify_all();
    }

    /// What files hold cannot be changed any more (`EIO`), and, unless `synced`, not be synced. They can be read, and attributes and
    /// names change.
    pub fn refuse_data(&self, synced: bool) {
        self.set(Fault::Fail(Errno::IO), &[Opcode::Write, Opcode::Fallocate, Opcode::CopyFileRange]);
        self.set(Fault::FailResize(Errno::IO), &[Opcode::Setattr, Opcode::Open]);
        if !synced {
            self.refuse_syncs();
        }
    }

    /// Files cannot be synced any more (`EIO`).
    pub fn refuse_syncs(&self) {
        self.set(Fault::Fail(Errno::IO), &[Opcode::Fsync]);
    }

    /// Nothing can be changed any more (`EIO`). All can be read.
    pub fn refuse_changes(&self) {
        use Opcode::{
            Create, Fsyncdir, Link, Mkdir, Mknod, Removexattr, Rename, Rename2, Rmdir, Setattr, Setxattr,
            Symlink, Tmpfile, Unlink,
        };
        let changes = [
            Create,
            Fsyncdir,
            Link,
            Mkdir,
            Mknod,
            Removexattr,
            Rename,
            Rename2,
            Rmdir,
            Setattr,
            Setxattr,
            Symlink,
            Tmpfile,
            Unlink,
        ];
        self.refuse_data(false);
        self.set(Fault::Fail(Errno::IO), &changes);
    }

    /// Sets the fault of every kind of request.
    pub fn set_all(&self, fault: Fault) {
        self.set(fault, Opcode::ALL);
    }

    /// Clears all faults, and lets hanging requests continue. The reported space stays as it is.
    pub fn heal(&self) {
        self.faults.lock().by_kind.clear();
        self.faults.changed.notify_all();
    }

    /// Sets what statfs(2) reports. `None` reports the truth.
    pub fn report_space(&self, space: Option<SpaceReport>) {
        self.faults.lock().space = space;
    }

    /// Returns how many requests hang now.
    pub fn hanging(&self) -> usize {
        self.faults.lock().hanging
    }

    fn end(&mut self) -> Result<(), String> {
        let Some((mounted, running)) = self.mounted.take().zip(self.running.take()) else { return Ok(()) };
        self.heal();
        let mut outcome = Ok(());
        let gone = wait_until(PATIENCE, || {
            outcome = unmount(&self.point, UnmountFlags::NOFOLLOW);
            outcome != Err(Errno::BUSY)
        });
        let mut result = outcome.map_err(|errno| format!("cannot unmount {}: {errno}", self.point.display()));
        if !gone || result.is_err() {
            let holders = proc::holders(&self.point).join("\n  ");
            result = result.map_err(|message| format!("{message}\n  {holders}"));
            // Aborts the connection even if it is in use.
            let _ = unmount(&self.point, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
        mounted.release();
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || ended.send(running.join()));
        match end.recv_timeout(PATIENCE) {
            Ok(joined) => result
                .and(joined.map_err(|error| format!("the session of the faulty filesystem failed: {error}"))),
            // It ends with that namespace.
            Err(_) if proc::is_left_elsewhere(&self.point) => result,
            Err(_) => result.and(Err("the session of the faulty filesystem does not end".to_owned())),
        }
    }
}

impl Drop for FaultyFs {
    fn drop(&mut self) {
        if let Err(message) = self.end() {
            if panicking() { eprintln!("{message}") } else { panic!("{message}") }
        }
    }
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that has panicked must still be able to release hanging requests.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as the fault of this kind of request demands. Returns the errno to fail with, if any. `end`: where
    /// what is read or written ends.
    fn inject(&self, kind: Opcode, end: u64, resizes: bool) -> Option<Errno> {
        let began = Instant::now();
        let mut state = self.lock();
        let mut drawn = None;
        loop {
            let time = match state.by_kind.get(&kind) {
                None | Some(Fault::KeepOwner) => return None,
                Some(Fault::Fail(errno)) => return Some(*errno),
                Some(Fault::FailBeyond(limit, errno)) => return (end > *limit).then_some(*errno),
                Some(Fault::FailResize(errno)) => return resizes.then_some(*errno),
                Some(Fault::Hang) => Duration::MAX,
                Some(Fault::Delay(time)) => *time,
                Some(&Fault::DelayUpTo(most)) => *drawn.get_or_insert_with(|| state.draw(most)),
            };
            let left = match time.checked_sub(began.elapsed()) {
                Some(left) if !left.is_zero() => left,
                _ => return None,
            };
            state.hanging += 1;
            state =
                self.changed.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
            state.hanging -= 1;
        }
    }
}

struct Served {
    mirror: Mirror,
    faults: Arc<Faults>,
}

impl Handler for Served {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let kind = request.header.opcode().filter(|kind| kind.wants_answer() && *kind != Opcode::Destroy);
        let end = match &request.op {
            Op::Read(io) => io.offset + u64::from(io.size),
            Op::Write(io) => io.offset + io.data.len() as u64,
            _ => 0,
        };
        let resizes = match &request.op {
            Op::Setattr(set) => set.size.is_some(),
            Op::Open { flags, .. } => {
                // The kernel passes the flag on for a file that has just been made, when it opens that past a pool.
                let empties = OFlags::from_bits_retain(*flags).contains(OFlags::TRUNC);
                empties && !self.mirror.is_empty(request.header.node)
            }
            _ => false,
        };
        if let Some(errno) = kind.and_then(|kind| self.faults.inject(kind, end, resizes)) {
            return reply.error(errno.raw_os_error());
        }
        let (space, fault) = {
            let state = self.faults.lock();
            (state.space, kind.and_then(|kind| state.by_kind.get(&kind).copied()))
        };
        match (request.op, space, fault) {
            (Op::Statfs, Some(space), _) => reply.statfs(&space.statfs()),
            (Op::Setattr(set), _, Some(Fault::KeepOwner)) => {
                let op = Op::Setattr(Setattr { mode: None, uid: None, gid: None, ..set });
                self.mirror.serve(&Request { op, ..request }, reply)
            }
            _ => self.mirror.serve(&request, reply),
        }
    }

    fn undelivered(&self, what: Undelivered) {
        self.mirror.undelivered(what);
    }
}

impl SpaceReport {
    fn statfs(&self) -> canopy_fuse::abi::Kstatfs {
        const BLOCK: u32 = 4096;
        let blocks = |bytes: u64| bytes / u64::from(BLOCK);
        canopy_fuse::abi::Kstatfs {
            blocks: blocks(self.size),
            bfree: blocks(self.free),
            bavail: blocks(self.free),
            files: self.files,
            ffree: self.files_free,
            bsize: BLOCK,
            frsize: BLOCK,
            namelen: 255,
            ..canopy_fuse::abi::Kstatfs::default()
        }
    }
}

#[cfg(test)]
mod tests;
