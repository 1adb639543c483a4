//! Wrappers of the functions that open files.

use crate::interpose::{interpose, missing};
use crate::redirect::redirect;
use crate::syscalls;
use libc::{FILE, c_char, c_int, c_void, mode_t, size_t};
use std::ptr::null_mut;

type Text = *const c_char;
type Open = unsafe extern "C-unwind" fn(Text, c_int, ...) -> c_int;
type OpenAt = unsafe extern "C-unwind" fn(c_int, Text, c_int, ...) -> c_int;
type Create = unsafe extern "C-unwind" fn(Text, mode_t) -> c_int;
type OpenChecked = unsafe extern "C-unwind" fn(Text, c_int) -> c_int;
type OpenAtChecked = unsafe extern "C-unwind" fn(c_int, Text, c_int) -> c_int;
type OpenAt2 = unsafe extern "C-unwind" fn(c_int, Text, *const c_void, size_t) -> c_int;
type OpenStream = unsafe extern "C-unwind" fn(Text, Text) -> *mut FILE;
type ReopenStream = unsafe extern "C-unwind" fn(Text, Text, *mut FILE) -> *mut FILE;

interpose! {
    fn open(path: Text, flags: c_int, mode: mode_t) -> c_int
        as Open, then |_, _, _, fd| redirect(fd), else missing();
    fn open64(path: Text, flags: c_int, mode: mode_t) -> c_int
        as Open, then |_, _, _, fd| redirect(fd), else missing();
    fn openat(dir: c_int, path: Text, flags: c_int, mode: mode_t) -> c_int
        as OpenAt, then |_, _, _, _, fd| redirect(fd), else missing();
    fn openat64(dir: c_int, path: Text, flags: c_int, mode: mode_t) -> c_int
        as OpenAt, then |_, _, _, _, fd| redirect(fd), else missing();
    fn creat(path: Text, mode: mode_t) -> c_int
        as Create, then |_, _, fd| redirect(fd), else missing();
    fn creat64(path: Text, mode: mode_t) -> c_int
        as Create, then |_, _, fd| redirect(fd), else missing();

    // Programs built with _FORTIFY_SOURCE call these instead of open and openat.
    fn __open_2(path: Text, flags: c_int) -> c_int
        as OpenChecked, then |_, _, fd| redirect(fd), else missing();
    fn __open64_2(path: Text, flags: c_int) -> c_int
        as OpenChecked, then |_, _, fd| redirect(fd), else missing();
    fn __openat_2(dir: c_int, path: Text, flags: c_int) -> c_int
        as OpenAtChecked, then |_, _, _, fd| redirect(fd), else missing();
    fn __openat64_2(dir: c_int, path: Text, flags: c_int) -> c_int
        as OpenAtChecked, then |_, _, _, fd| redirect(fd), else missing();

    // Older C libraries lack openat2. A program that finds it here gets the system call.
    fn openat2(dir: c_int, path: Text, how: *const c_void, size: size_t) -> c_int
        as OpenAt2, then |_, _, _, _, fd| redirect(fd), else openat2_call(dir, path, how, size);

    // The C library opens the files of streams without calling the functions above. A stream keeps its descriptor number.
    fn fopen(path: Text, mode: Text) -> *mut FILE
        as OpenStream, then |_, _, stream| redirect_stream(stream), else missing_stream();
    fn fopen64(path: Text, mode: Text) -> *mut FILE
        as OpenStream, then |_, _, stream| redirect_stream(stream), else missing_stream();
    fn freopen(path: Text, mode: Text, stream: *mut FILE) -> *mut FILE
        as ReopenStream, then |path, _, _, stream| redirect_named(path, stream), else missing_stream();
    fn freopen64(path: Text, mode: Text, stream: *mut FILE) -> *mut FILE
        as ReopenStream, then |path, _, _, stream| redirect_named(path, stream), else missing_stream();
}

fn openat2_call(dir: c_int, path: Text, how: *const c_void, size: size_t) -> c_int {
    // SAFETY: the caller fulfils the requirements of the system call.
    let fd = unsafe { libc::syscall(libc::SYS_openat2, dir, path, how, size) };
    c_int::try_from(fd).unwrap_or(-1)
}

fn missing_stream() -> *mut FILE {
    missing();
    null_mut()
}

/// Redirects a stream that was just opened, so that nothing is buffered.
fn redirect_stream(stream: *mut FILE) {
    if !stream.is_null() {
        syscalls::keeping_errno(|| {
            // SAFETY: the C library has just returned the stream.
            redirect(unsafe { libc::fileno(stream) });
        });
    }
}

/// Redirects a stream that was reopened. Without a path, freopen only changes the mode of the stream.
fn redirect_named(path: Text, stream: *mut FILE) {
    if !path.is_null() {
        redirect_stream(stream);
    }
}
