//! `scripts/release.sh` makes a commit and a tag of what the changelog tells, or changes nothing.

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{PATIENCE, ScratchDir};
use std::fs;
use std::path::Path;
use std::process::Command;

const CHANGELOG: &str = "# Changelog\n\n## Unreleased\n\n### Upgrading\n\nNothing.\n\n### Added\n\n- `canopy fly`.\n\n## 0.1.0 (2026-01-01)\n\n- First.\n";
const NOTES: &str = "### Upgrading\n\nNothing.\n\n### Added\n\n- `canopy fly`.";
const MANIFEST: &str = "[workspace]\nmembers = [\"part\"]\nresolver = \"3\"\n\n[workspace.package]\nversion = \"0.1.0\"\n\
                        edition = \"2024\"\nrust-version = \"1.88\"\n";
const PART: &str = "[package]\nname = \"part\"\nversion.workspace = true\nedition.workspace = true\n";

fn run(tree: &ScratchDir, words: &[&str]) -> Finished {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(tree.dir());
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "test").env(format!("GIT_{role}_EMAIL"), "test@localhost");
    }
    run_within(&mut command, PATIENCE)
}

#[track_caller]
fn output(tree: &ScratchDir, words: &[&str]) -> String {
    let done = run(tree, words);
    assert!(done.success(), "{words:?}: {}", done.describe());
    done.stdout
}

#[track_caller]
fn refused(tree: &ScratchDir, version: &str, why: &str) {
    let before = output(tree, &["git", "log", "--oneline", "--all"]);
    let done = run(tree, &["scripts/release.sh", version]);
    assert!(!done.success() && done.stderr.contains(why), "{version}: {}", done.describe());
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
    assert_eq!(output(tree, &["git", "log", "--oneline", "--all"]), before);
}

/// Makes a small tree with the script, in a repository of its own.
fn tree() -> ScratchDir {
    let tree = ScratchDir::new("canopy-release-", &["scripts", "docs", "part", "part/src"]);
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    for name in ["release.sh", "rust.sh"] {
        fs::copy(scripts.join(name), tree.path("scripts").join(name)).unwrap();
    }
    for (path, text) in [
        ("Cargo.toml", MANIFEST),
        ("part/Cargo.toml", PART),
        ("part/src/lib.rs", ""),
        ("CHANGELOG.md", CHANGELOG),
        ("docs/containers.md", "podman load -i canopy-0.1.0-image.tar\n"),
    ] {
        fs::write(tree.path(path), text).unwrap();
    }
    output(&tree, &["cargo", "generate-lockfile", "--offline"]);
    for words in [
        &["git", "init", "-q", "-b", "main"][..],
        &["git", "add", "-A"],
        &["git", "commit", "-q", "-m", "first"],
    ] {
        output(&tree, words);
    }
    tree
}

#[test]
fn a_release_is_a_commit_and_a_tag() {
    let tree = tree();
    assert_eq!(output(&tree, &["scripts/release.sh", "--text"]), format!("{NOTES}\n"));
    let done = output(&tree, &["scripts/release.sh", "0.2.0"]);
    assert!(done.contains("git push origin HEAD v0.2.0"), "{done}");
    assert_eq!(output(&tree, &["git", "status", "--porcelain"]), "");
    assert_eq!(
        output(&tree, &["git", "log", "-1", "--format=%s %D"]),
        "Version 0.2.0 HEAD -> main, tag: v0.2.0\n"
    );
    let tag = output(&tree, &["git", "tag", "-l", "--format=%(contents)", "v0.2.0"]);
    assert_eq!(tag.trim_end(), format!("Canopy 0.2.0\n\n{NOTES}"));
    let read = |path: &str| fs::read_to_string(tree.path(path)).unwrap();
    assert!(read("Cargo.toml").contains("version = \"0.2.0\"") && read("Cargo.lock").contains("\"0.2.0\""));
    assert!(read("docs/containers.md").contains("canopy-0.2.0-image"));
    let (before, after) =
        read("CHANGELOG.md").split_once("## 0.2.0 (").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert!(before.ends_with("## Unreleased\n\n") && after.contains("canopy fly"), "{before}");
    refused(&tree, "0.3.0", "there is nothing to release");
}

#[test]
fn what_cannot_be_released_stays_as_it_is() {
    let tree = tree();
    refused(&tree, "1", "is no version");
    refused(&tree, "0.0.9", "older than 0.1.0");
    output(&tree, &["git", "tag", "v0.4.0"]);
    refused(&tree, "0.4.0", "the tag v0.4.0 exists");
    fs::write(tree.path("CHANGELOG.md"), CHANGELOG.replace("### Upgrading", "### Other")).unwrap();
    output(&tree, &["git", "commit", "-q", "-a", "-m", "no word about upgrades"]);
    refused(&tree, "0.5.0", "under '### Upgrading'");
    fs::write(tree.path("CHANGELOG.md"), "unsaved").unwrap();
    refused(&tree, "0.5.0", "not committed");
}
