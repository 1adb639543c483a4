//! Helpers for tests that mount: a small filesystem in memory, and a mount that cleans up after itself.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

#[path = "../../examples/memfs/memory.rs"]
pub mod memory;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use canopy_fuse::flags::InitFlags;
use canopy_fuse::mount::{MountSpec, Mounted, mount};
use canopy_fuse::notify::Notifier;
use canopy_fuse::session::SessionError;
use canopy_fuse::transport::uring::{Parameter, turn_on};
use canopy_fuse::transport::{Lines, ServedRequests};
use canopy_fuse::{Handler, KernelLimits, Session, SessionOptions, Transport};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Whether the tests run over io_uring: those of `uring.rs`, which include all of `mounted.rs`.
pub const URING: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"uring");

/// Returns whether tests can mount, which needs root and a device, and in `uring.rs` io_uring. Otherwise a test prints that
/// it is skipped and passes.
pub fn can_mount() -> bool {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return false;
    }
    if URING && (turn_on().is_err() || Parameter::read() != Parameter::On) {
        eprintln!("skipped: needs FUSE over io_uring (Linux 6.14)");
        return false;
    }
    true
}

/// No test waits longer for something that is about to happen.
pub const LONG: Duration = Duration::from_secs(60);

/// Waits until `done` returns true.
///
/// # Panics
/// With `what`, after [`LONG`].
#[track_caller]
pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Binds the calling thread to one processor, so that its requests go to the queue of that processor.
pub fn stay_on(cpu: u16) {
    let mut set = CpuSet::new();
    set.set(usize::from(cpu));
    sched_setaffinity(None, &set).unwrap();
}

/// An empty temporary directory, removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("canopy-fuse-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Returns every mount point at or below a path.
pub fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let listed = canopy_sys::mountinfo::list().unwrap().into_iter();
    listed.map(|mounted| mounted.mountpoint).filter(|point| point.starts_with(path)).collect()
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let left = mounts_below(&self.0);
        for mount in left.iter().rev() {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&self.0);
        if !std::thread::panicking() {
            assert!(left.is_empty(), "mounts were left: {left:?}");
        }
    }
}

/// A served mount.
pub struct Served<H: Handler> {
    pub handler: Arc<H>,
    pub notifier: Notifier,
    pub agreed: canopy_fuse::Agreed,
    pub transport: Transport,
    pub requests: ServedRequests,
    pub lines: Lines,
    mounted: Option<Mounted>,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl<H: Handler> Served<H> {
    pub fn start(
        point: &Path,
        options: &SessionOptions,
        limits: KernelLimits,
        threads: usize,
        make: impl FnOnce(&mut Session) -> H,
    ) -> Self {
        let mut spec = MountSpec::new(point, "memfs", "canopy");
        spec.default_permissions = true;
        spec.allow_other = true;
        Served::with_spec(&spec, options, limits, threads, make)
    }

    pub fn with_spec(
        spec: &MountSpec,
        options: &SessionOptions,
        limits: KernelLimits,
        threads: usize,
        make: impl FnOnce(&mut Session) -> H,
    ) -> Self {
        let (device, mounted) = mount(spec).unwrap();
        let mut options = *options;
        options.flags.set(InitFlags::OVER_IO_URING, URING);
        let mut session = Session::negotiate(device, &options, limits).unwrap();
        let (agreed, notifier) = (*session.agreed(), session.notifier());
        let (handler, requests) = (Arc::new(make(&mut session)), session.served_requests());
        let lines = session.lines();
        let running = session.serve(Arc::clone(&handler), threads).unwrap();
        let transport = running.transport().clone();
        let offered = limits.minor >= 42 && limits.mask.contains(InitFlags::OVER_IO_URING);
        assert_eq!(matches!(transport, Transport::Uring { .. }), URING && offered, "{transport}");
        let thread = std::thread::spawn(move || running.join());
        Served {
            handler,
            notifier,
            agreed,
            transport,
            requests,
            lines,
            mounted: Some(mounted),
            thread: Some(thread),
        }
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// Unmounts and waits for the threads.
    pub fn stop(mut self) {
        self.mounted.take().unwrap().unmount(false).unwrap();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl<H: Handler> Drop for Served<H> {
    fn drop(&mut self) {
        drop(self.mounted.take());
        // A failed test may still have a file open, which keeps the threads running.
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            let _ = thread.join();
        }
    }
}
