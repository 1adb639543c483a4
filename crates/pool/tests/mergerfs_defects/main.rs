//! Defects that other pool filesystems have or had, and what this one promises instead. A comment above a test describes
//! the defect.

#[path = "../common/mod.rs"]
mod common;

mod confinement;
mod copies;
mod directories;
mod exdev;
mod files;
mod follow_symlinks;
mod rename;

use canopy_base::ids::{HandleId, NodeId};
use canopy_policy::{Category, Policy};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Caller, Pool, WriteKind};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::path::Path;

/// Returns a configuration that creates files on the first branch.
fn create_first() -> Config {
    create_by(Policy::Ff)
}

/// Returns a configuration that creates files on the last branch: all have equal space, and `mfs` takes the last of
/// those.
fn create_last() -> Config {
    create_by(Policy::Mfs)
}

fn create_by(policy: Policy) -> Config {
    let mut config = Config::default();
    config.policies.set_category(Category::Create, policy);
    config
}

const USER: Caller = Caller { uid: 1000, gid: 1000, pid: 0, umask: 0o022 };

fn errno<T: std::fmt::Debug>(result: canopy_base::error::Result<T>) -> Errno {
    result.expect_err("an error").errno()
}

fn open(pool: &Pool, node: NodeId, flags: OFlags) -> HandleId {
    ops::data::open::open(pool, &common::ROOT, node, flags.bits(), false).expect("open").handle
}

fn read(pool: &Pool, handle: HandleId) -> String {
    let mut buffer = [0xEE; 100];
    let count = ops::data::io::read(pool, handle, 0, &mut buffer).expect("read");
    String::from_utf8(buffer[..count].to_vec()).expect("text")
}

fn write(pool: &Pool, handle: HandleId, content: &str) {
    let count =
        ops::data::io::write(pool, handle, 0, content.as_bytes(), WriteKind::default()).expect("write");
    assert_eq!(count, content.len());
}

/// Returns the names in a directory of the pool, sorted, without `.` and `..`.
fn names(pool: &Pool, node: NodeId) -> Vec<String> {
    let mut names = Vec::new();
    let take = |entry: canopy_pool::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    };
    ops::readdir::readdir(pool, node, 0, take).expect("readdir");
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

/// Returns the names in a directory on a branch, sorted.
fn names_on(path: impl AsRef<Path>) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("entry").file_name().into_string();
    let mut names: Vec<String> =
        fs::read_dir(path).expect("a directory").map(|e| name(e).expect("text")).collect();
    names.sort();
    names
}
