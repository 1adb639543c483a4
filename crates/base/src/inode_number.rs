//! Inode numbers of the pool, computed from paths or from the branches' own numbers.
//!
//! The formulas and the hash (rapidhash version 3, its portable C++ form) are those of mergerfs. Backup programs and
//! databases store the numbers, so they must stay the same when users change from mergerfs to Canopy.

use rapidhash::v3::{RapidSecrets, rapidhash_v3, rapidhash_v3_seeded};
use std::fmt;
use std::str::FromStr;

/// How inode numbers are computed: the option `inodecalc`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum InodeCalc {
    /// The branch's own number. Numbers of different branches may collide.
    Passthrough,
    /// Hash of the path in the pool. Hard links differ.
    PathHash,
    /// `PathHash` folded to 32 bits.
    PathHash32,
    /// Hash of the branch's path and the branch's number. Hard links agree. A directory's number depends on the
    /// branch that answers.
    DevinoHash,
    /// `DevinoHash` folded to 32 bits.
    DevinoHash32,
    /// `PathHash` for directories, `DevinoHash` for the rest.
    HybridHash,
    /// `PathHash32` for directories, `DevinoHash32` for the rest.
    HybridHash32,
    /// `DevinoHash`, of a directory that of its oldest copy: a rename does not change it, nor do further copies. `PathHash`
    /// for directories without a copy on a filesystem whose numbers last. mergerfs has no such value.
    #[default]
    OldestHash,
    /// `OldestHash` folded to 32 bits.
    OldestHash32,
}

/// What a directory's number is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfDirectory {
    Path,
    /// The copy that is shown.
    Shown,
    /// The oldest copy, or else the path.
    Oldest,
}

/// A branch's share in the `devino` hashes: the hash of its path, computed once per branch, so that each file costs
/// one hash of eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BranchSeed(u64);

impl BranchSeed {
    /// Computes the seed of a branch. `path` is its resolved path as listed, without a trailing slash.
    pub fn new(path: &[u8]) -> BranchSeed {
        BranchSeed(rapidhash_v3(path))
    }

    /// Returns the seed for another filesystem that the branch contains: one mounted below it, or a subvolume, where
    /// the branch's inode numbers occur again.
    pub fn within(self, filesystem: u64) -> BranchSeed {
        BranchSeed(self.hash(filesystem))
    }

    /// Returns the whole seed.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the highest `bits` bits of the seed.
    pub fn mark(self, bits: u32) -> u16 {
        (self.0 >> (u64::BITS - bits)) as u16
    }

    fn hash(self, st_ino: u64) -> u64 {
        rapidhash_v3_seeded(&st_ino.to_ne_bytes(), &RapidSecrets::seed_cpp(self.0))
    }
}

impl BranchSeed {
    /// Hashes a file's inode number and birth time. The result identifies the file among those of this branch.
    pub fn proof(self, st_ino: u64, birth: (i64, u32)) -> u64 {
        let (words, mut bytes) = ([st_ino, birth.0.cast_unsigned(), u64::from(birth.1)], [0; 24]);
        bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(chunk, word)| *chunk = word.to_le_bytes());
        rapidhash_v3_seeded(&bytes, &RapidSecrets::seed_cpp(self.0))
    }
}

/// Folds a hash to 32 bits: Fibonacci hashing of its two halves, in the low 32 bits.
fn fold32(hash: u64) -> u64 {
    (hash ^ (hash >> 32)).wrapping_mul(0x9E37_79B9) & 0xFFFF_FFFF
}

impl InodeCalc {
    /// All algorithms, in the order of the documentation.
    pub const ALL: [InodeCalc; 9] = [
        InodeCalc::Passthrough,
        InodeCalc::PathHash,
        InodeCalc::PathHash32,
        InodeCalc::DevinoHash,
        InodeCalc::DevinoHash32,
        InodeCalc::HybridHash,
        InodeCalc::HybridHash32,
        InodeCalc::OldestHash,
        InodeCalc::OldestHash32,
    ];

