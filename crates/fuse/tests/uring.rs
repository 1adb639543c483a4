//! The transport over io_uring: all tests of `mounted.rs`, and tests of this transport only.

#[path = "mounted.rs"]
mod mounted;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use canopy_fuse::flags::InitFlags;
use canopy_fuse::mount::{MountSpec, mount};
use canopy_fuse::request::Op;
use canopy_fuse::transport::{UringUnavailable, uring};
use canopy_fuse::{KernelLimits, Session, SessionOptions, Transport};
use mounted::common::memory::{Hook, Memory, options};
use mounted::common::{LONG, Scratch, Served, can_mount, stay_on};
use mounted::{exercise, rerun, with_hook};
use parking_lot::Mutex;

const HOUR: Duration = Duration::from_secs(3600);

/// Lookups of names with this prefix wait.
const SLOW: &[u8] = b"slow";

/// Returns a handler whose slow lookups wait, a receiver of the names of their threads, and a sender that continues one.
fn gated() -> (Memory, Receiver<String>, Sender<()>) {
    let (enter, entered) = channel();
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let hook: Hook = Box::new(move |request, reply| {
        if let Op::Lookup { name } = request.op
            && name.as_bytes().starts_with(SLOW)
        {
            enter.send(std::thread::current().name().unwrap_or_default().to_owned()).unwrap();
            let _ = gate.lock().recv_timeout(LONG);
        }
        Err(reply)
    });
    (with_hook(hook), entered, go)
}

#[test]
fn slow_requests_do_not_delay_others_on_their_processor() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (memory, entered, go) = gated();
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| memory);
    let cpu = uring::online_cpus()[0];
    // A separate directory, because the kernel locks the directory during a lookup.
    let apart = scratch.path().join("apart");
    fs::create_dir(&apart).unwrap();
    // As many as the queue has workers, minus one.
    let waiting: Vec<_> = (0..options().queue_workers - 1)
        .map(|number| {
            let path = apart.join(format!("slow{number}"));
            std::thread::spawn(move || {
                stay_on(cpu);
                fs::metadata(path).is_err()
            })
        })
        .collect();
    for _ in &waiting {
        let name = entered.recv_timeout(LONG).unwrap();
        assert!(name.starts_with(&format!("canopy-q{cpu}-")), "{name} serves the queue of {cpu}");
    }
    let path = scratch.path().to_owned();
    // This ends while the slow requests still wait.
    std::thread::spawn(move || {
        stay_on(cpu);
        exercise(&path);
    })
    .join()
    .unwrap();
    // While all workers are busy, a request waits until one is free.
    let last = apart.join("slow-last");
    let last = std::thread::spawn(move || {
        stay_on(cpu);
        fs::metadata(last).is_err()
    });
    entered.recv_timeout(LONG).unwrap();
    let path = scratch.path().join("third");
    let behind = std::thread::spawn(move || {
        stay_on(cpu);
        fs::metadata(path).unwrap().len()
    });
    for _ in 0..=waiting.len() {
        go.send(()).unwrap();
    }
    assert_eq!(behind.join().unwrap(), 2);
    assert!(last.join().unwrap() && waiting.into_iter().all(|thread| thread.join().unwrap()));
    served.stop();
}

#[test]
fn every_queue_has_its_own_workers() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (memory, entered, go) = gated();
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| memory);
    for cpu in uring::online_cpus() {
        let path = scratch.path().join(format!("slow{cpu}"));
        go.send(()).unwrap();
        std::thread::spawn(move || {
            stay_on(cpu);
            assert!(fs::metadata(path).is_err());
        })
        .join()
        .unwrap();
        let name = entered.recv_timeout(LONG).unwrap();
        assert!(name.starts_with(&format!("canopy-q{cpu}-")), "{name} serves the queue of {cpu}");
    }
    served.stop();
}

