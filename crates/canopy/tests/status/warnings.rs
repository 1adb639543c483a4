//! Provokes every warning of `canopy status`.

use super::rig::{BINARY, canopy, codes, shown, warning};
use canopy_fuse::Opcode;
use canopy_testkit::cmd::run_within;
use canopy_testkit::files::copy_program;
use canopy_testkit::{Fault, FaultyFs, LoopFs, PATIENCE, Pool, ScratchDir, as_user};
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

/// As in a unit with `ProtectSystem=`.
#[test]
fn a_mount_that_is_read_only_for_the_caller_alone_is_no_problem() {
    let disk = LoopFs::ext4(16 * MIB);
    let pool = pool_over(&[disk.path()], "");
    let seen = || {
        let script = "mount -o remount,bind,ro \"$1\" && exec \"$2\" status --json \"$3\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(disk.path()).arg(BINARY).arg(pool.path());
        canopy_testkit::pool_status(&run_within(&mut command, PATIENCE))
    };
    let status = seen();
    assert_eq!((codes(&status), &status["branches"][0]["health"]), (vec![], &"ok".into()), "{status:#}");
    disk.set_read_only(true);
    assert_eq!(codes(&seen()), ["branch-read-only", "cannot-create"]);
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
    assert!(!done.success(), "what cannot be asked is not well: {}", done.describe());
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
fn a_pool_without_a_branch() {
    let scratch = ScratchDir::new("canopy-status-", &["point"]);
    let (pattern, point) = (scratch.path("disk*/data"), scratch.path("point"));
    let options = "minfreespace=0,allow-missing-branches=true";
    let mounted =
        canopy(["mount".as_ref(), "-o".as_ref(), options.as_ref(), pattern.as_os_str(), point.as_os_str()]);
    assert!(mounted.success(), "{}", mounted.describe());
    let done = canopy(["status".as_ref(), point.as_os_str(), "--json".as_ref()]);
    assert_eq!(done.status.and_then(|status| status.code()), Some(1), "{}", done.describe());
    let status = canopy_testkit::pool_status(&done);
    assert_eq!(codes(&status), ["branch-missing", "no-branch"], "{status:#}");
    assert!(!done.stdout.contains("CAP_SYS_ADMIN"), "{}", done.stdout);
    // It does as it says.
    fs::create_dir_all(scratch.path("disk1/data")).unwrap();
    fs::write(scratch.path("disk1/data/f"), "").unwrap();
    assert!(canopy_testkit::cmd::wait_until(PATIENCE, || point.join("f").exists()));
    assert!(canopy(["umount".as_ref(), point.as_os_str()]).success());
}

#[test]
fn files_below_the_mountpoint() {
    let scratch = ScratchDir::new("canopy-status-", &["a", "point"]);
    let (branch, point) = (scratch.path("a"), scratch.path("point"));
    fs::write(point.join("lost"), "").unwrap();
    let mount = |over: &[&str]| {
        let words =
            ["mount", "-o", "minfreespace=0"].iter().chain(over).map(|word| (*word).to_owned().into());
        canopy(words.chain([branch.clone().into_os_string(), point.clone().into_os_string()]))
    };
    let refused = mount(&[]);
    assert!(!refused.success() && refused.stderr.contains("is not empty"), "{}", refused.describe());
    for over in [&["--over"][..], &["-o", "nonempty"]] {
        let mounted = mount(over);
        assert!(mounted.success() && mounted.stderr.contains("hides its files"), "{}", mounted.describe());
        let done = canopy(["status".as_ref(), point.as_os_str(), "--json".as_ref()]);
        assert!(done.success(), "advice: {}", done.describe());
        assert_eq!(codes(&canopy_testkit::pool_status(&done)), ["files-hidden"]);
        assert!(canopy(["umount".as_ref(), point.as_os_str()]).success());
    }
    // A disk, most likely with the mountpoint forgotten.
    let disk = LoopFs::tmpfs(16 * MIB);
    fs::write(disk.path().join("film"), "").unwrap();
    let refused = canopy(["mount".as_ref(), branch.as_os_str(), disk.path().as_os_str()]);
    assert!(!refused.success() && refused.stderr.contains("is a mounted disk"), "{}", refused.describe());
}

/// A pattern brings in a disk that cannot store owners. Files do not move there unasked.
#[test]
fn a_branch_that_loses_owners() {
    let (disk, below) = (LoopFs::ext4(64 * MIB), LoopFs::tmpfs(64 * MIB));
    let lossy = FaultyFs::mount_as("vfat", &below.path().canonicalize().unwrap());
    for film in ["film", "other film"] {
        fs::write(disk.path().join(film), vec![0; 12 << 20]).unwrap();
    }
    let pool = pool_over(&[disk.path(), lossy.path()], "");
    let status = pool.status();
    assert_eq!(warning(&status, "branch-loses-attributes")["branch"], lossy.path().to_str().unwrap());
    let run = |args: &[&str]| {
        let (point, words) = (pool.path().as_os_str(), args.iter().map(|word| (*word).as_ref()));
        canopy([words.clone().next().unwrap(), point].into_iter().chain(words.skip(1)))
    };
    let (from, to) = (disk.path().to_str().unwrap().to_owned(), lossy.path().to_str().unwrap().to_owned());
    let film = pool.path().join("film");
    let film = film.to_str().unwrap();
    // All that the films have can be stored there: the root of the branch shows which owner its files have.
    let balance = run(&["balance", "--dry-run"]);
    assert!(balance.stdout.contains("to move: 1 file"), "{}", balance.describe());
    let film_on_disk = disk.path().join("film");
    fs::remove_file(disk.path().join("other film")).unwrap();
    std::os::unix::fs::chown(&film_on_disk, Some(1000), None).unwrap();
    for command in [&["balance", "--dry-run"][..], &["dup", film, "--dry-run"]] {
        let told = run(command);
        assert!(told.stdout.contains("nothing to"), "{}", told.describe());
        assert!(told.stderr.contains("1 of 1 files would lose something there"), "{}", told.describe());
        assert!(told.stderr.contains("--lossy"), "{}", told.describe());
    }
    let dup = run(&["dup", film, "--dry-run", "--lossy"]);
    assert!(dup.stdout.contains("to copy: 1 file"), "{}", dup.describe());
    std::os::unix::fs::chown(&film_on_disk, Some(0), None).unwrap();
    let dup = run(&["dup", film, "--dry-run"]);
    assert!(dup.stdout.contains("to copy: 1 file"), "{}", dup.describe());
    // A branch that is named takes what loses nothing there.
    lossy.set(Fault::KeepOwner, &[Opcode::Setattr]);
    let (owned, link) = (pool.path().join("owned"), pool.path().join("link"));
    for (name, uid) in [("owned", 1000), ("plain", 0)] {
        fs::write(disk.path().join(name), "x").unwrap();
        std::os::unix::fs::chown(disk.path().join(name), Some(uid), None).unwrap();
        fs::set_permissions(disk.path().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::os::unix::fs::symlink("x", disk.path().join("link")).unwrap();
    std::os::unix::fs::lchown(disk.path().join("link"), Some(1000), None).unwrap();
    let plain = pool.path().join("plain");
    let [owned, link, plain] = [&owned, &link, &plain].map(|path| path.to_str().unwrap());
    let moved = run(&["move", film, owned, link, plain, "--to", &to]);
    let words = moved.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for (name, stays) in [("film", true), ("owned", true), ("link", true), ("plain", false)] {
        assert_eq!(disk.path().join(name).symlink_metadata().is_ok(), stays, "{name}: {}", moved.describe());
        let told = format!("/{name} ({to} cannot store all of it");
        assert_eq!(words.contains(&told), stays, "{name}: {}", moved.describe());
    }
    assert!(words.contains("--lossy moves it anyway"), "{}", moved.describe());
    // Where no other has room, drain asks it for what loses nothing there.
    fs::remove_file(lossy.path().join("plain")).unwrap();
    fs::write(disk.path().join("plain"), "y").unwrap();
    fs::set_permissions(disk.path().join("plain"), fs::Permissions::from_mode(0o600)).unwrap();
    let drained = run(&["drain", &from]);
    // The owner and the link are seen beforehand; that the mode of the film is lost is seen when it is tried.
    let told =
        drained.code() == Some(1) && drained.stderr.contains("2 of 4 files would lose something there");
    assert!(told, "{}", drained.describe());
    assert!(lossy.path().join("plain").exists() && !disk.path().join("plain").exists());
    assert!(disk.path().join("film").exists() && disk.path().join("owned").exists());
    let moved = run(&["move", film, owned, link, "--to", &to, "--lossy"]);
    assert!(moved.success() && !disk.path().join("film").exists(), "{}", moved.describe());
    assert_eq!(fs::read_to_string(owned).unwrap(), "x");
    assert!(!disk.path().join("owned").exists() && fs::symlink_metadata(link).is_ok());
    pool.umount();
}

/// A pool that is described and not mounted is shown, and the exit status tells it.
#[test]
fn a_configured_pool_that_is_not_mounted() {
    let scratch = ScratchDir::new("canopy-status-", &["a", "point", "other", "etc"]);
    let (a, point, other) = (scratch.path("a"), scratch.path("point"), scratch.path("other"));
    let text = format!("branches = [{a:?}]\nmountpoint = {point:?}\nminfreespace = 0\n");
    fs::write(scratch.path("etc/media.toml"), text).unwrap();
    let line = |options: &str| format!("{} {} fuse.canopy {options} 0 0\n", a.display(), other.display());
    let fstab = scratch.path("fstab");
    fs::write(&fstab, line("defaults")).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(args).env("CANOPY_CONFIG_DIR", scratch.path("etc"));
        run_within(&mut command, PATIENCE)
    };
    let status = |word: &str| {
        let done = run(&["status", word, "--json", "--fstab-file", fstab.to_str().unwrap()]);
        let shown: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{}", done.describe()));
        (done.status.and_then(|status| status.code()), shown["unmounted"].clone())
    };
    let (code, unmounted) = status("media");
    assert_eq!((code, &unmounted[0]["name"]), (Some(1), &"media".into()));
    assert_eq!(unmounted[0]["fix"], "canopy mount media");
    let (code, unmounted) = status(other.to_str().unwrap());
    assert_eq!((code, &unmounted[0]["mountpoint"]), (Some(1), &other.to_str().unwrap().into()));
    assert!(run(&["mount", "media"]).success());
    let (code, unmounted) = status("media");
    assert_eq!((code, unmounted.as_array().map(Vec::len)), (Some(0), Some(0)));
    assert!(run(&["umount", "media"]).success());
    // What is mounted by hand only is not missing.
    fs::write(&fstab, line("noauto")).unwrap();
    let done = run(&["status", "--fstab-file", fstab.to_str().unwrap()]);
    assert!(!done.stdout.contains("/other") && done.stdout.contains("not mounted"), "{}", done.describe());
}

#[test]
fn a_move_that_cannot_be_finished() {
    let (disk, other) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    // What others could have written is not acted on, and not removed.
    let entry = disk.path().join(".canopy-clone.move.1.1");
    fs::write(&entry, "").unwrap();
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o666)).unwrap();
    let pool = pool_over(&[disk.path(), other.path()], "");
    let status = pool.status();
    assert_eq!(codes(&status), ["move-unfinished"], "{status:#}");
    assert_eq!(warning(&status, "move-unfinished")["branch"], disk.path().to_str().unwrap());
    pool.umount();
    assert!(entry.exists());
}

