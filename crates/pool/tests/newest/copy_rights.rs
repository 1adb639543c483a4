//! Copies that rules ask for: what makes them differ and what claims that they are equal, at the same time or cut off.

use super::copies::{Bed, copied};
use crate::common::ROOT;
use canopy_base::error::Error;
use canopy_branch::fs::generation::ATTRIBUTE;
use canopy_pool::ops;
use canopy_pool::{RenameKind, SetAttr};
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

const WRITE: u32 = OFlags::WRONLY.bits();

/// While one thread changes attributes or the name of a file, another opens it and writes. Copies with one number hold the same.
#[test]
fn what_changes_beside_an_open_for_writing_makes_no_two_contents_of_one_number() {
    const FILES: usize = 300;
    let bed = Bed::new(2);
    let names: Vec<String> = (0..FILES).map(|at| format!("d/f{at}")).collect();
    for name in &names {
        bed.create(name, "old old");
        bed.copy(name, 0, 1).unwrap();
    }
    let together = std::sync::Barrier::new(2);
    let set = |path: &str, set: SetAttr| {
        let node = bed.find(path)?.node;
        ops::attrs::setattr::setattr(bed.pool(), &ROOT, node, None, &set).map(drop)
    };
    let change = |at: usize, name: &str| match at % 4 {
        0 => set(name, SetAttr { mode: Some(0o640), ..SetAttr::default() }),
        1 => set(name, SetAttr { size: Some(3), ..SetAttr::default() }),
        2 => bed.find(name).and_then(|entry| {
            ops::attrs::xattr::setxattr(bed.pool(), &ROOT, entry.node, b"user.x", b"y", 0, false)
        }),
        _ => {
            bed.rename(name, &format!("{name}.new"), RenameKind::Replace).unwrap();
            Ok(())
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (at, name) in names.iter().enumerate() {
                together.wait();
                // The kernel looks the name up again.
                while change(at, name) == Err(Error::Stale) {}
            }
        });
        for name in &names {
            let mut known = bed.find(name).unwrap().node;
            together.wait();
            let opened = loop {
                match ops::data::open::open(bed.pool(), &ROOT, known, WRITE, false) {
                    // The kernel looks the name up again, which may have changed.
                    Err(Error::Stale) => {
                        let found = bed.find(name).or_else(|_| bed.find(&format!("{name}.new")));
                        known = found.map_or(known, |found| found.node);
                    }
                    opened => break opened.unwrap(),
                }
            };
            bed.write_in(opened.handle, "NEW NEW NEW");
            ops::data::open::release(bed.pool(), opened.handle).unwrap();
        }
    });
    for (at, name) in names.iter().enumerate() {
        let name = if at % 4 == 3 { format!("{name}.new") } else { name.clone() };
        if [0, 1].iter().all(|branch| bed.made.on(*branch, &name).exists()) {
            bed.are_same(&name, 0, 1);
        }
        assert!(bed.read(&name).starts_with("NEW"), "{at}: {}", bed.read(&name));
    }
}

/// A copy whose number cannot be read is neither old nor new. It is not passed over, and nothing takes its place.
#[test]
fn what_cannot_be_read_is_not_old() {
    let bed = Bed::new(3);
    copied(&bed);
    bed.write("d/f", "after");
    rustix::fs::setxattr(bed.made.on(0, "d/f"), ATTRIBUTE, b"rotten", XattrFlags::empty()).unwrap();
    for order in [[0, 1], [1, 0]] {
        bed.only(&order);
        assert_eq!(bed.find("d/f").err(), Some(Error::Branch(Errno::BADMSG)));
        assert_eq!(bed.unlink("d/f"), Err(Errno::BADMSG));
        assert_eq!(bed.rename("d/f", "d/g", RenameKind::Replace), Err(Errno::BADMSG));
        assert_eq!([bed.on(0, "d/f"), bed.on(1, "d/f")], ["after", "first"]);
    }
    // The other one is the file when this one is taken away, and then the newer one when that can be read again.
    bed.only(&[1]);
    bed.write("d/f", "AFTER");
    assert_eq!(bed.read("d/f"), "AFTER");
    bed.only(&[0]);
    assert_eq!(bed.read("d/f"), "after");
    bed.write("d/f", "after that");
    assert!(bed.generation(0, "d/f").is_some(), "what is written has a number again");
    bed.only(&[0, 1]);
    assert_eq!(bed.read("d/f"), "after that");
}

/// What could not follow a change is old, also when it is copied before the newer one is there again.
#[test]
fn a_copy_of_an_old_copy_is_old() {
    let bed = Bed::new(3);
    copied(&bed);
    bed.write("d/f", "AFTER");
    rustix::fs::setxattr(bed.made.on(1, "d/f"), ATTRIBUTE, b"0", XattrFlags::empty()).unwrap();
    bed.only(&[1, 2]);
    bed.copy("d/f", 1, 2).unwrap();
    assert!(bed.are_same("d/f", 1, 2));
    bed.only(&[1, 2, 0]);
    assert_eq!(bed.read("d/f"), "AFTER");
    // A change of the old ones, while the newest is away, is what was last.
    bed.only(&[1, 2]);
    bed.write("d/f", "later");
    bed.only(&[1, 2, 0]);
    assert_eq!(bed.read("d/f"), "later");
}