#[test]
fn the_longest_names_and_values_fit() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    // The smallest messages with which io_uring is used, and larger ones.
    for max_write in [17 * 4096, 1 << 20, 4 << 20] {
        let served = Served::start(
            scratch.path(),
            &SessionOptions { max_write, ..options() },
            KernelLimits::NONE,
            1,
            |_| Memory::new(Duration::ZERO),
        );
        let file = scratch.path().join("f".repeat(255));
        let content: Vec<u8> = (0..9_000_001u32).map(|i| (i % 253) as u8).collect();
        fs::write(&file, &content).unwrap();
        assert!(fs::read(&file).unwrap() == content);
        let open = fs::File::options().read(true).write(true).open(&file).unwrap();
        // Across several messages, and not aligned to their size.
        let mut part = vec![0; 5_000_000];
        open.read_exact_at(&mut part, 4_000_001).unwrap();
        assert!(part == content[4_000_001..]);
        drop(open);

        let name = format!("user.{}", "x".repeat(250));
        let value: Vec<u8> = (0..65_536u32).map(|i| (i % 241) as u8).collect();
        let how = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, &name, &value, how).unwrap();
        let mut got = vec![0; 65_536];
        assert_eq!(rustix::fs::getxattr(&file, &name, &mut got[..]).unwrap(), 65_536);
        assert!(got == value);

        let target = format!("{}{}", "d/".repeat(2047), "e");
        let link = scratch.path().join("l".repeat(255));
        symlink(&target, &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(&target));
        fs::rename(&file, scratch.path().join("g".repeat(255))).unwrap();
        served.stop();
    }
}

#[test]
fn concurrent_callers_get_their_own_data() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served =
        Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| Memory::new(Duration::ZERO));
    // More callers than workers, with read-ahead.
    std::thread::scope(|scope| {
        for number in 0..24u8 {
            let path = scratch.path().join(format!("file{number}"));
            scope.spawn(move || {
                for round in 0..20u8 {
                    let content = vec![number ^ round; 200_000 + usize::from(number) * 4096];
                    fs::write(&path, &content).unwrap();
                    assert!(fs::read(&path).unwrap() == content);
                    assert_eq!(fs::metadata(&path).unwrap().len(), content.len() as u64);
                }
            });
        }
    });
    served.stop();
}

/// Mounts with these options and limits, checks that the filesystem works, and returns the transport.
fn transport_of(options: &SessionOptions, limits: KernelLimits) -> Transport {
    let scratch = Scratch::new();
    let mut spec = MountSpec::new(scratch.path(), "memfs", "canopy");
    spec.default_permissions = true;
    let (device, mounted) = mount(&spec).unwrap();
    let session = Session::negotiate(device, options, limits).unwrap();
    let running = session.serve(std::sync::Arc::new(Memory::new(HOUR)), 3).unwrap();
    let transport = running.transport().clone();
    exercise(scratch.path());
    mounted.unmount(false).unwrap();
    running.join().unwrap();
    transport
}

fn wanted() -> SessionOptions {
    let mut options = options();
    options.flags |= InitFlags::OVER_IO_URING;
    options
}

#[test]
fn without_io_uring_the_transport_is_dev_fuse_with_a_reason() {
    if !can_mount() {
        return;
    }
    let transport = transport_of(&wanted(), KernelLimits::NONE);
    let Transport::Uring { queues, workers } = transport else { panic!("{transport}") };
    assert!(usize::from(queues) >= uring::online_cpus().len() && workers >= 2 * usize::from(queues));

    let hidden =
        KernelLimits { mask: KernelLimits::NONE.mask - InitFlags::OVER_IO_URING, ..KernelLimits::NONE };
    let small = 16 * 4096;
    for (options, limits, expected) in [
        (options(), KernelLimits::NONE, UringUnavailable::NotWanted),
        (wanted(), KernelLimits::minor(41), UringUnavailable::NotOffered),
        (wanted(), hidden, UringUnavailable::NotOffered),
        (
            SessionOptions { max_write: small, ..wanted() },
            KernelLimits::NONE,
            UringUnavailable::SmallMessages(small as usize),
        ),
    ] {
        assert_eq!(transport_of(&options, limits), Transport::Device(expected));
    }
}

#[test]
fn without_descriptors_for_rings_the_transport_is_dev_fuse() {
    // Enough descriptors for the test, but too few for the rings.
    if can_mount() {
        rerun(&["prlimit", "--nofile=16"], "few_descriptors");
    }
}

#[test]
#[ignore = "the test above runs it with few descriptors"]
fn few_descriptors() {
    let options = SessionOptions { queue_workers: 64, ..wanted() };
    let transport = transport_of(&options, KernelLimits::NONE);
    let Transport::Device(UringUnavailable::Resources(errno)) = transport else { panic!("{transport}") };
    assert_eq!(errno, rustix::io::Errno::MFILE);
}

