//! Operations on open files.

pub mod cow;
pub mod create;
pub(crate) mod detach;
pub mod io;
pub mod mapped;
pub(crate) mod mirrors;
pub mod open;
