//! Files that an unprivileged daemon cannot reopen for writing because of their mode, which is set by the open that
//! writes them (git's objects) or while they are open. Data that the kernel has cached reaches the branch nevertheless.

use super::unprivileged_mounts::Home;
use canopy_testkit::cmd::Finished;
use std::fs;

/// Writes one file with each combination of open flags, mode and way to write; each must end up as `expected` says.
const WRITER: &str = r#"
import fcntl, mmap, os, sys
PAGE = 4096
def fill(fd, by):
    if by == "write":
        os.write(fd, b"w" * 5000)
        os.fsync(fd)
    elif by == "append later":
        os.write(fd, b"w" * PAGE)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_APPEND | os.O_DIRECT))
        os.pwrite(fd, b"w" * 904, PAGE)
        os.fsync(fd)
    else:
        os.ftruncate(fd, 5000)
        with mmap.mmap(fd, 5000) as pages:
            pages[:] = b"w" * 5000
            if by == "msync":
                pages.flush()
made = [(name, flags, mode) for mode in (0o444, 0)
        for name, flags in [("plain", 0), ("append", os.O_APPEND), ("direct", os.O_DIRECT), ("sync", os.O_SYNC)]]
for by in ("write", "append later", "msync", "mapping"):
    for name, flags, mode in made:
        if by == "write" and name == "direct":
            continue
        path = "%s/%s %s %o" % (sys.argv[1], by, name, mode)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, mode)
        if (by, name) == ("append later", "direct"):
            whole = mmap.mmap(-1, PAGE)
            whole[:] = b"w" * PAGE
            os.write(fd, whole)
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
            os.pwrite(fd, b"w" * 904, PAGE)
        else:
            fill(fd, by)
        if by == "msync" and name == "append":
            # The descriptor still appends.
            os.pwrite(fd, b"w", 0)
        os.close(fd)
    path = "%s/%s later" % (sys.argv[1], by)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.chmod(path, 0o400)
    fill(fd, by)
    os.close(fd)
# A reader clears O_DIRECT.
path = "%s/read" % sys.argv[1]
with open(path, "wb") as out:
    out.write(b"w" * 5000)
os.chmod(path, 0o444)
fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
fcntl.fcntl(fd, fcntl.F_SETFL, 0)
assert os.pread(fd, 10, 3) == b"w" * 10
os.close(fd)
"#;

#[track_caller]
fn run(home: &Home, script: &str) -> Finished {
    fs::write(home.path("writer.py"), WRITER).expect("a script");
    let done = home.run_beside(script);
    assert!(done.success(), "{}", done.describe());
    done
}

#[test]
fn data_written_back_to_unwritable_files_reaches_the_branch() {
    for options in ["", "cache.writeback=true", "cache.files=off", "cache.files=full,cache.writeback=true"] {
        let home = Home::new();
        run(
            &home,
            &format!(
                "exec $user sh -eu -c '
                    ./canopy mount -o minfreespace=0,{options} a pool
                    trap \"./canopy umount $1/pool\" EXIT
                    python3 writer.py pool' sh \"$1\""
            ),
        );
        let mut files = 0;
        for entry in fs::read_dir(home.path("a")).expect("the branch") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("text");
            let content = fs::read(entry.path()).expect("a file");
            let expected = 5000 + usize::from(name.starts_with("msync append"));
            assert!(
                content == vec![b'w'; expected],
                "{options}: {name}: {} bytes, {} of them right",
                content.len(),
                content.iter().filter(|byte| **byte == b'w').count()
            );
            files += 1;
        }
        assert_eq!(files, 30 + 4 + 1, "{options}");
    }
}

/// A file moves to another branch on ENOSPC even if its mode denies writing.
#[test]
fn unwritable_files_move_from_a_full_branch() {
    for options in ["", "cache.writeback=true"] {
        let home = Home::new();
        let done = run(
            &home,
            &format!(
                "mount -t tmpfs -o size=2m,mode=777 none a
                 $user sh -eu -c '
                    ./canopy mount -o minfreespace=0,category.create=ff,{options} a:b pool
                    trap \"./canopy umount $1/pool\" EXIT
                    umask 333; dd if=/dev/zero of=pool/f bs=64k count=64 conv=fsync 2>&1
                    stat -c %a:%s b/f' sh \"$1\""
            ),
        );
        assert!(done.stdout.ends_with("444:4194304\n"), "{options}: {}", done.describe());
    }
}

#[test]
fn git_works_in_an_ordinary_users_pool() {
    for options in ["", "cache.writeback=true"] {
        let home = Home::new();
        run(
            &home,
            &format!(
                "exec $user sh -eu -c '
                    export HOME=\"$1/source\" GIT_CONFIG_NOSYSTEM=1
                    git config --global user.email t@example.org; git config --global user.name T
                    mount() {{ ./canopy mount -o minfreespace=0,category.create=rand,{options} a:b pool; }}
                    mount; trap \"./canopy umount $1/pool\" EXIT
                    git init -q pool/one; seq 20000 > pool/one/f; git -C pool/one add f
                    git -C pool/one commit -q -m 1; git -C pool/one gc -q
                    git clone -q --no-local pool/one pool/two
                    ./canopy umount pool; mount
                    for work in one two; do git -C pool/$work fsck --full --strict; git -C pool/$work diff --exit-code; done
                    cmp pool/one/f pool/two/f' sh \"$1\""
            ),
        );
    }
}
