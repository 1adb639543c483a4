//! `canopy get`, `canopy set` and `canopy list`.

use super::rig::{BINARY, Dirs};
use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::files::copy_program;
use canopy_testkit::{PATIENCE, Pool, as_user};

/// `@` stands for the pool.
fn canopy(pool: &Pool, args: &[&str]) -> Finished {
    let args = args.iter().map(|arg| arg.replace('@', &pool.path().display().to_string()));
    pool.command(args)
}

#[track_caller]
fn ok(pool: &Pool, args: &[&str]) -> String {
    let done = canopy(pool, args);
    assert!(done.success() && done.stderr.is_empty(), "{args:?}: {}", done.describe());
    done.stdout
}

#[track_caller]
fn error_line(done: &Finished) -> &str {
    assert!(done.code() == Some(1) && done.stdout.is_empty(), "{}", done.describe());
    let line = done.stderr.strip_prefix("canopy: ").expect("the program's name").trim_end();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn values_are_shown_and_changed() {
    let dirs = Dirs::new();
    let pool = dirs.pool("fsname=mine");
    let (a, b, c) = (dirs.text("a"), dirs.text("b"), dirs.text("c"));
    assert_eq!(ok(&pool, &["get", "@", "fsname"]), "mine\n");
    assert_eq!(ok(&pool, &["get", "@/", "cache.negative_entry"]), "0\n");
    assert_eq!(ok(&pool, &["get", "@", "srcmounts"]), format!("{a}:{b}\n"));
    assert_eq!(ok(&pool, &["get", "@", "version"]), format!("{}\n", env!("CARGO_PKG_VERSION")));
    let all = ok(&pool, &["get", "@"]);
    assert!(all.lines().all(|line| line.contains('=')), "{all}");
    assert!(all.contains(&format!("\nbranches={a}=RW:{b}=RW\n")), "{all}");

    for (pair, key, value) in [
        ("category.create=mfs", "func.mkdir", "mfs"),
        ("minfreespace = 2G", "minfreespace", "2147483648"),
        ("security_capability=false", "security-capability", "false"),
        (&format!("branches=+{c}=NC"), "srcmounts", &format!("{a}:{b}:{c}")),
        ("branches=-<", "srcmounts", &format!("{b}:{c}")),
    ] {
        assert_eq!(ok(&pool, &["set", "@", pair]), "", "{pair}");
        assert_eq!(pool.get(key), value, "{pair}");
    }
    ok(&pool, &["set", "@", "cmd.gc"]);

    let table = ok(&pool, &["list", "@"]);
    let row = |start: &str| {
        table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}\n{table}"))
    };
    assert!(row("* branches ").ends_with(&format!(" {b}=RW")));
    assert!(table.contains(&format!("\n{:31}{c}=NC\n", "")), "{table}");
    assert!(row("* category.create ").ends_with(" mfs"));
    assert!(row("  fsname ").ends_with(" mine"));
    assert!(row("  pid ").ends_with(&format!(" {}", pool.pid())));
    assert_eq!(
        table.lines().count(),
        all.lines().count() + 3,
        "a line for every key, two header lines, and one for the second branch"
    );
    pool.umount();
}

#[test]
fn every_error_is_one_line_that_names_the_cause_and_a_remedy() {
    let dirs = Dirs::new();
    let pool = dirs.pool("");
    let a = dirs.text("a");
    for (args, words) in [
        (&["get", "@", "cache.fils"][..], &["unknown key 'cache.fils'", "did you mean 'cache.files'?"][..]),
        (&["get", "@", "zzzzz"], &["unknown key 'zzzzz'", "canopy list"]),
        (&["get", "/proc"], &["/proc is not the mountpoint of a pool", "canopy status"]),
        (&["list", "/nowhere"], &["/nowhere is not the mountpoint", "canopy status"]),
        (&["list", &a], &["is not the mountpoint of a pool"]),
        (
            &["set", "@", "category.creat=mfs"],
            &["unknown key 'category.creat'", "did you mean 'category.create'?"],
        ),
        (&["set", "@", "minfree=4G"], &["unknown key 'minfree'", "did you mean 'minfreespace'?"]),
        (&["set", "@", "category.create=mfss"], &["category.create", "'mfss'", "did you mean 'mfs'?"]),
        (&["set", "@", "category.create"], &["'category.create' has no value", "canopy get"]),
        (&["set", "@", "cmd.gcc"], &["unknown key 'cmd.gcc'"]),
        (&["set", "@", "minfreespace=16777216T"], &["minfreespace", "too large"]),
        (&["set", "@", "async_read=false"], &["async-read cannot be changed", "-o async-read=false"]),
        // Options that are not keys.
        (&["set", "@", "io-uring=off"], &["io-uring cannot be changed", "-o io-uring=off"]),
        (&["set", "@", "landlock=true", "--persist"], &["landlock cannot be changed", "-o landlock=true"]),
        (&["set", "@", "max_read=4096"], &["max_read cannot be changed", "-o max_read=4096"]),
        (&["set", "@", "allow_other"], &["allow_other cannot be changed", "-o allow_other)"]),
        (&["set", "@", "allow_other=true"], &["allow_other cannot be changed", "-o allow_other)"]),
        (&["set", "@", "io-uring=perhaps"], &["'perhaps' is not valid", "auto, on or off"]),
        (&["set", "@", "version=2"], &["version describes the pool"]),
        (&["set", "@", "srcmounts=/a"], &["srcmounts describes the pool"]),
        (&["set", "@", "branches=+/nowhere/at/all"], &["branch /nowhere/at/all does not exist", "mkdir"]),
        (&["set", "@", "branches=+/tmp=RX"], &["branches", "RX"]),
        (&["set", "@", "branches=+@"], &["is the mountpoint itself"]),
        (&["set", "@", "branches=+@/inner"], &["lies inside mountpoint"]),
    ] {
        let done = canopy(&pool, args);
        let line = error_line(&done);
        assert!(words.iter().all(|word| line.contains(word)), "{args:?}: {line}");
        // A change that is only shown is refused as well, before anything of it is shown.
        if args[0] == "set" && !args[2].starts_with("cmd.") {
            let shown = canopy(&pool, &[args, &["--dry-run"]].concat());
            assert_eq!(error_line(&shown), line, "{args:?}");
        }
    }
    // Another user may read values. An attempt to set one fails with the reason.
    let binary = dirs.path("canopy");
    copy_program(BINARY, &binary);
    let other = |args: &[&str]| {
        let mut command = as_user(4242, 4242, &[], &binary);
        run_within(command.arg(args[0]).arg(pool.path()).args(&args[1..]), PATIENCE)
    };
    assert_eq!(other(&["get", "cache.files"]).stdout, "auto-full\n");
    let done = other(&["set", "cache.files=off"]);
    assert!(error_line(&done).contains("only its owner and root may"), "{}", done.describe());
    pool.umount();
}

