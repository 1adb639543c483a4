//! Tiers and rules as text on one line, and as tables of a TOML file.
//!
//! A tier is `NAME=BRANCH[:BRANCH...][|WHEN...]`, a rule `PATH=BRANCH[:BRANCH...][|copies N]`, `PATH=TIER[|copies N]` or
//! `PATH=copies N`, where `copies N when written` makes them with each write. Several are joined by semicolons. A backslash quotes a separator, and stays in the glob, where it quotes as well.

use crate::units;
use canopy_base::separated::split;
use canopy_base::size::format_size;
use canopy_policy::placement::{MoveWhen, Pattern, Placement, Rule, Target, Tier};

/// How far a tier is emptied that is fuller than its mark, in points below it.
const BELOW: u8 = 20;

/// Splits a text at its first `=`.
pub(crate) fn pair<'t>(text: &'t str, form: &str) -> Result<(&'t str, &'t str), String> {
    let key = split(text, '=')[0];
    let value = text.trim_start()[key.len()..].trim_start().strip_prefix('=');
    match value.map(str::trim) {
        Some(value) if !key.is_empty() => Ok((key, value)),
        _ => Err(format!("'{text}' is not {form}")),
    }
}

pub(crate) fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|why| format!("'{text}' is not a glob: {why}"))
}

/// Returns the globs of a list of branches.
fn branches(text: &str) -> Result<Vec<Pattern>, String> {
    let one = |text: &str| match text.strip_prefix('/') {
        // A branch list has no slash at the end of a branch either.
        Some(_) => pattern(text.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(text)),
        None => Err(format!("'{text}' is not a branch (write its path from / on, such as /mnt/disk*)")),
    };
    split(text, ':').into_iter().map(one).collect()
}

/// Parses one condition or time of `move-when`.
pub fn move_when(text: &str) -> Result<MoveWhen, String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wrong = || {
        format!(
            "move-when '{text}' is not understood (write 'fuller than 70 %', 'fuller than 70 % until 50 %', \
             'older than 2 days', 'larger than 1G' or 'every night at 03:00')"
        )
    };
    if let Some(share) = words.strip_prefix("fuller than ") {
        let (than, until) =
            share.split_once(" until ").map_or((share, None), |(than, until)| (than, Some(until)));
        let than = units::percent(than).ok_or_else(wrong)?;
        let until = until.map_or(Some(than.saturating_sub(BELOW)), units::percent).ok_or_else(wrong)?;
        if until > than {
            return Err(format!(
                "move-when '{text}' would never end (the share after 'until' must be the smaller one)"
            ));
        }
        return Ok(MoveWhen::Fuller { than, until });
    }
    let other = if let Some(age) = words.strip_prefix("older than ") {
        units::time(age).map(MoveWhen::Older)
    } else if let Some(size) = words.strip_prefix("larger than ") {
        units::size(size).map(MoveWhen::Larger)
    } else if let Some(time) = words.strip_prefix("every night at ").or(words.strip_prefix("every day at ")) {
        units::time_of_day(time).map(|(hour, minute)| MoveWhen::EveryNight { hour, minute })
    } else {
        None
    };
    other.ok_or_else(wrong)
}

pub fn format_move_when(when: &MoveWhen) -> String {
    match when {
        MoveWhen::Fuller { than, until } if than.saturating_sub(BELOW) == *until => {
            format!("fuller than {than}%")
        }
        MoveWhen::Fuller { than, until } => format!("fuller than {than}% until {until}%"),
        MoveWhen::Older(age) => format!("older than {}", units::format_time(*age)),
        MoveWhen::Larger(size) => format!("larger than {}", format_size(*size)),
        MoveWhen::EveryNight { hour, minute } => format!("every night at {hour:02}:{minute:02}"),
    }
}

/// Parses one tier. The message of an error is one line that names the tier.
pub fn parse_tier(text: &str) -> Result<Tier, String> {
    let (name, rest) = pair(text, "a tier: NAME=BRANCH[:BRANCH...][|WHEN...]")?;
    let word = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if !name.chars().all(word) {
        return Err(format!("'{name}' cannot be the name of a tier (use letters, digits, '-', '_' and '.')"));
    }
    let of_tier = |why| format!("tier {name}: {why}");
    let mut parts = split(rest, '|').into_iter();
    let branches = branches(parts.next().unwrap_or_default()).map_err(of_tier)?;
    let move_when = parts.map(move_when).collect::<Result<_, _>>().map_err(of_tier)?;
    Ok(Tier { name: name.to_owned(), branches, move_when })
}

