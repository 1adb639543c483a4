//! Capabilities and `no_new_privs`.

use super::rig::{BINARY, exercise_privileges, serves};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{LoopFs, PATIENCE, Pool};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// The numbers (include/uapi/linux/capability.h) of CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID,
/// LINUX_IMMUTABLE, SYS_ADMIN, SYS_NICE, MKNOD and SETFCAP.
const NEEDED: [u32; 12] = [0, 1, 2, 3, 4, 6, 7, 9, 21, 23, 27, 31];
/// The thread that looks at callers, and what it needs for that: CAP_SYS_PTRACE, and nothing else.
const WITNESS: (&str, u64) = ("canopy-door", 1 << 19);

#[test]
fn every_thread_holds_only_the_needed_capabilities() {
    let needed: u64 = NEEDED.iter().map(|number| 1 << number).sum();
    let disks = [LoopFs::ext4(64 << 20), LoopFs::ext4(64 << 20)];
    for transport in ["on", "off"] {
        let pool = Pool::builder(BINARY)
            .branch(disks[0].path())
            .branch(disks[1].path())
            .option(format!("minfreespace=0,io-uring={transport}"))
            .mount();
        let check_threads = || {
            let mut found = Vec::new();
            // The first worker starts the others.
            let serving = wait_until(PATIENCE, || {
                found = pool.threads();
                found.iter().filter(|thread| serves(&thread.name)).count() > 1
            });
            assert!(serving, "{found:?}");
            for thread in found {
                let name = &thread.name;
                let set = |field: &str| u64::from_str_radix(thread.field(field), 16).expect("a mask");
                assert_eq!((set("CapInh"), set("CapAmb")), (0, 0), "{name}");
                let needed = if *name == WITNESS.0 { WITNESS.1 } else { needed };
                for held in ["CapPrm", "CapEff", "CapBnd"] {
                    assert_eq!(set(held), needed, "{held} of {name}: {:#x}", set(held));
                }
                assert_eq!(thread.field("NoNewPrivs"), "1", "{name}");
            }
        };
        check_threads();
        let dir = pool.path().join("dir");
        fs::create_dir(&dir).expect("mkdir");
        exercise_privileges(&dir);
        fs::remove_dir_all(&dir).expect("rmdir");
        // Check the threads that have started since, too.
        check_threads();
        let done = run_within(Command::new(BINARY).args(["status", "--json"]).arg(pool.path()), PATIENCE);
        let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let status = &status["pools"][0]["security"];
        assert_eq!(status["capabilities"].as_array().expect("names").len(), NEEDED.len(), "{status}");
        assert_eq!((&status["no_new_privs"], &status["landlock"]), (&true.into(), &false.into()));
        assert_eq!(pool.log().matches("no new privileges").count(), 1, "{}", pool.log());
        pool.umount();
    }
}
