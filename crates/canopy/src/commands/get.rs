//! `canopy get`: prints values of a running pool, for scripts.

use crate::control_client::ControlClient;
use crate::error::Error;
use crate::terminal;
use canopy_control::OsText;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Show one value of a running pool, or all as KEY=VALUE
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct GetArgs {
    /// The pool's mountpoint or name
    #[arg(value_name = "POOL")]
    pub mount: PathBuf,
    /// An option, or version, pid, srcmounts [default: all]
    pub key: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    pool: OsText,
    values: BTreeMap<String, String>,
}

const NOTES: &str = "\
With KEY, prints only the value and a newline. Without, prints a KEY=VALUE line
for each option, sorted by key. Branches are PATH=MODE[,MINFREE] joined by
colons, sizes are in bytes, times in seconds. To see on which branches a file
or directory is: getfattr -n user.mergerfs.allpaths FILE

Examples:
  canopy get /pool category.create
  canopy get /pool srcmounts | tr : '\\n'";

pub fn run(args: &GetArgs) -> Result<(), Error> {
    let pool = ControlClient::at(&args.mount)?;
    if args.json {
        let keys = args.key.clone().map_or_else(|| pool.keys(), |key| Ok(vec![key]))?;
        let mut values = BTreeMap::new();
        for key in keys {
            let value = pool.get(&key)?.to_string_lossy().into_owned();
            values.insert(key, value);
        }
        terminal::print_json(&Report { pool: OsText::from(pool.mountpoint()), values });
        return Ok(());
    }
    let mut text = Vec::new();
    match &args.key {
        Some(key) => text.extend_from_slice(pool.get(key)?.as_bytes()),
        None => {
            for key in pool.keys()? {
                text.extend_from_slice(format!("{key}=").as_bytes());
                text.extend_from_slice(pool.get(&key)?.as_bytes());
                text.push(b'\n');
            }
            text.pop();
        }
    }
    text.push(b'\n');
    terminal::print_exactly(&text);
    Ok(())
}
