//! One entry of FUSE's io_uring transport: a ring of depth one, and the buffers that requests come in and answers go
//! out by (fs/fuse/dev_uring.c, Documentation/filesystems/fuse/fuse-io-uring.rst).
//!
//! The ring defers its work (`IORING_SETUP_DEFER_TASKRUN`): the kernel reads and writes the buffers only inside
//! io_uring_enter(2) on this ring, called by the one thread that enabled it. Every method that calls it borrows the
//! entry exclusively, so no slice of the buffers is alive then. After the ring has been closed the kernel cancels
//! what it holds and touches no memory.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, cqueue, squeue};

use crate::page_buf::PageBuf;

/// `FUSE_IO_URING_CMD_REGISTER`: gives the buffers to the kernel and asks for a request.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: hands over an answer and asks for the next request.
const COMMIT_AND_FETCH: u32 = 2;
/// `IOSQE_FIXED_FILE`.
const FIXED_FILE: u8 = 1;
/// `IORING_OP_URING_CMD`.
const URING_CMD: u8 = 46;

/// Length of [`Entry::header`], in bytes: `sizeof(struct fuse_uring_req_header)`.
pub const HEADER: usize = 288;

/// `struct io_uring_sqe` of a command in the large form (`IORING_SETUP_SQE128`), with `struct fuse_uring_cmd_req` in
/// its command area.
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
    /// On the ring's one registered file.
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
        // SAFETY: both are plain data of the same size and alignment (asserted above), and Entry128 is what the ring
        // copies to the kernel as a `struct io_uring_sqe`, the layout that Command has.
        unsafe { std::mem::transmute::<Command, squeue::Entry128>(self) }
    }
}

/// What is left of an entry whose ring has been closed: the buffers, of which the kernel keeps the addresses, and the request in
/// them.
pub struct Parked {
    header: PageBuf,
    payload: PageBuf,
    size: usize,
    commit_id: u64,
}

/// A ring that is not enabled yet.
fn ring() -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
    IoUring::builder().setup_r_disabled().setup_single_issuer().setup_defer_taskrun().dontfork().build(1)
}

/// A ring and its buffers.
pub struct Entry {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    header: PageBuf,
    payload: PageBuf,
    size: usize,
    /// Two `struct iovec`, header and payload, for [`Entry::register`]. They stay, should the command stay.
    iovecs: Box<[usize; 4]>,
}

impl Entry {
    /// Makes a ring that is not enabled yet, and maps a payload of `size` bytes, at a page boundary.
    ///
    /// # Errors
    /// `EPERM` when io_uring is forbidden (sysctl `kernel.io_uring_disabled`, or a seccomp filter, which may also give
    /// another errno), `ENOSYS` and `EINVAL` on kernels without it or without deferred work (6.1), `EMFILE`, `ENFILE`,
    /// `ENOMEM`.
    pub fn new(size: usize) -> io::Result<Entry> {
        let (ring, header, payload) = (ring()?, PageBuf::new(HEADER)?, PageBuf::new(size)?);
        Ok(Entry { ring, header, payload, size, iovecs: Box::default() })
    }

    /// Closes the ring while the entry holds a request, which `commit_id` names. So the kernel has nothing under way in it, and
    /// no other request can be lost; that one waits.
    #[must_use]
    pub fn park(self, commit_id: u64) -> Parked {
        let Entry { ring, header, mut payload, size, .. } = self;
        drop(ring);
        payload.discard();
        Parked { header, payload, size, commit_id }
    }

    /// The latest of the parked, in a new ring that is not enabled yet. [`Entry::resume`] comes next. None if there are none.
    ///
    /// # Errors
    /// As [`Entry::new`]; it stays parked.
    pub fn unpark(parked: &mut Vec<Parked>) -> io::Result<Option<(Entry, u64)>> {
        if parked.is_empty() {
            return Ok(None);
        }
        let ring = ring()?;
        let Some(Parked { header, payload, size, commit_id }) = parked.pop() else { return Ok(None) };
        Ok(Some((Entry { ring, header, payload, size, iovecs: Box::default() }, commit_id)))
    }

