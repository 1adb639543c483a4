//! What is known of one directory: a row for each of its names, in the order of its listing, and how rows are stored.

use canopy_base::hash::{self, Hashed};
use canopy_base::ids::BranchId;
use canopy_branch::fs::packed::{Packer, Unpacker};
use canopy_branch::fs::stat::{Attr, FileKey};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What is known of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) name: Box<[u8]>,
    /// As in getdents64(2): the position after it, its type, and its inode number.
    pub(crate) next: u64,
    pub(crate) kind: u8,
    pub(crate) ino: u64,
    pub(crate) facts: Option<Box<Facts>>,
}

/// What is known of that which a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    /// The number of the latest change before it was looked at.
    pub(crate) since: u64,
    /// Until when it may be relied on, in seconds since the epoch, if nothing is told of it.
    pub(crate) until: i64,
    /// As clients see it.
    pub(crate) attr: Attr,
    /// The copies: of a file, the one that is shown; of a directory, all.
    pub(crate) copies: SmallVec<[Copy; 1]>,
    /// The inode number that the file keeps; 0 for none.
    pub(crate) number: u64,
    /// The target of a symlink.
    pub(crate) link: Option<Box<[u8]>>,
    /// It has no extended attribute and no ACL.
    pub(crate) is_plain: bool,
}

/// A file or directory on a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copy {
    pub(crate) branch: BranchId,
    pub(crate) key: FileKey,
    /// The hash of its file handle, which events carry.
    pub(crate) handle: u64,
}

/// The rows of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rows {
    list: Vec<Row>,
    by_name: HashMap<u64, u32, std::hash::BuildHasherDefault<Hashed>>,
}

/// Returns the hash by which names are found and doubted.
pub(crate) fn name_hash(name: &[u8]) -> u64 {
    hash::of(name)
}

impl Rows {
    /// Returns the rows with an index; `None` if two names have one hash, or one name occurs twice.
    pub(crate) fn new(list: Vec<Row>) -> Option<Rows> {
        let mut by_name = HashMap::with_capacity_and_hasher(list.len(), Default::default());
        for (at, row) in list.iter().enumerate() {
            match by_name.entry(name_hash(&row.name)) {
                Entry::Occupied(_) => return None,
                Entry::Vacant(free) => free.insert(u32::try_from(at).ok()?),
            };
        }
        Some(Rows { list, by_name })
    }

    pub(crate) fn list(&self) -> &[Row] {
        &self.list
    }

    /// Returns how many rows are before a position.
    pub(crate) fn after(&self, position: u64) -> Option<usize> {
        Some(self.list.iter().position(|row| row.next == position)? + 1)
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Row> {
        let at = *self.by_name.get(&name_hash(name))?;
        Some(&self.list[at as usize]).filter(|row| *row.name == *name)
    }

    /// Passes what is known of each name to `change`, and forgets that of which it returns false.
    pub(crate) fn each_facts(&mut self, mut change: impl FnMut(&mut Facts) -> bool) {
        for row in &mut self.list {
            if row.facts.as_deref_mut().is_some_and(|facts| !change(facts)) {
                row.facts = None;
            }
        }
    }

    pub(crate) fn get_mut(&mut self, name: &[u8]) -> Option<&mut Row> {
        let at = *self.by_name.get(&name_hash(name))?;
        Some(&mut self.list[at as usize]).filter(|row| *row.name == *name)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Packer(Vec::with_capacity(self.list.len() * 96));
        out.number(self.list.len() as u64);
        for row in &self.list {
            out.bytes(&row.name);
            out.0.extend(row.next.to_le_bytes());
            out.0.push(row.kind);
            out.number(row.ino);
            match &row.facts {
                None => out.number(0),
                Some(facts) => facts.encode(&mut out),
            }
        }
        out.0
    }

    /// Returns `None` for what is not the whole of what [`Rows::encode`] has written.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Rows> {
        let mut from = Unpacker(bytes);
        let count = from.number()?;
        let mut list = Vec::with_capacity(usize::try_from(count).ok()?.min(bytes.len()));
        for _ in 0..count {
            let name = from.bytes()?.into();
            let (next, kind) = (u64::from_le_bytes(from.take()?), from.take::<1>()?[0]);
            let (ino, facts) = (from.number()?, Facts::decode(&mut from)?);
            list.push(Row { name, next, kind, ino, facts });
        }
        from.0.is_empty().then(|| Rows::new(list))?
    }
}

