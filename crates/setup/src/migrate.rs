//! What mergerfs was configured with, as Canopy's configuration.
//!
//! Lines of fstab, systemd units, and files of options. Whatever is not mergerfs's stays as it is, byte for byte.

use crate::fstab::{self, Line};
use canopy_config::options;
use canopy_config::source::command_line::{pieces, split_group};
use canopy_config::{Config, source};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use toml_edit::Value;

/// Options of fstab that mount(8) and systemd take.
const OF_MOUNT: [&str; 15] = [
    "defaults", "nofail", "user", "nouser", "users", "auto", "noauto", "_netdev", "owner", "noowner",
    "group", "nogroup", "silent", "loud", "comment",
];
/// Keeps what the names of mergerfs imply.
const ALLOW_MISSING: &str = "allow-missing-branches=true";

/// What becomes of one option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub old: String,
    /// `None` if it is left out.
    pub new: Option<String>,
    pub why: String,
}

/// What becomes of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migration {
    pub text: String,
    /// Old and new lines, in their order.
    pub lines: Vec<(String, String)>,
    /// Only options that do not stay as they are.
    pub changes: Vec<Change>,
    /// Whether it mounts a pool. A file of options does not.
    pub mounts: bool,
}

/// What is better or worse for every pool that was mounted by mergerfs's names.
pub const FOR_BETTER: &str =
    "Data of open files goes straight to the disks (Linux 6.9 or later, mounted by root).";
pub const FOR_WORSE: &str = "Set-user-id programs and device files in the pool have no effect any more, as on other \
    data disks; the options allow_suid,allow_dev bring them back.";

/// Converts options, separated by commas. Escapes stay.
pub fn options(list: &str, changes: &mut Vec<Change>) -> Vec<String> {
    let mut kept = Vec::new();
    for piece in pieces(list.as_bytes()) {
        let piece = String::from_utf8_lossy(piece).into_owned();
        match option(&piece) {
            Ok(None) => kept.push(piece),
            Ok(Some((new, why))) => {
                kept.push(new.clone());
                changes.push(Change { old: piece, new: Some(new), why });
            }
            Err(why) => changes.push(Change { old: piece, new: None, why }),
        }
    }
    kept
}

/// Returns the new form of an option and the reason, `None` if it stays, or why it is left out.
fn option(piece: &str) -> Result<Option<(String, String)>, String> {
    let (key, value) =
        piece.split_once('=').map_or((piece, None), |(key, value)| (key.trim(), Some(value.trim())));
    // For mount(8) and systemd; the helper reads setuid itself.
    if OF_MOUNT.contains(&key) || key.starts_with("x-") || key.starts_with("X-") || key == "setuid" {
        return Ok(None);
    }
    let Some(spec) = options::find(key) else {
        return Err("unknown here; mergerfs ignores or refuses it, too, unless it is newer".into());
    };
    if spec.is_ignored() {
        return Err("has no effect here: what it was for happens by itself".into());
    }
    if spec.name == "config" {
        return Ok(config_option(value.unwrap_or_default()));
    }
    let items = split_group(OsStr::from_bytes(piece.as_bytes()));
    let pair = items.into_iter().next().unwrap_or_default();
    if let Err(error) = source::set_pair(&mut Config::default(), &pair) {
        return Err(format!("is refused here: {}", error.lines().join("; ")));
    }
    if spec.has_name(key) && spec.name != key {
        let new = value.map_or_else(|| spec.name.to_string(), |value| format!("{}={value}", spec.name));
        return Ok(Some((new, "its name here".into())));
    }
    Ok(None)
}

fn config_option(file: &str) -> Option<(String, String)> {
    let toml = toml_path(Path::new(file))?;
    Some((format!("config={}", toml.to_string_lossy()), "its new file".into()))
}

/// Returns the path of the new file for a file of options; `None` if it is TOML, which mergerfs does not read.
pub fn toml_path(file: &Path) -> Option<PathBuf> {
    (!source::file::is_toml(file) && file.file_name().is_some()).then(|| file.with_extension("toml"))
}

/// Adds what the new name of the program no longer implies.
fn with_implied(mut kept: Vec<String>, changes: &mut Vec<Change>) -> Vec<String> {
    if !kept.iter().any(|option| option.replace('_', "-").starts_with("allow-missing-branches")) {
        kept.push(ALLOW_MISSING.into());
        let why = "a missing disk keeps nothing from being mounted, as with mergerfs";
        changes.push(Change { old: String::new(), new: Some(ALLOW_MISSING.into()), why: why.into() });
    }
    kept
}

