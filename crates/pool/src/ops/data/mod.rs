//! Operations on open files.

pub(crate) mod apart;
pub(crate) mod cow;
pub(crate) mod io;
pub(crate) mod open;