#[test]
fn every_warning_has_a_test() {
    let tests = [
        include_str!("warnings.rs"),
        include_str!("hung_branch.rs"),
        include_str!("output.rs"),
        include_str!("disks.rs"),
    ]
    .concat();
    let elsewhere = [
        include_str!("../failing_branches/failing_filesystems.rs"),
        include_str!("../failing_branches/detached_disks.rs"),
        include_str!("../trash/main.rs"),
        include_str!("../trash/brake.rs"),
        include_str!("../copies/healing.rs"),
        include_str!("../tiers/aside.rs"),
    ];
    let tests = [tests, elsewhere.concat()].concat();
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
            assert!(warning["fix"].as_str().unwrap().contains("cache.coherence=timeout"), "{warning}");
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

/// The probes of these are not told what has changed, so the kernel keeps it, as one with a defect does.
#[test]
fn a_kernel_that_does_not_heed_notifications() {
    let (one, two) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let builder = Pool::builder(BINARY).option("minfreespace=0").option("io-uring=off");
    let builder = builder.branches([one.path(), two.path()]);
    let pool = builder.env("CANOPY_TEST_UNTOLD", "absence,listings").mount();
    let status = pool.status();
    assert_eq!(codes(&status), ["kernel-unproved", "kernel-unproved"], "{status:#}");
    let unproved = status["kernel"]["unproved"].as_array().unwrap();
    let words: Vec<_> = unproved.iter().map(|row| row["behaviour"].as_str().unwrap()).collect();
    assert_eq!(words, ["absence", "listings"]);
    let text = shown(["status".as_ref(), pool.path().as_os_str()]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("absence is cached for a second at most"), "{text}");
    assert!(text.contains("listings are not cached"), "{text}");
    pool.umount();
}
