//! `canopy metrics`: what it counts, its format, and the HTTP server.

use super::rig::{BINARY, canopy};
use canopy_testkit::cmd::{spawn, wait_within};
use canopy_testkit::{LoopFs, PATIENCE, Pool, ScratchDir, transports};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Samples by their names and labels, as printed.
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Parses the text, strictly: each metric once, with its description before its samples, and an end.
    #[track_caller]
    fn parse(text: &str) -> Metrics {
        let text = text.strip_suffix("# EOF\n").unwrap_or_else(|| panic!("no end: {text}"));
        let (mut samples, mut described, mut now) = (BTreeMap::new(), BTreeSet::new(), String::new());
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let [what, name, rest] = comment.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                    panic!("{line}")
                };
                assert!(!rest.is_empty() && ["TYPE", "UNIT", "HELP"].contains(&what), "{line}");
                if what == "TYPE" {
                    assert!(described.insert(name.to_owned()), "{name} twice");
                    now = name.to_owned();
                }
                assert_eq!(name, now, "{line}");
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').expect("a value");
            assert!(sample.starts_with(&now) && sample.ends_with('}'), "{line} among the samples of {now}");
            let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(samples.insert(sample.to_owned(), value).is_none(), "{sample} twice");
        }
        Metrics(samples)
    }

    #[track_caller]
    fn of(pool: &Pool) -> Metrics {
        let done = canopy(["metrics".as_ref(), pool.path().as_os_str()]);
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        Metrics::parse(&done.stdout)
    }

    /// Returns the sum of the samples with this name whose labels contain all of these.
    fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let named = self.0.iter().filter(|(sample, _)| sample.split('{').next() == Some(name));
        named
            .filter(|(sample, _)| labels.iter().all(|label| sample.contains(label)))
            .map(|(_, value)| value)
            .sum()
    }

    fn answered(&self, operation: &str) -> f64 {
        self.sum("canopy_operations_total", &[&format!("operation=\"{operation}\"")])
    }
}

#[test]
fn operations_errors_and_bytes_are_counted() {
    for transport in transports() {
        let disks = [LoopFs::ext4(64 << 20), LoopFs::tmpfs(64 << 20)];
        let pool = Pool::builder(BINARY)
            .branches(disks.iter().map(LoopFs::path))
            .option("minfreespace=0,passthrough.io=off,cache.files=off,category.create=ff")
            .option(format!("io-uring={transport}"))
            .mount();
        let before = Metrics::of(&pool);
        for number in 0..40 {
            fs::create_dir(pool.path().join(format!("dir{number}"))).unwrap();
        }
        for _ in 0..3 {
            assert!(fs::create_dir(pool.path().join("dir0")).is_err());
            assert!(fs::remove_dir(pool.path().join("none")).is_err());
        }
        let data = vec![7; 300_000];
        fs::write(pool.path().join("file"), &data).unwrap();
        assert_eq!(fs::read(pool.path().join("file")).unwrap(), data);
        // On the other branch.
        fs::write(disks[1].path().join("other"), &data[..1000]).unwrap();
        assert_eq!(fs::read(pool.path().join("other")).unwrap().len(), 1000);
        let now = Metrics::of(&pool);

        let more = |operation| now.answered(operation) - before.answered(operation);
        // The kernel knows that dir0 exists and that there is no such name, or asks; it makes no directory again by itself.
        assert!(more("mkdir") >= 40.0 && more("create") == 1.0, "{}", more("mkdir"));
        assert!(more("lookup") > 0.0 && more("write") > 0.0 && more("read") > 0.0);
        let errors = now.sum("canopy_operation_errors_total", &[]);
        assert_eq!(errors, now.sum("canopy_errors_total", &[]), "each error has a kind and a name");
        // Some are timed, and none more often than it was answered.
        let timed = now.sum("canopy_operation_duration_seconds_count", &[]);
        let answered = now.sum("canopy_operations_total", &[]);
        assert!(timed >= 1.0 && timed <= answered, "{timed} of {answered}");
        assert!(now.sum("canopy_operation_duration_seconds_sum", &[]) > 0.0);

        for (disk, written, read) in [(&disks[0], 300_000.0, 300_000.0), (&disks[1], 0.0, 1000.0)] {
            let branch = format!("branch=\"{}\"", disk.path().display());
            let labels = [branch.as_str(), "way=\"daemon\""];
            assert_eq!(now.sum("canopy_branch_written_bytes_total", &labels), written, "{transport}");
            assert_eq!(now.sum("canopy_branch_read_bytes_total", &labels), read, "{transport}");
            assert!(now.sum("canopy_branch_reads_total", &labels) > 0.0);
            assert!(now.sum("canopy_branch_opens_total", &labels) > 0.0);
            assert_eq!(now.sum("canopy_branch_opens_total", &[&branch, "passthrough"]), 0.0);
            let condition = |word: &str| {
                let state = format!("canopy_branch_condition=\"{word}\"");
                now.sum("canopy_branch_condition", &[&branch, &state])
            };
            assert_eq!((condition("ok"), condition("hung"), condition("gone")), (1.0, 0.0, 0.0));
            let space = rustix::fs::statvfs(disk.path()).unwrap();
            let size = (space.f_blocks * space.f_frsize) as f64;
            assert_eq!(now.sum("canopy_branch_size_bytes", &[&branch]), size);
        }
        let disk = format!("branch=\"{}\"", disks[0].path().display());
        assert!(
            now.0
                .keys()
                .any(|sample| sample.starts_with("canopy_disk_busy_seconds_total") && sample.contains(&disk))
        );
        assert_eq!(now.sum("canopy_up", &[]), 1.0);
        assert!(now.sum("canopy_workers", &[]) >= 2.0 && now.sum("canopy_known_nodes", &[]) >= 42.0);
        assert!(now.sum("canopy_resident_memory_bytes", &[]) > 1e6);
        assert_eq!(now.sum("canopy_start_time_seconds", &[]), before.sum("canopy_start_time_seconds", &[]));
        pool.umount();
    }
}

