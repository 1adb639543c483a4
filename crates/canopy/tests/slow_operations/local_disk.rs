//! A local disk that lags or hangs, and a bystander that uses another one: an ext4 whose image is on a faulty filesystem.
//! `crates/canopy/tests/real_kernels/isolation.rs` measures the same with device mapper.

use super::rig::BINARY;
use canopy_testkit::bystander::{Files, Others, Progress};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, FaultyFs, Kind, LoopFs, Opcode, PATIENCE, Pool, ScratchDir, transports, xattr};
use rustix::fs::{XattrFlags, setxattr, statvfs};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

const DIRS: usize = 20;
/// How many rounds the bystander makes beside others. If each of them waited for the disk, that would take several times
/// [`PATIENCE`]; on a busy machine it takes some seconds.
const ROUNDS: usize = 200;
const LAG: Duration = Duration::from_millis(1500);
/// Clients that work at the same time, and how many rounds each of them makes.
const CLIENTS: usize = 12;
const ROUNDS_OF_EACH: usize = 50;

struct Rig {
    pool: Pool,
    mine: Files,
    theirs: Files,
    // Dropped before the filesystem that has its image.
    disks: [LoopFs; 3],
    faulty: FaultyFs,
    _scratch: ScratchDir,
}

impl Rig {
    /// Mounts a pool over three disks. The second may lag or hang, and nothing of it is in the page cache.
    fn new(transport: &str) -> Rig {
        let scratch = ScratchDir::new("canopy-local-disk-", &[]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let mut disks = [
            LoopFs::tmpfs(64 << 20),
            LoopFs::with_image_in(faulty.path(), Kind::Ext4, 64 << 20),
            LoopFs::tmpfs(64 << 20),
        ];
        for (disk, name) in disks.iter().zip(["mine", "theirs", "nobodys"]) {
            let _ = fs::remove_dir(disk.path().join("lost+found"));
            Files::new(disk.path(), name, DIRS).make();
        }
        disks[1].unmount();
        disks[1].mount_again();
        let pool = Pool::builder(BINARY)
            .branches(disks.iter().map(LoopFs::path))
            .option("minfreespace=0,category.create=epff,branch-timeout=0")
            .option(format!("io-uring={transport}"))
            .mount();
        let [mine, theirs] = ["mine", "theirs"].map(|name| Files::new(pool.path(), name, DIRS));
        mine.visit("bystander");
        Rig { pool, mine, theirs, disks, faulty, _scratch: scratch }
    }

    /// The bystander makes its rounds while this many others use the disk with the fault. Nobody heals it meanwhile.
    fn bystander_is_undisturbed(&self, fault: Fault, others: usize) {
        self.faulty.set(fault, &[Opcode::Read, Opcode::Write, Opcode::Fsync]);
        let clients = Others::start(others, &self.theirs);
        let reached = wait_until(PATIENCE, || self.faulty.hanging() > 0);
        let progress = self.mine.make_rounds("bystander", ROUNDS, || self.faulty.heal());
        self.faulty.heal();
        clients.end();
        assert!(reached, "no request has reached the disk\n{}", self.pool.log());
        assert!(progress.rounds == ROUNDS, "{fault:?}, {others} others: {progress:?}\n{}", self.pool.log());
    }
}

fn undisturbed(fault: Fault) {
    for transport in transports() {
        let rig = Rig::new(transport);
        for others in [1, 16, 64] {
            rig.bystander_is_undisturbed(fault, others);
        }
        rig.pool.umount();
    }
}

#[test]
fn clients_of_a_local_disk_that_lags_hold_up_nobody_else() {
    undisturbed(Fault::Delay(LAG));
}

#[test]
fn clients_of_a_local_disk_that_hangs_hold_up_nobody_else() {
    undisturbed(Fault::Hang);
}

/// Each of them causes events on its branch all the time, and another client may be processing them.
#[test]
fn clients_that_work_at_the_same_time_do_not_ask_a_hung_disk() {
    for transport in transports() {
        let rig = Rig::new(transport);
        let names: Vec<String> = (0..CLIENTS).map(|number| format!("client{number}")).collect();
        rig.disks[1].drop_caches();
        rig.faulty.set_all(Fault::Hang);
        let count = |name| rig.mine.make_rounds(name, ROUNDS_OF_EACH, || rig.faulty.heal());
        let progress: Vec<Progress> = std::thread::scope(|scope| {
            let clients: Vec<_> = names.iter().map(|name| scope.spawn(|| count(name))).collect();
            clients.into_iter().map(|client| client.join().expect("a client")).collect()
        });
        rig.faulty.heal();
        let all_are_done = progress.iter().all(|client| client.rounds == ROUNDS_OF_EACH);
        assert!(all_are_done, "io-uring={transport}: {progress:#?}\n{}", rig.pool.log());
        rig.pool.umount();
    }
}

/// Operations on a directory whose names the pool knows to be on another disk.
type Operation = (&'static str, fn(&Path) -> std::io::Result<()>);
const KNOWN: &[Operation] = &[
    ("stat", |dir| fs::metadata(dir.join("f0")).map(drop)),
    ("read", |dir| fs::read(dir.join("f0")).map(drop)),
    ("stat of a missing name", |dir| match fs::metadata(dir.join("bystander")) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => panic!("{other:?}"),
    }),
    ("create", |dir| fs::write(dir.join("new"), "new")),
    ("append", |dir| OpenOptions::new().append(true).open(dir.join("f0"))?.write_all(b"more")),
    ("fsync", |dir| File::open(dir.join("f0"))?.sync_all()),
    ("chmod", |dir| fs::set_permissions(dir.join("f0"), Permissions::from_mode(0o640))),
    ("truncate", |dir| OpenOptions::new().write(true).open(dir.join("f0"))?.set_len(1)),
    ("set an attribute", |dir| Ok(setxattr(dir.join("f0"), "user.a", b"value", XattrFlags::empty())?)),
    ("get an attribute", |dir| Ok(xattr::get(dir.join("f0"), "user.a").map(drop)?)),
    ("rename", |dir| fs::rename(dir.join("f1"), dir.join("renamed"))),
    ("rename over a file", |dir| fs::rename(dir.join("renamed"), dir.join("f2"))),
    ("link", |dir| fs::hard_link(dir.join("f0"), dir.join("link"))),
    ("symlink", |dir| symlink("f0", dir.join("symlink"))),
    ("readlink", |dir| fs::read_link(dir.join("symlink")).map(drop)),
    ("unlink", |dir| fs::remove_file(dir.join("f0"))),
    ("list", |dir| fs::read_dir(dir)?.try_for_each(|entry| entry.map(drop))),
    ("mkdir", |dir| fs::create_dir(dir.join("sub"))),
    ("rename of a directory", |dir| fs::rename(dir.join("sub"), dir.join("moved"))),
    ("rmdir", |dir| fs::remove_dir(dir.join("moved"))),
    ("statvfs", |dir| Ok(statvfs(dir).map(drop)?)),
    ("control key", |dir| {
        Ok(xattr::get(dir.with_file_name(".mergerfs"), "user.mergerfs.srcmounts").map(drop)?)
    }),
];

/// The kernel has forgotten everything of the disk that hangs, so that each question to it would wait.
#[test]
fn names_known_to_be_elsewhere_are_not_looked_for_on_a_hung_disk() {
    for transport in transports() {
        let rig = Rig::new(transport);
        rig.disks[1].drop_caches();
        rig.faulty.set_all(Fault::Hang);
        let mut asked = Vec::new();
        for (name, work) in KNOWN {
            let dir = rig.mine.dir(7);
            let (send, receive) = channel();
            let client = std::thread::spawn(move || {
                let result = work(&dir);
                let _ = send.send(());
                result
            });
            if receive.recv_timeout(PATIENCE).is_err() {
                asked.push(*name);
                // It would keep its locks.
                rig.faulty.heal();
            }
            client.join().expect("a client").unwrap_or_else(|error| panic!("{name}: {error}"));
            if asked.last() == Some(name) {
                rig.disks[1].drop_caches();
                rig.faulty.set_all(Fault::Hang);
            }
        }
        rig.faulty.heal();
        assert!(asked.is_empty(), "io-uring={transport}: {asked:?} waited for the disk\n{}", rig.pool.log());
        rig.pool.umount();
    }
}
