//! Four clients in slow operations on one disk, and a bystander that uses another disk.

use super::rig::{PATIENCE, Rig, client};
use canopy_fuse::Opcode::{self, CopyFileRange, CopyFileRange64};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, LoopFs, SpaceReport, transports};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CLIENTS: usize = 4;

/// An operation that each client performs in a directory of its own, and the requests that hang on the disk.
struct Long {
    what: &'static str,
    options: &'static str,
    slow: &'static [Opcode],
    /// How many clients reach the disk. The others wait for the first.
    at_the_disk: usize,
    work: fn(&Path) -> io::Result<()>,
}

fn opened(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(dir.join("f"))
}

fn hangs(transport: &str, long: &Long, clients: usize, others: &[&Path]) {
    let what = format!("io-uring={transport}, {}", long.what);
    let rig = Rig::new(transport, clients, long.options, others);
    rig.faulty.report_space(Some(SpaceReport {
        size: 1 << 40,
        free: 1 << 40,
        files: 1 << 20,
        files_free: 1 << 20,
    }));
    // Names and worker threads exist before the disk hangs.
    rig.bystander(&what);
    rig.faulty.set(Fault::Hang, long.slow);
    let done = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..clients)
        .map(|number| {
            let (dir, work, done) = (rig.at(&format!("busy{number}")), long.work, Arc::clone(&done));
            client(move || {
                let result = work(&dir);
                done.fetch_add(1, Ordering::SeqCst);
                result
            })
        })
        .collect();
    let at_the_disk = long.at_the_disk.min(clients);
    let held = wait_until(PATIENCE, || rig.faulty.hanging() >= at_the_disk);
    if !held {
        let (hanging, done) = (rig.faulty.hanging(), done.load(Ordering::SeqCst));
        rig.faulty.heal();
        panic!("{what}: {hanging} at the disk, {done} done\n{}", rig.pool.log());
    }
    // Gives the clients that wait for another client time to start. If they have not, the test is only weaker.
    std::thread::sleep(Duration::from_millis(200));
    rig.bystander(&what);
    assert_eq!(done.load(Ordering::SeqCst), 0, "{what}: a client did not wait");
    assert!(rig.faulty.hanging() >= at_the_disk, "{what}");
    rig.faulty.heal();
    for client in waiting {
        client.join().expect("a client").unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    rig.pool.umount();
}

const FSYNC: Long = Long {
    what: "fsync",
    options: "",
    slow: &[Opcode::Fsync],
    at_the_disk: usize::MAX,
    work: |dir| opened(dir)?.sync_all(),
};

#[test]
fn fsync() {
    transports().into_iter().for_each(|transport| hangs(transport, &FSYNC, CLIENTS, &[]));
}

/// Forty clients are many more than there are workers.
#[test]
fn fsync_of_forty() {
    transports().into_iter().for_each(|transport| hangs(transport, &FSYNC, 40, &[]));
}

#[test]
fn allocation() {
    let long = Long {
        what: "fallocate",
        slow: &[Opcode::Fallocate],
        work: |dir| Ok(fallocate(opened(dir)?, FallocateFlags::empty(), 0, 2 << 20)?),
        ..FSYNC
    };
    transports().into_iter().for_each(|transport| hangs(transport, &long, CLIENTS, &[]));
}

#[test]
fn truncation_of_an_open_file() {
    let long =
        Long { what: "ftruncate", slow: &[Opcode::Setattr], work: |dir| opened(dir)?.set_len(10), ..FSYNC };
    transports().into_iter().for_each(|transport| hangs(transport, &long, CLIENTS, &[]));
}

#[test]
fn truncation_by_name() {
    let long = Long {
        what: "O_TRUNC",
        slow: &[Opcode::Setattr],
        work: |dir| OpenOptions::new().write(true).truncate(true).open(dir.join("f")).map(drop),
        ..FSYNC
    };
    transports().into_iter().for_each(|transport| hangs(transport, &long, CLIENTS, &[]));
}

#[test]
fn copying() {
    let long = Long {
        what: "copy_file_range",
        slow: &[CopyFileRange, CopyFileRange64],
        work: |dir| {
            let (from, to) = (opened(dir)?, OpenOptions::new().write(true).open(dir.join("g"))?);
            Ok(rustix::fs::copy_file_range(from, None, to, None, 1 << 20).map(drop)?)
        },
        ..FSYNC
    };
    transports().into_iter().for_each(|transport| hangs(transport, &long, CLIENTS, &[]));
}

