//! `canopy list`: shows the options of a running pool, for people.

use crate::control_client::ControlClient;
use crate::error::Error;
use crate::terminal;
use canopy_base::text::one_line;
use canopy_config::options::{Changes, table};
use clap::Args;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Show the options of a running pool as a table
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct ListArgs {
    /// The pool's mountpoint or name
    #[arg(value_name = "POOL")]
    pub mount: PathBuf,
}

const NOTES: &str = "\
Shows one option per line, and each branch on its own line. * marks options that
canopy set can change. Programs should use canopy get.

Example:
  canopy list media | grep cache";

pub fn run(args: &ListArgs) -> Result<(), Error> {
    let pool = ControlClient::at(&args.mount)?;
    let shown = pool.keys()?;
    let mut text = "Those marked * can be changed with canopy set.\n\n".to_owned();
    // In the order of the option table, then the keys that the table lacks.
    let known = table().iter().filter(|spec| shown.iter().any(|key| spec.name == *key));
    let known = known.map(|spec| (spec.name.as_ref(), spec.changes == Changes::Live));
    let others = shown.iter().filter(|key| !table().iter().any(|spec| spec.name == **key));
    for (key, live) in known.chain(others.map(|key| (key.as_str(), false))) {
        let value = pool.get(key)?;
        let value = one_line(&value.to_string_lossy());
        let mark = if live { '*' } else { ' ' };
        // One branch per line.
        let lines = if key == "branches" { value.split(':').collect() } else { vec![value.as_str()] };
        for (index, line) in lines.into_iter().enumerate() {
            let row = match index {
                0 => format!("{mark} {key:<28} {line}"),
                _ => format!("{:31}{line}", ""),
            };
            let _ = writeln!(text, "{}", row.trim_end());
        }
    }
    terminal::print(&text);
    Ok(())
}
