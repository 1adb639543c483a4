//! Caches for reading as tables of a TOML file.

use crate::options::closest;
use crate::read_cache;
use canopy_base::separated::quote;
use canopy_policy::placement::Pattern;
use canopy_policy::read_cache::CacheRule;
use toml_edit::{Array, Item, Table, TableLike, Value};

const PARTS: [&str; 7] = ["branches", "path", "size", "free", "when", "only", "spool"];

/// Returns a table in the syntax of `-o`.
///
/// # Errors
/// The mistake as one line.
pub(super) fn of_table(table: &dyn TableLike) -> Result<String, String> {
    if let Some((key, _)) = table.iter().find(|(key, _)| !PARTS.contains(key)) {
        let nearest = closest(key, PARTS.iter().map(|part| (*part).to_owned()));
        let fix = nearest.map_or_else(|| PARTS.join(", "), |name| format!("did you mean '{name}'?"));
        return Err(format!("unknown key '{key}' of a cache ({fix})"));
    }
    let dirs = texts(table, "branches")?.ok_or("a cache needs branches (branches = [\"/mnt/ssd\"])")?;
    let dirs: Vec<String> = dirs.iter().map(|dir| quote(&dir.replace('\\', "\\\\"))).collect();
    let named = dirs.join(":");
    let of_cache = |why: String| format!("cache {named}: {why}");
    let paths = texts(table, "path")
        .map_err(of_cache)?
        .ok_or_else(|| of_cache("path is missing (path = \"**\" is all)".into()))?;
    let paths: Vec<String> = paths.iter().map(|glob| quote(glob)).collect();
    let word = |key: &str, such: &str| {
        let wrong = || of_cache(format!("{key} must be a string, such as '{such}'"));
        table.get(key).map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).transpose()
    };
    let room = match (word("size", "200G")?, word("free", "10 %")?) {
        (Some(_), Some(_)) => return Err(of_cache("give size or free, not both".into())),
        (Some(size), None) => format!("|size {size}"),
        (None, Some(free)) => format!("|free {free}"),
        (None, None) => String::new(),
    };
    let when = match (word("when", read_cache::USUAL_WHEN)?, word("only", "canopy cache add")?) {
        (Some(_), Some(_)) => return Err(of_cache("give when or only, not both".into())),
        (Some(when), None) => format!("|when {when}"),
        (None, Some(only)) => format!("|only {only}"),
        (None, None) => String::new(),
    };
    let spool = match table.get("spool").map(|item| item.as_bool()) {
        Some(None) => return Err(of_cache("spool must be true or false".into())),
        Some(Some(true)) => "|spool",
        Some(Some(false)) | None => "",
    };
    let text = format!("{named}={}{room}{when}{spool}", paths.join(":"));
    // In one form, so that tables can be compared.
    read_cache::parse(&text).map(|rules| read_cache::format(&rules))
}

fn texts(table: &dyn TableLike, key: &str) -> Result<Option<Vec<String>>, String> {
    let wrong = || format!("{key} of a cache must be a string or a list of strings");
    let Some(item) = table.get(key) else { return Ok(None) };
    let texts: Vec<&str> = match (item.as_str(), item.as_array()) {
        (Some(one), _) => vec![one],
        (_, Some(list)) => list.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    if texts.is_empty() { Err(wrong()) } else { Ok(Some(texts.into_iter().map(str::to_owned).collect())) }
}

/// Returns what the syntax of `-o` says as tables.
pub(super) fn to_tables(text: &str) -> Result<Vec<Table>, String> {
    let one = |rule: &CacheRule| {
        let mut table = Table::new();
        let dirs: Array = rule.dirs.iter().map(|dir| dir.to_string_lossy().into_owned()).collect();
        table.insert("branches", Item::Value(dirs.into()));
        let globs: Array = rule.paths.iter().map(Pattern::as_str).collect();
        table.insert("path", Item::Value(globs.into()));
        let (word, room) = read_cache::format_room(rule.room);
        table.insert(word, Item::Value(room.into()));
        let (key, when) = read_cache::format_when(rule.when);
        table.insert(key, Item::Value(when.into()));
        if rule.spool {
            table.insert("spool", Item::Value(true.into()));
        }
        table
    };
    Ok(read_cache::parse(text)?.0.iter().map(one).collect())
}
