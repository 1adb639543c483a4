//! The operations, one file per group. Each is a method of [`Pool`](crate::Pool).

pub(crate) mod apart;
pub(crate) mod attr;
pub(crate) mod cow;
mod dir;
mod exdev;
pub(crate) mod explain;
mod export;
pub(crate) mod io;
pub(crate) mod ioctl;
mod link;
pub(crate) mod locate;
pub(crate) mod lookup;
pub(crate) mod open;
pub(crate) mod readdir;
pub(crate) mod rename;
mod statfs;
mod xattr;
