//! `canopy doctor`. It looks at the whole machine, so these tests assert only what is about their own files and pools.

use super::{assert_plain, at_terminal, bed};
use canopy_testkit::cmd::{in_mount_namespace, run_within, wait_until};
use canopy_testkit::{LoopFs, Pool};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

/// Returns code, level, text and fix of each finding, and the exit status.
fn findings(bed: &canopy_testkit::CliBed) -> (Vec<[String; 4]>, Option<i32>) {
    let done = bed.run("doctor --json --fstab-file @fstab");
    assert!(done.stderr.is_empty(), "{}", done.describe());
    let list: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let field = |finding: &serde_json::Value, name: &str| finding[name].as_str().expect(name).to_owned();
    let list = list["findings"].as_array().expect("a list").iter();
    let list = list.map(|one| ["code", "level", "text", "fix"].map(|name| field(one, name)));
    (list.collect(), done.code())
}

#[test]
fn the_exit_status_is_that_of_the_findings() {
    let bed = bed(&[]);
    let (found, status) = findings(&bed);
    let wrong = found.iter().any(|[_, level, ..]| level != "note");
    assert_eq!(status, Some(i32::from(wrong)), "{found:?}");
    let text = bed.run("doctor --fstab-file @fstab");
    assert_plain(&text.stdout);
    assert!(text.stdout.contains("wrong") && text.stderr.is_empty(), "{}", text.describe());
    // A pool that the machine may not start without is wrong anywhere.
    let disk = LoopFs::ext4(32 << 20);
    let place = disk.path().display();
    bed.write(
        "fstab",
        &format!("/dev/x {place} ext4 defaults 0 2\n{place}:/no/such /mnt/p canopy defaults 0 0\n"),
    );
    let (found, status) = findings(&bed);
    for code in ["fstab-nofail", "fstab-order", "fstab-disk-nofail"] {
        assert!(found.iter().any(|[found, ..]| found == code), "no {code} in {found:?}");
    }
    assert_eq!(status, Some(1));
}

#[test]
fn pools_and_disks_that_should_be_mounted_are_found() {
    let bed = bed(&["a", "b", "disk", "pool"]);
    bed.stdout("init media -b @a -b @b -m @pool --fstab-file @fstab --yes");
    let about = |wanted: &str, word: &str| {
        let (found, status) = findings(&bed);
        let found = found.into_iter().find(|[code, _, text, _]| code == wanted && text.contains(word));
        assert!(found.is_none() || status == Some(1), "{found:?}");
        found.map(|[_, level, _, fix]| (level, bed.shorten(&fix)))
    };
    let advice = ("problem".to_owned(), "mount --fstab @fstab @pool".to_owned());
    assert_eq!(about("pool-not-mounted", "the pool media is not mounted"), Some(advice));
    bed.ok("mount media -o minfreespace=0");
    assert_eq!(about("pool-not-mounted", "media"), None);
    // Below one branch a disk should be mounted, and another one has come.
    let fstab = fs::read_to_string(bed.path("fstab")).unwrap();
    let disk = bed.path("b").display().to_string();
    bed.write("fstab", &format!("{fstab}LABEL=none {disk} ext4 nofail 0 2\n"));
    let advice = ("problem".to_owned(), "mount --fstab @fstab @b".to_owned());
    assert_eq!(about("disk-not-mounted", &disk), Some(advice));
    let file = fs::read_to_string(bed.path("etc/media.toml")).unwrap();
    let pattern = bed.path("d*k").display().to_string();
    let none = bed.path("none*").display().to_string();
    bed.write(
        "etc/media.toml",
        &file.replace("branches = [", &format!("branches = [\n{pattern:?},\n{none:?},")),
    );
    let advice = ("warning".to_owned(), "canopy add --no-persist @pool @disk".to_owned());
    assert_eq!(about("branch-lacking", "disk"), Some(advice));
    assert!(about("pattern-matches-nothing", &none).is_some());
    bed.umount("media");
    // The disk is mounted before its pool, although the pool is the greater problem.
    let plan = bed.run("doctor --fix --fstab-file @fstab");
    let at = |words: &str| plan.stdout.find(words).unwrap_or_else(|| panic!("{words}: {}", plan.describe()));
    assert!(
        at(&format!("disk-not-mounted: {disk}")) < at("pool-not-mounted: the pool media"),
        "{}",
        plan.describe()
    );
}