/// Converts the lines of an fstab; `None` if none is mergerfs's.
pub fn fstab(text: &str) -> Option<Migration> {
    let (mut changes, mut lines, mut replacements) = (Vec::new(), Vec::new(), Vec::new());
    for old in fstab::parse(text).into_iter().filter(Line::is_mergerfs) {
        let mut new = old.clone();
        new.source = old.source.strip_prefix("mergerfs#").unwrap_or(&old.source).to_owned();
        new.fstype = "canopy".into();
        new.options = with_implied(options(&old.options, &mut changes), &mut changes).join(",");
        replacements.push((old.number, new.render()));
        lines.push((old.render(), new.render()));
    }
    let text = fstab::replace(text, &replacements);
    (!lines.is_empty()).then_some(Migration { text, lines, changes, mounts: true })
}

/// Converts a unit of systemd, a service or a mount; `None` if it mounts nothing as mergerfs.
pub fn unit(text: &str) -> Option<Migration> {
    let is_mount = text.lines().any(|line| {
        assignment(line, "Type").is_some_and(|kind| matches!(kind, "mergerfs" | "fuse.mergerfs"))
    });
    let (mut changes, mut lines, mut new_text) = (Vec::new(), Vec::new(), String::new());
    let mut has_options = false;
    for line in logical_lines(text) {
        let new = if is_mount && assignment(&line, "Type").is_some() {
            Some("Type=canopy".to_owned())
        } else if let Some(list) = assignment(&line, "Options").filter(|_| is_mount) {
            has_options = true;
            Some(format!("Options={}", with_implied(options(list, &mut changes), &mut changes).join(",")))
        } else {
            assignment(&line, "ExecStart").and_then(|command| exec_start(command, &mut changes))
        };
        match new {
            Some(new) => {
                new_text.push_str(&format!("{new}\n"));
                lines.push((line.trim_end().replace("\\\n", " "), new));
            }
            None => new_text.push_str(&line),
        }
    }
    if is_mount && !has_options {
        let options = format!("Options={}", with_implied(Vec::new(), &mut changes).join(","));
        new_text = new_text.replacen("Type=canopy\n", &format!("Type=canopy\n{options}\n"), 1);
    }
    (!lines.is_empty()).then_some(Migration { text: new_text, lines, changes, mounts: true })
}

/// Returns the value of `KEY=VALUE`.
fn assignment<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    Some(line.trim().strip_prefix(key)?.trim_start().strip_prefix('=')?.trim())
}

/// Splits a unit into lines, those that a backslash continues in one.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut continues = false;
    for line in text.split_inclusive('\n') {
        match lines.last_mut().filter(|_| continues) {
            Some(last) => last.push_str(line),
            None => lines.push(line.to_owned()),
        }
        continues = line.trim_end_matches('\n').ends_with('\\');
    }
    lines
}

/// Converts a command that starts mergerfs; `None` if it is another's.
fn exec_start(command: &str, changes: &mut Vec<Change>) -> Option<String> {
    let joined = command.replace("\\\n", " ");
    let mut words = joined.split_whitespace();
    let first = words.next()?;
    let program = first.trim_start_matches(['-', '@', ':', '+', '!', '|']);
    if Path::new(program).file_name()? != "mergerfs" {
        return None;
    }
    let prefix = &first[..first.len() - program.len()];
    let mut new = vec![format!("ExecStart={prefix}/usr/bin/canopy mount")];
    let (mut given, mut rest) = (Vec::new(), Vec::new());
    while let Some(word) = words.next() {
        match word {
            "-f" => new.push(word.into()),
            "-o" => given.extend(options(words.next().unwrap_or_default(), changes)),
            _ if word.starts_with("-o") => given.extend(options(&word[2..], changes)),
            _ if word.starts_with('-') && word.len() > 1 => changes.push(Change {
                old: word.into(),
                new: None,
                why: "a switch that mergerfs ignores, or that has no effect here".into(),
            }),
            _ => rest.push(word.to_owned()),
        }
    }
    new.push(format!("-o {}", with_implied(given, changes).join(",")));
    new.extend(rest);
    Some(new.join(" "))
}

/// Converts a file of options to TOML.
pub fn options_file(text: &str) -> Migration {
    let (mut changes, mut lines, mut new_text) = (Vec::new(), Vec::new(), String::new());
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            new_text.push_str(&format!("{line}\n"));
            continue;
        }
        // Commas and backslashes are ordinary here, and escaped in a list.
        let piece = trimmed.replace('\\', "\\\\").replace(',', "\\,");
        let kept = options(&piece, &mut changes);
        for option in kept {
            let item = split_group(&OsString::from(option)).into_iter().next().unwrap_or_default();
            let new = toml_line(&item.to_string_lossy());
            new_text.push_str(&format!("{new}\n"));
            lines.push((trimmed.to_owned(), new));
        }
    }
    Migration { text: new_text, lines, changes, mounts: false }
}

fn toml_line(option: &str) -> String {
    let (key, value) =
        option.split_once('=').map_or((option, None), |(key, value)| (key.trim(), Some(value.trim())));
    // A dot would make a table, in which a key that continues another has no place.
    let name = if key.contains('.') { text(key) } else { key.to_owned() };
    match value {
        None => format!("{name} = true"),
        Some(list) if options::find(key).is_some_and(|spec| spec.name == "branches") => {
            let items: Vec<String> = list.split(':').map(text).collect();
            format!("{name} = [{}]", items.join(", "))
        }
        Some(value) => format!("{name} = {}", text(value)),
    }
}