#[test]
fn of_passthrough_the_opens_are_counted() {
    // Large enough for passthrough writers.
    let disk = LoopFs::tmpfs(64 << 30);
    let pool = Pool::builder(BINARY).branch(disk.path()).option("minfreespace=0,passthrough.io=rw").mount();
    if pool.status()["branches"][0]["passes_through"] != true {
        eprintln!("skipped: the kernel does not support passthrough");
        pool.umount();
        return;
    }
    for _ in 0..5 {
        fs::write(pool.path().join("file"), "text").unwrap();
        assert_eq!(fs::read(pool.path().join("file")).unwrap(), b"text");
    }
    let now = Metrics::of(&pool);
    assert_eq!(now.sum("canopy_branch_opens_total", &["way=\"passthrough\""]), 10.0);
    assert_eq!(now.sum("canopy_branch_opens_total", &["way=\"daemon\""]), 0.0);
    assert_eq!(now.sum("canopy_branch_written_bytes_total", &[]), 0.0);
    assert_eq!(now.sum("canopy_branch_passthrough", &[]), 1.0);
    pool.umount();
}

#[test]
fn moves_are_counted() {
    let disks = [LoopFs::ext4(64 << 20), LoopFs::ext4(64 << 20)];
    let pool = Pool::builder(BINARY)
        .branches(disks.iter().map(LoopFs::path))
        .option("minfreespace=0,category.create=ff")
        .mount();
    fs::write(pool.path().join("file"), vec![1; 100_000]).unwrap();
    let file = pool.path().join("file");
    let to = [
        "move".as_ref(),
        pool.path().as_os_str(),
        file.as_os_str(),
        "--to".as_ref(),
        disks[1].path().as_os_str(),
    ];
    let done = canopy(to);
    assert!(done.success() && disks[1].path().join("file").exists(), "{}", done.describe());
    let now = Metrics::of(&pool);
    assert_eq!(now.sum("canopy_moved_files_total", &[]), 1.0);
    assert!(now.sum("canopy_moved_bytes_total", &[]) >= 100_000.0);
    assert_eq!(now.sum("canopy_moves_under_way", &[]), 0.0);
    pool.umount();
}

/// Starts `canopy metrics --listen`, and returns it and the line that says where it listens.
fn listening(arguments: &[&str]) -> (Child, String) {
    let mut command = Command::new(BINARY);
    command.arg("metrics").arg("--listen").args(arguments).stdout(Stdio::piped());
    let mut child = spawn(&mut command).expect("canopy metrics");
    let mut place = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut place).unwrap();
    (child, place.trim_end().to_owned())
}

fn ask(mut server: impl Read + Write) -> Metrics {
    server.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    Metrics::parse(body)
}

