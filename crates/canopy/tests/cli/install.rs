//! `scripts/install.sh` installs the program under all its names, and leaves the files of other programs alone.

use canopy_testkit::cmd::{Finished, run_unless_busy, run_within};
use canopy_testkit::{PATIENCE, ScratchDir, files, program_under_test};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const IN_BIN: [&str; 9] = [
    "mergerfs",
    "mergerfs.collect-info",
    "fsck.mergerfs",
    "mergerfs.balance",
    "mergerfs.consolidate",
    "mergerfs.ctl",
    "mergerfs.dedup",
    "mergerfs.dup",
    "mergerfs.fsck",
];
const IN_SBIN: [&str; 4] = ["mount.canopy", "mount.fuse.canopy", "mount.mergerfs", "mount.fuse.mergerfs"];

/// Makes a build to install, a directory to install it into, a branch and a mountpoint.
fn bed() -> ScratchDir {
    let bed = ScratchDir::new("canopy-install-", &["build", "dest", "a", "p"]);
    fs::copy(program_under_test(env!("CARGO_BIN_EXE_canopy")), bed.path("build/canopy")).unwrap();
    fs::write(bed.path("build/libcanopy_preload.so"), "a library").unwrap();
    bed
}

fn script(bed: &ScratchDir, args: &[&str], variables: &[(&str, PathBuf)]) -> Finished {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = Command::new(script);
    command.args(args).env("BUILD", bed.path("build")).envs(variables.iter().cloned());
    run_within(&mut command, PATIENCE)
}

/// Installs into `dest`, as a package build does.
#[track_caller]
fn packaged(bed: &ScratchDir, args: &[&str], works: bool) -> Finished {
    let done = script(bed, args, &[("DESTDIR", bed.path("dest")), ("PREFIX", "/usr".into())]);
    assert_eq!(done.success(), works, "{args:?}: {}", done.describe());
    done
}

/// Returns the files and symlinks in `dest`.
fn files_installed(bed: &ScratchDir) -> BTreeSet<String> {
    let root = bed.path("dest");
    let files = files::walk(&root).into_iter().filter(|path| !fs::symlink_metadata(path).unwrap().is_dir());
    files.map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn install_adds_every_name_and_uninstall_removes_them() {
    let bed = bed();
    let done = packaged(&bed, &[], true);
    assert!(done.stderr.is_empty(), "{}", done.describe());
    let installed = files_installed(&bed);
    let dest = bed.path("dest");
    for name in IN_BIN {
        assert_eq!(fs::read_link(dest.join("usr/bin").join(name)).unwrap(), Path::new("canopy"), "{name}");
    }
    for name in IN_SBIN {
        assert_eq!(
            fs::read_link(dest.join("sbin").join(name)).unwrap(),
            Path::new("/usr/bin/canopy"),
            "{name}"
        );
    }
    assert_eq!(fs::read_to_string(dest.join("usr/lib/mergerfs/preload.so")).unwrap(), "a library");
    let mode = |name: &str| fs::metadata(dest.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("usr/bin/canopy"), mode("usr/lib/libcanopy_preload.so")), (0o755, 0o644));
    let unit = fs::read_to_string(dest.join("usr/lib/systemd/system/canopy@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/canopy mount -f %i\n"), "{unit}");
    assert!(dest.join("usr/lib/systemd/system/canopy-tier@.service").exists());
    let pages =
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man")).into_iter().flatten().count();
    assert_eq!(installed.iter().filter(|path| path.starts_with("usr/share/man/man")).count(), pages);
    // A second install is an upgrade.
    packaged(&bed, &["install"], true);
    assert_eq!(files_installed(&bed), installed);
    packaged(&bed, &["uninstall"], true);
    assert_eq!(files_installed(&bed), BTreeSet::new());
}

/// The packages `canopy` and `canopy-mergerfs` share no file, and together they are what is installed without a package.
#[test]
fn what_replaces_mergerfs_can_be_installed_apart() {
    let bed = bed();
    let install = |names: &str, action: &str| {
        let usr = [("DESTDIR", bed.path("dest")), ("PREFIX", "/usr".into()), ("SBINDIR", "/usr/sbin".into())];
        let variables: Vec<_> = usr.into_iter().chain([("NAMES", names.into())]).collect();
        let done = script(&bed, &[action], &variables);
        assert!(done.success(), "{names}: {}", done.describe());
        files_installed(&bed)
    };
    let canopy = install("canopy", "install");
    assert!(canopy.iter().all(|path| !path.contains("mergerfs")), "{canopy:?}");
    for path in ["bin/canopy", "sbin/mount.canopy", "share/zsh/vendor-completions/_canopy"] {
        assert!(canopy.contains(&format!("usr/{path}")), "{path} is not in {canopy:?}");
    }
    let link = fs::read_link(bed.path("dest/usr/sbin/mount.canopy")).unwrap();
    assert_eq!(link, Path::new("../bin/canopy"));
    let both = install("mergerfs", "install");
    assert_eq!(install("canopy", "uninstall"), both.difference(&canopy).cloned().collect());
    assert_eq!(install("mergerfs", "uninstall"), BTreeSet::new());
    assert_eq!(install("all", "install"), both);
}

