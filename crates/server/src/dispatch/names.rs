//! Operations on names: lookup, creation, renaming.

use super::{Call, Dispatch, done, fail};
use crate::control;
use crate::survival::in_flight::Noted;
use crate::test_switches;
use crate::translate::convert;
use canopy_base::error::Error;
use canopy_fuse::abi::{self, EntryOut};
use canopy_fuse::request::{self as wire, Create, Name, Tmpfile};
use canopy_fuse::{Replied, Reply};
use canopy_pool::ops;
use canopy_pool::{Entry, RenameKind};
use rustix::fs::OFlags;
use rustix::io::Errno;

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

impl Dispatch {
    pub(super) fn lookup(&self, call: &Call<'_>, reply: Reply<'_>, name: Name<'_>) -> Replied {
        if control::is_control_file(call.node, name.as_bytes()) {
            return reply.entry(&self.control.entry(call.answer.ttl()));
        }
        test_switches::get_stuck(name.as_bytes());
        match ops::data::cow::lookup_for(&self.pool, &call.caller(0), call.node, name.as_bytes()) {
            Ok(entry) => {
                if name.as_bytes() == b".." {
                    // To resolve the handle of a directory, the kernel is about to search its parent's listing for
                    // the inode number (exportfs), which may have changed since that listing was cached.
                    self.coherence.drop_listing(entry.node);
                }
                reply.entry(&entry_out(call, name, &entry))
            }
            // The kernel caches negative answers too.
            Err(Error::Absent) => {
                reply.entry(&EntryOut::negative(call.answer.negative_ttl(call.node, name.as_bytes())))
            }
            Err(error) => fail(reply, error),
        }
    }

    pub(super) fn mknod(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
        umask: u32,
    ) -> Replied {
        let rdev = abi::decode_dev(rdev);
        let made = ops::names::create::mknod(
            &self.pool,
            &call.caller(umask),
            call.node,
            name.as_bytes(),
            mode,
            rdev,
        );
        self.made(call, reply, name, made)
    }

    /// Answers a request that makes a file, directory, or symlink.
    pub(super) fn made(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        name: Name<'_>,
        made: canopy_base::error::Result<Entry>,
    ) -> Replied {
        let made = self.made_before(call, name, made);
        self.named(call, reply, name, made)
    }

    /// Answers a request that has given something a name.
    pub(super) fn named(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        name: Name<'_>,
        made: canopy_base::error::Result<Entry>,
    ) -> Replied {
        match self.names_changed(call, [call.node], made) {
            Ok(entry) => reply.entry(&entry_out(call, name, &entry)),
            Err(error) => fail(reply, error),
        }
    }

    /// Answers a request that removes a name.
    pub(super) fn removed(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        removed: canopy_base::error::Result<()>,
    ) -> Replied {
        let removed = self.done_before(call, Errno::NOENT, removed);
        done(reply, self.names_changed(call, [call.node], removed))
    }

    pub(super) fn rename(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        name: Name<'_>,
        (newdir, newname): (wire::NodeId, Name<'_>),
        flags: u32,
    ) -> Replied {
        let kind = match flags {
            0 => RenameKind::Replace,
            RENAME_NOREPLACE => RenameKind::NoReplace,
            RENAME_EXCHANGE => RenameKind::Exchange,
            RENAME_WHITEOUT => RenameKind::Whiteout,
            flags if flags == RENAME_WHITEOUT | RENAME_NOREPLACE => RenameKind::WhiteoutNoReplace,
            _ => return reply.error(Errno::INVAL.raw_os_error()),
        };
        let (dir, newdir) = (call.node, convert::node(newdir));
        let (caller, from, to) = (call.caller(0), (dir, name.as_bytes()), (newdir, newname.as_bytes()));
        let renamed = match (call.noted.as_ref().map(Noted::rename), &call.begun) {
            (Some(intent), Some(_)) => {
                ops::names::replay_rename::replay_rename(&self.pool, &caller, from, to, kind, intent)
            }
            (intent, _) => ops::names::rename::rename_noted(&self.pool, &caller, from, to, kind, intent),
        };
        let renamed = if dir == newdir {
            self.names_changed(call, [dir], renamed)
        } else {
            self.names_changed(call, [dir, newdir], renamed)
        };
        call.answer.renamed(newdir, newname.as_cstr());
        done(reply, renamed)
    }

    pub(super) fn create(&self, call: &Call<'_>, reply: Reply<'_>, create: &Create<'_>) -> Replied {
        let (caller, name) = (call.caller(create.umask), create.name);
        self.close_unanswered(call);
        let made = ops::data::create::create(
            &self.pool,
            &caller,
            call.node,
            name.as_bytes(),
            create.mode,
            create.flags,
        );
        let made = self.created_before(call, create, made).map_err(|error| match error {
            // The kernel has taken the name for absent. It checks no rights to a file that a create request has opened, so it
            // has to look the name up again, and then sends an ordinary open.
            Error::Exists if OFlags::from_bits_retain(create.flags as _).contains(OFlags::EXCL) => error,
            Error::Exists => Error::Stale,
            other => other,
        });
        match self.names_changed(call, [call.node], made) {
            Ok((entry, opened)) => {
                let (flags, backing) = convert::travel(&opened.travel);
                reply.created(&entry_out(call, name, &entry), opened.handle.0, flags, backing)
            }
            Err(error) => fail(reply, error),
        }
    }

    pub(super) fn tmpfile(&self, call: &Call<'_>, reply: Reply<'_>, create: &Tmpfile) -> Replied {
        self.close_unanswered(call);
        match ops::data::create::tmpfile(
            &self.pool,
            &call.caller(create.umask),
            call.node,
            create.mode,
            create.flags,
        ) {
            Ok((entry, opened)) => {
                let (flags, backing) = convert::travel(&opened.travel);
                let (entry_ttl, attr_ttl) = call.answer.unnamed_ttls(&entry);
                let entry = convert::entry(&entry, entry_ttl, attr_ttl, call.answer.ttl().shown);
                reply.created(&entry, opened.handle.0, flags, backing)
            }
            Err(error) => fail(reply, error),
        }
    }
}

fn entry_out(call: &Call<'_>, name: Name<'_>, entry: &Entry) -> EntryOut {
    let (entry_ttl, attr_ttl) = call.answer.entry_ttls(call.node, name.as_bytes(), entry);
    convert::entry(entry, entry_ttl, attr_ttl, call.answer.ttl().shown)
}
