//! What the trash keeps, as text on one line and as tables of a TOML file.
//!
//! A rule is `PATH=TIME[|except GLOB[:GLOB...]][|overwritten][|alarm NUMBER in TIME[|freeze]]`, such as
//! `**=30 days|except *.tmp:cache/**`. Instead of a time it may be `until snapraid sync`. Several are joined by semicolons. Separators are quoted as in [`placement`](crate::placement).

use crate::placement::{join, list, pair, pattern};
use crate::units;
use canopy_base::separated::split;
use canopy_policy::brake::Alarm;
use canopy_policy::trash::{Keep, TrashRule, TrashRules};
use std::time::Duration;

/// For how long things are kept unless a table says so.
pub const USUAL: &str = "30 days";

/// What is kept until then instead of for a time.
pub const SYNC: &str = "snapraid sync";
const UNTIL: &str = "until ";

/// Parses a time for which something is kept, or until when.
pub fn keep(text: &str) -> Result<Keep, String> {
    if let Some(until) = text.strip_prefix(UNTIL) {
        let known = until.trim() == SYNC;
        return known
            .then_some(Keep::UntilSync)
            .ok_or_else(|| format!("until '{until}' is not known (write '{SYNC}')"));
    }
    time_to_keep(text).map(Keep::For)
}

/// Parses what raises an alarm: `1000 in a minute`.
pub fn alarm(text: &str) -> Result<Alarm, String> {
    let wrong =
        || format!("alarm '{text}' is not understood (write '1000 in a minute' or '200 in 10 seconds')");
    let (count, within) = text.trim().split_once(" in ").ok_or_else(wrong)?;
    let within = within.trim();
    let single =
        ["a ", "an "].iter().find_map(|word| within.strip_prefix(word)).map(|unit| format!("1 {unit}"));
    let within =
        units::time(single.as_deref().unwrap_or(within)).filter(|time| !time.is_zero() && *time <= LONGEST);
    let count = count.trim().parse().ok().filter(|count| *count > 0);
    Ok(Alarm { count: count.ok_or_else(wrong)?, within: within.ok_or_else(wrong)?, freeze: false })
}

/// The longest time in which an alarm counts.
const LONGEST: Duration = Duration::from_secs(86_400);

fn time_to_keep(text: &str) -> Result<Duration, String> {
    let time = units::time(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| format!("keep '{text}' is not a time (write '30 days', '12 hours' or '2 weeks')"))
}

const RULE: &str =
    "a rule of the trash: PATH=TIME[|except GLOB[:GLOB...]][|overwritten][|alarm NUMBER in TIME[|freeze]]";

/// Parses one rule. The message of an error is one line that names its path.
pub fn parse_rule(text: &str) -> Result<TrashRule, String> {
    let (path, rest) = pair(text, RULE)?;
    let of_rule = |why| format!("trash {path}: {why}");
    let mut parts = split(rest, '|').into_iter();
    let keep = keep(parts.next().unwrap_or_default()).map_err(of_rule)?;
    let (mut except, mut overwritten, mut alarm, mut freeze) = (Vec::new(), false, None, false);
    for part in parts {
        match part.strip_prefix("except ") {
            Some(globs) => {
                for glob in split(globs, ':') {
                    except.push(pattern(glob).map_err(of_rule)?);
                }
            }
            None if part == "overwritten" => overwritten = true,
            None if part == "freeze" => freeze = true,
            None => match part.strip_prefix("alarm ") {
                Some(text) => alarm = Some(self::alarm(text).map_err(of_rule)?),
                None => {
                    return Err(of_rule(format!(
                        "'{part}' is not understood (write 'except GLOB', 'overwritten', 'alarm 1000 in a minute' or 'freeze')"
                    )));
                }
            },
        }
    }
    if freeze && alarm.is_none() {
        return Err(of_rule("freeze needs an alarm (such as 'alarm 1000 in a minute')".into()));
    }
    let alarm = alarm.map(|alarm| Alarm { freeze, ..alarm });
    Ok(TrashRule { path: pattern(path)?, except, keep, overwritten, alarm })
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
    let alarm = rule.alarm.as_ref().map_or_else(String::new, |alarm| {
        format!("|alarm {}{}", format_alarm(alarm), if alarm.freeze { "|freeze" } else { "" })
    });
    format!("{}={}{except}{overwritten}{alarm}", rule.path.as_str(), format_keep(rule.keep))
}

fn format_keep(keep: Keep) -> String {
    match keep {
        Keep::For(time) => units::format_time(time),
        Keep::UntilSync => format!("{UNTIL}{SYNC}"),
    }
}

pub fn format_alarm(alarm: &Alarm) -> String {
    format!("{} in {}", alarm.count, units::format_time(alarm.within))
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
            "**=until snapraid sync|overwritten|alarm 1000 in 1 minute|freeze",
            "**=1 day|alarm 20 in 10 seconds",
            "",
        ] {
            assert_eq!(format(&parse(text).unwrap()), text);
        }
        assert_eq!(
            format(&parse(" ** = 48 h | overwritten | except a ").unwrap()),
            "**=2 days|except a|overwritten"
        );
        assert_eq!(format(&parse("**=1 day|alarm 9 in an hour").unwrap()), "**=1 day|alarm 9 in 1 hour");
        for (text, named) in [
            ("**", "PATH=TIME"),
            ("**=", "trash **: keep ''"),
            ("**=0 days", "trash **: keep '0 days'"),
            ("**=30", "trash **: keep '30'"),
            ("**=30 days|x", "trash **: 'x'"),
            ("**=30 days|except a[", "a["),
            ("a[=30 days", "a["),
            ("**=until tomorrow", "until 'tomorrow'"),
            ("**=1 day|freeze", "freeze needs an alarm"),
            ("**=1 day|alarm 1000", "alarm '1000'"),
            ("**=1 day|alarm 0 in a minute", "alarm '0 in"),
            ("**=1 day|alarm 5 in 3 weeks", "alarm '5 in"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
