//! `canopy set`: changes an option of a running pool.

use crate::cli::SetArgs;
use crate::error::Error;
use crate::live::Live;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub fn run(args: &SetArgs) -> Result<(), Error> {
    let pool = Live::at(&args.mount)?;
    let pair = args.pair.as_bytes();
    let equals = pair.iter().position(|&byte| byte == b'=');
    let (key, value) = pair.split_at(equals.unwrap_or(pair.len()));
    let key = String::from_utf8_lossy(key.trim_ascii()).into_owned();
    if equals.is_none() && !key.starts_with("cmd.") {
        return Err(Error::NoValue { key, path: args.mount.clone() });
    }
    pool.set(&key, OsStr::from_bytes(value.get(1..).unwrap_or_default().trim_ascii()))
}
