//! The decision how the data of an open file travels.

use super::open_file::writes;
use crate::config::{CacheFiles, Config, FlushOnClose, PassthroughIo};
use rustix::fs::OFlags;

/// How the kernel treats one open (`FOPEN_*` in include/uapi/linux/fuse.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Reads and writes go to the daemon, whatever is in the page cache.
    pub direct_io: bool,
    /// Pages that the kernel has cached stay valid.
    pub keep_cache: bool,
    pub parallel_direct_writes: bool,
    /// close(2) needs no FLUSH.
    pub no_flush: bool,
    /// Reads, writes and mmap use this backing file.
    pub passthrough: Option<u32>,
}

/// The state of the node at an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// No other handle is open. The id is set if this open requested passthrough and got it.
    First { backing: Option<u32> },
    /// Another handle is open, by passthrough if the id is set.
    Shared { backing: Option<u32> },
}

/// Returns true if this option requests passthrough for the first open of a node with this access mode.
pub(crate) fn wants_passthrough(option: PassthroughIo, flags: OFlags) -> bool {
    match option {
        PassthroughIo::Off => false,
        PassthroughIo::Ro => !writes(flags),
        PassthroughIo::Wo => flags.contains(OFlags::WRONLY),
        PassthroughIo::Rw | PassthroughIo::Auto => true,
    }
}

/// Returns true for a writer that may remove `O_DIRECT` while the file is open. A streaming writer that bypasses the
/// page cache, such as `dd oflag=direct`, removes `O_DIRECT` for a last block that is not aligned. The kernel has
/// opened the backing file with `O_DIRECT` and cannot remove it there, so that block would fail with EINVAL. Such
/// data therefore goes through the daemon. Programs that open for reading, too (virtual machines, databases), write
/// whole blocks and keep passthrough.
pub(crate) fn may_lose_direct(flags: OFlags) -> bool {
    flags.contains(OFlags::DIRECT) && flags & OFlags::ACCMODE == OFlags::WRONLY
}

/// Decides how the data of an open file travels. The only place that does.
///
/// The kernel requires all concurrent opens of an inode to agree: either all have the same backing id, or none has
/// one. Anything else fails with EIO (fs/fuse/iomode.c). So the first open decides, and later ones follow:
/// * The node uses passthrough, and this open is write-only and does not want it: it gets the id together with
///   DIRECT_IO. Then its writes go to the daemon, coherent with all others.
/// * The node uses passthrough, and this open reads and does not want it: it uses passthrough all the same. With
///   DIRECT_IO the kernel would serve splice (sendfile(2)) from the pool's page cache (fs/fuse/file.c,
///   fuse_splice_read), which does not see what others write.
/// * The node does not use passthrough, and this open wants it: it goes without.
///
/// `cached_by_name` says, for `per-process`, that the caller is one of the listed programs; `valid` says, for
/// `partial` and `auto-full`, that what the kernel has cached of the file is valid.
pub(crate) fn decide(
    config: &Config,
    flags: OFlags,
    sharing: Sharing,
    cached_by_name: bool,
    valid: bool,
) -> OpenFlags {
    let (direct_io, keep_cache) = match config.cache_files {
        CacheFiles::Off => (true, false),
        CacheFiles::Partial => (false, valid),
        CacheFiles::Full => (false, true),
        CacheFiles::AutoFull => (false, valid),
        CacheFiles::PerProcess => (!cached_by_name, false),
    };
    let backing = match sharing {
        Sharing::First { backing } | Sharing::Shared { backing } => backing,
    };
    let direct_io = match backing {
        // `cache.files` concerns the page cache of the pool, which passthrough does not use.
        Some(_) => {
            let by_daemon = !wants_passthrough(config.passthrough, flags) || may_lose_direct(flags);
            by_daemon && flags.contains(OFlags::WRONLY)
        }
        // With the writeback cache, only a file that takes nothing else is opened for appending.
        None => {
            let appends = config.writeback && flags.contains(OFlags::APPEND);
            direct_io || may_lose_direct(flags) || appends
        }
    };
    OpenFlags {
        direct_io,
        keep_cache: keep_cache && backing.is_none(),
        parallel_direct_writes: direct_io && config.parallel_direct_writes,
        no_flush: false,
        passthrough: backing,
    }
}

