//! When the mover of tiers waits: while clients keep the pool busy, and on battery.

use crate::pool_link::PoolLink;
use crate::stop::Stop;
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// From so many requests a second on, a pool is busy. A walk over a tree makes more, playing a film fewer.
const BUSY: u64 = 200;
/// How long requests are counted. Nothing moves meanwhile: moves make requests as well.
const COUNT: Duration = Duration::from_secs(1);
/// How long a pool that was found idle counts as such.
const REST: Duration = Duration::from_secs(10);

/// Where the kernel tells of batteries and mains.
const SUPPLIES: &str = "/sys/class/power_supply";

/// Looks now and then whether anything speaks against a move.
#[derive(Debug)]
pub(super) struct IdleGate<'p> {
    pool: &'p PoolLink,
    stop: &'p Stop,
    /// When nothing did.
    found: Cell<Option<Instant>>,
}

impl<'p> IdleGate<'p> {
    pub(super) fn new(pool: &'p PoolLink, stop: &'p Stop) -> IdleGate<'p> {
        IdleGate { pool, stop, found: Cell::new(None) }
    }

    /// Returns why nothing should move now. Looking takes a second.
    pub(super) fn disturbed(&self) -> Option<&'static str> {
        if self.found.get().is_some_and(|found| found.elapsed() < REST) {
            return None;
        }
        let (began, before) = (Instant::now(), self.answered());
        self.stop.sleep_until(began + COUNT);
        let requests = self.answered().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        if on_battery(Path::new(SUPPLIES)) {
            return Some("on battery");
        }
        if is_busy(requests, began.elapsed()) {
            return Some("the pool is busy");
        }
        self.found.set(Some(Instant::now()));
        None
    }

    /// Returns how many requests the daemon has answered.
    fn answered(&self) -> Option<u64> {
        let report = self.pool.daemon.metrics().ok()?;
        Some(report.operations.iter().map(|kind| kind.answered).sum())
    }
}

fn is_busy(requests: u64, time: Duration) -> bool {
    u128::from(requests) * 1000 > u128::from(BUSY) * time.as_millis().max(1)
}

/// Returns whether the machine runs on its battery: it has one that is being discharged, and no mains that are connected.
fn on_battery(supplies: &Path) -> bool {
    let read =
        |supply: &Path, key: &str| fs::read_to_string(supply.join(key)).unwrap_or_default().trim().to_owned();
    let Ok(entries) = fs::read_dir(supplies) else { return false };
    let (mut discharging, mut connected) = (false, false);
    for supply in entries.flatten().map(|entry| entry.path()) {
        match read(&supply, "type").as_str() {
            // Those of mice and keyboards do not supply the machine.
            "Battery" if read(&supply, "scope") != "Device" => {
                discharging |= read(&supply, "status") == "Discharging";
            }
            "Mains" | "USB" => connected |= read(&supply, "online") == "1",
            _ => {}
        }
    }
    discharging && !connected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_battery_counts_while_nothing_else_supplies_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let put = |supply: &str, key: &str, value: &str| {
            fs::create_dir_all(dir.path().join(supply)).unwrap();
            fs::write(dir.path().join(supply).join(key), format!("{value}\n")).unwrap();
        };
        assert!(!on_battery(dir.path()) && !on_battery(Path::new("/no-such-directory")));
        put("mouse", "type", "Battery");
        put("mouse", "scope", "Device");
        put("mouse", "status", "Discharging");
        assert!(!on_battery(dir.path()));
        put("BAT0", "type", "Battery");
        put("BAT0", "status", "Discharging");
        assert!(on_battery(dir.path()));
        put("AC", "type", "Mains");
        put("AC", "online", "1");
        assert!(!on_battery(dir.path()));
        put("AC", "online", "0");
        assert!(on_battery(dir.path()));
        put("BAT0", "status", "Charging");
        assert!(!on_battery(dir.path()));
    }

    #[test]
    fn a_pool_is_busy_by_its_requests_in_a_second() {
        let second = Duration::from_secs(1);
        assert!(is_busy(201, second) && !is_busy(200, second));
        assert!(!is_busy(1000, 10 * second) && !is_busy(0, Duration::ZERO));
    }
}
