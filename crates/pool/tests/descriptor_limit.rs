//! A pool whose process has reached its limit of descriptors. This is a program of its own because the limit applies to
//! the process.

use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::Mode::Rw;
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Pool, RenameKind, SetAttr};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::sync::Arc;

mod common;

use common::{ROOT, TestKernel};

const LIMIT: u64 = 400;

fn names(pool: &Pool, node: NodeId) -> canopy_base::error::Result<Vec<String>> {
    ops::readdir::opendir(pool, node)?;
    let mut names = Vec::new();
    let listed = ops::readdir::readdir(pool, node, 0, |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    });
    names.retain(|name| name != "." && name != "..");
    names.sort();
    listed.map(|_| names)
}

/// Clients can use up the descriptors for open files. Everything that opens no file for a client still works.
#[test]
fn without_free_descriptors_listing_removing_and_truncating_still_work() {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: hard }).expect("a lower limit");
    let made = common::pool(&[Rw, Rw], Config::default());
    ops::settings::connect(&made.pool, Arc::new(TestKernel::default()), false);
    let pool = &made.pool;
    for branch in [0, 1] {
        for dir in ["deep/er", "deep/empty"] {
            fs::create_dir_all(made.on(branch, dir)).expect("mkdir");
        }
        for many in 0..100 {
            fs::create_dir(made.on(branch, &format!("d{many}"))).expect("mkdir");
        }
        for name in ["f", "deep/er/one", "deep/er/two"] {
            fs::write(made.on(branch, name), "content").expect("a file");
        }
    }
    let mut client = made.client();
    let file = client.walk("f").expect("lookup").node;
    let dir = client.walk("deep").expect("lookup").node;
    // The pool caches directories, and keeps them open for that.
    for many in 0..100 {
        let node = client.walk(&format!("d{many}")).expect("lookup").node;
        assert_eq!(names(pool, node).expect("a listing").len(), 0);
    }
    let errno = |error: canopy_base::error::Error| error.errno();
    let create = OFlags::CREATE.bits() | OFlags::RDWR.bits();
    // Tries each way to open a file: some need fewer descriptors than others.
    let open = |handles: &mut Vec<HandleId>| {
        for flags in [OFlags::WRONLY, OFlags::RDONLY, OFlags::RDWR] {
            loop {
                match ops::data::open::open(pool, &ROOT, file, flags.bits(), false) {
                    Ok(opened) => handles.push(opened.handle),
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::MFILE);
                        break;
                    }
                }
            }
        }
        loop {
            match ops::data::create::tmpfile(pool, &ROOT, NodeId::ROOT, 0o600, create) {
                Ok((entry, opened)) => {
                    ops::names::lookup::forget(pool, entry.node, 1);
                    handles.push(opened.handle);
                }
                Err(error) => return error.errno(),
            }
        }
    };
    let mut handles = Vec::new();
    assert_eq!(open(&mut handles), Errno::MFILE);
    // Clients get most of the descriptors.
    assert!((LIMIT as usize / 2..LIMIT as usize).contains(&handles.len()), "{} handles", handles.len());
    // Neither open directories nor listings in parts use up descriptors.
    for _ in 0..LIMIT {
        ops::readdir::readdir(pool, dir, 0, |entry| entry.name == b".").expect("a part of a listing");
    }

    for round in 0..3 {
        let created = ops::data::create::create(pool, &ROOT, dir, b"new", 0o644, create);
        assert_eq!(created.map(drop).map_err(errno), Err(Errno::MFILE), "{round}");
        assert!(!made.on(0, "deep/new").exists() && !made.on(1, "deep/new").exists());
        assert_eq!(
            ops::data::create::tmpfile(pool, &ROOT, dir, 0o600, create).map(drop).map_err(errno),
            Err(Errno::MFILE)
        );
        let read = ops::data::open::open(pool, &ROOT, file, OFlags::RDONLY.bits(), false);
        assert_eq!(read.map(drop).map_err(errno), Err(Errno::MFILE));

        let size = SetAttr { size: Some(round), ..SetAttr::default() };
        assert_eq!(
            ops::attrs::setattr::setattr(pool, &ROOT, file, None, &size).expect("truncate").size,
            round
        );
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        ops::attrs::setattr::setattr(pool, &ROOT, dir, None, &mode).expect("chmod");
        let node = ops::names::create::mkdir(pool, &ROOT, dir, b"made", 0o755).expect("mkdir").node;
        client.count_lookup(ops::names::lookup::lookup(pool, dir, b"made").expect("lookup"));
        ops::names::rename::rename(pool, &ROOT, dir, b"made", dir, b"moved", RenameKind::Replace)
            .expect("rename");
        ops::names::remove::rmdir(pool, dir, b"moved").expect("rmdir");
        ops::names::lookup::forget(pool, node, 1);
        ops::attrs::xattr::setxattr(pool, &ROOT, file, b"user.k", b"v", 0, false).expect("setxattr");
        ops::attrs::statfs::statfs(pool, NodeId::ROOT).expect("statfs");
        ops::data::io::syncfs(pool).expect("syncfs");
    }
    assert_eq!(names(pool, dir).expect("a listing"), ["empty", "er"]);
    let deeper = client.walk("deep/er").expect("lookup").node;
    assert_eq!(names(pool, deeper).expect("a listing"), ["one", "two"]);
    ops::names::remove::unlink(pool, deeper, b"one").expect("unlink");
    ops::names::remove::rmdir(pool, dir, b"empty").expect("rmdir");
    // Released descriptors can be used again.
    for handle in handles.drain(..20) {
        ops::data::open::release(pool, handle).expect("release");
    }
    let before = handles.len();
    assert_eq!(open(&mut handles), Errno::MFILE);
    assert!((15..=25).contains(&(handles.len() - before)), "{} more", handles.len() - before);
    for handle in handles {
        ops::data::open::release(pool, handle).expect("release");
    }
    client.end().expect("no references left");
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }).expect("the original limit");
}
