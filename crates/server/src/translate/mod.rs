pub(crate) mod convert;
