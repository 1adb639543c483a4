//! The commands that ask and write, and the one that explains options. `canopy doctor` is in the program itself, because it asks pools for their status.

pub mod ask;
pub mod fix;
pub mod init;
pub mod migrate;
pub mod options;
