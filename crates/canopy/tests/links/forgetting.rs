//! `never-forget-nodes`, under each of its names.

use super::rig::Bed;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A directory keeps its number for as long as its node lives, also when it is renamed; a node that the kernel
/// makes the pool forget is found again by its name, and gets the number of that.
#[test]
fn a_node_outlives_what_the_kernel_remembers() {
    for (option, kept) in [
        ("never-forget-nodes=true", true),
        ("remember=-1", true),
        ("remember-nodes", true),
        ("noforget", true),
        ("remember=0", false),
        ("", false),
    ] {
        let bed = Bed::new(option, |_, _| {});
        let ino = |name: &str| fs::metadata(bed.at(name)).unwrap().ino();
        fs::create_dir(bed.at("before")).unwrap();
        let number = ino("before");
        fs::rename(bed.at("before"), bed.at("after")).unwrap();
        assert_eq!(ino("after"), number);
        let forgotten = canopy_testkit::cmd::wait_until(std::time::Duration::from_secs(2), || {
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            ino("after") != number
        });
        assert_eq!(!forgotten, kept, "{option}");
        let mut value = [0; 16];
        for key in ["never-forget-nodes", "remember", "remember-nodes", "noforget"] {
            let name = format!("user.mergerfs.{key}");
            let size = rustix::fs::getxattr(bed.at(".mergerfs"), name, &mut value).unwrap();
            assert_eq!(&value[..size], kept.to_string().as_bytes(), "{option} {key}");
        }
        assert_eq!(bed.try_set("never-forget-nodes", "true"), Err(Errno::ROFS));
        bed.pool.umount();
    }
}
