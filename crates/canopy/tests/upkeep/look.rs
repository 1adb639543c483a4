//! `canopy which`, `canopy ls` and `canopy du`.

use super::rig::{BINARY, PATIENCE, Rig, canopy, json};
use canopy_testkit::cmd::run_within;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// One file on two branches, one on one, and a directory on both.
fn films() -> Rig {
    let rig = Rig::new(BINARY, &["a", "b"]);
    rig.put("a", "films/twice", "content");
    rig.put("b", "films/twice", "longer content");
    rig.put("b", "films/once", vec![1; 10_000]);
    for (branch, seconds) in [("a", 1_000_000_000), ("b", 1_100_000_000)] {
        let file = fs::File::options().write(true).open(rig.on(branch, "films/twice")).expect("a file");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).expect("utimens");
    }
    rig
}

#[test]
fn which_shows_copies_and_how_they_differ() {
    let rig = films();
    let done = canopy(["which".into(), rig.at("films/twice"), rig.at("films/once"), rig.at("films")]);
    assert!(done.success(), "{}", done.describe());
    let lines: Vec<&str> = done.stdout.lines().collect();
    let twice = rig.at("films/twice");
    assert_eq!(lines[0], format!("{}: file, 2 copies, which differ in size, mtime", twice.display()));
    // The pool reads the first copy.
    let branch = rig.scratch.path("a");
    assert!(
        lines[2].starts_with('*') && lines[2].ends_with(&format!("  {}", branch.display())),
        "{}",
        lines[2]
    );
    assert!(lines[3].starts_with("  ") && lines[3].contains("14B"), "{}", done.stdout);
    assert!(done.stdout.contains("films/once: file, 1 copy\n"), "{}", done.stdout);
    assert!(done.stdout.contains("/films: directory, 2 copies, alike\n"), "{}", done.stdout);

    let report = json(&canopy(["which".as_ref(), "--json".as_ref(), twice.as_os_str()]));
    assert_eq!(report["paths"][0]["differ"], json!(["size", "mtime"]));
    let copies = report["paths"][0]["copies"].as_array().expect("copies");
    assert_eq!(copies[1]["path"], Value::from(rig.on("b", "films/twice").to_str()));
    let found = fs::metadata(rig.on("b", "films/twice")).expect("a file");
    for (key, expected) in [
        ("size", 14),
        ("used", found.blocks() * 512),
        ("mode", u64::from(found.mode() & 0o7777)),
        ("links", 1),
    ] {
        assert_eq!(copies[1][key], json!(expected), "{key}");
    }
    assert_eq!((&copies[0]["shown"], &copies[1]["shown"]), (&json!(true), &json!(false)));
    // Alike in all but the owner's rights.
    fs::copy(rig.on("b", "films/once"), rig.on("a", "films/once")).expect("a copy");
    let time = found.modified().expect("a time");
    for branch in ["a", "b"] {
        let file = fs::File::options().write(true).open(rig.on(branch, "films/once")).expect("a file");
        file.set_modified(time).expect("utimens");
    }
    fs::set_permissions(rig.on("a", "films/once"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let report = json(&canopy(["which".as_ref(), "--json".as_ref(), rig.at("films/once").as_os_str()]));
    assert_eq!(report["paths"][0]["differ"], json!(["mode"]));
    rig.pool.umount();
}

#[test]
fn ls_finds_names_below_a_directory() {
    let rig = films();
    rig.put("a", "films/old/Twice upon", "x");
    rig.put("b", "twice.txt", "x");
    rig.put("b", "films/it's <b>\n*twice*", "x");
    let found = |more: &[&str]| {
        let mut command = vec!["ls".into(), "--json".into(), "--named".into(), "TWICE".into()];
        command.extend(more.iter().map(std::path::PathBuf::from));
        let report = json(&canopy(command));
        let entries = report["entries"].as_array().expect("entries");
        let mut names: Vec<String> =
            entries.iter().map(|entry| entry["name"].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        (names, report["more"].as_bool())
    };
    let (root, films) = (rig.at(""), rig.at("films"));
    let [root, films] = [&root, &films].map(|path| path.to_str().expect("text"));
    let all = ["films/it's <b>\n*twice*", "films/old/Twice upon", "films/twice", "twice.txt"];
    assert_eq!(found(&[root]), (all.map(str::to_owned).to_vec(), Some(false)));
    assert_eq!(found(&[films]).0, ["it's <b>\n*twice*", "old/Twice upon", "twice"]);
    let (some, more) = found(&["--most", "2", root]);
    assert_eq!((some.len(), more), (2, Some(true)));
    assert_eq!(found(&["--most", "4", root]), (all.map(str::to_owned).to_vec(), Some(false)));
    let text =
        canopy(["ls".into(), "--named".into(), "twice".into(), "--most".into(), "1".into(), rig.at("")]);
    assert!(text.stdout.contains("There is more: only 1 are shown"), "{}", text.describe());
    let none = canopy(["ls".into(), "--named".into(), "*".into(), rig.at("films/old")]);
    assert!(none.success() && !none.stdout.contains("Twice"), "{}", none.describe());
    rig.pool.umount();
}

#[test]
fn which_looks_at_symlinks_themselves_and_tells_what_is_missing() {
    let rig = films();
    symlink("films/twice", rig.on("a", "link")).expect("symlink");
    let report = json(&canopy(["which".as_ref(), "--json".as_ref(), rig.at("link").as_os_str()]));
    assert_eq!(
        (&report["paths"][0]["type"], &report["paths"][0]["copies"][0]["shown"]),
        (&json!("symlink"), &Value::Null)
    );
    let done = canopy(["which".into(), rig.at("none"), rig.at("films/once")]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stdout.contains("films/once: file, 1 copy"), "the others are shown: {}", done.describe());
    assert!(done.stderr.contains("/none: No such file or directory"), "{}", done.stderr);
    assert!(done.stderr.ends_with("1 of 2 could not be looked at\n"), "{}", done.stderr);
    let done = canopy(["which", "/"]);
    assert_eq!(done.code(), Some(1));
    assert!(done.stderr.contains("/ is not on a pool"), "{}", done.stderr);
    // From a directory in the pool, and by a path through a symlink to it.
    let done =
        run_within(Command::new(BINARY).args(["which", "once"]).current_dir(rig.at("films")), PATIENCE);
    assert!(done.stdout.starts_with("once: file, 1 copy\n"), "{}", done.describe());
    symlink(rig.pool.path(), rig.on("home", "pool")).expect("symlink");
    let done = canopy(["which".into(), rig.on("home", "pool/films/once")]);
    assert!(done.success(), "{}", done.describe());
    rig.pool.umount();
}

#[test]
fn ls_shows_the_branches_of_each_entry() {
    let rig = films();
    fs::write(rig.on("b", ".canopy-clone.1"), "hidden").expect("write");
    let done = canopy(["ls".into(), rig.at("films")]);
    assert!(done.success(), "{}", done.describe());
    let lines: Vec<Vec<&str>> = done.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[0][0], lines[1][0]), ("1", "2"), "the numbers of the branches");
    assert_eq!(lines[2], ["SIZE", "MODIFIED", "BRANCHES", "NAME"]);
    assert_eq!((lines[3][0], &lines[3][3..]), ("9.8K", &["2", "once"][..]));
    assert_eq!((lines[4][0], &lines[4][3..]), ("7B", &["1,2", "!", "twice"][..]), "{}", done.stdout);

    let report =
        json(&canopy(["ls".as_ref(), "-R".as_ref(), "--json".as_ref(), rig.pool.path().as_os_str()]));
    let entries = report["entries"].as_array().expect("entries");
    let names: Vec<&str> = entries.iter().filter_map(|entry| entry["name"].as_str()).collect();
    assert_eq!(names, ["films", "films/once", "films/twice"]);
    assert_eq!(entries[1]["branches"], json!([1]));
    let done = canopy(["ls".into(), rig.at("films/once")]);
    assert!(done.stderr.ends_with("once is not a directory\n"), "{}", done.describe());
    rig.pool.umount();
}

#[test]
fn du_counts_links_once_and_copies_each() {
    let rig = films();
    rig.put("a", "deep/er/file", vec![1; 5000]);
    fs::hard_link(rig.on("a", "deep/er/file"), rig.on("a", "deep/link")).expect("link");
    let du = |args: &[&str]| {
        let fixed = ["du", "--json", "--apparent-size"].iter().chain(args).map(AsRef::as_ref);
        json(&canopy(fixed.chain([rig.pool.path().as_os_str()])))
    };
    let report = du(&[]);
    let dirs: Vec<(&str, u64, Vec<u64>)> = report["directories"]
        .as_array()
        .expect("directories")
        .iter()
        .map(|dir| {
            let numbers = dir["by_branch"].as_array().expect("numbers").iter().filter_map(Value::as_u64);
            (
                dir["path"].as_str().expect("a path"),
                dir["total"].as_u64().expect("a number"),
                numbers.collect(),
            )
        })
        .collect();
    let expected = [
        ("deep", 5000, vec![5000, 0]),
        ("films", 10_021, vec![7, 10_014]),
        (".", 15_021, vec![5007, 10_014]),
    ];
    assert_eq!(dirs, expected);
    assert_eq!(report["directories"][0]["names"], json!(3));
    assert_eq!(du(&["--depth", "0"])["directories"].as_array().map(Vec::len), Some(1));
    assert_eq!(du(&["--depth", "2"])["directories"][1]["path"], json!("deep/er"));
    // As du(1) counts, but for the directory that it begins at.
    let report = json(&canopy(["du".as_ref(), "--json".as_ref(), rig.at("deep").as_os_str()]));
    let blocks: u64 = ["deep/er", "deep/er/file"]
        .iter()
        .map(|path| fs::symlink_metadata(rig.on("a", path)).expect("metadata").blocks() * 512)
        .sum();
    let whole = report["directories"].as_array().and_then(|dirs| dirs.last()).expect("the whole");
    assert_eq!(whole["total"], json!(blocks));
    let done = canopy(["du".as_ref(), rig.pool.path().as_os_str()]);
    assert!(done.stdout.lines().any(|line| line.ends_with("  films")), "{}", done.describe());
    rig.pool.umount();
}

/// With many branches, columns would not fit into a line.
#[test]
fn many_branches_have_a_line_each() {
    let names = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8"];
    let rig = Rig::new(BINARY, &names);
    rig.put("b2", "dir/f", vec![1; 4096]);
    rig.put("b8", "dir/g", vec![1; 8192]);
    let done = canopy(["du".as_ref(), "--apparent-size".as_ref(), rig.pool.path().as_os_str()]);
    let lines: Vec<Vec<&str>> = done.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    for expected in [["4.0K", "3", "dir"], ["8.0K", "9", "dir"], ["12K", "all", "dir"], ["12K", "all", "."]] {
        assert!(lines.iter().any(|line| *line == expected), "{expected:?}: {}", done.stdout);
    }
    rig.pool.umount();
}
