//! Mounts by users other than root.

use super::rig::{bed, in_private_mounts, refused};
use canopy_testkit::files::copy_program;
use canopy_testkit::{CliBed, as_user};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Copies the program to where every user may run it.
fn public_binary(bed: &CliBed) -> PathBuf {
    let copy = bed.path("canopy");
    copy_program(bed.program(), &copy);
    copy
}

const NOBODY: u32 = 65534;

fn give_to_nobody(bed: &CliBed) {
    for name in ["a", "b", "p"] {
        std::os::unix::fs::chown(bed.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    let bed = bed();
    give_to_nobody(&bed);
    let canopy = public_binary(&bed);
    let script = r#"exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '
        "$2" mount -o minfreespace=0 "$1/a:$1/b" "$1/p"
        echo hello > "$1/p/file"
        for branch in a b; do
            "$2" move "$1/p" "$1/p/file" --to "$1/$branch" > /dev/null
            test -e "$1/$branch/file"
        done
        cat "$1/p/file"
        grep -c " $1/p .* fuse.canopy " /proc/self/mountinfo
        "$2" umount "$1/p"
        ! grep " $1/p " /proc/self/mountinfo
        # A signal ends it too: the daemon then unmounts through fusermount3.
        "$2" mount -f "$1/a" "$1/p" 2> /dev/null & 
        until grep -q " $1/p " /proc/self/mountinfo; do sleep 0.02; done
        stat "$1/p" > /dev/null
        # fusermount3 is set-uid: no_new_privs is set on workers, but not on the threads that unmount.
        until grep -qs fuse-0 /proc/$!/task/*/comm; do sleep 0.02; done
        for task in /proc/$!/task/*; do
            case $(cat $task/comm) in
            canopy-q* | canopy-fuse-*) grep "NoNewPrivs:.*0" $task/status || true ;;
            canopy | signals) grep "NoNewPrivs:.*1" $task/status || true ;;
            esac
            grep "^CapEff:.*[1-9a-f]" $task/status || true
        # A thread may end meanwhile.
        done 2> /dev/null
        kill $!; wait $!
        ! grep " $1/p " /proc/self/mountinfo
        echo done' sh "$@""#;
    let done = in_private_mounts(&bed, script, &[canopy.as_os_str()]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(done.stdout, "hello\n1\ndone\n", "{}", done.describe());
    assert_eq!(done.stderr, "");
}

#[test]
fn an_ordinary_user_mounts_in_a_user_namespace() {
    let bed = bed();
    give_to_nobody(&bed);
    let canopy = public_binary(&bed);
    let script = r#"exec setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urm sh -ec '
        "$2" mount -o minfreespace=0 "$1/a:$1/b" "$1/p"
        echo hello > "$1/p/file"
        for branch in a b; do
            "$2" move "$1/p" "$1/p/file" --to "$1/$branch" > /dev/null
            test -e "$1/$branch/file"
        done
        cat "$1/p/file"
        "$2" umount "$1/p"
        ! grep " $1/p " /proc/self/mountinfo' sh "$@""#;
    let done = in_private_mounts(&bed, script, &[canopy.as_os_str()]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(done.stdout, "hello\n", "{}", done.describe());
}

#[test]
fn without_fusermount3_the_error_names_its_package() {
    let bed = bed();
    give_to_nobody(&bed);
    let canopy = public_binary(&bed);
    let text = |name: &str| bed.path(name).display().to_string();
    let mut command = as_user(NOBODY, NOBODY, &[], "env");
    command.args(["PATH=/nonexistent", canopy.to_str().unwrap(), "mount", &text("a"), &text("p")]);
    let line = refused(&bed, &mut command);
    assert!(line.contains("fusermount3") && line.contains("fuse3"), "{line}");
}

#[test]
fn refusals_of_fusermount3_are_explained() {
    let bed = bed();
    give_to_nobody(&bed);
    fs::create_dir(bed.path("roots")).unwrap();
    let canopy = public_binary(&bed);
    let script = r#"
        user() { ! setpriv --reuid 65534 --regid 65534 --clear-groups "$canopy" mount "$@" 2>&1 || exit 1; }
        dir=$1 canopy=$2
        user "$dir/a" "$dir/roots"
        user -o allow_other "$dir/a" "$dir/p"
        chmod 600 /dev/fuse
        user "$dir/a" "$dir/p"
        ! grep " $dir/[pr]" /proc/self/mountinfo"#;
    let done = in_private_mounts(&bed, script, &[canopy.as_os_str()]);
    assert!(done.success(), "{}", done.describe());
    let lines: Vec<_> = done.stdout.lines().collect();
    let [place, others, device] = lines[..] else { panic!("{}", done.describe()) };
    assert!(place.contains("/roots failed: ") && place.ends_with("or mount as root)"), "{place}");
    assert!(others.contains("user_allow_other") && others.contains("/etc/fuse.conf"), "{others}");
    assert!(device.contains("/dev/fuse: ") && device.ends_with("(as root: chmod 666 /dev/fuse)"), "{device}");
    assert_eq!(device.matches("fusermount3").count(), 1, "{device}");
}

#[test]
fn an_unreadable_branch_is_an_error_for_an_ordinary_user() {
    let bed = bed();
    give_to_nobody(&bed);
    let canopy = public_binary(&bed);
    fs::set_permissions(bed.path("b"), fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(bed.path("b"), Some(0), Some(0)).unwrap();
    let mut command = as_user(NOBODY, NOBODY, &[], &canopy);
    command
        .arg("mount")
        .arg(format!("{}:{}", bed.path("a").display(), bed.path("b").display()))
        .arg(bed.path("p"));
    let line = refused(&bed, &mut command);
    assert!(line.contains("/b cannot be read"), "{line}");
}
