//! Mount, serve and unmount with this machine's kernel. `uring.rs` runs all of these tests again.

pub(crate) mod common;
#[path = "mounted/requests.rs"]
mod requests;
#[path = "mounted/stalled.rs"]
mod stalled;
#[path = "mounted/workers.rs"]
mod workers;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use canopy_fuse::backing::BackingError;
use canopy_fuse::flags::OpenFlags;
use canopy_fuse::mount::{MountSpec, is_dead, mount, sync_served, unmount_dead};
use canopy_fuse::notify::NotifyError;
use canopy_fuse::request::{NodeId, Op};
use canopy_fuse::{KernelLimits, Session, SessionOptions};
use common::memory::{Hook, Memory, options};
use common::{Scratch, Served, URING, can_mount};

/// The name of a test below, in either test binary.
const UNPRIVILEGED: &str = if URING { "mounted::mount_unprivileged" } else { "mount_unprivileged" };

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn exercise(point: &Path) {
    let file = point.join("file");
    fs::write(&file, b"hello").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"hello");
    let big: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(point.join("big"), &big).unwrap();
    assert!(fs::read(point.join("big")).unwrap() == big);
    fs::create_dir(point.join("dir")).unwrap();
    for i in 0..300 {
        fs::write(point.join(format!("dir/{i:0>100}")), b"").unwrap();
    }
    let names: BTreeSet<_> =
        fs::read_dir(point.join("dir")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 300);
    symlink("some/where", point.join("link")).unwrap();
    assert_eq!(fs::read_link(point.join("link")).unwrap(), Path::new("some/where"));
    fs::hard_link(&file, point.join("second")).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
    fs::rename(&file, point.join("third")).unwrap();
    assert_eq!(fs::read(point.join("third")).unwrap(), b"hello");
    fs::set_permissions(point.join("third"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(point.join("second")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::copy(point.join("big"), point.join("copy")).unwrap(), 3_000_000);
    let xattr = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(point.join("third"), "user.a", b"value", xattr).unwrap();
    let mut value = [0u8; 64];
    assert_eq!(rustix::fs::getxattr(point.join("third"), "user.a", &mut value[..]).unwrap(), 5);
    assert_eq!(rustix::fs::getxattr_query(point.join("third"), "user.a").unwrap(), 5);
    assert!(rustix::fs::getxattr(point.join("third"), "user.a", &mut value[..2]).is_err());
    assert_eq!(rustix::fs::listxattr(point.join("third"), &mut value[..]).unwrap(), 7);
    rustix::fs::removexattr(point.join("third"), "user.a").unwrap();
    fs::File::options().write(true).open(point.join("third")).unwrap().set_len(2).unwrap();
    assert_eq!(fs::read(point.join("third")).unwrap(), b"he");
    rustix::fs::statvfs(point).unwrap();
    fs::remove_dir_all(point.join("dir")).unwrap();
    assert!(fs::metadata(point.join("nothing")).is_err());
}

#[test]
fn a_mounted_filesystem_works() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served =
        Served::start(scratch.path(), &options(), KernelLimits::NONE, 3, |_| Memory::new(Duration::ZERO));
    eprintln!("{}", served.agreed);
    exercise(scratch.path());
    assert!(served.mounted().is_mounted());
    served.stop();
}

#[test]
fn a_mounted_filesystem_works_with_older_versions() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    for minor in [31, 33, 36, 38, 39, 40, 41, 44] {
        let served =
            Served::start(scratch.path(), &options(), KernelLimits::minor(minor), 2, |_| Memory::new(HOUR));
        assert_eq!(served.agreed.minor, minor);
        exercise(scratch.path());
        served.stop();
    }
}

#[test]
fn fifty_mounts_leave_no_threads() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let cycles = std::env::var("CANOPY_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    for cycle in 0..cycles {
        let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 2, |_| Memory::new(HOUR));
        if cycle % 2 == 0 {
            assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
        }
        served.stop();
    }
    // The test harness has a few threads. Leaked workers would add three per cycle.
    assert!(threads() < 40, "{} threads are left", threads());
}

#[test]
fn unmounting_before_init_ends_the_negotiation() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (device, mounted) = mount(&MountSpec::new(scratch.path(), "x", "canopy")).unwrap();
    mounted.unmount(true).unwrap();
    let error =
        Session::negotiate(device, &SessionOptions::default(), KernelLimits::NONE).err().expect("no session");
    assert_eq!(error.errno(), 107, "{error}");
}

