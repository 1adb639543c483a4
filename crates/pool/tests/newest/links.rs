//! Hard links of files with copies.

use super::copies::Bed;
use crate::common::ROOT;
use canopy_base::error::Error;
use canopy_pool::ops;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The kernel asks the next process for what the one before was killed at.
#[test]
fn a_link_that_was_half_done_is_completed() {
    let bed = Bed::with(2, false);
    bed.create("d/f", "text");
    bed.copy("d/f", 0, 1).unwrap();
    let links = |branch: usize| fs::metadata(bed.made.on(branch, "d/f")).unwrap().nlink();
    let (dir, name) = bed.place("d/g");
    let node = bed.node("d/f");
    let again = |name| ops::names::link::link_again(bed.pool(), &ROOT, node, dir, name).map_err(Error::errno);
    fs::hard_link(bed.made.on(1, "d/f"), bed.made.on(1, "d/g")).unwrap();
    for _ in 0..2 {
        assert_eq!(again(name).unwrap().node, node);
        assert_eq!((links(0), links(1)), (2, 2));
    }
    assert_eq!(
        ops::names::link::link(bed.pool(), &ROOT, node, dir, name).map_err(Error::errno).err(),
        Some(Errno::EXIST)
    );
    // If it had not begun; and if somebody else has the name.
    again(b"h").unwrap();
    fs::write(bed.made.on(0, "d/other"), "").unwrap();
    assert_eq!(again(b"other").err(), Some(Errno::EXIST));
    assert_eq!((links(0), links(1)), (3, 3));
}

/// They get no copies, and their filesystem lets them have no attributes of users.
#[test]
fn symlinks_and_pipes_get_hard_links() {
    let bed = Bed::new(2);
    std::os::unix::fs::symlink("nowhere", bed.made.on(0, "d/symlink")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, bed.made.on(0, "d/pipe"), 0o644.into()).unwrap();
    for name in ["symlink", "pipe"] {
        bed.link(&format!("d/{name}"), &format!("d/{name}-2"));
        let links = bed.made.on(0, &format!("d/{name}-2")).symlink_metadata().unwrap().nlink();
        assert_eq!(links, 2, "{name}");
    }
}
