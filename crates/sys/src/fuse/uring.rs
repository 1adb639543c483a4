//! One entry of FUSE's io_uring transport: a ring of depth one and the buffers for requests and replies
//! (fs/fuse/dev_uring.c, Documentation/filesystems/fuse/fuse-io-uring.rst).
//!
//! The ring defers its work (`IORING_SETUP_DEFER_TASKRUN`): the kernel accesses the buffers only inside
//! io_uring_enter(2) on this ring, called by the thread that enabled it. Every method that makes this call borrows the
//! entry exclusively, so no slice of the buffers exists at that time. Once the ring is closed, the kernel cancels
//! pending commands without accessing the buffers.
//!
//! When a request arrives, its window leaves the entry, and sending the reply takes it back. Another thread that has the
//! window can answer instead, and the entry then belongs to that thread's ring.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, cqueue, squeue};

use rustix::param::page_size;

use super::entry_memory::{Memory, Pages};

pub use super::entry_memory::Window;

/// `FUSE_IO_URING_CMD_REGISTER`: registers the buffers with the kernel and asks for a request.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: sends a reply and asks for the next request.
const COMMIT_AND_FETCH: u32 = 2;
/// `IOSQE_FIXED_FILE`.
const FIXED_FILE: u8 = 1;
/// `IORING_OP_URING_CMD`.
const URING_CMD: u8 = 46;

/// Length of [`Entry::header`], in bytes: `sizeof(struct fuse_uring_req_header)`.
pub const HEADER: usize = 288;

/// Where the commit id is in the header: `fuse_uring_req_header.ring_ent_in_out.commit_id`.
const COMMIT_ID: usize = 264;

/// `struct io_uring_sqe` in its large form (`IORING_SETUP_SQE128`), with `struct fuse_uring_cmd_req` in the command area.
/// `UringCmd80` of the io-uring crate cannot set `len`, which [`REGISTER`] needs.
#[repr(C)]
struct Command {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    cmd_op: u32,
    pad: u32,
    addr: u64,
    len: u32,
    uring_cmd_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    file_index: u32,
    /// `fuse_uring_cmd_req`.
    req_flags: u64,
    commit_id: u64,
    qid: u16,
    rest: [u8; 62],
}

const _: () = {
    assert!(size_of::<Command>() == 128 && size_of::<squeue::Entry128>() == 128);
    assert!(align_of::<Command>() == align_of::<squeue::Entry128>());
    assert!(std::mem::offset_of!(Command, addr) == 16 && std::mem::offset_of!(Command, len) == 24);
    assert!(std::mem::offset_of!(Command, user_data) == 32 && std::mem::offset_of!(Command, req_flags) == 48);
    assert!(std::mem::offset_of!(Command, commit_id) == 56 && std::mem::offset_of!(Command, qid) == 64);
};

impl Command {
    /// Returns a command on the ring's only registered file.
    fn new(cmd_op: u32, queue: u16, commit_id: u64) -> Command {
        Command {
            opcode: URING_CMD,
            flags: FIXED_FILE,
            ioprio: 0,
            fd: 0,
            cmd_op,
            pad: 0,
            addr: 0,
            len: 0,
            uring_cmd_flags: 0,
            user_data: 0,
            buf_index: 0,
            personality: 0,
            file_index: 0,
            req_flags: 0,
            commit_id,
            qid: queue,
            rest: [0; 62],
        }
    }

    fn entry(self) -> squeue::Entry128 {
        // SAFETY: both are plain data of the same size and alignment (asserted above). The ring passes an Entry128 to the
        // kernel as a `struct io_uring_sqe`, which is the layout of Command.
        unsafe { std::mem::transmute::<Command, squeue::Entry128>(self) }
    }
}

/// An entry without a ring, which holds an unanswered request. The request itself is no longer in its memory.
pub struct Parked {
    memory: Memory,
    errno: i32,
}

