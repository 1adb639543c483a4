//! Data that the kernel writes back from its page cache and that do not fit: the program is told, or all bytes are kept.

use super::rig::{MIB, pool_over};
use canopy_testkit::cmd::run;
use canopy_testkit::{Kind, LoopFs};
use std::fs;
use std::path::Path;

/// Stores 150 KiB in the way it is told, calls fsync(2) but for `close`, and prints the errors.
const PROGRAM: &str = r#"
import ctypes, errno, mmap, os, sys
path, way, size, told = sys.argv[1], sys.argv[2], 150 * 1024, []
def attempt(name, call):
    try:
        return call()
    except OSError as error:
        told.append(name + ":" + errno.errorcode[error.errno])
flags = os.O_CREAT | os.O_RDWR | (os.O_APPEND if way == "append" else 0) | (os.O_DIRECT if way == "direct" else 0)
fd = os.open(path, flags)
if way == "map":
    os.ftruncate(fd, size)
    mapping = mmap.mmap(fd, size)
    mapping[:] = b"D" * size
    attempt("msync", mapping.flush)
    mapping.close()
elif way == "close":
    # The module's mappings have a descriptor of their own, whose close would be told instead.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    os.ftruncate(fd, size)
    ctypes.memset(libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0), ord("D"), size)
    attempt("close", lambda: os.close(fd))
    print(" ".join(told))
    sys.exit()
else:
    data = mmap.mmap(-1, size)
    data[:] = b"D" * size
    rest = memoryview(data)
    while rest and not told:
        rest = rest[attempt("write", lambda: os.write(fd, rest)) or 0:]
attempt("fsync", lambda: os.fsync(fd))
attempt("close", lambda: os.close(fd))
print(" ".join(told))
"#;

const SIZE: usize = 150 * 1024;

fn store(path: &Path, way: &str) -> String {
    run("python3", ["-c", PROGRAM, path.to_str().expect("a path of ours"), way]).trim().to_owned()
}

/// A disk with 100 KiB left, and the error that tells so.
fn short_of_space() -> [(LoopFs, &'static str); 2] {
    let full = LoopFs::tmpfs(MIB as u64);
    fs::write(full.path().join("fill"), vec![b'z'; MIB - 100 * 1024]).unwrap();
    let limited = LoopFs::new(Kind::Btrfs, 128 << 20);
    let at = limited.path().to_str().expect("a path of ours");
    run("btrfs", ["quota", "enable", at]);
    run("btrfs", ["qgroup", "limit", "131072", "0/5", at]);
    [(full, "ENOSPC"), (limited, "EDQUOT")]
}

#[test]
fn no_byte_is_lost_without_an_error() {
    let caches = ["off", "partial", "full", "auto-full", "per-process"]
        .map(|cache| format!("passthrough.io=off,cache.files={cache}"));
    let options =
        caches.into_iter().chain(["cache.writeback=true".to_owned(), "passthrough.io=rw".to_owned()]);
    for option in options {
        // One data path, one value: a mount for each combination would take long.
        let both = option.ends_with("off") || option.ends_with("true");
        for moves in ["moveonenospc=true", "moveonenospc=false"].into_iter().take(1 + usize::from(both)) {
            for (disk, errno) in short_of_space() {
                let bed = pool_over(vec![disk], &format!("{option},{moves}"));
                // A store into a mapping of the branch's own file gets SIGBUS, as it does on the branch.
                let maps = option != "passthrough.io=rw";
                for way in
                    ["map", "close", "write", "append", "direct"].into_iter().skip(if maps { 0 } else { 2 })
                {
                    // For close(2) the kernel remembers no other errors than these.
                    let errno = if way == "close" && errno == "EDQUOT" { "EIO" } else { errno };
                    let told = store(&bed.at(way), way);
                    let kept = fs::read(bed.on(0, way)).unwrap().iter().filter(|&&byte| byte == b'D').count();
                    assert!(
                        if told.is_empty() { kept == SIZE } else { kept < SIZE && told.contains(errno) },
                        "{option},{moves}: {way} on {errno}: {kept} bytes, and the program is told: {told:?}"
                    );
                    fs::remove_file(bed.at(way)).unwrap();
                    run("sync", ["-f", bed.disks[0].path().to_str().unwrap()]);
                }
                bed.pool.umount();
            }
        }
    }
}

/// Where a file can move, it does, and nothing is lost or told.
#[test]
fn pages_go_on_on_another_branch() {
    for option in ["cache.files=off", "cache.files=full", "cache.writeback=true"] {
        for (disk, errno) in short_of_space() {
            let bed = pool_over(vec![disk, LoopFs::tmpfs(8 << 20)], option);
            for way in ["map", "write", "append"] {
                assert_eq!(store(&bed.at(way), way), "", "{option}: {way} on {errno}");
                assert!(fs::read(bed.at(way)).unwrap() == [b'D'; SIZE], "{option}: {way} on {errno}");
            }
            bed.pool.umount();
        }
    }
}
