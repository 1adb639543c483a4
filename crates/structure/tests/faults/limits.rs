//! Sizes.

use crate::rig::House;

/// A crate with small limits and these files below it.
fn small(files: &[(&str, &str)]) -> Vec<String> {
    let mut house = House::empty()
        .package("house", "")
        .table("[limits]\nfile = 10\nfunction = 4\nfolder = 2\n[crate.house]\nuses = []\nlines = 15\nfloors = [\"lib\"]\n");
    for (path, text) in files {
        let forbid = if *path == "src/lib.rs" { "#![forbid(unsafe_code)]\n" } else { "" };
        house = house.file(&format!("crates/house/{path}"), &format!("{forbid}{text}"));
    }
    house.faults()
}

#[test]
fn a_long_file_is_a_fault() {
    assert!(small(&[("src/lib.rs", &"\n".repeat(9))]).is_empty());
    assert_eq!(
        small(&[("src/lib.rs", &"\n".repeat(10))]),
        ["crates/house/src/lib.rs:1: the file has 11 lines, 10 is the limit: split it"]
    );
}

#[test]
fn test_modules_do_not_count_but_files_of_tests_do() {
    let with_tests =
        "fn f() {}\n\n#[cfg(test)]\npub(crate) mod tests {\n    mod inner {\n\n\n\n    }\n\n}\n\nfn g() {}\n";
    assert!(small(&[("src/lib.rs", with_tests)]).is_empty());
    let long = format!("{with_tests}{}", "\n".repeat(7));
    let faults = small(&[("examples/e.rs", &long), ("src/lib.rs", ""), ("tests/t.rs", &"\n".repeat(11))]);
    assert_eq!(
        faults,
        [
            "crates/house/examples/e.rs:1: the file has 11 lines without its test modules, 10 is the limit: split it",
            "crates/house/tests/t.rs:1: the file has 11 lines, 10 is the limit: split it",
        ]
    );
    // A function for tests is no module.
    let function = format!("#[cfg(test)]\nfn f() {{}}\n{}", "\n".repeat(9));
    assert_eq!(small(&[("examples/e.rs", &function), ("src/lib.rs", "")]).len(), 1);
}

#[test]
fn a_long_function_is_a_fault_wherever_it_stands() {
    let body = "{\n\n\n\n}";
    let text =
        format!("struct S;\nimpl S {{\n    /// About it.\n    pub async fn method(&self) -> u8 {body}\n}}\n");
    assert_eq!(
        small(&[("src/lib.rs", &text)]),
        ["crates/house/src/lib.rs:5: fn method has 5 lines, 4 is the limit: split it"]
    );
    let text = format!("macro_rules! m {{\n    () => {{ fn made() {body} }};\n}}\n");
    assert_eq!(
        small(&[("src/lib.rs", &text)]),
        ["crates/house/src/lib.rs:3: fn made has 5 lines, 4 is the limit: split it"]
    );
    let text = "type F = fn(u8);\ntrait T {\n    fn declared(&self);\n    fn short() {\n\n\n    }\n}\n";
    assert!(small(&[("src/lib.rs", text)]).is_empty());
}

#[test]
fn a_full_folder_is_a_fault() {
    let tests = [("src/lib.rs", ""), ("tests/a.rs", ""), ("tests/b.rs", ""), ("tests/rig/mod.rs", "")];
    assert!(small(&tests).is_empty());
    let [lib, a, b, _] = tests;
    assert_eq!(
        small(&[lib, a, b, ("tests/c.rs", "")]),
        ["crates/house/tests:1: the folder has 3 files, 2 is the limit: group some in a folder"]
    );
}

#[test]
fn a_long_crate_is_a_fault() {
    let nine = "\n".repeat(9);
    let faults = small(&[("src/lib.rs", "mod a;\n"), ("src/a.rs", &nine), ("tests/t.rs", &nine)]);
    assert_eq!(faults.len(), 1, "only the floor is missing: {faults:#?}");
    let faults =
        small(&[("src/lib.rs", &nine), ("src/bin/b.rs", "#![forbid(unsafe_code)]\n\n\n\n\nfn main() {}\n")]);
    assert_eq!(
        faults[0],
        "crates/house/src:1: the crate house has 16 lines of src, 15 is the limit (crates/structure/floors.toml): move a \
         part of it to a crate of its own"
    );
}
