//! `canopy get`: values of a running pool, for scripts.

use crate::cli::GetArgs;
use crate::control_client::Live;
use crate::error::Error;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

pub fn run(args: &GetArgs) -> Result<(), Error> {
    let pool = Live::at(&args.mount)?;
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
    // Whoever reads it may have seen enough, as `head` has.
    let _ = std::io::stdout().write_all(&text);
    Ok(())
}
