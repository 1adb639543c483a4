//! A double of the kernel's side of FUSE. It sends the requests that a real one sends for each call, believes what it is
//! told for as long as it is told, and obeys notifications; so a server is tested in its own process, without a mount.
//!
//! It speaks the wire over a socket pair, whose other end the server serves in the place of `/dev/fuse`. A test can count
//! requests, hold answers back, and let time pass for what is believed. Unlike a real kernel it has no page cache and no
//! locks of directories, offers no passthrough, and caches no listings.

mod beliefs;
mod calls;
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use canopy_fuse::Opcode;
use canopy_fuse::flags::InitFlags;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use beliefs::Beliefs;
pub use calls::{Entry, File, Stat};
use wire::Reply;

/// What a kernel offers, as far as the double acts on it.
pub const OFFERS: InitFlags = InitFlags::BIG_WRITES
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::HAS_EXPIRE_ONLY);

/// How long a call waits for its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The kernel's side of one connection. Dropping it ends the connection, as an unmount does.
pub struct Kernel {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    /// Who calls.
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

struct Shared {
    socket: OwnedFd,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    held: Mutex<Vec<HeldBack>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    beliefs: Mutex<Beliefs>,
}

/// A request without an answer yet.
struct Waiting {
    opcode: Opcode,
    answer: Sender<Reply>,
}

/// Answers to one operation that are kept from the caller.
struct HeldBack {
    opcode: Opcode,
    replies: Vec<(Sender<Reply>, Reply)>,
}

/// Keeps the answers to one operation back until it is dropped. What they say is as old by then.
#[must_use]
pub struct AnswersHeld<'a> {
    kernel: &'a Kernel,
    opcode: Opcode,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kernel {
    /// Returns a kernel that has sent INIT and offers these features, and the device for the server.
    ///
    /// # Panics
    /// If a socket or a thread cannot be had.
    #[must_use]
    pub fn new(offers: InitFlags) -> (Kernel, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (socket, device) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let shared = Arc::new(Shared {
            socket,
            next: AtomicU64::new(2),
            waiting: Mutex::default(),
            held: Mutex::default(),
            counts: Mutex::default(),
            beliefs: Mutex::default(),
        });
        let reader = Arc::clone(&shared);
        let reader = std::thread::Builder::new().name("kernel".into()).spawn(move || reader.read()).unwrap();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let kernel = Kernel { shared, reader: Some(reader), uid, gid, pid: std::process::id() };
        // Nobody waits for its answer: the server is not there yet.
        drop(kernel.send(Opcode::Init, 0, &wire::init(offers)));
        (kernel, device)
    }

    /// Returns how many requests of each operation were sent since the last call.
    pub fn take_counts(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut lock(&self.shared.counts))
    }

    /// Keeps the answers to an operation back that are sent from now on, until the guard is dropped.
    pub fn hold_answers(&self, opcode: Opcode) -> AnswersHeld<'_> {
        lock(&self.shared.held).push(HeldBack { opcode, replies: Vec::new() });
        AnswersHeld { kernel: self, opcode }
    }

    /// Lets time pass for what is believed: nothing that was told with a shorter time to live is believed any more.
    pub fn let_pass(&self, time: Duration) {
        lock(&self.shared.beliefs).passed += time;
    }

    fn send(&self, opcode: Opcode, node: u64, body: &[&[u8]]) -> Receiver<Reply> {
        // Even numbers, as the kernel's.
        let unique = self.shared.next.fetch_add(2, Ordering::Relaxed);
        let (answer, waits) = channel();
        lock(&self.shared.waiting).insert(unique, Waiting { opcode, answer });
        *lock(&self.shared.counts).entry(opcode.name()).or_default() += 1;
        let message = wire::request(opcode, unique, node, (self.uid, self.gid, self.pid), body);
        rustix::io::write(&self.shared.socket, &message).expect("the server has ended");
        waits
    }

    /// Sends a request and returns its answer.
    fn ask(&self, opcode: Opcode, node: u64, body: &[&[u8]]) -> Result<Vec<u8>, Errno> {
        let reply = self.send(opcode, node, body).recv_timeout(ANSWER_LIMIT);
        let reply = reply.unwrap_or_else(|_| panic!("{} has no answer", opcode.name()));
        match reply.errno {
            0 => Ok(reply.payload),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    fn beliefs(&self) -> MutexGuard<'_, Beliefs> {
        lock(&self.shared.beliefs)
    }
}

impl Shared {
    /// Takes answers and notifications until the connection ends.
    fn read(&self) {
        let mut buffer = vec![0; 1 << 21];
        while let Ok(length @ 1..) = rustix::io::read(&self.socket, &mut buffer) {
            let reply = Reply::parse(&buffer[..length]);
            if reply.unique == 0 {
                lock(&self.beliefs).obey(&reply);
                continue;
            }
            let waiting = lock(&self.waiting).remove(&reply.unique);
            let Waiting { opcode, answer } = waiting.unwrap_or_else(|| panic!("answered twice: {reply:?}"));
            let mut held = lock(&self.held);
            match held.iter_mut().find(|held| held.opcode == opcode) {
                Some(held) => held.replies.push((answer, reply)),
                None => drop(answer.send(reply)),
            }
        }
    }
}

impl AnswersHeld<'_> {
    /// Returns how many answers are held.
    #[must_use]
    pub fn count(&self) -> usize {
        let held = lock(&self.kernel.shared.held);
        held.iter().find(|held| held.opcode == self.opcode).map_or(0, |held| held.replies.len())
    }
}

impl Drop for AnswersHeld<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.kernel.shared.held);
        let Some(at) = held.iter().position(|held| held.opcode == self.opcode) else { return };
        for (answer, reply) in held.remove(at).replies {
            let _ = answer.send(reply);
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = shutdown(&self.shared.socket, Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let ended = reader.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the double of the kernel has failed");
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}
