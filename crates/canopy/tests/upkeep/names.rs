//! Names that mislead: no command prints them as they are, and JSON keeps them.

use super::rig::BINARY;
use canopy_testkit::CliBed;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Turns the text around it.
const OVERRIDE: char = '\u{202e}';
/// Branches, the mountpoint and files have all of these in their names: an override, a mark of direction, an isolate, a blank of
/// no width, and a sequence that clears a terminal.
const MISLEADING: &str = "\u{202e}\u{200f}\u{2066}\u{200b}\x1b[2J";

/// All do something, or fail with a name; what it prints is looked at. `{p}` is the pool, `{a}` and `{b}` are its branches, `%` is the
/// file.
const COMMANDS: &[&str] = &[
    "mount @{a}:@{b} @{p} -o minfreespace=0",
    "mount @{a}:@{b} @{p}",
    "status @{p}",
    "status @{p}/none",
    "list @{p}",
    "explain create @{p}/%new",
    "explain search @{p}/%",
    "explain create @{p}/none/%",
    "which @{p}/% @{p}/none% @{a}/%",
    "ls @{p}",
    "ls --json @{p}",
    "du @{p}",
    "du @{p}/none%",
    "fsck @{p}",
    "fsck @{p} --fix newest",
    "verify @{p}",
    "verify @{p} --json",
    "dedup @{p}",
    "dedup @{p} --link",
    "dup @{p} @{p} --dry-run",
    "dup @{p} @{p}/%once --dry-run --json",
    "drain @{p} @{a} --dry-run",
    "drain @{p} @none%",
    "move @{p} @{p}/% --to @{b} --dry-run",
    "move @{p} @{p}/%once --to @{a}",
    "balance @{p} --dry-run",
    "consolidate @{p} @{p} --dry-run",
    "move @{p} @{p} --to @none%",
    "tier @{p} --dry-run",
    "tier @none%",
    "set @{p} log.file=@none%/%",
    "set @{p} branches=+>@none%",
    "set @{p} none%=1",
    "get @none% branches",
    "get @{p} none%",
    "migrate @none%",
    "init --name % --branch @none%",
    "metrics @{p}",
    "metrics @none%",
    "top @none%",
    "upgrade @none%",
    "umount @none%",
    "umount @{p}",
];

fn misleads(text: &str) -> bool {
    text.chars().any(|c| MISLEADING.contains(c) && !"[2J".contains(c))
}

#[test]
fn no_command_prints_what_misleads() {
    let named = |name: &str| format!("{name}{MISLEADING}4pm.exe");
    let (a, b, pool) = (named("a"), named("b"), named("p"));
    let bed = CliBed::new(BINARY, "canopy-names-", &[&a, &b, &pool]);
    let file = named("f");
    fs::write(bed.path(&a).join(&file), "a").expect("a file");
    fs::write(bed.path(&b).join(&file), "bb").expect("a file");
    fs::write(bed.path(&b).join(format!("{file}once")), "b").expect("a file");
    fs::create_dir(bed.path(&a).join(format!("{file}dir"))).expect("a directory");

    // A difference for fsck.
    fs::set_permissions(bed.path(&a).join(&file), fs::Permissions::from_mode(0o600)).expect("chmod");

    let (mut printed, mut shown_names) = (Vec::new(), 0);
    for line in COMMANDS {
        let line = [("{a}", &a), ("{b}", &b), ("{p}", &pool), ("%", &file)]
            .iter()
            .fold((*line).to_owned(), |line, (key, name)| line.replace(key, name));
        let done = bed.run(&line);
        for text in [&done.stdout, &done.stderr] {
            if misleads(text) {
                printed.push(format!("{line:?}: {text:?}"));
            }
            shown_names += usize::from(text.contains("\\u{202e}") || text.contains("\\u202e"));
        }
        if line.contains("--json") && done.success() {
            let value: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
            assert!(value.to_string().contains(OVERRIDE), "JSON keeps the name: {}", done.stdout);
        }
    }
    bed.wait_for_daemons(0);
    assert!(printed.is_empty(), "{}", printed.join("\n"));
    // Otherwise nothing was looked at.
    assert!(shown_names > COMMANDS.len() / 2, "{shown_names} outputs name something");
    assert!(Path::new(&bed.path(&a)).join(&file).exists(), "nothing was removed");
}
