//! Between the kernel's protocol and the pool: `convert` converts values, `operation` lists the properties of each
//! operation.

pub(crate) mod convert;
pub(crate) mod operation;
