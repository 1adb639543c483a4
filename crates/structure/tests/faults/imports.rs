//! Which imports are seen, and to which file they lead. In these workspaces `low` is the ground floor, so that each of its
//! imports runs up.

use crate::rig::House;

const NONE: [&str; 0] = [];

#[test]
fn a_use_leads_to_the_file_of_the_item() {
    let files = [
        ("lib.rs", "mod high;\nmod low;\n"),
        ("high.rs", "pub struct A;\npub fn b() {}\n"),
        ("low.rs", "use std::fs;\nuse crate::high::A;\nuse super::high::b;\n"),
    ];
    assert_eq!(House::new("lib > high > low", &files).upward(), ["low.rs:2 A, b high.rs"]);
    assert_eq!(House::new("lib > low > high", &files).upward(), NONE);
}

#[test]
fn groups_renames_and_modules_are_followed() {
    let files = [
        ("lib.rs", "mod high;\nmod mid;\nmod low;\n"),
        ("high.rs", "pub struct A;\n"),
        ("mid/mod.rs", "pub mod deep;\npub fn own() {}\n"),
        ("mid/deep.rs", "pub struct B;\npub struct C;\npub fn d() {}\n"),
        (
            "low.rs",
            "use crate::{\n    high::A,\n    mid::{self, deep::{self as far, B, C as Other}},\n};\n\
             fn f() {\n    mid::own();\n    far::d();\n}\n",
        ),
    ];
    assert_eq!(
        House::new("lib > high mid > low", &files).upward(),
        ["low.rs:2 A high.rs", "low.rs:3 B, C, d mid/deep.rs", "low.rs:6 own mid/mod.rs"]
    );
}

#[test]
fn a_use_of_a_module_alone_is_no_import_of_its_file() {
    let files = [("lib.rs", "mod high;\nmod low;\n"), ("high.rs", ""), ("low.rs", "use crate::high;\n")];
    assert_eq!(House::new("lib > high > low", &files).upward(), NONE);
}

#[test]
fn a_re_export_leads_to_the_file_that_defines() {
    let files = [
        ("lib.rs", "mod facade;\nmod low;\npub use facade::Other as Third;\n"),
        ("facade/mod.rs", "mod inner;\npub(crate) use self::inner::Thing as Other;\n"),
        ("facade/inner.rs", "pub struct Thing;\n"),
        ("low.rs", "use crate::Third;\n"),
    ];
    assert_eq!(House::new("lib > facade > low", &files).upward(), ["low.rs:1 Thing facade/inner.rs"]);
}

#[test]
fn a_private_import_of_a_parent_leads_to_the_file_that_defines() {
    let files = [
        ("lib.rs", "mod high;\nmod low;\n"),
        ("high.rs", "pub struct Thing;\n"),
        ("low/mod.rs", "mod part;\nuse crate::high::Thing;\nuse std::fs::File;\n"),
        ("low/part.rs", "use super::{File, Thing};\n"),
    ];
    assert_eq!(
        House::new("lib > high > low", &files).upward(),
        ["low/mod.rs:2 Thing high.rs", "low/part.rs:1 Thing high.rs"]
    );
}

#[test]
fn a_glob_takes_the_names_that_are_used() {
    let files = [
        ("lib.rs", "mod high;\nmod facade;\nmod low;\n"),
        ("high.rs", "pub struct A;\npub struct Unused;\n"),
        ("facade.rs", "pub use crate::high::*;\npub struct B;\n"),
        ("low.rs", "use crate::facade::*;\nfn f(_: A) {}\n"),
    ];
    assert_eq!(House::new("lib facade > high > low", &files).upward(), ["low.rs:1 A high.rs"]);
}

#[test]
fn a_path_through_a_glob_re_export_leads_to_the_file_that_defines() {
    let files = [
        ("lib.rs", "mod high;\nmod low;\npub use high::*;\n"),
        ("high.rs", "pub struct A;\nmacro_rules! make {\n    () => { pub struct Made; };\n}\nmake!();\n"),
        ("low.rs", "use crate::A;\nuse crate::Made;\n"),
    ];
    assert_eq!(House::new("lib > high > low", &files).upward(), ["low.rs:1 A, Made high.rs"]);
}

#[test]
fn paths_in_code_macros_and_attributes_are_imports() {
    let high = "pub struct A;\npub fn b() {}\npub fn c() -> u8 { 0 }\npub trait D {}\npub const E: u8 = 0;\npub enum F { One }\n";
    let low = "\
fn f(_: crate::high::A) {
    super::high::b();
    crate::high::F::One;
    println!(\"{}\", crate::high::c());
}
#[doc(alias(crate::high::E))]
impl crate::high::D for () {}
";
    let files = [("lib.rs", "mod high;\nmod low;\n"), ("high.rs", high), ("low.rs", low)];
    assert_eq!(House::new("lib > high > low", &files).upward(), ["low.rs:1 A, D, E, F, b, c high.rs"]);
}

