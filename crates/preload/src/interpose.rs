//! Definitions of functions that wrap those of the C library.

use libc::{RTLD_NEXT, c_int, c_void, dlsym};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function of this name in the next library that has one, usually the C library.
pub(crate) struct Function {
    name: &'static CStr,
    /// Null before it is looked up, [`ABSENT`] if no library has it.
    address: AtomicPtr<c_void>,
}

const ABSENT: *mut c_void = std::ptr::without_provenance_mut(1);

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Looks up the function. dlsym(3) takes locks and may allocate, so constructors call this, before there are threads
    /// and signal handlers. If a constructor that runs earlier opens files, the first call looks it up.
    pub(crate) fn resolve(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let found = unsafe { dlsym(RTLD_NEXT, self.name.as_ptr()) };
        let address = if found.is_null() { ABSENT } else { found };
        self.address.store(address, Ordering::Release);
        address
    }

    /// Returns the address, or `None` if no library has the function.
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            address = self.resolve();
        }
        (address != ABSENT).then_some(address)
    }
}

/// Defines functions with the names and signatures of C library functions. Each calls the real function, passes the
/// arguments and the result to `then`, and returns the result. If no library has the function, the result is `else`.
///
/// Rust cannot define functions with `...`, so a mode that C passes this way is a fixed parameter here, and `as` is the
/// real type. On Linux an integer is passed in the same register or stack slot in both cases. If the caller passed none, the
/// value is arbitrary, and the C library and the kernel ignore it.
///
/// The ABI lets a cancelled thread unwind through these functions, which own nothing that needs to be dropped.
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
                    // SAFETY: the C library's function of this name has this type.
                    let real = unsafe { std::mem::transmute::<*mut libc::c_void, $real>(real) };
                    // SAFETY: the caller fulfils the requirements of the C function.
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

/// Returns the result of a function that no library has: -1, with `ENOSYS`.
pub(crate) fn missing() -> c_int {
    crate::syscalls::set_errno(libc::ENOSYS);
    -1
}
