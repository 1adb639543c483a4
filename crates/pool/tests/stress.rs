//! Many threads that work in the same few directories: nothing panics, hangs, leaks or is lost.
//!
//! `CANOPY_STRESS_SECONDS` sets how long each test runs.

mod common;

use canopy_base::error::Error;
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::Mode::{Nc, Rw};
use canopy_policy::{Category, Policy, ThreadRandom};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Entry, Pool, RenameKind, SetAttr, WriteKind};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fields, PATIENCE, Rng, Tree};
use common::{Made, ROOT, TestKernel, pool};
use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 8;
const DIRS: [&str; 6] = ["", "a", "b", "a/c", "b/c", "a/c/d"];
const NAMES: [&str; 6] = ["a", "b", "c", "d", "f", "g"];

/// The kernel's inode locks. It changes a directory under that directory's exclusive lock (Documentation/filesystems/
/// directory-locking.rst), but revalidates names without a lock.
struct Inodes {
    locks: Mutex<HashMap<NodeId, Arc<RwLock<()>>>>,
    /// `s_vfs_rename_mutex`
    renames: Mutex<()>,
    /// False for clients that share no locks, such as two mounts or an NFS server.
    locking: bool,
}

impl Inodes {
    fn exclusive<T>(&self, nodes: &[NodeId], work: impl FnOnce() -> T) -> T {
        if !self.locking {
            return work();
        }
        let mut nodes = nodes.to_vec();
        nodes.sort();
        nodes.dedup();
        let locks: Vec<_> =
            nodes.iter().map(|node| self.locks.lock().entry(*node).or_default().clone()).collect();
        let _held: Vec<_> = locks.iter().map(|lock| lock.write()).collect();
        work()
    }
}

struct Worker<'a> {
    pool: &'a Pool,
    inodes: &'a Inodes,
    rng: Rng,
    refs: HashMap<NodeId, u64>,
    files: Vec<(NodeId, HandleId)>,
    dirs: Vec<NodeId>,
    done: u64,
    stale: u64,
}

type Step = Result<(), Error>;

