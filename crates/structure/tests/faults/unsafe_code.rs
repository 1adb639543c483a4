//! Where `unsafe` may be.

use crate::rig::House;

const FORBID: &str = "#![forbid(unsafe_code)]\n";

fn house(lib: &str) -> House {
    House::empty()
        .package("house", "")
        .package("sys", "")
        .file("crates/sys/src/lib.rs", "pub unsafe fn allowed() {}\n")
        .file("crates/house/src/lib.rs", lib)
        .table("[crate.house]\nuses = []\nfloors = [\"lib\"]\n")
        .table("[crate.sys]\nuses = []\nunsafe = true\nfloors = [\"lib\"]\n")
}

#[test]
fn comments_strings_and_lints_are_not_unsafe() {
    let text = format!(
        "{FORBID}//! unsafe\n// unsafe {{}}\nconst A: &str = \"unsafe {{}}\";\nconst R: &str = r#\"unsafe fn\"#;\n"
    );
    assert!(house(&text).faults().is_empty());
}

#[test]
fn unsafe_code_elsewhere_is_a_fault() {
    let text = "fn f() {\n    unsafe { g() }\n}\n";
    let fault = "unsafe code: only sys may have it; move it there";
    let faults = house(FORBID)
        .file("crates/house/tests/t.rs", text)
        .file("crates/house/examples/e.rs", "macro_rules! m {\n    () => { unsafe impl Send for S {} };\n}\n")
        .file("fuzz/fuzz_targets/f.rs", "#[unsafe(no_mangle)]\nfn f() {}\n")
        .faults();
    assert_eq!(
        faults,
        [
            format!("crates/house/examples/e.rs:2: {fault}"),
            format!("crates/house/tests/t.rs:2: {fault}"),
            format!("fuzz/fuzz_targets/f.rs:1: {fault}"),
        ]
    );
}

#[test]
fn a_library_and_a_program_must_forbid_it() {
    let faults = house("").file("crates/house/src/bin/b.rs", "fn main() {}\n").faults();
    let lacks = "lacks #![forbid(unsafe_code)]: add it";
    assert_eq!(
        faults,
        [
            "crates/house/src/bin/b.rs:1: bin has no floor: add it to [crate.house] in crates/structure/floors.toml"
                .to_owned(),
            format!("crates/house/src/bin/b.rs:1: {lacks}"),
            format!("crates/house/src/lib.rs:1: {lacks}"),
        ]
    );
}
