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
    pub meaning: &'static str,
}

/// The first is the default.
pub const WAYS: [Way; 4] = [
    Way {
        word: "spread",
        policy: "pfrd",
        meaning: "anywhere: at random, the more often the more space a disk has free",
    },
    Way { word: "most-free", policy: "mfs", meaning: "the disk with the most free space" },
    Way {
        word: "together",
        policy: "mspmfs",
        meaning: "beside its directory, as long as there is space; else as most-free",
    },
    Way { word: "fill", policy: "ff", meaning: "the first disk until it is full, then the next" },
];

/// A pool to be described.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolFile {
    pub branches: Vec<PathBuf>,
    pub mountpoint: PathBuf,
    pub way: Way,
    /// Space to leave free on each disk, as an option takes it.
    pub min_free: String,
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
        Ok(format!(
            "# Written by canopy init. `canopy options` lists what else a pool can be told.\n\
             branches = [\n{branches}]\n\
             mountpoint = {}\n\
             # Where a new file goes: {}.\n\
             \"category.create\" = {}\n\
             # A disk with less free space than this gets no new files.\n\
             minfreespace = {}\n",
            quote(&self.mountpoint)?,
            self.way.meaning,
            text(self.way.policy),
            text(&self.min_free),
        ))
    }
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
                min_free: "4G".into(),
            };
            let path = dir.path().join("media.toml");
            std::fs::write(&path, pool.render().expect("text")).expect("a file");
            let mut config = Config::default();
            file::load(&mut config, path.as_os_str()).expect("a pool");
            assert_eq!(config.branches.to_string(), "/no/disk 1=RW:/no/\"disk\" 2=RW");
            assert_eq!(config.mountpoint.as_deref(), Some(Path::new("/mnt/media")));
            let create = canopy_config::options::find("category.create").expect("an option");
            assert_eq!(create.render(&config).as_deref(), Some(way.policy));
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
