//! The pools that this machine should have: those with a file, and those of fstab.

use crate::unit::{Assignment, assignments};
use canopy_config::Config;
use canopy_config::fstab::{self, Line};
use canopy_config::source::{self, file, named};
use canopy_sys::glob;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use std::path::{Path, PathBuf};

/// What mounts a pool at boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Boot {
    Fstab,
    /// The unit canopy@NAME.
    Unit,
    #[default]
    Nothing,
}

/// A pool as it is described.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    /// `None` if only a line of fstab describes it.
    pub name: Option<String>,
    /// The file that lists its branches.
    pub described_in: PathBuf,
    pub mountpoint: PathBuf,
    pub boot: Boot,
    /// What drop-ins let its unit wait for, as names of units and as paths.
    pub unit_waits_for: Vec<String>,
    /// The number of its line in fstab.
    pub line: Option<usize>,
    /// The branches that it would have now, with patterns resolved.
    pub branches: Vec<PathBuf>,
    /// Patterns that match no directory.
    pub empty_patterns: Vec<String>,
    pub mounted: bool,
}

impl Pool {
    /// Returns what to call it in a sentence.
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("the pool {name}"),
            None => format!("the pool {}", self.mountpoint.shown()),
        }
    }

    fn new(config: &Config, described_in: &Path) -> Pool {
        let mut pool = Pool { described_in: described_in.to_owned(), ..Pool::default() };
        for branch in config.branches.iter() {
            let path = &branch.path;
            if !path.to_string_lossy().contains(['*', '?', '[']) {
                pool.branches.push(path.clone());
                continue;
            }
            let matching = glob::directories(path.as_os_str()).unwrap_or_default();
            if matching.is_empty() {
                pool.empty_patterns.push(path.shown().to_string());
            }
            pool.branches.extend(matching);
        }
        pool.mountpoint = config.mountpoint.clone().unwrap_or_default();
        pool
    }
}

/// Returns the pools that files in /etc/canopy and the lines of `fstab_file` describe. `units` is the directory of systemd's
/// units.
pub fn pools(fstab_file: &Path, lines: &[Line], units: &Path, mounts: &[MountEntry]) -> Vec<Pool> {
    let mut found: Vec<Pool> = Vec::new();
    for named in named::all() {
        let mut config = Config::default();
        // Mistakes in a file are for mount to tell.
        let _ = file::load(&mut config, named.file.as_os_str());
        let mut pool = Pool::new(&config, &named.file);
        if is_enabled(units, &named.name) {
            pool.boot = Boot::Unit;
            pool.unit_waits_for = waits_of(units, &named.name);
        }
        found.push(Pool { name: Some(named.name), ..pool });
    }
    for line in lines.iter().filter(|line| line.is_pool()) {
        let source = fstab::unescape(line.source.strip_prefix("mergerfs#").unwrap_or(&line.source));
        let named = named::NamedPool::find(&source);
        let known =
            named.as_ref().and_then(|named| found.iter().position(|pool| pool.described_in == named.file));
        let index = known.unwrap_or_else(|| {
            let mut config = Config::default();
            let (_, described_in) = match &named {
                Some(named) => {
                    (file::load(&mut config, named.file.as_os_str()).is_ok(), named.file.as_path())
                }
                None => (source::set(&mut config, "branches", &source).is_ok(), fstab_file),
            };
            found.push(Pool {
                name: named.as_ref().map(|named| named.name.clone()),
                ..Pool::new(&config, described_in)
            });
            found.len() - 1
        });
        let pool = &mut found[index];
        pool.mountpoint = fstab::unescape(&line.mountpoint).into();
        pool.line = Some(line.number);
        if !line.has_option("noauto") {
            pool.boot = Boot::Fstab;
        }
    }
    // Whoever mounts it names the place.
    found.retain(|pool| pool.mountpoint.is_absolute());
    for pool in &mut found {
        let place = mountinfo::listed_path(&pool.mountpoint).unwrap_or_else(|_| pool.mountpoint.clone());
        pool.mounted = mounts.iter().any(|mounted| mounted.is_pool() && mounted.mountpoint == place);
        pool.mountpoint = place;
    }
    found
}