#[test]
fn what_is_advised_is_done() {
    let bed = bed(&["pool"]);
    let disks = [LoopFs::ext4(32 << 20), LoopFs::ext4(32 << 20)];
    let [a, b] = [disks[0].path().display().to_string(), disks[1].path().display().to_string()];
    std::os::unix::fs::chown(&b, Some(7), Some(8)).unwrap();
    bed.ok(&format!("mount -o minfreespace=0 {a}:{b} @pool"));
    let pool = bed.path("pool").display().to_string();
    bed.write("fstab", &format!("# mine\n/dev/x {a} ext4 defaults 0 2\n{a}:{b} {pool} canopy ro 0 0\n"));
    let codes = || {
        let about_mine = |[_, _, text, _]: &[String; 4]| text.contains(&pool) || text.contains(&a);
        let mine = findings(&bed).0.into_iter().filter(about_mine);
        mine.map(|[code, ..]| code).collect::<Vec<_>>()
    };
    let fixed = ["fstab-nofail", "fstab-order", "fstab-disk-nofail", "roots-differ"];
    let before = codes();
    assert!(fixed.iter().all(|code| before.iter().any(|found| found == code)), "{before:?}");
    // Nobody is there to say yes.
    let fstab = || fs::read_to_string(bed.path("fstab")).unwrap();
    let at_first = fstab();
    let done = bed.run("doctor --fix --fstab-file @fstab");
    assert!(done.code() == Some(3) && done.stderr.contains("--fix --yes does all"), "{}", done.describe());
    for shown in ["fstab-nofail: line 3", "+ /dev/x", "chown 0:0"] {
        assert!(done.stdout.contains(shown), "{shown}: {}", done.describe());
    }
    assert_eq!(fstab(), at_first);
    let done = bed.run("doctor --fix=fstab-nofial --fstab-file @fstab");
    assert!(done.code() == Some(2) && done.stderr.contains("fstab-nofail"), "{}", done.describe());
    // Codes say what is done, and nobody has to be asked. The pools of other tests have none of them.
    let done = bed.run("doctor --fix=fstab-disk-nofail --fstab-file @fstab");
    assert!(done.code() == Some(1) && done.stderr.is_empty(), "{}", done.describe());
    assert_eq!(fstab(), at_first.replace("ext4 defaults", "ext4 nofail"));
    bed.write("fstab", &at_first);
    // At a terminal, each is asked for.
    let line = "doctor --fix --fstab-file @fstab";
    let answers = [("is kept beside it", ""), ("[y/N]", "n\n"), ("[y/N]", "n\n"), ("[y/N]", "\x04")];
    let (status, shown) = at_terminal(&bed, line, &answers, &[]);
    assert!(status == Some(1) && shown.contains("Do this?"), "{status:?} {shown}");
    assert_eq!(fstab(), at_first, "{shown}");
    // Pools of other tests are not there, in a namespace of its own.
    let script = "findmnt -rno TARGET -t fuse.canopy,fuse.mergerfs | while read -r pool; do
            [ \"$pool\" = \"$3\" ] || umount -l \"$pool\"
        done
        exec \"$1\" doctor --fix --yes --fstab-file \"$2\"";
    let mut command = in_mount_namespace(script);
    command.arg(bed.program()).arg(bed.path("fstab")).arg(&pool).env("CANOPY_CONFIG_DIR", bed.path("etc"));
    let done = run_within(&mut command, super::PATIENCE);
    assert!(done.stderr.is_empty() && done.stdout.contains("chown"), "{}", done.describe());
    let after = codes();
    assert!(!fixed.iter().any(|code| after.iter().any(|found| found == code)), "{after:?}");
    let fstab = fstab();
    let line = format!("{a}:{b} {pool} canopy ro,nofail,x-systemd.after={a} 0 0");
    assert_eq!(fstab, format!("# mine\n/dev/x {a} ext4 nofail 0 2\n{line}\n"));
    assert_eq!(fs::metadata(&a).unwrap().uid(), fs::metadata(&b).unwrap().uid());
    bed.umount("@pool");
}

#[test]
fn a_container_with_a_single_branch_is_found() {
    let bed = bed(&["there", "data"]);
    let disks = [LoopFs::ext4(32 << 20), LoopFs::ext4(32 << 20)];
    let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy"));
    let pool = builder.branch(disks[0].path()).branch(disks[1].path()).option("minfreespace=0").mount();
    let about = |code: &str| {
        let place = disks[0].path().display().to_string();
        findings(&bed).0.into_iter().any(|[found, _, text, fix]| {
            found == code
                && text.contains(&place)
                && text.contains("/data instead of the pool")
                && fix.contains("mountpoint")
        })
    };
    let is_seen_during = |script: &str, dir: &str| {
        assert!(!about("container-binds-branch"), "it has not begun");
        let mut container = in_mount_namespace(script);
        container.arg(bed.path(dir)).arg(disks[0].path());
        let mut container =
            container.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a container");
        let seen = wait_until(super::PATIENCE, || about("container-binds-branch"));
        drop(container.stdin.take());
        container.wait().expect("its end");
        assert!(!about("container-binds-branch"), "it has ended");
        seen
    };
    // A root of its own, which has programs and the branch.
    let container =
        "mount -t tmpfs root $1; cd $1; mkdir usr data; mount --bind /usr usr; mount --bind $2 data
        for link in bin lib lib64; do [ ! -e /$link ] || cp -P /$link .; done
        exec chroot . /usr/bin/cat";
    assert!(is_seen_during(container, "there"));
    // The root of the machine, and the branch at one more place.
    assert!(is_seen_during("mount --bind $2 $1; exec cat", "data"));
    pool.umount();
}

#[test]
fn what_status_warns_of_is_told_too() {
    let bed = bed(&["a", "b", "pool"]);
    bed.ok("mount -o minfreespace=0 @a:@b @pool");
    let (found, _) = findings(&bed);
    let place = bed.path("pool").display().to_string();
    let shared = found.iter().find(|[code, _, text, _]| code == "same-filesystem" && text.contains(&place));
    assert!(shared.is_some_and(|[_, level, _, fix]| level == "warning" && !fix.is_empty()), "{found:?}");
    let done = run_within(&mut bed.command("doctor --frob"), super::PATIENCE);
    assert_eq!(done.code(), Some(2));
    bed.umount("@pool");
}
