//! Config files in TOML. A key is the name of an option, with its dots or with tables instead of them. A value is a
//! string, a number or a boolean. Branches can be a list of strings and of tables.
//!
//! The order of keys in TOML has no meaning, so `config` is applied first, then `category.*`, which set several policies
//! at once, then all other options.

use super::entry::Entry;
use super::{read_cache, trash};
use crate::options::{self, closest};
use crate::placement;
use canopy_base::separated::quote;
use std::ffi::OsString;
use toml_edit::{Document, Item, TableLike, Value};

/// Tables that say who is told of the pool. `canopy notify` reads them.
const NOTIFY: &str = "notify";
/// A table that says what to do when a disk fails. `canopy jobs` reads it.
pub const HEALTH: &str = "health";
/// Tables that say what is to run when. `canopy jobs` reads them.
pub const SCHEDULE: &str = "schedule";
/// The keys of a branch that is a table.
const PARTS: [&str; 3] = ["path", "mode", "minfreespace"];
/// The keys of a tier.
const TIER_PARTS: [&str; 3] = ["name", "branches", "move-when"];
/// The keys of a rule.
const RULE_PARTS: [&str; 5] = ["path", "branches", "tier", "copies", "when"];

/// Returns the options of a file in the order in which they apply. A file that is not TOML gives a single mistake.
pub(super) fn entries(text: &[u8]) -> Vec<Entry> {
    let mistake = |at: usize, what: String| vec![Entry { line: line_of(text, at), option: Err(what) }];
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(why) => return mistake(why.valid_up_to(), "not UTF-8, as TOML must be".into()),
    };
    match document(text) {
        Ok(document) => {
            let mut walk = Walk { text: text.as_bytes(), entries: Vec::new() };
            walk.table(document.as_table(), "");
            walk.entries.sort_by_key(|(rank, entry)| (*rank, entry.line));
            walk.entries.into_iter().map(|(_, entry)| entry).collect()
        }
        Err((line, what)) => {
            // A TOML key is a value or a table, but `cache.files` and `cache.files.process-names` need it to be both.
            let clash = what.contains("dotted key") || what.contains("duplicate key");
            let fix = if clash {
                " (quote a name that starts with another: \"cache.files.process-names\")"
            } else {
                ""
            };
            vec![Entry { line, option: Err(format!("{what}{fix}")) }]
        }
    }
}

/// Parses a text.
///
/// Errors: the line of the mistake, and what it is.
pub fn document(text: &str) -> Result<Document<&str>, (usize, String)> {
    Document::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let message = error.message().trim().replace('\n', ", ");
        (line_of(text.as_bytes(), at), format!("not valid TOML: {message}"))
    })
}

