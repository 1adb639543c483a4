//! The options of a pool: their names, their values, and what setting them does.

mod setters;
mod spec;
mod table;

pub use spec::{Changes, Spec};
pub use table::table;

use crate::Config;
use crate::error::OptionError;
use crate::values::ValueError;
use canopy_fuse::mount::ATIME_FLAGS;
use setters::SetError;
use spec::Kind;
use std::ffi::{OsStr, OsString};

/// Returns the form in which names are compared: `_` and `-` are the same.
fn canonical(name: &str) -> String {
    name.replace('_', "-")
}

/// Finds an option by its name or an alias.
pub fn find(key: &str) -> Option<&'static Spec> {
    let key = canonical(key);
    table().iter().find(|spec| spec.names().any(|name| canonical(name) == key))
}

/// Splits at the first `=` and trims both sides. Without `=`, the value is empty.
pub fn split(pair: &OsStr) -> (String, OsString) {
    use std::os::unix::ffi::OsStrExt;
    let bytes = pair.as_bytes();
    let at = bytes.iter().position(|&byte| byte == b'=');
    let (key, value) = match at {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b""[..]),
    };
    (String::from_utf8_lossy(key.trim_ascii()).into_owned(), OsStr::from_bytes(value.trim_ascii()).to_owned())
}

/// Finds the option that `key` names. Fails if the option cannot be set now, or takes no value and gets one.
pub(crate) fn settable(config: &Config, key: &str, value: &OsStr) -> Result<&'static Spec, OptionError> {
    let spec =
        find(key).ok_or_else(|| OptionError::Unknown { key: key.to_owned(), nearest: nearest(key) })?;
    if config.file.running_pool.is_some() && spec.changes != Changes::Live && !spec.hidden {
        return Err(OptionError::AtMount { key: spec.name.to_string() });
    }
    if spec.accepted().is_none() && !value.is_empty() {
        let value = value.to_string_lossy().into_owned();
        return Err(OptionError::Valueless { key: spec.name.to_string(), value });
    }
    Ok(spec)
}

impl Spec {
    /// Sets the option. An error leaves `config` unchanged. Does nothing for the option `config`: `source` reads files.
    pub(crate) fn set(&self, config: &mut Config, value: &OsStr) -> Result<(), OptionError> {
        match &self.kind {
            Kind::Value(setter) => setter.set(config, value).map_err(|error| self.refused(value, error))?,
            Kind::MountFlag { flag, on } => {
                if *on && ATIME_FLAGS.contains(*flag) {
                    config.mount.flags.remove(ATIME_FLAGS);
                }
                config.mount.flags.set(*flag, *on);
            }
            Kind::Switch(field) => *field(config) = true,
            Kind::Ignored => {
                config.ignored.insert(self.name.to_string());
            }
            Kind::ConfigFile => {}
        }
        Ok(())
    }

    fn refused(&self, value: &OsStr, error: SetError) -> OptionError {
        let key = self.name.to_string();
        let why = match error {
            SetError::Branches(error) => return OptionError::Branches { key, error },
            SetError::Placement(what) => return OptionError::Placement { key, what },
            SetError::Value(why) => why,
        };
        let (value, accepted) = (value.to_string_lossy().into_owned(), self.accepted().unwrap_or_default());
        let nearest = match why {
            ValueError::Invalid => {
                // Only words to be written literally are suggested, not descriptions such as "a number".
                let words = accepted.split(", ").flat_map(|part| part.split(" or "));
                let words = words.filter(|word| !word.contains(' '));
                closest(&value, words.map(str::to_owned))
            }
            ValueError::TooLarge | ValueError::TooSmall | ValueError::Empty => None,
        };
        OptionError::Value { key, value, why, accepted, nearest }
    }
}

/// Returns the known name most like `key`, if any is similar enough.
pub fn nearest(key: &str) -> Option<String> {
    let key = canonical(key);
    closest(&key, table().iter().filter(|spec| !spec.hidden).flat_map(Spec::names).map(str::to_owned))
}

/// Returns the word most like `text`, if any is similar enough, or the only one that `text` is the beginning of.
pub fn closest(text: &str, words: impl Iterator<Item = String>) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let words: Vec<String> = words.collect();
    let similarity = |word: &str| strsim::normalized_damerau_levenshtein(text, &canonical(word));
    let similar = words.iter().map(|word| (similarity(word), word));
    let similar = similar.filter(|(similarity, _)| *similarity >= 0.6).max_by(|a, b| a.0.total_cmp(&b.0));
    let begun = || {
        let mut begun =
            words.iter().filter(|word| text.len() >= BEGINNING && canonical(word).starts_with(text));
        begun.next().filter(|_| begun.next().is_none())
    };
    similar.map(|(_, word)| word).or_else(begun).cloned()
}

/// How long the beginning of a word must be to stand for it.
const BEGINNING: usize = 4;

#[cfg(test)]
mod tests;
