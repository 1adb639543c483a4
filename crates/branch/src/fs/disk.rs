//! What the kernel's block layer says of the disks below a branch, and whether they answer.
//!
//! A filesystem answers from memory for as long as it can, even on a disk that is dead. Two things cannot be answered
//! from memory: a read past every cache, and the counters that the block layer keeps for each disk. The counters are
//! read from /sys, without touching the disk.

use super::block_device;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// A disk or partition that holds (a part of) a filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    dev: u64,
    /// Its name in /dev, such as `sda1` or `dm-0`.
    pub name: String,
}

/// What the block layer has counted for a disk (Documentation/block/stat.rst in the kernel's source).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Activity {
    /// Requests that the disk has not answered yet.
    pub reads_in_flight: u64,
    pub writes_in_flight: u64,
    /// Requests that it has answered since it was attached, and how many of them were reads.
    pub completed: u64,
    pub reads: u64,
}

impl Disk {
    /// Returns the disks below a directory that is on the device `dev`: several for a btrfs, none for a filesystem
    /// without a disk, and where /sys does not show it. Does not touch the directory.
    pub fn below(dev: u64, dir: BorrowedFd<'_>) -> Vec<Disk> {
        block_device::numbers(dev, dir).into_iter().flatten().filter_map(Disk::new).collect()
    }

