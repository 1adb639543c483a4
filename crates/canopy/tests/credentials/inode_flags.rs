//! chattr(1) and lsattr(1) through the pool.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, PATIENCE, Pool, User};

use super::rig::{OWNER, Places, STRANGER, THE_OWNER, outcome};

#[track_caller]
fn chattr(flag: &str, path: &Path) -> String {
    let done = run_within(Command::new("chattr").arg(flag).arg(path), PATIENCE);
    format!("{:?}", done.code())
}

/// Clears the flags on drop, so that the branches can be removed even if the test fails.
struct ClearFlags<'a>(&'a Path);

impl Drop for ClearFlags<'_> {
    fn drop(&mut self) {
        let _ = Command::new("chattr").args(["-R", "-i", "-a"]).arg(self.0).status();
    }
}

fn flags(path: &Path) -> String {
    let done = run_within(Command::new("lsattr").arg("-d").arg(path), PATIENCE);
    // `e` (extents) is the layout of the file, and `N` (inline data) depends on how it was written.
    let set = done.stdout.split(' ').next().unwrap_or_default().replace(['-', 'e', 'N'], "");
    format!("{:?} {set}", done.code())
}

/// Attempts every operation on a file or directory that is immutable or append-only.
fn attempts(dir: &Path, name: &str) -> String {
    let path = dir.join(name);
    let other = dir.join("other");
    let append = || {
        use std::io::Write;
        fs::File::options().append(true).open(&path).and_then(|mut file| file.write_all(b"more"))
    };
    let mut results = vec![
        outcome(append()),
        outcome(fs::File::options().write(true).open(&path)),
        outcome(fs::File::options().write(true).truncate(true).open(&path)),
        outcome(fs::set_permissions(&path, PermissionsExt::from_mode(0o644))),
        outcome(chown(&path, Some(OWNER), None)),
        outcome(fs::hard_link(&path, &other)),
        outcome(fs::rename(&path, &other)),
        outcome(rustix::fs::setxattr(&path, "user.x", b"1", rustix::fs::XattrFlags::empty())),
        outcome(fs::File::open(&path)),
    ];
    if path.is_dir() {
        results.push(outcome(fs::write(path.join("new"), "")));
        results.push(outcome(fs::remove_file(path.join("inner"))));
        results.push(outcome(fs::rename(path.join("inner"), path.join("inner2"))));
        results.push(outcome(fs::remove_dir(path.join("below"))));
        // Operations that also fail for another reason. (A wrong file type is missing: the kernel rejects it without
        // asking the daemon.)
        let (full, empty) = (path.join("full"), path.join("empty"));
        results.extend([
            outcome(fs::remove_dir(&full)),
            outcome(fs::rename(&empty, &full)),
            outcome(fs::remove_dir(path.join("none"))),
            outcome(fs::rename(path.join("none"), &full)),
            outcome(fs::rename(&full, full.join("in"))),
            outcome(fs::create_dir(&full)),
            outcome(fs::create_dir(path.join("new"))),
            outcome(fs::hard_link(path.join("inner"), path.join("new"))),
            outcome(fs::hard_link(path.join("inner"), &full)),
            outcome(std::os::unix::fs::symlink("x", path.join("new"))),
            outcome(std::os::unix::fs::symlink("x", &full)),
            outcome(fs::File::create_new(path.join("inner"))),
            outcome(fs::rename(&full, dir.join("moved"))),
            outcome(fs::rename(dir.join("outside"), &full)),
            outcome(fs::rename(dir.join("outside"), path.join("new2"))),
            outcome(fs::rename(dir.join("outside"), dir.join("outside2"))),
            outcome(fs::remove_dir(&path)),
        ]);
    } else {
        results.push(outcome(fs::remove_file(&path)));
    }
    results.join(" ")
}

