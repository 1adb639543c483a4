//! Workers that start while other workers wait.

use super::rig::{PATIENCE, Rig, client};
use canopy_fuse::Opcode;
use canopy_testkit::Fault;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{proc, transports};
use std::fs::{self, File};

const CLIENTS: usize = 40;

/// Returns the number of worker threads, and the resident memory in KiB.
fn size(pid: i32) -> (usize, u64) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let name = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
    let serves = |name: &String| name.starts_with("canopy-q") || name.starts_with("canopy-fuse");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    let resident = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    (threads.filter_map(name).filter(serves).count(), resident)
}

/// Returns how many descriptors of /dev/fuse and of io_uring the daemon has.
fn held(pid: i32) -> (usize, usize) {
    let all = proc::descriptors(pid);
    let of = |what: &str| all.iter().filter(|path| path.to_string_lossy().contains(what)).count();
    (of("/dev/fuse"), of("io_uring"))
}

#[test]
fn surplus_workers_exit_and_release_everything() {
    for transport in transports() {
        let rig = Rig::new(transport, CLIENTS, "", &[]);
        rig.bystander("before");
        let pid = rig.pool.pid();
        // Fill the directory caches before the first measurement.
        for number in 0..CLIENTS {
            assert_eq!(fs::metadata(rig.at(&format!("busy{number}/f"))).expect("a file").len(), 1 << 20);
        }
        let (before, descriptors) = (size(pid), held(pid));
        for round in 0..2 {
            rig.faulty.set(Fault::Hang, &[Opcode::Fsync]);
            let waiting: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let file = rig.at(&format!("busy{number}/f"));
                    client(move || File::open(file)?.sync_all())
                })
                .collect();
            let held = wait_until(PATIENCE, || rig.faulty.hanging() >= CLIENTS);
            let during = size(pid);
            rig.faulty.heal();
            assert!(held, "{}", rig.pool.log());
            waiting.into_iter().for_each(|client| client.join().expect("a client").expect("an fsync"));
            eprintln!(
                "io-uring={transport}, round {round}: {before:?} before, {during:?} during (threads, KiB)"
            );
            assert!(during.0 >= CLIENTS, "{during:?}");
            let left = wait_until(PATIENCE, || {
                rig.bystander("while workers exit");
                size(pid).0 <= before.0
            });
            assert!(left, "io-uring={transport}: {:?} workers and KiB remain, from {}", size(pid), before.0);
        }
        // The first worker has no descriptor of its own, and may be among those that have exited.
        let left = || held(pid).0 <= descriptors.0 + 1 && held(pid).1 <= descriptors.1;
        assert!(wait_until(PATIENCE, left), "{:?} after {descriptors:?}", held(pid));
        let mut unanswered = (0, 0);
        let none_lost = wait_until(PATIENCE, || {
            unanswered = rig.pool.unanswered();
            unanswered.0 == unanswered.1
        });
        assert!(none_lost, "io-uring={transport}: {unanswered:?} requests are unanswered, and kept");
        eprintln!("io-uring={transport}: {:?} afterwards, {unanswered:?} unanswered, and kept", size(pid));
        rig.pool.umount();
    }
}