    /// Returns the name as written in options.
    pub fn name(self) -> &'static str {
        match self {
            InodeCalc::Passthrough => "passthrough",
            InodeCalc::PathHash => "path-hash",
            InodeCalc::PathHash32 => "path-hash32",
            InodeCalc::DevinoHash => "devino-hash",
            InodeCalc::DevinoHash32 => "devino-hash32",
            InodeCalc::HybridHash => "hybrid-hash",
            InodeCalc::HybridHash32 => "hybrid-hash32",
            InodeCalc::OldestHash => "oldest-hash",
            InodeCalc::OldestHash32 => "oldest-hash32",
        }
    }

    /// Computes the pool's inode number of an object. Of a directory by its oldest copy, it is the number by its path.
    ///
    /// `branch_path` is the path of the object's branch, `pool_path` its path in the pool without a leading slash (""
    /// for the root), `st_ino` its number on the branch.
    pub fn inode(self, branch_path: &[u8], pool_path: &[u8], st_ino: u64, is_dir: bool) -> u64 {
        self.inode_seeded(BranchSeed::new(branch_path), pool_path, st_ino, is_dir)
    }

    /// As [`inode`](Self::inode), with the seed of the branch. `pool_path` is read only if
    /// [`uses_path`](Self::uses_path).
    pub fn inode_seeded(self, seed: BranchSeed, pool_path: &[u8], st_ino: u64, is_dir: bool) -> u64 {
        match self {
            InodeCalc::Passthrough => st_ino,
            InodeCalc::PathHash => rapidhash_v3(pool_path),
            InodeCalc::PathHash32 => fold32(rapidhash_v3(pool_path)),
            InodeCalc::DevinoHash => seed.hash(st_ino),
            InodeCalc::DevinoHash32 => fold32(seed.hash(st_ino)),
            InodeCalc::HybridHash | InodeCalc::OldestHash if is_dir => rapidhash_v3(pool_path),
            InodeCalc::HybridHash | InodeCalc::OldestHash => seed.hash(st_ino),
            InodeCalc::HybridHash32 | InodeCalc::OldestHash32 if is_dir => fold32(rapidhash_v3(pool_path)),
            InodeCalc::HybridHash32 | InodeCalc::OldestHash32 => fold32(seed.hash(st_ino)),
        }
    }

    /// Returns whether the numbers fit into 32 bits, for programs that know no larger ones.
    pub fn has_32_bits(self) -> bool {
        use InodeCalc::{DevinoHash32, HybridHash32, OldestHash32, PathHash32};
        matches!(self, PathHash32 | DevinoHash32 | HybridHash32 | OldestHash32)
    }

    /// Returns a number that was computed before, perhaps by another value of the option, as one that fits. A hash becomes
    /// what the 32-bit form of its algorithm gives.
    pub fn fit(self, number: u64) -> u64 {
        if self.has_32_bits() && number >> u32::BITS != 0 { fold32(number) } else { number }
    }

    pub fn of_directory(self) -> OfDirectory {
        match self {
            InodeCalc::Passthrough | InodeCalc::DevinoHash | InodeCalc::DevinoHash32 => OfDirectory::Shown,
            InodeCalc::OldestHash | InodeCalc::OldestHash32 => OfDirectory::Oldest,
            _ => OfDirectory::Path,
        }
    }

    /// Returns true if the number depends on the object's path in the pool. Otherwise the caller need not build the
    /// path.
    pub fn uses_path(self, is_dir: bool) -> bool {
        match self {
            InodeCalc::Passthrough | InodeCalc::DevinoHash | InodeCalc::DevinoHash32 => false,
            InodeCalc::PathHash | InodeCalc::PathHash32 => true,
            InodeCalc::HybridHash | InodeCalc::HybridHash32 => is_dir,
            InodeCalc::OldestHash | InodeCalc::OldestHash32 => is_dir,
        }
    }
}

