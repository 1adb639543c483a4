//! What the kernel believes: names and attributes, each for as long as it was told.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use canopy_fuse::abi::{Attr, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut};
use canopy_fuse::notify::NotifyCode;

use super::wire::{Reply, take};

#[derive(Default)]
pub(super) struct Beliefs {
    names: HashMap<(u64, Vec<u8>), Name>,
    nodes: HashMap<u64, Node>,
    /// How much time has passed beyond the clock's.
    pub(super) passed: Duration,
    /// Counts what makes attributes stale. Those that were asked for before are not believed.
    version: u64,
}

#[derive(Clone, Copy)]
struct Name {
    /// `None`: there is no such name.
    node: Option<u64>,
    until: Instant,
}

#[derive(Clone, Copy, Default)]
struct Node {
    attr: Attr,
    until: Option<Instant>,
    /// The version at which they became stale.
    stale_at: u64,
}

impl Beliefs {
    fn now(&self) -> Instant {
        Instant::now() + self.passed
    }

    fn until(&self, secs: u64, nanos: u32) -> Instant {
        // A day is for ever in a test.
        self.now() + Duration::new(secs.min(86_400), nanos)
    }

    /// Returns what to compare attributes with that are asked for now.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns what a name leads to; `None` if the server has to be asked.
    pub(super) fn name(&self, parent: u64, name: &[u8]) -> Option<Option<u64>> {
        let known = self.names.get(&(parent, name.to_vec()))?;
        (known.until > self.now()).then_some(known.node)
    }

    pub(super) fn learn_name(&mut self, parent: u64, name: &[u8], node: Option<u64>, valid: (u64, u32)) {
        let until = self.until(valid.0, valid.1);
        self.names.insert((parent, name.to_vec()), Name { node, until });
    }

    pub(super) fn forget_name(&mut self, parent: u64, name: &[u8]) {
        self.names.remove(&(parent, name.to_vec()));
    }

    /// A name has moved, with its time to live (fs/dcache.c d_move).
    pub(super) fn move_name(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) {
        if let Some(known) = self.names.remove(&(from.0, from.1.to_vec())) {
            self.names.insert((to.0, to.1.to_vec()), known);
        }
    }

    pub(super) fn attr(&self, node: u64) -> Option<Attr> {
        let known = self.nodes.get(&node)?;
        known.until.is_some_and(|until| until > self.now()).then_some(known.attr)
    }

    /// Learns attributes that were asked for at a version.
    pub(super) fn learn_attr(&mut self, node: u64, attr: Attr, valid: (u64, u32), asked_at: u64) {
        let until = self.until(valid.0, valid.1);
        let known = self.nodes.entry(node).or_default();
        // fs/fuse/inode.c fuse_change_attributes.
        if asked_at >= known.stale_at {
            known.attr = attr;
            known.until = Some(until);
        }
    }

    /// The kernel itself has made attributes stale, or was told that they are.
    pub(super) fn doubt(&mut self, node: u64) {
        self.version += 1;
        let known = self.nodes.entry(node).or_default();
        known.until = None;
        known.stale_at = self.version;
    }

    pub(super) fn obey(&mut self, notification: &Reply) {
        let payload = &notification.payload;
        let code = |code: NotifyCode| code as i32;
        match notification.errno {
            it if it == code(NotifyCode::InvalInode) => {
                let (message, _) = take::<NotifyInvalInodeOut>(payload);
                self.doubt(message.ino);
            }
            // Expired or invalidated: the difference is in what is mounted on it.
            it if it == code(NotifyCode::InvalEntry) => {
                let (message, name) = take::<NotifyInvalEntryOut>(payload);
                self.forget_name(message.parent, &name[..message.namelen as usize]);
                // fs/fuse/dir.c fuse_reverse_inval_entry: the directory's attributes, too.
                self.doubt(message.parent);
            }
            it if it == code(NotifyCode::Delete) => {
                let (message, name) = take::<NotifyDeleteOut>(payload);
                self.forget_name(message.parent, &name[..message.namelen as usize]);
                self.doubt(message.parent);
            }
            it if it == code(NotifyCode::IncEpoch) => self.names.clear(),
            it if it == code(NotifyCode::Prune) || it == code(NotifyCode::Resend) => {}
            other => panic!("a notification that a kernel does not know: {other}"),
        }
    }
}
