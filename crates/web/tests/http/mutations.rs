//! Requests that are nearly right: thousands of them, from somebody who is let in and from somebody who is not.

use crate::hostile::{NAME, assert_harmless};
use crate::rig::{FORM, Screen, exchange_bytes, request, secret_of};
use canopy_testkit::Rng;

const REQUESTS: usize = 6000;

const PAGES: &[&str] = &[
    "/",
    "/pool",
    "/disk",
    "/files",
    "/file",
    "/map",
    "/trash",
    "/jobs",
    "/doctor",
    "/options",
    "/log",
    "/warnings",
    "/events",
    "/activity",
    "/actions",
    "/do",
    "/run",
    "/live",
    "/enter",
    "/leave",
    "/setup",
    "/style.css",
    "/nothing",
];

const FIELDS: &[&str] = &[
    "at", "path", "name", "q", "what", "token", "secret", "id", "sort", "page", "disk", "branch", "by",
    "value", "to", "job",
];

/// Parts of requests that programs have stumbled over.
const ODD: &[&[u8]] = &[
    b"\r\n",
    b"\n\n",
    b"\0",
    b"%",
    b"%zz",
    b"%00",
    b"%2e%2e%2f",
    b"../",
    b"//",
    b"?",
    b"#",
    b"&&==",
    b"\xff\xfe",
    b"\xf0\x9f",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    b"Content-Length: -1\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    b"Host: elsewhere.example\r\n",
    b"Cookie: =;;=\"\r\n",
    b"HTTP/9.9",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"ffffffffffffffff\r\n",
];

fn value(rng: &mut Rng) -> String {
    let long = "a/".repeat(rng.index(3000));
    match rng.index(9) {
        0 => "/mnt/media".into(),
        1 => "/mnt/media/..%2f..%2fetc%2fpasswd".into(),
        2 => NAME.replace(' ', "+").replace('#', "%23"),
        3 => rng.next_u64().to_string(),
        4 => long,
        5 => "--yes".into(),
        6 => "-".into(),
        7 => String::from_utf8_lossy(&rng.bytes(9)).into_owned(),
        _ => String::new(),
    }
}

fn fields(rng: &mut Rng, secret: &str) -> String {
    let mut all = vec![];
    if rng.chance(700) {
        all.push("at=/mnt/media".into());
    }
    if rng.chance(500) {
        all.push(format!("secret={secret}"));
    }
    for _ in 0..rng.index(5) {
        all.push(format!("{}={}", rng.pick(FIELDS), value(rng)));
    }
    all.join("&")
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.index(4) {
        let at = rng.index(bytes.len());
        match rng.index(5) {
            0 => bytes[at] = rng.next_u64() as u8,
            1 => drop(bytes.remove(at)),
            2 => drop(bytes.splice(at..at, rng.pick(ODD).iter().copied())),
            3 => bytes.truncate(at.max(1)),
            _ => {
                let end = (at + rng.index(80)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, part));
            }
        }
    }
}

#[test]
fn requests_that_are_nearly_right_get_an_answer_and_harm_nothing() {
    let mut screen = Screen::start(&[]);
    let cookie = screen.enter();
    let secret = secret_of(&screen.get(&cookie, "/options?at=/mnt/media"));
    let host = format!("127.0.0.1:{}", screen.port);
    let mut rng = Rng::new(20_261_129);
    let (mut answered, mut pages) = (0, 0);
    for number in 0..REQUESTS {
        let method = *rng.pick(&["GET", "GET", "GET", "POST", "HEAD", "PUT", "OPTIONS", "X"]);
        let query = fields(&mut rng, &secret);
        let address = format!("{}?{query}", rng.pick(PAGES));
        let body = if method == "POST" { fields(&mut rng, &secret) } else { String::new() };
        let own = format!("Cookie: {cookie}");
        // What leaves would end the session of all that follow.
        let is_in = rng.chance(800) && !address.starts_with("/leave");
        let headers: &[&str] = if is_in { &[&own, FORM] } else { &[FORM] };
        let mut sent = request(&host, method, &address, headers, &body).into_bytes();
        if rng.chance(600) {
            mutate(&mut rng, &mut sent);
        }
        let stream = screen.connect();
        // A request that is not complete ends with its connection.
        let got = exchange_bytes(Halved(stream), &sent);
        assert!(
            got.status == 0 || (100..500).contains(&got.status) || got.status == 503,
            "request {number}: {} to {:?}",
            got.status,
            String::from_utf8_lossy(&sent)
        );
        answered += usize::from(got.status != 0);
        if got.status == 200 && got.header("content-type").starts_with("text/html") {
            assert_harmless(&got.body);
            pages += usize::from(is_in);
        }
    }
    assert!(answered > REQUESTS / 2 && pages > REQUESTS / 50, "{answered} answers, {pages} pages");
    let got = screen.get(&cookie, "/");
    assert!(got.status == 200 && got.body.contains("/mnt/media"), "{got:?}");
    assert!(screen.end(), "it ends in order");
}

/// A connection that says after its request that nothing follows.
struct Halved(std::net::TcpStream);

impl std::io::Read for Halved {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl std::io::Write for Halved {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(bytes)?;
        let _ = self.0.shutdown(std::net::Shutdown::Write);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
