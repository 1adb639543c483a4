//! The running program, and a browser without a screen.

use canopy_testkit::cmd::{wait_until, wait_within};
use canopy_testkit::{PATIENCE, ScratchDir};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_canopy-web");

/// One healthy pool with two branches, as `canopy status --json` describes it.
pub(crate) const HEALTHY: &str = r#"{"linux":"6.18","unmounted":[],"pools":[{"mountpoint":"/mnt/media","fstype":"fuse.canopy",
"source":"media","state":"serving","error":null,"version":"0.1.0","pid":42,"transport":"io-uring","passthrough":"auto",
"options":{"minfreespace":"4294967296"},"disks":[{"name":"sda","model":"IronWolf","serial":"Z1","temperature":31,"hours":900,
"verdict":"good","findings":[],"asleep":false,"asked":1}],
"branches":[{"path":"/mnt/disk1","mode":"RW","min_free":4294967296,"passes_through":true,"health":"ok","error":null,
"filesystem":1,"fstype":"ext4","source":"/dev/sda1","size":1000000000000,"used":250000000000,"available":700000000000,
"disks":["sda"]},{"path":"/mnt/disk2","mode":"NC","min_free":0,"passes_through":false,"health":"ok","error":null}],
"tiering":{"tiers":[{"name":"all","branches":["/mnt/disk1"],"size":1000000000000,"used":250000000000,"mark":80,
"move_when":["fuller than 80 %"]}],"mover":null,"wants_copies":false},"warnings":[]}]}"#;