#[test]
fn a_macro_imports_what_its_body_names() {
    let files = [
        ("lib.rs", "mod high;\nmod low;\n"),
        ("high.rs", "pub fn f() {}\n"),
        (
            "low.rs",
            "use crate::high;\nmacro_rules! call {\n    ($high:ident) => { $crate::high::f(); $high::g() };\n}\n",
        ),
    ];
    assert_eq!(House::new("lib > high > low", &files).upward(), ["low.rs:3 f high.rs"]);
}

#[test]
fn an_exported_macro_belongs_to_the_file_that_defines_it() {
    let files = [
        ("lib.rs", "mod high;\nmod low;\n"),
        ("high.rs", "#[macro_export]\nmacro_rules! shout {\n    () => {};\n}\n"),
        ("low.rs", "fn f() {\n    crate::shout!();\n}\n"),
    ];
    assert_eq!(House::new("lib > high > low", &files).upward(), ["low.rs:2 shout high.rs"]);
}

#[test]
fn inline_modules_are_part_of_their_file() {
    let files = [
        ("lib.rs", "mod high;\nmod low;\n"),
        ("high.rs", "pub mod inner {\n    pub struct A;\n    fn f(_: super::B) {}\n}\npub struct B;\n"),
        (
            "low.rs",
            "mod inner {\n    use super::super::high::inner::A;\n    fn f(_: super::Own) {}\n}\nstruct Own;\n",
        ),
    ];
    assert_eq!(House::new("lib > high > low", &files).upward(), ["low.rs:2 A high.rs"]);
}

#[test]
fn a_path_attribute_names_the_file() {
    let files = [
        ("lib.rs", "mod high;\nmod low;\n"),
        ("high.rs", "pub struct A;\n"),
        (
            "low.rs",
            "#[path = \"elsewhere/one.rs\"]\nmod one;\nmod inline {\n    #[path = \"two.rs\"]\n    mod two;\n}\n",
        ),
        ("elsewhere/one.rs", "use crate::high::A;\n"),
        ("low/inline/two.rs", "use crate::high::A;\n"),
    ];
    assert_eq!(
        House::new("lib > high > elsewhere low", &files).upward(),
        ["elsewhere/one.rs:1 A high.rs", "low/inline/two.rs:1 A high.rs"]
    );
}

#[test]
fn code_for_tests_has_no_arrows() {
    let low = "\
#[cfg(test)]
use crate::high::A;
struct S;
impl S {
    #[cfg(all(test, unix))]
    fn f(_: crate::high::A) {}
}
#[cfg(test)]
mod tests;
#[cfg(test)]
mod inline {
    use crate::high::A;
}
";
    let files = [
        ("lib.rs", "mod high;\nmod low;\n"),
        ("high.rs", "pub struct A;\n"),
        ("low.rs", low),
        ("low/tests.rs", "use crate::high::A;\n"),
    ];
    assert_eq!(House::new("lib > high > low", &files).upward(), NONE);
    let not_for_tests = [files[0], files[1], ("low.rs", "#[cfg(any(test, unix))]\nuse crate::high::A;\n")];
    assert_eq!(House::new("lib > high > low", &not_for_tests).upward(), ["low.rs:2 A high.rs"]);
}

#[test]
fn a_module_imports_what_it_re_exports_only_if_its_own_code_names_it() {
    let re_export = ("lib.rs", "mod high;\npub use high::A;\n");
    let used = ("lib.rs", "mod high;\npub use high::A;\npub fn f(_: A) {}\n");
    let private = ("lib.rs", "mod high;\nuse high::A;\n");
    let high = ("high.rs", "pub struct A;\n");
    assert_eq!(House::new("high > lib", &[re_export, high]).upward(), NONE);
    assert_eq!(House::new("high > lib", &[used, high]).upward(), ["lib.rs:3 A high.rs"]);
    assert_eq!(House::new("high > lib", &[private, high]).upward(), ["lib.rs:3 A high.rs"]);
}

#[test]
fn a_program_imports_from_its_library_by_name() {
    let files = [
        ("main.rs", "fn main() {\n    house::high::run();\n}\n"),
        ("lib.rs", "pub mod high;\n"),
        ("high.rs", "pub fn run() {}\n"),
    ];
    assert_eq!(House::new("lib > high > main", &files).upward(), ["main.rs:3 run high.rs"]);
}

#[test]
fn imports_in_a_ring_lead_to_what_one_of_them_defines() {
    let files = [
        ("lib.rs", "mod high;\nmod low;\n"),
        (
            "high.rs",
            "pub use crate::low::*;\npub struct A;\nmacro_rules! field {\n    () => {};\n}\npub(crate) use field;\n",
        ),
        ("low.rs", "pub use crate::high::*;\nuse crate::high::field;\nfn f(_: A) {}\n"),
    ];
    assert_eq!(House::new("lib > high > low", &files).upward(), ["low.rs:1 A, field high.rs"]);
}

#[test]
fn a_name_of_another_crate_is_no_import() {
    let files = [
        ("lib.rs", "mod log;\nmod low;\npub use std::fs::File;\n"),
        ("log.rs", "pub struct A;\n"),
        ("low.rs", "use log::A;\nuse ::log::B;\nuse crate::File;\nfn f() {\n    log::info();\n}\n"),
    ];
    assert_eq!(House::new("lib > log > low", &files).upward(), NONE);
}
