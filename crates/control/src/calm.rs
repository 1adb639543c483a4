//! Whether a pool is left alone: what waits for that asks here, so that all mean the same by it.

use crate::daemon::Daemon;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// From so many requests a second on, a pool is busy. A walk over a tree makes more, playing a film fewer.
const BUSY: u64 = 200;

/// Where the kernel tells of batteries and mains.
const SUPPLIES: &str = "/sys/class/power_supply";

/// Returns how many requests the daemon has answered; `None` if it does not say.
#[must_use]
pub fn answered(daemon: &Daemon) -> Option<u64> {
    let report = daemon.metrics().ok()?;
    Some(report.operations.iter().map(|kind| kind.answered).sum())
}

/// Returns what speaks against work that can wait, if a pool has answered so many requests in this time.
#[must_use]
pub fn disturbance(requests: u64, time: Duration) -> Option<&'static str> {
    if on_battery(Path::new(SUPPLIES)) {
        Some("on battery")
    } else if is_busy(requests, time) {
        Some("the pool is busy")
    } else {
        None
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
