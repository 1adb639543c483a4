//! ACLs that exist on the branches when a pool is mounted: a user has the same permissions through the pool as on the
//! branch. If the kernel does not use ACLs, a user may have fewer permissions but never more.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;
use std::time::Duration;

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, PATIENCE, Pool};
use rustix::fs::{Access, XattrFlags, access, getxattr, removexattr, setxattr};

use super::acl::{ACCESS, DEFAULT, Tag, encode};
use super::rig::{
    Actor, Actors, BY_SUPPLEMENT, EVERYBODY, GROUP, MEMBER, OWNER, Places, ROOT, STRANGER, THE_OWNER, fresh,
    outcome,
};

const RIGHTS: [(&str, u32); 3] = [("plain", 0o751), ("shared", 0o2775), ("sticky", 0o1777)];

/// Returns each ACL with a description. `list` takes the entries in the order of an ACL.
fn lists() -> Vec<(&'static str, Option<Vec<u8>>)> {
    let list = |users: &[(u32, u16)], group: u16, groups: &[(u32, u16)], mask: u16, others: u16| {
        let mut entries = vec![(Tag::Owner, 7)];
        entries.extend(users.iter().map(|&(uid, rights)| (Tag::User(uid), rights)));
        entries.push((Tag::Group, group));
        entries.extend(groups.iter().map(|&(gid, rights)| (Tag::NamedGroup(gid), rights)));
        entries.extend([(Tag::Mask, mask), (Tag::Other, others)]);
        Some(encode(&entries))
    };
    let (stranger, member) = (STRANGER.uid, MEMBER.uid);
    vec![
        ("no list", None),
        ("a mask alone", list(&[], 7, &[], 5, 5)),
        ("the group has nothing", list(&[(9999, 7)], 0, &[], 7, 5)),
        ("the group reads", list(&[(9999, 7)], 5, &[], 7, 0)),
        ("a stranger is let in", list(&[(stranger, 7)], 5, &[], 7, 0)),
        ("a stranger is let in to read", list(&[(stranger, 7)], 7, &[], 5, 0)),
        ("a stranger is kept out", list(&[(stranger, 0)], 7, &[], 7, 7)),
        ("a stranger is kept out by the mask", list(&[(stranger, 7)], 0, &[], 0, 7)),
        ("a member is kept out", list(&[(member, 0)], 7, &[], 7, 7)),
        ("a member is let in", list(&[(member, 7)], 0, &[], 7, 0)),
        ("another group is let in", list(&[], 0, &[(7005, 7)], 7, 0)),
        ("another group is kept out", list(&[], 7, &[(STRANGER.gid, 0)], 7, 7)),
        ("one in two groups", list(&[], 5, &[(BY_SUPPLEMENT.gid, 2)], 7, 0)),
    ]
}

