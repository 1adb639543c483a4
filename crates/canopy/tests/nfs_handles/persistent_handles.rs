//! Handles of files and directories that still exist.

use super::rig::{Bed, Layout, handle, layouts, number};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, PATIENCE};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;

#[test]
fn files_and_directories_are_found_again() {
    for layout in layouts() {
        let mut bed = Bed::new(layout, 2, "");
        fs::create_dir_all(bed.at("d/e")).unwrap();
        for name in ["d/f", "d/e/g", "top"] {
            fs::write(bed.at(name), name).unwrap();
        }
        fs::hard_link(bed.at("d/f"), bed.at("linked")).unwrap();
        symlink("d/f", bed.at("link")).unwrap();
        let names = ["d/f", "d/e/g", "top"].map(|name| (name, handle(bed.at(name)), number(bed.at(name))));
        let dirs = [("d", vec!["e", "f"]), ("d/e", vec!["g"])]
            .map(|(name, inside)| (name, handle(bed.at(name)), number(bed.at(name)), inside));
        let (root, link) = (handle(bed.at("")), handle(bed.at("link")));
        assert_eq!(handle(bed.at("linked")), names[0].1);
        for round in 0..4 {
            match round {
                0 => {}
                1 => bed.forget(),
                _ => bed.restart(),
            }
            for (name, handle, number) in &names {
                assert_eq!(bed.read(handle).as_deref(), Ok(*name), "{layout:?}, round {round}: {name}");
                assert_eq!(bed.number(handle), Ok(*number), "{layout:?}, round {round}: {name}");
            }
            for (name, handle, number, inside) in &dirs {
                let listed = bed.list(handle);
                assert_eq!(listed.unwrap(), *inside, "{layout:?}, round {round}: {name}");
                assert_eq!(bed.number(handle), Ok(*number), "{layout:?}, round {round}: {name}");
            }
            assert_eq!(bed.list(&root).map(|names| names.len()), Ok(4), "{layout:?}, round {round}");
            let opened = bed.open(&link, OFlags::PATH | OFlags::NOFOLLOW).unwrap();
            assert_eq!(rustix::fs::readlinkat(opened, "", Vec::new()).unwrap().as_bytes(), b"d/f");
        }
        // All names of a file show the same file, whichever is looked up first.
        let (_, first, _) = &names[0];
        let opened = bed.open(first, OFlags::RDONLY).unwrap();
        assert_eq!(&handle(bed.at("d/f")), first);
        assert_eq!(&handle(bed.at("linked")), first);
        drop(opened);
        bed.end();
    }
}

/// A file opened by handle can be written, changed and linked like one opened by name.
#[test]
fn a_handle_opens_the_file_itself() {
    for layout in layouts() {
        let mut bed = Bed::new(layout, 2, "");
        fs::create_dir(bed.at("d")).unwrap();
        fs::write(bed.at("d/f"), "before").unwrap();
        let found = handle(bed.at("d/f"));
        bed.restart();
        let mut file = fs::File::from(bed.open(&found, OFlags::WRONLY | OFlags::APPEND).unwrap());
        file.write_all(b" and after").unwrap();
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(bed.at("d/f")).unwrap(), "before and after", "{layout:?}");
        assert_eq!(number(bed.at("d/f")), bed.number(&found).unwrap());
        // A file removed while open stays usable through its descriptors only.
        let file = bed.open(&found, OFlags::RDONLY).unwrap();
        fs::remove_file(bed.at("d/f")).unwrap();
        let mut content = [0; 6];
        assert_eq!(rustix::io::read(&file, &mut content), Ok(6));
        drop(file);
        // The kernel releases a file shortly after its last close.
        let gone = || {
            bed.forget();
            bed.read(&found) == Err(Errno::STALE)
        };
        assert!(wait_until(PATIENCE, gone), "{layout:?}");
        bed.end();
    }
}

