//! What of what clients remove is kept for a while. Pure: without system calls.

use crate::placement::Pattern;
use std::time::Duration;

/// Which files are kept when they are removed.
#[derive(Clone, PartialEq, Debug)]
pub struct TrashRule {
    pub path: Pattern,
    /// Files of the path that the rule is not for.
    pub except: Vec<Pattern>,
    pub keep: Duration,
    /// What a rename replaces is kept, too.
    pub overwritten: bool,
}

impl TrashRule {
    fn matches(&self, path: &[u8]) -> bool {
        self.path.matches(path) && !self.except.iter().any(|except| except.matches(path))
    }
}

/// All rules, in their order. Without any, nothing is kept.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TrashRules(pub Vec<TrashRule>);

impl TrashRules {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first rule for a path in the pool.
    pub fn rule(&self, path: &[u8]) -> Option<&TrashRule> {
        self.0.iter().find(|rule| rule.matches(path))
    }

    /// Returns whether what a rename replaces may be kept.
    pub fn keep_overwritten(&self) -> bool {
        self.0.iter().any(|rule| rule.overwritten)
    }

    /// Returns for how long a path stays that was put into the trash. One that no rule is for any more stays as long as any.
    pub fn keep(&self, path: &[u8]) -> Option<Duration> {
        let longest = || self.0.iter().map(|rule| rule.keep).max();
        self.rule(path).map(|rule| rule.keep).or_else(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(path: &str, except: &[&str], days: u64) -> TrashRule {
        let pattern = |text: &&str| Pattern::new(text).unwrap();
        TrashRule {
            path: pattern(&path),
            except: except.iter().map(pattern).collect(),
            keep: Duration::from_secs(days * 86_400),
            overwritten: days > 7,
        }
    }

    #[test]
    fn the_first_rule_that_is_for_a_path_decides() {
        let rules = TrashRules(vec![rule("photos/", &["*.tmp"], 30), rule("**", &["*.tmp", "cache/"], 7)]);
        let days = |path: &str| rules.rule(path.as_bytes()).map(|rule| rule.keep.as_secs() / 86_400);
        for (path, expected) in [
            ("photos/a", Some(30)),
            ("a", Some(7)),
            ("photos/a.tmp", None),
            ("cache/x/y", None),
            ("x/cache/y", Some(7)),
        ] {
            assert_eq!(days(path), expected, "{path}");
        }
        assert!(rules.keep_overwritten());
        assert_eq!(rules.keep(b"a.tmp"), Some(Duration::from_secs(30 * 86_400)), "it is there already");
        assert_eq!(TrashRules::default().keep(b"a"), None);
    }
}
