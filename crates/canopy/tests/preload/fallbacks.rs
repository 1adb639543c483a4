//! Cases in which the library keeps the pool's descriptor: no access to the branch, another file at its path, locks,
//! and other obstacles. The library leaves other filesystems alone.

use super::rig::Bed;
use canopy_testkit::cmd::{Finished, run, run_within};
use canopy_testkit::files::text;
use canopy_testkit::{LoopFs, PATIENCE, as_user};
use rustix::fs::{FlockOperation, XattrFlags, fcntl_lock};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

/// A shell script that opens `$1` for reading as descriptor 8, and prints its content and path.
const SHOW: &str = r#"exec 8<"$1"; cat <&8; echo; readlink "/proc/$$/fd/8""#;

fn shown(done: &Finished) -> (String, String) {
    assert!(done.success(), "{}", done.describe());
    let (content, place) = done.stdout.trim_end().split_once('\n').expect("two lines");
    (content.to_owned(), place.to_owned())
}

fn show(bed: &Bed, path: &Path) -> (String, String) {
    shown(&bed.run(Command::new("sh").args(["-euc", SHOW, "sh"]).arg(path)))
}

fn content_at(content: &str, place: impl AsRef<Path>) -> (String, String) {
    (content.to_owned(), place.as_ref().to_str().expect("UTF-8").to_owned())
}

