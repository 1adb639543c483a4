//! The terminal, while a command draws on the whole of it.
//!
//! What a command does to the terminal is undone on every way out: when the value is dropped, before the message of a panic
//! is written, and while the command is suspended.

use crate::error::{Error, Result};
use anstyle::Style;
use canopy_terminal::fitted;
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::env;
use std::io::{self, Write, stdin, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// To the alternate screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A line: texts with their styles.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Line(pub(super) Vec<(Style, String)>);

impl Line {
    pub(super) fn plain(text: impl Into<String>) -> Line {
        Line::styled(Style::new(), text)
    }

    pub(super) fn styled(style: Style, text: impl Into<String>) -> Line {
        Line(vec![(style, text.into())])
    }

    /// Returns the line at most so wide, with escape sequences if `colours`.
    fn render(&self, mut columns: usize, colours: bool) -> String {
        let mut out = String::new();
        for (style, text) in &self.0 {
            let text = fitted(text, columns);
            columns -= canopy_terminal::width(&text);
            if colours { out.push_str(&canopy_terminal::styled(*style, &text)) } else { out.push_str(&text) }
        }
        out
    }
}

/// The terminal as it was before.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static TAKEN: AtomicBool = AtomicBool::new(false);

pub(super) struct Screen {
    colours: bool,
    /// What is drawn, and at which size.
    drawn: Vec<String>,
    size: (usize, usize),
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// [`Error::NoTerminal`] without a terminal that can place its cursor.
    pub(super) fn open() -> Result<Screen> {
        static HOOK: Once = Once::new();
        let term = env::var("TERM").unwrap_or_default();
        if !isatty(stdin()) || !isatty(stdout()) || matches!(term.as_str(), "" | "dumb") {
            return Err(Error::NoTerminal);
        }
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                leave();
                report(info);
                std::process::exit(101);
            }));
        });
        enter().map_err(Error::system("cannot use the terminal"))?;
        let colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Ok(Screen { colours, drawn: Vec::new(), size: (0, 0) })
    }

    /// Returns columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Draws what differs from what is there.
    pub(super) fn draw(&mut self, lines: &[Line], (columns, rows): (usize, usize)) -> io::Result<()> {
        let mut out = String::new();
        if self.size != (columns, rows) {
            (self.size, self.drawn) = ((columns, rows), vec![String::new(); rows]);
            out.push_str("\x1b[2J");
        }
        for (row, before) in self.drawn.iter_mut().enumerate() {
            let now = lines.get(row).map_or_else(String::new, |line| line.render(columns, self.colours));
            if *before != now {
                out.push_str(&format!("\x1b[{};1H{now}\x1b[K", row + 1));
                *before = now;
            }
        }
        write(&out)
    }

    /// Gives the terminal back, stops the process until it is continued, and takes the terminal again.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        leave();
        kill_process(getpid(), Signal::STOP)?;
        self.size = (0, 0);
        enter()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    let before = tcgetattr(stdin())?;
    let mut raw = before.clone();
    raw.make_raw();
    *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
    TAKEN.store(true, Ordering::SeqCst);
    tcsetattr(stdin(), OptionalActions::Now, &raw)?;
    write(ENTER)
}

/// Gives the terminal back, if it is taken.
fn leave() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // A terminal that is gone needs nothing.
    let _ = write(LEAVE);
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_to_the_width() {
        let line = Line(vec![(canopy_terminal::BAD, "red".into()), (Style::new(), " and plain".into())]);
        assert_eq!(line.render(80, false), "red and plain");
        assert_eq!(line.render(6, false), "red an");
        assert_eq!(line.render(2, true), "\x1b[31mre\x1b[0m");
    }
}
