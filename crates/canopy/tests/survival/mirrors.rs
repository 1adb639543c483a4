//! Files whose copies are written at the same time, while the process dies that writes them.

use crate::rig::{send, server, servers};
use canopy_testkit::{LoopFs, PATIENCE, Pool, Rng, cmd};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

const RECORDS: usize = 600;
const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// What was acknowledged is in the file, once, and the mover makes the copies equal again.
#[test]
fn writes_go_on_in_the_right_copy() {
    let mut rng = Rng::new(11);
    let disks = [LoopFs::ext4(64 << 20), LoopFs::tmpfs(64 << 20)];
    let pool = Pool::builder(BINARY)
        .branches(disks.iter().map(LoopFs::path))
        .option("survive=true,minfreespace=0,category.create=ff,rules=d/**=copies 2 when written")
        .env("CANOPY_TEST_DEATHS", "5000")
        .mount();
    fs::create_dir(pool.path().join("d")).unwrap();
    for round in 0..6 {
        let at = |name: &str| pool.path().join("d").join(format!("{name}{round}"));
        let open = |name: &str, append: bool| {
            OpenOptions::new().create_new(true).write(!append).append(append).open(at(name)).unwrap()
        };
        let (mut log, data) = (open("log", true), open("data", false));
        let delays: Vec<Duration> = (0..2).map(|_| Duration::from_micros(rng.below(150_000))).collect();
        let upgrades = round % 3 == 2;
        let mut lines = String::new();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut lines = String::new();
                for record in 0..RECORDS {
                    let mut line = String::new();
                    let _ = writeln!(line, "{record:08}");
                    log.write_all(line.as_bytes()).unwrap();
                    data.write_all_at(line.as_bytes(), (record % 50 * 9) as u64).unwrap();
                    lines += &line;
                    if record % 40 == 0 {
                        log.sync_data().unwrap();
                    }
                    if record % 100 == 50 {
                        // A close of one of several descriptors settles the copies.
                        drop(log.try_clone().unwrap());
                    }
                }
                lines
            });
            for delay in delays {
                thread::sleep(delay);
                let dies = server(&pool);
                if upgrades {
                    let args = ["upgrade".as_ref(), "--force".as_ref(), pool.path().as_os_str()];
                    assert!(pool.command(args).success());
                } else {
                    send(dies, Signal::KILL);
                }
                assert!(cmd::wait_until(PATIENCE, || servers(&pool).iter().any(|&next| next != dies)));
            }
            lines = writer.join().expect("a writer that does not panic");
        });
        drop((log, data));
        let last = lines.len() - 50 * 9;
        let check = |what: &str| {
            assert!(fs::read_to_string(at("log")).unwrap() == lines, "{what}: {round}\n{}", pool.log());
            assert!(fs::read_to_string(at("data")).unwrap() == lines[last..], "{what}: {round}");
        };
        check("after the close");
        // A close is told late, and until then a file is open.
        let mut said = String::new();
        let made = cmd::wait_until(PATIENCE, || {
            let done = pool.command(["tier".as_ref(), "--once".as_ref(), pool.path().as_os_str()]);
            said = done.describe();
            done.success()
        });
        assert!(made, "{said}");
        check("after the mover");
        for disk in &disks {
            let on = |name: &str| {
                fs::read_to_string(disk.path().join("d").join(format!("{name}{round}"))).unwrap()
            };
            assert!(on("log") == lines, "{round}: {}", disk.path().display());
            assert!(on("data") == lines[last..], "{round}: {}", disk.path().display());
        }
    }
}
