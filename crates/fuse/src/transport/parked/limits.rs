//! How many requests of each line may go on.

use std::collections::HashMap;

/// How many requests of each line may be under way at once after they have waited in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether [`Handler::expect`](crate::Handler::expect) names a line for some requests.
    pub any: bool,
    /// The limit of lines that are not listed.
    pub usual: usize,
    /// The limits of others.
    pub lines: HashMap<u64, usize>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { any: false, usual: usize::MAX, lines: HashMap::new() }
    }
}

impl Limits {
    /// Returns how many requests of a line may be under way.
    pub(super) fn of(&self, line: u64) -> usize {
        self.lines.get(&line).copied().unwrap_or(self.usual)
    }
}
