//! One entry of FUSE's io_uring transport: a ring of depth one and the buffers for requests and replies
//! (fs/fuse/dev_uring.c, Documentation/filesystems/fuse/fuse-io-uring.rst).
//!
//! The ring defers its work (`IORING_SETUP_DEFER_TASKRUN`): the kernel accesses the buffers only inside
//! io_uring_enter(2) on this ring, called by the thread that enabled it. Every method that makes this call borrows the
//! entry exclusively, so no slice of the buffers exists at that time. Once the ring is closed, the kernel cancels
//! pending commands without accessing the buffers.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, cqueue, squeue};

use crate::page_buf::PageBuf;

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

/// An entry whose ring is closed: its buffers, whose addresses the kernel still has, and the id of the request it holds.
pub struct Parked {
    header: PageBuf,
    payload: PageBuf,
    size: usize,
    commit_id: u64,
}

/// Creates a ring that is not enabled yet.
fn ring() -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
    IoUring::builder().setup_r_disabled().setup_single_issuer().setup_defer_taskrun().dontfork().build(1)
}

/// A ring and its buffers.
pub struct Entry {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    header: PageBuf,
    payload: PageBuf,
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
        let (ring, header, payload) = (ring()?, PageBuf::new(HEADER)?, PageBuf::new(size)?);
        Ok(Entry { ring, header, payload, size, iovecs: Box::default() })
    }

    /// Closes the ring while the entry holds the request `commit_id`. The kernel then has no command pending on this ring,
    /// so no other request can be lost. The request itself stays unanswered until [`Entry::resume`].
    #[must_use]
    pub fn park(self, commit_id: u64) -> Parked {
        let Entry { ring, header, mut payload, size, .. } = self;
        drop(ring);
        payload.discard();
        Parked { header, payload, size, commit_id }
    }

    /// Moves the entry that was parked last to a new ring, which is not enabled yet, and returns it with its commit id,
    /// for [`Entry::enable`] and [`Entry::resume`]. Returns `None` if no entry is parked.
    ///
    /// # Errors
    /// Those of [`Entry::new`]; the entry stays parked.
    pub fn unpark(parked: &mut Vec<Parked>) -> io::Result<Option<(Entry, u64)>> {
        if parked.is_empty() {
            return Ok(None);
        }
        let ring = ring()?;
        let Some(Parked { header, payload, size, commit_id }) = parked.pop() else { return Ok(None) };
        Ok(Some((Entry { ring, header, payload, size, iovecs: Box::default() }, commit_id)))
    }

    /// Sends the reply to the parked request, from the header buffer, and asks for the next request. From then on the
    /// entry belongs to this ring. Call it only once; the result is that of [`Entry::commit`].
    ///
    /// # Errors
    /// Those of io_uring_register(2) and io_uring_enter(2).
    pub fn resume(
        &mut self,
        device: BorrowedFd<'_>,
        queue: u16,
        commit_id: u64,
    ) -> io::Result<Option<Result<(), i32>>> {
        self.ring.submitter().register_files(&[device.as_raw_fd()])?;
        self.commit(queue, commit_id)
    }

    /// Enables the ring and ties it to the calling thread. Other threads that use it then get `EEXIST`.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub fn enable(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Registers the buffers as an entry of a queue of the device's connection, and asks for a request. `payload` is the
    /// payload length that the kernel is given. Call it only once.
    ///
    /// The result is as for [`Entry::commit`]. An errno means that the kernel refuses the entry: `EINVAL` for a queue
    /// that does not exist or a payload that is too small, `EOPNOTSUPP` when `fuse.enable_uring` is off, `ENOTCONN` and
    /// `ECONNABORTED` when the connection has ended.
    ///
    /// # Errors
    /// Those of io_uring_register(2) and io_uring_enter(2).
    pub fn register(
        &mut self,
        device: BorrowedFd<'_>,
        queue: u16,
        payload: usize,
    ) -> io::Result<Option<Result<(), i32>>> {
        self.ring.submitter().register_files(&[device.as_raw_fd()])?;
        let header = self.header.as_mut_ptr().expose_provenance();
        let start = self.payload.as_mut_ptr().expose_provenance();
        *self.iovecs = [header, HEADER, start, payload.min(self.size)];
        let mut command = Command::new(REGISTER, queue, 0);
        command.addr = self.iovecs.as_ptr().expose_provenance() as u64;
        command.len = 2;
        self.submit(command)
    }

    /// Sends the reply in the buffers and asks for the next request, without waiting for it.
    ///
    /// Returns `None` when the kernel has accepted the reply, and `Some(Ok)` when the next request has also arrived.
    /// `Some(Err)` with an errno means that the reply was not accepted, because the connection has ended (`ENOTCONN`,
    /// `ECONNABORTED`) or the request has (`ENOENT`).
    ///
    /// # Errors
    /// Those of io_uring_enter(2); the reply was not accepted.
    pub fn commit(&mut self, queue: u16, commit_id: u64) -> io::Result<Option<Result<(), i32>>> {
        self.submit(Command::new(COMMIT_AND_FETCH, queue, commit_id))
    }

    /// Waits for a request. After an inner `Err` (`ENOTCONN`, `ECONNABORTED` or `ECANCELED`) the entry gets no more.
    ///
    /// # Errors
    /// Those of io_uring_enter(2). After `EINTR`, call it again.
    pub fn wait(&mut self) -> io::Result<Result<(), i32>> {
        loop {
            if let Some(outcome) = self.completed() {
                return Ok(outcome);
            }
            self.ring.submitter().submit_and_wait(1)?;
        }
    }

    fn submit(&mut self, command: Command) -> io::Result<Option<Result<(), i32>>> {
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

    fn completed(&mut self) -> Option<Result<(), i32>> {
        let result = self.ring.completion().next()?.result();
        Some(if result < 0 { Err(-result) } else { Ok(()) })
    }

    /// Returns the header buffer, a `struct fuse_uring_req_header`.
    #[must_use]
    pub fn header(&self) -> &[u8; HEADER] {
        self.header.first_chunk().expect("a page holds it")
    }

    /// Returns the header and payload buffers. The payload has the size passed to [`Entry::new`] and is page-aligned.
    pub fn buffers(&mut self) -> (&mut [u8; HEADER], &mut [u8]) {
        (self.header.first_chunk_mut().expect("a page holds it"), &mut self.payload[..self.size])
    }

    /// Returns the payload buffer.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload[..self.size]
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
        let refused = entry.register(plain.as_fd(), 0, 10_000).unwrap();
        assert_eq!(refused, Some(Err(libc::EOPNOTSUPP)));
        // The ring still works after a refusal.
        assert_eq!(entry.commit(0, 1).unwrap(), Some(Err(libc::EOPNOTSUPP)));
        assert_eq!(entry.commit(0, 1).unwrap(), Some(Err(libc::EOPNOTSUPP)));
    }

    #[test]
    fn another_thread_cannot_use_the_ring() {
        let Some(mut entry) = entry() else { return };
        entry.enable().unwrap();
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        std::thread::scope(|scope| {
            let other =
                scope.spawn(|| entry.register(plain.as_fd(), 0, 10_000).map_err(|e| e.raw_os_error()));
            assert_eq!(other.join().unwrap(), Err(Some(libc::EEXIST)));
        });
    }
}
