//! Changes one option in the text of a config file. Everything else keeps its order, its formatting and its comments.

use super::{read_cache, toml, trash};
use crate::Config;
use crate::options::{self, Spec};
use crate::placement;
use canopy_branch::branch::{BranchList, BranchSpec};
use canopy_policy::placement::{Pattern, Placement, Target};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, RawString, Table, TableLike, Value};

/// Where the line of an option goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Insertion {
    /// Where the option is already, the last place if there are several; at the end if it is new.
    InPlace,
    /// At the end, so that no other line overrides it. TOML has no such place, because its order has no meaning.
    AtEnd,
}

/// Returns a file of lines with a new value for one option.
pub(super) fn lines(text: &[u8], spec: &Spec, value: &OsStr, place: Insertion) -> Vec<u8> {
    let sets_option = |line: &&[u8]| {
        let line = line.trim_ascii();
        let (key, _) = options::split(OsStr::from_bytes(line));
        !line.starts_with(b"#") && options::find(&key).is_some_and(|found| found.name == spec.name)
    };
    let mut lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    let current = lines.iter().rposition(sets_option);
    let changed: Vec<u8>;
    match (current, place) {
        (Some(index), Insertion::InPlace) => {
            changed = with_value(lines[index], value);
            lines[index] = &changed;
            lines.concat()
        }
        (current, _) => {
            if let Some(index) = current {
                lines.remove(index);
            }
            let mut text = lines.concat();
            if text.last().is_some_and(|&byte| byte != b'\n') {
                text.push(b'\n');
            }
            text.extend([spec.name.as_bytes(), b"=", value.as_bytes(), b"\n"].concat());
            text
        }
    }
}

/// Returns a line with a new value. Blanks, the spelling of the key and the end of the line stay.
fn with_value(line: &[u8], value: &OsStr) -> Vec<u8> {
    let end = line.trim_ascii_end().len();
    let (option, end) = line.split_at(end);
    let equals = option.iter().position(|&byte| byte == b'=');
    let (key, old) = option.split_at(equals.map_or(option.len(), |at| at + 1));
    let blanks = &old[..old.len() - old.trim_ascii_start().len()];
    let equals: &[u8] = if equals.is_some() { b"" } else { b"=" };
    [key, equals, blanks, value.as_bytes(), end].concat()
}

/// Returns a TOML file with a new value for one option.
///
/// # Errors
/// A message, if the file is not TOML or TOML cannot express the value.
pub(super) fn toml(text: &str, spec: &Spec, value: &OsStr) -> Result<String, String> {
    let mut document: DocumentMut =
        text.parse().map_err(|why: toml_edit::TomlError| why.message().replace('\n', ", "))?;
    let text = value.to_str().ok_or("it is not UTF-8, as TOML must be")?;
    let path = path_of(document.as_table(), "", spec);
    if toml::has_tables(spec) {
        return tables(document, path.as_deref(), spec, text);
    }
    let old =
        path.map(|path| path.iter().fold(document.as_item_mut(), |item, part| &mut item[part.as_str()]));
    let new = |old: Option<&Item>| {
        if spec.name == "branches" { branches(old, text) } else { Ok(Item::Value(scalar(text))) }
    };
    match old {
        Some(old) => {
            let mut new = new(Some(old))?;
            if let (Some(new), Some(old)) = (new.as_value_mut(), old.as_value()) {
                *new.decor_mut() = old.decor().clone();
            }
            *old = new;
        }
        None => insert(document.as_table_mut(), &spec.name, new(None)?),
    }
    Ok(document.to_string())
}

/// Returns a file with new tiers, rules or parts of the trash, each a table. Those that stay keep their formatting and their comments.
fn tables(
    mut document: DocumentMut,
    path: Option<&[String]>,
    spec: &Spec,
    text: &str,
) -> Result<String, String> {
    // `[cache]` holds the keys cache.*, and is no table of the option that is called so, too.
    let is_another = |key: &String| matches!(document.get(key), Some(Item::Table(_)));
    let key = match path {
        Some([key]) if is_another(key) => spec.name.clone().into_owned(),
        Some([key]) => key.clone(),
        Some(_) => return Err("it is not at the top of the file".into()),
        // Its shorter word, where that is not taken.
        None if spec.name == "read-cache" && !document.contains_key("cache") => "cache".to_owned(),
        None => spec.name.trim_end_matches('s').to_owned(),
    };
    // As a table would say it, so that the two can be compared.
    let said = |table: &Table| toml::of_table(table, spec).ok();
    let wanted = match spec.name.as_ref() {
        "trash" => trash::to_tables(text)?,
        "read-cache" => read_cache::to_tables(text)?,
        name => placement_tables(name == "tiers", text)?,
    };
    let old = document.as_table_mut().remove(&key);
    let mut left: Vec<Table> = match old {
        Some(Item::ArrayOfTables(old)) => old.into_iter().collect(),
        _ => Vec::new(),
    };
    let mut new = ArrayOfTables::new();
    for table in wanted {
        let same = left.iter().position(|old| said(old).is_some() && said(old) == said(&table));
        new.push(same.map_or(table, |index| left.remove(index)));
    }
    if !new.is_empty() {
        document.as_table_mut().insert(&key, Item::ArrayOfTables(new));
    }
    Ok(document.to_string())
}

