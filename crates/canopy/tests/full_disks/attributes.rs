//! Attributes of directories, of which one disk has no room for more.

use super::rig::builder;
use canopy_testkit::{LoopFs, PoolBed};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::fs;
use std::io::Write as _;

const NAME: &str = "user.big";

/// ENOSPC for it is told, whichever disk is shown, and no other disk keeps what was refused.
#[test]
fn what_does_not_fit_on_one_disk_is_on_none() {
    for full in [0, 1] {
        let disks = vec![LoopFs::ext4(16 << 20), LoopFs::ext4(16 << 20)];
        for disk in &disks {
            fs::create_dir(disk.path().join("d")).unwrap();
        }
        let bed = PoolBed::mount(builder("func.create=ff"), disks);
        let dir = bed.at("d");
        setxattr(&dir, NAME, b"old", XattrFlags::empty()).unwrap();
        // The last block.
        let filler = bed.disks[full].path().join("filler");
        let mut file = fs::File::create(&filler).unwrap();
        for size in [1 << 20, 1 << 10] {
            while file.write_all(&vec![0; size]).is_ok() {}
            let _ = file.sync_data();
        }
        drop(file);
        let set = setxattr(&dir, NAME, &[b'x'; 900], XattrFlags::empty());
        assert_eq!(set, Err(Errno::NOSPC), "disk {full} is full");
        let read = |path: &std::path::Path| {
            let mut value = [0; 1024];
            getxattr(path, NAME, &mut value[..]).map(|length| value[..length].to_vec())
        };
        for disk in &bed.disks {
            assert_eq!(read(&disk.path().join("d")), Ok(b"old".to_vec()), "disk {full} is full");
        }
        fs::remove_file(&filler).unwrap();
        setxattr(&dir, NAME, &[b'x'; 900], XattrFlags::empty()).unwrap();
        assert_eq!(read(&dir), Ok(vec![b'x'; 900]));
    }
}
