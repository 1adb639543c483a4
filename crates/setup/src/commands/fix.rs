//! What `canopy doctor --fix` does, one finding after the other.

use super::ask::confirm;
use crate::doctor::{Action, FIXABLE, Finding};
use crate::error::Error;
use crate::system_file::{self, Edit};
use canopy_base::text::os_error;
use canopy_config::fstab;
use canopy_sys::shown::Show as _;
use canopy_terminal::{eprint_line, paragraph, print};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Does what findings advise, as far as a program can, in an order in which one does not undo another: what these codes name, or
/// everything, each after a question unless `yes`. Returns how much was done.
///
/// # Errors
/// If nobody can be asked.
pub fn fix(found: &[Finding], codes: &[String], fstab_file: &Path, yes: bool) -> Result<usize, Error> {
    let is_named = |finding: &&Finding| codes.is_empty() || codes.contains(&finding.code);
    let asks = !yes && codes.is_empty();
    let can_ask = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut in_order: Vec<&Finding> = found.iter().filter(is_named).collect();
    in_order.sort_by_key(|finding| FIXABLE.iter().position(|code| *code == finding.code));
    let (mut done, mut only_shown) = (0, 0);
    for finding in in_order {
        let fixed = match show(finding, fstab_file) {
            Ok(None) => continue,
            Ok(Some(_)) if asks && !can_ask => {
                only_shown += 1;
                Ok(false)
            }
            Ok(Some(_)) if asks && !confirm("Do this?")? => Ok(false),
            Ok(Some(fix)) => fix.apply().map(|()| true),
            Err(error) => Err(error),
        };
        match fixed {
            Ok(fixed) => done += usize::from(fixed),
            // The next one does not depend on it.
            Err(error) => eprint_line(&format!("canopy: {error}")),
        }
        print("\n");
    }
    match only_shown {
        0 => Ok(done),
        _ => Err(Error::NotAgreed(
            "changed",
            "--fix asks at a terminal; --fix --yes does all of this, --fix=CODE only what has that code",
        )),
    }
}

/// What a finding advises, shown and ready to be done.
struct Fix<'f> {
    action: &'f Action,
    /// Of fstab, if that is what changes.
    edit: Option<Edit>,
}

/// Shows what a finding advises; `None` if a program cannot do it.
fn show<'f>(finding: &'f Finding, fstab_file: &Path) -> Result<Option<Fix<'f>>, Error> {
    let Some(action) = &finding.action else { return Ok(None) };
    print(&paragraph(&format!("{}: ", finding.code), &finding.text));
    let edit = match action {
        Action::Run(commands) => {
            commands.iter().for_each(|words| print(&format!("    {}\n", words.join(" "))));
            None
        }
        Action::AddOption { line, mountpoint, option } => {
            let edit = with_option(fstab_file, *line, mountpoint, option)?;
            print(&format!("  in {} (a copy is kept beside it):\n{}", edit.path.shown(), edit.shown()));
            Some(edit)
        }
    };
    Ok(Some(Fix { action, edit }))
}

impl Fix<'_> {
    /// Does it.
    fn apply(self) -> Result<(), Error> {
        match (self.action, self.edit) {
            (_, Some(edit)) => edit.apply().map(drop),
            (Action::Run(commands), None) => commands.iter().try_for_each(|words| run(words)),
            (Action::AddOption { .. }, None) => Ok(()),
        }
    }
}

/// Returns the change of fstab. The file is read now, because other lines may have been changed before.
fn with_option(file: &Path, line: usize, mountpoint: &str, option: &str) -> Result<Edit, Error> {
    let before = system_file::read(file)?;
    let found =
        fstab::parse(&before).into_iter().find(|one| one.number == line && one.mountpoint == mountpoint);
    let Some(found) = found else {
        return Err(Error::Refused(format!(
            "{} was changed meanwhile (run the command again)",
            file.shown()
        )));
    };
    let options = match found.options.as_str() {
        "defaults" => option.to_owned(),
        others => format!("{others},{option}"),
    };
    let raw = before.lines().nth(line - 1).unwrap_or_default();
    let after = fstab::replace(&before, &[(line, fstab::with_fields(raw, &[(fstab::OPTIONS, &options)]))]);
    Ok(Edit { path: file.to_owned(), before, after })
}

fn run(words: &[String]) -> Result<(), Error> {
    let shown = words.join(" ");
    let Some((first, rest)) = words.split_first() else { return Ok(()) };
    let program = match first.as_str() {
        "canopy" => std::env::current_exe().unwrap_or_else(|_| PathBuf::from(first)),
        _ => PathBuf::from(first),
    };
    let status = Command::new(program).args(rest).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Refused(format!("{shown}: {status}"))),
        Err(why) => Err(Error::Refused(format!("{shown} cannot be run: {}", os_error(&why)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_added_to_their_line_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("fstab");
        let text = "# mine\nUUID=1  /mnt/d1  ext4 defaults 0 2 # one\n/mnt/d1\t/mnt/m canopy ro 0 0";
        std::fs::write(&file, text).expect("a file");
        for (line, mountpoint, option) in
            [(2, "/mnt/d1", "nofail"), (3, "/mnt/m", "nofail"), (3, "/mnt/m", "x-systemd.after=/mnt/d1")]
        {
            with_option(&file, line, mountpoint, option).expect("a change").apply().expect("a copy");
        }
        let now = std::fs::read_to_string(&file).expect("the file");
        assert_eq!(
            now,
            "# mine\nUUID=1  /mnt/d1  ext4 nofail 0 2 # one\n/mnt/d1\t/mnt/m canopy ro,nofail,x-systemd.after=/mnt/d1 0 0\n"
        );
        assert!(with_option(&file, 2, "/mnt/other", "nofail").is_err());
    }
}
