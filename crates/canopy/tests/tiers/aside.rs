//! What had to give way when a disk came back is listed, and can be put back.

use super::rig::{BINARY, MIB, Mover, mounted};
use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{LoopFs, PATIENCE};
use serde_json::Value;
use std::fs;
use std::process::Command;

fn copies(mover: &Mover, args: &[&str]) -> Finished {
    run_within(Command::new(BINARY).arg("copies").arg(mover.bed.pool.path()).args(args), PATIENCE)
}

fn report(mover: &Mover) -> Value {
    let done = copies(mover, &["--json"]);
    assert!(done.success(), "{}", done.describe());
    serde_json::from_str(&done.stdout).unwrap()
}

/// Leaves only these disks to the pool.
fn only(mover: &Mover, disks: &[usize]) {
    let paths: Vec<String> = disks.iter().map(|disk| mover.bed.on(*disk, "").display().to_string()).collect();
    mover.bed.pool.set("branches", &paths.join(":"));
}

/// What was written on each of two disks while the other was away: the mover and dedup replace or remove the older copy, and it is kept.
#[test]
fn what_was_changed_on_a_disk_alone_is_kept_and_told() {
    let mover = mounted((0..3).map(|_| LoopFs::tmpfs(64 * MIB as u64)).collect(), "", "photos/**=copies 2");
    let pool = &mover.bed.pool;
    let names = ["photos/f", "photos/g"];
    fs::create_dir(mover.bed.at("photos")).unwrap();
    names.iter().for_each(|name| fs::write(mover.bed.at(name), "first").unwrap());
    mover.json(&["--once"]);
    let holders = |name: &str| (0..3).filter(|disk| mover.bed.on(*disk, name).exists()).collect::<Vec<_>>();
    for name in names {
        let [one, other] = holders(name)[..] else { panic!("two copies of {name}") };
        for (disk, text) in [(one, "alone"), (other, "newer, and longer")] {
            only(&mover, &[disk]);
            fs::write(mover.bed.at(name), text).unwrap();
        }
        only(&mover, &[0, 1, 2]);
        assert_eq!(fs::read_to_string(mover.bed.at(name)).unwrap(), "newer, and longer");
    }
    let warned =
        || pool.status()["warnings"].as_array().unwrap().iter().any(|it| it["code"] == "copies-aside");
    assert!(!warned());
    mover.json(&["--once"]);
    let dedup = run_within(Command::new(BINARY).arg("dedup").arg(pool.path()).arg("--yes"), PATIENCE);
    assert!(dedup.success(), "{}", dedup.describe());
    let said = report(&mover);
    let kept = |name: &str| {
        let list = said["aside"].as_array().unwrap();
        let it = list.iter().find(|it| it["path"] == name).unwrap_or_else(|| panic!("{name}: {said}"));
        it["kept"].as_str().unwrap().to_owned()
    };
    for name in names {
        assert_eq!(fs::read_to_string(kept(name)).unwrap(), "alone");
        assert_eq!(fs::read_to_string(mover.bed.at(name)).unwrap(), "newer, and longer");
        assert_eq!(holders(name).len(), 2);
    }
    assert!(warned(), "{}", pool.status());
    assert!(copies(&mover, &["--put-back", &kept("photos/f"), "--as", "photos/f.other"]).success());
    assert_eq!(fs::read_to_string(mover.bed.at("photos/f.other")).unwrap(), "alone");
    (0..3).for_each(|disk| drop(fs::remove_dir_all(mover.bed.on(disk, ".canopy-aside"))));
    assert!(!warned(), "it ends when nothing is set aside any more");
}

#[test]
fn what_gave_way_is_listed_and_put_back() {
    let mover = mounted((0..3).map(|_| LoopFs::tmpfs(64 * MIB as u64)).collect(), "", "photos/**=copies 2");
    for (disk, name, text) in [(0, "gone", "gone"), (1, "gone", "gone"), (1, "f", "old")] {
        fs::create_dir_all(mover.bed.on(disk, "photos")).unwrap();
        fs::write(mover.bed.on(disk, "photos").join(name), text).unwrap();
    }
    assert_eq!(copies(&mover, &[]).stdout, "Nothing is set aside.\n");
    only(&mover, &[0, 2]);
    fs::create_dir(mover.bed.at("photos/deep")).unwrap();
    fs::remove_file(mover.bed.at("photos/gone")).unwrap();
    fs::write(mover.bed.at("photos/f"), "new, and longer").unwrap();
    let away = &report(&mover)["away"];
    assert!(away.as_array().unwrap().len() == 1 && away[0]["changes"] == 3, "{away}");
    assert!(copies(&mover, &[]).stdout.contains("has missed 3 changes since 20"));
    only(&mover, &[0, 1, 2]);
    let said = report(&mover);
    assert_eq!(said["away"].as_array().unwrap().len(), 0, "{said}");
    let of = |path: &str| {
        let list = said["aside"].as_array().unwrap();
        let it = list.iter().find(|it| it["path"] == path).unwrap_or_else(|| panic!("{path}: {said}"));
        (it["pool_has"].as_str().unwrap().to_owned(), it["kept"].as_str().unwrap().to_owned())
    };
    let ((gone, kept), (has, kept_f)) = (of("photos/gone"), of("photos/f"));
    assert_eq!((gone.as_str(), has.as_str()), ("nothing", "another"));
    assert!(copies(&mover, &[]).stdout.contains(&kept_f));

    // A path that leaves the directory leads to files that were not set aside; and what the pool hides is no name.
    let outside = format!("{}/../../photos/gone-too", kept.rsplit_once("/photos/").unwrap().0);
    fs::write(mover.bed.on(1, "photos/gone-too"), "in use").unwrap();
    for (path, name) in [(outside.as_str(), "photos/stolen"), (kept.as_str(), ".canopy-journal")] {
        let refused = copies(&mover, &["--put-back", path, "--as", name]);
        assert!(!refused.success(), "{}", refused.describe());
    }
    assert_eq!(fs::read_to_string(mover.bed.on(1, "photos/gone-too")).unwrap(), "in use");
    assert!(copies(&mover, &["--put-back", &kept]).success());
    assert_eq!(fs::read_to_string(mover.bed.at("photos/gone")).unwrap(), "gone");
    // Nothing is overwritten.
    let refused = copies(&mover, &["--put-back", &kept_f]);
    assert!(!refused.success() && refused.stderr.contains("--as"), "{}", refused.describe());
    assert_eq!(fs::read_to_string(mover.bed.at("photos/f")).unwrap(), "new, and longer");
    assert_eq!(fs::read_to_string(&kept_f).unwrap(), "old");
    // Its disk has no such directory yet.
    let done = copies(&mover, &["--put-back", &kept_f, "--as", "photos/deep/f.old"]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(fs::read_to_string(mover.bed.at("photos/deep/f.old")).unwrap(), "old");
    assert_eq!(copies(&mover, &[]).stdout, "Nothing is set aside.\n");
    // What is not there, or is nothing that was set aside, is refused.
    for (path, name) in
        [(kept_f.as_str(), "photos/x"), ("/etc/passwd", "photos/x"), (kept_f.as_str(), "../x")]
    {
        assert!(!copies(&mover, &["--put-back", path, "--as", name]).success(), "{path} {name}");
    }
}
