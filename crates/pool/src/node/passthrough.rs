//! The one decision about how the data of an open file travels.

use super::open_file::writes;
use crate::config::{CacheFiles, Config, FlushOnClose, PassthroughIo};
use rustix::fs::OFlags;

/// How one open travels (`FOPEN_*` in include/uapi/linux/fuse.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Reads and writes come to the daemon, whatever is in the page cache.
    pub direct_io: bool,
    /// What is cached of the file stays valid.
    pub keep_cache: bool,
    pub parallel_direct_writes: bool,
    /// close(2) needs no FLUSH.
    pub no_flush: bool,
    /// Reads, writes and mmap go to this backing file.
    pub passthrough: Option<u32>,
}

/// What is known of the node at an open, besides the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// Nobody has it open. The id is there if this open asked for passthrough and got it.
    First { backing: Option<u32> },
    /// Somebody has it open, by passthrough if there is an id.
    Shared { backing: Option<u32> },
}

/// Does this option want passthrough for the first open of a node with this access mode?
pub(crate) fn wants_passthrough(option: PassthroughIo, flags: OFlags) -> bool {
    match option {
        PassthroughIo::Off => false,
        PassthroughIo::Ro => !writes(flags),
        PassthroughIo::Wo => flags.contains(OFlags::WRONLY),
        PassthroughIo::Rw | PassthroughIo::Auto => true,
    }
}

/// A streaming writer past the page cache, such as `dd oflag=direct`, takes `O_DIRECT` back for a last piece
/// that is not aligned. The kernel opened the backing file with it, and has no way to take it back: the piece
/// would fail with EINVAL. So such data comes to the daemon. Whoever opens for reading too (disks of virtual
/// machines, databases) writes whole blocks, and keeps passthrough.
pub(crate) fn may_lose_direct(flags: OFlags) -> bool {
    flags.contains(OFlags::DIRECT) && flags & OFlags::ACCMODE == OFlags::WRONLY
}

/// The one place that decides how the data of an open file travels.
///
/// The kernel allows one way for all opens of an inode at a time: either all carry the same backing id,
/// or none carries any; anything else fails the open with EIO (fs/fuse/iomode.c). So the first open
/// decides, and later ones follow, each as well as it can:
/// * the node is in passthrough, this open only writes and would not want it: it carries the id together with
///   DIRECT_IO. Then what it writes comes to the daemon, coherent with everybody else's.
/// * the node is in passthrough, this open reads and would not want it: it goes past the daemon all the same. With
///   DIRECT_IO the kernel would take what is spliced (sendfile(2)) from the page cache of the pool
///   (fs/fuse/file.c fuse_splice_read), which hears nothing of what others write.
/// * the node is not in passthrough, this open would want it: it goes without.
///
/// `cached_by_name` tells, for `per-process`, that the caller is one of the listed programs; `valid`, for
/// `partial` and `auto-full`, that what the kernel has cached of the file is known to be good.
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
        // `cache.files` rules the page cache of the pool, which passthrough does not use.
        Some(_) => {
            let served = !wants_passthrough(config.passthrough, flags) || may_lose_direct(flags);
            served && flags.contains(OFlags::WRONLY)
        }
        None => direct_io || may_lose_direct(flags),
    };
    OpenFlags {
        direct_io,
        keep_cache: keep_cache && backing.is_none(),
        parallel_direct_writes: direct_io && config.parallel_direct_writes,
        no_flush: false,
        passthrough: backing,
    }
}

/// May the FLUSH of a close be left out? `quietly`: the branch's filesystem has nothing to do at a close. (With the
/// writeback cache the kernel sends it nevertheless, for then it is the kernel that has something to write.)
pub(crate) fn no_flush(option: FlushOnClose, flags: OFlags, quietly: bool) -> bool {
    match option {
        FlushOnClose::Never => true,
        FlushOnClose::Always => false,
        FlushOnClose::OpenedForWrite => !writes(flags) || quietly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(passthrough: PassthroughIo, cache: CacheFiles) -> Config {
        Config { passthrough, cache_files: cache, ..Config::default() }
    }

    fn letters(travel: OpenFlags) -> String {
        let mut out = String::new();
        for (on, letter) in [
            (travel.direct_io, 'D'),
            (travel.keep_cache, 'K'),
            (travel.passthrough.is_some(), 'P'),
            (travel.parallel_direct_writes, 'L'),
        ] {
            if on {
                out.push(letter);
            }
        }
        out
    }

    /// COMPATIBILITY, appendix C; with a backing id the cache mode no longer matters.
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
    fn the_option_decides_which_first_opens_want_passthrough() {
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

    /// 14.2 #10: with `ro` or `wo`, a second open in the other access mode failed with EIO.
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
                    let served = flags == OFlags::WRONLY && !wants_passthrough(option, flags);
                    assert_eq!(later(Some(3)).direct_io, served);
                    assert!(!later(Some(3)).keep_cache);
                    assert_eq!(later(None).passthrough, None);
                }
            }
        }
    }

    /// The first of them is not in passthrough at all; later ones carry the id of those who are.
    #[test]
    fn uncached_opens_are_served_by_the_daemon() {
        let config = config(PassthroughIo::Rw, CacheFiles::AutoFull);
        for (flags, beside, alone) in
            [(OFlags::RDONLY, "P", ""), (OFlags::WRONLY, "DPL", "DL"), (OFlags::RDWR, "P", "")]
        {
            for (backing, expected) in [(Some(1), beside), (None, alone)] {
                let sharing = Sharing::Shared { backing };
                let travel = decide(&config, flags | OFlags::DIRECT, sharing, false, false);
                assert_eq!(letters(travel), expected, "{flags:?}");
            }
        }
    }

    #[test]
    fn only_writable_opens_are_flushed() {
        for (option, read, write, write_quietly) in [
            (FlushOnClose::Never, true, true, true),
            (FlushOnClose::Always, false, false, false),
            (FlushOnClose::OpenedForWrite, true, false, true),
        ] {
            assert_eq!(no_flush(option, OFlags::RDONLY, false), read);
            assert_eq!(no_flush(option, OFlags::RDWR, false), write);
            assert_eq!(no_flush(option, OFlags::RDWR, true), write_quietly);
        }
    }
}
