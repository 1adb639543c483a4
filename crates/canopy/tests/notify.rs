//! Messages about pools reach those who are to be told: receivers that speak HTTP and SMTP, a sendmail, and a command.

use canopy_testkit::cmd::{run_within, spawn, wait_until, wait_within};
use canopy_testkit::{PATIENCE, ScratchDir};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

/// `\0u\0s3cret`, as AUTH PLAIN has it.
const LOGIN: &str = "AHUAczNjcmV0";

/// What a receiver was sent: for each connection, the lines of the client.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<String>>>);

impl Received {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn has(&self, words: &[&str]) -> bool {
        self.all().iter().any(|text| words.iter().all(|word| text.contains(word)))
    }
}

/// A receiver on a port of its own. It lives as long as the test's process.
fn receiver(serve: fn(TcpStream) -> std::io::Result<String>) -> (u16, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, received) = (listener.local_addr().expect("an address").port(), Received::default());
    let into = received.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if let Ok(text) = serve(client) {
                into.0.lock().unwrap().push(text);
            }
        }
    });
    (port, received)
}

fn http(client: TcpStream) -> std::io::Result<String> {
    let (mut text, mut length) = (String::new(), 0);
    let mut reader = BufReader::new(client.try_clone()?);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        text.push_str(&line);
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    text.push_str(&String::from_utf8_lossy(&body));
    let mut client = client;
    client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    Ok(text)
}

fn smtp(mut client: TcpStream) -> std::io::Result<String> {
    let (mut text, mut in_data) = (String::new(), false);
    let mut reader = BufReader::new(client.try_clone()?);
    client.write_all(b"220 test ESMTP\r\n")?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(text);
        }
        text.push_str(&line);
        let answer: &[u8] = match line.trim_end() {
            "." if in_data => {
                in_data = false;
                b"250 taken\r\n"
            }
            _ if in_data => continue,
            "DATA" => {
                in_data = true;
                b"354 go on\r\n"
            }
            "QUIT" => b"221 bye\r\n",
            line if line.starts_with("EHLO") => b"250-test\r\n250 AUTH PLAIN\r\n",
            "AUTH PLAIN" => b"334 \r\n",
            line if line == LOGIN => b"235 welcome\r\n",
            _ => b"250 ok\r\n",
        };
        client.write_all(answer)?;
        if answer.starts_with(b"221") {
            return Ok(text);
        }
    }
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn canopy(scratch: &ScratchDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_canopy"));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("CANOPY_CONFIG_DIR", scratch.path("etc"));
    command.env("PATH", format!("{}:{path}", scratch.path("bin").display()));
    command.arg("notify").arg("--file").arg(scratch.path("notify.toml"));
    command.arg("--fstab-file").arg("/dev/null");
    command
}

