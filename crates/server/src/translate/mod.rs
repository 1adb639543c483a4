//! Between the words of the kernel's protocol and those of the pool: `convert` turns values of one into the other's,
//! `operation` tells of each operation what it is.

pub(crate) mod convert;
pub(crate) mod operation;
