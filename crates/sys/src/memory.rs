//! Memory of the process: how much it may use, and what the allocator holds.

use std::fs;
use std::path::Path;

/// Returns freed memory to the system, which the allocator otherwise keeps (malloc_trim(3)). Useful after much memory has
/// been freed in small pieces. It takes some milliseconds per gigabyte. Does nothing without glibc.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number and may be called from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns how many bytes the process may use: the machine's memory, or less if its control groups allow less.
pub fn available() -> u64 {
    let info = rustix::system::sysinfo();
    #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    let machine = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_limits(Path::new("/sys/fs/cgroup"), &groups).min().map_or(machine, |limit| limit.min(machine))
}

/// Returns the limits of the control groups that `groups` (as in /proc/PID/cgroup) names, and of those around them.
fn group_limits(mounted: &Path, groups: &str) -> impl Iterator<Item = u64> {
    groups.lines().flat_map(move |line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (top, files): (_, &[&str]) = match controllers {
            "" => (mounted.to_owned(), &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (mounted.join(controllers), &["memory.limit_in_bytes"])
            }
            _ => return Vec::new(),
        };
        let path = Path::new(path.trim_start_matches('/'));
        // A group without a limit has "max", or before version 2 a number beyond all memory.
        let limit = |group: &Path, file: &str| {
            fs::read_to_string(top.join(group).join(file)).ok()?.trim().parse::<u64>().ok()
        };
        path.ancestors()
            .flat_map(|group| files.iter().filter_map(|file| limit(group, file)).collect::<Vec<_>>())
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_of_all_groups_counts() {
        let root = std::env::temp_dir().join(format!("canopy-memory-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.high", "300\n");
        write("a/memory.max", "max\n");
        write("a/b/memory.max", "400\n");
        write("memory/c/memory.limit_in_bytes", "200\n");
        let of = |groups| group_limits(&root, groups).min();
        assert_eq!(of("0::/a/b\n"), Some(300));
        assert_eq!(of("0::/\n"), None);
        assert_eq!(of("4:cpu:/c\n3:memory:/c/d\n0::/a/b\n"), Some(200));
        fs::remove_dir_all(root).unwrap();
        assert!(available() > 1 << 20);
    }
}
