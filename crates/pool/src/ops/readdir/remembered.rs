//! The names of missing branches in a listing. They come after all others, in the order of their hashes.
//!
//! Whoever mirrors the pool deletes what a listing lacks. So a listing that cannot tell all names of a missing branch gives those
//! that it knows, and then fails. One during which a branch goes or comes fails at once.

use crate::config::MissingNames;
use crate::dir::listing::cursor::{Cursor, RememberedName};
use crate::dir::listing::position::{self, BranchPosition, Position, REMEMBERED};
use crate::node::Node;
use crate::ops::names::missing;
use crate::pool::Op;
use canopy_base::error::{Error, Result};
use rustix::io::Errno;
use std::cmp::Reverse;
use std::time::Duration;

/// How long after a branch has gone or come a listing is not resumed that may have begun before.
const BEGUN_BEFORE: Duration = Duration::from_secs(600);

/// What a listing has of missing branches.
#[derive(Default)]
pub(super) struct Part {
    pub(super) names: Vec<RememberedName>,
    pub(super) lacks: Option<Errno>,
    /// A missing branch has the directory.
    pub(super) exists: bool,
    /// The kernel may not keep the listing for long.
    pub(super) counts: bool,
}

impl Part {
    /// Returns the names after a position. `failed`: the error of a branch that cannot be read.
    pub(super) fn of(
        op: &Op<'_>,
        node: &Node,
        path: &[u8],
        at: Position,
        failed: Option<Errno>,
    ) -> Result<Part> {
        if op.config.missing == MissingNames::Hide {
            return Ok(Part::default());
        }
        let mut part = Part { lacks: failed, ..Part::default() };
        let after = match at {
            Position::At { mark: REMEMBERED, place: BranchPosition::Offset(place), .. } => Some(place),
            _ => None,
        };
        let missing = op.branches.missing();
        if missing.is_empty() {
            // They are on a branch again, where they may have been passed over.
            return if after.is_some() { Err(Error::Branch(Errno::IO)) } else { Ok(part) };
        }
        part.counts = true;
        let names = missing.names(path);
        part.exists = names.exists || names.unknown;
        if names.unknown || names.unread || matches!(at, Position::Narrow(_)) && names.exists {
            part.lacks = part.lacks.or(Some(Errno::IO));
        }
        if op.config.inode.has_32_bits() && names.exists {
            // Positions of 31 bits have no room for them.
            part.lacks = Some(Errno::IO);
            return Ok(part);
        }
        for (name, found) in names.found {
            let place = position::hash(&name);
            if after.is_none_or(|after| place > after) {
                let kind = found.row.attr.dirent_type();
                let ino = missing::listed_ino(op, node, path, &name, &found);
                part.names.push(RememberedName { place, name, kind, ino });
            }
        }
        part.names.sort_unstable_by_key(|name| Reverse(name.place));
        Ok(part)
    }
}

impl Cursor {
    /// Adds some of the names of missing branches, except those that the others hold as well. Returns whether there are more.
    pub(super) fn add_remembered(&mut self) -> bool {
        /// As many as fit into an answer, more or less.
        const AT_ONCE: usize = 128;
        self.reading = self.sources.len();
        for _ in 0..AT_ONCE {
            let Some(RememberedName { place, name, kind, ino }) = self.remembered.pop() else { return false };
            if !self.sources.iter().any(|source| source.holds(&name)) {
                self.push(&name, kind, ino, Position::new(0, REMEMBERED, BranchPosition::Offset(place)));
            }
        }
        true
    }
}

/// Fails where a listing can give nothing more, though there may be more.
pub(super) fn check_end(cursor: &Cursor, given: usize) -> Result<()> {
    match cursor.lacks.filter(|_| given == 0 && cursor.ended && cursor.items.is_empty()) {
        Some(errno) => Err(Error::Branch(errno)),
        None => Ok(()),
    }
}

/// Fails where a listing would go on over other branches than it began with.
pub(super) fn check_branches(op: &Op<'_>, at: Position, parked: Option<&Cursor>) -> Result<()> {
    if op.config.missing == MissingNames::Hide || matches!(at, Position::Start(_) | Position::End) {
        return Ok(());
    }
    let others = parked.map_or_else(
        || op.branches.missing().has_changed(BEGUN_BEFORE),
        |cursor| !cursor.branches.are(&op.branches),
    );
    if others { Err(Error::Branch(Errno::IO)) } else { Ok(()) }
}
