//! Who is let in.

use crate::rig::{FORM, Screen, command, cookie_of, exchange, request, secret_of};
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;

const PAGES: [&str; 7] =
    ["/", "/pool?at=/mnt/media", "/warnings", "/options", "/files?path=a", "/log", "/live?at=/"];

#[test]
fn nobody_sees_anything_without_a_session() {
    let screen = Screen::start(&[]);
    for page in PAGES {
        for cookie in
            ["", "canopy-0=x", &format!("canopy-{}=", screen.port), &format!("canopy-{}=guess", screen.port)]
        {
            let got = screen.get(cookie, page);
            assert_eq!((got.status, got.header("location")), (303, "/enter"), "{page} {cookie}");
            assert!(!got.body.contains("media"), "{got:?}");
        }
    }
    let got = screen.get("", "/enter");
    assert!(got.status == 200 && got.body.contains("canopy web token") && !got.body.contains("media"));
    assert_eq!(screen.asked(), [""; 0], "a command was run for somebody outside");
}

#[test]
fn a_token_lets_one_visitor_in_once() {
    let screen = Screen::start(&[]);
    let address = format!("/enter?token={}", screen.token());
    let got = screen.send("GET", &address, &[], "");
    assert_eq!(got.status, 200);
    let cookie = got.header("set-cookie");
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure") && !cookie.contains(screen.token()), "{cookie}");
    assert!(cookie.starts_with(&format!("canopy-{}=", screen.port)), "{cookie}");
    let cookie = cookie_of(&got);
    for page in &PAGES[..6] {
        assert_eq!(screen.get(&cookie, page).status, 200, "{page}");
    }
    let again = screen.send("GET", &address, &[], "");
    assert_eq!((again.status, again.header("set-cookie")), (403, ""));
    assert!(again.body.contains("lets nobody in"), "{}", again.body);
}

#[test]
fn another_token_comes_from_the_command_and_may_be_typed() {
    let screen = Screen::start(&[]);
    let done = run_within(&mut command(&screen.scratch, &["token"]), PATIENCE);
    let address = done.stdout.lines().next().expect("an address").to_owned();
    assert!(
        address.starts_with(&format!("http://127.0.0.1:{}/enter?token=", screen.port)),
        "{}",
        done.describe()
    );
    let token = address.split_once("token=").expect("a token").1;
    let got = screen.post("", "/enter", &format!("token=+{token}%0A"));
    assert_eq!(got.status, 200, "{got:?}");
    assert_eq!(screen.get(&cookie_of(&got), "/").status, 200);
    // Behind a proxy with TLS, the cookie goes no other way.
    let done = run_within(&mut command(&screen.scratch, &["token"]), PATIENCE);
    let token = done.stdout.lines().next().and_then(|line| line.split_once("token=")).expect("a token").1;
    let got = screen.send("GET", &format!("/enter?token={token}"), &["X-Forwarded-Proto: https"], "");
    assert!(got.header("set-cookie").ends_with("; Secure"), "{got:?}");
}

#[test]
fn a_token_for_health_shows_no_names_of_files() {
    let screen = Screen::start(&[]);
    let done = run_within(&mut command(&screen.scratch, &["token", "--health-only"]), PATIENCE);
    let token = done.stdout.lines().next().and_then(|line| line.split_once("token=")).expect("a token").1;
    let cookie = cookie_of(&screen.get("", &format!("/enter?token={token}")));
    for page in ["/", "/pool?at=/mnt/media", "/warnings", "/options"] {
        let got = screen.get(&cookie, page);
        assert!(got.status == 200 && got.body.contains("health only"), "{page}: {got:?}");
        assert!(
            !got.body.contains("href=\"/files\"") && !got.body.contains("href=\"/log"),
            "{page}: {got:?}"
        );
    }
    for page in ["/files", "/files?at=/mnt/media&path=a", "/log", "/log?at=/mnt/media"] {
        let got = screen.get(&cookie, page);
        assert!(got.status == 403 && got.body.contains("--health-only"), "{page}: {got:?}");
    }
    assert!(screen.asked().iter().all(|line| !line.starts_with("log") && !line.starts_with("which")));
}

#[test]
fn a_browser_that_looks_ahead_does_not_use_the_token_up() {
    let screen = Screen::start(&[]);
    let address = format!("/enter?token={}", screen.token());
    let ahead = screen.send("GET", &address, &["Sec-Purpose: prefetch;prerender"], "");
    assert_eq!((ahead.status, ahead.header("set-cookie")), (503, ""));
    assert_eq!(screen.send("GET", &address, &[], "").status, 200);
}

#[test]
fn guesses_are_limited_and_sessions_go_on() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    for n in 0..10 {
        assert_eq!(screen.get("", &format!("/enter?token=guess{n}")).status, 403, "{n}");
    }
    for got in [screen.get("", "/enter?token=guess"), screen.post("", "/enter", "token=guess")] {
        assert_eq!(got.status, 429);
        assert!((1..=60).contains(&got.header("retry-after").parse::<u32>().unwrap()), "{got:?}");
    }
    assert_eq!(screen.get(&cookie, "/").status, 200);
}

