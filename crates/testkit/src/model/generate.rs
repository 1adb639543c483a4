//! Sequences of operations that meet each other: few names, few open files, and a memory of what may exist.

use std::sync::LazyLock;

use super::op::Path;
use super::{Access, Change, Create, DIR_SLOTS, FILE_SLOTS, On, Op, RenameHow, Reserve, Whence, XattrHow};
use crate::Rng;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// All paths of one, two and three names.
static PATHS: LazyLock<[Vec<String>; 3]> = LazyLock::new(|| {
    let below = |parents: &[String]| -> Vec<String> {
        parents.iter().flat_map(|parent| NAMES.map(|name| format!("{parent}/{name}"))).collect()
    };
    let top: Vec<String> = NAMES.map(str::to_owned).to_vec();
    let (second, third) = (below(&top), below(&below(&top)));
    [top, second, third]
});

/// `count` operations, the same for the same seed.
pub fn generate(seed: u64, count: usize) -> Vec<Op> {
    let mut maker = Maker { rng: Rng::new(seed), likely: Vec::new() };
    (0..count)
        .map(|_| {
            let op = maker.op();
            maker.remember(&op);
            op
        })
        .collect()
}

struct Maker {
    rng: Rng,
    /// What was made and not removed since, if all went well.
    likely: Vec<Path>,
}

impl Maker {
    fn any_path(&mut self) -> Path {
        let depth = [0, 0, 0, 1, 1, 1, 1, 2][self.rng.index(8)];
        let paths = &PATHS[depth];
        &paths[self.rng.index(paths.len())]
    }

    /// Mostly something that exists.
    fn path(&mut self) -> Path {
        if self.likely.is_empty() || self.rng.chance(250) {
            return self.any_path();
        }
        self.likely[self.rng.index(self.likely.len())]
    }

    /// Mostly something that does not exist.
    fn new_path(&mut self) -> Path {
        let mut path = self.any_path();
        for _ in 0..3 {
            if !self.likely.contains(&path) || self.rng.chance(100) {
                break;
            }
            path = self.any_path();
        }
        path
    }

    fn path_or_root(&mut self) -> Path {
        if self.rng.chance(80) { "" } else { self.path() }
    }

    fn file_slot(&mut self) -> usize {
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

    /// Near page boundaries, where mistakes live.
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
            13..16 => Op::Symlink { path: self.new_path(), target: *self.rng.pick(&["nowhere", "no/where"]) },
            16..29 => self.open(),
            29..31 => Op::Tmpfile {
                slot: self.file_slot(),
                dir: self.path_or_root(),
                exclusive: self.rng.chance(200),
                mode: self.file_mode(),
            },
            31..40 => self.data(),
            40..43 => Op::Close { slot: self.file_slot() },
            43..48 => Op::Unlink { path: self.path() },
            48..52 => Op::Rmdir { path: self.path() },
            52..65 => self.rename(),
            65..70 => Op::Link { from: self.path(), to: self.new_path() },
            70..72 => Op::LinkOpen { slot: self.file_slot(), to: self.new_path() },
            72..80 => Op::Change { on: self.on(), change: self.change() },
            80..85 => Op::Xattr { on: self.on(), how: self.xattr() },
            85..89 => Op::Stat { on: self.on() },
            89..91 => Op::Same { on: self.on(), path: self.path() },
            91..96 => self.directory(),
            96 => Op::Readlink { path: self.path() },
            97 => Op::Statfs { path: self.path_or_root() },
            _ => Op::Forget,
        }
    }

    fn open(&mut self) -> Op {
        let create = *self.rng.pick(&[Create::No, Create::Missing, Create::Missing, Create::Exclusive]);
        Op::Open {
            slot: self.file_slot(),
            path: if create == Create::No { self.path() } else { self.new_path() },
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
                how: *self.rng.pick(&[Reserve::Extend, Reserve::KeepSize, Reserve::PunchHole, Reserve::PunchHole]),
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
        let onto = how == RenameHow::Exchange || self.rng.chance(400);
        Op::Rename { from, to: if onto { self.path() } else { self.new_path() }, how }
    }

    fn change(&mut self) -> Change {
        let id = |rng: &mut Rng| *rng.pick(&[None, Some(0), Some(7), Some(1000)]);
        match self.rng.index(5) {
            0 => Change::Mode(if self.rng.chance(500) { self.dir_mode() } else { self.file_mode() }),
            1 => Change::Owner { uid: id(&mut self.rng), gid: id(&mut self.rng) },
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
            0 | 1 => Op::OpenDir { slot, path: self.path_or_root() },
            2 => Op::CloseDir { slot },
            3 => Op::SyncDir { slot },
            4 => Op::List { on: On::Dir(slot) },
            _ => Op::List { on: On::Path(self.path_or_root()) },
        }
    }

    fn remember(&mut self, op: &Op) {
        let mut add = None;
        match *op {
            Op::Mkdir { path, .. } | Op::Mknod { path, .. } | Op::Symlink { path, .. } => add = Some(path),
            Op::Open { path, create: Create::Missing | Create::Exclusive, .. } => add = Some(path),
            Op::Link { to, .. } | Op::LinkOpen { to, .. } => add = Some(to),
            Op::Rename { from, to, how } => {
                if how != RenameHow::Exchange {
                    self.likely.retain(|path| *path != from);
                }
                add = Some(to);
            }
            Op::Unlink { path } | Op::Rmdir { path } => self.likely.retain(|known| *known != path),
            _ => {}
        }
        if let Some(path) = add
            && !self.likely.contains(&path)
        {
            self.likely.push(path);
        }
    }
}
