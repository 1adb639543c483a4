//! The exit status of `canopy verify`.

use crate::terminal;
use canopy_upkeep::{Error, VerifyArgs};
use std::process::ExitCode;

/// Damaged files, or copies that differ, remain.
const DAMAGED: u8 = 1;
/// Not everything was read.
const TROUBLE: u8 = 2;

pub fn run(args: &VerifyArgs) -> ExitCode {
    let Err(error) = canopy_upkeep::verify(args) else { return ExitCode::SUCCESS };
    let status = match error {
        Error::Damaged { .. } => DAMAGED,
        _ => TROUBLE,
    };
    terminal::eprint_line(&canopy_base::text::one_line(&error.to_string()));
    ExitCode::from(status)
}
