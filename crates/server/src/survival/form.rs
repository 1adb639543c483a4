//! A check that nobody changes the form of the records, or of what one program passes to the next, without noticing.

use super::ledger::{FORM, RECORDED_FORM};

/// The files that define the form, with the functions in them that write or read records. All constants count as well.
const DEFINITIONS: &[(&str, &str, &[&str])] = &[
    (
        "crates/server/src/survival/ledger.rs",
        include_str!("ledger.rs"),
        &[
            "record_session",
            "session",
            "record_serving",
            "is_served",
            "record_death",
            "last_death",
            "take_handover",
        ],
    ),
    ("crates/server/src/survival/ledger.rs", include_str!("ledger.rs"), &["record_text", "text", "texts"]),
    (
        "crates/server/src/survival/in_flight.rs",
        include_str!("in_flight.rs"),
        &["new", "at", "begin", "detail", "rename"],
    ),
    ("crates/server/src/survival/upgrade.rs", include_str!("upgrade.rs"), &["to_word", "from_word"]),
    (
        "crates/pool/src/node/handles/records.rs",
        include_str!("../../../pool/src/node/handles/records.rs"),
        &["new", "descriptors", "record", "set", "moved", "moves_to", "read", "join", "high"],
    ),
    (
        "crates/pool/src/node/table/dir_numbers.rs",
        include_str!("../../../pool/src/node/table/dir_numbers.rs"),
        &[
            "new",
            "found",
            "descriptors",
            "set",
            "set_words",
            "hash",
            "another",
            "remove",
            "record",
            "pack",
            "unpack",
        ],
    ),
    (
        "crates/pool/src/ops/names/replay_rename.rs",
        include_str!("../../../pool/src/ops/names/replay_rename.rs"),
        &["has", "add", "is_begun", "list_mark", "begin", "step", "done"],
    ),
    (
        "crates/fuse/src/negotiate.rs",
        include_str!("../../../fuse/src/negotiate.rs"),
        &["to_words", "from_words"],
    ),
    (
        "crates/canopy/src/daemon/handover.rs",
        include_str!("../../../canopy/src/daemon/handover.rs"),
        &["parse", "render"],
    ),
];

/// Returns the code of a file without comments, tests, and differences in layout.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// Returns the constants of such code.
fn constants(code: &str) -> Vec<&str> {
    let starts = code.match_indices("const ").map(|(at, _)| &code[at..]);
    let items =
        starts.filter(|text| text["const ".len()..].starts_with(|first: char| first.is_ascii_uppercase()));
    // What is stored beside the version is no part of it.
    items.filter_map(|text| text.split(';').next()).filter(|text| !text.contains("RECORDED_FORM")).collect()
}

/// Returns the definition of a function in such code.
fn function<'c>(code: &'c str, name: &str) -> Option<&'c str> {
    let start = code.find(&format!("fn {name}("))?;
    let mut depth = 0;
    let end = code[start..].char_indices().find(|(_, char)| {
        depth += match char {
            '{' => 1,
            '}' => -1,
            _ => return false,
        };
        depth == 0
    })?;
    Some(&code[start..=start + end.0])
}

/// FNV-1a.
fn hash<'t>(texts: impl IntoIterator<Item = &'t str>) -> u64 {
    let bytes = texts.into_iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn the_form_of_the_records_changes_with_its_number() {
    let mut now = 0_u64;
    for (path, text, functions) in DEFINITIONS {
        let code = code(text);
        let definition =
            |name: &&str| function(&code, name).unwrap_or_else(|| panic!("{path}: no function {name}"));
        let definitions: Vec<&str> = functions.iter().map(definition).collect();
        now = now.rotate_left(1) ^ hash(constants(&code).into_iter().chain(definitions));
    }
    assert!(
        (FORM, now) == RECORDED_FORM,
        "how records are written or read has changed. If a program with FORM {FORM} would misread them, or this one those of \
         that program, increment FORM. Then set RECORDED_FORM to (FORM, {now:#x})."
    );
}

#[test]
fn each_change_of_a_definition_is_found_and_no_other() {
    let text = "/// About it.\nconst A: usize = 1;\npub(super) const B: u64 = 1 << 3; // more\nfn set(&self) { self.0[A] = { 2 }; }\n";
    let form = |text: &str| {
        let code = code(text);
        hash(constants(&code).into_iter().chain(function(&code, "set")))
    };
    let same =
        text.replace("About it.", "Other words.").replace("; // more", ";").replace("{ self", "{\n    self");
    assert_eq!(form(text), form(&same));
    assert_eq!(
        form(text),
        form(&format!("{text}fn other() {{}}\n#[cfg(test)]\nmod tests {{ const C: u8 = 1; }}\n"))
    );
    for (from, to) in
        [("A: usize = 1", "A: usize = 2"), ("1 << 3", "1 << 4"), ("{ 2 }", "{ 3 }"), ("u64", "u32")]
    {
        assert_ne!(form(text), form(&text.replace(from, to)), "{from} -> {to}");
    }
}
