//! Fills a directory with a realistic tree, made from a seed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags, lsetxattr, mknodat, utimensat,
};

use crate::rng::Rng;

/// Describes a tree. Rates are in thousandths of the number of files.
#[derive(Debug, Clone)]
pub struct TreeSpec {
    pub seed: u64,
    pub files: usize,
    pub files_per_dir: usize,
    /// The largest size of a file, in bytes. Most files are far smaller.
    pub max_file: u64,
    pub hard_links: u32,
    pub symlinks: u32,
    pub xattrs: u32,
    pub sparse: u32,
    /// Fifos and sockets.
    pub specials: u32,
    /// Names of unusual bytes or of 255 bytes.
    pub odd_names: u32,
    /// Depth of one chain of directories.
    pub depth: usize,
    /// Whether files belong to various users and groups, which needs root.
    pub owners: bool,
}

impl Default for TreeSpec {
    /// Two thousand files of all kinds, about 20 MB.
    fn default() -> Self {
        Self {
            seed: 1,
            files: 2000,
            files_per_dir: 20,
            max_file: 256 << 10,
            hard_links: 40,
            symlinks: 40,
            xattrs: 50,
            sparse: 10,
            specials: 5,
            odd_names: 30,
            depth: 40,
            owners: true,
        }
    }
}

impl TreeSpec {
    /// Returns the default with another seed and number of files.
    pub fn new(seed: u64, files: usize) -> Self {
        Self { seed, files, ..Self::default() }
    }
}

/// How much [`populate`] made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeCounts {
    pub dirs: usize,
    pub files: usize,
    pub hard_links: usize,
    pub symlinks: usize,
    pub specials: usize,
    pub sparse: usize,
    pub xattrs: usize,
    pub bytes: u64,
}

/// Fills an existing directory. The same spec makes the same tree on every filesystem that supports all of it.
///
/// # Panics
/// If the filesystem refuses anything. The message names the path.
#[track_caller]
pub fn populate(root: &Path, spec: &TreeSpec) -> TreeCounts {
    let mut generator = Generator {
        spec,
        rng: Rng::new(spec.seed),
        dirs: vec![root.to_owned()],
        files: Vec::new(),
        times: Vec::new(),
        counts: TreeCounts::default(),
        serial: 0,
    };
    generator.run().unwrap_or_else(|(path, error)| panic!("populating {}: {error}", path.display()));
    generator.counts
}

type Step<T = ()> = Result<T, (PathBuf, io::Error)>;

struct Generator<'a> {
    spec: &'a TreeSpec,
    rng: Rng,
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
    /// Modification times, which are set last because making an entry changes the time of its directory.
    times: Vec<(PathBuf, Timespec)>,
    counts: TreeCounts,
    serial: u64,
}

fn at<T>(path: &Path, result: io::Result<T>) -> Step<T> {
    result.map_err(|error| (path.to_owned(), error))
}

