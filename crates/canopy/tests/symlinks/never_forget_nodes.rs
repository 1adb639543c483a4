//! `never-forget-nodes`, under each of its names: told, and without effect.

use super::rig::pool;

use canopy_testkit::cmd::wait_until;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// A directory keeps its number for as long as its node lives, also when it is renamed; a node that the kernel
/// makes the pool forget is found again, and gets the number of its name.
#[test]
fn a_node_lives_for_as_long_as_the_kernel_remembers() {
    for (option, given) in [
        ("never-forget-nodes=true", true),
        ("remember=-1", true),
        ("remember-nodes", true),
        ("noforget", true),
        ("remember=0", false),
        ("", false),
    ] {
        let bed = pool(option, |_, _| {});
        let ino = |name: &str| fs::metadata(bed.at(name)).unwrap().ino();
        fs::create_dir(bed.at("before")).unwrap();
        let number = ino("before");
        fs::rename(bed.at("before"), bed.at("after")).unwrap();
        assert_eq!(ino("after"), number);
        let forgotten = wait_until(Duration::from_secs(20), || {
            bed.pool.drop_dentries();
            ino("after") != number
        });
        assert!(forgotten, "{option}");
        let mut value = [0; 16];
        for key in ["never-forget-nodes", "remember", "remember-nodes", "noforget"] {
            let name = format!("user.mergerfs.{key}");
            let size = rustix::fs::getxattr(bed.at(".mergerfs"), name, &mut value).unwrap();
            assert_eq!(&value[..size], given.to_string().as_bytes(), "{option} {key}");
        }
        assert_eq!(bed.pool.try_set("never-forget-nodes", "true"), Err(Errno::ROFS));
        let log = bed.pool.umount();
        assert_eq!(log.contains("never-forget-nodes has no effect"), given, "{option}: {log}");
    }
}
