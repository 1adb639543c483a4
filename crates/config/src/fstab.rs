//! Lines of fstab(5).

use crate::resolve::remembered::MARK;
use crate::source::command_line;
use canopy_sys::glob::is_pattern;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A line that describes a mount. Fields are as written, with their escapes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Its number in the file, from 1.
    pub number: usize,
    pub source: String,
    pub mountpoint: String,
    pub fstype: String,
    pub options: String,
    /// What follows the options: numbers, and perhaps a comment.
    rest: String,
}

impl Line {
    /// Parses a line; `None` for a comment and for what is no mount.
    fn parse(number: usize, text: &str) -> Option<Line> {
        let mut fields = text.split_whitespace();
        let source = fields.next().filter(|field| !field.starts_with('#'))?;
        let (mountpoint, fstype) = (fields.next()?, fields.next()?);
        let options = fields.next().unwrap_or("defaults");
        let rest = fields.collect::<Vec<_>>().join(" ");
        let [source, mountpoint, fstype, options] = [source, mountpoint, fstype, options].map(str::to_owned);
        Some(Line { number, source, mountpoint, fstype, options, rest })
    }

    /// Returns the line for a pool that its file describes.
    pub fn for_pool(file: &str, mountpoint: &str, options: &str) -> Line {
        let (source, mountpoint) = (escape(file), escape(mountpoint));
        let (fstype, options, rest) = ("canopy".into(), options.into(), "0 0".into());
        Line { number: 0, source, mountpoint, fstype, options, rest }
    }

    /// Returns whether the line mounts a pool, by whichever name.
    pub fn is_pool(&self) -> bool {
        let kind = self.fstype.strip_prefix("fuse.").unwrap_or(&self.fstype);
        matches!(kind, "canopy" | "mergerfs") || self.is_mergerfs()
    }

    /// Returns whether the line mounts a pool as mergerfs.
    pub fn is_mergerfs(&self) -> bool {
        matches!(self.fstype.as_str(), "mergerfs" | "fuse.mergerfs")
            || (self.fstype == "fuse" && self.source.starts_with("mergerfs#"))
    }

    /// What is mounted by hand, or by the first access, is not mounted at boot.
    pub fn is_by_hand(&self) -> bool {
        self.has_option("noauto") || self.has_option("x-systemd.automount")
    }

    /// The machine does not start without it.
    pub fn holds_up_boot(&self) -> bool {
        !self.has_option("nofail") && !self.is_by_hand()
    }

    /// Returns whether an option is given, with or without a value.
    pub fn has_option(&self, name: &str) -> bool {
        self.options_named(name).next().is_some()
    }

    /// Returns the values of an option that may be given several times.
    pub fn options_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.options.split(',').filter_map(move |option| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            (key == name).then_some(value)
        })
    }

    pub fn render(&self) -> String {
        let fields = [&self.source, &self.mountpoint, &self.fstype, &self.options, &self.rest];
        let fields: Vec<&str> =
            fields.into_iter().map(String::as_str).filter(|field| !field.is_empty()).collect();
        fields.join(" ")
    }
}

/// Returns the line that mounts the disk of a branch, unless that is the root.
pub fn disk_of<'l>(lines: &'l [Line], branch: &Path) -> Option<&'l Line> {
    let holds = |line: &&Line| {
        let place = PathBuf::from(unescape(&line.mountpoint));
        place != Path::new("/") && !line.is_pool() && branch.starts_with(place)
    };
    lines.iter().filter(holds).max_by_key(|line| line.mountpoint.len())
}

/// Returns the lines for disks that should be mounted, and are not: neither those of systemd's automounts nor what is mounted
/// by hand, nor swap and pools.
pub fn disks_away<'l>(lines: &'l [Line], mounts: &[MountEntry]) -> Vec<&'l Line> {
    let wanted = |line: &&Line| {
        let place = PathBuf::from(unescape(&line.mountpoint));
        place.is_absolute()
            && !line.is_pool()
            && !["noauto", "x-systemd.automount", "bind", "rbind"]
                .iter()
                .any(|option| line.has_option(option))
            && !["swap", "tmpfs", "proc", "sysfs", "devpts", "none", "auto.none"]
                .contains(&line.fstype.as_str())
            && !mounts.iter().any(|mounted| mounted.mountpoint == place)
    };
    lines.iter().filter(wanted).collect()
}

