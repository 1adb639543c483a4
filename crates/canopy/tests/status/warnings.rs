//! Provokes every warning of `canopy status`.

use super::rig::{BINARY, canopy, codes, shown, warning};
use canopy_testkit::cmd::run_within;
use canopy_testkit::files::copy_program;
use canopy_testkit::{LoopFs, PATIENCE, Pool, ScratchDir, as_user};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn pool_over(branches: &[&Path], options: &str) -> Pool {
    let builder = Pool::builder(BINARY).option("minfreespace=0").option(options);
    builder.branches(branches).mount()
}

/// Creates a temporary directory that every user can read.
fn readable_temp_dir() -> TempDir {
    let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir();
    dir.expect("a directory")
}

#[test]
fn a_branch_whose_disk_is_not_mounted() {
    let (mounted, dir) = (LoopFs::tmpfs(16 * MIB), readable_temp_dir());
    let bare = dir.path().canonicalize().unwrap();
    let pool = pool_over(&[mounted.path(), &bare], "");
    let status = pool.status();
    assert_eq!(codes(&status), ["branch-not-mounted"], "{status:#}");
    assert_eq!(warning(&status, "branch-not-mounted")["branch"], bare.to_str().unwrap());
    assert_eq!(
        (&status["branches"][0]["health"], &status["branches"][1]["health"]),
        (&"ok".into(), &"not-mounted".into())
    );
    // The marker file declares the directory to be a branch as it is.
    fs::write(bare.join(".mergerfs.branch"), "").unwrap();
    assert_eq!(codes(&pool.status()), [""; 0]);
    pool.umount();
    // A directory on a mounted disk causes no warning.
    fs::create_dir(mounted.path().join("sub")).unwrap();
    let other = LoopFs::tmpfs(16 * MIB);
    let pool = pool_over(&[&mounted.path().join("sub"), other.path()], "");
    assert_eq!(codes(&pool.status()), [""; 0]);
    pool.umount();
}

#[test]
fn branches_on_the_same_filesystem() {
    let scratch = ScratchDir::new("canopy-status-", &["a", "b", "c"]);
    let (a, b, c) = (scratch.path("a"), scratch.path("b"), scratch.path("c"));
    let pool = pool_over(&[&a, &b, &c], "");
    let status = pool.status();
    let same = warning(&status, "same-filesystem");
    assert_eq!(same["branch"], a.to_str().unwrap());
    let text = same["text"].as_str().unwrap();
    assert!([a, b, c].iter().all(|path| text.contains(path.to_str().unwrap())), "{text}");
    assert!(!codes(&status).contains(&"branch-not-mounted".into()));
    pool.umount();
}

#[test]
fn little_space_and_few_inodes() {
    let (full, roomy) = (LoopFs::tmpfs(32 * MIB), LoopFs::tmpfs(32 * MIB));
    let pool = pool_over(&[full.path(), roomy.path()], "");
    assert_eq!(codes(&pool.status()), [""; 0]);
    fs::write(full.path().join("f"), vec![1; 31 << 20]).unwrap();
    let status = pool.status();
    assert_eq!(codes(&status), ["nearly-full"]);
    assert!(warning(&status, "nearly-full")["text"].as_str().unwrap().contains("1.0M of 32M"), "{status:#}");
    fs::remove_file(full.path().join("f")).unwrap();
    // The policy skips branches without enough space. While another branch has enough, there is no second warning.
    let set =
        |pair: &str| assert!(canopy(["set".as_ref(), pool.path().as_os_str(), pair.as_ref()]).success());
    set(&format!("branches={}=RW,1G:{}", full.path().display(), roomy.path().display()));
    let status = pool.status();
    assert_eq!(codes(&status), ["nearly-full"]);
    assert!(warning(&status, "nearly-full")["text"].as_str().unwrap().contains("minfreespace of 1.0G"));
    set("minfreespace=1G");
    set(&format!("branches={}:{}", full.path().display(), roomy.path().display()));
    let status = pool.status();
    assert_eq!(codes(&status), ["nearly-full", "nearly-full", "cannot-create"]);
    assert!(warning(&status, "cannot-create")["text"].as_str().unwrap().contains("ENOSPC"));
    assert!(fs::write(pool.path().join("x"), "").is_err_and(|error| error.raw_os_error() == Some(28)));
    pool.umount();

    let few = LoopFs::with(canopy_testkit::Kind::Tmpfs, 16 * MIB, &[], "nr_inodes=300");
    for index in 0..297 {
        fs::write(few.path().join(index.to_string()), "").unwrap();
    }
    let pool = pool_over(&[few.path()], "");
    assert_eq!(codes(&pool.status()), ["few-inodes"]);
    pool.umount();
}

