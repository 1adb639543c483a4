//! Notifications: they invalidate what the kernel caches.
//!
//! The kernel takes locks for a notification that a request in flight may hold. A thread that serves a request must
//! therefore not send one, because it could deadlock. [`Notifier`] queues notifications, and threads of the session send
//! them. Queueing never blocks. There are several such threads, because one may wait in the kernel for the lock of a
//! directory or an inode while the others continue, so notifications may be reordered. A notification that is already
//! queued is not queued again.
//!
//! # When the queue is full
//! Beyond [`QUEUE_MAX`] notifications, further ones are merged. Of an inode only the id is kept, and all of its data is
//! invalidated if any should be. For names, a new epoch (7.44) invalidates every name that the kernel knows. Before 7.44
//! the queue grows up to [`QUEUE_HARD_MAX`], and further notifications are dropped, which [`Notifier::lost`] counts.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use canopy_sys::thread::sched;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi;
use crate::flags::InitFlags;
use crate::request::NodeId;

/// The length of the queue from which on notifications are merged.
pub const QUEUE_MAX: usize = 8192;
/// The largest length of the queue when notifications cannot be merged.
pub const QUEUE_HARD_MAX: usize = 1 << 20;

/// The length of the queue from which on nothing is pruned.
const PRUNE_BELOW: usize = 256;

/// Flag of `fuse_notify_inval_entry_out` (`FUSE_EXPIRE_ONLY`).
const EXPIRE_ONLY: u32 = 1;
/// Numbers that the kernel's own requests do not reach. They are even, because odd numbers mean an INTERRUPT.
const RETRIEVALS: u64 = 1 << 62;

/// `enum fuse_notify_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NotifyCode {
    /// Wakes up processes that poll.
    Poll = 1,
    /// Attributes or cached data of a node are stale.
    InvalInode = 2,
    /// A name is stale.
    InvalEntry = 3,
    /// Puts data into the page cache.
    Store = 4,
    /// Asks for data of the page cache.
    Retrieve = 5,
    /// A name has been removed.
    Delete = 6,
    /// Asks for all requests in flight again (7.40).
    Resend = 7,
    /// Invalidates all names (7.44).
    IncEpoch = 8,
    /// Asks the kernel to drop unused nodes (7.45).
    Prune = 9,
}

/// The reason why a notification was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// The notification is newer than the negotiated version.
    #[error("the kernel does not know this notification")]
    Unsupported,
    /// The session has ended, and with it the kernel's caches.
    #[error("the session has ended")]
    Closed,
}

/// The optional notifications that the kernel understands on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub(crate) expire: bool,
    pub(crate) resend: bool,
    pub(crate) epoch: bool,
    pub(crate) prune: bool,
}

