//! A machine boots with a disk that is dead: systemd itself, as the first process of a PID namespace, with what `canopy init`
//! wrote. The disk that lives is a tmpfs, because devices need udev.

use super::{PATIENCE, bed};
use canopy_sys::mountinfo;
use canopy_testkit::cmd::{in_mount_namespace, run_within, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SYSTEMD: &str = "/lib/systemd/systemd";

/// Arguments: the root to be, the program, a directory for results, what mounts the pool, an edit of fstab for sed(1), the
/// unit for pools, and a cgroup.
const BOOT: &str = r#"
echo $$ >"$7/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup sh -euc '
    mount -t tmpfs root "$1"
    cd "$1"
    mkdir -p usr sbin bin-of-canopy etc/systemd/system proc sys/fs/cgroup dev mnt/disk1 mnt/disk2 root tmp run var out
    mount --bind /usr usr
    for link in bin lib lib64; do [ ! -e "/$link" ] || cp -P "/$link" .; done
    ln -s /usr/sbin/* sbin/
    touch bin-of-canopy/canopy
    mount --bind "$2" bin-of-canopy/canopy
    ln -s ../bin-of-canopy/canopy sbin/mount.canopy
    mount --bind "$3" out
    mount -t proc proc proc
    # The settings there are those of the whole machine, and systemd-sysctl would change them.
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t tmpfs dev dev
    mount -t tmpfs run run
    mount -t cgroup2 cgroup sys/fs/cgroup
    mknod -m 666 dev/fuse c 10 229
    mknod -m 666 dev/null c 1 3
    touch dev/console
    echo 0123456789abcdef0123456789abcdef >etc/machine-id
    cp /etc/passwd /etc/group etc/
    printf "%s\n" "disk1 /mnt/disk1 tmpfs nofail,size=100m 0 0" \
        "UUID=dead-beef /mnt/disk2 ext4 nofail,x-systemd.device-timeout=1s 0 2" >etc/fstab
    chroot . /bin-of-canopy/canopy init media -b /mnt/disk1 -b /mnt/disk2 -m /mnt/media --boot "$4" --yes >out/init
    sed -i "$5" etc/fstab
    sed "s|/usr/bin/canopy|/bin-of-canopy/canopy|" "$6" >etc/systemd/system/canopy@.service
    cat >etc/systemd/system/report.service <<END
[Unit]
DefaultDependencies=no
After=local-fs.target mnt-disk1.mount mnt-disk2.mount mnt-media.mount canopy@media.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c "findmnt -rno TARGET,FSTYPE >/out/mounts; systemctl is-active local-fs.target >/out/booted; mv /out/booted /out/done"
END
    wants="local-fs.target report.service"
    [ "$4" = fstab ] || wants="$wants canopy@media.service"
    printf "%s\n" "[Unit]" DefaultDependencies=no AllowIsolate=yes "Wants=$wants" >etc/systemd/system/boot.target
    exec chroot . /usr/bin/env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=boot.target --show-status=no
' sh "$@"
"#;

/// A process and the cgroup that it is in. Both end with it.
struct Machine {
    child: Child,
    group: PathBuf,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Ends the namespace with all its processes.
        let _ = self.child.kill();
        let _ = self.child.wait();
        wait_until(PATIENCE, || remove_groups(&self.group));
    }
}

fn remove_groups(group: &Path) -> bool {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_groups(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}

/// Makes a cgroup; `None` where there are none, as in most containers.
fn group() -> Option<PathBuf> {
    let mounts = mountinfo::list().ok()?;
    let hierarchy = mounts.iter().find(|mounted| mounted.fstype == "cgroup2")?;
    let group = hierarchy.mountpoint.join(format!("canopy-boot-{}", std::process::id()));
    fs::create_dir(&group).ok().map(|()| group)
}

/// Boots and returns what is mounted then, as far as it is about the pool and its disks; `None` if this machine cannot.
fn booted(by: &str, edit: &str) -> Option<Vec<String>> {
    let group = Path::new(SYSTEMD).exists().then(group).flatten();
    let Some(group) = group else {
        eprintln!("skipped: there is no systemd, or no cgroup can be made");
        return None;
    };
    let bed = bed(&["root", "out"]);
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/canopy@.service");
    let mut command = Command::new("sh");
    command.args(["-euc", BOOT, "sh"]).arg(bed.path("root")).arg(bed.program()).arg(bed.path("out"));
    command.args([by, edit]).arg(unit).arg(&group);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a shell");
    let machine = Machine { child, group };
    let done = wait_until(PATIENCE, || bed.path("out/done").exists());
    let text = |name: &str| fs::read_to_string(bed.path("out").join(name)).unwrap_or_default();
    let (mounts, state) = (text("mounts"), text("done"));
    drop(machine);
    assert!(done && state == "active\n", "{by}: {state:?}; {mounts}; {}", text("init"));
    let about = mounts.lines().filter(|line| line.starts_with("/mnt/")).map(str::to_owned);
    Some(about.collect())
}

#[test]
fn a_dead_disk_keeps_neither_the_machine_nor_the_pool_down() {
    let expected = ["/mnt/disk1 tmpfs", "/mnt/media fuse.canopy"].map(str::to_owned).to_vec();
    for by in ["fstab", "unit"] {
        let Some(found) = booted(by, "") else { return };
        assert_eq!(found, expected, "{by}");
    }
    // The other way to wait, which the comment in fstab names, is for those who want this.
    let required = booted("fstab", "/^[^#]/s/x-systemd.after=/x-systemd.requires-mounts-for=/g");
    assert_eq!(required, Some(expected[..1].to_vec()));
}

/// A directory whose disk is in fstab but not mounted is no branch until it is: new files would go to the disk below it.
#[test]
fn a_pool_does_without_a_disk_that_is_not_mounted() {
    let bed = bed(&["a", "b", "pool"]);
    bed.write("fstab", &format!("LABEL=none {} ext4 nofail 0 2\n", bed.path("b").display()));
    let script = "canopy=$1 a=$2 b=$3 pool=$4
        mount --bind \"$5\" /etc/fstab
        \"$canopy\" mount -o minfreespace=0,allow-missing-branches=true \"$a:$b\" \"$pool\"
        for file in 1 2 3 4 5 6 7 8; do echo $file >\"$pool/$file\"; done
        ls -A \"$b\"
        \"$canopy\" status \"$pool\" && exit 9
        mount -t tmpfs disk \"$b\"
        echo there >\"$b/mark\"
        tries=0
        until [ -e \"$pool/mark\" ]; do tries=$((tries + 1)); [ $tries -lt 300 ]; sleep 0.1; done
        cat \"$pool/mark\"
        \"$canopy\" umount \"$pool\"
        umount \"$b\"
        touch \"$b/.mergerfs.branch\"
        \"$canopy\" mount -o minfreespace=0,allow-missing-branches=true \"$a:$b\" \"$pool\"
        ls -A \"$pool\" | wc -l
        \"$canopy\" umount \"$pool\"";
    let mut command = in_mount_namespace(script);
    command.arg(bed.program()).args(["a", "b", "pool", "fstab"].map(|name| bed.path(name)));
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success(), "{}", done.describe());
    let left_out = format!("branch {} is left out", bed.path("b").display());
    assert_eq!(done.stderr.matches(&left_out).count(), 1, "once, and not with the mark: {}", done.describe());
    let words: String = done.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("is in /etc/fstab but not mounted: the pool runs without"), "{}", done.describe());
    assert!(
        words.starts_with(&bed.path("pool").display().to_string()),
        "nothing is below: {}",
        done.describe()
    );
    assert!(words.ends_with("there 9"), "all files and the mark: {}", done.describe());
}
