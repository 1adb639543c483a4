//! What is remembered of one directory on one branch, and how it is stored.

use crate::fs::packed::{Packer, Unpacker};
use crate::fs::stat::Attr;

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

    pub(super) fn encode(&self, out: &mut Packer) {
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

    pub(super) fn decode(from: &mut Unpacker<'_>) -> Option<Listing> {
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
