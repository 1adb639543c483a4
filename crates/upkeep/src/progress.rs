//! How far a command is: a line with the rate and the time left on a terminal, lines of text elsewhere.

use crate::output::{print, shown};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

const LINE: &str = "{percent:>3}% {bytes}/{total_bytes} {bytes_per_sec} {eta} left {wide_msg}";
const COUNT: &str = "{human_pos} checked {rate} {wide_msg}";
const TICK: Duration = Duration::from_millis(500);

/// The progress of a command, in bytes.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    quiet: bool,
}

impl Progress {
    pub(crate) fn new(all: u64, quiet: bool) -> Progress {
        if quiet {
            return Progress { bar: ProgressBar::hidden(), quiet };
        }
        let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(LINE) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Progress { bar, quiet }
    }

    /// Of things of which nobody knows how many there are.
    pub(crate) fn counting(quiet: bool) -> Progress {
        let progress = Progress::new(0, quiet);
        if !quiet {
            let rate = |state: &ProgressState, text: &mut dyn Write| {
                let _ = write!(text, "{:.0}/s", state.per_sec());
            };
            if let Ok(style) = ProgressStyle::with_template(COUNT) {
                progress.bar.set_style(style.with_key("rate", rate));
            }
            progress.bar.unset_length();
        }
        progress
    }

    /// There is no terminal, or nobody wants to see it.
    pub(crate) fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// Shows what the command is busy with.
    pub(crate) fn show(&self, path: &Path) {
        self.bar.set_message(shown(path));
    }

    pub(crate) fn position(&self) -> u64 {
        self.bar.position()
    }

    pub(crate) fn set_position(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    pub(crate) fn inc(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Prints a line where there is no terminal.
    pub(crate) fn tell(&self, line: &str) {
        if self.is_hidden() && !self.quiet {
            print(&format!("{line}\n"));
        }
    }

    /// Lets something be printed above the line.
    pub(crate) fn around(&self, prints: impl FnOnce()) {
        self.bar.suspend(prints);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