/// Cockpit shows the page of a program that its manifest names, and starts a unit that names it, too.
#[test]
fn the_page_in_cockpit_names_the_program_where_it_is_installed() {
    let bed = bed();
    fs::write(bed.path("build/canopy-web"), "a program").unwrap();
    for prefix in ["/usr", "/usr/local"] {
        let places = [("DESTDIR", bed.path("dest")), ("PREFIX", prefix.into())];
        let done = script(&bed, &[], &places);
        assert!(done.success(), "{prefix}: {}", done.describe());
        let root = bed.path("dest").join(prefix.trim_start_matches('/'));
        let page = root.join("share/cockpit/canopy");
        let manifest = fs::read_to_string(page.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        let program = format!("{prefix}/bin/canopy-web");
        assert_eq!(manifest["conditions"][0]["path-exists"], program.as_str());
        for unit in ["canopy-web", "canopy-cockpit"] {
            let unit = fs::read_to_string(root.join(format!("lib/systemd/system/{unit}.service"))).unwrap();
            assert!(unit.contains(&format!("\nExecStart={program} ")), "{unit}");
        }
        // What the page loads lies beside it, or is Cockpit's own.
        let index = fs::read_to_string(page.join("index.html")).unwrap();
        let loaded = index.split(['"']).filter(|word| word.ends_with(".js") || word.ends_with(".css"));
        for file in loaded.filter(|file| !file.starts_with("../base1/")) {
            assert!(page.join(file).is_file(), "{file} is not in {prefix}");
        }
        assert!(script(&bed, &["uninstall"], &places).success());
        assert!(!page.exists(), "{prefix}");
        assert_eq!(files_installed(&bed), BTreeSet::new());
    }
}

#[test]
fn files_of_another_program_are_kept() {
    let bed = bed();
    let dest = bed.path("dest");
    fs::create_dir_all(dest.join("usr/bin")).unwrap();
    fs::create_dir_all(dest.join("sbin")).unwrap();
    fs::write(dest.join("usr/bin/mergerfs"), "theirs").unwrap();
    std::os::unix::fs::symlink("../usr/bin/mergerfs", dest.join("sbin/mount.mergerfs")).unwrap();
    let before = files_installed(&bed);
    let done = packaged(&bed, &[], false);
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
    for needle in ["/usr/bin/mergerfs", "/sbin/mount.mergerfs", "--force"] {
        assert!(done.stderr.contains(needle), "no {needle} in {}", done.stderr);
    }
    assert_eq!(files_installed(&bed), before, "a refused install changed files");
    // Uninstall does not remove another program's files either.
    packaged(&bed, &["uninstall"], true);
    assert_eq!(files_installed(&bed), before);
    packaged(&bed, &["--force"], true);
    assert_eq!(fs::read_link(dest.join("usr/bin/mergerfs")).unwrap(), Path::new("canopy"));
    packaged(&bed, &["uninstall"], true);
    assert_eq!(files_installed(&bed), before);
    assert_eq!(fs::read_to_string(dest.join("usr/bin/mergerfs")).unwrap(), "theirs");
    fs::remove_file(bed.path("build/canopy")).unwrap();
    let done = packaged(&bed, &["--force"], false);
    assert!(
        done.stderr.contains("cargo build --release") && files_installed(&bed) == before,
        "{}",
        done.describe()
    );
    let done = packaged(&bed, &["frob"], false);
    assert!(done.stderr.contains("'frob'"), "{}", done.describe());
}

#[test]
fn the_installed_program_works_under_each_name() {
    let bed = bed();
    let places = [("PREFIX", bed.path("dest")), ("SBINDIR", bed.path("dest/sbin"))];
    let done = script(&bed, &[], &places);
    assert!(done.success(), "{}", done.describe());
    let run = |program: &str, args: &[PathBuf]| {
        let done = run_unless_busy(Command::new(bed.path("dest").join(program)).args(args), PATIENCE);
        assert!(done.success(), "{program} {args:?}: {}", done.describe());
        done.stdout
    };
    let kind = || bed.mount_at("p").unwrap().kind;
    for (helper, expected) in [
        ("sbin/mount.mergerfs", "fuse.mergerfs"),
        ("sbin/mount.fuse.canopy", "fuse.canopy"),
        ("bin/mergerfs", "fuse.mergerfs"),
    ] {
        run(helper, &[bed.path("a"), bed.path("p")]);
        assert_eq!(kind(), expected, "{helper}");
        // An upgrade works while the program runs.
        assert!(script(&bed, &[], &places).success());
        run("bin/canopy", &["umount".into(), bed.path("p")]);
    }
    assert!(run("bin/mergerfs", &["-v".into()]).starts_with("mergerfs v"));
}
