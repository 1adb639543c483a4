//! Capabilities and `no_new_privs`.

use super::rig::{BINARY, everything, serves};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{LoopFs, Pool};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID, LINUX_IMMUTABLE, SYS_ADMIN, SYS_NICE, MKNOD, SETFCAP
/// by their numbers (include/uapi/linux/capability.h).
const NEEDED: [u32; 12] = [0, 1, 2, 3, 4, 6, 7, 9, 21, 23, 27, 31];

#[test]
fn every_thread_has_what_it_needs_and_nothing_else() {
    let needed: u64 = NEEDED.iter().map(|number| 1 << number).sum();
    let disks = [LoopFs::ext4(64 << 20), LoopFs::ext4(64 << 20)];
    for transport in ["on", "off"] {
        let pool = Pool::builder(BINARY)
            .branch(disks[0].path())
            .branch(disks[1].path())
            .option(format!("minfreespace=0,io-uring={transport}"))
            .mount();
        let look = || {
            let mut found = Vec::new();
            // The first to serve starts the others.
            let serve = wait_until(Duration::from_secs(60), || {
                found = pool.threads();
                found.iter().filter(|thread| serves(&thread.name)).count() > 1
            });
            assert!(serve, "{found:?}");
            for thread in found {
                let name = &thread.name;
                let set = |field: &str| u64::from_str_radix(thread.field(field), 16).expect("a mask");
                assert_eq!((set("CapInh"), set("CapAmb")), (0, 0), "{name}");
                for held in ["CapPrm", "CapEff", "CapBnd"] {
                    assert_eq!(set(held), needed, "{held} of {name}: {:#x}", set(held));
                }
                assert_eq!(thread.field("NoNewPrivs"), "1", "{name}");
            }
        };
        look();
        let dir = pool.path().join("dir");
        fs::create_dir(&dir).expect("mkdir");
        everything(&dir);
        fs::remove_dir_all(&dir).expect("rmdir");
        // Those that have come meanwhile, too.
        look();
        let done = run_within(
            Command::new(BINARY).args(["status", "--json"]).arg(pool.path()),
            Duration::from_secs(60),
        );
        let told: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let told = &told["pools"][0]["security"];
        assert_eq!(told["capabilities"].as_array().expect("names").len(), NEEDED.len(), "{told}");
        assert_eq!((&told["no_new_privs"], &told["landlock"]), (&true.into(), &false.into()));
        assert_eq!(pool.log().matches("no new privileges").count(), 1, "{}", pool.log());
        pool.umount();
    }
}
