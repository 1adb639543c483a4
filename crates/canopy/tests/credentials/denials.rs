//! Operations that must fail, and with which error: tables run on ext4 and on pools.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::thread;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags,
    access, getxattr, linkat, listxattr, mkdirat, mknodat, openat, renameat, renameat_with, setxattr, statat,
    symlinkat, unlinkat, utimensat,
};

use super::rig::{Actors, EVERYBODY, GROUP, OWNER, Places, ROOT, STRANGER, THE_OWNER, fresh, outcome};

const WAYS: [&str; 3] = ["", "passthrough.io=off,cache.files=full", "posix-acl=true"];

/// Creates directories with various modes and owners, each with the same entries, and returns their names.
fn create_entries(root: &Path) -> Vec<String> {
    let dirs = [
        ("open", 0o777, 0),
        ("private", 0o700, OWNER),
        ("private-of-root", 0o700, 0),
        ("search-only", 0o711, OWNER),
        ("list-only", 0o744, OWNER),
        ("write-only", 0o733, OWNER),
        ("group", 0o770, OWNER),
        ("group-denied", 0o707, OWNER),
        ("sticky", 0o1777, 0),
        ("sticky-own", 0o1777, OWNER),
        ("read-only", 0o555, OWNER),
    ];
    for (name, mode, uid) in dirs {
        let dir = root.join(name);
        fs::create_dir(&dir).unwrap();
        for (file, mode) in [
            ("f644", 0o644),
            ("f600", 0o600),
            ("f060", 0o060),
            ("f006", 0o006),
            ("f666", 0o666),
            ("suid", 0o4755),
        ] {
            let path = dir.join(file);
            fs::write(&path, "content").unwrap();
            chown(&path, Some(OWNER), Some(GROUP)).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        }
        for sub in ["sub", "empty"] {
            fs::create_dir(dir.join(sub)).unwrap();
            chown(dir.join(sub), Some(OWNER), Some(GROUP)).unwrap();
        }
        fs::write(dir.join("sub/inner"), "content").unwrap();
        symlink("f644", dir.join("link")).unwrap();
        chown(&dir, Some(uid), Some(GROUP)).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
    }
    dirs.map(|(name, ..)| name.to_owned()).into()
}

/// Operations that change nothing, so that every actor can attempt them in turn.
fn read_operations(dir: &Path) -> String {
    let mode = Mode::empty();
    let open = |name: &str, flags| outcome(openat(CWD, dir.join(name), flags, mode));
    let may = |name: &str, what| outcome(access(dir.join(name), what));
    let mut results = vec![
        outcome(fs::read_dir(dir)),
        outcome(statat(CWD, dir.join("f644"), AtFlags::empty())),
        outcome(statat(CWD, dir.join("sub/inner"), AtFlags::empty())),
        outcome(statat(CWD, dir.join("missing"), AtFlags::empty())),
        outcome(statat(CWD, dir.join("f644/below"), AtFlags::empty())),
        outcome(fs::read_link(dir.join("link"))),
        open("link", OFlags::RDONLY),
        open(".", OFlags::WRONLY),
        open("f644", OFlags::RDONLY | OFlags::NOATIME),
        open("sub", OFlags::RDWR),
        open("missing", OFlags::RDONLY),
        outcome(getxattr(dir.join("f600"), "user.none", &mut [0_u8; 8][..])),
        outcome(getxattr(dir.join("f600"), "trusted.none", &mut [0_u8; 8][..])),
        may("", Access::READ_OK),
        may("", Access::WRITE_OK),
        may("", Access::EXEC_OK),
    ];
    for name in ["f644", "f600", "f060", "f006", "f666", "suid"] {
        results.extend([OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR].map(|flags| open(name, flags)));
        results.extend([Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK].map(|what| may(name, what)));
    }
    results.join(" ")
}