impl Worker<'_> {
    fn count_lookup(&mut self, entry: Entry) -> NodeId {
        *self.refs.entry(entry.node).or_default() += 1;
        entry.node
    }

    fn name(&mut self) -> &'static [u8] {
        self.rng.pick(&NAMES).as_bytes()
    }

    /// Looks up a random directory, component by component.
    fn dir(&mut self) -> Result<NodeId, Error> {
        let mut at = NodeId::ROOT;
        for name in self.rng.pick(&DIRS).split('/').filter(|name| !name.is_empty()) {
            let entry = ops::names::lookup::lookup(self.pool, at, name.as_bytes())?;
            at = self.count_lookup(entry);
            if !entry.attr.is_dir() {
                return Err(Error::NotDirectory);
            }
        }
        Ok(at)
    }

    fn child(&mut self) -> Result<(NodeId, &'static [u8], Entry), Error> {
        let (dir, name) = (self.dir()?, self.name());
        let entry = ops::names::lookup::lookup(self.pool, dir, name)?;
        self.count_lookup(entry);
        Ok((dir, name, entry))
    }

    fn step(&mut self) -> Step {
        match self.rng.index(20) {
            0..3 => self.make(),
            3..6 => self.create(),
            6 | 7 => self.remove(),
            8..11 => self.rename(),
            11 => self.link(),
            12 | 13 => self.open(),
            14 | 15 => self.use_file(),
            16 => self.list(),
            17 => self.change(),
            18 => self.close(),
            _ => {
                self.forget(false);
                Ok(())
            }
        }
    }

    fn make(&mut self) -> Step {
        let (dir, name, kind) = (self.dir()?, self.name(), self.rng.index(4));
        let pool = self.pool;
        let made = self.inodes.exclusive(&[dir], || match kind {
            0 => ops::names::create::symlink(pool, &ROOT, dir, name, b"target"),
            1 => ops::names::create::mknod(pool, &ROOT, dir, name, 0o100_644, (0, 0)),
            _ => ops::names::create::mkdir(pool, &ROOT, dir, name, 0o755),
        })?;
        self.count_lookup(made);
        Ok(())
    }

    fn create(&mut self) -> Step {
        let (dir, name, pool) = (self.dir()?, self.name(), self.pool);
        let mut flags = OFlags::RDWR;
        flags.set(OFlags::EXCL, self.rng.chance(500));
        let made = self
            .inodes
            .exclusive(&[dir], || ops::data::create::create(pool, &ROOT, dir, name, 0o644, flags.bits()))?;
        let node = self.count_lookup(made.0);
        self.files.push((node, made.1.handle));
        Ok(())
    }

    fn remove(&mut self) -> Step {
        let (dir, name, entry) = self.child()?;
        let pool = self.pool;
        self.inodes.exclusive(&[dir, entry.node], || {
            if entry.attr.is_dir() {
                ops::names::remove::rmdir(pool, dir, name)
            } else {
                ops::names::remove::unlink(pool, dir, name)
            }
        })
    }

    fn rename(&mut self) -> Step {
        let (dir, name, entry) = self.child()?;
        let (to, new, pool) = (self.dir()?, self.name(), self.pool);
        let kind = *self.rng.pick(&[
            RenameKind::Replace,
            RenameKind::Replace,
            RenameKind::NoReplace,
            RenameKind::Exchange,
        ]);
        let _renames = self.inodes.locking.then(|| self.inodes.renames.lock());
        if (dir, name) == (to, new) {
            return Ok(());
        }
        self.inodes.exclusive(&[dir, to, entry.node], || {
            ops::names::rename::rename(pool, &ROOT, dir, name, to, new, kind)
        })
    }

    fn link(&mut self) -> Step {
        let (_, _, entry) = self.child()?;
        let (to, new, pool) = (self.dir()?, self.name(), self.pool);
        if entry.attr.is_dir() || entry.node == to {
            return Ok(());
        }
        let linked = self
            .inodes
            .exclusive(&[to, entry.node], || ops::names::link::link(pool, &ROOT, entry.node, to, new))?;
        self.count_lookup(linked);
        Ok(())
    }

    fn open(&mut self) -> Step {
        let (_, _, entry) = self.child()?;
        if entry.attr.is_dir() {
            ops::readdir::opendir(self.pool, entry.node)?;
            self.dirs.push(entry.node);
        } else if entry.attr.is_regular() {
            let opened = ops::data::open::open(self.pool, &ROOT, entry.node, OFlags::RDWR.bits(), false)?;
            self.files.push((entry.node, opened.handle));
        }
        Ok(())
    }

    fn use_file(&mut self) -> Step {
        if self.files.is_empty() {
            return Ok(());
        }
        let (node, handle) = *self.rng.pick(&self.files);
        let mut buffer = [0; 100];
        let offset = self.rng.below(5000);
        match self.rng.index(4) {
            0 => ops::data::io::write(self.pool, handle, offset, &buffer, WriteKind::default()).map(drop),
            1 => ops::data::io::read(self.pool, handle, offset, &mut buffer).map(drop),
            // An open file has attributes even after its names are removed.
            2 => ops::names::lookup::getattr(self.pool, node, Some(handle)).map(drop),
            _ => match ops::names::lookup::getattr(self.pool, node, None) {
                Err(error) => panic!("no attributes of an open file: {error}"),
                Ok(_) => Ok(()),
            },
        }
    }

    fn list(&mut self) -> Step {
        if self.dirs.is_empty() {
            return Ok(());
        }
        let dir = *self.rng.pick(&self.dirs);
        if self.rng.chance(500) {
            return ops::readdir::readdir(self.pool, dir, 0, |_| true).map(drop);
        }
        let mut found = Vec::new();
        let take = |_: canopy_pool::DirEntry<'_>, entry| {
            found.extend(entry);
            Duration::ZERO
        };
        ops::readdir::readdirplus(self.pool, dir, 0, |_| true, take)?;
        for entry in found {
            self.count_lookup(entry);
        }
        Ok(())
    }

    fn change(&mut self) -> Step {
        let (_, _, entry) = self.child()?;
        if entry.attr.is_symlink() {
            return ops::names::lookup::readlink(self.pool, entry.node).map(drop);
        }
        let (pool, mode) = (self.pool, 0o700 + self.rng.below(64) as u32);
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.inodes
            .exclusive(&[entry.node], || ops::attrs::setattr::setattr(pool, &ROOT, entry.node, None, &set))
            .map(drop)
    }

    fn close(&mut self) -> Step {
        while self.files.len() > 5 {
            let (_, handle) = self.files.swap_remove(self.rng.index(self.files.len()));
            ops::data::open::release(self.pool, handle)?;
        }
        while self.dirs.len() > 5 {
            self.dirs.swap_remove(self.rng.index(self.dirs.len()));
        }
        Ok(())
    }

    fn forget(&mut self, all: bool) {
        let open: Vec<NodeId> =
            self.files.iter().map(|(node, _)| *node).chain(self.dirs.iter().copied()).collect();
        let gone: Vec<NodeId> = self.refs.keys().copied().filter(|id| all || !open.contains(id)).collect();
        for node in gone {
            if let Some(count) = self.refs.remove(&node) {
                ops::names::lookup::forget(self.pool, node, count);
            }
        }
    }

    fn run(&mut self, end: Instant) {
        while Instant::now() < end {
            self.done += 1;
            match self.step().map_err(Error::errno) {
                Ok(()) => {}
                Err(Errno::STALE) => self.stale += 1,
                // Another thread changed the name between the lookup and the operation.
                Err(
                    Errno::NOENT
                    | Errno::EXIST
                    | Errno::NOTEMPTY
                    | Errno::NOTDIR
                    | Errno::ISDIR
                    | Errno::INVAL
                    | Errno::PERM
                    | Errno::MLINK,
                ) => {}
                Err(errno) => panic!("an operation failed with {errno}"),
            }
        }
        for (_, handle) in std::mem::take(&mut self.files) {
            ops::data::open::release(self.pool, handle).expect("release");
        }
        self.dirs.clear();
        self.forget(true);
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

fn stress(locking: bool, create: Policy) -> Made {
    let seconds =
        std::env::var("CANOPY_STRESS_SECONDS").ok().map_or(3, |text| text.parse().expect("seconds"));
    let mut config = Config::default();
    config.policies.set_category(Category::Create, create);
    let made = pool(&[Rw, Rw, Rw], config);
    ops::settings::connect(&made.pool, Arc::new(TestKernel::default()), false);
    let inodes = Inodes { locks: Mutex::default(), renames: Mutex::default(), locking };
    // The thread that looks belongs to the process, and has a descriptor of its own.
    canopy_branch::tend::start().expect("a thread");
    let before = descriptors();
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, inodes) = (&*made.pool, &inodes);
            scope.spawn(move || {
                ThreadRandom::seed(thread);
                let mut worker = Worker {
                    pool,
                    inodes,
                    rng: Rng::new(thread),
                    refs: HashMap::new(),
                    files: Vec::new(),
                    dirs: Vec::new(),
                    done: 0,
                    stale: 0,
                };
                worker.run(end);
                println!("thread {thread}: {} operations, {} stale", worker.done, worker.stale);
            });
        }
    });
    assert_eq!(ops::settings::counts(&made.pool), (1, 0), "nodes or files are left in the pool");
    // Idle files stay open for a while.
    assert!(wait_until(PATIENCE, || descriptors() <= before), "descriptors stay open");
    made
}

