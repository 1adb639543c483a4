//! Caches for reading, as text on one line and as tables of a TOML file.
//!
//! A cache is `DIR[:DIR...]=GLOB[:GLOB...][|size SIZE][|free SIZE][|when WHEN][|spool]`, such as
//! `/mnt/ssd=films/**:music/**|size 200G|when read 2 times in 1 week`. `only canopy cache add` takes the place of `when`. Several are joined by semicolons. Separators are quoted as in
//! [`placement`](crate::placement).

use crate::placement::{join, list, pair, pattern};
use crate::units;
use canopy_base::separated::{quote, split};
use canopy_base::size::format_size;
use canopy_policy::read_cache::{CacheRule, CacheRules, MOST_READS, Room, When};
use std::path::{Path, PathBuf};

/// What stays free unless a table says so.
const USUAL_ROOM: Room = Room::FreeShare(10);

/// When files get a copy unless a table says so.
pub const USUAL_WHEN: &str = "read twice in a week";

const CACHE: &str = "a cache: DIR[:DIR...]=GLOB[:GLOB...][|size SIZE][|free SIZE][|when WHEN][|spool]";

/// Parses when a file gets a copy: `opened`, `read twice in a week` or `read 3 times in 2 days`.
pub fn when(text: &str) -> Result<When, String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wrong = || {
        format!(
            "when '{text}' is not understood (write '{USUAL_WHEN}', 'read 3 times in 2 days' or 'opened')"
        )
    };
    if words == "opened" {
        return Ok(When::Opened);
    }
    let (times, within) =
        words.strip_prefix("read ").and_then(|rest| rest.split_once(" in ")).ok_or_else(wrong)?;
    let times = match times {
        "twice" => Some(2),
        times => times.strip_suffix(" times").and_then(|number| number.parse::<u8>().ok()),
    };
    let times = times.filter(|times| (1..=MOST_READS).contains(&usize::from(*times))).ok_or_else(wrong)?;
    let single =
        ["a ", "an "].iter().find_map(|word| within.strip_prefix(word)).map(|unit| format!("1 {unit}"));
    let within = units::time(single.as_deref().unwrap_or(within)).filter(|time| !time.is_zero());
    Ok(When::Read { times, within: within.ok_or_else(wrong)? })
}

/// What there is instead of a `when`: files get a copy by that command alone.
const ONLY: &str = "canopy cache add";

/// Parses the command that alone makes copies.
pub fn only(text: &str) -> Result<When, String> {
    if text.split_whitespace().eq(ONLY.split(' ')) {
        Ok(When::Added)
    } else {
        Err(format!("only '{text}' is not understood (write only = \"{ONLY}\", or when = \"{USUAL_WHEN}\")"))
    }
}

/// Parses what stays free: a size, or per cents.
pub fn free(text: &str) -> Result<Room, String> {
    if let Some(share) = units::percent(text).filter(|_| text.trim_end().ends_with(['%', 't'])) {
        return Ok(Room::FreeShare(share));
    }
    units::size(text)
        .map(Room::Free)
        .ok_or_else(|| format!("free '{text}' is neither a size nor a share (write '20G' or '10 %')"))
}

/// Parses what the copies may take.
pub fn size(text: &str) -> Result<Room, String> {
    let size = units::size(text).filter(|size| *size > 0);
    size.map(Room::Size).ok_or_else(|| format!("size '{text}' is not a size (write '200G')"))
}

/// Parses one cache. The message of an error is one line that names its directories.
pub fn parse_one(text: &str) -> Result<CacheRule, String> {
    let (named, rest) = pair(text, CACHE)?;
    let of_cache = |why| format!("cache {named}: {why}");
    let dirs = split(named, ':').into_iter().map(directory).collect::<Result<_, _>>().map_err(of_cache)?;
    let mut parts = split(rest, '|').into_iter();
    let paths = split(parts.next().unwrap_or_default(), ':');
    let paths = paths.into_iter().map(pattern).collect::<Result<_, _>>().map_err(of_cache)?;
    let (mut room, mut wanted, mut spool) = (None, None, false);
    for part in parts {
        let (word, value) = part.split_once(' ').unwrap_or((part, ""));
        match word {
            "size" | "free" if room.is_some() => return Err(of_cache("give size or free, once".into())),
            "size" => room = Some(size(value).map_err(of_cache)?),
            "free" => room = Some(free(value).map_err(of_cache)?),
            "when" | "only" if wanted.is_some() => return Err(of_cache("give when or only, once".into())),
            "when" => wanted = Some(when(value).map_err(of_cache)?),
            "only" => wanted = Some(only(value).map_err(of_cache)?),
            "spool" if value.is_empty() => spool = true,
            _ => {
                return Err(of_cache(format!(
                    "'{part}' is not understood (write 'size SIZE', 'free SIZE', 'when WHEN' or 'spool')"
                )));
            }
        }
    }
    let when = wanted.map_or_else(|| when(USUAL_WHEN), Ok).map_err(of_cache)?;
    Ok(CacheRule { dirs, paths, room: room.unwrap_or(USUAL_ROOM), when, spool })
}

