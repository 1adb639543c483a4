//! Mounts that fail. The real program is mounted in `crates/canopy/tests`.

use super::builder::branch_path;
use super::*;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

fn fake(script: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("canopy");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("chmod");
    (dir, path)
}

fn builder(binary: &Path) -> PoolBuilder {
    PoolBuilder::new(binary.to_owned()).branch("/tmp") // whatever CANOPY_BIN says
}

#[test]
fn a_failed_mount_returns_exit_code_and_log() {
    let (_dir, binary) = fake("echo no such policy >&2; exit 3");
    for builder in [builder(&binary), builder(&binary).daemon()] {
        let failed = builder.try_mount().expect_err("no pool");
        assert_eq!((failed.code, failed.log.trim()), (Some(3), "no such policy"));
    }
}

#[test]
fn exiting_without_a_mount_is_a_failure() {
    let (_dir, binary) = fake("exit 0");
    for builder in [builder(&binary), builder(&binary).daemon()] {
        assert_eq!(builder.try_mount().expect_err("no pool").code, Some(0));
    }
}

#[test]
fn arguments_are_passed_in_order() {
    let (_dir, binary) = fake(r#"echo "$FLAG $*"; exit 1"#);
    let failed = builder(&binary)
        .branch_spec("/var/tmp=RO")
        .option("a=b")
        .option("")
        .option("c")
        .argument("--verbose")
        .env("FLAG", "yes")
        .at("/tmp")
        .try_mount()
        .expect_err("no pool");
    assert_eq!(failed.log.trim(), "yes mount --verbose -f -o a=b,c /tmp:/var/tmp=RO /tmp");
}

#[test]
fn the_mode_of_a_branch_is_not_part_of_its_path() {
    assert_eq!(branch_path(OsStr::new("/tmp=NC,1G")), Path::new("/tmp"));
    assert_eq!(branch_path(OsStr::new("/tmp")), Path::new("/tmp"));
}
