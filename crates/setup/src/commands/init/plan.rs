//! What `canopy init` writes, and takes back.

use super::super::ask::confirm;
use super::{Boot, InitArgs};
use crate::at_boot;
use crate::error::Error;
use crate::machine::Filesystem;
use crate::pool_file::PoolFile;
use crate::system_file::{self, Edit, cannot};
use canopy_config::Config;
use canopy_config::fstab::{self, Line};
use canopy_config::source::file;
use canopy_config::source::named::NamedPool;
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use canopy_terminal::{BOLD, print, print_styled, styled};
use serde::Serialize;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// All that will be written.
pub(super) struct Plan {
    name: String,
    /// New files and their texts.
    files: Vec<(PathBuf, String)>,
    mountpoint: PathBuf,
    boot: Boot,
    fstab: Option<Edit>,
}

impl Plan {
    pub(super) fn new(
        args: &InitArgs,
        named: NamedPool,
        text: String,
        mountpoint: PathBuf,
        boot: Boot,
        branches: &[Filesystem],
        lines: &[Line],
    ) -> Result<Plan, Error> {
        let disks = at_boot::disks(branches, lines);
        let fstab = match boot {
            Boot::Fstab => Some(fstab_edit(args, &named, &mountpoint, &disks)?),
            _ => None,
        };
        let mut files = vec![(named.file, text)];
        if let (Boot::Unit, Some(drop_in)) = (boot, at_boot::drop_in(&named.name, &disks)) {
            files.push((drop_in_file(args, &named.name), drop_in));
        }
        let taken = files.iter().find(|(path, _)| path.exists());
        if let Some((path, _)) = taken {
            return Err(Error::Refused(format!("{} exists already (move it away)", path.shown())));
        }
        Ok(Plan { name: named.name, files, mountpoint, boot, fstab })
    }

    pub(super) fn shown(&self) -> String {
        let mut shown = format!("\n{}\n", styled(BOLD, "To be written"));
        for (path, text) in &self.files {
            let lines: String = text.lines().map(|line| format!("    {line}\n")).collect();
            shown.push_str(&format!("  {}:\n{lines}", path.shown()));
        }
        if let Some(edit) = &self.fstab {
            shown.push_str(&format!(
                "  in {} (a copy is kept beside it):\n{}",
                edit.path.shown(),
                edit.shown()
            ));
        }
        if !self.mountpoint.exists() {
            shown.push_str(&format!("  the directory {}\n", self.mountpoint.shown()));
        }
        shown
    }

    /// Returns what `--json` prints.
    pub(super) fn report<'p>(
        &'p self,
        written: bool,
        branches: &'p [Filesystem],
        pool: &'p PoolFile,
        warnings: &'p [String],
    ) -> Report<'p> {
        let file = |(path, text): &'p (PathBuf, String)| FileReport { path: path.shown().to_string(), text };
        Report {
            name: &self.name,
            written,
            branches: branches.iter().map(|branch| branch.path.shown().to_string()).collect(),
            mountpoint: self.mountpoint.shown().to_string(),
            way: pool.way.word,
            min_free: pool.min_free,
            boot: self.boot.word(),
            files: self.files.iter().map(file).collect(),
            fstab: self
                .fstab
                .as_ref()
                .map(|edit| FstabReport { path: edit.path.shown().to_string(), difference: edit.shown() }),
            warnings,
        }
    }

    /// Writes all files. Returns where the old fstab is kept, if it has changed.
    pub(super) fn write(&self) -> Result<Option<PathBuf>, Error> {
        for (path, text) in &self.files {
            let failed = |why| cannot("be written", path, &why);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
            // A file that somebody else made in the meantime is kept.
            let mut file = File::create_new(path).map_err(failed)?;
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        if !self.mountpoint.exists() {
            fs::create_dir_all(&self.mountpoint).map_err(|why| cannot("be made", &self.mountpoint, &why))?;
        }
        self.fstab.as_ref().map(Edit::apply).transpose()
    }

    pub(super) fn next_steps(&self) -> String {
        let (name, place) = (&self.name, shell_word(&self.mountpoint.shown().to_string()));
        let first = match self.boot {
            Boot::Fstab => format!("  mount {place}    # from now on also at boot\n"),
            Boot::Unit => format!("  systemctl daemon-reload\n  systemctl enable --now canopy@{name}\n"),
            Boot::Nothing => format!("  canopy mount {name}\n"),
        };
        format!("{first}  canopy status {place}\n  canopy doctor    # looks for problems\n")
    }
}