impl Capabilities {
    /// Derives them from the version and, where the kernel announces a flag, from the offered flags.
    pub(crate) fn new(minor: u32, offered: InitFlags) -> Capabilities {
        Capabilities {
            expire: minor >= 38 && offered.contains(InitFlags::HAS_EXPIRE_ONLY),
            resend: minor >= 40 && offered.contains(InitFlags::HAS_RESEND),
            epoch: minor >= 44,
            prune: minor >= 45,
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
    Prune { nodes: Box<[u64]> },
}

#[derive(Default)]
struct Queue {
    /// The queued messages with their numbers.
    messages: VecDeque<(u64, Message)>,
    /// The queued messages, to find duplicates.
    waiting: HashSet<Message>,
    /// Inodes whose messages were merged, and whether their data is to be invalidated too.
    merged: BTreeMap<u64, bool>,
    /// Whether messages about names were merged, so that a new epoch is due.
    names: bool,
    /// The number of the first merged message.
    merged_since: Option<u64>,
    closed: bool,
    /// The number of the next message, for [`Notifier::flush`].
    queued: u64,
    /// The numbers of the messages that are being sent.
    sending: [Option<u64>; SENDERS],
}

impl Queue {
    /// Returns the number of the oldest message that has not been sent.
    fn oldest(&self) -> Option<u64> {
        let first = self.messages.front().map(|(number, _)| *number);
        self.sending.iter().copied().chain([first, self.merged_since]).flatten().min()
    }
}

struct Shared {
    queue: Mutex<Queue>,
    /// Signalled when there is work and when the session ends.
    work: Condvar,
    /// Signalled when a message has been sent.
    idle: Condvar,
    capabilities: Capabilities,
    device: Arc<OwnedFd>,
    sent: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
}

/// Queues notifications. Cheap to clone. Every thread can use it, including those that serve requests.
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
    /// Invalidates the attributes of a node and `len` bytes of its cached data from `offset` on. If both are 0, all data
    /// is invalidated; if `offset` is negative, none is. The kernel writes dirty pages first.
    ///
    /// # Errors
    /// [`NotifyError::Closed`].
    pub fn inval_inode(&self, node: NodeId, offset: i64, len: i64) -> Result<(), NotifyError> {
        self.push(Message::InvalInode { node: node.0, offset, len })
    }

    /// Invalidates the attributes and cached ACLs of a node before it returns. Even a thread that serves a request about
    /// this node may call it: the kernel does not wait when there is no data to drop, and the caller that waits for the
    /// reply keeps the inode alive (fs/fuse/inode.c fuse_reverse_inval_inode).
    ///
    /// Returns whether the kernel knows the node.
    ///
    /// # Errors
    /// Those of write(2) on the device.
    pub fn inval_attributes_now(&self, node: NodeId) -> Result<bool, Errno> {
        match send(&self.shared.device, &Message::InvalInode { node: node.0, offset: -1, len: 0 }) {
            Err(Errno::NOENT) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Drops the pages of a file, or the listing of a directory, that the kernel has cached, and the attributes, before it
    /// returns. The kernel waits for the pages. Those of a listing are held only while a client copies names, never while
    /// it waits for a reply (fs/fuse/readdir.c), so even a thread that serves a READDIR of the directory may call this.
    /// Those of a file are held until a READ is answered, and its dirty ones are written first: a thread that serves an
    /// OPEN may call this, and holds nothing that a READ or WRITE needs.
    ///
    /// # Errors
    /// Those of write(2) on the device. A node that the kernel does not know is not an error.
    pub fn inval_data_now(&self, node: NodeId) -> Result<(), Errno> {
        match send(&self.shared.device, &Message::InvalInode { node: node.0, offset: 0, len: 0 }) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Invalidates a name, so that the kernel looks it up again. Open directories below it stay usable, but mounts below
    /// it are detached.
    ///
    /// # Errors
    /// [`NotifyError::Closed`].
    pub fn inval_entry(&self, parent: NodeId, name: &CStr) -> Result<(), NotifyError> {
        self.push(Message::InvalEntry { parent: parent.0, name: name.into(), flags: 0 })
    }

    /// Expires a name (7.38): the kernel looks it up again, and keeps it if it has not changed. Falls back to
    /// [`Notifier::inval_entry`].
    ///
    /// # Errors
    /// [`NotifyError::Closed`].
    pub fn expire_entry(&self, parent: NodeId, name: &CStr) -> Result<(), NotifyError> {
        let flags = if self.shared.capabilities.expire { EXPIRE_ONLY } else { 0 };
        self.push(Message::InvalEntry { parent: parent.0, name: name.into(), flags })
    }

    /// Reports that `name`, which was `child`, has been removed. The kernel also notifies watchers (inotify(7)).
    ///
    /// # Errors
    /// [`NotifyError::Closed`].
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &CStr) -> Result<(), NotifyError> {
        self.push(Message::Delete { parent: parent.0, child: child.0, name: name.into() })
    }

    /// Makes the kernel look up every name of the mount again (7.44).
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

    /// Returns whether the kernel can expire a name without detaching mounts ([`Notifier::expire_entry`]).
    #[must_use]
    pub fn can_expire_entries(&self) -> bool {
        self.shared.capabilities.expire
    }

    /// Returns whether the kernel can invalidate all names at once ([`Notifier::increment_epoch`]).
    #[must_use]
    pub fn can_increment_epoch(&self) -> bool {
        self.shared.capabilities.epoch
    }

    /// Makes the kernel resend every request in flight, with [`abi::UNIQUE_RESEND`] set in its `unique` (7.40).
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

    /// Returns whether the kernel can drop nodes that no process uses ([`Notifier::prune`]).
    #[must_use]
    pub fn can_prune(&self) -> bool {
        self.shared.capabilities.prune
    }

    /// Makes the kernel forget those of the nodes that no process uses (7.45). Does nothing while many notifications
    /// wait: it is a request that can be made again.
    ///
    /// # Errors
    /// [`NotifyError::Unsupported`] before 7.45, [`NotifyError::Closed`].
    pub fn prune(&self, nodes: impl IntoIterator<Item = NodeId>) -> Result<(), NotifyError> {
        if !self.can_prune() {
            return Err(NotifyError::Unsupported);
        }
        if self.shared.queue.lock().messages.len() >= PRUNE_BELOW {
            return Ok(());
        }
        self.push(Message::Prune { nodes: nodes.into_iter().map(|node| node.0).collect() })
    }

    /// Waits until all notifications queued so far have been sent or the session has ended. A thread that serves requests
    /// may call it only while others continue to serve, because the kernel may delay a notification until a request is
    /// answered.
    pub fn flush(&self) {
        while !self.flush_within(Duration::from_secs(60)) {}
    }

    /// Like [`Notifier::flush`], but waits no longer than `patience`. Returns false if not all have been sent by then.
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

    /// Returns how many notifications the kernel has accepted.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Returns how many notifications have failed. Those about nodes or names that the kernel does not know count as sent.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Returns how many notifications were dropped because the queue was full.
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
                        "too many notifications are queued; names may stay stale until they expire"
                    );
                }
            }
        }
    }
}

/// The number of sending threads.
const SENDERS: usize = 4;

/// The sending side, which belongs to the session. Dropping it ends the threads.
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
                // ENOENT, ENOTDIR: the kernel does not know the node or the name, so it caches nothing.
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
        Message::Prune { nodes } => {
            let count = u32::try_from(nodes.len()).map_err(|_| Errno::MSGSIZE)?;
            let body = abi::NotifyPruneOut { count, padding: 0, spare: 0 };
            write(device, NotifyCode::Prune, body.as_bytes(), nodes.as_bytes())
        }
        Message::IncEpoch => write(device, NotifyCode::IncEpoch, b"", b""),
    }
}

/// Makes the kernel send every request in flight again, with [`abi::UNIQUE_RESEND`] set in its `unique` (7.40), before this
/// returns. For a process that takes over a connection, before it closes the descriptors on which the process before has
/// read those requests: that would abort them.
///
/// # Errors
/// `EINVAL` before Linux 6.9; `ENODEV` once the connection has ended.
pub fn resend_now(device: &OwnedFd) -> Result<(), Errno> {
    write(device, NotifyCode::Resend, b"", b"")
}

/// Asks the kernel for 0 bytes of a file that it knows. The kernel answers with a NOTIFY_REPLY, a request for whose reply
/// no process waits. Over io_uring it arrives in the queue of the processor that the calling thread runs on.
///
/// # Errors
/// `ENOENT` for a file that the kernel does not know, `EINVAL` for a file that is not regular.
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

/// Writes a notification: a reply whose `unique` is 0 and whose error is the notification's code.
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
