//! The exit status of `canopy verify`.

use crate::exit;
use crate::terminal;
use canopy_upkeep::{Error, VerifyArgs};
use std::process::ExitCode;

pub fn run(args: &VerifyArgs) -> ExitCode {
    let Err(error) = canopy_upkeep::verify(args) else { return ExitCode::SUCCESS };
    terminal::eprint_line(&canopy_base::text::one_line(&error.to_string()));
    ExitCode::from(match error {
        Error::Damaged { .. } => exit::WRONG,
        _ => exit::UNREAD,
    })
}
