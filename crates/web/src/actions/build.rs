//! An action from what a form says. Whatever it says is checked against what there is.

use super::kinds::{Field, Goes, Input, Kind, Plan, Scope};
use super::{Action, Hidden};
use crate::data::model::{Job, OptionHelp, Pool, Receivers};
use crate::request::{Fields, link, within};
use canopy_sys::shown::Show as _;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

/// The longest value that a form may have.
const LONGEST: usize = 4096;
/// The most directories that one action takes.
const MOST: usize = 64;

/// What an action is checked against.
#[derive(Debug, Default)]
pub struct Known<'k> {
    pub pool: Option<&'k Pool>,
    pub options: &'k [OptionHelp],
    pub jobs: Vec<Job>,
    pub findings: Vec<String>,
    pub told: Receivers,
}

impl Known<'_> {
    /// What a file says of the job or the receiver that a form names; nothing of one that there is not.
    pub fn says(&self, given: &Fields) -> BTreeMap<String, String> {
        let (job, name) = (given.text("job"), given.text("name"));
        let job = self.jobs.iter().find(|known| known.name == job).map(|known| &known.says);
        let receiver =
            || self.told.receivers.iter().find(|known| known.name == name).map(|known| &known.says);
        job.or_else(receiver).cloned().unwrap_or_default()
    }

    /// Returns an option as the pool has it.
    pub fn option(&self, name: &str) -> &str {
        let options = self.pool.and_then(|pool| pool.options.as_ref());
        options.and_then(|options| options.get(name)).map_or("", String::as_str)
    }
}

/// Returns the action that a form asks for.
///
/// # Errors
/// If something is missing, or is not what it has to be; in a line for whoever has filled it in.
pub fn action(kind: &'static Kind, given: &Fields, known: &Known<'_>) -> Result<Action, String> {
    let pool = match (kind.scope, known.pool) {
        (Scope::Machine, _) => None,
        (Scope::Pool, Some(pool)) => Some(pool.mountpoint.to_path()),
        (Scope::Pool, None) => return Err("say which pool".into()),
    };
    let mut options = Vec::new();
    let mut last: Vec<OsString> = Vec::new();
    let mut key = OsString::new();
    let mut input = Vec::new();
    let says = known.says(given);
    for field in kind.fields {
        if let Input::Rows(rows) = field.input {
            last.push(joined(rows.option().as_ref(), rows.value(given)?.as_ref()));
            continue;
        }
        if let Goes::Pair(key) = field.goes {
            let value = values(field, given, known)?.pop().unwrap_or_default();
            let before = says.get(key).map_or("", String::as_str);
            if value != before {
                last.push(joined(key.as_ref(), &value));
            }
            continue;
        }
        for value in values(field, given, known)? {
            match field.goes {
                Goes::Secret(key) => {
                    input.extend([key.as_bytes(), b"=", value.as_bytes(), b"\n"].concat());
                }
                Goes::Flag(option) => options.push(option.into()),
                Goes::With(option) => options.push(joined(option.as_ref(), &value)),
                Goes::Last => last.push(value),
                Goes::Key => key = value,
                Goes::Value => last.push(joined(&key, &value)),
                Goes::Pair(_) => {}
            }
        }
    }
    if !input.is_empty() {
        options.push("--stdin".into());
    }
    let line = |acts: bool| {
        let word = match (kind.plan, acts) {
            (Plan::DryRun, true) => Some("--yes"),
            (Plan::DryRun | Plan::Shown, false) => Some("--dry-run"),
            (Plan::Shown, true) | (Plan::None, _) => None,
        };
        let command = kind.command.iter().copied().chain(word).map(OsString::from);
        let behind = pool.iter().map(|pool| pool.clone().into_os_string());
        let behind = behind.chain(kind.after.iter().map(OsString::from)).chain(last.iter().cloned());
        let mut behind = behind.peekable();
        let end = behind.peek().is_some().then(|| OsString::from("--"));
        command.chain(options.iter().cloned()).chain(end).chain(behind).collect::<Vec<_>>()
    };
    let plan = (kind.plan != Plan::None).then(|| line(false));
    Ok(Action {
        title: kind.title.to_owned(),
        words: kind.words.to_owned(),
        undo: kind.undo,
        plan,
        argv: line(true),
        input: Hidden(input),
        next: next(kind, given, known),
        pool: pool.clone(),
    })
}

