//! Telling the kernel what to forget.
//!
//! A notification takes locks in the kernel that a request under way may hold, so it must never be sent from a thread
//! that serves one: it could wait for itself. [`Notifier`] puts notifications into a queue, and threads of the
//! session's own send them. Queueing never blocks. There are several such threads, because one may have to
//! wait in the kernel for whoever holds a directory or an inode, while the others go on: so the order is not kept.
//! What waits already is not queued again.
//!
//! # When the queue is full
//! More than [`QUEUE_MAX`] waiting notifications are merged together. For inodes only the ids are kept, and each is
//! then invalidated whole, if any of its data was meant. For names, every name the kernel knows is invalidated at once by a new epoch (7.44), or,
//! before that, the queue goes on growing up to [`QUEUE_HARD_MAX`] and then drops what comes, which
//! [`Notifier::lost`] counts.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use canopy_sys::sched;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi;
use crate::flags::InitFlags;
use crate::request::NodeId;

/// How many notifications wait before they are merged together.
pub const QUEUE_MAX: usize = 8192;
/// How many wait at most where they cannot be merged.
pub const QUEUE_HARD_MAX: usize = 1 << 20;

/// Flag of `fuse_notify_inval_entry_out` (`FUSE_EXPIRE_ONLY`).
const EXPIRE_ONLY: u32 = 1;
/// Numbers that requests of the kernel's own do not reach. Even, for odd ones mean an INTERRUPT.
const RETRIEVALS: u64 = 1 << 62;

/// `enum fuse_notify_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NotifyCode {
    /// Wakes up who polls.
    Poll = 1,
    /// Attributes or cached data of a node are stale.
    InvalInode = 2,
    /// A name is stale.
    InvalEntry = 3,
    /// Puts data into the page cache.
    Store = 4,
    /// Asks for data of the page cache.
    Retrieve = 5,
    /// A name is gone.
    Delete = 6,
    /// 7.40.
    Resend = 7,
    /// 7.44.
    IncEpoch = 8,
    /// 7.45.
    Prune = 9,
}

/// Why a notification was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// Newer than what was agreed upon.
    #[error("the kernel does not know this notification")]
    Unsupported,
    /// The session has ended; so has what the kernel remembered.
    #[error("the session has ended")]
    Closed,
}

/// The ways to invalidate a name that the connection knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub(crate) expire: bool,
    pub(crate) resend: bool,
    pub(crate) epoch: bool,
}

impl Capabilities {
    /// What a connection understands: by version, and for what came without a version check, by what was offered.
    pub(crate) fn new(minor: u32, offered: InitFlags) -> Capabilities {
        Capabilities {
            expire: minor >= 38 && offered.contains(InitFlags::HAS_EXPIRE_ONLY),
            resend: minor >= 40 && offered.contains(InitFlags::HAS_RESEND),
            epoch: minor >= 44,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Message {
    InvalInode { node: u64, offset: i64, len: i64 },
    InvalEntry { parent: u64, name: CString, flags: u32 },
    Delete { parent: u64, child: u64, name: CString },
    Resend,
    IncEpoch,
}

#[derive(Default)]
struct Queue {
    /// Each with its number.
    messages: VecDeque<(u64, Message)>,
    /// The same, to be found.
    waiting: HashSet<Message>,
    /// Inodes whose own messages did not fit, and whether their data is meant as well.
    merged: BTreeMap<u64, bool>,
    /// Names did not fit: a new epoch is due.
    names: bool,
    /// The number of the first message that was merged.
    merged_since: Option<u64>,
    closed: bool,
    /// Numbers the messages, for the barrier.
    queued: u64,
    /// The numbers of those that are being sent.
    sending: [Option<u64>; SENDERS],
}

impl Queue {
    /// The number of the oldest message that has not been sent.
    fn oldest(&self) -> Option<u64> {
        let first = self.messages.front().map(|(number, _)| *number);
        self.sending.iter().copied().chain([first, self.merged_since]).flatten().min()
    }
}

struct Shared {
    queue: Mutex<Queue>,
    /// Signalled when there is work or the end.
    work: Condvar,
    /// Signalled when something has been sent.
    idle: Condvar,
    capabilities: Capabilities,
    device: Arc<OwnedFd>,
    sent: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
}

/// Queues notifications. Cheap to clone, and usable from every thread, those that serve requests included.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("capabilities", &self.shared.capabilities).finish_non_exhaustive()
    }
}

impl Notifier {
    /// Forgets the attributes of a node and, from `offset` for `len` bytes (0 and 0: all of it), its cached data. A
    /// negative `offset` leaves the data alone. Dirty pages are written out first.
    ///
    /// # Errors
    /// [`NotifyError::Closed`].
    pub fn inval_inode(&self, node: NodeId, offset: i64, len: i64) -> Result<(), NotifyError> {
        self.push(Message::InvalInode { node: node.0, offset, len })
    }

