//! One listing out of those of the branches.

use super::{DT_DIR, DT_LNK, DT_UNKNOWN, Listing, RawListing, read_names};
use crate::beneath;
use crate::branch::{Branch, Branches};
use crate::config::FollowSymlinks;
use crate::follow::Follow;
use crate::health::Deed;
use crate::inode::DirentInodes;
use crate::node::{Identity, Node};
use crate::relocate::is_reserved;
use crate::{Error, NodeId, Pool, Result};
use hashbrown::HashTable;
use rapidhash::fast::RandomState;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::hash::BuildHasher;

/// A listing in the making. Branches come in their order.
pub(super) struct Merge<'p> {
    pool: &'p Pool,
    node: &'p Node,
    branches: &'p Branches,
    listing: Listing,
    /// Where the names are in the listing, once more than one branch has any.
    seen: Option<HashTable<u32>>,
    hasher: RandomState,
    inodes: DirentInodes,
    follow: Follow,
    following: bool,
    disguising: bool,
    /// Inode numbers of the directory and of the one above.
    own: u64,
    above: u64,
    failed: Option<Errno>,
}

impl<'p> Merge<'p> {
    pub(super) fn new(pool: &'p Pool, node: &'p Node, path: &[u8], branches: &'p Branches) -> Self {
        let own = match node.identity() {
            Identity::Directory { ino } => ino,
            Identity::File(_) => 0,
        };
        let above = pool.nodes.parent(node.id).ok().and_then(|id| pool.nodes.get(id).ok());
        let above = match above.map(|parent| parent.identity()) {
            Some(Identity::Directory { ino }) => ino,
            _ => own,
        };
        let (config, follow) = (pool.config(), pool.follow());
        Merge {
            pool,
            node,
            branches,
            listing: Listing::default(),
            seen: None,
            hasher: RandomState::new(),
            inodes: DirentInodes::new(config.inode, path),
            follow,
            following: config.follow_symlinks != FollowSymlinks::Never,
            disguising: follow.may_disguise(),
            own,
            above,
            failed: branches.unheard(),
        }
    }

    /// Adds what the next branch has, straight from the filesystem.
    pub(super) fn read(&mut self, index: usize, dir: Result<OwnedFd, Errno>) {
        let Some(dir) = self.begin(index, dir) else { return };
        let branches = self.branches;
        let branch = &branches.as_slice()[index];
        let read = read_names(dir.as_fd(), |name, kind, ino| {
            self.add(index, branch, dir.as_fd(), name, kind, ino);
        });
        self.end(branch, dir, read.err());
    }

    /// Adds what has been read of the next branch.
    pub(super) fn take(&mut self, index: usize, raw: Result<RawListing, Errno>) {
        let Some(raw) = self.begin(index, raw) else { return };
        let branches = self.branches;
        let branch = &branches.as_slice()[index];
        for &(start, len, kind, ino) in &raw.items {
            let name = &raw.names[start as usize..][..usize::from(len)];
            self.add(index, branch, raw.dir.as_fd(), name, kind, ino);
        }
        self.end(branch, raw.dir, raw.broken);
    }

    fn begin<T>(&mut self, index: usize, dir: Result<T, Errno>) -> Option<T> {
        match dir {
            Ok(dir) => {
                if self.listing.items.is_empty() {
                    self.listing.push(b".", DT_DIR, index, self.own);
                    self.listing.push(b"..", DT_DIR, index, self.above);
                } else {
                    self.remember();
                }
                Some(dir)
            }
            Err(errno) => {
                if !beneath::is_absent(errno) {
                    self.failed.get_or_insert(self.branches[index].notice(errno, Deed::Looking));
                }
                self.listing.sources.push(None);
                None
            }
        }
    }

    /// Another branch has the directory too: from now on names are told apart. Those of one branch are apart already.
    fn remember(&mut self) {
        if self.seen.is_some() {
            return;
        }
        let (listing, hasher) = (&self.listing, &self.hasher);
        let hash = |&at: &u32| hasher.hash_one(listing.name(&listing.items[at as usize]));
        let mut seen = HashTable::with_capacity(2 * listing.items.len());
        for at in 0..listing.items.len() as u32 {
            seen.insert_unique(hash(&at), at, hash);
        }
        self.seen = Some(seen);
    }

    fn add(&mut self, index: usize, branch: &Branch, dir: BorrowedFd<'_>, name: &[u8], kind: u8, ino: u64) {
        let (mut kind, mut ino) = (kind, ino);
        if matches!(name, b"." | b"..") || is_reserved(name) {
            return;
        }
        if let Some(seen) = &mut self.seen {
            let (listing, hasher) = (&self.listing, &self.hasher);
            let named = |&at: &u32| listing.name(&listing.items[at as usize]);
            let hash = hasher.hash_one(name);
            if seen.find(hash, |at| named(at) == name).is_some() {
                return;
            }
            seen.insert_unique(hash, listing.items.len() as u32, |at| hasher.hash_one(named(at)));
        }
        if (kind == DT_UNKNOWN || kind == DT_LNK && self.following)
            && let Ok(attr) = self.follow.at(dir, name)
        {
            (kind, ino) = (attr.dirent_type(), attr.ino);
        }
        let shown = self.inodes.inode(branch.seed, name, ino, kind == DT_DIR);
        if self.disguising && !matches!(kind, DT_DIR | DT_LNK) {
            // Only its age could tell what it is shown as, and that may have changed when somebody looks.
            kind = DT_UNKNOWN;
        }
        let ino = match kind {
            DT_DIR => self.pool.nodes.dir_number(self.node.id, name, shown),
            _ => self.pool.nodes.kept_number(branch.dev, ino).unwrap_or(shown),
        };
        self.listing.push(name, kind, index, ino);
    }

    fn end(&mut self, branch: &Branch, dir: OwnedFd, broken: Option<Errno>) {
        if let Some(errno) = broken {
            branch.notice(errno, Deed::Looking);
            tracing::warn!("the listing of a directory on {} is incomplete: {errno}", branch.path.display());
        }
        self.listing.sources.push(Some((branch.id, dir)));
    }

    pub(super) fn finish(self) -> Result<Listing> {
        let Merge { mut listing, failed, own, .. } = self;
        match failed {
            _ if !listing.items.is_empty() => Ok(listing),
            Some(errno) => Err(Error::Branch(errno)),
            None if self.node.id != NodeId::ROOT => Err(Error::Absent),
            None => {
                listing.push(b".", DT_DIR, 0, own);
                listing.push(b"..", DT_DIR, 0, own);
                listing.push(b"error: no valid canopy branch found, check config", DT_UNKNOWN, 0, 0);
                Ok(listing)
            }
        }
    }
}