/// The program, which ends with the test.
pub(crate) struct Screen {
    pub(crate) scratch: ScratchDir,
    child: Child,
    /// What it has printed first.
    pub(crate) invitation: String,
    pub(crate) port: u16,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    /// Names are in lower case; values of the same name are joined by line ends.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// Makes the directory of a test, with a `canopy` that prints the file of its command: `status`, `options`, `which`, `ls`, `log`.
/// It notes each command line. A file of this name below `does` is a script that runs before.
pub(crate) fn scratch() -> ScratchDir {
    let scratch = ScratchDir::new("canopy-web", &["says", "does"]);
    let script = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >> {dir}/asked\n\
         [ -e {dir}/does/$1 ] && . {dir}/does/$1\ncat {dir}/says/$1 2>/dev/null && exit 1\n\
         echo \"canopy: nothing is known of $1\" >&2\nexit 1\n",
        dir = scratch.dir().to_str().expect("text")
    );
    fs::write(scratch.path("canopy"), script).expect("the script");
    fs::set_permissions(scratch.path("canopy"), fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::write(scratch.path("says/status"), HEALTHY).expect("the status");
    scratch
}

/// The command that starts the program in this directory.
pub(crate) fn command(scratch: &ScratchDir, args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["--state", scratch.path("state").to_str().expect("text")]).args(args);
    if args.first() != Some(&"token") {
        command.args(["--canopy", scratch.path("canopy").to_str().expect("text")]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Screen {
    pub(crate) fn start(args: &[&str]) -> Screen {
        let args = [&["--listen", "127.0.0.1:0"], args].concat();
        Screen::start_in(scratch(), &args)
    }

    pub(crate) fn start_in(scratch: ScratchDir, args: &[&str]) -> Screen {
        let mut child = command(&scratch, args).spawn().expect("the program");
        let mut invitation = String::new();
        let stdout = child.stdout.take().expect("its output");
        BufReader::new(stdout).read_line(&mut invitation).expect("a line");
        let port = invitation.strip_prefix("http://127.0.0.1:").or(invitation.split("127.0.0.1:").nth(1));
        let port = port.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
        Screen { scratch, child, invitation, port: port.unwrap_or_default() }
    }

    /// What `canopy COMMAND --json` says from now on.
    pub(crate) fn says(&self, command: &str, text: &str) {
        let path = self.scratch.path(&format!("says/{command}"));
        // Never half of it.
        fs::write(path.with_extension("new"), text).expect("what it says");
        fs::rename(path.with_extension("new"), path).expect("what it says");
    }

    /// What `canopy COMMAND` does from now on: a script.
    pub(crate) fn does(&self, command: &str, script: &str) {
        fs::write(self.scratch.path(&format!("does/{command}")), script).expect("what it does");
    }

    /// Waits until a page has these words.
    pub(crate) fn wait_for(&self, cookie: &str, address: &str, words: &str) -> Got {
        let mut got = self.get(cookie, address);
        let there = wait_until(PATIENCE, || {
            got = self.get(cookie, address);
            got.body.contains(words)
        });
        assert!(there, "{address} lacks {words}: {}", got.body);
        got
    }

    /// The command lines that were run.
    pub(crate) fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.scratch.path("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Sends a request with these lines of headers besides Host.
    pub(crate) fn send(&self, method: &str, address: &str, headers: &[&str], body: &str) -> Got {
        self.send_to(&format!("127.0.0.1:{}", self.port), method, address, headers, body)
    }

    pub(crate) fn send_to(
        &self,
        host: &str,
        method: &str,
        address: &str,
        headers: &[&str],
        body: &str,
    ) -> Got {
        exchange(self.connect(), &request(host, method, address, headers, body))
    }

    pub(crate) fn get(&self, cookie: &str, address: &str) -> Got {
        self.send("GET", address, &[&format!("Cookie: {cookie}")], "")
    }

    pub(crate) fn post(&self, cookie: &str, address: &str, form: &str) -> Got {
        self.send("POST", address, &[&format!("Cookie: {cookie}"), FORM], form)
    }

    /// Returns the token of the invitation.
    pub(crate) fn token(&self) -> &str {
        self.invitation.trim().split_once("token=").expect("a token").1
    }

    /// Uses up the invitation and returns the cookie.
    pub(crate) fn enter(&self) -> String {
        let got = self.send("GET", &format!("/enter?token={}", self.token()), &[], "");
        assert_eq!(got.status, 200, "{got:?}");
        cookie_of(&got)
    }

    /// Ends the program, as systemd does.
    pub(crate) fn end(&mut self) -> bool {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        wait_within(&mut self.child, PATIENCE).is_some_and(|status| status.success())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const FORM: &str = "Content-Type: application/x-www-form-urlencoded";

pub(crate) fn cookie_of(got: &Got) -> String {
    got.header("set-cookie").split(';').next().expect("a cookie").to_owned()
}

/// Returns the secret in the forms of a page.
pub(crate) fn secret_of(page: &Got) -> String {
    let (_, rest) = page.body.split_once("name=\"secret\" value=\"").expect("a form");
    rest.split('"').next().expect("a value").to_owned()
}

pub(crate) fn request(host: &str, method: &str, address: &str, headers: &[&str], body: &str) -> String {
    let mut text = format!("{method} {address} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    headers.iter().for_each(|line| text.push_str(&format!("{line}\r\n")));
    if method == "POST" {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text + "\r\n" + body
}

/// Sends a request and reads the answer to its end.
pub(crate) fn exchange(stream: impl Read + Write, request: &str) -> Got {
    exchange_bytes(stream, request.as_bytes())
}

/// As [`exchange`], with a request that need not be text.
pub(crate) fn exchange_bytes(mut stream: impl Read + Write, request: &[u8]) -> Got {
    // The program may answer, and close, before it has read all.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or_default();
    let mut headers = BTreeMap::<String, String>::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        let all = headers.entry(name.to_ascii_lowercase()).or_default();
        if !all.is_empty() {
            all.push('\n');
        }
        all.push_str(value);
    }
    Got { status, headers, body: body.to_owned() }
}

pub(crate) fn connect_unix(path: PathBuf) -> UnixStream {
    assert!(wait_until(PATIENCE, || UnixStream::connect(&path).is_ok()), "nobody listens on the socket");
    UnixStream::connect(&path).expect("a connection")
}
