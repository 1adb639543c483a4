//! Method calls as arrows between files.

use crate::rig::House;

/// A type whose methods lie in two rooms, the lower of which has this text.
fn upward(lower: &str) -> Vec<String> {
    let files = [
        ("lib.rs", "mod upper;\nmod lower;\nmod base;\n"),
        (
            "upper.rs",
            "impl crate::base::Thing {\n    pub fn high(&self, _: u8) -> u8 { 0 }\n    pub fn make() {}\n}\n",
        ),
        ("lower.rs", lower),
        (
            "base.rs",
            "use std::sync::Arc;\npub struct Thing;\npub struct Holder { pub thing: Arc<Thing> }\nimpl Holder {\n    \
             pub fn thing(&self) -> Result<&Thing, u8> { Ok(&self.thing) }\n}\n",
        ),
    ];
    House::new("lib > upper > lower > base", &files).upward()
}

#[test]
fn a_call_of_a_method_depends_on_the_file_that_has_it() {
    for call in [
        "impl Thing { fn low(&self) { self.high(1); } }",
        "impl Thing { fn low(&self) { Self::make(); } }",
        "fn low() { Thing::make(); }",
        "fn low(thing: &Thing) { thing.high(1); }",
        "fn low(holder: &Holder) { holder.thing.high(1); }",
        "fn low(holder: &Holder) { let thing = holder.thing.clone(); thing.high(1); }",
        "fn low(holder: &Holder) -> Result<u8, u8> { Ok(holder.thing()?.high(1)) }",
        // Nothing says what it is, but there is one such method only.
        "fn low() { unknown!().high(1); }",
    ] {
        let found = upward(&format!("use crate::base::{{Holder, Thing}};\n{call}\n"));
        let name = if call.contains("make") { "make" } else { "high" };
        assert_eq!(found, [format!("lower.rs:2 Thing::{name} upper.rs")], "{call}");
    }
}

#[test]
fn a_call_of_another_method_of_the_name_does_not() {
    for call in [
        "struct Other; impl Other { fn high(&self, _: u8) {} fn low(&self) { self.high(1); } }",
        "fn low(other: &std::path::Path) { other.high(1); }",
        "fn low() { std::path::PathBuf::new().high(1); }",
        "fn low() { unknown!().high(1, 2); }",
        "trait High { fn high(&self); } fn low(other: &dyn High) { other.high(); }",
        "fn low(thing: u8) { { let thing = crate::base::Thing; thing; } thing.high(1); }",
    ] {
        assert!(upward(&format!("{call}\n")).is_empty(), "{call}");
    }
}

#[test]
fn methods_make_circles_of_files() {
    let files = [
        ("lib.rs", "mod a;\nmod base;\n"),
        ("base.rs", "pub struct Thing;\n"),
        ("a/mod.rs", "mod b;\nmod c;\n"),
        ("a/b/mod.rs", "impl crate::base::Thing { pub fn one(&self) { self.two(); } }\n"),
        ("a/c/mod.rs", "impl crate::base::Thing { pub fn two(&self) { self.one(); } }\n"),
    ];
    let faults = House::new("lib > a > base", &files).faults();
    assert_eq!(
        faults,
        [
            "crates/house/src/a/b/mod.rs:1: 2 files of 2 folders import each other in a circle: cut arrows between the \
             folders until it is open",
            "    crates/house/src/a/b/mod.rs:1 -> crates/house/src/a/c/mod.rs (Thing::two)",
            "    crates/house/src/a/c/mod.rs:1 -> crates/house/src/a/b/mod.rs (Thing::one)",
        ]
    );
}