impl Parked {
    /// Takes the entry from the thread that handles its request, to answer it with an errno. The thread keeps the memory
    /// that it uses.
    ///
    /// # Errors
    /// Gives the window back with `ENFILE`, `EMFILE` or `ENOMEM`.
    pub fn seize(window: Window, errno: i32) -> Result<Parked, (Window, io::Error)> {
        window.renew().map(|memory| Parked { memory, errno })
    }
}

/// `IORING_ENTER_GETEVENTS` and `IORING_ENTER_NO_IOWAIT` (include/uapi/linux/io_uring.h).
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
/// Whether the kernel has not refused the second one yet.
static NO_IOWAIT: AtomicBool = AtomicBool::new(true);

/// An entry without a ring, which holds a request that nobody has handled yet.
pub struct HeldEntry {
    memory: Memory,
    /// The payload's size.
    size: usize,
}

/// Creates a ring that is not enabled yet.
fn ring() -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
    IoUring::builder().setup_r_disabled().setup_single_issuer().setup_defer_taskrun().dontfork().build(1)
}

/// A request has arrived, and the window is what it takes to answer it. Or there are no more requests, with the errno.
pub type Arrival = Result<Window, i32>;

/// A ring and its memory.
pub struct Entry {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// The window, unless the entry holds a request.
    window: Option<Window>,
    /// A page for the header, then the payload.
    pages: Pages,
    page: usize,
    size: usize,
    /// Two `struct iovec`, header and payload, for [`Entry::register`]. They live as long as the command may.
    iovecs: Box<[usize; 4]>,
}

impl Entry {
    /// Creates a ring that is not enabled yet, and maps a page-aligned payload buffer of `size` bytes.
    ///
    /// # Errors
    /// `EPERM` when io_uring is forbidden (by sysctl `kernel.io_uring_disabled`, or by a seccomp filter, which may also
    /// return another errno), `ENOSYS` and `EINVAL` on kernels without io_uring or without deferred work (6.1),
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new(size: usize) -> io::Result<Entry> {
        let page = page_size();
        let len = page.checked_add(size).ok_or(io::ErrorKind::OutOfMemory)?;
        let (ring, Memory { window, pages }) = (ring()?, Memory::new(len)?);
        Ok(Entry { ring, window: Some(window), pages, page, size, iovecs: Box::default() })
    }

    /// Closes the ring while the entry holds a request, which needs only an answer with this errno; 0 is success. The
    /// kernel then has no command pending on this ring, so no other request can be lost.
    #[must_use]
    pub fn park(self, window: Window, errno: i32) -> Parked {
        let Entry { ring, mut pages, .. } = self;
        drop(ring);
        pages.discard();
        Parked { memory: Memory { window, pages }, errno }
    }

    /// Moves the entry that was parked last to a new ring, which is not enabled yet. `size` is that of the payload, as for
    /// [`Entry::new`]. Returns it with its window and the errno to answer, for [`Entry::enable`], [`Entry::attach`] and
    /// [`Entry::commit`]. Returns `None` if no entry is parked.
    ///
    /// # Errors
    /// Those of [`Entry::new`]; the entry stays parked.
    pub fn unpark(parked: &mut Vec<Parked>, size: usize) -> io::Result<Option<(Entry, Window, i32)>> {
        if parked.is_empty() {
            return Ok(None);
        }
        let ring = ring()?;
        let Some(Parked { memory: Memory { window, pages }, errno }) = parked.pop() else { return Ok(None) };
        let page = page_size();
        let size = size.min(pages.len() - page);
        let entry = Entry { ring, window: None, pages, page, size, iovecs: Box::default() };
        Ok(Some((entry, window, errno)))
    }

    /// Closes the ring while the entry holds a request, which stays in its memory. `carried` is the length of the
    /// request's payload; memory behind it is returned to the system.
    #[must_use]
    pub fn hold(self, window: Window, carried: usize) -> HeldEntry {
        let Entry { ring, mut pages, page, size, .. } = self;
        drop(ring);
        pages.discard_from(page.saturating_add(carried));
        HeldEntry { memory: Memory { window, pages }, size }
    }

