//! Handing a message to what carries it: curl(1) for HTTP and SMTP, sendmail(8), or a program of the user's.
//!
//! curl knows the machine's certificates and proxies, and keeps this program free of both. Addresses and secrets go to it
//! through a file in memory that only it can read, never through its arguments, which everybody can.

use crate::event::Severity;
use crate::mail;
use crate::message::Message;
use crate::target::{Target, Way};
use canopy_base::text::{one_line, os_error};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a message may take, in seconds.
const PATIENCE: u64 = 30;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How much of what a program says about its failure is read, in bytes.
const LONGEST_REASON: u64 = 4096;
/// Where sendmail(8) is, which need not be where programs of users are.
const SENDMAIL_PLACES: &str = "/usr/sbin:/usr/lib:/sbin";

/// Sends a message.
///
/// # Errors
/// A sentence: why it was not sent. It has no secret in it.
pub(crate) fn send(target: &Target, message: &Message) -> Result<(), String> {
    let secret = target.secret()?;
    match &target.way {
        Way::Command(words) => {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).env("CANOPY_SEVERITY", message.severity().word());
            command.env("CANOPY_TITLE", message.title());
            run(command, &words[0], message.json().as_bytes())
        }
        Way::Mail { to, from, smtp: None, .. } => {
            let path = std::env::var("PATH").unwrap_or_default();
            let mut command = Command::new("sendmail");
            // The recipient is in the text. No line of it ends it.
            command.args(["-t", "-i"]).env("PATH", format!("{path}:{SENDMAIL_PLACES}"));
            run(command, "sendmail", mail::text(message, from.as_deref(), to).as_bytes())
        }
        Way::Mail { to, from, smtp: Some(server), user } => {
            let from = from.clone().unwrap_or_else(|| format!("canopy@{}", message.host));
            let mut options = Options::new(server);
            options.put("mail-from", &from).put("mail-rcpt", to).put("upload-file", "-");
            // A password goes out in the clear to this machine only.
            let is_here = ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| {
                let rest = server.split_once("://").map_or("", |(_, rest)| rest);
                rest.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
            });
            if let Some(user) = user {
                options.put("user", &format!("{user}:{}", secret.unwrap_or_default()));
                options.set(if is_here { "ssl" } else { "ssl-reqd" });
            } else {
                options.set("ssl");
            }
            options.run(mail::text(message, Some(&from), to).as_bytes())
        }
        Way::Ntfy(url) => {
            let (priority, tag) = match message.severity() {
                Severity::Problem => ("high", "rotating_light"),
                Severity::Warning => ("default", "warning"),
                Severity::Notice => ("low", "information_source"),
            };
            let mut options = Options::new(url);
            options.header("Title", &message.title()).header("Priority", priority).header("Tags", tag);
            if let Some(token) = secret {
                options.header("Authorization", &format!("Bearer {token}"));
            }
            options.post(message.body().as_bytes())
        }
        Way::Gotify(url) => {
            let priority = match message.severity() {
                Severity::Problem => 8,
                Severity::Warning => 5,
                Severity::Notice => 2,
            };
            let (title, text) = (message.title(), message.body());
            let json = serde_json::json!({ "title": title, "message": text, "priority": priority });
            let mut options = Options::new(&format!("{}/message", url.trim_end_matches('/')));
            options.header("Content-Type", "application/json");
            if let Some(token) = secret {
                options.header("X-Gotify-Key", &token);
            }
            options.post(json.to_string().as_bytes())
        }
        Way::Webhook(url) => {
            let mut options = Options::new(url);
            options.header("Content-Type", "application/json");
            if let Some(token) = secret {
                options.header("Authorization", &format!("Bearer {token}"));
            }
            options.post(message.json().as_bytes())
        }
    }
}

/// A configuration of curl(1).
struct Options(String);

impl Options {
    fn new(url: &str) -> Options {
        let mut options = Options(String::new());
        options.put("url", url).put("max-time", &(PATIENCE - 5).to_string());
        options.set("silent").set("show-error").set("fail");
        options
    }

    fn set(&mut self, name: &str) -> &mut Self {
        self.0.push_str(name);
        self.0.push('\n');
        self
    }

    fn put(&mut self, name: &str, value: &str) -> &mut Self {
        debug_assert!(!value.contains(char::is_control), "it would be a line of its own");
        let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
        self.set(&format!("{name} = \"{quoted}\""))
    }

    fn header(&mut self, name: &str, value: &str) -> &mut Self {
        self.put("header", &format!("{name}: {value}"))
    }

    fn post(&mut self, body: &[u8]) -> Result<(), String> {
        self.put("data-binary", "@-").run(body)
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        // Inherited by curl alone: this program has one thread.
        let made = rustix::fs::memfd_create(c"canopy-curl", MemfdFlags::empty()).map_err(io::Error::from);
        let made = made.map(File::from).and_then(|mut file| file.write_all(self.0.as_bytes()).map(|()| file));
        let file = made.map_err(|why| format!("no memory for curl: {}", os_error(&why)))?;
        let mut command = Command::new("curl");
        command.arg("--disable").arg("--config").arg(format!("/dev/fd/{}", file.as_raw_fd()));
        run(command, "curl", input)
    }
}

/// Runs a program with this input. It has succeeded if it ends with 0 in time.
fn run(mut command: Command, name: &str, input: &[u8]) -> Result<(), String> {
    let reason = rustix::fs::memfd_create(c"canopy-reason", MemfdFlags::CLOEXEC).map_err(io::Error::from);
    let (mut reason, writer) = reason
        .map(File::from)
        .and_then(|file| Ok((file.try_clone()?, file)))
        .map_err(|why| format!("no memory for {name}: {}", os_error(&why)))?;
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(writer).current_dir("/").process_group(0);
    let mut child = command.spawn().map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => format!("{name} is not installed"),
        _ => format!("{name}: {}", os_error(&why)),
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program may end without reading it. It fits into the pipe (message.rs bounds it), so this does not wait.
        let _ = stdin.write_all(input);
    }
    let until = Instant::now() + Duration::from_secs(PATIENCE);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => sleep(LOOK_AGAIN),
            Ok(None) => {
                let group = Pid::from_child(&child);
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait();
                return Err(format!("{name} took longer than {PATIENCE} s"));
            }
            Err(why) => return Err(format!("{name}: {}", os_error(&why))),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    let _ = reason.rewind();
    let _ = reason.take(LONGEST_REASON).read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().map(str::trim).find(|line| !line.is_empty());
    Err(match last {
        Some(line) => one_line(&format!("{name}: {}", line.strip_prefix("curl: ").unwrap_or(line))),
        None => format!("{name} ended with {status}"),
    })
}
