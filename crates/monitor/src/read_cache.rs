//! Read caches, in words.

use canopy_control::ReadCacheReport;
use canopy_terminal::bytes;

/// Returns what a directory of copies holds, and what came of it.
pub fn line(cache: &ReadCacheReport) -> String {
    let path = cache.path.one_line();
    if let Some(why) = &cache.unusable {
        return format!("{path} cannot be used: {why}");
    }
    let held = format!("{path}: {} files, {}", cache.files, bytes(cache.bytes));
    let share = |hits: u64, misses: u64| (hits * 100).checked_div(hits + misses);
    match (share(cache.hits, cache.misses), share(cache.hit_bytes, cache.missed_bytes)) {
        (Some(opens), Some(size)) => format!(
            "{held}; hits: {} of {} opens ({opens} %, by size {size} %), {} read",
            cache.hits,
            cache.hits + cache.misses,
            bytes(cache.read_bytes)
        ),
        _ => format!("{held}; not asked for yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_control::OsText;

    #[test]
    fn a_cache_is_told_in_one_line() {
        let mut cache = ReadCacheReport { path: OsText::Text("/ssd".into()), ..ReadCacheReport::default() };
        assert_eq!(line(&cache), "/ssd: 0 files, 0B; not asked for yet");
        cache = ReadCacheReport {
            files: 3,
            bytes: 3 << 30,
            hits: 9,
            hit_bytes: 1 << 40,
            misses: 3,
            missed_bytes: 1 << 40,
            read_bytes: 1 << 20,
            ..cache
        };
        assert_eq!(line(&cache), "/ssd: 3 files, 3.0G; hits: 9 of 12 opens (75 %, by size 50 %), 1.0M read");
        cache.unusable = Some("Read-only file system".into());
        assert_eq!(line(&cache), "/ssd cannot be used: Read-only file system");
    }
}