/// On how many disks a rule may want a file: more is a slip.
const MOST_COPIES: i64 = 16;

/// Checks a number of copies.
pub fn copies(number: Option<i64>) -> Result<u8, String> {
    let number = number.ok_or("copies must be a number, such as copies = 2")?;
    match u8::try_from(number) {
        Ok(0) => Err("copies = 0 would keep no file (write 2 for a second copy, 1 for none)".into()),
        Ok(copies) if number <= MOST_COPIES => Ok(copies),
        _ => Err(format!("copies = {number} cannot be (write a number from 1 to {MOST_COPIES})")),
    }
}

/// Parses when copies are made. Returns whether that is with each write.
pub fn copies_when(text: &str) -> Result<bool, String> {
    match text.trim() {
        "written" => Ok(true),
        "closed" => Ok(false),
        other => Err(format!("when = '{other}' cannot be (write written or closed)")),
    }
}

/// Parses `N` or `N when WHEN`: a number of copies, and whether they are made with each write.
fn copies_and_when(text: &str) -> Result<(u8, bool), String> {
    let (number, when) =
        text.split_once(" when ").map_or((text, None), |(number, when)| (number, Some(when)));
    let number = copies(number.trim().parse().ok())?;
    let written = when.map_or(Ok(false), copies_when)?;
    if written && number < 2 {
        return Err("when = 'written' needs copies = 2 or more".into());
    }
    Ok((number, written))
}

/// Parses one rule. The message of an error is one line that names its path.
pub fn parse_rule(text: &str) -> Result<Rule, String> {
    let form = "a rule: PATH=BRANCH[:BRANCH...][|copies N], PATH=TIER[|copies N] or PATH=copies N";
    let (path, text) = pair(text, form)?;
    let of_rule = |why| format!("rule {path}: {why}");
    let (mut named, mut wanted) = (None, None);
    for part in split(text, '|') {
        match part.strip_prefix("copies ").map(str::trim) {
            Some(number) if wanted.is_none() => {
                wanted = Some(copies_and_when(number).map_err(of_rule)?);
            }
            None if named.is_none() && !part.is_empty() => named = Some(part),
            None if part.is_empty() => {}
            _ => {
                return Err(of_rule(format!(
                    "'{part}' is one too many (write branches or a tier, and copies N)"
                )));
            }
        }
    }
    let target = match named {
        Some(list) if list.starts_with('/') => Target::Branches(branches(list).map_err(of_rule)?),
        Some(tier) => Target::Tier(tier.to_owned()),
        None if wanted.is_some() => Target::Anywhere,
        None => return Err(of_rule("it names neither branches, nor a tier, nor copies".into())),
    };
    let (copies, written) = wanted.map_or((None, false), |(copies, written)| (Some(copies), written));
    Ok(Rule { path: pattern(path)?, target, copies, written })
}

pub(crate) fn list<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    split(text, ';').into_iter().filter(|part| !part.is_empty()).map(parse).collect()
}

pub fn parse_tiers(text: &str) -> Result<Vec<Tier>, String> {
    let tiers = list(text, parse_tier)?;
    for (index, tier) in tiers.iter().enumerate() {
        if tiers[..index].iter().any(|other| other.name == tier.name) {
            return Err(format!("two tiers are called {} (give one another name)", tier.name));
        }
    }
    Ok(tiers)
}

pub fn parse_rules(text: &str) -> Result<Vec<Rule>, String> {
    list(text, parse_rule)
}

pub(crate) fn join(patterns: &[Pattern]) -> String {
    patterns.iter().map(Pattern::as_str).collect::<Vec<_>>().join(":")
}

pub fn format_tiers(tiers: &[Tier]) -> String {
    let one = |tier: &Tier| {
        let when: String = tier.move_when.iter().map(|when| format!("|{}", format_move_when(when))).collect();
        format!("{}={}{when}", tier.name, join(&tier.branches))
    };
    tiers.iter().map(one).collect::<Vec<_>>().join(";")
}

pub fn format_rules(rules: &[Rule]) -> String {
    let one = |rule: &Rule| {
        let place = match &rule.target {
            Target::Branches(branches) => Some(join(branches)),
            Target::Tier(name) => Some(name.clone()),
            Target::Anywhere => None,
        };
        let when = if rule.written { " when written" } else { "" };
        let copies = rule.copies.map(|copies| format!("copies {copies}{when}"));
        let parts: Vec<String> = place.into_iter().chain(copies).collect();
        format!("{}={}", rule.path.as_str(), parts.join("|"))
    };
    rules.iter().map(one).collect::<Vec<_>>().join(";")
}

