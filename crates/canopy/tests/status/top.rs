//! `canopy top` in a real pseudo-terminal: what is on the screen, and that the terminal is given back.

use super::rig::{BINARY, canopy};
use canopy_testkit::cmd::{spawn, wait_until, wait_within};
use canopy_testkit::{LoopFs, PATIENCE, Pool};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// `canopy` in a pseudo-terminal of its own, below a shell.
struct Terminal {
    shell: Child,
    keys: File,
    /// Stays open, so that its size can be set.
    slave: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// What the terminal shows.
struct Shown {
    lines: Vec<String>,
    alternate: bool,
    cursor: bool,
}

impl Terminal {
    fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>, size: (u16, u16)) -> Terminal {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal");
        let name = ptsname(&master, Vec::new()).expect("its name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("the other end");
        set_size(&slave, size);
        // setsid makes it the controlling terminal, so that programs are told of a new size. The kernel resets a terminal
        // whose first process ends; that is the shell, which first tells how it is.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "sh", "-c", "\"$@\"; status=$?; stty -a; exit $status", "sh", BINARY]);
        command.args(arguments).env("TERM", "xterm").env_remove("NO_COLOR");
        let end = || slave.try_clone().expect("a descriptor");
        let shell = spawn(command.stdin(end()).stdout(end()).stderr(end())).expect("setsid(1)");
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut output = File::from(master);
        let keys = output.try_clone().expect("a descriptor");
        let reader = std::thread::spawn({
            let written = Arc::clone(&written);
            move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = output.read(&mut buffer) {
                    written.lock().unwrap().extend_from_slice(&buffer[..length]);
                }
            }
        });
        Terminal { shell, keys, slave, written, reader: Some(reader) }
    }

    fn shown(&self) -> Shown {
        let bytes = self.written.lock().unwrap().clone();
        emulate(&String::from_utf8_lossy(&bytes))
    }

    /// Waits until the screen is as it should be, and returns it.
    #[track_caller]
    fn wait_for(&self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let in_time = wait_until(PATIENCE, || is_so(&self.shown().lines));
        let lines = self.shown().lines;
        assert!(in_time, "no {what}:\n{}", lines.join("\n"));
        lines
    }

    /// Returns the process of the program.
    fn program(&self) -> Pid {
        let shell = self.shell.id();
        let children =
            fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).expect("its children");
        let child = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        child.and_then(Pid::from_raw).expect("the program")
    }

    fn press(&mut self, key: &str) {
        self.keys.write_all(key.as_bytes()).expect("a key");
    }

    /// Waits until the program has ended, and checks that the terminal is as it was.
    #[track_caller]
    fn end(mut self) -> ExitStatus {
        let status = wait_within(&mut self.shell, PATIENCE).expect("its end");
        drop(self.slave);
        drop(self.keys);
        // The last end is closed, so that reading ends.
        self.reader.take().expect("the reader").join().expect("the reader");
        let shown = emulate(&String::from_utf8_lossy(&self.written.lock().unwrap()));
        assert!(!shown.alternate && shown.cursor);
        let modes: Vec<&str> = shown.lines.iter().flat_map(|line| line.split_whitespace()).collect();
        for mode in ["icanon", "echo", "isig", "opost"] {
            assert!(modes.contains(&mode), "{mode} is off: {:#?}", shown.lines);
        }
        status
    }
}

fn set_size(terminal: &OwnedFd, (columns, rows): (u16, u16)) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a size");
}

/// Interprets what a program has written, as far as this one goes; anything else is an error.
fn emulate(text: &str) -> Shown {
    let (mut lines, mut alternate, mut cursor) = (vec![Vec::new(); 100], false, true);
    let (mut row, mut column) = (0, 0);
    let mut rest = text.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '\x1b' if rest.next_if_eq(&'[').is_some() => {
                let mut numbers = String::new();
                let last = loop {
                    match rest.next() {
                        Some(c) if c.is_ascii_digit() || ";?".contains(c) => numbers.push(c),
                        Some(c) => break c,
                        // The rest has not been read yet.
                        None => break 'm',
                    }
                };
                match (last, numbers.as_str()) {
                    ('m', _) => {}
                    ('h' | 'l', "?1049") => alternate = last == 'h',
                    ('h' | 'l', "?25") => cursor = last == 'h',
                    ('J', "2") => lines.iter_mut().for_each(Vec::clear),
                    ('K', "") => lines[row].truncate(column),
                    ('H', place) => {
                        let (to_row, to_column) = place.split_once(';').expect("a place");
                        row = to_row.parse::<usize>().expect("a row") - 1;
                        column = to_column.parse::<usize>().expect("a column") - 1;
                    }
                    other => panic!("{other:?} in {text:?}"),
                }
            }
            // As above.
            '\x1b' if rest.peek().is_none() => {}
            '\n' => row += 1,
            '\r' => column = 0,
            c => {
                assert!(!c.is_control(), "{c:?} in {text:?}");
                let line: &mut Vec<char> = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
        }
    }
    let lines = lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned());
    Shown { lines: lines.collect(), alternate, cursor }
}