/// What `--json` prints.
#[derive(Serialize)]
pub(super) struct Report<'p> {
    name: &'p str,
    /// Whether it was written, or only planned.
    written: bool,
    branches: Vec<String>,
    mountpoint: String,
    way: &'p str,
    min_free: u64,
    boot: &'p str,
    files: Vec<FileReport<'p>>,
    fstab: Option<FstabReport>,
    warnings: &'p [String],
}

#[derive(Serialize)]
struct FileReport<'p> {
    path: String,
    text: &'p str,
}

#[derive(Serialize)]
struct FstabReport {
    path: String,
    /// The lines that go and come, behind `-` and `+`.
    difference: String,
}

/// Writes a word so that a shell reads it back.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn drop_in_file(args: &InitArgs, name: &str) -> PathBuf {
    args.unit_dir.join(format!("canopy@{name}.service.d")).join(at_boot::DROP_IN)
}

fn fstab_edit(
    args: &InitArgs,
    named: &NamedPool,
    mountpoint: &Path,
    disks: &[String],
) -> Result<Edit, Error> {
    let path = args.fstab_file.clone();
    let before = system_file::read(&path)?;
    let place = mountpoint.to_str().ok_or_else(|| Error::Refused("the mountpoint must be text".into()))?;
    let lines = at_boot::fstab_lines(&named.name, &named.file.shown().to_string(), place, disks);
    let after = fstab::append(&before, &lines);
    Ok(Edit { path, before, after })
}

/// Takes back what was written for a pool. Files on its disks stay.
pub(super) fn undo(args: &InitArgs, named: &NamedPool, asks: bool) -> Result<(), Error> {
    let (name, file) = (&named.name, &named.file);
    let mut config = Config::default();
    // Only the mountpoint is needed.
    let _ = file::load(&mut config, file.as_os_str());
    let mounted = config.mountpoint.as_ref().and_then(|place| mountinfo::at(place).ok().flatten());
    if mounted.is_some_and(|mounted| mounted.is_pool()) {
        return Err(Error::Refused(format!("the pool {name} is mounted (canopy umount {name}, then again)")));
    }
    let edit = fs::read_to_string(&args.fstab_file).ok().map(|before| {
        let after = at_boot::without_pool(&before, name, file);
        Edit { path: args.fstab_file.clone(), before, after }
    });
    let edit = edit.filter(|edit| edit.before != edit.after);
    let files = [file.clone(), drop_in_file(args, name)];
    let files: Vec<&PathBuf> = files.iter().filter(|path| path.is_file()).collect();
    if files.is_empty() && edit.is_none() {
        return Err(Error::Refused(format!(
            "there is nothing to take back: {} does not exist",
            file.shown()
        )));
    }
    let mut shown = format!("{}\n", styled(BOLD, "To be taken back"));
    files.iter().for_each(|path| shown.push_str(&format!("  the file {}\n", path.shown())));
    if let Some(edit) = &edit {
        shown.push_str(&format!("  in {}:\n{}", edit.path.shown(), edit.shown()));
    }
    print_styled(&shown);
    if asks && !confirm("Take this back? A copy of each file is kept.")? || !asks && !args.yes {
        return Err(Error::NotAgreed("taken back", "--yes does it without asking"));
    }
    let mut kept = Vec::new();
    if let Some(edit) = &edit {
        kept.push(edit.apply()?);
    }
    for path in files {
        kept.push(system_file::keep(path).map_err(|why| cannot("be kept", path, &why))?);
        fs::remove_file(path).map_err(|why| cannot("be removed", path, &why))?;
    }
    // Directories that have something else in them stay.
    let drop_in = drop_in_file(args, name);
    drop_in
        .parent()
        .into_iter()
        .chain(config.mountpoint.as_deref())
        .for_each(|dir| drop(fs::remove_dir(dir)));
    kept.iter().for_each(|path| print(&format!("kept: {}\n", path.shown())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn words_can_be_pasted() {
        for (word, expected) in [
            ("/mnt/media", "/mnt/media"),
            ("/mnt/my pool", "'/mnt/my pool'"),
            ("it's", "'it'\\''s'"),
            ("$x", "'$x'"),
        ] {
            assert_eq!(shell_word(word), expected);
        }
    }
}
