//! The pages. Each is a function of what was found out; text that comes from pools is escaped by `maud`, and names are made
//! legible before.

pub mod entry;
pub mod files;
pub mod frame;
pub mod log;
pub mod options;
pub mod overview;
pub mod parts;
pub mod pool;
pub mod warnings;
