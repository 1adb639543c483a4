//! The exit statuses: one table for all commands, and for the manual.

use crate::error::Error;
use std::process::ExitCode;

/// Done, and nothing is wrong.
pub const DONE: u8 = 0;
/// Something is wrong, or not all could be done.
pub const WRONG: u8 = 1;
/// The command line is wrong. Nothing was done.
pub const USAGE: u8 = 2;
/// A plan was shown, and nobody said yes. Nothing was changed.
pub const NOT_AGREED: u8 = 3;
/// Not everything was read.
pub const UNREAD: u8 = 4;
/// A mistake in the command line, for fsck(8).
pub const FSCK_USAGE: u8 = 16;

/// Returns the status of a command that ends with this error.
pub fn of(error: &Error) -> ExitCode {
    ExitCode::from(match error {
        Error::NotAsked
        | Error::WouldRemove { .. }
        | Error::Upkeep(canopy_upkeep::Error::NotAgreed)
        | Error::Setup(canopy_setup::Error::NotAgreed(..)) => NOT_AGREED,
        Error::NoPathToExplain(_) => USAGE,
        _ => WRONG,
    })
}
