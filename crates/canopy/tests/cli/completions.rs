//! Completions, as the shells ask for them.

use super::rig::{PATIENCE, bed, foreground};
use canopy_testkit::CliBed;
use canopy_testkit::cmd::{run_within, wait_within};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns what bash offers for the last of some words, which are split as bash does it.
#[track_caller]
fn offered(bed: &CliBed, words: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/completions/canopy.bash");
    let run = ". \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _canopy canopy \"\" \"\"; \
               for word in \"${COMPREPLY[@]}\"; do echo \"$word\"; done";
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", run]).arg(script).arg(env!("CARGO_BIN_EXE_canopy")).args(words);
    command.current_dir(bed.dir()).env("CANOPY_CONFIG_DIR", bed.path("etc"));
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success() && done.stderr.is_empty(), "{words:?}: {}", done.describe());
    done.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_what_the_program_knows() {
    let bed = bed();
    fs::create_dir(bed.path("etc")).unwrap();
    fs::write(bed.path("etc/films.toml"), "").unwrap();
    fs::create_dir(bed.path("with blank")).unwrap();
    let mut daemon = foreground(&bed, "-o minfreespace=0 @a=RW:@b=NC @p");
    let [a, b, p] = ["a", "b", "p"].map(|name| bed.path(name).to_str().unwrap().to_owned());
    let has = |words: &[&str], word: &str| {
        let found = offered(&bed, words);
        assert!(found.iter().any(|one| one == word), "{words:?}: no {word} in {found:?}");
    };
    assert_eq!(offered(&bed, &["stat"]), ["status"]);
    assert_eq!(offered(&bed, &["help", "umo"]), ["umount"]);
    assert_eq!(offered(&bed, &["drain", "--dry"]), ["--dry-run"]);
    has(&["status", ""], &p);
    has(&["status", ""], "films");
    assert_eq!(offered(&bed, &["drain", &p, ""]), [a.as_str(), &b]);
    assert_eq!(offered(&bed, &["move", &p, "x", "--to", "=", &a[..a.len() - 1]]), [a.as_str(), &b]);
    assert_eq!(offered(&bed, &["mode", &p, &b, "R"]), ["RW", "RO"]);
    assert_eq!(offered(&bed, &["init", "--way", "f"]), ["fill"]);
    assert_eq!(offered(&bed, &["set", &p, "category.cr"]), ["category.create="]);
    // bash takes the equals sign for a word of its own.
    assert_eq!(offered(&bed, &["set", &p, "category.create", "=", "pf"]), ["pfrd"]);
    has(&["set", &p, "category.create", "="], "mfs");
    assert_eq!(offered(&bed, &["mount", "-o", "ro,cache.files", "=", "par"]), ["partial"]);
    has(&["add", &p, "with"], "with blank");
    assert!(offered(&bed, &["dedup", &p, "--keep", "old"]) == ["oldest"]);
    // A pool that does not exist, a command that does not.
    assert!(offered(&bed, &["drain", "/no/such", ""]).is_empty() && offered(&bed, &["frob", ""]).is_empty());
    assert!(bed.run("umount @p").success());
    assert!(wait_within(&mut daemon, PATIENCE).is_some_and(|status| status.success()));
}

/// What the other shells offer, each line a word and perhaps its meaning.
#[test]
fn zsh_and_fish_complete_the_same() {
    let bed = bed();
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/completions");
    let bin = Path::new(env!("CARGO_BIN_EXE_canopy")).parent().expect("a directory").display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    // What zsh's own functions get.
    let zsh = "_describe() { print -l -- \"${(@P)2}\" }; _files() { print -- FILES }; compdef() { }; \
               source \"$1\"; shift; words=(\"$@\"); CURRENT=$#; _canopy";
    let fish = "source $argv[1]; complete -C \"$argv[2..-1]\"";
    for (words, expected) in [
        ("canopy stat", "status"),
        ("canopy init --way fi", "fill"),
        ("canopy drain --dry", "--dry-run"),
        ("canopy fsck --keep larg", "largest"),
        ("canopy mount -o category.cr", "category.create="),
        ("canopy help umo", "umount"),
    ] {
        for (shell, script, file) in [("zsh", zsh, "_canopy"), ("fish", fish, "canopy.fish")] {
            let mut command = Command::new(shell);
            command.args(if shell == "zsh" { &["-f", "-c"][..] } else { &["--no-config", "-c"] }).arg(script);
            command.args((shell == "zsh").then_some("zsh")).arg(dist.join(file)).args(words.split(' '));
            let done = run_within(command.env("PATH", &path).current_dir(bed.dir()), PATIENCE);
            let first = |line: &str| line.split(['\t', ':']).next().map(str::to_owned);
            let offered: Vec<String> = done.stdout.lines().filter_map(first).collect();
            assert_eq!(offered, [expected], "{shell}, {words}: {}", done.describe());
        }
    }
}
