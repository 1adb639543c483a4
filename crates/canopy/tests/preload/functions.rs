//! Every replaced function with every relevant flag: the library changes only where the descriptor leads, nothing else.

use super::rig::Bed;
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;
use canopy_testkit::files::text;
use rustix::fs::{FileType, Mode, OFlags};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const WITH_FLAGS: [&str; 5] = ["open", "open64", "openat", "openat64", "openat2"];
const CHECKED: [&str; 4] = ["__open_2", "__open64_2", "__openat_2", "__openat64_2"];
const CREATING: [&str; 2] = ["creat", "creat64"];
const STREAMS: [&str; 4] = ["fopen", "fopen64", "freopen", "freopen64"];

/// Where the descriptor must lead, if the call returns one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leads {
    Branch,
    Pool,
    None,
}

/// Recreates a small tree.
fn prepare(bed: &Bed) {
    for old in fs::read_dir(bed.pool.path()).unwrap() {
        let old = old.unwrap().path();
        if old.is_dir() { fs::remove_dir(&old).unwrap() } else { fs::remove_file(&old).unwrap() }
    }
    fs::write(bed.at("file"), "content").unwrap();
    fs::create_dir(bed.at("dir")).unwrap();
    symlink("file", bed.at("symlink")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, bed.at("fifo"), FileType::Fifo, Mode::from_bits_retain(0o644), 0)
        .unwrap();
}

/// Runs a case with and without the library. Only the last line of output may differ, and the files must be equal
/// afterwards.
#[track_caller]
fn check(bed: &Bed, program: &Path, function: &str, name: &str, flags: OFlags, mode: &str, place: Leads) {
    let case = format!("{function} {name} {flags:?} {mode}");
    let mut seen = Vec::new();
    for library in [None, Some(bed.library())] {
        prepare(bed);
        let mut command = Command::new(program);
        command.arg(function).arg(bed.at(name)).arg(flags.bits().to_string()).arg(mode);
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let done = run_within(&mut command, PATIENCE);
        assert!(done.success(), "{case}: {}", done.describe());
        let (facts, at) = match done.stdout.split_once("at /") {
            Some((facts, at)) => (facts.to_owned(), Some(format!("/{}", at.trim_end()))),
            None => (done.stdout, None),
        };
        let files = ["file", "new"]
            .map(|name| fs::read(bed.on(0, name)).map(|bytes| String::from_utf8(bytes).unwrap()).ok());
        seen.push((facts, files, at));
    }
    let [without, with] = &seen[..] else { panic!("two runs") };
    assert_eq!((&with.0, &with.1), (&without.0, &without.1), "{case}");
    assert!(!with.0.contains("another file"), "{case}: {}", with.0);
    let under =
        |at: &Option<String>, root: &Path| at.as_ref().is_some_and(|at| Path::new(at).starts_with(root));
    assert_eq!(under(&without.2, bed.pool.path()), place != Leads::None, "{case}: {without:?}");
    match place {
        Leads::Branch => assert!(under(&with.2, &bed.on(0, "")), "{case}: {with:?}"),
        Leads::Pool => assert!(under(&with.2, bed.pool.path()), "{case}: {with:?}"),
        Leads::None => assert_eq!(with.2, None, "{case}"),
    }
}