impl Generator<'_> {
    fn run(&mut self) -> Step {
        let dirs = self.spec.files.div_ceil(self.spec.files_per_dir.max(1));
        for _ in 0..dirs {
            let parent = self.rng.pick(&self.dirs).clone();
            self.dir(&parent)?;
        }
        let mut chain = self.dirs[0].clone();
        for _ in 0..self.spec.depth {
            chain = self.dir(&chain)?;
        }
        while self.counts.files < self.spec.files {
            let parent = self.rng.pick(&self.dirs).clone();
            self.file(&parent)?;
            if self.rng.chance(self.spec.hard_links) {
                self.hard_link()?;
            }
            if self.rng.chance(self.spec.symlinks) {
                self.symlink()?;
            }
            if self.rng.chance(self.spec.specials) {
                self.special()?;
            }
        }
        for (path, time) in self.times.drain(..).rev() {
            let access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let times = Timestamps { last_access: access, last_modification: time };
            at(&path, utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(Into::into))?;
        }
        Ok(())
    }

    fn dir(&mut self, parent: &Path) -> Step<PathBuf> {
        let path = parent.join(self.name("dir"));
        at(&path, fs::create_dir(&path))?;
        self.own(&path)?;
        let mode = *self.rng.pick(&[0o755, 0o755, 0o755, 0o700, 0o2775, 0o1777, 0o3770]);
        at(&path, fs::set_permissions(&path, PermissionsExt::from_mode(mode)))?;
        self.attributes(&path)?;
        self.time(&path);
        self.dirs.push(path.clone());
        self.counts.dirs += 1;
        Ok(path)
    }

    fn file(&mut self, parent: &Path) -> Step {
        let path = parent.join(self.name("file"));
        let file = at(&path, File::create_new(&path))?;
        if self.rng.chance(self.spec.sparse) {
            at(&path, self.sparse(&file))?;
            self.counts.sparse += 1;
        } else {
            let length = self.length();
            at(&path, file.write_all_at(&self.rng.bytes(length), 0))?;
            self.counts.bytes += length as u64;
        }
        drop(file);
        self.own(&path)?;
        let mode = *self.rng.pick(&[0o644, 0o644, 0o644, 0o600, 0o755, 0o4755, 0o2755, 0o444, 0]);
        at(&path, fs::set_permissions(&path, PermissionsExt::from_mode(mode)))?;
        self.attributes(&path)?;
        self.time(&path);
        self.files.push(path);
        self.counts.files += 1;
        Ok(())
    }

    /// Draws the length of a file: mostly small, sometimes zero, rarely large.
    fn length(&mut self) -> usize {
        let ceiling = match self.rng.below(100) {
            0..5 => 0,
            5..70 => 4096,
            70..97 => 32 << 10,
            _ => self.spec.max_file,
        };
        let length = self.rng.below(ceiling.min(self.spec.max_file) + 1);
        usize::try_from(length).unwrap_or(usize::MAX)
    }

    fn sparse(&mut self, file: &File) -> io::Result<()> {
        const STEP: u64 = 64 << 10; // a multiple of any block size in use
        for _ in 0..=self.rng.below(4) {
            let start = self.rng.below(256) * STEP;
            let bytes = self.rng.bytes(4096);
            file.write_all_at(&bytes, start)?;
            self.counts.bytes += 4096;
        }
        file.set_len(256 * STEP + self.rng.below(STEP))
    }

    fn hard_link(&mut self) -> Step {
        let old = self.rng.pick(&self.files).clone();
        let parent = self.rng.pick(&self.dirs).clone();
        let path = parent.join(self.name("hard"));
        at(&path, fs::hard_link(&old, &path))?;
        self.counts.hard_links += 1;
        Ok(())
    }

    fn symlink(&mut self) -> Step {
        let parent = self.rng.pick(&self.dirs).clone();
        let path = parent.join(self.name("sym"));
        let target = match self.rng.below(4) {
            0 => OsString::from("nowhere/at/all"),
            1 => OsString::from("/etc/hostname"),
            2 => OsString::from_vec(vec![b'x'; 1000]),
            _ => self.rng.pick(&self.files).file_name().map_or_else(OsString::new, OsStr::to_owned),
        };
        at(&path, symlink(&target, &path))?;
        self.own(&path)?;
        self.time(&path);
        self.counts.symlinks += 1;
        Ok(())
    }

    fn special(&mut self) -> Step {
        let parent = self.rng.pick(&self.dirs).clone();
        let path = parent.join(self.name("special"));
        let kind = *self.rng.pick(&[FileType::Fifo, FileType::Socket]);
        at(&path, mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), 0).map_err(Into::into))?;
        self.own(&path)?;
        self.time(&path);
        self.counts.specials += 1;
        Ok(())
    }

    fn own(&mut self, path: &Path) -> Step {
        // Drawn even without `owners`, so that the rest of the tree does not depend on that.
        let (uid, gid) = (*self.rng.pick(&[0, 0, 1000, 1001, 65534]), *self.rng.pick(&[0, 0, 1000, 2000]));
        if self.spec.owners { at(path, lchown(path, Some(uid), Some(gid))) } else { Ok(()) }
    }

    fn attributes(&mut self, path: &Path) -> Step {
        if !self.rng.chance(self.spec.xattrs) {
            return Ok(());
        }
        for index in 0..=self.rng.below(3) {
            let length = self.rng.index(200);
            let value = self.rng.bytes(length);
            let name = format!("user.canopy.{index}");
            at(path, lsetxattr(path, name.as_str(), &value, XattrFlags::empty()).map_err(Into::into))?;
        }
        if self.rng.chance(500) {
            let acl = acl(self.rng.below(5000));
            let name = "system.posix_acl_access";
            at(path, lsetxattr(path, name, &acl, XattrFlags::empty()).map_err(Into::into))?;
        }
        self.counts.xattrs += 1;
        Ok(())
    }

    fn time(&mut self, path: &Path) {
        let tv_sec = match self.rng.below(100) {
            0 => -86_400,                                          // before 1970
            1 => 0x8000_0000_i64 + self.rng.below(1 << 20) as i64, // after 2038
            _ => 1_000_000_000 + self.rng.below(800_000_000) as i64,
        };
        let tv_nsec = i64::from(self.rng.below(1_000_000_000) as u32);
        self.times.push((path.to_owned(), Timespec { tv_sec, tv_nsec }));
    }

    /// Makes a name that is unique in the tree.
    fn name(&mut self, stem: &str) -> OsString {
        self.serial += 1;
        let serial = self.serial;
        if !self.rng.chance(self.spec.odd_names) {
            let suffix = *self.rng.pick(&["", ".txt", ".mkv", ".jpg", ".tar.gz", "~"]);
            return OsString::from(format!("{stem}-{serial:06}{suffix}"));
        }
        let odd: &[&[u8]] = &[
            b" lead and trail ",
            b"new\nline",
            b"tab\t",
            b"\xff\xfe\x80",
            b"-rf *",
            b"back\\slash",
            b"'\"$`;",
            "\u{e4}\u{f6}\u{fc} \u{65e5}\u{672c}".as_bytes(),
            "e\u{301}".as_bytes(),
            b"colon:equals=comma,",
            b"\x01\x7f",
            b".hidden",
            b"%s%n",
            b"[a-z]?{x,y}",
        ];
        let mut bytes = self.rng.pick(odd).to_vec();
        bytes.extend_from_slice(serial.to_string().as_bytes());
        if self.rng.chance(300) {
            bytes.resize(255, b'L');
        }
        OsStr::from_bytes(&bytes).to_owned()
    }
}

