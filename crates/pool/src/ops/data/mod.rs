//! Operations on open files.

pub(crate) mod cow;
mod create;
pub(crate) mod detach;
pub(crate) mod io;
mod mapped;
pub(crate) mod open;