#[test]
fn without_access_to_the_branch() {
    let bed = Bed::new("");
    fs::write(bed.at("f"), "content").unwrap();
    fs::write(bed.at("private"), "secret").unwrap();
    fs::set_permissions(bed.at("private"), PermissionsExt::from_mode(0o600)).unwrap();
    let as_nobody =
        |path: &Path| bed.run(as_user(65_534, 65_534, &[], "sh").args(["-euc", SHOW, "sh"]).arg(path));
    assert_eq!(shown(&as_nobody(&bed.at("f"))), content_at("content", bed.on(0, "f")));
    // The library opens no file that its user may not open.
    let denied = as_nobody(&bed.at("private"));
    assert!(!denied.success() && denied.stderr.contains("Permission denied"), "{}", denied.describe());
    let above = bed.on(0, "").parent().unwrap().to_owned();
    fs::set_permissions(&above, PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(shown(&as_nobody(&bed.at("f"))), content_at("content", bed.at("f")));
    assert_eq!(show(&bed, &bed.at("f")), content_at("content", bed.on(0, "f")));
    // Creating and writing the user's own files still works.
    fs::create_dir(bed.at("own")).unwrap();
    chown(bed.at("own"), Some(65_534), None).unwrap();
    let mut create = as_user(65_534, 65_534, &[], "sh");
    let done = bed.run(create.args(["-euc", "echo new >\"$1\"; cat \"$1\"", "sh"]).arg(bed.at("own/new")));
    assert_eq!(done.stdout, "new\n", "{}", done.describe());
    fs::set_permissions(&above, PermissionsExt::from_mode(0o755)).unwrap();
    bed.end();
}

/// In a container, a branch's path may lead to another directory, even one with a copy of the file, or not exist.
#[test]
fn another_file_at_the_path() {
    let bed = Bed::new("");
    fs::write(bed.at("f"), "of the pool").unwrap();
    // The copy has the same size, times, mode and owner. Only its content differs.
    let copy = r#"cp -a "$2/f" "$3"; printf '%s' 'of another ' >"$3"; touch -r "$2/f" "$3"
        mount -t tmpfs none "$2"; cp -a "$3" "$2/f"
        [ "$(stat -c '%s %y %a %u %g' "$2/f")" = "$(stat -c '%s %y %a %u %g' "$1")" ]"#;
    for (prepare, place) in
        [("", bed.on(0, "f")), (copy, bed.at("f")), (r#"mount -t tmpfs none "$2""#, bed.at("f"))]
    {
        let script = format!("{prepare}\nLD_PRELOAD=\"$4\" exec sh -euc \"$5\" sh \"$1\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", &script, "sh"]).arg(bed.at("f")).arg(bed.on(0, ""));
        command.arg(bed.outside("copy")).arg(bed.library()).arg(SHOW);
        let done = run_within(&mut command, PATIENCE);
        assert_eq!(shown(&done), content_at("of the pool", place), "{prepare}");
    }
    bed.end();
}

/// A name can be made to lead elsewhere between the pool's answer and the open. What is there may act on an open, as devices do.
#[test]
fn no_other_file_is_opened() {
    let bed = Bed::new("");
    fs::create_dir(bed.at("d")).unwrap();
    fs::write(bed.at("d/f"), "of the pool").unwrap();
    for elsewhere in
        [r#"mount -t tmpfs none "$2/d"; cp "$1" "$2/d/f""#, r#"mount -t tmpfs none "$2/d"; mkfifo "$2/d/f""#]
    {
        let script = format!("{elsewhere}\nexec strace -e openat -E LD_PRELOAD=\"$3\" cat \"$1\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", &script, "sh"]).arg(bed.at("d/f")).arg(bed.on(0, ""));
        let done = run_within(command.arg(bed.library()), PATIENCE);
        assert!(done.success() && done.stdout == "of the pool", "{}", done.describe());
        let path = format!("\"{}\"", bed.on(0, "d/f").display());
        let opens: Vec<&str> = done.stderr.lines().filter(|line| line.contains(&path)).collect();
        assert!(!opens.is_empty() && opens.iter().all(|open| open.contains("O_PATH")), "{opens:?}");
    }
    bed.end();
}

/// A number that was redirected is closed, and then given to the same file, which the program opens by its path on the branch.
#[test]
fn files_that_are_opened_on_the_branch_show_its_identity() {
    let bed = Bed::new("");
    fs::write(bed.at("f"), "content").unwrap();
    let script = "\
import os, sys
numbers = []
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    numbers.append(fd)
    print(os.path.samestat(os.fstat(fd), os.stat(path)), end=' ')
    os.close(fd)
print(len(set(numbers)))";
    let (pool, branch) = (bed.at("f"), bed.on(0, "f"));
    let paths = [&pool, &branch, &pool].map(|path| path.as_os_str());
    let output = bed.run_ok("python3", ["-c".as_ref(), script.as_ref()].into_iter().chain(paths));
    assert_eq!(output, "True True True 1\n");
    bed.end();
}

#[test]
fn files_locked_in_the_pool_stay_in_the_pool() {
    let bed = Bed::new("");
    fs::write(bed.at("f"), "content").unwrap();
    let file = fs::File::options().read(true).write(true).open(bed.at("f")).unwrap();
    for lock in [FlockOperation::LockShared, FlockOperation::LockExclusive] {
        fcntl_lock(&file, lock).unwrap();
        assert_eq!(show(&bed, &bed.at("f")), content_at("content", bed.at("f")), "{lock:?}");
        fcntl_lock(&file, FlockOperation::Unlock).unwrap();
        assert_eq!(show(&bed, &bed.at("f")), content_at("content", bed.on(0, "f")), "{lock:?}");
    }
    // A process keeps a lock that it took through an inherited descriptor.
    let script = "\
import fcntl, os, subprocess, sys
fcntl.lockf(8, fcntl.LOCK_EX)
os.close(os.open(sys.argv[1], os.O_RDONLY | os.O_PATH))
other = os.open(sys.argv[1], os.O_RDWR)
sys.exit(subprocess.call([sys.executable, '-c', '''
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print('locked')
''', sys.argv[1]]))";
    let mut command = Command::new("sh");
    // The shell opens the file without the library.
    command.args(["-euc", r#"exec 8<>"$1"; LD_PRELOAD="$2" exec python3 -c "$3" "$1""#, "sh"]);
    command.arg(bed.at("f")).arg(bed.library()).arg(script);
    let done = run_within(&mut command, PATIENCE);
    assert_eq!(done.stdout, "locked\n", "{}", done.describe());
    drop(file);
    bed.end();
}

#[test]
fn no_descriptor_to_spare() {
    let bed = Bed::new("");
    fs::write(bed.at("f"), "content").unwrap();
    let program = bed.program("opens");
    for (limit, place) in [(4, bed.at("f")), (5, bed.at("f")), (6, bed.at("f")), (7, bed.on(0, "f"))] {
        // The program holds the parent directory open, so the file is its fifth descriptor.
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limit}")).arg(&program).arg("open").arg(bed.at("f")).args(["0", ""]);
        let done = bed.run(&mut command);
        let expected = match limit {
            4 => "number -1 errno 24\n".to_owned(),
            _ => format!("at {}\n", place.display()),
        };
        assert!(done.stdout.ends_with(&expected), "{limit}: {}", done.describe());
        assert!(limit == 4 || done.stdout.contains("errno 4242\n"), "{limit}: {}", done.describe());
    }
    bed.end();
}

/// The path on the branch is longer than PATH_MAX.
#[test]
fn paths_too_long() {
    let bed = Bed::new("");
    let script = "\
import os, sys
os.chdir(sys.argv[1])
for _ in range(25):
    os.mkdir('d' * 200)
    os.chdir('d' * 200)
file = open('f', 'w+')
file.write('deep')
file.flush()
file.seek(0)
print(file.read(), os.path.samestat(os.stat('f'), os.fstat(file.fileno())))
file.close()
os.unlink('f')
for _ in range(25):
    os.chdir('..')
    os.rmdir('d' * 200)";
    let output = bed.run_ok("python3", ["-c".as_ref(), script.as_ref(), bed.pool.path().as_os_str()]);
    assert_eq!(output, "deep True\n");
    bed.end();
}

/// Returns the system calls of cat(1) with the library preloaded, from its first open of the last path on.
fn calls(bed: &Bed, paths: &[&Path]) -> Vec<String> {
    let mut command = Command::new("strace");
    command.arg("-E").arg(format!("LD_PRELOAD={}", bed.library().display())).arg("cat").args(paths);
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success(), "{}", done.describe());
    let last = format!("\"{}\"", paths.last().expect("a path").display());
    let calls = done.stderr.lines().skip_while(|line| !(line.starts_with("open") && line.contains(&last)));
    calls.map(|line| line.split('(').next().unwrap_or_default().to_owned()).collect()
}

/// Returns the library's calls between the open of the last path and the program's next own call.
fn calls_after_open(bed: &Bed, paths: &[&Path]) -> Vec<String> {
    let calls = calls(bed, paths);
    // cat(1) calls fstat on the file it opened.
    let end = calls.iter().position(|call| call == "newfstatat" || call == "fstat").expect("fstat");
    calls[1..end].to_vec()
}

#[test]
fn other_filesystems_are_left_alone() {
    let bed = Bed::new("");
    let ext4 = LoopFs::ext4(32 << 20);
    fs::write(bed.at("f"), "content").unwrap();
    // Anyone who may write a file can set this attribute; the library ignores it here.
    for path in [ext4.path().join("f"), bed.on(0, "forged")] {
        fs::write(&path, "other").unwrap();
        let place = bed.on(0, "f");
        let value = place.to_str().unwrap().as_bytes();
        rustix::fs::setxattr(&path, "user.mergerfs.fullpath", value, XattrFlags::empty()).unwrap();
        assert_eq!(show(&bed, &path), content_at("other", &path));
    }
    // statx alone shows that a file on a disk is not in a pool.
    assert_eq!(calls_after_open(&bed, &[&ext4.path().join("f")]), ["statx"]);
    // For other filesystems, the library calls fstatfs once per device.
    let forged = bed.on(0, "forged");
    assert_eq!(calls_after_open(&bed, &[&forged]), ["statx", "fstatfs"]);
    assert_eq!(calls_after_open(&bed, &[&bed.on(0, "f"), &forged]), ["statx"]);
    assert!(calls_after_open(&bed, &[&bed.at("f")]).contains(&"dup3".to_owned()));
    bed.end();
}

#[test]
fn options_of_the_pool() {
    // Long attribute caching, refused attributes, and various caches.
    for options in
        ["cache.attr=3600", "xattr=noattr", "cache.files=full", "passthrough.io=off,cache.files=off"]
    {
        let bed = Bed::new(options);
        fs::write(bed.at("f"), "first").unwrap();
        assert_eq!(show(&bed, &bed.at("f")), content_at("first", bed.on(0, "f")), "{options}");
        fs::write(bed.on(0, "f"), "changed behind its back").unwrap();
        assert_eq!(
            show(&bed, &bed.at("f")),
            content_at("changed behind its back", bed.on(0, "f")),
            "{options}"
        );
        bed.end();
    }
    // The opened file is not the one at the path on the branch.
    let bed = Bed::new("follow-symlinks=all");
    fs::write(bed.at("f"), "content").unwrap();
    symlink("f", bed.on(0, "link")).unwrap();
    assert_eq!(show(&bed, &bed.at("link")), content_at("content", bed.at("link")));
    assert_eq!(show(&bed, &bed.at("f")).0, "content");
    bed.end();
    // The pool does not reveal where its files are.
    let bed = Bed::new("xattr=nosys");
    fs::write(bed.at("f"), "content").unwrap();
    assert_eq!(show(&bed, &bed.at("f")), content_at("content", bed.at("f")));
    bed.end();
}

#[test]
fn copies_on_several_branches() {
    let bed = Bed::new("");
    fs::write(bed.on(0, "f"), "first").unwrap();
    let other = text(bed.on(0, "f"));
    run("cp", [bed.on(0, "f").as_os_str(), bed.on(1, "f").as_os_str()]);
    assert_eq!(show(&bed, &bed.at("f")), content_at(&other, bed.on(0, "f")));
    fs::remove_file(bed.on(0, "f")).unwrap();
    let (content, place) = show(&bed, &bed.at("f"));
    assert_eq!((content, Path::new(&place)), (other, bed.on(1, "f").as_path()));
    bed.end();
}
