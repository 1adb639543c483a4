#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    canopy::run(std::env::args_os())
}
