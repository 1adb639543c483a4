//! Creating a name that comes and goes on its branch: the kernel tries twice, and the second time the pool looks until it is gone.

#![forbid(unsafe_code)]

mod common;

use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::Rw;
use canopy_pool::config::Config;
use canopy_pool::kernel::{BackingFile, Kernel};
use canopy_pool::{Caller, ops};
use common::{Made, pool};
use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A kernel whose caller is asked for after each failure. Then it removes the file, once it has been asked `removes_at` times.
struct Removes {
    file: PathBuf,
    asked: AtomicU32,
    removes_at: u32,
}

impl Kernel for Removes {
    fn open_backing(&self, _: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    fn adopt_backing(&self, _: u32) -> Box<dyn BackingFile> {
        unreachable!("nothing is adopted")
    }
    fn caught_up(&self) -> bool {
        true
    }
    fn invalidate_attr(&self, _: NodeId) {}
    fn drop_pages(&self, _: NodeId) {}
    fn forget_name(&self, _: NodeId, _: &[u8]) {}
    fn caller_is_killed(&self) -> bool {
        if self.asked.fetch_add(1, Ordering::Relaxed) + 1 == self.removes_at {
            fs::remove_file(&self.file).unwrap();
        }
        false
    }
}

struct Bed {
    made: Made,
    kernel: Arc<Removes>,
}

impl Bed {
    fn new(removes_at: u32) -> Bed {
        let made = pool(&[Rw, Rw], Config::default());
        let kernel = Removes { file: made.on(0, "f"), asked: AtomicU32::new(0), removes_at };
        let kernel = Arc::new(kernel);
        ops::settings::connect(&made.pool, kernel.clone(), false);
        Bed { made, kernel }
    }

    fn create(&self, thread: u32, name: &str, flags: OFlags) -> Result<(), Error> {
        let caller = Caller { uid: 0, gid: 0, pid: thread, umask: 0 };
        let flags = (flags | OFlags::CREATE | OFlags::RDWR).bits();
        let made =
            ops::data::create::create(&self.made.pool, &caller, NodeId::ROOT, name.as_bytes(), 0o644, flags);
        let (_, opened) = made?;
        ops::data::open::release(&self.made.pool, opened.handle)
    }

    /// How often a create has been tried again.
    fn again(&self) -> u32 {
        self.kernel.asked.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn the_second_create_of_a_thread_waits_until_the_name_is_gone() {
    let bed = Bed::new(3);
    fs::write(bed.made.on(0, "f"), "of another").unwrap();
    let none = OFlags::empty();
    // The kernel looks again at once, and finds it.
    assert!(matches!(bed.create(7, "f", none), Err(Error::Exists)));
    assert_eq!(bed.again(), 0);
    // Another thread, another name, and who wants no other file, are no second tries.
    fs::write(bed.made.on(1, "g"), "").unwrap();
    assert!(matches!(bed.create(8, "f", none), Err(Error::Exists)));
    assert!(matches!(bed.create(9, "g", none), Err(Error::Exists)));
    assert!(matches!(bed.create(9, "f", none), Err(Error::Exists)));
    assert!(matches!(bed.create(7, "f", OFlags::EXCL), Err(Error::Exists)));
    assert_eq!(bed.again(), 0);
    bed.create(7, "f", none).unwrap();
    assert_eq!(bed.again(), 3);
    assert_eq!(fs::read(bed.made.on(0, "f")).unwrap_or_default(), b"");
}

/// As far as the pool knows, the branch does not have the name. The branch itself says that it does.
#[test]
fn a_name_that_has_just_come_is_a_name_that_is_there() {
    let bed = Bed::new(u32::MAX);
    bed.create(7, "before", OFlags::empty()).unwrap();
    assert!(matches!(ops::names::lookup::lookup(&bed.made.pool, NodeId::ROOT, b"f"), Err(Error::Absent)));
    // On each branch that the policy may choose.
    for branch in [0, 1] {
        fs::write(bed.made.on(branch, "f"), "of another").unwrap();
    }
    let made = bed.create(7, "f", OFlags::empty());
    assert!(matches!(made, Err(Error::Exists)), "{made:?}");
}

#[test]
fn a_name_that_stays_is_not_waited_for_for_long() {
    let bed = Bed::new(u32::MAX);
    fs::write(bed.made.on(0, "f"), "of another").unwrap();
    assert!(matches!(bed.create(7, "f", OFlags::empty()), Err(Error::Exists)));
    assert!(matches!(bed.create(7, "f", OFlags::empty()), Err(Error::Exists)));
    assert_eq!(bed.again(), 16);
    assert_eq!(fs::read(bed.made.on(0, "f")).unwrap(), b"of another");
}
