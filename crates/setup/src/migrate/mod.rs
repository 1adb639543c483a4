//! What mergerfs was configured with, as Canopy's configuration.
//!
//! Lines of fstab, systemd units, and files of options. Whatever is not mergerfs's stays as it is, byte for byte. What a line
//! was stays above it as a comment, so that it can be taken back whatever else is edited.

mod units;

use crate::unit::continues;
use canopy_config::fstab::{self, Line};
use canopy_config::options;
use canopy_config::source::command_line::{pieces, split_group};
use canopy_config::{Config, source};
use serde::Serialize;
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

/// What a converted line was is written above it, behind this.
const WAS: &str = "#canopy-was:";

/// What becomes of one option.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
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
    /// What has to be changed by hand, each in a sentence.
    pub by_hand: Vec<String>,
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
        let hint =
            options::nearest(key).map_or_else(String::new, |name| format!(" (did you mean '{name}'?)"));
        return Err(format!("Canopy has no such option{hint}"));
    };
    // Without it, `canopy mount` refuses a mountpoint with files, and one that is a disk.
    if spec.name == "nonempty" {
        return Ok(None);
    }
    if spec.is_ignored() {
        return Err("not needed, Canopy always does this".into());
    }
    if spec.name == "config" {
        return Ok(config_option(value.unwrap_or_default()));
    }
    let items = split_group(OsStr::from_bytes(piece.as_bytes()));
    let pair = items.into_iter().next().unwrap_or_default();
    if let Err(error) = source::set_pair(&mut Config::default(), &pair) {
        let default = spec.render(&Config::default()).filter(|default| !default.is_empty());
        return Err(match (value, default) {
            (None | Some(""), Some(default)) => format!("it needs a value ({default} is the default)"),
            _ => error.lines().join("; ").trim_start_matches(&format!("option {}: ", spec.name)).to_owned(),
        });
    }
    if spec.has_name(key) && spec.name != key {
        let new = value.map_or_else(|| spec.name.to_string(), |value| format!("{}={value}", spec.name));
        return Ok(Some((new, "its name in Canopy".into())));
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
        let was = text.lines().nth(old.number - 1).unwrap_or_default();
        let source = old.source.strip_prefix("mergerfs#").unwrap_or(&old.source);
        let options = with_implied(options(&old.options, &mut changes), &mut changes).join(",");
        let fields = [(fstab::SOURCE, source), (fstab::FSTYPE, "canopy"), (fstab::OPTIONS, &options)];
        let new = fstab::with_fields(was, &fields);
        replacements.push((old.number, format!("{WAS} {was}\n{new}")));
        lines.push((was.to_owned(), new));
    }
    let text = fstab::replace(text, &replacements);
    (!lines.is_empty()).then_some(Migration { text, lines, changes, by_hand: Vec::new(), mounts: true })
}

/// Converts a unit of systemd, a service or a mount; `None` if it has nothing to do with mergerfs. `program` is Canopy's
/// path.
pub fn unit(text: &str, program: &str) -> Option<Migration> {
    units::convert(text, program)
}

/// Takes back what became of mergerfs's lines of an fstab or a unit. All other lines stay as they are now.
pub fn undo(text: &str) -> String {
    let mut old = String::with_capacity(text.len());
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let Some(was) = line.strip_prefix(WAS) else {
            old.push_str(line);
            continue;
        };
        let was = was.strip_prefix(' ').unwrap_or(was);
        let added = was.trim().is_empty();
        if !added {
            old.push_str(was);
        }
        // What it became follows the last of its lines.
        if lines.peek().is_some_and(|next| next.starts_with(WAS)) {
            continue;
        }
        let whole = if added { "Options=" } else { last_logical(&old) };
        while let Some(new) = lines.next_if(|next| is_successor(whole, next)) {
            if !continues(new) {
                break;
            }
        }
    }
    old
}

/// Returns the text from the beginning of its last logical line on.
fn last_logical(text: &str) -> &str {
    let mut start = text.trim_end_matches('\n').rfind('\n').map_or(0, |at| at + 1);
    while start > 0 {
        let above = text[..start - 1].rfind('\n').map_or(0, |at| at + 1);
        let line = &text[above..start];
        if !continues(line) && !line.trim_start().starts_with(['#', ';']) {
            break;
        }
        start = above;
    }
    &text[start..]
}

/// Returns whether a line is what `old` became: a mount at the same place, or the same key of a unit.
fn is_successor(old: &str, new: &str) -> bool {
    if let ([old], [new]) = (&fstab::parse(old)[..], &fstab::parse(new)[..])
        && old.is_mergerfs()
    {
        return new.fstype.ends_with("canopy") && new.mountpoint == old.mountpoint;
    }
    let key = |line: &str| line.split_once('=').map(|(key, _)| key.trim().to_owned());
    key(new).is_some_and(|new| Some(new) == key(old))
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
    Migration { text: new_text, lines, changes, by_hand: Vec::new(), mounts: false }
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
            /mnt/disk* /mnt/media fuse.mergerfs defaults,nofail,use_ino,sync_read,nonempty,cache.files=partial,dropcacheonclose=true,category.create=mfs,moveonenospc=true,frob=1,passthrough=rw,inodecalc,func.getattr=nonsense,x-systemd.requires=/mnt/disk1 0 0\n";
        let done = fstab(text).expect("a line of mergerfs");
        assert!(done.text.contains("\n/mnt/disk* /mnt/media canopy defaults,nofail,"), "{}", done.text);
        for kept in ["category.create=mfs", ",nonempty,", "x-systemd.requires=/mnt/disk1", ALLOW_MISSING] {
            assert!(done.text.contains(kept), "no {kept} in {}", done.text);
        }
        for (left_out, why) in [
            ("frob=1", "no such option"),
            ("passthrough=rw", "did you mean 'passthrough.io'?"),
            ("inodecalc", "it needs a value (oldest-hash is the default)"),
            ("sync_read", "not needed"),
            ("func.getattr=nonsense", "'nonsense' is not valid: must be"),
        ] {
            assert!(!done.text.lines().last().is_some_and(|line| line.contains(left_out)));
            let change = done.changes.iter().find(|change| change.old == left_out).expect(left_out);
            assert!(change.new.is_none() && change.why.contains(why), "{change:?}");
        }
        assert_eq!(fstab("/dev/sda1 / ext4 defaults 0 1\n"), None);
        assert_eq!(fstab(&done.text), None, "nothing is left to convert");
        assert_eq!(undo(&done.text), text);
        // Whatever else was edited stays, and so does the line itself if it mounts something else now.
        let edited =
            done.text.replace("canopy defaults,", "canopy ro,") + "/dev/sdb1 /mnt/new ext4 nofail 0 2\n";
        assert_eq!(undo(&edited), format!("{text}/dev/sdb1 /mnt/new ext4 nofail 0 2\n"));
        let gone = format!("{WAS} /a:/b /p fuse.mergerfs ro 0 0\n/c /q canopy ro 0 0\n");
        assert_eq!(undo(&gone), "/a:/b /p fuse.mergerfs ro 0 0\n/c /q canopy ro 0 0\n");
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
