//! Who may change a pool: callers of all kinds at every entrance, as `docs/containers.md` has it.

use canopy_config::options::{self, Changes};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, PATIENCE, Pool};
use rustix::process::DumpableBehavior;
use std::fs;
use std::path::Path;
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// What Docker leaves to root of a container.
const DOCKER: &str = "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,\
    +net_bind_service,+sys_chroot,+kill,+audit_write";

/// Runs "$@" in a user namespace in which all ids are mapped to themselves. $unshare has options for further namespaces.
const IDENTITY: &str = r#"
    pipe=$(mktemp -u); mkfifo "$pipe"
    unshare -U $unshare sh -c 'read go <"$0"; exec "$@"' "$pipe" "$@" &
    until [ "$(readlink /proc/$!/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do sleep 0.01; done
    echo 0 0 4294967295 >/proc/$!/uid_map
    echo 0 0 4294967295 >/proc/$!/gid_map
    echo go >"$pipe"; rm "$pipe"
    wait $!"#;

/// Prints what becomes of each attempt: it is allowed (y), refused (-), or fails for another reason (e).
const ATTEMPTS: &str = r#"
    control=$POOL/.mergerfs
    try() {
        if said=$("$@" 2>&1); then printf y; return; fi
        case $said in
        *"Permission denied"* | *"not permitted"* | *"owner and root"*) printf -- - ;;
        *) printf e; echo "$*: $said" >&2 ;;
        esac
    }
    for key in $KEYS; do
        value=$(getfattr --absolute-names --only-values -n "user.mergerfs.$key" "$control")
        try setfattr -n "user.mergerfs.$key" -v "$value" "$control"
        echo
    done | sort | uniq -c | while read -r count verdict; do printf "$verdict"; done
    printf ' '
    for command in gc invalidate-all-nodes upgrade; do try setfattr -n user.mergerfs.cmd.$command -v "" "$control"; done
    printf ' '
    try getfattr -n user.mergerfs.canopy.closed.0 "$control"
    try "$CANOPY" move "$POOL" "$POOL/file" --to "$TARGET"
    try fstrim "$POOL"
    try chattr +i "$POOL/file"
"#;

/// Binds $2 of a pool at $1 for the user namespace of 100000 (mount_setattr(2)), and runs the rest as root of that.
const IDMAPPED: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def new_namespace():
    up, down = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setresgid(*[100000] * 3); os.setresuid(*[100000] * 3)
        libc.prctl(4, 1)
        if libc.unshare(0x10000000): os._exit(9)
        os.write(up[1], b"x"); os.read(down[0], 1)
        os.setresgid(0, 0, 0); os.setresuid(0, 0, 0)
        os.environ["POOL"] = sys.argv[2]
        if os.read(down[0], 1) != b"r": os._exit(9)
        os.execvp(sys.argv[3], sys.argv[3:])
    os.read(up[0], 1)
    for kind in "uid", "gid":
        with open(f"/proc/{child}/{kind}_map", "w") as map: map.write("0 100000 65536\n")
    os.write(down[1], b"x")
    return child, down[1]
child, go = new_namespace()
namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
tree = libc.syscall(428, -100, sys.argv[1].encode(), 1 | os.O_CLOEXEC)
attributes = (ctypes.c_uint64 * 4)(0x100000, 0, 0, namespace)
if libc.syscall(442, tree, b"", 0x1000, attributes, 32):
    os.write(go, b"n"); os.waitpid(child, 0)
    print("no idmapped mount", end=""); sys.exit(0)
if libc.syscall(429, tree, b"", -100, sys.argv[2].encode(), 4): sys.exit(8)
os.write(go, b"r")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

struct Rig {
    disks: [LoopFs; 2],
    /// Where the pool is bound for another user namespace.
    seen: tempfile::TempDir,
}

impl Rig {
    fn on(&self, branch: usize) -> bool {
        self.disks[branch].path().join("file").exists()
    }

    /// Runs the attempts as a caller, whom `prefix` makes of root. Returns what became of them.
    #[track_caller]
    fn attempts(&self, pool: &Path, prefix: &str) -> String {
        let live = |spec: &&options::Spec| spec.key && spec.changes == Changes::Live && spec.name != "config";
        let keys: Vec<&str> = options::table().iter().filter(live).map(|spec| spec.name.as_ref()).collect();
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-euc", prefix, "sh"]);
        if !prefix.starts_with("unshare=") {
            // In the mount namespace of the daemon.
            command = Command::new("sh");
            command.args(["-euc", prefix, "sh"]);
        }
        command.args(["sh", "-euc", ATTEMPTS]).env("POOL", pool).env("CANOPY", BINARY);
        command.env("KEYS", keys.join(" ")).env("TARGET", self.disks[1].path());
        command.env("SEEN", self.seen.path()).env("IDMAPPED", IDMAPPED).env("PROGRAM", IDENTITY);
        let done = run_within(&mut command, 2 * PATIENCE);
        assert!(done.success(), "{prefix}: {}", done.describe());
        done.stdout
    }
}

