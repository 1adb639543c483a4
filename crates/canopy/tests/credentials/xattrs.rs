//! Extended attributes of every namespace, set and read by every actor.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::thread;

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{FaultyFs, LeakCheck, PATIENCE, Pool};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};

use super::acl::{self, Tag};
use super::rig::{Actors, EVERYBODY, GROUP, OWNER, Places, STRANGER, outcome};

/// Names in every namespace, known to the kernel and unknown.
const NAMES: [&str; 14] = [
    "user.note",
    "trusted.note",
    "security.note",
    "security.capability",
    "system.posix_acl_access",
    "system.posix_acl_default",
    "system.nfs4_acl",
    "system.richacl",
    "system.ntfs_attrib",
    "system.cifs_acl",
    "system.unknown",
    "unknown.note",
    "note",
    "user.",
];

fn value(name: &str) -> Vec<u8> {
    let list =
        [(Tag::Owner, 7), (Tag::User(STRANGER.uid), 7), (Tag::Group, 5), (Tag::Mask, 7), (Tag::Other, 4)];
    match name {
        "system.posix_acl_access" | "system.posix_acl_default" => acl::encode(&list),
        // Version 2, cap_net_raw.
        "security.capability" => {
            [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
        }
        _ => b"value".to_vec(),
    }
}

fn table(root: &Path) -> Vec<String> {
    let mut cells = Vec::new();
    let kinds = [("file", 0o604), ("open file", 0o666), ("directory", 0o705), ("sticky directory", 0o1777)];
    thread::scope(|scope| {
        let actors = Actors::start(scope);
        for (kind, mode) in kinds {
            let path = root.join(kind);
            if kind.ends_with("file") {
                fs::write(&path, "content").unwrap()
            } else {
                fs::create_dir(&path).unwrap()
            }
            chown(&path, Some(OWNER), Some(GROUP)).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            for name in NAMES {
                for actor in EVERYBODY {
                    let path = &path;
                    let mut attempt = |what: &str, job: fn(&Path, &str) -> String| {
                        let own = path.clone();
                        let result = actors.act(actor, move || job(&own, name));
                        cells.push(format!("{kind} {what} {name} by {}: {result}", actor.name));
                    };
                    let set = |path: &Path, name: &str| {
                        outcome(setxattr(path, name, &value(name), XattrFlags::empty()))
                    };
                    let remove = |path: &Path, name: &str| outcome(removexattr(path, name));
                    attempt("set", set);
                    // Makes sure that there is a value to read, replace and remove.
                    let _ = setxattr(path, name, &value(name), XattrFlags::empty());
                    attempt("replace", set);
                    attempt("get", |path, name| outcome(getxattr(path, name, &mut [0; 256][..])));
                    attempt("list", |path, _| match listxattr(path, &mut [0; 512][..]) {
                        Ok(length) => format!("{length} bytes"),
                        Err(errno) => format!("{errno}"),
                    });
                    attempt("remove", remove);
                    let _ = removexattr(path, name);
                    attempt("remove again", remove);
                    // Setting the access ACL may have changed the mode.
                    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
                }
            }
        }
    });
    cells
}

#[test]
fn access_to_attributes_is_as_on_ext4() {
    Places::new().compare(&["posix-acl=true", "posix-acl=true,allow-idmap=false"], table);
}

/// Returns each caller as a command prefix, and whether it may perform owner-only operations.
fn callers() -> Vec<(String, bool)> {
    let stranger = format!("--reuid {0} --regid {0} --clear-groups", STRANGER.uid);
    let owner = format!("setpriv --reuid {OWNER} --regid {OWNER} --clear-groups");
    let row = |words: &str, owns| (words.to_owned(), owns);
    vec![
        row("", true),
        row("setpriv --bounding-set -fowner", false),
        row("unshare -Ur", false),
        row(&owner, true),
        row(&format!("{owner} unshare -Ur"), true),
        row(&format!("setpriv --reuid {} --regid {GROUP} --clear-groups", STRANGER.uid), false),
        row(&format!("setpriv {stranger}"), false),
        row(&format!("setpriv {stranger} unshare -Ur"), false),
        row(&format!("setpriv {stranger} --inh-caps +fowner --ambient-caps +fowner"), true),
    ]
}

/// Filesystems with their own ACL format trust the daemon, which is root, so the pool checks its caller itself.
#[test]
fn only_the_owner_changes_system_attributes() {
    canopy_testkit::require_root();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let _guard = LeakCheck::under(dir.path());
    let disk = FaultyFs::mount(dir.path());
    for options in ["", "allow-idmap=false"] {
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(disk.path())
            .option("minfreespace=0")
            .option(options)
            .mount();
        for kind in ["file", "directory"] {
            let (inner, outer) = (disk.backing_dir().join(kind), pool.path().join(kind));
            let _ = if kind == "file" { fs::write(&inner, "") } else { fs::create_dir_all(&inner) };
            chown(&inner, Some(OWNER), Some(GROUP)).unwrap();
            // Write permission is not enough.
            fs::set_permissions(&inner, PermissionsExt::from_mode(0o777)).unwrap();
            for name in ["system.nfs4_acl", "system.ntfs_attrib"] {
                let kept = format!("trusted.{name}");
                let stored = || getxattr(&inner, &*kept, &mut [0; 16][..]).is_ok();
                for (who, owns) in callers() {
                    let act = |words: &str| {
                        let script = format!("exec {who} setfattr {words} \"$1\"");
                        let mut command = Command::new("sh");
                        command.args(["-c", &script, "sh"]).arg(&outer);
                        run_within(&mut command, PATIENCE)
                    };
                    let cell = format!("[{options}] {name} of the {kind} by '{who}'");
                    let set = act(&format!("-n {name} -v value"));
                    assert_eq!((set.success(), stored()), (owns, owns), "{cell}: {}", set.describe());
                    setxattr(&inner, &*kept, b"value", XattrFlags::empty()).unwrap();
                    let removed = act(&format!("-x {name}"));
                    assert_eq!(
                        (removed.success(), stored()),
                        (owns, !owns),
                        "{cell}: {}",
                        removed.describe()
                    );
                    let _ = removexattr(&inner, &*kept);
                }
            }
        }
        pool.umount();
    }
}

/// Without SELinux no program needs labels, but they are copied to where one does.
#[test]
fn labels_are_kept_where_no_selinux_is() {
    let selinux = fs::read_to_string("/proc/filesystems").unwrap().contains("selinuxfs");
    let places = Places::new();
    let pool = places.pool("");
    let label = b"system_u:object_r:etc_t:s0\0";
    for root in [places.plain(), pool.path()] {
        for dir in ["labels", "back"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        for (name, value) in [("labelled", Some(label)), ("plain", None)] {
            let path = root.join("labels").join(name);
            fs::write(&path, name).unwrap();
            if let Some(value) = value {
                setxattr(&path, "security.selinux", value, XattrFlags::CREATE).unwrap();
            }
        }
    }
    let scripts = [
        "getfattr -d -m - labels/labelled labels/plain",
        "rsync -aX labels/ back/rsync/; getfattr -d -m - back/rsync/labelled back/rsync/plain",
        "cp -a labels back/cp; getfattr -d -m - back/cp/labelled back/cp/plain",
        "cp --preserve=context labels/labelled back/context",
        "tar -c --selinux --xattrs --xattrs-include='*' labels | tar -x --selinux --xattrs --xattrs-include='*' -C back
         getfattr -d -m - back/labels/labelled back/labels/plain",
        "setfattr -x security.selinux back/cp/labelled; getfattr -d -m - back/cp/labelled",
    ];
    let run = |root: &Path, script: &str| {
        let mut command = Command::new("sh");
        command.current_dir(root).args(["-c", script]);
        run_within(&mut command, PATIENCE)
    };
    for script in scripts {
        let (wanted, found) = (run(places.plain(), script), run(pool.path(), script));
        let seen = |done: &Finished| (done.code(), done.stdout.clone(), done.stderr.clone());
        assert_eq!(seen(&wanted), seen(&found), "{script}");
    }
    let none = if selinux { "ENODATA" } else { "EOPNOTSUPP" };
    let read = |path: &str, size: usize| {
        let mut value = vec![0; size];
        outcome(getxattr(pool.path().join(path), "security.selinux", &mut value[..]))
    };
    for size in [0, 255] {
        assert_eq!(read("labels/labelled", size), "ok");
        assert_eq!(read("labels/plain", size), none);
        assert_eq!(read("labels", size), none);
    }
    assert_eq!(read("absent", 255), "ENOENT");
    let other = getxattr(pool.path().join("labels/plain"), "security.other", &mut [0; 255][..]);
    assert_eq!(outcome(other), "ENODATA");
    // Such a label is made, replaced and removed as anywhere.
    let path = pool.path().join("labels/plain");
    assert_eq!(outcome(removexattr(&path, "security.selinux")), "ENODATA");
    assert_eq!(outcome(setxattr(&path, "security.selinux", label, XattrFlags::REPLACE)), "ENODATA");
    assert_eq!(outcome(setxattr(&path, "security.selinux", label, XattrFlags::CREATE)), "ok");
    assert_eq!(read("labels/plain", 255), "ok");
    pool.umount();
}
