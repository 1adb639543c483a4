//! What is remembered of one directory on one branch, and how it is stored.

use crate::fs::stat::{Attr, Time};

/// A name, and what it led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub name: Box<[u8]>,
    pub attr: Attr,
    /// The target of a symlink.
    pub link: Option<Box<[u8]>>,
    /// What the attribute of `canopy verify` said.
    pub checksum: Option<Box<[u8]>>,
}

/// A directory, and all its names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    pub own: Attr,
    /// In the order of the names.
    pub rows: Vec<Row>,
}

impl Listing {
    pub(super) fn new(own: Attr, mut rows: Vec<Row>) -> Listing {
        rows.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        rows.dedup_by(|one, other| one.name == other.name);
        Listing { own, rows }
    }

    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&Row> {
        let at = self.rows.binary_search_by(|row| (*row.name).cmp(name)).ok()?;
        self.rows.get(at)
    }

    pub(super) fn encode(&self, out: &mut Out) {
        out.attr(&self.own);
        out.number(self.rows.len() as u64);
        for row in &self.rows {
            out.bytes(&row.name);
            out.attr(&row.attr);
            for part in [&row.link, &row.checksum] {
                out.bytes(part.as_deref().unwrap_or_default());
            }
        }
    }

    pub(super) fn decode(from: &mut In<'_>) -> Option<Listing> {
        let own = from.attr()?;
        let count = usize::try_from(from.number()?).ok()?;
        let mut rows = Vec::with_capacity(count.min(from.0.len()));
        for _ in 0..count {
            let (name, attr) = (from.bytes()?.into(), from.attr()?);
            let mut part = || from.bytes().map(|bytes| (!bytes.is_empty()).then(|| bytes.into()));
            rows.push(Row { name, attr, link: part()?, checksum: part()? });
        }
        Some(Listing { own, rows })
    }
}

/// Numbers are stored in as many groups of seven bits as they need.
#[derive(Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn attr(&mut self, attr: &Attr) {
        let Attr { ino, size, blocks, mode, nlink, uid, gid, dev, rdev, blksize, mask, .. } = *attr;
        let short = [mode, nlink, uid, gid, rdev.0, rdev.1, blksize, mask].map(u64::from);
        [ino, size, blocks, dev, attr.attributes, attr.attributes_mask]
            .into_iter()
            .chain(short)
            .for_each(|number| self.number(number));
        for time in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
            self.number(((time.sec << 1) ^ (time.sec >> 63)).cast_unsigned());
            self.number(u64::from(time.nsec));
        }
    }
}

pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn attr(&mut self) -> Option<Attr> {
        let mut long = [0; 6];
        for number in &mut long {
            *number = self.number()?;
        }
        let mut short = [0; 8];
        for number in &mut short {
            *number = u32::try_from(self.number()?).ok()?;
        }
        let mut times = [Time::default(); 4];
        for time in &mut times {
            let sec = self.number()?;
            let sec = (sec >> 1).cast_signed() ^ -((sec & 1).cast_signed());
            *time = Time { sec, nsec: u32::try_from(self.number()?).ok()? };
        }
        let [ino, size, blocks, dev, attributes, attributes_mask] = long;
        let [mode, nlink, uid, gid, major, minor, blksize, mask] = short;
        let [atime, mtime, ctime, btime] = times;
        let rdev = (major, minor);
        Some(Attr {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            dev,
            blksize,
            attributes,
            attributes_mask,
            mask,
        })
    }
}