fn table(root: &Path) -> Vec<String> {
    let _clear_flags = ClearFlags(root);
    let mut cells = Vec::new();
    for (kind, name) in [("file", "f"), ("directory", "d")] {
        for flag in ["i", "a", "ia", "d", "A", "S"] {
            let dir = root.join(format!("{name}-{flag}"));
            fs::create_dir(&dir).unwrap();
            let path = dir.join(name);
            if kind == "file" {
                fs::write(&path, "content").unwrap();
            } else {
                fs::create_dir_all(path.join("below")).unwrap();
                fs::write(path.join("inner"), "content").unwrap();
                fs::create_dir_all(path.join("full/inside")).unwrap();
                fs::create_dir(path.join("empty")).unwrap();
                fs::create_dir_all(dir.join("outside")).unwrap();
            }
            for (who, user) in [("owner", THE_OWNER), ("stranger", STRANGER)] {
                chown(&path, Some(OWNER), None).unwrap();
                let user = User { uid: user.uid, gid: user.gid, groups: &[] };
                let mut command = user.command("chattr");
                let done = run_within(command.arg(format!("+{flag}")).arg(&path), PATIENCE);
                // Includes the reason, which is in chattr's message.
                let reason = done
                    .stderr
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .split(" while ")
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                let code = done.code();
                cells.push(format!("{kind} +{flag} by {who}: {code:?} {reason} {}", flags(&path)));
                chattr(&format!("-{flag}"), &path);
            }
            let done = chattr(&format!("+{flag}"), &path);
            cells.push(format!("{kind} +{flag} by root: {done} {}", flags(&path)));
            if flag.contains(['i', 'a']) {
                cells.push(format!("{kind} +{flag} attempts: {}", attempts(&dir, name)));
                let mut off = THE_OWNER_COMMAND.command("chattr");
                let done = run_within(off.arg(format!("-{flag}")).arg(&path), PATIENCE);
                cells.push(format!("{kind} -{flag} by owner: {:?} {}", done.code(), flags(&path)));
            }
            let done = chattr(&format!("-{flag}"), &path);
            cells.push(format!("{kind} -{flag} by root: {done} {}", flags(&path)));
        }
    }
    cells
}

const THE_OWNER_COMMAND: User<'static> = User { uid: THE_OWNER.uid, gid: THE_OWNER.gid, groups: &[] };

#[test]
fn immutable_and_append_only_are_as_on_ext4() {
    // epff creates on the branch that has the directory: a clone on another branch cannot be append-only.
    let options = ["category.create=epff", "category.create=epff,passthrough.io=off,cache.files=off"];
    Places::new().compare(&options, table);
}

/// Nothing can be created in an immutable directory, not even on a branch that does not have it yet.
#[test]
fn an_immutable_directory_is_not_cloned_to_create_entries_in_it() {
    let places = Places::new();
    let branches = places.branches();
    fs::create_dir(branches[0].join("dir")).unwrap();
    fs::write(branches[1].join("file"), "").unwrap();
    let _clear_flags = ClearFlags(&branches[0]);
    let pool = places.pool("");
    let dir = pool.path().join("dir");
    assert_eq!(chattr("+i", &dir), "Some(0)");
    for index in 0..20 {
        let name = dir.join(format!("new{index}"));
        assert_eq!(outcome(fs::write(&name, "")), "EPERM");
        assert_eq!(outcome(fs::create_dir(&name)), "EPERM");
        assert_eq!(outcome(fs::hard_link(pool.path().join("file"), &name)), "EPERM");
        assert_eq!(outcome(fs::rename(pool.path().join("file"), &name)), "EPERM");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert!(!branches[1].join("dir").exists());
    assert_eq!(chattr("-i", &dir), "Some(0)");
    fs::rename(pool.path().join("file"), dir.join("file")).unwrap();
    pool.umount();
}

/// Changing a directory's flags changes them on all its copies.
#[test]
fn flags_of_a_directory_reach_every_branch() {
    let places = Places::new();
    let branches = places.branches();
    for branch in &branches {
        fs::create_dir(branch.join("dir")).unwrap();
    }
    let _clear_flags = branches.each_ref().map(|branch| ClearFlags(branch));
    let pool = places.pool("");
    let dir = pool.path().join("dir");
    assert_eq!(chattr("+i", &dir), "Some(0)");
    for branch in &branches {
        assert!(flags(&branch.join("dir")).contains('i'));
    }
    assert_eq!(outcome(fs::write(dir.join("new"), "")), "EPERM");
    assert_eq!(chattr("-i", &dir), "Some(0)");
    fs::write(dir.join("new"), "").unwrap();
    pool.umount();
}

/// The kernel refuses such a mapping on ext4 by the flags of the file's inode, and those of a pool's inode do not have it.
const STORE: &str = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND)
m = mmap.mmap(f, 10)
m[:5] = b'MMAP!'
m.flush()";

