//! `canopy top`: what a pool does, live.
//!
//! One thread draws. The others wait: for keys, for signals, and for the answers of the pool, which may take long.

mod bars;
mod rates;
mod screen;
mod view;

use self::rates::History;
use self::screen::Screen;
use crate::error::{Error, Result};
use crate::observe::{Observation, Observer, Published, all_pools, mountpoint, pool_at};
use canopy_control::OsText;
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::Signals;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Show live what a pool and its branches do
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct TopArgs {
    /// A pool's mountpoint or name [default: the only pool]
    #[arg(value_name = "POOL")]
    pub mount: Option<PathBuf>,
}

const NOTES: &str = "\
Operations by kind with their times, and for each branch what comes to the
daemon, what its disks do, its free space and its condition. It needs a
terminal; canopy metrics prints the same figures for programs.

Keys: q quits, ? explains the columns.

Examples:
  canopy top
  canopy top /pool";

/// The time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the free space of branches counts.
const SPACE_COUNTS: Duration = Duration::from_secs(5);

enum Event {
    Key(u8),
    Resized,
    Suspend,
    End,
    Seen(Result<Box<Observation>>),
}

/// Shows a pool until the user leaves.
///
/// # Errors
/// Without a terminal, or if there is no such pool.
pub fn top(args: &TopArgs, published: Published) -> Result<()> {
    let pool = chosen(args)?;
    let mut screen = Screen::open()?;
    let (sender, events) = channel();
    forward_signals(sender.clone())?;
    forward_keys(sender.clone());
    look_again_and_again(Observer::new(pool.clone(), published, SPACE_COUNTS), sender);
    let glyphs = bars::Glyphs::of_terminal();
    let (mut history, mut helps) = (History::default(), false);
    let name = OsText::from(pool.as_path());
    let ended = |why: io::Error| Error::System { what: "the terminal is gone", why };
    loop {
        let size = screen.size();
        let lines = if helps { view::help() } else { view::pool(&name, &history, glyphs, size) };
        screen.draw(&lines, size).map_err(ended)?;
        match events.recv() {
            // Ctrl-C, as a key.
            Ok(Event::Key(b'q' | b'Q' | 3) | Event::End) | Err(_) => return Ok(()),
            // Ctrl-Z.
            Ok(Event::Key(26) | Event::Suspend) => screen.suspend().map_err(ended)?,
            Ok(Event::Key(key)) => helps = !helps && key == b'?',
            Ok(Event::Resized) => {}
            Ok(Event::Seen(seen)) => history.add(*seen?),
        }
    }
}

fn chosen(args: &TopArgs) -> Result<PathBuf> {
    match &args.mount {
        Some(word) => {
            let pool = mountpoint(word)?;
            pool_at(&pool)?.map(|_| pool.clone()).ok_or(Error::NoPool(pool))
        }
        None => match &mut all_pools()?[..] {
            [] => Err(Error::NoPools),
            [pool] => Ok(std::mem::take(pool)),
            [first, ..] => Err(Error::ManyPools(std::mem::take(first))),
        },
    }
}

fn forward_signals(events: Sender<Event>) -> Result<()> {
    let signals = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH];
    let mut signals = Signals::new(signals).map_err(Error::system("cannot wait for signals"))?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let event = match signal {
                SIGWINCH => Event::Resized,
                SIGTSTP => Event::Suspend,
                _ => Event::End,
            };
            if events.send(event).is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn forward_keys(events: Sender<Event>) {
    std::thread::spawn(move || {
        let mut key = [0];
        loop {
            let event = match io::stdin().read(&mut key) {
                Ok(1) => Event::Key(key[0]),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                _ => Event::End,
            };
            let last = matches!(event, Event::End);
            if events.send(event).is_err() || last {
                return;
            }
        }
    });
}

fn look_again_and_again(mut observer: Observer, events: Sender<Event>) {
    std::thread::spawn(move || {
        loop {
            let next = Instant::now() + PAUSE;
            if events.send(Event::Seen(observer.look().map(Box::new))).is_err() {
                return;
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
}
