//! A table of all options: when each can change, and what the tests observe of its effect on real mounts.

use super::{mount_time_options, policies, runtime_options};
use canopy_config::options::{self, Changes, Spec};
use canopy_testkit::require_root;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;

/// Returns the options that have a test, and what the test observes. The rows contain the test functions, so a row cannot
/// name a test that does not exist.
fn observed(changes: Changes) -> BTreeMap<&'static str, &'static str> {
    let rows: Vec<(&[&str], &str)> = match changes {
        Changes::Live => {
            let live = runtime_options::ROWS.iter().map(|(names, observed, _)| (*names, *observed));
            live.chain([(policies::NAMES, policies::OBSERVED)]).collect()
        }
        Changes::AtMount => {
            mount_time_options::ROWS.iter().map(|(names, observed, _)| (*names, *observed)).collect()
        }
    };
    let pairs: Vec<_> =
        rows.iter().flat_map(|(names, observed)| names.iter().map(|name| (*name, *observed))).collect();
    let count = pairs.len();
    let observed: BTreeMap<_, _> = pairs.into_iter().collect();
    assert_eq!(observed.len(), count, "an option has two rows");
    observed
}

#[test]
fn every_option_has_a_test_that_shows_its_effect() {
    require_root();
    let (live, fixed) = (observed(Changes::Live), observed(Changes::AtMount));
    let of = |changes: Changes| -> BTreeSet<&str> {
        let has_effect = |spec: &&Spec| spec.changes == changes && !spec.is_ignored();
        options::table().iter().filter(has_effect).map(|spec| spec.name.as_ref()).collect()
    };
    for (changes, rows) in [(Changes::Live, &live), (Changes::AtMount, &fixed)] {
        let rows: BTreeSet<&str> = rows.keys().copied().collect();
        let without: Vec<_> = of(changes).difference(&rows).copied().collect();
        let unknown: Vec<_> = rows.difference(&of(changes)).copied().collect();
        assert!(without.is_empty(), "{changes:?}: options without a test: {without:?}");
        assert!(unknown.is_empty(), "{changes:?}: tests without an option: {unknown:?}");
    }
    let mut table = format!("\n{:<30} {:<13} what is observed\n", "option", "changed");
    for spec in options::table() {
        let name = spec.name.as_ref();
        let (how, what) = match (live.get(name), fixed.get(name)) {
            (Some(what), _) => ("live", *what),
            (_, Some(what)) => ("at the mount", *what),
            _ => ("-", "accepted without effect, for older setups"),
        };
        let _ = writeln!(table, "{name:<30} {how:<13} {what}");
    }
    // Bypasses the test harness, which shows the output of failed tests only.
    let _ = std::io::stdout().write_all(table.as_bytes());
}

#[test]
fn every_fixed_option_takes_effect_at_the_mount() {
    require_root();
    for (names, _, test) in mount_time_options::ROWS {
        println!("{}", names.join(", "));
        test();
    }
}

/// Obsolete options are accepted with any value, and have no effect.
#[test]
fn options_without_effect_are_accepted() {
    let ignored = options::table().iter().filter(|spec| spec.is_ignored());
    let words: Vec<String> = ignored.map(|spec| format!("{},{0}=x", spec.name)).collect();
    let dirs = super::rig::Dirs::new();
    let pool = dirs.pool(&words.join(","));
    assert!(!pool.log().contains("WARN"), "{}", pool.log());
    pool.umount();
}

/// The default that `canopy options` and the manual show is the value of a pool that was mounted without options.
#[test]
fn documented_defaults_are_those_of_a_pool() {
    let scratch = canopy_testkit::ScratchDir::new("canopy-defaults-", &["a", "b"]);
    let builder = canopy_testkit::Pool::builder(env!("CARGO_BIN_EXE_canopy"));
    let pool = builder.branches([scratch.path("a"), scratch.path("b")]).mount();
    // What describes the pool itself, and what depends on the machine.
    let own = ["branches", "mountpoint", "fsname", "config", "threads", "read-thread-count"];
    let mut compared = 0;
    for option in canopy::commands::options::entries() {
        let spec = options::find(&option.name).expect("an option");
        let Some(default) = option.default.filter(|_| spec.key && !option.ignored) else { continue };
        if own.contains(&option.name.as_str()) {
            continue;
        }
        assert_eq!(pool.get(&option.name), default, "{}", option.name);
        compared += 1;
    }
    assert!(compared > 50, "{compared}");
    pool.umount();
}
