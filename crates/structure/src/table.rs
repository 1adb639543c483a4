//! The rule book, `floors.toml`.

use std::collections::BTreeMap;
use std::path::Path;
use toml_edit::{Document, Item, TableLike};

/// The rule book's place, from the root of the workspace.
pub(crate) const TABLE: &str = "crates/structure/floors.toml";

/// What the workspace is held to.
pub(crate) struct Table {
    pub(crate) limits: Limits,
    pub(crate) crates: BTreeMap<String, Crate>,
}

/// The largest sizes that are allowed.
pub(crate) struct Limits {
    /// Lines of a file, without its inline `#[cfg(test)]` modules.
    pub(crate) file: usize,
    /// Lines of a function, from `fn` to the closing brace.
    pub(crate) function: usize,
    /// Rust files directly in a folder.
    pub(crate) folder: usize,
}

/// The entry of a crate.
pub(crate) struct Crate {
    /// The line of its heading.
    pub(crate) line: usize,
    /// Crates of the workspace that it may depend on.
    pub(crate) uses: Vec<String>,
    /// Crates of the workspace that its tests may depend on as well.
    pub(crate) tests_use: Vec<String>,
    /// Whether `unsafe` may occur in it.
    pub(crate) allows_unsafe: bool,
    /// The most lines that its `src` may have.
    pub(crate) lines: Option<usize>,
    /// Its rooms, from the top floor to the ground.
    pub(crate) rooms: Vec<Room>,
}

/// A file or folder below a crate's `src` and its floor.
pub(crate) struct Room {
    /// The path below `src` without `.rs` or `/mod.rs`, as in `ops` or `ops/readdir`.
    pub(crate) name: String,
    /// 0 is the top floor.
    pub(crate) floor: usize,
    /// The line in the table.
    pub(crate) line: usize,
}

impl Crate {
    /// Returns the room that a file belongs to: the longest entry that is the file or a folder around it.
    pub(crate) fn room(&self, file: &str) -> Option<&Room> {
        self.rooms
            .iter()
            .filter(|room| Path::new(file).starts_with(&room.name))
            .max_by_key(|room| room.name.len())
    }
}

impl Table {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let document = Document::parse(text).map_err(|error| error.to_string())?;
        let mut limits = None;
        let mut crates = BTreeMap::new();
        for (key, item) in document.iter() {
            let part = item.as_table_like().ok_or_else(|| format!("{key} is not a table"))?;
            match key {
                "limits" => limits = Some(parse_limits(part)?),
                "crate" => {
                    for (name, entry) in part.iter() {
                        let line = line_of(text, entry.span());
                        let entry =
                            entry.as_table_like().ok_or_else(|| format!("crate.{name} is not a table"))?;
                        let entry =
                            parse_crate(text, line, entry).map_err(|e| format!("crate.{name}: {e}"))?;
                        crates.insert(name.to_owned(), entry);
                    }
                }
                _ => return Err(format!("unknown table [{key}]")),
            }
        }
        Ok(Self { limits: limits.ok_or("[limits] is missing")?, crates })
    }
}

fn parse_limits(table: &dyn TableLike) -> Result<Limits, String> {
    let mut limits = Limits { file: 0, function: 0, folder: 0 };
    for (key, item) in table.iter() {
        let limit = match key {
            "file" => &mut limits.file,
            "function" => &mut limits.function,
            "folder" => &mut limits.folder,
            _ => return Err(format!("limits: unknown key {key}")),
        };
        *limit = number(item).ok_or_else(|| format!("limits: {key} is not a number"))?;
    }
    if [limits.file, limits.function, limits.folder].contains(&0) {
        return Err("limits needs file, function and folder, all above 0".to_owned());
    }
    Ok(limits)
}

fn parse_crate(text: &str, line: usize, table: &dyn TableLike) -> Result<Crate, String> {
    let mut entry = Crate {
        line,
        uses: Vec::new(),
        tests_use: Vec::new(),
        allows_unsafe: false,
        lines: None,
        rooms: Vec::new(),
    };
    for (key, item) in table.iter() {
        match key {
            "uses" => entry.uses = strings(text, key, item)?.into_iter().map(|(name, _)| name).collect(),
            "tests-use" => {
                entry.tests_use = strings(text, key, item)?.into_iter().map(|(name, _)| name).collect()
            }
            "unsafe" => entry.allows_unsafe = item.as_bool().ok_or("unsafe is neither true nor false")?,
            "lines" => entry.lines = Some(number(item).ok_or("lines is not a number")?),
            "floors" => {
                for (floor, (rooms, line)) in strings(text, key, item)?.into_iter().enumerate() {
                    let rooms = rooms.split_whitespace();
                    entry.rooms.extend(rooms.map(|name| Room { name: name.to_owned(), floor, line }));
                }
            }
            _ => return Err(format!("unknown key {key}")),
        }
    }
    let mut names: Vec<&str> = entry.rooms.iter().map(|room| room.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("the room {} has two floors", pair[0])),
        None => Ok(entry),
    }
}

/// Returns the strings of an array and their lines.
fn strings(text: &str, key: &str, item: &Item) -> Result<Vec<(String, usize)>, String> {
    let array = item.as_array().ok_or_else(|| format!("{key} is not an array"))?;
    let each = array.iter().map(|value| {
        let string = value.as_str().ok_or_else(|| format!("{key} holds something other than strings"))?;
        Ok((string.to_owned(), line_of(text, value.span())))
    });
    each.collect()
}

fn number(item: &Item) -> Option<usize> {
    item.as_integer().and_then(|number| usize::try_from(number).ok())
}

fn line_of(text: &str, span: Option<std::ops::Range<usize>>) -> usize {
    1 + span.map_or(0, |span| text[..span.start].matches('\n').count())
}
