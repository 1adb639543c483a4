//! Where the log goes.

use crate::error::Error;
use crate::names;
use std::io::IsTerminal;
use std::path::Path;
use syslog_tracing::{Facility, Options, Syslog};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the foreground: lines with times on stderr.
    Stderr,
    /// As a daemon: the journal, or syslog where there is none. A machine with neither gets none.
    System,
}

/// Starts logging. What is logged is told by `CANOPY_LOG` or `RUST_LOG`, in the form of
/// tracing's EnvFilter (`debug`, or `info,canopy_fuse=trace`); otherwise from info upwards.
pub fn start(place: Place) -> Result<(), Error> {
    let registry = tracing_subscriber::registry().with(filter()?);
    match place {
        Place::Stderr => {
            let layer = fmt::layer().compact().with_target(false).with_writer(std::io::stderr);
            registry.with(layer.with_ansi(std::io::stderr().is_terminal())).init();
        }
        Place::System => to_system(registry),
    }
    Ok(())
}

fn to_system(registry: tracing_subscriber::layer::Layered<EnvFilter, Registry>) {
    if let Ok(journal) = tracing_journald::layer() {
        registry.with(journal.with_syslog_identifier(names::own().as_str().into())).init();
    } else if Path::new("/dev/log").exists()
        && let Some(syslog) = Syslog::new(names::own().as_c_str(), Options::LOG_PID, Facility::Daemon)
    {
        // Time and level are syslog's own business.
        let layer =
            fmt::layer().compact().without_time().with_level(false).with_target(false).with_ansi(false);
        registry.with(layer.with_writer(syslog)).init();
    }
}

fn filter() -> Result<EnvFilter, Error> {
    for variable in ["CANOPY_LOG", "RUST_LOG"] {
        if let Ok(text) = std::env::var(variable)
            && !text.is_empty()
        {
            return EnvFilter::try_new(&text).map_err(|error| Error::Environment {
                variable,
                why: format!("'{text}' is not a log filter ({error})"),
            });
        }
    }
    Ok(EnvFilter::new("info"))
}
