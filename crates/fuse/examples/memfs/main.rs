//! A filesystem in memory that does as little as possible, to measure the cost of FUSE and of this crate.
//!
//! `memfs MOUNTPOINT [THREADS] [SECONDS-TO-CACHE] [dev|uring]` serves until the filesystem is unmounted. With `uring`, each
//! queue has so many threads.
//! `memfs measure DIRECTORY [ROUNDS]` mounts it below a directory with each transport and compares them.

mod measure;
mod memory;

use std::sync::Arc;
use std::time::Duration;

use canopy_fuse::flags::InitFlags;
use canopy_fuse::mount::{MountSpec, mount};
use canopy_fuse::transport::uring;
use canopy_fuse::{KernelLimits, Session};

const USAGE: &str = "usage: memfs MOUNTPOINT [THREADS] [SECONDS-TO-CACHE] [dev|uring]
       memfs measure DIRECTORY [ROUNDS]";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mountpoint = args.next().ok_or(USAGE)?;
    if mountpoint == "measure" {
        let below = args.next().ok_or(USAGE)?;
        return measure::measure(
            below.as_ref(),
            args.next().map_or(Ok(9), |text| text.parse::<usize>())?.max(1),
        );
    }
    let threads = args.next().map_or(Ok(2), |text| text.parse::<u16>())?;
    let cache = args.next().map_or(Ok(0.0), |text| text.parse())?;
    let mut options = memory::options();
    if args.next().as_deref() == Some("uring") {
        uring::turn_on()?;
        options.flags |= InitFlags::OVER_IO_URING;
        options.queue_workers = threads;
    }
    let mut spec = MountSpec::new(mountpoint, "memfs", "canopy");
    spec.allow_other = true;
    spec.default_permissions = true;
    let (device, mounted) = mount(&spec)?;
    let session = Session::negotiate(device, &options, KernelLimits::NONE)?;
    let handler = memory::Memory::new(Duration::from_secs_f64(cache));
    let running = session.serve(Arc::new(handler), threads.into())?;
    println!("{}; {}", running.transport(), running.agreed());
    running.join()?;
    drop(mounted);
    Ok(())
}
