//! Completes a configuration for the mount: checks required values, derives others, and resolves conflicts between
//! options. It looks at nothing outside the configuration; the program's preflight checks do that.

pub mod remembered;

use crate::error::{Error, OptionError};
use crate::options;
use crate::placement;
use crate::{Config, MAX_WORKERS};
use canopy_branch::branch::default_fsname;
use canopy_pool::config::{CacheFiles, PassthroughIo};
use canopy_sys::shown::Show as _;
use std::ffi::OsString;
use std::path::PathBuf;

/// A complete configuration of a mount.
#[derive(Clone, Debug)]
pub struct Plan {
    pub config: Config,
    /// Absolute. The preflight checks resolve symlinks.
    pub mountpoint: PathBuf,
    /// The source of the mount.
    pub fsname: OsString,
    /// The filesystem type after `fuse.`.
    pub subtype: &'static str,
    /// Branches that do not exist yet and are added when they appear. Set by the preflight checks.
    pub missing: Vec<PathBuf>,
    /// Those among them whose mounts are gone, with their mountpoints. What is at their paths is not theirs.
    pub gone: Vec<(PathBuf, PathBuf)>,
    /// Whether this pool replaces one that runs at the mountpoint. Set by the preflight checks.
    pub replaces: bool,
    /// Warnings for the user who mounts the pool.
    pub warnings: Vec<String>,
}

/// Completes a configuration. Relative paths become absolute here, because the daemon changes its directory later.
pub fn resolve(mut config: Config) -> Result<Plan, Error> {
    if config.branches.is_empty() {
        return Err(Error::NoBranch(config.name));
    }
    // A shell expands an unset variable to an empty argument.
    let typed = config.mountpoint.as_deref().filter(|typed| !typed.as_os_str().is_empty());
    let typed = typed.ok_or(Error::NoMountpoint(config.name))?;
    let mountpoint =
        std::path::absolute(typed).map_err(|why| Error::Mountpoint { path: typed.to_owned(), why })?;
    let fsname = config.fsname.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| {
        let paths: Vec<PathBuf> = config.branches.iter().map(|spec| spec.path.clone()).collect();
        default_fsname(&paths)
    });
    check(&config)?;
    let mut warnings = std::mem::take(&mut config.warnings);
    warnings.extend(idle(&config));
    warnings.extend(resolve_conflicts(&mut config));
    if config.threads.read.max(config.threads.process) > MAX_WORKERS as i32 {
        warnings.push(format!("more threads were asked for than a pool can have: there are {MAX_WORKERS}"));
    }
    let subtype = config.name.as_str();
    Ok(Plan {
        config,
        mountpoint,
        fsname,
        subtype,
        missing: Vec::new(),
        gone: Vec::new(),
        replaces: false,
        warnings,
    })
}

/// Sets what a mount sets beyond its options.
pub fn settle_at_mount(config: &mut Config) {
    if !config.pool.symlinkify {
        // So that symlinkify works at once if it is turned on later without a timeout.
        config.pool.symlinkify_timeout = -1;
    }
}

/// Checks what options say of each other.
pub fn check(config: &Config) -> Result<(), OptionError> {
    let mistake = |what| OptionError::Placement { key: "rules".into(), what };
    placement::check(&config.pool.placement).map_err(mistake)
}

/// As `check`, for a configuration that has only the option `key`. `get` returns the values of others.
pub fn check_beside(
    config: &mut Config,
    key: &str,
    get: impl Fn(&str) -> OsString,
) -> Result<(), OptionError> {
    let other = match key {
        "tiers" => "rules",
        "rules" => "tiers",
        _ => return Ok(()),
    };
    if let Some(spec) = options::find(other) {
        spec.set(config, &get(other))?;
    }
    check(config)
}

/// Returns a line for each tier or rule with a glob that matches no branch. The branch may come later.
pub fn idle_globs(config: &Config) -> Vec<String> {
    placement::idle_globs(&config.pool.placement, config.branches.iter().map(|spec| spec.path.as_path()))
}

