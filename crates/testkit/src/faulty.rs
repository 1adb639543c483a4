//! A sick disk to put under a pool: a FUSE filesystem that passes everything on to a directory, and that can be told
//! at any time, for each kind of request, to be slow, to fail, or not to answer at all.
//!
//! It is served by threads of the test's own process. So look at what lies on it by [`Faulty::behind`] and leave the
//! mount to other processes: a thread that waits for a hung mount which its own process serves cannot even be killed.

mod pass;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::panicking;
use std::time::{Duration, Instant};

use canopy_fuse::flags::InitFlags;
use canopy_fuse::mount::{MountSpec, Mounted, mount};
use canopy_fuse::session::Running;
use canopy_fuse::{
    Handler, Limits, Op, Opcode, Replied, Reply, Request, Session, SessionOptions, Undelivered,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::cmd::wait_until;
use crate::procs;
use pass::Pass;

/// Requests that may hang at once before the others hang too. Each is a thread.
const THREADS: usize = 48;
/// How long a mount may stay busy before it is taken away by force.
const PATIENCE: Duration = Duration::from_secs(5);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This errno, and nothing is done.
    Fail(Errno),
    /// It is done after this time.
    Delay(Duration),
    /// It is done once [`Faulty::heal`] is called.
    Hang,
}

/// What statfs(2) tells, in bytes and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub size: u64,
    pub free: u64,
    pub files: u64,
    pub files_free: u64,
}

/// A mounted filesystem with faults. Unmounted on drop, when all that hangs has been let go.
pub struct Faulty {
    point: PathBuf,
    behind: PathBuf,
    sickness: Arc<Sickness>,
    running: Option<Running>,
    mounted: Option<Mounted>,
}

#[derive(Default)]
struct Sickness {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    faults: HashMap<Opcode, Fault>,
    claim: Option<Claim>,
    hanging: usize,
}

impl Faulty {
    /// Mounts at `dir/faulty` what lies in `dir/behind`; both directories are made.
    ///
    /// # Panics
    /// Without root, and where FUSE is not to be had.
    #[track_caller]
    pub fn mount(dir: &Path) -> Faulty {
        crate::require_root();
        let (point, behind) = (dir.join("faulty"), dir.join("behind"));
        for made in [&point, &behind] {
            fs::create_dir_all(made).unwrap_or_else(|error| panic!("mkdir {}: {error}", made.display()));
        }
        let mut spec = MountSpec::new(&point, "faulty", "faulty");
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
            ..SessionOptions::default()
        };
        let session = Session::negotiate(device, &options, Limits::NONE).expect("a session");
        let sickness = Arc::new(Sickness::default());
        let served =
            Served { pass: Pass::over(&behind).expect("a directory"), sickness: Arc::clone(&sickness) };
        let running = session.serve(Arc::new(served), THREADS).expect("threads");
        Faulty { point, behind, sickness, running: Some(running), mounted: Some(mounted) }
    }

    /// The mount: the branch to give to a pool.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// The directory that it shows; what is done here meets no fault.
    pub fn behind(&self) -> &Path {
        &self.behind
    }

    /// From now on this happens to requests of these kinds; other kinds stay as they were.
    pub fn set(&self, fault: Fault, kinds: &[Opcode]) {
        self.sickness.lock().faults.extend(kinds.iter().map(|&kind| (kind, fault)));
        self.sickness.changed.notify_all();
    }

    /// From now on this happens to every request.
    pub fn set_all(&self, fault: Fault) {
        self.set(fault, Opcode::ALL);
    }

    /// No faults any more; what hangs goes on. Claims about space stay.
    pub fn heal(&self) {
        self.sickness.lock().faults.clear();
        self.sickness.changed.notify_all();
    }

    /// Has statfs(2) tell this, or the truth again.
    pub fn claim(&self, claim: Option<Claim>) {
        self.sickness.lock().claim = claim;
    }

    /// How many requests hang now.
    pub fn hanging(&self) -> usize {
        self.sickness.lock().hanging
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
            let holders = procs::holders(&self.point).join("\n  ");
            result = result.map_err(|message| format!("{message}\n  {holders}"));
            // Ends the connection, whoever uses it.
            let _ = unmount(&self.point, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
        mounted.release();
        result.and(running.join().map_err(|error| format!("the faulty filesystem ended badly: {error}")))
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        if let Err(message) = self.end() {
            if panicking() { eprintln!("{message}") } else { panic!("{message}") }
        }
    }
}

impl Sickness {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that has failed elsewhere must still be able to let go of what hangs.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for as long as a request of this kind is to wait; gives the errno that it is to fail with.
    fn meet(&self, kind: Opcode) -> Option<Errno> {
        let began = Instant::now();
        let mut state = self.lock();
        loop {
            let left = match state.faults.get(&kind) {
                None => return None,
                Some(Fault::Fail(errno)) => return Some(*errno),
                Some(Fault::Hang) => Duration::MAX,
                Some(Fault::Delay(time)) => match time.checked_sub(began.elapsed()) {
                    Some(left) if !left.is_zero() => left,
                    _ => return None,
                },
            };
            state.hanging += 1;
            state = self
                .changed
                .wait_timeout(state, left.min(PATIENCE))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            state.hanging -= 1;
        }
    }
}

struct Served {
    pass: Pass,
    sickness: Arc<Sickness>,
}

impl Handler for Served {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let kind = request.header.opcode().filter(|kind| kind.wants_answer() && *kind != Opcode::Destroy);
        if let Some(errno) = kind.and_then(|kind| self.sickness.meet(kind)) {
            return reply.error(errno.raw_os_error());
        }
        let claim = self.sickness.lock().claim;
        match (request.op, claim) {
            (Op::Statfs, Some(claim)) => reply.statfs(&claim.figures()),
            _ => self.pass.serve(&request, reply),
        }
    }

    fn undelivered(&self, what: Undelivered) {
        self.pass.undelivered(what);
    }
}

impl Claim {
    fn figures(&self) -> canopy_fuse::abi::Kstatfs {
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
