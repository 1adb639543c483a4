//! Circles of files and of rooms.

use crate::rig::House;

#[test]
fn a_circle_between_folders_is_a_fault_and_shows_what_ties_it() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a/mod.rs", "pub mod one;\npub struct A(one::One);\n"),
        ("a/one.rs", "use crate::b::two::Two;\npub struct One(Box<super::A>);\n"),
        ("b/mod.rs", "pub mod two;\n"),
        ("b/two.rs", "pub struct Two;\npub struct More;\nfn f(_: crate::a::one::One) {}\n"),
    ];
    let faults = House::new("lib > a > b", &files).faults();
    assert_eq!(
        faults,
        [
            "crates/house/src/a/one.rs:1: 3 files of 2 folders import each other in a circle: cut arrows between the \
             folders until it is open",
            "    crates/house/src/a/one.rs:1 -> crates/house/src/b/two.rs (Two)",
            "    crates/house/src/b/two.rs:3 -> crates/house/src/a/one.rs (One)",
            "crates/house/src/b/two.rs:3: imports One from crates/house/src/a/one.rs, up from room b to a: move what both \
             need down, or the importer up",
        ]
    );
}

#[test]
fn a_circle_through_a_third_folder_is_found() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a/mod.rs", "pub struct A(crate::b::B);\n"),
        ("b/mod.rs", "pub struct B(crate::c::C);\n"),
        ("c/mod.rs", "pub struct C(Box<crate::a::A>);\n"),
    ];
    let faults = House::new("lib > a > b > c", &files).faults();
    assert!(faults[0].contains("3 files of 3 folders import each other in a circle"), "{faults:#?}");
}

#[test]
fn a_circle_within_a_folder_is_allowed() {
    let files = [
        ("lib.rs", "mod a;\n"),
        ("a.rs", "mod one;\nmod two;\npub struct A(one::One);\n"),
        ("a/one.rs", "pub struct One(Box<super::A>, Box<super::two::Two>);\n"),
        ("a/two.rs", "pub struct Two(Box<super::one::One>);\n"),
    ];
    let faults = House::new("lib > a", &files).faults();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn rooms_on_one_floor_may_import_each_other_in_one_direction() {
    let lib = ("lib.rs", "mod a;\nmod b;\n");
    let a = ("a.rs", "pub struct A(Box<crate::b::B>);\n");
    let faults = House::new("lib > a b", &[lib, a, ("b.rs", "pub struct B;\n")]).faults();
    assert!(faults.is_empty(), "{faults:#?}");

    let faults = House::new("lib > a b", &[lib, a, ("b.rs", "pub struct B(crate::a::A);\n")]).faults();
    assert_eq!(
        faults,
        [
            "crates/structure/floors.toml:7: a, b stand on one floor and import each other in a circle: cut the arrows of \
             one direction",
            "    crates/house/src/a.rs:1 -> crates/house/src/b.rs (B)",
            "    crates/house/src/b.rs:1 -> crates/house/src/a.rs (A)",
        ]
    );
}

#[test]
fn rooms_on_one_floor_may_not_form_a_circle_of_several_files() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a/mod.rs", "pub mod x;\npub mod y;\n"),
        ("a/x.rs", "use crate::b::x::X;\n"),
        ("a/y.rs", "pub struct Y;\n"),
        ("b/mod.rs", "pub mod x;\npub mod y;\n"),
        ("b/x.rs", "pub struct X;\n"),
        ("b/y.rs", "use crate::a::y::Y;\n"),
    ];
    let faults = House::new("lib > a b", &files).faults();
    assert_eq!(faults.len(), 3, "{faults:#?}");
    assert!(faults[0].contains("a, b stand on one floor"), "{faults:#?}");
}