/// A process that waits for its own mount holds neither the device nor a ring, which would keep the server from ending.
#[test]
fn what_the_server_asks_of_its_mount_is_asked_by_a_process_without_its_files() {
    if !can_mount() {
        return;
    }
    let (scratch, other) = (Scratch::new(), Scratch::new());
    // For its descriptors, and over io_uring its rings.
    let served = Served::start(other.path(), &options(), KernelLimits::NONE, 1, |_| Memory::new(HOUR));
    // Nobody answers, so the child waits in the kernel.
    let (device, mounted) = mount(&MountSpec::new(scratch.path(), "x", "canopy")).unwrap();
    let (report, thread) = std::sync::mpsc::channel();
    let path = scratch.path().to_owned();
    let waiting = std::thread::spawn(move || {
        report.send(rustix::thread::gettid()).unwrap();
        sync_served(&path)
    });
    let thread = thread.recv().unwrap().as_raw_pid();
    let held = |of: &str| {
        let maps = fs::read_to_string(format!("/proc/{of}/maps")).unwrap();
        let files = fs::read_dir(format!("/proc/{of}/fd")).unwrap().count();
        (files, maps.matches("io_uring").count())
    };
    let child = || {
        let listed = fs::read_to_string(format!("/proc/self/task/{thread}/children"));
        listed.unwrap_or_default().trim().to_owned()
    };
    common::wait_until("no child waits without descriptors", || {
        let child = child();
        !child.is_empty() && held(&child) == (0, 0)
    });
    let ours = held("self");
    assert!(ours.0 > 2 && (ours.1 > 0) == URING, "{ours:?}");
    mounted.unmount(true).unwrap();
    drop(device);
    waiting.join().unwrap().unwrap_err();
    assert_eq!(child(), "", "the child is reaped");
    served.stop();
}

#[test]
fn a_mount_of_another_process_is_not_unmounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let first = Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| Memory::new(HOUR));
    let spec = MountSpec::new(scratch.path(), "other", "canopy");
    // Another process unmounts ours and mounts at the same place.
    canopy_fuse::mount::unmount_path(scratch.path(), false).unwrap();
    let second = Served::with_spec(&spec, &options(), KernelLimits::NONE, 1, |_| Memory::new(HOUR));
    assert!(!first.mounted().is_mounted());
    first.stop();
    assert!(second.mounted().is_mounted());
    second.stop();
}

#[test]
fn dropping_a_mount_unmounts() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| Memory::new(HOUR));
    drop(served);
    assert!(common::mounts_below(scratch.path()).is_empty());
}

#[test]
fn a_dead_mount_is_detected_and_unmounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (device, mounted) = mount(&MountSpec::new(scratch.path(), "x", "canopy")).unwrap();
    mounted.release();
    drop(device);
    assert!(is_dead(scratch.path()));
    // Mounting there unmounts it first.
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| Memory::new(HOUR));
    served.stop();
    let (device, mounted) = mount(&MountSpec::new(scratch.path(), "x", "canopy")).unwrap();
    drop(device);
    assert!(unmount_dead(scratch.path()).unwrap());
    assert!(!is_dead(scratch.path()));
    mounted.unmount(false).unwrap();
}

#[test]
fn a_file_can_be_a_mountpoint() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let point = scratch.path().join("file");
    fs::write(&point, b"below").unwrap();
    let hook: Hook = Box::new(|request, reply| match request.op {
        Op::Getattr { .. } => {
            let attr =
                canopy_fuse::abi::Attr { ino: 1, mode: 0o100_644, nlink: 1, size: 5, ..Default::default() };
            Ok(reply.attr(&canopy_fuse::abi::AttrOut::new(attr, HOUR)))
        }
        // The kernel sends it because std asks for the time of birth. After ENOSYS it sends GETATTR.
        Op::Statx { .. } => Ok(reply.error(38)),
        Op::Read(_) => Ok(reply.bytes(b"above")),
        _ => Err(reply),
    });
    let served = Served::start(&point, &options(), KernelLimits::NONE, 1, |_| with_hook(hook));
    assert_eq!(fs::read(&point).unwrap(), b"above");
    served.stop();
    assert_eq!(fs::read(&point).unwrap(), b"below");
}