#[test]
fn nothing_can_be_created() {
    let fs = LoopFs::tmpfs(16 * MIB);
    let pool = Pool::builder(BINARY).branch_spec(format!("{}=NC", fs.path().display())).mount();
    let status = pool.status();
    assert_eq!(codes(&status), ["cannot-create"]);
    assert!(warning(&status, "cannot-create")["text"].as_str().unwrap().contains("EROFS"));
    pool.umount();
}

#[test]
fn a_disk_that_has_become_read_only() {
    let (one, two) = (LoopFs::ext4(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let pool = pool_over(&[one.path(), two.path()], "");
    one.set_read_only(true);
    let status = pool.status();
    assert_eq!(codes(&status), ["branch-read-only"]);
    assert_eq!(
        (&status["branches"][0]["health"], &status["branches"][0]["read_only"]),
        (&"read-only".into(), &true.into())
    );
    let declare = format!("branches={}=RO:{}", one.path().display(), two.path().display());
    assert!(canopy(["set".as_ref(), pool.path().as_os_str(), declare.as_ref()]).success());
    assert_eq!(codes(&pool.status()), [""; 0], "the branch is declared read-only");
    pool.umount();
}

#[test]
fn a_branch_path_that_is_missing_or_replaced() {
    let (fs, dir) = (LoopFs::tmpfs(16 * MIB), readable_temp_dir());
    let moving = fs.path().join("moving");
    fs::create_dir(&moving).unwrap();
    let pool = pool_over(&[&moving], "");
    fs::rename(&moving, fs.path().join("moved")).unwrap();
    let status = pool.status();
    assert_eq!(
        (codes(&status), &status["branches"][0]["health"]),
        (vec!["branch-missing".into()], &"missing".into())
    );
    fs::create_dir(&moving).unwrap();
    let status = pool.status();
    assert_eq!(
        (codes(&status), &status["branches"][0]["health"]),
        (vec!["branch-replaced".into()], &"replaced".into())
    );
    // The suggested fix works.
    for pair in [format!("branches=-{}", moving.display()), format!("branches=+{}=RW", moving.display())] {
        assert!(canopy(["set".as_ref(), pool.path().as_os_str(), pair.as_ref()]).success());
    }
    assert_eq!(codes(&pool.status()), [""; 0]);
    pool.umount();
    drop(dir);
}

#[test]
fn renames_that_will_fail() {
    let (one, two) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    fs::create_dir(two.path().join("only")).unwrap();
    fs::write(one.path().join("f"), "").unwrap();
    let pool = pool_over(&[one.path(), two.path()], "category.create=epmfs");
    assert_eq!(codes(&pool.status()), ["rename-exdev"]);
    let rename = || fs::rename(pool.path().join("f"), pool.path().join("only/f"));
    assert_eq!(rename().unwrap_err().raw_os_error(), Some(18), "the warning is justified");
    for (pair, back) in [
        ("ignorepponrename=true", "ignorepponrename=false"),
        ("rename-exdev=rel-symlink", "rename-exdev=passthrough"),
        ("category.create=mfs", "category.create=epmfs"),
    ] {
        let set =
            |pair: &str| assert!(canopy(["set".as_ref(), pool.path().as_os_str(), pair.as_ref()]).success());
        set(pair);
        assert_eq!(codes(&pool.status()), [""; 0], "{pair}");
        set(back);
    }
    pool.umount();
}

#[test]
fn options_that_exclude_each_other() {
    let fs = LoopFs::tmpfs(16 * MIB);
    for (option, code) in
        [("cache.writeback=true", "writeback-excludes-passthrough"), ("nullrw=true", "nullrw")]
    {
        let pool = pool_over(&[fs.path()], option);
        assert_eq!(codes(&pool.status()), [code], "{option}");
        pool.umount();
    }
}

#[test]
fn acls_that_are_not_enforced() {
    let fs = LoopFs::tmpfs(16 * MIB);
    let file = fs.path().join("deep/file");
    fs::create_dir(fs.path().join("deep")).unwrap();
    fs::write(&file, "").unwrap();
    // Without an ACL there is no warning.
    let pool = pool_over(&[fs.path()], "posix-acl=false");
    let inner = pool.path().join("deep/file");
    fs::metadata(&inner).unwrap();
    assert_eq!(codes(&pool.status()), [""; 0]);
    // An ACL that is set through the pool is stored on the branch. The warning says that the pool does not enforce it.
    canopy_testkit::cmd::run("setfacl", ["-m", "u:4242:rw", inner.to_str().unwrap()]);
    fs::metadata(&inner).unwrap();
    let status = pool.status();
    assert_eq!(codes(&status), ["acls-unheeded"], "{status:#}");
    pool.umount();
    for (options, expected) in
        [("posix-acl=false", &["acls-unheeded"][..]), ("", &[]), ("posix-acl=true", &[])]
    {
        let pool = pool_over(&[fs.path()], options);
        assert_eq!(codes(&pool.status()), [""; 0], "{options}");
        fs::metadata(pool.path().join("deep/file")).unwrap();
        assert_eq!(codes(&pool.status()), expected, "{options}");
        pool.umount();
    }
}

#[test]
fn a_branch_that_cannot_be_passed_through() {
    let (lower, plain) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let inner = pool_over(&[lower.path()], "");
    let outer = Pool::builder(BINARY)
        .branch(inner.path())
        .branch(plain.path())
        .option("minfreespace=0,category.create=ff")
        .forgive_descriptors()
        .mount();
    // The kernel refuses passthrough only once a file is opened.
    fs::write(lower.path().join("f"), "data").unwrap();
    // While space is short, recently modified files are not passed through.
    let long_ago = SystemTime::now() - Duration::from_secs(3 * 24 * 3600);
    File::options().write(true).open(lower.path().join("f")).unwrap().set_modified(long_ago).unwrap();
    fs::read(outer.path().join("f")).unwrap();
    let status = outer.status();
    assert_eq!(codes(&status), ["branch-stacked"], "{status:#}");
    assert_eq!(
        (&status["branches"][0]["passes_through"], &status["branches"][1]["passes_through"]),
        (&false.into(), &true.into())
    );
    outer.umount();
    inner.umount();
}

#[test]
fn pools_that_return_no_status() {
    let fs = LoopFs::tmpfs(16 * MIB);
    let pool = pool_over(&[fs.path()], "xattr=nosys");
    let _ = rustix::fs::getxattr(pool.path(), "user.x", &mut [0; 8][..]);
    let status = pool.status();
    assert_eq!((codes(&status), &status["state"]), (vec!["pool-mute".into()], &"mute".into()));
    pool.umount();
    let mut pool = pool_over(&[fs.path()], "");
    pool.kill();
    let status = pool.status();
    assert_eq!((codes(&status), &status["state"]), (vec!["pool-ended".into()], &"ended".into()));
    assert!(shown(["status".as_ref(), pool.path().as_os_str()]).contains("daemon   has ended"));
}

#[test]
fn a_pool_that_the_user_cannot_reach() {
    let scratch = ScratchDir::new("canopy-status-", &["a", "hidden", "hidden/pool", "bin"]);
    let pool = Pool::builder(BINARY).branch(scratch.path("a")).at(scratch.path("hidden/pool")).mount();
    fs::set_permissions(scratch.path("hidden"), fs::Permissions::from_mode(0o700)).unwrap();
    let binary = scratch.path("bin/canopy");
    copy_program(BINARY, &binary);
    let done =
        run_within(as_user(4242, 4242, &[], &binary).args(["status", "--json"]).arg(pool.path()), PATIENCE);
    assert!(done.success(), "{}", done.describe());
    let status: Value = serde_json::from_str(&done.stdout).unwrap();
    let status = &status["pools"][0];
    assert_eq!((codes(status), &status["state"]), (vec!["pool-unreachable".into()], &"unreachable".into()));
    pool.umount();
}

#[test]
fn a_filesystem_with_errors() {
    let (one, two) = (LoopFs::ext4(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let pool = pool_over(&[one.path(), two.path()], "");
    let device = one.device().and_then(Path::file_name).expect("a loop device");
    let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
    fs::write(trigger, "for a test").expect("an error that ext4 counts");
    let status = pool.status();
    assert_eq!((codes(&status), &status["branches"][0]["errors"]), (vec!["branch-errors".into()], &1.into()));
    pool.umount();
}

#[test]
fn a_branch_that_answers_with_an_error() {
    let (lower, plain) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let mut inner = pool_over(&[lower.path()], "");
    let outer = Pool::builder(BINARY)
        .branch(plain.path())
        .branch(inner.path())
        .option("minfreespace=0")
        .forgive_descriptors()
        .mount();
    inner.kill();
    let status = outer.status();
    assert_eq!(
        (codes(&status), &status["branches"][1]["health"]),
        (vec!["branch-unreachable".into()], &"unreachable".into())
    );
    // For a moment after the daemon has been killed, the kernel returns other errors.
    let errors =
        ["Transport endpoint is not connected", "Software caused connection abort", "Operation canceled"];
    assert!(errors.iter().any(|error| status["branches"][1]["error"] == *error), "{status:#}");
    outer.umount();
}

/// Mounts a pool as the user nobody (fusermount3 requires a user with a name), in a mount namespace whose `/dev/fuse`
/// is as udev creates it. The kernel refuses passthrough only once a file is opened.
const AS_NOBODY: &str = r#"
    cd "$1"; mkdir dev pool; chown 65534:65534 "$3" pool; cp "$2" canopy
    mount -t tmpfs none dev; mknod dev/fuse c 10 229; chmod 666 dev/fuse; mount --bind dev/fuse /dev/fuse
    exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all sh -euc '
        ./canopy mount -o minfreespace=0 "$3" pool 2>/dev/null
        echo data >pool/f; cat pool/f >/dev/null
        ./canopy status --json pool
        ./canopy umount pool' sh "$@"
"#;

#[test]
fn a_pool_without_the_privilege_to_pass_through() {
    // Large enough for passthrough writers. A tmpfs takes memory only as it is filled.
    let branch = LoopFs::tmpfs(64 << 30);
    let scratch = ScratchDir::new("canopy-status-", &[]);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", AS_NOBODY, "sh"]).arg(scratch.dir()).arg(BINARY).arg(branch.path());
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success(), "{}", done.describe());
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let status = &status["pools"][0];
    assert_eq!((codes(status), &status["passthrough"]), (vec!["passthrough-refused".into()], &"off".into()));
}

#[test]
fn every_warning_has_a_test() {
    let tests =
        [include_str!("warnings.rs"), include_str!("hung_branch.rs"), include_str!("output.rs")].concat();
    let failing = [
        include_str!("../failing_branches/failing_filesystems.rs"),
        include_str!("../failing_branches/detached_disks.rs"),
    ];
    let tests = [tests, failing.concat()].concat();
    for (_, word, _) in canopy::commands::status::model::WarningCode::ALL {
        assert!(tests.contains(&format!("\"{word}\"")), "no test provokes {word}");
    }
}

/// The kernel does not see all changes of such a branch. Only `cache.coherence=watch` makes that a warning.
#[test]
fn a_branch_that_cannot_be_watched() {
    let (inner, other) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let lower = pool_over(&[inner.path()], "");
    for (coherence, expected) in [("watch", &["branch-not-watched"][..]), ("auto", &[]), ("timeout", &[])] {
        let pool = pool_over(&[other.path(), lower.path()], &format!("cache.coherence={coherence}"));
        let status = pool.status();
        let codes: Vec<String> = codes(&status).into_iter().filter(|code| code.contains("watched")).collect();
        assert_eq!(codes, expected, "{coherence}: {status:#}");
        if let [code] = expected {
            let warning = warning(&status, code);
            assert_eq!(warning["branch"], lower.path().to_str().unwrap());
            assert!(warning["mend"].as_str().unwrap().contains("cache.coherence=timeout"), "{warning}");
            // The suggested fix clears the warning.
            assert!(
                canopy(["set".as_ref(), pool.path().as_os_str(), "cache.coherence=timeout".as_ref()])
                    .success()
            );
            assert!(pool.status()["warnings"].as_array().unwrap().iter().all(|one| one["code"] != *code));
        }
        pool.umount();
    }
    lower.umount();
}