#[test]
fn interrupts_reach_the_handler() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (enter, entered) = channel();
    let (interrupt, interrupted) = channel();
    let interrupted = Mutex::new(interrupted);
    let hook: Hook = Box::new(move |request, reply| match request.op {
        Op::Lookup { name } if name.as_bytes() == b"slow" => {
            enter.send(()).unwrap();
            // INTERRUPT arrives over /dev/fuse and contains the number of this request.
            let unique: u64 = interrupted.lock().recv_timeout(LONG).unwrap();
            assert_eq!(unique, request.header.unique);
            Ok(reply.error(4))
        }
        Op::Interrupt { unique } => {
            interrupt.send(unique).unwrap();
            Ok(reply.none())
        }
        _ => Err(reply),
    });
    let served = Served::start(scratch.path(), &options(), KernelLimits::NONE, 1, |_| with_hook(hook));
    let mut caller = Command::new("stat").arg(scratch.path().join("slow")).spawn().unwrap();
    entered.recv_timeout(LONG).unwrap();
    let pid = rustix::process::Pid::from_child(&caller);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = caller.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{status}");
    served.stop();
}

#[test]
fn killing_the_server_ends_all_requests() {
    if !can_mount() {
        return;
    }
    for _ in 0..5 {
        let scratch = Scratch::new();
        let mut server = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serves_until_killed", "--ignored", "--nocapture"])
            .env("CANOPY_TEST_POINT", scratch.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let (say, said) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(say.send(line))));
        let wait_for = |text: &str| while !said.recv_timeout(LONG).unwrap().contains(text) {};
        wait_for("serving");
        fs::write(scratch.path().join("f"), b"x").unwrap();
        let callers: Vec<_> = (0..3)
            .map(|number| {
                let path = scratch.path().join(format!("slow{number}"));
                std::thread::spawn(move || fs::metadata(path).unwrap_err().raw_os_error())
            })
            .collect();
        for _ in &callers {
            wait_for("waiting");
        }
        server.kill().unwrap();
        server.wait().unwrap();
        for caller in callers {
            let errno = caller.join().unwrap();
            assert!(matches!(errno, Some(103 | 107 | 125)), "{errno:?}");
        }
        let gone = fs::metadata(scratch.path().join("new")).unwrap_err().raw_os_error();
        assert!(matches!(gone, Some(103 | 107 | 125)), "{gone:?}");
        canopy_fuse::mount::unmount_path(scratch.path(), false).unwrap();
    }
}

#[test]
#[ignore = "the test above runs and kills it"]
fn serves_until_killed() {
    let point = std::env::var_os("CANOPY_TEST_POINT").unwrap();
    let hook: Hook = Box::new(|request, reply| {
        if let Op::Lookup { name } = request.op
            && name.as_bytes().starts_with(SLOW)
        {
            println!("waiting");
            std::thread::sleep(HOUR);
        }
        Err(reply)
    });
    // Each caller has a worker, even if all are on one processor.
    let options = SessionOptions { queue_workers: 4, ..options() };
    let served = Served::start(Path::new(&point), &options, KernelLimits::NONE, 1, |_| with_hook(hook));
    println!("serving");
    std::thread::sleep(HOUR);
    served.stop();
}

#[test]
fn the_first_requests_may_cause_others() {
    if !can_mount() {
        return;
    }
    for round in 0..40 {
        let scratch = Scratch::new();
        let inner = scratch.path().join("inner");
        // The worker accesses its own mount, through the queue that it serves.
        let hook: Hook = Box::new(move |request, reply| {
            if let Op::Lookup { name } = request.op
                && name.as_bytes() == b"outer"
            {
                assert!(fs::metadata(&inner).is_err());
            }
            Err(reply)
        });
        let mut spec = MountSpec::new(scratch.path(), "memfs", "canopy");
        spec.default_permissions = true;
        let (device, mounted) = mount(&spec).unwrap();
        let options = SessionOptions { queue_workers: 2, ..wanted() };
        let session = Session::negotiate(device, &options, KernelLimits::NONE).unwrap();
        let (done, finished) = channel();
        // The callers wait in the kernel until there are queues.
        let cpus = uring::online_cpus();
        let callers = cpus.len();
        for cpu in cpus {
            let path = scratch.path().join("dir").join("outer");
            let done = done.clone();
            std::thread::spawn(move || {
                stay_on(cpu);
                let _ = fs::create_dir(path.parent().unwrap());
                done.send(fs::metadata(path).is_err()).unwrap();
            });
        }
        std::thread::sleep(Duration::from_micros(round * 20));
        let running = session.serve(std::sync::Arc::new(with_hook(hook)), 1).unwrap();
        for _ in 0..callers {
            assert!(finished.recv_timeout(LONG).unwrap());
        }
        mounted.unmount(true).unwrap();
        running.join().unwrap();
    }
}
