//! Wrappers of the functions that return the attributes of descriptors.

use crate::identity::{File, reported};
use crate::interpose::{interpose, missing};
use libc::{AT_EMPTY_PATH, c_char, c_int, c_uint};

type Text = *const c_char;
type OfFd<T> = unsafe extern "C-unwind" fn(c_int, *mut T) -> c_int;
type OfFdVersion<T> = unsafe extern "C-unwind" fn(c_int, c_int, *mut T) -> c_int;
type OfName<T> = unsafe extern "C-unwind" fn(c_int, Text, *mut T, c_int) -> c_int;
type OfNameVersion<T> = unsafe extern "C-unwind" fn(c_int, c_int, Text, *mut T, c_int) -> c_int;
type Extended = unsafe extern "C-unwind" fn(c_int, Text, c_int, c_uint, *mut libc::statx) -> c_int;

interpose! {
    fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int
        as OfFd<libc::stat>, then |fd, stat, done| show(fd, stat, done), else missing();
    fn fstat64(fd: c_int, stat: *mut libc::stat64) -> c_int
        as OfFd<libc::stat64>, then |fd, stat, done| show(fd, stat, done), else missing();
    fn fstatat(dir: c_int, path: Text, stat: *mut libc::stat, flags: c_int) -> c_int
        as OfName<libc::stat>, then |dir, path, stat, flags, done| show_at(dir, path, stat, flags, done), else missing();
    fn fstatat64(dir: c_int, path: Text, stat: *mut libc::stat64, flags: c_int) -> c_int
        as OfName<libc::stat64>, then |dir, path, stat, flags, done| show_at(dir, path, stat, flags, done), else missing();
    fn statx(dir: c_int, path: Text, flags: c_int, mask: c_uint, stat: *mut libc::statx) -> c_int
        as Extended, then |dir, path, flags, _, stat, done| show_at(dir, path, stat, flags, done), else missing();

    // Programs built with glibc before 2.33 call these.
    fn __fxstat(version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int
        as OfFdVersion<libc::stat>, then |_, fd, stat, done| show(fd, stat, done), else missing();
    fn __fxstat64(version: c_int, fd: c_int, stat: *mut libc::stat64) -> c_int
        as OfFdVersion<libc::stat64>, then |_, fd, stat, done| show(fd, stat, done), else missing();
    fn __fxstatat(version: c_int, dir: c_int, path: Text, stat: *mut libc::stat, flags: c_int) -> c_int
        as OfNameVersion<libc::stat>, then |_, dir, path, stat, flags, done| show_at(dir, path, stat, flags, done), else missing();
    fn __fxstatat64(version: c_int, dir: c_int, path: Text, stat: *mut libc::stat64, flags: c_int) -> c_int
        as OfNameVersion<libc::stat64>, then |_, dir, path, stat, flags, done| show_at(dir, path, stat, flags, done), else missing();
}

/// The fields of a buffer that identify the file.
trait Buffer {
    fn file(&self) -> File;
    fn set(&mut self, file: File);
}

impl Buffer for libc::stat64 {
    fn file(&self) -> File {
        File { dev: (libc::major(self.st_dev), libc::minor(self.st_dev)), ino: self.st_ino }
    }

    fn set(&mut self, file: File) {
        (self.st_dev, self.st_ino) = (libc::makedev(file.dev.0, file.dev.1), file.ino);
    }
}

#[allow(clippy::unnecessary_cast, reason = "inode numbers have 32 bits here on 32-bit machines")]
impl Buffer for libc::stat {
    fn file(&self) -> File {
        File { dev: (libc::major(self.st_dev), libc::minor(self.st_dev)), ino: self.st_ino as u64 }
    }

    fn set(&mut self, file: File) {
        (self.st_dev, self.st_ino) = (libc::makedev(file.dev.0, file.dev.1), file.ino as libc::ino_t);
    }
}

impl Buffer for libc::statx {
    fn file(&self) -> File {
        File::of(self)
    }

    fn set(&mut self, file: File) {
        ((self.stx_dev_major, self.stx_dev_minor), self.stx_ino) = (file.dev, file.ino);
    }
}

/// Replaces the branch's identity with the pool's, if the call has succeeded.
fn show<T: Buffer>(fd: c_int, stat: *mut T, done: c_int) {
    if done == 0 {
        // SAFETY: the call has succeeded, so it has filled the buffer.
        let stat = unsafe { &mut *stat };
        let file = stat.file();
        let reported = reported(fd, file);
        if reported != file {
            stat.set(reported);
        }
    }
}

/// Does the same for functions with a path, which are about the descriptor only if the path is empty.
fn show_at<T: Buffer>(dir: c_int, path: Text, stat: *mut T, flags: c_int, done: c_int) {
    // SAFETY: the call has succeeded, so the path is a C string or null.
    if done == 0 && flags & AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0) {
        show(dir, stat, done);
    }
}
