//! The log, and the trace of requests.

use crate::error::Error;
use arc_swap::ArcSwapOption;
use canopy_config::program_name;
use canopy_fuse::transport::TRACE_TARGET as TARGET;
use canopy_sys::shown::legible;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use syslog_tracing::{Facility, Options, Syslog};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// For the foreground: lines with timestamps on stderr.
    Stderr,
    /// For a daemon: the journal, or syslog if there is none. Without either, nothing is logged.
    System,
}

/// What can change while the program runs.
struct Filters {
    /// The filter of the main log while requests are not traced.
    default_filter: String,
    main: Handle<EnvFilter, Registry>,
    /// The filter of the trace file: requests or nothing.
    file: Handle<Targets, Registry>,
}

static FILTERS: OnceLock<Filters> = OnceLock::new();
static FILE: ArcSwapOption<File> = ArcSwapOption::const_empty();

/// Starts logging. `CANOPY_LOG` or `RUST_LOG` select what is logged, in the format of tracing's EnvFilter (`debug`,
/// or `info,canopy_fuse=trace`). The default is `info`.
pub fn start(destination: Destination) -> Result<(), Error> {
    let default_filter = default_filter()?;
    let (main_filter, main) = reload::Layer::new(EnvFilter::new(&default_filter));
    let (file_filter, file) = reload::Layer::new(Targets::new());
    let mut layers = Vec::new();
    layers.extend(layer(destination).map(|layer| layer.with_filter(main_filter).boxed()));
    let to_file = fmt::layer().compact().with_level(false).with_target(false).with_ansi(false);
    layers.push(to_file.with_writer(ToFile).with_filter(file_filter).boxed());
    tracing_subscriber::registry().with(layers).init();
    let _ = FILTERS.set(Filters { default_filter, main, file });
    Ok(())
}

/// Closes the connection to syslog, which is opened again when something is logged. For a process that is about to fork
/// another which shares its descriptors: each would close and reopen the connection under a number that the other knows.
pub fn before_fork() {
    canopy_sys::process::syslog::reopen(program_name::current().as_c_str());
}

type Boxed = Box<dyn Layer<Registry> + Send + Sync>;

fn layer(destination: Destination) -> Option<Boxed> {
    if destination == Destination::Stderr {
        let layer = fmt::layer().compact().with_target(false).with_writer(|| Legible(io::stderr()));
        return Some(layer.with_ansi(io::stderr().is_terminal()).boxed());
    }
    if let Ok(journal) = tracing_journald::layer() {
        return Some(journal.with_syslog_identifier(program_name::current().as_str().into()).boxed());
    }
    if !Path::new("/dev/log").exists() {
        return None;
    }
    let syslog = Syslog::new(program_name::current().as_c_str(), Options::LOG_PID, Facility::Daemon)?;
    // Syslog adds the time and the level.
    let layer = fmt::layer().compact().without_time().with_level(false).with_target(false).with_ansi(false);
    Some(layer.with_writer(syslog).boxed())
}

/// Returns the filter from the environment.
fn default_filter() -> Result<String, Error> {
    for variable in ["CANOPY_LOG", "RUST_LOG"] {
        if let Ok(text) = std::env::var(variable)
            && !text.is_empty()
        {
            return match EnvFilter::try_new(&text) {
                Ok(_) => Ok(text),
                Err(error) => Err(Error::Environment {
                    variable,
                    why: format!("'{text}' is not a log filter ({error})"),
                }),
            };
        }
    }
    Ok("info".into())
}

/// Opens the trace file for appending; `None` for an empty path.
///
/// Errors: those of open(2); `ENXIO` for a pipe without a reader.
pub fn open(path: &Path) -> io::Result<Option<Arc<File>>> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let mut options = File::options();
    // Only root may read the names in it. Opening a pipe must not block.
    options.append(true).create(true).mode(0o600).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    options.open(path).map(|file| Some(Arc::new(file)))
}

/// Turns the trace of all requests on or off; it goes to `file`, or to the main log.
pub fn trace(on: bool, file: Option<Arc<File>>) {
    let Some(filters) = FILTERS.get() else { return };
    let to_file = on && file.is_some();
    FILE.store(file);
    let mut main = EnvFilter::new(&filters.default_filter);
    if on
        && !to_file
        && let Ok(requests) = format!("{TARGET}=trace").parse()
    {
        main = main.add_directive(requests);
    }
    let file = if to_file { Targets::new().with_target(TARGET, Level::TRACE) } else { Targets::new() };
    // Fails only when logging has ended.
    let _ = filters.main.reload(main);
    let _ = filters.file.reload(file);
}

/// Writes lines with what misleads in names escaped, wherever the names come from.
struct Legible<W>(W);

impl<W: Write> Write for Legible<W> {
    /// A line comes in one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(legible(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes to the current trace file.
struct ToFile;

impl<'a> MakeWriter<'a> for ToFile {
    type Writer = Box<dyn Write>;

    fn make_writer(&'a self) -> Self::Writer {
        match FILE.load_full() {
            Some(file) => Box::new(Legible(file)),
            None => Box::new(io::sink()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::level_filters::LevelFilter;

    /// Events without a listener are not even evaluated.
    #[test]
    fn request_events_are_enabled_only_while_tracing() {
        start(Destination::Stderr).unwrap();
        let home = tempfile::tempdir().unwrap();
        for (on, path) in [(false, ""), (true, ""), (false, "log"), (true, "log"), (false, "")] {
            let file = if path.is_empty() { None } else { open(&home.path().join(path)).unwrap() };
            trace(on, file);
            let expected = if on { LevelFilter::TRACE } else { LevelFilter::INFO };
            assert_eq!(LevelFilter::current(), expected, "{on} {path}");
            assert!(!tracing::enabled!(target: "canopy_fuse", Level::TRACE));
            assert_eq!(tracing::enabled!(target: TARGET, Level::TRACE), on);
        }
    }
}
