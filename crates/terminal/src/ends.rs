//! The end of a command that stays.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::mpsc::{Receiver, channel};

/// Returns what is disconnected when a signal arrives that asks the program to end.
///
/// # Errors
/// If signals cannot be waited for.
pub fn ends() -> io::Result<Receiver<()>> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let (ends, ended) = channel();
    std::thread::spawn(move || {
        signals.forever().next();
        drop(ends);
    });
    Ok(ended)
}
