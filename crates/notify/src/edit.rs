//! Changes what the file says of one who is told. Everything else keeps its order, its formatting and its comments.
//!
//! What is shown of a change has no secret: of a URL its host, of a command its program.

use crate::error::{Error, Result};
use crate::target::{KEYS, Target, WAYS, parse, without_secrets};
use canopy_base::difference::difference;
use canopy_config::source::persist::Rewrite;
use canopy_config::source::tables::{self, Change, Tables, Unchanged};
use canopy_sys::shown::Show as _;
use canopy_terminal::print;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

/// What stands for a secret.
const HIDDEN: &str = "…";
/// What is read from the standard input at most.
const LONGEST_INPUT: u64 = 64 << 10;

const TARGETS: Tables = Tables { key: "notify", naming: KEYS.split_at(WAYS).0, value };

/// Reads `KEY=VALUE` words, and further ones from the standard input, a line each, if asked.
pub(crate) fn of_words(words: &[String], from_input: bool) -> Result<Change> {
    let mut pairs = words.iter().map(|word| pair(word)).collect::<Result<Vec<_>>>()?;
    if from_input {
        let mut text = String::new();
        let read = io::stdin().take(LONGEST_INPUT).read_to_string(&mut text);
        read.map_err(Error::system("cannot read the standard input"))?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            // What is wrong may be a secret.
            let wrong = || Error::Usage("a line of the standard input is not KEY=VALUE".into());
            pairs.push(tables::pair(line).ok_or_else(wrong)?);
        }
    }
    if pairs.is_empty() {
        return Err(Error::Usage(
            "say what is to change, such as 'canopy notify set phone ntfy=https://ntfy.sh/TOPIC'".into(),
        ));
    }
    Ok(Change::Set(pairs))
}

fn pair(word: &str) -> Result<(String, String)> {
    tables::pair(word)
        .ok_or_else(|| Error::Usage(format!("'{word}' is not KEY=VALUE, such as mail=me@example.org")))
}

/// Changes the file, or shows only what would change.
///
/// # Errors
/// If the file cannot be read or written, or would have a mistake.
pub(crate) fn change(file: &Path, name: &str, change: &Change, dry_run: bool) -> Result<()> {
    if !file.exists() {
        let new = changed(file, "", name, change)?;
        if dry_run {
            show(file, "", &new);
            return Ok(());
        }
        create(file).map_err(Error::file(file))?;
    }
    // Other writers of the file wait meanwhile.
    let (mut rewrite, text) = Rewrite::begin(file).map_err(Error::file(file))?;
    let text = String::from_utf8(text)
        .map_err(|_| Error::Usage(format!("{} is not UTF-8, as TOML must be", file.shown())))?;
    let new = changed(file, &text, name, change)?;
    show(file, &text, &new);
    if dry_run {
        return Ok(());
    }
    rewrite.write_new(new.as_bytes()).map_err(Error::file(file))?;
    rewrite.commit().map_err(Error::file(file))
}

/// Makes an empty file, for root alone: a topic may be a secret.
fn create(file: &Path) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    match fs::File::options().write(true).create_new(true).mode(0o600).open(file) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => Err(why),
        _ => Ok(()),
    }
}

/// Returns the text with the change, if it has no mistake.
fn changed(file: &Path, text: &str, name: &str, change: &Change) -> Result<String> {
    let before = parse(file, text, None)?;
    let new = edited(file, text, &before, name, change)?;
    parse(file, &new, None).map(|_| new)
}

fn edited(file: &Path, text: &str, before: &[Target], name: &str, change: &Change) -> Result<String> {
    let names: Vec<&str> = before.iter().map(|target| &*target.label).collect();
    match TARGETS.changed(text, &names, name, change) {
        Ok(new) => Ok(new),
        // A mistake that was told when the text was read.
        Err(Unchanged::NoTables) => Ok(text.to_owned()),
        Err(Unchanged::NotToml(why)) => Err(Error::Usage(format!("not valid TOML: {why}"))),
        Err(Unchanged::Value(why)) => Err(Error::Usage(why)),
        Err(Unchanged::NoSuchTable) => {
            let known = names.iter().map(|&known| known.to_owned()).collect();
            Err(Error::NoReceiver { name: name.to_owned(), file: file.to_owned(), known })
        }
    }
}

fn value(key: &str, text: &str) -> Result<Value, String> {
    if key == "command" && text.starts_with('[') {
        return text
            .parse()
            .map_err(|_| "command is a path, or a list such as [\"/usr/local/bin/tell\", \"me\"]".into());
    }
    Ok(text.into())
}

fn show(file: &Path, before: &str, after: &str) {
    print(&format!("{}:\n{}", file.shown(), shown_difference(before, after)));
}

fn shown_difference(before: &str, after: &str) -> String {
    let known = values(before);
    difference(&hidden(before, &known), &hidden(after, &known))
}

/// Returns what each table has under the keys that are known.
fn values(text: &str) -> Vec<Vec<(&'static str, String)>> {
    let Ok(document) = text.parse::<DocumentMut>() else { return Vec::new() };
    let tables = document.get("notify").and_then(Item::as_array_of_tables);
    let of = |table: &Table| {
        KEYS.iter().filter_map(|key| Some((*key, plain(table.get(key)?.as_value()?)))).collect()
    };
    tables.into_iter().flatten().map(of).collect()
}

fn plain(value: &Value) -> String {
    value.clone().decorated("", "").to_string()
}

