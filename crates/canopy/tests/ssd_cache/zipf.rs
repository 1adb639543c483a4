//! A library of which some files are read far more often than others, on a disk that each read costs 8 ms.

use super::{BINARY, bytes_read, forget_copies};
use canopy_testkit::{LoopFs, Pool, PoolBed, Rng};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FILES: usize = 2000;
/// The cache has room for so many.
const ROOM: usize = 200;
const BYTES: usize = 64 << 10;
const READERS: u64 = 4;
/// Requests in a second.
const SLOW: u64 = 125;
/// Until the cache is full of what is read often, and for how long reads count after that.
const WARMING: Duration = Duration::from_secs(60);
const COUNTED: Duration = Duration::from_secs(90);

fn name(file: usize) -> String {
    format!("dir{}/{file}", file % 20)
}

/// Reads files until it is told to stop: the second half as often as the first, the third a third as often.
fn reader(bed: &PoolBed, seed: u64, stop: &AtomicBool, often: &Mutex<Vec<u64>>) {
    let mut random = Rng::new(seed);
    let mut bounds = Vec::new();
    let total = (1..=FILES).fold(0.0, |sum, rank| {
        bounds.push(sum + 1.0 / rank as f64);
        sum + 1.0 / rank as f64
    });
    while !stop.load(Ordering::Relaxed) {
        let at = random.below(1 << 53) as f64 / (1u64 << 53) as f64 * total;
        let file = bounds.partition_point(|bound| *bound <= at).min(FILES - 1);
        assert_eq!(fs::read(bed.at(&name(file))).unwrap().len(), BYTES);
        often.lock().unwrap()[file] += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn opens(bed: &PoolBed) -> [u64; 2] {
    let cache = &bed.pool.status()["read_caches"][0];
    ["hits", "misses"].map(|figure| cache[figure].as_u64().unwrap())
}

#[test]
#[ignore = "takes three minutes"]
fn a_cache_has_nearly_all_hits_that_are_possible() {
    let (ssd, home) = (LoopFs::ext4(64 << 20), tempfile::tempdir().unwrap());
    let size = ROOM * BYTES;
    let pool = Pool::builder(BINARY)
        .option("minfreespace=0")
        .option(format!("read-cache={}=**|size {size}|when opened", ssd.path().display()))
        .option(format!("catalogue={}", home.path().display()));
    let bed = PoolBed::mount(pool, [LoopFs::ext4(512 << 20)]);
    for file in 0..FILES {
        let path = bed.at(&name(file));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![file as u8; BYTES]).unwrap();
    }
    bed.disks[0].drop_caches();
    let slow = bed.disks[0].throttle_reads(SLOW);
    assert!(slow.is_some(), "no control group for disks: run it in a virtual machine");
    let (stop, often) = (AtomicBool::new(false), Mutex::new(vec![0; FILES]));
    let [hits, misses] = std::thread::scope(|scope| {
        for seed in 0..READERS {
            let (bed, stop, often) = (&bed, &stop, &often);
            scope.spawn(move || reader(bed, seed, stop, often));
        }
        std::thread::sleep(WARMING);
        let before = opens(&bed);
        often.lock().unwrap().fill(0);
        std::thread::sleep(COUNTED);
        let after = opens(&bed);
        stop.store(true, Ordering::Relaxed);
        [after[0] - before[0], after[1] - before[1]]
    });
    let mut often = often.into_inner().unwrap();
    let all: u64 = often.iter().sum();
    often.sort_unstable_by(|a, b| b.cmp(a));
    // It knows what will be read, and has it from the beginning.
    let perfect = often.iter().take(ROOM).sum::<u64>() as f64 / all as f64;
    let share = hits as f64 / (hits + misses) as f64;
    println!("{all} reads, {:.1} % hits; a perfect cache: {:.1} %", 100.0 * share, 100.0 * perfect);
    assert!(share > 0.9 * perfect, "{share:.3} of the reads are hits, {perfect:.3} could be");

    // What has a copy is read while the disk sleeps. The last files that were read may still take the places of others.
    std::thread::sleep(Duration::from_secs(5));
    let pool = bed.pool.path().to_str().unwrap();
    let listed = canopy_testkit::cmd::json(&bed.pool.command(["cache", "list", pool, "--json"]));
    let cached: Vec<_> = listed["copies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].as_str().unwrap().to_owned())
        .collect();
    assert!(cached.len() > ROOM / 2, "{}", cached.len());
    bed.pool.drop_dentries();
    bed.disks[0].drop_caches();
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    let before = bytes_read(&bed.disks[0]);
    for path in &cached {
        assert_eq!(fs::read(bed.at(path.trim_start_matches('/'))).unwrap().len(), BYTES);
    }
    assert_eq!(bytes_read(&bed.disks[0]) - before, 0, "of {} files", cached.len());
    forget_copies(&bed.pool);
}
