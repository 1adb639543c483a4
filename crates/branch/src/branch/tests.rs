use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;

use super::*;

/// Expands `{many}` to two paths, `{none}` to none, and every other pattern to itself.
struct Literal;

impl Expand for Literal {
    fn expand(&self, pattern: &OsStr) -> Vec<PathBuf> {
        match pattern.as_bytes() {
            b"{many}" => vec!["/m/1".into(), "/m/2".into()],
            b"{none}" => Vec::new(),
            _ => vec![pattern.into()],
        }
    }
}

fn list(value: &str) -> BranchList {
    BranchList::parse(value, &Literal).expect("a good list")
}

const START: &str = "/tmp/a=RW:/tmp/b=RW";

#[test]
fn instructions_change_the_list() {
    for (value, expected) in [
        ("+/tmp/c", "/tmp/a=RW:/tmp/b=RW:/tmp/c=RW"),
        ("+>/tmp/c", "/tmp/a=RW:/tmp/b=RW:/tmp/c=RW"),
        ("+>/tmp/c:/tmp/d=NC", "/tmp/a=RW:/tmp/b=RW:/tmp/c=RW:/tmp/d=NC"),
        ("+</tmp/c:/tmp/d", "/tmp/c=RW:/tmp/d=RW:/tmp/a=RW:/tmp/b=RW"),
        ("+/tmp/a", "/tmp/a=RW:/tmp/b=RW:/tmp/a=RW"),
        ("+", START),
        ("+>", START),
        ("+<", START),
        ("+<>>", START),
        ("-/tmp/*", ""),
        ("-*", ""),
        ("-", START),
        ("-/x/*:/tmp/b", "/tmp/a=RW"),
        ("-/x", START),
        ("-/tmp/[a]", "/tmp/b=RW"),
        ("-/tmp/a=RW", START),
        ("->", "/tmp/a=RW"),
        ("-<", "/tmp/b=RW"),
        ("->/any:thing", "/tmp/a=RW"),
        ("=", ""),
        ("", ""),
        ("=/tmp/c", "/tmp/c=RW"),
        ("/tmp/c", "/tmp/c=RW"),
        ("{many}=NC,1G", "/m/1=NC,1G:/m/2=NC,1G"),
        ("{none}:/tmp/c", "/tmp/c=RW"),
        ("/tmp/a=RO,1234:/tmp/b=NC,4321", "/tmp/a=RO,1234:/tmp/b=NC,4321"),
        ("/tmp/a=RW,1k", "/tmp/a=RW,1K"),
        ("/tmp/a=RW,0", "/tmp/a=RW,0"),
        ("/tmp/a=RW,1536", "/tmp/a=RW,1536"),
        ("/tmp/with=equals=RW", "/tmp/with=equals=RW"),
        ("/tmp/a,b", "/tmp/a,b=RW"),
    ] {
        let made = list(START).apply(value, &Literal).unwrap_or_else(|error| panic!("{value}: {error}"));
        assert_eq!(made.to_string(), expected, "{value}");
        assert_eq!(list(&made.to_string()), made, "parses back");
    }
}

#[test]
fn an_entry_is_split_at_its_last_equals_sign() {
    assert_eq!(
        list("/tmp/with=equals=RO,2M").as_slice(),
        [BranchSpec { path: "/tmp/with=equals".into(), mode: Mode::Ro, min_free: Some(2 << 20) }]
    );
}

