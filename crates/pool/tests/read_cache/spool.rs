//! A large file is read from its copy while that is being made.

use super::*;
use std::os::unix::fs::FileExt;

const SIZE: u64 = 65 << 20;

/// Makes a pool with a large film that rests.
fn film() -> Rig {
    let rig = rig(Room::Size(1 << 30), When::Opened, &["films/small"]);
    let file = File::create(rig.made.on(0, "films/a")).unwrap();
    file.set_len(SIZE).unwrap();
    file.write_all_at(b"original", 0).unwrap();
    file.write_all_at(b"original", SIZE - 8).unwrap();
    drop(file);
    std::thread::sleep(RESTS);
    rig
}

fn read_at(rig: &Rig, handle: HandleId, offset: u64) -> String {
    let mut buffer = [0; 8];
    let length = ops::data::io::read(&rig.made.pool, handle, offset, &mut buffer).unwrap();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

#[test]
fn a_reader_changes_over_to_the_copy_and_back() {
    let rig = film();
    let (reader, small) = (rig.open("films/a", OFlags::RDONLY), rig.open("films/small", OFlags::RDONLY));
    assert_eq!(read_at(&rig, reader, SIZE - 8), "original");
    assert_eq!(rig.figures().read_bytes, 0);
    rig.tend();
    let copies = rig.copies();
    assert_eq!(copies.len(), 2);
    for copy in copies {
        let file = File::options().write(true).open(&copy).unwrap();
        file.write_all_at(b"the copy", fs::metadata(copy).unwrap().len() - 8).unwrap();
    }
    assert_eq!(read_at(&rig, reader, 0), "original");
    assert_eq!(read_at(&rig, reader, SIZE - 8), "the copy");
    assert_eq!(read_at(&rig, reader, SIZE), "");
    assert_eq!(rig.figures().read_bytes, 16);
    assert_eq!(read_at(&rig, small, 0), "original", "one that is small stays with what it was given");

    let writer = rig.open("films/a", OFlags::WRONLY);
    assert_eq!(read_at(&rig, reader, SIZE - 8), "original");
    ops::data::io::write(&rig.made.pool, writer, SIZE - 8, b"WRITTEN!", Default::default()).unwrap();
    assert_eq!(read_at(&rig, reader, SIZE - 8), "WRITTEN!");
    [reader, small, writer].into_iter().for_each(|handle| rig.close(handle));
}

#[test]
fn a_writer_before_the_copy_begins_keeps_it_from_being_read() {
    let rig = film();
    let reader = rig.open("films/a", OFlags::RDONLY);
    let writer = File::options().write(true).open(rig.made.on(0, "films/a")).unwrap();
    rig.tend();
    writer.write_all_at(b"directly", 0).unwrap();
    assert_eq!(read_at(&rig, reader, 0), "directly");
    drop(writer);
    rig.tend();
    assert_eq!(read_at(&rig, reader, 0), "directly");
    assert_eq!(rig.figures().read_bytes, 0);
    rig.close(reader);
}