/// Runs both cases one after the other, since each counts the descriptors of the process.
#[test]
fn concurrent_operations_lose_and_leak_nothing() {
    let made = stress(true, Policy::Rand);
    let mut client = made.client();
    let pool = client.tree().expect("a tree");
    client.end().expect("nothing left");
    let fields = Fields { root: true, ..Fields::default() };
    let branches: Vec<Tree> = made.branches.iter().map(|branch| Tree::capture_with(branch, fields)).collect();
    Tree::union(&branches).expect("every file on one branch").assert_same(&pool);

    // Without the kernel's locks a name may be created on two branches. Nothing else may go wrong.
    let made = stress(false, Policy::Rand);
    let mut client = made.client();
    client.tree().expect("a tree");
    client.end().expect("nothing left");
}

/// An operation goes by the settings that it began with: a policy that is changed meanwhile does not choose among branches
/// that were looked at for another.
#[test]
fn a_policy_that_changes_refuses_no_creation() {
    let config = |policy| {
        let mut config = Config { min_free: 0, ..Config::default() };
        config.policies.set_category(Category::Create, policy);
        config
    };
    let made = pool(&[Nc, Rw], config(Policy::Rand));
    std::fs::create_dir(made.on(0, "d")).expect("a directory");
    let dir = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"d").expect("the directory").node;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for policy in [Policy::MspMfs, Policy::Rand] {
                    ops::settings::reconfigure(&made.pool, config(policy));
                }
            }
        });
        let created = (0..8_000_u32).try_for_each(|number| {
            let flags = (OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).bits();
            let (entry, opened) = ops::data::create::create(
                &made.pool,
                &ROOT,
                dir,
                number.to_string().as_bytes(),
                0o644,
                flags,
            )?;
            ops::data::open::release(&made.pool, opened.handle)?;
            ops::names::lookup::forget(&made.pool, entry.node, 1);
            ops::names::remove::unlink(&made.pool, dir, number.to_string().as_bytes())
        });
        ended.store(true, Ordering::Relaxed);
        assert_eq!(created, Ok(()));
    });
}