impl fmt::Display for InodeCalc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no inode algorithm (EINVAL).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown inodecalc {0:?}")]
pub struct UnknownInodeCalc(pub String);

impl FromStr for InodeCalc {
    type Err = UnknownInodeCalc;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        InodeCalc::ALL
            .into_iter()
            .find(|calc| calc.name() == text)
            .ok_or_else(|| UnknownInodeCalc(text.to_owned()))
    }
}

/// Computes the numbers (`d_ino`) of the entries of one directory, with one path buffer for all of them.
///
/// An entry gets the same number as by its own lookup, provided that `is_dir` is right. Where a filesystem reports
/// DT_UNKNOWN and the algorithm treats directories differently, look up the type first.
#[derive(Debug)]
pub struct DirentInodes {
    calc: InodeCalc,
    path: Vec<u8>,
    /// Length of "dir/" in `path`; zero for the root.
    stem: usize,
}

impl DirentInodes {
    /// Prepares for the entries of `dir` (a path in the pool without a leading slash, "" for the root).
    pub fn new(calc: InodeCalc, dir: &[u8]) -> DirentInodes {
        let mut path = Vec::with_capacity(dir.len() + 64);
        path.extend_from_slice(dir);
        if !dir.is_empty() {
            path.push(b'/');
        }
        let stem = path.len();
        DirentInodes { calc, path, stem }
    }

    /// As [`InodeCalc::uses_path`].
    pub fn uses_path(&self, is_dir: bool) -> bool {
        self.calc.uses_path(is_dir)
    }

    /// Returns the path of the entry `name`.
    pub fn path(&mut self, name: &[u8]) -> &[u8] {
        self.path.truncate(self.stem);
        self.path.extend_from_slice(name);
        &self.path
    }

