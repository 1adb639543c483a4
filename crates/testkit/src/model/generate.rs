//! Generating sequences of operations that interact: they use few names and few open files, most of which exist.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::op::Path;
use super::{Access, Change, Create, DIR_SLOTS, FILE_SLOTS, On, Op, RenameHow, Reserve, Whence, XattrHow};
use crate::Rng;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The targets of symlinks. They do not exist, because some system calls follow symlinks at the last component.
const TARGETS: [&str; 2] = ["nowhere", "no/where"];

/// All paths of one, two and three components.
static PATHS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let below = |parents: &[String]| -> Vec<String> {
        parents.iter().flat_map(|parent| NAMES.map(|name| format!("{parent}/{name}"))).collect()
    };
    let top: Vec<String> = NAMES.map(str::to_owned).to_vec();
    let second = below(&top);
    let third = below(&second);
    [top, second, third].concat()
});

fn path(text: &str) -> Option<Path> {
    PATHS.iter().find(|path| *path == text).map(String::as_str)
}

/// Generates `count` operations. A seed always gives the same ones.
pub fn generate(seed: u64, count: usize) -> Vec<Op> {
    let mut generator = Generator { rng: Rng::new(seed), likely: BTreeMap::new(), open: [false; FILE_SLOTS] };
    (0..count)
        .map(|_| {
            let op = generator.op();
            generator.remember(&op);
            op
        })
        .collect()
}

struct Generator {
    rng: Rng,
    /// What probably exists, with true for directories. It makes most operations succeed.
    likely: BTreeMap<Path, bool>,
    open: [bool; FILE_SLOTS],
}

impl Generator {
    fn any_path(&mut self) -> Path {
        &PATHS[self.rng.index(PATHS.len())]
    }

    fn among(&mut self, wanted: impl Fn(Path, bool) -> bool) -> Path {
        let paths: Vec<Path> =
            self.likely.iter().filter(|(path, dir)| wanted(path, **dir)).map(|(path, _)| *path).collect();
        if paths.is_empty() || self.rng.chance(80) {
            return self.any_path();
        }
        paths[self.rng.index(paths.len())]
    }

    /// Returns a path that mostly exists.
    fn path(&mut self) -> Path {
        self.among(|_, _| true)
    }

    fn file(&mut self) -> Path {
        self.among(|_, dir| !dir)
    }

    fn dir(&mut self) -> Path {
        if self.rng.chance(200) { "" } else { self.among(|_, dir| dir) }
    }

    /// Returns a path that mostly does not exist, in a directory that does.
    fn new_path(&mut self) -> Path {
        for _ in 0..6 {
            let (dir, name) = (self.dir(), *self.rng.pick(&NAMES));
            let text = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
            if let Some(path) = path(&text)
                && (!self.likely.contains_key(path) || self.rng.chance(60))
            {
                return path;
            }
        }
        self.any_path()
    }

    fn path_or_root(&mut self) -> Path {
        if self.rng.chance(80) { "" } else { self.path() }
    }

    /// Returns a slot that is mostly in use.
    fn file_slot(&mut self) -> usize {
        let slot = self.rng.index(FILE_SLOTS);
        let used = (slot..FILE_SLOTS).chain(0..slot).find(|slot| self.open[*slot]);
        used.filter(|_| !self.rng.chance(50)).unwrap_or(slot)
    }

    fn any_slot(&mut self) -> usize {
        self.rng.index(FILE_SLOTS)
    }

    fn dir_slot(&mut self) -> usize {
        self.rng.index(DIR_SLOTS)
    }

    fn on(&mut self) -> On {
        match self.rng.index(10) {
            0..6 => On::Path(self.path_or_root()),
            6..9 => On::File(self.file_slot()),
            _ => On::Dir(self.dir_slot()),
        }
    }

    fn dir_mode(&mut self) -> u32 {
        *self.rng.pick(&[0o755, 0o755, 0o700, 0o1777, 0o2775])
    }

    fn file_mode(&mut self) -> u32 {
        *self.rng.pick(&[0o644, 0o644, 0o600, 0o4755, 0o2755, 0o000])
    }

    /// Returns an offset, often near a page boundary.
    fn offset(&mut self) -> u64 {
        *self.rng.pick(&[0, 0, 1, 100, 4095, 4096, 5000, 8192, 12_288, 20_000])
    }

