//! `canopy web`: starts the program that shows pools in the browser. It is another one, so that this one has no part of it.

use crate::error::{Error, Result};
use canopy_base::text::os_error;
use clap::Args;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "canopy-web";

/// Show pools in the browser
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct WebArgs {
    /// `token`, or the options below
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    pub arguments: Vec<OsString>,
}

const NOTES: &str = "\
It prints an address that lets one visitor in, and serves until it is stopped.
'canopy web token' prints another, with --read-only one that changes
nothing, with --health-only one that also shows neither files nor the log.
docs/web.md says what can be done there, and who else could get in.

  --listen PLACE   ADDRESS:PORT or unix:PATH [default: 127.0.0.1:7373]
  --name NAME      a name by which browsers reach it, as that of a proxy
  --group GROUP    the group that may connect to the socket
  --certificate FILE, --key FILE   with TLS: of the address, in PEM
  --without-tls    listen where others on the network can read along
  --user-header NAME   where a proxy names its user (on a socket)
  --read-only      let nobody change anything
  --no-token       print no address that lets somebody in
  --state DIR      where tokens are kept [default: /run/canopy-web]

Examples:
  canopy web
  canopy web --listen unix:/run/canopy-web/socket
  canopy web token";

/// Becomes the program, which is beside this one or in PATH.
///
/// # Errors
/// If it cannot be started.
pub fn web(args: &WebArgs) -> Result<()> {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM))).filter(|path| path.exists());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let why = Command::new(program).args(&args.arguments).exec();
    Err(match why.kind() {
        ErrorKind::NotFound => Error::NoScreen("it is not installed (apt install canopy-web)".into()),
        _ => Error::NoScreen(os_error(why)),
    })
}
