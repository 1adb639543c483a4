//! The pages. Each is a function of what was found out; text that comes from pools is escaped by `maud`, and names are made
//! legible before.

pub mod act;
pub mod doctor;
pub mod entry;
pub mod files;
pub mod frame;
pub mod jobs;
pub mod log;
pub mod options;
pub mod overview;
pub mod parts;
pub mod pool;
pub mod run;
pub mod setup;
pub mod trash;
pub mod warnings;
pub mod watch;
