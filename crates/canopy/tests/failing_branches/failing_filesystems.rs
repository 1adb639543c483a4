//! Filesystems that turn read-only or return errors.

use super::rig::{
    PATIENCE, assert_only_on, is_fifo, make_all_kinds, pool_over, trigger_error, wait_for_illness,
};

use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Fault, FaultyFs, Kind, LoopFs, Opcode, Pool, ScratchDir};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

#[test]
fn a_read_only_disk_gets_no_new_files_until_it_is_writable() {
    let bed = pool_over(vec![LoopFs::ext4(32 * MIB), LoopFs::tmpfs(32 * MIB)], "");
    fs::write(bed.at("before"), "on the first").unwrap();
    let first = make_all_kinds(&bed, "a-");
    assert_only_on(&bed, 0, &first);
    bed.disks[0].set_read_only(true);
    let second = make_all_kinds(&bed, "b-");
    assert_only_on(&bed, 1, &second);
    assert!(is_fifo(&bed.at("b-fifo")));
    wait_for_illness(&bed, 0, Some("read-only"));
    // Existing files can be read but not changed.
    assert_eq!(fs::read_to_string(bed.at("before")).unwrap(), "on the first");
    assert_eq!(fs::remove_file(bed.at("before")).unwrap_err().raw_os_error(), Some(30));
    let status = bed.pool.status();
    assert_eq!(status["branches"][0]["health"], "read-only");
    assert_eq!(status["warnings"][0]["code"], "branch-read-only");
    bed.disks[0].set_read_only(false);
    wait_for_illness(&bed, 0, None);
    let third = make_all_kinds(&bed, "c-");
    assert_only_on(&bed, 0, &third);
    fs::remove_file(bed.at("before")).unwrap();
    let log = bed.pool.umount();
    assert!(log.contains("it has become read-only") && log.contains("works again"), "{log}");
}

/// Mounts a pool over a plain directory and a filesystem with faults, with an old file and a new one at these places.
fn plain_and_faulty(old: &str, new: &str) -> (ScratchDir, FaultyFs, Pool) {
    let scratch = ScratchDir::new("rename-sync-", &["plain"]);
    let disk = FaultyFs::mount(&scratch.dir());
    fs::write(scratch.path(old), "old").unwrap();
    fs::write(scratch.path(new), "new").unwrap();
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(scratch.path("plain"))
        .branch(disk.path())
        .option("minfreespace=0")
        .mount();
    (scratch, disk, pool)
}

/// Otherwise a power cut could leave nothing under the name: neither is on disk in the order of the changes.
#[test]
fn what_replaces_a_file_of_another_branch_is_on_disk_before_that_goes() {
    let (scratch, disk, pool) = plain_and_faulty("plain/name", "faulty/new");
    let at = |name: &str| pool.path().join(name);
    let texts = || ["name", "new"].map(|name| fs::read_to_string(at(name)).ok());
    for kind in [Opcode::Fsync, Opcode::Fsyncdir] {
        disk.set(Fault::Fail(Errno::IO), &[kind]);
        assert_eq!(fs::rename(at("new"), at("name")).unwrap_err().raw_os_error(), Some(5), "{kind:?}");
        disk.heal();
        assert_eq!(texts(), [Some("old".into()), Some("new".into())], "{kind:?}");
    }
    fs::rename(at("new"), at("name")).unwrap();
    assert_eq!(texts(), [Some("new".into()), None]);
    assert!(!scratch.path("plain/name").exists());
}

/// Otherwise a power cut could bring back the replaced file, which would hide what was synced.
#[test]
fn fsync_of_a_file_makes_the_removal_last_of_what_it_has_replaced() {
    let (_scratch, disk, pool) = plain_and_faulty("faulty/name", "plain/new");
    let at = |name: &str| pool.path().join(name);
    fs::rename(at("new"), at("name")).unwrap();
    assert!(!disk.path().join("name").exists());
    let file = fs::File::open(at("name")).unwrap();
    disk.set(Fault::Fail(Errno::IO), &[Opcode::Fsyncdir]);
    for _ in 0..2 {
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5));
    }
    disk.heal();
    file.sync_all().unwrap();
    disk.set(Fault::Fail(Errno::IO), &[Opcode::Fsyncdir]);
    file.sync_all().expect("the removal is on disk");
    disk.heal();
}

