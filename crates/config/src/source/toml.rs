//! A config file in TOML. A key is an option, written with its dots or with tables that stand for them; a value
//! is what would stand behind the `=`. Branches may be a list, each a text or a table of its parts.
//!
//! The order in which TOML says things means nothing: a file that is named by `config` comes first, what sets
//! many (`category.*`) next, and what sets one last.

use super::entry::Entry;
use crate::options::{self, closest};
use std::ffi::OsString;
use toml_edit::{Document, Item, TableLike, Value};

/// The parts of a branch.
const PARTS: [&str; 3] = ["path", "mode", "minfreespace"];

/// Everything a file says. A file that is no TOML has one mistake and says nothing else.
pub(super) fn entries(text: &[u8]) -> Vec<Entry> {
    let mistake = |at: usize, what: String| vec![Entry { line: line_of(text, at), option: Err(what) }];
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(why) => return mistake(why.valid_up_to(), "not UTF-8, as TOML must be".into()),
    };
    match Document::parse(text) {
        Ok(document) => {
            let mut walk = Walk { text: text.as_bytes(), entries: Vec::new() };
            walk.table(document.as_table(), "");
            walk.entries.sort_by_key(|(rank, entry)| (*rank, entry.line));
            walk.entries.into_iter().map(|(_, entry)| entry).collect()
        }
        Err(error) => {
            let told = error.message().trim().replace('\n', ", ");
            // A TOML key is either a value or a table; two options are named as if they were both.
            let clash = told.contains("dotted key") || told.contains("duplicate key");
            let mend = if clash {
                " (quote a name that begins like another: \"cache.files.process-names\")"
            } else {
                ""
            };
            mistake(error.span().map_or(0, |span| span.start), format!("no valid TOML: {told}{mend}"))
        }
    }
}

