//! Requests that are too large, too slow or too many.

use crate::rig::{FORM, Screen, exchange};
use canopy_testkit::PATIENCE;
use std::io::{Read as _, Write as _};

#[test]
fn what_is_too_large_is_refused() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    let large = "x".repeat(100_000);
    let form = screen.send("POST", "/enter", &[FORM], &format!("token={large}"));
    assert_eq!(form.status, 413, "{form:?}");
    let head = screen.send("GET", "/", &[&format!("X-Large: {large}")], "");
    assert!(matches!(head.status, 0 | 400 | 431), "{head:?}");
    let line = screen.get(&cookie, &format!("/?q={large}"));
    assert!(matches!(line.status, 0 | 400 | 414 | 431), "{line:?}");
    // It goes on.
    assert_eq!(screen.get(&cookie, "/").status, 200);
}

#[test]
fn what_is_no_request_is_refused() {
    let screen = Screen::start(&[]);
    for text in [
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "\x16\x03\x01\x02\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    ] {
        let got = exchange(screen.connect(), text);
        assert!(matches!(got.status, 0 | 400), "{text:?}: {got:?}");
    }
    let host = format!("127.0.0.1:{}", screen.port);
    // Two lengths, of which a proxy may believe another one.
    let twice = format!(
        "POST /enter HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\ntoken="
    );
    assert_eq!(exchange(screen.connect(), &twice).status, 400);
    for method in ["PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT"] {
        let got = screen.send(method, if method == "CONNECT" { "x:1" } else { "/" }, &[], "");
        assert!(matches!(got.status, 400 | 405), "{method}: {got:?}");
    }
    assert_eq!(screen.get("", "/enter").status, 200);
}

/// A client that says nothing, or never ends its headers, is let go.
#[test]
fn slow_clients_are_let_go() {
    let screen = Screen::start(&[]);
    let (mut silent, mut slow, mut idle) = (screen.connect(), screen.connect(), screen.connect());
    slow.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ").unwrap();
    let host = format!("127.0.0.1:{}", screen.port);
    idle.write_all(format!("GET /enter HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    for stream in [&mut silent, &mut slow, &mut idle] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = Vec::new();
        // Its end comes, with or without an answer, and not the time of ours.
        let ended = stream.read_to_end(&mut bytes);
        let is_timeout = ended.as_ref().is_err_and(|why| why.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_timeout, "{ended:?}: {}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn many_pages_cost_one_look() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| assert_eq!(screen.get(&cookie, "/").status, 200));
        }
    });
    let looks = screen.asked().len();
    assert!((1..40).contains(&looks), "{looks} commands for 40 pages");
}

#[test]
fn open_pages_are_limited() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    let host = format!("127.0.0.1:{}", screen.port);
    let open = || {
        let mut stream = screen.connect();
        let text = format!("GET /live?at=/ HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        (stream, first)
    };
    let kept: Vec<_> = (0..48).map(|_| open()).collect();
    assert!(kept.iter().all(|(_, first)| first == b"HTTP/1.1 200"));
    assert_eq!(&open().1, b"HTTP/1.1 503");
    assert_eq!(screen.get(&cookie, "/").status, 200);
    drop(kept);
    let freed = canopy_testkit::cmd::wait_until(PATIENCE, || &open().1 == b"HTTP/1.1 200");
    assert!(freed, "pages that were closed count on");
}