/// Returns tiers or rules as tables.
fn placement_tables(tiers: bool, text: &str) -> Result<Vec<Table>, String> {
    let globs = |globs: &[Pattern]| Value::from(globs.iter().map(Pattern::as_str).collect::<Array>());
    let placement = if tiers {
        Placement { tiers: placement::parse_tiers(text)?, rules: Vec::new() }
    } else {
        Placement { tiers: Vec::new(), rules: placement::parse_rules(text)? }
    };
    let of_tiers = placement.tiers.iter().map(|tier| {
        let mut table = Table::new();
        table.insert("name", Item::Value(tier.name.as_str().into()));
        table.insert("branches", Item::Value(globs(&tier.branches)));
        let when: Vec<String> = tier.move_when.iter().map(placement::format_move_when).collect();
        let when = match when.as_slice() {
            [] => return table,
            [one] => Value::from(one.as_str()),
            some => some.iter().map(String::as_str).collect::<Array>().into(),
        };
        table.insert("move-when", Item::Value(when));
        table
    });
    let of_rules = placement.rules.iter().map(|rule| {
        let mut table = Table::new();
        table.insert("path", Item::Value(rule.path.as_str().into()));
        match &rule.target {
            Target::Anywhere => None,
            Target::Branches(branches) => table.insert("branches", Item::Value(globs(branches))),
            Target::Tier(name) => table.insert("tier", Item::Value(name.as_str().into())),
        };
        if let Some(copies) = rule.copies {
            table.insert("copies", Item::Value(i64::from(copies).into()));
        }
        if rule.written {
            table.insert("when", Item::Value("written".into()));
        }
        table
    });
    Ok(of_tiers.chain(of_rules).collect())
}

/// Returns the path of keys to an option, the last one if there are several.
fn path_of(table: &dyn TableLike, above: &str, spec: &Spec) -> Option<Vec<String>> {
    let paths = table.iter().filter_map(|(name, item)| {
        let key = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
        let below = match item.as_table_like() {
            _ if options::find(&key).is_some_and(|found| found.name == spec.name) => Vec::new(),
            Some(inner) => path_of(inner, &key, spec)?,
            None => return None,
        };
        Some([vec![name.to_owned()], below].concat())
    });
    paths.last()
}

/// Inserts an option into the innermost table that exists for it, or with its dots. If a part of its name is a key with a
/// value already, the rest of the name is quoted.
fn insert(root: &mut Table, name: &str, item: Item) {
    let mut table: &mut dyn TableLike = root;
    let mut rest = name;
    while let Some((first, more)) = rest.split_once('.') {
        if !table.contains_key(first) {
            let mut dotted = Table::new();
            dotted.set_dotted(true);
            table.insert(first, Item::Table(dotted));
        }
        if table.get(first).is_none_or(|item| !item.is_table_like()) {
            break;
        }
        let Some(inner) = table.get_mut(first).and_then(Item::as_table_like_mut) else { return };
        (table, rest) = (inner, more);
    }
    table.insert(rest, item);
}

fn scalar(text: &str) -> Value {
    match (text.parse::<bool>(), text.parse::<i64>()) {
        (Ok(truth), _) => truth.into(),
        (_, Ok(number)) if number.to_string() == text => number.into(),
        _ => text.into(),
    }
}

/// Returns the new branch list in the form of the old one. Branches that stay keep their formatting and their comments.
fn branches(old: Option<&Item>, text: &str) -> Result<Item, String> {
    let list = list_of(text)?;
    if let Some(Item::ArrayOfTables(tables)) = old {
        let mut left: Vec<&Table> = tables.iter().collect();
        let mut new = ArrayOfTables::new();
        for spec in list.iter() {
            new.push(
                match left.iter().position(|table| toml::parts(*table).is_ok_and(|text| means(&text, spec))) {
                    Some(index) => left.remove(index).clone(),
                    None => table_of(spec)?,
                },
            );
        }
        return Ok(Item::ArrayOfTables(new));
    }
    match old.and_then(Item::as_array) {
        Some(old) => array(old, &list).map(|array| Item::Value(array.into())),
        None => Ok(Item::Value(list.iter().map(short).collect::<Result<Array, _>>()?.into())),
    }
}