/// Encodes a POSIX ACL as the kernel's xattr: version 2, then tag, permissions and id of each entry, little-endian.
fn acl(uid: u64) -> Vec<u8> {
    const ANY: u32 = u32::MAX;
    let uid = u32::try_from(uid).unwrap_or(ANY);
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let entries: [(u16, u16, u32); 5] =
        [(0x01, 6, ANY), (0x02, 7, uid), (0x04, 4, ANY), (0x10, 7, ANY), (0x20, 4, ANY)];
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Fields, Tree};
    use crate::{Kind, LoopFs};

    #[test]
    fn a_seed_makes_the_same_tree_on_every_filesystem() {
        crate::require_root();
        let spec = TreeSpec::new(11, 600);
        let mut first: Option<(TreeCounts, Tree)> = None;
        for (kind, size) in [(Kind::Ext4, 512), (Kind::Xfs, 512), (Kind::Btrfs, 512)] {
            let branch = LoopFs::new(kind, size << 20);
            let root = branch.path().join("tree");
            fs::create_dir(&root).expect("a root");
            let made = populate(&root, &spec);
            let tree = Tree::capture(&root);
            match &first {
                None => first = Some((made, tree)),
                Some((counts, expected)) => {
                    assert_eq!(*counts, made);
                    expected.assert_same(&tree);
                }
            }
        }
        let (counts, tree) = first.expect("a tree");
        let all = [counts.hard_links, counts.symlinks, counts.specials, counts.sparse, counts.xattrs];
        assert!(all.iter().all(|&count| count > 0), "{counts:?}");
        assert!(
            tree.entries
                .keys()
                .any(|path| path.rsplit(|&b| b == b'/').next().is_some_and(|n| n.len() == 255))
        );
        assert_eq!(
            tree.len(),
            counts.dirs + counts.files + counts.hard_links + counts.symlinks + counts.specials
        );
    }

    #[test]
    fn another_seed_makes_another_tree() {
        let populate_one = |seed| {
            let dir = tempfile::tempdir().expect("a directory");
            let spec = TreeSpec { owners: false, ..TreeSpec::new(seed, 50) };
            populate(dir.path(), &spec);
            Tree::capture_with(dir.path(), Fields { owner: false, ..Fields::default() })
        };
        populate_one(3).assert_same(&populate_one(3));
        assert!(!populate_one(3).diff(&populate_one(4)).is_empty());
    }
}