/// Operations that create or change entries; each actor uses its own names.
fn change_operations(dir: &Path, who: u32) -> String {
    let new = |name: &str| dir.join(format!("{name}-{who}"));
    let mode = Mode::from_raw_mode(0o644);
    let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    let times = |nanoseconds| {
        let time = Timespec { tv_sec: 5, tv_nsec: nanoseconds };
        Timestamps { last_access: time, last_modification: time }
    };
    let chmod = |name: &str, mode| outcome(rustix::fs::chmod(dir.join(name), Mode::from_raw_mode(mode)));
    let owner = |name: &str, uid: Option<u32>, gid: Option<u32>| {
        outcome(std::os::unix::fs::chown(dir.join(name), uid, gid))
    };
    [
        outcome(openat(CWD, new("file"), create, mode)),
        outcome(openat(CWD, dir, OFlags::TMPFILE | OFlags::WRONLY, mode)),
        outcome(mkdirat(CWD, new("dir"), mode)),
        outcome(mknodat(CWD, new("fifo"), FileType::Fifo, mode, 0)),
        outcome(mknodat(CWD, new("device"), FileType::CharacterDevice, mode, rustix::fs::makedev(1, 3))),
        outcome(symlinkat("target", CWD, new("symlink"))),
        outcome(linkat(CWD, dir.join("f666"), CWD, new("hard"), AtFlags::empty())),
        // Other people's set-id files may not be linked to (fs.protected_hardlinks).
        outcome(linkat(CWD, dir.join("suid"), CWD, new("hardsuid"), AtFlags::empty())),
        outcome(utimensat(CWD, dir.join("f666"), &times(UTIME_NOW), AtFlags::empty())),
        outcome(utimensat(CWD, dir.join("f644"), &times(UTIME_NOW), AtFlags::empty())),
        outcome(utimensat(CWD, dir.join("f666"), &times(7), AtFlags::empty())),
        outcome(setxattr(dir.join("f666"), "user.a", b"1", XattrFlags::empty())),
        outcome(setxattr(dir.join("f644"), "user.a", b"1", XattrFlags::empty())),
        outcome(setxattr(dir.join("f666"), "trusted.a", b"1", XattrFlags::empty())),
        outcome(setxattr(dir.join("f666"), "security.a", b"1", XattrFlags::empty())),
        outcome(setxattr(dir.join("f666"), "user.", b"1", XattrFlags::empty())),
        outcome(setxattr(dir.join("f666"), "nonsense.a", b"1", XattrFlags::empty())),
        chmod("f666", 0o666),
        chmod("f666", 0o2666),
        chmod("f666", 0o666),
        owner("f644", Some(OWNER), None),
        owner("f644", Some(6004), None),
        owner("f644", None, Some(GROUP)),
        owner("f644", None, Some(7008)),
        owner("f644", Some(OWNER), Some(GROUP)),
        outcome(std::os::unix::fs::lchown(dir.join("link"), Some(6004), Some(7004))),
        outcome(fs::File::options().append(true).open(dir.join("f644")).and_then(|file| file.set_len(7))),
    ]
    .join(" ")
}

/// Operations that remove or rename entries; root restores them afterwards for the next actor.
fn remove_operations(dir: &Path) -> String {
    [
        outcome(unlinkat(CWD, dir.join("sub"), AtFlags::REMOVEDIR)),
        outcome(unlinkat(CWD, dir.join("f644"), AtFlags::REMOVEDIR)),
        outcome(unlinkat(CWD, dir.join("sub"), AtFlags::empty())),
        outcome(renameat(CWD, dir.join("f600"), CWD, dir.join("f600.moved"))),
        outcome(renameat(CWD, dir.join("f600.moved"), CWD, dir.join("f600"))),
        outcome(renameat(CWD, dir.join("f600"), CWD, dir.join("sub"))),
        outcome(renameat(CWD, dir.join("sub"), CWD, dir.join("f600"))),
        outcome(renameat(CWD, dir.join("sub"), CWD, dir.join("sub/inner/x"))),
        outcome(renameat(CWD, dir.join("sub"), CWD, dir.join("sub/x"))),
        outcome(renameat_with(CWD, dir.join("f600"), CWD, dir.join("f666"), RenameFlags::NOREPLACE)),
        outcome(renameat_with(CWD, dir.join("f600"), CWD, dir.join("f666"), RenameFlags::EXCHANGE)),
        outcome(renameat_with(CWD, dir.join("f600"), CWD, dir.join("f666"), RenameFlags::EXCHANGE)),
        outcome(renameat(CWD, dir.join("sub"), CWD, dir.join("../sub-moved"))),
        outcome(renameat(CWD, dir.join("../sub-moved"), CWD, dir.join("sub"))),
        outcome(renameat(CWD, dir.join("f006"), CWD, dir.join("f060"))),
        outcome(unlinkat(CWD, dir.join("f666"), AtFlags::empty())),
        outcome(unlinkat(CWD, dir.join("empty"), AtFlags::REMOVEDIR)),
    ]
    .join(" ")
}