    fn len(&mut self) -> usize {
        *self.rng.pick(&[0, 1, 10, 100, 4096, 4097, 9000])
    }

    fn op(&mut self) -> Op {
        match self.rng.index(100) {
            0..10 => Op::Mkdir { path: self.new_path(), mode: self.dir_mode() },
            10..13 => Op::Mknod { path: self.new_path(), fifo: self.rng.chance(400), mode: self.file_mode() },
            13..15 => Op::Symlink { path: self.new_path(), target: TARGETS[self.rng.index(TARGETS.len())] },
            15..27 => self.open(),
            27..29 => Op::Tmpfile {
                slot: self.any_slot(),
                dir: self.dir(),
                exclusive: self.rng.chance(200),
                mode: self.file_mode(),
            },
            29..43 => self.data(),
            43..45 => Op::Close { slot: self.file_slot() },
            45..49 => Op::Unlink { path: self.file() },
            49..52 => Op::Rmdir { path: self.among(|_, dir| dir) },
            52..67 => self.rename(),
            67..71 => Op::Link { from: self.file(), to: self.new_path() },
            71..73 => Op::LinkOpen { slot: self.file_slot(), to: self.new_path() },
            73..81 => Op::Change { on: self.on(), change: self.change() },
            81..86 => Op::Xattr { on: self.on(), how: self.xattr() },
            86..89 => Op::Stat { on: self.on() },
            89..91 => Op::Same { on: self.on(), path: self.path() },
            91..96 => self.directory(),
            96 => Op::Readlink { path: self.file() },
            97 => Op::Statfs { path: self.path_or_root() },
            _ => Op::Forget,
        }
    }

    fn open(&mut self) -> Op {
        let create = *self.rng.pick(&[Create::No, Create::Missing, Create::Missing, Create::Exclusive]);
        Op::Open {
            slot: self.any_slot(),
            path: if create == Create::No || self.rng.chance(200) { self.file() } else { self.new_path() },
            access: *self.rng.pick(&[Access::Read, Access::Write, Access::Both, Access::Both]),
            create,
            truncate: self.rng.chance(150),
            append: self.rng.chance(150),
            mode: self.file_mode(),
        }
    }

    fn data(&mut self) -> Op {
        let slot = self.file_slot();
        match self.rng.index(10) {
            0..3 => {
                Op::Write { slot, offset: self.offset(), len: self.len(), seed: self.rng.below(200) as u8 }
            }
            3..5 => Op::Read { slot, offset: self.offset(), len: self.len() },
            5 | 6 => Op::Allocate {
                slot,
                how: *self.rng.pick(&[
                    Reserve::Extend,
                    Reserve::KeepSize,
                    Reserve::PunchHole,
                    Reserve::PunchHole,
                ]),
                offset: self.offset(),
                len: self.len() as u64,
            },
            7 => Op::Seek {
                slot,
                whence: *self.rng.pick(&[Whence::Data, Whence::Hole]),
                offset: self.offset(),
            },
            8 => Op::CopyRange {
                from: slot,
                from_offset: self.offset(),
                to: self.file_slot(),
                to_offset: self.offset(),
                len: self.len(),
            },
            _ => Op::Sync { slot },
        }
    }

    fn rename(&mut self) -> Op {
        let how = *self.rng.pick(&[
            RenameHow::Replace,
            RenameHow::Replace,
            RenameHow::Replace,
            RenameHow::NoReplace,
            RenameHow::Exchange,
        ]);
        let from = self.path();
        let is_dir = self.likely.get(from) == Some(&true);
        let to = match how {
            RenameHow::Exchange => self.path(),
            // Mostly replaces an entry of the same type.
            RenameHow::Replace if self.rng.chance(500) => {
                let kind = is_dir ^ self.rng.chance(100);
                self.among(|path, dir| path != from && dir == kind)
            }
            _ => self.new_path(),
        };
        Op::Rename { from, to, how }
    }