/// What is done next, with those values that it needs as well.
fn next(kind: &Kind, given: &Fields, known: &Known<'_>) -> Option<(&'static str, String)> {
    let next = Kind::named(kind.next?)?;
    // The command may do both: drain removes as well, if asked.
    if given.has(next.name) {
        return None;
    }
    let pool = known.pool.map(|pool| pool.mountpoint.to_os_string()).filter(|_| next.scope == Scope::Pool);
    let mut fields = vec![("what", OsStr::new(next.name))];
    fields.extend(pool.as_deref().map(|pool| ("at", pool)));
    let same = next
        .fields
        .iter()
        .filter(|field| field.required && kind.fields.iter().any(|own| own.name == field.name));
    fields.extend(same.map(|field| (field.name, OsStr::from_bytes(given.bytes(field.name)))));
    Some((next.title, link("/do", &fields)))
}

fn joined(key: &OsStr, value: &OsStr) -> OsString {
    OsString::from_vec([key.as_bytes(), b"=", value.as_bytes()].concat())
}

/// Returns the checked values of a field: none if it is not given.
fn values(field: &Field, given: &Fields, known: &Known<'_>) -> Result<Vec<OsString>, String> {
    let wrong = |why: &str| Err(format!("{}: {why}", field.label));
    let mut found = Vec::new();
    for value in given.all(field.name) {
        if value.len() > LONGEST || value.contains(&0) {
            return wrong("this is too long, or has a zero byte");
        }
        match field.input {
            // A field may hold several, a line each.
            Input::Directories => {
                let lines = value
                    .split(|&byte| byte == b'\n')
                    .map(<[u8]>::trim_ascii)
                    .filter(|line| !line.is_empty());
                found.extend(lines);
            }
            _ if value.is_empty() && field.goes != Goes::Value => {}
            _ => found.push(value),
        }
    }
    if field.input == Input::Directories {
        found.truncate(MOST);
    } else {
        found.truncate(1);
    }
    if found.is_empty() && field.required {
        return wrong("this is needed");
    }
    found.into_iter().map(|value| checked(field, OsStr::from_bytes(value), known)).collect()
}

