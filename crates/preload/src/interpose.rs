//! The functions that this library stands before.

use libc::{RTLD_NEXT, c_int, c_void, dlsym};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library that has one of this name, as a rule the C library.
pub(crate) struct Function {
    name: &'static CStr,
    /// Null until it was looked for, and [`ABSENT`] when there is none.
    address: AtomicPtr<c_void>,
}

const ABSENT: *mut c_void = std::ptr::without_provenance_mut(1);

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Looks for it. dlsym(3) takes locks and may allocate, so constructors do this, before there are threads and
    /// signal handlers; whoever opens files in constructors that run even earlier does it then.
    pub(crate) fn resolve(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let found = unsafe { dlsym(RTLD_NEXT, self.name.as_ptr()) };
        let address = if found.is_null() { ABSENT } else { found };
        self.address.store(address, Ordering::Release);
        address
    }

    /// Its address; `None` when no library has it.
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            address = self.resolve();
        }
        (address != ABSENT).then_some(address)
    }
}

/// Defines functions of the names and signatures of C library functions. Each calls the one it stands before, hands
/// the result to `then`, and returns it. Where no library has that function, `else` gives the result.
///
/// Rust cannot define functions with `...`, so a mode that C passes that way is a fixed parameter here, and `as`
/// gives the real type. On Linux an integer travels in the same register or stack slot either way; where none was
/// passed its value is arbitrary, and the C library and the kernel ignore it.
///
/// The ABI lets a cancelled thread unwind through these functions, which hold nothing that had to be dropped.
macro_rules! interpose {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty as $real:ty, then $then:expr, else $missing:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $kind),*) -> $result {
            static REAL: $crate::interpose::Function = $crate::interpose::Function::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                },
            );
            extern "C" fn resolve() {
                REAL.resolve();
            }
            #[used]
            #[unsafe(link_section = ".init_array")]
            static RESOLVE: extern "C" fn() = resolve;

            let result: $result = match REAL.get() {
                Some(real) => {
                    // SAFETY: the function of this name has this type.
                    let real = unsafe { std::mem::transmute::<*mut libc::c_void, $real>(real) };
                    // SAFETY: the caller keeps to what the C function asks.
                    unsafe { real($($arg),*) }
                }
                None => $missing,
            };
            let then: fn($($kind),*, $result) = $then;
            then($($arg),*, result);
            result
        }
    )*};
}
pub(crate) use interpose;

/// What a function returns which no library has.
pub(crate) fn missing() -> c_int {
    crate::syscalls::set_errno(libc::ENOSYS);
    -1
}