#[test]
fn renamed_files_and_directories_are_found() {
    for layout in layouts() {
        let mut bed = Bed::new(layout, 2, "");
        fs::create_dir_all(bed.at("d/e")).unwrap();
        for name in ["d/f", "d/e/g"] {
            fs::write(bed.at(name), name).unwrap();
        }
        let [f, g, d, e] = ["d/f", "d/e/g", "d", "d/e"].map(|name| handle(bed.at(name)));
        fs::rename(bed.at("d/f"), bed.at("d/e/moved")).unwrap();
        fs::rename(bed.at("d/e"), bed.at("elsewhere")).unwrap();
        for round in 0..3 {
            match round {
                0 => {}
                1 => bed.forget(),
                _ => bed.restart(),
            }
            assert_eq!(bed.read(&f).as_deref(), Ok("d/f"), "{layout:?}, round {round}");
            assert_eq!(bed.read(&g).as_deref(), Ok("d/e/g"), "{layout:?}, round {round}");
            let names = |dir: &[u8]| bed.list(dir).map(|names| names.join(" "));
            assert_eq!(names(&e).as_deref(), Ok("g moved"), "{layout:?}, round {round}");
            assert_eq!(names(&d).as_deref(), Ok(""), "{layout:?}, round {round}");
        }
        // A rename directly on the branch.
        let place = bed.on_branch("elsewhere/moved");
        fs::rename(&place, place.with_file_name("direct")).unwrap();
        bed.restart();
        assert_eq!(bed.read(&f).as_deref(), Ok("d/f"), "{layout:?}");
        bed.end();
    }
}

/// The kernel finds the name of a directory by its inode number in the parent's listing, which may be an older, cached
/// one.
#[test]
fn a_renamed_directory_is_found_despite_a_cached_listing() {
    let bed = Bed::new(Layout { kind: Kind::Ext4, whole: true }, 1, "inodecalc=hybrid-hash");
    fs::create_dir(bed.at("before")).unwrap();
    let found = handle(bed.at("before"));
    fs::rename(bed.at("before"), bed.at("after")).unwrap();
    let (root, old) = (handle(bed.at("")), number(bed.at("after")));
    let gets_new_number = || {
        // The kernel caches a listing that is read to its end.
        assert_eq!(bed.list(&root).unwrap(), ["after"]);
        bed.forget();
        let listed = bed.list(&found);
        assert_eq!(listed.as_deref(), Ok(&[][..]));
        bed.number(&found) != Ok(old)
    };
    assert!(wait_until(PATIENCE, gets_new_number));
    bed.end();
}

/// A directory keeps its handle when other branches get a copy of it.
#[test]
fn the_oldest_copy_determines_the_handle_of_a_directory() {
    let mut bed = Bed::new(Layout { kind: Kind::Ext4, whole: true }, 3, "");
    fs::create_dir(bed.branches[1].join("d")).unwrap();
    let found = handle(bed.at("d"));
    canopy_testkit::files::wait_for_clock_tick();
    fs::create_dir(bed.branches[0].join("d")).unwrap();
    fs::create_dir(bed.branches[2].join("d")).unwrap();
    for branch in 0..3 {
        fs::write(bed.branches[branch].join(format!("d/{branch}")), "").unwrap();
    }
    for _ in 0..2 {
        bed.restart();
        assert_eq!(bed.list(&found).unwrap(), ["0", "1", "2"]);
        assert_eq!(handle(bed.at("d")), found);
    }
    bed.end();
}

/// Landlock denies opening a file that has no path.
#[test]
fn handles_work_under_landlock() {
    let mut bed = Bed::new(Layout { kind: Kind::Ext4, whole: true }, 2, "landlock=true");
    fs::create_dir(bed.at("d")).unwrap();
    fs::write(bed.at("d/f"), "f").unwrap();
    let (found, dir) = (handle(bed.at("d/f")), handle(bed.at("d")));
    bed.restart();
    assert_eq!(bed.read(&found).as_deref(), Ok("f"));
    assert_eq!(bed.list(&dir).unwrap(), ["f"]);
    bed.end();
}

/// With `inodecalc=path-hash`, a file opened by handle has the number of its path.
#[test]
fn a_path_hash_number_is_the_same_by_handle() {
    let mut bed = Bed::new(Layout { kind: Kind::Ext4, whole: true }, 2, "inodecalc=path-hash");
    fs::create_dir(bed.at("d")).unwrap();
    fs::write(bed.at("d/f"), "f").unwrap();
    let (found, expected) = (handle(bed.at("d/f")), number(bed.at("d/f")));
    bed.restart();
    assert_eq!((bed.read(&found).as_deref(), bed.number(&found)), (Ok("f"), Ok(expected)));
    bed.end();
}
