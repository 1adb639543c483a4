//! Checks that older kernels leave to the filesystem. Newer kernels make them before they send a request, so the tests
//! call the pool directly.

#![forbid(unsafe_code)]

mod common;

use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::Rw;
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Caller, Entry, Opened, Pool};
use common::{Made, ROOT, chmod, pool};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

const OWNER: Caller = Caller { uid: 6001, gid: 7001, pid: 0, umask: 0 };
const MEMBER: Caller = Caller { uid: 6002, gid: 7001, pid: 0, umask: 0 };
const STRANGER: Caller = Caller { uid: 6004, gid: 7004, pid: 0, umask: 0 };

const O_WRONLY: u32 = 1;
const O_CREAT_EXCL: u32 = O_WRONLY | 0o300;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_NOATIME_FL: u64 = 0x80;

fn made() -> Option<Made> {
    rustix::process::geteuid().is_root().then(|| pool(&[Rw], Config::default()))
}

/// Returns an ACL that grants the stranger all rights, encoded as the kernel does.
fn acl() -> Vec<u8> {
    let entries = [(0x01, 6, u32::MAX), (0x02, 7, STRANGER.uid), (0x04, 4, u32::MAX), (0x10, 7, u32::MAX)];
    let entry = |&(tag, rights, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let others = entry(&(0x20, 0, u32::MAX));
    [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect(), others].concat()
}

/// Without checks of its own, the kernel forwards changes to ACLs that it does not enforce up to Linux 6.1, and chattr(1)
/// up to Linux 5.12.
#[test]
fn only_the_owner_and_root_change_acls_and_flags() {
    let Some(made) = made() else { return };
    fs::write(made.on(0, "f"), "").unwrap();
    chmod(&made.on(0, "f"), 0o666);
    chown(made.on(0, "f"), Some(OWNER.uid), Some(OWNER.gid)).unwrap();
    let mut client = made.client();
    let node = client.walk("f").unwrap().node;
    let list = "system.posix_acl_access";
    let stored = || rustix::fs::getxattr(made.on(0, "f"), list, &mut [0; 64][..]).is_ok();
    type Change = fn(&Pool, &Caller, NodeId) -> Result<()>;
    let changes: [(&str, Change); 3] = [
        ("setfacl", |pool, caller, node| {
            ops::attrs::xattr::setxattr(pool, caller, node, b"system.posix_acl_access", &acl(), 0, false)
        }),
        ("setfacl -b", |pool, caller, node| {
            ops::attrs::xattr::removexattr(pool, caller, node, b"system.posix_acl_access")
        }),
        ("chattr", |pool, caller, node| {
            ops::attrs::ioctl::ioctl(pool, caller, node, FS_IOC_SETFLAGS, &FS_NOATIME_FL.to_ne_bytes())
                .map(drop)
        }),
    ];
    for (what, change) in changes {
        for (caller, may) in [(STRANGER, false), (MEMBER, false), (OWNER, true), (ROOT, true)] {
            let before = stored();
            let changed = change(&made.pool, &caller, node);
            let expected = if may { Ok(()) } else { Err(Errno::PERM) };
            match changed.map_err(Error::errno) {
                // The owner has removed the ACL already.
                Err(Errno::NODATA) if caller == ROOT => {}
                // Not every version of tmpfs has flags.
                Err(Errno::OPNOTSUPP | Errno::NOTTY) if may => {}
                other => assert_eq!(other, expected, "{what} by {caller:?}"),
            }
            assert!(may || stored() == before, "{what} by {caller:?}");
        }
    }
    client.end().unwrap();
}

/// Up to Linux 5.19 the kernel forwards the set-group-ID bit of a new file in a set-group-ID directory.
#[test]
fn set_group_id_is_dropped_for_callers_outside_the_directorys_group() {
    let Some(made) = made() else { return };
    for (dir, mode) in [("shared", 0o2777), ("plain", 0o777)] {
        fs::create_dir(made.on(0, dir)).unwrap();
        chown(made.on(0, dir), Some(OWNER.uid), Some(OWNER.gid)).unwrap();
        chmod(&made.on(0, dir), mode);
    }
    let mut client = made.client();
    let mut count = 0;
    for dir in ["shared", "plain"] {
        let parent = client.walk(dir).unwrap().node;
        for caller in [STRANGER, MEMBER, OWNER, ROOT] {
            for mode in [0o2755, 0o2655, 0o2745, 0o755, 0o6711] {
                // Without group execute permission, set-group-ID grants nothing, so it stays.
                let lost = dir == "shared" && caller == STRANGER && mode & 0o2010 == 0o2010;
                let expected = if lost { mode & !0o2000 } else { mode };
                for how in ["create", "mknod", "tmpfile"] {
                    count += 1;
                    let name = format!("f{count}");
                    let opened = |(entry, opened): (Entry, Opened)| {
                        ops::data::open::release(&made.pool, opened.handle).unwrap();
                        entry
                    };
                    let name = name.as_bytes();
                    let entry = match how {
                        "mknod" => ops::names::create::mknod(
                            &made.pool,
                            &caller,
                            parent,
                            name,
                            0o100_000 | mode,
                            (0, 0),
                        ),
                        "create" => {
                            ops::data::create::create(&made.pool, &caller, parent, name, mode, O_CREAT_EXCL)
                                .map(opened)
                        }
                        _ => ops::data::create::tmpfile(&made.pool, &caller, parent, mode, O_WRONLY)
                            .map(opened),
                    };
                    let entry = entry.unwrap();
                    let case = format!("{how} {mode:o} in {dir} by {caller:?}");
                    assert_eq!(entry.attr.mode & 0o7777, expected, "{case}");
                    assert_eq!(
                        entry.attr.gid,
                        if dir == "shared" { OWNER.gid } else { caller.gid },
                        "{case}"
                    );
                    client.count_lookup(entry);
                }
            }
        }
        assert!(fs::metadata(made.on(0, dir)).unwrap().mode() & 0o777 == 0o777);
    }
    client.end().unwrap();
}
