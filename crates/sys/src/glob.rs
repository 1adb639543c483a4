//! Shell patterns of the C library: `glob(3)` with braces, and `fnmatch(3)`.
//!
//! No crate matches exactly like the C library, against which users have written the branch lists in their fstab
//! files (braces, backslash quoting, sorted results).

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

// GLOB_BRACE and GLOB_ONLYDIR are extensions of glibc. With other C libraries, patterns have no braces. Callers check
// for directories themselves, since ONLYDIR is only a hint.
#[cfg(target_env = "gnu")]
const FLAGS: libc::c_int = libc::GLOB_BRACE | libc::GLOB_ONLYDIR;
#[cfg(not(target_env = "gnu"))]
const FLAGS: libc::c_int = 0;

/// Returns the paths that match `pattern`, sorted within each brace alternative. Other files than directories may be
/// among them, because the C library treats the restriction as a hint.
///
/// `~` is not expanded, a backslash quotes, and unreadable directories are skipped.
///
/// # Errors
/// `EINVAL` for a NUL byte in the pattern, `ENOMEM`, `EIO` if glob(3) fails for another reason.
pub fn directories(pattern: &OsStr) -> io::Result<Vec<PathBuf>> {
    let pattern = CString::new(pattern.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mut found = Matches(MaybeUninit::zeroed());
    // SAFETY: the pattern is a NUL-terminated string and the result structure is writable. All zeros is a valid glob_t,
    // and without GLOB_APPEND or GLOB_DOOFFS glob reads nothing from it. No callback is passed.
    let code = unsafe { libc::glob(pattern.as_ptr(), FLAGS, None, found.0.as_mut_ptr()) };
    match code {
        0 => Ok(found.paths()),
        libc::GLOB_NOMATCH => Ok(Vec::new()),
        libc::GLOB_NOSPACE => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

/// A result of glob(3), freed when dropped.
struct Matches(MaybeUninit<libc::glob_t>);

impl Matches {
    /// Returns the paths of a successful glob(3).
    fn paths(&self) -> Vec<PathBuf> {
        // SAFETY: the structure was created zeroed, which is a valid value of this plain C struct.
        let found = unsafe { self.0.assume_init_ref() };
        let count = found.gl_pathc;
        let mut paths = Vec::with_capacity(count);
        for index in 0..count {
            // SAFETY: after success gl_pathv holds gl_pathc pointers to NUL-terminated strings, which are valid until
            // globfree in drop. Each is copied here.
            let path = unsafe { CStr::from_ptr(*found.gl_pathv.add(index)) };
            paths.push(PathBuf::from(OsStr::from_bytes(path.to_bytes())));
        }
        paths
    }
}

impl Drop for Matches {
    fn drop(&mut self) {
        // SAFETY: the structure is either zeroed (nothing to free) or filled by glob, and is freed once.
        unsafe { libc::globfree(self.0.as_mut_ptr()) }
    }
}

/// Returns whether `pattern` matches all of `text`, by fnmatch(3) without flags: `*` also matches slashes and leading
/// dots. A pattern or text with a NUL byte never matches.
pub fn matches(pattern: &OsStr, text: &OsStr) -> bool {
    let (Ok(pattern), Ok(text)) = (CString::new(pattern.as_bytes()), CString::new(text.as_bytes())) else {
        return false;
    };
    // SAFETY: both are NUL-terminated strings that outlive the call, and fnmatch keeps neither.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), 0) == 0 }
}

/// Returns whether a path has a character that means more than itself in a pattern (glob(7)).
pub fn is_pattern(path: &OsStr) -> bool {
    path.as_bytes().iter().any(|byte| b"*?[{".contains(byte))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A temporary directory of this test, removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("canopy-sys-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("make the scratch directory");
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn names(root: &Path, pattern: &str) -> Vec<String> {
        let found = directories(root.join(pattern).as_os_str()).expect("glob");
        found.iter().map(|path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn finds_sorted_directories_with_braces_and_quotes() {
        let scratch = Scratch::new("glob");
        for name in ["disk2", "disk1", "disk10", "ssd", "od*d", "oddd", ".hidden"] {
            fs::create_dir(scratch.0.join(name)).expect("mkdir");
        }
        for (pattern, expected) in [
            ("disk*", &["disk1", "disk10", "disk2"][..]),
            ("disk?", &["disk1", "disk2"]),
            ("{ssd,disk1}", &["ssd", "disk1"]),
            ("{ssd,disk[2-9]}", &["ssd", "disk2"]),
            ("od\\*d", &["od*d"]),
            ("ssd", &["ssd"]),
            ("none*", &[]),
            ("absent", &[]),
            ("*hidden", &[]),
        ] {
            assert_eq!(names(&scratch.0, pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn a_nul_byte_is_an_error() {
        assert_eq!(directories(OsStr::new("a\0b")).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert!(!matches(OsStr::new("a\0*"), OsStr::new("a")));
    }

    #[test]
    fn fnmatch_star_crosses_slashes() {
        for (pattern, text, expected) in [
            ("/tmp/*", "/tmp/a/b", true),
            ("*", "/x", true),
            ("/tmp/?", "/tmp/a", true),
            ("/tmp/?", "/tmp/ab", false),
            ("/tmp/[ab]", "/tmp/b", true),
            ("/tmp/\\*", "/tmp/*", true),
            ("/tmp/\\*", "/tmp/a", false),
            ("", "/tmp", false),
            ("", "", true),
        ] {
            assert_eq!(matches(OsStr::new(pattern), OsStr::new(text)), expected, "{pattern} {text}");
        }
    }
}
