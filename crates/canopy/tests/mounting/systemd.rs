//! The program as a systemd service: its sd_notify(3) messages, and the unit that starts it. Needs root.

use canopy_testkit::cmd::{run_unless_busy, run_within, spawn, wait_within};
use canopy_testkit::{PATIENCE, ScratchDir, proc, program_under_test};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Branches, a mountpoint, a named pool, and a socket in place of systemd's.
pub(super) struct Bed {
    pub(super) scratch: ScratchDir,
    socket: UnixDatagram,
    name: String,
}

fn program() -> PathBuf {
    program_under_test(env!("CARGO_BIN_EXE_canopy"))
}

impl Bed {
    pub(super) fn new(abstract_socket: bool) -> Bed {
        let scratch = ScratchDir::new("canopy-service-", &["a", "b", "p", "etc"]);
        let pool = "branches = [\"@a\", \"@b\"]\nmountpoint = \"@p\"\nminfreespace = 0\n";
        scratch.write("etc/service.toml", pool);
        let (socket, name) = if abstract_socket {
            let name = format!("canopy-service-test-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            (UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}"))
        } else {
            (
                UnixDatagram::bind(scratch.path("socket")).unwrap(),
                scratch.path("socket").display().to_string(),
            )
        };
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Bed { scratch, socket, name }
    }

    pub(super) fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(program());
        command
            .args(args)
            .env("CANOPY_CONFIG_DIR", self.scratch.path("etc"))
            .env("NOTIFY_SOCKET", &self.name);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Returns the lines of the next message.
    #[track_caller]
    pub(super) fn message(&self) -> Vec<String> {
        let mut text = [0; 4096];
        let length = self.socket.recv(&mut text).expect("a message");
        String::from_utf8(text[..length].to_vec()).unwrap().lines().map(str::to_owned).collect()
    }

    pub(super) fn no_message(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let nothing =
            self.socket.recv(&mut [0; 16]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        self.socket.set_nonblocking(false).unwrap();
        nothing
    }

    fn status(&self) -> String {
        format!("STATUS=service is on {}", self.scratch.path("p").display())
    }

    fn end(&self, child: &mut Child) {
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(self.message(), ["STOPPING=1"]);
        assert!(wait_within(child, PATIENCE).is_some_and(|status| status.success()));
        assert!(self.scratch.mount_at("p").is_none());
    }
}

/// Returns the words of the lines of the unit for the named pool. The first word is the program.
fn unit(key: &str, name: &str) -> Vec<Vec<String>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/canopy@.service");
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.map(|line| line.split(' ').map(|word| word.replace("%i", name)).collect()).collect()
}

#[test]
fn the_unit_starts_a_pool_that_notifies_readiness() {
    let bed = Bed::new(false);
    assert_eq!(unit("Type", ""), [["notify"]]);
    let words = &unit("ExecStart", "service")[0];
    assert_eq!(words[0], "/usr/bin/canopy");
    let mut child = spawn(&mut bed.command(&words[1..])).unwrap();
    assert_eq!(bed.message(), ["READY=1".to_owned(), bed.status()]);
    // A ready pool is usable.
    fs::write(bed.scratch.path("p/file"), "x").unwrap();
    // The unit's ExecReload makes the pool reread its file.
    let file = bed.scratch.path("etc/service.toml");
    fs::write(&file, fs::read_to_string(&file).unwrap() + "cache.attr = 7\n").unwrap();
    for words in unit("ExecReload", "service") {
        let done = run_within(&mut bed.command(&words[1..]), PATIENCE);
        assert_eq!(words[0].trim_start_matches('-'), "/usr/bin/canopy");
        // systemd ignores the failure of an upgrade where no other process can take over.
        assert!(done.success() || words[0].starts_with('-'), "{words:?}: {}", done.describe());
    }
    let done = run_within(bed.command(&["get", "service", "cache.attr"]).stdout(Stdio::piped()), PATIENCE);
    assert_eq!(done.stdout.trim(), "7");
    bed.end(&mut child);
}

/// Unless a unit says otherwise, systemd listens to no other process.
#[test]
fn the_process_that_systemd_starts_is_the_one_that_speaks() {
    let bed = Bed::new(false);
    sockopt::set_socket_passcred(&bed.socket, true).unwrap();
    let mut child = spawn(&mut bed.command(&["mount", "-f", "service"])).unwrap();
    let (mut text, mut space) = ([0; 4096], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&bed.socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::empty()).unwrap();
    assert!(text.starts_with(b"READY=1"));
    let speaker = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
        _ => None,
    });
    assert_eq!(speaker, Some(rustix::process::Pid::from_child(&child)));
    bed.end(&mut child);
}

#[test]
fn systemd_accepts_the_units() {
    ["canopy@", "canopy-tier@", "canopy-jobs"].into_iter().for_each(accepts);
}