    /// Forgets the attributes of a node, and its cached ACLs, before it returns. Unlike the others it may be called by
    /// the thread that serves a request about that very node: without data to drop the kernel waits for nothing, and
    /// whoever waits for the answer keeps the inode (fs/fuse/inode.c fuse_reverse_inval_inode).
    ///
    /// # Errors
    /// Whatever the device gives; a node that the kernel does not know is none.
    pub fn inval_attributes_now(&self, node: NodeId) -> Result<(), Errno> {
        match send(&self.shared.device, &Message::InvalInode { node: node.0, offset: -1, len: 0 }) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Forgets a name, so that it is looked up again. An open directory below stays usable, a mount below is
    /// detached.
    ///
    /// # Errors
    /// [`NotifyError::Closed`].
    pub fn inval_entry(&self, parent: NodeId, name: &CStr) -> Result<(), NotifyError> {
        self.push(Message::InvalEntry { parent: parent.0, name: name.into(), flags: 0 })
    }

    /// Lets a name's time run out: it is looked up again and stays what it is if nothing has changed (7.38). Falls
    /// back to [`Notifier::inval_entry`].
    ///
    /// # Errors
    /// [`NotifyError::Closed`].
    pub fn expire_entry(&self, parent: NodeId, name: &CStr) -> Result<(), NotifyError> {
        let flags = if self.shared.capabilities.expire { EXPIRE_ONLY } else { 0 };
        self.push(Message::InvalEntry { parent: parent.0, name: name.into(), flags })
    }

    /// Tells that `name` has been removed and was `child`: watchers of it are told too.
    ///
    /// # Errors
    /// [`NotifyError::Closed`].
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &CStr) -> Result<(), NotifyError> {
        self.push(Message::Delete { parent: parent.0, child: child.0, name: name.into() })
    }

    /// Makes every name of the mount be looked up again (7.44).
    ///
    /// # Errors
    /// [`NotifyError::Unsupported`] before 7.44, [`NotifyError::Closed`].
    pub fn increment_epoch(&self) -> Result<(), NotifyError> {
        if self.shared.capabilities.epoch {
            self.push(Message::IncEpoch)
        } else {
            Err(NotifyError::Unsupported)
        }
    }

    /// Can a name's time run out without more ([`Notifier::expire_entry`])?
    #[must_use]
    pub fn can_expire_entries(&self) -> bool {
        self.shared.capabilities.expire
    }

    /// Can all names be forgotten at once ([`Notifier::increment_epoch`])?
    #[must_use]
    pub fn can_increment_epoch(&self) -> bool {
        self.shared.capabilities.epoch
    }

    /// Has every request in progress sent again, with [`abi::UNIQUE_RESEND`] set in its `unique` (7.40).
    ///
    /// # Errors
    /// [`NotifyError::Unsupported`] before 7.40, [`NotifyError::Closed`].
    pub fn resend(&self) -> Result<(), NotifyError> {
        if self.shared.capabilities.resend {
            self.push(Message::Resend)
        } else {
            Err(NotifyError::Unsupported)
        }
    }

    /// Waits until everything queued before has been sent, or the session has ended. A thread that serves requests may
    /// call it only while another goes on serving: the kernel may hold up a notification until a request is answered.
    pub fn flush(&self) {
        while !self.flush_within(Duration::from_secs(60)) {}
    }

    /// As [`Notifier::flush`], for no longer than this; false if not all has been sent by then.
    pub fn flush_within(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut queue = self.shared.queue.lock();
        let target = queue.queued;
        while queue.oldest().is_some_and(|oldest| oldest < target) && !queue.closed {
            if self.shared.idle.wait_until(&mut queue, until).timed_out() {
                return false;
            }
        }
        true
    }

    /// Notifications the kernel has taken.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Notifications that failed other than by naming what the kernel does not know.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Notifications dropped because too many waited.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    fn push(&self, message: Message) -> Result<(), NotifyError> {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            return Err(NotifyError::Closed);
        }
        if queue.waiting.contains(&message) {
            return Ok(());
        }
        let number = queue.queued;
        queue.queued += 1;
        if queue.messages.len() < QUEUE_MAX {
            queue.waiting.insert(message.clone());
            queue.messages.push_back((number, message));
        } else {
            self.merge(&mut queue, number, message);
        }
        self.shared.work.notify_one();
        Ok(())
    }

    fn merge(&self, queue: &mut Queue, number: u64, message: Message) {
        match message {
            Message::InvalInode { node, offset, .. } => {
                queue.merged_since.get_or_insert(number);
                *queue.merged.entry(node).or_default() |= offset >= 0;
            }
            Message::InvalEntry { .. } | Message::Delete { .. } | Message::IncEpoch
                if self.shared.capabilities.epoch =>
            {
                queue.merged_since.get_or_insert(number);
                queue.names = true;
            }
            other if queue.messages.len() < QUEUE_HARD_MAX => {
                queue.waiting.insert(other.clone());
                queue.messages.push_back((number, other));
            }
            _ => {
                if self.shared.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::error!(
                        "too many notifications are waiting; names may stay stale until they expire"
                    );
                }
            }
        }
    }
}

/// Threads that send.
const SENDERS: usize = 4;

