//! `canopy init`, `migrate` and `doctor`, from scripts and at a terminal; the commands of the quick start. Needs root.

#![forbid(unsafe_code)]

mod boot;
mod doctor;
mod init;
mod manual;
mod migrate;

use canopy_testkit::cmd::{wait_until, wait_within};
use canopy_testkit::{CliBed, PATIENCE};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

fn bed(dirs: &[&str]) -> CliBed {
    let dirs = [dirs, &["etc"]].concat();
    let bed = CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-setup-", &dirs).with_config_dir("etc");
    bed.write("fstab", "# mine\n/dev/sda1 / ext4 defaults 0 1");
    bed
}

/// Runs `canopy LINE` in a pseudo-terminal. Each answer is typed when the text before it has appeared; after the last one
/// the input ends. Returns the exit status and what the terminal shows.
fn at_terminal(
    bed: &CliBed,
    line: &str,
    answers: &[(&str, &str)],
    variables: &[(&str, &str)],
) -> (Option<i32>, String) {
    let words: Vec<String> = bed.words(line);
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--flush", "--command"]);
    command.arg(format!("{} {}", bed.program().display(), words.join(" "))).arg("/dev/null");
    command.env("CANOPY_CONFIG_DIR", bed.path("etc")).env_remove("NO_COLOR").env("TERM", "xterm");
    // With it, colours are for a log that shows them.
    command.env_remove("CI");
    command.envs(variables.iter().copied()).current_dir(bed.dir());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script(1)");
    let mut output = child.stdout.take().expect("its output");
    let shown = Arc::new(Mutex::new(Vec::new()));
    let reader = std::thread::spawn({
        let shown = Arc::clone(&shown);
        move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                shown.lock().expect("the screen").extend_from_slice(&buffer[..length]);
            }
        }
    });
    let screen = || String::from_utf8_lossy(&shown.lock().expect("the screen")).into_owned();
    let mut input = child.stdin.take().expect("its input");
    let mut seen = 0;
    for (prompt, answer) in answers {
        let appears = || screen().get(seen..).and_then(|new| new.find(prompt));
        assert!(wait_until(PATIENCE, || appears().is_some()), "no {prompt:?} in {}", screen());
        seen += appears().expect("the prompt") + prompt.len();
        input.write_all(answer.as_bytes()).expect("an answer");
    }
    let status = match answers.last() {
        // The end of the input is typed, too.
        None => {
            assert!(wait_until(PATIENCE, || screen().contains('?')), "{}", screen());
            input.write_all(b"\x04").expect("the end");
            wait_within(&mut child, PATIENCE)
        }
        Some(_) => wait_within(&mut child, PATIENCE),
    };
    drop(input);
    reader.join().expect("the reader");
    (status.expect("its end").code(), screen())
}

/// Checks that a text fits a terminal and has no escape sequences.
#[track_caller]
fn assert_plain(text: &str) {
    assert!(!text.contains('\x1b'), "{text}");
    // Lines to be copied are not wrapped.
    let prose = text.lines().filter(|line| !line.starts_with(['+', '-']) && !line.starts_with("    "));
    for line in prose {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
    }
}