/// Its ACL may be what keeps others out.
#[test]
fn a_directory_is_made_on_no_other_disk_while_its_attributes_cannot_be_read() {
    let scratch = ScratchDir::new("unreadable-dir-", &["first", "last"]);
    let disk = FaultyFs::mount(&scratch.dir());
    let dirs = [disk.path().join("alone"), disk.path().join("both"), scratch.path("last/both")];
    for dir in &dirs {
        fs::create_dir(dir).unwrap();
        setxattr(dir, "user.note", b"kept", XattrFlags::empty()).unwrap();
    }
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branches([scratch.path("first"), disk.path().to_path_buf(), scratch.path("last")])
        .option("minfreespace=0,category.create=ff")
        .mount();
    let at = |name: &str| pool.path().join(name);
    let note_of = |name: &str| {
        let mut value = [0; 9];
        getxattr(scratch.path("first").join(name), "user.note", &mut value).map(|len| value[..len].to_vec())
    };
    disk.set(Fault::Fail(Errno::BADMSG), &[Opcode::Getxattr, Opcode::Listxattr]);
    fs::write(at("alone/file"), "new").unwrap();
    assert!(disk.path().join("alone/file").exists() && !scratch.path("first/alone").exists());
    // Another disk can tell.
    fs::write(at("both/file"), "new").unwrap();
    assert_eq!(note_of("both"), Ok(b"kept".to_vec()));
    disk.heal();
    fs::write(at("alone/other"), "new").unwrap();
    assert_eq!(note_of("alone"), Ok(b"kept".to_vec()));
}

/// Each operation runs on a pool of its own.
#[test]
fn every_operation_that_gets_erofs_marks_the_branch() {
    type Act = fn(&Path) -> std::io::Result<()>;
    const ACTS: &[(&str, Act)] = &[
        ("chmod", |dir| fs::set_permissions(dir.join("file"), fs::Permissions::from_mode(0o600))),
        ("chown", |dir| std::os::unix::fs::chown(dir.join("file"), Some(7), None)),
        ("utimens", |dir| {
            let file = fs::File::open(dir.join("file"))?;
            file.set_modified(std::time::SystemTime::now())
        }),
        ("setxattr", |dir| {
            Ok(rustix::fs::setxattr(dir.join("file"), c"user.x", b"y", rustix::fs::XattrFlags::empty())?)
        }),
        ("rename", |dir| fs::rename(dir.join("file"), dir.join("new"))),
        ("link", |dir| fs::hard_link(dir.join("file"), dir.join("new"))),
        ("unlink", |dir| fs::remove_file(dir.join("file"))),
        ("rmdir", |dir| fs::remove_dir(dir.join("dir"))),
        ("open", |dir| fs::OpenOptions::new().write(true).open(dir.join("file")).map(drop)),
    ];
    let disk = LoopFs::ext4(32 * MIB);
    let pools: Vec<Pool> = ACTS
        .iter()
        .map(|(what, _)| {
            let branch = disk.path().join(what);
            fs::create_dir_all(branch.join("dir")).unwrap();
            fs::write(branch.join("file"), "text").unwrap();
            Pool::builder(env!("CARGO_BIN_EXE_canopy")).branch(branch).option("minfreespace=0").mount()
        })
        .collect();
    disk.set_read_only(true);
    for ((what, act), pool) in ACTS.iter().zip(&pools) {
        assert_eq!(act(pool.path()).unwrap_err().raw_os_error(), Some(30), "{what}");
    }
    for ((what, _), pool) in ACTS.iter().zip(&pools) {
        let logged = wait_until(PATIENCE, || pool.log().contains("it has become read-only"));
        assert!(logged, "{what}: {}", pool.log());
    }
    pools.into_iter().for_each(|pool| drop(pool.umount()));
    drop(disk);
}

/// Since Linux 6.15, statvfs(3) does not report the emergency read-only state of ext4: only changes fail.
#[test]
fn an_ext4_error_that_stops_all_changes_marks_the_branch() {
    let failing = LoopFs::with(Kind::Ext4, 32 * MIB, &[], "errors=remount-ro");
    let bed = pool_over(vec![failing, LoopFs::tmpfs(32 * MIB)], "");
    fs::write(bed.at("before"), "on the first").unwrap();
    trigger_error(&bed.disks[0]);
    let names = make_all_kinds(&bed, "a-");
    assert_only_on(&bed, 1, &names);
    wait_for_illness(&bed, 0, Some("read-only"));
    let names = make_all_kinds(&bed, "b-");
    assert_only_on(&bed, 1, &names);
    assert_eq!(fs::read_to_string(bed.at("before")).unwrap(), "on the first");
    let status = bed.pool.status();
    assert_eq!(status["branches"][0]["health"], "read-only", "{status:#}");
    let shown = bed.pool.command(["status".as_ref(), bed.pool.path().as_os_str()]);
    assert!(shown.stdout.contains("read-only"), "{}", shown.describe());
    let explained = bed.pool.command(["explain".as_ref(), "create".as_ref(), bed.at("new").as_os_str()]);
    assert!(explained.stdout.contains("it is failing"), "{}", explained.describe());
    bed.pool.umount();
}