/// Returns true if close(2) needs no FLUSH. `quietly`: the branch's filesystem does nothing at close. (With the
/// writeback cache the kernel sends FLUSH all the same, because it has data to write.)
///
/// What was stored through a mapping may wait in the pool's page cache. At a close the kernel writes it to the daemon and
/// tells errors, but only if it is to send FLUSH. In passthrough, stores go to the branch's own pages; shared mappings that can
/// be written need a descriptor that reads and writes.
pub(crate) fn no_flush(
    option: FlushOnClose,
    flags: OFlags,
    backing: Option<u32>,
    quietly: impl FnOnce() -> bool,
) -> bool {
    match option {
        FlushOnClose::Never => true,
        FlushOnClose::Always => false,
        FlushOnClose::OpenedForWrite => {
            let stores = backing.is_none() && flags.contains(OFlags::RDWR);
            !writes(flags) || !stores && quietly()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(passthrough: PassthroughIo, cache: CacheFiles) -> Config {
        Config { passthrough, cache_files: cache, ..Config::default() }
    }

    fn letters(open_flags: OpenFlags) -> String {
        let mut out = String::new();
        for (on, letter) in [
            (open_flags.direct_io, 'D'),
            (open_flags.keep_cache, 'K'),
            (open_flags.passthrough.is_some(), 'P'),
            (open_flags.parallel_direct_writes, 'L'),
        ] {
            if on {
                out.push(letter);
            }
        }
        out
    }

    /// With a backing id the cache mode does not matter.
    #[test]
    fn open_flags_follow_the_cache_mode() {
        use CacheFiles::*;
        for (cache, named, valid, without) in [
            (Off, false, false, "DL"),
            (Partial, false, false, ""),
            (Partial, false, true, "K"),
            (Full, false, false, "K"),
            (AutoFull, false, false, ""),
            (AutoFull, false, true, "K"),
            (PerProcess, true, false, ""),
            (PerProcess, false, false, "DL"),
        ] {
            let config = config(PassthroughIo::Rw, cache);
            let first = |backing| decide(&config, OFlags::RDWR, Sharing::First { backing }, named, valid);
            assert_eq!(letters(first(None)), without, "{cache} without passthrough");
            assert_eq!(letters(first(Some(7))), "P", "{cache} with passthrough");
        }
    }

    #[test]
    fn the_option_and_the_access_mode_decide_the_first_open() {
        use PassthroughIo::*;
        for (option, read, write, both) in [
            (Off, false, false, false),
            (Ro, true, false, false),
            (Wo, false, true, false),
            (Rw, true, true, true),
            (Auto, true, true, true),
        ] {
            let want = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR].map(|f| wants_passthrough(option, f));
            assert_eq!(want, [read, write, both], "{option}");
        }
    }

    /// In mergerfs, with `ro` or `wo`, a second open in the other access mode fails with EIO.
    #[test]
    fn every_open_of_a_passthrough_node_carries_its_backing_id() {
        for option in
            [PassthroughIo::Off, PassthroughIo::Ro, PassthroughIo::Wo, PassthroughIo::Rw, PassthroughIo::Auto]
        {
            for cache in [CacheFiles::Off, CacheFiles::Partial, CacheFiles::Full, CacheFiles::AutoFull] {
                let config = config(option, cache);
                for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
                    let later = |backing| decide(&config, flags, Sharing::Shared { backing }, false, true);
                    assert_eq!(later(Some(3)).passthrough, Some(3));
                    let by_daemon = flags == OFlags::WRONLY && !wants_passthrough(option, flags);
                    assert_eq!(later(Some(3)).direct_io, by_daemon);
                    assert!(!later(Some(3)).keep_cache);
                    assert_eq!(later(None).passthrough, None);
                }
            }
        }
    }

    /// A first open of this kind does not use passthrough; later ones get the id of the others.
    #[test]
    fn uncached_streams_go_through_the_daemon() {
        let config = config(PassthroughIo::Rw, CacheFiles::AutoFull);
        for (flags, beside, alone) in
            [(OFlags::RDONLY, "P", ""), (OFlags::WRONLY, "DPL", "DL"), (OFlags::RDWR, "P", "")]
        {
            for (backing, expected) in [(Some(1), beside), (None, alone)] {
                let sharing = Sharing::Shared { backing };
                let open_flags = decide(&config, flags | OFlags::DIRECT, sharing, false, false);
                assert_eq!(letters(open_flags), expected, "{flags:?}");
            }
        }
    }

    #[test]
    fn flush_is_needed_only_after_writes() {
        for (option, read, write, write_quietly, stored) in [
            (FlushOnClose::Never, true, true, true, true),
            (FlushOnClose::Always, false, false, false, false),
            (FlushOnClose::OpenedForWrite, true, false, true, false),
        ] {
            for quietly in [false, true] {
                let write = if quietly { write_quietly } else { write };
                let stored = if quietly { stored } else { write };
                assert_eq!(no_flush(option, OFlags::RDONLY, None, || quietly), read);
                assert_eq!(no_flush(option, OFlags::WRONLY, None, || quietly), write);
                assert_eq!(no_flush(option, OFlags::RDWR, Some(1), || quietly), write);
                assert_eq!(no_flush(option, OFlags::RDWR, None, || quietly), stored);
            }
        }
    }
}