#[test]
fn refused_values_leave_the_list_unchanged() {
    let start = list(START);
    for (value, errno, culprit) in [
        ("/tmp/a=rw", Errno::INVAL, "rw"),
        ("/tmp/a=XX", Errno::INVAL, "XX"),
        ("/tmp/a=", Errno::INVAL, "/tmp/a="),
        ("/tmp/a=RW,-1", Errno::INVAL, "/tmp/a=RW,-1"),
        ("/tmp/a=RW,x", Errno::INVAL, "/tmp/a=RW,x"),
        ("/tmp/a=RW,", Errno::INVAL, "/tmp/a=RW,"),
        ("/tmp/a=,1G", Errno::INVAL, "/tmp/a=,1G"),
        ("/tmp/a=RW,1P", Errno::INVAL, "1P"),
        ("a::b", Errno::INVAL, "a::b"),
        ("/tmp/a:", Errno::INVAL, "/tmp/a:"),
        (":", Errno::INVAL, ":"),
        ("/tmp/a:=RW", Errno::INVAL, "/tmp/a:=RW"),
        ("++/x", Errno::INVAL, "++"),
        ("+-/x", Errno::INVAL, "+-"),
        ("+=/x", Errno::INVAL, "+="),
        ("==/x", Errno::INVAL, "=="),
        ("+<=/x", Errno::INVAL, "/x"),
        ("<", Errno::INVAL, "<"),
        (">", Errno::INVAL, ">"),
        ("</x", Errno::INVAL, "<"),
        ("--", Errno::INVAL, "--"),
        ("/tmp/a=RW,16777216T", Errno::OVERFLOW, "/tmp/a=RW,16777216T"),
        ("/tmp/with=equals", Errno::INVAL, "equals"),
        ("+/tmp/c:/tmp/d=no", Errno::INVAL, "/tmp/d=no"),
        ("/tmp/c=RW:/tmp/d=no", Errno::INVAL, "/tmp/d=no"),
    ] {
        let error = start.apply(value, &Literal).expect_err(value);
        assert_eq!(error.errno(), errno, "{value}: {error}");
        assert!(error.to_string().contains(culprit), "{value}: {error}");
    }
    assert_eq!(start.to_string(), START);
    for value in ["-<", "->"] {
        let error = BranchList::default().apply(value, &Literal).expect_err("nothing to remove");
        assert_eq!(error.errno(), Errno::NOENT);
    }
}

#[test]
fn more_than_two_items_are_refused() {
    for value in ["/tmp/a=RO,1G,x", "/tmp/a=RO,1G,", "/tmp/a=RO,,", "/tmp/a=RW,1,2,3"] {
        let error = BranchList::parse(value, &Literal).expect_err(value);
        assert_eq!(error, BranchError::TooManyItems(value.to_owned()));
        assert_eq!(error.errno(), Errno::INVAL);
    }
}

#[test]
fn paths_need_not_be_utf8() {
    let value = OsStr::from_bytes(b"/tmp/\xff=RO:/tmp/b");
    let parsed = BranchList::parse(value, &Literal).expect("parsed");
    assert_eq!(parsed.as_slice()[0].path.as_os_str().as_bytes(), b"/tmp/\xff");
    assert_eq!(parsed.to_os_string().as_bytes(), b"/tmp/\xff=RO:/tmp/b=RW");
}

#[test]
fn the_default_fsname_omits_the_common_prefix() {
    for (paths, expected) in [
        (&["/mnt/disk1", "/mnt/disk2"][..], "1:2"),
        (&["/mnt/a"], "/mnt/a"),
        (&["/mnt/a", "/mnt/ab"], "/mnt/a:/mnt/ab"),
        (&["/mnt/ab", "/mnt/a"], "b:"),
        (&["/mnt/a", "/mnt/a"], "/mnt/a:/mnt/a"),
        (&["/a", "b"], "/a:b"),
        (&["/mnt/\u{e9}1", "/mnt/\u{e8}1"], "\u{e9}1:\u{e8}1"),
        (&[], ""),
    ] {
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        assert_eq!(default_fsname(&paths), expected, "{paths:?}");
    }
    let many: Vec<PathBuf> = (1000..3000).map(|number| format!("/mnt/disk{number}").into()).collect();
    let name = default_fsname(&many).into_string().unwrap();
    assert!(name.starts_with("1000:1001:") && name.ends_with(":1799:..."), "{name}");
    assert_eq!(default_fsname(&many[..800]).len(), 800 * 4 - 1);
}

/// A directory for one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("canopy-branch-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("scratch directory");
        Scratch(fs::canonicalize(path).expect("scratch path"))
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).expect("mkdir");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn patterns_expand_to_resolved_directories() {
    let scratch = Scratch::new("expand");
    for name in ["d2", "d1", "e"] {
        scratch.dir(name);
    }
    fs::write(scratch.0.join("d3"), "").expect("file");
    std::os::unix::fs::symlink("e", scratch.0.join("link")).expect("symlink");
    for (pattern, expected) in [
        ("d*", &["d1", "d2"][..]),
        ("{e,d1}", &["e", "d1"]),
        ("d1/", &["d1"]),
        ("e/../d1/.", &["d1"]),
        ("link", &["e"]),
        ("d3", &[]),
        ("absent", &["absent"]),
        ("absent/", &["absent"]),
        ("absent*", &["absent*"]),
    ] {
        let found = FileSystem.expand(scratch.0.join(pattern).as_os_str());
        let expected: Vec<PathBuf> = expected.iter().map(|name| scratch.0.join(name)).collect();
        // Compared as text: paths compare equal with and without a trailing slash.
        let text =
            |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(text(&found), text(&expected), "{pattern}");
    }
}

