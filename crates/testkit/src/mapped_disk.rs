//! An ext4 on a device of the kernel's device mapper, which can lag, hang or fail at any time. Few containers and
//! sandboxes have device mapper; `scripts/kernel-tests.sh` boots a kernel that has it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::panicking;
use std::time::Duration;

use tempfile::TempDir;

use crate::cmd::{run, run_within, wait_until};
use crate::{Rng, proc};

/// How long one step of undoing may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The parts of a disk that lags at random, each with a delay of its own.
const PARTS: u64 = 64;
const SECTOR: u64 = 512;

/// What the device does with requests. Whatever it delays or holds back succeeds in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Healthy,
    /// It answers each request after this time.
    Lags(Duration),
    /// It answers after a time up to this one, which depends on the place on the disk and on the seed.
    LagsUpTo(Duration, u64),
    /// It answers nothing.
    Hangs,
    /// Each request fails with EIO.
    Fails,
    /// It works for a number of seconds, then fails for a number of seconds, and so on.
    Flaky(u32, u32),
}

/// A mounted ext4 with such a device. Dropping it heals the device, unmounts it and removes everything.
#[derive(Debug)]
pub struct MappedDisk {
    /// `None` after cleanup.
    home: Option<TempDir>,
    point: PathBuf,
    name: String,
    loop_device: PathBuf,
    sectors: u64,
    mounted: bool,
}

impl MappedDisk {
    /// Makes and mounts an ext4 of `size` bytes, whose image is in `TMPDIR`.
    ///
    /// # Panics
    /// Without root, without device mapper, or if any step fails.
    #[track_caller]
    pub fn new(size: u64) -> MappedDisk {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        crate::require_root();
        let home = tempfile::Builder::new().prefix("canopy-mapped-").tempdir().expect("a directory");
        let root = home.path().canonicalize().expect("a path");
        let (image, point) = (root.join("image"), root.join("fs"));
        fs::create_dir(&point).expect("a mount point");
        File::create(&image).and_then(|file| file.set_len(size)).expect("a sparse image");
        let made = run("losetup", ["--find".as_ref(), "--show".as_ref(), image.as_os_str()]);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut disk = MappedDisk {
            home: Some(home),
            point,
            name: format!("canopy-{}-{number}", std::process::id()),
            loop_device: made.trim().into(),
            sectors: size / SECTOR,
            mounted: false,
        };
        let table = disk.table(Medium::Healthy);
        run("dmsetup", ["create", &disk.name, "--noudevsync", "--noudevrules", &table]);
        run("dmsetup", ["mknodes", &disk.name]);
        let device = disk.device();
        run("mkfs.ext4", ["-q".as_ref(), "-m".as_ref(), "0".as_ref(), device.as_os_str()]);
        disk.mount();
        disk
    }

    /// Where it is mounted. It contains `lost+found`.
    pub fn path(&self) -> &Path {
        &self.point
    }

    pub fn device(&self) -> PathBuf {
        Path::new("/dev/mapper").join(&self.name)
    }

    /// Sets what the device does with requests from now on.
    ///
    /// # Panics
    /// If device mapper refuses.
    #[track_caller]
    pub fn set(&self, medium: Medium) {
        // Neither waits for requests, nor for the filesystem to be frozen, which could take as long as the disk hangs.
        run("dmsetup", ["suspend", "--nolockfs", "--noflush", "--noudevsync", &self.name]);
        if medium != Medium::Hangs {
            run("dmsetup", ["load", &self.name, &self.table(medium)]);
            run("dmsetup", ["resume", "--noudevsync", &self.name]);
        }
    }

    /// Mounts the filesystem.
    #[track_caller]
    pub fn mount(&mut self) {
        let device = self.device();
        // By default ext4 writes inode tables in the background, which would keep a slow disk busy.
        run("mount", [
            "-t".as_ref(),
            "ext4".as_ref(),
            "-o".as_ref(),
            "noinit_itable".as_ref(),
            device.as_os_str(),
            self.point.as_os_str(),
        ]);
        self.mounted = true;
    }

    /// Unmounts the filesystem.
    ///
    /// # Panics
    /// If it stays busy.
    #[track_caller]
    pub fn unmount(&mut self) {
        self.try_unmount().unwrap_or_else(|message| panic!("{message}"));
    }

    /// Writes a table for dmsetup, and returns the path of its file.
    fn table(&self, medium: Medium) -> String {
        let (sectors, device) = (self.sectors, self.loop_device.display());
        let table = match medium {
            Medium::Healthy | Medium::Hangs => format!("0 {sectors} linear {device} 0"),
            Medium::Lags(time) => format!("0 {sectors} delay {device} 0 {}", time.as_millis()),
            Medium::Fails => format!("0 {sectors} error"),
            Medium::Flaky(up, down) => format!("0 {sectors} flakey {device} 0 {up} {down}"),
            Medium::LagsUpTo(time, seed) => {
                let mut rng = Rng::new(seed);
                let most = u64::try_from(time.as_millis()).expect("a time") + 1;
                let part = sectors / PARTS;
                let line = |number: u64| {
                    let length = if number + 1 == PARTS { sectors - number * part } else { part };
                    format!("{} {length} delay {device} {0} {1}", number * part, rng.below(most))
                };
                (0..PARTS).map(line).collect::<Vec<_>>().join("\n")
            }
        };
        let file = self.point.with_file_name("table");
        fs::write(&file, table + "\n").expect("a table");
        file.into_os_string().into_string().expect("UTF-8")
    }

    fn try_unmount(&mut self) -> Result<(), String> {
        if !self.mounted {
            return Ok(());
        }
        let mut done = None;
        let gone = wait_until(PATIENCE, || {
            done = Some(run_within(Command::new("umount").arg(&self.point), PATIENCE));
            done.as_ref().is_some_and(crate::cmd::Finished::success)
        });
        self.mounted = !gone;
        let why = || done.map_or_else(String::new, |done| done.describe());
        if gone { Ok(()) } else { Err(format!("{}\n{}", why(), proc::holders(&self.point).join("\n"))) }
    }

    fn undo(&mut self) -> Result<(), String> {
        let Some(home) = self.home.take() else { return Ok(()) };
        self.set(Medium::Healthy);
        let unmounted = self.try_unmount();
        if unmounted.is_err() {
            let _ = run_within(Command::new("umount").arg("--lazy").arg(&self.point), PATIENCE);
        }
        let step = |program: &str, args: &[&str]| {
            let done = run_within(Command::new(program).args(args), PATIENCE);
            if done.success() { Ok(()) } else { Err(format!("{program}: {}", done.describe())) }
        };
        let removed = step("dmsetup", &["remove", "--retry", "--noudevsync", &self.name]);
        let detached = step("losetup", &["--detach", &self.loop_device.display().to_string()]);
        if proc::mount_at(&self.point).is_some() {
            let _ = home.keep();
        }
        unmounted.and(removed).and(detached)
    }
}

impl Drop for MappedDisk {
    fn drop(&mut self) {
        if let Err(message) = self.undo() {
            if panicking() { eprintln!("{message}") } else { panic!("{message}") }
        }
    }
}
