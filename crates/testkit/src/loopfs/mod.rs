//! Filesystems for single tests: a sparse image on a loop device, or a tmpfs.

mod branches;
mod mapper;
mod throttle;

pub use branches::{Branches, branch_disk};
pub use mapper::Medium;
pub use throttle::Throttle;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::panicking;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, syncfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use tempfile::{TempDir, TempPath};

use crate::cmd::{PATIENCE, run, run_within, wait_until};
use crate::proc::{self, drop_dentries};
use crate::{Fault, FaultyFs, Opcode, Submount};
use mapper::Mapper;

/// The environment variable that makes all filesystems on devices lag at random, up to this many milliseconds.
const LAG: &str = "CANOPY_TEST_LAG";
const MIB: u64 = 1 << 20;

/// Returns how much every filesystem on a device lags, at most: `CANOPY_TEST_LAG`.
///
/// # Panics
/// If it is no number of milliseconds.
#[track_caller]
pub fn lag() -> Option<Duration> {
    std::env::var(LAG).ok().map(|lag| Duration::from_millis(lag.parse().expect(LAG)))
}

/// A type of filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Tmpfs,
}

impl Kind {
    /// Its name for mount(8).
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
        }
    }

    /// The smallest size that mkfs accepts.
    fn least(self) -> u64 {
        match self {
            Self::Ext4 => MIB,
            Self::Xfs => 300 * MIB,
            Self::Btrfs => 128 * MIB,
            Self::Tmpfs => 4096,
        }
    }

    fn mkfs(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => {
                &["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1"]
            }
            Self::Xfs => &["mkfs.xfs", "-q", "-f"],
            Self::Btrfs => &["mkfs.btrfs", "-q", "-f"],
            Self::Tmpfs => &[],
        }
    }

    fn mount_data(self, size: u64) -> String {
        match self {
            // By default ext4 writes inode tables in the background, which disturbs timings.
            Self::Ext4 => "noinit_itable".to_owned(),
            Self::Tmpfs => format!("size={size},mode=0755"),
            Self::Xfs | Self::Btrfs => String::new(),
        }
    }
}

/// A directory of a filesystem that stands for all of it.
#[derive(Debug)]
enum Part {
    Subvolume(PathBuf),
    Bound(Submount),
}

impl Part {
    fn path(&self) -> &Path {
        match self {
            Self::Subvolume(path) => path,
            Self::Bound(mount) => mount.path(),
        }
    }
}

/// A mounted filesystem that is unmounted, detached and deleted on drop.
#[derive(Debug)]
pub struct LoopFs {
    kind: Kind,
    /// `None` after cleanup.
    home: Option<TempDir>,
    point: PathBuf,
    /// A directory of the filesystem that stands for all of it.
    part: Option<Part>,
    /// The image, if it is not beside the mount point.
    separate_image: Option<TempPath>,
    device: Option<PathBuf>,
    /// The device on top of that, which is mounted.
    mapper: Option<Mapper>,
    /// The filesystem of the image, which lags, where there is no device mapper.
    lagging: Option<FaultyFs>,
    mounted: bool,
    /// How long the filesystem may stay busy before that counts as a leak.
    patience: Duration,
}

impl LoopFs {
    /// Makes and mounts an ext4.
    pub fn ext4(size: u64) -> Self {
        Self::new(Kind::Ext4, size)
    }

    /// Makes and mounts an XFS of at least 300 MiB.
    pub fn xfs(size: u64) -> Self {
        Self::new(Kind::Xfs, size)
    }

    /// Makes and mounts a btrfs of at least 128 MiB.
    pub fn btrfs(size: u64) -> Self {
        Self::new(Kind::Btrfs, size)
    }

    /// Mounts a tmpfs.
    pub fn tmpfs(size: u64) -> Self {
        Self::new(Kind::Tmpfs, size)
    }

    /// Makes and mounts a filesystem of `size` bytes.
    ///
    /// # Panics
    /// Without root, or if any step fails.
    #[track_caller]
    pub fn new(kind: Kind, size: u64) -> Self {
        Self::with(kind, size, &[], "")
    }

