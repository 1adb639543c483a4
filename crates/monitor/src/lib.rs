//! Looks at running pools from outside, as any process can: `canopy metrics`, `canopy top`, `canopy log` and `canopy collect-info`; and at the disks
//! below their branches. `canopy web` starts the program that does so in the browser.
//!
//! Whatever a disk or a daemon may not answer is asked by a child process with a deadline ([`probe`]), so that a command
//! neither hangs nor stays behind.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod collect_info;
pub mod deadline_command;
pub mod disks;
mod error;
mod exporter;
mod exposition;
pub mod families;
mod log;
mod metrics;
mod observe;
pub mod probe;
pub mod read_cache;
pub mod sleep;
mod top;
mod web;

pub use collect_info::{CollectInfoArgs, collect_info};
pub use error::{Error, Result};
pub use log::{LogArgs, Servers, log};
pub use metrics::{MetricsArgs, metrics};
pub use observe::{BranchSpace, DaemonFigures, Published};
pub use top::{TopArgs, top};
pub use web::{WebArgs, web};