pub(crate) fn with_hook(hook: Hook) -> Memory {
    let mut memory = Memory::new(HOUR);
    memory.hook = Some(hook);
    memory
}

#[test]
fn a_panic_is_answered_with_eio() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let hook: Hook = Box::new(|request, reply| match request.op {
        Op::Lookup { name } if name.as_bytes() == b"bomb" => panic!("as planned"),
        Op::Lookup { name } if name.as_bytes() == b"silent" => Ok(reply.none()),
        Op::Lookup { name } if name.as_bytes() == b"odd" => Ok(reply.error(-5)),
        _ => Err(reply),
    });
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| with_hook(hook));
    let errno = |name: &str| fs::metadata(scratch.path().join(name)).unwrap_err().raw_os_error();
    assert_eq!(errno("bomb"), Some(5));
    assert_eq!(errno("silent"), Some(5));
    assert_eq!(errno("odd"), Some(34));
    exercise(scratch.path());
    served.stop();
}

#[test]
fn data_of_reads_and_writes_is_page_aligned() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let hook: Hook = Box::new(|request, reply| match request.op {
        Op::Write(io) => {
            assert_eq!(io.data.as_ptr() as usize % 4096, 0);
            Ok(reply.written(io.data.len() as u32))
        }
        Op::Read(io) => Ok(reply.data(io.size as usize, |buf| {
            assert_eq!(buf.as_ptr() as usize % 4096, 0);
            buf[..3].copy_from_slice(b"yes");
            Ok(3)
        })),
        Op::Open { .. } => Ok(reply.opened(7, OpenFlags::DIRECT_IO, None)),
        _ => Err(reply),
    });
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| with_hook(hook));
    let path = scratch.path().join("f");
    fs::write(&path, vec![1; 2_500_000]).unwrap();
    let mut file = fs::File::open(&path).unwrap();
    let mut buf = [0; 3];
    file.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"yes");
    drop(file);
    served.stop();
}

#[test]
fn invalidation_reaches_the_kernel() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 2, |_| Memory::new(HOUR));
    let path = scratch.path().join("f");
    fs::write(&path, b"one").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one");
    assert_eq!(fs::metadata(&path).unwrap().len(), 3);
    let node = served.handler.overwrite(b"f", b"second");
    assert_eq!(fs::metadata(&path).unwrap().len(), 3, "attributes are cached");
    served.notifier.inval_inode(NodeId(node), 0, 0).unwrap();
    served.notifier.flush();
    assert_eq!(fs::metadata(&path).unwrap().len(), 6);
    assert_eq!(fs::read(&path).unwrap(), b"second");

    let remove_and = |notify: &dyn Fn()| {
        fs::write(&path, b"x").unwrap();
        served.handler.remove_name(b"f");
        assert!(fs::metadata(&path).is_ok(), "the name is cached");
        notify();
        served.notifier.flush();
        assert!(fs::metadata(&path).is_err(), "the name is invalidated");
    };
    remove_and(&|| served.notifier.inval_entry(NodeId::ROOT, c"f").unwrap());
    // The kernel caches the negative entry too.
    served.notifier.inval_entry(NodeId::ROOT, c"f").unwrap();
    served.notifier.flush();
    remove_and(&|| served.notifier.expire_entry(NodeId::ROOT, c"f").unwrap());
    served.notifier.inval_entry(NodeId::ROOT, c"f").unwrap();
    served.notifier.flush();
    fs::write(&path, b"x").unwrap();
    let node = served.handler.remove_name(b"f");
    served.notifier.delete(NodeId::ROOT, NodeId(node), c"f").unwrap();
    served.notifier.flush();
    assert!(fs::metadata(&path).is_err());
    if served.agreed.minor >= 44 {
        served.notifier.inval_entry(NodeId::ROOT, c"f").unwrap();
        served.notifier.flush();
        remove_and(&|| served.notifier.increment_epoch().unwrap());
    }
    served.notifier.resend().unwrap();
    served.notifier.flush();
    assert_eq!(served.notifier.failed(), 0);
    let notifier = served.notifier.clone();
    served.stop();
    assert_eq!(notifier.inval_inode(NodeId::ROOT, 0, 0), Err(NotifyError::Closed));
    notifier.flush();
}

