//! How long a client waits that asks all the time. Nothing here asserts a time: `CANOPY_TEST_KILLS=200
//! CANOPY_TEST_NODES=100000 CANOPY_BIN=target/release/canopy cargo test -p canopy --test survival pauses -- --nocapture`
//! measures.

use crate::rig::{Rig, server};
use crate::storm::kills;
use canopy_testkit::PATIENCE;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process serves at least.
const BETWEEN: Duration = Duration::from_millis(30);

/// How many files the kernel knows.
fn nodes() -> usize {
    std::env::var("CANOPY_TEST_NODES").map_or(100, |text| text.parse().expect("a number"))
}

#[test]
fn a_client_waits_for_a_moment() {
    let rig = Rig::build(&["a", "b"], |builder| builder.env("CANOPY_TEST_DEATHS", "5000"));
    for number in 0..nodes() {
        let dir = rig.branch(if number % 2 == 0 { "a" } else { "b" }).join((number / 1000).to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(number.to_string()), number.to_string()).unwrap();
    }
    let known = |number: usize| rig.path(&(number / 1000).to_string()).join(number.to_string());
    for number in 0..nodes() {
        assert_eq!(fs::metadata(known(number)).unwrap().len(), number.to_string().len() as u64);
    }
    for (what, strike) in [("kill", None), ("upgrade", Some(()))] {
        let mut pauses: Vec<Duration> = Vec::new();
        let (stop, answers, longest) =
            (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(Duration::ZERO));
        thread::scope(|scope| {
            scope.spawn(|| ask(&known(0), &stop, &answers, &longest));
            for _ in 0..kills() {
                *longest.lock().unwrap() = Duration::ZERO;
                let before = answers.load(Ordering::Relaxed);
                match strike {
                    None => assert!(rig.try_kill(Signal::KILL), "{}", rig.pool.log()),
                    Some(()) => rig.upgrade().unwrap(),
                }
                // Two answers, of which one was asked for after the next process has begun.
                assert!(canopy_testkit::cmd::wait_until(PATIENCE, || {
                    answers.load(Ordering::Relaxed) > before + 100
                }));
                pauses.push(*longest.lock().unwrap());
                // The next strike hits a process that has served for a while.
                thread::sleep(BETWEEN);
            }
            stop.store(true, Ordering::Relaxed);
        });
        pauses.sort();
        let at = |part: usize| pauses[(pauses.len() * part / 100).min(pauses.len() - 1)];
        let (half, most, all) = (at(50), at(99), at(100));
        println!("{} {what}s, {} nodes: 50 % {half:.1?}, 99 % {most:.1?}, 100 % {all:.1?}", kills(), nodes());
    }
    // What the kernel knows is found again, and without a walk over the branches.
    for number in (0..nodes()).step_by(nodes().div_ceil(1000)) {
        assert_eq!(fs::read_to_string(known(number)).unwrap(), number.to_string());
    }
    let threads = fs::read_dir(format!("/proc/{}/task", server(&rig.pool))).unwrap();
    let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).unwrap());
    assert!(!names.into_iter().any(|name| name.trim() == "inode-search"), "a branch was walked");
}

/// Asks all the time, and notes the longest time that an answer took.
fn ask(path: &Path, stop: &AtomicBool, answers: &AtomicU64, longest: &Mutex<Duration>) {
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let flags = AtFlags::from_bits_retain(AT_STATX_FORCE_SYNC);
        statx(CWD, path, flags, StatxFlags::BASIC_STATS).unwrap();
        let took = asked.elapsed();
        let mut longest = longest.lock().unwrap();
        *longest = took.max(*longest);
        answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// So that the kernel asks the pool each time (statx(2)).
const AT_STATX_FORCE_SYNC: u32 = 0x2000;
