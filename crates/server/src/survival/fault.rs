//! Another process takes over after a fault (SIGSEGV, SIGABRT and the like) over io_uring. There the kernel gives requests to the
//! entries of a process that is ending, and they are lost with it. So the workers leave first, which is the work of the threads
//! that have met no fault.

use super::Ledger;
use canopy_fuse::transport::Pause;
use canopy_sys::process::fault::Watch;
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long requests may take that are under way at the fault, and then, how long to answer those that do not end. A disk that
/// starts up needs several seconds.
const PATIENCE: Duration = Duration::from_secs(9);
const STACK: usize = 64 << 10;

/// Has this process, which serves over io_uring, hand over when a fault ends it.
pub(crate) fn watch_for_faults(pause: Arc<Pause>, ledger: Ledger) -> io::Result<()> {
    let watch = Watch::begin();
    let hand_over = move || {
        watch.wait();
        if pause.retire_after_fault(PATIENCE) {
            ledger.record_left();
            let _ = kill_process(getpid(), Signal::KILL);
        }
        watch.give_up();
    };
    thread::Builder::new().name("canopy-fault".into()).stack_size(STACK).spawn(hand_over).map(drop)
}
