//! What tests switch on in the program. The feature `test-switches` compiles it in; a program that people install has none
//! of it.

use crate::error::Error;
use canopy_branch::branch::rest;
use canopy_fuse::KernelLimits;
#[cfg(any(test, feature = "test-switches"))]
use canopy_fuse::flags::InitFlags;
use canopy_pool::coherence::catalogue::Rules;
use std::time::Duration;

/// Lets tests make the kernel look older: `minor:31`, `mask:PASSTHROUGH|READDIRPLUS_AUTO`, `refuse:queues` (of
/// io_uring, after they were agreed on), or several of them separated by commas.
#[cfg(feature = "test-switches")]
const LIMITS: &str = "CANOPY_TEST_KERNEL";

/// Returns what tests hide of the kernel's features.
///
/// # Errors
/// If the variable names none.
#[cfg(feature = "test-switches")]
pub fn kernel_limits() -> Result<KernelLimits, Error> {
    match std::env::var(LIMITS) {
        Ok(text) if !text.is_empty() => {
            parse_limits(&text).map_err(|why| Error::Environment { variable: LIMITS, why })
        }
        _ => Ok(KernelLimits::NONE),
    }
}

/// Returns how many deaths of the process that serves within a minute end the attempts to start another.
#[must_use]
pub fn max_deaths() -> usize {
    const USUAL: usize = 5;
    #[cfg(feature = "test-switches")]
    if let Some(number) = std::env::var("CANOPY_TEST_DEATHS").ok().and_then(|text| text.parse().ok()) {
        return number;
    }
    USUAL
}

/// Returns how long a program that was just installed may take until it serves a pool. On a machine that is busy with other
/// tests, a second is not always enough.
#[must_use]
pub fn upgrade_patience() -> Duration {
    const USUAL: Duration = Duration::from_secs(1);
    #[cfg(feature = "test-switches")]
    if let Some(seconds) =
        std::env::var("CANOPY_TEST_UPGRADE_SECONDS").ok().and_then(|text| text.parse().ok())
    {
        return Duration::from_secs(seconds);
    }
    USUAL
}

/// Returns how old what the catalogue learns must be.
pub(crate) fn catalogue_rules() -> Rules {
    #[cfg(feature = "test-switches")]
    if let Some(seconds) = std::env::var("CANOPY_TEST_RESTED").ok().and_then(|text| text.parse().ok()) {
        let rested = Duration::from_secs(seconds);
        return Rules { rested, written_back: rested, trimmed: rested };
    }
    Rules::default()
}

/// Returns for how long a file must have rested that gets a copy in a read cache, if tests change that.
pub(crate) fn cached_after() -> Option<Duration> {
    #[cfg(feature = "test-switches")]
    if let Ok(text) = std::env::var("CANOPY_TEST_CACHED_AFTER") {
        return text.parse().ok().map(Duration::from_millis);
    }
    None
}

/// Returns how long the keepers of the catalogue and of records wait instead of what they wait otherwise.
pub(crate) fn keeps_after() -> Option<Duration> {
    #[cfg(feature = "test-switches")]
    if let Some(milliseconds) = std::env::var("CANOPY_TEST_KEEPS").ok().and_then(|text| text.parse().ok()) {
        return Some(Duration::from_millis(milliseconds));
    }
    None
}

/// Returns how long whoever looks again at what was known waits after each directory, if tests change that.
pub(crate) fn revisits_after() -> Option<Duration> {
    #[cfg(feature = "test-switches")]
    if let Ok(text) = std::env::var("CANOPY_TEST_REVISITS") {
        return text.parse().ok().map(Duration::from_millis);
    }
    None
}

/// Returns after how long a disk rests that has nothing to do.
pub(crate) fn rests_after() -> Duration {
    #[cfg(feature = "test-switches")]
    if let Some(milliseconds) = std::env::var("CANOPY_TEST_RESTS").ok().and_then(|text| text.parse().ok()) {
        return Duration::from_millis(milliseconds);
    }
    rest::RESTS_AFTER
}

/// Returns whether the kernel is asked to report writes on branches, which tests hide as before Linux 6.0.
pub(crate) fn reports_writes() -> bool {
    #[cfg(feature = "test-switches")]
    if std::env::var_os("CANOPY_TEST_UNREPORTED_WRITES").is_some() {
        return false;
    }
    true
}

/// Lets tests have a worker stuck that waits for no branch: in a lookup of the name of the file that this variable names, for
/// as long as the file exists.
#[cfg(feature = "test-switches")]
const STUCK: &str = "CANOPY_TEST_STUCK";

#[cfg(feature = "test-switches")]
pub(crate) fn get_stuck(name: &[u8]) {
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(|| std::env::var_os(STUCK).map(PathBuf::from)) else { return };
    while file.file_name().is_some_and(|stuck| stuck.as_bytes() == name) && file.exists() {
        if std::fs::read(file).is_ok_and(|text| text == b"abort") {
            std::process::abort();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Nothing gets stuck.
#[cfg(not(feature = "test-switches"))]
pub(crate) fn get_stuck(_name: &[u8]) {}

/// Lets tests have probes of the kernel fail: those with these words do not tell it what has changed.
#[cfg(feature = "test-switches")]
const UNTOLD: &str = "CANOPY_TEST_UNTOLD";

/// Returns the words of the probes that are to fail.
#[cfg(feature = "test-switches")]
pub(crate) fn untold() -> String {
    std::env::var(UNTOLD).unwrap_or_default()
}

/// No probe is to fail.
#[cfg(not(feature = "test-switches"))]
pub(crate) fn untold() -> String {
    String::new()
}

/// Hides nothing of the kernel's features.
#[cfg(not(feature = "test-switches"))]
pub fn kernel_limits() -> Result<KernelLimits, Error> {
    Ok(KernelLimits::NONE)
}

#[cfg(any(test, feature = "test-switches"))]
fn parse_limits(text: &str) -> Result<KernelLimits, String> {
    let mut limits = KernelLimits::NONE;
    let mut hidden = InitFlags::empty();
    for part in text.split(',') {
        match part.split_once(':') {
            Some(("minor", number)) => {
                let minor = number.parse().map_err(|_| format!("'{number}' is not a minor version"))?;
                limits = KernelLimits::minor(minor);
            }
            Some(("mask", names)) => {
                for name in names.split('|') {
                    hidden |=
                        InitFlags::from_name(name).ok_or_else(|| format!("'{name}' is not an INIT flag"))?;
                }
            }
            Some(("refuse", "queues")) => limits.accepts_queues = false,
            _ => return Err(format!("'{part}' is neither minor:NUMBER, mask:FLAG|FLAG nor refuse:queues")),
        }
    }
    limits.mask -= hidden;
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hide_the_named_features() {
        let limits = parse_limits("minor:38,mask:ASYNC_READ|POSIX_ACL").unwrap();
        assert_eq!(limits.minor, 38);
        assert!(
            !limits.mask.intersects(InitFlags::ASYNC_READ | InitFlags::POSIX_ACL | InitFlags::PASSTHROUGH)
        );
        assert!(limits.mask.contains(InitFlags::MAX_PAGES));
        let limits = parse_limits("mask:PASSTHROUGH").unwrap();
        assert_eq!(limits.minor, KernelLimits::NONE.minor);
        assert!(!limits.mask.contains(InitFlags::PASSTHROUGH) && limits.mask.contains(InitFlags::ASYNC_READ));
        for text in ["minor:x", "mask:NOTHING", "frob", "minor:31;mask:X"] {
            assert!(parse_limits(text).is_err(), "{text}");
        }
    }
}