/// As `idle_globs`, with a line for each read cache without its directory, which may come later too. Asks the disks of caches.
pub fn idle(config: &Config) -> Vec<String> {
    let mut lines = idle_globs(config);
    let missing = config.pool.read_cache.dirs().filter(|(dir, _)| !dir.is_dir());
    lines.extend(missing.map(|(dir, _)| {
        format!("read-cache: {} is no directory: nothing is cached until it is one", dir.shown())
    }));
    lines
}

/// Changes options that exclude each other, and returns warnings about it.
///
/// `passthrough.io` with a value other than `auto` wins over the options of the page cache, as in mergerfs. `auto` is the
/// default, so it gives way to them.
pub fn resolve_conflicts(config: &mut Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let off = config.pool.cache_files == CacheFiles::Off;
    match config.pool.passthrough {
        PassthroughIo::Off => {}
        PassthroughIo::Auto => {
            if config.pool.writeback {
                config.pool.passthrough = PassthroughIo::Off;
                warnings.push("cache.writeback=true excludes passthrough: passthrough.io is off".into());
            } else if off && !config.is_given("cache.files") {
                // Files that cannot be passed through are faster with the page cache.
                config.pool.cache_files = CacheFiles::AutoFull;
            }
        }
        PassthroughIo::Ro | PassthroughIo::Wo | PassthroughIo::Rw => {
            let passthrough = config.pool.passthrough;
            if off {
                config.pool.cache_files = CacheFiles::AutoFull;
                if config.is_given("cache.files") {
                    warnings.push(format!(
                        "passthrough.io={passthrough} needs the page cache: cache.files is auto-full"
                    ));
                }
            }
            if config.pool.writeback {
                config.pool.writeback = false;
                warnings.push(format!("passthrough.io={passthrough} excludes cache.writeback: it is false"));
            }
            if passthrough != PassthroughIo::Ro
                && config.pool.move_when_full.0.is_some()
                && config.is_given("moveonenospc")
            {
                warnings.push(format!(
                    "moveonenospc has no effect on files that passthrough.io={passthrough} passes through \
                     (passthrough.io=auto avoids the conflict)"
                ));
            }
            if config.pool.nullrw {
                warnings.push(format!(
                    "nullrw has no effect on files that passthrough.io={passthrough} passes through"
                ));
            }
        }
    }
    if config.pool.writeback && matches!(config.pool.cache_files, CacheFiles::Off | CacheFiles::PerProcess) {
        // With the writeback cache, the kernel maintains the modification time and ignores that of the pool. A write that
        // bypasses the page cache would not change it (fs/fuse/file.c fuse_direct_write_iter).
        config.pool.cache_files = CacheFiles::AutoFull;
        if config.is_given("cache.files") {
            warnings.push("cache.writeback=true needs the page cache: cache.files is auto-full".into());
        }
    }
    if config.pool.passthrough == PassthroughIo::Auto && config.pool.nullrw {
        // Data that bypasses the daemon would not be discarded.
        config.pool.passthrough = PassthroughIo::Off;
        warnings.push("nullrw=true excludes passthrough: passthrough.io is off".into());
    }
    if config.remember_nodes.0 {
        warnings.push("never-forget-nodes has no effect: NFS handles stay valid without it".into());
    }
    warnings
}

