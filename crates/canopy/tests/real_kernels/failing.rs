//! Disks that fail or disappear while they are written. What fsync(2) has acknowledged is there afterwards, clients of other
//! disks notice nothing, and the disk rejoins once it is mounted again.

use super::rig::{BINARY, PATIENCE, health, modules, pool_over, transport, wait_for_health};
use canopy_testkit::bystander::{Files, Others};
use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::{LoopFs, Medium, Pool, PoolBed};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const DIRS: usize = 20;
const WRITERS: usize = 3;

/// The contents of a file, by its number.
fn contents(number: usize) -> Vec<u8> {
    format!("file {number}\n").repeat(3000).into_bytes()
}

/// Clients that write files to a directory, and remember which of them fsync(2) has acknowledged.
struct Writers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(Vec<PathBuf>, usize)>>,
}

impl Writers {
    fn start(dir: &Path) -> Writers {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |writer: usize| {
            let (stop, dir) = (Arc::clone(&stop), dir.to_owned());
            std::thread::spawn(move || {
                let (mut acknowledged, mut errors) = (Vec::new(), 0);
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let path = dir.join(format!("{writer}-{number}"));
                    let written = File::create_new(&path).and_then(|mut file| {
                        file.write_all(&contents(number))?;
                        file.sync_all()
                    });
                    match written {
                        Ok(()) => acknowledged.push(path),
                        Err(_) => {
                            errors += 1;
                            std::thread::sleep(Duration::from_millis(20));
                        }
                    }
                    number += 1;
                }
                (acknowledged, errors)
            })
        };
        let threads = (0..WRITERS).map(start).collect();
        Writers { stop, threads }
    }

    /// Ends them, and returns which files were acknowledged, and how many operations failed.
    fn end(self) -> (Vec<PathBuf>, usize) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut all, mut errors) = (Vec::new(), 0);
        for thread in self.threads {
            let (mut some, failed) = thread.join().expect("a writer");
            all.append(&mut some);
            errors += failed;
        }
        (all, errors)
    }
}

#[track_caller]
fn assert_there(acknowledged: &[PathBuf], what: &str) {
    for path in acknowledged {
        let number =
            path.to_str().and_then(|path| path.rsplit('-').next()).and_then(|text| text.parse().ok());
        let read = fs::read(path).unwrap_or_else(|error| panic!("{what}: {}: {error}", path.display()));
        assert!(read == contents(number.expect("a number")), "{what}: {} has changed", path.display());
    }
}

/// Waits until the kernel has given up the filesystem of a device, so that the next mount reads it from the disk.
fn wait_until_gone(device: &Path) {
    let number = rustix::fs::minor(fs::metadata(device).expect("a device").rdev());
    let known = Path::new("/sys/fs/ext4").join(format!("dm-{number}"));
    assert!(wait_until(PATIENCE, || !known.exists()), "{} stays in use", device.display());
}

fn survives(name: &str, medium: Medium) {
    let mut bed = pool_over(2, "", |number, disk| {
        Files::new(disk.path(), ["disk0", "disk1"][number], DIRS).make();
    });
    let clients = Others::start(2, &Files::new(bed.pool.path(), "disk0", DIRS));
    let writers = Writers::start(&bed.at("disk1-0"));
    std::thread::sleep(Duration::from_secs(2));
    bed.disks[1].set_medium(medium);
    std::thread::sleep(Duration::from_secs(4));
    let before = clients.rounds();
    let (acknowledged, errors) = writers.end();
    std::thread::sleep(Duration::from_secs(1));
    println!("{name}: {} files acknowledged, {errors} errors", acknowledged.len());
    assert!(!acknowledged.is_empty() && errors > 0, "{name}: {errors} errors\n{}", bed.pool.log());
    // The clients of the other disk go on, and have met no error.
    assert!(wait_until(PATIENCE, || clients.rounds() > before), "{name}: the other disk is not served");
    clients.end();
    bed.disks[1].set_medium(Medium::Healthy);
    bed.disks[1].unmount_lazily();
    wait_until_gone(&bed.disks[1].mapped_device().expect("a device"));
    bed.disks[1].mount_again();
    wait_for_health(&bed.pool, bed.disks[1].path(), "ok");
    assert_there(&acknowledged, name);
    fs::write(bed.at("disk1-0/again"), "again").expect("a new file on the disk");
    assert!(bed.disks[1].path().join("disk1-0/again").exists());
    bed.pool.umount();
}

#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn nothing_acknowledged_is_lost_on_a_disk_that_fails() {
    survives("dm-error", Medium::Fails);
}