fn directory(text: &str) -> Result<PathBuf, String> {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    let trimmed = plain.trim_end_matches('/');
    if plain.starts_with('/') && !trimmed.is_empty() {
        Ok(PathBuf::from(trimmed))
    } else {
        Err(format!("'{text}' is not a directory (write its path from / on, such as /mnt/ssd)"))
    }
}

pub fn parse(text: &str) -> Result<CacheRules, String> {
    let rules = CacheRules(list(text, parse_one)?);
    let dirs: Vec<&Path> = rules.dirs().map(|(dir, _)| dir).collect();
    let twice = dirs.iter().enumerate().find(|(index, dir)| dirs[..*index].contains(dir));
    match twice {
        Some((_, dir)) => Err(format!(
            "{} is in two caches (name a directory of its own below it for each)",
            format_dir(dir)
        )),
        None => Ok(rules),
    }
}

fn format_dir(dir: &Path) -> String {
    // A path that came here was text.
    let text = dir.to_string_lossy();
    quote(&text.replace('\\', "\\\\"))
}

/// Returns the key that says when a file gets a copy, and its value.
pub fn format_when(when: When) -> (&'static str, String) {
    match when {
        When::Opened => ("when", "opened".into()),
        When::Read { times, within } => {
            ("when", format!("read {times} times in {}", units::format_time(within)))
        }
        When::Added => ("only", ONLY.into()),
    }
}

pub fn format_room(room: Room) -> (&'static str, String) {
    match room {
        Room::Size(size) => ("size", format_size(size)),
        Room::Free(size) => ("free", format_size(size)),
        Room::FreeShare(share) => ("free", format!("{share}%")),
    }
}

pub fn format(rules: &CacheRules) -> String {
    let one = |rule: &CacheRule| {
        let dirs: Vec<String> = rule.dirs.iter().map(|dir| format_dir(dir)).collect();
        let (word, room) = format_room(rule.room);
        let (key, when) = format_when(rule.when);
        let spool = if rule.spool { "|spool" } else { "" };
        format!("{}={}|{word} {room}|{key} {when}{spool}", dirs.join(":"), join(&rule.paths))
    };
    rules.0.iter().map(one).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_shown_as_it_is_written() {
        for text in [
            "/mnt/ssd=films/**:music/**|size 200G|when read 2 times in 1 week",
            "/a:/b=**|free 10%|when opened;/c\\;d=x|free 5G|when read 3 times in 2 days",
            "/a\\\\b=x|size 1G|when opened|spool",
            "/a=x|free 10%|only canopy cache add",
            "",
        ] {
            assert_eq!(format(&parse(text).unwrap()), text);
        }
        assert_eq!(parse("/a\\\\b\\:c=x").unwrap().0[0].dirs, [PathBuf::from("/a\\b:c")]);
        for (text, shown) in [
            ("/a/=x", "/a=x|free 10%|when read 2 times in 1 week"),
            (" /a = x | when read  twice in a day | free 1 % ", "/a=x|free 1%|when read 2 times in 1 day"),
            ("/a=x|when read 3 times in 12 hours|size 1T", "/a=x|size 1T|when read 3 times in 12 hours"),
        ] {
            assert_eq!(format(&parse(text).unwrap()), shown);
        }
    }

    #[test]
    fn a_mistake_names_its_cache() {
        for (text, named) in [
            ("/a", "DIR[:DIR"),
            ("a=x", "cache a: 'a' is not a directory"),
            ("/=x", "cache /: '/' is not"),
            ("/a=x[", "cache /a: 'x['"),
            ("/a=x|size", "cache /a: size ''"),
            ("/a=x|size 0", "cache /a: size '0'"),
            ("/a=x|free lots", "cache /a: free 'lots'"),
            ("/a=x|size 1G|free 1G", "cache /a: give size or free"),
            ("/a=x|when never", "cache /a: when 'never'"),
            ("/a=x|when read 17 times in a week", "cache /a: when 'read 17"),
            ("/a=x|when read 0 times in a week", "cache /a: when 'read 0"),
            ("/a=x|only snapraid", "cache /a: only 'snapraid'"),
            ("/a=x|only canopy cache add|when opened", "cache /a: give when or only"),
            ("/a=x|spool twice", "cache /a: 'spool twice'"),
            ("/a=x|keep", "cache /a: 'keep'"),
            ("/a=x;/b:/a=y", "/a is in two caches"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named) && error.lines().count() == 1, "{text}: {error}");
        }
    }
}
