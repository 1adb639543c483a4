//! POSIX ACLs: their encoding, and enforcement by the pool as by ext4.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;

use rustix::fs::{CWD, Mode, OFlags, XattrFlags, getxattr, mkdirat, openat, removexattr, setxattr};

use super::rig::{
    Actors, BY_SUPPLEMENT, EVERYBODY, GROUP, MEMBER, OWNER, Places, STRANGER, THE_OWNER, outcome,
};

pub(super) const ACCESS: &str = "system.posix_acl_access";
pub(super) const DEFAULT: &str = "system.posix_acl_default";

/// The user or group that an ACL entry applies to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tag {
    Owner,
    User(u32),
    Group,
    NamedGroup(u32),
    Mask,
    Other,
}

/// Encodes an ACL as the kernel does: version 2, then the tag, permissions and id of each entry, little-endian.
pub(super) fn encode(entries: &[(Tag, u16)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions) in entries {
        let (number, id) = match *tag {
            Tag::Owner => (0x01_u16, u32::MAX),
            Tag::User(uid) => (0x02, uid),
            Tag::Group => (0x04, u32::MAX),
            Tag::NamedGroup(gid) => (0x08, gid),
            Tag::Mask => (0x10, u32::MAX),
            Tag::Other => (0x20, u32::MAX),
        };
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Formats an encoded ACL as readable text.
pub(super) fn show(bytes: &[u8]) -> String {
    let entry = |entry: &[u8; 8]| {
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let id = if id == u32::MAX { String::new() } else { id.to_string() };
        format!("{:x}:{id}:{}", entry[0], entry[2])
    };
    bytes.get(4..).unwrap_or_default().as_chunks::<8>().0.iter().map(entry).collect::<Vec<_>>().join(",")
}

fn stored(path: &Path, name: &str) -> String {
    let mut buffer = [0; 256];
    match getxattr(path, name, &mut buffer[..]) {
        Ok(length) => show(&buffer[..length]),
        Err(errno) => format!("{errno:?}"),
    }
}

fn grants() -> Vec<(&'static str, Vec<u8>)> {
    let user = |uid, permissions| (Tag::User(uid), permissions);
    let group = |gid, permissions| (Tag::NamedGroup(gid), permissions);
    let rest = [(Tag::Owner, 6), (Tag::Group, 0), (Tag::Other, 0)];
    let list = |named: &[(Tag, u16)], mask: u16| {
        let (users, groups): (Vec<(Tag, u16)>, Vec<_>) =
            named.iter().partition(|(tag, _)| matches!(tag, Tag::User(_)));
        let mut entries = vec![rest[0]];
        entries.extend(users);
        entries.push(rest[1]);
        entries.extend(groups);
        entries.extend([(Tag::Mask, mask), rest[2]]);
        encode(&entries)
    };
    vec![
        ("stranger reads", list(&[user(STRANGER.uid, 4)], 7)),
        ("stranger writes", list(&[user(STRANGER.uid, 2)], 7)),
        ("stranger is masked out", list(&[user(STRANGER.uid, 7)], 0)),
        ("stranger is masked to read", list(&[user(STRANGER.uid, 7)], 4)),
        ("supplementary group has everything", list(&[group(7005, 7)], 7)),
        ("supplementary member's own group reads", list(&[group(7003, 4)], 7)),
        ("member is denied by name", list(&[user(MEMBER.uid, 0), group(GROUP, 7)], 7)),
        ("an entry naming the owner has no effect", list(&[user(OWNER, 0)], 7)),
    ]
}

/// Records what each actor may do with a file and a directory under each ACL, and after the ACL is removed.
fn table(root: &Path) -> Vec<String> {
    let mut cells = Vec::new();
    thread::scope(|scope| {
        let actors = Actors::start(scope);
        let attempt = |what: String, path: &Path, cells: &mut Vec<String>| {
            for actor in EVERYBODY {
                let path = path.to_owned();
                let results = actors.act(actor, move || {
                    let open = |flags| outcome(openat(CWD, &path, flags, Mode::empty()));
                    let below = path.join("below");
                    let create = OFlags::CREATE | OFlags::WRONLY;
                    [
                        open(OFlags::RDONLY),
                        open(OFlags::WRONLY),
                        outcome(openat(CWD, &below, OFlags::RDONLY, Mode::empty())),
                        outcome(openat(
                            CWD,
                            path.join(format!("new{}", actor.gid)),
                            create,
                            Mode::from_raw_mode(0o666),
                        )),
                        outcome(rustix::fs::access(
                            &path,
                            rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK,
                        )),
                        outcome(setxattr(&path, "user.note", b"x", XattrFlags::empty())),
                    ]
                    .join(" ")
                });
                cells.push(format!("{what} by {}: {results}", actor.name));
            }
        };
        for (index, (name, list)) in grants().into_iter().enumerate() {
            let (file, dir) = (root.join(format!("file{index}")), root.join(format!("dir{index}")));
            fs::write(&file, "content").unwrap();
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("below"), "content").unwrap();
            fs::set_permissions(dir.join("below"), PermissionsExt::from_mode(0o666)).unwrap();
            for path in [&file, &dir] {
                chown(path, Some(OWNER), Some(GROUP)).unwrap();
                fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
                let shown = format!("{name}, {}", if path == &file { "file" } else { "directory" });
                attempt(format!("{shown} before"), path, &mut cells);
                let (own, value) = (path.clone(), list.clone());
                let set = move || outcome(setxattr(&own, ACCESS, &value, XattrFlags::empty()));
                cells.push(format!("{shown} set by owner: {}", actors.act(THE_OWNER, set)));
                let (own, value) = (path.clone(), list.clone());
                let set = move || outcome(setxattr(&own, ACCESS, &value, XattrFlags::empty()));
                cells.push(format!("{shown} set by stranger: {}", actors.act(STRANGER, set)));
                let mode = fs::metadata(path).unwrap().mode();
                cells.push(format!("{shown}: {mode:o} {}", stored(path, ACCESS)));
                attempt(format!("{shown} with"), path, &mut cells);
                // chmod changes the mask, not the group entry.
                fs::set_permissions(path, PermissionsExt::from_mode(0o750)).unwrap();
                cells.push(format!("{shown} after chmod: {}", stored(path, ACCESS)));
                attempt(format!("{shown} after chmod"), path, &mut cells);
                let own = path.clone();
                let removed = actors.act(THE_OWNER, move || outcome(removexattr(&own, ACCESS)));
                let mode = fs::metadata(path).unwrap().mode();
                cells.push(format!("{shown} removed: {removed} {mode:o} {}", stored(path, ACCESS)));
                attempt(format!("{shown} after"), path, &mut cells);
            }
        }
    });
    cells
}

#[test]
fn access_acls_are_enforced_as_on_ext4() {
    Places::new().compare(&["posix-acl=true", "posix-acl=true,passthrough.io=off,cache.files=full"], table);
}

/// New directories inherit the default ACL on every branch.
#[test]
fn default_acls_are_inherited_as_on_ext4() {
    Places::new().compare(&["posix-acl=true"], |root| inherited(root, |mode| format!("{mode:o} ")));
    // Without ACL enforcement, the shown mode has only the permissions that the ACL grants to everybody.
    Places::new().compare(&["", "posix-acl=false"], |root| inherited(root, |_| String::new()));
}

fn inherited(root: &Path, shown: impl Fn(u32) -> String) -> Vec<String> {
    let default = encode(&[
        (Tag::Owner, 7),
        (Tag::User(STRANGER.uid), 6),
        (Tag::Group, 5),
        (Tag::NamedGroup(BY_SUPPLEMENT.gid), 7),
        (Tag::Mask, 7),
        (Tag::Other, 0),
    ]);
    let top = root.join("top");
    fs::create_dir(&top).unwrap();
    fs::set_permissions(&top, PermissionsExt::from_mode(0o777)).unwrap();
    setxattr(&top, DEFAULT, &default, XattrFlags::empty()).unwrap();
    let mut cells = Vec::new();
    thread::scope(|scope| {
        let actors = Actors::start(scope);
        for round in 0..6 {
            let actor = EVERYBODY[round % EVERYBODY.len()];
            let dir = top.join(format!("dir{round}"));
            let own = dir.clone();
            let made = actors.act(actor, move || {
                let made = outcome(mkdirat(CWD, &own, Mode::from_raw_mode(0o750)));
                let mut path = own;
                for level in 0..3 {
                    path = path.join(format!("level{level}"));
                    let _ = mkdirat(CWD, &path, Mode::from_raw_mode(0o777));
                    let flags = OFlags::CREATE | OFlags::WRONLY;
                    let _ = openat(CWD, path.join("file"), flags, Mode::from_raw_mode(0o666));
                }
                made
            });
            cells.push(format!("{round}: {made}"));
            let mut path = dir;
            for level in 0..3 {
                path = path.join(format!("level{level}"));
                for path in [path.clone(), path.join("file")] {
                    let meta = fs::metadata(&path).unwrap();
                    cells.push(format!(
                        "{round} {level}: {}{}:{} {} {}",
                        shown(meta.mode()),
                        meta.uid(),
                        meta.gid(),
                        stored(&path, ACCESS),
                        stored(&path, DEFAULT)
                    ));
                }
            }
        }
    });
    cells
}
