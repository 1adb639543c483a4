//! ACLs that lie on the branches when a pool is mounted: what each may do through the pool is what the branch grants.
//! Where the kernel does not ask for ACLs it may be less, and never more.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;
use std::time::Duration;

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, Pool};
use rustix::fs::{Access, XattrFlags, access, getxattr, removexattr, setxattr};

use super::acl::{ACCESS, DEFAULT, Tag, encode};
use super::rig::{
    Actor, Actors, BY_SUPPLEMENT, EVERYBODY, GROUP, MEMBER, OWNER, Places, ROOT, STRANGER, THE_OWNER, fresh,
    told,
};

const RIGHTS: [(&str, u32); 3] = [("plain", 0o751), ("shared", 0o2775), ("sticky", 0o1777)];

/// Each list, and what the group and others have in it; the named ones come between.
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

/// Puts it all on a filesystem, below a directory with an ACL of no consequence if there is to be one.
fn prepare(root: &Path, marked: bool) {
    let table = fresh(root);
    if marked {
        let of_nobody =
            [(Tag::Owner, 7), (Tag::User(9999), 7), (Tag::Group, 7), (Tag::Mask, 7), (Tag::Other, 7)];
        setxattr(&table, ACCESS, &encode(&of_nobody), XattrFlags::empty()).unwrap();
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

/// What can be told as a right: whether it was done, and what came of it.
type Cells = Vec<(String, String)>;

/// Everybody tries everything; what was changed is put back by root.
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
                    let done = actors.act(actor, move || deeds(actor, &own.0, &own.1));
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

fn deeds(actor: Actor, dir: &Path, file: &Path) -> Vec<(&'static str, String)> {
    let open = |write: bool| told(fs::File::options().read(!write).write(write).open(file));
    let may = |mask| told(access(file, mask));
    let (new, victim) = (dir.join("new"), dir.join("victim"));
    let mut create = fs::File::options();
    let created = told(create.write(true).create_new(true).mode(0o2775).open(&new));
    let mut done = vec![
        ("read", open(false)),
        ("write", open(true)),
        ("may read", may(Access::READ_OK)),
        ("may write", may(Access::WRITE_OK)),
        ("may execute", may(Access::EXEC_OK)),
        ("truncate", told(fs::File::options().write(true).truncate(true).open(file))),
        ("note", told(setxattr(file, "user.note", b"x", XattrFlags::empty()))),
        ("list", told(fs::read_dir(dir))),
        ("go in", told(fs::metadata(&victim))),
        ("create", created.clone()),
        ("make a directory", told(fs::create_dir(dir.join("newdir")))),
        (
            "rename",
            told(
                fs::rename(&victim, dir.join("moved")).and_then(|()| fs::rename(dir.join("moved"), &victim)),
            ),
        ),
        ("remove", told(fs::remove_file(&victim))),
    ];
    if created == "ok" && actor != ROOT {
        // Set-group-ID is lost where the directory's group is not the maker's.
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
        let wanted = wanted.get(cell).map_or("not done", String::as_str);
        if !agree(cell, wanted, result) {
            faults.push(format!("{cell}: ext4 {wanted}, pool {result}"));
        }
    }
    let (count, cells) = (faults.len(), found.len());
    faults.truncate(30);
    assert!(faults.is_empty(), "[{options}] {count} cells of {cells} differ:\n{}", faults.join("\n"));
}

fn alike(_: &str, wanted: &str, found: &str) -> bool {
    wanted == found
}

/// Nobody may do what the branch would not let him do, and where there are no ACLs all is as on the branch.
fn never_more(cell: &str, wanted: &str, found: &str) -> bool {
    let narrow = cell.starts_with("no list") || cell.ends_with("by root") || cell.ends_with("by owner");
    wanted == found || !narrow && !found.starts_with("ok")
}

#[test]
fn lists_on_the_branches_hold_by_default() {
    compared(true, "", alike);
}

#[test]
fn lists_on_the_branches_hold_where_it_is_asked_for() {
    compared(false, "posix-acl=true", alike);
}

#[test]
fn without_lists_nobody_has_more_than_the_branch_grants() {
    compared(true, "posix-acl=false", never_more);
}

/// So do those that lie deep in the tree.
#[test]
fn lists_that_nobody_has_seen_hold_by_default() {
    compared(false, "", alike);
}

/// The mode is what everybody has, whichever way it is asked for, and whatever the pool has to find the file by.
#[test]
fn a_mode_shows_what_a_list_grants_to_all() {
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

/// Neither a branch without ACLs nor an option that hides attributes changes who may do what.
#[test]
fn lists_hold_whatever_attributes_are_shown() {
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
                // Twice: the kernel has been told in between that it need not ask for attributes.
                for round in 0..2 {
                    let may = [THE_OWNER, MEMBER, BY_SUPPLEMENT, STRANGER].map(|actor| {
                        let path = pool.path().join(name);
                        actors.act(actor, move || told(fs::read(path)))
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

/// Attributes and modes of a directory may come from different copies. A list belongs to the mode that it is the mask of.
#[test]
fn a_list_goes_with_the_mode_that_is_shown() {
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
    let done = thread::scope(|scope| Actors::start(scope).act(MEMBER, move || told(fs::read_dir(dir))));
    assert_eq!(done, "EACCES");
    pool.umount();
}

/// The kernel remembers lists, and is told when one changes on the branch.
#[test]
fn a_list_that_changes_on_the_branch_holds_soon() {
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
                let holds = wait_until(Duration::from_secs(20), || {
                    let inner = inner.clone();
                    actors.act(STRANGER, move || told(fs::read(inner)))
                        == if listed { "ok" } else { "EACCES" }
                });
                assert!(holds, "round {round}, {listed}");
            }
        }
    });
    pool.umount();
}

/// Who sets a list on a file of a group that he is not in has no set-group-ID left afterwards, as after chmod(1).
#[test]
fn a_list_takes_set_group_id_as_on_ext4() {
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
                    let set = move || told(setxattr(&own, ACCESS, &encode(&list), XattrFlags::empty()));
                    let set = actors.act(actor, set);
                    let mode = fs::metadata(&path).unwrap().mode() & 0o7000;
                    cells.push(format!("{kind} by {}: {set} {mode:o}", actor.name));
                }
            }
        });
        cells
    });
}