/// Checks that the tiers exist that rules name. Returns the mistake as one line.
pub fn check(placement: &Placement) -> Result<(), String> {
    let names = || placement.tiers.iter().map(|tier| tier.name.as_str());
    for rule in &placement.rules {
        if let Target::Tier(name) = &rule.target
            && !names().any(|known| known == name)
        {
            let known = names().collect::<Vec<_>>().join(", ");
            let known =
                if known.is_empty() { "there is none".to_owned() } else { format!("there are: {known}") };
            return Err(format!("rule {}: no tier is called '{name}' ({known})", rule.path.as_str()));
        }
    }
    Ok(())
}

/// Returns a line for each rule that wants more copies than it has branches for.
fn too_many_copies<'b>(
    placement: &Placement,
    branches: impl Iterator<Item = &'b std::path::Path> + Clone,
) -> impl Iterator<Item = String> {
    use std::os::unix::ffi::OsStrExt;
    let line = move |rule: &Rule| {
        let wanted = usize::from(rule.copies?);
        let (among, of_whom) = match &rule.target {
            Target::Branches(named) => {
                let admits =
                    |path: &&std::path::Path| named.iter().any(|it| it.matches(path.as_os_str().as_bytes()));
                (branches.clone().filter(admits).count(), "the rule names")
            }
            _ => (branches.clone().count(), "the pool has"),
        };
        (among < wanted).then(|| {
            format!(
                "rule {}: {wanted} copies need {wanted} branches, and {of_whom} {among} (add a branch, or write copies = {})",
                rule.path.as_str(),
                among.max(1)
            )
        })
    };
    placement.rules.iter().filter_map(line).collect::<Vec<_>>().into_iter()
}