    fn change(&mut self) -> Change {
        let id = |rng: &mut Rng| *rng.pick(&[None, Some(0), Some(7), Some(1000)]);
        match self.rng.index(5) {
            0 => Change::Mode(if self.rng.chance(500) { self.dir_mode() } else { self.file_mode() }),
            // Never neither: such a chown(2) clears set-id bits, but a FUSE server cannot distinguish it from the
            // request that precedes a write, which keeps those of root's files.
            1 => match (id(&mut self.rng), id(&mut self.rng)) {
                (None, None) => Change::Owner { uid: Some(7), gid: None },
                (uid, gid) => Change::Owner { uid, gid },
            },
            2 | 3 => Change::Mtime(1_000_000 + self.rng.below(1000) as i64),
            _ => Change::Size(self.offset()),
        }
    }

    fn xattr(&mut self) -> XattrHow {
        let name = *self.rng.pick(&["user.one", "user.two"]);
        let value = *self.rng.pick(&["", "x", "a longer value"]);
        match self.rng.index(7) {
            0 | 1 => XattrHow::Set { name, value },
            2 => XattrHow::Create { name, value },
            3 => XattrHow::Replace { name, value },
            4 => XattrHow::Remove(name),
            5 => XattrHow::List,
            _ => XattrHow::Get(name),
        }
    }

    fn directory(&mut self) -> Op {
        let slot = self.dir_slot();
        match self.rng.index(8) {
            0..3 => Op::OpenDir { slot, path: self.dir() },
            3 => Op::SyncDir { slot },
            4 | 5 => Op::List { on: On::Dir(slot) },
            6 => Op::CloseDir { slot },
            _ => Op::List { on: On::Path(self.dir()) },
        }
    }

    fn has_dir(&self, path: &str) -> bool {
        path.is_empty() || self.likely.get(path) == Some(&true)
    }

    fn is_empty(&self, dir: &str) -> bool {
        !self.likely.keys().any(|path| is_below(path, dir))
    }

    fn make(&mut self, path: Path, is_dir: bool) {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if self.has_dir(parent) && !self.likely.contains_key(path) {
            self.likely.insert(path, is_dir);
        }
    }

    fn remember(&mut self, op: &Op) {
        match *op {
            Op::Mkdir { path, .. } => self.make(path, true),
            Op::Mknod { path, .. } | Op::Symlink { path, .. } => self.make(path, false),
            Op::Open { path, slot, create, .. } => {
                if create != Create::No {
                    self.make(path, false);
                }
                self.open[slot] = self.likely.get(path) == Some(&false);
            }
            Op::Tmpfile { slot, dir, .. } => self.open[slot] = self.has_dir(dir),
            Op::Close { slot } => self.open[slot] = false,
            Op::Link { from, to } if self.likely.get(from) == Some(&false) => self.make(to, false),
            Op::Unlink { path } if self.likely.get(path) == Some(&false) => drop(self.likely.remove(path)),
            Op::Rmdir { path } if self.has_dir(path) && self.is_empty(path) => drop(self.likely.remove(path)),
            Op::Rename { from, to, how } => self.moved(from, to, how),
            _ => {}
        }
    }

    fn moved(&mut self, from: Path, to: Path, how: RenameHow) {
        let (Some(&source), target) = (self.likely.get(from), self.likely.get(to).copied()) else { return };
        let parent = to.rsplit_once('/').map_or("", |(parent, _)| parent);
        let fits = match how {
            RenameHow::Replace => target.is_none_or(|target| target == source && self.is_empty(to)),
            RenameHow::NoReplace => target.is_none(),
            RenameHow::Exchange => target.is_some(),
        };
        if !fits || !self.has_dir(parent) || from == to || is_below(to, from) || is_below(from, to) {
            return;
        }
        let old = std::mem::take(&mut self.likely);
        for (known, is_dir) in old {
            let place = match (known.strip_prefix(from), known.strip_prefix(to)) {
                (Some(rest), _) if rest.is_empty() || rest.starts_with('/') => path(&format!("{to}{rest}")),
                (_, Some(rest)) if rest.is_empty() || rest.starts_with('/') => match how {
                    RenameHow::Exchange => path(&format!("{from}{rest}")),
                    _ => None,
                },
                _ => Some(known),
            };
            // Paths that become too deep are dropped.
            if let Some(place) = place {
                self.likely.insert(place, is_dir);
            }
        }
    }
}

fn is_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}