#[test]
fn a_trial_reaches_everybody_and_shows_no_secret() {
    let scratch = ScratchDir::new("canopy-notify", &["etc", "bin"]);
    let ((web, web_got), (mail, mail_got)) = (receiver(http), receiver(smtp));
    let at = |name: &str| scratch.path(name).display().to_string();
    script(&scratch.path("bin/sendmail"), &format!("cat > {}", at("sent")));
    script(&scratch.path("bin/tell"), &format!("echo \"$CANOPY_SEVERITY $1\" > {0}; cat >> {0}", at("told")));
    fs::write(scratch.path("secret"), "s3cret\n").unwrap();
    fs::set_permissions(scratch.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let secret = at("secret");
    let text = format!(
        "[[notify]]\nntfy = 'http://127.0.0.1:{web}/topic'\ntoken-file = '{secret}'\n\
         [[notify]]\ngotify = 'http://127.0.0.1:{web}/gotify/'\ntoken-file = '{secret}'\n\
         [[notify]]\nwebhook = 'http://127.0.0.1:{web}/hook'\n\
         [[notify]]\nmail = 'me@there'\n\
         [[notify]]\nmail = 'you@there'\nsmtp = 'smtp://127.0.0.1:{mail}'\nuser = 'u'\npassword-file = '{secret}'\n\
         [[notify]]\ncommand = ['{}', 'two words']\n",
        at("bin/tell")
    );
    fs::write(scratch.path("notify.toml"), &text).unwrap();
    let done = run_within(canopy(&scratch).arg("test"), PATIENCE);
    assert!(done.success(), "{}", done.describe());
    let shown = done.describe();
    assert_eq!(shown.matches(": sent").count(), 6, "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(web_got.has(&["POST /topic", "Authorization: Bearer s3cret", "this is a trial"]));
    assert!(web_got.has(&["POST /gotify/message", "X-Gotify-Key: s3cret", "\"priority\":"]));
    assert!(web_got.has(&["POST /hook", "\"test\":true", "\"code\":\"test\""]));
    assert!(wait_until(PATIENCE, || mail_got.has(&[
        LOGIN,
        "RCPT TO:<you@there>",
        "Subject: ",
        "this is a trial"
    ])));
    let sent = fs::read_to_string(scratch.path("sent")).unwrap();
    assert!(
        sent.starts_with("To: me@there\nSubject: ") && sent.contains("\n\ncanopy notify test: "),
        "{sent}"
    );
    let told = fs::read_to_string(scratch.path("told")).unwrap();
    assert!(told.starts_with("notice two words\n{"), "{told}");

    // Each that fails says why, and the others are told.
    script(&scratch.path("bin/tell"), "echo no pigeon >&2; exit 3");
    fs::set_permissions(scratch.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let done = run_within(canopy(&scratch).arg("test"), PATIENCE);
    let shown = done.describe();
    assert_eq!(done.code(), Some(1), "{shown}");
    for part in
        ["can be read by others (chmod 600", "no pigeon", "webhook http://127.0.0.1", "4 of 6 test messages"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(shown.matches(": sent").count(), 2, "{shown}");
}

#[test]
fn a_pool_that_is_not_mounted_is_told_once_and_its_return_once() {
    let scratch = ScratchDir::new("canopy-notify", &["etc", "bin", "a", "pool"]);
    let (web, got) = receiver(http);
    let pool = scratch.path("pool");
    let file = scratch.path("etc/media.toml");
    let of_pool = format!(
        "branches = ['{}']\nmountpoint = '{}'\n[[notify]]\nwebhook = 'http://127.0.0.1:{web}/media'\n",
        scratch.path("a").display(),
        pool.display()
    );
    fs::write(&file, of_pool).unwrap();
    let state = scratch.path("state/notify.json");
    let start = || {
        let mut command = canopy(&scratch);
        command.args(["run", "--gather", "1", "--state"]).arg(&state).stderr(Stdio::null());
        spawn(&mut command).expect("a process")
    };
    let end = |mut child: std::process::Child| {
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
        assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.success()));
    };
    let begins =
        ["POST /media", "\"code\":\"pool-not-mounted\"", "\"phase\":\"begins\"", "canopy mount media"];
    let ends = ["\"code\":\"pool-not-mounted\"", "\"phase\":\"ends\""];
    let child = start();
    assert!(wait_until(PATIENCE, || got.has(&begins)), "{:?}", got.all());
    end(child);
    // Another process goes on where that has stopped.
    let child = start();
    let canopy = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_canopy"));
        run_within(command.args(words).env("CANOPY_CONFIG_DIR", scratch.path("etc")), PATIENCE)
    };
    let mounted = canopy(&["mount", "media"]);
    let told = wait_until(PATIENCE, || got.has(&ends));
    let unmounted = canopy(&["umount", "media"]);
    end(child);
    assert!(mounted.success() && told && unmounted.success(), "{} {:?}", mounted.describe(), got.all());
    let count =
        |words: &[&str]| got.all().iter().filter(|text| words.iter().all(|word| text.contains(word))).count();
    assert_eq!((count(&begins), count(&ends)), (1, 1), "{:?}", got.all());
}

#[test]
fn a_message_that_cannot_be_sent_waits() {
    let scratch = ScratchDir::new("canopy-notify", &["etc", "bin", "a"]);
    let state = scratch.path("notify.json");
    fs::write(scratch.path("etc/media.toml"), format!("branches = ['{}']\n", scratch.path("a").display()))
        .unwrap();
    script(&scratch.path("bin/tell"), "exit 1");
    let tell = scratch.path("bin/tell").display().to_string();
    fs::write(scratch.path("notify.toml"), format!("[[notify]]\ncommand = '{tell}'\n")).unwrap();
    let mut command = canopy(&scratch);
    command.args(["run", "--gather", "1", "--state"]).arg(&state).stderr(Stdio::piped());
    let mut child = spawn(&mut command).expect("a process");
    let kept = || fs::read_to_string(&state).is_ok_and(|text| text.contains("\"failures\":1"));
    let waits = wait_until(PATIENCE, kept);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("lines");
    assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.success()));
    assert!(waits && said.contains("was not sent, and will be tried again"), "{said}");
    assert!(fs::read_to_string(&state).expect("a state").contains("pool-not-mounted"));
}

/// Whether or not anybody is told: what has happened stays to be seen.
#[test]
fn what_happened_is_kept() {
    let scratch = ScratchDir::new("canopy-notify", &["etc", "bin"]);
    let state = scratch.path("state/told.json");
    let events = |json: &[&str]| {
        run_within(canopy(&scratch).arg("events").args(json).arg("--state").arg(&state), PATIENCE)
    };
    let none = events(&[]);
    assert!(none.success() && none.stdout.contains("Nothing has happened"), "{}", none.describe());
    let pool = scratch.path("etc/media.toml");
    fs::write(&pool, format!("branches = ['{0}']\nmountpoint = '{0}/none'\n", scratch.dir().display()))
        .unwrap();
    // Other tests have pools on this machine, too.
    let place = scratch.dir().join("none");
    let mine = || -> Vec<serde_json::Value> {
        let report: serde_json::Value = serde_json::from_str(&events(&["--json"]).stdout).expect("JSON");
        let all = report["events"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|event| event["subject"]["pool"].as_str() == place.to_str()).collect()
    };
    let phases = || mine().iter().map(|event| event["phase"].clone()).collect::<Vec<_>>();
    let mut command = canopy(&scratch);
    command.args(["run", "--gather", "1", "--state"]).arg(&state).stderr(Stdio::null());
    let mut child = spawn(&mut command).expect("a process");
    let begun = wait_until(PATIENCE, || phases() == ["begins"]);
    fs::remove_file(&pool).unwrap();
    let over = wait_until(PATIENCE, || phases() == ["begins", "ends"]);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.success()));
    let events = mine();
    assert!(begun && over, "{events:#?}");
    assert_eq!(events[0]["subject"]["code"], "pool-not-mounted");
    assert!(events[0]["fix"].as_str().is_some_and(|fix| fix.contains("canopy mount")), "{events:#?}");
}