#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn nothing_acknowledged_is_lost_on_a_flaky_disk() {
    survives("dm-flakey", Medium::Flaky(1, 1));
}

/// A disk of the kernel's scsi_debug, which can be pulled.
struct ScsiDisk {
    host: PathBuf,
    point: tempfile::TempDir,
}

impl ScsiDisk {
    fn new() -> ScsiDisk {
        modules(&["sd_mod"]);
        run("modprobe", ["scsi_debug", "dev_size_mb=128"]);
        let find = || {
            let hosts =
                fs::read_dir("/sys/class/scsi_host").expect("hosts").flatten().map(|host| host.path());
            let of_module = |host: &PathBuf| {
                fs::read_to_string(host.join("proc_name")).is_ok_and(|name| name.trim() == "scsi_debug")
            };
            hosts.into_iter().find(of_module)
        };
        assert!(wait_until(PATIENCE, || find().is_some()), "no scsi_debug");
        let disk = ScsiDisk {
            host: find().expect("a host"),
            point: tempfile::Builder::new().prefix("canopy-scsi-").tempdir().expect("a directory"),
        };
        let device = disk.device();
        run("mkfs.ext4", ["-q".as_ref(), device.as_os_str()]);
        disk.mount();
        disk
    }

    /// Its name in /sys/block.
    fn name(&self) -> Option<String> {
        let host = self.host.canonicalize().expect("a host");
        let host = host.ancestors().nth(2).expect("a device").to_owned();
        let disks = fs::read_dir("/sys/block").expect("disks").flatten();
        let mut of_host =
            disks.filter(|disk| disk.path().canonicalize().is_ok_and(|path| path.starts_with(&host)));
        of_host.next().map(|disk| disk.file_name().into_string().expect("text"))
    }

    fn device(&self) -> PathBuf {
        assert!(wait_until(PATIENCE, || self
            .name()
            .is_some_and(|name| Path::new("/dev").join(name).exists())));
        Path::new("/dev").join(self.name().expect("a disk"))
    }

    fn path(&self) -> &Path {
        self.point.path()
    }

    fn mount(&self) {
        let device = self.device();
        run("mount", ["-t", "ext4", device.to_str().expect("text"), self.path().to_str().expect("text")]);
    }

    fn pull(&self) {
        let delete = Path::new("/sys/block").join(self.name().expect("a disk")).join("device/delete");
        fs::write(delete, "1").expect("a disk that is pulled");
    }

    fn plug_in(&self) {
        fs::write(self.host.join("scan"), "- - -").expect("a scan");
    }
}

impl Drop for ScsiDisk {
    fn drop(&mut self) {
        let done = std::process::Command::new("umount").arg(self.path()).status();
        eprintln!("unmounting the disk: {done:?}");
    }
}

#[test]
#[ignore = "needs scsi_debug (scripts/test.sh --kernel)"]
fn nothing_acknowledged_is_lost_on_a_disk_that_is_pulled() {
    let disk = ScsiDisk::new();
    fs::create_dir(disk.path().join("pulled")).expect("mkdir");
    let healthy = LoopFs::tmpfs(64 << 20);
    Files::new(healthy.path(), "disk0", DIRS).make();
    let builder = Pool::builder(BINARY)
        .branch(disk.path())
        .option("minfreespace=0,category.create=epff")
        .option(format!("io-uring={}", transport()));
    let bed = PoolBed::mount(builder, [healthy]);
    let clients = Others::start(2, &Files::new(bed.pool.path(), "disk0", DIRS));
    let writers = Writers::start(&bed.at("pulled"));
    std::thread::sleep(Duration::from_secs(2));
    disk.pull();
    std::thread::sleep(Duration::from_secs(4));
    let (acknowledged, errors) = writers.end();
    println!("scsi_debug: {} files acknowledged, {errors} errors", acknowledged.len());
    assert!(!acknowledged.is_empty() && errors > 0, "{errors} errors\n{}", bed.pool.log());
    clients.end();
    assert!(wait_until(PATIENCE, || health(&bed.pool, disk.path()) != "ok"), "{}", bed.pool.log());
    run("umount", ["--lazy".as_ref(), disk.path().as_os_str()]);
    disk.plug_in();
    disk.mount();
    wait_for_health(&bed.pool, disk.path(), "ok");
    assert_there(&acknowledged, "scsi_debug");
    fs::write(bed.at("pulled/again"), "again").expect("a new file on the disk");
    bed.pool.umount();
}
