//! `nfsopenhack`, with a daemon without CAP_DAC_OVERRIDE, so that the branch denies access as an NFS server does.

use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, PATIENCE, Pool};
use rustix::fs::{Mode, OFlags, XattrFlags};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

pub(super) fn every_value_live() {
    let disk = LoopFs::tmpfs(32 << 20);
    let home = tempfile::tempdir().unwrap();
    let weak = home.path().join("canopy");
    let script = format!(
        "#!/bin/sh\nexec setpriv --bounding-set=-dac_override {} \"$@\"\n",
        env!("CARGO_BIN_EXE_canopy")
    );
    fs::write(&weak, script).unwrap();
    fs::set_permissions(&weak, PermissionsExt::from_mode(0o755)).unwrap();
    for (name, mode) in [
        (".git/f", 0o444),
        (".git/empty", 0o444),
        ("f", 0o444),
        ("empty", 0o444),
        ("other.git/f", 0o400),
        ("g", 0o020),
    ] {
        let path = disk.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let pool = Pool::builder(&weak).option("minfreespace=0,cache.attr=0").branch(disk.path()).mount();
    let write = |name: &str| {
        let opened = File::options().write(true).open(pool.path().join(name));
        opened.and_then(|mut file| file.write_all(b"new")).is_ok()
    };
    // An open with O_TRUNC is an open and a truncation.
    let empty = |name: &str| {
        let file = pool.path().join(name);
        [Some(OFlags::WRONLY), Some(OFlags::RDONLY), None].map(|flags| {
            fs::write(disk.path().join(name), "old").unwrap();
            let done = match flags {
                Some(flags) => {
                    rustix::fs::open(&file, flags | OFlags::TRUNC, Mode::empty()).map(drop).is_ok()
                }
                None => {
                    let program = "import os, sys; os.truncate(sys.argv[1], 0)";
                    run_within(Command::new("python3").args(["-c", program]).arg(&file), PATIENCE).success()
                }
            };
            assert_eq!(fs::read(disk.path().join(name)).unwrap().is_empty(), done, "{name}, {flags:?}");
            done
        })
    };
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for (value, git, others) in [
        (None, false, false),
        (Some("git"), true, false),
        (Some("all"), true, true),
        (Some("off"), false, false),
    ] {
        if let Some(value) = value {
            let control = pool.path().join(".mergerfs");
            let set = rustix::fs::setxattr(
                control,
                "user.mergerfs.nfsopenhack",
                value.as_bytes(),
                XattrFlags::empty(),
            );
            set.unwrap();
        }
        assert_eq!((empty(".git/empty"), empty("empty")), ([git; 3], [others; 3]), "{value:?}");
        assert_eq!(write(".git/f"), git, "{value:?}");
        assert_eq!((write("f"), write("other.git/f")), (others, others), "{value:?}");
        if others {
            // A second writer joins the first.
            let first = File::options().write(true).open(pool.path().join("f")).unwrap();
            assert!(write("f"), "{value:?}");
            drop(first);
        }
        // The mode of `g` allows a write by its group, so the option does not apply.
        assert!(!write("g"), "{value:?}");
        for (name, expected) in
            [(".git/f", 0o444), ("empty", 0o444), ("f", 0o444), ("other.git/f", 0o400), ("g", 0o020)]
        {
            assert_eq!(mode(&disk.path().join(name)), expected, "{value:?} {name}");
        }
    }
    for (name, content) in [(".git/f", "new"), ("f", "new"), ("other.git/f", "new"), ("g", "old")] {
        assert_eq!(fs::read_to_string(disk.path().join(name)).unwrap(), content, "{name}");
    }
    pool.umount();
}
