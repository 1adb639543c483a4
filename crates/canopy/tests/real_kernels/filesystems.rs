//! Branches and clients of other kinds: exFAT, vfat, NTFS and f2fs as branches, the kernel's NFS server over a pool.

use super::rig::{BINARY, MIB, PATIENCE, drop_caches, modules};
use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::{LoopFs, Pool, Tree, TreeSpec, populate, tree};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A filesystem on an image, of a kind that [`LoopFs`] does not know.
struct Mounted {
    dir: tempfile::TempDir,
}

impl Mounted {
    fn new(kind: &str, mkfs: &[&str]) -> Mounted {
        modules(&["loop", kind, "nls_utf8", "nls_iso8859-1", "nls_cp437", "nls_ascii"]);
        let dir = tempfile::Builder::new().prefix("canopy-other-").tempdir().expect("a directory");
        let image = dir.path().join("image");
        File::create(&image).and_then(|file| file.set_len(96 * MIB)).expect("an image");
        let made = Mounted { dir };
        fs::create_dir(made.path()).expect("mkdir");
        let (program, arguments) = mkfs.split_first().expect("a program");
        run(program, arguments.iter().map(std::ffi::OsStr::new).chain([image.as_os_str()]));
        let arguments = ["-t".as_ref(), kind.as_ref(), "-o".as_ref(), "loop".as_ref(), image.as_os_str()];
        run("mount", arguments.into_iter().chain([made.path().as_os_str()]));
        made
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("fs")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", [self.path()]);
    }
}

/// What a client sees of each step: the same on a branch and through a pool.
fn steps(dir: &Path) -> Vec<(&'static str, String)> {
    let mut seen = Vec::new();
    let mut step = |what, result: std::io::Result<String>| {
        seen.push((what, result.unwrap_or_else(|error| format!("{:?}", error.raw_os_error()))));
    };
    let done = |()| String::new();
    let at = |name: &str| dir.join(name);
    step("create", fs::write(at("Film.mkv"), "film").map(done));
    step("read", fs::read_to_string(at("Film.mkv")));
    step("other case", fs::read_to_string(at("film.MKV")));
    step("create in another case", File::create_new(at("FILM.mkv")).map(|_| String::new()));
    step("a refused name", fs::write(at("a:b?"), "x").map(done));
    step("a name with a dot at its end", fs::write(at("dot."), "x").map(done));
    step("symlink", std::os::unix::fs::symlink("Film.mkv", at("link")).map(done));
    step("hard link", fs::hard_link(at("Film.mkv"), at("hard")).map(done));
    step("mkdir", fs::create_dir(at("Dir")).map(done));
    step("rename", fs::rename(at("Film.mkv"), at("Dir/New.mkv")).map(done));
    step("the old name", fs::read_to_string(at("Film.mkv")));
    step("the new name", fs::read_to_string(at("Dir/New.mkv")));
    step("change of case", fs::rename(at("Dir/New.mkv"), at("Dir/NEW.mkv")).map(done));
    step("the changed case", fs::read_to_string(at("Dir/NEW.mkv")));
    step(
        "truncate",
        File::options().write(true).open(at("Dir/NEW.mkv")).and_then(|file| file.set_len(2)).map(done),
    );
    step("size", fs::metadata(at("Dir/NEW.mkv")).map(|meta| meta.len().to_string()));
    step("fsync", File::open(at("Dir/NEW.mkv")).and_then(|file| file.sync_all()).map(done));
    step("rmdir of a full one", fs::remove_dir(at("Dir")).map(done));
    let list = || {
        let mut names: Vec<_> = fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().into_string().expect("text")))
            .collect::<std::io::Result<_>>()?;
        names.sort();
        Ok(names.join(" "))
    };
    step("list", list());
    step("unlink", fs::remove_file(at("Dir/NEW.mkv")).map(done));
    step("rmdir", fs::remove_dir(at("Dir")).map(done));
    seen
}

fn compare(kind: &str, mkfs: &[&str]) {
    let other = Mounted::new(kind, mkfs);
    let plain = LoopFs::tmpfs(16 * MIB);
    let (branch, direct) = (other.path().join("branch"), other.path().join("direct"));
    for dir in [&branch, &direct, &branch.join("dir"), &direct.join("dir")] {
        fs::create_dir(dir).expect("mkdir");
    }
    let pool = Pool::builder(BINARY)
        .branch(&branch)
        .branch(plain.path())
        .option("minfreespace=0,category.create=ff")
        .mount();
    let (expected, seen) = (steps(&direct.join("dir")), steps(&pool.path().join("dir")));
    println!("{kind}: {} steps", seen.len());
    assert_eq!(seen, expected, "{kind}: left through the pool, right on the branch");
    pool.umount();
}