/// The disk's image becomes immutable: writes fail, reads work.
#[test]
fn a_disk_that_returns_errors_gets_no_new_files_until_it_recovers() {
    let host = LoopFs::ext4(128 * MIB);
    // Without a journal ext4 does not turn read-only.
    let failing =
        LoopFs::within(host.path(), Kind::Ext4, 64 * MIB, &["-O", "^has_journal"], "errors=continue");
    let image = failing.image().expect("an image");
    let bed = pool_over(vec![failing, LoopFs::tmpfs(64 * MIB)], "");
    fs::write(bed.at("before"), "on the first").unwrap();
    sync(&bed.on(0, ""));
    immutable(&image, true);
    // The fsync gets the error.
    let mut file = fs::File::create(bed.at("victim")).unwrap();
    let written = file.write_all(&vec![1; 4 << 20]).and_then(|()| file.sync_all());
    assert_eq!(written.unwrap_err().raw_os_error(), Some(5), "lost data is always reported");
    wait_for_illness(&bed, 0, Some("failing"));
    let names = make_all_kinds(&bed, "a-");
    assert_only_on(&bed, 1, &names);
    assert_eq!(fs::read_to_string(bed.at("before")).unwrap(), "on the first");
    let status = bed.pool.status();
    assert_eq!(
        (&status["branches"][0]["health"], &status["warnings"][0]["code"]),
        (&"failing".into(), &"branch-failing".into())
    );
    assert_eq!(status["branches"][0]["illness"]["cause"], "Input/output error");
    immutable(&image, false);
    wait_for_illness(&bed, 0, None);
    let names = make_all_kinds(&bed, "b-");
    assert_only_on(&bed, 0, &names);
    drop(file);
    bed.pool.umount();
    drop(bed.disks);
}

fn sync(dir: &Path) {
    rustix::fs::syncfs(fs::File::open(dir).expect("a directory")).expect("sync");
}

fn immutable(path: &Path, immutable: bool) {
    let flag = if immutable { "+i" } else { "-i" };
    let done = run_within(Command::new("chattr").arg(flag).arg(path), PATIENCE);
    assert!(done.success(), "{}", done.describe());
}

/// A count answers only a program. What the kernel reads or writes for its page cache comes whole, or the program learns
/// of the error: a missing part would read as zeros, or be lost.
#[test]
fn an_error_after_a_part_is_not_taken_for_a_part() {
    const SIZE: usize = 256 << 10;
    const PROGRAM: &str = r#"
import mmap, os, sys
path, way, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
fd = os.open(path, os.O_RDWR)
try:
    if way == "read":
        print(os.pread(fd, size, 0).count(b"D"))
    elif way == "mapped read":
        mapping = mmap.mmap(fd, size)
        print(mapping[:size].count(b"D"))
    else:
        if way == "mapped write":
            mapping = mmap.mmap(fd, size)
            mapping[:] = b"E" * size
            mapping.flush()
        else:
            assert os.pwrite(fd, b"E" * size, 0) == size
        os.fsync(fd)
        print("written")
except OSError as error:
    print("error", error.errno)
"#;
    for option in ["cache.files=off", "cache.files=partial", "cache.files=full", "cache.writeback=true"] {
        let scratch = ScratchDir::new("after-a-part-", &[]);
        let disk = FaultyFs::mount(&scratch.dir());
        let name = |way: &str| way.replace(' ', "-");
        let ways = ["read", "mapped read", "write", "mapped write"];
        ways.iter().for_each(|way| fs::write(disk.backing_dir().join(name(way)), [b'D'; SIZE]).unwrap());
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(disk.path())
            .option(format!("minfreespace=0,passthrough.io=off,{option}"))
            .mount();
        disk.set(Fault::FailBeyond(SIZE as u64 / 2, Errno::IO), &[Opcode::Read, Opcode::Write]);
        for way in ways {
            let mut program = Command::new("python3");
            program.args(["-c", PROGRAM]).arg(pool.path().join(name(way))).args([way, &SIZE.to_string()]);
            let done = run_within(&mut program, PATIENCE);
            let (told, what) = (done.stdout.trim(), done.describe());
            match way {
                // A page that cannot be read kills the program.
                "mapped read" => assert!(!done.success() && told.is_empty(), "{option}: {way}: {what}"),
                "read" => assert!(
                    told == "error 5" || told.parse::<usize>().is_ok_and(|read| read == SIZE / 2),
                    "{option}: {way}: {what}"
                ),
                _ => assert!(told == "error 5" || !done.success(), "{option}: {way}: {what}"),
            }
        }
        disk.heal();
        pool.umount();
    }
}
