//! The time of the day where the machine is.

use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the local time in minutes since midnight, by the time zone of the system (localtime_r(3)).
pub fn minute_of_day(time: SystemTime) -> u32 {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
    let seconds = libc::time_t::try_from(seconds).unwrap_or(0);
    let mut parts = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call, and localtime_r keeps neither.
    let done = unsafe { libc::localtime_r(&raw const seconds, parts.as_mut_ptr()) };
    if done.is_null() {
        return u32::try_from(seconds / 60 % (24 * 60)).unwrap_or(0);
    }
    // SAFETY: localtime_r has filled the structure; zeroed before, it is a valid value of this plain C struct anyway.
    let parts = unsafe { parts.assume_init() };
    u32::try_from(parts.tm_hour * 60 + parts.tm_min).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn it_is_what_date_says() {
        for seconds in [0_u64, 1_700_000_000, 1_790_000_000] {
            let done =
                Command::new("date").args(["+%H %M", "-d", &format!("@{seconds}")]).output().expect("date");
            let text = String::from_utf8(done.stdout).expect("text");
            let numbers: Vec<u32> =
                text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(minute_of_day(time), numbers[0] * 60 + numbers[1]);
        }
    }
}
