//! Pools that an ordinary user mounts, through fusermount3 or in a user namespace.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::files::copy_program;
use canopy_testkit::{LeakCheck, PATIENCE, User, require_root};

/// The user nobody: fusermount3 serves only users who have a name.
pub(super) const USER: User<'static> = User { uid: 65534, gid: 65534, groups: &[] };

/// A directory with two branches and a mount point that belong to an ordinary user, and a copy of the program.
pub(super) struct Home {
    // Dropped first: the leak check must run before the directory is removed.
    _guard: LeakCheck,
    dir: tempfile::TempDir,
}

impl Home {
    pub(super) fn new() -> Self {
        require_root();
        let dir = tempfile::Builder::new().prefix("canopy-user-").tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["a", "b", "pool", "source"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            chown(dir.path().join(name), Some(USER.uid), Some(USER.gid)).unwrap();
        }
        let home = Self { _guard: LeakCheck::under(dir.path()), dir };
        copy_program(env!("CARGO_BIN_EXE_canopy"), home.path("canopy"));
        home
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Runs a script as root in a mount namespace in which every user may open the FUSE device (in containers often
    /// only root may). `$user` is a command prefix that switches to the user.
    pub(super) fn run_beside(&self, script: &str) -> Finished {
        let dir = self.dir.path().canonicalize().unwrap();
        let outer = format!(
            "mkdir \"$1/dev\"; cp -a /dev/fuse \"$1/dev/fuse\"; chmod 666 \"$1/dev/fuse\"
             mount --bind \"$1/dev/fuse\" /dev/fuse
             cd \"$1\"
             user='setpriv --reuid {} --regid {} --clear-groups'
             {script}",
            USER.uid, USER.gid
        );
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "sh", "-eu", "-c", &outer, "sh"]).arg(dir).arg(WORK);
        run_within(&mut command, 2 * PATIENCE)
    }

    /// Runs the `WORK` script as the user, with a command prefix.
    fn work(&self, prefix: &str) -> Finished {
        self.run_beside(&format!("exec $user {prefix} sh -eu -c \"$2\" sh \"$1\""))
    }
}

/// Ordinary work by one user; that user owns all the files on the branches afterwards.
const WORK: &str = r#"
    ./canopy mount -o minfreespace=0,category.create=rand a:b pool
    trap './canopy umount "$1/pool" 2>/dev/null || :' EXIT
    cd source
    mkdir -p d1/d2 d3
    for i in 1 2 3 4 5 6 7 8 9; do echo $i > d1/f$i; echo $i$i > d1/d2/g$i; done
    ln d1/f1 d3/hard; ln -s ../d1/f2 d3/soft; mkfifo d3/fifo
    chmod 600 d1/f3; chmod 1755 d3; truncate -s 1M d3/sparse
    cd ..
    cp -a source/. pool/
    diff -r --no-dereference -x fifo source pool
    test "$(stat -c %h pool/d1/f1)" = 2
    test "$(cd source; find . ! -type d -printf '%P %m %s %T@\n' | sort)" = \
         "$(cd pool; find . ! -type d -printf '%P %m %s %T@\n' | sort)"
    mv pool/d1/f4 pool/d3/moved
    mv pool/d1/d2 pool/d3/d2
    ! chown 0 pool/d1/f5 2>/dev/null
    chmod 0 pool/d1/f6
    umask 027; mkdir pool/masked; echo > pool/masked/f
    test "$(stat -c %a pool/masked pool/masked/f | tr '\n' ' ')" = "750 640 "
    sqlite3 -init /dev/null pool/db 'pragma journal_mode=wal; create table t(a); insert into t values(1);' > /dev/null
    test "$(sqlite3 -init /dev/null pool/db 'select a from t; pragma integrity_check;' | tr '\n' ' ')" = "1 ok "
    rm -rf pool/d1
    df pool > /dev/null
    ./canopy umount pool
    trap - EXIT
    ! grep " $1/pool " /proc/self/mountinfo
    find a b -mindepth 1 ! -type d -printf '%f %U:%G\n' | sort
"#;

const LEFT: [&str; 16] = [
    "db", "f", "fifo", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8", "g9", "hard", "moved", "soft",
    "sparse",
];

#[test]
fn an_ordinary_user_works_on_a_pool_through_fusermount3() {
    let home = Home::new();
    let done = home.work("");
    assert!(done.success(), "{}", done.describe());
    let expected: Vec<String> = LEFT.iter().map(|name| format!("{name} {}:{}", USER.uid, USER.gid)).collect();
    assert_eq!(done.stdout.lines().collect::<Vec<_>>(), expected, "{}", done.describe());
}

#[test]
fn a_user_works_on_a_pool_in_a_user_namespace() {
    let home = Home::new();
    let done = home.work("unshare -Urm");
    assert!(done.success(), "{}", done.describe());
    // Inside the namespace, root owns them.
    let expected: Vec<String> = LEFT.iter().map(|name| format!("{name} 0:0")).collect();
    assert_eq!(done.stdout.lines().collect::<Vec<_>>(), expected, "{}", done.describe());
    for branch in ["a", "b"] {
        for entry in fs::read_dir(home.path(branch)).unwrap() {
            use std::os::unix::fs::MetadataExt;
            let meta = entry.unwrap().metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid()), (USER.uid, USER.gid));
        }
    }
}