    /// Like [`LoopFs::new`], with further arguments for mkfs and further comma-separated mount options.
    #[track_caller]
    pub fn with(kind: Kind, size: u64, mkfs_args: &[&str], mount_data: &str) -> Self {
        Self::within(&std::env::temp_dir(), kind, size, mkfs_args, mount_data)
    }

    /// Like [`LoopFs::with`], with image and mount point in a new directory in `dir`.
    #[track_caller]
    pub fn within(dir: &Path, kind: Kind, size: u64, mkfs_args: &[&str], mount_data: &str) -> Self {
        Self::make(dir, None, kind, size, mkfs_args, mount_data, false)
    }

    /// Like [`LoopFs::new`], with only its image in `dir`. The image is accessed with direct I/O, so that faults of the
    /// filesystem of `dir` reach the disk.
    #[track_caller]
    pub fn with_image_in(dir: &Path, kind: Kind, size: u64) -> Self {
        let image = tempfile::Builder::new().prefix("image-").tempfile_in(dir).expect("an image");
        Self::make(&std::env::temp_dir(), Some(image.into_temp_path()), kind, size, &[], "", false)
    }

    /// Like [`LoopFs::new`], on a device that [`LoopFs::set_medium`] can make lag, hang or fail. Needs device mapper.
    #[track_caller]
    pub fn with_medium(kind: Kind, size: u64) -> Self {
        Self::make(&std::env::temp_dir(), None, kind, size, &[], "", true)
    }

    /// Like [`LoopFs::new`], with a part of the filesystem as its path: a subvolume of a btrfs, which is no mount of its own
    /// but a device of its own, or elsewhere a bind mount of a directory.
    #[track_caller]
    pub fn part(kind: Kind, size: u64) -> Self {
        let mut made = Self::new(kind, size);
        let inside = made.point.join("part");
        made.part = Some(if kind == Kind::Btrfs {
            run("btrfs", ["-q".as_ref(), "subvolume".as_ref(), "create".as_ref(), inside.as_os_str()]);
            Part::Subvolume(inside)
        } else {
            let point = made.point.with_file_name("bound");
            for dir in [&inside, &point] {
                fs::create_dir(dir).expect("a directory");
            }
            fs::set_permissions(&inside, Permissions::from_mode(0o755)).expect("chmod");
            Part::Bound(Submount::bind(&inside, &point))
        });
        made
    }

    #[track_caller]
    fn make(
        dir: &Path,
        separate_image: Option<TempPath>,
        kind: Kind,
        size: u64,
        mkfs_args: &[&str],
        mount_data: &str,
        with_medium: bool,
    ) -> Self {
        crate::require_root();
        assert!(size >= kind.least(), "{} needs at least {} bytes", kind.name(), kind.least());
        let home = tempfile::Builder::new()
            .prefix(&format!("canopy-{}-", kind.name()))
            .permissions(Permissions::from_mode(0o755))
            .tempdir_in(dir)
            .expect("a temporary directory");
        let point = home.path().canonicalize().expect("a path").join("fs");
        fs::create_dir(&point).expect("a mount point");
        let lag = lag().filter(|_| kind != Kind::Tmpfs);
        let lagging = lag.filter(|_| separate_image.is_none() && !with_medium && !mapper::is_available());
        let lagging = lagging.map(|_| FaultyFs::mount(home.path()));
        let separate_image = separate_image.or_else(|| {
            let image = tempfile::Builder::new().prefix("image-").tempfile_in(lagging.as_ref()?.path());
            Some(image.expect("an image").into_temp_path())
        });
        let direct = separate_image.is_some();
        let mut made = Self {
            kind,
            home: Some(home),
            point,
            part: None,
            separate_image,
            device: None,
            mapper: None,
            lagging,
            mounted: false,
            patience: PATIENCE,
        };
        if kind != Kind::Tmpfs {
            let image = made.image().expect("an image path");
            File::create(&image).and_then(|file| file.set_len(size)).expect("a sparse image");
            let (program, args) = kind.mkfs().split_first().expect("a mkfs program");
            let mut command = Command::new(program);
            command.args(args).args(mkfs_args).arg(&image);
            let done = run_within(&mut command, PATIENCE);
            assert!(done.success(), "{command:?}: {}", done.describe());
            let device = attach(&image, direct);
            made.device = Some(device.clone());
            if with_medium || lag.is_some() && mapper::is_available() {
                made.mapper = Some(Mapper::new(&device, made.point.parent().expect("a directory")));
            }
            match (&made.mapper, &made.lagging, lag) {
                (Some(mapper), _, Some(lag)) => mapper.set(Medium::LagsUpTo(lag, 1)),
                (None, Some(faulty), Some(lag)) => {
                    faulty.set(Fault::DelayUpTo(lag), &[Opcode::Read, Opcode::Write, Opcode::Fsync]);
                }
                _ => {}
            }
        }
        let mut data = kind.mount_data(size);
        if !mount_data.is_empty() {
            data = if data.is_empty() { mount_data.to_owned() } else { format!("{data},{mount_data}") };
        }
        made.mount(&data);
        made
    }

