//! Where the program listens.

use crate::rig::{FORM, Screen, command, connect_unix, cookie_of, exchange, request, scratch, secret_of};
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
        (
            &["--listen", "127.0.0.1:0", "--user-header", "X-User"],
            "--user-header only goes with --listen unix:PATH",
        ),
        (&["--listen", "unix:/tmp/x", "--user-header", "Cookie"], "no name of a header that a proxy sets"),
        (&["--listen", "unix:/tmp/x", "--user-header", "a b"], "no name of a header that a proxy sets"),
        (&["--lisen", "x"], "(canopy web --help)"),
        (&["token", "--bogus"], "(canopy web token --help)"),
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

#[test]
fn a_proxy_says_who_somebody_is() {
    let scratch = scratch();
    let path = scratch.path("socket");
    let place = format!("unix:{}", path.to_str().unwrap());
    let screen = Screen::start_in(
        scratch,
        &["--listen", &place, "--no-token", "--user-header", "X-Remote-User", "--name", "nas"],
    );
    let ask = |method: &str, address: &str, headers: &[&str], body: &str| {
        exchange(connect_unix(path.clone()), &request("nas", method, address, headers, body))
    };
    assert_eq!(ask("GET", "/", &[], "").status, 303);
    assert_eq!(ask("GET", "/", &["X-Remote-User: "], "").status, 303);
    // The proxy's own line, and one that a browser has added.
    assert_eq!(ask("GET", "/", &["X-Remote-User: root", "X-Remote-User: eve"], "").status, 303);
    let anna = "X-Remote-User: anna";
    let got = ask("GET", "/", &[anna], "");
    assert!(got.status == 200 && got.header("set-cookie").contains("HttpOnly"), "{got:?}");
    let cookie = format!("Cookie: {}", cookie_of(&got));
    let page = ask("GET", "/warnings", &[anna, &cookie], "");
    assert!(page.body.contains("Nothing is wrong"), "{}", page.body);
    // The session is hers: neither another's nor one without a name.
    let other = ask("GET", "/warnings", &["X-Remote-User: eve", &cookie], "");
    assert!(
        other.header("set-cookie").contains("canopy-socket=") && !other.body.contains("Nothing is wrong"),
        "{other:?}"
    );
    assert_eq!(ask("GET", "/warnings", &[&cookie], "").status, 303);
    let form = format!("secret={}", secret_of(&page));
    let address = "/do?what=verify&at=/mnt/media";
    assert_eq!(
        ask("POST", address, &["X-Remote-User: eve", &cookie, FORM], &form).header("location"),
        "/enter"
    );
    assert_eq!(ask("POST", address, &[anna, FORM], &form).header("location"), "/enter");
    assert_eq!(ask("POST", address, &[anna, &cookie, FORM], "secret=guess").status, 403);
    let asked = ask("POST", address, &[anna, &cookie, FORM], &form);
    let id = asked.header("location").split_once("id=").expect("a number").1.to_owned();
    assert_eq!(ask("POST", "/run/start", &[anna, &cookie, FORM], &format!("{form}&id={id}")).status, 303);
    let record = ask("GET", "/actions", &[anna, &cookie], "");
    assert!(record.body.contains("session anna-"), "{}", record.body);
    drop(screen);
}