    /// Moves a held entry to a new ring, which is not enabled yet. Returns it with the window of its request, for
    /// [`Entry::enable`], [`Entry::attach`] and, once the request is handled, [`Entry::commit`].
    ///
    /// # Errors
    /// Gives the held entry back, with those of [`Entry::new`].
    pub fn resume(held: HeldEntry) -> Result<(Entry, Window), (HeldEntry, io::Error)> {
        let ring = match ring() {
            Ok(ring) => ring,
            Err(error) => return Err((held, error)),
        };
        let HeldEntry { memory: Memory { window, pages }, size } = held;
        Ok((Entry { ring, window: None, pages, page: page_size(), size, iovecs: Box::default() }, window))
    }

    /// Enables the ring and ties it to the calling thread. Other threads that use it then get `EEXIST`.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub fn enable(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Registers the device with the ring, for all later commands. Call it only once.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub fn attach(&mut self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_files(&[device.as_raw_fd()])
    }

    /// Registers the buffers as an entry of a queue of the device's connection, and asks for a request. `payload` is the
    /// payload length that the kernel is given. Call it only once.
    ///
    /// The result is as for [`Entry::commit`]. An errno means that the kernel refuses the entry: `EINVAL` for a queue
    /// that does not exist or a payload that is too small, `EOPNOTSUPP` when `fuse.enable_uring` is off, `ENOTCONN` and
    /// `ECONNABORTED` when the connection has ended.
    ///
    /// # Errors
    /// Those of io_uring_enter(2); `EBUSY` for an entry that holds a request.
    pub fn register(&mut self, queue: u16, payload: usize) -> io::Result<Option<Arrival>> {
        let Some(window) = &mut self.window else { return Err(io::ErrorKind::ResourceBusy.into()) };
        window.queue = queue;
        let header = window.address();
        *self.iovecs = [header, HEADER, header + self.page, payload.min(self.size)];
        let mut command = Command::new(REGISTER, queue, 0);
        command.addr = self.iovecs.as_ptr().expose_provenance() as u64;
        command.len = 2;
        self.submit(command)
    }

    /// Sends the reply in the buffers and asks for the next request, without waiting for it. From then on the entry belongs
    /// to this ring.
    ///
    /// Returns `None` when the kernel has accepted the reply, and `Some(Ok)` when the next request has also arrived.
    /// `Some(Err)` with an errno means that the reply was not accepted, because the connection has ended (`ENOTCONN`,
    /// `ECONNABORTED`) or the request has (`ENOENT`).
    ///
    /// # Errors
    /// Those of io_uring_enter(2), and `EINVAL` for the window of another entry; the reply was not accepted.
    pub fn commit(&mut self, window: Window) -> io::Result<Option<Arrival>> {
        if !window.shows(&self.pages) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let command = Command::new(COMMIT_AND_FETCH, window.queue, window.commit_id);
        self.window = Some(window);
        self.submit(command)
    }

    /// Waits for a request. After an inner `Err` (`ENOTCONN`, `ECONNABORTED` or `ECANCELED`) the entry gets no more.
    ///
    /// To send the reply and wait in one system call was tried, and was slower: 10.4 instead of 9.5 us for an fchmod that is
    /// answered from memory. Between two calls, the client may send its next request, so that there is nothing to wait for.
    ///
    /// # Errors
    /// Those of io_uring_enter(2). After `EINTR`, call it again.
    pub fn wait(&mut self) -> io::Result<Arrival> {
        loop {
            if let Some(outcome) = self.completed() {
                return Ok(outcome);
            }
            self.sleep()?;
        }
    }

    /// Waits for a completion. The wait does not count as waiting for I/O, of which an idle pool would otherwise show as
    /// much as it has workers (top(1) `wa`).
    fn sleep(&self) -> io::Result<usize> {
        let flags = if NO_IOWAIT.load(Ordering::Relaxed) {
            ENTER_GETEVENTS | ENTER_NO_IOWAIT
        } else {
            ENTER_GETEVENTS
        };
        // SAFETY: nothing is submitted, and there is no argument.
        let done = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, flags, None) };
        match done {
            // Linux before 6.15 does not know the flag.
            Err(error) if flags != ENTER_GETEVENTS && error.raw_os_error() == Some(libc::EINVAL) => {
                NO_IOWAIT.store(false, Ordering::Relaxed);
                self.sleep()
            }
            done => done,
        }
    }

    fn submit(&mut self, command: Command) -> io::Result<Option<Arrival>> {
        let entry = command.entry();
        // SAFETY: the command points at the entry's own iovecs and buffers, which outlive the ring because fields are
        // dropped in order, and at the file that is registered with the ring.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            // The queue has one slot, which the previous command still occupies. Every push is followed by a submission,
            // so this does not happen.
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        loop {
            match self.ring.submitter().submit() {
                Ok(_) => return Ok(self.completed()),
                // The kernel is short of memory; the command is still in the submission queue.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn completed(&mut self) -> Option<Arrival> {
        let result = self.ring.completion().next()?.result();
        Some(match self.window.take() {
            Some(mut window) if result >= 0 => {
                window.commit_id = self.commit_id();
                Ok(window)
            }
            window => {
                self.window = window;
                Err(-result)
            }
        })
    }

    /// Returns the commit id that the kernel has written with the request.
    fn commit_id(&self) -> u64 {
        u64::from_ne_bytes(self.header()[COMMIT_ID..][..8].try_into().expect("8 bytes"))
    }

    /// Returns the header buffer, a `struct fuse_uring_req_header`.
    #[must_use]
    pub fn header(&self) -> &[u8; HEADER] {
        self.pages.first_chunk().expect("a page holds it")
    }

    /// Returns the header and payload buffers. The payload has the size passed to [`Entry::new`] and is page-aligned.
    pub fn buffers(&mut self) -> (&mut [u8; HEADER], &mut [u8]) {
        let (header, payload) = self.pages.split_at_mut(self.page);
        (header.first_chunk_mut().expect("a page holds it"), &mut payload[..self.size])
    }

    /// Returns the payload buffer.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.pages[self.page..][..self.size]
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} bytes)", self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// Returns `None` where io_uring is not available, as in some containers.
    fn entry() -> Option<Entry> {
        Entry::new(10_000).inspect_err(|error| eprintln!("skipped: no io_uring: {error}")).ok()
    }

    #[test]
    fn buffers_are_page_aligned_and_have_the_requested_size() {
        let Some(mut entry) = entry() else { return };
        let (header, payload) = entry.buffers();
        assert_eq!((header.len(), payload.len()), (HEADER, 10_000));
        assert_eq!(payload.as_ptr() as usize % rustix::param::page_size(), 0);
        payload[9_999] = 7;
        assert_eq!(entry.payload()[9_999], 7);
    }

    #[test]
    fn a_file_that_is_not_a_fuse_device_is_refused() {
        let Some(mut entry) = entry() else { return };
        entry.enable().unwrap();
        // A regular file has no uring commands.
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        entry.attach(plain.as_fd()).unwrap();
        // The ring still works after a refusal.
        for _ in 0..3 {
            let refused = entry.register(0, 10_000).unwrap().unwrap();
            assert_eq!(refused.unwrap_err(), libc::EOPNOTSUPP);
        }
    }

    #[test]
    fn an_entry_does_not_commit_through_the_window_of_another() {
        let (Some(mut entry), Some(mut other)) = (entry(), entry()) else { return };
        let window = other.window.take().unwrap();
        assert_eq!(entry.commit(window).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn another_thread_cannot_use_the_ring() {
        let Some(mut entry) = entry() else { return };
        entry.enable().unwrap();
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                entry.attach(plain.as_fd())?;
                entry.register(0, 10_000)
            });
            assert_eq!(other.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EEXIST));
        });
    }
}