/// Returns whether a target starts the unit of a pool.
fn is_enabled(units: &Path, name: &str) -> bool {
    let targets = std::fs::read_dir(units).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut targets = targets
        .filter(|path| path.extension().is_some_and(|ending| ending == "wants" || ending == "requires"));
    targets.any(|target| target.join(format!("canopy@{name}.service")).is_symlink())
}

/// Returns what the drop-ins of a pool's unit name in its order: those of the pool, and those of all pools.
fn waits_of(units: &Path, name: &str) -> Vec<String> {
    let dirs = [format!("canopy@{name}.service.d"), "canopy@.service.d".to_owned()];
    let files =
        dirs.iter().flat_map(|dir| std::fs::read_dir(units.join(dir)).into_iter().flatten().flatten());
    let files = files
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "conf"));
    let texts = files.filter_map(|path| std::fs::read_to_string(path).ok());
    let found: Vec<Assignment> = texts.flat_map(|text| assignments(&text)).collect();
    let orders =
        |one: &&Assignment| matches!(one.key.as_str(), "After" | "RequiresMountsFor" | "WantsMountsFor");
    let words = found.iter().filter(orders).flat_map(|one| one.value.split_whitespace());
    words.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn pools_of_files_and_lines_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("media.toml");
        fs::create_dir(dir.path().join("disk1")).expect("a directory");
        let pattern = |name: &str| format!("{}/{name}*", dir.path().display());
        fs::write(
            &file,
            format!(
                "branches = [{:?}, {:?}]\nmountpoint = \"/mnt/elsewhere\"\n",
                pattern("disk"),
                pattern("none")
            ),
        )
        .expect("a file");
        let text = format!(
            "{} /mnt/no-media canopy nofail 0 0\n/no-a:/no-b /mnt/no-b fuse.mergerfs noauto 0 0\n",
            file.display()
        );
        let mounts = mountinfo::parse(b"30 1 0:50 / /mnt/no-b rw - fuse.mergerfs a:b rw\n");
        let found = pools(Path::new("/etc/fstab"), &fstab::parse(&text), Path::new("/no/units"), &mounts);
        let of = |place: &str| found.iter().find(|pool| pool.mountpoint == Path::new(place)).expect("a pool");
        let media = of("/mnt/no-media");
        assert_eq!(
            (media.title().as_str(), media.boot, media.line),
            ("the pool media", Boot::Fstab, Some(1))
        );
        assert_eq!(media.branches, [dir.path().join("disk1")]);
        assert_eq!(media.empty_patterns, [pattern("none")]);
        assert!(!media.mounted && media.described_in == file);
        let other = of("/mnt/no-b");
        assert_eq!(
            (other.title().as_str(), other.boot, other.mounted),
            ("the pool /mnt/no-b", Boot::Nothing, true)
        );
        assert_eq!(other.branches, [Path::new("/no-a"), Path::new("/no-b")]);
    }

    #[test]
    fn a_unit_that_a_target_starts_is_enabled() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(!is_enabled(dir.path(), "media"));
        let wants = dir.path().join("multi-user.target.wants");
        fs::create_dir(&wants).expect("a directory");
        std::os::unix::fs::symlink("/no/such", wants.join("canopy@media.service")).expect("a link");
        assert!(is_enabled(dir.path(), "media") && !is_enabled(dir.path(), "other"));
        for (place, text) in [
            ("canopy@media.service.d/disks.conf", "[Unit]\nAfter=mnt-d1.mount \\\n mnt-d2.mount\n"),
            ("canopy@.service.d/all.conf", "[Unit]\nRequiresMountsFor=/mnt/d3\n"),
            ("canopy@media.service.d/disks.conf.canopy-20260101-000000", "[Unit]\nAfter=no.mount\n"),
        ] {
            let place = dir.path().join(place);
            fs::create_dir_all(place.parent().expect("its directory")).expect("a directory");
            fs::write(place, text).expect("a drop-in");
        }
        assert_eq!(waits_of(dir.path(), "media"), ["mnt-d1.mount", "mnt-d2.mount", "/mnt/d3"]);
        assert_eq!(waits_of(dir.path(), "other"), ["/mnt/d3"]);
    }
}
