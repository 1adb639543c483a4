//! What the trash keeps, as text on one line and as tables of a TOML file.
//!
//! A rule is `PATH=TIME[|except GLOB[:GLOB...]][|overwritten]`, such as `**=30 days|except *.tmp:cache/**`. Several are joined by
//! semicolons. Separators are quoted as in [`placement`](crate::placement).

use crate::placement::{join, list, pair, pattern, split};
use crate::units;
use canopy_policy::trash::{TrashRule, TrashRules};
use std::time::Duration;

/// For how long things are kept unless a table says so.
pub const USUAL: &str = "30 days";

/// Parses a time for which something is kept.
pub fn keep(text: &str) -> Result<Duration, String> {
    let time = units::time(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| format!("keep '{text}' is not a time (write '30 days', '12 hours' or '2 weeks')"))
}

/// Parses one rule. The message of an error is one line that names its path.
pub fn parse_rule(text: &str) -> Result<TrashRule, String> {
    let (path, rest) = pair(text, "a rule of the trash: PATH=TIME[|except GLOB[:GLOB...]][|overwritten]")?;
    let of_rule = |why| format!("trash {path}: {why}");
    let mut parts = split(rest, '|').into_iter();
    let keep = keep(parts.next().unwrap_or_default()).map_err(of_rule)?;
    let (mut except, mut overwritten) = (Vec::new(), false);
    for part in parts {
        match part.strip_prefix("except ") {
            Some(globs) => {
                for glob in split(globs, ':') {
                    except.push(pattern(glob).map_err(of_rule)?);
                }
            }
            None if part == "overwritten" => overwritten = true,
            None => {
                return Err(of_rule(format!(
                    "'{part}' is not understood (write 'except GLOB' or 'overwritten')"
                )));
            }
        }
    }
    Ok(TrashRule { path: pattern(path)?, except, keep, overwritten })
}

pub fn parse(text: &str) -> Result<TrashRules, String> {
    list(text, parse_rule).map(TrashRules)
}

pub fn format(rules: &TrashRules) -> String {
    rules.0.iter().map(format_rule).collect::<Vec<_>>().join(";")
}

fn format_rule(rule: &TrashRule) -> String {
    let except = match rule.except.as_slice() {
        [] => String::new(),
        globs => format!("|except {}", join(globs)),
    };
    let overwritten = if rule.overwritten { "|overwritten" } else { "" };
    format!("{}={}{except}{overwritten}", rule.path.as_str(), units::format_time(rule.keep))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_shown_as_it_is_written() {
        for text in [
            "**=30 days",
            "photos/**=2 weeks|except *.tmp:.thumbs/**|overwritten",
            "a\\;b=12 hours|overwritten;**=1 day",
            "",
        ] {
            assert_eq!(format(&parse(text).unwrap()), text);
        }
        assert_eq!(
            format(&parse(" ** = 48 h | overwritten | except a ").unwrap()),
            "**=2 days|except a|overwritten"
        );
        for (text, named) in [
            ("**", "PATH=TIME"),
            ("**=", "trash **: keep ''"),
            ("**=0 days", "trash **: keep '0 days'"),
            ("**=30", "trash **: keep '30'"),
            ("**=30 days|x", "trash **: 'x'"),
            ("**=30 days|except a[", "a["),
            ("a[=30 days", "a["),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
