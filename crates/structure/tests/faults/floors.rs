//! The table of rooms.

use crate::rig::House;

#[test]
fn a_room_without_a_floor_is_a_fault() {
    let files =
        [("lib.rs", "mod a;\nmod b;\n"), ("a.rs", ""), ("b/mod.rs", "mod part;\n"), ("b/part.rs", "")];
    let faults = House::new("lib > a", &files).faults();
    assert_eq!(
        faults,
        [
            "crates/house/src/b/mod.rs:1: b has no floor: add it to [crate.house] in crates/structure/floors.toml"
        ]
    );
}

#[test]
fn a_floor_without_a_room_is_a_fault() {
    let faults = House::new("lib > gone", &[("lib.rs", "")]).faults();
    assert_eq!(
        faults,
        ["crates/structure/floors.toml:7: house has no file or folder gone: rename or remove the room"]
    );
}

#[test]
fn the_longest_name_is_the_room_of_a_file() {
    let files = [
        ("lib.rs", "mod a;\n"),
        ("a/mod.rs", "pub mod low;\npub mod high;\n"),
        ("a/high.rs", "pub struct A;\n"),
        ("a/low.rs", "use super::high::A;\n"),
    ];
    assert!(House::new("lib > a", &files).faults().is_empty());
    assert_eq!(House::new("lib > a > a/low", &files).upward(), ["a/low.rs:1 A a/high.rs"]);
}

#[test]
fn a_name_matches_a_whole_file_or_folder() {
    let faults = House::new("lib > nam", &[("lib.rs", "mod name;\n"), ("name.rs", "")]).faults();
    assert_eq!(faults.len(), 2, "{faults:#?}");
}

#[test]
fn a_table_with_a_mistake_is_refused() {
    let mistakes = [
        ("[crate.house]\nuse = []\n", "crate.house: unknown key use"),
        ("[crate.house]\nfloors = [\"a b\", \"a\"]\n", "crate.house: the room a has two floors"),
        ("[limits]\nfile = 800\nfunction = 120\n", "limits needs file, function and folder, all above 0"),
        ("[crates.house]\n", "unknown table [crates]"),
    ];
    for (table, message) in mistakes {
        let faults =
            House::empty().package("house", "").file("crates/house/src/lib.rs", "").table(table).faults();
        assert_eq!(faults, [format!("crates/structure/floors.toml: {message}")]);
    }
}
