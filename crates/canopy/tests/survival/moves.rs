//! A file that moves to another branch (`moveonenospc`) while the process dies that moves it.

use crate::rig::{end_all, send, server, servers};
use canopy_testkit::{LoopFs, PATIENCE, Pool, Rng, cmd};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// How many processes are killed, unless `CANOPY_TEST_KILLS` tells another number.
fn kills() -> u64 {
    std::env::var("CANOPY_TEST_KILLS").map_or(6, |text| text.parse().expect("a number"))
}

/// The write goes on in the copy, or in the file where it was, and so does each handle.
#[test]
fn a_write_to_a_full_branch_goes_on() {
    let mut rng = Rng::new(7);
    let content = rng.bytes(4 * MIB);
    let disks = [LoopFs::ext4(32 << 20), LoopFs::ext4(32 << 20)];
    let mut moved = 0;
    for round in 0..kills() {
        let [from, to] = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        let source = disks[from].path();
        fs::write(source.join("f"), &content).unwrap();
        fs::hard_link(source.join("f"), source.join("g")).unwrap();
        disks[from].fill(0);
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branches(disks.iter().map(LoopFs::path))
            .option("survive=true,moveonenospc=true,minfreespace=0,passthrough.io=off,cache.files=off")
            .env("CANOPY_TEST_DEATHS", "5000")
            .mount();
        let file = OpenOptions::new().write(true).open(pool.path().join("f")).unwrap();
        let reader = File::open(pool.path().join("g")).unwrap();
        let delay = Duration::from_micros(rng.below(80_000));
        let (written, taken_over) = thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_all_at(&vec![9; MIB], 4 * MIB as u64));
            thread::sleep(delay);
            let dies = server(&pool);
            send(dies, Signal::KILL);
            let taken_over = cmd::wait_until(PATIENCE, || servers(&pool).iter().any(|&next| next != dies));
            if !taken_over {
                end_all(&pool);
            }
            (writer.join().expect("a writer that does not panic"), taken_over)
        });
        let what = format!("round {round}, killed after {delay:?}\n{}", pool.log());
        assert!(taken_over, "{what}");
        written.unwrap_or_else(|error| panic!("{error}: {what}"));
        file.write_all_at(b"more", 5 * MIB as u64).unwrap_or_else(|error| panic!("{error}: {what}"));
        let mut expected = content.clone();
        expected.resize(5 * MIB, 9);
        expected.extend(b"more");
        let mut seen = vec![0; expected.len()];
        reader.read_exact_at(&mut seen, 0).unwrap_or_else(|error| panic!("{error}: {what}"));
        assert!(seen == expected, "a handle that was open reads something else: {what}");
        assert!(fs::read(pool.path().join("f")).unwrap() == expected, "{what}");
        let meta = fs::metadata(pool.path().join("g")).unwrap();
        assert_eq!((meta.nlink(), meta.ino()), (2, file.metadata().unwrap().ino()), "{what}");
        drop((file, reader));
        let names = |name: &str| disks.iter().filter(|disk| disk.path().join(name).exists()).count();
        assert_eq!((names("f"), names("g")), (1, 1), "{what}");
        moved += u64::from(disks[to].path().join("f").exists());
        pool.umount();
        for disk in &disks {
            for name in ["f", "g", "filler"] {
                let _ = fs::remove_file(disk.path().join(name));
            }
            let left: Vec<_> =
                fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["lost+found"], "{what}");
        }
    }
    assert_eq!(moved, kills(), "a full branch cannot hold the write");
}