fn stop(mut server: Child, signal: Signal) {
    kill_process(Pid::from_child(&server), signal).unwrap();
    let status = wait_within(&mut server, PATIENCE).expect("its end");
    assert!(status.success(), "{status}");
}

#[test]
fn a_port_of_this_machine_answers_whether_the_pool_is_mounted_or_not() {
    let disk = LoopFs::tmpfs(16 << 20);
    let pool = Pool::builder(BINARY).branch(disk.path()).option("minfreespace=0").mount();
    let mountpoint = pool.path().to_owned();
    let (server, place) = listening(&["127.0.0.1:0", mountpoint.to_str().unwrap()]);
    let address =
        place.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).expect("an address");
    let up = |metrics: &Metrics| metrics.sum("canopy_up", &[&format!("pool=\"{}\"", mountpoint.display())]);
    let first = ask(TcpStream::connect(address).unwrap());
    fs::create_dir(mountpoint.join("dir")).unwrap();
    let second = ask(TcpStream::connect(address).unwrap());
    assert_eq!((up(&first), up(&second)), (1.0, 1.0));
    assert_eq!(second.answered("mkdir") - first.answered("mkdir"), 1.0);
    pool.umount();
    let third = ask(TcpStream::connect(address).unwrap());
    assert_eq!((up(&third), third.0.len()), (0.0, 1));
    stop(server, Signal::TERM);
}

#[test]
fn a_socket_answers_and_is_removed() {
    let dir = ScratchDir::new("canopy-metrics-", &["p"]);
    let path = dir.path("socket");
    let (server, place) = listening(&[path.to_str().unwrap(), dir.path("p").to_str().unwrap()]);
    assert_eq!(Path::new(&place), path);
    assert_eq!(ask(UnixStream::connect(&path).unwrap()).sum("canopy_up", &[]), 0.0);
    stop(server, Signal::INT);
    assert!(!path.exists());
}

/// Neither clients that send nothing, nor those that drip, nor those that do not take their answers.
#[test]
fn no_client_keeps_another_out() {
    let dir = ScratchDir::new("canopy-metrics-", &["p"]);
    let path = dir.path("socket");
    let mountpoint = dir.path("p");
    for place in [path.to_str().unwrap(), "127.0.0.1:0"] {
        let (server, said) = listening(&[place, mountpoint.to_str().unwrap()]);
        let address = said.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics"));
        let (mut files, mut ports) = (Vec::new(), Vec::new());
        for round in 0..3 {
            for request in [&b""[..], b"G", b"GET /metrics HTTP/1.1\r\n\r\n"] {
                for _ in 0..40 {
                    match address {
                        Some(address) => {
                            let mut client = TcpStream::connect(address).unwrap();
                            client.write_all(request).unwrap();
                            ports.push(client);
                        }
                        None => {
                            let mut client = UnixStream::connect(&path).unwrap();
                            // The server may have dropped it already.
                            let _ = client.write_all(request);
                            files.push(client);
                        }
                    }
                }
                let up = match address {
                    Some(address) => ask(TcpStream::connect(address).unwrap()).sum("canopy_up", &[]),
                    None => ask(UnixStream::connect(&path).unwrap()).sum("canopy_up", &[]),
                };
                assert_eq!(up, 0.0, "round {round}");
            }
        }
        drop((files, ports));
        stop(server, Signal::TERM);
    }
}

#[test]
fn mistakes_are_one_line_with_a_remedy() {
    let dir = ScratchDir::new("canopy-metrics-", &["p"]);
    let file = dir.path("file");
    fs::write(&file, "").unwrap();
    let (p, file) = (dir.path("p"), file.to_str().unwrap().to_owned());
    let p = p.to_str().unwrap();
    for (arguments, words) in [
        (&[p][..], "is not the mountpoint of a pool"),
        (&["--listen", "0.0.0.0:1", p], "127.0.0.1:1"),
        (&["--listen", "80", p], "127.0.0.1:PORT"),
        (&["--listen", &file, p], "is not a socket"),
        (&["--listen", "/none/there/socket", p], "No such file"),
    ] {
        let done = canopy(["metrics"].iter().chain(arguments));
        assert!(!done.success() && done.stdout.is_empty(), "{}", done.describe());
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        assert!(done.stderr.contains(words), "{words}: {}", done.stderr);
    }
}
