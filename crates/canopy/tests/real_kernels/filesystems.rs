//! Branches on exFAT, vfat, NTFS and f2fs.

use super::rig::{BINARY, MIB, modules};
use canopy_testkit::cmd::run;
use canopy_testkit::{LoopFs, Pool};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

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
pub(super) fn steps(dir: &Path) -> Vec<(&'static str, String)> {
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
    modules(&[kind]);
    let known = fs::read_to_string("/proc/filesystems").expect("a list");
    if !known.lines().any(|line| line.split_whitespace().last() == Some(kind)) {
        println!("skipped: this kernel has no {kind}");
        return;
    }
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
