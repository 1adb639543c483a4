//! Capturing the whole tree of a pool as testkit's `Tree`.

use super::client::{CALLER, Client};
use canopy_base::ids::NodeId;
use canopy_branch::fs::stat::Attr;
use canopy_pool::ops;
use canopy_testkit::Tree;
use canopy_testkit::tree::{Entry, Kind, hash};
use std::collections::BTreeMap;

type Answer<T> = Result<T, String>;

fn context<T>(what: &str, result: canopy_base::error::Result<T>) -> Answer<T> {
    result.map_err(|error| format!("{what}: {error}"))
}

impl Client {
    /// Captures the tree. The error says where the pool contradicts itself.
    pub fn tree(&mut self) -> Answer<Tree> {
        let mut tree = Tree::default();
        let mut links: BTreeMap<NodeId, Vec<Vec<u8>>> = BTreeMap::new();
        let mut numbers: BTreeMap<u64, NodeId> = BTreeMap::new();
        let mut to_do = vec![String::new()];
        while let Some(path) = to_do.pop() {
            let found = self.walk(&path).map_err(|errno| format!("{path} is listed: {errno}"))?;
            let (node, attr) = (found.node, found.attr);
            let owner = *numbers.entry(attr.ino).or_insert(node);
            if owner != node {
                return Err(format!("{path}, {node}, has the inode number {} of {owner}", attr.ino));
            }
            let entry = self.entry(node, &attr)?;
            if attr.is_dir() {
                context("opendir", ops::readdir::opendir(&self.pool, node))?;
                let listed = self.entries(node, Some(&path)).map_err(|errno| format!("{path}: {errno}"))?;
                for listed in listed {
                    let name = String::from_utf8_lossy(&listed.name).into_owned();
                    match name.as_str() {
                        "." | ".." => {}
                        _ if path.is_empty() => to_do.push(name),
                        _ => to_do.push(format!("{path}/{name}")),
                    }
                }
            } else if attr.nlink > 1 {
                links.entry(node).or_default().push(path.clone().into_bytes());
            }
            if tree.entries.insert(path.clone().into_bytes(), entry).is_some() {
                return Err(format!("{path} is listed twice"));
            }
        }
        for mut names in links.into_values().filter(|names| names.len() > 1) {
            names.sort();
            for name in &names {
                if let Some(entry) = tree.entries.get_mut(name) {
                    entry.group = Some(names[0].clone());
                }
            }
        }
        Ok(tree)
    }

    fn entry(&self, node: NodeId, attr: &Attr) -> Answer<Entry> {
        let kind = match attr.dirent_type() {
            4 => Kind::Dir,
            8 => Kind::File,
            10 => Kind::Symlink,
            1 => Kind::Fifo,
            other => return Err(format!("file type {other}")),
        };
        let hash = if kind == Kind::File {
            Some(hash(&mut self.content(node)?.as_slice()).map_err(|error| error.to_string())?)
        } else {
            None
        };
        let target = match kind {
            Kind::Symlink => Some(context("readlink", ops::names::lookup::readlink(&self.pool, node))?),
            _ => None,
        };
        Ok(Entry {
            kind,
            mode: attr.mode & 0o7777,
            uid: attr.uid,
            gid: attr.gid,
            size: if matches!(kind, Kind::File | Kind::Symlink) { attr.size } else { 0 },
            hash,
            target,
            rdev: 0,
            xattrs: self.xattrs(node)?,
            mtime: Some((attr.mtime.sec, attr.mtime.nsec)),
            nlink: if kind == Kind::Dir { 0 } else { attr.nlink.into() },
            group: None,
            data: None,
        })
    }

    pub fn content(&self, node: NodeId) -> Answer<Vec<u8>> {
        let opened = context("open", ops::data::open::open(&self.pool, &CALLER, node, 0, false))?;
        let mut content = Vec::new();
        let mut buffer = [0xEE; 5000];
        loop {
            match context(
                "read",
                ops::data::io::read(&self.pool, opened.handle, content.len() as u64, &mut buffer),
            )? {
                0 => break,
                count => content.extend_from_slice(&buffer[..count]),
            }
        }
        context("release", ops::data::open::release(&self.pool, opened.handle))?;
        Ok(content)
    }

    fn xattrs(&self, node: NodeId) -> Answer<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut list = [0; 4096];
        let count = context("listxattr", ops::attrs::xattr::listxattr(&self.pool, &CALLER, node, &mut list))?;
        let names = list[..count].split(|&b| b == 0).filter(|name| !name.is_empty());
        let value = |name: &[u8]| -> Answer<Vec<u8>> {
            let mut value = vec![0; 4096];
            let count = context("getxattr", ops::attrs::xattr::getxattr(&self.pool, node, name, &mut value))?;
            value.truncate(count);
            Ok(value)
        };
        names.map(|name| Ok((name.to_vec(), value(name)?))).collect()
    }
}
