//! `never-forget-nodes` under each of its names: the pool reports it and warns that it has no effect.

use super::rig::pool;

use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::wait_until;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A directory keeps its inode number across renames while its node exists. After the kernel makes the pool forget the
/// node, the next lookup computes the number from the current name.
#[test]
fn a_node_lives_until_the_kernel_forgets_it() {
    for (option, given) in [
        ("never-forget-nodes=true", true),
        ("remember=-1", true),
        ("remember-nodes", true),
        ("noforget", true),
        ("remember=0", false),
        ("", false),
    ] {
        // With the default, the number does not come from the name.
        let options = ["inodecalc=hybrid-hash", option].join(",");
        let bed = pool(options.trim_end_matches(','), |_, _| {});
        let ino = |name: &str| fs::metadata(bed.at(name)).unwrap().ino();
        fs::create_dir(bed.at("before")).unwrap();
        let number = ino("before");
        fs::rename(bed.at("before"), bed.at("after")).unwrap();
        assert_eq!(ino("after"), number);
        let forgotten = wait_until(PATIENCE, || {
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
