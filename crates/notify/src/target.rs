//! Who is told, and how: the tables `[[notify]]` of /etc/canopy/notify.toml, which are for all pools, and of a pool's own file.

use crate::error::{Error, Result};
use crate::event::Severity;
use canopy_config::options::closest;
use canopy_config::source::{named, toml};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use toml_edit::{Item, TableLike, Value};

/// The keys of a table. The first five say how, and one of them is needed.
pub(crate) const KEYS: [&str; 13] = [
    "mail",
    "ntfy",
    "gotify",
    "webhook",
    "command",
    "smtp",
    "from",
    "user",
    "password-file",
    "token-file",
    "least",
    "repeat",
    "name",
];
pub(crate) const WAYS: usize = 5;
/// The longest name.
const LONGEST_NAME: usize = 60;
/// The longest secret.
const LONGEST_SECRET: u64 = 4096;

/// How a message goes out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// To an address, by the machine's sendmail or by an SMTP server.
    Mail { to: String, from: Option<String>, smtp: Option<String>, user: Option<String> },
    /// To a topic's URL.
    Ntfy(String),
    /// To a server's URL.
    Gotify(String),
    /// JSON to a URL.
    Webhook(String),
    /// JSON to the input of a program, and its arguments.
    Command(Vec<String>),
}

impl Way {
    /// The key of the table that says so.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Way::Mail { .. } => "mail",
            Way::Ntfy(_) => "ntfy",
            Way::Gotify(_) => "gotify",
            Way::Webhook(_) => "webhook",
            Way::Command(_) => "command",
        }
    }
}

/// One who is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    /// What it is called: no other in its file is called the same.
    pub(crate) label: String,
    /// What names it in messages and in the state: no other target has the same.
    pub(crate) id: String,
    pub(crate) way: Way,
    /// The file with the password or token.
    pub(crate) secret: Option<PathBuf>,
    pub(crate) least: Severity,
    pub(crate) repeats: bool,
    /// The only pool that it is told of: its name and its mountpoint.
    pub(crate) pool: Option<(String, Option<PathBuf>)>,
}

impl Target {
    /// Returns how it is told. A secret is no part of it, and a URL may have one.
    pub(crate) fn name(&self) -> String {
        match &self.way {
            Way::Mail { to, .. } => format!("mail to {to}"),
            Way::Ntfy(url) => format!("ntfy {}", without_secrets(url)),
            Way::Gotify(url) => format!("gotify {}", without_secrets(url)),
            Way::Webhook(url) => format!("webhook {}", without_secrets(url)),
            Way::Command(words) => format!("command {}", words.first().map_or("", String::as_str)),
        }
    }

    /// Returns whether this pool is one of those that it is told of.
    pub(crate) fn is_for(&self, pool: &str) -> bool {
        self.pool.as_ref().is_none_or(|(name, place)| {
            name == pool || place.as_ref().is_some_and(|place| place.as_os_str() == pool)
        })
    }

    /// Reads its password or token.
    ///
    /// # Errors
    /// A sentence, if somebody else could read it.
    pub(crate) fn secret(&self) -> Result<Option<String>, String> {
        let Some(file) = &self.secret else { return Ok(None) };
        let shown = canopy_sys::shown::Show::shown(file.as_path()).to_string();
        let meta =
            fs::metadata(file).map_err(|why| format!("{shown}: {}", canopy_base::text::os_error(&why)))?;
        let own = rustix::process::geteuid().as_raw();
        if meta.mode() & 0o077 != 0 || (meta.uid() != 0 && meta.uid() != own) {
            return Err(format!("{shown} can be read by others (chmod 600 {shown}; chown root {shown})"));
        }
        if !meta.is_file() || meta.len() > LONGEST_SECRET {
            return Err(format!("{shown} is no file with a password or token in one line"));
        }
        let text = fs::read_to_string(file)
            .map_err(|why| format!("{shown}: {}", canopy_base::text::os_error(&why)))?;
        let secret = text.trim_end_matches(['\n', '\r']);
        if secret.is_empty() || secret.contains(['\n', '\r', '\0']) {
            return Err(format!("{shown} is to hold a password or token in one line"));
        }
        Ok(Some(secret.to_owned()))
    }
}

