//! How the value of an option is stored in a `Config`, and read back.

use crate::Config;
use crate::placement;
use crate::values::{Value, ValueError};
use crate::{read_cache, trash};
use canopy_branch::branch::{BranchError, Expand, FileSystem};
use canopy_policy::{Category, Policy};
use canopy_pool::config::Func;
use canopy_sys::glob::is_pattern;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Why a setter refused a value.
pub(super) enum SetError {
    Value(ValueError),
    Branches(BranchError),
    /// The message.
    Placement(String),
}

impl From<ValueError> for SetError {
    fn from(error: ValueError) -> Self {
        SetError::Value(error)
    }
}

/// Sets and renders one value of a `Config`.
pub(super) trait Setter: Send + Sync {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError>;
    fn get(&self, config: &Config) -> String;
    /// Returns the value for people.
    fn readable(&self, config: &Config) -> String {
        self.get(config)
    }
    fn accepted(&self) -> String;
}

/// An option stored in a field.
pub(super) struct Field<T> {
    pub get: fn(&Config) -> &T,
    pub get_mut: fn(&mut Config) -> &mut T,
}

impl<T: Value> Setter for Field<T> {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError> {
        *(self.get_mut)(config) = T::parse(value)?;
        Ok(())
    }
    fn get(&self, config: &Config) -> String {
        (self.get)(config).render()
    }
    fn readable(&self, config: &Config) -> String {
        (self.get)(config).readable()
    }
    fn accepted(&self) -> String {
        T::accepted()
    }
}

/// The branch list. Each value replaces, extends or shortens it.
pub(super) struct Branches;

impl Setter for Branches {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError> {
        let expand = AsWritten::default();
        config.branches = config.branches.apply(value, &expand).map_err(SetError::Branches)?;
        config.patterns.extend(expand.patterns.into_inner());
        config.patterns.retain(|(_, path)| config.branches.iter().any(|spec| spec.path == *path));
        Ok(())
    }
    fn get(&self, config: &Config) -> String {
        config.branches.to_string()
    }
    fn accepted(&self) -> String {
        "PATH[=RW|RO|NC[,MINFREE]][:PATH...], optionally after +, +<, +>, -, -<, -> or =".into()
    }
}

/// Expands a branch entry like `FileSystem`, but keeps a path that is not a directory, so that the mount reports it
/// rather than skips it.
#[derive(Default)]
struct AsWritten {
    /// Patterns, and what they have matched.
    patterns: RefCell<Vec<(OsString, PathBuf)>>,
}

impl Expand for AsWritten {
    fn expand(&self, pattern: &OsStr) -> Vec<PathBuf> {
        let found = FileSystem.expand(pattern);
        if found.is_empty() {
            return vec![std::path::absolute(pattern).unwrap_or_else(|_| pattern.into())];
        }
        if is_pattern(pattern) {
            let matched = found.iter().map(|path| (pattern.to_owned(), path.clone()));
            self.patterns.borrow_mut().extend(matched);
        }
        found
    }
}

/// The tiers. Each value replaces all of them.
pub(super) struct Tiers;

impl Setter for Tiers {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError> {
        config.pool.placement.tiers = placement::parse_tiers(text(value)?).map_err(SetError::Placement)?;
        Ok(())
    }
    fn get(&self, config: &Config) -> String {
        placement::format_tiers(&config.pool.placement.tiers)
    }
    fn accepted(&self) -> String {
        "NAME=BRANCH[:BRANCH...][|WHEN...], several joined by semicolons".into()
    }
}

/// The rules. Each value replaces all of them.
pub(super) struct Rules;

impl Setter for Rules {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError> {
        config.pool.placement.rules = placement::parse_rules(text(value)?).map_err(SetError::Placement)?;
        Ok(())
    }
    fn get(&self, config: &Config) -> String {
        placement::format_rules(&config.pool.placement.rules)
    }
    fn accepted(&self) -> String {
        "PATH=BRANCH[:BRANCH...], PATH=TIER or PATH=copies N, several joined by semicolons".into()
    }
}

/// The rules of the trash. Each value replaces all of them.
pub(super) struct Trash;

impl Setter for Trash {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError> {
        config.pool.trash = trash::parse(text(value)?).map_err(SetError::Placement)?;
        Ok(())
    }
    fn get(&self, config: &Config) -> String {
        trash::format(&config.pool.trash)
    }
    fn accepted(&self) -> String {
        "PATH=TIME[|except GLOB[:GLOB...]][|overwritten], several joined by semicolons".into()
    }
}

/// The caches for reading. Each value replaces all of them.
pub(super) struct ReadCache;

impl Setter for ReadCache {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError> {
        config.pool.read_cache = read_cache::parse(text(value)?).map_err(SetError::Placement)?;
        Ok(())
    }
    fn get(&self, config: &Config) -> String {
        read_cache::format(&config.pool.read_cache)
    }
    fn accepted(&self) -> String {
        "DIR[:DIR...]=GLOB[:GLOB...][|size SIZE][|free SIZE][|when WHEN][|spool], several joined by semicolons".into()
    }
}

/// Returns the text of a value that has no paths but those in globs, which are UTF-8.
fn text(value: &OsStr) -> Result<&str, SetError> {
    value.to_str().ok_or(SetError::Value(ValueError::Invalid))
}

/// The policy of a function.
pub(super) struct FuncPolicy(pub Func);

impl Setter for FuncPolicy {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError> {
        config.pool.policies.set(self.0, Policy::parse(value)?);
        Ok(())
    }
    fn get(&self, config: &Config) -> String {
        config.pool.policies.get(self.0).render()
    }
    fn accepted(&self) -> String {
        Policy::accepted()
    }
}

/// The policies of all functions of a category.
pub(super) struct CategoryPolicy(pub Category);

impl Setter for CategoryPolicy {
    fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), SetError> {
        config.pool.policies.set_category(self.0, Policy::parse(value)?);
        Ok(())
    }
    /// Returns the policies in use, each once. They differ if functions were set one by one.
    fn get(&self, config: &Config) -> String {
        let in_use: BTreeSet<String> = Func::ALL
            .into_iter()
            .filter(|func| func.category() == self.0)
            .map(|func| config.pool.policies.get(func).render())
            .collect();
        in_use.into_iter().collect::<Vec<_>>().join(",")
    }
    fn accepted(&self) -> String {
        Policy::accepted()
    }
}

/// Makes a setter for a field of `Config`.
macro_rules! field {
    ($($path:tt)+) => {
        $crate::options::setters::Field { get: |config| &config.$($path)+, get_mut: |config| &mut config.$($path)+ }
    };
}

pub(super) use field;