#[test]
fn many_notifications_are_merged_and_none_is_lost() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 2, |_| Memory::new(HOUR));
    let path = scratch.path().join("f");
    fs::write(&path, b"one").unwrap();
    let node = served.handler.overwrite(b"f", b"second");
    for i in 0..200_000u64 {
        served.notifier.inval_inode(NodeId(1000 + i % 50), 0, 0).unwrap();
        served.notifier.inval_entry(NodeId(1000 + i % 50), c"nothing").unwrap();
    }
    served.notifier.inval_inode(NodeId(node), 0, 0).unwrap();
    served.notifier.flush();
    assert_eq!(fs::metadata(&path).unwrap().len(), 6);
    assert_eq!(served.notifier.lost(), 0);
    served.stop();
}

#[test]
fn older_versions_lack_newer_notifications() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = Served::start(scratch.path(), &options(), KernelLimits::minor(37), 1, |_| Memory::new(HOUR));
    assert_eq!(served.notifier.increment_epoch(), Err(NotifyError::Unsupported));
    assert_eq!(served.notifier.resend(), Err(NotifyError::Unsupported));
    let path = scratch.path().join("f");
    fs::write(&path, b"x").unwrap();
    served.handler.remove_name(b"f");
    served.notifier.expire_entry(NodeId::ROOT, c"f").unwrap();
    served.notifier.flush();
    assert!(fs::metadata(&path).is_err());
    served.stop();
}

#[test]
fn passthrough_reads_the_backing_file() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let branch = Scratch::new();
    let real = branch.path().join("real");
    fs::write(&real, b"from the branch").unwrap();
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 2, |session| {
        if session.agreed().max_stack_depth == 0 {
            let null = fs::File::open("/dev/null").unwrap();
            assert!(session.backing().open(null.as_fd()).is_err());
            return Memory::new(HOUR);
        }
        let backing = session.backing();
        // An O_PATH descriptor refers to a file without opening it.
        let named = rustix::fs::open(&real, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        match backing.open(named.as_fd()) {
            Ok(id) => eprintln!("O_PATH descriptor accepted by BACKING_OPEN: {id:?}"),
            Err(error) => eprintln!("O_PATH descriptor refused by BACKING_OPEN: {error}"),
        }
        let directory = fs::File::open(branch.path()).unwrap();
        match backing.open(directory.as_fd()) {
            Err(BackingError::File(error)) => eprintln!("directory: {error}"),
            other => panic!("{other:?}"),
        }
        let file = fs::File::options().read(true).write(true).open(&real).unwrap();
        let id = backing.open(file.as_fd()).unwrap();
        with_hook(Box::new(move |request, reply| match request.op {
            Op::Open { .. } => Ok(reply.opened(1, OpenFlags::NOFLUSH, Some(id.raw()))),
            Op::Read(_) | Op::Write(_) => panic!("read or written by the server"),
            _ => Err(reply),
        }))
    });
    if served.agreed.max_stack_depth != 0 {
        let path = scratch.path().join("f");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::RegularFile,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
        let mut file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let mut text = [0; 15];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"from the branch");
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(b"From").unwrap();
        drop(file);
        assert_eq!(fs::read(&real).unwrap(), b"From the branch");
    }
    served.stop();
}

#[test]
fn references_of_an_aborted_open_are_reported_undelivered() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (enter, entered) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let left = parking_lot::Mutex::new(left);
    let hook: Hook = Box::new(move |request, reply| {
        if let Op::Open { .. } = request.op {
            enter.send(()).unwrap();
            left.lock().recv().unwrap();
            return Ok(reply.opened(77, OpenFlags::empty(), None));
        }
        Err(reply)
    });
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 2, |_| with_hook(hook));
    let path = scratch.path().join("f");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::RegularFile,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let opener = std::thread::spawn(move || fs::File::open(path).map(drop));
    entered.recv_timeout(common::LONG).unwrap();
    // umount -f aborts the connection before the reply.
    let _ = rustix::mount::unmount(scratch.path(), rustix::mount::UnmountFlags::FORCE);
    leave.send(()).unwrap();
    assert!(opener.join().unwrap().is_err());
    let handler = std::sync::Arc::clone(&served.handler);
    drop(served);
    let undelivered = handler.undelivered.lock().clone();
    assert!(
        undelivered
            .iter()
            .any(|what| matches!(what, canopy_fuse::Undelivered::Opened { handle: 77, dir: false, .. })),
        "{undelivered:?}"
    );
}