#[test]
fn every_open_flag() {
    let bed = Bed::new("cache.attr=0");
    let program = bed.program("opens");
    for function in WITH_FLAGS {
        let create = OFlags::WRONLY | OFlags::CREATE;
        for (name, flags, place) in [
            ("file", OFlags::RDONLY, Leads::Branch),
            ("file", OFlags::WRONLY, Leads::Branch),
            ("file", OFlags::RDWR, Leads::Branch),
            ("file", OFlags::RDWR | OFlags::APPEND, Leads::Branch),
            ("file", OFlags::RDWR | OFlags::TRUNC, Leads::Branch),
            ("file", OFlags::RDWR | OFlags::CLOEXEC, Leads::Branch),
            ("file", OFlags::RDWR | OFlags::NONBLOCK | OFlags::SYNC | OFlags::NOATIME, Leads::Branch),
            ("file", OFlags::RDONLY | OFlags::NOFOLLOW, Leads::Branch),
            ("symlink", OFlags::RDWR, Leads::Branch),
            ("new", create, Leads::Branch),
            ("new", create | OFlags::EXCL | OFlags::CLOEXEC, Leads::Branch),
            ("new", OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC, Leads::Branch),
            ("file", create | OFlags::TRUNC, Leads::Branch),
            // Opens of names rather than data.
            ("file", OFlags::PATH, Leads::Pool),
            ("dir", OFlags::RDONLY | OFlags::DIRECTORY, Leads::Pool),
            ("dir", OFlags::RDONLY, Leads::Pool),
            ("dir", OFlags::PATH, Leads::Pool),
            ("symlink", OFlags::PATH | OFlags::NOFOLLOW, Leads::Pool),
            ("fifo", OFlags::RDWR, Leads::Pool),
            // Failures stay the same.
            ("file", create | OFlags::EXCL, Leads::None),
            ("file", OFlags::RDONLY | OFlags::DIRECTORY, Leads::None),
            ("missing", OFlags::RDONLY, Leads::None),
            ("symlink", OFlags::RDONLY | OFlags::NOFOLLOW, Leads::None),
            ("dir", OFlags::WRONLY, Leads::None),
            ("fifo", OFlags::WRONLY | OFlags::NONBLOCK, Leads::None),
        ] {
            check(&bed, &program, function, name, flags, "", place);
        }
    }
    for function in CHECKED {
        for (name, flags, place) in [
            ("file", OFlags::RDWR | OFlags::APPEND, Leads::Branch),
            ("file", OFlags::WRONLY | OFlags::TRUNC, Leads::Branch),
            ("dir", OFlags::RDONLY, Leads::Pool),
            ("missing", OFlags::RDONLY, Leads::None),
        ] {
            check(&bed, &program, function, name, flags, "", place);
        }
    }
    for function in CREATING {
        for (name, place) in [("file", Leads::Branch), ("new", Leads::Branch), ("dir", Leads::None)] {
            check(&bed, &program, function, name, OFlags::empty(), "", place);
        }
    }
    bed.end();
}

#[test]
fn every_stream_mode() {
    let bed = Bed::new("cache.attr=0");
    let program = bed.program("opens");
    for function in STREAMS {
        for mode in ["r", "r+", "w", "w+", "a", "a+", "re", "r+b", "ae"] {
            check(&bed, &program, function, "file", OFlags::empty(), mode, Leads::Branch);
        }
        for mode in ["w", "w+x", "a", "a+e"] {
            check(&bed, &program, function, "new", OFlags::empty(), mode, Leads::Branch);
        }
        for (name, mode) in [("file", "wx"), ("missing", "r"), ("file", "nonsense"), ("dir", "w")] {
            check(&bed, &program, function, name, OFlags::empty(), mode, Leads::None);
        }
        check(&bed, &program, function, "dir", OFlags::empty(), "r", Leads::Pool);
    }
    bed.end();
}

/// A file opened with O_TMPFILE stays in the pool, where it can get a name later.
#[test]
fn unnamed_files_stay_in_the_pool() {
    let bed = Bed::new("");
    let program = bed.program("opens");
    for function in WITH_FLAGS {
        let flags = (OFlags::TMPFILE | OFlags::RDWR).bits().to_string();
        let output =
            bed.run_ok(&program, [function.as_ref(), bed.at("").as_os_str(), flags.as_ref(), "".as_ref()]);
        assert!(output.contains("write 7 link 0"), "{function}: {output}");
        let at = output.lines().last().unwrap().strip_prefix("at ").unwrap();
        assert!(Path::new(at).starts_with(bed.pool.path()), "{function}: {output}");
        assert_eq!(text(bed.on(0, "linked")), "unnamed", "{function}");
        fs::remove_file(bed.at("linked")).unwrap();
    }
    bed.end();
}

#[test]
fn opens_before_all_constructors() {
    let bed = Bed::new("");
    fs::write(bed.at("f"), "content").unwrap();
    let output = bed.run_ok(bed.program("early"), [bed.at("f")]);
    assert_eq!(Path::new(output.trim_end()), bed.on(0, "f"));
    bed.end();
}