#[test]
fn forms_of_others_are_refused() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    let secret = secret_of(&screen.get(&cookie, "/"));
    let form = format!("secret={secret}");
    let with = |headers: &[&str], form: &str| {
        let cookie = format!("Cookie: {cookie}");
        let headers: Vec<&str> = [cookie.as_str()].into_iter().chain(headers.iter().copied()).collect();
        screen.send("POST", "/leave", &headers, form)
    };
    let own = format!("Origin: http://127.0.0.1:{}", screen.port);
    for (headers, form, status) in [
        (&[FORM][..], "", 403),
        (&[FORM], "secret=", 403),
        (&[FORM], "secret=0000", 403),
        (&[FORM, "Origin: https://evil.example"], &form, 403),
        (&[FORM, "Origin: null"], &form, 403),
        // Another program on this machine.
        (&[FORM, "Origin: http://127.0.0.1:1"], &form, 403),
        (&[FORM, "Sec-Fetch-Site: cross-site"], &form, 403),
        (&[FORM, "Sec-Fetch-Site: same-site"], &form, 403),
        (&["Content-Type: text/plain"], &form, 415),
        (&[], &form, 415),
    ] {
        let got = with(headers, form);
        assert_eq!(got.status, status, "{headers:?} {form}: {got:?}");
        assert_eq!(screen.get(&cookie, "/").status, 200, "{headers:?} has ended the session");
    }
    // Nor the secret of another session.
    let done = run_within(&mut command(&screen.scratch, &["token"]), PATIENCE);
    let token =
        done.stdout.lines().next().and_then(|line| line.split_once("token=")).expect("a token").1.to_owned();
    let other = cookie_of(&screen.get("", &format!("/enter?token={token}")));
    assert_eq!(screen.post(&other, "/leave", &form).status, 403);
    // It ends by its own.
    let left = with(&[FORM, &own, "Sec-Fetch-Site: same-origin"], &form);
    assert!(left.status == 200 && left.header("set-cookie").contains("Max-Age=0"), "{left:?}");
    assert_eq!(screen.get(&cookie, "/").status, 303);
    assert_eq!(screen.get(&other, "/").status, 200);
}

#[test]
fn a_name_that_points_here_is_not_enough() {
    let screen = Screen::start(&["--name", "nas.home"]);
    let cookie = format!("Cookie: {}", screen.enter());
    for (host, status) in [
        ("evil.example", 421),
        (&format!("evil.example:{}", screen.port), 421),
        ("", 421),
        ("nas.home", 200),
        ("NAS.home:443", 200),
        ("localhost:9", 200),
        ("[::1]", 200),
    ] {
        assert_eq!(screen.send_to(host, "GET", "/", &[&cookie], "").status, status, "{host}");
        assert_eq!(screen.send_to(host, "GET", "/enter", &[], "").status, status, "{host}");
    }
    let none = exchange(screen.connect(), "GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_eq!(none.status, 421, "{none:?}");
}

#[test]
fn every_answer_has_the_headers_that_keep_others_out() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    let page = screen.get(&cookie, "/");
    let style = page
        .body
        .split("href=\"")
        .find(|rest| rest.starts_with("/assets/"))
        .and_then(|rest| rest.split('"').next());
    let style = style.expect("a style sheet");
    let host = format!("127.0.0.1:{}", screen.port);
    let answers = [
        page_of(&screen, &cookie, "/"),
        page_of(&screen, &cookie, "/nothing"),
        page_of(&screen, "", "/"),
        page_of(&screen, "", "/enter"),
        page_of(&screen, "", style),
        screen.send("DELETE", "/", &[], ""),
        screen.post("", "/enter", "token=x"),
        exchange(screen.connect(), &request("evil.example", "GET", "/", &[], "")),
        exchange(screen.connect(), &request(&host, "POST", "/enter", &["Content-Type: a/b"], "x")),
    ];
    assert_eq!(answers.each_ref().map(|got| got.status), [200, 404, 303, 200, 200, 405, 403, 421, 415]);
    for got in &answers {
        let policy = got.header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{got:?}"
        );
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
        assert_eq!(got.header("x-content-type-options"), "nosniff");
        assert_eq!(got.header("x-frame-options"), "DENY");
        assert_eq!(got.header("cross-origin-resource-policy"), "same-origin");
        assert_eq!(got.header("access-control-allow-origin"), "");
        let cached = got.header("cache-control");
        assert_eq!(cached == "no-store", got.header("content-type") != "text/css; charset=utf-8", "{got:?}");
    }
}

fn page_of(screen: &Screen, cookie: &str, address: &str) -> crate::rig::Got {
    screen.get(cookie, address)
}
