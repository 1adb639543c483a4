//! Where the value of an option lives, and how it is set and shown there.

use crate::values::{Refused, Value};
use crate::{Config, StackDepth};
use canopy_fuse::mount::{ATIME_FLAGS, MountFlags};
use canopy_pool::branch::{BranchError, Expand, FileSystem};
use canopy_pool::config::Func;
use canopy_pool::policy::{Category, Policy};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;

/// Why a slot did not take a value.
pub(super) enum SetError {
    Value(Refused),
    Branches(BranchError),
}

impl From<Refused> for SetError {
    fn from(refused: Refused) -> Self {
        SetError::Value(refused)
    }
}

/// Where an option's value lives in a `Config`.
pub(super) trait Slot: Send + Sync {
    fn set(&self, config: &mut Config, name: &str, value: &OsStr) -> Result<(), SetError>;
    fn get(&self, config: &Config) -> Option<String>;
    fn accepted(&self) -> Option<String>;
    /// See `Spec::is_ignored`.
    fn is_ignored(&self) -> bool {
        false
    }
    /// See `Spec::is_flag`.
    fn is_flag(&self) -> bool {
        false
    }
}

/// A field of its own.
pub(super) struct Field<T> {
    pub get: fn(&Config) -> &T,
    pub get_mut: fn(&mut Config) -> &mut T,
}

impl<T: Value> Slot for Field<T> {
    fn set(&self, config: &mut Config, _name: &str, value: &OsStr) -> Result<(), SetError> {
        *(self.get_mut)(config) = T::parse(value)?;
        Ok(())
    }
    fn get(&self, config: &Config) -> Option<String> {
        Some((self.get)(config).render())
    }
    fn accepted(&self) -> Option<String> {
        Some(T::accepted())
    }
}

/// The branch list, which each value replaces, extends or shortens.
pub(super) struct BranchesSlot;

impl Slot for BranchesSlot {
    fn set(&self, config: &mut Config, _name: &str, value: &OsStr) -> Result<(), SetError> {
        config.branches = config.branches.apply(value, &AsWritten).map_err(SetError::Branches)?;
        Ok(())
    }
    fn get(&self, config: &Config) -> Option<String> {
        Some(config.branches.to_string())
    }
    fn accepted(&self) -> Option<String> {
        Some("PATH[=RW|RO|NC[,MINFREE]][:PATH...], with + +< +> - -< -> or = before it".into())
    }
}

/// Expands what a branch entry says, and keeps what is not a directory: at the mount that is a
/// mistake to be told, not one to be passed over.
struct AsWritten;

impl Expand for AsWritten {
    fn expand(&self, pattern: &OsStr) -> Vec<PathBuf> {
        let found = FileSystem.expand(pattern);
        if found.is_empty() {
            vec![std::path::absolute(pattern).unwrap_or_else(|_| pattern.into())]
        } else {
            found
        }
    }
}

/// The policy of one function.
pub(super) struct FuncPolicy(pub Func);

impl Slot for FuncPolicy {
    fn set(&self, config: &mut Config, _name: &str, value: &OsStr) -> Result<(), SetError> {
        config.pool.policies.set(self.0, Policy::parse(value)?);
        Ok(())
    }
    fn get(&self, config: &Config) -> Option<String> {
        Some(config.pool.policies.get(self.0).render())
    }
    fn accepted(&self) -> Option<String> {
        Some(Policy::accepted())
    }
}

/// The policies of all functions of a category at once.
pub(super) struct CategoryPolicy(pub Category);

impl Slot for CategoryPolicy {
    fn set(&self, config: &mut Config, _name: &str, value: &OsStr) -> Result<(), SetError> {
        config.pool.policies.set_category(self.0, Policy::parse(value)?);
        Ok(())
    }
    /// The policies in use, each once: they may differ since.
    fn get(&self, config: &Config) -> Option<String> {
        let in_use: BTreeSet<String> = Func::ALL
            .into_iter()
            .filter(|func| func.category() == self.0)
            .map(|func| config.pool.policies.get(func).render())
            .collect();
        Some(in_use.into_iter().collect::<Vec<_>>().join(","))
    }
    fn accepted(&self) -> Option<String> {
        Some(Policy::accepted())
    }
}

/// A flag of mount(2): the word alone sets it, or clears it.
pub(super) struct MountFlag {
    pub flag: MountFlags,
    pub on: bool,
}

impl Slot for MountFlag {
    fn set(&self, config: &mut Config, _name: &str, _value: &OsStr) -> Result<(), SetError> {
        if self.on && ATIME_FLAGS.contains(self.flag) {
            config.mount.flags.remove(ATIME_FLAGS);
        }
        config.mount.flags.set(self.flag, self.on);
        Ok(())
    }
    fn is_flag(&self) -> bool {
        true
    }
    fn get(&self, _config: &Config) -> Option<String> {
        None
    }
    fn accepted(&self) -> Option<String> {
        None
    }
}

/// A word that turns a field on, and has no opposite.
pub(super) struct Switch(pub fn(&mut Config) -> &mut bool);

impl Slot for Switch {
    fn set(&self, config: &mut Config, _name: &str, _value: &OsStr) -> Result<(), SetError> {
        *(self.0)(config) = true;
        Ok(())
    }
    fn get(&self, _config: &Config) -> Option<String> {
        None
    }
    fn accepted(&self) -> Option<String> {
        None
    }
}

/// Accepted with any value, and without effect.
pub(super) struct Ignored;

impl Slot for Ignored {
    fn set(&self, config: &mut Config, name: &str, _value: &OsStr) -> Result<(), SetError> {
        config.ignored.insert(name.to_owned());
        Ok(())
    }
    fn get(&self, _config: &Config) -> Option<String> {
        None
    }
    fn accepted(&self) -> Option<String> {
        Some("anything".into())
    }
    fn is_ignored(&self) -> bool {
        true
    }
}

impl Value for StackDepth {
    fn parse(text: &OsStr) -> Result<Self, Refused> {
        match text.to_str() {
            Some("1") => Ok(StackDepth(1)),
            Some("2") => Ok(StackDepth(2)),
            _ => Err(Refused::Invalid),
        }
    }
    fn render(&self) -> String {
        self.0.to_string()
    }
    fn accepted() -> String {
        "1 or 2".into()
    }
}

/// The config file. `source::set` reads it: rooms below know no files.
pub(super) struct ConfigFile;

impl Slot for ConfigFile {
    fn set(&self, _config: &mut Config, _name: &str, _value: &OsStr) -> Result<(), SetError> {
        Err(Refused::But("a source of options, not a value").into())
    }
    fn get(&self, config: &Config) -> Option<String> {
        Some(config.file.path.render())
    }
    fn accepted(&self) -> Option<String> {
        Some("the path of a file".into())
    }
}

/// A field of `Config` as a slot; its type is that of the field.
macro_rules! field {
    ($($path:tt)+) => {
        $crate::options::setters::Field { get: |config| &config.$($path)+, get_mut: |config| &mut config.$($path)+ }
    };
}

pub(super) use field;
