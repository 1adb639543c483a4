//! The commands that ask and write. `canopy doctor` is in the program itself, because it asks pools for their status.

pub mod ask;
pub mod fix;
pub mod init;
pub mod migrate;