/// The exposure of each unit as systemd-analyze rates it, in tenths: what its work needs, and no more. Whoever adds to a unit
/// what raises it, says there why.
#[test]
fn the_units_are_as_tight_as_their_work_allows() {
    for (name, most) in [("canopy@", 60), ("canopy-tier@", 25), ("canopy-jobs", 35)] {
        let scratch = ScratchDir::new("canopy-unit-", &[]);
        let unit = scratch.path(&unit_file(name));
        fs::write(&unit, unit_text(name)).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager", &format!("--threshold={most}")]).arg(&unit);
        let done = run_within(&mut command, PATIENCE);
        assert!(done.success() && done.stdout.contains("Overall exposure"), "{name}: {}", done.describe());
    }
}

/// With a mount namespace of its own, the unit would mount a pool that nobody else sees; with what concerns devices, users
/// could make none. All of these make such a namespace (systemd.exec(5)).
#[test]
fn the_unit_that_mounts_stays_in_the_namespaces_of_the_machine() {
    let text = unit_text("canopy@");
    let set: Vec<&str> = text.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key).collect();
    for forbidden in [
        "Protect",
        "ReadOnly",
        "ReadWrite",
        "Inaccessible",
        "ExecPaths",
        "NoExecPaths",
        "Temporary",
        "Bind",
        "Root",
        "Mount",
        "Extension",
        "Private",
        "PrivateMounts",
        "LogNamespace",
        "ProcSubset",
        "StateDirectory",
        "DynamicUser",
        "Device",
        "RestrictSUIDSGID",
        "User",
        "JoinsNamespaceOf",
        "NetworkNamespacePath",
        "IPAddress",
    ] {
        assert!(!set.iter().any(|key| key.starts_with(forbidden)), "{forbidden}");
    }
}

/// Returns the name of a unit's file, for an instance if it is a template.
fn unit_file(name: &str) -> String {
    if name.ends_with('@') { format!("{name}service.service") } else { format!("{name}.service") }
}

/// Returns a unit that names the program where this machine has it, without the manual page, which may not be here.
fn unit_text(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../dist/{name}.service"));
    let text = fs::read_to_string(file).unwrap().replace("/usr/bin/canopy", program().to_str().unwrap());
    text.lines().filter(|line| !line.starts_with("Documentation=")).collect::<Vec<_>>().join("\n")
}

fn accepts(name: &str) {
    let scratch = ScratchDir::new("canopy-unit-", &[]);
    let unit = scratch.path(&unit_file(name));
    fs::write(&unit, unit_text(name)).unwrap();
    let mut command = Command::new("systemd-analyze");
    let done = run_within(command.args(["verify", "--man=no"]).arg(&unit), PATIENCE);
    let about: Vec<&str> = done.stderr.lines().filter(|line| line.contains("canopy")).collect();
    assert!(about.is_empty(), "{}", done.describe());
}

#[test]
fn the_background_daemon_reports_its_pid() {
    let bed = Bed::new(true);
    let mut parent = spawn(&mut bed.command(&["mount", "service"])).unwrap();
    let message = bed.message();
    assert_eq!(message[1..], ["READY=1".to_owned(), bed.status()]);
    assert!(wait_within(&mut parent, PATIENCE).is_some_and(|status| status.success()));
    let pid: i32 = message[0].strip_prefix("MAINPID=").unwrap().parse().unwrap();
    assert_eq!(proc::process(pid).unwrap().name, "canopy");
    assert!(pid != i32::try_from(parent.id()).unwrap());
    // The daemon reports its end, whatever causes it.
    let done = run_unless_busy(&mut bed.command(&["umount", "service"]), PATIENCE);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(bed.message(), ["STOPPING=1"]);
}

#[test]
fn a_start_that_fails_is_never_ready() {
    let bed = Bed::new(false);
    for args in [["mount", "-f", "none"], ["mount", "-o", "frob"]] {
        let done = run_within(&mut bed.command(&args), PATIENCE);
        assert!(done.code() == Some(1) && bed.no_message(), "{args:?}: {}", done.describe());
    }
    fs::remove_dir(bed.scratch.path("b")).unwrap();
    for args in [&["mount", "service"][..], &["mount", "-f", "service"]] {
        let done = run_within(&mut bed.command(args), PATIENCE);
        assert!(done.code() == Some(1) && bed.no_message(), "{args:?}: {}", done.describe());
    }
}

#[test]
fn waiting_for_branches_extends_the_start_timeout() {
    let bed = Bed::new(false);
    let args = ["mount", "-f", "-o", "branches-mount-timeout=1", "service"];
    let mut child = spawn(&mut bed.command(&args)).unwrap();
    assert_eq!(bed.message(), ["EXTEND_TIMEOUT_USEC=91000000", "STATUS=waiting for branches"]);
    assert_eq!(bed.message(), ["READY=1".to_owned(), bed.status()]);
    bed.end(&mut child);
}

#[test]
fn an_unusable_notify_socket_is_ignored() {
    let bed = Bed::new(false);
    for name in ["@nobody-has-this", "vsock:2:1", ""] {
        let mut command = bed.command(&["mount", "service"]);
        let done = run_within(command.env("NOTIFY_SOCKET", name), PATIENCE);
        assert!(done.success(), "{name}: {}", done.describe());
        let done = run_unless_busy(bed.command(&["umount", "service"]).env_remove("NOTIFY_SOCKET"), PATIENCE);
        assert!(done.success(), "{name}: {}", done.describe());
    }
}
