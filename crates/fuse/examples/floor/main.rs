//! A filesystem in memory that does as little as it can: what is left when it is measured is the cost of FUSE itself
//! and of this crate.
//!
//! `floor MOUNTPOINT [THREADS] [SECONDS-TO-CACHE]` serves until it is unmounted.

mod memory;

use std::sync::Arc;
use std::time::Duration;

use canopy_fuse::mount::{MountSpec, mount};
use canopy_fuse::{Limits, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mountpoint = args.next().ok_or("usage: floor MOUNTPOINT [THREADS] [SECONDS-TO-CACHE]")?;
    let threads = args.next().map_or(Ok(2), |text| text.parse())?;
    let cache = args.next().map_or(Ok(0.0), |text| text.parse())?;
    let mut spec = MountSpec::new(mountpoint, "floor", "canopy");
    spec.allow_other = true;
    spec.default_permissions = true;
    let (device, mounted) = mount(&spec)?;
    let session = Session::negotiate(device, &memory::wish(), Limits::NONE)?;
    println!("{}", session.agreed());
    let handler = memory::Memory::new(Duration::from_secs_f64(cache));
    session.serve(Arc::new(handler), threads)?.join()?;
    drop(mounted);
    Ok(())
}