fn line<'a>(lines: &'a [String], start: &str) -> Option<&'a String> {
    lines.iter().find(|line| line.starts_with(start))
}

#[test]
fn a_screen_of_80_columns_shows_operations_and_branches() {
    let disks = [LoopFs::ext4(64 << 20), LoopFs::tmpfs(64 << 20)];
    let pool =
        Pool::builder(BINARY).branches(disks.iter().map(LoopFs::path)).option("minfreespace=0").mount();
    let mut terminal = Terminal::run(["top".as_ref(), pool.path().as_os_str()], (80, 24));
    terminal.wait_for("branches", |lines| {
        line(lines, "BRANCH").is_some() && lines.iter().filter(|line| line.ends_with(" ok")).count() == 2
    });
    for number in 0..123 {
        fs::create_dir(pool.path().join(format!("dir{number}"))).unwrap();
    }
    let lines = terminal
        .wait_for("operations", |lines| line(lines, "mkdir").is_some_and(|line| line.ends_with(" 123")));
    // A long path is cut off.
    let path: String = pool.path().to_str().unwrap().chars().take(40).collect();
    assert!(lines[0].starts_with("canopy top") && lines[0].contains(&path), "{}", lines[0]);
    assert_eq!(lines[0].find("? help"), Some(74), "{}", lines[0]);
    assert!(line(&lines, "OPERATION").is_some_and(|line| line.contains("AVERAGE")), "{lines:#?}");
    for (disk, line) in disks.iter().zip(lines.iter().skip_while(|line| !line.starts_with("BRANCH")).skip(1))
    {
        let name = disk.path().file_name().unwrap().to_str().unwrap();
        assert!(line.contains(&name[name.len().saturating_sub(8)..]), "{name}: {line}");
    }
    assert!(
        lines[24..].iter().all(String::is_empty) && lines.iter().all(|line| line.len() <= 80),
        "{lines:#?}"
    );

    terminal.press("?");
    terminal.wait_for("help", |lines| lines.iter().any(|line| line.starts_with("  DISK R/S")));
    terminal.press("x");
    terminal.wait_for("branches", |lines| line(lines, "BRANCH").is_some());
    set_size(&terminal.slave, (100, 30));
    terminal.wait_for("wider title", |lines| lines[0].find("? help") == Some(94));
    set_size(&terminal.slave, (40, 8));
    let lines = terminal.wait_for("narrower title", |lines| lines[0].find("? help") == Some(34));
    assert!(
        lines[8..].iter().all(String::is_empty) && lines.iter().all(|line| line.len() <= 40),
        "{lines:#?}"
    );
    terminal.press("q");
    assert!(terminal.end().success());
    pool.umount();
}

#[test]
fn the_terminal_is_given_back_on_every_way_out() {
    let disk = LoopFs::tmpfs(16 << 20);
    let pool = Pool::builder(BINARY).branch(disk.path()).option("minfreespace=0").mount();
    let run = || {
        let terminal = Terminal::run(["top".as_ref(), pool.path().as_os_str()], (80, 24));
        terminal.wait_for("branches", |lines| line(lines, "BRANCH").is_some());
        terminal
    };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let terminal = run();
        assert!(terminal.shown().alternate && !terminal.shown().cursor);
        kill_process(terminal.program(), signal).unwrap();
        assert!(terminal.end().success(), "{signal:?}");
    }
    let mut terminal = run();
    terminal.press("\x03");
    assert!(terminal.end().success());

    // Suspended, the shell has the terminal; then the program takes it again.
    let mut terminal = run();
    terminal.press("\x1a");
    assert!(wait_until(PATIENCE, || !terminal.shown().alternate));
    let program = terminal.program();
    assert!(wait_until(PATIENCE, || {
        // Continued before it has stopped, it would stop all the same.
        let stat = fs::read_to_string(format!("/proc/{}/stat", program.as_raw_nonzero())).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }));
    kill_process(program, Signal::CONT).unwrap();
    assert!(wait_until(PATIENCE, || terminal.shown().alternate && !terminal.shown().cursor));
    terminal.press("q");
    assert!(terminal.end().success());

    // A pool that is gone is shown as such.
    let mut terminal = run();
    pool.umount();
    terminal.wait_for("message", |lines| lines[1].starts_with("the pool is not mounted"));
    terminal.press("q");
    assert!(terminal.end().success());
}

#[test]
fn without_a_terminal_or_a_pool_there_is_one_line() {
    let disk = LoopFs::tmpfs(16 << 20);
    let pool = Pool::builder(BINARY).branch(disk.path()).option("minfreespace=0").mount();
    let done = canopy(["top".as_ref(), pool.path().as_os_str()]);
    assert_eq!((done.code(), done.stdout.as_str()), (Some(1), ""));
    let expected = "canopy: canopy top needs a terminal (canopy metrics prints the figures once)\n";
    assert_eq!(done.stderr, expected);
    let done = canopy(["top".as_ref(), disk.path().as_os_str()]);
    assert!(done.stderr.contains("is not the mountpoint of a pool") && done.stderr.lines().count() == 1);
    pool.umount();
}