/// Returns the line, counted from 1, of a place in a text.
pub fn line_of(text: &[u8], at: usize) -> usize {
    text[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

struct Walk<'t> {
    text: &'t [u8],
    /// Each with its rank. Lower ranks are applied first.
    entries: Vec<(u8, Entry)>,
}

impl Walk<'_> {
    fn table(&mut self, table: &dyn TableLike, above: &str) {
        for (name, item) in table.iter() {
            if [NOTIFY, HEALTH, SCHEDULE].contains(&name) && above.is_empty() {
                continue;
            }
            let key = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
            let spec = options::find(&key);
            if spec.is_some_and(|spec| spec.name == "branches") {
                let value = branches(item).map(|list| Some(list.into()));
                self.push(key, item, value);
            } else if let Some((spec, tables)) = spec.zip(tables(item)).filter(|(spec, _)| has_tables(spec)) {
                self.tables(key, item, spec, &tables);
            } else if let Some(inner) = item.as_table_like() {
                self.table(inner, &key);
            } else if spec.is_none() && item.is_array_of_tables() {
                self.push(key, item, Err(unknown_table(name)));
            } else {
                let valueless = spec.is_some_and(|spec| spec.accepted().is_none());
                let value = scalar(item).and_then(|text| match (valueless, text.as_str()) {
                    // `false` means that the option is not given.
                    (true, "true") => Ok(Some(OsString::new())),
                    (true, "false") => Ok(None),
                    (true, _) => Err(format!("option {key} must be true or false")),
                    (false, _) => Ok(Some(text.into())),
                });
                let value =
                    value.map_err(|what| if valueless { what } else { format!("option {key} {what}") });
                self.push(key, item, value);
            }
        }
    }

    /// Adds tables as one option, or each mistake in them with its own line.
    fn tables(
        &mut self,
        key: String,
        item: &Item,
        spec: &options::Spec,
        tables: &[(&dyn TableLike, Option<usize>)],
    ) {
        let (texts, mistakes): (Vec<_>, Vec<_>) = tables
            .iter()
            .map(|(table, at)| of_table(*table, spec).map_err(|what| (at.unwrap_or(0), what)))
            .partition(Result::is_ok);
        for (at, what) in mistakes.into_iter().filter_map(Result::err) {
            self.entries.push((2, Entry { line: line_of(self.text, at), option: Err(what) }));
        }
        if texts.len() == tables.len() {
            let text = texts.into_iter().flatten().collect::<Vec<_>>().join(";");
            self.push(key, item, Ok(Some(text.into())));
        }
    }

    fn push(&mut self, key: String, item: &Item, value: Result<Option<OsString>, String>) {
        let option = match value {
            Ok(None) => return,
            Ok(Some(value)) => Ok((key.clone(), value)),
            Err(what) => Err(what),
        };
        let rank = match key.as_str() {
            "config" => 0,
            _ if key.starts_with("category.") => 1,
            _ => 2,
        };
        let line = line_of(self.text, item.span().map_or(0, |span| span.start));
        self.entries.push((rank, Entry { line, option }));
    }
}

/// The tables that a file may have several of.
const TABLES: [&str; 6] = ["branches", "tier", "rule", "trash", SCHEDULE, NOTIFY];

fn unknown_table(name: &str) -> String {
    let nearest = match name {
        "job" | "jobs" => Some(SCHEDULE.to_owned()),
        _ => closest(name, TABLES.iter().map(|table| (*table).to_owned())),
    };
    let fix = nearest.map_or_else(|| TABLES.join(", "), |name| format!("did you mean [[{name}]]?"));
    format!("unknown table [[{name}]] ({fix})")
}

fn scalar(item: &Item) -> Result<String, String> {
    item.as_value()
        .and_then(text)
        .ok_or_else(|| format!("must be a string, a number, true or false (found: {})", item.type_name()))
}

/// Returns a value as `-o` would write it after the `=`.
fn text(value: &Value) -> Option<String> {
    Some(match value {
        Value::String(text) => text.value().clone(),
        Value::Integer(number) => number.value().to_string(),
        Value::Float(number) => number.display_repr().into_owned(),
        Value::Boolean(truth) => truth.value().to_string(),
        _ => return None,
    })
}

/// Returns the branch list in the syntax of `-o branches=`.
fn branches(item: &Item) -> Result<String, String> {
    let list: Vec<String> = match (item, item.as_array()) {
        (_, Some(array)) => array.iter().map(branch).collect::<Result<_, _>>()?,
        (Item::ArrayOfTables(tables), _) => {
            tables.iter().map(|table| parts(table)).collect::<Result<_, _>>()?
        }
        _ => return scalar(item).map_err(|_| "option branches must be a list of strings or tables".into()),
    };
    Ok(format!("={}", list.join(":")))
}

/// Returns a branch of a list as `PATH[=MODE[,SIZE]]`.
pub(super) fn branch(value: &Value) -> Result<String, String> {
    match (value.as_str(), value.as_inline_table()) {
        (Some(text), _) => one(text.to_owned()),
        (_, Some(table)) => parts(table),
        _ => Err(format!("a branch must be a string or a table (found: {})", value.type_name())),
    }
}