fn checked(field: &Field, value: &OsStr, known: &Known<'_>) -> Result<OsString, String> {
    let wrong = |why: &str| Err(format!("{}: {} {why}", field.label, value.shown()));
    let text = value.to_str();
    let one_of = |mut all: &mut dyn Iterator<Item = &str>, why| {
        let is_one = text.is_some_and(|text| (&mut all).any(|one| one == text));
        if is_one { Ok(value.to_owned()) } else { wrong(why) }
    };
    match field.input {
        Input::Branch => {
            let branches = known.pool.map_or(&[][..], |pool| &pool.branches);
            let is_one = branches.iter().any(|branch| branch.path.to_os_string() == value);
            if is_one { Ok(value.to_owned()) } else { wrong("is no branch of this pool") }
        }
        Input::Directory | Input::Directories => {
            let path = Path::new(value);
            let leads_up = path.components().any(|part| part == std::path::Component::ParentDir);
            let is_whole = path.is_absolute() && !leads_up;
            if is_whole { Ok(value.to_owned()) } else { wrong("is no whole path, such as /mnt/disk4") }
        }
        Input::Place => {
            let root = known.pool.map(|pool| pool.mountpoint.to_path()).unwrap_or_default();
            within(&root, value.as_bytes())
                .map_or_else(|| wrong("leads out of the pool"), |path| Ok(path.into()))
        }
        Input::Kept => {
            let leads_out = within(Path::new("/"), value.as_bytes()).is_none();
            if leads_out { wrong("leads out of the pool") } else { Ok(value.to_owned()) }
        }
        Input::Option => {
            let mut changeable =
                known.options.iter().filter(|option| option.runtime).map(|option| option.name.as_str());
            one_of(&mut changeable, "is no option that a running pool can change")
        }
        Input::Value | Input::Rows(_) => Ok(value.to_owned()),
        Input::Job => one_of(&mut known.jobs.iter().map(|job| job.name.as_str()), "is no job of this pool"),
        Input::JobName | Input::ReceiverName => {
            let is_name = |text: &str| {
                text.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && text.len() <= 60
                    && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            };
            let is_one = text.is_some_and(is_name);
            if is_one { Ok(value.to_owned()) } else { wrong("is no name: letters, digits, -, _ and dots") }
        }
        Input::Receiver => one_of(
            &mut known.told.receivers.iter().map(|receiver| receiver.name.as_str()),
            "is none of those who are told",
        ),
        Input::Secret => {
            // A line end would make two of it.
            let is_line = text.is_some_and(|text| !text.contains(char::is_control));
            if is_line {
                Ok(value.to_owned())
            } else {
                Err(format!("{}: it has control characters", field.label))
            }
        }
        Input::SecretFile => {
            let file = Path::new(&known.told.file);
            let path = Path::new(value);
            let leads_up = path.components().any(|part| part == std::path::Component::ParentDir);
            let is_there =
                file.parent().is_some_and(|directory| path.starts_with(directory) && path != directory);
            if is_there && !leads_up {
                Ok(value.to_owned())
            } else {
                wrong("is not in the directory of the file that has it, /etc/canopy")
            }
        }
        Input::Finding => one_of(&mut known.findings.iter().map(String::as_str), "is not found now"),
        Input::Name => {
            let is_name = |text: &str| {
                text.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && text.len() <= 64
                    && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
            };
            if text.is_some_and(is_name) {
                Ok(value.to_owned())
            } else {
                wrong("is no name: letters, digits, - and _")
            }
        }
        Input::Quantity => {
            let plain = |text: &str| {
                text.starts_with(|c: char| c.is_ascii_digit())
                    && text.len() <= 32
                    && text.chars().all(|c| c.is_ascii_alphanumeric() || ".%:-".contains(c))
            };
            if text.is_some_and(plain) {
                Ok(value.to_owned())
            } else {
                wrong("is no number with a unit, such as 20M")
            }
        }
        Input::Yes => Ok(value.to_owned()),
        Input::Choice(choices) => {
            one_of(&mut choices.iter().map(|(word, _)| *word), "is none of the choices")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::kinds::KINDS;

    fn pool() -> Pool {
        let text = r#"{"mountpoint":"/mnt/-media","source":"x","state":"serving","options":{"minfreespace":"1"},
            "branches":[{"path":"/mnt/disk1","health":"ok"},{"path":[47,109,10,255],"health":"ok"}],"warnings":[]}"#;
        serde_json::from_str(text).unwrap()
    }

    fn options() -> Vec<OptionHelp> {
        serde_json::from_str(r#"[{"name":"minfreespace","runtime":true},{"name":"threads"}]"#).unwrap()
    }

    fn jobs() -> Vec<Job> {
        let text = r#"[{"name":"verify","command":"","state":"rests","says":{"do":"verify","when":"every day","idle":"true"}}]"#;
        serde_json::from_str(text).unwrap()
    }

    fn told() -> Receivers {
        let text = r#"{"file":"/etc/canopy/notify.toml","receivers":[{"name":"phone","by":"ntfy","to":"https://h",
            "least":"warning","repeat":"daily","says":{"repeat":"daily"}}]}"#;
        serde_json::from_str(text).unwrap()
    }

    fn built(name: &str, form: &str) -> Result<Vec<String>, String> {
        let (pool, options) = (pool(), options());
        let known = Known {
            pool: Some(&pool),
            options: &options,
            jobs: jobs(),
            findings: vec!["x-y".into()],
            told: told(),
        };
        let action = action(Kind::named(name).unwrap(), &Fields::parse(form.as_bytes()), &known)?;
        assert!(!format!("{action:?}").contains("s3cret"), "{action:?}");
        Ok(action.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn forms_become_command_lines() {
        for (name, form, line) in [
            ("add", "dir=/mnt/a", "add --yes -- /mnt/-media /mnt/a"),
            (
                "add",
                "dir=/mnt/a&mode=NC&no-persist=yes",
                "add --yes --mode=NC --no-persist -- /mnt/-media /mnt/a",
            ),
            (
                "drain",
                "branch=/mnt/disk1&remove=yes&bwlimit=20M",
                "drain --yes --remove --bwlimit=20M -- /mnt/-media /mnt/disk1",
            ),
            ("mode", "branch=/mnt/disk1&mode=RO", "mode --yes -- /mnt/-media /mnt/disk1 RO"),
            ("set", "option=minfreespace&value=-2+x", "set -- /mnt/-media minfreespace=-2 x"),
            ("set", "option=minfreespace&value=", "set -- /mnt/-media minfreespace="),
            ("verify", "path=--help&repair=yes", "verify --yes -- /mnt/-media /mnt/-media/--help"),
            ("restore", "path=--into", "trash restore --yes -- /mnt/-media --into"),
            ("job", "job=verify", "jobs -- /mnt/-media run verify"),
            (
                "schedule",
                "job=verify&do=verify&when=every+week&idle=&nice=3",
                "jobs -- /mnt/-media set verify when=every week idle= nice=3",
            ),
            ("schedule", "job=new&do=--help&when=-n", "jobs -- /mnt/-media set new do=--help when=-n"),
            ("unschedule", "job=verify", "jobs -- /mnt/-media drop verify"),
            (
                "rules",
                "path.0=--yes&copies.0=2&persist=yes",
                "set --persist -- /mnt/-media rules=--yes=copies 2",
            ),
            ("rules", "path.0=", "set -- /mnt/-media rules="),
            ("tiers", "name.0=a&branches.0=/b", "set -- /mnt/-media tiers=a=/b"),
            (
                "cache",
                "branches.0=/ssd/a:/ssd/b&path.0=films/**&size.0=200G&when.0=opened",
                "set -- /mnt/-media read-cache=/ssd/a:/ssd/b=films/**|size 200G|when opened",
            ),
            ("keep", "path.0=**&keep.0=1 day", "set -- /mnt/-media trash=**=1 day"),
            ("fix", "code=x-y", "doctor --yes --fix=x-y"),
            ("notify", "", "notify -- test"),
            (
                "receiver",
                "name=phone&ntfy=&least=problem&repeat=",
                "notify -- set phone least=problem repeat=",
            ),
            (
                "receiver",
                "name=new&ntfy=https://h/s3cret&token-file=/etc/canopy/token",
                "notify --stdin -- set new token-file=/etc/canopy/token",
            ),
            ("unreceiver", "name=phone", "notify -- drop phone"),
            (
                "init",
                "name=a&branch=/x%0d%0a/y&branch=/z",
                "init --yes --branch=/x --branch=/y --branch=/z -- a",
            ),
        ] {
            assert_eq!(built(name, form).map(|words| words.join(" ")).as_deref(), Ok(line), "{name} {form}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (name, form) in [
            ("add", ""),
            ("add", "dir=mnt"),
            ("add", "dir=--yes"),
            ("add", "dir=/a/../../b"),
            ("add", "dir=/a%00"),
            ("add", "dir=/a&mode=rw"),
            ("drain", "branch=/mnt/disk9"),
            ("drain", "branch=--help"),
            ("drain", "branch=/mnt/disk1&bwlimit=--yes"),
            ("set", "option=threads&value=1"),
            ("set", "option=--yes&value=1"),
            ("verify", "path=../../etc"),
            ("restore", "path=../x"),
            ("job", "job=--json"),
            ("unschedule", "job=other"),
            ("schedule", "job=--json&do=verify&when=every day"),
            ("schedule", "job=a/b&do=verify&when=every day"),
            ("schedule", "job=new&do=verify"),
            ("rules", "path.0=a"),
            ("keep", "path.0=a&keep.0=1 day;**=1 s"),
            ("cache", "branches.0=/s&path.0=**&when.0=opened|size 1"),
            ("receiver", "mail=a@b"),
            ("receiver", "name=--file&mail=a@b"),
            ("receiver", "name=a&ntfy=https://h/x%0acommand=/bin/sh"),
            ("receiver", "name=a&ntfy=https://h&token-file=/root/.ssh/id"),
            ("receiver", "name=a&ntfy=https://h&token-file=/etc/canopy/../shadow"),
            ("receiver", "name=a&ntfy=https://h&least=x"),
            ("unreceiver", "name=other"),
            ("fix", "code=x-y,other"),
            ("init", "name=--undo&branch=/x"),
            ("init", "name=a/../b&branch=/x"),
            ("init", "name=a"),
        ] {
            assert!(built(name, form).is_err(), "{name} {form}");
        }
        assert!(built("add", &format!("dir=/{}", "a".repeat(5000))).is_err());
    }

    /// Whatever is put into every field: no word before `--` is one that was given.
    #[test]
    fn hostile_values_are_no_options() {
        for kind in KINDS {
            for hostile in ["--help", "-y", "-", "--", "=-y", "%0a-y", "/--yes", "%ff", "$(id)", "<b>"] {
                let form: Vec<String> =
                    kind.fields.iter().map(|field| format!("{}={hostile}", field.name)).collect();
                let Ok(words) = built(kind.name, &form.join("&")) else { continue };
                let before = words.iter().take_while(|word| *word != "--");
                for word in before.skip(kind.command.len()) {
                    assert!(word.starts_with("--"), "{}: {words:?}", kind.name);
                    let option = word.split('=').next().unwrap();
                    let is_ours = matches!(option, "--yes" | "--dry-run")
                        || kind.fields.iter().any(
                            |field| matches!(field.goes, Goes::Flag(own) | Goes::With(own) if own == option),
                        );
                    assert!(is_ours, "{}: {words:?}", kind.name);
                }
            }
        }
    }

    #[test]
    fn a_plan_does_not_act() {
        let (pool, options) = (pool(), options());
        let known =
            Known { pool: Some(&pool), options: &options, jobs: jobs(), told: told(), ..Known::default() };
        let of = |name, form: &str| {
            action(Kind::named(name).unwrap(), &Fields::parse(form.as_bytes()), &known).unwrap()
        };
        for kind in KINDS.iter().filter(|kind| kind.plan != Plan::None) {
            let form = "dir=/x&branch=/mnt/disk1&mode=RW&path=x&name=phone&option=minfreespace&value=2&job=verify&do=x&when=y";
            let action = of(kind.name, form);
            let plan = action.plan.unwrap();
            assert!(plan.contains(&"--dry-run".into()) && !plan.contains(&"--yes".into()), "{plan:?}");
            assert_eq!(action.argv.contains(&"--yes".into()), kind.plan == Plan::DryRun);
            assert!(!action.argv.contains(&"--dry-run".into()));
        }
        let raw = of("drain", "branch=/m%0a%ff");
        assert_eq!(raw.argv.last().unwrap().as_bytes(), b"/m\n\xff");
    }
}