#[test]
fn only_administrators_get_through_any_entrance() {
    let rig = Rig {
        disks: [LoopFs::ext4(64 << 20), LoopFs::ext4(64 << 20)],
        seen: tempfile::tempdir().expect("a directory"),
    };
    std::os::unix::fs::chown(rig.seen.path(), Some(100_000), None).expect("chown");
    let container = format!(
        "exec unshare -m -p --fork --mount-proc setpriv --bounding-set {DOCKER} --inh-caps -all \
        --no-new-privs \"$@\""
    );
    const ALL: &str = "y yye yyyy";
    const NONE: &str = "- --- ----";
    let callers = [
        ("root", "exec \"$@\"", ALL),
        ("root in its own mount namespace", "exec unshare -m \"$@\"", ALL),
        // What the kernel asks a capability for needs it.
        (
            "root without capabilities",
            "exec setpriv --bounding-set -all --inh-caps -all \"$@\"",
            "y yye yy--",
        ),
        ("another user", "exec setpriv --reuid 4242 --regid 4242 --clear-groups \"$@\"", NONE),
        ("group 0", "exec setpriv --reuid 4242 --regid 0 --clear-groups \"$@\"", NONE),
        ("further group 0", "exec setpriv --reuid 4242 --regid 4242 --groups 0 \"$@\"", NONE),
        (
            "root of a user namespace",
            "exec setpriv --reuid 100000 --regid 100000 --clear-groups unshare -Ur \"$@\"",
            NONE,
        ),
        ("root as root of a user namespace", "exec unshare -Ur \"$@\"", NONE),
        ("through an idmapped mount", "exec python3 -c \"$IDMAPPED\" \"$POOL\" \"$SEEN\" \"$@\"", NONE),
        ("root of a container", &container, NONE),
        ("identity map", "unshare=; eval \"$PROGRAM\"", NONE),
        ("identity map in its own mount namespace", "unshare=-m; eval \"$PROGRAM\"", NONE),
    ];
    for options in ["", "landlock=true", "insecure-no-permission-checks=true", "allow-idmap=false"] {
        let builder = Pool::builder(BINARY).branches(rig.disks.iter().map(LoopFs::path));
        // The command upgrade fails for who gets through, rather than have another process serve each time.
        let builder = builder.option("minfreespace=0,category.create=ff,survive=false");
        let pool = builder.option(options).mount();
        fs::write(pool.path().join("file"), "text").expect("write");
        for (who, prefix, expected) in callers {
            let seen = rig.attempts(pool.path(), prefix);
            let moved = !rig.on(0) && rig.on(1);
            let _ = run_within(Command::new("chattr").arg("-i").arg(pool.path().join("file")), PATIENCE);
            // The kernel may refuse to bind the pool so, which also protects it.
            if seen != "no idmapped mount" {
                assert_eq!(seen, expected, "{who} with {options:?}");
            }
            assert_eq!(moved, expected == ALL || expected.contains(" yy--"), "{who} with {options:?}");
            if moved {
                let back = pool.command([
                    "move".as_ref(),
                    pool.path().as_os_str(),
                    pool.path().join("file").as_os_str(),
                    "--to".as_ref(),
                    rig.disks[0].path().as_os_str(),
                ]);
                assert!(back.success() && rig.on(0), "{}", back.describe());
            }
            let _ = run_within(Command::new("umount").arg(rig.seen.path()), PATIENCE);
        }
        fs::remove_file(pool.path().join("file")).expect("unlink");
        pool.umount();
    }
}

/// As a set-uid program is, whose files in /proc are closed to those who may not trace it.
#[test]
fn a_process_of_root_that_nobody_may_look_at_is_root() {
    let disk = LoopFs::tmpfs(16 << 20);
    let pool = Pool::builder(BINARY).branch(disk.path()).option("minfreespace=0").mount();
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("prctl");
    let set = pool.try_set("cache.files", "off");
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).expect("prctl");
    assert_eq!(set, Ok(()));
    pool.umount();
}