/// Returns a branch that is a table as `PATH[=MODE[,SIZE]]`.
pub(super) fn parts(table: &dyn TableLike) -> Result<String, String> {
    for (name, _) in table.iter() {
        if !PARTS.contains(&name) {
            let nearest = closest(name, PARTS.iter().map(|part| (*part).to_owned()));
            let fix = nearest.map_or_else(|| PARTS.join(", "), |name| format!("did you mean '{name}'?"));
            return Err(format!("unknown part '{name}' of a branch ({fix})"));
        }
    }
    let part = |name: &str| {
        let part = table.get(name).map(scalar).transpose();
        part.map_err(|what| format!("{name} of a branch {what}"))
    };
    let path = part("path")?.ok_or("a branch needs a path")?;
    let mode = part("mode")?.unwrap_or_else(|| "RW".into());
    let keep = part("minfreespace")?.map_or_else(String::new, |keep| format!(",{keep}"));
    one(format!("{path}={mode}{keep}"))
}

/// Returns whether an option is an array of tables: tiers, rules, what the trash keeps, and caches.
pub(super) fn has_tables(spec: &options::Spec) -> bool {
    matches!(spec.name.as_ref(), "tiers" | "rules" | "trash" | "read-cache")
}

/// Returns a table of such an option in the syntax of `-o`.
///
/// # Errors
/// The mistake as one line.
pub(super) fn of_table(table: &dyn TableLike, spec: &options::Spec) -> Result<String, String> {
    match spec.name.as_ref() {
        "trash" => trash::of_table(table),
        "read-cache" => read_cache::of_table(table),
        name => placement_of(table, name == "tiers"),
    }
}

/// Returns the tables of an array, each with its place in the text.
fn tables(item: &Item) -> Option<Vec<(&dyn TableLike, Option<usize>)>> {
    if let Item::ArrayOfTables(tables) = item {
        return Some(
            tables
                .iter()
                .map(|table| (table as &dyn TableLike, table.span().map(|span| span.start)))
                .collect(),
        );
    }
    let of =
        |value| Some((Value::as_inline_table(value)? as &dyn TableLike, value.span().map(|span| span.start)));
    item.as_array()?.iter().map(of).collect()
}

/// Returns a tier or rule that is a table in the syntax of `-o`.
///
/// # Errors
/// The mistake as one line.
fn placement_of(table: &dyn TableLike, tier: bool) -> Result<String, String> {
    let (what, known, name) =
        if tier { ("tier", &TIER_PARTS[..], "name") } else { ("rule", &RULE_PARTS[..], "path") };
    if let Some((key, _)) = table.iter().find(|(key, _)| !known.contains(key)) {
        let nearest = closest(key, known.iter().map(|part| (*part).to_owned()));
        let fix = nearest.map_or_else(|| known.join(", "), |name| format!("did you mean '{name}'?"));
        return Err(format!("unknown key '{key}' of a {what} ({fix})"));
    }
    let strings = |key: &str| -> Result<Vec<String>, String> {
        let wrong = || format!("{key} of a {what} must be a string or a list of strings");
        match table.get(key) {
            None => Ok(Vec::new()),
            Some(item) => match (item.as_str(), item.as_array()) {
                (Some(one), _) => Ok(vec![one.to_owned()]),
                (_, Some(list)) => {
                    let one = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(wrong);
                    list.iter().map(one).collect()
                }
                _ => Err(wrong()),
            },
        }
    };
    let one = |key: &str| -> Result<Option<String>, String> {
        match strings(key)?.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            _ => Err(format!("{key} of a {what} must be one string")),
        }
    };
    let join = |list: Vec<String>, by: &str| list.iter().map(|text| quote(text)).collect::<Vec<_>>().join(by);
    let name = one(name)?.ok_or_else(|| format!("a {what} needs a {name}"))?;
    let branches = join(strings("branches")?, ":");
    let wanted = match table.get("copies").filter(|_| !tier) {
        None => None,
        Some(item) => {
            let number = item.as_integer().or_else(|| item.as_str()?.trim().parse().ok());
            Some(placement::copies(number).map_err(|why| format!("rule {name}: {why}"))?)
        }
    };
    let written = match one("when")?.filter(|_| !tier) {
        Some(_) if wanted.is_none() => {
            return Err(format!("rule {name}: when says when copies are made (add copies = 2)"));
        }
        Some(when) => placement::copies_when(&when).map_err(|why| format!("rule {name}: {why}"))?,
        None => false,
    };
    let when_copied = if written { " when written" } else { "" };
    let copies = wanted.map(|copies| format!("copies {copies}{when_copied}"));
    let target = match (one("tier")?.filter(|_| !tier), branches.is_empty()) {
        (Some(named), true) => quote(&named),
        (Some(_), false) => return Err(format!("rule {name}: give it branches or a tier, not both")),
        (None, true) if tier => return Err(format!("tier {name}: it needs branches")),
        (None, true) if copies.is_some() => String::new(),
        (None, true) => return Err(format!("rule {name}: it needs branches, a tier or copies")),
        (None, false) => branches,
    };
    let when = |text: &String| placement::move_when(text).map_err(|why| format!("tier {name}: {why}"));
    let when: Vec<String> = strings("move-when")?
        .iter()
        .map(|text| Ok(format!("|{}", placement::format_move_when(&when(text)?))))
        .collect::<Result<_, String>>()?;
    let copies = copies.map_or_else(String::new, |copies| format!("|{copies}"));
    let text = format!("{}={target}{}{copies}", quote(&name), when.concat());
    if tier { placement::parse_tier(&text).map(drop) } else { placement::parse_rule(&text).map(drop) }?;
    Ok(text)
}