/// Returns the options that differ from their defaults, as one line for the log.
pub fn summary(plan: &Plan) -> String {
    let mut changed: Vec<String> = Vec::new();
    let default = Config::default();
    for spec in crate::options::table() {
        if matches!(spec.name.as_ref(), "branches" | "mountpoint" | "fsname")
            || spec.name.starts_with("category.")
        {
            continue;
        }
        let (now, before) = (spec.render(&plan.config), spec.render(&default));
        if let Some(value) = now.filter(|now| Some(now) != before.as_ref()) {
            changed.push(format!("{}={value}", spec.name));
        }
    }
    if changed.is_empty() { "all options at their defaults".into() } else { changed.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::command_line::{Arg, apply};

    fn plan(options: &str) -> Plan {
        let mut config = Config::default();
        let args = [Arg::Options(options.into()), Arg::Path("/no-a".into()), Arg::Path("/no-m".into())];
        apply(&mut config, args).unwrap();
        resolve(config).unwrap()
    }

    #[test]
    fn the_source_is_fsname_or_made_from_the_branches() {
        assert_eq!(plan("fsname=mine").fsname, "mine");
        assert_eq!(plan("branches=/no-dir/1:/no-dir/2").fsname, "dir/1:dir/2:a");
    }

    #[test]
    fn branches_and_a_mountpoint_are_required() {
        assert!(matches!(resolve(Config::default()), Err(Error::NoBranch(_))));
        let mut config = Config::default();
        apply(&mut config, [Arg::Options("branches=/no-a".into())]).unwrap();
        assert!(matches!(resolve(config), Err(Error::NoMountpoint(_))));
    }

    #[test]
    fn relative_paths_become_absolute() {
        let mut config = Config::default();
        apply(&mut config, [Arg::Path("no-a".into()), Arg::Path("no-m".into())]).unwrap();
        let plan = resolve(config).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(plan.mountpoint, here.join("no-m"));
        assert_eq!(plan.config.branches.as_slice()[0].path, here.join("no-a"));
    }

    #[test]
    fn conflicting_options_are_resolved() {
        // options -> passthrough, cache.files, writeback, number of warnings
        let table = [
            ("ro", "auto", "auto-full", false, 0),
            ("cache.files=off", "auto", "off", false, 0),
            ("cache.files=full", "auto", "full", false, 0),
            ("cache.writeback=true", "off", "auto-full", true, 1),
            ("cache.writeback=true,cache.files=off", "off", "auto-full", true, 2),
            ("cache.writeback=true,passthrough.io=off,cache.files=per-process", "off", "auto-full", true, 1),
            ("cache.writeback=true,cache.files=full", "off", "full", true, 1),
            ("nullrw=true", "off", "auto-full", false, 1),
            ("passthrough.io=off", "off", "off", false, 0),
            ("passthrough.io=rw", "rw", "auto-full", false, 0),
            ("passthrough.io=rw,cache.files=off", "rw", "auto-full", false, 1),
            ("passthrough.io=ro,cache.files=partial", "ro", "partial", false, 0),
            ("passthrough.io=wo,cache.writeback=true", "wo", "auto-full", false, 1),
            ("passthrough.io=rw,moveonenospc=true", "rw", "auto-full", false, 1),
            ("passthrough.io=rw,moveonenospc=false", "rw", "auto-full", false, 0),
            ("passthrough.io=ro,moveonenospc=mfs", "ro", "auto-full", false, 0),
            ("passthrough.io=auto,moveonenospc=true", "auto", "auto-full", false, 0),
        ];
        for (options, passthrough, files, writeback, warnings) in table {
            let plan = plan(options);
            let pool = &plan.config.pool;
            let got = (
                pool.passthrough.to_string(),
                pool.cache_files.to_string(),
                pool.writeback,
                plan.warnings.len(),
            );
            assert_eq!(got, (passthrough.into(), files.into(), writeback, warnings), "{options}");
        }
    }

    #[test]
    fn the_summary_lists_options_that_are_not_default() {
        assert_eq!(summary(&plan("passthrough.io=off")), "passthrough.io=off");
        let text = summary(&plan("cache.files=full,cache.attr=9,minfreespace=1M,func.create=ff"));
        for word in ["cache.files=full", "cache.attr=9", "minfreespace=1048576", "func.create=ff"] {
            assert!(text.split(' ').any(|part| part == word), "{text}");
        }
        assert!(!text.contains("category"), "{text}");
    }
}