/// Returns a line for each glob of a tier or rule that matches none of the branches, and for each rule that wants more
/// copies than there are branches. Branches come and go, so these are no mistakes.
pub fn idle_globs<'b>(
    placement: &Placement,
    branches: impl Iterator<Item = &'b std::path::Path> + Clone,
) -> Vec<String> {
    use std::os::unix::ffi::OsStrExt;
    let idle =
        |pattern: &&Pattern| !branches.clone().any(|path| pattern.matches(path.as_os_str().as_bytes()));
    let line = |of: String, pattern: &Pattern| {
        format!("{of}: no branch matches {} (canopy get POOL branches)", pattern.as_str())
    };
    let of_tiers = placement.tiers.iter().flat_map(|tier| {
        tier.branches.iter().filter(idle).map(|pattern| line(format!("tier {}", tier.name), pattern))
    });
    let of_rules = placement.rules.iter().flat_map(|rule| {
        let named: &[Pattern] = match &rule.target {
            Target::Branches(named) => named,
            Target::Tier(_) | Target::Anywhere => &[],
        };
        named.iter().filter(idle).map(|pattern| line(format!("rule {}", rule.path.as_str()), pattern))
    });
    let of_copies = too_many_copies(placement, branches.clone());
    of_tiers.chain(of_rules).chain(of_copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_tiers_is_canonical() {
        let table = [
            ("", ""),
            ("ssd=/mnt/ssd", "ssd=/mnt/ssd"),
            (
                " ssd = /mnt/ssd/ : /mnt/nvme | fuller than 70 % ; disks=/mnt/disk* ;",
                "ssd=/mnt/ssd:/mnt/nvme|fuller than 70%;disks=/mnt/disk*",
            ),
            ("a=/a|fuller  than 70% until 50 %", "a=/a|fuller than 70%"),
            (
                "a=/a|fuller than 90% until 50%|older than 48h",
                "a=/a|fuller than 90% until 50%|older than 2 days",
            ),
            ("a=/a|larger than 1 GiB|every day at 3:00", "a=/a|larger than 1G|every night at 03:00"),
            (r"a=/a\;b\:c|older than 1 week", r"a=/a\;b\:c|older than 1 week"),
            ("a=/no=b", "a=/no=b"),
        ];
        for (text, expected) in table {
            let shown = format_tiers(&parse_tiers(text).unwrap());
            assert_eq!(shown, expected, "{text}");
            assert_eq!(format_tiers(&parse_tiers(&shown).unwrap()), shown);
        }
        let tiers = parse_tiers(r"a=/a\;b").unwrap();
        assert!(tiers[0].holds(std::path::Path::new("/a;b")));
    }

    #[test]
    fn the_text_of_rules_is_canonical() {
        let table = [
            (
                "films/**=/mnt/disk1:/mnt/disk2; **/*.part = ssd",
                "films/**=/mnt/disk1:/mnt/disk2;**/*.part=ssd",
            ),
            (r"a\=b/*=ssd", r"a\=b/*=ssd"),
            ("with a space/**=/mnt/a b", "with a space/**=/mnt/a b"),
            ("photos/** = copies  2", "photos/**=copies 2"),
            ("a=copies 2 when  written;b=ssd|copies 3 when closed", "a=copies 2 when written;b=ssd|copies 3"),
            ("a= /b:/c | copies 2;b=copies 3|ssd;c=copies", "a=/b:/c|copies 2;b=ssd|copies 3;c=copies"),
        ];
        for (text, expected) in table {
            assert_eq!(format_rules(&parse_rules(text).unwrap()), expected, "{text}");
        }
        assert!(
            parse_rule(&format!("{}=x", canopy_base::separated::quote("a=b"))).unwrap().path.matches(b"a=b")
        );
    }

    #[test]
    fn a_mistake_is_one_line_with_its_mend() {
        let tiers = [
            ("ssd", "'ssd' is not a tier"),
            ("=/a", "'=/a' is not a tier"),
            ("a b=/a", "'a b' cannot be the name of a tier"),
            ("a=b", "tier a: 'b' is not a branch (write its path from / on"),
            ("a=", "tier a: '' is not a branch"),
            ("a=/[", "tier a: '/[' is not a glob: "),
            (
                "a=/a|fuller then 70%",
                "tier a: move-when 'fuller then 70%' is not understood (write 'fuller than",
            ),
            ("a=/a|fuller than 170%", "tier a: move-when 'fuller than 170%' is not understood"),
            ("a=/a|older than 2 moons", "tier a: move-when 'older than 2 moons' is not understood"),
            (
                "a=/a|fuller than 50% until 60%",
                "tier a: move-when 'fuller than 50% until 60%' would never end",
            ),
            ("a=/a;a=/b", "two tiers are called a"),
        ];
        for (text, expected) in tiers {
            let line = parse_tiers(text).unwrap_err();
            assert!(line.starts_with(expected) && !line.contains('\n'), "{text}: {line}");
        }
        let rules = [
            ("films/**", "'films/**' is not a rule"),
            ("films/**=", "rule films/**: it names neither"),
            ("a[=ssd", "'a[' is not a glob: "),
            ("a=/b:c", "rule a: 'c' is not a branch"),
            ("a=copies 0", "rule a: copies = 0 would keep no file (write 2"),
            ("a=copies two", "rule a: copies must be a number, such as copies = 2"),
            ("a=copies 300", "rule a: copies = 300 cannot be (write a number from 1 to 16)"),
            ("a=copies 2 when open", "rule a: when = 'open' cannot be (write written or closed)"),
            ("a=copies 1 when written", "rule a: when = 'written' needs copies = 2 or more"),
            ("a=copies 2|copies 3", "rule a: 'copies 3' is one too many"),
            ("a=ssd|/b", "rule a: '/b' is one too many"),
        ];
        for (text, expected) in rules {
            let line = parse_rules(text).unwrap_err();
            assert!(line.starts_with(expected) && !line.contains('\n'), "{text}: {line}");
        }
        let placement =
            Placement { tiers: parse_tiers("a=/a;b=/b").unwrap(), rules: parse_rules("x=c").unwrap() };
        assert_eq!(check(&placement).unwrap_err(), "rule x: no tier is called 'c' (there are: a, b)");
        let idle = idle_globs(&placement, [std::path::Path::new("/a")].into_iter());
        assert_eq!(idle, ["tier b: no branch matches /b (canopy get POOL branches)"]);
        let rules = parse_rules("x=copies 3;y=/a*|copies 2;z=copies 2;w=/b*|copies 2").unwrap();
        let two = ["/a", "/b1", "/b2"].map(std::path::Path::new);
        assert_eq!(
            idle_globs(&Placement { tiers: Vec::new(), rules }, two.into_iter()),
            ["rule y: 2 copies need 2 branches, and the rule names 1 (add a branch, or write copies = 1)"]
        );
    }
}