/// The copy that `link-cow` makes when a name of a hard link is opened for writing.
#[test]
fn a_copy_for_one_name_of_a_link() {
    let long = Long {
        what: "link-cow",
        options: "link-cow=true",
        // A disk that may not report holes is copied in blocks.
        slow: &[CopyFileRange, CopyFileRange64, Opcode::Write],
        work: |dir| {
            fs::hard_link(dir.join("f"), dir.join("link"))?;
            OpenOptions::new().write(true).open(dir.join("link")).map(drop)
        },
        ..FSYNC
    };
    transports().into_iter().for_each(|transport| hangs(transport, &long, CLIENTS, &[]));
}

#[test]
fn listings() {
    let long = Long {
        what: "a listing",
        slow: &[Opcode::Opendir, Opcode::Readdir, Opcode::Readdirplus],
        work: |dir| {
            assert_eq!(fs::read_dir(dir)?.count(), 2);
            Ok(())
        },
        ..FSYNC
    };
    transports().into_iter().for_each(|transport| hangs(transport, &long, CLIENTS, &[]));
}

/// Files move from a full disk to the slow disk.
#[test]
fn moving() {
    for transport in transports() {
        let full = LoopFs::tmpfs(1 << 20);
        for dir in 0..CLIENTS {
            let dir = full.path().join(format!("busy{dir}"));
            fs::create_dir(&dir).expect("mkdir");
            fs::write(dir.join("m"), "m").expect("a file");
        }
        // Fill the disk completely.
        assert!(fs::write(full.path().join("rest"), vec![1; 2 << 20]).is_err());
        let long = Long {
            what: "a move",
            options: "moveonenospc=mfs",
            slow: &[Opcode::Write],
            work: |dir| {
                let file = OpenOptions::new().write(true).open(dir.join("m"))?;
                file.write_all_at(&[2; 64 << 10], 0)
            },
            ..FSYNC
        };
        hangs(transport, &long, CLIENTS, &[full.path()]);
        for dir in 0..CLIENTS {
            assert!(!full.path().join(format!("busy{dir}/m")).exists());
        }
    }
}

/// Parent directories are cloned onto the slow disk, one at a time. The other clients wait for the first.
#[test]
fn cloning_of_parent_directories() {
    let long = Long {
        what: "a cloned parent directory",
        options: "func.mkdir=mfs",
        slow: &[Opcode::Mkdir],
        at_the_disk: 1,
        work: |dir| {
            // `only` has these directories on the first disk alone.
            let name = dir.file_name().expect("a name").to_str().expect("text");
            fs::create_dir(dir.with_file_name("only").join(name).join("d"))
        },
    };
    transports().into_iter().for_each(|transport| hangs(transport, &long, CLIENTS, &[]));
}

/// A rename of a directory waits for requests in flight that use names below it, and for no others, and delays no others.
#[test]
fn rename_of_a_directory() {
    for transport in transports() {
        let what = format!("io-uring={transport}, renaming a directory");
        let rig = Rig::new(transport, 1, "", &[]);
        rig.bystander(&what);
        rig.faulty.set(Fault::Hang, &[Opcode::Setattr]);
        let file = rig.at("busy0/f");
        let truncates = client(move || OpenOptions::new().write(true).truncate(true).open(file));
        assert!(wait_until(PATIENCE, || rig.faulty.hanging() == 1), "{what}");
        // Beside it, nothing is in flight.
        fs::create_dir(rig.at("only/aside")).expect("a directory");
        fs::rename(rig.at("only/aside"), rig.at("only/elsewhere")).expect("a rename");
        assert_eq!(rig.faulty.hanging(), 1, "{what}");
        let (from, to) = (rig.at("only/busy0"), rig.at("only/renamed"));
        let renames = client(move || fs::rename(from, to));
        std::thread::sleep(Duration::from_millis(200));
        rig.bystander(&what);
        assert_eq!(rig.faulty.hanging(), 1, "{what}");
        rig.faulty.heal();
        truncates.join().expect("a client").expect("a truncation");
        renames.join().expect("a client").expect("a rename");
        rig.pool.umount();
    }
}
