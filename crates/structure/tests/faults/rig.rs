//! A workspace in a temporary directory.

use std::fs;
use std::process::Command;
use tempfile::TempDir;

const LIMITS: &str = "[limits]\nfile = 800\nfunction = 120\nfolder = 16\n";

pub(crate) struct House {
    dir: TempDir,
    table: String,
}

/// What the tool has printed, without `structure: `.
pub(crate) struct Printed {
    pub(crate) faults: Vec<String>,
    pub(crate) summary: String,
}

impl House {
    /// Makes a workspace without crates and a table without entries.
    pub(crate) fn empty() -> Self {
        let house = Self { dir: tempfile::tempdir().unwrap(), table: String::new() };
        house.file(
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\nexclude = [\"crates/structure\"]\n",
        )
    }

    /// Makes a workspace with one crate, `house`; `floors` are its floors, separated by `>`. Paths of files are below
    /// its `src`.
    pub(crate) fn new(floors: &str, files: &[(&str, &str)]) -> Self {
        let floors: Vec<String> = floors.split('>').map(|floor| format!("{:?}", floor.trim())).collect();
        let mut house = Self::empty()
            .package("house", "")
            .table(&format!("[crate.house]\nuses = []\nfloors = [{}]\n", floors.join(", ")));
        for (path, text) in files {
            let text = match *path {
                "lib.rs" | "main.rs" => format!("#![forbid(unsafe_code)]\n{text}"),
                _ => (*text).to_owned(),
            };
            house = house.file(&format!("crates/house/src/{path}"), &text);
        }
        house
    }

    /// Adds a crate; `rest` follows the `[package]` table of its manifest.
    pub(crate) fn package(self, name: &str, rest: &str) -> Self {
        let manifest = format!("[package]\nname = {name:?}\nversion = \"0.0.0\"\nedition = \"2024\"\n{rest}");
        self.file(&format!("crates/{name}/Cargo.toml"), &manifest)
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Adds to the table; the limits are the usual ones unless `text` has others.
    pub(crate) fn table(mut self, text: &str) -> Self {
        self.table.push_str(text);
        self
    }

    /// Runs the tool and checks that its exit status agrees with what it prints.
    pub(crate) fn check(self) -> Printed {
        let limits = if self.table.contains("[limits]") { "" } else { LIMITS };
        let table = format!("{limits}{}", self.table);
        let house = self.file("crates/structure/floors.toml", &table);
        let output =
            Command::new(env!("CARGO_BIN_EXE_canopy-structure")).arg(house.dir.path()).output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        let faults: Vec<String> =
            err.lines().map(|line| line.strip_prefix("structure: ").unwrap_or(line).to_owned()).collect();
        assert_eq!(output.status.code(), Some(i32::from(!faults.is_empty())), "{out}{err}");
        Printed { faults, summary: out.trim_end().to_owned() }
    }

    /// Runs the tool and returns the faults.
    pub(crate) fn faults(self) -> Vec<String> {
        self.check().faults
    }

    /// Runs the tool and returns the imports that run up, as `FILE:LINE NAMES FILE`, with files below `src`. There must
    /// be no other fault.
    pub(crate) fn upward(self) -> Vec<String> {
        let faults = self.faults();
        let short = faults.iter().map(|fault| {
            let (place, rest) = fault.split_once(": imports ").unwrap_or_else(|| panic!("{faults:#?}"));
            let (names, rest) = rest.split_once(" from ").unwrap();
            let (file, _) = rest.split_once(", up from room ").unwrap_or_else(|| panic!("{faults:#?}"));
            format!("{place} {names} {file}").replace("crates/house/src/", "")
        });
        short.collect()
    }
}
