//! What of what clients remove is kept for a while. Pure: without system calls.

use crate::brake::Alarm;
use crate::placement::Pattern;
use canopy_base::path::PoolPath;
use std::time::Duration;

/// Which files are kept when they are removed.
#[derive(Clone, PartialEq, Debug)]
pub struct TrashRule {
    pub path: Pattern,
    /// Files of the path that the rule is not for.
    pub except: Vec<Pattern>,
    pub keep: Keep,
    /// What a rename replaces is kept, too.
    pub overwritten: bool,
    /// Who removes more files of the rule than that is to be told of.
    pub alarm: Option<Alarm>,
}

/// For how long something is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    For(Duration),
    /// Until SnapRAID's parity does not need it any more.
    UntilSync,
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

    /// Returns the first rule for a path, and its position, if the rule has an alarm.
    pub fn alarm(&self, path: impl FnOnce() -> PoolPath) -> Option<(usize, &Alarm)> {
        if !self.has_alarms() {
            return None;
        }
        let path = path();
        let (at, rule) = self.0.iter().enumerate().find(|(_, rule)| rule.matches(&path))?;
        Some((at, rule.alarm.as_ref()?))
    }

    pub fn has_alarms(&self) -> bool {
        self.0.iter().any(|rule| rule.alarm.is_some())
    }

    /// Returns whether what a rename replaces may be kept.
    pub fn keep_overwritten(&self) -> bool {
        self.0.iter().any(|rule| rule.overwritten)
    }

    /// Returns for how long a path stays that was put into the trash, if time tells. One that no rule is for any more stays as long
    /// as any.
    pub fn keep(&self, path: &[u8]) -> Option<Duration> {
        let time = |rule: &TrashRule| match rule.keep {
            Keep::For(time) => Some(time),
            Keep::UntilSync => None,
        };
        match self.rule(path) {
            Some(rule) => time(rule),
            None => self.0.iter().map(time).collect::<Option<Vec<_>>>()?.into_iter().max(),
        }
    }

    /// Returns whether something may stay until SnapRAID does not need it any more.
    pub fn any_waits_for_sync(&self) -> bool {
        self.0.iter().any(|rule| rule.keep == Keep::UntilSync)
    }

    /// Returns whether what was put into the trash under a path stays until SnapRAID does not need it any more.
    pub fn waits_for_sync(&self, path: &[u8]) -> bool {
        self.rule(path).is_some_and(|rule| rule.keep == Keep::UntilSync)
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
            keep: Keep::For(Duration::from_secs(days * 86_400)),
            overwritten: days > 7,
            alarm: None,
        }
    }

    #[test]
    fn the_first_rule_that_is_for_a_path_decides() {
        let rules = TrashRules(vec![rule("photos/", &["*.tmp"], 30), rule("**", &["*.tmp", "cache/"], 7)]);
        let days = |path: &str| {
            rules.rule(path.as_bytes()).map(|_| rules.keep(path.as_bytes()).unwrap().as_secs() / 86_400)
        };
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
        let mut until = rules.clone();
        until.0[0].keep = Keep::UntilSync;
        assert_eq!((until.keep(b"photos/a"), until.keep(b"a.tmp")), (None, None), "no time tells");
        assert_eq!(until.keep(b"a"), Some(Duration::from_secs(7 * 86_400)));
        assert!(until.waits_for_sync(b"photos/a") && !until.waits_for_sync(b"a"));
    }

    #[test]
    fn an_alarm_is_that_of_the_first_rule_for_a_path() {
        let alarm = Alarm { count: 5, within: Duration::from_secs(60), freeze: false };
        let mut rules = TrashRules(vec![rule("photos/", &[], 30), rule("**", &["*.tmp"], 7)]);
        let of = |rules: &TrashRules, path: &str| rules.alarm(|| path.as_bytes().into()).map(|(at, _)| at);
        assert_eq!(of(&rules, "a"), None);
        rules.0[1].alarm = Some(alarm);
        assert_eq!([of(&rules, "a"), of(&rules, "photos/a"), of(&rules, "a.tmp")], [Some(1), None, None]);
    }
}
