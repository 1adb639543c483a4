//! The commands of the quick start, word for word, in a root of their own.

use super::{PATIENCE, bed};
use canopy_testkit::cmd::run_within;
use std::path::Path;
use std::process::Command;

/// A system with the program as it is installed, three disks, and nothing of this machine but its programs.
const ROOT: &str = r#"
mount -t tmpfs root "$1"
cd "$1"
mkdir usr sbin bin-of-canopy etc proc dev mnt root tmp
mount --bind /usr usr
for link in bin lib lib64; do [ ! -e "/$link" ] || cp -P "/$link" .; done
touch bin-of-canopy/canopy
mount --bind "$2" bin-of-canopy/canopy
ln -s ../bin-of-canopy/canopy sbin/mount.canopy
mount -t proc proc proc
mount -t tmpfs dev dev
mknod -m 666 dev/fuse c 10 229
mknod -m 666 dev/null c 1 3
ln -s /proc/self/mounts etc/mtab
for disk in disk1 disk2 disk3; do
    mkdir "mnt/$disk"
    mount -t tmpfs -o size=8g "$disk" "mnt/$disk"
done
echo '# the disks' >etc/fstab
printf '%s\n' "$3" >root/commands
exec chroot . /usr/bin/env -i HOME=/root PATH=/bin-of-canopy:/usr/sbin:/usr/bin:/sbin:/bin sh -eu -c '
    cd /root
    . ./commands
    echo pools: $(findmnt -rno TARGET -t fuse.canopy)
    cat /etc/fstab
    ls -A /etc/canopy | grep -v "^media.toml.canopy-"  || true
    echo files: /mnt/disk*/films/film.mkv'
"#;

/// Returns the lines of the page's blocks that are marked as commands.
fn commands(page: &str) -> String {
    let mut inside = false;
    let mut found = String::new();
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(kind) => inside = kind == "sh",
            None if inside => found.push_str(&format!("{line}\n")),
            None => {}
        }
    }
    found
}

#[test]
fn the_quick_start_works_word_for_word() {
    let bed = bed(&["root"]);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quick-start.md");
    let commands = commands(&std::fs::read_to_string(page).expect("the page"));
    for needle in ["canopy init", "mount /mnt/media", "canopy add media", "canopy umount media"] {
        assert!(commands.contains(needle), "no {needle} in {commands}");
    }
    let mut command = Command::new("unshare");
    // Its processes end with it.
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", ROOT, "sh"]);
    command.arg(bed.path("root")).arg(bed.program()).arg(&commands);
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success(), "{}", done.describe());
    for needle in ["To be written", "/mnt/disk2", "films/film.mkv", "pools:\n# the disks\nfiles: /mnt/disk"] {
        assert!(done.stdout.contains(needle), "no {needle:?} in {}", done.describe());
    }
}