/// Returns a URL up to its path, without a user's name and password.
pub(crate) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    format!("{scheme}://{}", host.rsplit('@').next().unwrap_or_default())
}

/// Returns all targets.
///
/// # Errors
/// The first mistake; [`Error::NoTargets`] if there are none.
pub(crate) fn all(file: &Path) -> Result<Vec<Target>> {
    let mut targets = match fs::read_to_string(file) {
        Ok(text) => parse(file, &text, None)?,
        Err(why) if why.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(why) => return Err(Error::File { file: file.to_owned(), why }),
    };
    for pool in named::all() {
        let text = fs::read_to_string(&pool.file);
        let text = text.map_err(|why| Error::File { file: pool.file.clone(), why })?;
        if text.contains("[[notify]]") {
            let place = pool.mountpoint();
            targets.extend(parse(&pool.file, &text, Some((pool.name, place)))?);
        }
    }
    if targets.is_empty() {
        return Err(Error::NoTargets(file.to_owned()));
    }
    tell_apart(&mut targets);
    Ok(targets)
}

/// Gives each an id of its own: two topics of one server have the same name.
fn tell_apart(targets: &mut [Target]) {
    for index in 0..targets.len() {
        let name = targets[index].name();
        let before = targets[..index].iter().filter(|other| other.name() == name).count();
        targets[index].id = if before == 0 { name } else { format!("{name} ({})", before + 1) };
    }
}

/// Returns the targets in a file. One that is for all pools has nothing else in it.
pub(crate) fn parse(file: &Path, text: &str, pool: Option<(String, Option<PathBuf>)>) -> Result<Vec<Target>> {
    let at_line = |line: usize, what: String| Error::Mistake { file: file.to_owned(), line, what };
    let mistake = |at: usize, what: String| at_line(toml::line_of(text.as_bytes(), at), what);
    let document = toml::document(text).map_err(|(line, what)| at_line(line, what))?;
    let start = |item: &Item| item.span().map_or(0, |span| span.start);
    let mut targets: Vec<Target> = Vec::new();
    for (key, item) in document.iter() {
        if key != "notify" {
            if pool.is_none() {
                return Err(mistake(
                    start(item),
                    format!("unknown key '{key}' (this file has tables [[notify]])"),
                ));
            }
            continue;
        }
        let Item::ArrayOfTables(tables) = item else {
            return Err(mistake(
                start(item),
                "notify is a list of tables: write [[notify]] above each".into(),
            ));
        };
        for table in tables {
            let at = table.span().map_or(0, |span| span.start);
            let target = target(table, pool.clone()).map_err(|what| mistake(at, what))?;
            if targets.iter().any(|other| !other.label.is_empty() && other.label == target.label) {
                return Err(mistake(at, format!("two receivers are called '{}'", target.label)));
            }
            targets.push(target);
        }
    }
    // Those without a name are called as they are told: mail, mail-2.
    for index in 0..targets.len() {
        if targets[index].label.is_empty() {
            let way = targets[index].way.word();
            let numbered = (2..).map(|number| format!("{way}-{number}"));
            let mut names = std::iter::once(way.to_owned()).chain(numbered);
            let free = names.find(|name| targets.iter().all(|other| other.label != *name));
            targets[index].label = free.unwrap_or_default();
        }
    }
    Ok(targets)
}