/// The sending side: the session's own. Dropping it ends the threads.
pub(crate) struct Sender {
    notifier: Notifier,
    threads: Vec<JoinHandle<()>>,
}

impl Sender {
    pub(crate) fn start(device: Arc<OwnedFd>, capabilities: Capabilities) -> std::io::Result<Sender> {
        let notifier = Notifier {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                work: Condvar::new(),
                idle: Condvar::new(),
                capabilities,
                device,
                sent: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                lost: AtomicU64::new(0),
            }),
        };
        let mut sender = Sender { notifier, threads: Vec::new() };
        for slot in 0..SENDERS {
            let shared = Arc::clone(&sender.notifier.shared);
            let thread = std::thread::Builder::new().name(format!("canopy-note-{slot}"));
            let run = move || {
                sched::raise_priority();
                run(&shared, slot);
            };
            sender.threads.push(thread.spawn(run)?);
        }
        Ok(sender)
    }

    pub(crate) fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let shared = &self.notifier.shared;
        {
            let mut queue = shared.queue.lock();
            queue.closed = true;
            queue.messages.clear();
            queue.waiting.clear();
            queue.merged.clear();
        }
        shared.work.notify_all();
        shared.idle.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, slot: usize) {
    loop {
        let messages = {
            let mut queue = shared.queue.lock();
            queue.sending[slot] = None;
            shared.idle.notify_all();
            loop {
                if queue.closed {
                    return;
                }
                if let Some((number, message)) = queue.messages.pop_front() {
                    queue.waiting.remove(&message);
                    queue.sending[slot] = Some(number);
                    break vec![message];
                }
                if let Some(number) = queue.merged_since.take() {
                    queue.sending[slot] = Some(number);
                    let merged = std::mem::take(&mut queue.merged).into_iter();
                    let merged = merged.map(|(node, whole)| {
                        let offset = if whole { 0 } else { -1 };
                        Message::InvalInode { node, offset, len: 0 }
                    });
                    let epoch = std::mem::take(&mut queue.names).then_some(Message::IncEpoch);
                    break merged.chain(epoch).collect();
                }
                shared.work.wait(&mut queue);
            }
        };
        for message in messages {
            match send(&shared.device, &message) {
                // The kernel does not know the node or the name: nothing to forget.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => shared.sent.fetch_add(1, Ordering::Relaxed),
                Err(errno) => {
                    tracing::debug!(%errno, ?message, "notification failed");
                    shared.failed.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
    }
}

fn send(device: &OwnedFd, message: &Message) -> Result<(), Errno> {
    match message {
        Message::InvalInode { node, offset, len } => {
            let body = abi::NotifyInvalInodeOut { ino: *node, off: *offset, len: *len };
            write(device, NotifyCode::InvalInode, body.as_bytes(), b"")
        }
        Message::InvalEntry { parent, name, flags } => {
            let namelen = name_len(name);
            let body = abi::NotifyInvalEntryOut { parent: *parent, namelen, flags: *flags };
            write(device, NotifyCode::InvalEntry, body.as_bytes(), name.as_bytes_with_nul())
        }
        Message::Delete { parent, child, name } => {
            let namelen = name_len(name);
            let body = abi::NotifyDeleteOut { parent: *parent, child: *child, namelen, padding: 0 };
            write(device, NotifyCode::Delete, body.as_bytes(), name.as_bytes_with_nul())
        }
        Message::Resend => write(device, NotifyCode::Resend, b"", b""),
        Message::IncEpoch => write(device, NotifyCode::IncEpoch, b"", b""),
    }
}

/// Asks for no data of a file that the kernel knows, which it answers by a NOTIFY_REPLY: a request that nobody waits for.
/// Over io_uring it comes by the queue of the processor that the calling thread runs on.
///
/// Errors: `ENOENT` for a file that the kernel does not know, `EINVAL` for what is no regular file.
pub(crate) fn retrieve_nothing(device: &OwnedFd, file: NodeId, number: u64) -> Result<(), Errno> {
    let body = abi::NotifyRetrieveOut {
        notify_unique: RETRIEVALS | (number << 1),
        nodeid: file.0,
        offset: 0,
        size: 0,
        padding: 0,
    };
    write(device, NotifyCode::Retrieve, body.as_bytes(), b"")
}

fn name_len(name: &CStr) -> u32 {
    u32::try_from(name.count_bytes()).unwrap_or(u32::MAX)
}

/// A notification is a reply with `unique` 0 and its code where a reply has its error.
fn write(device: &OwnedFd, code: NotifyCode, body: &[u8], name: &[u8]) -> Result<(), Errno> {
    let mut message = Vec::with_capacity(size_of::<abi::OutHeader>() + body.len() + name.len());
    let len = u32::try_from(message.capacity()).map_err(|_| Errno::MSGSIZE)?;
    message.extend_from_slice(abi::OutHeader { len, error: code as i32, unique: 0 }.as_bytes());
    message.extend_from_slice(body);
    message.extend_from_slice(name);
    loop {
        match rustix::io::write(device, &message) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}
