//! git inside a pool: clone, fsck, checkout, gc, worktree.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use canopy_testkit::cmd::run_within;
use canopy_testkit::{Kind, PATIENCE, Rng};

use super::rig::{DATA_PATHS, Disks, plain};

const COMMITS: u64 = 320;

#[track_caller]
fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(dir).args(args);
    settings(&mut command);
    let done = run_within(&mut command, 2 * PATIENCE);
    assert!(done.success(), "git {args:?}: {}", done.describe());
    done.stdout
}

/// Makes git ignore the user's and the system's configuration.
fn settings(command: &mut Command) {
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "Test").env(format!("GIT_{role}_EMAIL"), "test@example.org");
    }
}

/// Writes a history for `git fast-import`: a growing tree on `main`, and a side branch at every fortieth commit.
fn history(to: &Path) {
    let mut rng = Rng::new(3);
    let mut text = String::new();
    for commit in 0..COMMITS {
        let branch = if commit % 40 == 39 { format!("side{commit}") } else { "main".to_owned() };
        let _ = write!(text, "commit refs/heads/{branch}\nmark :{}\n", commit + 1);
        let _ = writeln!(text, "committer Test <test@example.org> {} +0000", 1_700_000_000 + commit * 60);
        let _ = writeln!(text, "data <<END\ncommit {commit}\nEND");
        if branch != "main" {
            let _ = writeln!(text, "from :{commit}");
        }
        for _ in 0..8 {
            let number = if rng.chance(600) { commit * 8 + rng.below(8) } else { rng.below(commit * 8 + 8) };
            let mode = *rng.pick(&["100644", "100644", "100755", "120000"]);
            let body = format!("dir{}/{}", number % 61, rng.next_u64()).repeat(1 + rng.index(3));
            let _ = writeln!(text, "M {mode} inline src{}/dir{}/file{number}", number % 7, number % 61);
            let _ = writeln!(text, "data {}\n{body}", body.len());
        }
    }
    text.push_str("done\n");
    fs::write(to, text).unwrap();
}

#[test]
fn clone_fsck_checkout_gc_and_worktrees() {
    let original = plain();
    let stream = original.path().join("stream");
    history(&stream);
    let origin = original.path().join("origin");
    git(original.path(), &["init", "-q", "-b", "main", "--bare", "origin"]);
    let mut import = Command::new("git");
    import.current_dir(&origin).args(["fast-import", "--quiet", "--done"]);
    settings(&mut import);
    let fed = import.stdin(fs::File::open(&stream).unwrap()).status().unwrap();
    assert!(fed.success());
    let branches = git(&origin, &["for-each-ref", "--format=%(refname:short)"]);
    let branches: Vec<&str> = branches.lines().collect();
    assert_eq!(branches.len(), 9, "{branches:?}");

    for data_path in DATA_PATHS {
        let disks = Disks::new(&[Kind::Ext4, Kind::Btrfs]);
        let pool = disks.pool(&format!("category.create=rand,{data_path}"));
        let root = pool.path();
        git(root, &["clone", "-q", "--no-local", origin.to_str().unwrap(), "work"]);
        let work = root.join("work");
        git(&work, &["fsck", "--full", "--strict"]);
        for branch in &branches {
            git(&work, &["checkout", "-q", branch]);
            assert_eq!(git(&work, &["status", "--porcelain"]), "", "after checkout of {branch}");
        }
        // A local clone hard-links the objects.
        git(root, &["clone", "-q", "work", "second"]);
        git(&work, &["worktree", "add", "-q", "../tree", "main"]);
        let tree = root.join("tree");
        for index in 0..6 {
            fs::write(tree.join(format!("new{index}")), format!("{index}\n")).unwrap();
            git(&tree, &["add", "-A"]);
            git(&tree, &["commit", "-q", "-m", "more"]);
        }
        assert_eq!(git(&tree, &["status", "--porcelain"]), "");
        git(&tree, &["mv", "new0", "renamed"]);
        git(&tree, &["stash", "-q"]);
        git(&tree, &["stash", "pop", "-q", "--index"]);
        assert_eq!(git(&tree, &["status", "--porcelain"]), "R  new0 -> renamed\n");
        git(&tree, &["reset", "-q", "--hard"]);
        git(&work, &["worktree", "remove", "../tree"]);
        git(&work, &["gc", "-q", "--prune=now"]);
        for repository in ["work", "second"] {
            git(&root.join(repository), &["fsck", "--full", "--strict"]);
        }
        assert_eq!(git(&work, &["rev-list", "--count", "main"]).trim(), (COMMITS - 8 + 6).to_string());
        let listed = git(&work, &["ls-tree", "-r", "--name-only", "side319"]);
        git(&work, &["checkout", "-q", "side319"]);
        assert!(listed.lines().all(|path| work.join(path).symlink_metadata().is_ok()));
        pool.umount();
        disks.union();
    }
}