fn text(value: &str) -> String {
    Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lines_of_fstab_become_canopys() {
        let text = "/dev/sda1 / ext4 defaults 0 1\n\
            /mnt/disk* /mnt/media fuse.mergerfs defaults,nofail,use_ino,cache.files=partial,dropcacheonclose=true,category.create=mfs,moveonenospc=true,frob=1,func.getattr=nonsense,x-systemd.requires=/mnt/disk1 0 0\n";
        let done = fstab(text).expect("a line of mergerfs");
        assert!(
            done.text
                .starts_with("/dev/sda1 / ext4 defaults 0 1\n/mnt/disk* /mnt/media canopy defaults,nofail,"),
            "{}",
            done.text
        );
        for kept in ["category.create=mfs", "x-systemd.requires=/mnt/disk1", ALLOW_MISSING] {
            assert!(done.text.contains(kept), "no {kept} in {}", done.text);
        }
        for (left_out, why) in [("frob=1", "unknown"), ("func.getattr=nonsense", "refused")] {
            assert!(!done.text.contains(left_out));
            let change = done.changes.iter().find(|change| change.old == left_out).expect(left_out);
            assert!(change.new.is_none() && change.why.contains(why), "{change:?}");
        }
        assert_eq!(fstab("/dev/sda1 / ext4 defaults 0 1\n"), None);
        assert_eq!(fstab(&done.text), None, "nothing is left to convert");
    }

    #[test]
    fn every_option_that_is_kept_can_be_mounted_with() {
        let text = "mergerfs#/a:/b /p fuse allow_other,direct_io,use_ino,minfreespace=4G,fsname=a\\040b,threads=4,posix_acl=true 0 0\n";
        let done = fstab(text).expect("a line");
        let line = fstab::parse(&done.text).remove(0);
        assert_eq!((line.source.as_str(), line.fstype.as_str()), ("/a:/b", "canopy"));
        let mut config = Config::default();
        for item in split_group(OsStr::new(&line.options)) {
            source::set_pair(&mut config, &item).expect("an option");
        }
        assert!(config.ignored.is_empty(), "{:?}", config.ignored);
    }

    #[test]
    fn units_become_canopys() {
        let service = "[Service]\nType=forking\nExecStart=-/usr/bin/mergerfs -s \\\n  -o cache.files=off,category.create=mfs \\\n  /mnt/d1:/mnt/d2 /mnt/media\nExecStop=/bin/fusermount -uz /mnt/media\n";
        let done = unit(service).expect("a service of mergerfs");
        assert!(done.text.contains("ExecStart=-/usr/bin/canopy mount -o cache.files=off,category.create=mfs,allow-missing-branches=true /mnt/d1:/mnt/d2 /mnt/media\nExecStop=/bin/fusermount"), "{}", done.text);
        assert!(done.changes.iter().any(|change| change.old == "-s" && change.new.is_none()));
        let mount = "[Mount]\nWhat=/mnt/d1:/mnt/d2\nWhere=/mnt/media\nType=fuse.mergerfs\n";
        let done = unit(mount).expect("a mount of mergerfs");
        assert!(done.text.ends_with("Type=canopy\nOptions=allow-missing-branches=true\n"), "{}", done.text);
        assert_eq!(unit("[Service]\nExecStart=/usr/bin/true mergerfs\n"), None);
        assert_eq!(unit(&done.text), None);
    }

    #[test]
    fn files_of_options_become_toml() {
        let dir = tempfile::tempdir().expect("a directory");
        let old = "# my pool\nbranches=/no-a:/no-b=NC,50G\nmountpoint=/no-m\ncategory.create = mfs\ncache.files=off\nuse_ino\nro\nfsname=a\\b,c\n";
        let done = options_file(old);
        assert!(
            done.text.starts_with("# my pool\nbranches = [\"/no-a\", \"/no-b=NC,50G\"]\n"),
            "{}",
            done.text
        );
        let path = dir.path().join("pool.toml");
        fs::write(&path, &done.text).expect("a file");
        let (mut config, mut before) = (Config::default(), Config::default());
        source::file::load(&mut config, path.as_os_str()).expect("TOML");
        let path = dir.path().join("pool.ini");
        fs::write(&path, old).expect("a file");
        source::file::load(&mut before, path.as_os_str()).expect("lines");
        assert_eq!(config.branches.to_string(), "/no-a=RW:/no-b=NC,50G");
        for key in ["branches", "mountpoint", "category.create", "cache.files", "fsname"] {
            let spec = options::find(key).expect("an option");
            assert_eq!(spec.render(&config), spec.render(&before), "{key}");
        }
        assert_eq!(toml_path(&path), Some(dir.path().join("pool.toml")));
        assert_eq!(toml_path(Path::new("/a.toml")), None);
    }
}
