//! Where this program is installed.

use crate::unit::{assignments, words};
use canopy_sys::shown::Show as _;
use std::path::{Path, PathBuf};

/// Its unit, from the directory that holds `bin`.
const UNIT: &str = "lib/systemd/system/canopy@.service";

/// Returns the path of the installed program.
pub fn installed() -> String {
    let running = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/canopy"));
    named_by_unit(&running).unwrap_or_else(|| running.shown().to_string())
}

/// Returns what the unit beside a program names. It differs from where the program is if that is an image of a system, or if
/// the directory was reached through a link.
fn named_by_unit(program: &Path) -> Option<String> {
    let unit = std::fs::read_to_string(program.parent()?.parent()?.join(UNIT)).ok()?;
    let start = assignments(&unit).into_iter().find(|one| one.key == "ExecStart")?;
    let first = words(&start.value)?.into_iter().next()?.value;
    (Path::new(&first).is_absolute() && first.ends_with("/canopy")).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_unit_beside_the_program_names_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("bin/canopy");
        assert_eq!(named_by_unit(&program), None);
        let unit = dir.path().join(UNIT);
        fs::create_dir_all(unit.parent().expect("its directory")).expect("directories");
        fs::write(&unit, "[Service]\nExecStart=/opt/canopy/bin/canopy mount -f %i\n").expect("a unit");
        assert_eq!(named_by_unit(&program).as_deref(), Some("/opt/canopy/bin/canopy"));
        assert!(Path::new(&installed()).is_absolute());
    }
}
