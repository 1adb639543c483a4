//! Rules of the trash as tables of a TOML file.

use crate::options::closest;
use crate::placement::quote;
use crate::trash;
use canopy_policy::placement::Pattern;
use toml_edit::{Array, Item, Table, TableLike, Value};

const PARTS: [&str; 4] = ["path", "except", "keep", "overwritten"];

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
    let keep = match table.get("keep") {
        None => trash::USUAL,
        Some(item) => {
            item.as_str().ok_or_else(|| format!("trash {path}: keep must be a string, such as '30 days'"))?
        }
    };
    let overwritten = match table.get("overwritten") {
        None => false,
        Some(item) => {
            item.as_bool().ok_or_else(|| format!("trash {path}: overwritten must be true or false"))?
        }
    };
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
    let overwritten = if overwritten { "|overwritten" } else { "" };
    let text = format!("{}={keep}{except}{overwritten}", quote(path));
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
        table.insert("keep", Item::Value(crate::units::format_time(rule.keep).into()));
        if rule.overwritten {
            table.insert("overwritten", Item::Value(true.into()));
        }
        table
    };
    Ok(trash::parse(text)?.0.iter().map(one).collect())
}