#[test]
fn relative_branches_become_absolute() {
    let found = FileSystem.expand(OsStr::new("canopy-no-such-directory"));
    assert_eq!(found, [std::env::current_dir().expect("cwd").join("canopy-no-such-directory")]);
    assert!(FileSystem.expand(OsStr::new("."))[0].is_absolute());
}

#[test]
fn updating_keeps_the_ids_of_branches_that_stay() {
    let scratch = Scratch::new("update");
    let (a, b) = (scratch.dir("a"), scratch.dir("b"));
    let (a, b) = (a.to_str().expect("utf-8"), b.to_str().expect("utf-8"));

    let first = Branches::open(&list(&format!("{a}=RW:{b}=RO,1K"))).expect("open");
    assert_eq!(first.len(), 2);
    assert_eq!(first.to_list().to_string(), format!("{a}=RW:{b}=RO,1K"));
    assert_eq!(first.srcmounts(), OsString::from(format!("{a}:{b}")));
    assert_ne!(first[0].id, first[1].id);
    assert_eq!((first[0].min_free_or(7), first[1].min_free_or(7)), (7, 1024));
    assert_eq!(first[0].seed, BranchSeed::new(a.as_bytes()));
    let stat = rustix::fs::fstat(first[0].root()).expect("fstat");
    assert_eq!((first[0].dev, first[0].ino), (stat.st_dev, stat.st_ino));

    let second = first.update(&list(&format!("{b}=RW:{a}=RW:{a}=RW"))).expect("update");
    assert_eq!(second[0].id, first[1].id, "moved and changed, the same branch");
    assert_eq!((second[0].mode, second[0].min_free), (Mode::Rw, None));
    assert!(Arc::ptr_eq(&second[1], &first[0]), "unchanged");
    assert_ne!(second[2].id, second[1].id, "a duplicate is a branch of its own");
    assert_eq!(first[1].mode, Mode::Ro, "the old snapshot stays as it was");
    assert_eq!(second.by_id(first[1].id).map(|branch| branch.mode), Some(Mode::Rw));
    assert_eq!((second.index_of(first[0].id), second.get(3).is_none()), (Some(1), true));

    fs::rename(a, scratch.0.join("old-a")).expect("rename");
    fs::create_dir(a).expect("mkdir");
    let third = first.update(&first.to_list()).expect("update");
    assert_ne!(third[0].id, first[0].id, "another directory under the same path");
    assert_eq!(third[1].id, first[1].id);

    let every: HashSet<BranchId> =
        first.iter().chain(&second).chain(&third).map(|branch| branch.id).collect();
    assert_eq!(every.len(), 4);
}

#[test]
fn an_open_error_names_the_path_and_a_remedy() {
    let scratch = Scratch::new("missing");
    let missing = scratch.0.join("missing");
    fs::write(scratch.0.join("file"), "").expect("file");
    let error = Branches::open(&list(missing.to_str().expect("utf-8"))).expect_err("missing");
    assert_eq!(error.errno(), Errno::NOENT);
    let message = error.to_string();
    assert!(
        message.contains(missing.to_str().expect("utf-8")) && message.contains("make or mount"),
        "{message}"
    );
    let file = scratch.0.join("file");
    let error = Branches::open(&list(file.to_str().expect("utf-8"))).expect_err("a file");
    assert_eq!(error.errno(), Errno::NOTDIR);
}

#[test]
fn live_branches_are_replaced_as_a_whole() {
    let scratch = Scratch::new("live");
    let (a, b) = (scratch.dir("a"), scratch.dir("b"));
    let live = LiveBranches::new(Branches::open(&list(a.to_str().expect("utf-8"))).expect("open"));
    let before = live.load();
    live.change(|branches| {
        branches.update(&branches.to_list().apply(format!("+{}", b.display()), &Literal)?)
    })
    .expect("change");
    assert_eq!((before.len(), live.load().len()), (1, 2));
    let failed: Result<(), BranchError> =
        live.change(|branches| branches.update(&branches.to_list().apply("a::b", &Literal)?));
    assert!(failed.is_err());
    assert_eq!(live.load().len(), 2, "a failure changes nothing");
    live.store(Branches::open(&BranchList::default()).expect("open"));
    assert!(live.load().is_empty());
}