/// A value of an array with the text around it.
struct Entry<'a> {
    value: &'a Value,
    /// Blanks, and comments on the lines above.
    before: String,
    /// A comment on the same line.
    after: String,
}

/// Splits the text between two values of an array. A comment on the line of the first belongs to the first, all else to
/// the second.
fn split_gap(text: Option<&RawString>) -> (String, String) {
    let text = text.and_then(RawString::as_str).unwrap_or_default();
    let line = text.find('\n').unwrap_or(text.len());
    let (after, before) = text.split_at(if text[..line].contains('#') { line } else { 0 });
    (after.to_owned(), before.to_owned())
}

fn array(old: &Array, list: &BranchList) -> Result<Array, String> {
    let (head, mut before) =
        split_gap(old.iter().next().map_or(Some(old.trailing()), |first| first.decor().prefix()));
    let mut left: Vec<Entry> = Vec::new();
    for (index, value) in old.iter().enumerate() {
        let next = old.get(index + 1).map_or(Some(old.trailing()), |next| next.decor().prefix());
        let (after, next) = split_gap(next);
        left.push(Entry { value, before: std::mem::replace(&mut before, next), after });
    }
    let end = before;
    // A new branch goes on a line of its own if the first one does.
    let first = left.first().map_or("", |entry| &entry.before);
    let indent = first[first.rfind('\n').unwrap_or(0)..].to_owned();

    let mut new = Array::new();
    let mut carried = head;
    for (index, spec) in list.iter().enumerate() {
        let same =
            left.iter().position(|entry| toml::branch(entry.value).is_ok_and(|text| means(&text, spec)));
        let (mut value, before, after) = match same.map(|index| left.remove(index)) {
            Some(entry) => (entry.value.clone(), entry.before, entry.after),
            None => (short(spec)?.into(), indent.clone(), String::new()),
        };
        let blank = if index > 0 && before.is_empty() { " " } else { &before };
        value.decor_mut().set_prefix(carried + blank);
        carried = after;
        new.push_formatted(value);
    }
    new.set_trailing(carried + &end);
    new.set_trailing_comma(old.trailing_comma());
    Ok(new)
}

fn list_of(text: &str) -> Result<BranchList, String> {
    let mut config = Config::default();
    super::set(&mut config, "branches", OsStr::new(text)).map_err(|error| error.to_string())?;
    Ok(config.branches)
}

/// Returns whether an entry means this branch and no other.
fn means(entry: &str, spec: &BranchSpec) -> bool {
    list_of(&format!("={entry}")).is_ok_and(|list| list.as_slice() == [spec.clone()])
}

fn utf8(text: OsString) -> Result<String, String> {
    text.into_string().map_err(|text| format!("{} is not UTF-8, as TOML must be", text.to_string_lossy()))
}

/// Returns a branch without its defaults.
fn short(spec: &BranchSpec) -> Result<String, String> {
    let path = utf8(spec.path.clone().into_os_string())?;
    if means(&path, spec) {
        return Ok(path);
    }
    utf8(BranchList::from_iter([spec.clone()]).to_os_string())
}

fn table_of(spec: &BranchSpec) -> Result<Table, String> {
    let mut table = Table::new();
    table.insert("path", Item::Value(utf8(spec.path.clone().into_os_string())?.into()));
    table.insert("mode", Item::Value(spec.mode.to_string().into()));
    if let Some(bytes) = spec.min_free {
        table.insert("minfreespace", Item::Value(canopy_base::size::format_size(bytes).into()));
    }
    Ok(table)
}

