//! Without passthrough the daemon logs so once, and everything works.

use super::checks;
use super::direct_io;
use super::files::TwoPaths;
use super::rig::{Disks, Mode, builder, log_count, pages_limit};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{LeakCheck, LoopFs, PATIENCE};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The size of a tmpfs that leaves `passthrough.io=auto` room for writers. It takes no memory before it is filled.
const AMPLE: u64 = 64 << 30;

/// An overlayfs over a tmpfs of its own.
pub(super) struct Overlay {
    pub(super) merged: PathBuf,
    _below: LoopFs,
}

impl Overlay {
    pub(super) fn new() -> Self {
        let below = LoopFs::tmpfs(64 << 20);
        let dirs = ["lower", "upper", "work", "merged"].map(|name| below.path().join(name));
        dirs.iter().for_each(|dir| fs::create_dir(dir).expect("mkdir"));
        let [lower, upper, work, merged] = dirs;
        let data =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let data = CString::new(data).expect("no NUL");
        mount(c"overlay", &merged, c"overlay", MountFlags::empty(), data.as_c_str()).expect("an overlayfs");
        Overlay { merged, _below: below }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let gone = wait_until(PATIENCE, || unmount(&self.merged, UnmountFlags::empty()).is_ok());
        assert!(gone || std::thread::panicking(), "{} stays mounted", self.merged.display());
    }
}

/// Mounts a pool over an overlayfs and a plain branch, which always keeps its passthrough.
fn over_overlay(depth: u32, passes: bool) {
    let (overlay, plain) = (Overlay::new(), LoopFs::tmpfs(64 << 20));
    for (root, name) in [(overlay.merged.as_path(), "o"), (plain.path(), "p")] {
        fs::create_dir(root.join(name)).expect("mkdir");
    }
    let options = format!("passthrough.io=rw,passthrough.max-stack-depth={depth},category.create=epff");
    let pool = builder(&[&overlay.merged, plain.path()], &options).mount();
    let below = |root: &Path, name: &str| TwoPaths { pool: pool.path().join(name), branch: root.join(name) };
    let (stacked, beside) = (below(&overlay.merged, "o"), below(plain.path(), "p"));
    let mode = |passes| Mode::new(if passes { "rw" } else { "off" }, "auto-full");
    checks::served_by(&pool, mode(passes), &stacked.dir("served"));
    checks::served_by(&pool, mode(true), &beside.dir("served"));
    checks::open_orders(&stacked.dir("orders"));
    checks::threads(&stacked.dir("threads"));
    assert_eq!(log_count(&pool, "is itself a stacked filesystem"), usize::from(!passes), "{}", pool.log());
    assert_eq!(log_count(&pool, "WARN"), usize::from(!passes), "{}", pool.log());
    assert!(pool.log().contains(&format!("stack depth {depth}")), "{}", pool.log());
    pool.umount();
}

#[test]
fn an_overlayfs_branch_is_served_by_the_daemon() {
    over_overlay(1, false);
}

#[test]
fn an_overlayfs_branch_uses_passthrough_if_the_stack_depth_allows() {
    over_overlay(2, true);
}

/// Runs the script as the user nobody (fusermount3 requires a user with a name), in a mount namespace whose
/// `/dev/fuse` has the permissions that udev sets, whatever this machine's are.
const AS_ROOT: &str = r#"
    mkdir "$1/dev"; mount -t tmpfs none "$1/dev"
    mknod "$1/dev/fuse" c 10 229; chmod 666 "$1/dev/fuse"; mount --bind "$1/dev/fuse" /dev/fuse
    cd "$1"; exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all sh -euc "$3" sh "$@"
"#;

const AS_USER: &str = r#"
    ./canopy mount -f -o "minfreespace=0,fuse-msg-size=$2" "$4" "$1/pool" 2>"$4/.log" &
    while ! mountpoint -q pool; do kill -0 $!; sleep 0.02; done
    cd pool
    # Each file is another chance to log the message again.
    for i in 1 2 3; do echo $i >f$i; cat f$i; done
    exec 3<>f1; read line <&3; echo more >&3; exec 4<f1; cat <&4; rm f2; exec 3>&- 4>&-
    dd if=/dev/zero of=big bs=3000000 count=1 conv=fsync 2>/dev/null; cmp -n 3000000 big /dev/zero
    cd ..; fusermount3 -u pool; wait $!
"#;

#[test]
fn an_ordinary_user_has_no_passthrough() {
    canopy_testkit::require_root();
    let home = tempfile::Builder::new().prefix("canopy-user-").tempdir().expect("a directory");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let home_path = home.path().canonicalize().expect("a path");
    let _guard = LeakCheck::under(&home_path);
    let branch = LoopFs::tmpfs(AMPLE);
    fs::create_dir(home_path.join("pool")).expect("mkdir");
    for dir in [branch.path(), &home_path.join("pool")] {
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).expect("chown");
    }
    let binary = canopy_testkit::program_under_test(env!("CARGO_BIN_EXE_canopy"));
    fs::copy(binary, home_path.join("canopy")).expect("a copy that any user may run");
    let _limit = pages_limit();
    let limit = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit")
        .map_or(256, |text| text.trim().parse::<u64>().expect("a number of pages"));
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", AS_ROOT, "sh"]).arg(&home_path);
    command.args([&(limit + 1).to_string(), AS_USER]).arg(branch.path());
    let done = run_within(&mut command, PATIENCE);
    let log = fs::read_to_string(branch.path().join(".log")).unwrap_or_default();
    let expected = (Some(0), "1\n2\n3\n1\nmore\n");
    assert_eq!((done.code(), done.stdout.as_str()), expected, "{}\n{log}", done.describe());
    assert_eq!(log.matches("passthrough is off").count(), 1, "{log}");
    // The daemon may not raise the system's limit, and uses the limit instead.
    assert!(log.contains(&format!("max_pages {limit}")), "{log}");
}

/// The kernel does not offer passthrough.
#[test]
fn the_daemon_serves_everything_on_a_kernel_without_passthrough() {
    let disks = Disks::new();
    for passthrough in ["auto", "rw"] {
        let mode = Mode::new(passthrough, "auto-full");
        let pool = disks.builder(&mode.to_string()).env("CANOPY_TEST_KERNEL", "mask:PASSTHROUGH").mount();
        let dir = disks.ext4(&pool);
        checks::served_by(&pool, Mode::new("off", "auto-full"), &dir.dir("served"));
        checks::open_orders(&dir.dir("orders"));
        direct_io::aligned(&dir.dir("direct"));
        assert_eq!(log_count(&pool, "passthrough is off: the kernel does not offer it"), 1, "{}", pool.log());
        pool.umount();
    }
}