/// Returns the text as it may be shown. Where a table that is `known` has got another secret, it says so.
fn hidden(text: &str, known: &[Vec<(&'static str, String)>]) -> String {
    let Ok(mut document) = text.parse::<DocumentMut>() else { return String::new() };
    let tables = document.get_mut("notify").and_then(Item::as_array_of_tables_mut);
    for (index, table) in tables.into_iter().flat_map(ArrayOfTables::iter_mut).enumerate() {
        for key in KEYS {
            let Some(Item::Value(value)) = table.get_mut(key) else { continue };
            let now = plain(value);
            let is_known = known.iter().flatten().any(|(_, before)| *before == now);
            let was_there = known.get(index).is_some_and(|before| before.iter().any(|(had, _)| *had == key));
            let other = if was_there && !is_known { " (another)" } else { "" };
            let mut new = match (value.as_str(), value.as_array().and_then(|words| words.get(0)?.as_str())) {
                (Some(url), _) if url.contains("://") => {
                    Value::from(format!("{}{HIDDEN}{other}", without_secrets(url)))
                }
                (None, Some(program)) => Value::from(format!("{program} {HIDDEN}{other}")),
                _ => continue,
            };
            *new.decor_mut() = value.decor().clone();
            *value = new;
        }
    }
    // A comment may have what was a value once.
    let lines = document.to_string();
    let line = |line: &str| match line.split_once('#') {
        Some((before, comment)) if comment.contains("://") => format!("{before}# {HIDDEN}\n"),
        _ => format!("{line}\n"),
    };
    lines.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# who\n[[notify]]\nntfy = 'https://ntfy.sh/s3cret' # phone\nleast = 'problem'\n\n\
                        [[notify]]\nname = 'us'\nmail = 'a@b'\n\n[[notify]]\nntfy = 'https://ntfy.sh/s3cond'\n";

    fn set_to(words: &[&str]) -> Change {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        of_words(&words, false).unwrap()
    }

    fn edit(text: &str, name: &str, change: &Change) -> Result<String, String> {
        changed(Path::new("/f"), text, name, change).map_err(|error| error.to_string())
    }

    #[test]
    fn one_receiver_changes_and_the_rest_stays() {
        let change = |name: &str, words: &[&str]| edit(FILE, name, &set_to(words)).unwrap();
        assert_eq!(change("ntfy", &["least=notice"]), FILE.replace("'problem'", "\"notice\""));
        assert_eq!(change("us", &["mail=c@d", "repeat="]), FILE.replace("'a@b'", "\"c@d\""));
        assert_eq!(change("ntfy-2", &["repeat=daily"]), format!("{FILE}repeat = \"daily\"\n"));
        // Told by another way, it is still the one that it was.
        let other = change("ntfy-2", &["ntfy=", "mail=x@y"]);
        assert_eq!(
            other,
            FILE.replace("ntfy = 'https://ntfy.sh/s3cond'", "name = \"ntfy-2\"\nmail = \"x@y\"")
        );
        let new = change("script", &["command=[\"/bin/tell\", \"me\"]"]);
        let added = "\n[[notify]]\nname = \"script\"\ncommand = [\"/bin/tell\", \"me\"]\n";
        assert_eq!(new.strip_prefix(FILE), Some(added));
        let first = edit("", "phone", &set_to(&["ntfy=https://h/t"])).unwrap();
        assert_eq!(first, "[[notify]]\nname = \"phone\"\nntfy = \"https://h/t\"\n");
        let gone = edit(FILE, "us", &Change::Drop).unwrap();
        assert_eq!(gone, FILE.replace("[[notify]]\nname = 'us'\nmail = 'a@b'\n\n", ""));
        assert_eq!(edit(&first, "phone", &Change::Drop).as_deref(), Ok(""));
    }

    #[test]
    fn what_would_be_a_mistake_is_refused() {
        for (name, words, why) in [
            ("new", &["least=problem"][..], "needs one of mail"),
            ("ntfy", &["mail=a"], "has mail and ntfy"),
            ("ntfy", &["ntfy=ntfy.sh/x"], "must begin with https://"),
            ("ntfy", &["lest=problem"], "did you mean 'least'"),
            ("ntfy", &["name=us"], "two receivers are called 'us'"),
            ("a b", &["mail=x"], "name must be a word"),
            ("new", &["command=[x"], "command is a path, or a list"),
        ] {
            let error = edit(FILE, name, &set_to(words)).unwrap_err();
            assert!(error.contains(why), "{name} {words:?}: {error}");
        }
        let none = edit(FILE, "nobody", &Change::Drop).unwrap_err();
        assert_eq!(none, "/f has no receiver 'nobody' (it has ntfy, us, ntfy-2)");
        for words in [&["x"][..], &["=x"], &[]] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert!(of_words(&words, false).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_difference_shows_no_secret() {
        let text = format!(
            "# ntfy = 'https://ntfy.sh/s3cold'\n{FILE}[[notify]]\nwebhook = 'https://u:s3pw@h/s3hook'\n\
                            [[notify]]\ncommand = ['/bin/x', 's3arg']\n"
        );
        let all = [
            shown_difference("", &text),
            shown_difference(&text, ""),
            shown_difference(&text, &text.replace("s3cret", "s3new").replace("s3arg", "s3other")),
        ];
        for shown in &all {
            assert!(!shown.contains("s3"), "{shown}");
        }
        let added = shown_difference(&text, &format!("{text}[[notify]]\nntfy = 'https://new/s3new'\n"));
        assert_eq!(added, "+ [[notify]]\n+ ntfy = \"https://new…\"\n");
        assert!(all[0].contains("+ ntfy = \"https://ntfy.sh…\" # phone\n"), "{}", all[0]);
        assert!(all[2].contains("- ntfy = \"https://ntfy.sh…\""), "{}", all[2]);
        assert!(all[2].contains("+ ntfy = \"https://ntfy.sh… (another)\""), "{}", all[2]);
        assert!(all[2].contains("+ command = \"/bin/x … (another)\""), "{}", all[2]);
    }
}