/// Refuses a branch with a colon, which separates branches in `-o branches=` and cannot be quoted.
fn one(branch: String) -> Result<String, String> {
    if branch.is_empty() || branch.contains(':') {
        return Err(format!(
            "'{branch}' is not one branch (give each branch an entry; a path cannot contain a colon)"
        ));
    }
    Ok(branch)
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use crate::Config;
    use crate::error::OptionError;
    use std::ffi::OsStr;
    use std::fs;

    /// Loads a file with this text, or returns its mistakes without the path of the file.
    fn load(text: &str) -> Result<Config, Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, text).unwrap();
        let mut config = Config::default();
        file::load(&mut config, path.as_os_str()).map_err(|error: OptionError| {
            let name = format!("{}:", path.display());
            error.lines().iter().map(|line| line.replace(&name, "")).collect::<Vec<_>>()
        })?;
        Ok(config)
    }

    fn mistakes(text: &str) -> Vec<String> {
        load(text).map(|config| format!("{config:?}")).unwrap_err()
    }

    fn render(config: &Config, key: &str) -> String {
        crate::options::find(key).unwrap().render(config).unwrap()
    }

    #[test]
    fn keys_are_options_with_dots_or_tables() {
        let config = load(
            "# my pool\nbranches = [\"/no-a\", '/no-b=NC,1G']\nmountpoint = \"/no-m\"\nminfreespace = \"10G\"\n\
             category.create = \"mfs\"\nro = true\nnoatime = false\nx-mark = \"mine\"\nuse_ino = true\n\n[cache]\nfiles = \"off\"\n\
             attr = 7\nstatfs = 3\n\"files.process-names\" = \"a|b\"\n[func]\ncreate = \"ff\"\n[passthrough]\nio = 'off'\n",
        )
        .unwrap();
        assert_eq!(config.branches.to_string(), "/no-a=RW:/no-b=NC,1G");
        assert_eq!(config.mountpoint.as_deref(), Some(std::path::Path::new("/no-m")));
        for (key, value) in [
            ("minfreespace", "10737418240"),
            ("cache.files", "off"),
            ("cache.attr", "7"),
            ("cache.files.process-names", "a|b"),
            ("func.create", "ff"),
            ("func.mkdir", "mfs"),
            ("passthrough.io", "off"),
        ] {
            assert_eq!(render(&config, key), value, "{key}");
        }
        let flags = config.mount.flags;
        assert!(flags.contains(canopy_fuse::mount::MountFlags::RDONLY));
        assert!(!flags.contains(canopy_fuse::mount::MountFlags::NOATIME), "false means not given");
    }

    #[test]
    fn the_example_is_a_config_file() {
        let text = include_str!("../../../../dist/example.toml");
        let config = load(text).unwrap();
        assert_eq!(config.branches.to_string(), "/mnt/disk1=RW:/mnt/disk2=RW:/mnt/archive=NC,50G");
        assert_eq!(
            (render(&config, "func.mkdir"), render(&config, "func.create")),
            ("epall".into(), "mfs".into())
        );
        // The commented lines are valid too.
        let more = text.replace("# files =", "files =").replace("# \"files.", "\"files.");
        assert_eq!(render(&load(&more).unwrap(), "cache.files.process-names"), "qbittorrent-nox|rtorrent");
    }

    #[test]
    fn every_option_has_a_toml_form() {
        // By its rendered value, under its name and each alias.
        let default = Config::default();
        for spec in crate::options::table().iter().filter(|spec| !spec.hidden) {
            for name in std::iter::once(spec.name.as_ref()).chain(spec.aliases.iter().copied()) {
                let value = match spec.render(&default) {
                    None => "true".into(),
                    Some(shown) if matches!(name, "config" | "branches") || shown.is_empty() => continue,
                    Some(shown) => format!("'{shown}'"),
                };
                for text in [format!("{name} = {value}\n"), format!("\"{name}\" = {value}\n")] {
                    let config = load(&text).unwrap_or_else(|lines| panic!("{text}{lines:?}"));
                    assert!(config.is_given(&spec.name), "{text}");
                }
            }
        }
    }

    #[test]
    fn branches_can_be_tables() {
        for text in [
            "branches = [{ path = '/no-a' }, { path = '/no=b', mode = 'NC', minfreespace = 1024 }, '/no-c=RO']",
            "[[branches]]\npath = '/no-a'\nmode = 'RW'\n[[branches]]\npath = '/no=b'\nmode = 'NC'\nminfreespace = '1K'\n\
             [[branches]]\npath = '/no-c'\nmode = 'RO'\n",
        ] {
            assert_eq!(load(text).unwrap().branches.to_string(), "/no-a=RW:/no=b=NC,1K:/no-c=RO", "{text}");
        }
        assert_eq!(load("branches = '/no-a:/no-b=RO'").unwrap().branches.to_string(), "/no-a=RW:/no-b=RO");
    }

    #[test]
    fn tiers_and_rules_are_tables() {
        let config = load(
            "branches = ['/mnt/ssd']\n[[rule]]\npath = 'films/**'\nbranches = ['/mnt/d1', '/mnt/d2']\n\
             [[rule]]\npath = '**/*.part'\ntier = 'ssd'\n\
             [[tier]]\nname = 'ssd'\nbranches = '/mnt/ssd'\nmove-when = ['fuller than 70 % until 40 %', 'older than 2 days']\n\
             [[tier]]\nname = 'disks'\nbranches = ['/mnt/d*', '/mnt/a;b']\nmove-when = 'every night at 03:00'\n",
        )
        .unwrap();
        assert_eq!(
            render(&config, "tiers"),
            "ssd=/mnt/ssd|fuller than 70% until 40%|older than 2 days;disks=/mnt/d*:/mnt/a\\;b|every night at 03:00"
        );
        assert_eq!(render(&config, "rules"), "films/**=/mnt/d1:/mnt/d2;**/*.part=ssd");
        let inline = load("tier = [{ name = 'a', branches = '/a' }]\nrules = 'x=a'").unwrap();
        assert_eq!((render(&inline, "tiers"), render(&inline, "rules")), ("a=/a".into(), "x=a".into()));
    }

    #[test]
    fn caches_are_tables() {
        let config = load(
            "[[cache]]\nbranches = ['/mnt/ssd']\nsize = '200 GiB'\nwhen = 'opened'\npath = ['films/**', 'a;b/**']\n\
             [[cache]]\nbranches = '/s:t'\nwhen = 'read 3 times in 2 days'\npath = '**'\n",
        )
        .unwrap();
        assert_eq!(
            render(&config, "read-cache"),
            "/mnt/ssd=films/**:a\\;b/**|size 200G|when opened;/s\\:t=**|free 10%|when read 3 times in 2 days"
        );
        let both = load("[cache]\nattr = 5\n[[read-cache]]\nbranches = '/s'\npath = '**'\n").unwrap();
        assert_eq!((render(&both, "cache.attr"), both.pool.read_cache.0.len()), ("5".into(), 1));
        for (text, mistake) in [
            ("[[cache]]\npath = '**'", "1: a cache needs branches"),
            ("[[cache]]\nbranches = '/s'", "1: cache /s: path is missing"),
            ("[[cache]]\nbranches = '/s'\npath = '**'\nonly = 'me'", "1: cache /s: only 'me'"),
            ("[[cache]]\nbranches = '/s'\npath = '**'\nspool = 'yes'", "1: cache /s: spool must be"),
            ("[[cache]]\nbranches = 's'\npath = '**'", "1: cache s: 's' is not a directory"),
            (
                "[[cache]]\nbranches = '/s'\npaths = '**'",
                "1: unknown key 'paths' of a cache (did you mean 'path'?)",
            ),
            ("[[cache]]\nbranches = '/s'\npath = 1", "1: cache /s: path of a cache must be a string or"),
            ("[[cache]]\nbranches = []\npath = '**'", "1: branches of a cache must be a string or"),
            ("[[cache]]\nbranches = '/s'\npath = '**'\nsize = 5", "1: cache /s: size must be a string"),
            (
                "[[cache]]\nbranches = '/s'\npath = '**'\nsize = '5G'\nfree = '1G'",
                "1: cache /s: give size or free",
            ),
        ] {
            let found = load(text).unwrap_err();
            assert!(found.len() == 1 && found[0].starts_with(mistake), "{text}: {found:?}");
        }
    }

    #[test]
    fn what_the_trash_keeps_are_tables() {
        let config = load(
            "[[trash]]\npath = 'photos/**'\nkeep = '90 days'\noverwritten = true\n\
             [[trash]]\npath = '**'\nexcept = ['*.part', 'a;b/**']\n",
        )
        .unwrap();
        assert_eq!(
            render(&config, "trash"),
            "photos/**=90 days|overwritten;**=30 days|except *.part:a\\;b/**"
        );
        for (text, mistake) in [
            ("[[trash]]\nkeep = '1 day'", "1: the trash needs a path"),
            (
                "[[trash]]\npath = '**'\nkeeps = '1 day'",
                "1: unknown key 'keeps' of the trash (did you mean 'keep'?)",
            ),
            ("[[trash]]\npath = '**'\nkeep = 30", "1: trash **: keep must be a string"),
            ("[[trash]]\npath = '**'\nkeep = 'soon'", "1: trash **: keep 'soon' is not a time"),
            ("[[trash]]\npath = '**'\nexcept = 1", "1: trash **: except must be"),
            ("[[trash]]\npath = '**'\noverwritten = 'yes'", "1: trash **: overwritten must be true or false"),
            ("[[trash]]\npath = 'a['", "1: 'a[' is not a glob"),
        ] {
            let found = load(text).unwrap_err();
            assert!(found.len() == 1 && found[0].starts_with(mistake), "{text}: {found:?}");
        }
    }

    #[test]
    fn a_function_wins_over_its_category_in_any_order() {
        let config = load("func.create = 'ff'\ncategory.create = 'mfs'").unwrap();
        assert_eq!(
            (render(&config, "func.create"), render(&config, "func.mkdir")),
            ("ff".into(), "mfs".into())
        );
    }

    #[test]
    fn every_mistake_names_its_line() {
        let table = [
            ("\ncache.file = 'off'", "2: unknown option 'cache.file' (did you mean 'cache.files'?)"),
            (
                "[cache]\nattr = 1\nentri = 2\n",
                "3: unknown option 'cache.entri' (did you mean 'cache.entry'?)",
            ),
            ("[cach]\nfiles = 'off'", "2: unknown option 'cach.files' (did you mean 'cache.files'?)"),
            ("nullrw = 'maybe'", "1: option nullrw: 'maybe' is not valid: must be true or false"),
            ("ro = 1", "1: option ro must be true or false"),
            (
                "minfreespace = [1]",
                "1: option minfreespace must be a string, a number, true or false (found: array)",
            ),
            (
                "cache.attr = 1979-05-27",
                "1: option cache.attr must be a string, a number, true or false (found: datetime)",
            ),
            ("ro = true\n[[job]]\ndo = 'verify'", "2: unknown table [[job]] (did you mean [[schedule]]?)"),
            ("[[rules_]]\npath = 'a'", "1: unknown table [[rules_]] (did you mean [[rule]]?)"),
            (
                "[[disk]]\npath = '/a'",
                "1: unknown table [[disk]] (branches, tier, rule, trash, schedule, notify)",
            ),
            ("branches = 7:", "1: not valid TOML"),
            ("branches = [7]", "1: a branch must be a string or a table (found: integer)"),
            ("branches = ['/a:/b']", "1: '/a:/b' is not one branch"),
            ("branches = [{ pth = '/a' }]", "1: unknown part 'pth' of a branch (did you mean 'path'?)"),
            ("branches = [{ mode = 'RO' }]", "1: a branch needs a path"),
            ("branches = ['/a=XX']", "1: option branches:"),
            (
                "[[tier]]\nname = 'a'\nbranches = '/a'\n[[tier]]\nname = 'b'\nbranchs = '/b'",
                "4: unknown key 'branchs' of a tier (did you mean 'branches'?)",
            ),
            ("[[tier]]\nbranches = '/a'", "1: a tier needs a name"),
            ("[[tier]]\nname = 'a'", "1: tier a: it needs branches"),
            (
                "[[tier]]\nname = 'a'\nbranches = 7",
                "1: branches of a tier must be a string or a list of strings",
            ),
            (
                "[[tier]]\nname = 'a'\nbranches = '/a'\nmove-when = 'fuller then 70 %'",
                "1: tier a: move-when 'fuller then 70 %' is not understood (write",
            ),
            ("[[tier]]\nname = 'a'\nbranches = 'ssd'", "1: tier a: 'ssd' is not a branch (write its path"),
            ("[[rule]]\npath = 'a/**'\ncopies = 0", "1: rule a/**: copies = 0 would keep no file (write 2"),
            ("[[rule]]\npath = 'a/**'\ncopies = 'many'", "1: rule a/**: copies must be a number, such as"),
            ("[[tier]]\nname = 'a'\nbranches = '/b'\ncopies = 2", "1: unknown key 'copies' of a tier ("),
            ("[[rule]]\npath = 'a/**'", "1: rule a/**: it needs branches, a tier or copies"),
            (
                "[[rule]]\npath = 'a'\ncopies = 2\nwhen = 'now'",
                "1: rule a: when = 'now' cannot be (write written or",
            ),
            (
                "[[rule]]\npath = 'a'\ntier = 'b'\nwhen = 'written'",
                "1: rule a: when says when copies are made (",
            ),
            ("[[rule]]\npath = 'a[b'\ntier = 'x'", "1: 'a[b' is not a glob"),
            (
                "[[rule]]\npath = 'a'\ntier = 'x'\nbranches = '/b'",
                "1: rule a: give it branches or a tier, not both",
            ),
            ("cache.attr = 1\n\nfsname = \"x", "3: not valid TOML"),
            ("cache.attr = 1\ncache.attr = 2", "2: not valid TOML"),
        ];
        for (text, expected) in table {
            let lines = mistakes(text);
            assert!(
                lines.len() == 1 && lines[0].starts_with(expected) && !lines[0].contains('\n'),
                "{text}: {lines:?}"
            );
        }
        let lines = mistakes("cache.files = 'off'\ncache.files.process-names = 'a'");
        assert!(lines[0].starts_with("2: not valid TOML") && lines[0].contains("quote a name"), "{lines:?}");
        let lines = mistakes("frob = 1\nnullrw = 2\ncache.attr = 3");
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    #[test]
    fn a_file_that_is_not_utf8_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, b"# fine\nfsname = '\xff'\n").unwrap();
        let error = file::load(&mut Config::default(), path.as_os_str()).unwrap_err();
        assert!(error.to_string().ends_with("c.toml:2: not UTF-8, as TOML must be"), "{error}");
        let error = file::load(&mut Config::default(), OsStr::new("/no-dir/c.toml")).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
}
