#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    canopy_web::run(std::env::args_os())
}