#[test]
fn what_is_there_in_an_append_only_file_stays() {
    let disk = LoopFs::ext4(64 << 20);
    let branch = disk.path().join("log");
    fs::write(&branch, "0123456789").unwrap();
    for options in ["passthrough.io=rw", "passthrough.io=auto", "passthrough.io=off", "cache.files=off"] {
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(disk.path())
            .option("minfreespace=0")
            .option(options)
            .mount();
        let _clear_flags = ClearFlags(&branch);
        let path = pool.path().join("log");
        for reads_since_before in [false, true] {
            // The kernel may read it past the daemon by then.
            let reader = reads_since_before.then(|| fs::File::open(&path).unwrap());
            assert_eq!(chattr("+a", &branch), "Some(0)");
            // Not even root may.
            let stored = run_within(Command::new("python3").args(["-c", STORE]).arg(&path), PATIENCE);
            assert!(stored.stderr.contains("PermissionError"), "{options}: {}", stored.describe());
            assert_eq!(
                fs::read_to_string(&branch).unwrap(),
                "0123456789",
                "{options}, read since before: {reads_since_before}"
            );
            // Where the daemon serves both, the reader may see what was refused until the kernel drops the page.
            if let Some(mut reader) = reader.filter(|_| options == "passthrough.io=rw") {
                let mut read = String::new();
                std::io::Read::read_to_string(&mut reader, &mut read).unwrap();
                assert_eq!(read, "0123456789", "{options}");
            }
            chattr("-a", &branch);
        }
        pool.umount();
    }
}

/// The writeback cache wants to write anywhere in the file, which the branch refuses.
#[test]
fn an_append_only_file_takes_more_with_the_writeback_cache() {
    use std::io::Write;
    let disk = LoopFs::ext4(64 << 20);
    let branch = disk.path().join("log");
    fs::write(&branch, "begun\n").unwrap();
    let options = "minfreespace=0,passthrough.io=off,cache.writeback=true,cache.files=full";
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy")).branch(disk.path()).option(options).mount();
    let _clear_flags = ClearFlags(&branch);
    let path = pool.path().join("log");
    assert_eq!(chattr("+a", &path), "Some(0)");
    let mut expected = "begun\n".to_owned();
    let open = |reads| fs::File::options().append(true).read(reads).open(&path);
    let mut writers = [false, true].map(|reads| open(reads).unwrap());
    for line in 0..2000 {
        let text = format!("line {line}\n");
        writers[line % 2].write_all(text.as_bytes()).unwrap();
        expected += &text;
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    drop(writers);
    assert_eq!(fs::read_to_string(&branch).unwrap(), expected);
    assert_eq!(outcome(fs::File::options().write(true).open(&path)), "EPERM");
    chattr("-a", &branch);
    // And as any other file afterwards.
    open(false).unwrap().write_all(b"more").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), expected.clone() + "more");
    pool.umount();
    assert_eq!(fs::read_to_string(&branch).unwrap(), expected + "more");
}