/// Returns where the disk of a branch should be mounted by this machine's fstab, if it is not. The branch is a directory of
/// another disk then.
pub fn away(branch: &Path) -> Option<PathBuf> {
    let lines = parse(&fs::read_to_string("/etc/fstab").ok()?);
    away_of(&lines, &mountinfo::list().ok()?, branch).filter(|_| !branch.join(MARK).exists())
}

fn away_of(lines: &[Line], mounts: &[MountEntry], branch: &Path) -> Option<PathBuf> {
    let disk = disk_of(lines, branch)?;
    let place = PathBuf::from(unescape(&disk.mountpoint));
    let is_away = disks_away(lines, mounts).iter().any(|line| line.number == disk.number);
    // The path in fstab may lead through a link. Only what is no mountpoint is looked at: a disk might hang.
    let is_mounted =
        || fs::canonicalize(&place).is_ok_and(|real| mounts.iter().any(|it| it.mountpoint == real));
    (is_away && !is_mounted()).then_some(place)
}

/// Returns the warning for a branch that a pool is mounted without because its disk is not mounted.
pub fn away_warning(path: &Path, disk: &Path) -> String {
    format!(
        "branch {} is left out, because {disk} is in /etc/fstab but not mounted: the pool adds it when the disk is mounted (mount \
         {disk}; if the directory is meant: touch {}/.mergerfs.branch)",
        path.shown(),
        path.shown(),
        disk = disk.shown()
    )
}

/// Says of a branch that does not exist yet, or whose disk is not mounted, what the pool does.
pub fn awaited(path: &str) -> String {
    if let Some(disk) = away(Path::new(path)) {
        return format!(
            "{} is in /etc/fstab but not mounted: the pool runs without {path}, and adds it when the disk is mounted",
            disk.shown()
        );
    }
    let what = if is_pattern(OsStr::new(path)) { "matches no directory yet" } else { "is not there yet" };
    format!("{path} {what}: the pool runs without it, and adds it as soon as the directory exists")
}

/// Returns the mounts of a file.
pub fn parse(text: &str) -> Vec<Line> {
    text.lines().enumerate().filter_map(|(index, line)| Line::parse(index + 1, line)).collect()
}

/// Replaces lines by number, and keeps all others as they are. A replacement may have several lines.
pub fn replace(text: &str, replacements: &[(usize, String)]) -> String {
    let mut replaced = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match replacements.iter().find(|(number, _)| *number == index + 1) {
            Some((_, new)) => {
                replaced.push_str(new);
                replaced.push('\n');
            }
            None => replaced.push_str(line),
        }
    }
    replaced
}

/// Replaces fields of a line, counted from 0. What is between fields stays, so that columns that somebody has aligned and
/// comments are kept. A field that is missing is appended.
pub fn with_fields(line: &str, new: &[(usize, &str)]) -> String {
    let mut changed = String::with_capacity(line.len());
    let (mut rest, mut index) = (line, 0);
    loop {
        let field = rest.trim_start();
        changed.push_str(&rest[..rest.len() - field.len()]);
        if field.is_empty() {
            break;
        }
        let length = field.find(char::is_whitespace).unwrap_or(field.len());
        let replaced =
            new.iter().find(|(wanted, _)| *wanted == index).map_or(&field[..length], |(_, new)| new);
        changed.push_str(replaced);
        (rest, index) = (&field[length..], index + 1);
    }
    for (_, field) in new.iter().filter(|(wanted, _)| *wanted >= index) {
        changed.push_str(&format!(" {field}"));
    }
    changed
}

/// The fields of a line.
pub const SOURCE: usize = 0;
pub const FSTYPE: usize = 2;
pub const OPTIONS: usize = 3;

/// Appends a line, after one that may lack its end.
pub fn append(text: &str, line: &str) -> String {
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{gap}{line}\n")
}

