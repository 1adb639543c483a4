//! Where options come from, and where changes are saved.
//!
//! `command_line` applies arguments in order, `file` a config file of lines, `toml` a config file in TOML. `named` finds
//! the files of named pools, and `trust` checks who else can write them. `persist` saves a change of a running pool in
//! its config file, using `edit`; `tables` changes one of a list of tables.

pub mod branch_lists;
pub mod command_line;
mod edit;
mod entry;
pub mod file;
pub mod named;
pub mod persist;
mod read_cache;
pub mod tables;
pub mod toml;
mod trash;
mod trust;

use crate::Config;
use crate::error::OptionError;
use crate::options;
use std::ffi::OsStr;

/// Files of options that name no others. See [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    file::fuzz(bytes);
    edit::fuzz(bytes);
}

/// Sets one option. An error leaves `config` unchanged, except that the valid lines of a config file are applied.
pub fn set(config: &mut Config, key: &str, value: &OsStr) -> Result<(), OptionError> {
    if key.starts_with("x-") {
        // Options for mount(8) and systemd.
        config.ignored.insert(key.to_owned());
        return Ok(());
    }
    let spec = options::settable(config, key, value)?;
    if spec.is_config_file() {
        file::load(config, value)?;
    } else {
        spec.set(config, value)?;
    }
    config.given.insert(spec.name.to_string());
    Ok(())
}

/// Sets one option from `key` or `key=value`.
pub fn set_pair(config: &mut Config, pair: &OsStr) -> Result<(), OptionError> {
    let (key, value) = options::split(pair);
    set(config, &key, &value)
}
