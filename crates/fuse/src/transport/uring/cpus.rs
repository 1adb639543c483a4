//! The processors of the machine, as sysfs lists them.

use std::fs;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Returns how many queues the kernel requires: one for each possible processor (`num_possible_cpus`).
pub(super) fn possible() -> u16 {
    u16::try_from(listed(POSSIBLE).len()).unwrap_or(u16::MAX)
}

/// Returns the processors that are online.
#[must_use]
pub fn online() -> Vec<u16> {
    listed(ONLINE)
}

fn listed(path: &str) -> Vec<u16> {
    let listed = fs::read_to_string(path).ok().and_then(|text| parse(&text));
    listed.unwrap_or_else(|| {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (0..u16::try_from(count).unwrap_or(u16::MAX)).collect()
    })
}

/// Parses a list such as `0-3,8`.
fn parse(list: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn cpu_lists_are_parsed() {
        for (list, cpus) in [("0-1\n", &[0, 1][..]), ("0", &[0]), ("0-2,8-9,15", &[0, 1, 2, 8, 9, 15])] {
            assert_eq!(parse(list).as_deref(), Some(cpus), "{list}");
        }
        for list in ["", "a", "0-", "0-65536", "0,,1"] {
            assert_eq!(parse(list), None, "{list}");
        }
    }
}
