//! Dependencies between crates.

use crate::rig::House;

const FORBID: &str = "#![forbid(unsafe_code)]\n";

/// Two crates of which `upper` depends on `lower` as the manifest says.
fn two(upper: &str, table: &str) -> House {
    House::empty()
        .package("upper", upper)
        .package("lower", "")
        .file("crates/upper/src/lib.rs", FORBID)
        .file("crates/lower/src/lib.rs", FORBID)
        .table("[crate.lower]\nuses = []\nfloors = [\"lib\"]\n")
        .table(table)
}

#[test]
fn an_allowed_dependency_is_counted() {
    let depends = "[dependencies]\nlower = { path = \"../lower\" }\n";
    let printed = two(depends, "[crate.upper]\nuses = [\"lower\"]\nfloors = [\"lib\"]\n").check();
    assert!(printed.faults.is_empty(), "{:#?}", printed.faults);
    assert_eq!(printed.summary, "structure: 1 arrows between crates, 0 between files, 2 files, no fault");
}

#[test]
fn another_dependency_is_a_fault() {
    let depends = "[dependencies]\nlower = { path = \"../lower\" }\n";
    let printed = two(depends, "[crate.upper]\nuses = []\nfloors = [\"lib\"]\n").check();
    assert_eq!(
        printed.faults,
        ["crates/upper/Cargo.toml:6: upper may not depend on lower: move what it needs down, or its user up"]
    );
    assert_eq!(printed.summary, "structure: 1 arrows between crates, 0 between files, 2 files, 1 fault");
}

#[test]
fn a_dependency_for_tests_is_allowed_to_tests() {
    let table = "[crate.upper]\nuses = []\ntests-use = [\"lower\"]\nfloors = [\"lib\"]\n";
    let dev = "[dev-dependencies]\nlower = { path = \"../lower\" }\n";
    assert!(two(dev, table).faults().is_empty());
    let normal = "[dependencies]\nlower = { path = \"../lower\" }\n";
    assert_eq!(
        two(normal, table).faults(),
        [
            "crates/upper/Cargo.toml:6: only the tests of upper may depend on lower: move it to [dev-dependencies]"
        ]
    );
}

#[test]
fn crates_and_entries_of_the_table_belong_together() {
    let faults = two("", "[crate.other]\nuses = []\nfloors = []\n").faults();
    assert_eq!(
        faults,
        [
            "crates/structure/floors.toml:8: no crate of the workspace is called other: remove its entry",
            "crates/upper/Cargo.toml:1: upper has no entry: add [crate.upper] to crates/structure/floors.toml",
        ]
    );
}