/// The same value looks the same before and after, whoever has written it.
#[test]
fn a_change_is_shown_in_one_unit() {
    let dirs = Dirs::new();
    let pool = dirs.pool("minfreespace=4096M,cache.attr=7");
    let (home, a, b) = (pool.path().display().to_string(), dirs.text("a"), dirs.text("b"));
    let c = dirs.text("c");
    let nothing = format!("{home}: nothing changes\n");
    for (pair, shown) in [
        ("minfreespace=10240M", "- minfreespace = 4G\n+ minfreespace = 10G\n"),
        ("minfreespace=4294967296", &nothing),
        ("cache.attr=7", &nothing),
        ("category.create=mfs", "- category.create = pfrd\n+ category.create = mfs\n"),
        ("cmd.gc", &format!("{home}: cmd.gc changes no option, so there is nothing to show\n")),
        (&format!("branches=+{c}=NC"), &format!("branches of {home}:\n  {a}=RW\n  {b}=RW\n+ {c}=NC\n")),
    ] {
        assert_eq!(ok(&pool, &["set", "@", pair, "--dry-run"]), shown, "{pair}");
    }
    ok(&pool, &["set", "@", "func.mkdir=ff"]);
    let shown = ok(&pool, &["set", "@", "category.create=ff", "-n"]);
    assert_eq!(shown, "- category.create = ff,pfrd\n+ category.create = ff\n");
    pool.umount();
}

#[test]
fn commands_explain_why_a_pool_cannot_answer() {
    let dirs = Dirs::new();
    let pool = dirs.pool("xattr=nosys");
    let _ = rustix::fs::getxattr(pool.path(), "user.x", &mut [0; 8][..]);
    // The socket answers, but for who does not see it.
    ok(&pool, &["list", "@"]);
    let mut list = std::process::Command::new(BINARY);
    list.arg("list").arg(pool.path()).env("CANOPY_RUN_DIR", dirs.path("d"));
    let done = run_within(&mut list, PATIENCE);
    assert!(error_line(&done).contains("xattr=nosys"), "{}", done.describe());
    pool.umount();
    let pool = dirs.pool("ro");
    assert_eq!(ok(&pool, &["get", "@", "cache.files"]), "auto-full\n");
    let done = canopy(&pool, &["set", "@", "cache.files=off"]);
    assert!(error_line(&done).contains("is mounted read-only"), "{}", done.describe());
    pool.umount();
    let mut pool = dirs.pool("");
    pool.kill();
    let done = canopy(&pool, &["list", "@"]);
    assert!(error_line(&done).contains("has ended"), "{}", done.describe());
}

/// syncfs(2) of a pool does not reach the daemon before Linux 7.4. What only the kernel has of a pool is written first.
#[test]
fn sync_syncs_each_branch_and_tells_which_it_could_not() {
    for options in ["", "cache.writeback=true"] {
        let dirs = Dirs::new();
        let pool = dirs.builder(options).mount();
        let file = std::fs::File::create(pool.path().join("f")).unwrap();
        std::io::Write::write_all(&mut &file, b"written").unwrap();
        assert_eq!(ok(&pool, &["sync", "@"]), "");
        let held = ["a", "b"].map(|name| std::fs::read(dirs.path(name).join("f")).ok());
        assert!(held.contains(&Some(b"written".to_vec())), "{held:?}");
        // Another directory takes the place of a branch.
        let (b, away) = (dirs.path("b"), dirs.path("d").join("b"));
        std::fs::rename(&b, &away).unwrap();
        std::fs::create_dir(&b).unwrap();
        let done = canopy(&pool, &["sync", "@"]);
        assert_eq!(done.code(), Some(1), "{}", done.describe());
        assert!(
            done.stderr.contains(&format!("{} is not synced: the pool has another", b.display())),
            "{}",
            done.stderr
        );
        assert!(done.stderr.ends_with("1 of its directories is not synced (see above)\n"), "{}", done.stderr);
        std::fs::remove_dir(&b).unwrap();
        std::fs::rename(&away, &b).unwrap();
        drop(file);
    }
}