#[test]
fn the_kernel_forgets_the_lookups_of_a_removed_file() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served =
        Served::start(scratch.path(), &options(), KernelLimits::NONE, 2, |_| Memory::new(Duration::ZERO));
    for i in 0..200 {
        fs::write(scratch.path().join(format!("n{i}")), b"").unwrap();
    }
    let sizes: Vec<u64> =
        fs::read_dir(scratch.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(sizes, [0; 200]);
    let node = served.handler.node_of(b"n7").unwrap();
    assert!(served.handler.lookups(node) > 0);
    fs::remove_file(scratch.path().join("n7")).unwrap();
    common::wait_until("the kernel keeps its lookups", || served.handler.lookups(node) == 0);
    assert!(served.handler.requests.load(Ordering::Relaxed) > 400);
    served.stop();
}

/// Runs one test in a new process, started by `wrapper`. Returns false if that does not work here.
pub(crate) fn rerun(wrapper: &[&str], test: &str) -> bool {
    let works = std::process::Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    if !works.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {wrapper:?} does not work here");
        return false;
    }
    // A copy, because an unprivileged user may not have access to the target directory.
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = scratch.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = std::process::Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg(&program)
        .args(["--exact", test])
        .args(["--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

#[test]
fn mounting_works_in_a_user_namespace() {
    if can_mount() {
        rerun(&["unshare", "-Urm"], UNPRIVILEGED);
    }
}

#[test]
fn mounting_works_for_an_unprivileged_user() {
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"].iter().any(|path| Path::new(path).exists());
    if !can_mount() || !helper {
        eprintln!("skipped: needs fusermount3");
        return;
    }
    // A device node that all users can open, as udev creates it, visible only in the test's mount namespace.
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let node = scratch.path().join("fuse");
    let kind = rustix::fs::FileType::CharacterDevice;
    let rdev = rustix::fs::makedev(10, 229);
    rustix::fs::mknodat(rustix::fs::CWD, &node, kind, rustix::fs::Mode::empty(), rdev).unwrap();
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
    let script =
        "mount --bind \"$0\" /dev/fuse && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
    rerun(&["unshare", "-m", "sh", "-c", script, node.to_str().unwrap()], UNPRIVILEGED);
}

#[test]
#[ignore = "the two tests above run it without privileges"]
fn mount_unprivileged() {
    let scratch = Scratch::new();
    let mut spec = MountSpec::new(scratch.path(), "a,b\\c", "canopy");
    spec.default_permissions = true;
    let served = Served::with_spec(&spec, &options(), KernelLimits::NONE, 2, |_| {
        let mut memory = Memory::new(HOUR);
        memory.make_root_writable();
        memory
    });
    eprintln!("{}", served.agreed);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(scratch.path().to_str().unwrap())).unwrap();
    assert!(line.contains(" - fuse.canopy a,b\\134c "), "{line}");
    fs::write(scratch.path().join("f"), b"x").unwrap();
    assert_eq!(fs::read(scratch.path().join("f")).unwrap(), b"x");
    assert!(served.mounted().is_mounted());
    served.stop();
}

#[test]
fn aborting_under_load_ends_all_requests() {
    if !can_mount() {
        return;
    }
    for round in 0..20 {
        let scratch = Scratch::new();
        let served =
            Served::start(scratch.path(), &options(), KernelLimits::NONE, 3, |_| Memory::new(Duration::ZERO));
        let held = fs::File::open(scratch.path()).unwrap();
        let (done, finished) = std::sync::mpsc::channel();
        for number in 0..8u8 {
            let (done, path) = (done.clone(), scratch.path().join(format!("f{number}")));
            std::thread::spawn(move || {
                // Until the connection has ended.
                let content = vec![number; 300_000];
                while fs::write(&path, &content)
                    .and_then(|()| fs::read(&path))
                    .is_ok_and(|got| got == content)
                {}
                done.send(fs::metadata(&path).map(drop)).unwrap();
            });
        }
        std::thread::sleep(Duration::from_millis(round));
        // The connection is aborted, but the mount stays because it is in use.
        let refused = rustix::mount::unmount(scratch.path(), rustix::mount::UnmountFlags::FORCE);
        assert_eq!(refused, Err(rustix::io::Errno::BUSY));
        for _ in 0..8 {
            let last = finished.recv_timeout(common::LONG).expect("a caller still waits");
            assert_eq!(last.map_err(|error| error.raw_os_error()), Err(Some(107)));
        }
        drop(held);
        drop(served);
    }
}
