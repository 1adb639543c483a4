//! `canopy bench`: what a pool costs.

use crate::bench::{self, BenchArgs};
use crate::error::Error;

pub fn run(args: &BenchArgs) -> Result<(), Error> {
    Ok(bench::run(args)?)
}
