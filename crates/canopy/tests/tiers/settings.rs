//! Tiers and rules as options: in files, on the command line, at run time.

use canopy_testkit::{CliBed, files};
use std::fs;

const FILE: &str = "branches = ['@a', '@b']\nmountpoint = '@p'\nminfreespace = 0\ncategory.create = 'ff'\n\n\
                    # fast\n[[tier]]\nname = 'ssd' # the old one\nbranches = '@b'\nmove-when = 'fuller than 70 %'\n\n\
                    [[rule]]\npath = 'films/**'\nbranches = ['@a']\n";

fn bed(file: &str) -> CliBed {
    let bed = CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-tiers-", &["a", "b", "c", "p", "etc"]);
    let bed = bed.with_config_dir("etc");
    bed.write("etc/media.toml", file);
    bed
}

#[test]
fn a_file_names_tiers_and_rules_and_persist_changes_them() {
    let bed = bed(FILE);
    bed.ok("mount media");
    assert_eq!(bed.stdout("get @p tiers"), "ssd=@b|fuller than 70%");
    assert_eq!(bed.stdout("get @p rules"), "films/**=@a");
    fs::create_dir(bed.path("p/films")).unwrap();
    let on = |path: &str| {
        ["a", "b", "c"].into_iter().filter(|b| bed.path(b).join(path).exists()).collect::<String>()
    };
    fs::write(bed.path("p/x"), "").unwrap();
    fs::write(bed.path("p/films/x"), "").unwrap();
    assert_eq!((on("x"), on("films/x")), ("b".into(), "a".into()));

    // For this run.
    bed.stdout("set @p rules=");
    fs::write(bed.path("p/films/y"), "").unwrap();
    assert_eq!((on("films/y"), bed.stdout("get @p rules")), ("b".into(), String::new()));
    // For the next as well.
    bed.stdout("set -p @p rules=films/**=ssd");
    let text = bed.shorten(&files::text(bed.path("etc/media.toml")));
    let expected = FILE
        .replace("branches = ['@a']\n", "")
        .replace("path = 'films/**'\n", "path = \"films/**\"\ntier = \"ssd\"\n");
    assert_eq!(text, expected);
    bed.umount("@p");
    bed.ok("mount media");
    assert_eq!(bed.stdout("get @p rules"), "films/**=ssd");
    // Branches that come later belong to the tier whose globs match them.
    bed.ok("set @p tiers=ssd=@c");
    fs::write(bed.path("p/early"), "").unwrap();
    bed.stdout("set @p branches=+@c");
    fs::write(bed.path("p/late"), "").unwrap();
    assert_eq!((on("early"), on("late")), ("a".into(), "c".into()));
    let listed = bed.stdout("list @p");
    assert!(listed.contains("tiers") && listed.contains("rules"), "{listed}");
    bed.umount("@p");
}

