//! A client that uses one disk makes as much progress while others wait for another disk.

use super::rig::{Rig, drop_caches, transport};
use canopy_testkit::{Medium, Rng};
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const DIRS: usize = 400;
const FILES: usize = 3;
/// How long the bystander's rounds are counted.
const WINDOW: Duration = Duration::from_secs(6);
/// How long a disk that lags takes for each request.
const LAG: Duration = Duration::from_millis(1500);
/// What is asked of the bystander: as many rounds as alone, for the noise 0.8 of them, and none that is longer than this,
/// or than twice the longest one alone.
const SHARE: f64 = 0.8;
const LONGEST: Duration = Duration::from_millis(200);
/// The machine is shared: a measurement that fails is repeated.
const TRIES: usize = 3;

fn dir(disk: usize, number: usize) -> String {
    format!("disk{disk}-{number}")
}

/// One round on files of one disk: read, change, create, rename, remove, list. Records what took longest.
fn round(pool: &Path, disk: usize, rng: &mut Rng, new: &str) -> io::Result<(Duration, &'static str)> {
    let dir = pool.join(dir(disk, rng.index(DIRS)));
    let file = dir.join(format!("f{}", rng.index(FILES)));
    let mut longest = (Duration::ZERO, "");
    let mut step = |what: &'static str, work: &mut dyn FnMut() -> io::Result<()>| {
        let began = Instant::now();
        let result = work().map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")));
        longest = longest.max((began.elapsed(), what));
        result
    };
    step("stat", &mut || fs::metadata(&file).map(drop))?;
    step("open and read", &mut || File::open(&file)?.read_to_end(&mut Vec::new()).map(drop))?;
    let mode = 0o600 + u32::try_from(rng.below(64)).expect("a small number");
    step("chmod", &mut || fs::set_permissions(&file, Permissions::from_mode(mode)))?;
    let (first, second) = (dir.join(new), dir.join(format!("{new}-renamed")));
    step("create and write", &mut || fs::write(&first, "x"))?;
    step("rename", &mut || fs::rename(&first, &second))?;
    step("list", &mut || fs::read_dir(&dir)?.try_for_each(|entry| entry.map(drop)))?;
    step("unlink", &mut || fs::remove_file(&second))?;
    Ok(longest)
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    rounds: usize,
    longest: (Duration, &'static str),
}

/// Counts the bystander's rounds. If none ends in time, `waiting` lets the disk answer.
fn bystander(pool: &Path, give_up: impl FnOnce()) -> Progress {
    let seen = Arc::new(Mutex::new(Progress::default()));
    let (pool, of_thread) = (pool.to_owned(), Arc::clone(&seen));
    let began = Instant::now();
    let thread = std::thread::spawn(move || {
        let mut rng = Rng::new(7);
        while began.elapsed() < WINDOW {
            let started = Instant::now();
            let (_, what) = round(&pool, 0, &mut rng, "bystander").expect("a round on a healthy disk");
            let mut seen = of_thread.lock().expect("a lock");
            seen.rounds += 1;
            seen.longest = seen.longest.max((started.elapsed(), what));
        }
    });
    while !thread.is_finished() && began.elapsed() < WINDOW * 2 {
        std::thread::sleep(Duration::from_millis(20));
    }
    if !thread.is_finished() {
        let mut seen = seen.lock().expect("a lock");
        seen.longest = seen.longest.max((began.elapsed(), "still waiting"));
        drop(seen);
        give_up();
    }
    thread.join().expect("the bystander");
    *seen.lock().expect("a lock")
}

/// Clients that use disk 1 until told to stop.
struct Others {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Others {
    fn start(count: usize, pool: &Path) -> Others {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let start = |number: usize| {
            let (stop, rounds, pool) = (Arc::clone(&stop), Arc::clone(&rounds), pool.to_owned());
            std::thread::spawn(move || {
                let mut rng = Rng::new(1000 + number as u64);
                while !stop.load(Ordering::Relaxed) {
                    round(&pool, 1, &mut rng, &format!("other{number}")).expect("a round on a slow disk");
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let threads = (0..count).map(start).collect();
        Others { stop, rounds, threads }
    }

    /// Waits until all have ended their round.
    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a client of the slow disk"));
        self.rounds.load(Ordering::Relaxed)
    }
}

/// Visits what the bystander will use, with the kernel's caches empty before.
fn visit(rig: &Rig) {
    drop_caches();
    for number in 0..DIRS {
        let dir = rig.at(&dir(0, number));
        for entry in fs::read_dir(&dir).expect("a listing") {
            fs::read(entry.expect("an entry").path()).expect("a read");
        }
        let new = dir.join("bystander");
        fs::write(&new, "x").and_then(|()| fs::rename(&new, dir.join("b"))).expect("a new file");
        fs::remove_file(dir.join("b")).expect("unlink");
    }
}

fn measure(rig: &Rig, medium: Medium, others: usize) -> Progress {
    visit(rig);
    if others > 0 {
        rig.disks[1].set(medium);
    }
    let clients = Others::start(others, rig.pool.path());
    std::thread::sleep(Duration::from_millis(500));
    let progress = bystander(rig.pool.path(), || rig.disks[1].set(Medium::Healthy));
    rig.disks[1].set(Medium::Healthy);
    clients.end();
    progress
}

fn undisturbed(name: &str, medium: Medium) {
    let rig = Rig::new(3, "", |number, disk| {
        for dir in (0..DIRS).map(|dir_number| disk.path().join(dir(number, dir_number))) {
            fs::create_dir(&dir).expect("mkdir");
            (0..FILES).for_each(|file| fs::write(dir.join(format!("f{file}")), "data").expect("a file"));
        }
    });
    let mut alone = measure(&rig, medium, 0);
    let mut failed = Vec::new();
    for others in [1, 4, 16, 64] {
        let mut good = false;
        for attempt in 1..=TRIES {
            if attempt > 1 {
                alone = measure(&rig, medium, 0);
            }
            let progress = measure(&rig, medium, others);
            let share = progress.rounds as f64 / alone.rounds as f64;
            let (longest, what) = progress.longest;
            println!(
                "{name}, io-uring={}: {} rounds alone (longest {:.0?}), {} beside {others} others ({share:.2}), longest {longest:.0?} ({what})",
                transport(), alone.rounds, alone.longest.0, progress.rounds,
            );
            good = share >= SHARE && longest < LONGEST.max(alone.longest.0 * 2);
            if good {
                break;
            }
        }
        if !good {
            failed.push(others);
        }
    }
    rig.pool.umount();
    assert!(failed.is_empty(), "{name}: the bystander is held up by {failed:?} other clients");
}

#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn a_disk_that_lags_delays_only_its_own_clients() {
    undisturbed("slow disk", Medium::Lags(LAG));
}

#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn a_disk_that_hangs_stops_only_its_own_clients() {
    undisturbed("hung disk", Medium::Hangs);
}
