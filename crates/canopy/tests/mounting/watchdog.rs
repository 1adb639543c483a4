//! The watchdog of systemd (`WatchdogSec=`): it is answered while requests make progress. Needs root.

use super::systemd::Bed;
use canopy_testkit::cmd::{spawn, wait_until, wait_within};
use canopy_testkit::{Fault, FaultyFs, PATIENCE, Paused, ScratchDir};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The time that the service has, as systemd would tell it.
const LIMIT: Duration = Duration::from_millis(400);
const ANSWER: [&str; 1] = ["WATCHDOG=1"];

/// A service that is watched. Its log is in a file.
struct Service {
    bed: Bed,
    child: Child,
    log: PathBuf,
}

impl Service {
    fn start(bed: Bed, options: &str, prepare: impl FnOnce(&mut Command)) -> Service {
        let log = bed.scratch.path("log");
        let mut command = bed.command(&["mount", "-f", "-o", options, "service"]);
        command.env("WATCHDOG_USEC", LIMIT.as_micros().to_string()).env_remove("WATCHDOG_PID");
        command.stderr(Stdio::from(fs::File::create(&log).unwrap()));
        prepare(&mut command);
        let child = spawn(&mut command).unwrap();
        assert_eq!(bed.message()[0], "READY=1");
        Service { bed, child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for this many answers.
    #[track_caller]
    fn assert_answered(&self, times: usize) {
        (0..times).for_each(|_| assert_eq!(self.bed.message(), ANSWER, "{}", self.log()));
    }

    /// Asserts that no answer comes, after those that were given before. More time makes this stronger, and less does not
    /// make it fail.
    #[track_caller]
    fn assert_not_answered(&self) {
        while !self.bed.no_message() {}
        std::thread::sleep(4 * LIMIT);
        assert!(self.bed.no_message(), "{}", self.log());
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        while self.bed.message() != ["STOPPING=1"] {}
        let status = wait_within(&mut self.child, PATIENCE);
        assert!(status.is_some_and(|status| status.success()), "{}", self.log());
        assert!(self.bed.scratch.mount_at("p").is_none());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = rustix::mount::unmount(self.bed.scratch.path("p"), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
fn the_watchdog_is_answered_while_idle_and_under_load() {
    // With `survive`, the child of the process that systemd has started answers.
    for options in ["survive=false", "survive=true"] {
        let service = Service::start(Bed::new(false), options, |_| ());
        service.assert_answered(4);
        let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for client in 0..4 {
                let path = service.bed.scratch.path(&format!("p/file{client}"));
                let (stop, rounds) = (&stop, &rounds);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        fs::write(&path, "x").unwrap();
                        fs::remove_file(&path).unwrap();
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            assert!(wait_until(PATIENCE, || rounds.load(Ordering::Relaxed) > 100));
            service.assert_answered(4);
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!service.log().contains("no progress"), "{}", service.log());
        service.end();
    }
}

#[test]
fn another_process_s_watchdog_is_not_answered() {
    let service = Service::start(Bed::new(false), "survive=false", |command| {
        command.env("WATCHDOG_PID", "1");
    });
    service.assert_not_answered();
    service.end();
}

#[test]
fn a_process_that_is_stopped_does_not_answer() {
    let service = Service::start(Bed::new(false), "survive=false", |_| ());
    service.assert_answered(1);
    let paused = Paused::new(Pid::from_child(&service.child).as_raw_nonzero().get());
    service.assert_not_answered();
    drop(paused);
    service.assert_answered(2);
    service.end();
}

/// The request waits for no branch, but in the process.
#[test]
fn a_process_that_is_stuck_does_not_answer_until_it_goes_on() {
    let bed = Bed::new(false);
    let (stuck, path) = (bed.scratch.path("stuck"), bed.scratch.path("p/stuck"));
    fs::write(&stuck, "").unwrap();
    let switch = stuck.clone();
    let service = Service::start(bed, "survive=false", move |command| {
        command.env("CANOPY_TEST_STUCK", switch);
    });
    service.assert_answered(2);
    let client = std::thread::spawn(move || fs::metadata(path).is_err());
    assert!(wait_until(PATIENCE, || service.log().contains("no progress")), "{}", service.log());
    service.assert_not_answered();
    fs::remove_file(&stuck).unwrap();
    assert!(client.join().unwrap(), "there is no such file");
    service.assert_answered(2);
    assert!(service.log().contains("make progress again"), "{}", service.log());
    service.end();
}

/// Ending the process would not make the disk answer.
#[test]
fn a_disk_that_hangs_is_no_reason_to_shoot() {
    let scratch = ScratchDir::new("canopy-watchdog-", &[]);
    let faulty = FaultyFs::mount(&scratch.dir());
    fs::write(faulty.backing_dir().join("file"), "x").unwrap();
    let bed = Bed::new(false);
    let disk = faulty.path().display();
    let pool = format!("branches = [\"@a\", \"{disk}\"]\nmountpoint = \"@p\"\nminfreespace = 0\n");
    bed.scratch.write("etc/service.toml", &pool);
    let service = Service::start(bed, "survive=false,branch-timeout=0", |_| ());
    let path = service.bed.scratch.path("p/file");
    assert_eq!(fs::metadata(&path).unwrap().len(), 1);
    faulty.set_all(Fault::Hang);
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || fs::read(path).map(drop))
        })
        .collect();
    // Once the process knows where they wait. Until then it may not answer.
    assert!(wait_until(PATIENCE, || service.log().contains("has not answered for")), "{}", service.log());
    while !service.bed.no_message() {}
    service.assert_answered(6);
    assert!(clients.iter().all(|client| !client.is_finished()), "{}", service.log());
    faulty.heal();
    clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
    service.end();
}
