use super::*;
use crate::ScratchDir;
use crate::cmd::run_within;
use std::process::{Command, Stdio};

/// Runs a shell script on the mount, because this process must not wait for requests that it serves itself.
fn sh(faulty: &FaultyFs, script: &str) -> crate::cmd::Finished {
    run_within(Command::new("sh").arg("-c").arg(script).current_dir("/").env("AT", faulty.path()), PATIENCE)
}

#[track_caller]
fn run(faulty: &FaultyFs, script: &str) -> String {
    let done = sh(faulty, script);
    assert!(done.success(), "{script}: {}", done.describe());
    done.stdout
}

#[test]
fn it_mirrors_the_backing_directory() {
    let scratch = ScratchDir::new("faulty-", &[]);
    let faulty = FaultyFs::mount(&scratch.dir());
    run(
        &faulty,
        r#"set -e; cd "$AT" && mkdir -p a/b && echo text >a/b/file && ln a/b/file a/hard && ln -s hard a/soft && mkfifo a/pipe
        chmod 640 a/hard && chown 7:8 a/hard && touch -d 2001-02-03 a/b && truncate -s 9 a/hard
        mv a/b a/c && cp a/c/file a/copy && rm a/copy && mkdir a/gone && rmdir a/gone && sync a/hard"#,
    );
    assert_eq!(run(&faulty, r#"cat "$AT/a/soft"; ls "$AT/a""#), "text\n\0\0\0\0c\nhard\npipe\nsoft\n");
    let compared = run(&faulty, r#"cd "$AT/a" && stat -c '%n %a %u %g %s %h %Y %W %F' * c/*"#);
    let backing = faulty.backing_dir().display();
    let expected = run(&faulty, &format!("cd '{backing}/a' && stat -c '%n %a %u %g %s %h %Y %W %F' * c/*"));
    assert_eq!(compared, expected);
    assert!(compared.contains("c 755 0 0 4096 2 "), "{compared}");
    // No fault is set, so this process may use the mount too.
    let hard = faulty.path().join("a/hard");
    rustix::fs::setxattr(&hard, "user.x", b"value", rustix::fs::XattrFlags::empty()).expect("an attribute");
    let mut value = [0_u8; 16];
    for file in [hard, faulty.backing_dir().join("a/hard")] {
        assert_eq!(rustix::fs::getxattr(&file, "user.x", &mut value), Ok(5));
        assert_eq!(&value[..5], b"value");
    }
}

#[test]
fn each_kind_of_request_has_a_fault_of_its_own() {
    let scratch = ScratchDir::new("faulty-", &[]);
    let faulty = FaultyFs::mount(&scratch.dir());
    fs::write(faulty.backing_dir().join("file"), "text").expect("a file");
    faulty.set(Fault::Fail(Errno::NOSPC), &[Opcode::Write]);
    faulty.set(Fault::Fail(Errno::ROFS), &[Opcode::Unlink, Opcode::Mkdir]);
    let failed = |script: &str, why: &str| {
        let done = sh(&faulty, script);
        assert!(!done.success() && done.stderr.contains(why), "{script}: {}", done.describe());
    };
    failed(r#"echo more >>"$AT/file""#, "I/O error");
    failed(r#"rm "$AT/file""#, "Read-only");
    assert_eq!(run(&faulty, r#"cat "$AT/file""#), "text");
    faulty.set(Fault::Delay(Duration::from_millis(300)), &[Opcode::Lookup]);
    let began = Instant::now();
    run(&faulty, r#"cat "$AT/file""#);
    assert!(began.elapsed() >= Duration::from_millis(300));
    faulty.heal();
    run(&faulty, r#"echo more >>"$AT/file" && rm "$AT/file" && mkdir "$AT/dir""#);
    let claim = SpaceReport { size: 1 << 40, free: 3 << 20, files: 77, files_free: 5 };
    faulty.report_space(Some(claim));
    assert_eq!(run(&faulty, r#"stat -f -c '%a %f %b %c %d %S' "$AT""#), "768 768 268435456 77 5 4096\n");
    faulty.report_space(None);
    assert_ne!(run(&faulty, r#"stat -f -c %c "$AT""#), "77\n");
}

#[test]
fn a_disk_that_refuses_changes_can_be_read() {
    let scratch = ScratchDir::new("faulty-", &[]);
    let faulty = FaultyFs::mount(&scratch.dir());
    fs::write(faulty.backing_dir().join("file"), "text").expect("a file");
    let data = [
        r#"echo more >>"$AT/file""#,
        r#"truncate -s 2 "$AT/file""#,
        r#": >"$AT/file""#,
        r#"fallocate -l 100 "$AT/file""#,
    ];
    let sync = r#"sync "$AT/file""#;
    let names = [
        r#"chmod 640 "$AT/file""#,
        r#"touch -d 2001-02-03 "$AT/file""#,
        r#"mkdir "$AT/dir""#,
        r#"mv "$AT/file" "$AT/other" && mv "$AT/other" "$AT/file""#,
        r#"ln "$AT/file" "$AT/link" && rm "$AT/link""#,
    ];
    let check = |script: &str, works: bool| {
        let done = sh(&faulty, script);
        assert_eq!(done.success(), works, "{script}: {}", done.describe());
        // As shells and other programs call it, or "cannot create".
        let is_said = ["I/O error", "put error", "annot"].iter().any(|why| done.stderr.contains(why));
        assert!(works || is_said, "{script}: {}", done.describe());
        assert_eq!(run(&faulty, r#"cat "$AT/file""#), "text");
    };
    faulty.refuse_data(true);
    data.iter().for_each(|script| check(script, false));
    check(sync, true);
    names.iter().for_each(|script| check(script, true));
    faulty.refuse_data(false);
    check(sync, false);
    run(&faulty, r#"rmdir "$AT/dir""#);
    faulty.heal();
    faulty.refuse_changes();
    data.iter().chain(&names).for_each(|script| check(script, false));
    faulty.heal();
    run(&faulty, r#"echo more >>"$AT/file" && sync "$AT/file""#);
}

#[test]
fn healing_and_dropping_let_hanging_requests_continue() {
    let scratch = ScratchDir::new("faulty-", &[]);
    let faulty = FaultyFs::mount(&scratch.dir());
    fs::write(faulty.backing_dir().join("file"), "text").expect("a file");
    faulty.set(Fault::Hang, &[Opcode::Read]);
    let mut hanging =
        Command::new("cat").arg(faulty.path().join("file")).stdout(Stdio::null()).spawn().expect("cat");
    assert!(wait_until(PATIENCE, || faulty.hanging() > 0));
    run(&faulty, r#"echo text >"$AT/beside""#);
    assert!(hanging.try_wait().expect("a state").is_none());
    faulty.heal();
    assert!(hanging.wait().expect("an end").success());
    // Dropping the filesystem lets requests continue as well.
    faulty.set_all(Fault::Hang);
    let mut hanging = Command::new("ls").arg(faulty.path()).stdout(Stdio::null()).spawn().expect("ls");
    assert!(wait_until(PATIENCE, || faulty.hanging() > 0));
    let point = faulty.path().to_owned();
    drop(faulty);
    hanging.wait().expect("an end");
    assert!(proc::mount_at(&point).is_none());
}

#[test]
fn delays_are_drawn_anew_for_each_request() {
    let (mut state, most) = (State::default(), Duration::from_millis(300));
    let drawn: Vec<Duration> = (0..1000).map(|_| state.draw(most)).collect();
    assert!(drawn.iter().all(|time| *time <= most));
    let halves = drawn.iter().filter(|time| **time < most / 2).count();
    assert!((400..600).contains(&halves), "{halves}");
    assert_eq!(state.draw(Duration::ZERO), Duration::ZERO);
}