#[test]
#[ignore = "needs the kernel's module (scripts/test.sh --kernel)"]
fn vfat() {
    compare("vfat", &["mkfs.vfat"]);
}

#[test]
#[ignore = "needs the kernel's module (scripts/test.sh --kernel)"]
fn exfat() {
    compare("exfat", &["mkfs.exfat"]);
}

#[test]
#[ignore = "needs the kernel's module (scripts/test.sh --kernel)"]
fn ntfs3() {
    compare("ntfs3", &["mkntfs", "--fast", "--force", "--quiet"]);
}

#[test]
#[ignore = "needs the kernel's module (scripts/test.sh --kernel)"]
fn f2fs() {
    compare("f2fs", &["mkfs.f2fs", "-q", "-f"]);
}

/// The kernel's NFS server over a pool, mounted here too.
struct Nfs {
    exports: Child,
    point: tempfile::TempDir,
}

impl Nfs {
    fn new(pool: &Path) -> Nfs {
        modules(&["nfsd", "nfs", "nfsv4"]);
        run("mount", ["-t", "nfsd", "nfsd", "/proc/fs/nfsd"]);
        for dir in ["/var/lib/nfs/v4recovery", "/run/rpc_pipefs"] {
            fs::create_dir_all(dir).expect("mkdir");
        }
        fs::write("/var/lib/nfs/etab", "").expect("etab");
        fs::write("/etc/netconfig", NETCONFIG).expect("netconfig");
        fs::write("/etc/exports", "").expect("exports");
        let pool = pool.to_str().expect("text");
        run(
            "exportfs",
            ["-o", "rw,no_root_squash,insecure,no_subtree_check,fsid=77", &format!("127.0.0.1:{pool}")],
        );
        let exports = Command::new("rpc.mountd")
            .args(["--foreground", "--no-nfs-version", "3"])
            .spawn()
            .expect("rpc.mountd");
        run("rpc.nfsd", ["--no-udp", "--no-nfs-version", "3", "2"]);
        let _ = fs::write("/proc/fs/nfsd/v4_end_grace", "Y");
        let point = tempfile::tempdir().expect("a directory");
        let arguments = ["-t", "nfs4", "-o", "vers=4.2,soft,timeo=300"];
        let source = format!("127.0.0.1:{pool}");
        let place = point.path().to_str().expect("text");
        run("mount", arguments.into_iter().chain([source.as_str(), place]));
        Nfs { exports, point }
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        run("umount", [self.point.path()]);
        run("rpc.nfsd", ["0"]);
        run("exportfs", ["-ua"]);
        let _ = self.exports.kill();
        let _ = self.exports.wait();
        run("umount", ["/proc/fs/nfsd"]);
    }
}

const NETCONFIG: &str = "udp tpi_clts v inet udp - -\\ntcp tpi_cots_ord v inet tcp - -\\nrawip tpi_raw - inet - - -\\nlocal tpi_cots_ord - loopback - - -\\n";

#[test]
#[ignore = "needs the kernel's NFS server (scripts/test.sh --kernel)"]
fn the_kernels_nfs_server_over_a_pool() {
    let disks = [LoopFs::ext4(64 * MIB), LoopFs::ext4(64 * MIB)];
    let pool = Pool::builder(BINARY)
        .branches(disks.iter().map(LoopFs::path))
        .option("minfreespace=0,category.create=rand,export-support=true")
        .mount();
    {
        let nfs = Nfs::new(pool.path());
        let remote = nfs.point.path();
        let dir = remote.join("tree");
        fs::create_dir(&dir).expect("mkdir");
        populate(&dir, &TreeSpec { files: 300, xattrs: 0, ..TreeSpec::default() });
        let fields = tree::Fields::without_dir_times();
        let seen = |root: &Path| Tree::capture_with(root.join("tree"), fields);
        seen(pool.path()).assert_same(&seen(remote));
        drop_caches();
        seen(pool.path()).assert_same(&seen(remote));
        let open = File::create_new(remote.join("open")).expect("a file");
        fs::rename(remote.join("open"), remote.join("renamed")).expect("rename");
        fs::remove_file(remote.join("renamed")).expect("unlink");
        open.set_len(100).expect("a file that is open and has no name");
        assert_eq!(open.metadata().expect("attributes").len(), 100);
        drop(open);
        fs::remove_dir_all(&dir).expect("rm -r");
        assert!(wait_until(PATIENCE, || !pool.path().join("tree").exists()));
        println!("NFS: a tree, renamed and removed");
    }
    pool.umount();
}
