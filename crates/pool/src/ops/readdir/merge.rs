//! One listing out of those of the branches.

use super::{DT_DIR, DT_LNK, DT_UNKNOWN, Listing, Source, read_names};
use crate::beneath;
use crate::branch::Branches;
use crate::config::FollowSymlinks;
use crate::follow::Follow;
use crate::health::Deed;
use crate::inode::DirentInodes;
use crate::node::{Identity, Node};
use crate::relocate::is_reserved;
use crate::{Error, NodeId, Pool, Result};
use hashbrown::HashTable;
use rapidhash::fast::RandomState;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

/// What has not been read yet of a listing. Branches come in their order.
pub(super) struct Merge {
    /// How often directories and files had moved when it was begun ([`TreeLock::moves`](crate::tree::TreeLock::moves)).
    pub(super) moves: u64,
    branches: Arc<Branches>,
    /// With the branch's place among them.
    sources: VecDeque<(usize, Source)>,
    /// What is being read: the last source of the listing.
    reading: Option<(usize, Arc<OwnedFd>)>,
    /// The device of that source.
    dev: u64,
    /// Where the names are in the listing, once a name could come twice: more than one branch has any, or time has passed.
    seen: Option<HashTable<u32>>,
    hasher: RandomState,
    inodes: DirentInodes,
    follow: Follow,
    following: bool,
    disguising: bool,
}

impl Merge {
    /// Begins the listing of a directory. `opened` is in the order of the branches.
    pub(super) fn begin(
        pool: &Pool,
        node: &Node,
        path: &[u8],
        branches: Arc<Branches>,
        opened: Vec<Result<Source, Errno>>,
    ) -> Result<Listing> {
        let own = match node.identity() {
            Identity::Directory { ino } => ino,
            Identity::File(_) => 0,
        };
        let above = pool.nodes.parent(node.id).ok().and_then(|id| pool.nodes.get(id).ok());
        let above = match above.map(|parent| parent.identity()) {
            Some(Identity::Directory { ino }) => ino,
            _ => own,
        };
        let (mut sources, mut failed) = (VecDeque::new(), branches.unheard());
        for (index, opened) in opened.into_iter().enumerate() {
            match opened {
                Ok(source) => {
                    pool.memory.admit_listing(source.dir())?;
                    sources.push_back((index, source));
                }
                Err(errno) if beneath::is_absent(errno) => {}
                Err(errno) => {
                    failed.get_or_insert(branches[index].notice(errno, Deed::Looking));
                }
            }
        }
        let mut listing = Listing::default();
        listing.push(b".", DT_DIR, 0, own);
        listing.push(b"..", DT_DIR, 0, above);
        match failed {
            _ if !sources.is_empty() => {
                let (config, follow) = (pool.config(), pool.follow());
                listing.rest = Some(Box::new(Merge {
                    moves: pool.tree.moves(),
                    branches,
                    sources,
                    reading: None,
                    dev: 0,
                    seen: None,
                    hasher: RandomState::new(),
                    inodes: DirentInodes::new(config.inode, path),
                    follow,
                    following: config.follow_symlinks != FollowSymlinks::Never,
                    disguising: follow.may_disguise(),
                }));
                Ok(listing)
            }
            Some(errno) => Err(Error::Branch(errno)),
            None if node.id != NodeId::ROOT => Err(Error::Absent),
            None => {
                listing.push(b"error: no valid canopy branch found, check config", DT_UNKNOWN, 0, 0);
                Ok(listing)
            }
        }
    }