/// The file changes by commands, a running process notices it, and nothing shows a secret.
#[test]
fn who_is_told_is_changed_by_commands() {
    let scratch = ScratchDir::new("canopy-notify", &["etc", "bin", "a"]);
    let (web, got) = receiver(http);
    let file = scratch.path("notify.toml");
    let said = |words: &[&str]| {
        let done = run_within(canopy(&scratch).args(words), PATIENCE);
        assert!(!done.describe().contains("s3cret"), "{}", done.describe());
        done
    };
    let with_secret = |words: &[&str], path: &str| {
        let mut command = canopy(&scratch);
        command
            .args(words)
            .arg("--stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = spawn(&mut command).expect("a process");
        let mut stdin = child.stdin.take().expect("a pipe");
        writeln!(stdin, "webhook=http://127.0.0.1:{web}/{path}").expect("written");
        drop(stdin);
        let output = child.wait_with_output().expect("an end");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && !shown.contains("s3cret"), "{shown}");
        assert!(shown.contains(&format!("+ webhook = \"http://127.0.0.1:{web}…\"")), "{shown}");
    };
    with_secret(&["set", "one", "least=problem", "-n"], "s3cret1");
    assert!(!file.exists(), "nothing is written yet");
    fs::write(scratch.path("etc/media.toml"), format!("branches = ['{}']\n", scratch.path("a").display()))
        .unwrap();
    let state = scratch.path("state/notify.json");
    let mut command = canopy(&scratch);
    command.args(["run", "--gather", "1", "--state"]).arg(&state).stderr(Stdio::null());
    let mut child = spawn(&mut command).expect("a process");
    with_secret(&["set", "one", "least=problem"], "s3cret1");
    // Two of one host are two.
    with_secret(&["set", "two"], "s3cret2");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let pool = scratch.path("etc/other.toml");
    let told = wait_until(PATIENCE, || {
        // Something happens while they are told.
        let _ = if pool.exists() {
            fs::remove_file(&pool)
        } else {
            fs::copy(scratch.path("etc/media.toml"), &pool).map(drop)
        };
        thread::sleep(std::time::Duration::from_millis(1500));
        got.has(&["POST /s3cret1"]) && got.has(&["POST /s3cret2"])
    });
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.success()));
    assert!(told, "{:?}", got.all());
    let list = said(&["list"]).stdout;
    assert!(list.contains("one") && list.contains("problem") && list.contains("all pools"), "{list}");
    let report: serde_json::Value = serde_json::from_str(&said(&["list", "--json"]).stdout).expect("JSON");
    let receivers = report["receivers"].as_array().expect("a list");
    assert_eq!((&receivers[0]["says"], receivers.len()), (&serde_json::json!({"least": "problem"}), 2));
    let dropped = said(&["drop", "one"]);
    assert!(dropped.success() && dropped.stdout.contains("- name = \"one\""), "{}", dropped.describe());
    for (words, why) in [
        (&["drop", "one"][..], "has no receiver 'one' (it has two)"),
        (&["drop"], "say who: "),
        (&["set", "two"], "say what is to change"),
        (&["set", "two", "mial=x"], "did you mean 'mail'"),
        (&["set", "two", "mail"], "'mail' is not KEY=VALUE"),
        (&["test", "two"], "'two' is too much"),
    ] {
        let done = said(words);
        assert!(!done.success() && done.describe().contains(why), "{}", done.describe());
    }
}

#[test]
fn mistakes_are_told() {
    let scratch = ScratchDir::new("canopy-notify", &["etc", "bin"]);
    let done = run_within(canopy(&scratch).arg("test"), PATIENCE);
    assert_eq!(done.code(), Some(1));
    assert!(done.describe().contains("nobody is told of anything"), "{}", done.describe());
    fs::write(scratch.path("notify.toml"), "[[notify]]\nmial = 'x'\n").unwrap();
    let done = run_within(canopy(&scratch).arg("run"), PATIENCE);
    assert_eq!(done.code(), Some(1));
    assert!(done.describe().contains("(did you mean 'mail'?)"), "{}", done.describe());
}