/// Only the user who mounts a pool can access it, so that nobody else, not even root, can be made to wait for it.
#[test]
fn nobody_else_can_access_a_users_pool() {
    let home = Home::new();
    let done = home.run_beside(
        "$user ./canopy mount -o minfreespace=0 a:b pool
         trap '$user ./canopy umount \"$1/pool\"' EXIT
         $user sh -c 'echo secret > pool/file; cat pool/file'
         cat pool/file 2>&1 || :
         setpriv --reuid 1 --regid 1 --clear-groups cat pool/file 2>&1 || :",
    );
    let lines: Vec<&str> = done.stdout.lines().collect();
    let denied = |line: &str| line.ends_with("Permission denied");
    assert!(done.success() && lines.len() == 3, "{}", done.describe());
    assert!(lines[0] == "secret" && denied(lines[1]) && denied(lines[2]), "{}", done.describe());
}

/// Its user is the administrator, but not as root of a user namespace.
#[test]
fn a_users_pool_is_changed_by_its_user() {
    let home = Home::new();
    let done = home.run_beside(
        "$user ./canopy mount -o minfreespace=0,category.create=ff a:b pool
         trap '$user ./canopy umount \"$1/pool\"' EXIT
         $user sh -c 'echo text > pool/file'
         here=$PWD
         $user ./canopy set \"$here/pool\" cache.files=off
         $user ./canopy get \"$here/pool\" cache.files
         $user ./canopy move \"$here/pool\" \"$here/pool/file\" --to \"$here/b\" >/dev/null 2>&1; ls b
         $user unshare -Ur ./canopy set \"$here/pool\" cache.files=full 2>&1 || :
         $user ./canopy get \"$here/pool\" cache.files",
    );
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(done.success() && lines.len() == 4, "{}", done.describe());
    assert_eq!((lines[0], lines[1], lines[3]), ("off", "file", "off"), "{}", done.describe());
    assert!(lines[2].contains("only its owner and root"), "{}", done.describe());
}

/// An unprivileged daemon has only its user's permissions, so the kernel's checks may be off while no other user has
/// access.
#[test]
fn only_a_pool_without_other_users_may_skip_permission_checks() {
    let home = Home::new();
    let done = home.run_beside(
        "mounted() {
             $user $2 sh -euc './canopy mount -o minfreespace=0,kernel-permissions-check=false,'\"$1\"' a:b pool 2>/dev/null
                 trap \"./canopy umount $PWD/pool\" EXIT
                 echo content > pool/file; chmod 0 pool/file; cat pool/file 2>&1 || :; rm -f pool/file
                 grep \" $PWD/pool \" /proc/self/mountinfo | grep -c default_permissions || :'
         }
         mounted fsname=x ''
         mounted fsname=x 'unshare -Urm'",
    );
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(done.success() && lines.len() == 4, "{}", done.describe());
    let denied = |line: &str| line.ends_with("Permission denied");
    // The kernel does not check, but the branch denies access.
    assert!(denied(lines[0]) && lines[1] == "0", "{}", done.describe());
    // In a user namespace the user is root, whose pools are open to other users.
    assert!(lines[3] == "1", "{}", done.describe());
}

/// An unprivileged daemon has no more descriptors than its user's limit.
#[test]
fn listing_removal_and_truncation_work_when_descriptors_are_exhausted() {
    let home = Home::new();
    let program = r#"
import os, sys
os.chdir(sys.argv[1])
os.makedirs("d/empty")
for name in ("f", "d/one"):
    open(name, "w").write("content")
opened = []
try:
    while True:
        opened.append(os.open("f", os.O_RDWR))
except OSError as error:
    print(len(opened) > 60, error.strerror)
print(sorted(os.listdir(".")), sorted(os.listdir("d")))
os.truncate("f", 3)
os.rmdir("d/empty"); os.mkdir("d/new"); os.rename("d/new", "d/newer"); os.unlink("d/one"); os.chmod("d", 0o700)
print(os.stat("f").st_size, os.listdir("d"), sorted(name for _, dirs, files in os.walk(".") for name in dirs + files))
"#;
    fs::write(home.path("program.py"), program).unwrap();
    let done = home.run_beside(
        "exec $user sh -eu -c '
            (ulimit -n 200; exec ./canopy mount -o minfreespace=0 a:b pool)
            trap \"./canopy umount $1/pool\" EXIT
            python3 program.py pool' sh \"$1\"",
    );
    let expected = "True Too many open files\n['d', 'f'] ['empty', 'one']\n3 ['newer'] ['d', 'f', 'newer']\n";
    assert!(done.success() && done.stdout == expected, "{}", done.describe());
}
