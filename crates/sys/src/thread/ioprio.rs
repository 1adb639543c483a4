//! The I/O priority of a thread: ioprio_get(2) and ioprio_set(2). Neither rustix nor the C library wraps them.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::cell::Cell;

/// `IOPRIO_WHO_PROCESS` (include/uapi/linux/ioprio.h). Despite its name it selects one thread.
const WHO_PROCESS: libc::c_int = 1;
/// The class is above these bits, the level in them.
const CLASS_SHIFT: u32 = 13;

thread_local! {
    /// The priority that the thread has adopted; `None` while it has its own.
    static ADOPTED: Cell<Option<IoPriority>> = const { Cell::new(None) };
    /// Its own priority.
    static OWN: Cell<IoPriority> = const { Cell::new(IoPriority::NONE) };
}

/// An I/O priority: class and level, packed as in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoPriority(i32);

impl IoPriority {
    /// No I/O priority: the nice value decides.
    pub const NONE: IoPriority = IoPriority(0);
    /// I/O only while no other process uses the disk.
    pub const IDLE: IoPriority = IoPriority(3 << CLASS_SHIFT);

    /// The priority that follows from a nice value (`task_nice_ioprio`, include/linux/ioprio.h).
    fn of_nice(nice: i32) -> IoPriority {
        IoPriority((2 << CLASS_SHIFT) | ((nice + 20) / 5).clamp(0, 7))
    }

    /// Returns the class: 0 for none, 1 for real time, 2 for best effort, 3 for idle.
    pub fn class(self) -> u32 {
        self.0.cast_unsigned() >> CLASS_SHIFT
    }

    /// Returns the priority of a thread, given its id in this PID namespace or 0 for the calling thread.
    ///
    /// # Errors
    /// `ESRCH` when there is no such thread, `EPERM` when a security module forbids it.
    pub fn of(thread: u32) -> Result<IoPriority, Errno> {
        // SAFETY: ioprio_get takes and returns plain integers.
        let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread) };
        match i32::try_from(value) {
            Ok(value) if value >= 0 => Ok(IoPriority(value)),
            _ => Err(last_errno()),
        }
    }

    /// Sets the priority of the calling thread.
    ///
    /// # Errors
    /// `EPERM` for the real-time class without the required capability.
    pub fn apply(self) -> Result<(), Errno> {
        // For class 0 the kernel reports a level but accepts none.
        let value = if self.class() == 0 { 0 } else { self.0 };
        // SAFETY: ioprio_set takes and returns plain integers.
        let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

/// Gives the calling thread the I/O priority that follows from its nice value, unless it has one already. Without one, the
/// I/O of a thread that runs only on idle processors would be of the idle class (`task_nice_ioclass`).
pub fn settle() {
    // Some kernels report the class that they derive instead of none.
    let own = IoPriority::of_nice(rustix::process::getpriority_process(None).unwrap_or(0));
    if IoPriority::of(0).is_ok_and(|now| now.class() == 0 || now == own) && own.apply().is_ok() {
        OWN.set(own);
    }
}

/// Gives the calling thread the I/O priority of another thread until [`reset`] is called. Does nothing if that priority
/// cannot be read.
pub fn adopt(thread: u32) {
    let Ok(priority) = IoPriority::of(thread) else { return };
    if ADOPTED.get() != Some(priority) && priority.apply().is_ok() {
        ADOPTED.set(Some(priority));
    }
}

/// Lets the calling thread use disks only while no other program does, until [`reset`] is called.
pub fn yield_disks() {
    if IoPriority::IDLE.apply().is_ok() {
        ADOPTED.set(Some(IoPriority::IDLE));
    }
}

/// Undoes [`adopt`] and [`yield_disks`]. Makes no system call if no priority was adopted.
pub fn reset() {
    if ADOPTED.take().is_some() {
        let _ = OWN.get().apply();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_thread_keeps_its_class_on_idle_processors() {
        let run = || {
            IoPriority::NONE.apply().unwrap();
            settle();
            let settled = IoPriority::of(0).unwrap();
            crate::thread::sched::set_idle_only(0, true).unwrap();
            let idle = IoPriority::of(0).unwrap();
            adopt(rustix::process::getpid().as_raw_nonzero().get().cast_unsigned());
            reset();
            (settled, idle, IoPriority::of(0).unwrap())
        };
        let (settled, idle, after) = std::thread::spawn(run).join().unwrap();
        assert_eq!((settled.class(), idle, after), (2, settled, settled));
    }

    #[test]
    fn a_thread_adopts_and_resets_the_priority_of_another() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            IoPriority::IDLE.apply().unwrap();
            sender.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            let _ = ended.recv();
        });
        let thread = receiver.recv().unwrap();
        // The tests themselves may run with another priority, under ionice(1) for example.
        IoPriority::NONE.apply().unwrap();
        let before = IoPriority::of(0).unwrap();
        assert_ne!(before.class(), 3);
        for _ in 0..2 {
            adopt(thread);
            assert_eq!(IoPriority::of(0), Ok(IoPriority::IDLE));
        }
        reset();
        reset();
        assert_eq!(IoPriority::of(0), Ok(before));
        yield_disks();
        assert_eq!(IoPriority::of(0), Ok(IoPriority::IDLE));
        reset();
        assert_eq!(IoPriority::of(0), Ok(before));
        drop(end);
        other.join().unwrap();
        assert!(IoPriority::of(u32::MAX >> 1).is_err());
        adopt(u32::MAX >> 1);
        assert_eq!(IoPriority::of(0), Ok(before));
    }
}
