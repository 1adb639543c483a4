//! A disk of the pool. Its filesystem is mounted aside, and bound to where the pool has its branch, so that the mount can
//! disappear there while the driver still sees what is on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use canopy_testkit::cmd::{run, run_within};
use canopy_testkit::{Fault, FaultyFs, Kind, LoopFs, Opcode, PATIENCE, ScratchDir, Submount};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};

use crate::plan::Make;
use crate::script::Refused;

enum Store {
    Real(LoopFs),
    /// With the directory that holds it.
    Faulty {
        faulty: FaultyFs,
        _dir: ScratchDir,
    },
}

pub(crate) struct Disk {
    /// Where the branch is.
    point: PathBuf,
    // Before the store: it is unmounted first.
    bound: Option<Submount>,
    store: Store,
    picture: Option<PathBuf>,
    /// A directory in the pool's root that only this disk has, by which one sees whether the pool uses the disk.
    pub(crate) sign: String,
    pub(crate) read_only: bool,
    /// How often its mount has disappeared.
    pub(crate) pulls: usize,
}

impl Disk {
    pub(crate) fn new(make: Make, home: &Path, number: usize) -> Self {
        let point = home.join(format!("disk{number}"));
        fs::create_dir(&point).expect("a mount point");
        let store = match make {
            Make::Real { kind: Kind::Ext4, size } if size < 16 << 20 => {
                // As small filesystems are: attributes beyond a few bytes need a block.
                let args = ["-b", "1024", "-I", "256", "-O", "^has_journal", "-N", "400"];
                Store::Real(LoopFs::with(Kind::Ext4, size, &args, ""))
            }
            Make::Real { kind, size } => Store::Real(LoopFs::new(kind, size)),
            Make::Faulty => {
                let dir = ScratchDir::new("canopy-storm-faulty-", &[]);
                Store::Faulty { faulty: FaultyFs::mount(&dir.dir()), _dir: dir }
            }
        };
        let sign = format!("on-disk{number}");
        let mut disk = Self { point, bound: None, store, picture: None, sign, read_only: false, pulls: 0 };
        let found = disk.contents().join("lost+found");
        if found.exists() {
            fs::remove_dir(found).expect("rmdir of lost+found");
        }
        fs::create_dir(disk.contents().join(&disk.sign)).expect("a directory");
        disk.bind();
        disk
    }

    /// The branch.
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// What is on the disk, wherever the disk is.
    pub(crate) fn contents(&self) -> &Path {
        match &self.store {
            Store::Real(real) => real.path(),
            Store::Faulty { faulty, .. } => faulty.backing_dir(),
        }
    }

    /// How its filesystem is called.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.store {
            Store::Real(real) => real.kind().name(),
            Store::Faulty { .. } => "faulty",
        }
    }

    fn bind(&mut self) {
        let from = match &self.store {
            Store::Real(real) => real.path(),
            Store::Faulty { faulty, .. } => faulty.path(),
        };
        self.bound = Some(Submount::bind(from, &self.point));
    }

    /// Its mount disappears, whoever uses it.
    pub(crate) fn pull(&mut self) {
        unmount(&self.point, UnmountFlags::DETACH).expect("a lazy unmount");
        self.pulls += 1;
        std::mem::forget(self.bound.take());
    }

    pub(crate) fn put_back(&mut self) {
        if self.bound.is_none() {
            self.bind();
        }
    }

    pub(crate) fn is_pulled(&self) -> bool {
        self.bound.is_none()
    }

    /// Makes the branch read-only, and nothing else of the filesystem.
    pub(crate) fn set_read_only(&mut self, on: bool) -> bool {
        let flags = MountFlags::BIND | if on { MountFlags::RDONLY } else { MountFlags::empty() };
        let done = self.bound.is_some() && mount_remount(&self.point, flags, c"").is_ok();
        if done {
            self.read_only = on;
        }
        done
    }

    /// Attributes of files cannot be read any more.
    pub(crate) fn lose_attributes(&self) {
        if let Store::Faulty { faulty, .. } = &self.store {
            faulty.set(Fault::Fail(Errno::BADMSG), &[Opcode::Getxattr, Opcode::Listxattr]);
        }
    }

    /// What files hold cannot be read any more.
    pub(crate) fn lose_contents(&self) {
        if let Store::Faulty { faulty, .. } = &self.store {
            faulty.set(Fault::Fail(Errno::IO), &[Opcode::Read]);
        }
    }

    /// Changes of what is on it fail from now on.
    pub(crate) fn refuse(&self, what: Refused) {
        let Store::Faulty { faulty, .. } = &self.store else { return };
        match what {
            Refused::Data => faulty.refuse_data(true),
            Refused::Syncs => faulty.refuse_syncs(),
            Refused::Writes => faulty.refuse_data(false),
            Refused::Changes => faulty.refuse_changes(),
        }
    }

    pub(crate) fn heal(&self) {
        if let Store::Faulty { faulty, .. } = &self.store {
            faulty.heal();
        }
    }

    /// Fills the disk, or removes what fills it.
    pub(crate) fn fill(&self, full: bool) {
        let Store::Real(real) = &self.store else { return };
        if full {
            real.fill(0);
        } else {
            let _ = fs::remove_file(real.path().join("filler"));
        }
    }

    /// Keeps an image of the disk.
    pub(crate) fn take_picture(&mut self) {
        let Store::Real(real) = &self.store else { return };
        let Some(image) = real.image().filter(|_| real.kind() == Kind::Ext4) else { return };
        let picture = image.with_extension("picture");
        run("fsfreeze", ["-f".as_ref(), real.path().as_os_str()]);
        let done = run_within(Command::new("cp").arg("--sparse=always").arg(&image).arg(&picture), PATIENCE);
        run("fsfreeze", ["-u".as_ref(), real.path().as_os_str()]);
        assert!(done.success(), "{}", done.describe());
        self.picture = Some(picture);
    }

    /// Becomes what the disk was when its picture was taken. It must be away. Returns false without a picture.
    pub(crate) fn become_older(&mut self) -> bool {
        let Some(picture) = self.picture.take() else { return false };
        let Store::Real(real) = &mut self.store else { return false };
        let image = real.image().expect("an image");
        drop(self.bound.take());
        real.unmount();
        // The device caches the image.
        run("cp", ["--sparse=never".as_ref(), picture.as_os_str(), image.as_os_str()]);
        run("blockdev", ["--flushbufs".as_ref(), real.device().expect("a device").as_os_str()]);
        real.mount_again();
        self.bind();
        true
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.heal();
        if let Some(picture) = &self.picture {
            let _ = fs::remove_file(picture);
        }
    }
}