fn target(table: &dyn TableLike, pool: Option<(String, Option<PathBuf>)>) -> Result<Target, String> {
    if let Some((key, _)) = table.iter().find(|(key, _)| !KEYS.contains(key)) {
        let nearest = closest(key, KEYS.iter().map(|key| (*key).to_owned()));
        let fix = nearest.map_or_else(|| KEYS.join(", "), |key| format!("did you mean '{key}'?"));
        return Err(format!("unknown key '{key}' of [[notify]] ({fix})"));
    }
    let ways: Vec<&str> = KEYS[..WAYS].iter().copied().filter(|key| table.contains_key(key)).collect();
    let [way] = ways[..] else {
        let given =
            if ways.is_empty() { "has none".to_owned() } else { format!("has {}", ways.join(" and ")) };
        return Err(format!("[[notify]] needs one of {} ({given})", KEYS[..WAYS].join(", ")));
    };
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(item) => match item.as_str() {
            Some(text) if text.is_empty() || text.contains(char::is_control) => {
                Err(format!("{key} is empty or has control characters"))
            }
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(format!("{key} must be a string")),
        },
    };
    let only = |key: &str, of: &[&str]| {
        if table.contains_key(key) && !of.contains(&way) {
            return Err(format!("{key} goes with {}, not with {way}", of.join(" and ")));
        }
        Ok(())
    };
    for key in ["smtp", "from", "user", "password-file"] {
        only(key, &["mail"])?;
    }
    only("token-file", &["ntfy", "gotify", "webhook"])?;
    let url = |key: &str, schemes: [&str; 2]| match text(key)? {
        Some(url) if schemes.iter().any(|scheme| url.starts_with(&format!("{scheme}://"))) => Ok(Some(url)),
        Some(_) => Err(format!("{key} must begin with {}:// or {}://", schemes[0], schemes[1])),
        None => Ok(None),
    };
    let web = |key: &str| Ok::<_, String>(url(key, ["https", "http"])?.unwrap_or_default());
    let way = match way {
        "mail" => Way::Mail {
            to: text("mail")?.unwrap_or_default(),
            from: text("from")?,
            smtp: url("smtp", ["smtps", "smtp"])?,
            user: text("user")?,
        },
        "ntfy" => Way::Ntfy(web("ntfy")?),
        "gotify" => Way::Gotify(web("gotify")?),
        "webhook" => Way::Webhook(web("webhook")?),
        _ => Way::Command(command(table.get("command"))?),
    };
    if let Way::Mail { smtp: None, user: Some(_), .. } = way {
        return Err("user goes with smtp".into());
    }
    let least = match text("least")? {
        None => Severity::Warning,
        Some(word) => {
            let known = Severity::WORDS.iter().find(|(known, _)| *known == word);
            known.map(|(_, severity)| *severity).ok_or("least must be problem, warning or notice")?
        }
    };
    let repeats = match text("repeat")?.as_deref() {
        None => false,
        Some("daily") => true,
        Some(_) => return Err("repeat must be daily".into()),
    };
    let secret = text("password-file")?.or(text("token-file")?).map(PathBuf::from);
    let label = text("name")?.unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if label.len() > LONGEST_NAME || label.starts_with(['.', '-']) || !label.chars().all(is_plain) {
        return Err("name must be a word of letters, digits, '-', '_' and '.'".into());
    }
    Ok(Target { label, id: String::new(), way, secret, least, repeats, pool })
}