/// That facts follow, and which of the parts that most lack.
const THERE: u64 = 1;
const LINK: u64 = 2;
const PLAIN: u64 = 4;

impl Facts {
    fn encode(&self, out: &mut Packer) {
        let parts = [(THERE, true), (LINK, self.link.is_some()), (PLAIN, self.is_plain)];
        out.number(parts.iter().filter(|(_, there)| *there).map(|(part, _)| part).sum());
        out.number(self.since);
        out.signed(self.until);
        out.attr(&self.attr);
        out.number(self.number);
        out.number(self.copies.len() as u64);
        for copy in &self.copies {
            out.number(u64::from(copy.branch.0));
            out.number(copy.key.dev);
            out.number(copy.key.ino);
            out.time(copy.key.birth);
            out.0.extend(copy.handle.to_le_bytes());
        }
        if let Some(link) = &self.link {
            out.bytes(link);
        }
    }

    fn decode(from: &mut Unpacker<'_>) -> Option<Option<Box<Facts>>> {
        let parts = from.number()?;
        if parts & THERE == 0 {
            return Some(None);
        }
        let (since, until) = (from.number()?, from.signed()?);
        let (attr, number) = (from.attr()?, from.number()?);
        let mut copies = SmallVec::new();
        for _ in 0..from.number()? {
            let branch = BranchId(u32::try_from(from.number()?).ok()?);
            let key = FileKey { dev: from.number()?, ino: from.number()?, birth: from.time()? };
            copies.push(Copy { branch, key, handle: u64::from_le_bytes(from.take()?) });
        }
        let link = if parts & LINK == 0 { None } else { Some(from.bytes()?.into()) };
        let is_plain = parts & PLAIN != 0;
        Some(Some(Box::new(Facts { since, until, attr, copies, number, link, is_plain })))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use canopy_branch::fs::stat::Time;

    pub(crate) fn row(name: &str, next: u64, since: u64, handles: &[u64]) -> Row {
        let key = |ino| FileKey { dev: 66, ino, birth: (-5, 999_999_999) };
        let attr = Attr {
            ino: u64::MAX,
            size: next,
            mtime: Time { sec: i64::MIN, nsec: 7 },
            nlink: 1,
            ..Attr::default()
        };
        let copy = |handle: &u64| Copy { branch: BranchId(3), key: key(*handle), handle: *handle };
        let facts = Facts {
            since,
            until: i64::MAX,
            attr,
            copies: handles.iter().map(copy).collect(),
            number: 12,
            link: next.is_multiple_of(2).then(|| Box::from(&b"to/there"[..])),
            is_plain: next.is_multiple_of(3),
        };
        Row { name: name.as_bytes().into(), next, kind: 8, ino: 1 << 63, facts: Some(Box::new(facts)) }
    }

    #[test]
    fn rows_come_back_as_they_were_stored() {
        let mut list: Vec<Row> =
            (0..50).map(|at| row(&format!("name {at}"), at << 50, at, &[at, at + 1])).collect();
        list[7].facts = None;
        let rows = Rows::new(list.clone()).unwrap();
        let bytes = rows.encode();
        assert_eq!(Rows::decode(&bytes).unwrap(), rows);
        assert_eq!(rows.get(b"name 7"), Some(&list[7]));
        assert_eq!(rows.get(b"name"), None);
        assert!((0..bytes.len()).all(|end| Rows::decode(&bytes[..end]).is_none()), "a part is nothing");
        assert!(Rows::decode(&[bytes, vec![0]].concat()).is_none());
        list.push(row("name 7", 1, 1, &[]));
        assert!(Rows::new(list).is_none(), "a name twice");
    }
}