fn line_of(text: &[u8], at: usize) -> usize {
    text[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

struct Walk<'t> {
    text: &'t [u8],
    /// Each with its rank: lower ones are applied first.
    entries: Vec<(u8, Entry)>,
}

impl Walk<'_> {
    fn table(&mut self, table: &dyn TableLike, above: &str) {
        for (name, item) in table.iter() {
            let key = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
            let spec = options::find(&key);
            if spec.is_some_and(|spec| spec.name == "branches") {
                let value = branches(item).map(|list| Some(list.into()));
                self.push(key, item, value);
            } else if let Some(inner) = item.as_table_like() {
                self.table(inner, &key);
            } else {
                let valueless = spec.is_some_and(|spec| spec.accepted().is_none());
                let value = scalar(item).and_then(|text| match (valueless, text.as_str()) {
                    // What takes no value is there or is not.
                    (true, "true") => Ok(Some(OsString::new())),
                    (true, "false") => Ok(None),
                    (true, _) => Err(format!("option {key} is either true or false")),
                    (false, _) => Ok(Some(text.into())),
                });
                let value =
                    value.map_err(|what| if valueless { what } else { format!("option {key} {what}") });
                self.push(key, item, value);
            }
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

fn scalar(item: &Item) -> Result<String, String> {
    item.as_value()
        .and_then(text)
        .ok_or_else(|| format!("must be a text, a number, true or false, and no {}", item.type_name()))
}

/// A value as it would stand behind the `=`.
fn text(value: &Value) -> Option<String> {
    Some(match value {
        Value::String(text) => text.value().clone(),
        Value::Integer(number) => number.value().to_string(),
        Value::Float(number) => number.display_repr().into_owned(),
        Value::Boolean(truth) => truth.value().to_string(),
        _ => return None,
    })
}

/// The branch list, as one text.
fn branches(item: &Item) -> Result<String, String> {
    let list: Vec<String> = match (item, item.as_array()) {
        (_, Some(array)) => array.iter().map(branch).collect::<Result<_, _>>()?,
        (Item::ArrayOfTables(tables), _) => {
            tables.iter().map(|table| parts(table)).collect::<Result<_, _>>()?
        }
        _ => return scalar(item).map_err(|_| "option branches must be a list of texts or tables".into()),
    };
    Ok(format!("={}", list.join(":")))
}

/// One branch of a list, as it stands in the text form: `PATH[=MODE[,SIZE]]`.
pub(super) fn branch(value: &Value) -> Result<String, String> {
    match (value.as_str(), value.as_inline_table()) {
        (Some(text), _) => one(text.to_owned()),
        (_, Some(table)) => parts(table),
        _ => Err(format!("a branch must be a text or a table, and no {}", value.type_name())),
    }
}

/// One branch as a table of its parts.
pub(super) fn parts(table: &dyn TableLike) -> Result<String, String> {
    for (name, _) in table.iter() {
        if !PARTS.contains(&name) {
            let nearest = closest(name, PARTS.iter().map(|part| (*part).to_owned()));
            let mend = nearest.map_or_else(|| PARTS.join(", "), |name| format!("did you mean '{name}'?"));
            return Err(format!("unknown part '{name}' of a branch ({mend})"));
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

/// In the text form a colon separates branches, and nothing can quote it.
fn one(branch: String) -> Result<String, String> {
    if branch.is_empty() || branch.contains(':') {
        return Err(format!(
            "'{branch}' is not one branch (each is an entry of its own, and no path has a colon)"
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

    /// What a file makes of a configuration, or its mistakes without the file's name.
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
        assert!(!flags.contains(canopy_fuse::mount::MountFlags::NOATIME), "false is as if it were not there");
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
        // What is commented out is right as well.
        let more = text.replace("# files =", "files =").replace("# \"files.", "\"files.");
        assert_eq!(render(&load(&more).unwrap(), "cache.files.process-names"), "qbittorrent-nox|rtorrent");
    }

    #[test]
    fn every_option_can_be_written() {
        // As it is shown, under its name and under each of its others.
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
    fn branches_are_tables_too() {
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
    fn what_sets_one_wins_over_what_sets_many() {
        let config = load("func.create = 'ff'\ncategory.create = 'mfs'").unwrap();
        assert_eq!(
            (render(&config, "func.create"), render(&config, "func.mkdir")),
            ("ff".into(), "mfs".into())
        );
    }

    #[test]
    fn every_mistake_has_its_line() {
        let table = [
            ("\ncache.file = 'off'", "2: unknown option 'cache.file' (did you mean 'cache.files'?)"),
            (
                "[cache]\nattr = 1\nentri = 2\n",
                "3: unknown option 'cache.entri' (did you mean 'cache.entry'?)",
            ),
            ("[cach]\nfiles = 'off'", "2: unknown option 'cach.files' (did you mean 'cache.files'?)"),
            ("nullrw = 'maybe'", "1: option nullrw: 'maybe' is not valid: must be true or false"),
            ("ro = 1", "1: option ro is either true or false"),
            (
                "minfreespace = [1]",
                "1: option minfreespace must be a text, a number, true or false, and no array",
            ),
            (
                "cache.attr = 1979-05-27",
                "1: option cache.attr must be a text, a number, true or false, and no datetime",
            ),
            ("branches = 7:", "1: no valid TOML"),
            ("branches = [7]", "1: a branch must be a text or a table, and no integer"),
            ("branches = ['/a:/b']", "1: '/a:/b' is not one branch"),
            ("branches = [{ pth = '/a' }]", "1: unknown part 'pth' of a branch (did you mean 'path'?)"),
            ("branches = [{ mode = 'RO' }]", "1: a branch needs a path"),
            ("branches = ['/a=XX']", "1: option branches:"),
            ("cache.attr = 1\n\nfsname = \"x", "3: no valid TOML"),
            ("cache.attr = 1\ncache.attr = 2", "2: no valid TOML"),
        ];
        for (text, expected) in table {
            let lines = mistakes(text);
            assert!(
                lines.len() == 1 && lines[0].starts_with(expected) && !lines[0].contains('\n'),
                "{text}: {lines:?}"
            );
        }
        let lines = mistakes("cache.files = 'off'\ncache.files.process-names = 'a'");
        assert!(lines[0].starts_with("2: no valid TOML") && lines[0].contains("quote a name"), "{lines:?}");
        let lines = mistakes("frob = 1\nnullrw = 2\ncache.attr = 3");
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    #[test]
    fn what_is_no_text_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, b"# fine\nfsname = '\xff'\n").unwrap();
        let error = file::load(&mut Config::default(), path.as_os_str()).unwrap_err();
        assert!(error.to_string().ends_with("c.toml:2: not UTF-8, as TOML must be"), "{error}");
        let error = file::load(&mut Config::default(), OsStr::new("/no-dir/c.toml")).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
}
