//! Builds inside a pool, and the modification times that build tools rely on.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::files::wait_for_clock_tick;
use canopy_testkit::{Kind, PATIENCE};

use super::rig::{DATA_PATHS, Disks, shell, shell_ok};

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn project(root: &Path) {
    put(root, "part/Cargo.toml", "[package]\nname = \"part\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    put(root, "part/src/lib.rs", "pub mod inner;\npub fn name() -> &'static str { inner::NAME }\n");
    put(root, "part/src/inner.rs", "pub const NAME: &str = \"part one\";\n");
    let manifest = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\nbuild = \"build.rs\"\n\
                    [dependencies]\npart = { path = \"../part\" }\n[workspace]\n";
    put(root, "app/Cargo.toml", manifest);
    let build = "fn main() { let out = std::env::var(\"OUT_DIR\").unwrap();\n\
                 std::fs::write(out + \"/made.rs\", \"pub const MADE: u32 = 42;\").unwrap(); }\n";
    put(root, "app/build.rs", build);
    let main = "mod words;\ninclude!(concat!(env!(\"OUT_DIR\"), \"/made.rs\"));\n\
                fn main() { println!(\"{} {} {MADE}\", words::hello(), part::name()); }\n";
    put(root, "app/src/main.rs", main);
    put(root, "app/src/words.rs", "pub fn hello() -> &'static str { \"hello\" }\n");
}

#[track_caller]
fn cargo(dir: &Path, args: &[&str]) -> Finished {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The build must not inherit settings from the cargo that runs the tests.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if (text.starts_with("CARGO") && text != "CARGO_HOME")
            || text.starts_with("RUSTFLAGS")
            || text == "LD_LIBRARY_PATH"
        {
            command.env_remove(&name);
        }
    }
    command.current_dir(dir).env("CARGO_INCREMENTAL", "1").env("CARGO_TERM_COLOR", "never").args(args);
    let done = run_within(&mut command, 2 * PATIENCE);
    assert!(done.success(), "cargo {args:?}: {}", done.describe());
    done
}

/// Returns the names of the crates that cargo compiled.
fn compiled(done: &Finished) -> Vec<&str> {
    let lines = done.stderr.lines().filter_map(|line| line.trim().strip_prefix("Compiling "));
    let mut crates: Vec<&str> = lines.filter_map(|line| line.split(' ').next()).collect();
    crates.sort_unstable();
    crates
}

#[test]
fn cargo_builds_rebuilds_and_runs() {
    for data_path in DATA_PATHS {
        let disks = Disks::new(&[Kind::Ext4, Kind::Xfs]);
        let pool = disks.pool(&format!("category.create=rand,{data_path}"));
        let root = pool.path();
        project(root);
        let app = root.join("app");
        let build = &["build", "--offline"];
        let run = || {
            let done = run_within(&mut Command::new(app.join("target/debug/app")), PATIENCE);
            assert!(done.success(), "{}", done.describe());
            done.stdout
        };
        assert_eq!(compiled(&cargo(&app, build)), ["app", "part"]);
        assert_eq!(run(), "hello part one 42\n");
        assert!(compiled(&cargo(&app, build)).is_empty(), "nothing has changed");

        put(&app, "src/words.rs", "pub fn hello() -> &'static str { \"good day\" }\n");
        assert_eq!(compiled(&cargo(&app, build)), ["app"]);
        assert_eq!(run(), "good day part one 42\n");

        put(root, "part/src/inner.rs", "pub const NAME: &str = \"part two\";\n");
        assert_eq!(compiled(&cargo(&app, build)), ["app", "part"]);
        assert_eq!(run(), "good day part two 42\n");
        assert!(compiled(&cargo(&app, build)).is_empty(), "nothing has changed");
        cargo(&app, &["clean", "--offline"]);
        pool.umount();
        disks.union();
    }
}

/// A file written later never has an older mtime, whichever disks the files are on, and every system call reports the
/// same time.
#[test]
fn modification_times_follow_the_order_of_writes() {
    for data_path in DATA_PATHS {
        let disks = Disks::new(&[Kind::Ext4, Kind::Tmpfs]);
        let pool = disks.pool(&format!("category.create=rand,{data_path}"));
        let root = pool.path();
        let mtime = |name: &str| {
            let meta = fs::metadata(root.join(name)).unwrap();
            (meta.mtime(), meta.mtime_nsec())
        };
        for round in 0..200 {
            let (source, target) = (format!("source{}", round % 10), format!("target{}", round % 10));
            fs::write(root.join(&source), format!("{round}")).unwrap();
            let before = mtime(&source);
            let mut file = fs::File::create(root.join(&target)).unwrap();
            file.write_all(round.to_string().as_bytes()).unwrap();
            let inside = file.metadata().unwrap();
            drop(file);
            let after = mtime(&target);
            assert!(
                after >= before,
                "round {round} [{data_path}]: {target} {after:?} is older than {source} {before:?}"
            );
            assert!((inside.mtime(), inside.mtime_nsec()) <= after, "round {round} [{data_path}]");
        }
        pool.umount();
        let pool = disks.pool(data_path);
        for index in 0..10 {
            let name = format!("target{index}");
            let on_branch =
                disks.branches().iter().find_map(|branch| fs::metadata(branch.join(&name)).ok()).unwrap();
            let meta = fs::metadata(pool.path().join(&name)).unwrap();
            assert_eq!((meta.mtime(), meta.mtime_nsec()), (on_branch.mtime(), on_branch.mtime_nsec()));
        }
        pool.umount();
    }
}

#[test]
fn make_rebuilds_outdated_targets() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Btrfs]);
    let pool = disks.pool("category.create=rand");
    let root = pool.path();
    let rules = "all: one.out two.out\n%.out: %.in common\n\tcat $< common > $@\n";
    put(root, "Makefile", rules);
    for name in ["one.in", "two.in", "common"] {
        put(root, name, name);
    }
    assert_eq!(shell_ok(root, "make | grep -c ^cat", &[]), "2\n");
    assert!(shell(root, "make -q", &[]).success());
    // Timestamps advance only every few milliseconds; make cannot see a change within one tick.
    wait_for_clock_tick();
    fs::OpenOptions::new().append(true).open(root.join("one.in")).unwrap().write_all(b"more").unwrap();
    assert_eq!(shell(root, "make -q", &[]).code(), Some(1));
    assert_eq!(shell_ok(root, "make", &[]).trim(), "cat one.in common > one.out");
    assert_eq!(fs::read_to_string(root.join("one.out")).unwrap(), "one.inmorecommon");
    wait_for_clock_tick();
    shell_ok(root, "touch common", &[]);
    assert_eq!(shell_ok(root, "make | grep -c ^cat", &[]), "2\n");
    shell_ok(root, "touch -d '2001-02-03' one.in two.in common", &[]);
    assert!(shell(root, "make -q", &[]).success());
    pool.umount();
}
