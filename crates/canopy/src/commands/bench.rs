//! `canopy bench`: compares a pool with its branch.

use crate::error::Error;
use canopy_bench::BenchArgs;

pub fn run(args: &BenchArgs) -> Result<(), Error> {
    Ok(canopy_bench::run(args)?)
}