/// A file, a NUL, and a value: what is edited stays a file of that kind.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let (text, value) = bytes.split_at(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    let value = OsStr::from_bytes(value.strip_prefix(&[0]).unwrap_or(value));
    let Some(spec) = crate::options::find("cache.attr") else { return };
    std::hint::black_box(lines(text, spec, value, Insertion::InPlace));
    if let Ok(text) = std::str::from_utf8(text)
        && let Ok(edited) = toml(text, spec, value)
    {
        assert!(edited.parse::<toml_edit::DocumentMut>().is_ok(), "{edited}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(key: &str) -> &'static Spec {
        options::find(key).unwrap()
    }

    fn line(text: &str, key: &str, value: &str, place: Insertion) -> String {
        String::from_utf8(lines(text.as_bytes(), spec(key), OsStr::new(value), place)).unwrap()
    }

    #[test]
    fn a_line_changes_in_place() {
        let in_place = |text, key, value| line(text, key, value, Insertion::InPlace);
        let table = [
            ("cache.attr=7\n", "cache.attr=8\n"),
            ("# cache.attr=1\n  cache.attr =  7 \r\nro\n", "# cache.attr=1\n  cache.attr =  8 \r\nro\n"),
            ("cache.attr=1\ncache.attr=2\n#end", "cache.attr=1\ncache.attr=8\n#end"),
            ("ro\nnoatime", "ro\nnoatime\ncache.attr=8\n"),
            ("cache.attr\n", "cache.attr=8\n"),
            ("cache.attr=", "cache.attr=8"),
            ("", "cache.attr=8\n"),
        ];
        for (text, expected) in table {
            assert_eq!(in_place(text, "cache.attr", "8"), expected, "{text:?}");
        }
        assert_eq!(in_place("flush_on_close=never\n", "flush-on-close", "always"), "flush_on_close=always\n");
        let last = line("func.create=ff\ncategory.create=mfs", "func.create", "lfs", Insertion::AtEnd);
        assert_eq!(last, "category.create=mfs\nfunc.create=lfs\n");
    }

    fn toml(text: &str, key: &str, value: &str) -> String {
        super::toml(text, spec(key), OsStr::new(value)).unwrap()
    }

    #[test]
    fn a_toml_key_changes_in_place() {
        let table = [
            ("cache.attr = 7 # s\n", "cache.attr = 8 # s\n"),
            (
                "# top\n[cache]\n# why\nattr   =  '7'  # s\nfiles = 'off'\n",
                "# top\n[cache]\n# why\nattr   =  8  # s\nfiles = 'off'\n",
            ),
            ("\"cache.attr\" = 7\n", "\"cache.attr\" = 8\n"),
            ("cache = { attr = 7, entry = 1 }\n", "cache = { attr = 8, entry = 1 }\n"),
            // A new key goes into the existing table.
            (
                "ro = true\n[cache]\nentry = 1\n\n[func]\nopen = 'ff'\n",
                "ro = true\n[cache]\nentry = 1\nattr = 8\n\n[func]\nopen = 'ff'\n",
            ),
            ("ro = true\n\n[func]\nopen = 'ff'\n", "ro = true\ncache.attr = 8\n\n[func]\nopen = 'ff'\n"),
        ];
        for (text, expected) in table {
            assert_eq!(toml(text, "cache.attr", "8"), expected, "{text}");
        }
        assert_eq!(toml("", "cache.files", "auto-full"), "cache.files = \"auto-full\"\n");
        assert_eq!(toml("nullrw = true\n", "minfreespace", "20G"), "nullrw = true\nminfreespace = \"20G\"\n");
        assert_eq!(
            toml("dropcacheonclose = false\n", "dropcacheonclose", "true"),
            "dropcacheonclose = true\n"
        );
        let quoted = toml("[cache]\nfiles = 'off'\n", "cache.files.process-names", "a|b");
        assert_eq!(quoted, "[cache]\nfiles = 'off'\n\"files.process-names\" = \"a|b\"\n");
    }

    #[test]
    fn branches_that_stay_keep_their_formatting() {
        let text = "branches = [\n  # the first\n  \"/no-a\", # big\n  { path = \"/no-b\", mode = \"NC\" },\n]\nro = true\n";
        let list = "/no-a=RW:/no-b=NC:/no-c=RO,1G:/no-d=RW";
        assert_eq!(
            toml(text, "branches", list),
            "branches = [\n  # the first\n  \"/no-a\", # big\n  { path = \"/no-b\", mode = \"NC\" },\n  \"/no-c=RO,1G\",\n  \"/no-d\",\n]\nro = true\n"
        );
        assert_eq!(
            toml(text, "branches", "/no-a"),
            "branches = [\n  # the first\n  \"/no-a\", # big\n]\nro = true\n"
        );
        assert_eq!(
            toml("branches = ['/no-a']\n", "branches", "/no-b:/no-a"),
            "branches = [\"/no-b\", '/no-a']\n"
        );
        assert_eq!(
            toml("branches = '/no-a'\n", "branches", "/no-b:/no=a=RW"),
            "branches = [\"/no-b\", \"/no=a=RW\"]\n"
        );
        let tables = "ro = true\n\n[[branches]]\npath = '/no-a' # big\n\n[[branches]]\npath = '/no-b'\n";
        let changed = toml(tables, "branches", "/no-a=RW:/no-c=NC,1G");
        assert!(changed.starts_with("ro = true\n\n[[branches]]\npath = '/no-a' # big\n"), "{changed}");
        assert!(changed.contains("path = \"/no-c\"\nmode = \"NC\"\nminfreespace = \"1G\"\n"), "{changed}");
        assert!(!changed.contains("no-b"), "{changed}");
    }

    #[test]
    fn tiers_and_rules_change_as_tables() {
        let text = "branches = ['/a']\n\n[cache]\nattr = 1\n\n# fast\n[[tier]]\nname = 'ssd' # the old one\n\
                    branches = '/ssd'\n\n[[tier]]\nname = 'b'\nbranches = ['/b']\n";
        let changed = toml(text, "tiers", "ssd=/ssd;c=/c:/d|older than 2 days");
        assert_eq!(
            changed,
            "branches = ['/a']\n\n[cache]\nattr = 1\n\n# fast\n[[tier]]\nname = 'ssd' # the old one\n\
             branches = '/ssd'\n\n[[tier]]\nname = \"c\"\nbranches = [\"/c\", \"/d\"]\nmove-when = \"older than 2 days\"\n"
        );
        assert_eq!(toml(text, "tiers", ""), "branches = ['/a']\n\n[cache]\nattr = 1\n");
        let rules = toml("branches = ['/a']\n[cache]\nattr = 1\n", "rules", "x/**=/a;y=ssd");
        assert_eq!(
            rules,
            "branches = ['/a']\n[cache]\nattr = 1\n\n[[rule]]\npath = \"x/**\"\nbranches = [\"/a\"]\n\n\
             [[rule]]\npath = \"y\"\ntier = \"ssd\"\n"
        );
        assert_eq!(
            toml("", "rules", "x=copies 2 when written"),
            "[[rule]]\npath = \"x\"\ncopies = 2\nwhen = \"written\"\n"
        );
        let trash = "# all\n[[trash]]\npath = '**' # really\n";
        assert_eq!(
            toml(trash, "trash", "**=30 days;a=1 day|except b:c|overwritten"),
            "# all\n[[trash]]\npath = '**' # really\n\n[[trash]]\npath = \"a\"\nexcept = [\"b\", \"c\"]\nkeep = \"1 day\"\noverwritten = true\n"
        );
        assert_eq!(
            toml(
                "[[cache]] # fast\nbranches = '/s'\npath = '**'\n",
                "read-cache",
                "/s=**;/t=a:b|size 5G|when opened|spool"
            ),
            "[[cache]] # fast\nbranches = '/s'\npath = '**'\n\n[[cache]]\nbranches = [\"/t\"]\n\
             path = [\"a\", \"b\"]\nsize = \"5G\"\nwhen = \"opened\"\nspool = true\n"
        );
        assert_eq!(
            toml("", "read-cache", "/t=a|free 10%|only canopy cache add"),
            "[[cache]]\nbranches = [\"/t\"]\npath = [\"a\"]\nfree = \"10%\"\nonly = \"canopy cache add\"\n"
        );
        assert_eq!(
            toml("[cache]\nattr = 1\n", "read-cache", "/t=a|free 10%|when read 3 times in 2 days"),
            "[cache]\nattr = 1\n\n[[read-cache]]\nbranches = [\"/t\"]\npath = [\"a\"]\n\
             free = \"10%\"\nwhen = \"read 3 times in 2 days\"\n"
        );
        assert_eq!(
            toml("branches = ['/a']\n", "read-cache", "/t=a"),
            "branches = ['/a']\n\n[[cache]]\nbranches = [\"/t\"]\npath = [\"a\"]\nfree = \"10%\"\nwhen = \"read 2 times in 1 week\"\n"
        );
        assert_eq!(
            toml("tiers = 'a=/a'\n", "tiers", "b=/b"),
            "[[tiers]]\nname = \"b\"\nbranches = [\"/b\"]\n"
        );
    }

    #[test]
    fn a_value_that_toml_cannot_express_is_refused() {
        let bytes = OsStr::from_bytes(b"/no-\xff");
        assert!(super::toml("", spec("branches"), bytes).unwrap_err().contains("UTF-8"));
        assert!(super::toml("a = ", spec("branches"), OsStr::new("/a")).is_err());
    }
}
