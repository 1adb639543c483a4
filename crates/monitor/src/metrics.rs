//! `canopy metrics`: the figures of pools, once or for a monitoring system that asks for them.

use crate::error::{Error, Result};
use crate::exporter::{self, ListenAt};
use crate::exposition;
use crate::observe::{Observation, Observer, Published, all_pools, mountpoint, pool_at};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Print what pools do, in the OpenMetrics format
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct MetricsArgs {
    /// A pool's mountpoint or name [default: all pools]
    #[arg(value_name = "POOL")]
    pub mount: Option<PathBuf>,
    /// Serve them over HTTP at 127.0.0.1:PORT or a socket
    #[arg(long, value_name = "PLACE")]
    pub listen: Option<ListenAt>,
}

const NOTES: &str = "\
Operations, errors and times by kind, bytes and opens by branch, space and
condition of branches, caches, workers, moves. What passthrough carries does not
come to the daemon: of it, the opens are counted, and what the disks do.
docs/metrics.md explains the metrics and has a configuration for Prometheus;
dist/grafana.json is a dashboard (both in /usr/share/doc/canopy or where it is
installed).

Examples:
  canopy metrics /pool
  canopy metrics --listen 127.0.0.1:9842";

/// Prints the metrics, or serves them.
///
/// # Errors
/// If there is no such pool, or the place to listen cannot be used.
pub fn metrics(args: &MetricsArgs, published: Published) -> Result<()> {
    match (&args.listen, &args.mount) {
        (None, Some(word)) => {
            let pool = mountpoint(word)?;
            pool_at(&pool)?.ok_or_else(|| Error::NoPool(pool.clone()))?;
            canopy_terminal::print(&exposition::text(&look_at(vec![pool], published)?));
        }
        (None, None) => {
            let pools = all_pools()?;
            if pools.is_empty() {
                return Err(Error::NoPools);
            }
            canopy_terminal::print(&exposition::text(&look_at(pools, published)?));
        }
        (Some(place), word) => {
            // A pool that is not mounted yet, or not any more, is down.
            let answer = move |word: Option<&Path>| {
                let pools = word.map_or_else(all_pools, |word| Ok(vec![mountpoint(word)?]))?;
                Ok(exposition::text(&look_at(pools, published)?))
            };
            let word = word.clone();
            exporter::serve(place, move || answer(word.as_deref()))?;
        }
    }
    Ok(())
}

/// Looks at all of these pools at the same time.
fn look_at(pools: Vec<PathBuf>, published: Published) -> Result<Vec<Observation>> {
    let look = |pool| std::thread::spawn(move || Observer::new(pool, published, Duration::ZERO).look());
    let threads: Vec<_> = pools.into_iter().map(look).collect();
    let failed = || Error::System { what: "cannot look at a pool", why: std::io::ErrorKind::Other.into() };
    threads.into_iter().map(|thread| thread.join().map_err(|_| failed())?).collect()
}
