//! The counter of requests agrees with what the server receives.

use std::fs;
use std::time::Duration;

use canopy_fuse::request_counter::{CountError, RequestCounter};
use canopy_fuse::{KernelLimits, Opcode};
use rustix::io::Errno;

use super::common::memory::{Memory, options};
use super::common::{Scratch, Served, can_mount};

#[test]
fn requests_are_counted_for_one_mount() {
    if !can_mount() {
        return;
    }
    let (scratch, other) = (Scratch::new(), Scratch::new());
    let serve = |scratch: &Scratch| {
        Served::start(scratch.path(), &options(), KernelLimits::NONE, 2, |_| Memory::new(Duration::ZERO))
    };
    let (served, beside) = (serve(&scratch), serve(&other));
    let counter = match RequestCounter::of_mount(scratch.path()) {
        Err(CountError::Tracefs(errno @ (Errno::NODEV | Errno::NOENT))) => {
            eprintln!("skipped: this kernel has no tracepoints: {errno}");
            served.stop();
            beside.stop();
            return;
        }
        counter => counter.unwrap(),
    };
    assert_eq!(counter.take().unwrap().total(), 0, "the counter sends requests by itself");
    for index in 0..50 {
        fs::write(scratch.path().join(format!("file{index}")), b"").unwrap();
        fs::write(other.path().join(format!("file{index}")), b"").unwrap();
    }
    let requests = counter.take().unwrap();
    assert_eq!(requests.of(Opcode::Create), 50, "{requests}");
    assert_eq!(requests.of(Opcode::Release), 50, "{requests}");
    assert_eq!(counter.take().unwrap().total(), 0);
    let again = RequestCounter::of_mount(scratch.path()).unwrap();
    fs::remove_file(scratch.path().join("file0")).unwrap();
    for counter in [counter, again] {
        assert_eq!(counter.take().unwrap().of(Opcode::Unlink), 1);
    }
    served.stop();
    beside.stop();
}
