//! A process that serves over io_uring and meets a fault: it leaves its queues, and another takes over.

use crate::rig::{Rig, over_io_uring};
use canopy_testkit::{PATIENCE, ScratchDir, cmd};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// A pool in which a lookup of the name `poison` is a fault while there is `switch`.
struct Poisoned {
    rig: Rig,
    switches: ScratchDir,
}

impl Poisoned {
    fn new(options: &str) -> Poisoned {
        let switches = ScratchDir::new("canopy-poison", &[]);
        let switch = switches.path("poison");
        let rig = Rig::build(&["a", "b"], |builder| {
            builder.option("survive=auto").option(options).env("CANOPY_TEST_STUCK", switch.to_str().unwrap())
        });
        Poisoned { rig, switches }
    }

    /// Has a request meet a fault, and returns its error.
    fn strike(&self) -> Option<i32> {
        let switch = self.switches.path("poison");
        fs::write(&switch, "abort").unwrap();
        let result = fs::metadata(self.rig.path("poison"));
        fs::remove_file(switch).unwrap();
        result.unwrap_err().raw_os_error()
    }
}

#[test]
fn a_request_that_meets_a_fault_fails_alone() {
    let poisoned = Poisoned::new("cache.negative-entry=0");
    let rig = &poisoned.rig;
    if !over_io_uring(&rig.pool) {
        return;
    }
    fs::write(rig.path("other"), "other").unwrap();
    let mut open = OpenOptions::new().append(true).create_new(true).open(rig.path("open")).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|client| {
                let (stop, done) = (&stop, &done);
                scope.spawn(move || {
                    for number in 0.. {
                        let path = rig.path(&format!("{client}-{number}"));
                        fs::write(&path, "made").unwrap();
                        assert_eq!(fs::read_to_string(&path).unwrap(), "made");
                        fs::remove_file(path).unwrap();
                        done.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                })
            })
            .collect();
        for strikes in 1..=4 {
            assert_eq!(poisoned.strike(), Some(Errno::IO.raw_os_error()), "{}", rig.pool.log());
            assert!(cmd::wait_until(PATIENCE, || rig.takeovers() == strikes), "{}", rig.pool.log());
            open.write_all(b"+").unwrap();
            let before = done.load(Ordering::Relaxed);
            assert!(cmd::wait_until(PATIENCE, || done.load(Ordering::Relaxed) > before));
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    assert_eq!(fs::read_to_string(rig.path("open")).unwrap(), "++++");
    assert_eq!(
        fs::metadata(rig.path("poison")).unwrap_err().raw_os_error(),
        Some(Errno::NOENT.raw_os_error())
    );
    let (survival, log) = (rig.pool.status()["survival"].clone(), rig.pool.log());
    assert_eq!(survival["last_death"], "SIGABRT");
    assert!(log.contains("has ended (SIGABRT): another takes over"), "{log}");
}

/// Nobody knows a regular file in the kernel, with which workers are woken.
#[test]
fn a_pool_in_which_no_file_is_known_survives_a_fault() {
    let poisoned = Poisoned::new("cache.negative-entry=0");
    if !over_io_uring(&poisoned.rig.pool) {
        return;
    }
    let dir = File::open(poisoned.rig.pool.path()).unwrap();
    assert_eq!(poisoned.strike(), Some(Errno::IO.raw_os_error()), "{}", poisoned.rig.pool.log());
    assert!(cmd::wait_until(PATIENCE, || poisoned.rig.takeovers() == 1), "{}", poisoned.rig.pool.log());
    drop(dir);
    fs::write(poisoned.rig.path("file"), "later").unwrap();
}

/// The kernel sends the request again.
#[test]
fn over_the_device_a_fault_is_repeated_by_the_next_process() {
    let poisoned = Poisoned::new("cache.negative-entry=0,io-uring=off");
    let rig = &poisoned.rig;
    let switch = poisoned.switches.path("poison");
    fs::write(&switch, "abort").unwrap();
    let file = File::create_new(rig.path("file")).unwrap();
    let path = rig.path("poison");
    let client = thread::spawn(move || fs::metadata(path).unwrap_err().raw_os_error());
    assert!(
        cmd::wait_until(PATIENCE, || rig.pool.log().contains("has ended (SIGABRT)")),
        "{}",
        rig.pool.log()
    );
    fs::remove_file(switch).unwrap();
    assert_eq!(client.join().unwrap(), Some(Errno::NOENT.raw_os_error()));
    file.write_all_at(b"+", 0).unwrap();
}