    /// Hands over the answer to the request that was parked, which the header holds, and asks for the next one: the entry belongs
    /// to this ring from now on. Once only; the result is [`Entry::commit`]'s.
    ///
    /// # Errors
    /// Whatever io_uring_register(2) and io_uring_enter(2) give.
    pub fn resume(
        &mut self,
        device: BorrowedFd<'_>,
        queue: u16,
        commit_id: u64,
    ) -> io::Result<Option<Result<(), i32>>> {
        self.ring.submitter().register_files(&[device.as_raw_fd()])?;
        self.commit(queue, commit_id)
    }

    /// Ties the ring to the calling thread; from now on any other gets `EEXIST`.
    ///
    /// # Errors
    /// Whatever io_uring_register(2) gives.
    pub fn enable(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Gives the buffers to the kernel as an entry of a queue of the device's connection, and asks for a request.
    /// `payload` is how much of the payload the kernel is told of. Once only.
    ///
    /// The result is what is known at once: see [`Entry::commit`]. `Some` of an errno is a refusal: `EINVAL` for a
    /// queue that does not exist or a payload that is too small, `EOPNOTSUPP` when `fuse.enable_uring` is off,
    /// `ENOTCONN` and `ECONNABORTED` when the connection has ended.
    ///
    /// # Errors
    /// Whatever io_uring_register(2) and io_uring_enter(2) give.
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

    /// Hands over the answer in the buffers, and asks for the next request. Returns without waiting for one.
    ///
    /// `None`: the answer has been taken. `Some(Ok)`: it has, and the next request has come. `Some` of an errno: it
    /// has not, for the connection has ended (`ENOTCONN`, `ECONNABORTED`) or the request has (`ENOENT`).
    ///
    /// # Errors
    /// Whatever io_uring_enter(2) gives; the answer has not been taken.
    pub fn commit(&mut self, queue: u16, commit_id: u64) -> io::Result<Option<Result<(), i32>>> {
        self.submit(Command::new(COMMIT_AND_FETCH, queue, commit_id))
    }

    /// Waits for a request. An errno ends the entry: `ENOTCONN`, `ECONNABORTED` or `ECANCELED`.
    ///
    /// # Errors
    /// Whatever io_uring_enter(2) gives; `EINTR` is worth another try.
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
        // SAFETY: the command refers to the entry's own iovecs and buffers, which outlive the ring (fields are dropped
        // in order), and to the file that the ring has registered.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Depth one: the last command has not been submitted. It cannot be while this one is made.
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        loop {
            match self.ring.submitter().submit() {
                Ok(_) => return Ok(self.completed()),
                // Memory is short for the moment; the command has stayed in the ring.
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

    /// `struct fuse_uring_req_header`.
    #[must_use]
    pub fn header(&self) -> &[u8; HEADER] {
        self.header.first_chunk().expect("a page holds it")
    }

    /// The same, and the payload: as long as was asked for, at a page boundary.
    pub fn buffers(&mut self) -> (&mut [u8; HEADER], &mut [u8]) {
        (self.header.first_chunk_mut().expect("a page holds it"), &mut self.payload[..self.size])
    }

    /// The payload alone.
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

    /// None where io_uring is not to be had, as in some containers.
    fn entry() -> Option<Entry> {
        Entry::new(10_000).inspect_err(|error| eprintln!("skipped: no io_uring: {error}")).ok()
    }

    #[test]
    fn buffers_are_aligned_and_as_long_as_asked() {
        let Some(mut entry) = entry() else { return };
        let (header, payload) = entry.buffers();
        assert_eq!((header.len(), payload.len()), (HEADER, 10_000));
        assert_eq!(payload.as_ptr() as usize % rustix::param::page_size(), 0);
        payload[9_999] = 7;
        assert_eq!(entry.payload()[9_999], 7);
    }

    #[test]
    fn a_file_that_is_no_device_is_refused() {
        let Some(mut entry) = entry() else { return };
        entry.enable().unwrap();
        // A plain file knows no commands.
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = entry.register(plain.as_fd(), 0, 10_000).unwrap();
        assert_eq!(refused, Some(Err(libc::EOPNOTSUPP)));
        // The ring goes on working after a refusal.
        assert_eq!(entry.commit(0, 1).unwrap(), Some(Err(libc::EOPNOTSUPP)));
        assert_eq!(entry.commit(0, 1).unwrap(), Some(Err(libc::EOPNOTSUPP)));
    }

    #[test]
    fn a_ring_belongs_to_its_thread() {
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
