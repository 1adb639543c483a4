//! Owner, mode and ACL of new entries.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use canopy_testkit::cmd::run_within;
use canopy_testkit::{PATIENCE, Tree, User};
use rustix::fs::{XattrFlags, setxattr};

use super::acl::{self, Tag};
use super::rig::{EVERYBODY, GROUP, MEMBER, OWNER, Places};

const UMASKS: [&str; 5] = ["000", "022", "002", "027", "077"];

/// Name, mode, owner, group, default ACL.
type Dir = (&'static str, u32, u32, u32, Option<Vec<u8>>);

/// Returns the directories in which the table creates entries.
fn dirs() -> Vec<Dir> {
    let open_default = acl::encode(&[
        (Tag::Owner, 7),
        (Tag::User(MEMBER.uid), 7),
        (Tag::Group, 5),
        (Tag::NamedGroup(7003), 6),
        (Tag::Mask, 7),
        (Tag::Other, 5),
    ]);
    let tight_default = acl::encode(&[(Tag::Owner, 7), (Tag::Group, 4), (Tag::Other, 0)]);
    let no_mask_bits = acl::encode(&[
        (Tag::Owner, 6),
        (Tag::User(OWNER), 7),
        (Tag::Group, 7),
        (Tag::Mask, 2),
        (Tag::Other, 7),
    ]);
    vec![
        ("open", 0o777, 0, 0, None),
        ("setgid", 0o2777, 0, GROUP, None),
        ("setgid-group", 0o2770, OWNER, GROUP, None),
        ("group", 0o775, OWNER, GROUP, None),
        ("sticky", 0o1777, 0, 0, None),
        ("sticky-setgid", 0o3777, OWNER, GROUP, None),
        ("others-only", 0o707, OWNER, GROUP, None),
        ("closed", 0o700, OWNER, GROUP, None),
        ("default", 0o777, 0, 0, Some(open_default.clone())),
        ("default-setgid", 0o2777, 0, GROUP, Some(open_default)),
        ("default-tight", 0o777, 0, 0, Some(tight_default)),
        ("default-mask", 0o777, 0, 0, Some(no_mask_bits)),
    ]
}

/// Runs one shell for each actor and umask, which creates entries in those directories. Creating devices and other
/// privileged operations fail for everybody but root.
fn table(root: &Path, dirs: &[Dir]) -> Vec<String> {
    for (name, mode, uid, gid, default) in dirs {
        let dir = root.join(name);
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(*uid), Some(*gid)).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(*mode)).unwrap();
        if let Some(default) = default {
            setxattr(&dir, "system.posix_acl_default", default, XattrFlags::empty()).unwrap();
        }
    }
    let mut messages = Vec::new();
    for actor in EVERYBODY {
        for umask in UMASKS {
            let user = User { uid: actor.uid, gid: actor.gid, groups: actor.groups };
            let script = r#"cd "$1"; umask "$2"; shift 2
                files=; new=
                for dir; do
                    ( : > "$dir/file-$tag" ) 2>/dev/null || echo "$dir: no file"
                    new="$new $dir/NEW-$tag"
                done
                make() { "$@" 2>&1 | sed 's/^[^/]*: //' || :; }
                set +e
                make mkdir $(echo "$new" | sed s/NEW/dir/g)
                make mkdir -m 2751 $(echo "$new" | sed s/NEW/moded/g)
                make mkdir $(echo "$new" | sed 's:NEW-[^ ]*:&/below:g; s/NEW/dir/g')
                make mkfifo $(echo "$new" | sed s/NEW/fifo/g)
                for dir; do
                    ln -s target "$dir/link-$tag" 2>/dev/null || echo "$dir: no link"
                done
                mknod default/device-$tag c 1 3 2>/dev/null || echo "no device"
                install -m 6755 /dev/null setgid/installed-$tag 2>&1 | sed 's/^[^/]*: //'
                exit 0"#;
            let tag = format!("{}-{umask}", actor.uid)
                .replace("6001", if actor.gid == GROUP { "6001" } else { "6001o" });
            let names: Vec<_> = dirs.iter().map(|(name, ..)| (*name).to_owned()).collect();
            let args = [root.to_str().unwrap().to_owned(), umask.to_owned()].into_iter().chain(names);
            let done = run_within(user.shell(script, args).env("tag", &tag), PATIENCE);
            assert!(done.success(), "{}", done.describe());
            let text = format!("{}{}", done.stdout, done.stderr).replace(root.to_str().unwrap(), "ROOT");
            messages.push(format!("{} umask {umask}: {text}", actor.name));
        }
    }
    let tree = Tree::capture(root);
    let attributes = |xattrs: &BTreeMap<Vec<u8>, Vec<u8>>| -> String {
        xattrs.iter().map(|(name, value)| format!(" {}={}", name.escape_ascii(), acl::show(value))).collect()
    };
    let made = tree.entries.iter().map(|(path, entry)| {
        let (path, acls) = (path.escape_ascii(), attributes(&entry.xattrs));
        format!("{path}: {:?} {:o} {}:{}{acls}", entry.kind, entry.mode, entry.uid, entry.gid)
    });
    made.chain(messages).collect()
}

#[test]
fn owners_modes_and_acls_are_those_of_ext4() {
    let (places, dirs) = (Places::new(), dirs());
    let options = ["posix-acl=true", "posix-acl=true,passthrough.io=off,cache.files=off"];
    places.compare(&options, |root| table(root, &dirs));
}

/// Without default ACLs the result must not depend on whether the pool enforces ACLs.
#[test]
fn owners_and_modes_are_those_of_ext4() {
    let (places, mut dirs) = (Places::new(), dirs());
    dirs.retain(|(.., default)| default.is_none());
    places.compare(&["", "passthrough.io=off,cache.files=off"], |root| table(root, &dirs));
}