/// Returns a program and its arguments: no shell reads them.
fn command(item: Option<&Item>) -> Result<Vec<String>, String> {
    let words = match item {
        Some(item) if item.is_str() => vec![item.as_str().unwrap_or_default().to_owned()],
        Some(item) => {
            let words =
                item.as_array().map(|array| array.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
            let words = words.flatten().ok_or("command must be a path, or a list of a path and arguments")?;
            words.into_iter().map(str::to_owned).collect()
        }
        None => Vec::new(),
    };
    match words.first() {
        Some(program) if Path::new(program).is_absolute() => Ok(words),
        _ => Err("command must begin with the path of a program".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn parsed(text: &str) -> Result<Vec<Target>> {
        parse(Path::new("/f"), text, None)
    }

    #[test]
    fn targets_are_read() {
        let text = "[[notify]]\nmail = 'a@b'\nsmtp = 'smtps://mail.b:465'\nuser = 'a'\npassword-file = '/p'\n\
                    [[notify]]\nntfy = 'https://ntfy.sh/x'\nleast = 'problem'\nrepeat = 'daily'\n\
                    [[notify]]\ncommand = ['/bin/x', 'y']\n";
        let targets = parsed(text).unwrap();
        let names: Vec<String> = targets.iter().map(Target::name).collect();
        assert_eq!(names, ["mail to a@b", "ntfy https://ntfy.sh", "command /bin/x"]);
        assert_eq!((targets[1].least, targets[1].repeats), (Severity::Problem, true));
        assert_eq!(targets[0].secret.as_deref(), Some(Path::new("/p")));
        assert_eq!(targets[2].way, Way::Command(vec!["/bin/x".into(), "y".into()]));
    }

    #[test]
    fn a_mistake_names_its_line_and_the_fix() {
        let table = [
            ("x = 1", "/f:1: unknown key 'x' (this file has tables [[notify]])"),
            ("\n[[notify]]\nmial = 'a'", "/f:2: unknown key 'mial' of [[notify]] (did you mean 'mail'?)"),
            (
                "[[notify]]\nleast = 'problem'",
                "/f:1: [[notify]] needs one of mail, ntfy, gotify, webhook, command (has none)",
            ),
            (
                "[[notify]]\nmail = 'a'\nntfy = 'https://b'",
                "/f:1: [[notify]] needs one of mail, ntfy, gotify, webhook, command (has mail and ntfy)",
            ),
            ("[[notify]]\nntfy = 'ntfy.sh/x'", "/f:1: ntfy must begin with https:// or http://"),
            ("[[notify]]\nntfy = 'https://x'\nsmtp = 'smtp://y'", "/f:1: smtp goes with mail, not with ntfy"),
            ("[[notify]]\nmail = 'a'\nuser = 'b'", "/f:1: user goes with smtp"),
            ("[[notify]]\nmail = 'a'\nleast = 'bad'", "/f:1: least must be problem, warning or notice"),
            ("[[notify]]\ncommand = 'x y'", "/f:1: command must begin with the path of a program"),
            ("[[notify]]\nmail = \"a\\nBcc: b\"", "/f:1: mail is empty or has control characters"),
            (
                "[[notify]]\nmail = 'a'\nname = 'x y'",
                "/f:1: name must be a word of letters, digits, '-', '_' and '.'",
            ),
            (
                "[[notify]]\nmail = 'a'\nname = 'x'\n[[notify]]\nmail = 'b'\nname = 'x'",
                "/f:4: two receivers are called 'x'",
            ),
            ("notify = 1", "/f:1: notify is a list of tables: write [[notify]] above each"),
        ];
        for (text, expected) in table {
            assert_eq!(parsed(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn each_is_called_differently() {
        let text = "[[notify]]\nmail = 'a'\n[[notify]]\nmail = 'b'\n[[notify]]\nmail = 'a'\nname = 'mail'\n\
                    [[notify]]\nntfy = 'https://h/one'\n[[notify]]\nntfy = 'https://h/two'\n";
        let mut targets = parsed(text).unwrap();
        tell_apart(&mut targets);
        let of = |part: fn(&Target) -> &str| targets.iter().map(part).collect::<Vec<_>>();
        assert_eq!(of(|target| &target.label), ["mail-2", "mail-3", "mail", "ntfy", "ntfy-2"]);
        assert_eq!(
            of(|target| &target.id),
            ["mail to a", "mail to b", "mail to a (2)", "ntfy https://h", "ntfy https://h (2)"]
        );
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "s3cret\n").unwrap();
        let mut target = parsed("[[notify]]\nntfy = 'https://u:pw@h/topic'").unwrap().remove(0);
        assert_eq!(target.name(), "ntfy https://h");
        assert_eq!(target.secret(), Ok(None));
        target.secret = Some(file.clone());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(target.secret().unwrap_err().contains("can be read by others (chmod 600 "));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(target.secret(), Ok(Some("s3cret".into())));
        fs::write(&file, "one\ntwo\n").unwrap();
        assert!(target.secret().is_err());
    }

    #[test]
    fn a_target_of_a_pool_hears_of_no_other() {
        let pool = Some(("media".to_owned(), Some(PathBuf::from("/mnt/media"))));
        let target = parse(Path::new("/f"), "branches = []\n[[notify]]\nmail = 'a'", pool).unwrap().remove(0);
        assert!(target.is_for("media") && target.is_for("/mnt/media") && !target.is_for("/mnt/other"));
    }
}
