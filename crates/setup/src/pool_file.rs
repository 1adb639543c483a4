//! The description of a pool, and the ways to choose a place, in plain words.

use std::path::{Path, PathBuf};
use toml_edit::Value;

/// A way to choose the disk of a new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// The word for it on a command line.
    pub word: &'static str,
    /// The policy of `category.create`.
    pub policy: &'static str,
    /// Where a new file goes.
    pub meaning: &'static str,
    /// Another option that it needs, and why.
    also: Option<(&'static str, &'static str)>,
}

/// The first is the default.
pub const WAYS: [Way; 4] = [
    Way {
        word: "spread",
        policy: "pfrd",
        meaning: "to a random disk; emptier disks are chosen more often",
        also: None,
    },
    Way { word: "most-free", policy: "mfs", meaning: "to the disk with the most free space", also: None },
    Way {
        word: "together",
        policy: "mspmfs",
        meaning: "to a disk that has their directory, as long as there is space; then to the one with the most free space",
        also: Some((
            "ignorepponrename",
            "A file that is renamed stays on its disk, which gets the directory. Otherwise renames fail (EXDEV).",
        )),
    },
    Way {
        word: "fill",
        policy: "ff",
        meaning: "to the first disk until it is full, then to the next",
        also: None,
    },
];

/// A pool to be described.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolFile {
    pub branches: Vec<PathBuf>,
    pub mountpoint: PathBuf,
    pub way: Way,
    /// Space to leave free on each disk, in bytes.
    pub min_free: u64,
}

/// A path that a configuration file cannot hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotText(pub PathBuf);

impl PoolFile {
    /// Returns the text of the file.
    pub fn render(&self) -> Result<String, NotText> {
        let mut branches = String::new();
        for path in &self.branches {
            branches.push_str(&format!("    {},\n", quote(path)?));
        }
        let also = self.way.also.map(|(option, why)| format!("# {why}\n{option} = true\n"));
        Ok(format!(
            "# Written by canopy init. `canopy options` lists all other options.\n\
             branches = [\n{branches}]\n\
             mountpoint = {}\n\
             # New files go {}.\n\
             \"category.create\" = {}\n{}\
             # A disk with less free space than this gets no new files.\n\
             minfreespace = {}\n\
             # A disk that is missing keeps the others from nothing. It is added when it is there.\n\
             allow-missing-branches = true\n",
            quote(&self.mountpoint)?,
            self.way.meaning,
            text(self.way.policy),
            also.unwrap_or_default(),
            text(&size(self.min_free)),
        ))
    }
}

/// Writes a size in the largest unit that divides it.
fn size(bytes: u64) -> String {
    let unit = [(1_u64 << 30, "G"), (1 << 20, "M")]
        .into_iter()
        .find(|(unit, _)| bytes != 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(unit, letter)| format!("{}{letter}", bytes / unit))
}

/// Writes a path as TOML. Branches are separated by colons elsewhere, and the characters of patterns are not literal.
fn quote(path: &Path) -> Result<String, NotText> {
    let refused = |path: &str| path.contains([':', '*', '?', '[', '{', '=', '\n']);
    path.to_str().filter(|path| !refused(path)).map(text).ok_or_else(|| NotText(path.to_owned()))
}

fn text(value: &str) -> String {
    Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_config::{Config, source::file};

    #[test]
    fn what_is_written_is_what_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        for way in WAYS {
            let pool = PoolFile {
                branches: vec!["/no/disk 1".into(), "/no/\"disk\" 2".into()],
                mountpoint: "/mnt/media".into(),
                way,
                min_free: 4 << 30,
            };
            let path = dir.path().join("media.toml");
            std::fs::write(&path, pool.render().expect("text")).expect("a file");
            let mut config = Config::default();
            file::load(&mut config, path.as_os_str()).expect("a pool");
            assert_eq!(config.branches.to_string(), "/no/disk 1=RW:/no/\"disk\" 2=RW");
            assert_eq!(config.mountpoint.as_deref(), Some(Path::new("/mnt/media")));
            let create = canopy_config::options::find("category.create").expect("an option");
            assert_eq!(create.render(&config).as_deref(), Some(way.policy));
            // These directories do not exist.
            assert!(config.allow_missing);
            // Renames succeed whichever way is chosen.
            let preserves = way.policy.starts_with("ep") || way.policy.starts_with("msp");
            assert_eq!(preserves, config.pool.ignore_path_preservation);
        }
    }

    #[test]
    fn the_default_way_is_the_pools_default() {
        let create = canopy_config::options::find("category.create").expect("an option");
        assert_eq!(create.render(&Config::default()).as_deref(), Some(WAYS[0].policy));
    }

    #[test]
    fn paths_that_a_list_of_branches_cannot_hold_are_refused() {
        for path in ["/a:b", "/a*", "/a=RW"] {
            assert_eq!(quote(Path::new(path)), Err(NotText(path.into())));
        }
    }
}