/// Creates the entries on a filesystem. If `marked`, the directory above them has an ACL that restricts nobody.
fn prepare(root: &Path, marked: bool) {
    let table = fresh(root);
    if marked {
        let harmless =
            [(Tag::Owner, 7), (Tag::User(9999), 7), (Tag::Group, 7), (Tag::Mask, 7), (Tag::Other, 7)];
        setxattr(&table, ACCESS, &encode(&harmless), XattrFlags::empty()).unwrap();
    }
    for (index, (_, list)) in lists().iter().enumerate() {
        for (kind, mode) in RIGHTS {
            let dir = table.join(format!("{index}-{kind}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("victim"), "content").unwrap();
            let file = table.join(format!("{index}-{kind}-file"));
            fs::write(&file, "content").unwrap();
            for path in [&dir, &file] {
                chown(path, Some(OWNER), Some(GROUP)).unwrap();
                fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
                if let Some(list) = list {
                    setxattr(path, ACCESS, list, XattrFlags::empty()).unwrap();
                    if path == &dir {
                        setxattr(path, DEFAULT, list, XattrFlags::empty()).unwrap();
                    }
                }
            }
        }
    }
}

/// Pairs of an attempted operation and its result.
type Cells = Vec<(String, String)>;

/// Every actor attempts every operation; root restores the entries after each.
fn table(root: &Path) -> Cells {
    let root = root.join("table");
    let mut cells = Vec::new();
    thread::scope(|scope| {
        let actors = Actors::start(scope);
        for (index, (name, _)) in lists().iter().enumerate() {
            for (kind, _) in RIGHTS {
                for actor in EVERYBODY {
                    let dir = root.join(format!("{index}-{kind}"));
                    let file = root.join(format!("{index}-{kind}-file"));
                    let own = (dir.clone(), file.clone());
                    let done = actors.act(actor, move || attempts(actor, &own.0, &own.1));
                    let cell = |(what, result): (&str, String)| {
                        (format!("{name}, {kind}: {what} by {}", actor.name), result)
                    };
                    cells.extend(done.into_iter().map(cell));
                    restore(&dir);
                }
            }
        }
    });
    cells
}

fn attempts(actor: Actor, dir: &Path, file: &Path) -> Vec<(&'static str, String)> {
    let open = |write: bool| outcome(fs::File::options().read(!write).write(write).open(file));
    let may = |mask| outcome(access(file, mask));
    let (new, victim) = (dir.join("new"), dir.join("victim"));
    let mut create = fs::File::options();
    let created = outcome(create.write(true).create_new(true).mode(0o2775).open(&new));
    let mut done = vec![
        ("read", open(false)),
        ("write", open(true)),
        ("may read", may(Access::READ_OK)),
        ("may write", may(Access::WRITE_OK)),
        ("may execute", may(Access::EXEC_OK)),
        ("truncate", outcome(fs::File::options().write(true).truncate(true).open(file))),
        ("note", outcome(setxattr(file, "user.note", b"x", XattrFlags::empty()))),
        ("list", outcome(fs::read_dir(dir))),
        ("go in", outcome(fs::metadata(&victim))),
        ("create", created.clone()),
        ("make a directory", outcome(fs::create_dir(dir.join("newdir")))),
        (
            "rename",
            outcome(
                fs::rename(&victim, dir.join("moved")).and_then(|()| fs::rename(dir.join("moved"), &victim)),
            ),
        ),
        ("remove", outcome(fs::remove_file(&victim))),
    ];
    if created == "ok" && actor != ROOT {
        // A new file loses set-group-ID if its creator is not in the directory's group.
        let mode = fs::metadata(&new).map(|meta| meta.mode() & 0o2000);
        done.push((
            "set-group-ID",
            mode.map_or_else(|error| error.to_string(), |mode| format!("ok {mode:o}")),
        ));
    }
    done
}

fn restore(dir: &Path) {
    for name in ["new", "newdir", "moved"] {
        let _ = fs::remove_file(dir.join(name)).or_else(|_| fs::remove_dir(dir.join(name)));
    }
    if !dir.join("victim").exists() {
        fs::write(dir.join("victim"), "content").unwrap();
    }
}

fn compared(marked: bool, options: &str, agree: impl Fn(&str, &str, &str) -> bool) {
    let places = Places::new();
    prepare(places.plain(), marked);
    prepare(&places.branches()[0], marked);
    let wanted = table(places.plain());
    assert!(wanted.iter().any(|(_, result)| result == "EACCES"));
    let pool = places.pool(options);
    let found = table(pool.path());
    assert!(pool.is_alive(), "{}", pool.log());
    pool.umount();
    let (wanted, found): (std::collections::BTreeMap<_, _>, std::collections::BTreeMap<_, _>) =
        (wanted.into_iter().collect(), found.into_iter().collect());
    let mut faults = Vec::new();
    for (cell, result) in &found {
        let wanted = wanted.get(cell).map_or("not attempted", String::as_str);
        if !agree(cell, wanted, result) {
            faults.push(format!("{cell}: ext4 {wanted}, pool {result}"));
        }
    }
    let (count, cells) = (faults.len(), found.len());
    faults.truncate(30);
    assert!(faults.is_empty(), "[{options}] {count} cells of {cells} differ:\n{}", faults.join("\n"));
}

fn same(_: &str, wanted: &str, found: &str) -> bool {
    wanted == found
}

/// Accepts fewer permissions than on the branch, but never more. Without an ACL, and for root and the owner, the results
/// must be the same.
fn never_more(cell: &str, wanted: &str, found: &str) -> bool {
    let narrow = cell.starts_with("no list") || cell.ends_with("by root") || cell.ends_with("by owner");
    wanted == found || !narrow && !found.starts_with("ok")
}

#[test]
fn acls_on_the_branches_are_enforced_by_default() {
    compared(true, "", same);
}

#[test]
fn acls_on_the_branches_are_enforced_with_posix_acl() {
    compared(false, "posix-acl=true", same);
}

#[test]
fn without_acl_support_nobody_has_more_permissions_than_on_the_branch() {
    compared(true, "posix-acl=false", never_more);
}

/// ACLs deep in the tree are enforced too, although the pool sees none when it is mounted.
#[test]
fn acls_deep_in_the_tree_are_enforced_by_default() {
    compared(false, "", same);
}

/// Without ACL support the shown mode has only the permissions that the ACL grants to everybody, for every way to query
/// it and every `inodecalc`.
#[test]
fn the_shown_mode_has_only_what_the_acl_grants_to_all() {
    let places = Places::new();
    let branch = &places.branches()[0];
    let (dir, file) = (branch.join("deep/dir"), branch.join("deep/dir/file"));
    fs::create_dir_all(&dir).unwrap();
    fs::write(&file, "content").unwrap();
    let list = |rights| {
        encode(&[
            (Tag::Owner, 7),
            (Tag::User(9999), rights),
            (Tag::Group, 4),
            (Tag::Mask, 7),
            (Tag::Other, 4),
        ])
    };
    for options in ["posix-acl=false", "posix-acl=false,inodecalc=path-hash", "posix-acl=false,xattr=nosys"] {
        for (rights, shown) in [(7, 0o744), (2, 0o700), (6, 0o744)] {
            for path in [&dir, &file] {
                setxattr(path, ACCESS, &list(rights), XattrFlags::empty()).unwrap();
                assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o774);
            }
            let pool = places.pool(options);
            let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
            let inside = pool.path().join("deep/dir");
            assert_eq!((mode(&inside), mode(&inside.join("file"))), (shown, shown), "[{options}] looked up");
            let open = fs::File::open(inside.join("file")).unwrap();
            assert_eq!(open.metadata().unwrap().mode() & 0o777, shown, "[{options}] opened");
            for entry in fs::read_dir(&inside).unwrap() {
                assert_eq!(entry.unwrap().metadata().unwrap().mode() & 0o777, shown, "[{options}] listed");
            }
            fs::remove_file(inside.join("file")).unwrap();
            assert_eq!(open.metadata().unwrap().mode() & 0o777, shown, "[{options}] removed");
            drop(open);
            fs::write(&file, "content").unwrap();
            pool.umount();
            for path in [&dir, &file] {
                let _ = removexattr(path, ACCESS);
                fs::set_permissions(path, PermissionsExt::from_mode(0o744)).unwrap();
            }
        }
    }
}

/// Neither a branch without ACLs nor an option that hides attributes changes permissions.
#[test]
fn acls_are_enforced_even_if_attributes_are_hidden() {
    let disk = LoopFs::with(Kind::Btrfs, 256 << 20, &[], "noacl");
    let none = disk.path().join("file");
    fs::write(&none, "content").unwrap();
    fs::set_permissions(&none, PermissionsExt::from_mode(0o640)).unwrap();
    chown(&none, Some(OWNER), Some(GROUP)).unwrap();
    let places = Places::new();
    let some = places.branches()[0].join("list");
    fs::write(&some, "content").unwrap();
    chown(&some, Some(OWNER), Some(GROUP)).unwrap();
    let list =
        [(Tag::Owner, 6), (Tag::User(STRANGER.uid), 6), (Tag::Group, 0), (Tag::Mask, 6), (Tag::Other, 0)];
    setxattr(&some, ACCESS, &encode(&list), XattrFlags::empty()).unwrap();
    for options in ["", ",xattr=noattr", ",xattr=nosys", ",security-capability=false"] {
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(disk.path())
            .branch(&places.branches()[0])
            .option(format!("minfreespace=0,posix-acl=true{options}"))
            .mount();
        thread::scope(|scope| {
            let actors = Actors::start(scope);
            for (name, let_in) in [("file", [true, true, true, false]), ("list", [true, false, false, true])]
            {
                // Twice: in between, the kernel may learn that it need not request attributes (ENOSYS).
                for round in 0..2 {
                    let may = [THE_OWNER, MEMBER, BY_SUPPLEMENT, STRANGER].map(|actor| {
                        let path = pool.path().join(name);
                        actors.act(actor, move || outcome(fs::read(path)))
                    });
                    assert_eq!(
                        may,
                        let_in.map(|may| if may { "ok" } else { "EACCES" }),
                        "{name} {round} [{options}]"
                    );
                    let _ = getxattr(pool.path().join(name), "user.none", &mut [0; 8][..]);
                }
            }
        });
        pool.umount();
    }
}

/// Attributes and mode of a directory may come from different copies, but an ACL must come from the same copy as the
/// mode, whose group bits are its mask.
#[test]
fn the_acl_comes_from_the_copy_whose_mode_is_shown() {
    let places = Places::new();
    let [shown, newest] = places.branches().map(|branch| branch.join("dir"));
    let list = [(Tag::Owner, 7), (Tag::User(9999), 5), (Tag::Group, 0), (Tag::Mask, 5), (Tag::Other, 0)];
    for dir in [&shown, &newest] {
        fs::create_dir(dir).unwrap();
        chown(dir, Some(OWNER), Some(GROUP)).unwrap();
        fs::set_permissions(dir, PermissionsExt::from_mode(0o750)).unwrap();
    }
    setxattr(&shown, ACCESS, &encode(&list), XattrFlags::empty()).unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(60);
    fs::File::open(&newest).unwrap().set_modified(later).unwrap();
    let pool = places.pool("posix-acl=true,func.getxattr=newest");
    let dir = pool.path().join("dir");
    let done = thread::scope(|scope| Actors::start(scope).act(MEMBER, move || outcome(fs::read_dir(dir))));
    assert_eq!(done, "EACCES");
    pool.umount();
}

/// The kernel caches ACLs and is notified when one changes on the branch.
#[test]
fn an_acl_that_changes_on_the_branch_is_enforced_soon() {
    let places = Places::new();
    let file = places.branches()[0].join("file");
    fs::write(&file, "content").unwrap();
    chown(&file, Some(OWNER), Some(GROUP)).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    let list =
        [(Tag::Owner, 6), (Tag::User(STRANGER.uid), 4), (Tag::Group, 4), (Tag::Mask, 4), (Tag::Other, 0)];
    let pool = places.pool("posix-acl=true");
    thread::scope(|scope| {
        let actors = Actors::start(scope);
        for round in 0..3 {
            for listed in [false, true] {
                match listed {
                    true => setxattr(&file, ACCESS, &encode(&list), XattrFlags::empty()).unwrap(),
                    false if round > 0 => removexattr(&file, ACCESS).unwrap(),
                    false => {}
                }
                let inner = pool.path().join("file");
                let holds = wait_until(PATIENCE, || {
                    let inner = inner.clone();
                    actors.act(STRANGER, move || outcome(fs::read(inner)))
                        == if listed { "ok" } else { "EACCES" }
                });
                assert!(holds, "round {round}, {listed}");
            }
        }
    });
    pool.umount();
}

/// Setting an ACL clears set-group-ID if the caller is not in the file's group, as chmod(1) does.
#[test]
fn setting_an_acl_clears_set_group_id_as_on_ext4() {
    let list = [(Tag::Owner, 7), (Tag::User(9999), 7), (Tag::Group, 5), (Tag::Mask, 7), (Tag::Other, 5)];
    Places::new().compare(&["", "posix-acl=false", "posix-acl=true", "allow-idmap=false"], |root| {
        let mut cells = Vec::new();
        thread::scope(|scope| {
            let actors = Actors::start(scope);
            for actor in EVERYBODY {
                for kind in ["file", "directory"] {
                    let path = root.join(format!("{kind}{}", actor.name));
                    let _ = if kind == "file" { fs::write(&path, "") } else { fs::create_dir(&path) };
                    chown(&path, Some(OWNER), Some(GROUP)).unwrap();
                    fs::set_permissions(&path, PermissionsExt::from_mode(0o2755)).unwrap();
                    let own = path.clone();
                    let set = move || outcome(setxattr(&own, ACCESS, &encode(&list), XattrFlags::empty()));
                    let set = actors.act(actor, set);
                    let mode = fs::metadata(&path).unwrap().mode() & 0o7000;
                    cells.push(format!("{kind} by {}: {set} {mode:o}", actor.name));
                }
            }
        });
        cells
    });
}