/// Writes blanks, tabs, line ends and backslashes as fstab wants them.
pub fn escape(field: &str) -> String {
    let mut escaped = String::new();
    for character in field.chars() {
        match character {
            ' ' | '\t' | '\n' | '\\' => escaped.push_str(&format!("\\{:03o}", u32::from(character))),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Reads a field with its escapes.
pub fn unescape(field: &str) -> OsString {
    // Commas do not separate here.
    let quoted: Vec<u8> =
        field.bytes().flat_map(|byte| if byte == b',' { vec![b'\\', b','] } else { vec![byte] }).collect();
    let items = command_line::split_group(OsStr::from_bytes(&quoted));
    OsString::from_vec(items.into_iter().flat_map(OsString::into_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSTAB: &str = "# a comment\n\
        UUID=1 / ext4 errors=remount-ro 0 1\n\
        /mnt/disk*\t/mnt/a\\040pool   fuse.mergerfs defaults,x-systemd.requires=/mnt/disk1,x-systemd.requires=/mnt/disk2 0 0 # mine\n\
        broken\n\
        mergerfs#/a:/b /p fuse defaults";

    #[test]
    fn a_branch_whose_disk_is_away_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let (disk, link) = (dir.path().canonicalize().expect("a path").join("disk"), dir.path().join("link"));
        fs::create_dir(&disk).expect("a directory");
        std::os::unix::fs::symlink(&disk, &link).expect("a link");
        let lines =
            |place: &Path, options: &str| parse(&format!("LABEL=a {} ext4 {options} 0 2\n", place.display()));
        let mounted =
            mountinfo::parse(format!("30 1 8:17 / {} rw - ext4 /dev/a rw\n", disk.display()).as_bytes());
        for (place, options, mounts, expected) in [
            (&disk, "nofail", &[][..], true),
            (&disk, "noauto", &[], false),
            (&disk, "nofail", &mounted, false),
            (&link, "nofail", &mounted, false),
            (&link, "nofail", &[], true),
        ] {
            let found = away_of(&lines(place, options), mounts, &place.join("media"));
            assert_eq!(found.as_ref(), expected.then_some(place), "{} {options}", place.display());
        }
        assert_eq!(away_of(&lines(&disk, "nofail"), &[], &link), None, "another directory");
    }

    #[test]
    fn lines_are_parsed_and_kept() {
        let lines = parse(FSTAB);
        assert_eq!(lines.len(), 3);
        assert_eq!(unescape(&lines[1].mountpoint), "/mnt/a pool");
        assert_eq!((lines[1].number, lines[2].number), (3, 5));
        assert!(!lines[0].is_pool() && lines[1].is_mergerfs() && lines[2].is_mergerfs());
        let required: Vec<&str> = lines[1].options_named("x-systemd.requires").collect();
        assert_eq!(required, ["/mnt/disk1", "/mnt/disk2"]);
        assert!(lines[1].has_option("defaults") && !lines[1].has_option("nofail"));
        assert!(lines[1].render().ends_with(" 0 0 # mine"), "{}", lines[1].render());
        let changed = replace(FSTAB, &[(3, "one\ntwo".into())]);
        assert!(
            changed.starts_with("# a comment\nUUID=1 / ext4 errors=remount-ro 0 1\none\ntwo\nbroken\n"),
            "{changed}"
        );
        assert_eq!(replace(FSTAB, &[]), FSTAB);
    }

    #[test]
    fn fields_are_replaced_in_place() {
        let line = "UUID=1\t/mnt/d1   ext4  defaults  0 2 # mine ";
        for (new, expected) in [
            (&[(OPTIONS, "ro,nofail")][..], "UUID=1\t/mnt/d1   ext4  ro,nofail  0 2 # mine "),
            (&[(FSTYPE, "xfs"), (SOURCE, "/dev/x")], "/dev/x\t/mnt/d1   xfs  defaults  0 2 # mine "),
            (&[], line),
        ] {
            assert_eq!(with_fields(line, new), expected);
        }
        assert_eq!(with_fields("/a /b ext4", &[(OPTIONS, "ro")]), "/a /b ext4 ro");
    }

    #[test]
    fn fields_are_escaped_and_read_back() {
        let path = "/mnt/a b\\c,d\te";
        assert_eq!(escape(path), "/mnt/a\\040b\\134c,d\\011e");
        assert_eq!(unescape(&escape(path)), path);
        let line = Line::for_pool("/etc/canopy/a b.toml", "/mnt/m", "nofail");
        assert_eq!(line.render(), "/etc/canopy/a\\040b.toml /mnt/m canopy nofail 0 0");
        assert!(line.is_pool() && !line.is_mergerfs());
        assert_eq!(append("a", "b"), "a\nb\n");
        assert_eq!(append("a\n", "b"), "a\nb\n");
    }
}
