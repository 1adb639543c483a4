//! Runs commands and reads their output.

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{PATIENCE, Pool};
use serde_json::Value;
use std::process::Command;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

pub(super) fn canopy<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    run_within(Command::new(BINARY).args(args), PATIENCE)
}

/// Runs a command, and returns its output for people, after checking that it fits a screen.
#[track_caller]
pub(super) fn shown<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let done = canopy(args);
    // 1: something is missing or fails.
    let code = done.status.and_then(|status| status.code());
    assert!(matches!(code, Some(0 | 1)) && done.stderr.is_empty(), "{}", done.describe());
    for line in done.stdout.lines() {
        assert!(line.chars().count() <= 80, "more than 80 columns: {line}");
        assert!(!line.contains('\x1b'), "colours without a terminal: {line:?}");
    }
    done.stdout
}

/// Returns the codes of a pool's warnings, in order.
pub(super) fn codes(pool: &Value) -> Vec<String> {
    let warnings = pool["warnings"].as_array().expect("warnings");
    warnings.iter().map(|warning| warning["code"].as_str().expect("a code").to_owned()).collect()
}

/// Returns the only warning with this code, after checking that it says how to fix it.
#[track_caller]
pub(super) fn warning(pool: &Value, code: &str) -> Value {
    let warnings = pool["warnings"].as_array().expect("warnings");
    let found: Vec<&Value> = warnings.iter().filter(|warning| warning["code"] == code).collect();
    assert_eq!(found.len(), 1, "{code} among {warnings:#?}");
    for key in ["text", "fix"] {
        assert!(found[0][key].as_str().is_some_and(|text| text.len() > 10), "{found:?}");
    }
    found[0].clone()
}

#[track_caller]
pub(super) fn explain(pool: &Pool, op: &str, path: &str) -> Value {
    let path = pool.path().join(path);
    let done = canopy(["explain".as_ref(), op.as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    serde_json::from_str(&done.stdout).expect("JSON")
}
