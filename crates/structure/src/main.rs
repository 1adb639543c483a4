//! Checks the structure of the workspace: which crate and which file may import which, where `unsafe` may be, and how
//! long files, functions, folders and crates may get. `floors.toml` beside this crate's manifest is the rule book.
//!
//! Prints one line per fault and a summary line, and exits with 1 when there is a fault. `scripts/structure.sh` runs
//! it.

#![forbid(unsafe_code)]

mod checks;
mod fault;
mod source;
mod table;
mod workspace;

use fault::Faults;
use std::path::PathBuf;
use std::process::ExitCode;
use table::{TABLE, Table};
use workspace::Workspace;

fn main() -> ExitCode {
    let start = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    match check(start) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("structure: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Checks the workspace that `start` is in and prints the result. Returns whether there is no fault.
fn check(start: PathBuf) -> Result<bool, String> {
    let workspace = Workspace::load(&start)?;
    let path = workspace.root.join(TABLE);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{TABLE}: {error}"))?;
    let table = Table::parse(&text).map_err(|error| format!("{TABLE}: {error}"))?;

    let mut faults = Faults::default();
    let counts = checks::run(&workspace, &table, &mut faults)?;
    let found = faults.print();
    let faults = match found {
        0 => "no fault".to_owned(),
        1 => "1 fault".to_owned(),
        _ => format!("{found} faults"),
    };
    println!(
        "structure: {} arrows between crates, {} between files, {} files, {faults}",
        counts.crate_arrows, counts.file_arrows, counts.files
    );
    Ok(found == 0)
}
