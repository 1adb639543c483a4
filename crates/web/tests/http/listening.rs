//! Where the program listens.

use crate::rig::{Screen, command, connect_unix, exchange, request, scratch};
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

/// Runs it where it must fail, and returns its line.
#[track_caller]
fn fails(args: &[&str]) -> String {
    let scratch = scratch();
    let done = run_within(&mut command(&scratch, args), PATIENCE);
    assert!(!done.success() && !done.timed_out(), "{}", done.describe());
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
    done.stderr
}

#[test]
fn mistakes_are_named_in_one_line() {
    for (args, words) in [
        (&["--listen", "0.0.0.0:0"][..], "others on the network could read along"),
        (&["--listen", "[::]:0"], "--without-tls"),
        (&["--listen", "7373"], "--listen 7373: is no address: say ADDRESS:PORT"),
        (&["--listen", "unix:socket"], "a socket needs an absolute path"),
        (
            &["--listen", "unix:/no/such/socket"],
            "cannot listen on /no/such/socket: No such file or directory",
        ),
        (&["--listen", "127.0.0.1:0", "--group", "root"], "--group only goes with --listen unix:PATH"),
        (&["--listen", "unix:/tmp/x", "--group", "no-such-group"], "there is no group no-such-group"),
        (&["--lisen", "x"], "(canopy web --help)"),
        (&["token"], "canopy-web does not run here"),
    ] {
        let line = fails(args);
        assert!(line.starts_with("canopy-web: ") && line.contains(words), "{args:?}: {line}");
    }
    let screen = Screen::start(&[]);
    let line = fails(&["--listen", &format!("127.0.0.1:{}", screen.port)]);
    assert!(line.contains("Address already in use (another program does; choose another port"), "{line}");
}

#[test]
fn an_explicit_word_lets_it_listen_for_all() {
    let mut screen = Screen::start_in(scratch(), &["--listen", "0.0.0.0:0", "--without-tls"]);
    assert!(screen.invitation.starts_with("http://0.0.0.0:"), "{}", screen.invitation);
    assert!(screen.end());
}

#[test]
fn a_socket_is_for_its_owner_or_a_group() {
    let scratch = scratch();
    let path = scratch.path("socket");
    // Left by one that was killed.
    drop(UnixListener::bind(&path).unwrap());
    let place = format!("unix:{}", path.to_str().unwrap());
    let mut screen = Screen::start_in(scratch, &["--listen", &place, "--no-token"]);
    assert!(screen.invitation.contains("canopy web token lets somebody in"), "{}", screen.invitation);
    assert!(!screen.invitation.contains("token="));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let got = exchange(connect_unix(path.clone()), &request("localhost", "GET", "/enter", &[], ""));
    assert_eq!(got.status, 200);
    let done = run_within(&mut command(&screen.scratch, &["token"]), PATIENCE);
    let (_, rest) = done.stdout.split_once("there: /enter?token=").expect("a token");
    let address = format!("/enter?token={}", rest.lines().next().unwrap());
    let got = exchange(connect_unix(path.clone()), &request("localhost", "GET", &address, &[], ""));
    assert!(got.status == 200 && got.header("set-cookie").starts_with("canopy-socket="), "{got:?}");
    // It is in use, and stays so.
    let second = run_within(&mut command(&screen.scratch, &["--listen", &place]), PATIENCE);
    assert!(second.stderr.contains("Address already in use"), "{}", second.describe());
    assert!(screen.end());
    assert!(!path.exists(), "the socket is left");
}

#[test]
fn a_group_may_be_let_in() {
    let scratch = scratch();
    let path = scratch.path("socket");
    let place = format!("unix:{}", path.to_str().unwrap());
    let screen = Screen::start_in(scratch, &["--listen", &place, "--group", "daemon"]);
    assert!(screen.invitation.starts_with("unix:"), "{}", screen.invitation);
    let found = fs::metadata(&path).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o660);
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&found), 1);
}
