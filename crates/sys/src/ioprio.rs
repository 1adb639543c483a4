//! The I/O priority of a thread: ioprio_get(2) and ioprio_set(2), for which neither rustix nor the C library has
//! a function.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::cell::Cell;

/// `IOPRIO_WHO_PROCESS` (include/uapi/linux/ioprio.h): one thread, in spite of its name.
const WHO_PROCESS: libc::c_int = 1;
/// Where the class begins; below it lies the level.
const CLASS_SHIFT: u32 = 13;

thread_local! {
    /// What the thread took on; none while it has its own.
    static TAKEN: Cell<Option<IoPriority>> = const { Cell::new(None) };
}

/// Class and level, as the kernel packs them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoPriority(i32);

impl IoPriority {
    /// None of its own: the nice value decides.
    pub const NONE: IoPriority = IoPriority(0);
    /// Only when nobody else wants the disk.
    pub const IDLE: IoPriority = IoPriority(3 << CLASS_SHIFT);

    /// 0: none, 1: real time, 2: best effort, 3: idle.
    pub fn class(self) -> u32 {
        self.0.cast_unsigned() >> CLASS_SHIFT
    }

    /// That of a thread, as this process sees its number; 0 for the calling one.
    ///
    /// Errors: `ESRCH` when there is none, `EPERM` where a security module objects.
    pub fn of(thread: u32) -> Result<IoPriority, Errno> {
        // SAFETY: ioprio_get takes and returns plain integers.
        let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread) };
        match i32::try_from(value) {
            Ok(value) if value >= 0 => Ok(IoPriority(value)),
            _ => Err(last_errno()),
        }
    }

    /// Gives it to the calling thread.
    ///
    /// Errors: `EPERM` for real time without the right to it.
    pub fn apply(self) -> Result<(), Errno> {
        // Without a class there is no level either, though the kernel tells one.
        let value = if self.class() == 0 { 0 } else { self.0 };
        // SAFETY: ioprio_set takes and returns plain integers.
        let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

/// Makes the calling thread read and write with the priority of another. It stays so until [`reset`] is called; where
/// the other cannot be asked, nothing changes.
pub fn adopt(thread: u32) {
    let Ok(priority) = IoPriority::of(thread) else { return };
    if TAKEN.get() != Some(priority) && priority.apply().is_ok() {
        TAKEN.set(Some(priority));
    }
}

/// Gives back what [`adopt`] took on. Costs nothing when it took nothing.
pub fn reset() {
    if TAKEN.take().is_some() {
        let _ = IoPriority::NONE.apply();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_on_the_priority_of_another() {
        let (told, tell) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            IoPriority::IDLE.apply().unwrap();
            told.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            let _ = ended.recv();
        });
        let thread = tell.recv().unwrap();
        let before = IoPriority::of(0).unwrap();
        assert_ne!(before.class(), 3);
        for _ in 0..2 {
            adopt(thread);
            assert_eq!(IoPriority::of(0), Ok(IoPriority::IDLE));
        }
        reset();
        reset();
        assert_eq!(IoPriority::of(0), Ok(before));
        drop(end);
        other.join().unwrap();
        assert!(IoPriority::of(u32::MAX >> 1).is_err());
        adopt(u32::MAX >> 1);
        assert_eq!(IoPriority::of(0), Ok(before));
    }
}