    fn mount(&mut self, data: &str) {
        let mapped = self.mapper.as_ref().map(Mapper::device);
        let source = mapped.or_else(|| self.device.clone()).unwrap_or_else(|| PathBuf::from("tmpfs"));
        let data = std::ffi::CString::new(data).expect("no zero byte");
        mount(&source, &self.point, self.kind.name(), MountFlags::empty(), Some(data.as_c_str()))
            .unwrap_or_else(|error| {
                panic!("mounting {} at {}: {error}", source.display(), self.point.display())
            });
        self.mounted = true;
        // Once: it would be a change each time.
        if fs::metadata(&self.point).expect("the root").mode() & 0o7777 != 0o755 {
            fs::set_permissions(&self.point, Permissions::from_mode(0o755)).expect("chmod of the root");
        }
    }

    /// The mount point, or the part of [`LoopFs::part`]. An ext4 contains `lost+found`.
    pub fn path(&self) -> &Path {
        self.part.as_ref().map_or(&self.point, Part::path)
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The loop device. A tmpfs has none.
    pub fn device(&self) -> Option<&Path> {
        self.device.as_deref()
    }

    /// The device of [`LoopFs::with_medium`], which is mounted.
    pub fn mapped_device(&self) -> Option<PathBuf> {
        self.mapper.as_ref().map(Mapper::device)
    }

    /// The image file. A tmpfs has none.
    pub fn image(&self) -> Option<PathBuf> {
        let beside = || self.point.with_file_name("image");
        (self.kind != Kind::Tmpfs).then(|| self.separate_image.as_deref().map_or_else(beside, Path::to_owned))
    }

    /// Sets what the disk does with requests from now on.
    ///
    /// # Panics
    /// Without [`LoopFs::with_medium`].
    #[track_caller]
    pub fn set_medium(&self, medium: Medium) {
        self.mapper.as_ref().expect("a disk with a medium").set(medium);
    }

    /// Remounts the filesystem read-only, as a disk with errors does by itself, or writable again.
    ///
    /// # Panics
    /// If the kernel refuses, for instance because a file stays open for writing.
    #[track_caller]
    pub fn set_read_only(&self, read_only: bool) {
        let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        let mut outcome = Err(Errno::BUSY);
        wait_until(PATIENCE, || {
            outcome = mount_remount(&self.point, flags, c"");
            outcome != Err(Errno::BUSY)
        });
        outcome.expect("remount");
    }

    /// Makes each change wait for the disk, until the next mount.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[track_caller]
    pub fn set_synchronous(&self) {
        mount_remount(&self.point, MountFlags::SYNCHRONOUS, c"").expect("remount");
    }

    /// Unmounts the filesystem. Its image stays until drop.
    ///
    /// # Panics
    /// If the filesystem stays busy.
    #[track_caller]
    pub fn unmount(&mut self) {
        if let Err(message) = self.try_unmount() {
            panic!("{message}");
        }
    }

    /// Detaches the mount at once, even if it is in use.
    #[track_caller]
    pub fn unmount_lazily(&mut self) {
        unmount(&self.point, UnmountFlags::DETACH).expect("a lazy unmount");
        self.mounted = false;
    }

    /// Mounts the filesystem again after an unmount.
    #[track_caller]
    pub fn mount_again(&mut self) {
        self.mount("");
    }

    /// Makes the kernel forget what it has cached of the filesystem and of its device, except what is in use. Dropping the
    /// caches of the whole machine would disturb other tests.
    ///
    /// # Panics
    /// If that fails, for instance on a tmpfs.
    #[track_caller]
    pub fn drop_caches(&self) {
        let root = File::open(&self.point).expect("the root");
        syncfs(root).expect("sync");
        drop_dentries(&self.point).expect("a reconfigured filesystem");
        let device = self.mapped_device().or_else(|| self.device.clone()).expect("a device");
        run("blockdev", ["--flushbufs".as_ref(), device.as_os_str()]);
    }

    /// Fills the filesystem with a file called `filler`, and leaves about `left` bytes free.
    ///
    /// # Panics
    /// If allocating fails for another reason than a lack of space.
    #[track_caller]
    pub fn fill(&self, left: u64) {
        let filler = File::create(self.point.join("filler")).expect("a file");
        let mut at = 0;
        for step in [4 << 20, 1 << 20, 64 << 10, 4 << 10] {
            loop {
                match fallocate(&filler, FallocateFlags::empty(), at, step) {
                    Ok(()) => at += step,
                    Err(Errno::NOSPC) => break,
                    Err(errno) => panic!("filling {}: {errno}", self.point.display()),
                }
            }
        }
        filler.set_len(at.saturating_sub(left)).expect("a smaller file");
        syncfs(&filler).expect("sync");
    }

    fn try_unmount(&mut self) -> Result<(), String> {
        if !self.mounted {
            return Ok(());
        }
        let mut outcome = Err(Errno::BUSY);
        wait_until(self.patience, || {
            outcome = unmount(&self.point, UnmountFlags::empty());
            outcome != Err(Errno::BUSY)
        });
        self.mounted = false;
        let Err(error) = outcome else { return Ok(()) };
        let holders = proc::holders(&self.point).join("\n  ");
        let _ = unmount(&self.point, UnmountFlags::DETACH);
        Err(format!("cannot unmount {}: {error}\n  {holders}", self.point.display()))
    }

    fn undo(&mut self) -> Result<(), String> {
        let mapper = self.mapper.take();
        mapper.iter().for_each(|mapper| mapper.set(Medium::Healthy));
        self.lagging.iter().for_each(FaultyFs::heal);
        drop(self.part.take());
        let unmounted = self.try_unmount();
        let removed_device = mapper.map_or(Ok(()), |mapper| mapper.remove());
        let image = self.image().and_then(|image| image.canonicalize().ok());
        let detached = match (self.device.take(), image) {
            (Some(device), Some(image)) => detach(&device, &image),
            _ => Ok(()),
        };
        let Some(home) = self.home.take() else { return Ok(()) };
        drop(self.separate_image.take());
        drop(self.lagging.take());
        // If the mount were still there, this would delete its files.
        let mut removed = Ok(());
        if unmounted.is_ok() && proc::mount_at(&self.point).is_none() {
            removed = home.close().map_err(|error| format!("cannot delete the image: {error}"));
        } else {
            let _ = home.keep();
        }
        unmounted.and(removed_device).and(detached).and(removed)
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        if let Err(message) = self.undo() {
            if panicking() { eprintln!("{message}") } else { panic!("{message}") }
        }
    }
}

/// Attaches an image to a free loop device. Retries, because another process may take the same device first.
#[track_caller]
fn attach(image: &Path, direct: bool) -> PathBuf {
    let mut last = String::new();
    for _ in 0..10 {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).args(direct.then_some("--direct-io=on")).arg(image);
        let done = run_within(&mut command, PATIENCE);
        if done.success() {
            return PathBuf::from(done.stdout.trim());
        }
        last = done.describe();
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no loop device for {}: {last}", image.display())
}

fn detach(device: &Path, image: &Path) -> Result<(), String> {
    let done = run_within(Command::new("losetup").arg("--detach").arg(device), PATIENCE);
    if !done.success() {
        return Err(format!("cannot detach {}: {}", device.display(), done.describe()));
    }
    // The kernel detaches the device once no process (such as udev or blkid) has it open. By then another test may have
    // attached another image to it.
    let gone = wait_until(PATIENCE, || {
        !proc::loop_devices().iter().any(|(known, file)| known == device && file == image)
    });
    if gone { Ok(()) } else { Err(format!("{} stays attached", device.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_lifecycle(kind: Kind, size: u64) {
        let disk = LoopFs::new(kind, size);
        let (point, device, image) =
            (disk.path().to_owned(), disk.device().map(Path::to_owned), disk.image());
        assert_eq!(proc::mount_at(&point).expect("a mount").kind, kind.name());
        fs::write(point.join("file"), b"contents").expect("a write");
        if let Some(image) = &image {
            use std::os::unix::fs::MetadataExt;
            let allocated = fs::metadata(image).expect("an image").blocks() * 512;
            assert!(allocated < size, "the image is not sparse: {allocated} bytes");
        }
        drop(disk);
        assert!(!point.exists() && proc::mount_at(&point).is_none());
        assert!(image.is_none_or(|image| !image.exists()));
        if let Some(device) = device {
            let name = |(known, file): &(PathBuf, PathBuf)| *known == device && file.starts_with(&point);
            assert!(!proc::loop_devices().iter().any(name));
        }
    }

    #[test]
    fn an_ext4_is_mounted_and_removed() {
        check_lifecycle(Kind::Ext4, 64 * MIB);
    }

    #[test]
    fn an_xfs_is_mounted_and_removed() {
        check_lifecycle(Kind::Xfs, 320 * MIB);
    }

    #[test]
    fn a_btrfs_is_mounted_and_removed() {
        check_lifecycle(Kind::Btrfs, 256 * MIB);
    }

    #[test]
    fn a_tmpfs_is_mounted_and_removed() {
        check_lifecycle(Kind::Tmpfs, 8 * MIB);
    }

    #[test]
    fn a_part_of_a_filesystem_is_a_subvolume_or_a_bind_mount_and_is_removed() {
        use std::os::unix::fs::MetadataExt;
        for (kind, is_mount) in [(Kind::Btrfs, false), (Kind::Xfs, true)] {
            let disk = LoopFs::part(kind, kind.least());
            let (part, whole) = (disk.path().to_owned(), disk.point.clone());
            fs::write(part.join("file"), b"contents").expect("a write");
            assert!(whole.join("part/file").exists());
            assert_eq!(proc::mount_at(&part).is_some(), is_mount, "{kind:?}");
            let device = |path: &Path| fs::metadata(path).expect("a directory").dev();
            assert_eq!(device(&part) == device(&whole), is_mount, "{kind:?}");
            drop(disk);
            assert!(!part.exists() && !whole.exists());
            assert!(proc::mount_at(&part).is_none() && proc::mount_at(&whole).is_none());
        }
    }

    #[test]
    fn a_filesystem_is_full_at_its_size() {
        let disk = LoopFs::tmpfs(MIB);
        let error = fs::write(disk.path().join("big"), vec![0; 2 << 20]).expect_err("too big");
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_filesystem_turns_read_only_and_writable_again() {
        let disk = LoopFs::ext4(32 * MIB);
        disk.set_read_only(true);
        let error = fs::write(disk.path().join("file"), b"").expect_err("read-only");
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        disk.set_read_only(false);
        fs::write(disk.path().join("file"), b"").expect("writable again");
    }

    #[test]
    fn a_held_file_is_reported_and_still_cleaned_up() {
        let mut disk = LoopFs::tmpfs(MIB);
        let point = disk.path().to_owned();
        // The file is held for as long as the drop lasts.
        disk.patience = Duration::from_millis(100);
        let held = File::create(point.join("held")).expect("a file");
        let outcome = std::panic::catch_unwind(move || drop(disk));
        let message = outcome.expect_err("the drop must complain");
        let message = message.downcast_ref::<String>().expect("a message");
        assert!(message.contains("holds") && message.contains("held"), "{message}");
        assert!(proc::mount_at(&point).is_none());
        drop(held);
        fs::remove_dir(&point).and_then(|()| fs::remove_dir(point.parent().expect("home"))).expect("clean");
    }
}
