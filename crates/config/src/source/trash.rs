//! Rules of the trash as tables of a TOML file.

use crate::options::closest;
use crate::trash;
use canopy_base::separated::quote;
use canopy_policy::placement::Pattern;
use canopy_policy::trash::Keep;
use toml_edit::{Array, Item, Table, TableLike, Value};

const PARTS: [&str; 7] = ["path", "except", "keep", "until", "overwritten", "alarm", "freeze"];

/// Returns a table in the syntax of `-o`.
///
/// # Errors
/// The mistake as one line.
pub(super) fn of_table(table: &dyn TableLike) -> Result<String, String> {
    if let Some((key, _)) = table.iter().find(|(key, _)| !PARTS.contains(key)) {
        let nearest = closest(key, PARTS.iter().map(|part| (*part).to_owned()));
        let fix = nearest.map_or_else(|| PARTS.join(", "), |name| format!("did you mean '{name}'?"));
        return Err(format!("unknown key '{key}' of the trash ({fix})"));
    }
    let path = table.get("path").ok_or("the trash needs a path (path = \"**\" is all)")?;
    let path = path.as_str().ok_or("path of the trash must be a string")?;
    let text = |key: &str, such: &str| {
        let wrong = || format!("trash {path}: {key} must be a string, such as '{such}'");
        table.get(key).map(|item| item.as_str().ok_or_else(wrong)).transpose()
    };
    let keep = match (text("keep", trash::USUAL)?, text("until", trash::SYNC)?) {
        (Some(_), Some(_)) => return Err(format!("trash {path}: give keep or until, not both")),
        (None, Some(until)) => format!("until {until}"),
        (keep, None) => keep.unwrap_or(trash::USUAL).to_owned(),
    };
    let flag = |key: &str| {
        let wrong = || format!("trash {path}: {key} must be true or false");
        table.get(key).map_or(Ok(false), |item| item.as_bool().ok_or_else(wrong))
    };
    let alarm =
        text("alarm", "1000 in a minute")?.map_or_else(String::new, |alarm| format!("|alarm {alarm}"));
    let freeze = if flag("freeze")? { "|freeze" } else { "" };
    let wrong = || format!("trash {path}: except must be a string or a list of strings");
    let except: Vec<&str> = match table.get("except") {
        None => Vec::new(),
        Some(item) => match (item.as_str(), item.as_array()) {
            (Some(one), _) => vec![one],
            (_, Some(list)) => list.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(wrong)?,
            _ => return Err(wrong()),
        },
    };
    let globs = except.iter().map(|glob| quote(glob)).collect::<Vec<_>>().join(":");
    let except = if globs.is_empty() { String::new() } else { format!("|except {globs}") };
    let overwritten = if flag("overwritten")? { "|overwritten" } else { "" };
    let text = format!("{}={keep}{except}{overwritten}{alarm}{freeze}", quote(path));
    trash::parse_rule(&text)?;
    Ok(text)
}

/// Returns what the syntax of `-o` says as tables.
pub(super) fn to_tables(text: &str) -> Result<Vec<Table>, String> {
    let one = |rule: &canopy_policy::trash::TrashRule| {
        let mut table = Table::new();
        table.insert("path", Item::Value(rule.path.as_str().into()));
        if !rule.except.is_empty() {
            let globs: Array = rule.except.iter().map(Pattern::as_str).collect();
            table.insert("except", Item::Value(globs.into()));
        }
        match rule.keep {
            Keep::For(time) => table.insert("keep", Item::Value(crate::units::format_time(time).into())),
            Keep::UntilSync => table.insert("until", Item::Value(trash::SYNC.into())),
        };
        if rule.overwritten {
            table.insert("overwritten", Item::Value(true.into()));
        }
        if let Some(alarm) = &rule.alarm {
            table.insert("alarm", Item::Value(trash::format_alarm(alarm).into()));
            if alarm.freeze {
                table.insert("freeze", Item::Value(true.into()));
            }
        }
        table
    };
    Ok(trash::parse(text)?.0.iter().map(one).collect())
}
