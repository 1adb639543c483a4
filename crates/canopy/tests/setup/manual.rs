//! The commands of the manual, word for word, each page in a root of its own.

use super::{PATIENCE, bed};
use canopy_testkit::cmd::{Finished, run_within};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A system with the program as it is installed, three disks, and nothing of this machine but its programs and /usr. Its network
/// is loopback.
const ROOT: &str = r#"
mount -t tmpfs root "$1"
cd "$1"
mkdir -p usr sbin bin-of-canopy etc proc dev mnt root run tmp var/lib
chmod 1777 tmp
mount --bind /usr usr
for link in bin lib lib64; do [ ! -e "/$link" ] || cp -P "/$link" .; done
touch bin-of-canopy/canopy
mount --bind "$2" bin-of-canopy/canopy
ln -s ../bin-of-canopy/canopy sbin/mount.canopy
mount -t proc proc proc
mount -t tmpfs dev dev
mknod -m 666 dev/fuse c 10 229
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
ln -s /proc/self/fd dev/fd
ln -s /proc/self/mounts etc/mtab
printf 'root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/:/bin/false\nmedia:x:1000:1000::/:/bin/false\n' >etc/passwd
printf 'root:x:0:\nwww-data:x:33:\nmedia:x:1000:\n' >etc/group
for disk in disk1 disk2 disk3; do
    mkdir "mnt/$disk"
    mount -t tmpfs -o size=8g "$disk" "mnt/$disk"
done
echo '# the disks' >etc/fstab
ip link set lo up
printf '%s\n' "$3" >root/before
printf '%s\n' "$4" >root/commands
exec chroot . /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/bin-of-canopy:/usr/sbin:/usr/bin:/sbin:/bin sh -eu -c '
    cd /root
    . ./before
    cd "${start:-/root}"
    . /root/commands
    cd /root
    ! findmnt -n /mnt/media >/dev/null || canopy umount --lazy media
    echo pools: $(findmnt -rno TARGET -t fuse.canopy)
    cat /etc/fstab
    ls -A /etc/canopy | grep -v "^media.toml.canopy-"  || true
    echo files: /mnt/disk*/films/film.mkv'
"#;

/// What pages other than the quick start begin with: the pool that it makes.
const POOL: &str = r"
canopy init media --branch /mnt/disk1 --branch /mnt/disk2 --yes >/dev/null
mount /mnt/media
start=/mnt/media";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Returns the lines of the page's blocks that are marked as commands. One that begins with `!` has to fail, which the shell's -e
/// does not look at.
fn commands(page: &str) -> String {
    let mut inside = false;
    let mut found = String::new();
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(kind) => inside = kind == "sh",
            None if inside => match line.strip_prefix("! ") {
                Some(fails) => {
                    found.push_str(&format!("if {fails}; then echo '{fails}: succeeds' >&2; exit 1; fi\n"))
                }
                None => found.push_str(&format!("{line}\n")),
            },
            None => {}
        }
    }
    found
}

/// Runs a page's commands after those of `before`. What they start ends with them.
fn run(before: &str, commands: &str) -> Finished {
    let bed = bed(&["root"]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-euc", ROOT, "sh"]);
    command.arg(bed.path("root")).arg(bed.program()).args([before, commands]);
    // Programs wait for each other, and for a machine that is busy.
    run_within(&mut command, 5 * PATIENCE)
}

#[test]
fn the_quick_start_works_word_for_word() {
    let commands = commands(&std::fs::read_to_string(docs().join("quick-start.md")).expect("the page"));
    for needle in ["canopy init", "mount /mnt/media", "canopy add media", "canopy umount media"] {
        assert!(commands.contains(needle), "no {needle} in {commands}");
    }
    let done = run("", &commands);
    assert!(done.success(), "{}", done.describe());
    for needle in ["To be written", "/mnt/disk2", "films/film.mkv", "pools:\n# the disks\nfiles: /mnt/disk"] {
        assert!(done.stdout.contains(needle), "no {needle:?} in {}", done.describe());
    }
}

/// Runs the examples of the pages in a folder of the manual, and returns the names of those that have one.
fn examples_run(folder: &str) -> Vec<String> {
    let (mut pages, mut faults) = (Vec::new(), Vec::new());
    for path in std::fs::read_dir(docs().join(folder))
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
    {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.extension().is_none_or(|ending| ending != "md") || name == "quick-start.md" {
            continue;
        }
        let commands = commands(&std::fs::read_to_string(&path).expect("the page"));
        if commands.is_empty() {
            continue;
        }
        let done = run(POOL, &commands);
        if !done.success() {
            faults.push(format!("{name}: {}", done.describe()));
        }
        pages.push(name);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    pages
}

#[test]
fn examples_of_the_manual_run() {
    let pages = examples_run("");
    assert!(pages.iter().any(|page| page == "limits.md"), "{pages:?}");
}

/// Each page about a program has an example.
#[test]
fn examples_with_programs_run() {
    let pages = examples_run("programs");
    let all = std::fs::read_dir(docs().join("programs")).expect("the folder").count();
    assert!(all > 10 && pages.len() == all, "{all} pages, with examples: {pages:?}");
}

/// Returns the commands that a recording shows.
fn typed(picture: &str) -> Vec<&str> {
    let lines = picture.lines().filter_map(|line| line.split_once(">$</text>"));
    lines
        .filter_map(|(_, rest)| rest.split_once('>')?.1.split_once("</text>").map(|(command, _)| command))
        .collect()
}

/// What the picture of the README shows can be done with this program. Its text is not compared: it tells of kernel and processors.
#[test]
fn the_recording_of_the_readme_can_be_made() {
    let bed = bed(&["out"]);
    let (script, picture) = (docs().join("../scripts/manual/record.py"), bed.path("out/pool.svg"));
    let done = run_within(Command::new(script).arg(bed.program()).arg(&picture), 5 * PATIENCE);
    assert!(done.success(), "{}", done.describe());
    let read = |path: &Path| std::fs::read_to_string(path).expect("a picture");
    let (made, shown) = (read(&picture), read(&docs().join("images/pool.svg")));
    assert!(typed(&made).len() > 5 && made.len() < 30_000, "{made}");
    assert_eq!(typed(&made), typed(&shown), "run scripts/manual/record.py PROGRAM docs/images/pool.svg");
    for needle in ["fargo.mkv", ">gone<", "warning:"] {
        assert!(made.contains(needle) && shown.contains(needle), "no {needle} in {made}");
    }
}