    /// As [`Branch::disks`](crate::branch::Branch::disks), for any directory.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn below_dir(dir: BorrowedFd<'_>) -> Result<Vec<Disk>, Errno> {
        Ok(Disk::below(rustix::fs::fstat(dir)?.st_dev, dir))
    }

    /// Returns its number in /sys/dev/block, as `MAJOR:MINOR`.
    pub fn number(&self) -> String {
        format!("{}:{}", rustix::fs::major(self.dev), rustix::fs::minor(self.dev))
    }

    /// Returns the disk with this name in /dev, such as `sda`.
    pub fn named(name: &str) -> Option<Disk> {
        Disk::in_sys(&Path::new("/sys/class/block").join(name))
    }

    /// Returns the disk that this directory of /sys describes.
    fn in_sys(dir: &Path) -> Option<Disk> {
        let number = fs::read_to_string(dir.join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        Disk::new(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    }

    fn new(dev: u64) -> Option<Disk> {
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        // A link to the directory of the disk, named as the disk.
        let dir = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        Some(Disk { dev, name: dir.file_name()?.to_str()?.to_owned() })
    }

    /// Returns one that need not exist.
    #[cfg(test)]
    pub(crate) fn for_tests(name: &str) -> Disk {
        Disk { dev: 0, name: name.to_owned() }
    }

    /// Reads a block of the disk, past every cache of this machine. `place` is any number: the disk has a cache of its
    /// own, so each read should have another. `None` if there is no way to read the disk: no node in /dev, no
    /// permission.
    ///
    /// Takes as long as the disk does. An error is an answer too, unless it says that the disk is missing.
    pub fn read(&self, place: u64) -> Option<Result<(), Errno>> {
        block_device::read_somewhere(self.dev, place)
    }

    /// Returns the counters of the disk; `None` once it is missing.
    pub fn activity(&self) -> Option<Activity> {
        let dir = self.dir();
        let mut activity = parse_stat(&fs::read_to_string(dir.join("stat")).ok()?)?;
        if let Ok(in_flight) = fs::read_to_string(dir.join("inflight")) {
            (activity.reads_in_flight, activity.writes_in_flight) = parse_in_flight(&in_flight)?;
        }
        Some(activity)
    }

    /// Returns how many sectors were written to the disk since it was attached, and how many discarded; `None` once it is missing.
    pub fn written(&self) -> Option<u64> {
        parse_written(&fs::read_to_string(self.dir().join("stat")).ok()?)
    }

    /// Returns whether the kernel counts what is written to the disk: whether a driver with queues of its own has it, and counting
    /// was not turned off.
    pub fn counts(&self) -> bool {
        let whole = self.own_dir();
        let says = |file: &str| fs::read_to_string(whole.join(file)).unwrap_or_default();
        whole.join("mq").exists() && says("queue/iostats").trim() == "1"
    }

    /// Returns the number of the disk, which no other has before the next reboot (Linux 5.15).
    pub fn sequence(&self) -> Option<u64> {
        fs::read_to_string(self.own_dir().join("diskseq")).ok()?.trim().parse().ok()
    }

    /// Returns the directory of the disk, or of the one that the partition is on.
    fn own_dir(&self) -> PathBuf {
        let dir = fs::canonicalize(self.dir()).unwrap_or_else(|_| self.dir());
        if dir.join("partition").exists() { dir.join("..") } else { dir }
    }

    /// Returns whether the kernel has put the disk to sleep, or is waking it (power/runtime_status). Says nothing of a
    /// disk that went to sleep by itself, which is the common case.
    pub fn is_suspended(&self) -> bool {
        let is_suspended = |device: PathBuf| {
            fs::read_to_string(device.join("power/runtime_status"))
                .is_ok_and(|status| matches!(status.trim(), "suspended" | "suspending" | "resuming"))
        };
        self.devices().into_iter().any(is_suspended)
    }

    /// Returns whether the disk turns, and so may have to spin up: a SCSI or ATA disk that calls itself rotational.
    pub fn spins(&self) -> bool {
        let turns = |disk: fs::DirEntry| {
            fs::read_to_string(disk.path().join("queue/rotational")).is_ok_and(|flag| flag.trim() == "1")
        };
        // Disks of virtual machines call themselves rotational too, but do not sleep. They are on other buses.
        let spins = |device: PathBuf| {
            let disks = fs::read_dir(device.join("block")).into_iter().flatten().flatten();
            device.join("scsi_disk").exists() && disks.into_iter().any(turns)
        };
        self.devices().into_iter().any(spins)
    }

    /// Returns whether nothing in the disk turns, so that it never has to spin up: NVMe, memory cards, and SCSI and ATA disks that
    /// do not call themselves rotational. Of disks of virtual machines, and whatever else the kernel shows as a disk, nobody knows.
    pub fn is_solid(&self) -> bool {
        let never_turns = ["nvme", "mmcblk", "pmem"].iter().any(|kind| self.name.starts_with(kind));
        let is_scsi = || self.devices().iter().any(|device| device.join("scsi_disk").exists());
        never_turns || is_scsi() && !self.spins()
    }

    /// Returns whether the disk can be asked whether it sleeps: whether its driver speaks ATA.
    pub fn speaks_ata(&self) -> bool {
        let is_ata = |device: PathBuf| {
            fs::read_to_string(device.join("vendor")).is_ok_and(|vendor| vendor.trim() == "ATA")
        };
        self.devices().into_iter().any(is_ata)
    }

    /// Returns the state of a SCSI or ATA disk if it is not `running`, such as `offline` or `blocked`.
    pub fn bad_state(&self) -> Option<String> {
        let state = |device: PathBuf| {
            let state = fs::read_to_string(device.join("state")).ok()?;
            Some(state.trim().to_owned()).filter(|state| !matches!(state.as_str(), "running" | "live" | ""))
        };
        self.devices().into_iter().find_map(state)
    }

    fn dir(&self) -> PathBuf {
        Path::new("/sys/dev/block").join(self.number())
    }

    /// Returns the whole disks of which this one is made: of a partition its disk, of a device mapper or RAID device those
    /// below it, each once.
    pub fn whole(&self) -> Vec<Disk> {
        let mut found: Vec<Disk> = Vec::new();
        for dir in self.whole_dirs() {
            let disk = Disk::in_sys(&dir);
            found.extend(disk.filter(|disk| !found.contains(disk)));
        }
        found
    }

    /// Returns the directories of the hardware below this disk: that of its whole disk, or of those that a device
    /// mapper or RAID device is made of.
    fn devices(&self) -> Vec<PathBuf> {
        self.whole_dirs().into_iter().filter_map(|dir| fs::canonicalize(dir.join("device")).ok()).collect()
    }

    /// Returns the directories in /sys of the whole disks below this one.
    fn whole_dirs(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = vec![(self.dir(), 0)];
        while let Some((dir, depth)) = open.pop() {
            let Ok(dir) = fs::canonicalize(dir) else { continue };
            // A partition lies in the directory of its disk.
            let dir = if dir.join("partition").exists() { dir.join("..") } else { dir };
            let below = fs::read_dir(dir.join("slaves")).into_iter().flatten().flatten();
            let before = open.len();
            // Loops are impossible; the limit is for a /sys that changes meanwhile.
            if depth < 8 {
                open.extend(below.map(|one| (one.path(), depth + 1)));
            }
            if open.len() == before {
                found.push(dir);
            }
        }
        found
    }
}

/// The fields are in Documentation/block/stat.rst: at 0, 4, 11 and 15 the completed reads, writes, discards and
/// flushes, at 8 those in flight.
fn parse_stat(stat: &str) -> Option<Activity> {
    let fields: Vec<u64> = stat.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let completed = [0, 4, 11, 15].into_iter().filter_map(|at| fields.get(at)).sum();
    Some(Activity {
        reads_in_flight: *fields.get(8)?,
        writes_in_flight: 0,
        completed,
        reads: *fields.first()?,
    })
}

/// The sectors are in fields 6 (written) and 13 (discarded).
fn parse_written(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(fields.get(6)? + fields.get(13).unwrap_or(&0))
}

fn parse_in_flight(in_flight: &str) -> Option<(u64, u64)> {
    let mut fields = in_flight.split_ascii_whitespace().map_while(|field| field.parse().ok());
    Some((fields.next()?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_kernel() {
        let stat = "  10  1  2  3   20  4  5  6   7  8  9   30 0 0 0   40 0\n";
        let activity = parse_stat(stat).unwrap();
        assert_eq!((activity.completed, activity.reads, activity.reads_in_flight), (100, 10, 7));
        // Before Linux 4.18 there were no discards, and before 5.5 no flushes.
        assert_eq!(parse_stat("10 1 2 3 20 4 5 6 7 8 9").unwrap().completed, 30);
        assert_eq!(parse_stat(""), None);
        assert_eq!((parse_written(stat), parse_written("1 2 3 4 5 6")), (Some(5), None));
        assert_eq!(parse_written("10 1 2 3 20 4 5 6 7 8 9 30 0 40 0 1 0"), Some(45));
        assert_eq!(parse_in_flight("       3       12\n"), Some((3, 12)));
    }

    #[test]
    fn a_missing_disk_has_no_name_and_no_counters() {
        // The highest device number (MINORBITS in include/linux/kdev_t.h).
        let dev = rustix::fs::makedev(4095, 1_048_575);
        assert_eq!(Disk::new(dev), None);
        let disk = Disk { dev, name: "none".into() };
        assert_eq!((disk.activity(), disk.is_suspended(), disk.bad_state()), (None, false, None));
        assert_eq!(disk.read(0), None);
    }
}