#[test]
fn a_mistake_is_one_line_with_its_place() {
    let table = [
        (
            "[[tier]]\nname = 'a'\nbranches = '/a'\nmove-wen = 'x'\n",
            "@etc/media.toml:3: unknown key 'move-wen' of a tier (did you mean 'move-when'?)",
        ),
        (
            "[[rule]]\npath = 'x'\ntier = 'none'\n",
            "option rules: rule x: no tier is called 'none' (there is none)",
        ),
        (
            "[[rule]]\npath = 'x'\ncopies = 0\n",
            "@etc/media.toml:3: rule x: copies = 0 would keep no file (write 2 for a second copy, 1 for none)",
        ),
        (
            "[[tier]]\nname = 'a'\nbranches = '@a'\nmove-when = 'larger than 1X'\n",
            "@etc/media.toml:3: tier a: move-when 'larger than 1X' is not understood (write",
        ),
    ];
    for (text, expected) in table {
        let bed = bed(&format!("branches = ['@a']\nmountpoint = '@p'\n{text}"));
        let error = bed.error("mount media");
        assert!(error.starts_with(&format!("canopy: {expected}")) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn a_running_pool_refuses_what_a_mount_would() {
    let bed = bed(FILE);
    bed.ok("mount media");
    let table = [
        ("set @p rules=x=none", "canopy: option rules: rule x: no tier is called 'none' (there are: ssd)"),
        ("set -p @p rules=x=none", "canopy: option rules: rule x: no tier is called 'none' (there are: ssd)"),
        ("set @p tiers=ssd=b", "canopy: option tiers: tier ssd: 'b' is not a branch (write its path"),
    ];
    bed.stdout("set @p rules=x=ssd");
    for (line, expected) in table {
        let error = bed.error(line);
        assert!(error.starts_with(expected) && error.lines().count() == 1, "{line}: {error}");
    }
    let error = bed.error("set @p tiers=");
    assert!(
        error.starts_with("canopy: option rules: rule x: no tier is called 'ssd' (there is none)"),
        "{error}"
    );
    assert_eq!(
        (bed.stdout("get @p rules"), bed.stdout("get @p tiers")),
        ("x=ssd".into(), "ssd=@b|fuller than 70%".into())
    );
    bed.umount("@p");
}

#[test]
fn what_has_no_effect_yet_is_a_warning() {
    let bed = bed("branches = ['@a']\nmountpoint = '@p'\n[[tier]]\nname = 'ssd'\nbranches = '@sdd'\n");
    let done = bed.ok("mount media");
    assert!(bed.shorten(&done.stderr).contains("tier ssd: no branch matches @sdd"), "{}", done.describe());
    for (change, said) in [
        ("rules=x=@ssd", "rule x: no branch matches @ssd"),
        ("read-cache=@none=**", "read-cache: @none is no directory: nothing is cached until it is one"),
    ] {
        let done = bed.ok(&format!("set @p {change}"));
        assert!(bed.shorten(&done.stderr).contains(said), "{}", done.describe());
    }
    bed.umount("@p");
}

/// Neither the pool nor its file changes, and the plan has the difference of both and what would move.
#[test]
fn a_change_is_shown_with_what_would_move_before_it_is_made() {
    let bed = bed(FILE);
    bed.ok("mount media");
    fs::create_dir(bed.path("p/music")).unwrap();
    fs::write(bed.path("p/music/x"), "one").unwrap();
    assert!(bed.path("b/music/x").exists());
    let text = files::text(bed.path("etc/media.toml"));
    let shown = bed.stdout("set --dry-run --persist @p rules=music/**=@a");
    for part in [
        "- rules = films/**=@a\n+ rules = music/**=@a\n",
        "@etc/media.toml:\n- path = 'films/**'\n- branches = ['@a']\n+ path = \"music/**\"\n+ branches = [\"@a\"]\n",
        "music/x",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Of the pool alone, and as one command that only looks.
    let shown = bed.stdout("set -n @p rules=music/**=@a");
    assert!(shown.contains("+ rules = ") && !shown.contains("media.toml"), "{shown}");
    let looked = bed.stdout("tier --once --now --dry-run --as-if rules=music/**=@a @p");
    assert!(looked.contains("music/x"), "{looked}");
    let shown = bed.stdout("set -n @p tiers=");
    assert!(!shown.contains("music/x"), "{shown}");
    assert!(
        bed.stdout("set -n -p @p cache.attr=7")
            .contains("+ cache.attr = 7\n@etc/media.toml:\n+ cache.attr = 7")
    );
    for (line, part) in [
        ("set -n @p rules=x=none", "no tier is called 'none' (there are: ssd)"),
        ("set -n @p tiers=ssd=b", "'b' is not a branch"),
        ("set -n -p @p rules=[", "'[' is not a rule"),
        ("set -n @p nosuch=1", "nosuch"),
        ("tier --once --dry-run --as-if cache.attr=1 @p", "does not decide what moves"),
        ("tier --once --as-if rules= @p", "--dry-run"),
    ] {
        let error = bed.error(line);
        assert!(error.contains(part) && error.lines().count() == 1, "{line}: {error}");
    }
    assert_eq!(
        (bed.stdout("get @p rules"), files::text(bed.path("etc/media.toml"))),
        ("films/**=@a".into(), text)
    );
    assert!(bed.path("b/music/x").exists() && !bed.path("a/music/x").exists());
    bed.umount("@p");
}