    /// Computes the number of the entry `name`, which is `st_ino` on the branch of `seed`.
    ///
    /// `.` and `..` get the numbers of the directories that they name; `..` of the root is the root.
    pub fn inode(&mut self, seed: BranchSeed, name: &[u8], st_ino: u64, is_dir: bool) -> u64 {
        self.path.truncate(self.stem);
        if !self.calc.uses_path(is_dir) {
            return self.calc.inode_seeded(seed, &[], st_ino, is_dir);
        }
        let dir = &self.path[..self.stem.saturating_sub(1)];
        let path = match name {
            b"." => dir,
            b".." => &dir[..dir.iter().rposition(|&byte| byte == b'/').unwrap_or(0)],
            _ => {
                self.path.extend_from_slice(name);
                &self.path
            }
        };
        self.calc.inode_seeded(seed, path, st_ino, is_dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path, its hash, and the 32-bit form where known.
    const PATHS: [(&[u8], u64, Option<u64>); 9] = [
        (b"", 0x0338dc4be2cecdae, Some(0xc77b2b7d)),
        (b"a", 0x599f47df33a2e1eb, Some(0xb747af94)),
        (b"abc", 0xcb475beafa9c0da2, Some(0xacc16208)),
        (b"some/file", 0x04a56245621c0a75, Some(0xe08afab0)),
        (b"/mnt/disk1", 0xcf34d53905b6d64c, None),
        (&[b'x'; 100], 0x9643d79302544c42, None),
        (&[b'y'; 113], 0xc153a9702b967bda, None),
        (&[b'z'; 250], 0x9caf0707c8729063, None),
        (b"tv/season_01/episode_01.mkv", 0xd39323d436938ef9, Some(0xca026a85)),
    ];

    /// Inode number on branch /mnt/disk1, its hash, and the 32-bit form.
    const DEVINOS: [(u64, u64, u64); 3] = [
        (1, 0x1ac1d121b5830350, 0x31087ca9),
        (12345, 0x87baeda475a0aae9, 0x383beba5),
        (1 << 40, 0xb2a296fa453eecb9, 0x8443056b),
    ];

    #[test]
    fn path_hashes_match_mergerfs() {
        for (path, hash, folded) in PATHS {
            for is_dir in [false, true] {
                assert_eq!(InodeCalc::PathHash.inode(b"/any", path, 7, is_dir), hash);
                let folded = folded.unwrap_or_else(|| fold32(hash));
                assert_eq!(InodeCalc::PathHash32.inode(b"/any", path, 7, is_dir), folded);
            }
            assert_eq!(InodeCalc::HybridHash.inode(b"/any", path, 7, true), hash);
        }
    }

    #[test]
    fn devino_hashes_match_mergerfs() {
        let branch = b"/mnt/disk1";
        for (st_ino, hash, folded) in DEVINOS {
            for is_dir in [false, true] {
                assert_eq!(InodeCalc::DevinoHash.inode(branch, b"any", st_ino, is_dir), hash);
                assert_eq!(InodeCalc::DevinoHash32.inode(branch, b"any", st_ino, is_dir), folded);
            }
            assert_eq!(InodeCalc::HybridHash.inode(branch, b"any", st_ino, false), hash);
            assert_eq!(InodeCalc::HybridHash32.inode(branch, b"any", st_ino, false), folded);
            assert_eq!(InodeCalc::Passthrough.inode(branch, b"any", st_ino, false), st_ino);
        }
    }

    #[test]
    fn documented_examples_hold() {
        let calc = InodeCalc::HybridHash;
        assert_eq!(calc.inode(b"/x", b"", 2, true), 232177599295442350, "the pool's root");
        assert_eq!(calc.inode(b"/x", b"some/file", 2, true), 334781797447240309);
        assert_eq!(calc.inode(b"/mnt/disk1", b"some/file", 12345, false), 0x87baeda475a0aae9);
        assert_eq!(InodeCalc::HybridHash32.inode(b"/x", b"some/file", 2, true), 0xe08afab0);
    }

    #[test]
    fn the_seeded_form_agrees() {
        let branch = b"/mnt/disk1";
        let seed = BranchSeed::new(branch);
        for calc in InodeCalc::ALL {
            for is_dir in [false, true] {
                for st_ino in [0, 1, u64::MAX] {
                    assert_eq!(
                        calc.inode_seeded(seed, b"d/f", st_ino, is_dir),
                        calc.inode(branch, b"d/f", st_ino, is_dir)
                    );
                }
            }
        }
    }

    #[test]
    fn only_path_algorithms_use_the_path() {
        for calc in InodeCalc::ALL {
            for is_dir in [false, true] {
                let differs = calc.inode(b"/b", b"one", 9, is_dir) != calc.inode(b"/b", b"two", 9, is_dir);
                assert_eq!(calc.uses_path(is_dir), differs, "{calc} {is_dir}");
            }
        }
    }

    #[test]
    fn entries_get_the_number_of_their_lookup() {
        let seed = BranchSeed::new(b"/b");
        for calc in InodeCalc::ALL {
            for (dir, name, path) in [
                (&b"d/e"[..], &b"f"[..], &b"d/e/f"[..]),
                (b"d/e", b"a-longer-name", b"d/e/a-longer-name"),
                (b"", b"f", b"f"),
                (b"d/e", b".", b"d/e"),
                (b"d/e", b"..", b"d"),
                (b"d", b"..", b""),
                (b"", b".", b""),
                (b"", b"..", b""),
            ] {
                let mut entries = DirentInodes::new(calc, dir);
                let _ = entries.inode(seed, b"another entry before", 3, false);
                for is_dir in [true, false] {
                    let expected = calc.inode_seeded(seed, path, 5, is_dir);
                    assert_eq!(entries.inode(seed, name, 5, is_dir), expected, "{calc} {dir:?} {name:?}");
                }
            }
        }
    }

    #[test]
    fn names_parse_back() {
        for calc in InodeCalc::ALL {
            assert_eq!(calc.to_string().parse(), Ok(calc));
        }
        assert_eq!("hybrid".parse::<InodeCalc>(), Err(UnknownInodeCalc("hybrid".into())));
        assert_eq!(InodeCalc::default().name(), "oldest-hash");
    }
}
