//! Workers that start while other workers wait.

use super::rig::{PATIENCE, Rig, client};
use canopy_fuse::Opcode;
use canopy_testkit::Fault;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{proc, transports};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CLIENTS: usize = 40;
/// How many more workers there may be on a busy machine, where a request that waits for the processor looks stuck.
const BUSY: usize = 8;

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

/// More than there can be workers.
const MANY: usize = 320;

/// Starts clients that each read the same part of a file, past all caches. The faulty filesystem has threads left for other
/// requests.
fn start_readers(rig: &Rig) -> Vec<JoinHandle<std::io::Result<[u8; 2048]>>> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(direct).open(rig.at("busy0/f"));
    let file = Arc::new(file.expect("a file"));
    let reader = |_| {
        let file = Arc::clone(&file);
        client(move || {
            let mut bytes = [0; 2048];
            file.read_exact_at(&mut bytes, 0).map(|()| bytes)
        })
    };
    (0..MANY).map(reader).collect()
}

/// They would take all workers, if they did not wait in line.
#[test]
fn more_requests_than_workers_wait_for_one_branch_and_hold_up_nobody() {
    for transport in transports() {
        let rig = Rig::new(transport, 1, "", &[]);
        rig.bystander("before");
        let pid = rig.pool.pid();
        for round in 0..2 {
            rig.faulty.set(Fault::Hang, &[Opcode::Read]);
            let clients = start_readers(&rig);
            let (mut workers, mut since) = (0, Instant::now());
            let settled = wait_until(PATIENCE, || {
                let now = size(pid).0;
                if std::mem::replace(&mut workers, now) != now || rig.pool.unanswered().0 < MANY {
                    since = Instant::now();
                }
                since.elapsed() > Duration::from_secs(2)
            });
            eprintln!(
                "io-uring={transport}, round {round}: {workers} workers, {} hang",
                rig.faulty.hanging()
            );
            rig.bystander("beside many");
            let mut status = rig.pool.status();
            let told = wait_until(PATIENCE, || {
                status = rig.pool.status();
                status["branches"][1]["waits"]["requests"].as_u64().is_some_and(|told| told >= MANY as u64)
            });
            rig.faulty.heal();
            assert!(settled, "{workers} workers, {:?} unanswered", rig.pool.unanswered());
            assert!(told, "{status:#}");
            for client in clients {
                let bytes = client.join().expect("a client").expect("a read");
                assert!(bytes.iter().all(|&byte| byte == 7));
            }
        }
        rig.pool.umount();
    }
}

#[test]
fn requests_in_line_time_out_with_their_branch() {
    for transport in transports() {
        let rig = Rig::new(transport, 1, "branch-timeout=8", &[]);
        rig.bystander("before");
        // The second time, there are workers for most of them at once.
        for round in 0..2 {
            rig.faulty.set(Fault::Hang, &[Opcode::Read]);
            let clients = start_readers(&rig);
            let ended = wait_until(PATIENCE, || clients.iter().all(JoinHandle::is_finished));
            rig.faulty.heal();
            let mut results = clients.into_iter().map(|client| client.join().expect("a client").map(drop));
            let late = results.find(|result| {
                let errno = result.as_ref().map_err(std::io::Error::raw_os_error);
                errno != Err(Some(Errno::TIMEDOUT.raw_os_error()))
            });
            let log = rig.pool.log();
            assert!(ended && late.is_none(), "round {round}: {late:?}, all have ended: {ended}\n{log}");
            let back = || fs::read(rig.at("busy0/f")).is_ok_and(|bytes| bytes == [7; 1 << 20]);
            assert!(wait_until(PATIENCE, back), "{}", rig.pool.log());
        }
        rig.pool.umount();
    }
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
                size(pid).0 <= before.0 + BUSY
            });
            assert!(left, "io-uring={transport}: {:?} workers and KiB remain, from {}", size(pid), before.0);
        }
        // The first worker has no descriptor of its own, and may be among those that have exited.
        let left = || held(pid).0 <= descriptors.0 + 1 + BUSY && held(pid).1 <= descriptors.1 + BUSY;
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