fn restore(dir: &Path) {
    for (name, mode) in [("f006", 0o006), ("f060", 0o060), ("f666", 0o666)] {
        let path = dir.join(name);
        // O_CREAT of a file that is there is refused in a sticky directory, even to root (fs.protected_regular).
        let there = File::options().write(true).truncate(true).open(&path);
        there.or_else(|_| File::create_new(&path)).unwrap().write_all(b"content").unwrap();
        chown(&path, Some(OWNER), Some(GROUP)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    if !dir.join("empty").exists() {
        fs::create_dir(dir.join("empty")).unwrap();
        chown(dir.join("empty"), Some(OWNER), Some(GROUP)).unwrap();
    }
}

/// Copying fails if an attribute is listed that cannot be read, so filesystems list these only for root.
#[test]
fn trusted_attributes_are_listed_only_for_root() {
    Places::new().compare(&WAYS, |dir| {
        let (file, inner) = (dir.join("file"), dir.join("dir"));
        fs::write(&file, "").unwrap();
        fs::create_dir(&inner).unwrap();
        for path in [&file, &inner] {
            for name in ["user.a", "trusted.b", "user.c", "trusted.d"] {
                setxattr(path, name, b"1", XattrFlags::empty()).unwrap();
            }
        }
        let names = |path: &Path| {
            let mut list = [0; 256];
            let length = listxattr(path, &mut list[..]).unwrap();
            let mut names: Vec<_> = list[..length].split_inclusive(|&byte| byte == 0).collect();
            names.sort_unstable();
            String::from_utf8(names.concat()).unwrap()
        };
        thread::scope(|scope| {
            let actors = Actors::start(scope);
            let one = |actor| actors.act(actor, || [names(&file), names(&inner)].join(" "));
            let lists: Vec<_> = EVERYBODY.map(|actor| format!("{}: {:?}", actor.name, one(actor))).into();
            drop(actors);
            lists
        })
    });
}

#[test]
fn every_error_is_that_of_ext4() {
    Places::new().compare(&WAYS, |root| {
        let mut cells = Vec::new();
        let dirs = create_entries(root);
        thread::scope(|scope| {
            let actors = Actors::start(scope);
            for name in dirs {
                for actor in EVERYBODY {
                    let dir = root.join(&name);
                    let who = actor.uid * 10 + u32::from(actor.gid == GROUP);
                    let (one, two, three) = (dir.clone(), dir.clone(), dir.clone());
                    let looked = actors.act(actor, move || read_operations(&one));
                    cells.push(format!("{name} reads by {}: {looked}", actor.name));
                    let made = actors.act(actor, move || change_operations(&two, who));
                    cells.push(format!("{name} changes by {}: {made}", actor.name));
                    // Root's chown succeeds and changes owners; they are reset for the next actor.
                    let removed = actors.act(actor, move || remove_operations(&three));
                    cells.push(format!("{name} removals by {}: {removed}", actor.name));
                    restore(&dir);
                    for (file, owner) in [("f644", OWNER), ("link", 0)] {
                        std::os::unix::fs::lchown(dir.join(file), Some(owner), Some(GROUP)).unwrap();
                    }
                }
            }
        });
        cells
    });
}

/// Attributes belong to the file, whichever link they are changed through: nothing cached for another link may grant
/// access.
#[test]
fn a_change_through_one_link_applies_to_the_others_at_once() {
    let places = Places::new();
    for options in
        ["cache.attr=60,cache.entry=60", "passthrough.io=off,cache.files=full,cache.attr=60,cache.entry=60"]
    {
        let pool = places.pool(options);
        let root = pool.path();
        fs::create_dir_all(root.join("there/deep")).unwrap();
        let (one, two) = (root.join("one"), root.join("there/deep/two"));
        fs::write(&one, "secret").unwrap();
        chown(&one, Some(OWNER), Some(GROUP)).unwrap();
        fs::hard_link(&one, &two).unwrap();
        thread::scope(|scope| {
            let actors = Actors::start(scope);
            let read = |path: &Path| {
                let path = path.to_owned();
                move || outcome(File::open(path).and_then(|mut file| file.read_to_string(&mut String::new())))
            };
            let chmod = |path: &Path, mode| {
                let path = path.to_owned();
                move || rustix::fs::chmod(path, Mode::from_raw_mode(mode)).unwrap()
            };
            for round in 0..20 {
                let (asked, changed) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
                actors.act(THE_OWNER, chmod(changed, 0o644));
                assert_eq!(actors.act(STRANGER, read(asked)), "ok", "round {round} [{options}]");
                actors.act(THE_OWNER, chmod(changed, 0o600));
                assert_eq!(actors.act(STRANGER, read(asked)), "EACCES", "round {round} [{options}]");
                assert_eq!(actors.act(THE_OWNER, read(asked)), "ok", "round {round} [{options}]");
                let own = changed.clone();
                actors.act(ROOT, move || chown(own, Some(STRANGER.uid), None).unwrap());
                assert_eq!(actors.act(STRANGER, read(asked)), "ok", "round {round} [{options}]");
                assert_eq!(actors.act(THE_OWNER, read(asked)), "EACCES", "round {round} [{options}]");
                let own = changed.clone();
                actors.act(ROOT, move || chown(own, Some(OWNER), None).unwrap());
            }
        });
        fs::remove_dir_all(root.join("there")).unwrap();
        fs::remove_file(&one).unwrap();
        pool.umount();
    }
}

/// A change of a directory's permissions affects everything below it at once.
#[test]
fn revoking_access_to_a_directory_revokes_access_below_it() {
    Places::new().compare(&WAYS, |root| {
        let mut cells = Vec::new();
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(root.join("a/b/c/file"), "content").unwrap();
        thread::scope(|scope| {
            let actors = Actors::start(scope);
            for mode in [0o755, 0o700, 0o711, 0o744, 0o750, 0o751, 0o705, 0o000] {
                for level in ["a", "a/b", "a/b/c"] {
                    let dir = root.join(level);
                    chown(&dir, Some(OWNER), Some(GROUP)).unwrap();
                    fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
                    for actor in EVERYBODY {
                        let root = root.to_owned();
                        let results = actors.act(actor, move || {
                            let stat = |name: &str| outcome(fs::metadata(root.join(name)));
                            let list = |name: &str| outcome(fs::read_dir(root.join(name)));
                            [stat("a/b"), stat("a/b/c/file"), stat("a/b/c/none"), list("a"), list("a/b/c")]
                                .join(" ")
                        });
                        cells.push(format!("{mode:o} {level} by {}: {results}", actor.name));
                    }
                    fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
                }
            }
        });
        cells
    });
}

/// Who may remove or rename a name in a directory with the sticky bit depends on whose file or directory it leads to. The kernel
/// judges the one that it knows, which another may have replaced on the branch.
#[test]
fn a_sticky_directory_keeps_what_has_replaced_ones_own() {
    let places = Places::new();
    let on_branch = fresh(&places.branches()[0]);
    fs::set_permissions(&on_branch, PermissionsExt::from_mode(0o1777)).unwrap();
    let pool = places.pool("cache.entry=3600,cache.attr=3600,cache.coherence=timeout");
    let dir = pool.path().join(on_branch.file_name().unwrap());
    type Way = fn(&Path) -> String;
    let rename: Way = |path| outcome(fs::rename(path, path.with_extension("new")));
    let exchange: Way =
        |path| outcome(renameat_with(CWD, path, CWD, path.with_extension("own"), RenameFlags::EXCHANGE));
    // What is one's own, what replaces it, and how one tries to remove that.
    let ways: [(&str, Way); 9] = [
        ("file file unlink", |path| outcome(fs::remove_file(path))),
        ("file file rename", rename),
        ("file file exchange", exchange),
        ("dir dir rmdir", |path| outcome(fs::remove_dir(path))),
        ("dir dir rename", rename),
        ("dir dir exchange", exchange),
        ("file dir rename", rename),
        ("dir file rename", rename),
        ("dir file exchange", exchange),
    ];
    thread::scope(|scope| {
        let actors = Actors::start(scope);
        for ((case, way), owner) in ways.into_iter().flat_map(|way| [(way, ROOT), (way, STRANGER)]) {
            let mut words = case.split(' ');
            let [is_dir, becomes_dir] = [(); 2].map(|()| words.next() == Some("dir"));
            let case = format!("{case} {}", owner.name);
            let path = dir.join(&case);
            let mine = path.clone();
            let made = actors.act(STRANGER, move || {
                fs::write(mine.with_extension("own"), "").unwrap();
                if is_dir {
                    fs::create_dir(&mine).unwrap()
                } else {
                    fs::write(&mine, "mine").unwrap()
                }
                outcome(fs::metadata(mine))
            });
            assert_eq!(made, "ok");
            let in_dir = Path::new(on_branch.file_name().unwrap()).join(&case);
            let there =
                places.branches().into_iter().map(|branch| branch.join(&in_dir)).find(|path| path.exists());
            let there = there.expect("it is on a branch");
            fs::rename(&there, there.with_extension("gone")).unwrap();
            if becomes_dir { fs::create_dir(&there) } else { fs::write(&there, "") }.unwrap();
            chown(&there, Some(owner.uid), None).unwrap();
            let number = fs::metadata(&there).unwrap().ino();
            let stays = || fs::metadata(&there).is_ok_and(|found| found.ino() == number);
            let expected = if owner == ROOT { "EPERM" } else { "ok" };
            assert_eq!(actors.act(STRANGER, move || way(&path)), expected, "{case}");
            assert_eq!(stays(), owner == ROOT, "{case}");
        }
    });
    pool.umount();
}

/// The kernel opens without a check what a create request has opened. So no such request opens what appeared on the branch since
/// the kernel has looked the name up.
#[test]
fn no_create_opens_what_the_caller_may_not() {
    let places = Places::new();
    let on_branch = fresh(&places.branches()[0]);
    let pool = places.pool("cache.negative-entry=3600,cache.coherence=timeout");
    let dir = pool.path().join(on_branch.file_name().unwrap());
    thread::scope(|scope| {
        let actors = Actors::start(scope);
        for (name, mode, expected) in
            [("private", 0o600, "EACCES"), ("readable", 0o644, "EACCES"), ("open", 0o666, "ok")]
        {
            let path = dir.join(name);
            let missing = path.clone();
            assert_eq!(actors.act(STRANGER, move || outcome(fs::metadata(missing))), "ENOENT");
            let there = on_branch.join(name);
            fs::write(&there, "content").unwrap();
            fs::set_permissions(&there, PermissionsExt::from_mode(mode)).unwrap();
            for flags in [OFlags::empty(), OFlags::TRUNC] {
                let path = path.clone();
                let flags = flags | OFlags::CREATE | OFlags::RDWR;
                let opened = actors
                    .act(STRANGER, move || outcome(openat(CWD, path, flags, Mode::from_raw_mode(0o644))));
                assert_eq!(opened, expected, "{name}, {flags:?}");
            }
            let left = if expected == "ok" { "" } else { "content" };
            assert_eq!(fs::read_to_string(&there).unwrap(), left, "{name}");
        }
    });
    pool.umount();
}