    /// Adds what the next buffer of names holds. False when there are none left.
    pub(super) fn read(&mut self, pool: &Pool, node: &Node, listing: &mut Listing) -> bool {
        loop {
            let (index, dir) = match self.reading.take() {
                Some(reading) => reading,
                None => {
                    let Some((index, source)) = self.sources.pop_front() else { return false };
                    if !listing.sources.is_empty() {
                        self.remember(listing);
                    }
                    let id = self.branches[index].id;
                    self.dev = source.device().unwrap_or(self.branches[index].dev);
                    match source {
                        Source::Dir(dir) => {
                            let dir = Arc::new(dir);
                            listing.sources.push((id, Arc::clone(&dir)));
                            (index, dir)
                        }
                        Source::Names(raw) => {
                            listing.sources.push((id, Arc::new(raw.dir)));
                            for &(start, len, kind, ino) in &raw.items {
                                let name = &raw.names[start as usize..][..usize::from(len)];
                                self.add(pool, node, listing, index, name, kind, ino);
                            }
                            self.ended(index, raw.broken);
                            return true;
                        }
                    }
                }
            };
            let read = read_names(dir.as_fd(), |name, kind, ino| {
                self.add(pool, node, listing, index, name, kind, ino);
            });
            match read {
                Ok(true) => {
                    self.reading = Some((index, dir));
                    return true;
                }
                Ok(false) => {}
                Err(errno) => self.ended(index, Some(errno)),
            }
        }
    }

    /// From now on names are told apart. Those that one branch gives in one go are apart already.
    pub(super) fn remember(&mut self, listing: &Listing) {
        if self.seen.is_some() {
            return;
        }
        let hasher = &self.hasher;
        let hash = |&at: &u32| hasher.hash_one(listing.name(&listing.items[at as usize]));
        let mut seen = HashTable::with_capacity(2 * listing.items.len());
        for at in 0..listing.items.len() as u32 {
            seen.insert_unique(hash(&at), at, hash);
        }
        self.seen = Some(seen);
    }

    #[allow(clippy::too_many_arguments)]
    fn add(
        &mut self,
        pool: &Pool,
        node: &Node,
        listing: &mut Listing,
        index: usize,
        name: &[u8],
        kind: u8,
        ino: u64,
    ) {
        let (mut kind, mut ino) = (kind, ino);
        if matches!(name, b"." | b"..") || is_reserved(name) {
            return;
        }
        if let Some(seen) = &mut self.seen {
            let hasher = &self.hasher;
            let named = |&at: &u32| listing.name(&listing.items[at as usize]);
            let hash = hasher.hash_one(name);
            if seen.find(hash, |at| named(at) == name).is_some() {
                return;
            }
            seen.insert_unique(hash, listing.items.len() as u32, |at| hasher.hash_one(named(at)));
        }
        let mut dev = self.dev;
        // A listing has the number of the directory on which another filesystem is mounted.
        let doubtful = kind == DT_DIR && !self.inodes.uses_path(true);
        if (kind == DT_UNKNOWN || kind == DT_LNK && self.following || doubtful)
            && let Some((_, dir)) = listing.sources.last()
            && let Ok(attr) = self.follow.at(dir, name)
        {
            (kind, ino, dev) = (attr.dirent_type(), attr.ino, attr.dev);
        }
        let branch = &self.branches[index];
        let dir = listing.sources.last().map(|(_, dir)| dir);
        let seed = pool.seed(branch, dev, || self.follow.pin(dir?, name).ok());
        let shown = self.inodes.inode(seed, name, ino, kind == DT_DIR);
        if self.disguising && !matches!(kind, DT_DIR | DT_LNK) {
            // Only its age could tell what it is shown as, and that may have changed when somebody looks.
            kind = DT_UNKNOWN;
        }
        let ino = match kind {
            DT_DIR => pool.nodes.dir_number(node.id, name, shown),
            _ => pool.nodes.kept_number(dev, ino).unwrap_or(shown),
        };
        listing.push(name, kind, listing.sources.len() - 1, ino);
    }

    fn ended(&self, index: usize, broken: Option<Errno>) {
        // A directory that was removed while it was read has no more names.
        if let Some(errno) = broken.filter(|&errno| !beneath::is_absent(errno)) {
            let branch = &self.branches[index];
            branch.notice(errno, Deed::Looking);
            tracing::warn!("the listing of a directory on {} is incomplete: {errno}", branch.path.display());
        }
    }
}
