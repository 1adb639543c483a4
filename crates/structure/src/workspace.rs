//! The workspace as cargo and the disk show it.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages of a workspace and its Rust files.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) packages: Vec<Package>,
    /// Every Rust file of the crates and of the fuzz targets, ordered by path.
    pub(crate) files: Vec<TextFile>,
}

/// A package of the workspace.
pub(crate) struct Package {
    pub(crate) name: String,
    /// The directory of its manifest, from the root of the workspace.
    pub(crate) dir: String,
    pub(crate) dependencies: Vec<Dependency>,
    /// Its libraries and programs; tests, examples and benches are left out.
    pub(crate) targets: Vec<Target>,
}

/// A dependency of a package on another.
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Whether only tests, examples and benches have it.
    pub(crate) for_tests: bool,
}

/// A library or program.
pub(crate) struct Target {
    /// The name under which other crates know it.
    pub(crate) name: String,
    pub(crate) is_library: bool,
    /// Its first file, from the root of the workspace.
    pub(crate) file: String,
}

/// A Rust file.
pub(crate) struct TextFile {
    /// From the root of the workspace.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Workspace {
    /// Loads the workspace that `start` is in.
    pub(crate) fn load(start: &Path) -> Result<Self, String> {
        let metadata = metadata(start)?;
        let root = PathBuf::from(text(&metadata["workspace_root"])?);
        let mut packages = Vec::new();
        for package in array(&metadata["packages"])? {
            packages.push(parse_package(&root, package)?);
        }
        let mut paths = Vec::new();
        for dir in ["crates", "fuzz"] {
            if root.join(dir).is_dir() {
                find_rust_files(&root.join(dir), &mut paths)?;
            }
        }
        paths.sort();
        let read = |path: PathBuf| {
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(TextFile { path: below(&root, &path), text })
        };
        let files = paths.into_iter().map(read).collect::<Result<_, String>>()?;
        Ok(Self { root, packages, files })
    }

    /// Returns the text of a file that [`Workspace::load`] found.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        let index = self.files.binary_search_by(|file| Path::new(&file.path).cmp(Path::new(path))).ok()?;
        Some(&self.files[index].text)
    }
}

/// Asks cargo, first without the network.
fn metadata(dir: &Path) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ask = |offline: &[&str]| {
        Command::new(&cargo)
            .args(["metadata", "--format-version=1", "--no-deps"])
            .args(offline)
            .current_dir(dir)
            .output()
            .map_err(|error| format!("cargo does not run: {error}"))
    };
    let mut answer = ask(&["--offline"])?;
    if !answer.status.success() {
        answer = ask(&[])?;
    }
    if !answer.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&answer.stderr).trim()));
    }
    serde_json::from_slice(&answer.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn parse_package(root: &Path, package: &Value) -> Result<Package, String> {
    let manifest = PathBuf::from(text(&package["manifest_path"])?);
    let mut dependencies = Vec::new();
    for dependency in array(&package["dependencies"])? {
        let for_tests = dependency["kind"].as_str() == Some("dev");
        dependencies.push(Dependency { name: text(&dependency["name"])?, for_tests });
    }
    let mut targets = Vec::new();
    for target in array(&package["targets"])? {
        let has = |kind: &[&str]| {
            let kinds = target["kind"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|it| it.as_str().is_some_and(|it| kind.contains(&it))))
        };
        let is_library = has(&["lib", "rlib", "dylib", "cdylib", "staticlib", "proc-macro"]);
        if is_library || has(&["bin"]) {
            let file = below(root, Path::new(&text(&target["src_path"])?));
            targets.push(Target { name: text(&target["name"])?.replace('-', "_"), is_library, file });
        }
    }
    let dir = below(root, manifest.parent().unwrap_or(root));
    Ok(Package { name: text(&package["name"])?, dir, dependencies, targets })
}

fn find_rust_files(dir: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_dir() {
            if entry.file_name() != "target" {
                find_rust_files(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns a path as seen from the root.
fn below(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

fn text(value: &Value) -> Result<String, String> {
    Ok(value.as_str().ok_or("cargo metadata lacks a string that it should have")?.to_owned())
}

fn array(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| "cargo metadata lacks a list that it should have".to_owned())
}
