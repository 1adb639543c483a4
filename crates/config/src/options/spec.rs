//! The description of an option.

use super::setters::Setter;
use crate::Config;
use crate::values::Value;
use canopy_fuse::mount::MountFlags;
use std::borrow::Cow;

/// When a value can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changes {
    /// At any time. Later operations use the new value.
    Live,
    /// Only when the pool is mounted.
    AtMount,
}

/// What setting an option does.
pub(super) enum Kind {
    /// Changes a value of the configuration.
    Value(Box<dyn Setter>),
    /// Sets or clears a flag of mount(2); takes no value.
    MountFlag { flag: MountFlags, on: bool },
    /// Turns a field on; takes no value, and nothing turns the field off.
    Switch(fn(&mut Config) -> &mut bool),
    /// Reads a file of options. `source` does that, not this module.
    ConfigFile,
    /// Accepts any value and does nothing.
    Ignored,
}

impl<S: Setter + 'static> From<S> for Kind {
    fn from(setter: S) -> Self {
        Kind::Value(Box::new(setter))
    }
}

/// One option.
pub struct Spec {
    pub name: Cow<'static, str>,
    pub aliases: &'static [&'static str],
    pub help: Cow<'static, str>,
    /// The first version of Linux in which the option has an effect, if newer than the oldest supported one.
    pub since: Option<&'static str>,
    pub changes: Changes,
    /// Left out of lists. The option exists only for older setups.
    pub hidden: bool,
    /// Left out of the list of keys, which existing tools rely on, but still a key.
    pub unlisted: bool,
    /// Whether the option is a key of the control file. Flags of mount(2) are not.
    pub key: bool,
    pub(super) kind: Kind,
}

impl Spec {
    /// Returns the value as text; `None` for an option without a value, such as `ro`, and for an ignored one.
    pub fn render(&self, config: &Config) -> Option<String> {
        match &self.kind {
            Kind::Value(setter) => Some(setter.get(config)),
            Kind::ConfigFile => Some(config.file.path.render()),
            Kind::MountFlag { .. } | Kind::Switch(_) | Kind::Ignored => None,
        }
    }

    /// Returns the value for people: the same value always in the same form, a size with its unit.
    pub fn readable(&self, config: &Config) -> Option<String> {
        match &self.kind {
            Kind::Value(setter) => Some(setter.readable(config)),
            _ => self.render(config),
        }
    }

    /// Returns whether the option accepts any value and does nothing.
    pub fn is_ignored(&self) -> bool {
        matches!(self.kind, Kind::Ignored)
    }

    /// Returns whether the option is a flag of mount(2).
    pub fn is_flag(&self) -> bool {
        matches!(self.kind, Kind::MountFlag { .. })
    }

    /// Returns whether the value is the path of a file of options.
    pub(crate) fn is_config_file(&self) -> bool {
        matches!(self.kind, Kind::ConfigFile)
    }

    /// Returns whether `name` is exactly the option's name or an alias.
    pub fn has_name(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// Returns the option's name and its aliases.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_ref()).chain(self.aliases.iter().copied())
    }

    /// Describes the values that the option accepts; `None` if it takes no value.
    pub fn accepted(&self) -> Option<String> {
        match &self.kind {
            Kind::Value(setter) => Some(setter.accepted()),
            Kind::ConfigFile => Some("the path of a file".into()),
            Kind::Ignored => Some("anything".into()),
            Kind::MountFlag { .. } | Kind::Switch(_) => None,
        }
    }
}

pub(super) fn spec(
    name: impl Into<Cow<'static, str>>,
    kind: impl Into<Kind>,
    help: impl Into<Cow<'static, str>>,
) -> Spec {
    Spec {
        name: name.into(),
        aliases: &[],
        help: help.into(),
        since: None,
        changes: Changes::AtMount,
        hidden: false,
        unlisted: false,
        key: true,
        kind: kind.into(),
    }
}

impl Spec {
    pub(super) fn live(mut self) -> Self {
        self.changes = Changes::Live;
        self
    }

    pub(super) fn since(mut self, linux: &'static str) -> Self {
        self.since = Some(linux);
        self
    }

    pub(super) fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    pub(super) fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    pub(super) fn unlisted(mut self) -> Self {
        self.unlisted = true;
        self
    }

    /// Keeps the option out of the control file, because existing tools know its keys.
    pub(super) fn no_key(mut self) -> Self {
        self.key = false;
        self
    }
}
