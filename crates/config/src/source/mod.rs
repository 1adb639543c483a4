//! Where options come from, and where a change of them goes.
//!
//! `command_line` applies words in their order, `file` a config file of lines, `toml` one in TOML. `named` finds the
//! files of pools that have a name, `trust` tells who else can write them. `persist` writes a change of a running pool
//! back into its file by means of `edit`.

pub mod command_line;
mod edit;
mod entry;
pub mod file;
pub mod named;
pub mod persist;
mod toml;
mod trust;

use crate::Config;
use crate::error::OptionError;
use crate::options;
use std::ffi::OsStr;

/// Sets one option. Setting `config` reads the file that it names.
pub fn set(config: &mut Config, key: &str, value: &OsStr) -> Result<(), OptionError> {
    match options::find(key) {
        Some(spec) if spec.name == "config" => {
            file::load(config, value)?;
            config.given.insert(spec.name.to_string());
            Ok(())
        }
        _ => options::set(config, key, value),
    }
}

/// Sets one option: `key` or `key=value`.
pub fn set_pair(config: &mut Config, pair: &OsStr) -> Result<(), OptionError> {
    let (key, value) = options::split(pair);
    set(config, &key, &value)
}
